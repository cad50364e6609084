//! READ CD (MMC-6) and READ CD MSF: user data, or also the other parts of sectors in mode 1. A sector
//! of mode 2, audio, error pointers and sub-channels are not in an image.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::Bytes;
use base::units::{Blocks, Lba};
use scsi::sense::{Asc, Sense};
use store::api::{OpAction, OpOutput};

use super::cd_sector::{Parts, USER_LEN};
use super::profile::{self, Disc};
use super::{information, wrong_kind_of_disc};
use crate::contract::DiscProfile;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::medium_error::IoKind;
use crate::sbc::address::Span;
use crate::sbc::part_len;
use crate::sbc::read::deliver_span;
use crate::task::TaskInfo;

/// EXPECTED SECTOR TYPE: any type, and mode 1.
const ANY_TYPE: u8 = 0;
const MODE_1: u8 = 2;

/// How many sectors one operation of the medium reads where sectors are composed.
const SECTORS_PER_OPERATION: u32 = 16;

/// The most sectors of one command with error detection and correction codes.
const COMPOSED_MAX: u32 = 256;

pub(super) fn read_cd(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    read(server, task, task.cdb.u32(2), task.cdb.u24(6))
}

pub(super) fn read_cd_msf(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let start = information::lba_of_msf(task.cdb.array(3));
    let end = information::lba_of_msf(task.cdb.array(6));
    match (start, end) {
        (Some(start), Some(end)) if start <= end => read(server, task, start, end - start),
        (Some(_), _) => Outcome::CheckCondition(Sense::invalid_cdb(6, None)),
        (None, _) => Outcome::CheckCondition(Sense::illegal(Asc::LBA_OUT_OF_RANGE)),
    }
}

fn read(server: &mut DeviceServer, task: &TaskInfo, lba: u32, sectors: u32) -> Outcome {
    let span = Span::new(&server.info, Lba(u64::from(lba)), Blocks(u64::from(sectors)));
    let asked = requested_parts(server, task).and_then(|parts| {
        let span = span?;
        // Correction codes are computed while no other command of the reactor is served.
        let most = if parts.edc_ecc { COMPOSED_MAX } else { server.info.config.transfer_blocks_max };
        span.check_length(&task.cdb, u64::from(most))?;
        Ok((parts, span))
    });
    let (parts, span) = match asked {
        Ok(asked) => asked,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    if parts == Parts::USER {
        return deliver_span(server, task, span);
    }
    let total = u64::from(sectors).saturating_mul(u64::try_from(parts.len()).unwrap_or(u64::MAX));
    task.transferable.set(if task.data_out_len > 0 { 0 } else { total });
    let wanted = usize::try_from(total.min(u64::from(task.data_in_len))).unwrap_or(usize::MAX);
    server.stats.reads += 1;
    server.stats.read_bytes += u64::try_from(wanted).unwrap_or(u64::MAX);
    if wanted == 0 {
        return Outcome::Good;
    }
    Outcome::Run(Box::new(ReadSectors { parts, lba, wanted, delivered: 0 }))
}

/// Returns the parts of sectors that the CDB asks for. Sectors of mode 1 have no subheader: a request for one
/// asks for nothing.
fn requested_parts(server: &DeviceServer, task: &TaskInfo) -> Result<Parts, Sense> {
    let cdb = &task.cdb;
    let (expected, flags) = (cdb.u8(1) >> 2 & 7, cdb.u8(9));
    if profile::current(server) != Some(Disc::Rom(DiscProfile::Cd)) {
        return Err(wrong_kind_of_disc());
    }
    if !matches!(expected, ANY_TYPE | MODE_1) {
        return Err(Sense::illegal(Asc::ILLEGAL_MODE_FOR_THIS_TRACK));
    }
    let parts = Parts {
        sync: flags & 0x80 != 0,
        header: flags & 0x20 != 0,
        user: flags & 0x10 != 0,
        edc_ecc: flags & 0x08 != 0,
    };
    if parts.are_contiguous() { Ok(parts) } else { Err(Sense::invalid_cdb(9, Some(7))) }
}

/// Reads sectors, and composes the parts of them that the command asks for.
#[derive(Debug)]
struct ReadSectors {
    parts: Parts,
    /// The next sector.
    lba: u32,
    wanted: usize,
    delivered: usize,
}

impl ReadSectors {
    /// Reads the next sectors.
    fn ask(&self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let left = (self.wanted - self.delivered).div_ceil(self.parts.len().max(1));
        let most = u32::try_from(part_len(server) / USER_LEN).unwrap_or(1).clamp(1, SECTORS_PER_OPERATION);
        let count = u32::try_from(left).unwrap_or(u32::MAX).min(most);
        let len = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(USER_LEN);
        server.submit(task, 0, OpAction::Read { at: u64::from(self.lba) << USER_LEN.ilog2(), len });
        JobStep::Wait
    }
}

impl Job for ReadSectors {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.ask(server, task),
            JobInput::OpCompleted { result: Ok(OpOutput::Data(data)), .. } => {
                let user = DeviceServer::gather(&data);
                server.recycle(data);
                let mut bytes = Vec::new();
                for sector in user.chunks_exact(USER_LEN) {
                    self.parts.append(self.lba, sector, &mut bytes);
                    self.lba = self.lba.saturating_add(1);
                }
                bytes.truncate(self.wanted - self.delivered);
                let offset = u32::try_from(self.delivered).unwrap_or(u32::MAX);
                self.delivered += bytes.len();
                server.send_data_in(task, offset, Bytes::copied_from(&bytes).into());
                if self.delivered >= self.wanted {
                    JobStep::Done(Outcome::Good)
                } else if bytes.is_empty() {
                    JobStep::unexpected_input()
                } else {
                    self.ask(server, task)
                }
            }
            JobInput::OpCompleted { result: Err(failure), .. } => {
                let at = u64::from(self.lba) << USER_LEN.ilog2();
                let sense = server.medium_failure(failure, IoKind::Reading, Some(at));
                JobStep::Done(Outcome::CheckCondition(sense))
            }
            _ => JobStep::unexpected_input(),
        }
    }
}
