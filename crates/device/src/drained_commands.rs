//! The check of every device type that a drained medium is not used.

use alloc::vec::Vec;

use crate::device_server::command_set::CommandSet;
use crate::device_server::table::Row;
use crate::testing::{A, Rig};

/// Checks that every command of a drained unit ends without the medium, whatever its CDB holds. `drained`
/// makes a unit for the commands of a row, and what counts the operations of its medium or library.
pub(crate) fn assert_drained_medium_is_unused<U: Fn(&Rig) -> usize>(
    set: &CommandSet,
    drained: impl Fn() -> (Rig, U),
) {
    /// Values that select forms and pages of commands.
    const USUAL: [u8; 6] = [0, 1, 2, 4, 0x20, 0x21];
    let mut rng = base::rng::Rng::from_seed(22);
    let is_enabled = |row: &&Row| !matches!(row.opcode, scsi::opcode::THIRD_PARTY_COPY_OUT);
    for row in crate::unit::table(set).rows().filter(is_enabled) {
        let (mut rig, used) = drained();
        for _ in 0..400 {
            let mut any = |usage: &u8| {
                let byte = USUAL.get(usize::try_from(rng.below(8)).unwrap()).copied();
                byte.unwrap_or_else(|| u8::try_from(rng.below(256)).unwrap()) & usage
            };
            let mut cdb: Vec<u8> = row.usage.iter().map(&mut any).collect();
            cdb[0] = row.opcode;
            match row.service_action {
                Some(action) if cdb.len() == 32 => {
                    cdb[7] = 0x18;
                    cdb[8..10].copy_from_slice(&action.to_be_bytes());
                }
                Some(action) => cdb[1] = cdb[1] & !0x1f | u8::try_from(action).unwrap(),
                None => {}
            }
            let (room, out) = if rng.chance(1, 2) { (1 << 20, 0) } else { (0, 1 << 20) };
            let key = rig.start(A, &cdb, room, out);
            rig.finish(key, &alloc::vec![0; out]);
            assert_eq!(used(&rig), 0, "{} {cdb:02x?}", row.name);
        }
    }
}
