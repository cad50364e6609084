//! A task management request that waits for its response.

use base::time::Instant;
use transport::task_management::TmfFunction;

use super::contract::Slot;
use super::task::Task;
use crate::pdu::Itt;
use crate::serial::{CmdSn, DataSn};
use crate::target::arena::Key;

/// A task management request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tmf {
    pub(super) origin: TmfOrigin,
    pub(super) function: TmfFunction,
    pub(super) lun: u64,
    pub(super) task: Option<Key>,
    /// The tag and the CmdSN of the task that the request names; an immediate task has no CmdSN of its own.
    pub(super) referenced: (Itt, Option<CmdSn>),
    pub(super) slot: Slot,
    pub(super) cmd_sn: CmdSn,
    pub(super) numbered: bool,
    pub(super) sent: bool,
    pub(super) order: u64,
    pub(super) sent_at: Instant,
    /// Whether the request was sent before, so that the target may have executed it.
    pub(super) again: bool,
    /// For a TASK REASSIGN: the ExpDataSN that was sent first.
    pub(super) exp_data_sn: Option<DataSn>,
    pub(super) tries: u32,
}

/// The origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TmfOrigin {
    /// The owner of the session.
    Owner,
    /// The session: a task is reassigned to another connection.
    Reassign,
    /// The session: the CmdSN of a rejected command must count as received.
    FillCmdSnGap,
}

impl Tmf {
    pub(super) const fn new(errand: TmfOrigin, function: TmfFunction, slot: Slot) -> Self {
        Self {
            origin: errand,
            function,
            lun: 0,
            task: None,
            referenced: (Itt::NONE, Some(CmdSn(0))),
            slot,
            cmd_sn: CmdSn(0),
            numbered: false,
            sent: false,
            order: 0,
            sent_at: Instant::ORIGIN,
            again: false,
            exp_data_sn: None,
            tries: 0,
        }
    }

    /// Returns whether the function ends every task of a kind.
    pub(super) const fn ends_many(&self) -> bool {
        matches!(
            self.function,
            TmfFunction::ABORT_TASK_SET
                | TmfFunction::CLEAR_TASK_SET
                | TmfFunction::LOGICAL_UNIT_RESET
                | TmfFunction::TARGET_WARM_RESET
                | TmfFunction::TARGET_COLD_RESET
                | TmfFunction::I_T_NEXUS_RESET
        )
    }

    /// Returns whether the function ends a task of this logical unit.
    pub(super) fn affects(&self, task: &Task) -> bool {
        let target_wide = matches!(
            self.function,
            TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET | TmfFunction::I_T_NEXUS_RESET
        );
        self.ends_many() && (target_wide || task.request.lun == self.lun)
    }
}
