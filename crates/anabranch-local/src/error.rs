//! Errors of operations, with the service's own types and messages.

/// The service's error types that the engine returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The stream, shard or consumer does not exist.
    ResourceNotFound,
    /// The resource is in a state that forbids the operation.
    ResourceInUse,
    /// A value is wrong in the context of the request.
    InvalidArgument,
    /// A value violates a constraint of its own.
    Validation,
    /// The request body cannot be read.
    Serialization,
    /// The request would exceed an account limit.
    LimitExceeded,
    /// A shard's rate is used up.
    ProvisionedThroughputExceeded,
    /// The shard iterator is too old.
    ExpiredIterator,
    /// The pagination token is too old.
    ExpiredNextToken,
    /// The caller lacks the permission. Injected only: the engine has no permissions.
    AccessDenied,
    /// The caller's credentials are too old. Injected only.
    ExpiredToken,
    /// The caller's credentials are unknown. Injected only.
    UnrecognizedClient,
    /// The stream's encryption key is disabled. Injected only.
    KmsDisabled,
    /// The operation is unknown.
    UnknownOperation,
    /// The request arrived too slowly.
    RequestTimeout,
    /// The service failed.
    InternalFailure,
    /// The operation took effect, but its reply must not arrive. A server closes the connection; an
    /// in-process caller treats the outcome as unknown. Never sent as an answer.
    ReplyLost,
}

impl ErrorKind {
    /// Returns the type's name on the wire.
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

    /// Returns the HTTP status of the type. The service answers client errors with 400, except a
    /// request timeout, which is 408.
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
    /// The service's message.
    pub message: String,
}

impl ApiError {
    /// Creates an error of the given type.
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

    /// Creates the service's own failure, which clients retry.
    pub fn internal() -> Self {
        Self::new(ErrorKind::InternalFailure, "Internal service failure.")
    }

    /// Creates the error for an operation that did not happen because the journal could not keep
    /// it. The message contains the reason, because the operator of the server can fix it.
    pub fn not_kept(error: &std::io::Error) -> Self {
        let text = format!("The journal of anabranch local cannot be written: {error}.");
        Self::new(ErrorKind::InternalFailure, text)
    }
}
