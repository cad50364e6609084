//! What the judge of causes has to know of a world.

use base::time::Duration;

/// What the judge has to know of a world.
#[derive(Clone, Debug, Default)]
pub(crate) struct CauseRules {
    pub(crate) initiators: usize,
    /// Whether the transport can end commands with ABORTED COMMAND. It then judges itself whether what
    /// happened to the PDUs of a task explains that.
    pub(crate) transport_aborts: bool,
    /// For each unit, whether it demands more protection than initiators use: it then refuses every command.
    pub(crate) refuses_protection: Vec<bool>,
    pub(crate) block_len: usize,
    /// How long an operation of a medium takes at most. A task that is aborted meanwhile stays in its task
    /// set until then.
    pub(crate) medium_within: Duration,
    /// How many tasks a unit accepts at a time.
    pub(crate) task_set_max: usize,
    /// Whether initiators reserve units. Another judge then knows which commands conflict.
    pub(crate) has_reservations: bool,
    /// How many bytes of data the transport of the target keeps, in one direction; `None`: it keeps none.
    pub(crate) data_bytes_max: Option<usize>,
    /// How many bytes the data of a write takes at least, if they arrive before their request: its length is
    /// not known then.
    pub(crate) early_data_bytes: usize,
    /// Whether reloads change what LUNs lead to.
    pub(crate) has_reloads: bool,
}
