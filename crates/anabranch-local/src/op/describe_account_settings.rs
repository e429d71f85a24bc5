//! `DescribeAccountSettings`: the account's only setting, which is always off.

use crate::engine::Engine;
use crate::error::ApiError;
use crate::op::Operation;
use serde::{Deserialize, Serialize};

/// Request of `DescribeAccountSettings`. It has no fields.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Request {}

/// Reply to `DescribeAccountSettings`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct Reply {
    pub minimum_throughput_billing_commitment: BillingCommitment,
}

/// Commitment to a minimum billed throughput.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "fields carry the API's own names")]
pub struct BillingCommitment {
    pub status: &'static str,
}

impl Engine {
    /// Returns the account's settings.
    pub fn describe_account_settings(&self, _request: &Request) -> Result<Reply, ApiError> {
        self.run(Operation::DescribeAccountSettings, None, || {
            let off = BillingCommitment { status: "DISABLED" };
            Ok(Reply { minimum_throughput_billing_commitment: off })
        })
    }
}
