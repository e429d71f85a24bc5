//! Chooses the proxy of a request from environment variables.

use super::error::HttpSetupError;
use http::uri::Scheme;
use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use std::net::{IpAddr, Ipv6Addr};

/// Addresses at which a machine or container gets its own credentials. A proxy cannot reach them.
const EC2_METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
const POD_IDENTITY_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23);

/// Variables that name a proxy, those for all schemes last.
const VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// Rules that choose a proxy. `None` uses no proxy.
#[derive(Debug)]
pub(super) struct ProxyRules(Option<Matcher>);

/// A proxy to connect through.
#[derive(Debug, Clone)]
pub(super) struct Proxy {
    /// Address of the proxy.
    pub(super) uri: Uri,
    /// The `Proxy-Authorization` header, if the proxy address has credentials.
    pub(super) authorization: Option<HeaderValue>,
}

impl ProxyRules {
    /// Returns rules that use no proxy.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Reads `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, each in lower case too.
    pub(super) fn from_env() -> Result<Self, HttpSetupError> {
        let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        // `ALL_PROXY` is not checked if a scheme has its own variable, because it often names
        // another kind of proxy.
        let schemes = VARIABLES[..4].iter().any(is_set);
        for variable in if schemes { &VARIABLES[..4] } else { &VARIABLES[..] } {
            if let Some(value) = std::env::var_os(variable) {
                let text = value.to_str().ok_or("it is not Unicode");
                text.and_then(check)
                    .map_err(|reason| HttpSetupError::Proxy { variable, reason })?;
            }
        }
        Ok(Self(Some(Matcher::from_env())))
    }

    /// Returns the proxy for a request to `uri`.
    pub(super) fn proxy_for(&self, uri: &Uri) -> Option<Proxy> {
        if is_link_local(uri.host()?) {
            return None;
        }
        let found = self.0.as_ref()?.intercept(uri)?;
        let scheme = found.uri().scheme();
        if scheme != Some(&Scheme::HTTP) && scheme != Some(&Scheme::HTTPS) {
            return None;
        }
        let authorization = found.basic_auth().cloned().map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Some(Proxy { uri: found.uri().clone(), authorization })
    }
}

/// Checks the address of a proxy. An empty one means no proxy; one without a scheme is HTTP.
fn check(address: &str) -> Result<(), &'static str> {
    if address.is_empty() {
        return Ok(());
    }
    let scheme = address.split_once("://").map_or("http", |(scheme, _)| scheme);
    if !["http", "https"].contains(&scheme.to_ascii_lowercase().as_str()) {
        return Err("only http:// and https:// proxies are supported");
    }
    let uri: Uri = address.parse().map_err(|_| "it is malformed")?;
    if uri.host().is_none_or(str::is_empty) { Err("it has no host") } else { Ok(()) }
}

fn is_link_local(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(ip)) => ip.is_link_local(),
        Ok(IpAddr::V6(ip)) => {
            ip.is_unicast_link_local() || ip == EC2_METADATA_V6 || ip == POD_IDENTITY_V6
        }
        Err(_) => false,
    }
}

/// Returns the port of an address, or the default port of its scheme.
pub(super) fn port_of(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or(if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 })
}

/// Returns host and port without credentials, for messages and for CONNECT.
pub(super) fn host_and_port(uri: &Uri) -> String {
    format!("{}:{}", uri.host().unwrap_or_default(), port_of(uri))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> ProxyRules {
        let matcher = Matcher::builder()
            .https("http://me:secret@proxy.example:3128")
            .http("http://other.example")
            .no("internal.example,10.0.0.0/8,127.0.0.1");
        ProxyRules(Some(matcher.build()))
    }

    #[test]
    fn the_scheme_and_the_exceptions_choose_the_proxy() {
        for (uri, expected) in [
            ("https://kinesis.us-east-1.amazonaws.com/", Some("proxy.example:3128")),
            ("http://kinesis.example:4567/", Some("other.example:80")),
            ("https://internal.example/", None),
            ("https://a.internal.example/", None),
            ("https://10.1.2.3/", None),
            ("https://127.0.0.1:4568/", None),
            ("https://localhost:4568/", Some("proxy.example:3128")),
            ("http://169.254.169.254/latest", None),
            ("http://169.254.170.2/v2/credentials", None),
            ("http://[fd00:ec2::254]/latest", None),
            ("http://[fe80::1]/", None),
        ] {
            let proxy = rules().proxy_for(&uri.parse().unwrap());
            let found = proxy.as_ref().map(|proxy| host_and_port(&proxy.uri));
            assert_eq!(found.as_deref(), expected, "{uri}");
        }
    }

    #[test]
    fn a_proxy_is_shown_its_credentials_and_no_message_shows_them() {
        let proxy = rules().proxy_for(&"https://a.example/".parse().unwrap()).unwrap();
        let shown = proxy.authorization.clone().unwrap();
        assert_eq!(shown.as_bytes(), b"Basic bWU6c2VjcmV0");
        assert!(!format!("{proxy:?}").contains("bWU6"), "{proxy:?}");
        assert!(!format!("{proxy:?}").contains("secret"), "{proxy:?}");
    }

    #[test]
    fn only_http_proxies_are_taken() {
        for (address, fits) in [
            ("", true),
            ("http://proxy:3128", true),
            ("https://proxy", true),
            ("HTTP://proxy:1", true),
            ("proxy.example:3128", true),
            ("socks5://proxy:1080", false),
            ("http://", false),
            ("http://pro xy", false),
        ] {
            assert_eq!(check(address).is_ok(), fits, "{address}");
        }
    }
}
