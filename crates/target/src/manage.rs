//! Task management: one request of an initiator can mean several units (RFC 7143 §11.5.1, SAM-5 §7).

use alloc::vec::Vec;

use base::time::Instant;
use device::contract::{Access, ManageFunction, ManageKey, ManageOutcome, NexusId, TaskKey};
use hyperscsi::target::contract as frames;
use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::pdu::tmf_response::TmfResult;
use iscsi::target::contract as stream;
use scsi::lun::Lun;

use crate::config::UnitId;
use crate::shard::Shard;
use crate::transport::{Session, Task, Tmf};

/// The requests that wait for units.
#[derive(Debug, Default)]
pub(crate) struct Managing {
    open: Vec<Open>,
}

#[derive(Debug)]
struct Open {
    tmf: Tmf,
    nexus: NexusId,
    /// How many units have not answered.
    left: usize,
    /// The answer so far.
    outcome: ManageOutcome,
    /// Whether the target's sessions end with the answer.
    cold: bool,
}

/// A request, whichever transport it came by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    tmf: Tmf,
    nexus: NexusId,
    function: TmfFunction,
    lun: Lun,
    task: Option<TaskKey>,
}

impl Request {
    pub(crate) fn of_iscsi(request: &stream::Manage) -> Self {
        Self {
            tmf: Tmf::Iscsi(request.tmf),
            nexus: Session::Iscsi(request.session).nexus(),
            function: request.function,
            lun: Lun(request.lun),
            task: request.task.map(|task| Task::Iscsi(task).key()),
        }
    }

    pub(crate) fn of_hyperscsi(request: &frames::Manage) -> Self {
        Self {
            tmf: Tmf::HyperScsi(request.tmf),
            nexus: Session::HyperScsi(request.session).nexus(),
            // The numbers are those of iSCSI.
            function: TmfFunction(request.function.0),
            lun: Lun(request.lun),
            task: request.task.map(|task| Task::HyperScsi(task).key()),
        }
    }
}

impl Managing {
    /// Forgets the requests of a nexus that is gone; nobody waits for their answers.
    pub(crate) fn forget(&mut self, nexus: NexusId) {
        self.open.retain(|open| open.nexus != nexus);
    }
}

impl Shard {
    /// Starts a task management function.
    pub(crate) fn manage(&mut self, now: Instant, request: &Request) {
        let (nexus, lun) = (request.nexus, request.lun);
        let one = |shard: &Self| shard.nexuses.get(nexus).and_then(|entry| entry.unit_at(lun));
        let cold = request.function == TmfFunction::TARGET_COLD_RESET;
        match request.function {
            TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET => {
                // SAM-5 §7 resets every unit of the target. What a nexus does not see it has no business with: an
                // initiator that was let in to one unit must not end the tasks of others. For the same reason, one that may
                // only read one of them resets none.
                let Some(entry) = self.nexuses.get(nexus) else { return };
                let units = entry.units();
                let reads_only = |unit| entry.access_to(unit) != Some(Access::ReadWrite);
                if units.iter().copied().any(reads_only) {
                    return self.answer(request.tmf, TmfResult::REJECTED);
                }
                self.spread(now, request, &units, ManageFunction::TargetReset, cold);
            }
            TmfFunction::I_T_NEXUS_RESET => {
                let units = self.nexuses.get(nexus).map(crate::nexus::Entry::units).unwrap_or_default();
                self.spread(now, request, &units, ManageFunction::NexusReset, false);
            }
            TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK if one(self).is_none() => {
                self.manage_without_unit(now, request);
            }
            function => match (one(self), to_device(function, request)) {
                (_, None) => self.answer(request.tmf, TmfResult::NOT_SUPPORTED),
                (None, _) => self.answer(request.tmf, TmfResult::NO_LUN),
                (Some(unit), Some(function)) => self.spread(now, request, &[unit], function, false),
            },
        }
    }

    /// Aborts or queries a task whose LUN leads its initiator to nothing any more. The task may live on: its unit can be seen under
    /// another LUN. If it does not, it has been answered, and does not exist.
    fn manage_without_unit(&mut self, now: Instant, request: &Request) {
        let owner = request.task.and_then(|key| self.owner(Task::of(key)));
        match (owner, to_device(request.function, request)) {
            (Some(unit), Some(function)) => self.spread(now, request, &[unit], function, false),
            (None, Some(_)) if request.function == TmfFunction::QUERY_TASK => {
                self.answer(request.tmf, TmfResult::COMPLETE);
            }
            (None, Some(_)) => self.answer(request.tmf, TmfResult::NO_TASK),
            (_, None) => self.answer(request.tmf, TmfResult::NO_LUN),
        }
    }

    fn spread(
        &mut self,
        now: Instant,
        request: &Request,
        units: &[UnitId],
        function: ManageFunction,
        cold: bool,
    ) {
        let nexus = request.nexus;
        let (outcome, left) = (ManageOutcome::Complete, units.len());
        self.managing.open.push(Open { tmf: request.tmf, nexus, left, outcome, cold });
        for unit in units {
            match self.units.stir(*unit) {
                Some(unit) => unit.manage(now, nexus, request.tmf.key(), function),
                None => self.managed(now, request.tmf.key(), ManageOutcome::Complete),
            }
        }
        if units.is_empty() {
            self.answer_finished(now);
        }
    }

    /// Takes one unit's answer.
    pub(crate) fn managed(&mut self, now: Instant, key: ManageKey, outcome: ManageOutcome) {
        let tmf = Tmf::of(key);
        if let Some(open) = self.managing.open.iter_mut().find(|open| open.tmf == tmf) {
            open.left = open.left.saturating_sub(1);
            if outcome != ManageOutcome::Complete {
                open.outcome = outcome;
            }
        }
        self.answer_finished(now);
    }

    fn answer_finished(&mut self, now: Instant) {
        while let Some(at) = self.managing.open.iter().position(|open| open.left == 0) {
            let open = self.managing.open.swap_remove(at);
            self.answer(open.tmf, to_wire(open.outcome));
            if open.cold {
                self.close_target_of(now, open.nexus);
            }
        }
    }

    /// Ends every session with the target of a nexus that sees a unit which the nexus sees too: the end of TARGET
    /// COLD RESET.
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

fn to_device(function: TmfFunction, request: &Request) -> Option<ManageFunction> {
    Some(match function {
        TmfFunction::ABORT_TASK => ManageFunction::AbortTask(request.task?),
        TmfFunction::QUERY_TASK => ManageFunction::QueryTask(request.task?),
        TmfFunction::ABORT_TASK_SET => ManageFunction::AbortTaskSet,
        TmfFunction::CLEAR_TASK_SET => ManageFunction::ClearTaskSet,
        TmfFunction::CLEAR_ACA => ManageFunction::ClearAca,
        TmfFunction::LOGICAL_UNIT_RESET => ManageFunction::LogicalUnitReset,
        TmfFunction::QUERY_TASK_SET => ManageFunction::QueryTaskSet,
        TmfFunction::QUERY_ASYNCHRONOUS_EVENT => ManageFunction::QueryAsynchronousEvent,
        _ => return None,
    })
}

const fn to_wire(outcome: ManageOutcome) -> TmfResult {
    match outcome {
        ManageOutcome::Complete => TmfResult::COMPLETE,
        ManageOutcome::Succeeded | ManageOutcome::SucceededWith(_) => TmfResult::SUCCEEDED,
        ManageOutcome::NoSuchTask => TmfResult::NO_TASK,
        ManageOutcome::NotSupported => TmfResult::NOT_SUPPORTED,
        ManageOutcome::Rejected => TmfResult::REJECTED,
    }
}
