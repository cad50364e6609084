//! The time limit of operations of the medium, and functions that do not wait for operations of other
//! nexuses.

use alloc::boxed::Box;

use crate::contract::{TaskKey, Tmf, TmfKey, TmfOutcome, UnitConfig, UnitEvent};
use crate::drain::Drain;
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, USERS_OF_THE_MEDIUM, cdb_16, config};
use base::time::{Duration, Instant};
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

const NOW: Instant = Instant::ORIGIN;
const LIMIT: Duration = Duration::from_secs(60);

fn limited() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let config = UnitConfig { io_timeout: Some(LIMIT), ..config() };
    (Rig::with(config, Box::new(medium)), gate)
}

fn start_write(rig: &mut Rig, nexus: crate::contract::NexusId, lba: u64, byte: u8) -> TaskKey {
    let key = rig.start(nexus, &cdb_16(op::WRITE_16, 0, lba, 1), 0, 512);
    assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
    rig.send(key, &[byte; 512], 0, 512);
    key
}

/// Lets time pass until the unit's deadline, and returns the deadline.
fn expire(rig: &mut Rig) -> Instant {
    let at = rig.unit.poll_timeout().expect("a deadline");
    rig.unit.handle_timeout(at);
    rig.drain();
    at
}

#[test]
fn a_medium_that_answers_at_once_needs_no_deadline() {
    let (mut rig, _gate) = limited();
    rig.write(0, &[1; 512]);
    assert_eq!(rig.unit.poll_timeout(), None);
}

#[test]
fn commands_that_hang_fail_so_that_they_can_be_sent_again() {
    let (mut rig, gate) = limited();
    gate.close();
    let read = rig.start(A, &cdb_16(op::READ_16, 0, 100, 1), 512, 0);
    let write = start_write(&mut rig, B, 0, 7);
    let flush = rig.start(B, &cdb_16(op::SYNCHRONIZE_CACHE_16, 0, 0, 0), 0, 0);
    assert_eq!(expire(&mut rig), NOW.after(LIMIT));
    for key in [read, write, flush] {
        let reply = rig.finish(key, &[]);
        reply.check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
        assert!(reply.data.is_empty());
    }
    assert_eq!(rig.unit.stats().io_timeouts, 3);
    assert_eq!(rig.unit.stats().tasks, 0);
    gate.open();
    rig.ready();
    assert!(rig.events.is_empty(), "what comes late is for nobody: {:?}", rig.events);
    rig.run(B, &cdb_16(op::SYNCHRONIZE_CACHE_16, 0, 0, 0), 0, &[]).good();
}

#[test]
fn work_on_the_whole_medium_may_wait_for_ever_and_keeps_no_clock_running() {
    let (mut rig, gate) = limited();
    gate.close();
    start_write(&mut rig, A, 0, 1);
    let format = rig.start(A, &[op::FORMAT_UNIT, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, 0);
    assert!(rig.keep(true).is_some(), "it is written down that the work begins");
    assert!(rig.event_of(format).is_none(), "it waits for the write");
    let at = expire(&mut rig);
    let next = rig.unit.poll_timeout();
    assert!(next.is_none_or(|next| next > at), "a deadline that has passed comes up again: {next:?}");
    gate.open();
    rig.ready();
}

#[test]
fn a_write_that_hangs_keeps_its_range_and_later_ones_wait_behind_it() {
    let (mut rig, gate) = limited();
    gate.close();
    let old = start_write(&mut rig, A, 0, 1);
    expire(&mut rig);
    rig.finish(old, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
    let new = start_write(&mut rig, A, 0, 2);
    let elsewhere = start_write(&mut rig, A, 8, 3);
    assert_eq!(gate.held(), 2, "the write to the same block is held back");
    gate.open();
    rig.ready();
    rig.finish(new, &[]).good();
    rig.finish(elsewhere, &[]).good();
    assert_eq!(rig.read(0, 1), [2; 512]);
}

#[test]
fn what_waits_behind_a_write_that_hangs_has_the_same_limit() {
    let (mut rig, gate) = limited();
    gate.close();
    let old = start_write(&mut rig, A, 0, 1);
    expire(&mut rig);
    rig.finish(old, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
    // A write that a range lock delays, and a command that waits for an exclusive range.
    let plain = start_write(&mut rig, A, 0, 2);
    let mut cdb = cdb_16(0x89, 0, 0, 0);
    cdb[13] = 1;
    let exclusive = rig.start(B, &cdb, 0, 1024);
    while let Some(UnitEvent::FetchDataOut { offset, len, .. }) = rig.event_of(exclusive) {
        rig.send(exclusive, &[0; 1024], offset, len);
    }
    for _ in 0..4 {
        if rig.unit.poll_timeout().is_some() {
            expire(&mut rig);
        }
    }
    rig.finish(plain, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
    rig.finish(exclusive, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
    gate.open();
    rig.ready();
    assert_eq!(rig.read(0, 1), [1; 512], "neither of them was carried out later");
}

#[test]
fn a_function_waits_for_the_tasks_that_it_aborts_and_for_no_others() {
    let (mut rig, gate) = limited();
    gate.close();
    let hung = start_write(&mut rig, A, 0, 1);
    let other = start_write(&mut rig, A, 8, 1);
    assert_eq!(rig.manage(A, Tmf::AbortTask(hung)), None);
    // Functions of another host, and other functions of this host.
    assert_eq!(rig.manage(B, Tmf::QueryTaskSet), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(B, Tmf::AbortTaskSet), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(B, Tmf::ClearAca), Some(TmfOutcome::NotSupported));
    let waiting = rig.start(B, &cdb_16(op::WRITE_16, 0, 64, 1), 0, 512);
    assert_eq!(rig.manage(B, Tmf::AbortTask(waiting)), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::QueryTask(other)), Some(TmfOutcome::Succeeded));
    assert_eq!(rig.manage(A, Tmf::QueryTask(hung)), Some(TmfOutcome::Complete));
    assert!(rig.event_of(hung).is_none());
}

#[test]
fn a_function_is_answered_when_the_operation_that_it_waits_for_has_taken_too_long() {
    let (mut rig, gate) = limited();
    gate.close();
    let hung = start_write(&mut rig, A, 0, 1);
    let reset = TmfKey(700);
    rig.unit.execute_tmf(NOW, B, reset, Tmf::LogicalUnitReset);
    rig.drain();
    assert_eq!(rig.managed(reset), None);
    expire(&mut rig);
    assert!(matches!(rig.event_of(hung), Some(UnitEvent::Aborted { .. })));
    assert_eq!(rig.managed(reset), Some(TmfOutcome::Complete));
}

#[test]
fn a_medium_that_hangs_for_ever_does_not_collect_the_buffers_of_everybody() {
    let (mut rig, gate) = limited();
    gate.close();
    let mut ended = 0;
    let mut lba = 0;
    let busy = loop {
        let key = rig.start(A, &cdb_16(op::READ_16, 0, lba, 1), 512, 0);
        lba += 1;
        if let Some(UnitEvent::CommandComplete { status, .. }) = rig.event_of(key) {
            break status;
        }
        expire(&mut rig);
        rig.finish(key, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
        ended += 1;
        assert!(ended < 1000, "there is no end to it");
    };
    assert_eq!(busy, Status::BUSY);
    rig.run(A, &[0x12, 0, 0, 0, 96, 0], 96, &[]).good();
    let held = gate.held();
    for cdb in USERS_OF_THE_MEDIUM {
        assert_eq!(rig.run(B, &cdb, 0, &[]).status, Status::BUSY, "{cdb:02x?}");
    }
    assert_eq!(gate.held(), held);
    gate.open();
    rig.ready();
    rig.write(0, &[4; 512]);
}

#[test]
fn a_flush_that_was_kept_from_the_medium_has_lost_nothing() {
    const SYNCHRONIZE: [u8; 16] = cdb_of_flush();
    for aborted in [false, true] {
        let (mut rig, gate) = limited();
        gate.close();
        gate.refuse_flushes(true);
        let flush = rig.start(A, &SYNCHRONIZE, 0, 0);
        if aborted {
            assert_eq!(rig.manage(A, Tmf::AbortTask(flush)), None);
        }
        gate.open();
        rig.ready();
        if !aborted {
            assert_eq!(rig.finish(flush, &[]).status, Status::CHECK_CONDITION);
        }
        gate.refuse_flushes(false);
        rig.run(A, &SYNCHRONIZE, 0, &[]).good();
    }
}

#[test]
fn a_flush_that_fails_after_its_command_ended_is_not_forgotten() {
    const SYNCHRONIZE: [u8; 16] = cdb_of_flush();
    for by_timeout in [false, true] {
        let (mut rig, gate) = limited();
        gate.close();
        gate.lose_flushes(true);
        let flush = rig.start(A, &SYNCHRONIZE, 0, 0);
        if by_timeout {
            expire(&mut rig);
            rig.finish(flush, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
        } else {
            assert_eq!(rig.manage(A, Tmf::AbortTask(flush)), None);
        }
        gate.open();
        rig.ready();
        gate.lose_flushes(false);
        let next = rig.run(A, &SYNCHRONIZE, 0, &[]);
        assert_eq!(next.status, Status::CHECK_CONDITION, "what was acknowledged before may be lost");
    }
}

const fn cdb_of_flush() -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x91;
    cdb
}

#[test]
fn a_drain_ends_only_when_abandoned_writes_and_its_flush_have_ended() {
    let (mut rig, gate) = limited();
    gate.close();
    let write = start_write(&mut rig, A, 0, 7);
    expire(&mut rig);
    rig.finish(write, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
    rig.unit.set_drained(NOW, true);
    assert_eq!((rig.unit.stats().tasks, rig.unit.drain(), gate.held()), (0, Drain::Ending, 1));
    gate.open();
    rig.unit.store_ready(NOW);
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
    // Another drain flushes again.
    gate.close();
    rig.unit.set_drained(NOW, true);
    assert_eq!((rig.unit.drain(), gate.held()), (Drain::Flushing, 1));
    gate.lose_flushes(true);
    gate.open();
    rig.unit.store_ready(NOW);
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: true });
    // No later flush brings the lost writes back.
    gate.lose_flushes(false);
    rig.unit.set_drained(NOW, true);
    rig.unit.store_ready(NOW);
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: true });
}
