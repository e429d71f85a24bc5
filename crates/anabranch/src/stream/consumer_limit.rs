//! Tells apart the limits behind a refused fan-out consumer registration.
//!
//! `LimitExceededException` stands for three limits. Two clear by themselves: five calls a second,
//! and five consumers in the state CREATING at once. The third, the number of consumers per stream,
//! holds until one is removed. The service documents no message for it, so the consumers are
//! counted.

use anabranch_model::limits;
use anabranch_model::retry::Fault;

/// Maximum number of consumers in the state CREATING at once.
const CREATING_AT_ONCE: usize = 5;
/// Start of the service's message when calls come too fast.
#[cfg(feature = "aws")]
const TOO_FAST: &str = "Rate exceeded";

/// Returns true if the message alone shows that calls came too fast.
#[cfg(feature = "aws")]
pub(super) fn is_rate(message: &str) -> bool {
    message.contains(TOO_FAST)
}

/// Returns the fault of a refusal on a stream with `registered` consumers, `creating` of which are
/// being created.
pub(super) fn fault(registered: usize, creating: usize) -> Fault {
    if registered >= limits::STREAM_MAX_CONSUMERS && creating < CREATING_AT_ONCE {
        Fault::LimitReached
    } else {
        Fault::Throttled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_of_consumers_is_a_limit_that_stays() {
        for (registered, creating, want) in [
            (0, 0, Fault::Throttled),
            (19, 0, Fault::Throttled),
            (20, 0, Fault::LimitReached),
            (20, 4, Fault::LimitReached),
            (20, 5, Fault::Throttled),
            (50, 1, Fault::LimitReached),
        ] {
            assert_eq!(fault(registered, creating), want, "{registered}, {creating} creating");
        }
        assert!(is_rate("Rate exceeded for stream s under account 1."));
        assert!(!is_rate("Stream s has reached the limit of 20 consumers."));
    }
}
