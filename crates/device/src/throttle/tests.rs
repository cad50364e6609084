use alloc::vec::Vec;

use base::rng::Rng;
use scsi::cdb::Cdb;
use scsi::status::TaskAttribute;

use super::*;
use crate::contract::{TaskKey, UnitConfig};
use crate::device_server::command_set::CommandSet;
use crate::task::Origin;
use crate::testing::{A, B, Rig, config};
use crate::unit::table;

/// Returns the names of the commands of a device type that count.
fn counted(set: &CommandSet, device: DeviceKind) -> Vec<&'static str> {
    let mut rig = Rig::new();
    rig.unit.server.info.config = UnitConfig { device, ..config() };
    let mut names: Vec<&str> = Vec::new();
    for row in table(set).rows() {
        let mut bytes = [0; 32];
        bytes[..row.usage.len()].copy_from_slice(row.usage);
        bytes[0] = row.opcode;
        match (row.service_action, row.opcode) {
            (Some(action), opcode::VARIABLE_LENGTH) => {
                bytes[7] = 24;
                bytes[8..10].copy_from_slice(&action.to_be_bytes());
            }
            (Some(action), _) => bytes[1] = action.to_be_bytes()[1],
            (None, _) => {}
        }
        let cdb = Cdb::from_bytes(&bytes[..row.usage.len()]).unwrap();
        let task = TaskInfo::new(Origin::Transport(TaskKey(1)), A, cdb).with_lengths(512, 0);
        if cost_of(&rig.unit.server.info, &task).is_some() {
            names.push(row.name.split('(').next().unwrap());
        }
    }
    names.sort_unstable();
    names.dedup();
    names
}

#[test]
fn commands_that_use_the_medium_count_and_no_others() {
    assert_eq!(
        counted(&crate::sbc::COMMAND_SET, DeviceKind::Disk),
        [
            "COMPARE AND WRITE",
            "FORMAT UNIT",
            "ORWRITE",
            "PRE-FETCH",
            "READ",
            "SANITIZE BLOCK ERASE",
            "SANITIZE CRYPTOGRAPHIC ERASE",
            "SANITIZE EXIT FAILURE MODE",
            "SANITIZE OVERWRITE",
            "SYNCHRONIZE CACHE",
            "UNMAP",
            "VERIFY",
            "WRITE",
            "WRITE AND VERIFY",
            "WRITE ATOMIC",
            "WRITE SAME",
        ]
    );
    assert_eq!(
        counted(&crate::ssc::COMMAND_SET, DeviceKind::Tape),
        ["ERASE", "FORMAT MEDIUM", "LOCATE", "READ", "SPACE", "VERIFY", "WRITE", "WRITE FILEMARKS"]
    );
    let disc = DeviceKind::Disc { profile: None };
    assert_eq!(
        counted(&crate::mmc::COMMAND_SET, disc),
        [
            "FORMAT UNIT",
            "READ",
            "READ CD",
            "READ CD MSF",
            "SYNCHRONIZE CACHE",
            "VERIFY",
            "WRITE",
            "WRITE AND VERIFY",
        ]
    );
}

#[test]
fn verifying_a_disc_counts_the_sectors_that_are_read() {
    let mut rig = Rig::new();
    rig.unit.server.info.config = UnitConfig { device: DeviceKind::Disc { profile: None }, ..config() };
    let cdb = Cdb::from_bytes(&[opcode::VERIFY_10, 0, 0, 0, 0, 0, 0, 4, 0, 0]).unwrap();
    let task = TaskInfo::new(Origin::Transport(TaskKey(1)), A, cdb);
    let info = &rig.unit.server.info;
    let cost = cost_of(info, &task).unwrap();
    assert_eq!(Some(cost.bytes), info.block_size().len_of(Blocks(1024)).map(|len| len.0));
}

#[test]
fn a_command_counts_by_what_it_transfers_or_changes_up_to_the_longest_transfer() {
    let rig = Rig::new();
    let info = &rig.unit.server.info;
    let of = |opcode: u8, blocks: u32, len: u32| {
        let mut bytes = [0; 16];
        bytes[0] = opcode;
        bytes[10..14].copy_from_slice(&blocks.to_be_bytes());
        let cdb = Cdb::from_bytes(&bytes).unwrap();
        let task = TaskInfo::new(Origin::Transport(TaskKey(1)), A, cdb).with_lengths(len, 0);
        cost_of(info, &task).map(|cost| (cost.operations, cost.bytes))
    };
    assert_eq!(of(opcode::READ_16, 1, 512), Some((1, 512)));
    assert_eq!(of(opcode::READ_16, 2048, 1 << 20), Some((4, 1 << 20)));
    assert_eq!(of(opcode::WRITE_SAME_16, 4096, 512), Some((8, 2 << 20)));
    assert_eq!(of(opcode::WRITE_SAME_16, u32::MAX, 512), Some((32, 8 << 20)));
    assert_eq!(of(opcode::SYNCHRONIZE_CACHE_16, u32::MAX, 0), Some((1, 0)));
    assert_eq!(of(opcode::REPORT_LUNS, 1, 512), None);
}

/// What two LUNs let start, each command with its time and its operations.
struct Started {
    of_initiator: Vec<(Instant, u64)>,
    of_lun: [Vec<(Instant, u64)>; 2],
}

/// The most operations that a command of [`hostile`] counts as.
const OPERATIONS_MAX: u64 = 32;

/// Lets two sessions of an initiator add, abort and pass commands at random on two LUNs. Its limit is that of
/// all of them together, and each LUN has a limit of its own.
fn hostile(seed: u64, own: RateLimit, of_lun: RateLimit) -> Started {
    let mut rng = Rng::from_seed(seed);
    let mut now = Instant::ORIGIN;
    let limiter = Rc::new(RefCell::new(Limiter::new(now, own)));
    let mut luns = [Throttle::new(now, of_lun), Throttle::new(now, of_lun)];
    for lun in &mut luns {
        for nexus in [A, B] {
            lun.limit_nexus(now, nexus, &limiter);
        }
    }
    let mut waiting: [Vec<(TaskId, NexusId, u64)>; 2] = Default::default();
    let mut started = Started { of_initiator: Vec::new(), of_lun: Default::default() };
    for slot in 0..2000 {
        let at = usize::try_from(rng.below(2)).unwrap();
        let (lun, waiting) = (&mut luns[at], &mut waiting[at]);
        if rng.chance(1, 3) && !waiting.is_empty() {
            let victim = usize::try_from(rng.below(u64::try_from(waiting.len()).unwrap())).unwrap();
            let (task, nexus, _) = waiting.swap_remove(victim);
            lun.forget(now, nexus, task);
        } else if waiting.len() < 8 {
            let nexus = if rng.chance(1, 2) { A } else { B };
            let cdb = Cdb::from_bytes(&[0; 16]).unwrap();
            let mut info = TaskInfo::new(Origin::Transport(TaskKey(1)), nexus, cdb);
            info.id = TaskId { slot, generation: 0 };
            if rng.chance(1, 4) {
                info.attribute = TaskAttribute::HeadOfQueue;
            }
            let operations = 1 + rng.below(OPERATIONS_MAX);
            lun.add(now, &info, Cost { operations, bytes: 0 });
            waiting.push((info.id, nexus, operations));
        }
        while let Some(end) = lun.next(now) {
            let (EndOfDelay::Start(task, _) | EndOfDelay::Refuse(task)) = end;
            let which = waiting.iter().position(|(known, ..)| *known == task).unwrap();
            let (_, _, operations) = waiting.swap_remove(which);
            if let EndOfDelay::Start(..) = end {
                started.of_initiator.push((now, operations));
                started.of_lun[at].push((now, operations));
            }
        }
        let debt = limiter.borrow_mut().delay(now, Cost::default()).as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "the count is small")]
        let most = (4 * OPERATIONS_MAX) as f64 / f64::from(own.iops);
        assert!(debt <= most + 1e-6, "seed {seed}: a debt of {debt} s after {slot} steps");
        now = now.after(Duration::from_micros(rng.below(10_000)));
    }
    started
}

#[test]
fn aborts_and_head_of_queue_commands_gain_nothing_and_leave_no_debt() {
    let own = RateLimit { iops: 1000, bandwidth: 0, burst: Duration::from_millis(100) };
    for seed in 0..40 {
        let of_lun = [RateLimit::NONE, RateLimit { iops: 400, ..own }][usize::from(seed % 2 == 1)];
        let started = hostile(seed, own, of_lun);
        let within = |limit: RateLimit, started: &[(Instant, u64)], sessions: u64| {
            for first in 0..started.len() {
                let mut sum = 0;
                for (at, operations) in &started[first..] {
                    sum += operations;
                    let span = at.since(started[first].0).saturating_add(limit.burst).as_secs_f64();
                    #[expect(clippy::cast_precision_loss, reason = "the sums are small")]
                    let (sum, heads) = (sum as f64, (sessions * OPERATIONS_MAX) as f64);
                    let most = f64::from(limit.iops) * span + heads + 1e-6;
                    assert!(sum <= most, "seed {seed}: {sum} operations in {span} s");
                }
            }
        };
        assert!(started.of_initiator.len() > 200, "seed {seed}");
        within(own, &started.of_initiator, 4);
        if !of_lun.is_none() {
            started.of_lun.iter().for_each(|started| within(of_lun, started, 2));
        }
    }
}
