//! The streams of a KCL table that is for several, and what each is called here.

use anabranch::lease::dynamodb::StreamId;
use anabranch_model::ids::StreamName;
use anabranch_model::lease::Survey;
use std::collections::BTreeMap;

/// The streams of a table for several; empty for the table of one stream.
///
/// A stream has its own name here. Where the table still holds leases of an older stream of the
/// same name, that one is called by KCL's id, `account:stream:creation time`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KclStreams {
    /// KCL's id of each stream, by its name here.
    ids: BTreeMap<StreamName, StreamId>,
}

impl KclStreams {
    /// The streams that a survey of the table found.
    pub(crate) fn of(survey: &Survey) -> Self {
        let mut found: Vec<StreamId> =
            survey.streams.keys().filter_map(|id| id.parse().ok()).collect();
        found.sort_by_key(StreamId::created_s);
        let mut ids = BTreeMap::new();
        for id in found {
            let older = ids.insert(StreamName::from(id.stream()), id);
            if let Some(older) = older {
                ids.insert(StreamName::from(older.to_string()), older);
            }
        }
        Self { ids }
    }

    /// Whether the table is that of one stream.
    pub(crate) fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// What the streams are called.
    pub(crate) fn names(&self) -> impl Iterator<Item = &StreamName> {
        self.ids.keys()
    }

    /// A stream by its name here, or by KCL's id.
    pub(crate) fn find(&self, name: &str) -> Option<(&StreamName, &StreamId)> {
        let named = |(known, id): &(&StreamName, &StreamId)| {
            known.as_str() == name || id.to_string() == name
        };
        self.ids.iter().find(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stream_has_the_name_and_each_is_found_by_its_id() {
        let survey = |ids: &[&str]| Survey {
            streams: ids.iter().map(|id| ((*id).to_owned(), 1)).collect(),
            ..Survey::default()
        };
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
    }
}
