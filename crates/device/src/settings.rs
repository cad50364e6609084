//! What application clients can change about a unit, in the form in which the rest of it asks: the mode pages write it.

/// The settings in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// WCE of the caching page: writes may be acknowledged before they are durable.
    pub(crate) write_cache: bool,
    /// SWP of the control page: writes are refused.
    pub(crate) software_write_protect: bool,
    /// D_SENSE of the control page: sense data in descriptor format.
    pub(crate) descriptor_sense: bool,
    /// TAS of the control page: a task aborted by another nexus ends with TASK ABORTED.
    pub(crate) task_aborted_status: bool,
    /// UA_INTLCK_CTRL of the control page.
    pub(crate) attention_interlock: AttentionInterlock,
    /// QERR of the control page.
    pub(crate) queue_error: QueueError,
}

/// QERR (SPC-5 §7.5.8): which other commands a command takes with it when it ends with CHECK CONDITION.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueError {
    /// The low bit: any at all.
    pub(crate) aborts: bool,
    /// The high bit: only those of the nexus that it came from. Reserved without the low one.
    pub(crate) only_own: bool,
}

impl QueueError {
    /// Returns whether it is 10b, which means nothing.
    pub(crate) const fn is_reserved(self) -> bool {
        self.only_own && !self.aborts
    }
}

/// UA_INTLCK_CTRL (SPC-5 §7.5.8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AttentionInterlock {
    /// 00b: reporting a unit attention clears it.
    #[default]
    ClearedWhenReported,
    /// 10b or 11b: only REQUEST SENSE clears it.
    Kept,
}

impl Settings {
    /// Returns the settings of a unit that nobody has touched.
    pub(crate) const fn new(write_cache: bool) -> Self {
        Self {
            write_cache,
            software_write_protect: false,
            descriptor_sense: false,
            task_aborted_status: false,
            attention_interlock: AttentionInterlock::ClearedWhenReported,
            queue_error: QueueError { aborts: false, only_own: false },
        }
    }
}
