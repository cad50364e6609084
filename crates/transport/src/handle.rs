/// Declares a handle for something that a state machine numbers: a small index, which is used again, and a
/// generation, so that a stale handle finds nothing.
macro_rules! handle {
    ($(#[$doc:meta])* pub struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(
            /// The key in the table of the transport.
            pub base::arena::Key,
        );

        impl $name {
            /// Returns the index. It is dense, and unique among the handles of one transport that are valid
            /// now, so it can index a side table.
            pub const fn index(self) -> u32 {
                self.0.index
            }
        }
    };
}

pub(crate) use handle;
