//! Names that machines give out for things they number.

/// Declares a name for something that a machine numbers: a small index, used again, and a generation, so that an old name
/// finds nothing.
macro_rules! handle {
    ($(#[$doc:meta])* pub struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) base::arena::Key);

        impl $name {
            /// Returns the index: dense, and unique among those in being, so that it can serve as the index of a
            /// side table.
            pub const fn index(self) -> u32 {
                self.0.index
            }

            /// Returns the whole name as a number, never used again.
            pub const fn to_bits(self) -> u64 {
                ((self.0.generation as u64) << 32) | self.0.index as u64
            }

            /// Returns the name that `to_bits` gave.
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
