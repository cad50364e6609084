//! Implements the identity check: after a session recovery, a guarded unit must report the same device as
//! before: the same names, and for a disk the same block length. A device without a name must be of the same
//! model, and a disk of the same capacity: it may only grow, and only in a session that lives.
//!
//! Units appear one by one when a target starts, and media can come late. A unit that is not there, refuses
//! to report its names or is not ready is asked again. Its commands wait meanwhile, as long as they would
//! wait for the target ([`transport::initiator::Retry::timeout`]). After that they fail until the unit
//! confirms its device. Only a unit that reports another name, model or capacity is another device for good.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use base::time::Instant;
use scsi::block::{self, Capacity};
use scsi::lun::Lun;
use scsi::opcode;
use scsi::sense::{Asc, Sense, SenseKey};

use super::{DriverEvent, Event, SessionEntry, SessionId, Sessions};
use crate::command::{Command, CommandError, Reply};
use crate::identity::{Comparison, Identity, OtherDevice, UnconfirmedDevice};
use crate::retry::PendingCommand;

/// The interval between two identity checks of a unit that does not respond, or that reports a change again
/// and again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// The same interval once commands for the unit fail.
const ASK_UNCONFIRMED: Duration = Duration::from_secs(5);
/// How often a check begins anew before it pauses: more unit attentions than a nexus can have pending.
const RESTARTS_MAX: u32 = 16;

/// A unit with its device.
#[derive(Debug)]
pub(super) struct GuardedLun {
    /// The names of the device, or its model.
    identity: Option<Identity>,
    /// The capacity, if the unit is used as a disk.
    capacity: Option<DiskCapacity>,
    /// Whether the present check has confirmed the names, and the capacity.
    confirmed: (bool, bool),
    /// Whether the present check only follows CAPACITY DATA HAS CHANGED in a session that lives.
    may_have_grown: bool,
    /// The time since which an identity check is under way.
    asked: Option<Instant>,
    /// The number of the last check. Answers to the commands of earlier ones may come from an earlier device.
    check: u64,
    /// How often the present check began anew, because the unit reported a change meanwhile.
    restarts: u32,
    /// Why commands fail for now: the unit has not confirmed its device in time.
    unconfirmed: Option<UnconfirmedDevice>,
    other: Option<OtherDevice>,
}

impl GuardedLun {
    const fn new(identity: Option<Identity>) -> Self {
        Self {
            identity,
            capacity: None,
            confirmed: (false, false),
            may_have_grown: false,
            asked: None,
            check: 0,
            restarts: 0,
            unconfirmed: None,
            other: None,
        }
    }

    /// Returns whether an identity check is under way.
    pub(super) const fn is_asked(&self) -> bool {
        self.asked.is_some()
    }

    /// Returns the first command of a new check, which replaces the one that is under way.
    fn begin(&mut self, now: Instant, lun: Lun, cause: Cause) -> Option<PendingCommand> {
        let is_resize = cause == Cause::Attention(Asc::CAPACITY_DATA_HAS_CHANGED);
        self.may_have_grown = is_resize && (self.asked.is_none() || self.may_have_grown);
        self.restarts = if self.asked.is_some() { self.restarts.saturating_add(1) } else { 0 };
        self.asked.get_or_insert(now);
        self.check += 1;
        self.confirmed = (self.identity.is_none(), self.capacity.is_none());
        self.question(lun)
    }

    /// Returns whether the device has a name that no other device has.
    fn is_named(&self) -> bool {
        self.identity.as_ref().is_some_and(Identity::is_named)
    }

    /// Returns whether the check has taken longer than commands wait.
    fn is_late(&self, now: Instant, patience: Duration) -> bool {
        self.asked.is_some_and(|since| now.since(since) >= patience)
    }

    /// Returns the next command of the check; `None` if the device is confirmed.
    fn question(&self, lun: Lun) -> Option<PendingCommand> {
        let question = match (&self.identity, &self.capacity) {
            (Some(identity), _) if !self.confirmed.0 => identity.question_again(lun),
            (_, Some(capacity)) if !self.confirmed.1 => capacity.question(lun),
            _ => return None,
        };
        Some(PendingCommand::identity_check(question, self.check))
    }

    /// Judges the answer to a command of the check.
    fn judge(&mut self, question: &Command, answer: &[u8]) -> Result<(), Verdict> {
        if is_about_names(question) {
            if let Some(identity) = &self.identity {
                match identity.compare(answer) {
                    Comparison::Same => {}
                    Comparison::Other(other) => return Err(Verdict::Other(other)),
                    Comparison::Unknown(why) => return Err(Verdict::Unknown(why.to_owned())),
                }
            }
            self.confirmed.0 = true;
        } else {
            let is_named = self.is_named();
            if let Some(was) = &mut self.capacity {
                let unknown = || Verdict::Unknown("it reports no capacity".to_owned());
                let is = was.read(answer).ok_or_else(unknown)?;
                // A disk without a name that is smaller is not usable as the former one in any case.
                let is_same_size = is.blocks == was.blocks || self.may_have_grown && is.blocks > was.blocks;
                if is.block_len != was.block_len || !is_named && !is_same_size {
                    let with = |capacity: DiskCapacity| match &self.identity {
                        Some(identity) => format!("{identity} with {capacity}"),
                        None => format!("a disk with {capacity}"),
                    };
                    return Err(Verdict::Other(OtherDevice { was: with(*was), is: with(is) }));
                }
                *was = is;
            }
            self.confirmed.1 = true;
        }
        Ok(())
    }
}

/// Why a device is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The unit is guarded from now on, or the session is new.
    Start,
    /// The unit has reported a unit attention.
    Attention(Asc),
}

/// Why an answer does not confirm a device.
enum Verdict {
    Other(OtherDevice),
    Unknown(String),
}

/// The capacity of a disk. A device with blocks of another length is another device: every address means
/// another place there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskCapacity {
    /// The block length in bytes.
    block_len: u32,
    /// The number of blocks.
    blocks: u64,
    /// Whether the unit has READ CAPACITY(16).
    long: bool,
}

impl fmt::Display for DiskCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks of {} bytes", self.blocks, self.block_len)
    }
}

impl DiskCapacity {
    /// Returns the capacity that a unit has reported. `long` is whether it has READ CAPACITY(16).
    pub(crate) const fn new(capacity: &Capacity, long: bool) -> Self {
        Self { block_len: capacity.block_size.bytes(), blocks: capacity.blocks.0, long }
    }

    fn question(self, lun: Lun) -> Command {
        let (cdb, len) = if self.long {
            (block::read_capacity_16(Capacity::LEN_16), Capacity::LEN_16)
        } else {
            (block::read_capacity_10(), 8)
        };
        Command::new(lun, cdb).reading(len).repeatable()
    }

    /// Returns the capacity in the answer, unless the unit does not know it now.
    fn read(self, answer: &[u8]) -> Option<Self> {
        let (last, rest) = match self.long {
            true => answer.split_first_chunk().map(|(last, rest)| (u64::from_be_bytes(*last), rest))?,
            false => {
                answer.split_first_chunk().map(|(last, rest)| (u32::from_be_bytes(*last).into(), rest))?
            }
        };
        let block_len = u32::from_be_bytes(*rest.first_chunk()?);
        // A device with blocks that no disk here has is another device, too.
        (block_len != 0).then_some(Self { block_len, blocks: last.saturating_add(1), long: self.long })
    }
}

/// Returns whether a command of a check asks for the names of the device, else for its capacity.
fn is_about_names(question: &Command) -> bool {
    question.cdb.opcode() == opcode::INQUIRY
}

/// Returns whether a unit refuses for now to tell its capacity.
fn is_refusal(error: &CommandError) -> bool {
    let not_ready = |sense: &Sense| sense.key == SenseKey::NOT_READY;
    *error == CommandError::ReservationConflict || error.sense().is_some_and(not_ready)
}

/// Returns whether another device, or one with other blocks, may be behind a LUN that reports this unit
/// attention.
pub(super) fn may_be_other(asc: Asc) -> bool {
    // 29h: power on and resets.
    let told = [
        Asc::MEDIUM_MAY_HAVE_CHANGED,
        Asc::CAPACITY_DATA_HAS_CHANGED,
        Asc::INQUIRY_DATA_HAS_CHANGED,
        Asc::DEVICE_IDENTIFIER_CHANGED,
        Asc::REPORTED_LUNS_DATA_HAS_CHANGED,
    ];
    asc.0 >> 8 == 0x29 || told.contains(&asc)
}

impl Sessions {
    /// Guards a unit with an identity check: see [`crate::driver::Driver::guard`].
    pub(crate) fn guard(&mut self, now: Instant, id: SessionId, lun: Lun, identity: Identity) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let is_named = entry.guarded_luns.get(&lun).is_some_and(|guarded| guarded.identity.is_some());
        if entry.down.is_none() && !is_named {
            let guarded_lun = entry.guarded_luns.entry(lun).or_insert_with(|| GuardedLun::new(None));
            guarded_lun.identity = Some(identity);
            entry.check_identity(now, id, lun, Cause::Start, &mut self.events);
        }
    }

    /// Guards a unit with its capacity: see [`crate::driver::Driver::guard_capacity`].
    pub(crate) fn guard_capacity(&mut self, now: Instant, id: SessionId, lun: Lun, capacity: DiskCapacity) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.down.is_none()) else { return };
        if !entry.guarded_luns.contains_key(&lun) {
            let services = entry.session.services_mut();
            services.require_identity_check(lun.0);
            services.confirm_identity(now, lun.0);
        }
        let guarded_lun = entry.guarded_luns.entry(lun).or_insert_with(|| GuardedLun::new(None));
        guarded_lun.capacity.get_or_insert(capacity);
    }
}

impl SessionEntry {
    /// Starts an identity check of every guarded unit, because the session is new.
    pub(super) fn check_identities(
        &mut self,
        now: Instant,
        id: SessionId,
        events: &mut VecDeque<DriverEvent>,
    ) {
        for lun in self.guarded_luns.keys().copied().collect::<Vec<_>>() {
            if let Some(guarded_lun) = self.guarded_luns.get_mut(&lun) {
                guarded_lun.asked = None;
            }
            self.check_identity(now, id, lun, Cause::Start, events);
        }
    }

    /// Starts an identity check of a guarded unit whose device may have changed, in place of one that is
    /// under way. Until it has ended, no other command is sent to the unit.
    pub(super) fn check_identity(
        &mut self,
        now: Instant,
        id: SessionId,
        lun: Lun,
        cause: Cause,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let guarded_lun = self.guarded_luns.get_mut(&lun).filter(|guarded_lun| guarded_lun.other.is_none());
        let Some(guarded_lun) = guarded_lun else { return };
        let Some(question) = guarded_lun.begin(now, lun, cause) else { return };
        let restarts = guarded_lun.restarts;
        let is_endless = restarts > RESTARTS_MAX && guarded_lun.is_late(now, self.patience);
        self.session.services_mut().require_identity_check(lun.0);
        if is_endless {
            let why = "it reports a change whenever it is asked".to_owned();
            self.fail_unconfirmed(now, id, lun, why, events);
        }
        if is_endless || restarts > 0 && restarts.is_multiple_of(RESTARTS_MAX) {
            return self.ask_later(now, question);
        }
        self.submit_or_queue(now, id, question, events);
    }

    /// Records that another device is behind a LUN: its commands fail from now on.
    fn fail_device(
        &mut self,
        now: Instant,
        id: SessionId,
        lun: Lun,
        other: OtherDevice,
        events: &mut VecDeque<DriverEvent>,
    ) {
        if let Some(guarded_lun) = self.guarded_luns.get_mut(&lun) {
            guarded_lun.other = Some(other.clone());
        }
        self.session.services_mut().fail_identity(now, lun.0);
        let event = Event::OtherDevice { lun, what: other };
        events.push_back(DriverEvent::Session { session: id, event });
    }

    /// Lets the commands of a unit fail until it confirms its device: it has not done so in time.
    fn fail_unconfirmed(
        &mut self,
        now: Instant,
        id: SessionId,
        lun: Lun,
        why: String,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let Some(guarded_lun) = self.guarded_luns.get_mut(&lun) else { return };
        let was = guarded_lun.identity.as_ref().map(Identity::to_string).unwrap_or_default();
        let what = UnconfirmedDevice { was, why };
        let is_new = guarded_lun.unconfirmed.replace(what.clone()).is_none();
        self.session.services_mut().fail_identity(now, lun.0);
        if is_new {
            let event = Event::DeviceUnconfirmed { lun, what };
            events.push_back(DriverEvent::Session { session: id, event });
        }
    }

    /// Returns whether a command belongs to an identity check that another one replaced.
    pub(super) fn is_of_replaced_check(&self, pending: &PendingCommand) -> bool {
        let of_last = |check| self.guarded_luns.get(&pending.command.lun).is_some_and(|of| of.check == check);
        pending.identity_check.is_some_and(|check| !of_last(check))
    }

    /// Processes the result of a command of an identity check.
    pub(super) fn identity_checked(
        &mut self,
        now: Instant,
        id: SessionId,
        probe: PendingCommand,
        result: Result<Reply, CommandError>,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let lun = probe.command.lun;
        if self.is_of_replaced_check(&probe) {
            return;
        }
        let Some(guarded_lun) = self.guarded_luns.get_mut(&lun) else { return };
        if guarded_lun.other.is_some() {
            return;
        }
        let is_late = guarded_lun.is_late(now, self.patience);
        // The capacity is all that distinguishes devices without a name.
        let may_refuse = !is_about_names(&probe.command) && guarded_lun.is_named();
        let is_refused = may_refuse && result.as_ref().is_err_and(is_refusal);
        let verdict = match result {
            Ok(reply) => guarded_lun.judge(&probe.command, reply.bytes()),
            // The unit did not execute the command, or its answer was lost. A new session checks anew.
            Err(CommandError::Lost(_) | CommandError::Refused(_) | CommandError::Down(_)) => {
                return self.ask_later(now, probe);
            }
            Err(_) if is_refused => Ok(()),
            Err(why) => Err(Verdict::Unknown(why.to_string())),
        };
        let next = match verdict {
            Err(Verdict::Other(other)) => return self.fail_device(now, id, lun, other, events),
            Err(Verdict::Unknown(why)) => {
                if is_late {
                    self.fail_unconfirmed(now, id, lun, why, events);
                }
                return self.ask_later(now, probe);
            }
            Ok(()) if !is_refused => guarded_lun.question(lun),
            // A unit that does not tell its capacity refuses reads and writes likewise, and reports a unit
            // attention when that changes.
            Ok(()) => None,
        };
        match next {
            Some(question) => self.submit_or_queue(now, id, question, events),
            None => {
                guarded_lun.asked = None;
                if guarded_lun.unconfirmed.take().is_some() {
                    let event = Event::DeviceConfirmed { lun };
                    events.push_back(DriverEvent::Session { session: id, event });
                }
                self.session.services_mut().confirm_identity(now, lun.0);
            }
        }
    }

    fn ask_later(&mut self, now: Instant, probe: PendingCommand) {
        let Some(check) = probe.identity_check else { return };
        self.delays += 1;
        let is_failing =
            self.guarded_luns.get(&probe.command.lun).is_some_and(|guarded| guarded.unconfirmed.is_some());
        let wait = if is_failing { ASK_UNCONFIRMED } else { ASK_AGAIN };
        let again = PendingCommand::identity_check(probe.command, check);
        self.delayed.insert((now.after(wait), self.delays), again);
    }

    /// Returns why no command may be sent to a unit.
    pub(super) fn guard_error(&self, pending: &PendingCommand) -> Option<CommandError> {
        let guarded_lun = self.guarded_luns.get(&pending.command.lun)?;
        if pending.identity_check.is_some() {
            return None;
        }
        let GuardedLun { other, unconfirmed, .. } = guarded_lun;
        let other = other.clone().map(|other| CommandError::OtherDevice(Box::new(other)));
        other.or_else(|| Some(CommandError::UnconfirmedDevice(Box::new(unconfirmed.clone()?))))
    }
}
