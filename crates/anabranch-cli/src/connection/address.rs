//! The address of a lease store, as it is written on the command line.

use serde::Deserialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where leases are kept.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum LeaseAddress {
    /// In this process only.
    Memory,
    /// In a file on this machine.
    Sqlite(PathBuf),
    /// In a database, by its URL.
    Postgres(String),
    /// In a DynamoDB table of our own layout.
    DynamoDb(String),
    /// In the table of a KCL application. Without a name it is the application's.
    Kcl(Option<String>),
}

const FORMS: &str = "sqlite:PATH, postgres:URL, dynamodb:TABLE, kcl:TABLE or memory";

impl FromStr for LeaseAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("memory", "") => Ok(Self::Memory),
            ("kcl", "") => Ok(Self::Kcl(None)),
            ("kcl", table) => Ok(Self::Kcl(Some(table.to_owned()))),
            ("sqlite", "") => Err("sqlite needs a file, such as sqlite:leases.db".to_owned()),
            ("sqlite", path) => Ok(Self::Sqlite(path.into())),
            ("dynamodb", "") => Err("dynamodb needs a table, such as dynamodb:my-app".to_owned()),
            ("dynamodb", table) => Ok(Self::DynamoDb(table.to_owned())),
            ("postgres" | "postgresql", "") => {
                Err("postgres needs a URL, such as postgres://me@localhost/shop".to_owned())
            }
            // A URL may be given as it is, or behind the word.
            ("postgres" | "postgresql", rest) if rest.starts_with("//") => {
                Ok(Self::Postgres(text.to_owned()))
            }
            ("postgres" | "postgresql", url) => Ok(Self::Postgres(url.to_owned())),
            _ => Err(format!("leases are kept in {FORMS}")),
        }
    }
}

impl TryFrom<String> for LeaseAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map_err(|why| format!("{text:?}: {why}"))
    }
}

/// The address without its password.
impl fmt::Display for LeaseAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_password(url)),
            Self::DynamoDb(table) => write!(f, "dynamodb:{table}"),
            Self::Kcl(Some(table)) => write!(f, "kcl:{table}"),
            Self::Kcl(None) => f.write_str("kcl"),
        }
    }
}

fn without_password(url: &str) -> String {
    let hidden = url.split_once("://").and_then(|(scheme, rest)| {
        let (user, place) = rest.rsplit_once('@')?;
        let (name, _) = user.split_once(':')?;
        Some(format!("{scheme}://{name}@{place}"))
    });
    let url = hidden.as_deref().unwrap_or(url);
    // A password may also stand behind the question mark.
    url.split('?').next().unwrap_or(url).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let read = text.parse::<LeaseAddress>().map(|address| address.to_string());
        assert_eq!(read.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn every_store_has_an_address_and_a_wrong_one_says_how_it_is_written() {
        check("memory", Ok("memory"));
        check("sqlite:a/b.db", Ok("sqlite:a/b.db"));
        check("dynamodb:orders", Ok("dynamodb:orders"));
        check("kcl:orders", Ok("kcl:orders"));
        check("kcl", Ok("kcl"));
        check("postgres://me:secret@db:5432/shop", Ok("postgres://me@db:5432/shop"));
        check("postgres:postgres://me@db/shop?password=x", Ok("postgres://me@db/shop"));
        check("sqlite", Err("sqlite needs a file, such as sqlite:leases.db"));
        check("dynamodb:", Err("dynamodb needs a table, such as dynamodb:my-app"));
        check(
            "redis:x",
            Err(
                "leases are kept in sqlite:PATH, postgres:URL, dynamodb:TABLE, kcl:TABLE or memory",
            ),
        );
    }
}
