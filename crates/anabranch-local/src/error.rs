//! What an operation answers when it can't do what it was asked, in the service's own words.

/// The service's error types that the engine gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The stream, shard or consumer does not exist.
    ResourceNotFound,
    /// The resource is in a state that forbids the operation.
    ResourceInUse,
    /// A value is wrong in the context of the request.
    InvalidArgument,
    /// A value breaks a constraint of its own.
    Validation,
    /// The request body can't be read.
    Serialization,
    /// An account limit would be passed.
    LimitExceeded,
    /// A shard's rate is used up.
    ProvisionedThroughputExceeded,
    /// The shard iterator is too old.
    ExpiredIterator,
    /// The token of a list is too old.
    ExpiredNextToken,
    /// The caller may not do this. Given on request only: the engine knows no permissions.
    AccessDenied,
    /// The caller's credentials are too old. Given on request only.
    ExpiredToken,
    /// The caller's credentials are unknown. Given on request only.
    UnrecognizedClient,
    /// The stream's encryption key is disabled. Given on request only.
    KmsDisabled,
    /// The operation's name is not known.
    UnknownOperation,
    /// The request came too slowly.
    RequestTimeout,
    /// The service failed.
    InternalFailure,
    /// The operation took effect, and its reply must not arrive: a server closes the connection,
    /// an in-process caller treats the outcome as unknown. Never sent as an answer.
    ReplyLost,
}

impl ErrorKind {
    /// The type's name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResourceNotFound => "ResourceNotFoundException",
            Self::ResourceInUse => "ResourceInUseException",
            Self::InvalidArgument => "InvalidArgumentException",
            Self::Validation => "ValidationException",
            Self::Serialization => "SerializationException",
            Self::LimitExceeded => "LimitExceededException",
            Self::ProvisionedThroughputExceeded => "ProvisionedThroughputExceededException",
            Self::ExpiredIterator => "ExpiredIteratorException",
            Self::ExpiredNextToken => "ExpiredNextTokenException",
            Self::AccessDenied => "AccessDeniedException",
            Self::ExpiredToken => "ExpiredTokenException",
            Self::UnrecognizedClient => "UnrecognizedClientException",
            Self::KmsDisabled => "KMSDisabledException",
            Self::UnknownOperation => "UnknownOperationException",
            Self::RequestTimeout => "RequestTimeoutException",
            Self::InternalFailure => "InternalFailure",
            Self::ReplyLost => "ReplyLost",
        }
    }

    /// The HTTP status that goes with the type: the service answers 400 to every client error.
    pub fn http_status(self) -> u16 {
        match self {
            Self::InternalFailure | Self::ReplyLost => 500,
            Self::RequestTimeout => 408,
            _ => 400,
        }
    }
}

/// An error answer: its type and its message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", kind.name())]
pub struct ApiError {
    /// The error's type.
    pub kind: ErrorKind,
    /// What the service says about it.
    pub message: String,
}

impl ApiError {
    /// An error of the given type.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ResourceNotFound, message)
    }

    pub(crate) fn in_use(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::ResourceInUse, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    pub(crate) fn validation(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Validation, message)
    }

    pub(crate) fn limit_exceeded(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::LimitExceeded, message)
    }

    /// The service's own failure, which clients retry.
    pub fn internal() -> Self {
        Self::new(ErrorKind::InternalFailure, "Internal service failure.")
    }

    /// The journal could not keep what was asked for, and so it did not happen. The person who runs
    /// the server can mend it, so the reason is in the text.
    pub fn not_kept(error: &std::io::Error) -> Self {
        let text = format!("The journal of anabranch local cannot be written: {error}.");
        Self::new(ErrorKind::InternalFailure, text)
    }
}
