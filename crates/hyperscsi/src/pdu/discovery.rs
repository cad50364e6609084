//! The payload of a Discovery frame: a question for the targets that export logical units to a group, or an
//! answer to it. Answers are not authenticated: an answer is a hint where to begin a handshake.

use alloc::vec::Vec;

use base::bytes::Reader;
use base::ether::Mac;

use super::name::{GroupName, Name};
use super::{Block, Malformed, exactly, once, put_block, put_item};
use security::Level;

/// The length of the nonce by which a question recognizes its answers, in bytes.
pub const NONCE_LEN: usize = 16;
/// The length of an instance, the identity of a server whatever port it answers from, in bytes.
pub const INSTANCE_LEN: usize = 16;
/// How many logical units an answer names. That many fit into a frame of 1500 bytes beside the longest names.
pub const LUNS_MAX: usize = 96;
/// How many addresses an answer names: as many as a session has paths.
pub const MACS_MAX: usize = 8;

const QUESTION: u8 = 1;
const ANSWER: u8 = 2;

/// The bit in INFO of an answer that is set if a session needs a password.
const AUTHENTICATES: u8 = 0x80;
/// The bit in INFO of an answer that is set if there are more logical units than the answer names.
const MORE: u8 = 0x40;

const GROUP: u8 = 0x81;
const TARGET: u8 = 0x82;
const LUNS: u8 = 0x03;
const MACS: u8 = 0x04;
const FRAME_MAX: u8 = 0x05;

/// A step in discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// Which targets export logical units to this group?
    Question(Question),
    /// A target that does.
    Answer(Answer),
}

/// Asks for the targets of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The nonce, which the answers repeat.
    pub nonce: [u8; NONCE_LEN],
    /// The group.
    pub group: GroupName,
    /// The only target that is to answer, if the initiator knows it already.
    pub target: Option<Name>,
}

/// A target and what it exports to the group. A server with several targets sends an answer for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The nonce of the question.
    pub nonce: [u8; NONCE_LEN],
    /// The identity of the server, whatever port it answers from.
    pub instance: [u8; INSTANCE_LEN],
    /// The group.
    pub group: GroupName,
    /// The target.
    pub target: Name,
    /// Whether a session needs a password.
    pub authenticates: bool,
    /// The logical units with the least level of each, at most [`LUNS_MAX`].
    pub luns: Vec<ExportedLun>,
    /// Whether the target exports more logical units than `luns` holds.
    pub more: bool,
    /// The addresses of the server's ports on all networks on which it serves the group, at most
    /// [`MACS_MAX`].
    pub macs: Vec<Mac>,
    /// The longest Ethernet payload that the answering port takes, in bytes.
    pub frame_max: u16,
}

/// A logical unit, as an answer names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportedLun {
    /// The LUN, as SAM-5 §4.7 encodes it.
    pub lun: u64,
    /// The least protection level that commands to it must have.
    pub level: Level,
}

impl Discovery {
    /// Appends the block to `out`. Only padding may follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Question(question) => put_block(out, QUESTION, 0, |out| question.encode(out)),
            Self::Answer(answer) => {
                let more = answer.more || answer.luns.len() > LUNS_MAX;
                let info = if answer.authenticates { AUTHENTICATES } else { 0 } | if more { MORE } else { 0 };
                put_block(out, ANSWER, info, |out| answer.encode(out));
            }
        }
    }

    /// Parses the block at the front of `payload`. The bytes behind it are padding.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let block = Block::parse(payload)?;
        match block.kind {
            QUESTION => Question::read(block).map(Self::Question),
            ANSWER => Answer::read(block).map(Self::Answer),
            _ => Err(Malformed::Kind),
        }
    }
}

impl Question {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.nonce);
        put_item(out, GROUP, |out| out.extend_from_slice(self.group.as_bytes()));
        if let Some(target) = &self.target {
            put_item(out, TARGET, |out| out.extend_from_slice(target.as_bytes()));
        }
    }

    fn read(mut block: Block<'_>) -> Result<Self, Malformed> {
        let nonce = block.body.array()?;
        if block.info != 0 {
            return Err(Malformed::Value);
        }
        let (mut group, mut target) = (None, None);
        block.items(|kind, value| match kind {
            GROUP => once(&mut group, GroupName::parse(value)?),
            TARGET => once(&mut target, Name::parse(value)?),
            _ => Ok(false),
        })?;
        Ok(Self { nonce, group: group.ok_or(Malformed::Item)?, target })
    }
}

impl Answer {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.instance);
        put_item(out, GROUP, |out| out.extend_from_slice(self.group.as_bytes()));
        put_item(out, TARGET, |out| out.extend_from_slice(self.target.as_bytes()));
        put_item(out, LUNS, |out| {
            for exported in self.luns.iter().take(LUNS_MAX) {
                out.extend_from_slice(&exported.lun.to_be_bytes());
                out.push(exported.level as u8);
            }
        });
        put_item(out, MACS, |out| {
            self.macs.iter().take(MACS_MAX).for_each(|mac| out.extend_from_slice(&mac.0))
        });
        put_item(out, FRAME_MAX, |out| out.extend_from_slice(&self.frame_max.to_be_bytes()));
    }

    fn read(mut block: Block<'_>) -> Result<Self, Malformed> {
        let (nonce, instance) = (block.body.array()?, block.body.array()?);
        //= hyperscsi#section-4.1
        //# Reserved fields are 0 and MUST be checked
        //# to be 0, so that a later revision can use them.
        if block.info & !(AUTHENTICATES | MORE) != 0 {
            return Err(Malformed::Value);
        }
        let (authenticates, more) = (block.info & AUTHENTICATES != 0, block.info & MORE != 0);
        let (mut group, mut target, mut luns, mut macs, mut frame_max) = (None, None, None, None, None);
        block.items(|kind, value| match kind {
            GROUP => once(&mut group, GroupName::parse(value)?),
            TARGET => once(&mut target, Name::parse(value)?),
            LUNS => once(&mut luns, read_luns(value)?),
            MACS => once(&mut macs, read_macs(value)?),
            FRAME_MAX => once(&mut frame_max, u16::from_be_bytes(exactly(value)?)),
            _ => Ok(false),
        })?;
        Ok(Self {
            nonce,
            instance,
            group: group.ok_or(Malformed::Item)?,
            target: target.ok_or(Malformed::Item)?,
            authenticates,
            luns: luns.unwrap_or_default(),
            more,
            macs: macs.unwrap_or_default(),
            frame_max: frame_max.ok_or(Malformed::Item)?,
        })
    }
}

fn read_luns(value: &[u8]) -> Result<Vec<ExportedLun>, Malformed> {
    if value.len() > LUNS_MAX * 9 {
        return Err(Malformed::Value);
    }
    let mut reader = Reader::new(value);
    let mut luns = Vec::with_capacity(value.len() / 9);
    while !reader.is_empty() {
        let (lun, level) = (reader.u64()?, reader.u8()?);
        luns.push(ExportedLun { lun, level: Level::from_code(level).ok_or(Malformed::Value)? });
    }
    Ok(luns)
}

fn read_macs(value: &[u8]) -> Result<Vec<Mac>, Malformed> {
    if value.len() > MACS_MAX * 6 {
        return Err(Malformed::Value);
    }
    let mut reader = Reader::new(value);
    let mut macs = Vec::with_capacity(value.len() / 6);
    while !reader.is_empty() {
        macs.push(Mac(reader.array()?));
    }
    Ok(macs)
}
