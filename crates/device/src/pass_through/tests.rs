//! Tests with a device that answers what a test says, when the test says.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::buffer::{Bytes, DataList};
use base::rng::Rng;
use base::time::Instant;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;
use scsi::supported::{OneCommand, SupportedCommand};
use store::Store;
use store::api::{
    Capabilities, Completion, DeviceInfo, DeviceResponse, DeviceReturn, Fault, Op, OpAction, OpId, OpOutput,
    Transfer,
};
use store::null::Null;

use crate::contract::{DeviceKind, SenseBytes, Tmf, TmfOutcome, UnitConfig, UnitEvent};
use crate::testing::{A, B, Rig, config};

const MAX: u32 = 64 << 10;

/// A device whose answers a test puts in. Without one, a command ends with GOOD, and with zeros if it reads.
#[derive(Clone)]
struct Fake(Rc<RefCell<State>>);

struct State {
    info: DeviceInfo,
    answers: VecDeque<Answer>,
    /// The commands that reached the device.
    seen: Vec<Vec<u8>>,
    received: Vec<Vec<u8>>,
    resets: usize,
    /// Commands that are not answered, while `holds` is set.
    held: Vec<(OpId, Transfer)>,
    holds: bool,
    is_away: bool,
    back: Option<DeviceReturn>,
    done: VecDeque<Completion>,
}

enum Answer {
    Data(Vec<u8>),
    Check(Sense, Vec<u8>),
    Status(Status),
    Fails(Fault),
}

impl Fake {
    fn new(kind: u8) -> Self {
        let block_len = (kind == 0).then_some(512);
        Self(Rc::new(RefCell::new(State {
            info: DeviceInfo { kind, block_len, transfer_max: MAX },
            answers: VecDeque::new(),
            seen: Vec::new(),
            received: Vec::new(),
            resets: 0,
            held: Vec::new(),
            holds: false,
            is_away: false,
            back: None,
            done: VecDeque::new(),
        })))
    }

    fn answer(&self, answer: Answer) {
        self.0.borrow_mut().answers.push_back(answer);
    }

    fn attention(&self, asc: Asc) {
        self.answer(Answer::Check(Sense::new(SenseKey::UNIT_ATTENTION, asc), Vec::new()));
    }

    fn seen(&self) -> Vec<Vec<u8>> {
        core::mem::take(&mut self.0.borrow_mut().seen)
    }

    fn release(&self) {
        let mut state = self.0.borrow_mut();
        state.holds = false;
        for (id, transfer) in core::mem::take(&mut state.held) {
            state.finish(id, transfer);
        }
    }
}

impl State {
    fn finish(&mut self, id: OpId, transfer: Transfer) {
        let (status, sense, bytes) = match self.answers.pop_front() {
            None => {
                (Status::GOOD, Vec::new(), vec![0; if let Transfer::In(len) = transfer { len } else { 0 }])
            }
            Some(Answer::Data(data)) => (Status::GOOD, Vec::new(), data),
            Some(Answer::Check(sense, data)) => {
                (Status::CHECK_CONDITION, SenseBytes::new(&sense, false).bytes().to_vec(), data)
            }
            Some(Answer::Status(status)) => (status, Vec::new(), Vec::new()),
            Some(Answer::Fails(fault)) => {
                return self.done.push_back(Completion { id, result: Err(fault.into()) });
            }
        };
        let (data, transferred) = match transfer {
            Transfer::In(len) => {
                let sent = &bytes[..bytes.len().min(len)];
                let mut list = DataList::new();
                if !sent.is_empty() {
                    list.push(Bytes::copied_from(sent));
                }
                (list, sent.len())
            }
            Transfer::Out(data) => {
                let mut bytes = vec![0; data.len()];
                data.copy_to(0, &mut bytes);
                self.received.push(bytes);
                let len = data.len();
                (data, len)
            }
            Transfer::Nothing => (DataList::new(), 0),
        };
        let response = DeviceResponse { status: status.0, sense, data, transferred };
        self.done.push_back(Completion { id, result: Ok(OpOutput::Response(Box::new(response))) });
    }
}

impl Store for Fake {
    fn capabilities(&self) -> Capabilities {
        Capabilities { len: 0, ..Null::new(512).capabilities() }
    }

    fn device(&self) -> Option<DeviceInfo> {
        Some(self.0.borrow().info)
    }

    fn is_away(&self) -> bool {
        self.0.borrow().is_away
    }

    fn take_return(&mut self) -> Option<DeviceReturn> {
        self.0.borrow_mut().back.take()
    }

    fn submit(&mut self, op: Op) {
        let mut state = self.0.borrow_mut();
        match op.action {
            OpAction::Command(command) => {
                state.seen.push(command.bytes);
                if state.holds {
                    state.held.push((op.id, command.transfer));
                } else {
                    state.finish(op.id, command.transfer);
                }
            }
            OpAction::Reset => {
                state.resets += 1;
                let done = Ok(OpOutput::Done(DataList::new()));
                state.done.push_back(Completion { id: op.id, result: done });
            }
            other => panic!("{other:?}"),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().done.pop_front()
    }
}

fn unit(dangerous_commands: bool) -> UnitConfig {
    UnitConfig { device: DeviceKind::PassThrough { dangerous_commands }, thin: false, ..config() }
}

fn served(kind: u8) -> (Rig, Fake) {
    with(kind, unit(false))
}

fn with(kind: u8, config: UnitConfig) -> (Rig, Fake) {
    let fake = Fake::new(kind);
    (Rig::with(config, Box::new(fake.clone())), fake)
}

const READ_10: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0];

#[test]
fn a_device_whose_process_is_away_is_not_ready_without_being_asked() {
    let (mut rig, fake) = served(0);
    fake.0.borrow_mut().is_away = true;
    let away = Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION;
    for cdb in [[0; 6], [0x1b, 0, 0, 0, 1, 0]] {
        rig.run(A, &cdb, 0, &[]).check(SenseKey::NOT_READY, away);
    }
    let sense = Sense::parse(&rig.run(A, &[3, 0, 0, 0, 252, 0], 252, &[]).good()).unwrap();
    assert_eq!((sense.key, sense.asc), (SenseKey::NOT_READY, away));
    assert_eq!(fake.seen(), [[0; 0]; 0]);
    fake.0.borrow_mut().is_away = false;
    rig.run(A, &[0; 6], 0, &[]).good();
    assert_eq!(fake.seen().len(), 1);
}

#[test]
fn a_device_that_returns_is_reported_to_every_nexus_before_it_gets_a_command() {
    let power_on = Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET;
    let (mut rig, fake) = served(0);
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[]).good();
    }
    fake.seen();
    // Removed and found again, with blocks of another length.
    fake.0.borrow_mut().back = Some(DeviceReturn::Restarted);
    rig.unit.store_ready(Instant::ORIGIN);
    for nexus in [A, B] {
        rig.run(nexus, &READ_10, 1024, &[]).check(SenseKey::UNIT_ATTENTION, power_on);
    }
    assert_eq!(fake.seen(), [[0; 0]; 0], "no command reached it before the host was told");
    // The unit attention of the device itself says nothing new, and another one does.
    fake.attention(power_on);
    fake.attention(Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    fake.answer(Answer::Data(vec![7; 2 * 4096]));
    assert_eq!(
        rig.run(A, &READ_10, 2 * 4096, &[]).good().len(),
        2 * 4096,
        "the length of blocks is not known"
    );
    // The process of a device is back: its device reports what it has forgotten.
    let (mut rig, fake) = served(0);
    fake.0.borrow_mut().back = Some(DeviceReturn::Reconnected);
    rig.unit.store_ready(Instant::ORIGIN);
    fake.answer(Answer::Data(vec![7; 2 * 4096]));
    assert_eq!(rig.run(A, &READ_10, 2 * 4096, &[]).good().len(), 2 * 4096);
}

#[test]
fn counts_what_the_device_reads_and_writes() {
    let (mut rig, fake) = served(0);
    fake.answer(Answer::Data(vec![7; 1024]));
    rig.run(A, &READ_10, 1024, &[]).good();
    fake.answer(Answer::Data(vec![7; 100]));
    rig.run(A, &READ_10, 1024, &[]).good();
    rig.run(A, &[0x2a, 0, 0, 0, 0, 9, 0, 0, 1, 0], 0, &[3; 512]).good();
    rig.run(A, &[0x12, 0, 0, 0, 96, 0], 96, &[]).good();
    let stats = rig.unit.stats();
    assert_eq!((stats.reads, stats.read_bytes), (2, 1124));
    assert_eq!((stats.writes, stats.write_bytes), (1, 512));
}

#[test]
fn passes_commands_their_data_and_their_residual() {
    let (mut rig, fake) = served(0);
    fake.answer(Answer::Data(vec![7; 1024]));
    assert_eq!(rig.run(A, &READ_10, 1024, &[]).good(), vec![7; 1024]);
    assert_eq!(fake.seen(), [READ_10.to_vec()]);
    // The initiator announces less than the CDB says: the device still sends all of it.
    fake.answer(Answer::Data(vec![7; 1024]));
    let reply = rig.run(A, &READ_10, 600, &[]);
    assert_eq!((reply.status, reply.data.len(), reply.transferable), (Status::GOOD, 600, 1024));
    // And more.
    fake.answer(Answer::Data(vec![7; 1024]));
    let reply = rig.run(A, &READ_10, 4096, &[]);
    assert_eq!((reply.data.len(), reply.transferable), (1024, 1024));
    // The device sends less.
    fake.answer(Answer::Data(vec![7; 100]));
    let reply = rig.run(A, &READ_10, 1024, &[]);
    assert_eq!((reply.data.len(), reply.transferable), (100, 100));
    let write = [0x2a, 0, 0, 0, 0, 9, 0, 0, 1, 0];
    rig.run(A, &write, 0, &[3; 512]).good();
    assert_eq!(fake.0.borrow().received, [vec![3; 512]]);
    rig.run(A, &write, 0, &[3; 100]).illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    rig.run(A, &write, 512, &[]).illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    fake.seen();
    // A command that nobody knows moves what its initiator announces.
    fake.answer(Answer::Data(vec![9; 5]));
    assert_eq!(rig.run(A, &[0xc1, 1, 2], 64, &[]).good(), [9; 5]);
    assert_eq!(fake.seen(), [vec![0xc1, 1, 2, 0, 0, 0, 0, 0, 0, 0]]);
}

#[test]
fn passes_status_and_sense_data_as_they_are() {
    let (mut rig, fake) = served(0);
    let medium_error =
        Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).with_information(0x1234);
    fake.answer(Answer::Check(medium_error, Vec::new()));
    let reply = rig.run(A, &READ_10, 1024, &[]);
    reply.check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!((reply.information(), reply.transferable), (Some(0x1234), 0));
    // A host adapter without a residual: the bytes of a command that failed are none of the device's.
    fake.answer(Answer::Check(medium_error, vec![1; 1024]));
    let reply = rig.run(A, &READ_10, 1024, &[]);
    assert_eq!((reply.data.len(), reply.transferable), (0, 0));
    // With one, they are what was read before the error.
    fake.answer(Answer::Check(medium_error, vec![1; 512]));
    let reply = rig.run(A, &READ_10, 1024, &[]);
    assert_eq!((reply.data.len(), reply.transferable), (512, 512));
    for status in [Status::BUSY, Status::TASK_SET_FULL, Status::RESERVATION_CONFLICT] {
        fake.answer(Answer::Status(status));
        assert_eq!(rig.run(A, &READ_10, 1024, &[]).status, status);
    }
    let table = [
        (Fault::Gone, SenseKey::NOT_READY, Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION),
        (Fault::Busy, SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT),
        (Fault::Hardware, SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE),
        (Fault::Aborted, SenseKey::ABORTED_COMMAND, Asc::NONE),
    ];
    for (fault, key, asc) in table {
        fake.answer(Answer::Fails(fault));
        rig.run(A, &READ_10, 1024, &[]).check(key, asc);
    }
}

#[test]
fn a_short_block_of_a_tape_comes_with_its_sense_data() {
    let (mut rig, fake) = served(1);
    let read = [0x08, 0, 0, 4, 0, 0];
    let short = Sense::new(SenseKey::NO_SENSE, Asc::NONE).with_stream_bits(0x20).with_information(1024 - 300);
    fake.answer(Answer::Check(short, vec![5; 300]));
    let reply = rig.run(A, &read, 1024, &[]);
    assert_eq!(
        (reply.status, reply.data.as_slice(), reply.transferable),
        (Status::CHECK_CONDITION, &[5; 300][..], 300)
    );
    assert_eq!((reply.information(), reply.sense_bytes[2]), (Some(724), 0x20));
    // SILI: only the residual says how long the block was.
    fake.answer(Answer::Data(vec![5; 300]));
    let reply = rig.run(A, &[0x08, 2, 0, 4, 0, 0], 1024, &[]);
    assert_eq!((reply.status, reply.data.len(), reply.transferable), (Status::GOOD, 300, 300));
    // The longest block is what one command can transfer.
    fake.answer(Answer::Data(vec![0, 0x80, 0, 0, 0, 1]));
    assert_eq!(rig.run(A, &[0x05, 0, 0, 0, 0, 0], 6, &[]).good(), [0, 1, 0, 0, 0, 1]);
}

#[test]
fn a_unit_attention_of_the_device_reaches_each_nexus_once() {
    let (mut rig, fake) = served(5);
    fake.attention(Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.run(A, &[0; 6], 0, &[]).good();
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.run(B, &[0; 6], 0, &[]).good();
    assert_eq!(fake.seen().len(), 3, "the unit attention of B was the unit's own");
}

#[test]
fn a_unit_attention_that_the_device_reports_as_data_reaches_the_others() {
    let attention = |asc| {
        let sense = Sense::new(SenseKey::UNIT_ATTENTION, asc);
        Answer::Data(SenseBytes::new(&sense, false).bytes().to_vec())
    };
    let (mut rig, fake) = served(5);
    rig.run(A, &[0; 6], 0, &[]).good();
    // As few bytes as the initiator allows do not say what the device reports.
    for len in [18, 3, 0] {
        fake.answer(attention(Asc::MEDIUM_MAY_HAVE_CHANGED));
        let data = rig.run(A, &[3, 0, 0, 0, len, 0], 252, &[]).good();
        assert_eq!((data.len(), data.get(2).map_or(6, |key| key & 0x0f)), (usize::from(len), 6));
        rig.run(A, &[0; 6], 0, &[]).good();
        rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.run(B, &[0; 6], 0, &[]).good();
    }
    // A reset that every nexus has been told of is none.
    let (mut rig, fake) = served(5);
    fake.answer(attention(Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET));
    let data = rig.run(A, &[3, 0, 0, 0, 18, 0], 18, &[]).good();
    assert_eq!((data[2], fake.seen().len()), (0, 2));
    rig.run(B, &[0; 6], 0, &[]).good();
}

#[test]
fn a_unit_attention_that_ends_the_units_own_command_reaches_everyone() {
    let (mut rig, fake) = served(5);
    let (prevent, allow) = ([0x1e, 0, 0, 0, 1, 0], [0x1e, 0, 0, 0, 0, 0]);
    rig.run(A, &prevent, 0, &[]).good();
    fake.attention(Asc::MEDIUM_MAY_HAVE_CHANGED);
    rig.run(A, &allow, 0, &[]).good();
    assert_eq!(fake.seen(), [prevent.to_vec(), allow.to_vec(), allow.to_vec()]);
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.run(nexus, &[0; 6], 0, &[]).good();
    }
    // A device that never stops to report them is not told for ever.
    rig.run(A, &prevent, 0, &[]).good();
    fake.seen();
    (0..100).for_each(|_| fake.attention(Asc::MEDIUM_MAY_HAVE_CHANGED));
    rig.run(A, &allow, 0, &[]).good();
    assert_eq!(fake.seen().len(), 9);
}

#[test]
fn a_unit_attention_that_ends_an_aborted_command_reaches_everyone() {
    let (mut rig, fake) = served(5);
    rig.run(A, &[0; 6], 0, &[]).good();
    fake.0.borrow_mut().holds = true;
    let late = rig.start(A, &READ_10, 1024, 0);
    rig.manage(A, Tmf::AbortTask(late));
    fake.attention(Asc::MEDIUM_MAY_HAVE_CHANGED);
    fake.release();
    rig.unit.store_ready(Instant::ORIGIN);
    rig.drain();
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.run(nexus, &[0; 6], 0, &[]).good();
    }
}

#[test]
fn a_unit_attention_that_ends_a_command_of_a_withdrawn_nexus_reaches_the_others() {
    let (mut rig, fake) = served(5);
    rig.run(A, &[0; 6], 0, &[]).good();
    fake.0.borrow_mut().holds = true;
    rig.start(B, &READ_10, 1024, 0);
    rig.unit.nexus_withdrawn(Instant::ORIGIN, B);
    rig.drain();
    fake.attention(Asc::MEDIUM_MAY_HAVE_CHANGED);
    fake.release();
    rig.unit.store_ready(Instant::ORIGIN);
    rig.drain();
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
}

#[test]
fn a_deferred_error_reaches_each_nexus_once_whichever_command_the_device_told() {
    let lost = Sense::new(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR).as_deferred();
    let hears = |rig: &mut Rig, nexus| {
        let reply = rig.run(nexus, &[0; 6], 0, &[]);
        reply.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
        assert_eq!(reply.sense_bytes[0] & 0x7f, 0x71, "no command of this nexus failed");
        rig.run(nexus, &[0; 6], 0, &[]).good();
    };
    let (mut rig, fake) = served(0);
    rig.run(A, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[1; 512]).good();
    // The device, which knows one initiator, answers B's command with it.
    fake.answer(Answer::Check(lost, Vec::new()));
    [B, A].into_iter().for_each(|nexus| hears(&mut rig, nexus));
    // And a command that nobody waits for any more.
    fake.0.borrow_mut().holds = true;
    let late = rig.start(B, &READ_10, 1024, 0);
    rig.manage(B, Tmf::AbortTask(late));
    fake.answer(Answer::Check(lost, Vec::new()));
    fake.release();
    rig.unit.store_ready(Instant::ORIGIN);
    rig.drain();
    [A, B].into_iter().for_each(|nexus| hears(&mut rig, nexus));
}

#[test]
fn a_reset_that_every_nexus_has_heard_of_is_not_told_again() {
    let (mut rig, fake) = served(0);
    // The device reports its power on to the first command, which is sent again.
    fake.attention(Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    rig.run(A, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[1; 512]).good();
    assert_eq!((fake.seen().len(), fake.0.borrow().received.len()), (2, 2));
    // One that nobody asked for is news.
    fake.attention(Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[])
            .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
        rig.run(nexus, &[0; 6], 0, &[]).good();
    }
    assert_eq!(rig.manage(A, Tmf::LogicalUnitReset), Some(TmfOutcome::Complete));
    assert_eq!(fake.0.borrow().resets, 1);
    fake.attention(Asc::BUS_DEVICE_RESET_OCCURRED);
    for nexus in [A, B] {
        rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
        rig.run(nexus, &[0; 6], 0, &[]).good();
    }
}

#[test]
fn an_aborted_command_is_waited_for() {
    let (mut rig, fake) = served(0);
    fake.0.borrow_mut().holds = true;
    let late = rig.start(A, &READ_10, 1024, 0);
    assert_eq!(rig.manage(A, Tmf::AbortTask(late)), None, "the device still executes it");
    fake.release();
    rig.unit.store_ready(Instant::ORIGIN);
    rig.drain();
    let outcomes = rig
        .events
        .iter()
        .filter(|event| matches!(event, UnitEvent::TmfComplete { outcome: TmfOutcome::Complete, .. }));
    assert_eq!(outcomes.count(), 1);
}

#[test]
fn a_device_that_hangs_for_ever_does_not_collect_the_inquiries_of_everybody() {
    let limit = base::time::Duration::from_secs(60);
    let (mut rig, fake) = with(0, UnitConfig { io_timeout: Some(limit), ..unit(false) });
    fake.0.borrow_mut().holds = true;
    for _ in 0..1000 {
        let key = rig.start(A, &[0x12, 0, 0, 0, 36, 0], 36, 0);
        if let Some(UnitEvent::CommandComplete { status, .. }) = rig.event_of(key) {
            assert_eq!(status, Status::BUSY);
            fake.release();
            rig.unit.store_ready(Instant::ORIGIN);
            rig.run(A, &[0x12, 0, 0, 0, 36, 0], 36, &[]).good();
            return;
        }
        let at = rig.unit.poll_timeout().unwrap();
        rig.unit.handle_timeout(at);
        rig.drain();
        rig.finish(key, &[]).check(SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT);
    }
    panic!("there is no end to it");
}

#[test]
fn commands_of_others_do_not_reach_a_reserved_device() {
    let (mut rig, fake) = served(0);
    let mut list = [0; 24];
    list[15] = 1;
    rig.run(A, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    list[7] = 1;
    rig.run(A, &[0x5f, 1, 3, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    let conflict = Status::RESERVATION_CONFLICT;
    assert_eq!(rig.run(B, &READ_10, 1024, &[]).status, conflict);
    assert_eq!(rig.run(B, &[0xc1], 0, &[]).status, conflict, "a command that nobody knows");
    assert_eq!(rig.run(B, &[0x15, 0x10, 0, 0, 0, 0], 0, &[]).status, conflict);
    rig.run(B, &[0; 6], 0, &[]).good();
    rig.run(A, &READ_10, 1024, &[]).good();
    assert_eq!(fake.seen(), [vec![0; 6], READ_10.to_vec()]);
    let keys = rig.run(B, &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0], 255, &[]).good();
    assert_eq!(keys[15], 1);
    assert!(fake.seen().is_empty());
}

#[test]
fn the_device_prevents_removal_while_any_nexus_does() {
    let (mut rig, fake) = served(5);
    let (prevent, allow) = ([0x1e, 0, 0, 0, 1, 0], [0x1e, 0, 0, 0, 0, 0]);
    rig.run(A, &prevent, 0, &[]).good();
    rig.run(B, &prevent, 0, &[]).good();
    rig.run(A, &allow, 0, &[]).good();
    assert_eq!(fake.seen(), [prevent.to_vec()]);
    rig.unit.nexus_lost(Instant::ORIGIN, B);
    rig.drain();
    assert_eq!(fake.seen(), [allow.to_vec()]);
    // The device refuses.
    fake.answer(Answer::Check(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE), Vec::new()));
    rig.run(A, &prevent, 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    assert_eq!(fake.seen(), [prevent.to_vec()]);
    rig.run(A, &allow, 0, &[]).good();
    assert!(fake.seen().is_empty());
}

#[test]
fn a_prevention_that_the_device_refuses_leaves_that_of_another_nexus() {
    let (prevent, allow) = ([0x1e, 0, 0, 0, 1, 0], [0x1e, 0, 0, 0, 0, 0]);
    let refuses = || Answer::Check(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE), Vec::new());
    let (mut rig, fake) = served(5);
    fake.0.borrow_mut().holds = true;
    let [first, second] = [A, B].map(|nexus| rig.start(nexus, &prevent, 0, 0));
    assert_eq!(
        fake.seen(),
        [prevent.to_vec(), prevent.to_vec()],
        "nobody knows yet whether the device prevents"
    );
    fake.answer(refuses());
    fake.release();
    rig.ready();
    rig.finish(first, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    rig.finish(second, &[]).good();
    // The device has confirmed that of B, which ends with B's own word.
    rig.run(A, &allow, 0, &[]).good();
    assert!(fake.seen().is_empty());
    rig.run(B, &allow, 0, &[]).good();
    assert_eq!(fake.seen(), [allow.to_vec()]);
    // Neither of two that the device refuses needs to be allowed.
    fake.0.borrow_mut().holds = true;
    let both = [A, B].map(|nexus| rig.start(nexus, &prevent, 0, 0));
    fake.answer(refuses());
    fake.answer(refuses());
    fake.release();
    rig.ready();
    both.into_iter().for_each(|key| rig.finish(key, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE));
    assert_eq!(fake.seen(), [prevent.to_vec(), prevent.to_vec()]);
    rig.run(A, &allow, 0, &[]).good();
    assert!(fake.seen().is_empty());
}

#[test]
fn the_others_hear_of_changed_mode_parameters_and_of_a_loaded_medium() {
    let (mut rig, _) = served(1);
    rig.run(A, &[0x15, 0x10, 0, 0, 4, 0], 0, &[0; 4]).good();
    rig.run(A, &[0; 6], 0, &[]).good();
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
}

/// Service actions of SERVICE ACTION IN(16) and ZBC IN that change the medium, or are not known.
const CHANGING_ACTIONS: &[(u8, &[u8])] =
    &[(0x9e, &[0x00, 0x14, 0x15, 0x18, 0x19, 0x1a, 0x1f]), (0x95, &[0x01, 0x08, 0x1f])];
/// Those that only read.
const READING_ACTIONS: &[(u8, &[u8])] =
    &[(0x9e, &[0x10, 0x11, 0x12, 0x13, 0x16, 0x17]), (0x95, &[0x00, 0x06, 0x07, 0x09])];

#[test]
fn a_reservation_for_writers_refuses_the_service_actions_that_change_the_medium() {
    let (mut rig, fake) = with(0, unit(true));
    let mut list = [0; 24];
    list[15] = 1;
    rig.run(A, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    list[7] = 1;
    rig.run(A, &[0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    for (opcode, actions) in CHANGING_ACTIONS {
        for action in *actions {
            let reply = rig.run(B, &[*opcode, *action], 0, &[]);
            assert_eq!(reply.status, Status::RESERVATION_CONFLICT, "{opcode:02x}h/{action:02x}h");
        }
    }
    assert!(fake.seen().is_empty());
    for (opcode, actions) in READING_ACTIONS {
        for action in *actions {
            rig.run(B, &[*opcode, *action], 0, &[]).good();
        }
    }
    // The element that REMOVE ELEMENT AND TRUNCATE names is no allocation length.
    fake.answer(Answer::Data(vec![1; 512]));
    let remove = [0x9e, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    assert_eq!(rig.run(A, &remove, 0, &[]).transferable, 0);
}

#[test]
fn a_write_protected_unit_refuses_what_changes_the_medium() {
    let (mut rig, fake) = with(0, UnitConfig { read_only: true, ..unit(true) });
    for cdb in [&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0x42, 0], &[0x04, 0], &[0xc1, 0], &[0x7f, 0]] {
        rig.run(A, cdb, 0, &[]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    }
    // The commands in of one operation code that change the medium, and those that are not known.
    for (opcode, actions) in CHANGING_ACTIONS {
        for action in *actions {
            rig.run(A, &[*opcode, *action], 0, &[]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
        }
    }
    for (opcode, actions) in READING_ACTIONS {
        for action in *actions {
            rig.run(A, &[*opcode, *action, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0], 8, &[]).good();
        }
    }
    assert_eq!(fake.seen().len(), 10);
    rig.run(A, &READ_10, 1024, &[]).good();
    fake.answer(Answer::Data(vec![3, 0, 0, 0]));
    assert_eq!(rig.run(A, &[0x1a, 0, 0x3f, 0, 4, 0], 4, &[]).good(), [3, 0, 0x80, 0], "WP");
    assert_eq!(fake.seen().len(), 2);
}

const ATA_PASS_THROUGH_32: [u8; 10] = [0x7f, 0, 0, 0, 0, 0, 0, 24, 0x1f, 0xf0];

#[test]
fn commands_that_change_the_device_need_permission() {
    let dangerous: &[(&[u8], Asc)] = &[
        (&[0x04, 0, 0, 0, 0, 0], Asc::INVALID_COMMAND_OPERATION_CODE),
        (&[0x48, 3], Asc::INVALID_COMMAND_OPERATION_CODE),
        (&[0x85, 0], Asc::INVALID_COMMAND_OPERATION_CODE),
        (&[0xa1, 0], Asc::INVALID_COMMAND_OPERATION_CODE),
        (&[0xb5, 0], Asc::INVALID_COMMAND_OPERATION_CODE),
        (&[0x3b, 5], Asc::INVALID_FIELD_IN_CDB),
        (&[0x38, 0], Asc::INVALID_COMMAND_OPERATION_CODE),
        (&ATA_PASS_THROUGH_32, Asc::INVALID_FIELD_IN_CDB),
        (&[0x9e, 0x18], Asc::INVALID_FIELD_IN_CDB),
        (&[0x9e, 0x19], Asc::INVALID_FIELD_IN_CDB),
        (&[0x9e, 0x1a], Asc::INVALID_FIELD_IN_CDB),
    ];
    let (mut rig, fake) = served(0);
    let (mut free, reached) = with(0, unit(true));
    for (cdb, asc) in dangerous {
        rig.run(A, cdb, 0, &[]).illegal(*asc);
        free.run(A, cdb, 0, &[]).good();
    }
    assert!(fake.seen().is_empty());
    assert_eq!(reached.seen().len(), dangerous.len());
    // Other commands of the same operation codes need none.
    rig.run(A, &[0x7f, 0, 0, 0, 0, 0, 0, 24, 0, 9], 0, &[]).good();
    rig.run(A, &[0x9e, 0x15], 0, &[]).good();
    assert_eq!(fake.seen().len(), 2);
    // The kernel executes ATA commands for devices of any type.
    for kind in [0x01, 0x05, 0x08, 0x0d] {
        let (mut rig, fake) = served(kind);
        rig.run(A, &[0x85, 0], 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
        rig.run(A, &ATA_PASS_THROUGH_32, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
        assert!(fake.seen().is_empty(), "{kind:02x}h");
    }
    // BLANK of CD drives has the operation code of ATA PASS-THROUGH(12).
    served(5).0.run(A, &[0xa1, 0], 0, &[]).good();
    for never in [0x18, 0x39, 0x3a, 0x40, 0x83, 0x84, 0x86, 0x87] {
        free.run(A, &[never, 0], 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    }
    // NACA would make the device stop for every nexus.
    free.run(A, &[0, 0, 0, 0, 0, 4], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert!(reached.seen().is_empty());
    rig.run(A, &[0x3b, 2], 0, &[]).good();
}

#[test]
fn a_transfer_that_is_too_long_is_refused_and_the_limit_told() {
    let (mut rig, fake) = served(0);
    rig.run(A, &[0x28, 0, 0, 0, 0, 0, 0, 0, 128, 0], 65536, &[]).good();
    rig.run(A, &[0x28, 0, 0, 0, 0, 0, 0, 0, 129, 0], 66048, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(fake.seen().len(), 1);
    // The device has no limits page.
    fake.answer(Answer::Check(Sense::invalid_cdb(2, None), Vec::new()));
    let limits = rig.run(A, &[0x12, 1, 0xb0, 0, 64, 0], 64, &[]).good();
    assert_eq!((limits.len(), &limits[8..12]), (64, &[0, 0, 0, 128][..]));
    // It has one with a higher and one with a lower limit.
    for (told, corrected) in [(1000_u32, 128_u32), (16, 16)] {
        let mut page = vec![0, 0xb0, 0, 0x3c];
        page.resize(64, 0);
        page[8..12].copy_from_slice(&told.to_be_bytes());
        fake.answer(Answer::Data(page));
        let limits = rig.run(A, &[0x12, 1, 0xb0, 0, 64, 0], 64, &[]).good();
        assert_eq!(limits[8..12], corrected.to_be_bytes());
    }
}

#[test]
fn the_identity_is_the_devices_and_the_ports_are_the_targets() {
    let (mut rig, fake) = served(0);
    let mut standard = vec![0x20, 0x80, 6, 2, 31, 0xc9, 0x81, 0];
    standard.extend_from_slice(b"VENDOR  PRODUCT         0001");
    fake.answer(Answer::Data(standard));
    let data = rig.run(A, &[0x12, 0, 0, 0, 36, 0], 36, &[]).good();
    assert_eq!(data[..8], [0, 0x80, 6, 2, 31, 0x91, 0x80, 2]);
    assert_eq!(&data[8..16], b"VENDOR  ");
    fake.answer(Answer::Data(vec![0, 0, 0, 4, 0, 0x80, 0x87, 0x8f]));
    let pages = rig.run(A, &[0x12, 1, 0, 0, 64, 0], 64, &[]).good();
    assert_eq!(pages, [0, 0, 0, 5, 0, 0x80, 0x83, 0x88, 0xb0]);
    // The name of the unit stays, that of the port of the device goes.
    let own = [1, 3, 0, 8, 0x50, 1, 2, 3, 4, 5, 6, 7];
    let mut page = vec![0, 0x83, 0, 24];
    page.extend_from_slice(&own);
    page.extend_from_slice(&[1, 0x93, 0, 8, 0x50, 9, 9, 9, 9, 9, 9, 9]);
    fake.answer(Answer::Data(page));
    let data = rig.run(A, &[0x12, 1, 0x83, 4, 0, 0], 1024, &[]).good();
    assert_eq!(data[4..16], own);
    let text = alloc::string::String::from_utf8_lossy(&data).into_owned();
    assert!(text.contains("iqn.2026-11.org.targe:t,t,0x0001") && !data.contains(&9), "{data:02x?}");
    // A device without a name has that of the configuration.
    fake.answer(Answer::Check(Sense::invalid_cdb(2, None), Vec::new()));
    let data = rig.run(A, &[0x12, 1, 0x83, 4, 0, 0], 1024, &[]).good();
    assert_eq!(data[4..8], [1, 3, 0, 16]);
}

#[test]
fn a_device_that_cannot_answer_keeps_its_identity() {
    let (mut rig, fake) = served(0);
    for page in [0x00, 0x83, 0xb0] {
        let inquiry = [0x12, 1, page, 4, 0, 0];
        fake.answer(Answer::Status(Status::BUSY));
        let reply = rig.run(A, &inquiry, 1024, &[]);
        assert_eq!((reply.status, reply.data.len()), (Status::BUSY, 0), "{page:02x}h");
        fake.answer(Answer::Check(Sense::new(SenseKey::HARDWARE_ERROR, Asc::NONE), Vec::new()));
        rig.run(A, &inquiry, 1024, &[]).check(SenseKey::HARDWARE_ERROR, Asc::NONE);
        fake.answer(Answer::Check(Sense::invalid_cdb(2, None), Vec::new()));
        rig.run(A, &inquiry, 1024, &[]).good();
    }
}

#[test]
fn the_sectors_of_a_disc_can_be_longer_than_its_blocks() {
    let (mut rig, fake) = served(5);
    fake.answer(Answer::Data(vec![0, 0, 0, 9, 0, 0, 8, 0]));
    rig.run(A, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).good();
    let (write, read) = ([0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0], READ_10);
    // Blocks, audio, and audio with its sub-channels.
    for len in [2048, 2352, 2448] {
        rig.run(A, &write, 0, &vec![3; 2 * len]).good();
        assert_eq!(fake.0.borrow().received.last().map(Vec::len), Some(2 * len));
        fake.answer(Answer::Data(vec![7; 2 * len]));
        assert_eq!(rig.run(A, &read, 2 * len, &[]).good().len(), 2 * len);
    }
    rig.run(A, &write, 0, &vec![3; 8192]).good();
    assert_eq!(fake.0.borrow().received.last().map(Vec::len), Some(2 * 2448));
    rig.run(A, &write, 0, &vec![3; 2048]).illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
}

/// Any CDB with any lengths ends, whatever the device answers, and moves no more than was announced.
#[test]
fn no_command_is_lost_and_none_moves_too_much() {
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let kind = [0x00, 0x01, 0x05, 0x08, 0x0d][usize::try_from(rng.below(5)).unwrap()];
        let (mut rig, fake) = with(kind, unit(rng.chance(1, 2)));
        for _ in 0..40 {
            let mut cdb = [0; 16];
            rng.fill(&mut cdb);
            for byte in &mut cdb[1..] {
                *byte &= [0, 0, 0x01, 0xff][usize::try_from(rng.below(4)).unwrap()];
            }
            let (room, out) = match rng.below(3) {
                0 => (0, 0),
                1 => (usize::try_from(rng.below(9000)).unwrap(), 0),
                _ => (0, usize::try_from(rng.below(9000)).unwrap()),
            };
            let key = SenseKey([0, 1, 3, 6][usize::try_from(rng.below(4)).unwrap()]);
            let len = usize::try_from(rng.below(3000)).unwrap();
            fake.0.borrow_mut().answers.clear();
            match rng.below(4) {
                0 => fake.answer(Answer::Data(vec![5; len])),
                1 => fake.answer(Answer::Check(Sense::new(key, Asc(0x2900)), vec![6; len])),
                2 => fake.answer(Answer::Fails(Fault::Hardware)),
                _ => {}
            }
            let nexus = if rng.chance(1, 2) { A } else { B };
            let reply = rig.run(nexus, &cdb, room, &vec![7; out]);
            assert!(reply.data.len() <= room, "seed {seed}: {cdb:02x?}: {reply:?}");
            let longest = fake.0.borrow().received.iter().map(Vec::len).max().unwrap_or(0);
            assert!(longest <= 9000, "seed {seed}: {cdb:02x?}");
        }
    }
}

/// Returns the operation codes, with their service actions, of the list of all commands.
fn listed(rig: &mut Rig) -> Vec<(u8, Option<u16>)> {
    let cdb = [0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0];
    let data = rig.run(A, &cdb, 0xffff, &[]).good();
    assert_eq!(usize::try_from(u32::from_be_bytes(data[..4].try_into().unwrap())).unwrap(), data.len() - 4);
    let commands = SupportedCommand::parse_all(&data).unwrap();
    commands.into_iter().map(|command| (command.opcode, command.service_action)).collect()
}

#[test]
fn the_commands_of_the_device_are_listed_as_far_as_they_reach_it() {
    let command =
        |opcode, service_action| SupportedCommand { opcode, service_action, cdb_len: 10, timeouts: None };
    // FORMAT UNIT and REMOVE ELEMENT AND TRUNCATE are dangerous, EXTENDED COPY is refused, RESERVE(6) and
    // PERSISTENT RESERVE OUT, APTPL and all, are executed here.
    let of_device = [
        command(0x04, None),
        command(0x16, None),
        command(0x28, None),
        command(0x5f, Some(0)),
        command(0x83, Some(0)),
        command(0x9e, Some(0x10)),
        command(0x9e, Some(0x18)),
        command(0xc1, None),
    ];
    for is_dangerous in [false, true] {
        let (mut rig, fake) = with(0, unit(is_dangerous));
        fake.answer(Answer::Data(SupportedCommand::encode_all(of_device.into_iter())));
        let found = listed(&mut rig);
        assert_eq!(fake.seen(), [vec![0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]]);
        for passed in [(0x28, None), (0x9e, Some(0x10)), (0xc1, None)] {
            assert!(found.contains(&passed), "{passed:?}");
        }
        for dangerous in [(0x04, None), (0x9e, Some(0x18))] {
            assert_eq!(found.contains(&dangerous), is_dangerous, "{dangerous:?}");
        }
        assert!(!found.contains(&(0x83, Some(0))));
        for own in [(0x17, None), (0x5e, Some(3)), (0x5f, Some(8)), (0xa0, None), (0xa3, Some(0x0c))] {
            assert!(found.contains(&own), "{own:?}");
        }
        assert_eq!(found.iter().filter(|(opcode, _)| *opcode == 0x16).count(), 1);
        assert!(found.is_sorted());
    }
}

#[test]
fn one_command_is_asked_of_whom_it_belongs_to() {
    let (mut rig, fake) = served(0);
    let ask = |option, opcode, action| [0xa3, 0x0c, option, opcode, 0, action, 0, 0, 0, 64, 0, 0];
    let of_device = OneCommand { usage: Some(vec![0x28, 0x1a]), timeouts: None };
    fake.answer(Answer::Data(of_device.encode()));
    assert_eq!(rig.run(A, &ask(1, 0x28, 0), 64, &[]).good(), of_device.encode());
    assert_eq!(fake.seen(), [ask(1, 0x28, 0).to_vec()]);
    // Executed here: the device does not know what is supported.
    let reserve = OneCommand::parse(&rig.run(A, &ask(2, 0x5f, 1), 64, &[]).good()).unwrap();
    assert_eq!(reserve.usage.unwrap()[..2], [0x5f, 1]);
    // Refused.
    for (option, opcode, action) in [(1, 0x04, 0), (2, 0x83, 1), (3, 0x9e, 0x18)] {
        let none = OneCommand::parse(&rig.run(A, &ask(option, opcode, action), 64, &[]).good()).unwrap();
        assert_eq!(none.usage, None, "{opcode:02x}h");
    }
    rig.run(A, &ask(4, 0x28, 0), 64, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(fake.seen(), Vec::<Vec<u8>>::new());
    // A device without the command says so itself.
    fake.answer(Answer::Check(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE), Vec::new()));
    rig.run(A, &ask(0, 0, 0), 64, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    // The bytes would be SEND KEY.
    let (mut rig, fake) = served(5);
    rig.run(A, &ask(0, 0, 0), 64, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(fake.seen(), Vec::<Vec<u8>>::new());
}

#[test]
fn every_command_is_documented() {
    let page = include_str!("../../../../docs/devices.md");
    let section = page.split("\n## ").find(|section| section.starts_with("Pass-through")).unwrap_or_default();
    let mut missing = alloc::string::String::new();
    let sets = [
        super::COMMON_ROWS,
        super::table::BLOCK_ROWS,
        super::table::TAPE_ROWS,
        super::table::DISC_ROWS,
        super::table::CHANGER_ROWS,
    ];
    for row in sets.into_iter().flatten() {
        let action =
            row.service_action.map_or_else(Default::default, |action| alloc::format!("/{action:02X}h"));
        let line = alloc::format!("`{:02X}h{action}` {}", row.opcode, row.name);
        if !section.contains(&line) {
            missing = missing + &line + "\n";
        }
    }
    assert!(missing.is_empty(), "docs/devices.md lacks\n{missing}");
}
