//! Reads and decodes the properties of a logical unit.
//!
//! The functions return futures that any executor can poll. [`crate::future::block_on`] runs them for callers
//! without an executor.

use scsi::block::{self, Capacity};
use scsi::cdb::Cdb;
use scsi::inquiry::StandardInquiry;
use scsi::lun::Lun;
use scsi::mode;
use scsi::opcode;
use scsi::sense::{Asc, SenseKey};
use scsi::vpd;
use transport::task_management::{TmfFunction, TmfResult};

use crate::client::Session;
use crate::command::{Command, CommandError, Reply};
use crate::command_handle::CommandHandle;
use crate::error::Error;
use crate::identity::Identity;

/// The allocation length of the first INQUIRY in bytes: enough for nearly every page, and not so large that
/// some devices fail.
pub(crate) const INQUIRY_LEN: u16 = 1024;

/// The allocation length of MODE SENSE for the caching mode page in bytes: enough for that page, and not so
/// large that some devices fail.
pub(crate) const CACHING_LEN: u8 = 192;

/// The allocation length of the first REPORT LUNS in bytes: 1,023 units.
const LUNS_LEN: u32 = 8192;

/// The largest allocation length of REPORT LUNS in bytes: twice what the 16,384 units that a target can
/// number need.
const LUNS_LEN_MAX: u32 = 1 << 18;

/// A logical unit in a session.
#[derive(Clone, Debug)]
pub struct LogicalUnit {
    session: Session,
    lun: Lun,
}

/// The cache and access properties of a disk (MODE SENSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// WP: the disk refuses every write.
    pub write_protected: bool,
    /// DPOFUA: reads and writes can bypass the cache.
    pub force_unit_access: bool,
    /// WCE: the disk acknowledges writes before they are on the medium. Assumed if the unit does not report
    /// it.
    pub write_cache: bool,
}

impl LogicalUnit {
    /// Creates a handle for a unit of a session.
    pub const fn new(session: Session, lun: Lun) -> Self {
        Self { session, lun }
    }

    /// Returns the session.
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Returns the LUN.
    pub const fn lun(&self) -> Lun {
        self.lun
    }

    /// Executes any command. The command goes to the unit that it names, which need not be this one.
    ///
    /// # Errors
    /// [`CommandError`]
    pub async fn run(&self, command: Command) -> Result<Reply, CommandError> {
        self.session.run(command).await
    }

    /// Executes any command, which can be aborted.
    pub fn start_command(&self, command: Command) -> CommandHandle {
        self.session.start_command(command)
    }

    /// Sends TEST UNIT READY.
    ///
    /// # Errors
    /// Returns [`CommandError::Sense`] with NOT READY if the unit does not become ready within a minute, or
    /// another [`CommandError`].
    pub async fn test_ready(&self) -> Result<(), CommandError> {
        self.run(Command::new(self.lun, Cdb::from_16([0; 16])).repeatable()).await.map(drop)
    }

    /// Reads the standard INQUIRY data.
    ///
    /// # Errors
    /// Returns [`CommandError`]; [`CommandError::Nonsense`] for data of less than 36 bytes.
    pub async fn inquiry(&self) -> Result<StandardInquiry, CommandError> {
        let reply = self.read(inquiry(None, 255), 255).await?;
        StandardInquiry::parse(reply.bytes())
            .map_err(|_| CommandError::Nonsense("INQUIRY data shorter than 36 bytes"))
    }

    /// Reads a VPD page, its header included, at most 65,535 bytes; `None` if the unit has no such page.
    ///
    /// # Errors
    /// Returns [`CommandError`]; [`CommandError::Nonsense`] for data that is another page or no page.
    pub async fn vpd(&self, page: u8) -> Result<Option<Vec<u8>>, CommandError> {
        let mut len = INQUIRY_LEN;
        loop {
            let reply = match self.read(inquiry(Some(page), len), u32::from(len)).await {
                // Some units refuse the page without sense data.
                Err(error) if is_illegal(&error) || error == CommandError::NoSense => return Ok(None),
                reply => reply?,
            };
            let bytes = reply.bytes();
            let Ok(view) = vpd::Page::parse(bytes) else {
                return Err(CommandError::Nonsense("a vital product data page without a header"));
            };
            if view.code != page {
                return Err(CommandError::Nonsense("a vital product data page that was not requested"));
            }
            let told = bytes.get(2..4).and_then(|len| len.try_into().ok()).map_or(0, u16::from_be_bytes);
            let whole = told.saturating_add(4);
            if whole <= len || len == u16::MAX {
                let keep = bytes.len().min(usize::from(whole));
                return Ok(Some(bytes.get(..keep).unwrap_or_default().to_vec()));
            }
            len = whole;
        }
    }

    /// Reads the identity of the device; `None` if the device does not report one.
    ///
    /// # Errors
    /// [`CommandError`]
    pub async fn identity(&self) -> Result<Option<Identity>, CommandError> {
        let listed = self.vpd(vpd::page::SUPPORTED_PAGES).await?.unwrap_or_default();
        let listed = vpd::Page::parse(&listed).map(|page| page.body).unwrap_or_default();
        for page in Identity::PAGES {
            if !listed.contains(&page) {
                continue;
            }
            let reply = self.run(Identity::question(self.lun, page)).await;
            match reply.map(|reply| Identity::learn(page, reply.bytes())) {
                Ok(None) => {}
                Err(error) if is_illegal(&error) => {}
                found => return found,
            }
        }
        Ok(None)
    }

    /// Reads the capacity with READ CAPACITY(16), or with READ CAPACITY(10) if the unit does not support the
    /// former. Also returns whether the unit supports commands of 16 bytes.
    ///
    /// # Errors
    /// Returns [`Error::Command`], or [`Error::Capacity`] if the capacity is not usable.
    pub async fn capacity(&self) -> Result<(Capacity, bool), Error> {
        let long = block::read_capacity_16(Capacity::LEN_16);
        match self.read(long, Capacity::LEN_16).await {
            Ok(reply) => Ok((Capacity::parse_16(reply.bytes())?, true)),
            Err(error) if is_illegal(&error) => {
                let reply = self.read(block::read_capacity_10(), 8).await?;
                let capacity = Capacity::parse_10(reply.bytes())?.ok_or(error)?;
                Ok((capacity, false))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the cache and access properties with MODE SENSE; `None` if the unit does not report them.
    ///
    /// # Errors
    /// [`CommandError`]
    pub async fn caching(&self) -> Result<Option<Caching>, CommandError> {
        for form in [mode::HeaderFormat::Six, mode::HeaderFormat::Ten] {
            match self.read(caching_question(form), CACHING_LEN.into()).await {
                Ok(reply) => return Ok(caching(form, reply.bytes())),
                Err(error) if is_illegal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Lists the LUNs of the target with REPORT LUNS, whichever LUN this unit has. At most 32,767 of them.
    ///
    /// # Errors
    /// Returns [`CommandError`]; [`CommandError::Nonsense`] for a list without a header.
    pub async fn report_luns(&self) -> Result<Vec<Lun>, CommandError> {
        let mut len = LUNS_LEN;
        loop {
            let [a, b, c, d] = len.to_be_bytes();
            let cdb = Cdb::from_16([opcode::REPORT_LUNS, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0, 0, 0]);
            let reply = self.read(cdb, len).await?;
            let bytes = reply.bytes();
            let told = bytes.first_chunk::<4>().map_or(0, |len| u32::from_be_bytes(*len));
            let whole = told.saturating_add(8).min(LUNS_LEN_MAX);
            if whole <= len {
                return scsi::supported::parse_luns(bytes)
                    .map_err(|_| CommandError::Nonsense("REPORT LUNS data without a header"));
            }
            len = whole;
        }
    }

    /// Sends a task management request for the unit: a reset, an abort of all tasks. The result is `None`
    /// when the session was lost before the response arrived.
    ///
    /// # Errors
    /// Returns [`CommandError::Stopped`]. A failure at the target is part of the result.
    pub async fn submit_tmf(&self, function: TmfFunction) -> Result<Option<TmfResult>, CommandError> {
        self.session.submit_tmf(function, self.lun).await
    }

    async fn read(&self, cdb: Cdb, len: u32) -> Result<Reply, CommandError> {
        self.run(Command::new(self.lun, cdb).reading(len).repeatable()).await
    }
}

/// Returns whether the unit reports that it does not support the command, or a field of the CDB.
pub(crate) fn is_illegal(error: &CommandError) -> bool {
    let known = [Asc::INVALID_COMMAND_OPERATION_CODE, Asc::INVALID_FIELD_IN_CDB];
    error.sense().is_some_and(|sense| sense.key == SenseKey::ILLEGAL_REQUEST && known.contains(&sense.asc))
}

/// Returns the INQUIRY for a VPD page, or for the standard data.
pub(crate) fn inquiry(page: Option<u8>, len: u16) -> Cdb {
    let [high, low] = len.to_be_bytes();
    let (vital, page) = page.map_or((0, 0), |page| (1, page));
    Cdb::from_16([opcode::INQUIRY, vital, page, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// Returns the MODE SENSE for the caching mode page.
pub(crate) const fn caching_question(form: mode::HeaderFormat) -> Cdb {
    let (page, len) = (mode::page::CACHING, CACHING_LEN);
    Cdb::from_16(match form {
        mode::HeaderFormat::Six => [opcode::MODE_SENSE_6, 8, page, 0, len, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        mode::HeaderFormat::Ten => [opcode::MODE_SENSE_10, 8, page, 0, 0, 0, 0, 0, len, 0, 0, 0, 0, 0, 0, 0],
    })
}

/// Returns the properties in the answer to [`caching_question`]; `None` if it is malformed.
pub(crate) fn caching(form: mode::HeaderFormat, bytes: &[u8]) -> Option<Caching> {
    let parameters = mode::Parameters::parse(form, bytes).ok()?;
    let flags = parameters.header.device_specific;
    Some(Caching {
        write_protected: flags & mode::device_specific::WP != 0,
        force_unit_access: flags & mode::device_specific::DPOFUA != 0,
        write_cache: write_cache(form, bytes).unwrap_or(true),
    })
}

/// Returns WCE in the answer to [`caching_question`]; `None` if it has no caching mode page.
pub(crate) fn write_cache(form: mode::HeaderFormat, bytes: &[u8]) -> Option<bool> {
    let parameters = mode::Parameters::parse(form, bytes).ok()?;
    let pages = mode::Page::list(parameters.pages);
    let page = pages.iter().find(|page| page.code == mode::page::CACHING)?;
    page.body.first().map(|flags| flags & 0x04 != 0)
}
