//! Hosts that were reading or writing when the drive was powered on or its cartridge replaced: the drive is
//! not where they expect it.
//!
//! A host that opens a drive sends TEST UNIT READY first, and learns it there. READ or WRITE tells a host
//! that was in the midst of its data, and some repeat that command: Linux 6.1 passes the unit attention on as
//! an I/O error, after which Bacula writes the same block again, now over the beginning of the tape. So every
//! further command of that host that depends on the position ends with SEQUENTIAL POSITIONING ERROR, until
//! the host has moved to a position that does not depend on the former one. A nexus that is lost meanwhile
//! receives the unit attention again when it returns.

use scsi::cdb::Cdb;
use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey};

use super::motion::space_code;
use crate::contract::NexusId;
use crate::device_server::DeviceServer;
use crate::task::TaskInfo;

impl DeviceServer {
    /// Records that a unit attention condition was reported to a host by a command.
    pub(crate) fn tape_attention_reported(&mut self, task: &TaskInfo, asc: Asc) {
        let is_moved = matches!(
            asc,
            Asc::POWER_ON_OCCURRED | Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET | Asc::MEDIUM_MAY_HAVE_CHANGED
        );
        let Some(drive) = self.tape.as_mut().filter(|_| is_moved) else { return };
        if depends_on_position(&task.cdb) {
            drive.lost_positions.insert(task.nexus);
        } else if task.cdb.opcode() == op::TEST_UNIT_READY {
            drive.position_is_known(task.nexus);
        }
    }

    /// Returns why a command is not executed, if its host does not know the position.
    pub(crate) fn tape_position_lost(&mut self, task: &TaskInfo) -> Option<Sense> {
        const LOST: Sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::SEQUENTIAL_POSITIONING_ERROR);
        let drive = self.tape.as_mut()?;
        // The commands behind it need not wait for its end.
        if moves_absolutely(&task.cdb) && drive.lost_positions.remove(&task.nexus) {
            drive.repositioning.insert(task.id, task.nexus);
        }
        let is_lost = depends_on_position(&task.cdb) && drive.lost_positions.contains(&task.nexus);
        is_lost.then_some(LOST)
    }

    /// Records that a command ended with GOOD: its host knows the position if it has moved there.
    pub(crate) fn tape_command_succeeded(&mut self, task: &TaskInfo) {
        if let Some(drive) = self.tape.as_mut().filter(|_| moves_absolutely(&task.cdb)) {
            drive.position_is_known(task.nexus);
        }
    }

    /// Records the loss of a nexus. If it does not know the position, it is told so again when it returns.
    pub(crate) fn tape_nexus_lost(&mut self, nexus: NexusId) {
        let Some(drive) = &mut self.tape else { return };
        let moves = drive.repositioning.len();
        drive.repositioning.retain(|_, host| *host != nexus);
        if drive.lost_positions.remove(&nexus) || drive.repositioning.len() < moves {
            self.nexuses.establish_ua(nexus, Asc::MEDIUM_MAY_HAVE_CHANGED);
        }
    }
}

fn is_space(cdb: &Cdb) -> bool {
    matches!(cdb.opcode(), op::SPACE_6 | op::SPACE_16)
}

fn is_space_to_end(cdb: &Cdb) -> bool {
    is_space(cdb) && cdb.u8(1) & 0x0f == space_code::END_OF_DATA
}

fn depends_on_position(cdb: &Cdb) -> bool {
    let is_transfer = matches!(
        cdb.opcode(),
        op::READ_6
            | op::READ_16
            | op::WRITE_6
            | op::WRITE_16
            | op::WRITE_FILEMARKS_6
            | op::WRITE_FILEMARKS_16
            | op::VERIFY_6
            | op::VERIFY_16
            | op::ERASE_6
            | op::ERASE_16
    );
    is_transfer || (is_space(cdb) && !is_space_to_end(cdb))
}

fn moves_absolutely(cdb: &Cdb) -> bool {
    matches!(cdb.opcode(), op::REWIND | op::LOCATE_10 | op::LOCATE_16 | op::LOAD_UNLOAD)
        || is_space_to_end(cdb)
}
