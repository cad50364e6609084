//! Motions of cartridges: MOVE MEDIUM, EXCHANGE MEDIUM, and the changes of operators.
//!
//! Motions are made one after the other, in the order in which they were requested. Each is checked when its
//! turn comes, and is a change of a copy of the library. The copy takes the place of the library when the
//! owner of the unit has made it durable.

use alloc::boxed::Box;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use cartridge::library::{Element, Library, LibraryError, StoredCartridge};
use scsi::sense::{Asc, Sense, SenseKey};

use super::address;
use crate::changer::{Changer, Motion, Movement};
use crate::contract::UnitEvent;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::fault_injection::{self, Bug};
use crate::library::{ChangeFailure, LibraryChange, LibraryEvent, LibraryInput, MotionFailure};
use crate::task::{TaskId, TaskInfo};

/// The sense data of a changer whose library is not known yet.
pub(super) const NOT_INSTALLED: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_BECOMING_READY);

/// Returns the sense data for the address at a byte of the CDB, which is not that of a fitting element.
pub(super) const fn invalid_element(byte: u16) -> Sense {
    Sense { asc: Asc::INVALID_ELEMENT_ADDRESS, ..Sense::invalid_cdb(byte, None) }
}

pub(super) fn move_medium(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    movement(server, task, |element| Ok(Movement::Move { from: element(4)?, to: element(6)? }))
}

pub(super) fn exchange_medium(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    movement(server, task, |element| {
        Ok(Movement::Exchange { from: element(4)?, first: element(6)?, second: element(8)? })
    })
}

/// POSITION TO ELEMENT: the transport element has no position that anything depends on.
pub(super) fn position_to_element(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match check_transport(server, task).and_then(|()| element_at(server, task, 4)) {
        Ok(_) => Outcome::Good,
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// OPEN/CLOSE IMPORT/EXPORT ELEMENT: a mail slot has no door, but PREVENT ALLOW MEDIUM REMOVAL keeps it shut.
pub(super) fn open_close(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const OPEN: u8 = 0;
    const CLOSE: u8 = 1;
    match element_at(server, task, 2) {
        Ok(Element::Mail(_)) => {}
        Ok(_) => return Outcome::CheckCondition(invalid_element(2)),
        Err(sense) => return Outcome::CheckCondition(sense),
    }
    match task.cdb.u8(4) {
        OPEN => server.spc.removal.check().map_or_else(Outcome::CheckCondition, |()| Outcome::Good),
        CLOSE => Outcome::Good,
        _ => Outcome::CheckCondition(Sense::invalid_cdb(4, Some(4))),
    }
}

/// Returns the outcome that moves what `read` makes of the elements in the CDB.
fn movement(
    server: &DeviceServer,
    task: &TaskInfo,
    read: impl Fn(&dyn Fn(u16) -> Result<Element, Sense>) -> Result<Movement, Sense>,
) -> Outcome {
    let movement = check_transport(server, task).and_then(|()| read(&|byte| element_at(server, task, byte)));
    match movement {
        Ok(movement) => Outcome::Run(Box::new(Moving { movement })),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// Checks the medium transport element of a command; 0 means the usual one.
fn check_transport(server: &DeviceServer, task: &TaskInfo) -> Result<(), Sense> {
    if server.changer.as_ref().is_none_or(|changer| changer.library.is_none()) {
        return Err(NOT_INSTALLED);
    }
    match task.cdb.u16(2) {
        0 | address::TRANSPORT => Ok(()),
        _ => Err(invalid_element(2)),
    }
}

/// Returns the element whose address is at a byte of the CDB.
fn element_at(server: &DeviceServer, task: &TaskInfo, byte: u16) -> Result<Element, Sense> {
    let counts = server.changer.as_ref().map(|changer| changer.counts()).unwrap_or_default();
    address::element(task.cdb.u16(usize::from(byte)), counts).ok_or_else(|| invalid_element(byte))
}

/// A command that moves cartridges.
struct Moving {
    movement: Movement,
}

impl Job for Moving {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                server.queue_motion(Motion::Task(task.id, self.movement));
                JobStep::Wait
            }
            JobInput::Woken => {
                match server.changer.as_mut().and_then(|changer| changer.ended.remove(&task.id)) {
                    Some(Ok(())) => JobStep::Done(Outcome::Good),
                    Some(Err(failure)) => JobStep::Done(failure.outcome()),
                    None => JobStep::Wait,
                }
            }
            _ => JobStep::unexpected_input(),
        }
    }
}

/// Why a motion is not made.
struct Refusal {
    status: MotionFailure,
    why: String,
}

impl From<LibraryError> for Refusal {
    fn from(error: LibraryError) -> Self {
        let asc = match error {
            LibraryError::NoElement => Asc::INVALID_ELEMENT_ADDRESS,
            LibraryError::Empty => Asc::MEDIUM_SOURCE_ELEMENT_EMPTY,
            LibraryError::Full => Asc::MEDIUM_DESTINATION_ELEMENT_FULL,
            LibraryError::Vaulted => Asc::MEDIUM_REMOVAL_PREVENTED,
            _ => Asc::INVALID_FIELD_IN_CDB,
        };
        Self { status: MotionFailure::CheckCondition(Sense::illegal(asc)), why: error.to_string() }
    }
}

impl DeviceServer {
    /// Handles what the owner of the library tells a changer.
    pub(crate) fn changer_input(&mut self, input: LibraryInput) {
        let Some(changer) = &mut self.changer else { return };
        match input {
            LibraryInput::Install { file, unusable } => {
                changer.library = Library::decode(&file).ok();
                changer.unusable = unusable.into_iter().collect();
            }
            LibraryInput::Drives(drives) => changer.drives = drives,
            LibraryInput::Operator { ticket, change } => self.queue_motion(Motion::Operator(ticket, change)),
            LibraryInput::Changed(result) => self.motion_ended(result),
            LibraryInput::Eject | LibraryInput::Inserted => {}
        }
    }

    fn queue_motion(&mut self, motion: Motion) {
        if let Some(changer) = &mut self.changer {
            changer.waiting.push_back(motion);
            self.begin_motions();
        }
    }

    /// Forgets the motion of a task that has ended.
    pub(crate) fn forget_motion(&mut self, task: TaskId) {
        if let Some(changer) = &mut self.changer {
            changer.forget_task(task);
        }
    }

    /// Begins the next motion that changes anything, unless one is being made.
    fn begin_motions(&mut self) {
        loop {
            let Some(changer) = self.changer.as_mut().filter(|changer| changer.running.is_none()) else {
                return;
            };
            let Some(motion) = changer.waiting.pop_front() else { return };
            let is_mail_locked = self.spc.removal.check().is_err();
            match plan(changer, &motion, is_mail_locked) {
                Ok(Some(_)) if fault_injection::is_injected(Bug::MotionAnsweredEarly) => {
                    self.end_motion(motion, Ok(()));
                }
                Ok(Some((after, change))) => {
                    changer.running = Some((Some(motion), after));
                    self.emit(UnitEvent::Library(LibraryEvent::Change(change)));
                }
                Ok(None) => self.end_motion(motion, Ok(())),
                Err(refusal) => self.end_motion(motion, Err(refusal)),
            }
        }
    }

    /// Handles the end of the motion that was being made.
    fn motion_ended(&mut self, result: Result<(), ChangeFailure>) {
        let Some(changer) = &mut self.changer else { return };
        let Some((motion, after)) = changer.running.take() else { return };
        let result = match result {
            Ok(()) => {
                // What is outside may be repaired there.
                let is_known = |name: &String| after.cartridges().iter().any(|held| held.name == *name);
                changer.unusable.retain(|name| is_known(name) && !is_in_drive(&after, name));
                changer.library = Some(after);
                Ok(())
            }
            Err(ChangeFailure { status, unusable, why }) => {
                changer.unusable.extend(unusable);
                Err(Refusal { status, why })
            }
        };
        if let (Some(Motion::Operator(_, change)), Ok(())) = (&motion, &result) {
            let code = match change.element() {
                Element::Mail(_) => Asc::IMPORT_OR_EXPORT_ELEMENT_ACCESSED,
                Element::Drive(_) | Element::Slot(_) => Asc::MEDIUM_MAY_HAVE_CHANGED,
            };
            self.nexuses.establish_ua_all(code, None);
        }
        if let Some(motion) = motion {
            self.end_motion(motion, result);
        }
        self.begin_motions();
    }

    /// Tells the task or the operator.
    fn end_motion(&mut self, motion: Motion, result: Result<(), Refusal>) {
        match motion {
            Motion::Task(task, _) => {
                let result = result.map_err(|refusal| refusal.status);
                if let Some(changer) = &mut self.changer {
                    changer.ended.insert(task, result);
                }
                self.wake(task);
            }
            Motion::Operator(ticket, _) => {
                let result = result.map_err(|refusal| refusal.why);
                self.emit(UnitEvent::Library(LibraryEvent::OperatorDone { ticket, result }));
            }
        }
    }
}

/// Returns whether a cartridge is in a drive, so that it could be opened.
fn is_in_drive(library: &Library, name: &str) -> bool {
    let in_drive = |held: &StoredCartridge| matches!(held.element, Element::Drive(_));
    library.cartridges().iter().any(|held| held.name == name && in_drive(held))
}

/// Returns the library after a motion, and what its owner must do; `None` if nothing changes.
fn plan(
    changer: &Changer,
    motion: &Motion,
    is_mail_locked: bool,
) -> Result<Option<(Library, LibraryChange)>, Refusal> {
    let Some(before) = &changer.library else {
        let status = MotionFailure::CheckCondition(NOT_INSTALLED);
        return Err(Refusal { status, why: "the library is not ready".to_string() });
    };
    let mut after = before.clone();
    match motion {
        Motion::Task(_, Movement::Move { from, to }) => after.move_cartridge(*from, *to)?,
        Motion::Task(_, Movement::Exchange { from, first, second }) => {
            after.exchange(*from, *first, *second)?;
        }
        Motion::Operator(_, change) => change.apply(&mut after)?,
    }
    if is_mail_locked && needs_mail_slot(motion) {
        let why = "a host prevents access to the mail slots (PREVENT ALLOW MEDIUM REMOVAL)".to_string();
        let status = MotionFailure::CheckCondition(Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED));
        return Err(Refusal { status, why });
    }
    if after == *before {
        return Ok(None);
    }
    let (mut ejects, mut inserts) = (Vec::new(), Vec::new());
    for number in 1..=before.counts().drives {
        let drive = Element::Drive(number);
        let name = |held: &StoredCartridge| held.name.clone();
        let (was, is) = (before.at(drive).map(name), after.at(drive).map(name));
        if was != is {
            ejects.extend(was.map(|name| (number, name)));
            inserts.extend(is.map(|name| (number, name)));
        }
    }
    let file = after.encode();
    Ok(Some((after, LibraryChange { file, ejects, inserts })))
}

/// Returns whether a motion opens a mail slot, or puts a cartridge where an operator can remove it.
const fn needs_mail_slot(motion: &Motion) -> bool {
    match motion {
        Motion::Task(_, Movement::Move { to, .. }) => is_mail(*to),
        Motion::Task(_, Movement::Exchange { first, second, .. }) => is_mail(*first) || is_mail(*second),
        Motion::Operator(_, change) => is_mail(change.element()),
    }
}

const fn is_mail(element: Element) -> bool {
    matches!(element, Element::Mail(_))
}
