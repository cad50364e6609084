//! What the thread of a device drives: a device of this host, or one of another process.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};

use drivers::files::Errno;
use drivers::sg::{SgDevice, SgReply, SgRequest};
use drivers::waker::Waker;

use super::process::ScsiDevice;

/// A device that is open.
#[derive(Debug)]
pub(crate) enum Device {
    /// A SCSI generic device of this host.
    Sg(SgDevice),
    /// A device of another process.
    VhostUser(Box<ScsiDevice>),
}

impl Device {
    /// Returns the file by which it is locked. A device of another process has none.
    pub(crate) fn locked(&self) -> Weak<File> {
        match self {
            Self::Sg(device) => Arc::downgrade(device.locked()),
            Self::VhostUser(_) => Weak::new(),
        }
    }

    /// Returns how many bytes one command can transfer, if the device itself says so.
    pub(crate) fn transfer_max(&self) -> u32 {
        match self {
            Self::Sg(_) => 0,
            Self::VhostUser(device) => device.transfer_max(),
        }
    }

    /// Returns how many commands the device executes.
    pub(crate) fn in_flight(&self) -> usize {
        match self {
            Self::Sg(device) => device.in_flight(),
            Self::VhostUser(device) => device.in_flight(),
        }
    }

    /// Submits a command.
    ///
    /// # Errors
    /// The command and the error of the system, if it was not submitted.
    pub(crate) fn submit(&mut self, request: SgRequest) -> Result<(), (SgRequest, Errno)> {
        match self {
            Self::Sg(device) => device.submit(request),
            Self::VhostUser(device) => device.submit(request),
        }
    }

    /// Returns the next reply, or `None` if there is none yet.
    ///
    /// # Errors
    /// The error of the system: the device is gone.
    pub(crate) fn receive(&mut self) -> Result<Option<SgReply>, Errno> {
        match self {
            Self::Sg(device) => device.receive(),
            Self::VhostUser(device) => Ok(device.receive()),
        }
    }

    /// Waits until something happens, or `waker` is signalled.
    pub(crate) fn wait(&mut self, waker: Option<&Waker>) {
        match self {
            Self::Sg(device) => device.wait(waker),
            Self::VhostUser(device) => device.wait(waker),
        }
    }

    /// Executes one command and waits for its end, but for no process to come back. For a device without
    /// commands in flight.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn execute(&mut self, request: SgRequest) -> io::Result<SgReply> {
        self.submit(request).map_err(|(_, errno)| io::Error::from(errno))?;
        loop {
            if let Some(reply) = self.receive()? {
                return Ok(reply);
            }
            if let Self::VhostUser(device) = self
                && !device.is_connected()
            {
                return Err(io::ErrorKind::NotConnected.into());
            }
            self.wait(None);
        }
    }
}
