use base::rng::Rng;

use super::*;
use crate::device_server::table::Row;
use crate::spc::ROWS;
use crate::unit::table;

/// Every command with random fields and random parameter lists: each is answered, and the unit continues. A
/// failure prints the seed of its run.
#[test]
fn no_field_and_no_parameter_list_harms_the_unit() {
    for seed in 0..60 {
        let mut rng = Rng::from_seed(seed);
        let mut rig = removable();
        for step in 0..400 {
            let row = &ROWS[usize::try_from(rng.below(ROWS.len() as u64)).unwrap()];
            let nexus = if rng.chance(1, 2) { A } else { B };
            let mut cdb = random_cdb(&mut rng, row);
            let list = random_list(&mut rng);
            announce(&mut cdb, row, &list);
            let (room, out) = if takes_list(row.opcode) { (0, &list[..]) } else { (4096, &[][..]) };
            let key = rig.start(nexus, &cdb, room, out.len());
            while let Some(UnitEvent::FetchDataOut { offset, len, .. }) = rig.event_of_fetch(key) {
                rig.send(key, out, offset, len);
            }
            while rig.events.iter().any(|event| matches!(event, UnitEvent::SaveState { .. })) {
                rig.save(rng.chance(9, 10));
            }
            let reply = rig.finish(key, out);
            let bound = if reply.data.is_empty() { 0 } else { 4096 };
            assert!(reply.data.len() <= bound, "seed {seed}, step {step}: {cdb:02x?}");
        }
        for nexus in BOTH {
            rig.run(nexus, &[op::INQUIRY, 0, 0, 0, 96, 0], 96, &[]).good();
        }
    }
}

fn random_cdb(rng: &mut Rng, row: &Row) -> Vec<u8> {
    let mut cdb: Vec<u8> = row.usage.to_vec();
    let fixed = if row.service_action.is_some() { 0x1f } else { 0 };
    for (at, byte) in cdb.iter_mut().enumerate().skip(1) {
        let mut random = [0];
        rng.fill(&mut random);
        // Mostly legal bits, sometimes any.
        let mask = if rng.chance(1, 40) { 0xff } else { *byte };
        let keep = if at == 1 { fixed } else { 0 };
        *byte = (*byte & keep) | (random[0] & mask & !keep);
        if rng.chance(1, 3) {
            *byte &= keep;
        }
    }
    cdb
}

fn random_list(rng: &mut Rng) -> Vec<u8> {
    let len =
        usize::try_from([0, 4, 8, 12, 24, 24, 24, 60, 300][usize::try_from(rng.below(9)).unwrap()]).unwrap();
    let mut list = alloc::vec![0; len];
    rng.fill(&mut list);
    for byte in &mut list {
        if rng.chance(2, 3) {
            *byte = 0;
        }
    }
    list
}

/// Writes the length of the list into the field of the CDB.
fn announce(cdb: &mut [u8], row: &Row, list: &[u8]) {
    let len = u32::try_from(list.len()).unwrap().to_be_bytes();
    match row.opcode {
        op::MODE_SELECT_6 => cdb[4] = len[3],
        op::MODE_SELECT_10 => cdb[7..9].copy_from_slice(&len[2..]),
        op::SEND_DIAGNOSTIC => cdb[3..5].copy_from_slice(&len[2..]),
        op::WRITE_BUFFER => cdb[6..9].copy_from_slice(&len[1..]),
        op::PERSISTENT_RESERVE_OUT => cdb[5..9].copy_from_slice(&len),
        op::MAINTENANCE_OUT => cdb[6..10].copy_from_slice(&len),
        _ => {}
    }
}

const fn takes_list(opcode: u8) -> bool {
    matches!(
        opcode,
        op::MODE_SELECT_6
            | op::MODE_SELECT_10
            | op::SEND_DIAGNOSTIC
            | op::WRITE_BUFFER
            | op::PERSISTENT_RESERVE_OUT
            | op::MAINTENANCE_OUT
    )
}

impl Rig {
    /// Removes the next event of a task if it is a fetch.
    fn event_of_fetch(&mut self, key: crate::contract::TaskKey) -> Option<UnitEvent> {
        let mine =
            |event: &UnitEvent| matches!(event, UnitEvent::FetchDataOut { key: found, .. } if *found == key);
        let at = self.events.iter().position(mine)?;
        self.events.remove(at)
    }
}

#[test]
fn no_command_takes_naca_or_vendor_bits() {
    for row in table(&crate::sbc::COMMAND_SET).rows() {
        let control = if row.opcode == op::VARIABLE_LENGTH { 1 } else { row.usage.len() - 1 };
        assert_eq!(row.usage[control], 0, "{}", row.name);
    }
}
