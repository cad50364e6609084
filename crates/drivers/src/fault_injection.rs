//! Bugs that can be planted in file operations. See [`base::fault_injection`].

base::bugs! {
    /// A stable write is written without `RWF_DSYNC`.
    FilesDropDsync,
    /// A flush is acknowledged without `fdatasync`.
    FilesSkipFdatasync,
}
