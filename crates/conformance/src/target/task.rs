//! A command from its first PDU to its status.

use std::ops::Range;

use iscsi::pdu::Opcode;
use iscsi::pdu::data_in::DataIn;
use iscsi::pdu::r2t::R2t;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::scsi_response::ScsiResponse;
use transport::initiator::Residual;

use crate::cdb::{self, Cdb};
use crate::entropy::{fresh, pattern};
use crate::verdict::Outcome;
use crate::wire::Pdu;

use super::conn::{Conn, Flow};

/// The end of a command.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    /// The iSCSI service response; 0 is "completed at target".
    pub(crate) response: u8,
    pub(crate) status: u8,
    pub(crate) sense: Vec<u8>,
    pub(crate) residual: Residual,
    /// The data that was read: zeros where no data came.
    pub(crate) data: Vec<u8>,
    /// The parts of `data` that came, in the order in which they came.
    parts: Vec<Range<usize>>,
    /// The StatSN of the status.
    pub(crate) stat_sn: u32,
    /// The number of Data-In PDUs.
    pub(crate) data_ins: u32,
    /// The last PDU.
    pub(crate) last: Pdu,
}

impl std::fmt::Debug for Pdu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

pub(crate) const GOOD: u8 = 0;
pub(crate) const CHECK_CONDITION: u8 = 2;

impl Done {
    pub(crate) fn is_good(&self) -> bool {
        self.response == 0 && self.status == GOOD
    }

    /// Returns ExpDataSN, unless the last Data-In carried the status.
    pub(crate) fn exp_data_sn(&self) -> Option<u32> {
        (self.last.opcode() == Opcode::SCSI_RESPONSE).then(|| self.last.word(36))
    }

    /// Returns the sense key and the additional sense code.
    pub(crate) fn sense_code(&self) -> Option<(u8, u16)> {
        cdb::sense(&self.sense)
    }

    /// Returns response, status and sense data as text.
    pub(crate) fn shown(&self) -> String {
        let sense = match self.sense_code() {
            Some((key, code)) => format!(", sense {key:x}/{code:04x}"),
            None => String::new(),
        };
        format!("response {:02x} status {:02x}{sense}", self.response, self.status)
    }

    /// Fails unless the command ended with GOOD.
    pub(crate) fn good(self, what: &str) -> Outcome<Self> {
        require!(self.is_good(), "{what}: expected GOOD, came {}", self.shown());
        Ok(self)
    }

    /// Fails unless the command ended with GOOD and every byte from `from` to the expected length of `task`
    /// came.
    pub(crate) fn good_from(self, what: &str, from: usize, task: &ScsiCommand) -> Outcome<Self> {
        let done = self.good(what)?;
        let end = usize::try_from(task.expected_data_transfer_length).unwrap_or(usize::MAX);
        if let Some(missing) = missing(&done.parts, from..end) {
            fail!("{what}: GOOD, but of bytes {from} to {end} no data came for those from {missing} on");
        }
        Ok(done)
    }
}

impl Conn {
    /// Waits for the status of a command that was sent; collects its Data-In, and answers every R2T with data
    /// from `out`.
    pub(crate) fn finish(&mut self, task: &ScsiCommand, out: &[u8]) -> Outcome<Done> {
        let (mut data, mut parts) = (Vec::new(), Vec::new());
        let mut data_ins = 0;
        loop {
            let pdu = self.next_of(task.itt, "the answer to a command")?;
            match pdu.opcode() {
                Opcode::R2T => {
                    let r2t: R2t = pdu.read()?;
                    self.answer(&r2t, piece(out, &r2t)?);
                }
                Opcode::DATA_IN => {
                    let head: DataIn = pdu.read()?;
                    data_ins += 1;
                    let expected = task.expected_data_transfer_length;
                    parts.push(store(&mut data, head.buffer_offset, &pdu.data, expected)?);
                    if let Some(status) = head.status {
                        return Ok(Done {
                            response: 0,
                            status: status.status,
                            sense: Vec::new(),
                            residual: status.residual,
                            data,
                            parts,
                            stat_sn: pdu.word(24),
                            data_ins,
                            last: pdu,
                        });
                    }
                }
                Opcode::SCSI_RESPONSE => {
                    let head: ScsiResponse = pdu.read()?;
                    let sense = pdu.data.get(2..).unwrap_or_default().to_vec();
                    let (response, status, residual) = (head.response.0, head.status, head.residual);
                    let stat_sn = pdu.word(24);
                    return Ok(Done {
                        response,
                        status,
                        sense,
                        residual,
                        data,
                        parts,
                        stat_sn,
                        data_ins,
                        last: pdu,
                    });
                }
                _ => fail!("in the middle of a command came {}", pdu.shown()),
            }
        }
    }

    /// Sends a command and waits for its status.
    pub(crate) fn run(&mut self, cdb: Cdb, flow: Flow, len: u32, out: &[u8]) -> Outcome<Done> {
        let task = self.command(cdb, flow, len);
        self.send(&task, &[]);
        self.finish(&task, out)
    }

    /// Writes `data` to the first blocks.
    pub(crate) fn write_blocks(&mut self, data: &[u8]) -> Outcome<Done> {
        let blocks = u16::try_from(data.len() / self.block()).unwrap_or(u16::MAX);
        let task = self.write(blocks);
        self.send(&task, &[]);
        self.finish(&task, data)?.good("WRITE")
    }

    /// Reads the first blocks; fails unless all of their data comes.
    pub(crate) fn read_blocks(&mut self, blocks: u16) -> Outcome<Done> {
        let task = self.read(blocks);
        self.send(&task, &[]);
        self.finish_read(&task, "READ")
    }

    /// Returns the contents of the first blocks. A case that may write fills them with a pattern first, so
    /// that data from elsewhere, or none, shows.
    pub(crate) fn known_blocks(&mut self, may_write: bool, blocks: u16) -> Outcome<Vec<u8>> {
        if !may_write {
            return Ok(self.read_blocks(blocks)?.data);
        }
        let data = pattern(fresh(), usize::from(blocks) * self.block());
        self.write_blocks(&data)?;
        Ok(data)
    }

    /// Waits for the end of a read that was sent; fails unless all of its data comes, and GOOD.
    pub(crate) fn finish_read(&mut self, task: &ScsiCommand, what: &str) -> Outcome<Done> {
        self.finish(task, &[])?.good_from(what, 0, task)
    }

    /// Returns the length of a block.
    pub(crate) fn block(&self) -> usize {
        usize::try_from(self.unit.block).unwrap_or(512)
    }

    /// Sends the commands of a starting initiator: INQUIRY, TEST UNIT READY until no unit attention is left,
    /// READ CAPACITY.
    pub(crate) fn warm_up(&mut self) -> Outcome {
        self.run(cdb::inquiry(36), Flow::Read, 36, &[])?.good("INQUIRY")?;
        for _ in 0..MAX_ATTENTIONS {
            let done = self.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
            if done.sense_code().is_none_or(|(key, _)| key != UNIT_ATTENTION) {
                done.good("TEST UNIT READY")?;
                self.run(cdb::read_capacity(), Flow::Read, 8, &[])?.good("READ CAPACITY")?;
                return Ok(());
            }
        }
        fail!("TEST UNIT READY tells of {MAX_ATTENTIONS} unit attentions and more")
    }
}

/// The most unit attentions in a row.
const MAX_ATTENTIONS: usize = 8;
const UNIT_ATTENTION: u8 = 6;

/// Returns the part of `out` that an R2T asks for.
pub(crate) fn piece<'a>(out: &'a [u8], r2t: &R2t) -> Outcome<&'a [u8]> {
    let begin = usize::try_from(r2t.buffer_offset).unwrap_or(usize::MAX);
    let len = usize::try_from(r2t.desired_data_transfer_length).unwrap_or(usize::MAX);
    match out.get(begin..begin.saturating_add(len)) {
        Some(piece) => Ok(piece),
        None => fail!("an R2T asks for {len} bytes at {begin}, beyond the {} of the command", out.len()),
    }
}

/// Stores data at its offset, and returns the part that it covers; fails if it exceeds the expected length of
/// the command.
pub(super) fn store(data: &mut Vec<u8>, offset: u32, bytes: &[u8], expected: u32) -> Outcome<Range<usize>> {
    let begin = usize::try_from(offset).unwrap_or(usize::MAX);
    let end = begin.saturating_add(bytes.len());
    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
    require!(end <= expected, "Data-In ends at {end}, beyond the {expected} that the command expects");
    if data.len() < end {
        data.resize(end, 0);
    }
    if let Some(place) = data.get_mut(begin..end) {
        place.copy_from_slice(bytes);
    }
    Ok(begin..end)
}

/// Returns the first byte of `wanted` that no part covers.
pub(super) fn missing(parts: &[Range<usize>], wanted: Range<usize>) -> Option<usize> {
    let mut sorted: Vec<&Range<usize>> = parts.iter().collect();
    sorted.sort_unstable_by_key(|part| part.start);
    let mut next = wanted.start;
    for part in sorted {
        if part.start > next {
            break;
        }
        next = next.max(part.end);
    }
    (next < wanted.end).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_in_the_data_is_found_wherever_it_is() {
        assert_eq!(missing(&[4..8, 0..4], 0..8), None);
        assert_eq!(missing(&[0..6, 2..8], 0..8), None);
        assert_eq!(missing(&[], 0..8), Some(0));
        assert_eq!(missing(&[], 0..0), None);
        assert_eq!(missing(&[4..6, 6..8], 0..8), Some(0));
        assert_eq!(missing(&[4..6, 6..8], 4..8), None);
        assert_eq!(missing(&[0..2, 4..8], 0..8), Some(2));
        assert_eq!(missing(&[0..4, 4..6], 0..8), Some(6));
    }
}
