//! Bugs that can be planted in the oracle. See [`base::fault_injection`].

base::bugs! {
    /// The oracle assumes that a signed block is at the right address, whatever address it contains.
    BelieveAddress,
}
