//! Interruptions of every kind in one history: losses of power, processes that are killed, and writes and
//! flushes that fail, while file operations are carried out in any order.

use alloc::collections::BTreeMap;

use base::int_cast::to_usize;

use super::crash::Allowed;
use super::model::{Model, Object, Step, pick};
use super::*;
use crate::attributes::COHERENCY;

/// How many histories a test run has. `SEED=7` replays one.
pub(super) const SEEDS: u64 = 60;
const ROUNDS: u64 = 4;
const PARTITIONS: usize = 2;
const SECTOR: usize = 512;

/// What ends the use of a cartridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interruption {
    /// The machine loses its power: what was not flushed is on the disk or not, sector by sector.
    Power,
    /// The process is killed: what it wrote is in the page cache.
    Kill,
    /// A write fails and writes a part. The process goes on.
    Write,
    /// A write finds the disk full and writes a part. The cartridge goes on.
    Full,
    /// A flush fails: the page cache forgets what it should have written, and says so once. The process goes
    /// on.
    Flush,
}

impl Interruption {
    fn random(rng: &mut Rng) -> Self {
        match rng.below(5) {
            0 => Self::Power,
            1 => Self::Kill,
            2 => Self::Write,
            3 => Self::Full,
            _ => Self::Flush,
        }
    }

    fn ends_the_process(self) -> bool {
        matches!(self, Self::Power | Self::Kill)
    }
}

/// A file behind a page cache.
#[derive(Default)]
struct Cached {
    cache: Vec<u8>,
    disk: Vec<u8>,
    /// The sectors of which the disk does not have what the cache has.
    dirty: BTreeSet<usize>,
    /// Whether the disk has the name of the file.
    is_named: bool,
}

impl Cached {
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

    /// Writes the dirty sectors back that `is_written` says. The cache forgets that the others are dirty.
    fn write_back(&mut self, mut is_written: impl FnMut() -> bool) {
        for sector in core::mem::take(&mut self.dirty) {
            if is_written() {
                let at = sector * SECTOR;
                let bytes = self.read(at, SECTOR);
                self.disk.resize(self.disk.len().max(at + SECTOR), 0);
                self.disk[at..at + SECTOR].copy_from_slice(&bytes);
            }
        }
    }

    /// Drops the clean pages, so that reads come from the disk.
    fn drop_clean(&mut self) {
        let mut fresh = self.disk.clone();
        fresh.resize(fresh.len().max(self.cache.len()), 0);
        for sector in &self.dirty {
            let at = sector * SECTOR;
            let bytes = self.read(at, SECTOR);
            fresh.resize(fresh.len().max(at + SECTOR), 0);
            fresh[at..at + SECTOR].copy_from_slice(&bytes);
        }
        self.cache = fresh;
    }
}

/// The files of a cartridge on a disk behind a page cache.
struct Disk {
    files: BTreeMap<FileId, Cached>,
    /// The durable contents of files whose removal is not durable yet.
    removed: BTreeMap<FileId, Vec<u8>>,
    interruption: Interruption,
    /// How many operations are carried out before the interruption.
    operations_left: Option<u64>,
    /// Whether the process is gone.
    is_gone: bool,
    /// The writes that were under way when the process ended.
    under_way: Vec<(FileId, usize, Vec<u8>)>,
    rng: Rng,
}

impl Disk {
    fn new(label: &Label, seed: u64) -> Self {
        let file = label.file();
        let label = Cached { cache: file.clone(), disk: file, dirty: BTreeSet::new(), is_named: true };
        Self {
            files: BTreeMap::from([(FileId::Label, label)]),
            removed: BTreeMap::new(),
            interruption: Interruption::Kill,
            operations_left: None,
            is_gone: false,
            under_way: Vec::new(),
            rng: Rng::from_seed(!seed),
        }
    }

    /// Ends the process. Of each write under way, the file has nothing, a part or all.
    fn end(&mut self) {
        for (file, at, bytes) in core::mem::take(&mut self.under_way) {
            let len = pick(&mut self.rng, bytes.len() + 1);
            self.files.entry(file).or_default().write(at, &bytes[..len]);
        }
        if self.interruption == Interruption::Power {
            self.lose_power();
        }
        self.is_gone = false;
        self.operations_left = None;
    }

    fn lose_power(&mut self) {
        let rng = &mut self.rng;
        self.files.retain(|_, file| file.is_named || rng.chance(1, 2));
        for file in self.files.values_mut() {
            file.write_back(|| rng.chance(1, 2));
            file.cache.clone_from(&file.disk);
            file.is_named = true;
        }
        for (file, disk) in core::mem::take(&mut self.removed) {
            if !self.files.contains_key(&file) && rng.chance(1, 2) {
                let back = Cached { cache: disk.clone(), disk, dirty: BTreeSet::new(), is_named: true };
                self.files.insert(file, back);
            }
        }
    }

    /// Does what an owner does before it loads: after a writeback that failed, the cache has what the disk
    /// does not have.
    fn open(&mut self) {
        let logs = self.files.iter_mut().filter(|(file, _)| **file != FileId::Label);
        logs.for_each(|(_, file)| file.drop_clean());
    }

    fn flush(&mut self, file: FileId) {
        if let Some(file) = self.files.get_mut(&file) {
            file.write_back(|| true);
            if file.disk.len() > file.cache.len() {
                file.disk.truncate(file.cache.len());
            }
            if !file.is_named {
                file.is_named = true;
                self.removed.clear();
            }
        }
    }

    /// Returns how the operation fails, if it is the one that is interrupted.
    fn interrupt(&mut self, file: FileId, action: &OpAction) -> Option<Failure> {
        let left = self.operations_left.as_mut()?;
        if *left > 0 {
            *left -= 1;
            return None;
        }
        match (self.interruption, action) {
            (Interruption::Write | Interruption::Full, OpAction::Write { at, data, .. }) => {
                let len = pick(&mut self.rng, data.len());
                self.files.entry(file).or_default().write(to_usize(*at), &bytes_of(data)[..len]);
                self.operations_left = None;
                let is_full = self.interruption == Interruption::Full;
                Some(if is_full { Fault::NoSpace.into() } else { Fault::Medium.into() })
            }
            (Interruption::Flush, OpAction::Flush) => {
                let rng = &mut self.rng;
                if let Some(file) = self.files.get_mut(&file) {
                    file.write_back(|| rng.chance(1, 2));
                }
                self.operations_left = None;
                Some(Fault::Medium.into())
            }
            (Interruption::Write | Interruption::Full | Interruption::Flush, _) => None,
            (Interruption::Power | Interruption::Kill, _) => {
                self.is_gone = true;
                None
            }
        }
    }
}

impl Files for Disk {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        if let Some(failure) = self.interrupt(file, &action) {
            return Err(failure);
        }
        if self.is_gone {
            if let OpAction::Write { at, data, .. } = action {
                self.under_way.push((file, to_usize(at), bytes_of(&data)));
            }
            return Err(Fault::Gone.into());
        }
        match action {
            OpAction::Read { at, len } => {
                let found = self.files.get(&file).ok_or(Fault::OutOfRange)?;
                Ok(OpOutput::Data(Bytes::copied_from(&found.read(to_usize(at), len)).into()))
            }
            OpAction::Write { at, data, .. } => {
                self.files.entry(file).or_default().write(to_usize(at), &bytes_of(&data));
                Ok(OpOutput::Done(data))
            }
            OpAction::Deallocate { at: 0, .. } => {
                if let Some(gone) = self.files.remove(&file).filter(|gone| gone.is_named) {
                    self.removed.insert(file, gone.disk);
                }
                Ok(OpOutput::Done(DataList::new()))
            }
            OpAction::Deallocate { at, .. } => {
                if let Some(file) = self.files.get_mut(&file) {
                    file.shorten(to_usize(at));
                }
                Ok(OpOutput::Done(DataList::new()))
            }
            OpAction::Flush => {
                self.flush(file);
                Ok(OpOutput::Done(DataList::new()))
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Returns a step: often records of few lengths, so that new items begin where old ones began, and removals
/// of more than a chunk.
fn step(rng: &mut Rng) -> Step {
    let seed = rng.next_u64();
    let write = |len| Step::Write { seed, len, is_compressed: false };
    match rng.below(20) {
        0..=5 => write(1000),
        6 | 7 => write(700_000),
        8 | 9 => {
            let destination = Destination::Object(rng.below(6));
            Step::Locate { partition: pick(rng, PARTITIONS), destination }
        }
        10 => Step::Erase,
        11 => Step::Reload,
        12 | 13 => Step::Filemarks { count: 1, is_immediate: false },
        _ => Step::random(rng, PARTITIONS, 200_000),
    }
}

/// What partitions may hold after an interruption.
#[derive(Default)]
struct Oracle {
    /// After a loss of power, a write or a flush that failed.
    durable: [Allowed; PARTITIONS],
    /// After the process was killed.
    settled: [Allowed; PARTITIONS],
}

impl Oracle {
    /// Adds what the partitions hold after a step that began at object `at`, or what an interruption left.
    fn add(&mut self, model: &Model, at: Option<usize>) {
        let parts = self.durable.iter_mut().zip(&mut self.settled).zip(&model.parts);
        for ((durable, settled), objects) in parts {
            for allowed in [durable, settled] {
                match at {
                    Some(at) => allowed.add(objects, at),
                    None => allowed.add_found(objects),
                }
            }
        }
    }

    fn synchronized(&mut self, model: &Model) {
        self.durable
            .iter_mut()
            .zip(&model.parts)
            .for_each(|(allowed, objects)| allowed.synchronized(objects));
        self.settled(model);
    }

    fn settled(&mut self, model: &Model) {
        self.settled
            .iter_mut()
            .zip(&model.parts)
            .for_each(|(allowed, objects)| allowed.synchronized(objects));
    }

    fn check(&self, interruption: Interruption, partition: usize, found: &[Object], what: &str) {
        let allowed = if interruption == Interruption::Kill { &self.settled } else { &self.durable };
        let allowed = &allowed[partition];
        assert!(allowed.allows(found), "{what}: {found:?} of {:?}", allowed.states);
    }
}

#[test]
fn what_was_synchronized_survives_every_interruption() {
    run_histories(seeds());
}

/// Runs the histories of these seeds, up to the first that shows a fault.
pub(super) fn run_histories(seeds: core::ops::Range<u64>) {
    for seed in seeds {
        std::eprintln!("seed {seed}");
        history(seed);
    }
}

/// Returns the seeds to run: the one that the environment names, or all.
fn seeds() -> core::ops::Range<u64> {
    match std::env::var("SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..SEEDS,
    }
}

fn history(seed: u64) {
    let mut rng = Rng::from_seed(seed);
    let blank = Blank { capacity: 64 << 20, partitions: vec![32 << 20; PARTITIONS], ..blank() };
    let mut disk = Disk::new(&Label::blank(&blank).unwrap(), seed);
    let mut model = Model::new(PARTITIONS);
    let mut oracle = Oracle::default();
    oracle.synchronized(&model);
    for round in 0..ROUNDS {
        let interruption = Interruption::random(&mut rng);
        let what = std::format!("seed {seed} round {round}, {interruption:?}");
        (disk.interruption, disk.operations_left) = (interruption, Some(5 + rng.below(80)));
        disk.open();
        let mut deck = Deck::new(disk);
        deck.shuffle = Some(Rng::from_seed(rng.next_u64()));
        deck.is_label_left = interruption == Interruption::Full;
        let mut is_alive = deck.run(Command::Load { is_writable: true }).is_ok();
        (model.partition, model.at) = (0, 0);
        let (mut steps, mut told) = (0, None);
        while is_alive && steps < 200 {
            let step = step(&mut rng);
            // A format gives up every partition.
            let at = if matches!(step, Step::Format) { 0 } else { model.at };
            if steps % 4 == 0 {
                // As LTFS does, so that the copies of the label differ from those before in several sectors.
                let value = vec![u8::try_from(steps).unwrap(); 1000];
                deck.cartridge.set_attribute(0, COHERENCY, AttributeFormat::Binary, &value).unwrap();
            }
            let done = deck.step(&step, &mut model);
            is_alive = done.is_ok();
            oracle.add(&model, Some(at));
            if done == Err(Error::StorageFull) {
                goes_on(&mut deck, &mut model, &mut oracle, &what);
                is_alive = rng.chance(1, 2);
                told = told_ends(&deck).filter(|_| !is_alive);
                steps += 1;
                continue;
            }
            if matches!(done, Err(Error::WriteLost { is_flush: false, .. })) {
                told = told_ends(&deck);
            }
            if is_alive && step.is_synchronizing() {
                oracle.synchronized(&model);
            } else if is_alive && step.is_settling() {
                oracle.settled(&model);
            }
            steps += 1;
        }
        let is_killed_when_told = told.is_some() && rng.chance(2, 3);
        if interruption.ends_the_process() || deck.files.operations_left.is_some() || is_killed_when_told {
            deck.files.is_gone = true;
            for request in core::mem::take(&mut deck.outstanding) {
                let _ = deck.files.perform(request.file, request.action);
            }
        } else {
            let _ = deck.run(Command::Unload);
        }
        disk = deck.files;
        disk.end();
        if is_killed_when_told && rng.chance(1, 2) {
            disk.lose_power();
        }
        disk.open();
        let mut deck = Deck::new(disk);
        let report = deck.load();
        assert!(report.partitions.iter().all(|part| part.damaged == 0), "{what}: {report:?}");
        for partition in 0..PARTITIONS {
            let found = deck.objects(u8::try_from(partition).unwrap());
            oracle.check(interruption, partition, &found, &what);
            model.parts[partition] = found.into();
        }
        assert_eq!(deck.cartridge.damaged_headers().count(), 0, "{what}");
        if told.is_some() {
            assert_eq!(told_ends(&deck), told, "{what}: hosts were told that the data end there");
        }
        match interruption {
            Interruption::Power => oracle.synchronized(&model),
            _ => {
                oracle.add(&model, None);
                oracle.settled(&model);
            }
        }
        if rng.chance(1, 2) {
            (model.partition, model.at) = (1, model.parts[1].len());
            let destination = Destination::EndOfData;
            deck.run(Command::Locate { partition: 1, destination }).unwrap();
            deck.step(&Step::Write { seed, len: 1000, is_compressed: false }, &mut model).unwrap();
            deck.step(&Step::Synchronize, &mut model).unwrap();
            oracle.synchronized(&model);
        }
        disk = deck.files;
    }
}

/// Returns where the data of each partition end, as hosts see it, if the cartridge is loaded.
fn told_ends(deck: &Deck<Disk>) -> Option<Vec<u64>> {
    let end = |partition| deck.cartridge.partition(partition).map(|now| now.objects);
    (0..u8::try_from(PARTITIONS).unwrap()).map(end).collect()
}

/// Checks that a cartridge whose storage was full holds everything that was in its files, and goes on.
fn goes_on(deck: &mut Deck<Disk>, model: &mut Model, oracle: &mut Oracle, what: &str) {
    if deck.cartridge.label().is_none() {
        // An unload has told of it.
        deck.load();
    }
    assert!(!deck.cartridge.has_lost_writes() && !deck.cartridge.is_unfiled(), "{what}");
    for partition in 0..PARTITIONS {
        let found = deck.objects(u8::try_from(partition).unwrap());
        oracle.check(Interruption::Kill, partition, &found, what);
        model.parts[partition] = found.into();
    }
    (model.partition, model.at) = (PARTITIONS - 1, model.parts[PARTITIONS - 1].len());
    oracle.add(model, None);
    oracle.settled(model);
}
