//! Retries: classification of service errors, and the backoff before the next attempt.

/// Classified failure of a call, or of one entry of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Over a rate limit. The call was not applied.
    Throttled,
    /// The service failed. The call may have been applied before the failure.
    Internal,
    /// The connection broke or the reply was too late. The call may have been applied.
    ReplyLost,
    /// No connection was established, so nothing was sent.
    NotSent,
    /// A quota is exhausted, and remains so until an operator removes something or has it raised.
    LimitReached,
    /// The stream or consumer is being changed; it will be usable later.
    Busy,
    /// The credentials have expired. Fresh ones may succeed.
    CredentialsExpired,
    /// The iterator or page token is too old. A fresh one succeeds.
    IteratorExpired,
    /// The caller is not authorized.
    AccessDenied,
    /// The stream, shard or consumer does not exist.
    Missing,
    /// The request violates a rule of the service.
    Invalid,
    /// The record or request is too large.
    TooLarge,
    /// The stream's encryption key cannot be used: disabled, missing or forbidden.
    KeyUnusable,
    /// An unrecognised error.
    Unknown,
}

/// Consequences of a fault for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultClass {
    /// True if the same call may succeed later without intervention.
    pub retryable: bool,
    /// True if the call may have been applied although it failed.
    pub maybe_applied: bool,
    /// True if the call failed because of a rate limit.
    pub throttle: bool,
}

impl Fault {
    /// Classifies an error by its name and, if there was a reply, its HTTP status.
    ///
    /// The name may have a namespace before `#` or an address after `:`, as in replies. An unknown
    /// name is classified by the status. A 404 alone proves nothing about a stream: an intermediate
    /// proxy without a route returns it too.
    pub fn of(name: &str, status: Option<u16>) -> Self {
        let name = name.rsplit('#').next().unwrap_or(name);
        let name = name.split(':').next().unwrap_or(name);
        if name.is_empty() {
            return Self::without_name(status);
        }
        Self::of_name(name).unwrap_or_else(|| Self::of_status(status))
    }

    /// Classifies an error by its name, HTTP status and message.
    ///
    /// A signature is refused under one name for a wrong key and for a wrong clock. A clock error
    /// is transient, and the next attempt is signed again.
    pub fn of_words(name: &str, status: Option<u16>, message: &str) -> Self {
        let fault = Self::of(name, status);
        let by_clock = ["Signature expired", "Signature not yet current"];
        if fault == Self::AccessDenied && by_clock.iter().any(|words| message.contains(words)) {
            return Self::CredentialsExpired;
        }
        fault
    }

    fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "ProvisionedThroughputExceededException"
            | "ProvisionedThroughputExceeded"
            | "LimitExceededException"
            | "KMSThrottlingException"
            | "RequestLimitExceeded"
            | "RequestThrottled"
            | "RequestThrottledException"
            | "SlowDown"
            | "Throttling"
            | "ThrottledException"
            | "ThrottlingException"
            | "TooManyRequestsException" => Self::Throttled,
            "InternalFailure"
            | "InternalFailureException"
            | "InternalError"
            | "InternalServerError"
            | "InternalServerException"
            | "ServiceUnavailable"
            | "ServiceUnavailableException" => Self::Internal,
            "RequestTimeout" | "RequestTimeoutException" => Self::ReplyLost,
            "ResourceInUseException" => Self::Busy,
            "ExpiredToken" | "ExpiredTokenException" | "RequestExpired" => Self::CredentialsExpired,
            "ExpiredIteratorException" | "ExpiredNextTokenException" => Self::IteratorExpired,
            "AccessDenied"
            | "AccessDeniedException"
            | "IncompleteSignature"
            | "IncompleteSignatureException"
            | "InvalidAccessKeyId"
            | "InvalidClientTokenId"
            | "InvalidClientTokenIdException"
            | "InvalidSignature"
            | "InvalidSignatureException"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "NotAuthorized"
            | "OptInRequired"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClient"
            | "UnrecognizedClientException" => Self::AccessDenied,
            "ResourceNotFoundException" => Self::Missing,
            "InvalidAction"
            | "InvalidArgumentException"
            | "InvalidParameterCombination"
            | "InvalidParameterValue"
            | "InvalidQueryParameter"
            | "MalformedQueryString"
            | "MissingAction"
            | "MissingParameter"
            | "SerializationException"
            | "UnknownOperationException"
            | "ValidationError"
            | "ValidationException" => Self::Invalid,
            "RequestEntityTooLarge" | "RequestEntityTooLargeException" | "RequestTooLarge" => {
                Self::TooLarge
            }
            "KMSAccessDeniedException"
            | "KMSDisabledException"
            | "KMSInvalidStateException"
            | "KMSNotFoundException"
            | "KMSOptInRequired" => Self::KeyUnusable,
            _ => return None,
        })
    }

    fn of_status(status: Option<u16>) -> Self {
        match status {
            Some(401 | 403) => Self::AccessDenied,
            status => Self::without_name(status),
        }
    }

    /// Classifies an error without a name. A refusal by the service has a name. One without comes
    /// from an intermediary, which knows neither the stream nor the records.
    fn without_name(status: Option<u16>) -> Self {
        match status {
            Some(408) => Self::ReplyLost,
            Some(413) => Self::TooLarge,
            Some(429) => Self::Throttled,
            Some(500..=599) => Self::Internal,
            _ => Self::Unknown,
        }
    }

    /// Returns the consequences for the caller.
    pub fn class(self) -> FaultClass {
        let (retryable, maybe_applied, throttle) = match self {
            Self::Throttled => (true, false, true),
            // An unknown error is retried: a failed retry costs time, a record that is given up
            // wrongly is lost.
            Self::Internal | Self::ReplyLost | Self::Unknown => (true, true, false),
            Self::NotSent | Self::Busy | Self::CredentialsExpired | Self::IteratorExpired => {
                (true, false, false)
            }
            Self::LimitReached
            | Self::AccessDenied
            | Self::Missing
            | Self::Invalid
            | Self::TooLarge
            | Self::KeyUnusable => (false, false, false),
        };
        FaultClass { retryable, maybe_applied, throttle }
    }

    /// Returns true if the same call may succeed later without intervention.
    pub fn is_retryable(self) -> bool {
        self.class().retryable
    }

    /// Returns true if the service refused the caller, independent of the data sent. A permission
    /// is missing, the credentials or the signature are not accepted, or the stream's encryption
    /// key cannot be used. The call was not applied, and it succeeds once the cause is fixed.
    pub fn refuses_caller(self) -> bool {
        matches!(self, Self::AccessDenied | Self::CredentialsExpired | Self::KeyUnusable)
    }
}

/// Exponential backoff with jitter: waits double with each failure, up to a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    first_ms: u64,
    cap_ms: u64,
}

impl Backoff {
    /// Creates a backoff that waits at most `first_ms` after one failure and never more than
    /// `cap_ms`. Both are at least 1 ms.
    pub const fn new(first_ms: u64, cap_ms: u64) -> Self {
        let cap_ms = if cap_ms == 0 { 1 } else { cap_ms };
        let first_ms = if first_ms == 0 { 1 } else { first_ms };
        Self { first_ms: if first_ms < cap_ms { first_ms } else { cap_ms }, cap_ms }
    }

    /// Returns the shortest and the longest wait after this many consecutive failures.
    ///
    /// Half of the wait is fixed and half is jitter. Callers that failed together retry at
    /// different times, and none retries immediately.
    pub fn bounds_ms(&self, failures: u32) -> (u64, u64) {
        let Some(doublings) = failures.checked_sub(1) else { return (0, 0) };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let longest = self.first_ms.saturating_mul(factor).min(self.cap_ms);
        (longest.div_ceil(2), longest)
    }

    /// Returns the wait after this many consecutive failures; 0 for none. `entropy` is any random
    /// number; it selects uniformly between the bounds.
    pub fn wait_ms(&self, failures: u32, entropy: u64) -> u64 {
        let (shortest, longest) = self.bounds_ms(failures);
        let choices = u128::from(longest - shortest) + 1;
        shortest + ((u128::from(entropy) * choices) >> u64::BITS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_the_service_are_known() {
        let check = |fault, names: &[&str]| {
            for name in names {
                // The status must not matter for a known name.
                assert_eq!(Fault::of(name, Some(400)), fault, "{name}");
                assert_eq!(Fault::of(name, None), fault, "{name}");
            }
        };
        check(
            Fault::Throttled,
            &[
                "ProvisionedThroughputExceededException",
                "LimitExceededException",
                "ThrottlingException",
            ],
        );
        check(Fault::Throttled, &["KMSThrottlingException"]);
        check(
            Fault::Internal,
            &["InternalFailure", "ServiceUnavailable", "InternalFailureException"],
        );
        check(Fault::ReplyLost, &["RequestTimeout"]);
        check(Fault::Busy, &["ResourceInUseException"]);
        check(Fault::CredentialsExpired, &["ExpiredTokenException"]);
        check(Fault::IteratorExpired, &["ExpiredIteratorException", "ExpiredNextTokenException"]);
        check(Fault::AccessDenied, &["AccessDeniedException", "UnrecognizedClientException"]);
        check(
            Fault::AccessDenied,
            &["InvalidClientTokenId", "SignatureDoesNotMatch", "MissingAuthenticationToken"],
        );
        check(Fault::Missing, &["ResourceNotFoundException"]);
        check(Fault::Invalid, &["ValidationException", "InvalidArgumentException"]);
        check(Fault::Invalid, &["InvalidParameterValue", "SerializationException"]);
        check(Fault::TooLarge, &["RequestEntityTooLarge"]);
        check(
            Fault::KeyUnusable,
            &["KMSDisabledException", "KMSInvalidStateException", "KMSAccessDeniedException"],
        );
        check(Fault::KeyUnusable, &["KMSNotFoundException", "KMSOptInRequired"]);
        check(
            Fault::Missing,
            &[
                "com.amazonaws.kinesis.v20131202#ResourceNotFoundException",
                "ResourceNotFoundException:http://internal.amazon.com/coral/com.amazon.coral/",
            ],
        );
    }

    #[test]
    fn unknown_names_are_judged_by_their_status() {
        for (status, named, nameless) in [
            (Some(401), Fault::AccessDenied, Fault::Unknown),
            (Some(403), Fault::AccessDenied, Fault::Unknown),
            (Some(404), Fault::Unknown, Fault::Unknown),
        ] {
            assert_eq!(Fault::of("SomethingNewException", status), named, "{status:?}");
            assert_eq!(Fault::of("", status), nameless, "{status:?}");
        }
        for (status, fault) in [
            (None, Fault::Unknown),
            (Some(200), Fault::Unknown),
            (Some(400), Fault::Unknown),
            (Some(408), Fault::ReplyLost),
            (Some(413), Fault::TooLarge),
            (Some(414), Fault::Unknown),
            (Some(429), Fault::Throttled),
            (Some(431), Fault::Unknown),
            (Some(499), Fault::Unknown),
            (Some(500), Fault::Internal),
            (Some(503), Fault::Internal),
        ] {
            assert_eq!(Fault::of("SomethingNewException", status), fault, "{status:?}");
            assert_eq!(Fault::of("", status), fault, "{status:?}");
        }
    }

    #[test]
    fn a_wrong_clock_passes_and_a_wrong_key_does_not() {
        let check = |name, message, fault| {
            assert_eq!(Fault::of_words(name, Some(400), message), fault, "{name}: {message}");
        };
        let name = "InvalidSignatureException";
        let early = "Signature not yet current: 20261115T120000Z is still later than …";
        let late = "Signature expired: 20261115T120000Z is now earlier than …";
        check(name, early, Fault::CredentialsExpired);
        check(name, late, Fault::CredentialsExpired);
        check(name, "The request signature we calculated does not match", Fault::AccessDenied);
        check("ResourceNotFoundException", late, Fault::Missing);
    }

    #[test]
    fn permanent_faults_fail_at_once_and_doubtful_ones_say_so() {
        // Retryable, maybe applied, throttle.
        for (fault, want) in [
            (Fault::Throttled, (true, false, true)),
            (Fault::Internal, (true, true, false)),
            (Fault::ReplyLost, (true, true, false)),
            (Fault::NotSent, (true, false, false)),
            (Fault::Busy, (true, false, false)),
            (Fault::CredentialsExpired, (true, false, false)),
            (Fault::IteratorExpired, (true, false, false)),
            (Fault::AccessDenied, (false, false, false)),
            (Fault::Missing, (false, false, false)),
            (Fault::Invalid, (false, false, false)),
            (Fault::TooLarge, (false, false, false)),
            (Fault::KeyUnusable, (false, false, false)),
            (Fault::Unknown, (true, true, false)),
        ] {
            let FaultClass { retryable, maybe_applied, throttle } = fault.class();
            assert_eq!((retryable, maybe_applied, throttle), want, "{fault:?}");
        }
    }

    #[test]
    fn a_refusal_of_the_caller_is_never_applied_and_says_nothing_of_the_records() {
        for (fault, refuses) in [
            (Fault::AccessDenied, true),
            (Fault::CredentialsExpired, true),
            (Fault::KeyUnusable, true),
            (Fault::Missing, false),
            (Fault::Invalid, false),
            (Fault::TooLarge, false),
            (Fault::Throttled, false),
            (Fault::Internal, false),
            (Fault::ReplyLost, false),
            (Fault::NotSent, false),
            (Fault::Busy, false),
            (Fault::IteratorExpired, false),
            (Fault::Unknown, false),
        ] {
            assert_eq!(fault.refuses_caller(), refuses, "{fault:?}");
            assert!(!refuses || !fault.class().maybe_applied, "{fault:?}");
        }
    }

    #[test]
    fn waits_double_up_to_the_cap() {
        let backoff = Backoff::new(100, 1_000);
        let bounds: Vec<_> = (0..7).map(|failures| backoff.bounds_ms(failures)).collect();
        let want =
            [(0, 0), (50, 100), (100, 200), (200, 400), (400, 800), (500, 1_000), (500, 1_000)];
        assert_eq!(bounds, want);
        assert_eq!((backoff.wait_ms(1, 0), backoff.wait_ms(1, u64::MAX)), (50, 100));
        assert_eq!(backoff.wait_ms(1, u64::MAX / 2), 75);
        assert_eq!(backoff.wait_ms(0, u64::MAX), 0);
        assert_eq!(backoff.bounds_ms(u32::MAX), (500, 1_000));
        assert_eq!(Backoff::new(0, 0).wait_ms(3, 0), 1);
        assert_eq!(Backoff::new(500, 20).bounds_ms(1), (10, 20));
    }

    proptest! {
        #[test]
        fn waits_stay_within_bounds_that_only_grow(
            first_ms: u64, cap_ms: u64, failures in 1_u32..200, entropy: u64,
        ) {
            let backoff = Backoff::new(first_ms, cap_ms);
            let (shortest, longest) = backoff.bounds_ms(failures);
            let wait = backoff.wait_ms(failures, entropy);
            prop_assert!(1 <= shortest && shortest <= wait && wait <= longest);
            prop_assert!(longest <= cap_ms.max(1));
            let next = backoff.bounds_ms(failures + 1);
            prop_assert!(shortest <= next.0 && longest <= next.1);
            prop_assert!(longest == cap_ms.max(1) || next.1 > longest);
        }
    }
}
