//! Server-side encryption, as replies show it. Nothing is encrypted here.

/// How records are encrypted at rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encryption {
    /// Not at all.
    None,
    /// With a key of the key service.
    Kms,
}

impl Encryption {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Kms => "KMS",
        }
    }
}
