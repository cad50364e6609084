//! Task management functions: one request of an initiator can apply to several units (RFC 7143 §11.5.1, SAM-5
//! §7).

use alloc::vec::Vec;

use base::time::Instant;
use device::contract::{Access, NexusId, TaskKey, Tmf, TmfKey, TmfOutcome};
use hyperscsi::target::contract as hyperscsi_target;
use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::pdu::tmf_response::TmfResult;
use iscsi::target::contract as iscsi_target;
use scsi::lun::Lun;

use crate::config::UnitId;
use crate::shard::Shard;
use crate::transport::{SessionRef, TaskRef, TmfRef};

/// The task management requests that wait for units.
#[derive(Debug, Default)]
pub(crate) struct PendingTmfs {
    open: Vec<PendingTmf>,
}

#[derive(Debug)]
struct PendingTmf {
    tmf: TmfRef,
    nexus: NexusId,
    /// The number of units that have not responded.
    left: usize,
    /// The outcome so far.
    outcome: TmfOutcome,
    /// Whether the sessions of the target end with the response (TARGET COLD RESET).
    cold: bool,
}

/// A task management request of either transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TmfRequest {
    tmf: TmfRef,
    nexus: NexusId,
    function: TmfFunction,
    lun: Lun,
    task: Option<TaskKey>,
}

impl TmfRequest {
    pub(crate) fn of_iscsi(request: &iscsi_target::TmfIndication) -> Self {
        Self {
            tmf: TmfRef::Iscsi(request.tmf),
            nexus: SessionRef::Iscsi(request.session).nexus(),
            function: request.function,
            lun: Lun(request.lun),
            task: request.task.map(|task| TaskRef::Iscsi(task).key()),
        }
    }

    pub(crate) fn of_hyperscsi(request: &hyperscsi_target::TmfRequest) -> Self {
        Self {
            tmf: TmfRef::HyperScsi(request.tmf),
            nexus: SessionRef::HyperScsi(request.session).nexus(),
            // HyperSCSI has the function codes of iSCSI.
            function: TmfFunction(request.function.0),
            lun: Lun(request.lun),
            task: request.task.map(|task| TaskRef::HyperScsi(task).key()),
        }
    }
}

impl PendingTmfs {
    /// Removes the requests of an I_T nexus that has ended. No initiator waits for their responses.
    pub(crate) fn forget(&mut self, nexus: NexusId) {
        self.open.retain(|open| open.nexus != nexus);
    }
}

impl Shard {
    /// Starts a task management function.
    pub(crate) fn route_tmf(&mut self, now: Instant, request: &TmfRequest) {
        let (nexus, lun) = (request.nexus, request.lun);
        let one = |shard: &Self| shard.nexuses.get(nexus).and_then(|entry| entry.unit_at(lun));
        let cold = request.function == TmfFunction::TARGET_COLD_RESET;
        match request.function {
            TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET => {
                // SAM-5 §7 resets every unit of the target. This resets only the units that the I_T nexus
                // sees: an initiator with access to one unit must not abort the tasks of others. For the same
                // reason, a nexus with read-only access to one of its units may reset none.
                let Some(entry) = self.nexuses.get(nexus) else { return };
                let units = entry.units();
                let reads_only = |unit| entry.access_to(unit) != Some(Access::ReadWrite);
                if units.iter().copied().any(reads_only) {
                    return self.answer_tmf(request.tmf, TmfResult::REJECTED);
                }
                self.send_tmf_to_units(now, request, &units, Tmf::TargetReset, cold);
            }
            TmfFunction::I_T_NEXUS_RESET => {
                let units = self.nexuses.get(nexus).map(crate::nexus::NexusEntry::units).unwrap_or_default();
                self.send_tmf_to_units(now, request, &units, Tmf::NexusReset, false);
            }
            TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK if one(self).is_none() => {
                self.manage_without_unit(now, request);
            }
            function => match (one(self), to_device(function, request)) {
                (_, None) => self.answer_tmf(request.tmf, TmfResult::NOT_SUPPORTED),
                (None, _) => self.answer_tmf(request.tmf, TmfResult::NO_LUN),
                (Some(unit), Some(function)) => {
                    self.send_tmf_to_units(now, request, &[unit], function, false)
                }
            },
        }
    }

    /// Aborts or queries a task whose LUN leads its initiator to no unit any more. If the task still exists,
    /// its unit receives the function: the initiator can see this unit under another LUN. If the task does
    /// not exist, it was answered before.
    fn manage_without_unit(&mut self, now: Instant, request: &TmfRequest) {
        let owner = request.task.and_then(|key| self.owner(TaskRef::of(key)));
        match (owner, to_device(request.function, request)) {
            (Some(unit), Some(function)) => self.send_tmf_to_units(now, request, &[unit], function, false),
            (None, Some(_)) if request.function == TmfFunction::QUERY_TASK => {
                self.answer_tmf(request.tmf, TmfResult::COMPLETE);
            }
            (None, Some(_)) => self.answer_tmf(request.tmf, TmfResult::NO_TASK),
            (_, None) => self.answer_tmf(request.tmf, TmfResult::NO_LUN),
        }
    }

    fn send_tmf_to_units(
        &mut self,
        now: Instant,
        request: &TmfRequest,
        units: &[UnitId],
        function: Tmf,
        cold: bool,
    ) {
        let nexus = request.nexus;
        let (outcome, left) = (TmfOutcome::Complete, units.len());
        self.pending_tmfs.open.push(PendingTmf { tmf: request.tmf, nexus, left, outcome, cold });
        for unit in units {
            match self.units.mark_dirty(*unit) {
                Some(unit) => unit.execute_tmf(now, nexus, request.tmf.key(), function),
                None => self.tmf_complete(now, request.tmf.key(), TmfOutcome::Complete),
            }
        }
        if units.is_empty() {
            self.answer_finished(now);
        }
    }

    /// Records the outcome of one unit.
    pub(crate) fn tmf_complete(&mut self, now: Instant, key: TmfKey, outcome: TmfOutcome) {
        let tmf = TmfRef::of(key);
        if let Some(open) = self.pending_tmfs.open.iter_mut().find(|open| open.tmf == tmf) {
            open.left = open.left.saturating_sub(1);
            if outcome != TmfOutcome::Complete {
                open.outcome = outcome;
            }
        }
        self.answer_finished(now);
    }

    fn answer_finished(&mut self, now: Instant) {
        while let Some(at) = self.pending_tmfs.open.iter().position(|open| open.left == 0) {
            let open = self.pending_tmfs.open.swap_remove(at);
            self.answer_tmf(open.tmf, to_wire(open.outcome));
            if open.cold {
                self.close_target_of(now, open.nexus);
            }
        }
    }

    /// Ends TARGET COLD RESET: closes every session with the nexus' target that sees a unit which the nexus
    /// sees too.
    fn close_target_of(&mut self, now: Instant, nexus: NexusId) {
        let Some((target, seen)) = self.nexuses.get(nexus).map(|entry| (entry.target, entry.units())) else {
            return;
        };
        let sessions: Vec<_> = self
            .nexuses
            .iter()
            .filter(|(_, entry)| entry.target == target)
            .filter(|(id, entry)| *id == nexus || entry.units().iter().any(|unit| seen.contains(unit)))
            .map(|(_, entry)| entry.session)
            .collect();
        for session in sessions {
            self.close(now, session);
        }
    }
}

fn to_device(function: TmfFunction, request: &TmfRequest) -> Option<Tmf> {
    Some(match function {
        TmfFunction::ABORT_TASK => Tmf::AbortTask(request.task?),
        TmfFunction::QUERY_TASK => Tmf::QueryTask(request.task?),
        TmfFunction::ABORT_TASK_SET => Tmf::AbortTaskSet,
        TmfFunction::CLEAR_TASK_SET => Tmf::ClearTaskSet,
        TmfFunction::CLEAR_ACA => Tmf::ClearAca,
        //= rfc7143#section-11.5.1
        //# For the LOGICAL UNIT RESET function, the target MUST behave as dictated by the Logical Unit Reset
        //# function in [SAM2].
        TmfFunction::LOGICAL_UNIT_RESET => Tmf::LogicalUnitReset,
        TmfFunction::QUERY_TASK_SET => Tmf::QueryTaskSet,
        TmfFunction::QUERY_ASYNCHRONOUS_EVENT => Tmf::QueryAsynchronousEvent,
        _ => return None,
    })
}

const fn to_wire(outcome: TmfOutcome) -> TmfResult {
    match outcome {
        TmfOutcome::Complete => TmfResult::COMPLETE,
        TmfOutcome::Succeeded | TmfOutcome::SucceededWith(_) => TmfResult::SUCCEEDED,
        TmfOutcome::NoSuchTask => TmfResult::NO_TASK,
        TmfOutcome::NotSupported => TmfResult::NOT_SUPPORTED,
        TmfOutcome::Rejected => TmfResult::REJECTED,
    }
}
