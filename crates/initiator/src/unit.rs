//! A logical unit: what it says of itself, decoded.
//!
//! Futures that any executor can poll; [`crate::future::block_on`] is one for callers that have none.

use iscsi::pdu::tmf_request::TmfFunction;
use iscsi::pdu::tmf_response::TmfResult;
use scsi::block::{self, BadCapacity, Capacity};
use scsi::cdb::Cdb;
use scsi::inquiry::StandardInquiry;
use scsi::lun::Lun;
use scsi::mode;
use scsi::opcode;
use scsi::sense::{Asc, SenseKey};
use scsi::vpd;

use crate::client::Session;
use crate::command::{Command, CommandError, Reply};
use crate::command_handle::CommandHandle;
use crate::identity::Identity;

/// What is asked of an INQUIRY first: enough for nearly every page, and less than some devices stumble over.
const INQUIRY_LEN: u16 = 1024;

/// What is asked of REPORT LUNS first: 1,023 units.
const LUNS_LEN: u32 = 8192;

/// The most that is asked of REPORT LUNS: all of the 16,384 that a target can number, twice over.
const LUNS_LEN_MAX: u32 = 1 << 18;

/// A logical unit in a session.
#[derive(Clone, Debug)]
pub struct LogicalUnit {
    session: Session,
    lun: Lun,
}

/// What a disk says of its cache and its access (MODE SENSE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caching {
    /// WP: it refuses every write.
    pub write_protected: bool,
    /// DPOFUA: reads and writes can bypass the cache.
    pub force_unit_access: bool,
    /// WCE: it acknowledges writes before they are on the medium. Taken to be so if the unit does not say.
    pub write_cache: bool,
}

impl LogicalUnit {
    /// Names a unit of a session.
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

    /// Has any command carried out: one for the unit that it names, which need not be this one.
    ///
    /// # Errors
    /// [`CommandError`]
    pub async fn run(&self, command: Command) -> Result<Reply, CommandError> {
        self.session.run(command).await
    }

    /// Has any command carried out, one that can be ended before it ends by itself.
    pub fn start_command(&self, command: Command) -> CommandHandle {
        self.session.start_command(command)
    }

    /// TEST UNIT READY.
    ///
    /// # Errors
    /// [`CommandError::Sense`] with NOT READY if it is not and does not become so within a minute, or another
    /// [`CommandError`].
    pub async fn test_ready(&self) -> Result<(), CommandError> {
        self.run(Command::new(self.lun, Cdb::from_16([0; 16])).repeatable()).await.map(drop)
    }

    /// Reads the standard INQUIRY data.
    ///
    /// # Errors
    /// [`CommandError`]; [`CommandError::Nonsense`] for an answer of less than 36 bytes.
    pub async fn inquiry(&self) -> Result<StandardInquiry, CommandError> {
        let reply = self.read(inquiry(None, 255), 255).await?;
        StandardInquiry::parse(reply.bytes())
            .map_err(|_| CommandError::Nonsense("INQUIRY data of less than 36 bytes"))
    }

    /// Reads a page of vital product data, its header included, at most 65,535 bytes; `None` if the unit has no such
    /// page.
    ///
    /// # Errors
    /// [`CommandError`]; [`CommandError::Nonsense`] for an answer that is another page or none.
    pub async fn vpd(&self, page: u8) -> Result<Option<Vec<u8>>, CommandError> {
        let mut len = INQUIRY_LEN;
        loop {
            let reply = match self.read(inquiry(Some(page), len), u32::from(len)).await {
                // Some say no without saying why.
                Err(error) if is_illegal(&error) || error == CommandError::NoSense => return Ok(None),
                reply => reply?,
            };
            let bytes = reply.bytes();
            let Ok(view) = vpd::Page::parse(bytes) else {
                return Err(CommandError::Nonsense("a page of vital product data without a header"));
            };
            if view.code != page {
                return Err(CommandError::Nonsense("another page of vital product data than was asked for"));
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

    /// Asks which device this is; `None` if it does not say.
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

    /// Reads the capacity: READ CAPACITY(16), or (10) if the unit knows no other. Says too whether commands of 16
    /// bytes are known.
    ///
    /// # Errors
    /// [`UnitError::Command`], or [`UnitError::Capacity`] if what it says is of no use.
    pub async fn capacity(&self) -> Result<(Capacity, bool), UnitError> {
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

    /// Reads what MODE SENSE says of cache and access; `None` if the unit does not say.
    ///
    /// # Errors
    /// [`CommandError`]
    pub async fn caching(&self) -> Result<Option<Caching>, CommandError> {
        let page = mode::page::CACHING;
        let six = Cdb::from_16([opcode::MODE_SENSE_6, 8, page, 0, 192, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let ten = Cdb::from_16([opcode::MODE_SENSE_10, 8, page, 0, 0, 0, 0, 0, 192, 0, 0, 0, 0, 0, 0, 0]);
        for (cdb, form) in [(six, mode::HeaderFormat::Six), (ten, mode::HeaderFormat::Ten)] {
            match self.read(cdb, 192).await {
                Ok(reply) => return Ok(caching(form, reply.bytes())),
                Err(error) if is_illegal(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Lists the LUNs of the target, whichever this one is: REPORT LUNS. At most 32,767 of them.
    ///
    /// # Errors
    /// [`CommandError`]; [`CommandError::Nonsense`] for a list without a header.
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
                    .map_err(|_| CommandError::Nonsense("a list of LUNs without a header"));
            }
            len = whole;
        }
    }

    /// Sends a task management request for the unit: a reset, an abort of all tasks. `None` when the session was lost
    /// before it was answered.
    ///
    /// # Errors
    /// [`CommandError::Stopped`]; what the target makes of it is the answer.
    pub async fn submit_tmf(&self, function: TmfFunction) -> Result<Option<TmfResult>, CommandError> {
        self.session.submit_tmf(function, self.lun).await
    }

    async fn read(&self, cdb: Cdb, len: u32) -> Result<Reply, CommandError> {
        self.run(Command::new(self.lun, cdb).reading(len).repeatable()).await
    }
}

/// Why a unit could not be made out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Its capacity is of no use.
    #[error(transparent)]
    Capacity(#[from] BadCapacity),
    /// There is no unit at this LUN.
    #[error("there is no LUN {0} at this target")]
    NoUnit(u16),
    /// It is no disk.
    #[error("LUN {lun} is no disk but a device of type {kind:02x}h")]
    NotADisk {
        /// The LUN.
        lun: u16,
        /// The PERIPHERAL DEVICE TYPE.
        kind: u8,
    },
}

/// Returns whether the unit says that it does not know the command, or a field of it.
pub(crate) fn is_illegal(error: &CommandError) -> bool {
    let known = [Asc::INVALID_COMMAND_OPERATION_CODE, Asc::INVALID_FIELD_IN_CDB];
    error.sense().is_some_and(|sense| sense.key == SenseKey::ILLEGAL_REQUEST && known.contains(&sense.asc))
}

fn inquiry(page: Option<u8>, len: u16) -> Cdb {
    let [high, low] = len.to_be_bytes();
    let (vital, page) = page.map_or((0, 0), |page| (1, page));
    Cdb::from_16([opcode::INQUIRY, vital, page, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

fn caching(form: mode::HeaderFormat, bytes: &[u8]) -> Option<Caching> {
    let parameters = mode::Parameters::parse(form, bytes).ok()?;
    let pages = mode::Page::list(parameters.pages);
    let page = pages.iter().find(|page| page.code == mode::page::CACHING);
    let flags = parameters.header.device_specific;
    Some(Caching {
        write_protected: flags & mode::device_specific::WP != 0,
        force_unit_access: flags & mode::device_specific::DPOFUA != 0,
        write_cache: page.and_then(|page| page.body.first()).is_none_or(|flags| flags & 0x04 != 0),
    })
}
