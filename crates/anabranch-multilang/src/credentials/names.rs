//! Parser of provider lists in the form `Class|argument|key=value,Class…`.

use std::fmt;

/// A source of credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum Provider {
    /// Environment variables, profile, web identity, ECS container and EC2 instance, in this order.
    Default,
    /// The variables `AWS_ACCESS_KEY_ID` and so on.
    Environment,
    /// A profile of the shared files. `None` selects the profile of `AWS_PROFILE`.
    Profile(Option<String>),
    /// A web identity token file, as in EKS.
    WebIdentity,
    /// The endpoint in the container's variables, as in ECS.
    Container,
    /// The role of the EC2 instance.
    Instance,
    /// A role, assumed with the credentials of [`Provider::Default`].
    AssumeRole(Role),
    /// Keys in the file itself, for tests.
    Static {
        /// Access key id.
        key: String,
        /// Secret access key.
        secret: String,
        /// Session token.
        token: Option<String>,
    },
}

/// A role to assume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Role {
    /// ARN of the role.
    pub arn: String,
    /// Session name.
    pub session: String,
    /// External id that the role's owner requires.
    pub external_id: Option<String>,
    /// STS endpoint, if not AWS's own.
    pub endpoint: Option<String>,
    /// STS region, if not the daemon's.
    pub region: Option<String>,
}

/// A parsed list of providers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Parsed {
    /// Providers in order. The first with credentials is used.
    pub providers: Vec<Provider>,
    /// Providers that were skipped, with the reasons.
    pub warnings: Vec<String>,
}

/// Error for a list without a usable provider.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no provider can be used ({}): set it to DefaultCredentialsProvider", .why.join("; "))]
pub struct ProviderListError {
    /// One reason per provider.
    pub why: Vec<String>,
}

/// Parses the value of `AwsCredentialsProvider`. As in Java, unknown providers are skipped if
/// others remain.
pub fn parse(text: &str) -> Result<Parsed, ProviderListError> {
    let (mut providers, mut warnings) = (Vec::new(), Vec::new());
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        match one(name, &mut warnings) {
            Ok(provider) => providers.push(provider),
            Err(why) => warnings.push(why),
        }
    }
    if providers.is_empty() {
        return Err(ProviderListError { why: warnings });
    }
    Ok(Parsed { providers, warnings })
}

fn one(text: &str, warnings: &mut Vec<String>) -> Result<Provider, String> {
    let mut words = text.split('|').map(str::trim);
    let class = words.next().unwrap_or_default();
    let args: Vec<&str> = words.collect();
    // A class may include its package.
    let name = class.rsplit('.').next().unwrap_or(class);
    match name {
        "DefaultCredentialsProvider" | "DefaultAWSCredentialsProviderChain" => {
            Ok(Provider::Default)
        }
        "EnvironmentVariableCredentialsProvider" => Ok(Provider::Environment),
        "ProfileCredentialsProvider" => {
            let named = args.first().filter(|name| !name.is_empty());
            Ok(Provider::Profile(named.map(|name| (*name).to_owned())))
        }
        "WebIdentityTokenFileCredentialsProvider" | "WebIdentityTokenCredentialsProvider" => {
            Ok(Provider::WebIdentity)
        }
        "ContainerCredentialsProvider" | "EC2ContainerCredentialsProviderWrapper" => {
            Ok(Provider::Container)
        }
        "InstanceProfileCredentialsProvider" => Ok(Provider::Instance),
        "StsAssumeRoleCredentialsProvider"
        | "KclStsAssumeRoleCredentialsProvider"
        | "STSAssumeRoleSessionCredentialsProvider"
        | "KclSTSAssumeRoleSessionCredentialsProvider" => role(name, &args, warnings),
        "KclStaticCredentialsProvider" | "StaticCredentialsProvider" => keys(name, &args),
        "SystemPropertyCredentialsProvider" | "SystemPropertiesCredentialsProvider" => {
            Err(format!("{name} reads JVM properties, and there is no JVM"))
        }
        _ => Err(format!("{class} is an unknown Java class")),
    }
}

fn keys(name: &str, args: &[&str]) -> Result<Provider, String> {
    let (key, secret, token) = match args {
        [key, secret] => (key, secret, None),
        [key, secret, token] => (key, secret, Some(*token)),
        _ => {
            return Err(format!(
                "{name} must have the form {name}|KEY|SECRET or {name}|KEY|SECRET|TOKEN"
            ));
        }
    };
    Ok(Provider::Static {
        key: (*key).to_owned(),
        secret: (*secret).to_owned(),
        token: token.map(str::to_owned),
    })
}

fn role(name: &str, args: &[&str], warnings: &mut Vec<String>) -> Result<Provider, String> {
    let [arn, session, options @ ..] = args else {
        return Err(format!("{name} must have the form {name}|ROLE_ARN|SESSION_NAME|externalId=…"));
    };
    let mut role = Role {
        arn: (*arn).to_owned(),
        session: (*session).to_owned(),
        external_id: None,
        endpoint: None,
        region: None,
    };
    for option in options {
        match option.split_once('=') {
            Some(("externalId", id)) => role.external_id = Some(id.to_owned()),
            Some(("endpointRegion", region)) => role.region = Some(region.to_owned()),
            Some(("endpoint", place)) => {
                let (endpoint, region) = place.split_once('^').ok_or_else(|| {
                    format!("{name}: endpoint={place} must have the form endpoint=URL^REGION")
                })?;
                let has_scheme =
                    endpoint.starts_with("http://") || endpoint.starts_with("https://");
                let scheme = if has_scheme { "" } else { "https://" };
                role.endpoint = Some(format!("{scheme}{endpoint}"));
                role.region = Some(region.to_owned());
            }
            _ => warnings.push(format!(
                "{name}: {option:?} is ignored: use externalId=, endpoint= and endpointRegion="
            )),
        }
    }
    Ok(Provider::AssumeRole(role))
}

impl fmt::Display for Provider {
    /// Formats the provider as in the file, with secrets hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("DefaultCredentialsProvider"),
            Self::Environment => f.write_str("EnvironmentVariableCredentialsProvider"),
            Self::Profile(None) => f.write_str("ProfileCredentialsProvider"),
            Self::Profile(Some(name)) => write!(f, "ProfileCredentialsProvider|{name}"),
            Self::WebIdentity => f.write_str("WebIdentityTokenFileCredentialsProvider"),
            Self::Container => f.write_str("ContainerCredentialsProvider"),
            Self::Instance => f.write_str("InstanceProfileCredentialsProvider"),
            Self::AssumeRole(Role { arn, session, external_id, endpoint, region }) => {
                write!(f, "StsAssumeRoleCredentialsProvider|{arn}|{session}")?;
                match (endpoint, region) {
                    (Some(endpoint), Some(region)) => write!(f, "|endpoint={endpoint}^{region}")?,
                    (None, Some(region)) => write!(f, "|endpointRegion={region}")?,
                    _ => {}
                }
                let hidden = external_id.as_ref().map_or("", |_| "|externalId=…");
                f.write_str(hidden)
            }
            Self::Static { key, .. } => write!(f, "KclStaticCredentialsProvider|{key}|…"),
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, shown: &str, warnings: usize) {
        let parsed = parse(text).expect("something is left");
        let got: Vec<String> = parsed.providers.iter().map(ToString::to_string).collect();
        assert_eq!((got.join(",").as_str(), parsed.warnings.len()), (shown, warnings), "{text}");
    }

    #[test]
    fn the_names_of_java_stand_for_the_same_sources() {
        check("DefaultCredentialsProvider", "DefaultCredentialsProvider", 0);
        check("DefaultAWSCredentialsProviderChain", "DefaultCredentialsProvider", 0);
        let full = "software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider|dev";
        check(full, "ProfileCredentialsProvider|dev", 0);
        check(
            "ProfileCredentialsProvider , EnvironmentVariableCredentialsProvider,",
            "ProfileCredentialsProvider,EnvironmentVariableCredentialsProvider",
            0,
        );
        let web = "WebIdentityTokenFileCredentialsProvider";
        check(web, web, 0);
        check("KclStaticCredentialsProvider|AKIA|s3cret", "KclStaticCredentialsProvider|AKIA|…", 0);
        check(
            "com.acme.Vault,InstanceProfileCredentialsProvider",
            "InstanceProfileCredentialsProvider",
            1,
        );
    }

    #[test]
    fn a_role_has_an_external_id_and_an_endpoint() {
        let text = "StsAssumeRoleCredentialsProvider|arn:aws:iam::1:role/r|kcl|externalId=x\
                    |endpoint=sts.eu-west-1.amazonaws.com^eu-west-1|odd";
        let parsed = parse(text).unwrap();
        let role = Role {
            arn: "arn:aws:iam::1:role/r".to_owned(),
            session: "kcl".to_owned(),
            external_id: Some("x".to_owned()),
            endpoint: Some("https://sts.eu-west-1.amazonaws.com".to_owned()),
            region: Some("eu-west-1".to_owned()),
        };
        assert_eq!(parsed.providers, [Provider::AssumeRole(role)]);
        assert_eq!(parsed.warnings.len(), 1);
        let old = "KclSTSAssumeRoleSessionCredentialsProvider|arn|s|endpointRegion=eu-west-1";
        check(old, "StsAssumeRoleCredentialsProvider|arn|s|endpointRegion=eu-west-1", 0);
    }

    #[test]
    fn a_list_without_a_known_provider_is_refused_with_the_reasons() {
        for (text, part) in [
            ("", "DefaultCredentialsProvider"),
            ("com.acme.Vault", "com.acme.Vault is an unknown Java class"),
            ("SystemPropertyCredentialsProvider", "JVM"),
            ("KclStaticCredentialsProvider|AKIA", "|KEY|SECRET"),
            ("StsAssumeRoleCredentialsProvider|arn", "|ROLE_ARN|SESSION_NAME"),
            ("StsAssumeRoleCredentialsProvider|arn|s|endpoint=x", "endpoint=URL^REGION"),
        ] {
            let said = parse(text).unwrap_err().to_string();
            assert!(said.contains(part), "{said} names {part}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let parsed = parse("KclStaticCredentialsProvider|AKIA|s3cret|t0ken").unwrap();
        let shown = format!("{parsed:?} {}", parsed.providers[0]);
        assert!(!shown.contains("s3cret") && !shown.contains("t0ken"), "{shown}");
    }
}
