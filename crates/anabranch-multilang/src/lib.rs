//! KCL's multi-language daemon without a JVM.
