//! Serial number arithmetic (RFC 1982) for protocol counters that wrap.
//!
//! A serial number has no total order, so these types do **not** implement `Ord`: callers use `before`,
//! `after` or `distance_to`.

/// Declares a 32-bit serial number type.
///
/// ```
/// base::serial32! {
///     /// Counts commands.
///     pub struct CmdSn;
/// }
/// assert!(CmdSn(u32::MAX).before(CmdSn(0)));
/// ```
#[macro_export]
macro_rules! serial32 {
    ($(#[$doc:meta])* $vis:vis struct $name:ident;) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        $vis struct $name(pub u32);

        #[allow(dead_code, reason = "each counter uses its own part of the arithmetic")]
        impl $name {
            /// Returns the next number, wrapping from 2^32 - 1 to 0.
            #[must_use]
            $vis const fn next(self) -> Self {
                Self(self.0.wrapping_add(1))
            }

            /// Returns the number `count` after this one, wrapping.
            #[must_use]
            $vis const fn plus(self, count: u32) -> Self {
                Self(self.0.wrapping_add(count))
            }

            /// Returns the number `count` before this one, wrapping.
            #[must_use]
            $vis const fn minus(self, count: u32) -> Self {
                Self(self.0.wrapping_sub(count))
            }

            /// Returns whether this number comes before `other` (RFC 1982 §3.2).
            #[must_use]
            $vis const fn before(self, other: Self) -> bool {
                self.0 != other.0 && other.0.wrapping_sub(self.0) < 0x8000_0000
            }

            /// Returns whether this number comes after `other` (RFC 1982 §3.2).
            #[must_use]
            $vis const fn after(self, other: Self) -> bool {
                other.before(self)
            }

            /// Returns how many steps lead from this number to `later`, modulo 2^32.
            #[must_use]
            $vis const fn distance_to(self, later: Self) -> u32 {
                later.0.wrapping_sub(self.0)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    serial32! {
        /// A counter for the tests.
        struct Sn;
    }

    #[test]
    fn orders_across_the_wrap() {
        assert!(Sn(0xffff_fffe).before(Sn(1)));
        assert!(Sn(1).after(Sn(0xffff_fffe)));
        assert!(!Sn(7).before(Sn(7)));
        assert_eq!(Sn(0xffff_ffff).next(), Sn(0));
        assert_eq!(Sn(0xffff_fffe).distance_to(Sn(3)), 5);
        assert_eq!(Sn(3).minus(5), Sn(0xffff_fffe));
        assert_eq!(Sn(3).plus(2), Sn(5));
    }
}
