//! Protocol numbers of one byte.

/// Declares a one-byte protocol number that keeps unknown values.
#[macro_export]
macro_rules! code8 {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u8);

        impl $name {
            $($(#[$vdoc])* pub const $variant: Self = Self($value);)*
        }
    };
}
