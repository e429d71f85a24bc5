//! Interpretation of a producer outcome for its row.

use anabranch::producer::{Outcome, RejectReason};
use anabranch_model::retry::Fault;

/// Consequence of an outcome for its row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowVerdict {
    /// The row is in the stream.
    Sent,
    /// The service will never accept the row, so its key is blocked. Holds the reason.
    Park(String),
    /// An earlier row of the key was not accepted. The row stays in the table.
    Behind,
    /// The row is valid. After a pause everything is read and sent again. Holds the reason.
    Retry(String),
}

/// Converts an outcome to a verdict.
pub(crate) fn judge(outcome: &Outcome) -> RowVerdict {
    match outcome {
        Outcome::Placed { .. } => RowVerdict::Sent,
        Outcome::Rejected { why, .. } => match why {
            RejectReason::Refused { fault: Fault::Invalid | Fault::TooLarge, detail } => {
                RowVerdict::Park(detail.to_string())
            }
            RejectReason::Refused { detail, .. } => RowVerdict::Retry(detail.to_string()),
            RejectReason::KeyStopped => RowVerdict::Behind,
            RejectReason::Expired => RowVerdict::Retry("the producer's deadline passed".to_owned()),
            RejectReason::ProducerStopped => {
                RowVerdict::Retry("too many keys are stopped".to_owned())
            }
            RejectReason::Closed => RowVerdict::Retry("the producer was closed".to_owned()),
        },
        Outcome::Unknown { .. } => RowVerdict::Retry("a reply was lost".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch::producer::Attempts;

    #[test]
    fn only_a_fault_of_the_row_parks_its_key() {
        let rejected = |why| Outcome::Rejected { why, attempts: Attempts::default() };
        let refused = |fault| rejected(RejectReason::Refused { fault, detail: "no".into() });
        let again = |text: &str| RowVerdict::Retry(text.to_owned());
        for (outcome, expected) in [
            (refused(Fault::Invalid), RowVerdict::Park("no".to_owned())),
            (refused(Fault::TooLarge), RowVerdict::Park("no".to_owned())),
            (refused(Fault::AccessDenied), again("no")),
            (refused(Fault::Missing), again("no")),
            (refused(Fault::KeyUnusable), again("no")),
            (rejected(RejectReason::KeyStopped), RowVerdict::Behind),
            (rejected(RejectReason::Closed), again("the producer was closed")),
            (Outcome::Unknown { attempts: Attempts::default() }, again("a reply was lost")),
        ] {
            assert_eq!(judge(&outcome), expected, "{outcome:?}");
        }
    }
}
