//! Error messages for failed calls: cause, subject and remedy.

use super::AwsClients;
use crate::failure::CommandFailure;
use anabranch::lease::StoreError;
use anabranch::stream::api::StreamError;
use anabranch_model::ids::StreamName;
use anabranch_model::retry::Fault;
use std::time::Duration;

/// Timeout for listing similar names.
const SEARCH: Duration = Duration::from_secs(3);
/// Maximum names shown.
const SHOWN: usize = 5;
/// Minimum similarity of two names for a suggestion.
const ALIKE: f64 = 0.7;

/// Explains a failed call to a stream.
pub(super) async fn of_stream(
    aws: &AwsClients,
    stream: &StreamName,
    error: &StreamError,
) -> CommandFailure {
    let place = aws.place();
    let StreamError { operation, detail, .. } = error;
    CommandFailure::usage(match error.fault {
        Fault::Missing => {
            let names = stream_names(aws).await;
            format!(
                "there is no stream {stream} {place}{}",
                suggestion(stream.as_str(), names.as_deref())
            )
        }
        Fault::AccessDenied => format!(
            "{operation} on {stream} is denied {place} ({detail}): the credentials need \
             kinesis:{operation}, or they belong to another account"
        ),
        Fault::NotSent => format!(
            "nothing answers {place} ({detail}): check the address and the network; \
             `anabranch local` starts a stream on this machine"
        ),
        Fault::CredentialsExpired => {
            format!("the credentials can't be used {place} ({detail}): renew them")
        }
        _ => format!("{operation} on {stream} failed {place}: {detail}"),
    })
}

/// Explains a failed operation of a lease store.
pub(super) fn of_store(error: &StoreError) -> CommandFailure {
    if let StoreError::Missing { store, .. } = error {
        return CommandFailure::usage(match store.strip_prefix("dynamodb:") {
            Some(table) => format!(
                "there is no table {table}: check --leases, the region and the account, or start a \
                 worker there"
            ),
            None => format!(
                "the lease store {store} holds no leases yet: check its address, or start a worker \
                 there"
            ),
        });
    }
    let hint = match error {
        StoreError::ForeignSchema { store, .. } if store.starts_with("dynamodb:") => {
            "; for the table of a KCL application use kcl:TABLE"
        }
        StoreError::Unreachable { .. } => ": check its address, and that it is running",
        _ => "",
    };
    CommandFailure::usage(format!("{error}{hint}"))
}

/// Lists the streams, if possible.
async fn stream_names(aws: &AwsClients) -> Option<Vec<String>> {
    let client = aws_sdk_kinesis::Client::new(&aws.config);
    let list = client.list_streams().limit(1_000).send();
    let reply = tokio::time::timeout(SEARCH, list).await.ok()?.ok()?;
    Some(reply.stream_names)
}

/// Suggests the most similar name, or lists the existing ones.
fn suggestion(name: &str, names: Option<&[String]>) -> String {
    let Some(names) = names else {
        return ": check its name, the region and the account".to_owned();
    };
    let near = names
        .iter()
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((_, near)) = near {
        return format!(": did you mean {near}?");
    }
    match names {
        [] => ", nor any other: check the region and the account, or create it".to_owned(),
        some => {
            let shown = some.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
            let more = if some.len() > SHOWN { ", …" } else { "" };
            format!("; existing streams: {shown}{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_is_answered_with_what_there_is() {
        let check = |name: &str, names: Option<&[&str]>, expected: &str| {
            let names: Option<Vec<String>> =
                names.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            let said = suggestion(name, names.as_deref());
            assert!(said.contains(expected), "{name}: {said}");
        };
        check("ordrs", Some(&["clicks", "orders"]), "did you mean orders?");
        check("xyz", Some(&["clicks", "orders"]), "existing streams: clicks, orders");
        check("xyz", Some(&[]), "nor any other");
        check("xyz", None, "check its name");
    }
}
