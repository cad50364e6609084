//! Handles: the names that state machines give to the sessions, tasks and requests that they number.

/// Declares a handle type: a small index, which is used again, and a generation, so that an old handle finds
/// nothing.
macro_rules! handle {
    ($(#[$doc:meta])* pub struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) base::arena::Key);

        impl $name {
            /// Returns the index. Indexes are dense, and unique among the handles in use, so that one can be
            /// the index of a side table.
            pub const fn index(self) -> u32 {
                self.0.index
            }

            /// Returns the whole handle as a number, which is never used again.
            pub const fn to_bits(self) -> u64 {
                ((self.0.generation as u64) << 32) | self.0.index as u64
            }

            /// Returns the handle of which [`Self::to_bits`] returned `bits`.
            pub const fn from_bits(bits: u64) -> Self {
                let [a, b, c, d, e, f, g, h] = bits.to_be_bytes();
                Self(base::arena::Key {
                    generation: u32::from_be_bytes([a, b, c, d]),
                    index: u32::from_be_bytes([e, f, g, h]),
                })
            }
        }
    };
}

pub(crate) use handle;
