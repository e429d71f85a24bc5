//! Settings file `anabranch.toml`.

use crate::failure::CommandFailure;
use anabranch::lease::StoreAddress;
use serde::{Deserialize, Deserializer, de};
use std::io::ErrorKind;
use std::path::Path;

/// Default path of the file.
const NAME: &str = "anabranch.toml";

/// Contents of the file.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConfigFile {
    /// Endpoint URL of Kinesis and DynamoDB.
    pub(super) endpoint: Option<String>,
    /// AWS region.
    pub(super) region: Option<String>,
    /// AWS profile.
    pub(super) profile: Option<String>,
    /// Address of the lease store.
    #[serde(default, deserialize_with = "address")]
    pub(super) leases: Option<StoreAddress>,
}

/// Parses the address of a lease store.
fn address<'de, D: Deserializer<'de>>(from: D) -> Result<Option<StoreAddress>, D::Error> {
    let text = String::deserialize(from)?;
    let address = text.parse();
    address.map(Some).map_err(|why| de::Error::custom(format!("`leases` can't be used: {why}")))
}

impl ConfigFile {
    /// Reads the named file, or the default one, which is optional.
    pub(super) fn read(named: Option<&Path>) -> Result<Self, CommandFailure> {
        let path = named.unwrap_or(Path::new(NAME));
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|why| {
                CommandFailure::usage(format!("{}, {why}; see docs/cli.md", path.display()))
            }),
            Err(error) if named.is_none() && error.kind() == ErrorKind::NotFound => {
                Ok(Self::default())
            }
            Err(error) => {
                Err(CommandFailure::usage(format!("{} can't be read: {error}", path.display())))
            }
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let before = error.span().map_or("", |span| &text[..span.start.min(text.len())]);
            let line = before.matches('\n').count() + 1;
            format!("line {line}: {}", error.message().replace('\n', " "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<ConfigFile, &str>) {
        assert_eq!(ConfigFile::parse(text), expected.map_err(str::to_owned), "{text}");
    }

    #[test]
    fn a_mistake_in_the_file_is_named_with_its_line() {
        check("", Ok(ConfigFile::default()));
        check(
            "region = \"eu-west-1\"\nleases = \"memory\"",
            Ok(ConfigFile {
                region: Some("eu-west-1".to_owned()),
                leases: Some(StoreAddress::Memory),
                ..ConfigFile::default()
            }),
        );
        check(
            "leases = \"mysql://me:hunter2@db\"",
            Err("line 1: `leases` can't be used: leases are kept in sqlite:PATH, postgres:URL, \
                 dynamodb:TABLE, kcl:TABLE or memory"),
        );
        check(
            "\nregoin = \"x\"",
            Err("line 2: unknown field `regoin`, expected one of `endpoint`, `region`, \
                 `profile`, `leases`"),
        );
    }
}
