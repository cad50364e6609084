//! Crashes: a cartridge that is not unloaded, at every operation and between the bytes of every write.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;

use store::Store as _;
use store::api::{Durability, Op, OpId};
use store::powercut::Power;

use super::model::{Model, Object, Objects, Step};
use super::*;
use crate::label::FILE_LEN;

/// How many histories a test run has.
const SEEDS: u64 = 30;

/// Files on media that lose their power. A file whose making was not flushed can be lost as a whole.
struct Powered {
    segment_len: u64,
    files: BTreeMap<FileId, Power>,
    flushed: BTreeSet<FileId>,
    operations_left: Option<u64>,
    pending: Vec<(FileId, u64, DataList)>,
}

impl Powered {
    fn new(label: &Label) -> Self {
        let power = Power::new(FILE_LEN);
        let mut files = Self {
            segment_len: label.segment_len,
            files: BTreeMap::from([(FileId::Label, power)]),
            flushed: BTreeSet::from([FileId::Label]),
            operations_left: None,
            pending: Vec::new(),
        };
        let data = Bytes::copied_from(&label.file()).into();
        files
            .perform(FileId::Label, OpAction::Write { at: 0, data, durability: Durability::Stable })
            .unwrap();
        files
    }

    fn cut(&mut self, rng: &mut Rng) {
        for (file, at, data) in core::mem::take(&mut self.pending) {
            // Any sectors of a write under way may be on the medium.
            let power = self.files.entry(file).or_insert_with(|| Power::new(self.segment_len));
            let action = OpAction::Write { at, data, durability: Durability::Cached };
            power.store().submit(Op { id: OpId(0), action });
        }
        let flushed = self.flushed.clone();
        self.files.retain(|file, _| flushed.contains(file) || rng.chance(1, 2));
        self.files.values().for_each(|power| power.cut(rng.next_u64()));
        self.flushed = self.files.keys().copied().collect();
        self.operations_left = None;
    }
}

impl Files for Powered {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        if let Some(left) = &mut self.operations_left {
            let Some(fewer) = left.checked_sub(1) else {
                if let OpAction::Write { at, data, .. } = action {
                    self.pending.push((file, at, data));
                }
                return Err(Fault::Gone.into());
            };
            *left = fewer;
        }
        if matches!(action, OpAction::Flush) {
            self.flushed.insert(file);
        }
        let segment_len = self.segment_len;
        let power = match action {
            OpAction::Write { .. } => self.files.entry(file).or_insert_with(|| Power::new(segment_len)),
            _ => self.files.get(&file).ok_or(Fault::OutOfRange)?,
        };
        let mut store = power.store();
        store.submit(Op { id: OpId(1), action });
        store.poll().unwrap().result
    }
}

/// What a partition may hold after a crash: the start of one of the states since the last synchronisation,
/// with everything that was durable and not overwritten by then.
#[derive(Default)]
pub(super) struct Allowed {
    pub(super) states: Vec<(Objects, usize)>,
}

impl Allowed {
    pub(super) fn synchronized(&mut self, objects: &Objects) {
        self.states = vec![(Rc::clone(objects), objects.len())];
    }

    /// Adds what a partition holds after a step that began at object `at`. If that changed the partition, it
    /// gave up what was there, even if the new objects are like the old ones.
    pub(super) fn add(&mut self, objects: &Objects, at: usize) {
        let Some((before, kept)) = self.states.last() else { return };
        let kept = if Rc::ptr_eq(before, objects) { *kept } else { (*kept).min(at) };
        self.states.push((Rc::clone(objects), kept));
    }

    /// Adds what an interruption left.
    pub(super) fn add_found(&mut self, objects: &Objects) {
        let Some((before, _)) = self.states.last() else { return };
        let common = before.iter().zip(&**objects).take_while(|(old, new)| old == new).count();
        self.add(objects, common);
    }

    pub(super) fn allows(&self, found: &[Object]) -> bool {
        self.states.iter().any(|(state, kept)| found.len() >= *kept && state.starts_with(found))
    }
}

#[test]
fn a_loss_of_power_keeps_what_was_synchronized_and_garbles_nothing() {
    for seed in 0..SEEDS {
        std::eprintln!("seed {seed}");
        let mut rng = Rng::from_seed(seed);
        let blank = Blank { capacity: 64 << 20, partitions: vec![32 << 20; 2], ..blank() };
        let mut files = Powered::new(&Label::blank(&blank).unwrap());
        let mut model = Model::new(2);
        for round in 0..3 {
            files.operations_left = Some(10 + rng.below(60));
            let mut deck = Deck::new(files);
            let mut allowed: [Allowed; 2] = Default::default();
            let loaded = deck.run(Command::Load { is_writable: true });
            (model.partition, model.at) = (0, 0);
            for (allowed, objects) in allowed.iter_mut().zip(&model.parts) {
                allowed.synchronized(objects);
            }
            let mut is_alive = loaded.is_ok();
            while is_alive {
                let step = Step::random(&mut rng, 2, 200_000);
                // A format gives up every partition.
                let at = if matches!(step, Step::Format) { 0 } else { model.at };
                is_alive = deck.step(&step, &mut model).is_ok();
                for (allowed, objects) in allowed.iter_mut().zip(&model.parts) {
                    allowed.add(objects, at);
                    if is_alive && step.is_synchronizing() {
                        allowed.synchronized(objects);
                    }
                }
            }
            files = deck.files;
            files.cut(&mut rng);
            let mut deck = Deck::new(files);
            let report = deck.load();
            assert!(report.partitions.iter().all(|part| part.damaged == 0), "seed {seed} round {round}");
            for (partition, allowed) in (0..).zip(&allowed) {
                let found = deck.objects(partition);
                let states = &allowed.states;
                assert!(allowed.allows(&found), "seed {seed} round {round}: {found:?} of {states:?}");
                model.parts[usize::from(partition)] = Rc::new(found);
            }
            assert_eq!(deck.cartridge.damaged_headers().count(), 0, "seed {seed} round {round}");
            if rng.chance(1, 2) {
                // The end that was found is where the next data go, whatever is behind it.
                deck.run(Command::Locate { partition: 1, destination: Destination::EndOfData }).unwrap();
                (model.partition, model.at) = (1, model.parts[1].len());
                let step = Step::Write { seed, len: 3000, is_compressed: false };
                deck.step(&step, &mut model).unwrap();
                deck.step(&Step::Synchronize, &mut model).unwrap();
            }
            files = deck.files;
        }
    }
}

/// A format that is interrupted at any operation, with any sectors of the label that was being written,
/// leaves the old cartridge or the new one.
#[test]
fn a_format_happens_or_does_not() {
    let (mut old, mut new) = (0, 0);
    for operations in 0.. {
        let mut is_done = false;
        for seed in 0..4 {
            let mut rng = Rng::from_seed(seed);
            let blank = Blank { capacity: 64 << 20, partitions: vec![32 << 20; 2], ..blank() };
            let mut deck = Deck::new(Powered::new(&Label::blank(&blank).unwrap()));
            deck.load();
            for partition in 0..2 {
                deck.go(partition, 0);
                deck.write(&[partition; 1_200_000]).unwrap();
                deck.write(&[partition + 10; 100]).unwrap();
            }
            // What is not synchronized yet is so before the format gives it up.
            deck.files.operations_left = Some(operations);
            let formatted = deck.run(Command::Format { partitions: vec![8 << 20, 8 << 20, 16 << 20] });
            is_done = formatted.is_ok();
            let mut files = deck.files;
            files.cut(&mut rng);
            let mut deck = Deck::new(files);
            let report = deck.load();
            assert!(report.partitions.iter().all(|part| part.damaged == 0), "{operations} {seed}");
            let what = std::format!("after {operations} operations, seed {seed}");
            if deck.cartridge.partition(2).is_some() {
                new += 1;
                for partition in 0..3 {
                    assert!(deck.read_all(partition).is_empty(), "{what}");
                }
                deck.go(2, 0);
                deck.write(b"of the new cartridge").unwrap();
            } else {
                old += 1;
                assert!(!is_done, "{what}");
                for partition in 0..2 {
                    let all = [vec![partition; 1_200_000], vec![partition + 10; 100]];
                    let found = deck.read_all(partition);
                    assert!(all.starts_with(&found), "{what}: {} objects", found.len());
                }
            }
        }
        if is_done {
            break;
        }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

/// Files that remember every write, in order.
struct Recorded {
    files: MemoryFiles,
    writes: Vec<(FileId, u64, Vec<u8>)>,
}

impl Files for Recorded {
    fn perform(&mut self, file: FileId, action: OpAction) -> Result<OpOutput, Failure> {
        if let OpAction::Write { at, data, .. } = &action {
            self.writes.push((file, *at, bytes_of(data)));
        }
        self.files.perform(file, action)
    }
}

#[test]
fn an_end_between_any_two_bytes_leaves_whole_objects() {
    let mut deck = Deck::new(Recorded { files: deck_of(&blank()).files, writes: Vec::new() });
    let start = deck.files.files.clone();
    deck.load();
    // After how many writes which objects are there at least, and what may be behind them.
    let mut states: Vec<(usize, Vec<Vec<u8>>)> = vec![(0, Vec::new())];
    let mut objects: Vec<Vec<u8>> = Vec::new();
    for number in 0..4_u8 {
        deck.write(&[number + 1; 3000]).unwrap();
        deck.write(&[number + 11; 70]).unwrap();
        deck.mark(1);
        objects.extend([vec![number + 1; 3000], vec![number + 11; 70], Vec::new()]);
        states.push((deck.files.writes.len(), objects.clone()));
    }
    deck.go(0, 4);
    deck.write(&[99; 5000]).unwrap();
    let overwritten = deck.files.writes.len();
    deck.mark(1);
    objects.truncate(4);
    objects.extend([vec![99; 5000], Vec::new()]);
    let writes = deck.files.writes;
    let (mut image, mut checked) = (start, 0);
    for (index, (file, at, bytes)) in writes.iter().enumerate() {
        // An odd stride meets every offset within headers and blocks in some write.
        for cut in (0..bytes.len()).step_by(251) {
            let mut torn = Deck::new(image.clone());
            let data = Bytes::copied_from(&bytes[..cut]).into();
            let action = OpAction::Write { at: *at, data, durability: Durability::Cached };
            torn.files.perform(*file, action).unwrap();
            torn.load();
            let found = torn.read_all(0);
            let durable = states.iter().rev().find(|(done, _)| *done <= index).map(|(_, objects)| objects);
            let is_first_pass = states.iter().any(|(_, state)| state.starts_with(&found));
            let is_second_pass = found.len() >= 4 && objects.starts_with(&found);
            assert!(is_first_pass || is_second_pass, "write {index} cut at {cut}: {} objects", found.len());
            let kept = if index < states.last().unwrap().0 { durable.unwrap().len() } else { 4 };
            assert!(found.len() >= kept, "write {index} cut at {cut}: {} of {kept}", found.len());
            checked += 1;
        }
        let action = OpAction::Write {
            at: *at,
            data: Bytes::copied_from(bytes).into(),
            durability: Durability::Cached,
        };
        image.perform(*file, action).unwrap();
    }
    assert!(checked > 100 && overwritten > 0, "{checked}");
    let mut deck = Deck::new(image);
    deck.load();
    assert_eq!(deck.read_all(0), objects);
}

#[test]
fn an_item_of_an_earlier_epoch_never_comes_back() {
    // Records of one length: each new one ends where an old one begins.
    let mut deck = loaded();
    for number in 0..8 {
        deck.write(&[number; 1000]).unwrap();
    }
    deck.unload();
    deck.load();
    deck.go(0, 2);
    deck.write(&[100; 1000]).unwrap();
    deck.run(Command::Synchronize).unwrap();
    let mut crashed = Deck::new(deck.files);
    assert_eq!(crashed.load().partitions[0].recovered, 1);
    assert_eq!(crashed.read_all(0), [vec![0; 1000], vec![1; 1000], vec![100; 1000]]);
}
