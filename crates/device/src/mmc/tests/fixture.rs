//! The fixture of these tests, beside [`crate::testing`]: a drive whose disc can be replaced.

pub(super) use alloc::boxed::Box;
pub(super) use alloc::rc::Rc;
pub(super) use alloc::vec::Vec;
pub(super) use core::cell::RefCell;

pub(super) use base::rng::Rng;
pub(super) use base::time::Instant;
pub(super) use base::units::BlockSize;
pub(super) use scsi::opcode as op;
pub(super) use scsi::sense::{Asc, SenseKey};
pub(super) use store::Store;
pub(super) use store::api::{Capabilities, Completion, Durability, Fault, Op, OpAction, OpId, OpOutput};
pub(super) use store::powercut::{Power, PowerCut};
pub(super) use store::ram::Ram;

pub(super) use crate::contract::{DeviceKind, DiscProfile, NexusId, UnitConfig};
pub(super) use crate::disc_record::{DiscRecord, WritableKind};
pub(super) use crate::testing::{A, B, Reply, Rig, config};

/// The length of a sector's user data.
pub(super) const SECTOR: u64 = 2048;

/// Numbers of sectors of a CD, of a DVD with one and with two layers, and of a BD.
pub(super) const CD: u64 = 300_000;
pub(super) const DVD: u64 = 2_000_000;
pub(super) const DVD_DL: u64 = 4_000_000;
pub(super) const BD: u64 = 10_000_000;

/// A store whose disc a test can replace.
#[derive(Clone)]
pub(super) struct Tray(Rc<RefCell<Ram>>);

impl Tray {
    /// Creates a store with an empty disc of this many sectors, or without one if there are none.
    pub(super) fn new(sectors: u64) -> Self {
        Self(Rc::new(RefCell::new(blank(sectors))))
    }

    /// Replaces the disc.
    pub(super) fn put(&self, sectors: u64) {
        *self.0.borrow_mut() = blank(sectors);
    }

    /// Writes a sector, as the image has it.
    pub(super) fn fill(&self, lba: u64, byte: u8) {
        let mut ram = self.0.borrow_mut();
        let data = base::buffer::Bytes::copied_from(&[byte; 2048]).into();
        let action = OpAction::Write { at: lba * SECTOR, data, durability: Durability::Cached };
        ram.submit(Op { id: OpId(0), action });
        assert!(ram.poll().unwrap().result.is_ok());
    }
}

fn blank(sectors: u64) -> Ram {
    Ram::new(sectors * SECTOR)
}

impl Store for Tray {
    fn capabilities(&self) -> Capabilities {
        Capabilities { read_only: true, ..self.0.borrow().capabilities() }
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
}

/// A writable disc in a drive, whose bytes outlive the drive.
pub(super) struct Blank {
    pub(super) power: Power,
    capacity: u32,
}

impl Blank {
    /// Makes the image of a blank disc.
    pub(super) fn new(kind: WritableKind, capacity: u32) -> Self {
        let mut record = DiscRecord::blank(kind, capacity).unwrap();
        let blank = Self { power: Power::new(u64::from(capacity) * SECTOR + 65_536), capacity };
        let trailer = base::buffer::Bytes::copied_from(&record.new_trailer()).into();
        let at = u64::from(capacity) * SECTOR;
        let mut store = blank.power.store();
        store.submit(Op {
            id: OpId(0),
            action: OpAction::Write { at, data: trailer, durability: Durability::Stable },
        });
        assert!(store.poll().unwrap().result.is_ok());
        blank
    }

    /// Reads the record, as a daemon does when it opens the image.
    pub(super) fn record(&self) -> DiscRecord {
        let trailer = self.trailer();
        DiscRecord::of_trailer(&trailer, u64::from(self.capacity) * SECTOR + 65_536).unwrap().unwrap()
    }

    fn trailer(&self) -> Vec<u8> {
        let mut store = self.power.store();
        let at = u64::from(self.capacity) * SECTOR;
        store.submit(Op { id: OpId(0), action: OpAction::Read { at, len: 65_536 } });
        // It is the only operation if operations are held.
        self.power.begin_one(&mut Rng::from_seed(0));
        match store.poll().unwrap().result.unwrap() {
            OpOutput::Data(data) => {
                let mut bytes = alloc::vec![0; data.len()];
                data.copy_to(0, &mut bytes);
                bytes
            }
            other => panic!("{other:?}"),
        }
    }

    /// Puts the disc into a new drive.
    pub(super) fn drive(&self) -> Rig {
        self.drive_as(false)
    }

    /// Puts the disc into a new drive that may be read-only.
    pub(super) fn drive_as(&self, read_only: bool) -> Rig {
        Rig::with(UnitConfig { read_only, ..writer() }, Box::new(self.image()))
    }

    fn image(&self) -> Image {
        Image { store: self.power.store(), trailer: self.trailer() }
    }
}

/// Returns the configuration of a drive that writes.
fn writer() -> UnitConfig {
    UnitConfig { read_only: false, write_cache: true, ..drive(None) }
}

/// A drive that writes and whose disc a test can replace. Operations end on the disc that they began on.
#[derive(Clone)]
pub(super) struct Drawer(Rc<RefCell<Inner>>);

struct Inner {
    /// The last one is in the drive.
    discs: Vec<Image>,
    /// Which operations fail.
    fails: fn(&OpAction) -> bool,
    /// The operations that failed, and whether they end.
    failed: Vec<OpId>,
    tells: bool,
    /// Whether reads return zeros.
    spoils: bool,
}

impl Drawer {
    /// Returns a drive with a disc.
    pub(super) fn with(disc: &Blank) -> (Rig, Self) {
        let discs = Vec::from([disc.image()]);
        let inner = Inner { discs, fails: |_| false, failed: Vec::new(), tells: true, spoils: false };
        let drawer = Self(Rc::new(RefCell::new(inner)));
        (Rig::with(writer(), Box::new(drawer.clone())), drawer)
    }

    /// Replaces the disc, and tells the unit.
    pub(super) fn put(&self, rig: &mut Rig, disc: &Blank) {
        self.0.borrow_mut().discs.push(disc.image());
        rig.unit.medium_replaced(Instant::ORIGIN);
        rig.drain();
    }

    /// Sets which operations fail from now on.
    pub(super) fn fail(&self, fails: fn(&OpAction) -> bool) {
        self.0.borrow_mut().fails = fails;
    }

    /// Sets whether operations that failed end.
    pub(super) fn tell(&self, tells: bool) {
        self.0.borrow_mut().tells = tells;
    }

    /// Makes reads return zeros.
    pub(super) fn spoil_reads(&self) {
        self.0.borrow_mut().spoils = true;
    }
}

impl Store for Drawer {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().discs.last().unwrap().capabilities()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        self.0.borrow().discs.last().unwrap().trailer()
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        if (inner.fails)(&op.action) {
            inner.failed.push(op.id);
        } else {
            inner.discs.last_mut().unwrap().submit(op);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        let failed = if inner.tells { inner.failed.pop() } else { None };
        if let Some(id) = failed {
            return Some(Completion { id, result: Err(Fault::Medium.into()) });
        }
        let completion = inner.discs.iter_mut().find_map(Store::poll)?;
        let result = match completion.result {
            Ok(OpOutput::Data(data)) if inner.spoils => {
                Ok(OpOutput::Data(base::buffer::Bytes::copied_from(&alloc::vec![0; data.len()]).into()))
            }
            result => result,
        };
        Some(Completion { result, ..completion })
    }
}

struct Image {
    store: PowerCut,
    trailer: Vec<u8>,
}

impl Store for Image {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        Some(self.trailer.clone())
    }

    fn submit(&mut self, op: Op) {
        self.store.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.store.poll()
    }
}

/// Returns the configuration of a drive.
pub(super) fn drive(profile: Option<DiscProfile>) -> UnitConfig {
    UnitConfig {
        device: DeviceKind::Disc { profile },
        block_size: BlockSize::B2048,
        physical_exponent: 0,
        read_only: true,
        removable: true,
        long_cdbs: false,
        thin: false,
        write_cache: false,
        ..config()
    }
}

/// Returns a drive with a disc of this many sectors.
pub(super) fn disc(sectors: u64) -> Rig {
    let (rig, _) = with_tray(sectors);
    rig
}

/// Returns the same, and its tray. An empty drive answers with NOT READY after the first unit attention.
pub(super) fn with_tray(sectors: u64) -> (Rig, Tray) {
    let tray = Tray::new(sectors);
    (Rig::with(drive(None), Box::new(tray.clone())), tray)
}

impl Rig {
    /// Sends a command without Data-Out, and returns its data.
    #[track_caller]
    pub(super) fn get(&mut self, cdb: &[u8]) -> Vec<u8> {
        self.run(A, cdb, 1 << 20, &[]).good()
    }

    /// Sends TEST UNIT READY.
    #[track_caller]
    pub(super) fn test(&mut self, nexus: NexusId) -> Reply {
        self.run(nexus, &[0; 6], 0, &[])
    }

    /// Polls media events of a nexus, and returns the event and the status of the medium.
    #[track_caller]
    pub(super) fn media_event(&mut self, nexus: NexusId) -> (u8, u8) {
        let data = self.run(nexus, &[0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8, 0], 8, &[]).good();
        assert_eq!(data[..4], [0, 6, 4, 0x56]);
        (data[4], data[5])
    }
}
