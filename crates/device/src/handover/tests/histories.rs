//! Random histories of commands before a hand-over.

use super::fixture::*;
use crate::contract::Tmf;

/// Executes one random command.
fn step(rig: &mut Rig, rng: &mut Rng) {
    let nexus = if rng.chance(1, 2) { A } else { B };
    let small = |rng: &mut Rng| u8::try_from(rng.below(4)).unwrap();
    match rng.below(24) {
        0 => {
            let change = [(2, 0x04), (2, 0x02), (4, 0x08), (5, 0x40), (4, 0x20)][usize::from(small(rng))];
            change_mode(rig, nexus, 0x0a, rng.chance(1, 2), change);
        }
        1 => {
            change_mode(rig, nexus, 0x08, rng.chance(1, 2), (2, 0x04));
        }
        2..=4 => {
            let keys = (rng.below(3), rng.below(3));
            let kind = [1, 3, 5, 6, 7, 8][usize::try_from(rng.below(6)).unwrap()];
            if rng.chance(1, 2) {
                pr_out(rig, nexus, (6, 0), (0, 1), rng.chance(1, 2));
                pr_out(rig, nexus, (1, kind), (1, 0), false);
                return rig.drain();
            }
            let action = u8::try_from(rng.below(7)).unwrap();
            pr_out(rig, nexus, (action, kind), keys, rng.chance(1, 3));
        }
        5 => {
            let code = if rng.chance(2, 3) { op::RESERVE_6 } else { op::RELEASE_6 };
            run(rig, nexus, &[code, 0, 0, 0, 0, 0], &[]);
        }
        6 => {
            run(rig, nexus, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, small(rng) & 1, 0], &[]);
        }
        7 => {
            run(rig, nexus, &[op::START_STOP_UNIT, 0, 0, 0, small(rng), 0], &[]);
        }
        8 => {
            let list = [0, 0, 0, 0, 1, 2, 3, 4, 5, small(rng), 0, 0];
            run(rig, nexus, &[op::MAINTENANCE_OUT, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0], &list);
        }
        9 => {
            let cdb = [op::MAINTENANCE_OUT, 0x06, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0];
            run(rig, nexus, &cdb, &[7, 8, small(rng)]);
        }
        10 | 11 => {
            let mode = if rng.chance(1, 2) { 0x02 } else { 0x0a };
            let out = [small(rng); 32];
            run(rig, nexus, &[op::WRITE_BUFFER, mode, 0, 0, 0, 0, 0, 0, 32, 0], &out);
        }
        12 => {
            run(rig, nexus, &[op::LOG_SELECT, 2, 0x40, 0, 0, 0, 0, 0, 0, 0], &[]);
        }
        13 => {
            run(rig, nexus, &[op::SEND_DIAGNOSTIC, 0xa0, 0, 0, 0, 0], &[]);
        }
        14..=16 => {
            let cdb = cdb_16(op::WRITE_16, 0, rng.below(16), 1);
            run(rig, nexus, &cdb, &[small(rng); 512]);
        }
        17 => {
            run(rig, nexus, &cdb_16(op::READ_16, 0, rng.below(2 * BLOCKS), 1), &[]);
        }
        18 => {
            populate(rig, nexus, u32::from(small(rng)), rng.below(64));
        }
        19 => {
            let list = pr_keys(rig, nexus);
            assert!(list.len() <= 4096);
        }
        20 if rng.chance(1, 3) => rig.unit.reset(Instant::ORIGIN, Reset::LogicalUnit),
        21 if rng.chance(1, 3) => {
            rig.unit.nexus_lost(Instant::ORIGIN, nexus);
            rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(nexus));
        }
        22 if rng.chance(1, 2) => {
            rig.manage(nexus, Tmf::LogicalUnitReset);
        }
        _ => {
            run(rig, nexus, &[0; 6], &[]);
        }
    }
    rig.drain();
}

fn pr_keys(rig: &mut Rig, nexus: NexusId) -> Vec<u8> {
    run(rig, nexus, &[op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0x10, 0, 0], &[]).data
}

/// Returns a unit after a random history, and its medium.
pub(super) fn after_history(rng: &mut Rng, config: UnitConfig) -> (Rig, Shared) {
    let medium = Shared::new();
    let mut rig = Rig::fresh(config, Box::new(medium.clone()));
    rig.unit.seed(&[3; 32]);
    for _ in 0..rng.below(60) {
        step(&mut rig, rng);
    }
    (rig, medium)
}

#[test]
fn a_unit_that_was_handed_over_answers_as_the_one_before() {
    for seed in 0..100 {
        let mut rng = Rng::from_seed(seed);
        let config = UnitConfig { removable: seed % 3 > 0, ..rich() };
        let (mut old, medium) = after_history(&mut rng, config.clone());
        assert_eq!(old.unit.busy(), None, "seed {seed}");
        let mut new = resumed(config, Box::new(medium), &export(&old));
        assert_eq!(old.unit.stats(), new.unit.stats(), "seed {seed}");
        assert_eq!(old.unit.reservations(), new.unit.reservations(), "seed {seed}");
        for (at, (cdb, out)) in probes().iter().enumerate() {
            for (was, is) in [(A, A2), (B, B2)] {
                let expected = run(&mut old, was, cdb, out);
                let mut got = run(&mut new, is, cdb, out);
                // The secrets of new tokens differ.
                if cdb[0] == op::THIRD_PARTY_COPY_IN && at + 1 == probes().len() {
                    got.data.clone_from(&expected.data);
                }
                assert_eq!(expected, got, "seed {seed}, {was:?}, {cdb:02x?}");
            }
        }
    }
}

#[test]
fn a_unit_can_be_handed_over_again_and_again() {
    for seed in 0..20 {
        let mut rng = Rng::from_seed(seed);
        let (old, medium) = after_history(&mut rng, rich());
        let first = export(&old);
        let unit = resumed(rich(), Box::new(medium), &first).unit;
        let index_of =
            |id| [A2, B2].iter().position(|known| *known == id).map(|at| u32::try_from(at).unwrap());
        let second = unit.export(Instant::ORIGIN, index_of).unwrap();
        assert_eq!(first, second, "seed {seed}");
    }
}
