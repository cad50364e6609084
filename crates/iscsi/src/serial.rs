//! The sequence numbers of RFC 7143 §4.2.2. All of them wrap around and are compared by RFC 1982.

base::serial32! {
    /// Numbers the commands of a session (§4.2.2.1). `ExpCmdSN` and `MaxCmdSN` are of this kind too.
    pub struct CmdSn;
}

base::serial32! {
    /// Numbers the statuses of a connection (§4.2.2.2). `ExpStatSN` is of this kind too.
    pub struct StatSn;
}

base::serial32! {
    /// Numbers the Data PDUs of a task, or of the answer to one R2T (§4.2.2.4).
    pub struct DataSn;
}

base::serial32! {
    /// Numbers the R2Ts of a task (§4.2.2.4). In a bidirectional command R2Ts and Data-In PDUs share one
    /// number space with [`DataSn`].
    pub struct R2tSn;
}

impl CmdSn {
    /// Returns whether this number lies in `first..=last`, counting upwards from `first`. An empty window
    /// (`last` is one before `first`) contains no number.
    pub const fn within(self, first: Self, last: Self) -> bool {
        //= rfc7143#section-4.2.2.1
        //# Comparisons and arithmetic on the ExpCmdSN and MaxCmdSN MUST use Serial Number
        //# Arithmetic as defined in [RFC1982] where SERIAL_BITS = 32.
        first.distance_to(self) < first.distance_to(last.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_wrap_and_may_be_empty() {
        //= rfc7143#section-4.2.2.1
        //= type=test
        //# Comparisons and arithmetic on the ExpCmdSN and MaxCmdSN MUST use Serial Number
        //# Arithmetic as defined in [RFC1982] where SERIAL_BITS = 32.
        for (sn, first, last, inside) in [
            (5, 5, 5, true),
            (4, 5, 5, false),
            (6, 5, 5, false),
            (5, 5, 4, false),
            (0, u32::MAX, 1, true),
            (2, u32::MAX, 1, false),
        ] {
            assert_eq!(CmdSn(sn).within(CmdSn(first), CmdSn(last)), inside, "{sn} in {first}..={last}");
        }
    }
}
