//! The files of all cartridges, behind a page cache, and the places for cartridges in drives. Operations take
//! time and are carried out in any order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::buffer::{Bytes, DataList};
use base::int_cast::to_usize;
use base::rng::Rng;
use base::time::Instant;
use cartridge::io::FileId;
use cartridge::label::{Blank, Label};
use cartridge::profile::Profile;
use store::Store;
use store::api::{Capabilities, Completion, Failure, Fault, Op, OpAction, OpOutput};
use store::null::Null;

use super::plan::{CARTRIDGES, DRIVES, TapePlan, name_of};
use crate::media::Clock;

const SECTOR: usize = 512;

/// The files of the cartridges. Clones share them.
#[derive(Clone)]
pub(super) struct Shelf(Rc<RefCell<State>>);

/// The place for a cartridge in a drive, as the store of that drive.
struct Bay {
    shelf: Shelf,
    drive: usize,
    /// After a crash the shelf ignores what a former process submits.
    process: u64,
}

struct State {
    plan: TapePlan,
    clock: Clock,
    rng: Rng,
    cartridges: Vec<BTreeMap<FileId, File>>,
    /// The cartridge in each drive.
    bays: [Option<usize>; DRIVES],
    /// Operations without effect yet, by the time of their effect.
    waiting: BTreeMap<(Instant, u64), (usize, Op)>,
    /// Completions that the drive does not see yet, by the time when it does.
    ready: [BTreeMap<(Instant, u64), Completion>; DRIVES],
    number: u64,
    process: u64,
}

/// A file behind a page cache.
#[derive(Default)]
struct File {
    cache: Vec<u8>,
    disk: Vec<u8>,
    /// The sectors of which the disk may not have what the cache has.
    dirty: BTreeSet<usize>,
    /// Whether the disk has the name of the file.
    is_named: bool,
}

impl Shelf {
    /// Makes blank cartridges.
    pub(super) fn new(plan: &TapePlan, clock: Clock, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let cartridges = (0..CARTRIDGES).map(|number| blank(number, &mut rng)).collect();
        Self(Rc::new(RefCell::new(State {
            plan: plan.clone(),
            clock,
            rng,
            cartridges,
            bays: [None; DRIVES],
            waiting: BTreeMap::new(),
            ready: Default::default(),
            number: 0,
            process: 0,
        })))
    }

    /// Returns the store of a drive.
    pub(super) fn bay(&self, drive: usize) -> Box<dyn Store> {
        let process = self.0.borrow().process;
        Box::new(Bay { shelf: self.clone(), drive, process })
    }

    /// Puts a cartridge into a drive, or takes it out.
    pub(super) fn put(&self, drive: usize, cartridge: Option<usize>) {
        self.0.borrow_mut().bays[drive] = cartridge;
    }

    /// Returns when the next operation takes effect or the next completion can be seen.
    pub(super) fn next(&self) -> Option<Instant> {
        let state = self.0.borrow();
        let effect = state.waiting.keys().next().map(|(at, _)| *at);
        let answers = state.ready.iter().filter_map(|ready| ready.keys().next().map(|(at, _)| *at));
        answers.chain(effect).min()
    }

    /// Carries out what is due.
    pub(super) fn advance(&self, now: Instant) {
        let mut state = self.0.borrow_mut();
        while let Some(entry) = state.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, number), (drive, op)) = entry.remove_entry();
            state.perform(at, number, drive, op);
        }
    }

    /// Returns whether a drive has completions to collect.
    pub(super) fn is_ready(&self, drive: usize, now: Instant) -> bool {
        self.0.borrow().ready[drive].keys().next().is_some_and(|(at, _)| *at <= now)
    }

    /// Returns whether no operation is under way.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.0.borrow();
        state.waiting.is_empty() && state.ready.iter().all(BTreeMap::is_empty)
    }

    /// Ends the process. Of each write under way, the file has nothing, a part or all; what was written stays
    /// in the page cache, unless the power is cut.
    pub(super) fn crash(&self, is_power: bool) {
        let mut state = self.0.borrow_mut();
        state.process += 1;
        state.ready = Default::default();
        for (_, (drive, op)) in std::mem::take(&mut state.waiting) {
            let OpAction::Write { at, data, .. } = op.action else { continue };
            let Some(cartridge) = state.bays[drive] else { continue };
            let (file, at) = FileId::of_address(at);
            let part = to_usize(state.rng.below(1 + u64::try_from(data.len()).unwrap()));
            let mut bytes = vec![0; data.len()];
            data.copy_to(0, &mut bytes);
            state.cartridges[cartridge].entry(file).or_default().write(to_usize(at), &bytes[..part]);
        }
        if is_power {
            let State { rng, cartridges, .. } = &mut *state;
            cartridges.iter_mut().for_each(|files| lose_power(files, rng));
        }
    }
}

fn blank(number: usize, rng: &mut Rng) -> BTreeMap<FileId, File> {
    let mut entropy = [0; 48];
    rng.fill(&mut entropy);
    let label = Label::blank(&Blank {
        profile: Profile::Lto8,
        is_worm: false,
        barcode: name_of(number),
        capacity: 1 << 30,
        partitions: Vec::new(),
        segment_len: 4 << 20,
        date: *b"20261126",
        entropy,
    });
    let bytes = label.unwrap().file();
    let file = File { cache: bytes.clone(), disk: bytes, dirty: BTreeSet::new(), is_named: true };
    BTreeMap::from([(FileId::Label, file)])
}

/// Of each sector that was not flushed, the disk has what it had before or what was written.
fn lose_power(files: &mut BTreeMap<FileId, File>, rng: &mut Rng) {
    files.retain(|_, file| file.is_named || rng.chance(1, 2));
    for file in files.values_mut() {
        file.write_back(|| rng.chance(1, 2));
        file.is_named = true;
        file.cache.clone_from(&file.disk);
    }
}

impl File {
    fn read(&self, at: usize, len: usize) -> Vec<u8> {
        let known = self.cache.get(at..).unwrap_or_default();
        let mut bytes = known[..len.min(known.len())].to_vec();
        bytes.resize(len, 0);
        bytes
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.cache.resize(self.cache.len().max(end), 0);
        self.cache[at..end].copy_from_slice(bytes);
        self.dirty.extend(at / SECTOR..end.div_ceil(SECTOR));
    }

    fn shorten(&mut self, len: usize) {
        self.dirty.extend(len / SECTOR..self.cache.len().max(self.disk.len()).div_ceil(SECTOR));
        self.cache.truncate(len);
    }

    fn write_back(&mut self, mut is_written: impl FnMut() -> bool) {
        for sector in std::mem::take(&mut self.dirty) {
            if is_written() {
                let at = sector * SECTOR;
                let bytes = self.read(at, SECTOR);
                self.disk.resize(self.disk.len().max(at + SECTOR), 0);
                self.disk[at..at + SECTOR].copy_from_slice(&bytes);
            }
        }
    }
}

impl State {
    fn perform(&mut self, at: Instant, number: u64, drive: usize, op: Op) {
        let Op { id, action } = op;
        let result = match self.bays[drive] {
            Some(cartridge) => carry_out(&mut self.cartridges[cartridge], action),
            None => Err(Fault::Gone.into()),
        };
        let answer = at.after(self.plan.answer.pick(&mut self.rng));
        self.ready[drive].insert((answer, number), Completion { id, result });
    }
}

fn carry_out(files: &mut BTreeMap<FileId, File>, action: OpAction) -> Result<OpOutput, Failure> {
    match action {
        OpAction::Read { at, len } => {
            let (id, at) = FileId::of_address(at);
            let file = files.get(&id).ok_or(Fault::OutOfRange)?;
            Ok(OpOutput::Data(Bytes::copied_from(&file.read(to_usize(at), len)).into()))
        }
        OpAction::Write { at, data, .. } => {
            let (id, at) = FileId::of_address(at);
            let mut bytes = vec![0; data.len()];
            data.copy_to(0, &mut bytes);
            files.entry(id).or_default().write(to_usize(at), &bytes);
            Ok(OpOutput::Done(data))
        }
        OpAction::Deallocate { at, .. } => {
            let (id, at) = FileId::of_address(at);
            if let Some(file) = files.get_mut(&id) {
                file.shorten(to_usize(at));
            }
            Ok(OpOutput::Done(DataList::new()))
        }
        OpAction::Flush => {
            for file in files.values_mut() {
                file.write_back(|| true);
                file.is_named = true;
            }
            Ok(OpOutput::Done(DataList::new()))
        }
        _ => Err(Fault::Unsupported.into()),
    }
}

impl Store for Bay {
    fn capabilities(&self) -> Capabilities {
        let state = self.shelf.0.borrow();
        let len = if state.bays[self.drive].is_some() { u64::MAX } else { 0 };
        Capabilities { volatile_cache: true, ..Null::new(len).capabilities() }
    }

    fn submit(&mut self, op: Op) {
        let mut state = self.shelf.0.borrow_mut();
        if state.process != self.process {
            return;
        }
        state.number += 1;
        let (now, number, plan) = (state.clock.now(), state.number, state.plan.clone());
        let effect = now.after(plan.effect.pick(&mut state.rng));
        state.waiting.insert((effect, number), (self.drive, op));
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut state = self.shelf.0.borrow_mut();
        let now = state.clock.now();
        if state.process != self.process {
            return None;
        }
        let first = state.ready[self.drive].first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(first.remove())
    }
}
