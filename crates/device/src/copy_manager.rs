//! The state of the copy manager of a unit (SPC-4 §5.17): its operations and its ROD tokens.

pub(crate) mod operations;
pub(crate) mod tokens;

use operations::Operations;
use security::random::HmacDrbg;
use tokens::Tokens;

/// The state of the copy manager of a unit.
#[derive(Default)]
pub(crate) struct CopyManager {
    /// The copy operations that run or have ended.
    pub(crate) operations: Operations,
    /// The ROD tokens that were created.
    pub(crate) tokens: Tokens,
    /// The source of token secrets. Without it the unit creates no tokens.
    pub(crate) secrets: Option<HmacDrbg>,
}

impl CopyManager {
    /// Seeds the secrets of tokens with bytes of the operating system's generator.
    pub(crate) fn seed(&mut self, entropy: &[u8; 32]) {
        self.secrets = Some(HmacDrbg::new(*entropy));
    }
}
