//! Streams of a KCL lease table for several streams, with their names.

use anabranch::lease::stores::dynamodb::KclStreamId;
use anabranch::stream::api::StreamSummary;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::KclProbe;
use std::collections::BTreeMap;
use std::fmt;

/// Streams of a KCL table for several streams. Empty for the table of a single stream.
///
/// A stream has its own name here. If the table still contains leases of an older stream with the
/// same name, that one has KCL's id as its name: `account:stream:creation time`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KclStreams {
    /// KCL's stream ids by name.
    ids: BTreeMap<StreamName, KclStreamId>,
}

impl KclStreams {
    /// Returns the streams that a probe of the table found.
    pub(crate) fn of(survey: &KclProbe) -> Self {
        let mut found: Vec<KclStreamId> =
            survey.streams.keys().filter_map(|id| id.parse().ok()).collect();
        found.sort_by_key(KclStreamId::created_s);
        let mut ids = BTreeMap::new();
        for id in found {
            let older = ids.insert(StreamName::from(id.stream()), id);
            if let Some(older) = older {
                ids.insert(StreamName::from(older.to_string()), older);
            }
        }
        Self { ids }
    }

    /// Returns true if the table is for a single stream.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the names of the streams.
    pub(crate) fn names(&self) -> impl Iterator<Item = &StreamName> {
        self.ids.keys()
    }

    /// Finds a stream by name, ARN or KCL's id.
    pub(crate) fn find(&self, name: &str) -> Option<(&StreamName, &KclStreamId)> {
        let arn = StreamName::from(name);
        let plain = arn.in_arn();
        let named = |(known, id): &(&StreamName, &KclStreamId)| match &plain {
            Some(plain) => *known == plain && id.account() == account(name),
            None => known.as_str() == name || id.to_string() == name,
        };
        self.ids.iter().find(named)
    }

    /// Returns the id under which a reader of `stream` finds its rows. An older stream of the same
    /// name has positions that are invalid in the new one, so the creation time must match. An id
    /// that was itself `named` is accepted as is, because the application chooses its number.
    pub(crate) fn to_read(
        &self,
        stream: &StreamName,
        summary: &StreamSummary,
        named: Option<&KclStreamId>,
    ) -> Result<KclStreamId, String> {
        if let Some(named) = named {
            let known = self.ids.values().find(|id| *id == named).cloned();
            return known.ok_or_else(|| format!("{named} is not one of them ({self})"));
        }
        let account = account(&summary.arn);
        let plain = stream.in_arn();
        let stream = plain.as_ref().unwrap_or(stream);
        let created = [summary.created_ms / 1_000, summary.created_ms];
        let of_name: Vec<&KclStreamId> =
            self.ids.values().filter(|id| id.stream() == stream.as_str()).collect();
        let same =
            |id: &&&KclStreamId| created.contains(&id.created_s()) && id.account() == account;
        match (of_name.iter().find(same), of_name.first()) {
            (Some(id), _) => Ok(KclStreamId::clone(id)),
            (None, Some(other)) => Err(format!(
                "its leases of {other} do not belong to the stream {account}:{stream}:{}, which \
                 may have been recreated; if they do, give the stream as {other}",
                created[0]
            )),
            (None, None) => Err(format!("{stream} is not one of them ({self})")),
        }
    }
}

/// Returns the account of an ARN.
fn account(arn: &str) -> &str {
    arn.split(':').nth(4).unwrap_or_default()
}

/// Formats the ids on one line.
impl fmt::Display for KclStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.ids.values().map(ToString::to_string).collect();
        f.write_str(&ids.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch::stream::api::StreamStatus;

    fn survey(ids: &[&str]) -> KclProbe {
        let streams = ids.iter().map(|id| ((*id).to_owned(), 1)).collect();
        KclProbe { streams, ..KclProbe::default() }
    }

    #[test]
    fn a_reader_gets_the_rows_of_its_own_stream_and_of_no_older_one() {
        let check = |ids: &[&str], stream: &str, expected: Result<&str, &str>| {
            let named: Option<KclStreamId> = stream.parse().ok();
            let name = named.as_ref().map_or(stream, KclStreamId::stream);
            let plain = StreamName::from(name).in_arn();
            let plain = plain.as_ref().map_or(name, StreamName::as_str);
            let summary = StreamSummary {
                arn: format!("arn:aws:kinesis:us-east-1:1:stream/{plain}"),
                status: StreamStatus::Active,
                created_ms: 7_500,
                retention_ms: 0,
                max_record_bytes: 0,
                on_demand: false,
                ignores_keys: false,
                open_shards: 1,
            };
            let streams = KclStreams::of(&survey(ids));
            let found = streams.to_read(&StreamName::from(name), &summary, named.as_ref());
            let found = found.map(|id| id.to_string());
            match (&found, expected) {
                (Ok(id), Ok(expected)) => assert_eq!(id, expected, "{ids:?}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{ids:?}: {why}"),
                _ => panic!("{stream} of {ids:?}: {found:?}, not {expected:?}"),
            }
        };
        check(&["1:a:5", "1:a:7", "1:b:7"], "a", Ok("1:a:7"));
        // Newer, but in another account.
        check(&["1:a:7", "2:a:9"], "a", Ok("1:a:7"));
        check(&["1:a:7500"], "a", Ok("1:a:7500"));
        check(&["1:a:7"], "arn:aws:kinesis:us-east-1:1:stream/a", Ok("1:a:7"));
        check(&["1:a:5", "1:b:7"], "a", Err("of 1:a:5 do not belong to the stream 1:a:7"));
        check(&["2:a:7"], "a", Err("give the stream as 2:a:7"));
        check(&["1:b:7"], "a", Err("a is not one of them (1:b:7)"));
        check(&["1:a:5", "1:a:7"], "1:a:5", Ok("1:a:5"));
        check(&["1:a:7"], "1:a:5", Err("1:a:5 is not one of them (1:a:7)"));
    }

    #[test]
    fn the_newest_stream_has_the_name_and_each_is_found_by_its_id() {
        let check = |ids: &[&str], expected: &[&str]| {
            let streams = KclStreams::of(&survey(ids));
            let names: Vec<_> = streams.names().map(StreamName::as_str).collect();
            assert_eq!(names, expected, "{ids:?}");
        };
        check(&[], &[]);
        check(&["1:a:5", "1:b:6"], &["a", "b"]);
        check(&["1:a:5", "1:a:7"], &["1:a:5", "a"]);
        check(&["nonsense"], &[]);
        let streams = KclStreams::of(&survey(&["1:a:5", "1:a:7"]));
        let found = |name| streams.find(name).map(|(_, id)| id.to_string());
        assert_eq!(found("a").as_deref(), Some("1:a:7"));
        assert_eq!(found("1:a:5").as_deref(), Some("1:a:5"));
        assert_eq!(found("1:a:7").as_deref(), Some("1:a:7"));
        assert_eq!(found("b"), None);
        assert_eq!(found("arn:aws:kinesis:eu-west-1:1:stream/a").as_deref(), Some("1:a:7"));
        assert_eq!(found("arn:aws:kinesis:eu-west-1:2:stream/a"), None);
    }
}
