//! `DescribeAccountSettings`: the one setting that there is, always off.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
use serde::{Deserialize, Serialize};

/// A request, which says nothing.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Request {}

/// A reply.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub minimum_throughput_billing_commitment: BillingCommitment,
}

/// Whether a minimum of throughput is paid for.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct BillingCommitment {
    pub status: &'static str,
}

impl Engine {
    /// Tells the account's settings.
    pub fn describe_account_settings(&self, _request: &Request) -> Result<Reply, ApiError> {
        self.run(Operation::DescribeAccountSettings, None, || {
            let off = BillingCommitment { status: "DISABLED" };
            Ok(Reply { minimum_throughput_billing_commitment: off })
        })
    }
}
