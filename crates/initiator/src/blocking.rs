//! The library without `async`: every function returns when its work is done.
//!
//! ```no_run
//! use targe_initiator::blocking::Disk;
//!
//! fn main() -> Result<(), targe_initiator::Error> {
//!     let disk = Disk::open("iscsi://192.0.2.7/iqn.2026-01.com.example:disk/0")?;
//!     let mut block = vec![0; disk.block_size()];
//!     disk.read_at(0, &mut block)?;
//!     println!("{block:02x?}");
//!     Ok(())
//! }
//! ```
//!
//! A disk can be used by many threads at a time; each of them has one operation under way. A program that
//! wants many operations under way from one thread uses [`crate::Disk`], which [`Disk::as_async`] returns.
//! Nothing here may be called from a callback of the client, whose thread would wait for itself.

use crate::command::{Command, Reply};
use crate::disk::Geometry;
use crate::error::Error;
use crate::future::block_on;
use crate::open::OpenOptions;
use crate::url::Url;
use crate::{Cdb, Session};

/// A thread that runs sessions. Clones share the same thread. See [`crate::Client`].
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

/// A disk in a session. Clones share the same disk. See [`crate::Disk`].
#[derive(Clone, Debug)]
pub struct Disk(crate::Disk);

impl Client {
    /// Starts a thread.
    ///
    /// # Errors
    /// [`Error::Start`]
    pub fn new() -> Result<Self, Error> {
        crate::Client::new().map(Self)
    }

    /// Logs in to the target of a URL and opens its unit as a disk.
    ///
    /// # Errors
    /// [`Error`]
    pub fn open<U>(&self, url: U) -> Result<Disk, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        self.open_with(OpenOptions::new(), url)
    }

    /// Like [`Self::open`], with options.
    ///
    /// # Errors
    /// [`Error`]
    pub fn open_with<U>(&self, options: OpenOptions, url: U) -> Result<Disk, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        block_on(options.open(&self.0, url)).map(Disk)
    }

    /// Returns the same client for use with `async`.
    pub const fn as_async(&self) -> &crate::Client {
        &self.0
    }
}

impl Disk {
    /// Starts a thread for this disk, logs in to the target of a URL and opens its unit. A program with many
    /// disks starts one [`Client`] for all of them.
    ///
    /// # Errors
    /// [`Error`]
    pub fn open<U>(url: U) -> Result<Self, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        Client::new()?.open(url)
    }

    /// Fills `buf` with the data at byte `offset`. See [`crate::Disk::read_at`].
    ///
    /// # Errors
    /// [`Error`]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        block_on(self.0.read_at(offset, buf))
    }

    /// Writes `data` at byte `offset`. See [`crate::Disk::write_at`].
    ///
    /// # Errors
    /// [`Error`]
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        block_on(self.0.write_at(offset, data))
    }

    /// Writes zeros. See [`crate::Disk::write_zeroes`].
    ///
    /// # Errors
    /// [`Error`]
    pub fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        block_on(self.0.write_zeroes(offset, len))
    }

    /// Makes all acknowledged writes durable. See [`crate::Disk::flush`].
    ///
    /// # Errors
    /// [`Error`]
    pub fn flush(&self) -> Result<(), Error> {
        block_on(self.0.flush())
    }

    /// Deallocates storage. See [`crate::Disk::discard`].
    ///
    /// # Errors
    /// [`Error`]
    pub fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        block_on(self.0.discard(offset, len))
    }

    /// Returns a command with any CDB for the unit of this disk. See [`crate::Disk::command`].
    pub fn command(&self, cdb: Cdb) -> Command {
        self.0.command(cdb)
    }

    /// Executes a command.
    ///
    /// # Errors
    /// [`Error::Command`]
    pub fn run(&self, command: Command) -> Result<Reply, Error> {
        block_on(self.0.run(command))
    }

    /// Returns the size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// Returns the logical block length in bytes.
    pub fn block_size(&self) -> usize {
        self.0.block_size()
    }

    /// Returns the present geometry of the disk.
    pub fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    /// Returns the session. Its functions return futures, whose `wait` blocks.
    pub fn session(&self) -> &Session {
        self.0.session()
    }

    /// Logs out, and waits until the target has answered. Dropping the last handle of a disk logs out as
    /// well.
    ///
    /// # Errors
    /// [`Error::Command`]
    pub fn log_out(self) -> Result<(), Error> {
        Ok(self.0.session().log_out().wait()?)
    }

    /// Returns the same disk for use with `async`.
    pub const fn as_async(&self) -> &crate::Disk {
        &self.0
    }
}

impl From<crate::Disk> for Disk {
    fn from(disk: crate::Disk) -> Self {
        Self(disk)
    }
}
