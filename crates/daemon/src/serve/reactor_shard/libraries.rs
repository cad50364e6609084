//! Tape libraries on their reactor: passes cartridges between drives and the thread that changes the folder.
//!
//! A change goes through three steps. The drives that lose their cartridge unload it; their files are closed;
//! and the thread of the library opens what goes into drives and replaces the file of the library. If a step
//! fails, the drives keep what they have.

use crate::mailbox::Sender;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use base::state_machine::MediumId;
use base::time::Instant;
use device::contract::UnitConfig;
use device::drain::Drain;
use device::library::{
    ChangeFailure, DriveName, LibraryChange, LibraryEvent, LibraryInput, MotionFailure, OperatorChange,
};
use drivers::files::ReleasedFile;
use scsi::sense::{Asc, Sense};
use target::units::UnitId;

use super::ReactorShard;
use crate::config::{Medium, UnitIndex};
use crate::serve::media::changer::{ChangeOutcome, FAILED, OpenLibrary};
use crate::serve::media::tape::Tape;

/// How the command ends of a change whose cartridge a host keeps in its drive.
const PREVENTED: MotionFailure = MotionFailure::CheckCondition(Sense::illegal(Asc::MEDIUM_REMOVAL_PREVENTED));

/// A library that is served.
pub(in crate::serve) struct ServedLibrary {
    /// The path of its folder as it is configured, and the one without links.
    path: PathBuf,
    canonical: PathBuf,
    label: String,
    /// Another descriptor of its lock, for a process that takes over.
    lock: ReleasedFile,
    changes: Sender<LibraryChange>,
    /// The change that is being made, until the drives have given up what they lose.
    ejecting: Option<Ejecting>,
    /// The operators that wait for an answer.
    operators: BTreeMap<u64, Sender<Result<(), String>>>,
    ticket_next: u64,
}

/// A library that can be served.
pub(super) struct StartedLibrary {
    served: ServedLibrary,
    /// What the changer is told of it.
    contents: LibraryInput,
}

/// A change whose drives are to give up their cartridges.
struct Ejecting {
    change: LibraryChange,
    waiting: BTreeSet<UnitId>,
    ejected: Vec<UnitId>,
    failure: Option<Sense>,
}

impl ServedLibrary {
    /// Returns another descriptor of the lock.
    pub(super) fn duplicate_lock(&self) -> std::io::Result<File> {
        self.lock.try_clone()
    }
}

impl ReactorShard {
    /// Starts the thread that changes the library of a changer which is to be added. The thread ends when the
    /// result is dropped.
    pub(super) fn start_library(
        &self,
        id: UnitId,
        label: &str,
        library: OpenLibrary,
    ) -> Result<StartedLibrary, String> {
        for (name, why) in &library.unusable {
            crate::error!("{label}: the cartridge {name} cannot be used: {why}");
        }
        let unusable = library.unusable.iter().map(|(name, _)| name.clone()).collect();
        let (path, canonical, file) = (library.path(), library.canonical.clone(), library.file.clone());
        let lock = library.duplicate_lock();
        let lock = lock.map_err(|error| format!("{label}: its lock: {}", crate::os_error(&error)))?;
        let own = self.own.clone();
        let changes = library.start(move |outcome| {
            // A reactor that has stopped moves nothing, so an error is ignored.
            let _ = own.post(move |member: &mut Self, now| member.library_changed(now, id, outcome));
        });
        let changes = changes.map_err(|error| format!("{label}: no thread: {}", crate::os_error(&error)))?;
        let served = ServedLibrary {
            path,
            canonical,
            label: label.to_owned(),
            lock: lock.into(),
            changes,
            ejecting: None,
            operators: BTreeMap::new(),
            ticket_next: 0,
        };
        Ok(StartedLibrary { served, contents: LibraryInput::Install { file, unusable } })
    }

    /// Serves the library of a changer that was added.
    pub(super) fn serve_library(&mut self, now: Instant, id: UnitId, library: StartedLibrary) {
        let StartedLibrary { served, contents } = library;
        self.libraries.insert(id, served);
        self.shard.library_input(now, id, contents);
        self.tell_drive_names(now);
    }

    /// Tells every changer the names of its drives.
    pub(super) fn tell_drive_names(&mut self, now: Instant) {
        let libraries = self.libraries.iter().map(|(id, library)| (*id, library.path.clone()));
        for (id, path) in libraries.collect::<Vec<_>>() {
            let drives = self.drives_of(&path).filter_map(|(_, index)| self.runtime.unit_config(index));
            let name = |config: UnitConfig| DriveName {
                vendor: config.identity.vendor,
                product: config.identity.product,
            };
            let drives = drives.map(name).collect();
            self.shard.library_input(now, id, LibraryInput::Drives(drives));
        }
    }

    /// Returns the drives of a library, in order.
    fn drives_of(&self, path: &Path) -> impl Iterator<Item = (UnitId, UnitIndex)> {
        let units = (0..).map(UnitIndex).zip(&self.runtime.config.units);
        units.filter_map(move |(index, unit)| match &unit.medium {
            Medium::LibraryDrive { path: of, .. } if of == path => Some((self.runtime.number(index)?, index)),
            _ => None,
        })
    }

    /// Returns a drive of a library by its number.
    fn drive_of(&self, path: &Path, number: u16) -> Option<UnitId> {
        let at = usize::from(number).checked_sub(1)?;
        self.drives_of(path).nth(at).map(|(id, _)| id)
    }

    /// Passes on what changers and drives ask. It is posted to the message queue, because the units are in
    /// the middle of an input.
    pub(super) fn pass_library_events(&mut self) {
        while let Some((id, event)) = self.shard.poll_library_event() {
            // The reactor that runs this has not stopped.
            let _ = self.own.post(move |member: &mut Self, now| member.library_event(now, id, event));
        }
    }

    fn library_event(&mut self, now: Instant, id: UnitId, event: LibraryEvent) {
        match event {
            LibraryEvent::Change(change) => self.begin_change(now, id, change),
            LibraryEvent::Ejected(result) => self.drive_ejected(now, id, result),
            LibraryEvent::OperatorDone { ticket, result } => {
                let waiting =
                    self.libraries.get_mut(&id).and_then(|library| library.operators.remove(&ticket));
                if let Some(waiting) = waiting {
                    // An operator who is gone needs no answer.
                    let _ = waiting.send(result);
                }
            }
        }
    }

    /// Begins a change: the drives that lose a cartridge are told to give it up.
    fn begin_change(&mut self, now: Instant, id: UnitId, change: LibraryChange) {
        let Some(path) = self.libraries.get(&id).map(|library| library.path.clone()) else { return };
        let moved = change.ejects.iter().chain(&change.inserts);
        let moved: Vec<UnitId> = moved.filter_map(|(number, _)| self.drive_of(&path, *number)).collect();
        if moved.iter().any(|drive| self.medium::<Tape>(*drive).is_none()) {
            return self.change_failed(now, id, MotionFailure::Busy, "the drive is not served yet");
        }
        let is_drained =
            |drive: &UnitId| self.drain_progress(*drive).is_some_and(|(drain, _)| drain != Drain::No);
        if moved.iter().any(is_drained) {
            return self.change_failed(now, id, MotionFailure::Busy, "the operator drains the drive");
        }
        let drives: Option<BTreeSet<UnitId>> =
            change.ejects.iter().map(|(number, _)| self.drive_of(&path, *number)).collect();
        let is_broken = |drive: &UnitId| self.medium::<Tape>(*drive).is_none_or(Tape::is_flush_broken);
        let Some(waiting) = drives.filter(|drives| !drives.iter().any(is_broken)) else {
            let why = "the cartridge stays in the drive until targe is restarted, because it could not be made durable";
            return self.change_failed(now, id, FAILED, why);
        };
        // No drive is unloaded for a change that another one refuses. An empty one has nothing to give up:
        // its cartridge could not be opened.
        let is_empty = |drive: &UnitId| self.medium::<Tape>(*drive).is_some_and(Tape::is_empty);
        let (empty, drives): (Vec<UnitId>, Vec<UnitId>) = waiting.iter().copied().partition(is_empty);
        if drives.iter().any(|drive| self.shard.is_removal_prevented(*drive)) {
            return self.change_failed(now, id, PREVENTED, "a host keeps the cartridge in its drive");
        }
        if let Some(library) = self.libraries.get_mut(&id) {
            library.ejecting = Some(Ejecting { change, waiting, ejected: Vec::new(), failure: None });
        }
        for drive in empty {
            self.drive_ejected(now, drive, Ok(()));
        }
        for drive in drives {
            self.shard.library_input(now, drive, LibraryInput::Eject);
        }
        self.make_change(now, id);
    }

    /// Records that a drive has given up its cartridge, or that this stays.
    fn drive_ejected(&mut self, now: Instant, drive: UnitId, result: Result<(), Sense>) {
        let waits = |(id, library): (&UnitId, &mut ServedLibrary)| {
            let ejecting = library.ejecting.as_mut()?;
            ejecting.waiting.remove(&drive).then_some(())?;
            match result {
                Ok(()) => ejecting.ejected.push(drive),
                Err(sense) => ejecting.failure = Some(sense),
            }
            Some(*id)
        };
        if let Some(id) = self.libraries.iter_mut().find_map(waits) {
            self.make_change(now, id);
        }
    }

    /// Passes a change to the thread of the library, if no drive is waited for any more.
    fn make_change(&mut self, now: Instant, id: UnitId) {
        let Some(library) = self.libraries.get_mut(&id) else { return };
        let Some(Ejecting { change, ejected, failure, .. }) =
            library.ejecting.take_if(|ejecting| ejecting.waiting.is_empty())
        else {
            return;
        };
        if let Some(sense) = failure {
            for drive in ejected {
                self.shard.library_input(now, drive, LibraryInput::Inserted);
            }
            let status = MotionFailure::CheckCondition(sense);
            return self.change_failed(now, id, status, "the cartridge stays in its drive");
        }
        for tape in ejected.into_iter().filter_map(|drive| self.medium::<Tape>(drive)) {
            tape.remove();
        }
        if let Some(library) = self.libraries.get(&id) {
            // The thread outlives this sender.
            let _ = library.changes.send(change);
        }
    }

    fn change_failed(&mut self, now: Instant, id: UnitId, status: MotionFailure, why: &str) {
        if let Some(library) = self.libraries.get(&id).filter(|_| status == FAILED) {
            crate::error!("{}: a cartridge cannot be moved: {why}", library.label);
        }
        let failure = ChangeFailure { status, unusable: None, why: why.to_owned() };
        self.shard.library_input(now, id, LibraryInput::Changed(Err(failure)));
    }

    /// Puts the cartridges of a change into their drives, and tells the changer how it ended.
    fn library_changed(&mut self, now: Instant, id: UnitId, outcome: ChangeOutcome) {
        let Some(path) = self.libraries.get(&id).map(|library| library.path.clone()) else { return };
        for (number, cartridge) in outcome.cartridges {
            let Some(drive) = self.drive_of(&path, number) else { continue };
            let Some(tape) = self.medium::<Tape>(drive) else { continue };
            tape.insert(cartridge, self.files.queue(MediumId(drive.0)));
            self.shard.library_input(now, drive, LibraryInput::Inserted);
        }
        self.shard.library_input(now, id, LibraryInput::Changed(outcome.result));
    }

    /// Lets the changer of the library with this canonical path make the change of an operator, who gets the
    /// answer, or none if this reactor does not serve the library.
    pub(in crate::serve) fn operate_library(
        &mut self,
        now: Instant,
        path: &Path,
        change: OperatorChange,
        answer: Sender<Result<(), String>>,
    ) {
        let Some((id, library)) = self.libraries.iter_mut().find(|(_, library)| library.canonical == path)
        else {
            return;
        };
        let (id, ticket) = (*id, library.ticket_next);
        library.ticket_next = ticket.wrapping_add(1);
        library.operators.insert(ticket, answer);
        self.shard.library_input(now, id, LibraryInput::Operator { ticket, change });
    }
}
