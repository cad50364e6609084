//! The messages and services of CSI, generated from `proto/csi.proto`.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::unwrap_used,
    clippy::expect_used,
    unused_qualifications,
    reason = "generated code; csi.proto documents it"
)]

include!("../proto/csi.v1.in");

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn the_generated_code_is_that_of_the_specification() {
        let digest = Sha256::digest(include_bytes!("../proto/csi.proto"));
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let head = include_str!("../proto/csi.v1.in").lines().nth(1).unwrap();
        assert!(head.ends_with(&hex), "generate csi.v1.in again: {hex}");
    }
}
