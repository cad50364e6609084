//! Fault injection: planted bugs, to check that the simulator, the tests and the rigs find them. A checker
//! that never finds anything proves nothing.
//!
//! Each crate declares its own bugs with [`bugs!`](crate::bugs). Only a build with the feature `planted` can
//! have such a bug, and it has none unless `inject` was called. In every other build `is_injected` is false
//! at compile time, and nothing of this module remains.

/// Declares the bugs that can be planted in a crate: an enum `Bug`, and `is_injected`.
#[macro_export]
macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A bug that can be planted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $name,)*
        }

        impl Bug {
            /// Every bug.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the name, under which [`base::fault_injection::inject`] plants the bug.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }

        /// Returns whether this bug is planted.
        #[inline]
        pub fn is_injected(bug: Bug) -> bool {
            base::fault_injection::is_planted(bug.name())
        }
    };
}

/// The hash of the planted bug's name; 0 if there is none.
#[cfg(feature = "planted")]
static PLANTED: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

/// Plants the bug with this name in place of the previous one, or removes it.
#[cfg(feature = "planted")]
pub fn inject(name: Option<&str>) {
    PLANTED.store(name.map_or(0, hash), core::sync::atomic::Ordering::Relaxed);
}

/// Returns whether the bug with this name is planted.
#[cfg(feature = "planted")]
pub fn is_planted(name: &str) -> bool {
    let planted = PLANTED.load(core::sync::atomic::Ordering::Relaxed);
    planted != 0 && planted == hash(name)
}

/// Returns whether the bug with this name is planted: never.
#[cfg(not(feature = "planted"))]
#[inline]
pub const fn is_planted(_: &str) -> bool {
    false
}

/// Returns a hash that is not 0 (FNV-1a).
#[cfg(feature = "planted")]
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)) | 1
}
