//! Gives access to a logical unit as a disk: a medium that threads share, with bytes instead of blocks and
//! commands.
//!
//! Operations that are larger than one command of the unit allows are divided into several commands, some of
//! which are under way at the same time. Features that the unit lacks are emulated: zeros are written where
//! WRITE SAME is missing, and a flush follows a write where the unit does not support FUA.
//!
//! A disk always stands for the device that was opened. After a session recovery, the session first asks the
//! unit for its designators (VPD page 83h, else the serial number of page 80h). If they are those of another
//! disk, nothing is read or written any more. A unit without either must have the same model and capacity.

mod chain;
mod flush;
mod geometry;
mod losses;
mod perform;
mod refresh;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base::buffer::{Bytes, DataList};
use base::units::Lba;
use scsi::block;
use scsi::cdb::Cdb;
use scsi::inquiry::{DeviceType, Qualifier, StandardInquiry};
use scsi::lun::Lun;
use scsi::sense::SenseKey;
use scsi::vpd::{BlockCharacteristics, BlockLimits, LogicalBlockProvisioning, Page, page};
use store::api::{Capabilities, Durability, OpAction, OpOutput};
use store::shared::{Compared, OnCompared, OnComplete, SharedStore};

use crate::client::{Client, Session};
use crate::command::{Command, CommandError, Reply};
use crate::error::Error;
use crate::future::{ResponseFuture, response_channel};
use crate::identity::Identity;
use crate::sessions::DiskCapacity;
use crate::unit::LogicalUnit;
use crate::url::Url;

pub use geometry::Geometry;
use losses::Losses;
pub(crate) use perform::fault_of;
use perform::taken;
use refresh::RefreshState;

/// A disk in a session. Clones share the same disk, and any number of operations can be under way.
///
/// If the target reports that acknowledged writes were lost (a deferred error), the next flush of every clone
/// fails once. A clone inherits what the flushes of the original have reported.
///
/// The session logs out when its last handle is dropped, and the last handle of a client waits for that.
/// `async` programs call [`Session::log_out`] first, so that dropping the disk does not block.
pub struct Disk {
    inner: Arc<Inner>,
    /// How many losses the flushes of this handle have reported.
    reported: Arc<AtomicU64>,
}

struct Inner {
    session: Session,
    lun: Lun,
    inquiry: StandardInquiry,
    /// The codes of the VPD pages that the unit has.
    listed: Vec<u8>,
    geometry: Mutex<Geometry>,
    /// Whether the properties are being read again. Changed under the lock of `geometry`, too.
    refresh: Mutex<RefreshState>,
    losses: Mutex<Losses>,
}

impl Disk {
    /// Starts a [`crate::Client`] for this disk, logs in to the target of a URL and opens its unit. A program
    /// with many disks starts one client for all of them.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn open<U>(url: U) -> Result<Self, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        Client::new()?.open(url).await
    }

    /// Reads the properties of a unit of a session and returns it as a disk.
    ///
    /// # Errors
    /// Returns an error if there is no such unit, if it is no disk, or if it does not report the data that a
    /// disk needs.
    pub async fn open_unit(session: Session, lun: u16) -> Result<Self, Error> {
        let address = Lun::from_number(lun).ok_or(Error::NoUnit(lun))?;
        let unit = LogicalUnit::new(session.clone(), address);
        let inquiry = unit.inquiry().await?;
        if inquiry.qualifier != Qualifier::CONNECTED {
            return Err(Error::NoUnit(lun));
        }
        if inquiry.device_type != DeviceType::DIRECT_ACCESS_BLOCK {
            return Err(Error::NotADisk { lun, device_type: inquiry.device_type.0 });
        }
        let identity = unit.identity().await?;
        session.guard(address, identity.unwrap_or_else(|| Identity::of_model(&inquiry)));
        let (geometry, listed) = examine(&unit).await?;
        session.guard_capacity(address, DiskCapacity::new(&geometry.capacity, geometry.long_commands));
        let geometry = Mutex::new(geometry);
        let inner = Arc::new(Inner {
            session,
            lun: address,
            inquiry,
            listed,
            geometry,
            refresh: Mutex::default(),
            losses: Mutex::default(),
        });
        refresh::follow(&inner);
        Ok(Self { inner, reported: Arc::default() })
    }

    /// Returns the session.
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Returns the unit, for commands of any kind.
    pub fn unit(&self) -> LogicalUnit {
        LogicalUnit::new(self.inner.session.clone(), self.inner.lun)
    }

    /// Returns the standard INQUIRY data of the unit.
    pub fn inquiry(&self) -> &StandardInquiry {
        &self.inner.inquiry
    }

    /// Returns the present geometry of the disk.
    pub fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    /// Returns the size of the disk in bytes. It changes when the unit reports another capacity.
    pub fn size(&self) -> u64 {
        self.inner.geometry().bytes()
    }

    /// Returns the logical block length in bytes, which never changes.
    pub fn block_size(&self) -> usize {
        usize::try_from(self.inner.geometry().block_size().bytes()).unwrap_or(usize::MAX)
    }

    /// Returns a command with any CDB for this unit; [`Self::run`] executes it. The methods of [`Command`]
    /// add data.
    pub fn command(&self, cdb: Cdb) -> Command {
        Command::new(self.inner.lun, cdb)
    }

    /// Executes a command. It goes to the unit that it names, which need not be this one. Dropping the future
    /// does not abort the command; [`Session::start_command`] returns a handle that can.
    ///
    /// # Errors
    /// [`Error::Command`]
    pub async fn run(&self, command: Command) -> Result<Reply, Error> {
        Ok(self.inner.session.run(command).await?)
    }

    /// Fills `buf` with the data at byte `offset`. Offset and length are multiples of [`Self::block_size`].
    /// [`Self::read`] saves the copy into `buf`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let data = self.read(offset, buf.len()).await?;
        data.copy_to(0, buf);
        Ok(())
    }

    /// Writes `data` at byte `offset`. Offset and length are multiples of [`Self::block_size`]. The data may
    /// stay in a volatile cache of the target until [`Self::flush`]. [`Self::write`] saves the copy of
    /// `data`.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.write(offset, Bytes::copied_from(data), Durability::Cached).await
    }

    /// Writes `len` zeros at byte `offset`, with WRITE SAME where the unit supports it. The unit may
    /// deallocate storage for that (thin provisioning).
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), Error> {
        let durability = Durability::Cached;
        let action = OpAction::WriteZeroes { at: offset, len, may_deallocate: true, durability };
        self.perform(action).await.map(drop)
    }

    /// Deallocates the storage of `len` bytes at byte `offset` (UNMAP, TRIM). Afterwards they read as zeros
    /// if [`Geometry::reads_zero`] is set, and else as anything.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if the unit is not thinly provisioned, else as [`Self::write`].
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.perform(OpAction::Deallocate { at: offset, len }).await.map(drop)
    }

    /// Starts an operation and calls `done` with its result. Its type is part of [`crate::unstable`]. Like
    /// [`SharedStore::submit`], but with errors that contain the sense data of the target. `done` is called
    /// exactly once: on the client's thread, which it must not block, or before this returns if the operation
    /// needs no command.
    pub fn start(&self, action: OpAction, done: impl FnOnce(Result<OpOutput, Error>) + Send + 'static) {
        let done = losses::watch(&self.inner, &self.reported, &action, Box::new(done));
        perform::start(&self.inner, action, done);
    }

    /// Executes an operation, whose type is part of [`crate::unstable`]. The operation starts at once, not
    /// when the future is polled, so that many can be under way. Dropping the future does not abort the
    /// operation.
    pub fn perform(&self, action: OpAction) -> ResponseFuture<OpOutput, Error> {
        let (completer, answer) = response_channel();
        self.start(action, move |result| completer.complete(result));
        answer
    }

    /// Reads `len` bytes at the byte offset `at` without a copy, both multiples of the logical block length.
    /// All of them are in memory at the end: divide large reads into pieces, for example of
    /// [`Capabilities::io_len_max`] bytes.
    ///
    /// # Errors
    /// Returns [`Error::Unaligned`] and [`Error::OutOfRange`] before anything is sent, else
    /// [`Error::Command`].
    pub async fn read(&self, at: u64, len: usize) -> Result<DataList, Error> {
        match self.perform(OpAction::Read { at, len }).await? {
            OpOutput::Data(data) => Ok(data),
            _ => Err(Error::Command(CommandError::Nonsense("a read without data"))),
        }
    }

    /// Writes `data` at the byte offset `at`; offset and length are multiples of the logical block length.
    /// More data than one command allows is written in pieces, in any order. If the session is lost
    /// meanwhile, the data may be written twice.
    ///
    /// # Errors
    /// Returns [`Error::Unaligned`] and [`Error::OutOfRange`] before anything is sent, else
    /// [`Error::Command`]; then any part of the range may have been written.
    pub async fn write(
        &self,
        at: u64,
        data: impl Into<DataList>,
        durability: Durability,
    ) -> Result<(), Error> {
        let data = data.into();
        self.perform(OpAction::Write { at, data, durability }).await.map(drop)
    }

    /// Makes all acknowledged writes durable: sends SYNCHRONIZE CACHE, or nothing if the unit has reported
    /// that it has no volatile cache.
    ///
    /// # Errors
    /// Returns [`Error::Command`]; then writes since the last flush may not be durable. A unit without
    /// SYNCHRONIZE CACHE is an error only if it reports that it has a volatile cache.
    pub async fn flush(&self) -> Result<(), Error> {
        self.perform(OpAction::Flush).await.map(drop)
    }

    /// Sends COMPARE AND WRITE: writes the second half of `data` at `at` if the blocks there equal the first
    /// half, in one atomic step. Both halves are whole blocks, at most [`Geometry::compare_and_write_max`] of
    /// them. The command is never executed twice: if the session is lost meanwhile, the error is
    /// [`CommandError::Lost`], and the caller has to read the blocks.
    ///
    /// # Errors
    /// Returns [`CommandError::Sense`] with MISCOMPARE when the blocks differ; [`Error::Unsupported`] for
    /// more blocks than the unit allows, [`Error::Unaligned`] and [`Error::OutOfRange`] before
    /// anything is sent.
    pub async fn compare_and_write(&self, at: u64, data: impl Into<DataList>) -> Result<(), Error> {
        let data = data.into();
        let len = data.len();
        let reply = self.inner.session.run(self.comparison(at, data)?).await?;
        Ok(taken(&reply, len)?)
    }

    /// Returns the command of a COMPARE AND WRITE.
    fn comparison(&self, at: u64, data: DataList) -> Result<Command, Error> {
        let geometry = self.geometry();
        let (lba, blocks) = geometry.blocks(at, data.len() / 2)?;
        if !data.len().is_multiple_of(2) {
            let len = u64::try_from(data.len()).unwrap_or(u64::MAX);
            return Err(Error::Unaligned { offset: at, len, block_size: geometry.block_size().bytes() });
        }
        let count = u8::try_from(blocks).ok().filter(|count| *count <= geometry.compare_and_write_max);
        let count = count.ok_or(Error::Unsupported("a COMPARE AND WRITE of this length"))?;
        Ok(Command::new(self.inner.lun, block::compare_and_write(lba, count, false)).writing(data))
    }
}

impl Clone for Disk {
    fn clone(&self) -> Self {
        let reported = AtomicU64::new(self.reported.load(Ordering::Acquire));
        Self { inner: Arc::clone(&self.inner), reported: Arc::new(reported) }
    }
}

impl SharedStore for Disk {
    fn capabilities(&self) -> Capabilities {
        self.inner.geometry().profile()
    }

    fn losses(&self) -> store::shared::Losses {
        let (count, last) = losses::known(&self.inner);
        let failure =
            |sense| fault_of(&Error::Command(CommandError::Sense(sense)), self.inner.geometry().block_size());
        store::shared::Losses { count, last: last.map(failure) }
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        let block_size = self.inner.geometry().block_size();
        self.start(action, move |result| done(result.map_err(|error| fault_of(&error, block_size))));
    }

    fn compare_and_write_max(&self) -> usize {
        let geometry = self.inner.geometry();
        let block = usize::try_from(geometry.block_size().bytes()).unwrap_or(0);
        usize::from(geometry.compare_and_write_max).saturating_mul(block)
    }

    fn compare_and_write(&self, at: u64, data: DataList, done: OnCompared) {
        let block_size = self.inner.geometry().block_size();
        let len = data.len();
        let command = match self.comparison(at, data) {
            Ok(command) => command,
            Err(why) => return done(Err(fault_of(&why, block_size))),
        };
        let done = move |result: Result<Reply, CommandError>| {
            done(match result.and_then(|reply| taken(&reply, len)) {
                Ok(()) => Ok(Compared::Written),
                Err(why) if why.sense().is_some_and(|sense| sense.key == SenseKey::MISCOMPARE) => {
                    Ok(Compared::Differed)
                }
                Err(why) => Err(fault_of(&Error::Command(why), block_size)),
            });
        };
        self.inner.session.submit(command, done);
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({:?}, {:?})", self.inner.session, self.inner.lun)
    }
}

impl Inner {
    fn geometry(&self) -> Geometry {
        self.geometry.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The VPD pages with properties that a disk needs. The limits come before the provisioning, which changes
/// them.
const PAGES: [u8; 3] = [page::BLOCK_LIMITS, page::LOGICAL_BLOCK_PROVISIONING, page::BLOCK_CHARACTERISTICS];

/// Reads all properties of a unit that a disk needs. Also returns which VPD pages the unit lists.
async fn examine(unit: &LogicalUnit) -> Result<(Geometry, Vec<u8>), Error> {
    let (capacity, long_commands) = unit.capacity().await?;
    let mut geometry = Geometry::new(capacity, long_commands);
    // Only pages that the unit lists are requested, since some units do not tolerate requests for others.
    let listed = unit.vpd(page::SUPPORTED_PAGES).await?.unwrap_or_default();
    let listed = body(&listed).unwrap_or_default();
    for code in PAGES {
        if listed.contains(&code)
            && let Some(bytes) = unit.vpd(code).await?
        {
            learn(&mut geometry, code, body(&bytes).unwrap_or_default());
        }
    }
    if let Some(caching) = unit.caching().await? {
        geometry.cache(caching);
    }
    Ok((geometry, listed.to_vec()))
}

/// Takes the values of a VPD page. A truncated page is ignored.
fn learn(geometry: &mut Geometry, code: u8, body: &[u8]) {
    match code {
        page::BLOCK_LIMITS => {
            if let Ok(limits) = BlockLimits::parse(body) {
                geometry.limit(&limits);
            }
        }
        page::LOGICAL_BLOCK_PROVISIONING => {
            if let Ok(provisioning) = LogicalBlockProvisioning::parse(body) {
                geometry.provision(&provisioning);
            }
        }
        page::BLOCK_CHARACTERISTICS => {
            if let Ok(characteristics) = BlockCharacteristics::parse(body) {
                geometry.rotational = characteristics.rotation_rate > 1;
            }
        }
        _ => {}
    }
}

fn body(bytes: &[u8]) -> Option<&[u8]> {
    Page::parse(bytes).ok().map(|page| page.body)
}

/// Returns the address of the block with this number.
const fn lba(number: u64) -> Lba {
    Lba(number)
}
