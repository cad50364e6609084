//! Reads or writes of whole blocks over one session, at a fixed depth.

use std::time::Duration;

use crate::Failure;
use crate::arguments::{Arguments, Direction};
use crate::crc32c::{self, Crc32c};
use crate::exchange::{self, Exchange, Taken};
use crate::session::{BHS_LEN, Session, field, padding, put, word};

const NAME: &str = "iqn.2026-11.org.targe:load";
const DIGEST_LEN: usize = 4;
/// Data digests of so many segments are checked; after that the client would be what is measured.
const DIGESTS_CHECKED: u32 = 64;
/// A new session finds unit attentions; a few commands clear them.
const ATTENTIONS_MAX: usize = 8;

mod opcode {
    pub(super) const NOP_IN: u8 = 0x20;
    pub(super) const SCSI_RESPONSE: u8 = 0x21;
    pub(super) const DATA_IN: u8 = 0x25;
    pub(super) const READY_TO_TRANSFER: u8 = 0x31;
    pub(super) const NOP_OUT: u8 = 0x40;
    pub(super) const SCSI_COMMAND: u8 = 0x01;
    pub(super) const DATA_OUT: u8 = 0x05;
}
const TEST_UNIT_READY: u8 = 0x00;
const READ_CAPACITY_10: u8 = 0x25;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;

pub(crate) fn run(mut arguments: Arguments) -> Result<(), Failure> {
    let (address, target) = (arguments.word("address")?, arguments.word("target")?);
    let lun = arguments.word("LUN")?.parse()?;
    let session = Session::log_in(&address, &target, NAME, 1, arguments.given("digests"))?;
    let mut stream = session.stream.try_clone()?;
    let mut disk = Disk::new(session, lun);
    disk.get_ready(&mut stream)?;
    disk.direction = Some(arguments.direction()?);
    disk.transfer_len = arguments.number("bs")?;
    disk.random = arguments.given("random");
    if disk.transfer_len == 0 || disk.transfers() == 0 {
        return Err("--bs is no multiple of the block length, or larger than the disk".into());
    }
    let duration = Duration::from_secs_f64(arguments.number("seconds")?);
    exchange::run(&mut stream, &mut disk, arguments.number("depth")?, duration)?.print();
    Ok(())
}

struct Disk {
    session: Session,
    lun: u32,
    block_len: usize,
    blocks: u32,
    /// None while the disk is made ready with [`Disk::probe`].
    direction: Option<Direction>,
    transfer_len: usize,
    random: bool,
    next: u32,
    seed: u64,
    next_tag: u32,
    /// The command [`Exchange::request`] sends while the disk is made ready, and what came back.
    probe: u8,
    status: u32,
    answer: Vec<u8>,
    /// Data of the current PDU still to be passed over, its padding and digest included.
    passing: Passing,
    checked: u32,
    /// The digest of write data by its length; the data are always the same.
    data_digest: Option<(usize, [u8; DIGEST_LEN])>,
}

#[derive(Default)]
struct Passing {
    left: usize,
    completes: bool,
    /// Until the data digest has come, for those that are checked.
    digest: Option<Crc32c>,
}

impl Disk {
    fn new(session: Session, lun: u32) -> Self {
        Self {
            session,
            lun,
            block_len: 512,
            blocks: 0,
            direction: None,
            transfer_len: 0,
            random: false,
            next: 0,
            seed: 0x9e37_79b9_7f4a_7c15,
            next_tag: 0,
            probe: TEST_UNIT_READY,
            status: 0,
            answer: Vec::new(),
            passing: Passing::default(),
            checked: 0,
            data_digest: None,
        }
    }

    /// Clears unit attentions and asks for the capacity.
    fn get_ready(&mut self, stream: &mut std::net::TcpStream) -> Result<(), Failure> {
        for _ in 0..ATTENTIONS_MAX {
            self.status = 0;
            exchange::run(stream, self, 1, Duration::ZERO)?;
            if self.status == 0 {
                break;
            }
        }
        self.probe = READ_CAPACITY_10;
        exchange::run(stream, self, 1, Duration::ZERO)?;
        self.blocks = field(&self.answer, 0, 4)?.saturating_add(1);
        self.block_len = usize::try_from(field(&self.answer, 4, 4)?)?;
        if self.status == 0 {
            Ok(())
        } else {
            Err(format!("READ CAPACITY ends with {:#x}", self.status).into())
        }
    }

    fn transfer_blocks(&self) -> u32 {
        word(self.transfer_len.checked_div(self.block_len).unwrap_or_default()).unwrap_or_default()
    }

    fn transfers(&self) -> u32 {
        self.blocks.checked_div(self.transfer_blocks()).unwrap_or_default()
    }

    fn next_block(&mut self) -> u32 {
        let transfers = self.transfers().max(1);
        let transfer = if self.random {
            // xorshift64: any spread will do.
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            u32::try_from(self.seed.checked_rem(u64::from(transfers)).unwrap_or_default()).unwrap_or_default()
        } else {
            let this = self.next;
            self.next = self.next.wrapping_add(1).checked_rem(transfers).unwrap_or_default();
            this
        };
        transfer.saturating_mul(self.transfer_blocks())
    }

    /// Appends a PDU: `header` with its length filled in, `data_len` bytes of data, padding, digests.
    fn send(&mut self, out: &mut Vec<u8>, mut header: [u8; BHS_LEN], data_len: usize) {
        put(&mut header, 5, 3, word(data_len).unwrap_or_default());
        put(&mut header, 28, 4, self.session.exp_stat_sn);
        out.extend_from_slice(&header);
        if self.session.digests {
            out.extend_from_slice(&crc32c::digest(&header));
        }
        if data_len > 0 {
            let at = out.len();
            out.resize(at.saturating_add(data_len).saturating_add(padding(data_len)), 0x5a);
            if self.session.digests {
                let digest = match self.data_digest {
                    Some((len, digest)) if len == data_len => digest,
                    _ => crc32c::digest(out.get(at..).unwrap_or_default()),
                };
                self.data_digest = Some((data_len, digest));
                out.extend_from_slice(&digest);
            }
        }
    }

    fn header(&self, opcode: u8, flags: u32, tag: u32) -> [u8; BHS_LEN] {
        let mut header = [0_u8; BHS_LEN];
        put(&mut header, 0, 1, u32::from(opcode));
        put(&mut header, 1, 1, flags);
        // Peripheral addressing below 256, flat above.
        put(&mut header, 8, 2, if self.lun < 256 { self.lun } else { 0x4000 | self.lun });
        put(&mut header, 16, 4, tag);
        header
    }

    /// The data that an R2T asks for, in segments as long as the target takes.
    fn answer_r2t(&mut self, header: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let (tag, transfer_tag) = (field(header, 16, 4)?, field(header, 20, 4)?);
        let (mut offset, wanted) = (field(header, 40, 4)?, usize::try_from(field(header, 44, 4)?)?);
        let (mut left, mut data_sn) = (wanted, 0_u32);
        while left > 0 {
            let segment = left.min(self.session.segment_len_max);
            left = left.saturating_sub(segment);
            let mut data_out = self.header(opcode::DATA_OUT, if left == 0 { 0x80 } else { 0 }, tag);
            put(&mut data_out, 20, 4, transfer_tag);
            put(&mut data_out, 36, 4, data_sn);
            put(&mut data_out, 40, 4, offset);
            self.send(out, data_out, segment);
            offset = offset.wrapping_add(word(segment)?);
            data_sn = data_sn.wrapping_add(1);
        }
        Ok(())
    }

    /// Passes over data of the PDU whose header has been taken.
    fn pass(&mut self, bytes: &[u8]) -> Result<Taken, Failure> {
        let taken = self.passing.left.min(bytes.len());
        let bytes = bytes.get(..taken).unwrap_or_default();
        self.passing.left = self.passing.left.saturating_sub(taken);
        if self.direction.is_none() {
            self.answer.extend_from_slice(bytes);
        }
        if let Some(digest) = &mut self.passing.digest {
            digest.update(bytes);
            // The digest of data followed by their own digest is a constant: RFC 7143 has none, the algebra
            // does.
            if self.passing.left == 0 && digest.wire() != RESIDUE {
                return Err("a data digest of the target does not match".into());
            }
        }
        Ok(Taken { bytes: taken, completed: self.passing.left == 0 && self.passing.completes })
    }

    fn take_header(&mut self, header: &[u8], out: &mut Vec<u8>) -> Result<bool, Failure> {
        let (opcode, flags) = (field(header, 0, 1)?, field(header, 1, 1)?);
        self.session.max_cmd_sn = field(header, 32, 4)?;
        let has_status = match u8::try_from(opcode & 0x3f)? {
            opcode::SCSI_RESPONSE => true,
            opcode::DATA_IN => flags & 1 == 1,
            opcode::READY_TO_TRANSFER => {
                self.answer_r2t(header, out)?;
                return Ok(false);
            }
            opcode::NOP_IN => {
                if field(header, 20, 4)? != u32::MAX {
                    let mut nop = self.header(opcode::NOP_OUT, 0x80, u32::MAX);
                    put(&mut nop, 20, 4, field(header, 20, 4)?);
                    put(&mut nop, 24, 4, self.session.cmd_sn);
                    self.send(out, nop, 0);
                }
                return Ok(false);
            }
            other => return Err(format!("the target sends opcode {other:#x}: {header:02x?}").into()),
        };
        if has_status {
            self.session.exp_stat_sn = field(header, 24, 4)?.wrapping_add(1);
            self.status = field(header, 3, 1)?;
            if self.status != 0 && self.direction.is_some() {
                return Err(format!("a command ends with status {:#x}", self.status).into());
            }
        }
        Ok(has_status)
    }
}

/// What [`Crc32c::wire`] gives over any bytes followed by their digest.
const RESIDUE: [u8; DIGEST_LEN] = [0xc7, 0x4b, 0x67, 0x48];

impl Exchange for Disk {
    fn request(&mut self, out: &mut Vec<u8>) -> bool {
        let ahead = self.session.max_cmd_sn.wrapping_sub(self.session.cmd_sn);
        if ahead >= 1 << 31 {
            return false;
        }
        let (operation, flags, len) = match self.direction {
            None => (self.probe, if self.probe == TEST_UNIT_READY { 0x81 } else { 0xc1 }, 8),
            Some(Direction::Read) => (READ_10, 0xc1, self.transfer_len),
            Some(Direction::Write) => (WRITE_10, 0xa1, self.transfer_len),
        };
        let len = if operation == TEST_UNIT_READY { 0 } else { len };
        let tag = self.next_tag;
        // The one value that means no tag is never used.
        self.next_tag = self.next_tag.wrapping_add(1) & 0x7fff_ffff;
        let mut header = self.header(opcode::SCSI_COMMAND, flags, tag);
        put(&mut header, 20, 4, word(len).unwrap_or_default());
        put(&mut header, 24, 4, self.session.cmd_sn);
        put(&mut header, 32, 1, u32::from(operation));
        if self.direction.is_some() {
            let (block, count) = (self.next_block(), self.transfer_blocks());
            put(&mut header, 34, 4, block);
            put(&mut header, 39, 2, count);
        }
        self.session.cmd_sn = self.session.cmd_sn.wrapping_add(1);
        let immediate = if self.direction == Some(Direction::Write) {
            len.min(self.session.immediate_len_max)
        } else {
            0
        };
        self.send(out, header, immediate);
        true
    }

    fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<Taken, Failure> {
        if self.passing.left > 0 {
            return self.pass(bytes);
        }
        let digest_len = if self.session.digests { DIGEST_LEN } else { 0 };
        let header_len = BHS_LEN.saturating_add(digest_len);
        let Some((header, digest)) = bytes.get(..header_len).map(|header| header.split_at(BHS_LEN)) else {
            return Ok(Taken::default());
        };
        if self.session.digests && crc32c::digest(header) != digest {
            return Err("a header digest of the target does not match".into());
        }
        let has_status = self.take_header(header, out)?;
        let additional = usize::try_from(field(header, 4, 1)?)?.saturating_mul(4);
        let data = usize::try_from(field(header, 5, 3)?)?;
        let mut left = additional.saturating_add(data).saturating_add(padding(data));
        if data > 0 {
            left = left.saturating_add(digest_len);
        }
        let checks = self.session.digests && data > 0 && self.checked < DIGESTS_CHECKED;
        self.checked = self.checked.saturating_add(u32::from(checks));
        self.answer.clear();
        self.passing = Passing { left, completes: has_status, digest: checks.then(Crc32c::new) };
        Ok(Taken { bytes: header_len, completed: has_status && left == 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_followed_by_their_digest_leave_the_residue() {
        for len in [1, 4, 4096] {
            let mut bytes = vec![0x37; len];
            let digest = crc32c::digest(&bytes);
            bytes.extend_from_slice(&digest);
            assert_eq!(crc32c::digest(&bytes), RESIDUE);
        }
    }
}
