//! Random commands from several nexuses against a model array.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::contract::{NexusId, UnitEvent};
use crate::testing::{A, B, Gate, Rig, Slow, cdb_16, config};
use base::rng::Rng;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

const COUNT: u64 = 400;

/// A command, and its effect on the model.
struct Step {
    nexus: NexusId,
    cdb: Vec<u8>,
    room: usize,
    out: Vec<u8>,
    effect: Effect,
}

enum Effect {
    Reads,
    Writes,
    Fills,
    Zeroes,
    Ors,
    ComparesAndWrites,
    Verifies,
    Nothing,
}

fn range_of(cdb: &[u8]) -> (usize, usize) {
    let lba = u64::from_be_bytes(cdb[2..10].try_into().unwrap());
    let blocks = u32::from_be_bytes(cdb[10..14].try_into().unwrap());
    (usize::try_from(lba).unwrap() * 512, usize::try_from(blocks).unwrap() * 512)
}

fn step(rng: &mut Rng, model: &[u8]) -> Step {
    let lba = rng.below(COUNT);
    let blocks = u32::try_from(rng.below((COUNT - lba).min(140)) + 1).unwrap();
    let len = usize::try_from(blocks).unwrap() * 512;
    let at = usize::try_from(lba).unwrap() * 512;
    let mut data = vec![0; len];
    rng.fill(&mut data);
    let held = &model[at..at + len];
    let (cdb, room, out, effect) = match rng.below(9) {
        0 => (cdb_16(op::READ_16, 0, lba, blocks), len, vec![], Effect::Reads),
        1 => (cdb_16(op::WRITE_16, 0, lba, blocks), 0, data, Effect::Writes),
        2 => (cdb_16(op::WRITE_AND_VERIFY_16, 2, lba, blocks), 0, data, Effect::Writes),
        3 => (cdb_16(op::WRITE_SAME_16, 0, lba, blocks), 0, data[..512].to_vec(), Effect::Fills),
        4 => (cdb_16(op::WRITE_SAME_16, 9, lba, blocks), 0, vec![], Effect::Zeroes),
        5 => (cdb_16(op::ORWRITE_16, 0, lba, blocks), 0, data, Effect::Ors),
        6 => {
            let mut expected = held.to_vec();
            if rng.chance(1, 3) {
                expected[len / 2] ^= 1;
            }
            (
                cdb_16(op::COMPARE_AND_WRITE, 0, lba, blocks),
                0,
                [expected, data].concat(),
                Effect::ComparesAndWrites,
            )
        }
        7 => {
            let mut expected = held.to_vec();
            if rng.chance(1, 3) {
                expected[len - 1] ^= 0x80;
            }
            (cdb_16(op::VERIFY_16, 2, lba, blocks), 0, expected, Effect::Verifies)
        }
        _ => (cdb_16(op::SYNCHRONIZE_CACHE_16, 0, 0, 0), 0, vec![], Effect::Nothing),
    };
    let nexus = if rng.chance(1, 2) { A } else { B };
    Step { nexus, cdb: cdb.to_vec(), room, out, effect }
}

/// Applies a step to the model and returns the data and whether the command is to succeed.
fn apply(step: &Step, model: &mut [u8]) -> (Vec<u8>, bool) {
    let (at, len) = range_of(&step.cdb);
    let held = &mut model[at..at + len];
    match step.effect {
        Effect::Reads => return (held.to_vec(), true),
        Effect::Writes => held.copy_from_slice(&step.out),
        Effect::Fills => held.chunks_mut(512).for_each(|block| block.copy_from_slice(&step.out)),
        Effect::Zeroes => held.fill(0),
        Effect::Ors => held.iter_mut().zip(&step.out).for_each(|(to, from)| *to |= from),
        Effect::ComparesAndWrites if *held == step.out[..len] => held.copy_from_slice(&step.out[len..]),
        Effect::ComparesAndWrites => return (vec![], false),
        Effect::Verifies => return (vec![], *held == step.out[..]),
        Effect::Nothing => {}
    }
    (vec![], true)
}

#[test]
fn commands_one_after_the_other_agree_with_an_array() {
    for seed in 0..8 {
        let mut rng = Rng::from_seed(seed);
        let mut rig = Rig::new();
        let mut model = vec![0; usize::try_from(COUNT).unwrap() * 512];
        for number in 0..100 {
            let step = step(&mut rng, &model);
            let (data, good) = apply(&step, &mut model);
            let reply = rig.run(step.nexus, &step.cdb, step.room, &step.out);
            let place = || alloc::format!("seed {seed} step {number}: {:02x?}", step.cdb);
            if good {
                assert_eq!(reply.status, Status::GOOD, "{}: {:?}", place(), reply.sense);
                assert!(reply.data == data, "{}", place());
            } else {
                assert_eq!(
                    reply.sense,
                    Some((SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY)),
                    "{}",
                    place()
                );
            }
        }
        assert!(rig.read(0, u32::try_from(COUNT).unwrap()) == model, "seed {seed}");
    }
}

/// Two nexuses increment a counter concurrently with COMPARE AND WRITE, on a medium that answers late: no
/// increment may be lost.
#[test]
fn increments_from_several_nexuses_at_once_are_never_lost() {
    for seed in 0..40 {
        let mut rng = Rng::from_seed(seed);
        let (medium, gate) = Slow::new(1 << 20);
        let mut rig = Rig::with(config(), Box::new(medium));
        let mut workers: Vec<Worker> = (0..6).map(Worker::new).collect();
        let mut steps = 0;
        while workers.iter().any(|worker| worker.left > 0) {
            steps += 1;
            assert!(steps < 50_000, "seed {seed}: no progress");
            let at = usize::try_from(rng.below(6)).unwrap();
            workers[at].go_on(&mut rig);
            toggle(&mut rng, &gate);
            rig.ready();
        }
        gate.open();
        rig.ready();
        let block = rig.read(0, 1);
        assert_eq!(u32::from_be_bytes(block[..4].try_into().unwrap()), 6 * Worker::ROUNDS, "seed {seed}");
    }
}

fn toggle(rng: &mut Rng, gate: &Gate) {
    if rng.chance(2, 3) {
        gate.open();
    } else {
        gate.close();
    }
}

/// A worker that increments the counter in block 0 and reads it again after every COMPARE AND WRITE.
struct Worker {
    nexus: NexusId,
    left: u32,
    known: Vec<u8>,
    command: Option<(crate::contract::TaskKey, Vec<u8>)>,
    read: Vec<u8>,
}

impl Worker {
    const ROUNDS: u32 = 15;

    fn new(number: usize) -> Self {
        let nexus = if number.is_multiple_of(2) { A } else { B };
        Self { nexus, left: Self::ROUNDS, known: vec![0; 512], command: None, read: vec![] }
    }

    fn go_on(&mut self, rig: &mut Rig) {
        let Some((key, out)) = self.command.take() else {
            if self.left > 0 {
                self.begin(rig);
            }
            return;
        };
        match rig.event_of(key) {
            Some(UnitEvent::FetchDataOut { offset, len, .. }) => rig.send(key, &out, offset, len),
            Some(UnitEvent::DataIn { data, .. }) => {
                data.parts().iter().for_each(|part| self.read.extend_from_slice(part));
            }
            Some(UnitEvent::CommandComplete { status, .. }) => return self.ended(rig, status),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        self.command = Some((key, out));
    }

    fn begin(&mut self, rig: &mut Rig) {
        let mut new = self.known.clone();
        let count = u32::from_be_bytes(new[..4].try_into().unwrap()) + 1;
        new[..4].copy_from_slice(&count.to_be_bytes());
        let out = [self.known.clone(), new].concat();
        let key = rig.start(self.nexus, &cdb_16(op::COMPARE_AND_WRITE, 0, 0, 1), 0, 1024);
        self.command = Some((key, out));
    }

    fn ended(&mut self, rig: &mut Rig, status: Status) {
        let reading = !self.read.is_empty();
        match (reading, status) {
            (true, _) => self.known = core::mem::take(&mut self.read),
            (false, Status::GOOD) => self.left -= 1,
            (false, _) => {}
        }
        if !reading && self.left > 0 {
            let key = rig.start(self.nexus, &cdb_16(op::READ_16, 0, 0, 1), 512, 0);
            self.command = Some((key, vec![]));
        }
    }
}
