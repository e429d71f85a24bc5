//! What an outcome means for its row.

use anabranch::producer::{Outcome, RejectReason};
use anabranch_model::retry::Fault;

/// What becomes of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is in the stream.
    Sent,
    /// The service will never take it: its key waits for a person.
    Park(String),
    /// An earlier row of its key was not taken. It stays where it is.
    Behind,
    /// Nothing is wrong with the row: everything is read and sent again, after a pause.
    Again(String),
}

/// Judges an outcome.
pub(crate) fn judge(outcome: &Outcome) -> Verdict {
    match outcome {
        Outcome::Placed { .. } => Verdict::Sent,
        Outcome::Rejected { why, .. } => match why {
            RejectReason::Refused { fault: Fault::Invalid | Fault::TooLarge, detail } => {
                Verdict::Park(detail.to_string())
            }
            RejectReason::Refused { detail, .. } => Verdict::Again(detail.to_string()),
            RejectReason::KeyStopped => Verdict::Behind,
            RejectReason::Expired => Verdict::Again("the producer's deadline passed".to_owned()),
            RejectReason::ProducerStopped => Verdict::Again("too many keys stand stopped".to_owned()),
            RejectReason::Closed => Verdict::Again("the producer was closed".to_owned()),
        },
        Outcome::Unknown { .. } => Verdict::Again("a reply was lost".to_owned()),
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
        let again = |text: &str| Verdict::Again(text.to_owned());
        for (outcome, expected) in [
            (refused(Fault::Invalid), Verdict::Park("no".to_owned())),
            (refused(Fault::TooLarge), Verdict::Park("no".to_owned())),
            (refused(Fault::AccessDenied), again("no")),
            (refused(Fault::Missing), again("no")),
            (refused(Fault::KeyUnusable), again("no")),
            (rejected(RejectReason::KeyStopped), Verdict::Behind),
            (rejected(RejectReason::Closed), again("the producer was closed")),
            (Outcome::Unknown { attempts: Attempts::default() }, again("a reply was lost")),
        ] {
            assert_eq!(judge(&outcome), expected, "{outcome:?}");
        }
    }
}
