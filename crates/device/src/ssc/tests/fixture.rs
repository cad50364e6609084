//! The fixture of these tests, beside [`crate::testing`]: a drive whose cartridge is in memory.

pub(super) use alloc::boxed::Box;
pub(super) use alloc::rc::Rc;
pub(super) use alloc::string::String;
pub(super) use alloc::vec;
pub(super) use alloc::vec::Vec;
pub(super) use core::cell::RefCell;

use alloc::collections::VecDeque;

use base::int_cast::to_u64;
use cartridge::blocking::Files as _;
use cartridge::io::FileId;
use cartridge::label::{Blank, Label, SEGMENT_LEN};
pub(super) use cartridge::profile::Profile;
use cartridge::testing::MemoryFiles;
use store::Store;
pub(super) use store::api::Fault;
use store::api::{Capabilities, Completion, Op, OpAction};
use store::null::Null;

pub(super) use base::time::Instant;
pub(super) use scsi::opcode as op;
pub(super) use scsi::sense::{Asc, SenseKey};

pub(super) use crate::contract::{DeviceKind, NexusId, UnitConfig};
pub(super) use crate::testing::{A, B, Reply, Rig, config, pattern};

/// A capacity that the tests do not reach.
pub(super) const LARGE: u64 = 1 << 30;

/// The files of a cartridge as a store. Clones share them.
#[derive(Clone)]
pub(super) struct Folder(Rc<RefCell<Inner>>);

struct Inner {
    files: MemoryFiles,
    /// What a loss of power leaves: the files as the last flush found them.
    durable: MemoryFiles,
    done: VecDeque<Completion>,
    /// Operations that wait until the folder answers again.
    held: VecDeque<Op>,
    answers: bool,
    faults: Faults,
}

/// How operations fail.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    /// Writes of the log.
    pub(super) write: Option<Fault>,
    /// Writes of the label.
    pub(super) label: Option<Fault>,
    pub(super) flush: Option<Fault>,
    /// Reads of the log.
    pub(super) read: Option<Fault>,
    /// A byte of the first segment of partition 0 that cannot be read.
    pub(super) bad_byte: Option<u64>,
    /// Reads of the label.
    pub(super) label_read: Option<Fault>,
}

/// What is special about a cartridge.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) capacity: u64,
    pub(super) is_worm: bool,
    /// Whether its own write protect switch is on.
    pub(super) is_protected: bool,
    pub(super) partitions: &'static [u64],
}

impl Kind {
    pub(super) const USUAL: Self =
        Self { capacity: LARGE, is_worm: false, is_protected: false, partitions: &[] };
}

impl Folder {
    /// Makes the folder of a blank cartridge.
    pub(super) fn new(kind: Kind) -> Self {
        let mut label = Label::blank(&Blank {
            profile: Profile::Lto8,
            is_worm: kind.is_worm,
            barcode: String::from("A00001L8"),
            capacity: kind.capacity,
            partitions: kind.partitions.to_vec(),
            segment_len: if kind.capacity > LARGE { SEGMENT_LEN } else { 4 << 20 },
            date: *b"20261125",
            entropy: [7; 48],
        })
        .unwrap();
        label.is_write_protected = kind.is_protected;
        Self::holding(MemoryFiles::new(&label))
    }

    fn holding(files: MemoryFiles) -> Self {
        Self(Rc::new(RefCell::new(Inner {
            durable: files.clone(),
            files,
            done: VecDeque::new(),
            held: VecDeque::new(),
            answers: true,
            faults: Faults::default(),
        })))
    }

    /// Makes operations fail from now on, or stops that.
    pub(super) fn fail(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Makes writes of the log fail from now on, or stops that.
    pub(super) fn fail_writes(&self, write: Option<Fault>) {
        self.fail(Faults { write, ..Faults::default() });
    }

    /// Makes operations wait from now on, or carries them out.
    pub(super) fn answer(&self, answers: bool) {
        let mut inner = self.0.borrow_mut();
        inner.answers = answers;
        if answers {
            for op in core::mem::take(&mut inner.held) {
                inner.perform(op);
            }
        }
    }

    /// Returns how many operations wait until the folder answers again.
    pub(super) fn held(&self) -> usize {
        self.0.borrow().held.len()
    }

    /// Changes one byte of the first segment of partition 0.
    pub(super) fn damage(&self, at: usize) {
        self.0.borrow_mut().change(FileId::Log { partition: 0, segment: 0 }, |file| file[at] ^= 0xff);
    }

    /// Returns how often these bytes are in the files, without overlaps.
    pub(super) fn count_of(&self, wanted: &[u8]) -> usize {
        let inner = self.0.borrow();
        let count = |file: &Vec<u8>| {
            let (mut at, mut count) = (0, 0);
            while at + wanted.len() <= file.len() {
                let is_found = file[at..].starts_with(wanted);
                count += usize::from(is_found);
                at += if is_found { wanted.len() } else { 1 };
            }
            count
        };
        inner.files.files.values().map(count).sum()
    }

    /// Overwrites the label.
    pub(super) fn lose_label(&self) {
        self.0.borrow_mut().change(FileId::Label, |file| file.fill(0));
    }

    /// Returns a store of what is in the files: the process was killed.
    pub(super) fn after_kill(&self) -> Self {
        Self::holding(self.0.borrow().files.clone())
    }

    /// Returns a store of what is durable: power was lost.
    pub(super) fn after_power_loss(&self) -> Self {
        Self::holding(self.0.borrow().durable.clone())
    }
}

impl Inner {
    /// Changes a file as it is now and as it is durable.
    fn change(&mut self, file: FileId, change: impl Fn(&mut [u8])) {
        for files in [&mut self.files, &mut self.durable] {
            if let Some(bytes) = files.files.get_mut(&file) {
                change(bytes);
            }
        }
    }

    fn perform(&mut self, op: Op) {
        let Op { id, action } = op;
        let (file, action) = in_file(action);
        let fault = match (&action, file) {
            (OpAction::Flush, _) => self.faults.flush,
            (OpAction::Write { .. }, FileId::Label) => self.faults.label,
            (OpAction::Write { .. }, _) => self.faults.write,
            (OpAction::Read { .. }, FileId::Label) => self.faults.label_read,
            (OpAction::Read { at, len }, FileId::Log { partition: 0, segment: 0 })
                if self.faults.bad_byte.is_some_and(|bad| (*at..*at + to_u64(*len)).contains(&bad)) =>
            {
                Some(Fault::Medium)
            }
            (OpAction::Read { .. }, _) => self.faults.read,
            _ => None,
        };
        if fault.is_none() && matches!(action, OpAction::Flush) {
            self.durable = self.files.clone();
        }
        let result = match fault {
            Some(fault) => Err(fault.into()),
            None => self.files.perform(file, action),
        };
        self.done.push_back(Completion { id, result });
    }
}

fn in_file(mut action: OpAction) -> (FileId, OpAction) {
    let mut file = FileId::Label;
    if let OpAction::Read { at, .. } | OpAction::Write { at, .. } | OpAction::Deallocate { at, .. } =
        &mut action
    {
        (file, *at) = FileId::of_address(*at);
    }
    (file, action)
}

impl Store for Folder {
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: true, ..Null::new(u64::MAX).capabilities() }
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        if inner.answers { inner.perform(op) } else { inner.held.push_back(op) }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().done.pop_front()
    }
}

/// Returns the configuration of a tape drive.
pub(super) fn drive() -> UnitConfig {
    UnitConfig { device: DeviceKind::Tape, removable: true, long_cdbs: false, thin: false, ..config() }
}

/// Returns a drive with a blank cartridge.
pub(super) fn tape() -> Rig {
    with(Kind::USUAL).0
}

/// Returns a drive with such a cartridge, and its folder.
pub(super) fn with(kind: Kind) -> (Rig, Folder) {
    let folder = Folder::new(kind);
    (Rig::with(drive(), Box::new(folder.clone())), folder)
}

/// Returns a 6-byte CDB with a length or count in bytes 2 to 4.
pub(super) fn cdb_6(opcode: u8, flags: u8, count: u32) -> [u8; 6] {
    let [_, a, b, c] = count.to_be_bytes();
    [opcode, flags, a, b, c, 0]
}

/// The sense key and the code of conditions that end a command.
pub(super) const FILEMARK: (SenseKey, Asc) = (SenseKey::NO_SENSE, Asc::FILEMARK_DETECTED);
pub(super) const END_OF_DATA: (SenseKey, Asc) = (SenseKey::BLANK_CHECK, Asc::END_OF_DATA);
pub(super) const BEGINNING: (SenseKey, Asc) = (SenseKey::NO_SENSE, Asc::BEGINNING_OF_PARTITION);
pub(super) const WARNING: (SenseKey, Asc) = (SenseKey::NO_SENSE, Asc::END_OF_PARTITION);
pub(super) const FULL: (SenseKey, Asc) = (SenseKey::VOLUME_OVERFLOW, Asc::END_OF_PARTITION);
pub(super) const WRONG_LENGTH: (SenseKey, Asc) = (SenseKey::NO_SENSE, Asc::NONE);

/// Bits of byte 2 of sense data.
pub(super) const MARK: u8 = 0x80;
pub(super) const EOM: u8 = 0x40;
pub(super) const ILI: u8 = 0x20;

impl Reply {
    /// Panics unless the command ended with CHECK CONDITION, this sense key and code, these bits of the
    /// stream and this INFORMATION field.
    #[track_caller]
    pub(super) fn stopped(&self, (key, asc): (SenseKey, Asc), bits: u8, information: Option<u32>) {
        self.check(key, asc);
        assert_eq!(self.sense_bytes[2] & 0xf0, bits, "{self:?}");
        assert_eq!(self.information(), information, "{self:?}");
    }

    /// Returns whether the sense data are those of a deferred error.
    pub(super) fn is_deferred(&self) -> bool {
        self.sense_bytes[0] & 0x7f == 0x71
    }
}

impl Rig {
    /// Sends a command without Data-Out, and returns its data.
    #[track_caller]
    pub(super) fn query(&mut self, cdb: &[u8]) -> Vec<u8> {
        self.run(A, cdb, 1 << 24, &[]).good()
    }

    /// Sends TEST UNIT READY.
    #[track_caller]
    pub(super) fn test_ready(&mut self, nexus: NexusId) -> Reply {
        self.run(nexus, &[0; 6], 0, &[])
    }

    /// Reads a block of up to `len` bytes in variable-length mode.
    #[track_caller]
    pub(super) fn read_block(&mut self, len: u32) -> Reply {
        self.run(A, &cdb_6(op::READ_6, 0, len), usize::try_from(len).unwrap(), &[])
    }

    /// Writes a block in variable-length mode.
    #[track_caller]
    pub(super) fn write_block(&mut self, data: &[u8]) -> Reply {
        self.run(A, &cdb_6(op::WRITE_6, 0, u32::try_from(data.len()).unwrap()), 0, data)
    }

    /// Writes filemarks, which are then durable.
    #[track_caller]
    pub(super) fn mark(&mut self, count: u32) -> Reply {
        self.run(A, &cdb_6(op::WRITE_FILEMARKS_6, 0, count), 0, &[])
    }

    /// Moves by SPACE(6).
    #[track_caller]
    pub(super) fn space(&mut self, code: u8, count: i32) -> Reply {
        self.run(A, &cdb_6(op::SPACE_6, code, count.cast_unsigned() & 0xff_ffff), 0, &[])
    }

    /// Moves to the start of the partition.
    #[track_caller]
    pub(super) fn rewind(&mut self) {
        self.run(A, &[1, 0, 0, 0, 0, 0], 0, &[]).good();
    }

    /// Returns partition, object and filemark number of the position.
    #[track_caller]
    pub(super) fn position(&mut self) -> (u32, u64, u64) {
        let data = self.query(&[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0]);
        let number = |at: usize| u64::from_be_bytes(data[at..at + 8].try_into().unwrap());
        (u32::from_be_bytes(data[4..8].try_into().unwrap()), number(8), number(16))
    }

    /// Sets the block length by MODE SELECT(6), as Linux does.
    #[track_caller]
    pub(super) fn set_block_len(&mut self, len: u32) {
        let [_, a, b, c] = len.to_be_bytes();
        let list = [0, 0, 0x10, 8, 0, 0, 0, 0, 0, a, b, c];
        self.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &list).good();
    }
}
