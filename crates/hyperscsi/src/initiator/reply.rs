//! Processes the target's replies: data, requests for data (Transfer Ready), responses.
//!
//! A frame counts only for the exchange that its tag and XID name, with no less protection than the request
//! had. Every offset and length is checked before a byte is copied.

use base::arena::Key;
use base::int_cast::to_usize;
use transport::initiator::{CommandResponse, Outcome, TaskId, TaskResult};
use transport::initiator::{Residual, ServiceResponse};

use super::contract::{Event, LossReason, ProtocolError};
use super::session::{EndCause, Session};
use super::task::{MAX_READY, TaskKind, Wire};
use crate::connection::Message;
use crate::exchange::reassembly::ReassemblyError;
use crate::exchange::xid::PnSpace;
use crate::frame::{Cmd, Flags, Header};
use crate::pdu::abort::{Abort, AbortResult};
use crate::pdu::disconnect::Disconnect;
use crate::pdu::reply::{Reply, Response, TransferReady};
use security::Level;

impl Session {
    /// Processes a frame that the transport delivers: undamaged, of this session and not received before.
    pub(super) fn deliver(&mut self, header: &Header, payload: &[u8]) {
        if self.end_cause.is_some() {
            return;
        }
        let taken = match header.cmd {
            Cmd::Reply | Cmd::Abort => self.in_exchange(header, payload),
            Cmd::Disconnect => {
                let keyed = self.nexus.as_ref().is_some_and(|nexus| nexus.keyed);
                match Disconnect::parse(payload) {
                    Ok(_) if keyed && !header.protected => Err(FrameError::Unprotected),
                    Ok(said) => {
                        self.disconnected(said);
                        Ok(())
                    }
                    Err(_) => Err(FrameError::Malformed),
                }
            }
            _ => Err(FrameError::Malformed),
        };
        match taken {
            Ok(()) => {}
            Err(FrameError::UnknownExchange) => self.stats.strays += 1,
            Err(FrameError::Unprotected) => self.stats.unprotected += 1,
            Err(FrameError::Malformed) => self.stats.malformed += 1,
            Err(FrameError::Broken(why)) => {
                self.end_cause.get_or_insert(EndCause::Lost(LossReason::Misbehaved(why)));
            }
        }
    }

    fn in_exchange(&mut self, header: &Header, payload: &[u8]) -> Result<(), FrameError> {
        let nexus = self.nexus.as_deref_mut().ok_or(FrameError::UnknownExchange)?;
        let keyed = nexus.keyed;
        let slot =
            nexus.slots_of(PnSpace::of(header.xid)).slots.get(usize::from(header.tag)).copied().flatten();
        let key = slot.ok_or(FrameError::UnknownExchange)?;
        let wire = self.tasks.get(key).and_then(|task| task.wire).filter(|wire| wire.xid == header.xid);
        let wire = wire.ok_or(FrameError::UnknownExchange)?;
        let level = header.level();
        if level < wire.level || (keyed && header.cmd == Cmd::Abort && level == Level::None) {
            return Err(FrameError::Unprotected);
        }
        // An attacker can forge frames of an unprotected exchange in a session with keys, so an error in them
        // does not prove that the target violated the protocol.
        let forgeable = keyed && level == Level::None;
        let taken = if header.cmd == Cmd::Abort {
            match Abort::parse(payload) {
                Ok(Abort::GivenUp(result)) => self.given_up(key, result),
                _ => Err(FrameError::Malformed),
            }
        } else if header.flags.has(Flags::DATA) {
            self.data_in(key, header, payload)
        } else {
            match Reply::parse(payload) {
                Ok(Reply::TransferReady(ready)) => self.transfer_ready(key, wire, ready),
                Ok(Reply::Response(response)) => self.response(key, level, response),
                Ok(Reply::Managed(result)) => self.managed(key, result),
                Err(_) => Err(FrameError::Malformed),
            }
        };
        taken.map_err(|frame_error| {
            if forgeable && matches!(frame_error, FrameError::Broken(_)) {
                FrameError::Malformed
            } else {
                frame_error
            }
        })
    }

    fn data_in(&mut self, key: Key, header: &Header, payload: &[u8]) -> Result<(), FrameError> {
        let task = self.tasks.get_mut(key).ok_or(FrameError::UnknownExchange)?;
        let end = header
            .off
            .checked_add(u32::from(header.len))
            .ok_or(FrameError::Broken(ProtocolError::DataInOutside))?;
        let ends = header.last && header.flags.has(Flags::GOOD);
        // This check precedes the copy of the data: no data may lie beyond the announced end.
        let announced = task.response.as_ref().map(|(_, len)| *len);
        let farther = announced.is_some_and(|len| end > len);
        if farther || (ends && announced.is_some_and(|len| len != end)) {
            return Err(FrameError::Broken(ProtocolError::TwoEnds));
        }
        let new = task.data_in.put(&self.pool, header.off, payload).map_err(|why| {
            FrameError::Broken(match why {
                ReassemblyError::Outside => ProtocolError::DataInOutside,
                ReassemblyError::Scattered => ProtocolError::DataInScattered,
            })
        })?;
        self.stats.data_in_bytes += u64::from(new);
        if ends && task.response.is_none() {
            if task.data_in.reach() > end {
                return Err(FrameError::Broken(ProtocolError::TwoEnds));
            }
            let residual = Residual::of(u64::from(end), task.expected());
            let ending = CommandResponse { residual, ..CommandResponse::default() };
            task.response = Some((ending, end));
        }
        self.finish_if_whole(key);
        Ok(())
    }

    fn transfer_ready(&mut self, key: Key, wire: Wire, ready: TransferReady) -> Result<(), FrameError> {
        let outside = FrameError::Broken(ProtocolError::TransferReadyOutside);
        let nexus = self.nexus.as_deref_mut().ok_or(FrameError::UnknownExchange)?;
        let task = self.tasks.get_mut(key).ok_or(FrameError::UnknownExchange)?;
        let end =
            ready.offset.checked_add(ready.len).filter(|end| *end <= task.data_out_len()).ok_or(outside)?;
        if ready.len > nexus.parameters.burst_max {
            return Err(outside);
        }
        if !task.take_ready(ready.number).ok_or(outside)? {
            return Ok(());
        }
        let waiting = nexus.outgoing.iter().filter(|(other, _)| *other == key).count();
        if task.messages.len() + waiting > MAX_READY {
            return Err(outside);
        }
        if task.response.is_some() {
            return Ok(());
        }
        let TaskKind::Command(request) = &task.kind else { return Err(outside) };
        let body = request.data_out.slice(to_usize(ready.offset), to_usize(end));
        let mut message = Message::data(Cmd::Request, wire.xid, wire.tag, wire.level, ready.offset, body);
        message.last = true;
        self.stats.data_out_bytes += u64::from(ready.len);
        nexus.outgoing.push((key, message));
        Ok(())
    }

    fn response(&mut self, key: Key, level: Level, response: Response<'_>) -> Result<(), FrameError> {
        let task = self.tasks.get_mut(key).ok_or(FrameError::UnknownExchange)?;
        if !task.is_command() {
            return Err(FrameError::Broken(ProtocolError::WrongAnswer));
        }
        let len = response.data_in_len;
        if len > task.data_in.len() || task.data_in.reach() > len {
            return Err(FrameError::Broken(ProtocolError::TwoEnds));
        }
        if let Some((ending, announced)) = &task.response {
            // The target can send the same response twice.
            let same = ending.status == response.status && *announced == len;
            return if same { Ok(()) } else { Err(FrameError::Broken(ProtocolError::TwoEnds)) };
        }
        if self.retry_at_higher_level(key, level, &response) {
            return Ok(());
        }
        if let Some(task) = self.tasks.get_mut(key) {
            let sense = (!response.sense.is_empty()).then(|| response.sense.into());
            let residual = Residual::of(response.transferable, task.expected());
            let status = response.status;
            let ending = CommandResponse { status, residual, sense, ..CommandResponse::default() };
            task.response = Some((ending, len));
        }
        self.finish_if_whole(key);
        Ok(())
    }

    /// Sends a command again with more protection if the target demands it. The command was not executed: the
    /// protected response proves that the target refused it.
    fn retry_at_higher_level(&mut self, key: Key, level: Level, response: &Response<'_>) -> bool {
        let Some(task) = self.tasks.get(key) else { return false };
        let (lun, Some(wire)) = (task.lun(), task.wire) else { return false };
        let refused = response.status == CHECK_CONDITION
            && response.data_in_len == 0
            && response.sense.get(2).map(|key| key & 0x0f) == Some(ILLEGAL_REQUEST)
            && response.sense.get(12..14) == Some(&NOT_AUTHORIZED)
            && level > Level::None;
        let more = match wire.level {
            Level::None => Level::Integrity,
            Level::Integrity => Level::Encrypt,
            Level::Encrypt => return false,
        };
        let levels = self.nexus.as_ref().map(|nexus| nexus.parameters.levels);
        if !refused || !levels.is_some_and(|levels| levels.has(more)) {
            return false;
        }
        self.set_level(lun, more);
        if self.level(lun) < more {
            return false;
        }
        self.stats.raised += 1;
        self.release(key);
        if let Some(task) = self.tasks.get_mut(key) {
            task.reset_for_replay(&self.pool);
        }
        self.requeue(key);
        true
    }

    fn given_up(&mut self, key: Key, result: AbortResult) -> Result<(), FrameError> {
        let end = match result {
            AbortResult::NEVER_BEGUN => TaskResult::NotSent,
            AbortResult::ABORTED => TaskResult::Aborted,
            AbortResult::HAD_ENDED => return Ok(()),
            _ => TaskResult::Failed(ServiceResponse::TARGET_FAILURE),
        };
        if !self.tasks.get(key).is_some_and(super::task::Task::is_command) {
            return self.managed(key, transport::task_management::TmfResult::REJECTED);
        }
        self.finish(key, end);
        Ok(())
    }

    fn finish_if_whole(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let whole = task.response.as_ref().is_some_and(|(_, len)| task.data_in.received() >= *len);
        if whole && let Some((ending, _)) = task.response.take() {
            self.finish(key, TaskResult::Status(ending));
        }
    }

    /// Reports the end of a task.
    pub(super) fn finish(&mut self, key: Key, end: TaskResult) {
        let send_order = self.tasks.get(key).and_then(super::task::Task::send_order);
        self.release(key);
        let Some(mut task) = self.tasks.remove(key) else { return };
        let data_in = match end {
            TaskResult::Status(_) => task.data_in.take(),
            _ => None,
        };
        task.data_in.clear(&self.pool);
        if let TaskKind::Command(request) = task.kind {
            for part in request.data_out.into_parts() {
                self.pool.recycle(part);
            }
        }
        // The target may have executed the task in a session that was lost.
        let end = if task.replays > 0 && end == TaskResult::NotSent { TaskResult::Lost } else { end };
        self.stats.done += 1;
        let outcome = Outcome { end, data_in, send_order };
        self.events.push_back(Event::Done { task: TaskId(key), outcome });
        self.unfence(key);
    }
}

/// Why a frame changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Its exchange has ended, or was never begun.
    UnknownExchange,
    /// It has less protection than it must have.
    Unprotected,
    /// Its content is malformed.
    Malformed,
    /// It proves that the target violated the protocol.
    Broken(ProtocolError),
}

const CHECK_CONDITION: u8 = 0x02;
const ILLEGAL_REQUEST: u8 = 0x05;
/// LOGICAL UNIT ACCESS NOT AUTHORIZED (SPC-5 §F.2).
const NOT_AUTHORIZED: [u8; 2] = [0x74, 0x71];
