//! Stores the history as bytes: which operations were submitted and how they ended, so that the crash of
//! either side can be judged afterwards.
//!
//! A journal is a sequence of [`Entry`]s of [`ENTRY_LEN`] bytes, each with its own CRC-64/NVME. A crash may
//! tear the end of the journal: [`replay`] stops at the first entry that is not whole. An entry must reach
//! stable storage before the operation that it announces is sent. The end of an operation may be written
//! late: until then the operation counts as one whose result is unknown.
//!
//! | offset | length | what (big-endian) |
//! |---|---|---|
//! | 0 | 4 | `tarJ` |
//! | 4 | 1 | version of this layout: 1 |
//! | 5 | 1 | kind of entry |
//! | 6 | 1 | flags of a change (bit 0 stable, bit 1 optional), or how an operation ended |
//! | 7 | 1 | kind of content |
//! | 8 | 8 | operation or flush |
//! | 16 | 8 | time in nanoseconds since the writer's origin |
//! | 24 | 8 | device |
//! | 32 | 8 | first block |
//! | 40 | 8 | number of blocks |
//! | 48 | 8 | sequence, or device copied from |
//! | 56 | 8 | block address in the block header, or copied from |
//! | 64 | 4 | writer |
//! | 68 | 4 | zeros |
//! | 72 | 8 | CRC-64/NVME of the 72 bytes before |

use alloc::collections::BTreeMap;

use base::bytes::{Reader, UnexpectedEof, Writer};
use base::units::Lba;
use crc_fast::{CrcAlgorithm, checksum};

use crate::block_header::{DeviceId, Sequence, WriterId};
use crate::history::{BlockSignature, Change, ChangeResult, FlushId, History, OpId, Planned};

/// The length of an entry in bytes.
pub const ENTRY_LEN: usize = 80;

const BODY_LEN: usize = 72;
const MAGIC: [u8; 4] = *b"tarJ";
const VERSION: u8 = 1;

/// One entry of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The time, in nanoseconds since the writer's origin.
    pub time_ns: u64,
    /// The event.
    pub what: JournalEvent,
}

/// An event in a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalEvent {
    /// A change is about to be submitted; the history assigned this id to it.
    Submit(OpId, Change),
    /// A change ended.
    End(OpId, ChangeResult),
    /// A flush is about to be submitted; the writer numbers flushes.
    FlushBegin(u64, DeviceId),
    /// A flush ended with GOOD.
    FlushEnd(u64),
    /// The medium lost everything that was not on stable storage.
    Crash(DeviceId),
}

impl Entry {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        // The fields fill the entry exactly.
        let _ = self.put(&mut bytes);
        bytes
    }

    /// Decodes an entry. Returns `None` when the bytes are not a whole entry of a known version.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let body = bytes.get(..BODY_LEN)?;
        let crc = bytes.get(BODY_LEN..ENTRY_LEN)?;
        (checksum(CrcAlgorithm::Crc64Nvme, body).to_be_bytes() == *crc).then_some(())?;
        let mut reader = Reader::new(body);
        (reader.array().ok()? == MAGIC && reader.u8().ok()? == VERSION).then_some(())?;
        let [kind, detail, content] = reader.array().ok()?;
        let mut word = || reader.u64().ok();
        let (number, time_ns, device, lba, blocks) = (word()?, word()?, word()?, word()?, word()?);
        let (x, y) = (word()?, word()?);
        let writer = WriterId(reader.u32().ok()?);
        let device = DeviceId(device);
        let what = match kind {
            0 => {
                let content = match content {
                    0 => Planned::Zero,
                    1 => Planned::Anything,
                    2 => Planned::Signed(writer, Sequence(x)),
                    3 => Planned::Same(BlockSignature { device, lba: Lba(y), writer, sequence: Sequence(x) }),
                    4 => Planned::CopyOf(DeviceId(x), Lba(y)),
                    _ => return None,
                };
                let (stable, optional) = (detail & 1 != 0, detail & 2 != 0);
                JournalEvent::Submit(
                    OpId(number),
                    Change { device, lba: Lba(lba), blocks, content, stable, optional },
                )
            }
            1 => JournalEvent::End(OpId(number), *ENDS.get(usize::from(detail))?),
            2 => JournalEvent::FlushBegin(number, device),
            3 => JournalEvent::FlushEnd(number),
            4 => JournalEvent::Crash(device),
            _ => return None,
        };
        Some(Self { time_ns, what })
    }

    fn put(&self, bytes: &mut [u8; ENTRY_LEN]) -> Result<(), UnexpectedEof> {
        let (body, crc) = bytes.split_at_mut(BODY_LEN);
        let mut writer = Writer::new(body);
        writer.put(&MAGIC)?;
        writer.u8(VERSION)?;
        let no_change = Change {
            device: DeviceId(0),
            lba: Lba(0),
            blocks: 0,
            content: Planned::Zero,
            stable: false,
            optional: false,
        };
        let of_device = |device| Change { device, ..no_change };
        let (kind, detail, number, change) = match self.what {
            JournalEvent::Submit(op, change) => {
                (0, u8::from(change.stable) | u8::from(change.optional) << 1, op.0, change)
            }
            JournalEvent::End(op, end) => (1, end as u8, op.0, no_change),
            JournalEvent::FlushBegin(number, device) => (2, 0, number, of_device(device)),
            JournalEvent::FlushEnd(number) => (3, 0, number, no_change),
            JournalEvent::Crash(device) => (4, 0, 0, of_device(device)),
        };
        let (content, x, y, by) = match change.content {
            Planned::Zero => (0, 0, 0, 0),
            Planned::Anything => (1, 0, 0, 0),
            Planned::Signed(by, sequence) => (2, sequence.0, 0, by.0),
            Planned::Same(BlockSignature { lba, writer, sequence, .. }) => (3, sequence.0, lba.0, writer.0),
            Planned::CopyOf(device, lba) => (4, device.0, lba.0, 0),
        };
        writer.put(&[kind, detail, content])?;
        for word in [number, self.time_ns, change.device.0, change.lba.0, change.blocks, x, y] {
            writer.u64(word)?;
        }
        writer.u32(by)?;
        writer.u32(0)?;
        crc.copy_from_slice(&checksum(CrcAlgorithm::Crc64Nvme, body).to_be_bytes());
        Ok(())
    }
}

const ENDS: [ChangeResult; 4] =
    [ChangeResult::Done, ChangeResult::Failed, ChangeResult::Unknown, ChangeResult::Refused];

/// The result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The number of whole entries.
    pub entries: usize,
    /// The number of bytes behind them that are no entry: a torn end, or damage.
    pub left: usize,
    /// The time of the last entry.
    pub last_time_ns: u64,
}

/// Replays a journal into `history`, which must be new. Operations without an end stay open, since their
/// result is unknown. A caller that knows that an operation is no longer executed ends it with
/// [`ChangeResult::Failed`].
pub fn replay(bytes: &[u8], history: &mut History) -> Replayed {
    let mut replayed = Replayed::default();
    let mut names: BTreeMap<OpId, OpId> = BTreeMap::new();
    let mut flushes: BTreeMap<u64, FlushId> = BTreeMap::new();
    let mut rest = bytes;
    while let Some(Entry { time_ns, what }) = Entry::decode(rest) {
        match what {
            JournalEvent::Submit(op, change) => {
                names.insert(op, history.submit(change));
            }
            JournalEvent::End(op, end) => {
                if let Some(op) = names.get(&op) {
                    history.end_change(*op, end);
                }
            }
            JournalEvent::FlushBegin(number, device) => {
                flushes.insert(number, history.flush_begin(device));
            }
            JournalEvent::FlushEnd(number) => {
                if let Some(flush) = flushes.remove(&number) {
                    history.flush_end(flush);
                }
            }
            JournalEvent::Crash(device) => history.crash(device),
        }
        replayed.entries += 1;
        replayed.last_time_ns = time_ns;
        rest = rest.get(ENTRY_LEN..).unwrap_or_default();
    }
    replayed.left = rest.len();
    replayed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Content, InitialContent};
    use alloc::vec;
    use alloc::vec::Vec;

    const DEVICE: DeviceId = DeviceId(9);

    fn change(content: Planned) -> Change {
        Change { device: DEVICE, lba: Lba(5), blocks: 2, content, stable: true, optional: false }
    }

    #[test]
    fn every_entry_survives_as_bytes() {
        let mark =
            BlockSignature { device: DEVICE, lba: Lba(77), writer: WriterId(3), sequence: Sequence(4) };
        let contents = [
            Planned::Zero,
            Planned::Anything,
            Planned::Signed(WriterId(1), Sequence(2)),
            Planned::Same(mark),
            Planned::CopyOf(DeviceId(8), Lba(1)),
        ];
        let mut whats: Vec<JournalEvent> =
            contents.into_iter().map(|content| JournalEvent::Submit(OpId(1), change(content))).collect();
        whats.push(JournalEvent::Submit(
            OpId(2),
            Change { stable: false, optional: true, ..change(Planned::Zero) },
        ));
        whats.extend(ENDS.map(|end| JournalEvent::End(OpId(3), end)));
        whats.extend([
            JournalEvent::FlushBegin(4, DEVICE),
            JournalEvent::FlushEnd(4),
            JournalEvent::Crash(DEVICE),
        ]);
        for what in whats {
            let entry = Entry { time_ns: 123_456, what };
            let bytes = entry.encode();
            assert_eq!(Entry::decode(&bytes), Some(entry));
            for at in 0..ENTRY_LEN {
                let mut damaged = bytes;
                damaged[at] ^= 0x10;
                assert_eq!(Entry::decode(&damaged), None);
            }
        }
    }

    #[test]
    fn a_journal_with_a_torn_end_tells_what_may_be_there() {
        let write = |op, sequence| {
            JournalEvent::Submit(OpId(op), change(Planned::Signed(WriterId(1), Sequence(sequence))))
        };
        let whats = [
            write(1, 10),
            JournalEvent::End(OpId(1), ChangeResult::Done),
            JournalEvent::FlushBegin(1, DEVICE),
            JournalEvent::FlushEnd(1),
            write(2, 11),
            write(3, 12),
        ];
        let mut bytes: Vec<u8> =
            (1..).zip(whats).flat_map(|(time_ns, what)| Entry { time_ns, what }.encode()).collect();
        bytes.truncate(bytes.len() - 30);
        let mut history = History::new(InitialContent::Zero, true);
        let replayed = replay(&bytes, &mut history);
        assert_eq!(replayed, Replayed { entries: 5, left: 50, last_time_ns: 5 });
        let content = |sequence| {
            Content::Signed(BlockSignature {
                device: DEVICE,
                lba: Lba(6),
                writer: WriterId(1),
                sequence: Sequence(sequence),
            })
        };
        assert_eq!(history.expected_content(DEVICE, Lba(6)), vec![content(10), content(11)]);
        assert_eq!(history.open().count(), 1);
    }

    #[test]
    fn a_journal_of_version_1_is_still_read() {
        let entry = Entry { time_ns: 7, what: JournalEvent::End(OpId(3), ChangeResult::Failed) };
        let fixture = [
            b"tarJ\x01\x01\x01\x00".as_slice(),
            &[0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 7],
            &[0; 48],
            &FIXTURE_CRC,
        ]
        .concat();
        assert_eq!(Entry::decode(&fixture), Some(entry));
    }

    /// The CRC, computed bit by bit by another program.
    const FIXTURE_CRC: [u8; 8] = [0x9e, 0xb0, 0x9c, 0x8c, 0x88, 0xfb, 0x1a, 0x75];
}
