//! The cartridge of a drive in a library: it is given up when no task uses the drive, and another one is put
//! in.

use alloc::boxed::Box;

use cartridge::Cartridge;
use cartridge::command::Command;
use cartridge::error::Error;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::contract::UnitEvent;
use crate::device_server::DeviceServer;
use crate::library::LibraryEvent;
use crate::tape_drive::{DriveState, Running, TapeDrive};

/// The sense data of a motion whose cartridge stays in the drive, because not everything could be written.
const EJECT_FAILED: Sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::MEDIA_LOAD_OR_EJECT_FAILED);

impl DeviceServer {
    /// Begins to give up the cartridge: the command that uses the drive ends first, and then everything is
    /// made durable.
    pub(crate) fn eject_cartridge(&mut self) {
        if let Some(sense) = self.removal_prevented() {
            return self.emit(UnitEvent::Library(LibraryEvent::Ejected(Err(sense))));
        }
        if let Some(drive) = &mut self.tape {
            drive.is_ejecting = true;
            drive.eject_failure = None;
            self.grant_turn();
        }
    }

    /// Unloads a cartridge that is given up, unless it is unloaded. What is bound to it ends in any case: a
    /// host can set some of that while it is unloaded.
    pub(super) fn unload_for_eject(&mut self) {
        self.demounted(None);
        if self.tape.as_ref().is_some_and(|drive| drive.is_loaded()) {
            self.begin_cartridge(Command::Unload, Running::Eject);
        }
    }

    /// Handles the end of that.
    pub(super) fn unloaded_for_eject(&mut self, failure: Option<Error>) {
        if let Some(drive) = &mut self.tape {
            drive.state = DriveState::Unloaded;
            drive.is_unsynced = false;
            drive.eject_failure = failure.as_ref().map(|_| EJECT_FAILED);
            self.spc.removal.eject();
        }
        if let Some(error) = failure {
            self.untold_loss(&error);
        }
    }

    /// Gives up the cartridge if it is unloaded and no operation is under way. Returns whether that has
    /// happened.
    pub(crate) fn finish_eject(&mut self) -> bool {
        let is_idle = self.medium.is_idle();
        let Some(drive) = &mut self.tape else { return false };
        if !drive.is_ejecting || !is_idle || !drive.is_free() || drive.is_loaded() {
            return false;
        }
        drive.is_ejecting = false;
        let result = drive.eject_failure.take().map_or(Ok(()), Err);
        if result.is_ok() {
            self.empty_drive();
        }
        self.emit(UnitEvent::Library(LibraryEvent::Ejected(result)));
        self.grant_turn();
        true
    }

    /// Records that there is no cartridge in the drive.
    pub(super) fn empty_drive(&mut self) {
        self.nexuses.clear_alerts();
        if let Some(drive) = &mut self.tape {
            drive.state = DriveState::Empty;
            drive.cartridge = Cartridge::new();
            drive.loss_heard.clear();
            self.spc.removal.eject();
        }
    }

    /// Begins to load the cartridge that was put into the store. Every host is told when it is loaded. If the
    /// operator drains the drive, the end of the drain loads the cartridge.
    pub(crate) fn cartridge_inserted(&mut self) {
        self.info.capabilities = self.medium.adopt_capabilities();
        if self.is_drained() {
            return;
        }
        let has_cartridge = self.info.has_medium();
        let is_empty = |drive: &&mut Box<TapeDrive>| drive.state == DriveState::Empty;
        if let Some(drive) = self.tape.as_mut().filter(|drive| has_cartridge && is_empty(drive)) {
            drive.is_new = true;
            self.begin_load(None);
        }
    }
}
