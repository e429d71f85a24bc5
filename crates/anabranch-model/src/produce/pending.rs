//! A record that was accepted and has no outcome yet.

use super::outcome::Attempt;
use super::stopped::KeyId;
use crate::aggregate::encode::Entry;
use crate::hash::HashKey;
use crate::record::Key;
use bytes::Bytes;
use std::sync::Arc;

/// Bytes that a record takes in an aggregate beside its key and data, at the most, without an
/// explicit hash key.
const FRAMING_BYTES: usize = 20;
/// What an explicit hash key adds, at the most.
const EXPLICIT_BYTES: usize = 50;

/// A record that is put.
#[derive(Debug, Clone)]
pub struct Put<T> {
    /// The partition key.
    pub key: Key,
    /// The user's explicit hash key.
    pub explicit: Option<HashKey>,
    /// Where the record lies: the explicit hash key, or the MD5 of the key.
    pub hash: HashKey,
    /// The data.
    pub data: Bytes,
    /// Whom to tell the outcome.
    pub ticket: T,
}

/// A record that waits for its outcome.
#[derive(Debug, Clone)]
pub struct Pending<T> {
    /// Its place among all puts of the producer. It decides every order.
    pub number: u64,
    /// When it was put.
    pub put_ms: u64,
    /// The record and its ticket.
    pub put: Put<T>,
    /// Whether it may be in the stream already, through a lost reply or a stray container.
    pub maybe_landed: bool,
    /// Whether it goes in a container of its own, because one with others was refused.
    pub alone: bool,
    /// The attempts of containers that held it and were taken apart.
    pub past: Option<Arc<[Attempt]>>,
}

impl<T> Pending<T> {
    /// The key that its order belongs to.
    pub(super) fn key_id(&self) -> KeyId {
        KeyId { key: self.put.key.clone(), explicit: self.put.explicit }
    }

    /// What it takes in a container, at the most.
    pub(super) fn framed_bytes(&self) -> usize {
        let explicit = if self.put.explicit.is_some() { EXPLICIT_BYTES } else { 0 };
        self.put.key.len() + self.put.data.len() + FRAMING_BYTES + explicit
    }

    /// As a part of an aggregate.
    pub(super) fn entry(&self) -> Entry<'_> {
        Entry {
            partition_key: self.put.key.as_str(),
            explicit_hash_key: self.put.explicit,
            data: &self.put.data,
        }
    }
}
