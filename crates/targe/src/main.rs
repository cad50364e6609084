//! The `targe` binary.
#![forbid(unsafe_code)]
fn main() {}
