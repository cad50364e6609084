//! The payload of a Reply frame without the flag DATA: a Transfer Ready (the request for solicited data), the
//! response of a command, or the result of a task management function.

use alloc::vec::Vec;

use transport::status::SENSE_MAX;
use transport::task_management::TmfResult;

use super::{Block, Malformed, put_block};

const TRANSFER_READY: u8 = 1;
const RESPONSE: u8 = 2;
const MANAGED: u8 = 3;

/// A reply of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The target asks for Data-Out.
    TransferReady(TransferReady),
    /// The command ended.
    Response(Response<'a>),
    /// The task management function ended.
    Managed(TmfResult),
}

/// Transfer Ready: asks the initiator for a part of its Data-Out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferReady {
    /// The number of this Transfer Ready within its exchange, from 0. The same number again is a repetition.
    pub number: u32,
    /// The offset of the part, in bytes.
    pub offset: u32,
    /// The length of the part, in bytes; not 0.
    pub len: u32,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The status (SAM-5 §5.3).
    pub status: u8,
    /// How many bytes of Data-In the target sent in DATA frames, from the first one on. The exchange ends for
    /// the initiator when it has received these as well.
    pub data_in_len: u32,
    /// How many bytes would have been transferred had the initiator expected enough. The residual counts are
    /// computed from it.
    pub transferable: u64,
    /// Sense data, at most [`SENSE_MAX`] bytes; empty for none.
    pub sense: &'a [u8],
}

impl<'a> Reply<'a> {
    /// Appends the block to `out`. Sense data beyond [`SENSE_MAX`] bytes is left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::TransferReady(ready) => put_block(out, TRANSFER_READY, 0, |out| {
                out.extend_from_slice(&ready.number.to_be_bytes());
                out.extend_from_slice(&ready.offset.to_be_bytes());
                out.extend_from_slice(&ready.len.to_be_bytes());
            }),
            Self::Response(response) => put_block(out, RESPONSE, response.status, |out| {
                let sense = response.sense.get(..SENSE_MAX).unwrap_or(response.sense);
                out.extend_from_slice(&response.data_in_len.to_be_bytes());
                out.extend_from_slice(&response.transferable.to_be_bytes());
                out.extend_from_slice(&u16::try_from(sense.len()).unwrap_or_default().to_be_bytes());
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(sense);
            }),
            Self::Managed(result) => put_block(out, MANAGED, result.0, |_| {}),
        }
    }

    /// Parses `payload`, which is one block.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        let mut block = Block::parse(payload)?;
        if !block.rest.is_empty() {
            return Err(Malformed::Value);
        }
        let body = &mut block.body;
        let reply = match block.kind {
            TRANSFER_READY => {
                let ready = TransferReady { number: body.u32()?, offset: body.u32()?, len: body.u32()? };
                if block.info != 0 || ready.len == 0 || ready.offset.checked_add(ready.len).is_none() {
                    return Err(Malformed::Value);
                }
                Self::TransferReady(ready)
            }
            RESPONSE => {
                let (data_in_len, transferable) = (body.u32()?, body.u64()?);
                let (sense_len, reserved) = (usize::from(body.u16()?), body.u16()?);
                let sense = body.take(sense_len)?;
                if sense_len > SENSE_MAX || reserved != 0 {
                    return Err(Malformed::Value);
                }
                Self::Response(Response { status: block.info, data_in_len, transferable, sense })
            }
            MANAGED => Self::Managed(TmfResult(block.info)),
            _ => return Err(Malformed::Kind),
        };
        block.no_more()?;
        Ok(reply)
    }
}
