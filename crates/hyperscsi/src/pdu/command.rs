//! The payload of a Request frame without the flag DATA: a whole SCSI command or task management function, in
//! front of the first unsolicited data.

use alloc::vec::Vec;

use transport::command::{Cdb, TaskAttribute};
use transport::task_management::TmfFunction;

use super::{Block, Malformed, put_block};

/// The length of a command's block without its CDB and without items.
pub const COMMAND_LEN: usize = 32;

const COMMAND: u8 = 1;
const MANAGE: u8 = 2;

/// A request to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Execute a SCSI command.
    Command(Command),
    /// Perform a task management function.
    Manage(Manage),
}

/// A SCSI command (SAM-5 §5.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The logical unit, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// The priority of the command, 1 (first) to 15, or 0 for none.
    pub priority: u8,
    /// The command starts only when every exchange up to this one was delivered; 0 to start at once.
    pub after: u32,
    /// How many bytes of Data-In the initiator expects at most.
    pub data_in_len: u32,
    /// How many bytes of Data-Out the initiator has to send.
    pub data_out_len: u32,
    /// How many of these bytes are unsolicited data, from the first one on.
    pub unsolicited_len: u32,
    /// The command descriptor block, without padding.
    pub cdb: Cdb,
}

/// A task management function (SAM-5 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manage {
    /// The function.
    pub function: TmfFunction,
    /// The logical unit; unused by functions that concern the whole nexus or target.
    pub lun: u64,
    /// The function starts only when every exchange up to this one was delivered.
    pub after: u32,
    /// The exchange that ABORT TASK and QUERY TASK refer to; 0 for other functions.
    pub referenced: u32,
}

impl Request {
    /// Appends the block to `out`; data may follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Command(command) => command.encode(out),
            Self::Manage(manage) => manage.encode(out),
        }
    }

    /// Parses the block at the front of `payload`. Returns the request and the data behind it.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let block = Block::parse(payload)?;
        let request = match block.kind {
            COMMAND => Self::Command(Command::read(block)?),
            MANAGE => {
                if !block.rest.is_empty() {
                    return Err(Malformed::Value);
                }
                Self::Manage(Manage::read(block)?)
            }
            _ => return Err(Malformed::Kind),
        };
        Ok((request, block.rest))
    }
}

impl Command {
    /// Appends the block to `out`; data may follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_block(out, COMMAND, (self.priority << 4) | (self.attribute.0 & 0x0f), |out| {
            out.extend_from_slice(&self.after.to_be_bytes());
            out.extend_from_slice(&self.lun.to_be_bytes());
            out.extend_from_slice(&self.data_in_len.to_be_bytes());
            out.extend_from_slice(&self.data_out_len.to_be_bytes());
            out.extend_from_slice(&self.unsolicited_len.to_be_bytes());
            out.extend_from_slice(&u16::try_from(self.cdb.len()).unwrap_or_default().to_be_bytes());
            out.extend_from_slice(&[0, 0]);
            out.extend_from_slice(&self.cdb);
        });
    }

    fn read(mut block: Block<'_>) -> Result<Self, Malformed> {
        let body = &mut block.body;
        let (after, lun) = (body.u32()?, body.u64()?);
        let (data_in_len, data_out_len, unsolicited_len) = (body.u32()?, body.u32()?, body.u32()?);
        let (cdb_len, reserved) = (body.u16()?, body.u16()?);
        let cdb = Cdb::new(body.take(usize::from(cdb_len))?).ok_or(Malformed::Value)?;
        let attribute = TaskAttribute(block.info & 0x0f);
        let known = (TaskAttribute::SIMPLE..=TaskAttribute::ACA).contains(&attribute);
        // The bytes behind the block are the first of the unsolicited data.
        let fits = u32::try_from(block.rest.len()).is_ok_and(|len| len <= unsolicited_len);
        if !known || reserved != 0 || unsolicited_len > data_out_len || !fits {
            return Err(Malformed::Value);
        }
        let priority = block.info >> 4;
        block.no_more()?;
        Ok(Self { lun, attribute, priority, after, data_in_len, data_out_len, unsolicited_len, cdb })
    }
}

impl Manage {
    /// Appends the block to `out`. Nothing follows.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_block(out, MANAGE, self.function.0, |out| {
            out.extend_from_slice(&self.after.to_be_bytes());
            out.extend_from_slice(&self.lun.to_be_bytes());
            out.extend_from_slice(&self.referenced.to_be_bytes());
        });
    }

    fn read(mut block: Block<'_>) -> Result<Self, Malformed> {
        let (after, lun, referenced) = (block.body.u32()?, block.body.u64()?, block.body.u32()?);
        let function = TmfFunction(block.info);
        block.no_more()?;
        Ok(Self { function, lun, after, referenced })
    }
}
