//! What the other threads tell the main thread of the daemon.

/// An event that the main thread handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonEvent {
    /// The configuration is to be read again.
    Reload,
    /// The daemon is to stop.
    Stop,
    /// The thread of this reactor has ended.
    ReactorEnded(usize),
    /// A thread has panicked.
    ThreadPanicked,
    /// A reactor made or forgot nexus bindings.
    BindingsChanged,
}
