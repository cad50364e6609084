//! Log pages of a tape drive (SSC-4): what hosts transferred, the volume, and TapeAlert flags.

use alloc::vec;
use alloc::vec::Vec;

use cartridge::Cartridge;
use cartridge::layout::occupied;
use scsi::log::{Parameter, control, page};

use crate::contract::NexusId;
use crate::device_server::DeviceServer;
use crate::tape_drive::{TapeAlerts, TapeDrive, TransferCounts};

const MB: u64 = 1_000_000;

/// Returns the parameters of a page as one nexus reads it.
pub(super) fn parameters(server: &DeviceServer, nexus: NexusId, code: u8) -> Option<Vec<Parameter>> {
    let drive = server.tape.as_ref()?;
    match code {
        page::SEQUENTIAL_ACCESS_DEVICE => Some(sequential_access(drive)),
        page::VOLUME_STATISTICS => Some(volume_statistics(drive.cartridge())),
        page::TAPE_CAPACITY => Some(tape_capacity(drive.cartridge())),
        page::TAPE_ALERT => Some(tape_alerts(server.nexuses.tape_alerts(nexus))),
        _ => None,
    }
}

fn tape_alerts(alerts: TapeAlerts) -> Vec<Parameter> {
    let parameter =
        |(code, is_set)| Parameter { code, control: control::BINARY_LIST, value: vec![u8::from(is_set)] };
    alerts.flags().map(parameter).collect()
}

/// Returns the counters: bytes that hosts wrote, that were written to the medium, that were read from it, and
/// that hosts read, all since the same moment.
fn sequential_access(drive: &TapeDrive) -> Vec<Parameter> {
    let TransferCounts { written, written_to_medium, read_from_medium, read } = drive.counts;
    let counts = [written, written_to_medium, read_from_medium, read];
    let parameter = |(code, count): (u16, u64)| Parameter {
        code,
        control: control::COUNTER,
        value: Vec::from(count.to_be_bytes()),
    };
    (0..).zip(counts).map(parameter).collect()
}

/// Returns the capacity page of LTO drives: what remains of partitions 0 and 1, and their capacities, in MiB.
/// LTFS asks for it with LTO-5.
fn tape_capacity(cartridge: &Cartridge) -> Vec<Parameter> {
    const MIB: u64 = 1 << 20;
    let part =
        |number| cartridge.partition(number).map_or((0, 0), |part| (part.capacity, occupied(part.end)));
    let [(all_0, used_0), (all_1, used_1)] = [part(0), part(1)];
    let counts = [all_0.saturating_sub(used_0), all_1.saturating_sub(used_1), all_0, all_1];
    let parameter = |(code, bytes): (u16, u64)| Parameter {
        code,
        control: control::BINARY_LIST,
        value: Vec::from(u32::try_from(bytes / MIB).unwrap_or(u32::MAX).to_be_bytes()),
    };
    (1..).zip(counts).map(parameter).collect()
}

fn volume_statistics(cartridge: &Cartridge) -> Vec<Parameter> {
    let number = |code, value: u64| Parameter {
        code,
        control: control::BINARY_LIST,
        value: Vec::from(value.to_be_bytes()),
    };
    let short = |code, value: u64| Parameter {
        code,
        control: control::BINARY_LIST,
        value: Vec::from(u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes()),
    };
    let text = |code, value: &[u8], len: usize| {
        let mut value = Vec::from(value);
        value.resize(len, b' ');
        Parameter { code, control: control::BINARY_LIST, value }
    };
    let flag =
        |code, is_set: bool| Parameter { code, control: control::BINARY_LIST, value: vec![u8::from(is_set)] };
    // PAGE VALID: without a cartridge there are no statistics.
    let Some(label) = cartridge.label() else { return vec![flag(0x0000, false)] };
    let parts: Vec<_> = (0..=u8::MAX).map_while(|number| cartridge.partition(number)).collect();
    let used: u64 = parts.iter().map(|part| occupied(part.end)).sum();
    let per_partition = |code, value: fn(&cartridge::label::Checkpoint) -> u64| Parameter {
        code,
        control: control::BINARY_LIST,
        value: (0_u8..)
            .zip(&parts)
            .flat_map(|(number, part)| {
                let [a, b, c, d] = u32::try_from(value(part) / MB).unwrap_or(u32::MAX).to_be_bytes();
                [7, 0, 0, number, a, b, c, d]
            })
            .collect(),
    };
    vec![
        flag(0x0000, true),
        number(0x0001, label.loads),
        short(0x000e, label.written.load / MB),
        short(0x000f, label.read.load / MB),
        number(0x0010, label.written.life / MB),
        number(0x0011, label.read.life / MB),
        short(0x0016, label.capacity / MB),
        short(0x0017, used / MB),
        text(0x0040, &label.serial, 32),
        text(0x0042, label.barcode.as_bytes(), 32),
        flag(0x0080, label.is_write_protected),
        flag(0x0081, label.is_worm),
        per_partition(0x0202, |part| part.capacity),
        per_partition(0x0203, |part| occupied(part.end)),
        per_partition(0x0204, |part| part.capacity.saturating_sub(occupied(part.end))),
    ]
}
