//! Bugs that can be planted in the target. See [`base::fault_injection`].

base::bugs! {
    /// A LUN is served although after a reload it means another disk than when it was opened.
    RemapReachesOther,
}
