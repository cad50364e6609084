//! What the other threads tell the main thread of the daemon.

use target::units::UnitId;

/// An event that the main thread handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DaemonEvent {
    /// The configuration is to be read again.
    Reload,
    /// The daemon is to stop.
    Stop,
    /// The thread of this reactor has ended.
    ReactorEnded(usize),
    /// This unit is removed, and its medium holds everything that hosts wrote.
    UnitClosed(UnitId),
    /// A thread has panicked.
    ThreadPanicked,
    /// A reactor made or forgot nexus bindings.
    BindingsChanged,
}
