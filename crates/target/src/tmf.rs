//! Task management functions: one request of an initiator can apply to several units (RFC 7143 §11.5.1,
//! SAM-5 §7).

use alloc::vec::Vec;

use base::time::Instant;
use device::contract::{Access, NexusId, TaskKey, Tmf, TmfKey, TmfOutcome};
use scsi::lun::Lun;
use transport::target::TmfIndication;
use transport::task_management::{TmfFunction, TmfResult};

use crate::nexus::NexusEntry;
use crate::pending_tmfs::PendingTmf;
use crate::target::Target;
use crate::transport_id::{TransportId, nexus_of, task_key, task_of, tmf_key, tmf_of};
use crate::transports::Transports;
use crate::units::UnitId;

/// A task management request whose identifiers are those of the target.
#[derive(Clone, Copy, Debug)]
struct Request {
    key: TmfKey,
    nexus: NexusId,
    function: TmfFunction,
    lun: Lun,
    task: Option<TaskKey>,
}

impl Target {
    /// Starts a task management function.
    pub(crate) fn route_tmf(
        &mut self,
        now: Instant,
        from: TransportId,
        indication: &TmfIndication,
        transports: &mut dyn Transports,
    ) {
        let request = Request {
            key: tmf_key(from, indication.tmf),
            nexus: nexus_of(from, indication.session),
            function: indication.function,
            lun: Lun(indication.lun),
            task: indication.task.map(|task| task_key(from, task)),
        };
        match self.judge_tmf(&request) {
            Ok((units, function)) => self.send_tmf_to_units(now, &request, &units, function, transports),
            Err(result) => answer(transports, request.key, result),
        }
    }

    /// Returns the units that a task management function applies to, and the function as they know it; or the
    /// result of the function if it applies to none.
    fn judge_tmf(&self, request: &Request) -> Result<(Vec<UnitId>, Tmf), TmfResult> {
        let entry = self.nexuses.get(request.nexus);
        let units = || entry.map(NexusEntry::units).unwrap_or_default();
        match request.function {
            TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET => {
                // SAM-5 §7 resets every unit of the target. This resets only the units that the I_T nexus
                // sees: an initiator with access to one unit must not abort the tasks of others, and a
                // session must not reset a unit that requires more protection. For the same reason, a nexus
                // with read-only access to one of its units may reset none.
                let access_to = |unit| entry.and_then(|entry| entry.access_to(unit));
                let units = units();
                match units.iter().all(|unit| access_to(*unit) == Some(Access::ReadWrite)) {
                    true => Ok((units, Tmf::TargetReset)),
                    false => Err(TmfResult::NOT_AUTHORIZED),
                }
            }
            TmfFunction::I_T_NEXUS_RESET => Ok((units(), Tmf::NexusReset)),
            function => {
                let to_unit = to_device(function, request.task).ok_or(TmfResult::NOT_SUPPORTED);
                let at_lun = entry.and_then(|entry| entry.unit_at(request.lun, entry.level()));
                let at_lun = at_lun.filter(|unit| self.units.get(*unit).is_some());
                match (at_lun.filter(|_| !self.is_owner_retiring(request)), function) {
                    (Some(unit), _) => Ok((Vec::from([unit]), to_unit?)),
                    (None, TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK) => {
                        self.judge_without_unit(request)
                    }
                    (None, _) => to_unit.and(Err(TmfResult::NO_LUN)),
                }
            }
        }
    }

    /// Judges ABORT TASK or QUERY TASK of a task whose LUN leads its initiator no longer to the unit of the
    /// task. If the task still exists, its unit receives the function: the initiator can see this unit under
    /// another LUN, or the unit is retiring. If the task does not exist, it was answered before.
    fn judge_without_unit(&self, request: &Request) -> Result<(Vec<UnitId>, Tmf), TmfResult> {
        let function = to_device(request.function, request.task).ok_or(TmfResult::NO_LUN)?;
        match self.owner_of(request) {
            Some(unit) => Ok((Vec::from([unit]), function)),
            None if request.function == TmfFunction::QUERY_TASK => Err(TmfResult::COMPLETE),
            None => Err(TmfResult::NO_TASK),
        }
    }

    /// Returns the unit of the task that ABORT TASK or QUERY TASK refers to, if the task still exists.
    fn owner_of(&self, request: &Request) -> Option<UnitId> {
        let (transport, task) = task_of(request.task?);
        self.owners.get(transport, task)
    }

    /// Returns whether the task of the request is that of a removed unit, whatever unit is at its LUN now.
    fn is_owner_retiring(&self, request: &Request) -> bool {
        self.owner_of(request).is_some_and(UnitId::is_retiring)
    }

    fn send_tmf_to_units(
        &mut self,
        now: Instant,
        request: &Request,
        units: &[UnitId],
        function: Tmf,
        transports: &mut dyn Transports,
    ) {
        let (key, nexus) = (request.key, request.nexus);
        let cold = request.function == TmfFunction::TARGET_COLD_RESET;
        let (outcome, left) = (TmfOutcome::Complete, units.len());
        self.pending_tmfs.add(PendingTmf { key, nexus, left, outcome, cold });
        for unit in units {
            match self.units.mark_dirty(*unit) {
                Some(unit) => unit.execute_tmf(now, nexus, key, function),
                None => self.tmf_complete(now, key, TmfOutcome::Complete, transports),
            }
        }
        if units.is_empty() {
            self.answer_finished(now, transports);
        }
    }

    /// Records the outcome of one unit.
    pub(crate) fn tmf_complete(
        &mut self,
        now: Instant,
        key: TmfKey,
        outcome: TmfOutcome,
        transports: &mut dyn Transports,
    ) {
        self.pending_tmfs.unit_done(key, outcome);
        self.answer_finished(now, transports);
    }

    fn answer_finished(&mut self, now: Instant, transports: &mut dyn Transports) {
        while let Some(open) = self.pending_tmfs.take_finished() {
            answer(transports, open.key, to_wire(open.outcome));
            if open.cold {
                self.close_target_of(now, open.nexus, transports);
            }
        }
    }

    /// Ends TARGET COLD RESET: closes every session with the nexus' target that sees a unit which the nexus
    /// sees too. A session that also sees a unit above the level of the nexus stays: its end would abort the
    /// tasks of that unit. It gets the unit attention of the units that were reset.
    fn close_target_of(&self, now: Instant, nexus: NexusId, transports: &mut dyn Transports) {
        let Some(entry) = self.nexuses.get(nexus) else { return };
        let (target, seen) = (entry.target(), entry.units());
        let level = entry.level();
        let shares = |entry: &NexusEntry| {
            !entry.sees_above(level) && entry.units().iter().any(|unit| seen.contains(unit))
        };
        for (id, entry) in self.nexuses.iter() {
            if entry.target() == target && (id == nexus || shares(entry)) {
                self.close(now, id, transports);
            }
        }
    }
}

fn answer(transports: &mut dyn Transports, key: TmfKey, result: TmfResult) {
    let (transport, tmf) = tmf_of(key);
    if let Some(transport) = transports.get(transport) {
        transport.finish_tmf(tmf, result);
    }
}

fn to_device(function: TmfFunction, task: Option<TaskKey>) -> Option<Tmf> {
    Some(match function {
        TmfFunction::ABORT_TASK => Tmf::AbortTask(task?),
        TmfFunction::QUERY_TASK => Tmf::QueryTask(task?),
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
        //= rfc7143#section-11.5.1
        //# When authorization fails at the target, the appropriate response as described in
        //# Section 11.6.1 MUST be returned by the target.
        TmfOutcome::NotAuthorized => TmfResult::NOT_AUTHORIZED,
    }
}
