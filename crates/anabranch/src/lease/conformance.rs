//! The suite that every lease store has to pass.
