//! Reader of single properties, which records each value's origin and each error's line.

use super::keys::{self, KeySupport};
use crate::properties::Property;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

/// Origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ValueOrigin {
    /// A line of the file, starting at 1.
    Line(usize),
    /// Another key.
    Key(&'static str),
    /// The default.
    Default,
}

/// An effective value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveValue {
    /// Key.
    pub key: &'static str,
    /// The value, with secrets hidden.
    pub value: String,
    /// Origin of the value.
    pub origin: ValueOrigin,
}

/// Converts properties to settings and collects warnings and errors.
pub(super) struct PropertyReader {
    /// Entries of the file by canonical key.
    entries: BTreeMap<String, Property>,
    /// Effective values.
    rows: Vec<EffectiveValue>,
    warnings: Vec<String>,
    /// Errors.
    wrong: Vec<String>,
}

impl PropertyReader {
    pub(super) fn new(all: Vec<Property>) -> Self {
        let mut reading = Self {
            entries: BTreeMap::new(),
            rows: Vec::new(),
            warnings: Vec::new(),
            wrong: Vec::new(),
        };
        for entry in all {
            let key = keys::canonical(&entry.key);
            reading.judge(&key, &entry);
            if let Some(before) = reading.entries.insert(key, entry.clone())
                && before.value != entry.value
            {
                reading.warn(format!(
                    "line {}: {} is also set on line {}: the last one is used",
                    entry.line, entry.key, before.line
                ));
            }
        }
        reading
    }

    /// Adds a warning if the key is ignored or unknown.
    fn judge(&mut self, key: &str, entry: &Property) {
        let Property { key: name, line, .. } = entry;
        match keys::find(key).map(|key| key.effect) {
            Some(KeySupport::Honoured) => {}
            Some(KeySupport::Ignored(why)) => {
                self.warn(format!("line {line}: {name} has no effect: {why}"));
            }
            None if keys::BUILDERS.iter().any(|builder| key.starts_with(builder)) => {
                self.warn(format!(
                    "line {line}: {name} has no effect: of the SDK's own settings only region and \
                     endpointOverride are used"
                ));
            }
            None => {
                let hint = keys::nearest(key).map(|key| format!(": did you mean {key}?"));
                let hint = hint.unwrap_or_default();
                self.warn(format!("line {line}: {name} is not a known property{hint}"));
            }
        }
    }

    pub(super) fn warn(&mut self, text: String) {
        self.warnings.push(text);
    }

    pub(super) fn wrong(&mut self, text: String) {
        self.wrong.push(text);
    }

    /// Records an effective value that was determined elsewhere.
    pub(super) fn show(&mut self, key: &'static str, value: impl Display, origin: ValueOrigin) {
        self.rows.push(EffectiveValue { key, value: value.to_string(), origin });
    }

    /// Returns the value of a key and its line, unless it is absent or empty.
    pub(super) fn given(&self, key: &'static str) -> Option<(String, usize)> {
        debug_assert!(keys::find(key).is_some(), "{key} is in the table");
        let entry = self.entries.get(key)?;
        (!entry.value.is_empty()).then(|| (entry.value.clone(), entry.line))
    }

    /// Returns a text value and records it.
    pub(super) fn text(&mut self, key: &'static str) -> Option<String> {
        let (value, line) = self.given(key)?;
        self.show(key, &value, ValueOrigin::Line(line));
        Some(value)
    }

    /// Returns a required text value, or records an error.
    pub(super) fn required(&mut self, key: &'static str, what: &str) -> Option<String> {
        let text = self.text(key);
        if text.is_none() {
            self.wrong(format!("{key} is missing: set it to {what}"));
        }
        text
    }

    /// Returns a number of at least `least`. As in Java, 0 counts as absent and yields `default`.
    pub(super) fn number<N>(&mut self, key: &'static str, default: N, least: N) -> N
    where
        N: FromStr + Copy + PartialOrd + Default + Display,
    {
        let given = self.given(key).and_then(|(text, line)| {
            let number = text.parse::<N>().ok();
            if number.is_none() {
                self.wrong(format!("line {line}: {key} is {text:?}: it must be a whole number"));
            }
            number.map(|number| (number, line))
        });
        match given.filter(|(number, _)| *number != N::default()) {
            None => {
                self.show(key, default, ValueOrigin::Default);
                default
            }
            Some((number, line)) if number < least => {
                self.warn(format!(
                    "line {line}: {key} is {number}, below the minimum: {least} is used"
                ));
                self.show(key, least, ValueOrigin::Line(line));
                least
            }
            Some((number, line)) => {
                self.show(key, number, ValueOrigin::Line(line));
                number
            }
        }
    }

    /// Returns a boolean value.
    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let Some((text, line)) = self.given(key) else {
            self.show(key, default, ValueOrigin::Default);
            return default;
        };
        let flag = match text.to_lowercase().as_str() {
            "true" | "yes" | "y" | "on" | "1" => true,
            "false" | "no" | "n" | "off" | "0" => false,
            _ => {
                self.wrong(format!("line {line}: {key} is {text:?}: it must be true or false"));
                default
            }
        };
        self.show(key, flag, ValueOrigin::Line(line));
        flag
    }

    /// Returns one of several values by name, ignoring case. The first is the default.
    pub(super) fn one_of<T: Copy>(&mut self, key: &'static str, words: &[(&str, T)]) -> T {
        let (default, value) = words[0];
        let Some((text, line)) = self.given(key) else {
            self.show(key, default, ValueOrigin::Default);
            return value;
        };
        let known = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(&text));
        let Some((word, value)) = known else {
            let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let known = known.join(", ");
            self.wrong(format!("line {line}: {key} is {text:?}: it must be one of {known}"));
            return value;
        };
        self.show(key, word, ValueOrigin::Line(line));
        *value
    }

    /// Returns the effective values, the warnings and the errors.
    pub(super) fn close(mut self) -> (Vec<EffectiveValue>, Vec<String>, Vec<String>) {
        let place = |row: &EffectiveValue| keys::KEYS.iter().position(|key| key.name == row.key);
        self.rows.sort_by_key(place);
        (self.rows, self.warnings, self.wrong)
    }
}
