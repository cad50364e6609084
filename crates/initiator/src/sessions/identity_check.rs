//! Implements the identity check: after a session recovery, a guarded unit must report the same device as
//! before: the same names, and for a disk the same block length.
//!
//! Units appear one by one when a target starts, and media can come late. A unit that is not there, refuses
//! to report its names or is not ready is asked again. Its commands wait meanwhile, as long as they would
//! wait for the target ([`transport::initiator::Retry::timeout`]). After that they fail until the unit
//! confirms its device. Only a unit that reports another name or block length is another device for good.

use std::collections::VecDeque;
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
    /// The names of the device, if it has any.
    identity: Option<Identity>,
    /// The logical block length, if the unit is used as a disk.
    blocks: Option<BlockLength>,
    /// Whether the present check has confirmed the names, and the block length.
    confirmed: (bool, bool),
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
            blocks: None,
            confirmed: (false, false),
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
    fn begin(&mut self, now: Instant, lun: Lun) -> Option<PendingCommand> {
        self.restarts = if self.asked.is_some() { self.restarts.saturating_add(1) } else { 0 };
        self.asked.get_or_insert(now);
        self.check += 1;
        self.confirmed = (self.identity.is_none(), self.blocks.is_none());
        self.question(lun)
    }

    /// Returns whether the check has taken longer than commands wait.
    fn is_late(&self, now: Instant, patience: Duration) -> bool {
        self.asked.is_some_and(|since| now.since(since) >= patience)
    }

    /// Returns the next command of the check; `None` if the device is confirmed.
    fn question(&self, lun: Lun) -> Option<PendingCommand> {
        let question = match (&self.identity, self.blocks) {
            (Some(identity), _) if !self.confirmed.0 => identity.question_again(lun),
            (_, Some(blocks)) if !self.confirmed.1 => blocks.question(lun),
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
            if let Some(blocks) = &self.blocks {
                let unknown = || Verdict::Unknown("it reports no block length".to_owned());
                let len = blocks.read(answer).ok_or_else(unknown)?;
                let with = |len: u32| match &self.identity {
                    Some(identity) => format!("{identity} with blocks of {len} bytes"),
                    None => format!("a disk with blocks of {len} bytes"),
                };
                if len != blocks.len {
                    return Err(Verdict::Other(OtherDevice { was: with(blocks.len), is: with(len) }));
                }
            }
            self.confirmed.1 = true;
        }
        Ok(())
    }
}

/// Why an answer does not confirm a device.
enum Verdict {
    Other(OtherDevice),
    Unknown(String),
}

/// The logical block length of a disk. A device with other blocks is another device: every address means
/// another place there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLength {
    /// The block length in bytes.
    pub(crate) len: u32,
    /// Whether the unit has READ CAPACITY(16).
    pub(crate) long: bool,
}

impl BlockLength {
    fn question(self, lun: Lun) -> Command {
        let (cdb, len) = if self.long {
            (block::read_capacity_16(Capacity::LEN_16), Capacity::LEN_16)
        } else {
            (block::read_capacity_10(), 8)
        };
        Command::new(lun, cdb).reading(len).repeatable()
    }

    /// Returns the block length in the answer, unless the unit does not know it now.
    fn read(self, answer: &[u8]) -> Option<u32> {
        let len = answer.get(if self.long { 8 } else { 4 }..)?.first_chunk()?;
        Some(u32::from_be_bytes(*len)).filter(|len| *len != 0)
    }
}

/// Returns whether a command of a check asks for the names of the device, else for its block length.
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
            entry.check_identity(now, id, lun, &mut self.events);
        }
    }

    /// Guards a unit with its block length: see [`crate::driver::Driver::guard_blocks`].
    pub(crate) fn guard_blocks(&mut self, now: Instant, id: SessionId, lun: Lun, blocks: BlockLength) {
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.down.is_none()) else { return };
        if !entry.guarded_luns.contains_key(&lun) {
            let services = entry.session.services_mut();
            services.require_identity_check(lun.0);
            services.confirm_identity(now, lun.0);
        }
        let guarded_lun = entry.guarded_luns.entry(lun).or_insert_with(|| GuardedLun::new(None));
        guarded_lun.blocks.get_or_insert(blocks);
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
            self.check_identity(now, id, lun, events);
        }
    }

    /// Starts an identity check of a guarded unit whose device may have changed, in place of one that is
    /// under way. Until it has ended, no other command is sent to the unit.
    pub(super) fn check_identity(
        &mut self,
        now: Instant,
        id: SessionId,
        lun: Lun,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let guarded_lun = self.guarded_luns.get_mut(&lun).filter(|guarded_lun| guarded_lun.other.is_none());
        let Some(guarded_lun) = guarded_lun else { return };
        let Some(question) = guarded_lun.begin(now, lun) else { return };
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
        let is_refused = !is_about_names(&probe.command) && result.as_ref().is_err_and(is_refusal);
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
