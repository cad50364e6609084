//! Bugs that can be planted in files and block devices. See [`base::fault_injection`].

base::bugs! {
    /// A flush after nothing but deallocations and zeroing is acknowledged without `fdatasync`.
    FilesForgetUnsynced,
}
