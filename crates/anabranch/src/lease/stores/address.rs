//! The address of a lease store, as written on a command line or in a settings file.

use crate::lease::{AnyStore, DynamoDbStore, MemoryStore, PostgresStore, SqliteStore, StoreError};
use aws_types::SdkConfig;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a lease store: `sqlite:PATH`, `postgres:URL`, `dynamodb:TABLE`, `kcl:TABLE`,
/// `kcl` or `memory`. The suffix `?one-region` after a table name permits a global table
/// ([`DynamoDbStore::with_one_writing_region`]).
///
/// ```
/// use anabranch::lease::{StoreAddress, StoreError};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let address: StoreAddress = "memory".parse()?;
/// // Asked for only where the address is a table.
/// let aws = async { Ok::<_, StoreError>(aws_config::load_from_env().await) };
/// let leases = address.open("billing", aws).await?;
/// # let _ = leases;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreAddress {
    /// In this process only.
    Memory,
    /// A file on this machine.
    Sqlite(PathBuf),
    /// A database, by its URL.
    Postgres(String),
    /// A DynamoDB table in the native layout.
    DynamoDb(String),
    /// The table of a KCL application. Defaults to the application's name.
    Kcl(Option<String>),
}

/// Error of parsing the address of a lease store. The message does not repeat the text, which may
/// contain a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
#[non_exhaustive]
pub struct ParseStoreAddressError(String);

const FORMS: &str = "sqlite:PATH, postgres:URL, dynamodb:TABLE, kcl:TABLE or memory";

/// Suffix of a table name that permits a global table.
const ONE_REGION: &str = "?one-region";

impl StoreAddress {
    /// Returns the name of the DynamoDB table, if the address is one.
    pub fn table<'a>(&'a self, application: &'a str) -> Option<&'a str> {
        match self {
            Self::DynamoDb(table) => Some(table_of(table).0),
            Self::Kcl(table) => Some(table_of(table.as_deref().unwrap_or(application)).0),
            Self::Memory | Self::Sqlite(_) | Self::Postgres(_) => None,
        }
    }

    /// Opens the store of an application. Sends nothing and creates nothing yet.
    ///
    /// `aws` is the configuration for DynamoDB. It is only awaited if the address is a table.
    pub async fn open<E: From<StoreError>>(
        &self,
        application: &str,
        aws: impl Future<Output = Result<SdkConfig, E>>,
    ) -> Result<AnyStore, E> {
        Ok(match self {
            Self::Memory => MemoryStore::new().into(),
            Self::Sqlite(path) => SqliteStore::open(path, application)?.into(),
            Self::Postgres(url) => PostgresStore::connect(url, application)?.into(),
            Self::DynamoDb(table) => {
                let (table, one_region) = table_of(table);
                in_regions(DynamoDbStore::native(&aws.await?, table), one_region).into()
            }
            Self::Kcl(table) => {
                let (table, one_region) = table_of(table.as_deref().unwrap_or(application));
                in_regions(DynamoDbStore::kcl(&aws.await?, table), one_region).into()
            }
        })
    }
}

/// Splits off the suffix. Returns the name of the table, and true if workers in only one region use
/// it.
fn table_of(text: &str) -> (&str, bool) {
    text.strip_suffix(ONE_REGION).map_or((text, false), |table| (table, true))
}

fn in_regions(store: DynamoDbStore, one_region: bool) -> DynamoDbStore {
    if one_region { store.with_one_writing_region() } else { store }
}

impl FromStr for StoreAddress {
    type Err = ParseStoreAddressError;

    fn from_str(text: &str) -> Result<Self, ParseStoreAddressError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let lacks = |what: &str| Err(ParseStoreAddressError(format!("{kind} needs {what}")));
        match (kind, rest) {
            ("memory", "") => Ok(Self::Memory),
            ("kcl", "") => Ok(Self::Kcl(None)),
            ("kcl", table) => Ok(Self::Kcl(Some(table.to_owned()))),
            ("sqlite", path) => match path.strip_prefix("//").unwrap_or(path) {
                "" | "/" => lacks("a file, such as sqlite:leases.db"),
                path => Ok(Self::Sqlite(path.into())),
            },
            ("dynamodb", "") => lacks("a table, such as dynamodb:my-app"),
            ("dynamodb", table) => Ok(Self::DynamoDb(table.to_owned())),
            ("postgres" | "postgresql", "") => lacks("a URL, such as postgres://me@localhost/shop"),
            // A URL may be given as it is, or after the prefix.
            ("postgres" | "postgresql", rest) if rest.starts_with("//") => {
                Ok(Self::Postgres(text.to_owned()))
            }
            ("postgres" | "postgresql", url) => Ok(Self::Postgres(url.to_owned())),
            _ => Err(ParseStoreAddressError(format!("leases are kept in {FORMS}"))),
        }
    }
}

/// Writes the address without its password.
impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory"),
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&without_secrets(url)),
            Self::DynamoDb(table) => write!(f, "dynamodb:{table}"),
            Self::Kcl(Some(table)) => write!(f, "kcl:{table}"),
            Self::Kcl(None) => f.write_str("kcl"),
        }
    }
}

fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "postgres:…".to_owned() };
    let place = rest.split(['?', '#']).next().unwrap_or_default();
    // A password may also follow the question mark, and a password that contains a question mark
    // looks the same.
    if rest[place.len()..].contains('@') {
        return format!("{scheme}://…");
    }
    match place.rsplit_once('@') {
        Some((user, place)) => {
            let name = user.split(':').next().unwrap_or_default();
            format!("{scheme}://{name}@{place}")
        }
        None => format!("{scheme}://{place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::LeaseStore;
    use anabranch_model::lease::Layout;

    fn check(text: &str, expected: Result<&str, &str>) {
        let read = text.parse::<StoreAddress>().map(|address| address.to_string());
        let read = read.map_err(|why| why.to_string());
        assert_eq!(read.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn every_store_has_an_address_and_a_wrong_one_says_how_it_is_written() {
        check("memory", Ok("memory"));
        check("sqlite:a/b.db", Ok("sqlite:a/b.db"));
        check("sqlite:///var/l.db", Ok("sqlite:/var/l.db"));
        check("dynamodb:orders", Ok("dynamodb:orders"));
        check("kcl:orders", Ok("kcl:orders"));
        check("kcl", Ok("kcl"));
        check("postgres://me@db/shop", Ok("postgres://me@db/shop"));
        check("postgres:postgres://me@db/shop", Ok("postgres://me@db/shop"));
        check("sqlite", Err("sqlite needs a file, such as sqlite:leases.db"));
        check("sqlite://", Err("sqlite needs a file, such as sqlite:leases.db"));
        check("dynamodb:", Err("dynamodb needs a table, such as dynamodb:my-app"));
        check("postgres", Err("postgres needs a URL, such as postgres://me@localhost/shop"));
        let forms = "leases are kept in sqlite:PATH, postgres:URL, dynamodb:TABLE, kcl:TABLE or \
                     memory";
        for wrong in ["redis:x", "", "memory:x", "mysql://me:hunter2@db/shop"] {
            check(wrong, Err(forms));
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        check("postgres://me:hunter2@db:5432/shop", Ok("postgres://me@db:5432/shop"));
        check("postgres://db/shop?password=hunter2", Ok("postgres://db/shop"));
        check("postgres://db:1/shop?password=x@hunter2", Ok("postgres://…"));
        check("postgres://me:x?hunter2@db/shop", Ok("postgres://…"));
        check("postgres://me:x@hunter2@db/shop", Ok("postgres://me@db/shop"));
        check("postgres:host=db password=hunter2", Ok("postgres:…"));
    }

    #[tokio::test]
    async fn an_address_opens_its_store_and_only_a_table_asks_for_aws() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("sqlite:{}", folder.path().join("l.db").display());
        for (text, kind, layout) in [
            ("memory", "Memory", Layout::Native),
            (file.as_str(), "Sqlite", Layout::Native),
            ("postgres://me@localhost/shop", "Postgres", Layout::Native),
            ("dynamodb:t", "DynamoDb", Layout::Native),
            ("kcl:t", "DynamoDb", Layout::Kcl),
            ("kcl", "DynamoDb", Layout::Kcl),
        ] {
            let address: StoreAddress = text.parse().unwrap();
            let mut asked = false;
            let aws = async {
                asked = true;
                Ok::<_, StoreError>(SdkConfig::builder().build())
            };
            let store = address.open("app", aws).await.unwrap();
            assert_eq!((store.layout(), asked), (layout, address.table("app").is_some()), "{text}");
            assert!(format!("{store:?}").starts_with(kind), "{text}: {store:?}");
        }
        let table = |address: StoreAddress| address.table("app").map(str::to_owned);
        assert_eq!(table(StoreAddress::Kcl(None)).as_deref(), Some("app"));
        assert_eq!(table(StoreAddress::Kcl(Some("t".into()))).as_deref(), Some("t"));
    }
}
