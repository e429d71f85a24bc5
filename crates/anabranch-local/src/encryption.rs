//! Server-side encryption as replies report it. Nothing is actually encrypted.

/// Type of encryption at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// No encryption.
    None,
    /// Encryption with a KMS key.
    Kms,
}

impl Encryption {
    /// Returns the name of the type in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Kms => "KMS",
        }
    }
}
