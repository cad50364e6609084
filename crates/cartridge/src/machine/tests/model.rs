//! Random commands beside a model: a list of objects for each partition.

use alloc::rc::Rc;

use super::*;
use crate::command::Recovery;

/// An object of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Record { seed: u64, len: usize },
    Filemark,
}

/// The objects of a partition.
pub(super) type Objects = Rc<Vec<Object>>;

/// What a cartridge must hold.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) parts: Vec<Objects>,
    pub(super) partition: usize,
    pub(super) at: usize,
}

/// A random command, as the model and the cartridge both understand it.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Write {
        seed: u64,
        len: usize,
        is_compressed: bool,
    },
    Filemarks {
        count: u32,
        is_immediate: bool,
    },
    Drain,
    Synchronize,
    Read,
    Locate {
        partition: usize,
        destination: Destination,
    },
    Space {
        unit: SpaceUnit,
        count: i64,
    },
    Erase,
    /// Into the partitions that there are.
    Format,
    Reload,
    SaveLabel,
}

impl Step {
    pub(super) fn random(rng: &mut Rng, partitions: usize, len_max: usize) -> Self {
        let seed = rng.next_u64();
        let partition = pick(rng, partitions);
        match rng.below(29) {
            0..=7 => Self::Write { seed, len: random_len(rng).min(len_max), is_compressed: rng.chance(1, 3) },
            8..=10 => Self::Filemarks {
                count: u32::try_from(rng.below(3)).unwrap(),
                is_immediate: rng.chance(1, 2),
            },
            11 => Self::Synchronize,
            12..=15 => Self::Read,
            16 | 17 => Self::Locate { partition, destination: Destination::Object(rng.below(30)) },
            18 => Self::Locate { partition, destination: Destination::Filemark(rng.below(8)) },
            19 => Self::Locate { partition, destination: Destination::EndOfData },
            20 | 21 => {
                Self::Space { unit: SpaceUnit::Records, count: i64::try_from(rng.below(13)).unwrap() - 6 }
            }
            22 => Self::Space { unit: SpaceUnit::Filemarks, count: i64::try_from(rng.below(7)).unwrap() - 3 },
            23 if rng.chance(1, 4) => Self::Erase,
            25 if rng.chance(1, 4) => Self::Format,
            24 => Self::Reload,
            26..=28 => Self::Drain,
            _ => Self::SaveLabel,
        }
    }

    pub(super) fn is_synchronizing(&self) -> bool {
        matches!(
            self,
            Self::Filemarks { is_immediate: false, .. } | Self::Synchronize | Self::Reload | Self::Format
        )
    }

    /// Returns whether everything is in its files after the step.
    pub(super) fn is_settling(&self) -> bool {
        let is_movement = matches!(self, Self::Read | Self::Locate { .. } | Self::Space { .. });
        is_movement || matches!(self, Self::Drain) || self.is_synchronizing()
    }
}

pub(super) fn pick(rng: &mut Rng, count: usize) -> usize {
    usize::try_from(rng.below(u64::try_from(count).unwrap())).unwrap()
}

fn random_len(rng: &mut Rng) -> usize {
    let len_max = match rng.below(10) {
        0..=4 => 300,
        5..=7 => 20_000,
        8 => 300_000,
        _ => 2_500_000,
    };
    15 + pick(rng, len_max)
}

/// Returns the data of a record, at least 15 bytes: half of it random, so that compression shows. No sector
/// of it is what a disk returns that has lost a write.
pub(super) fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![1 | seed.to_be_bytes()[0]; len];
    Rng::from_seed(seed).fill(&mut bytes[..len.div_ceil(2)]);
    bytes
}

impl Model {
    pub(super) fn new(partitions: usize) -> Self {
        Self { parts: vec![Rc::default(); partitions], partition: 0, at: 0 }
    }

    fn objects(&self) -> &[Object] {
        &self.parts[self.partition]
    }

    fn filemarks(&self, objects: &[Object]) -> u64 {
        u64::try_from(objects.iter().filter(|object| **object == Object::Filemark).count()).unwrap()
    }

    fn append(&mut self, object: Object) {
        let objects = Rc::make_mut(&mut self.parts[self.partition]);
        objects.truncate(self.at);
        objects.push(object);
        self.at += 1;
    }

    /// Applies a step. Returns what a movement must tell.
    pub(super) fn apply(&mut self, step: &Step) -> Option<(Option<Stop>, u64)> {
        match step {
            Step::Write { seed, len, .. } => self.append(Object::Record { seed: *seed, len: *len }),
            Step::Filemarks { count, .. } => (0..*count).for_each(|_| self.append(Object::Filemark)),
            Step::Read => self.at = (self.at + 1).min(self.objects().len()),
            Step::Erase => Rc::make_mut(&mut self.parts[self.partition]).truncate(self.at),
            Step::Format => {
                self.parts.iter_mut().for_each(|part| *part = Rc::default());
                (self.partition, self.at) = (0, 0);
            }
            Step::Reload => (self.partition, self.at) = (0, 0),
            Step::Locate { partition, destination } => {
                self.partition = *partition;
                return Some(self.locate(*destination));
            }
            Step::Space { unit, count } => return Some(self.space(*unit, *count)),
            Step::Drain | Step::Synchronize | Step::SaveLabel => {}
        }
        None
    }

    fn locate(&mut self, destination: Destination) -> (Option<Stop>, u64) {
        let len = self.objects().len();
        let marks = self.filemarks(self.objects());
        let (at, left) = match destination {
            Destination::EndOfData => (len, 0),
            Destination::Object(object) => {
                let at = usize::try_from(object).unwrap();
                (at.min(len), u64::try_from(at.saturating_sub(len)).unwrap())
            }
            Destination::Filemark(count) if count > marks => (len, count - marks),
            Destination::Filemark(count) => {
                let at = (0..=len).find(|at| self.filemarks(&self.objects()[..*at]) == count);
                (at.unwrap(), 0)
            }
        };
        self.at = at;
        ((left > 0).then_some(Stop::EndOfData), left)
    }

    fn space(&mut self, unit: SpaceUnit, count: i64) -> (Option<Stop>, u64) {
        let mut left = count.unsigned_abs();
        while left > 0 {
            let next = if count > 0 { Some(self.at) } else { self.at.checked_sub(1) };
            let Some(next) = next else { return (Some(Stop::Start), left) };
            let Some(object) = self.objects().get(next) else { return (Some(Stop::EndOfData), left) };
            let is_mark = *object == Object::Filemark;
            self.at = if count > 0 { next + 1 } else { next };
            match unit {
                SpaceUnit::Records if is_mark => return (Some(Stop::Filemark), left),
                SpaceUnit::Records => left -= 1,
                SpaceUnit::Filemarks => left -= u64::from(is_mark),
                SpaceUnit::EndOfData => {}
            }
        }
        (None, 0)
    }
}

impl<F: Files> Deck<F> {
    /// Applies a step, and checks what it leads to.
    pub(super) fn step(&mut self, step: &Step, model: &mut Model) -> Result<(), Error> {
        let next = model.objects().get(model.at).cloned();
        let expected = model.apply(step);
        let outcome = match step {
            Step::Write { seed, len, is_compressed } => {
                let data = Bytes::copied_from(&content(*seed, *len)).into();
                let record = Record { data, is_compressed: *is_compressed, ..beside(*seed) };
                self.run(Command::Write(record))?
            }
            Step::Filemarks { count, is_immediate } => {
                self.run(Command::WriteFilemarks { count: *count, is_immediate: *is_immediate })?
            }
            Step::Drain => self.run(Command::Drain)?,
            Step::Synchronize => self.run(Command::Synchronize)?,
            Step::SaveLabel => self.run(Command::SaveLabel)?,
            Step::Erase => self.run(Command::Erase)?,
            Step::Format => {
                let parts = &self.cartridge.label().unwrap().partitions;
                let partitions = parts.iter().map(|part| part.capacity).collect();
                self.run(Command::Format { partitions })?
            }
            Step::Read => self.run(Command::Read)?,
            Step::Locate { partition, destination } => {
                let partition = u8::try_from(*partition).unwrap();
                self.run(Command::Locate { partition, destination: *destination })?
            }
            Step::Space { unit, count } => self.run(Command::Space { unit: *unit, count: *count })?,
            Step::Reload => {
                self.run(Command::Unload)?;
                self.run(Command::Load { is_writable: true })?
            }
        };
        match (&outcome, step) {
            (Outcome::Moved { stop, left }, _) => assert_eq!(Some((*stop, *left)), expected),
            (outcome, Step::Read) => assert_eq!(object_of(outcome), next),
            (Outcome::Loaded(report), _) => {
                let is_expected = |part: &Recovery| match self.is_label_left {
                    true => part.damaged == 0 && !part.is_end_unreadable,
                    false => *part == Recovery::default(),
                };
                assert!(report.partitions.iter().all(is_expected), "{report:?}");
            }
            _ => assert_eq!(expected, None),
        }
        let position = self.cartridge.position();
        assert_eq!(usize::from(position.partition), model.partition);
        assert_eq!(usize::try_from(position.object).unwrap(), model.at);
        assert_eq!(position.filemarks, model.filemarks(&model.objects()[..model.at]));
        if model.at.is_multiple_of(2) {
            self.cartridge.check_ahead();
        }
        Ok(())
    }

    /// Reads what a partition holds.
    pub(super) fn objects(&mut self, partition: u8) -> Vec<Object> {
        self.go(partition, 0);
        let mut objects = Vec::new();
        loop {
            let outcome = self.run(Command::Read).unwrap();
            match object_of(&outcome) {
                Some(object) => objects.push(object),
                None => return objects,
            }
        }
    }
}

/// Returns what is stored beside the data of a record: of every other one a guard, or what belongs to
/// encryption, or both.
fn beside(seed: u64) -> Record {
    let guard = (seed & 3 == 1 || seed & 3 == 3)
        .then(|| Guard { method: 1 + u8::from(seed & 4 != 0), value: u32::try_from(seed >> 32).unwrap() });
    if seed & 3 < 2 {
        return Record { guard, ..Record::default() };
    }
    let metadata = seed.to_be_bytes().repeat(1 + usize::from(seed.to_be_bytes()[0]) % 128);
    Record { guard, encryption: 1, metadata, ..Record::default() }
}

/// Returns an object as the model has it. The seed of a record follows from its data.
fn object_of(outcome: &Outcome) -> Option<Object> {
    match outcome {
        Outcome::Record(record) => {
            let bytes = bytes_of(&record.data);
            let seed = seed_of_record(&bytes);
            let Record { guard, encryption, metadata, .. } = beside(seed);
            assert_eq!((record.guard, record.encryption, &record.metadata), (guard, encryption, &metadata));
            Some(Object::Record { seed, len: bytes.len() })
        }
        Outcome::Filemark => Some(Object::Filemark),
        Outcome::EndOfData => None,
        other => panic!("{other:?}"),
    }
}

/// Returns the seed that a record was made of: SplitMix64 can be computed backwards from its first eight
/// bytes.
fn seed_of_record(bytes: &[u8]) -> u64 {
    let seed = seed_of(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
    assert!(content(seed, bytes.len()) == bytes, "a garbled record of {} bytes", bytes.len());
    seed
}

/// Returns the seed whose first number this is.
fn seed_of(first: u64) -> u64 {
    let unshift = |mut z: u64, by: u32| {
        let shifted = z;
        for _ in 0..64 / by {
            z = shifted ^ (z >> by);
        }
        z
    };
    let inverse = |odd: u64| (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))));
    let z = unshift(first, 31).wrapping_mul(inverse(0x94d0_49bb_1331_11eb));
    let z = unshift(z, 27).wrapping_mul(inverse(0xbf58_476d_1ce4_e5b9));
    unshift(z, 30).wrapping_sub(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn seeds_are_found_again() {
    for seed in [0, 1, 77, u64::MAX, 0x1234_5678_9abc_def0] {
        assert_eq!(seed_of(Rng::from_seed(seed).next_u64()), seed);
    }
}

#[test]
fn random_commands_do_what_the_model_does() {
    for seed in 0..40 {
        std::eprintln!("seed {seed}");
        let mut rng = Rng::from_seed(seed);
        let partitions = vec![64 << 20; 1 + pick(&mut rng, 3)];
        let count = partitions.len();
        let mut deck = deck_of(&Blank { capacity: 256 << 20, partitions, ..blank() });
        deck.load();
        let mut model = Model::new(count);
        for _ in 0..120 {
            let step = Step::random(&mut rng, count, usize::MAX);
            deck.step(&step, &mut model).unwrap_or_else(|error| panic!("seed {seed}: {step:?}: {error}"));
        }
        for (partition, expected) in (0..).zip(&model.parts) {
            assert_eq!(deck.objects(partition), **expected, "seed {seed}");
        }
        assert_eq!(deck.cartridge.damaged_headers().count(), 0, "seed {seed}");
    }
}
