//! Refusals: errors of a service without any effect, most of which are not transient.

use super::network::Service;
use anabranch::lease::StoreError;
use anabranch_model::retry::Fault;
use std::fmt;

/// Reason for which a service refuses a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RefusalKind {
    /// The caller lacks the permission.
    Denied,
    /// The table, stream or shard does not exist. The simulator reports this for existing ones.
    Missing,
    /// Another write was in progress.
    Busy,
    /// The service failed.
    Internal,
    /// The encryption key is unusable.
    KeyUnusable,
    /// The request is invalid.
    Invalid,
}

impl RefusalKind {
    /// Returns the possible refusals of a service.
    pub fn of(service: Service) -> &'static [Self] {
        match service {
            Service::Store => &[Self::Denied, Self::Missing, Self::Busy],
            Service::Stream => {
                &[Self::Denied, Self::Missing, Self::Internal, Self::KeyUnusable, Self::Invalid]
            }
        }
    }

    /// Returns the corresponding error of a store.
    pub(super) fn of_store(self) -> StoreError {
        let (store, detail) = ("sim".to_owned(), "the simulator's weather".to_owned());
        match self {
            Self::Denied => StoreError::Denied { store, detail },
            Self::Missing => StoreError::Missing { store, detail },
            Self::Busy => StoreError::Busy { store, detail },
            Self::Internal | Self::KeyUnusable | Self::Invalid => {
                StoreError::Unusable { store, detail }
            }
        }
    }

    /// Returns the corresponding fault of a stream.
    pub(super) fn of_stream(self) -> Fault {
        match self {
            Self::Denied => Fault::AccessDenied,
            Self::Missing => Fault::Missing,
            Self::Busy => Fault::Busy,
            Self::Internal => Fault::Internal,
            Self::KeyUnusable => Fault::KeyUnusable,
            Self::Invalid => Fault::Invalid,
        }
    }
}

impl fmt::Display for RefusalKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Denied => "access denied",
            Self::Missing => "not found",
            Self::Busy => "busy",
            Self::Internal => "internal failure",
            Self::KeyUnusable => "unusable key",
            Self::Invalid => "invalid request",
        })
    }
}
