//! Tests of hostile peers: their frames are counted, their use of memory is bounded, and they change no data
//! that they must not change.

use base::ether::FrameMachine;
use base::rng::Rng;
use base::time::Duration;
use hyperscsi::exchange::xid::WINDOW;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header};
use hyperscsi::initiator::contract as ours;
use hyperscsi::pdu::abort::{Abort, AbortReason};
use hyperscsi::pdu::ack::Ack;
use hyperscsi::pdu::command::{Command, Request};
use hyperscsi::pdu::name::GroupName;
use hyperscsi::pdu::parts;
use hyperscsi::pdu::reply::{Reply, Response, TransferReady};
use hyperscsi::target::engine::EngineLimits;
use netem::frame::{FramePlan, lossy};
use security::Level;
use transport::command::TaskAttribute;
use transport::initiator::InitiatorTransport as _;
use transport::initiator::Request as Ask;
use transport::target::TargetTransport as _;

use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

/// A world in which the test sends raw frames in place of one end of an open session, whose real end is
/// unplugged.
pub(crate) struct Raw {
    pub(crate) world: World,
    pub(crate) sids: (u32, u32),
    pn: u64,
    to_target: bool,
}

impl Raw {
    pub(crate) fn new(to_target: bool) -> Self {
        Self::within(to_target, EngineLimits::default())
    }

    pub(crate) fn within(to_target: bool, limits: EngineLimits) -> Self {
        let mut world = World::with(1, FramePlan::CLEAN, None, limits, 1500);
        let mut plan = world.plan_of(1);
        plan.retry = transport::initiator::Retry::NONE;
        world.join(plan);
        world.up();
        world.rest(SECOND);
        let sids = world.engine.sessions().next().unwrap().sids;
        world.sockets[usize::from(to_target)].unplugged = true;
        Self { world, sids, pn: 200, to_target }
    }

    pub(crate) fn say(
        &mut self,
        cmd: Cmd,
        flags: Flags,
        (tag, xid, off): (u16, u32, u32),
        last: bool,
        payload: &[u8],
    ) {
        self.pn += 1;
        let sid = if self.to_target { self.sids.1 } else { self.sids.0 };
        let len = payload.len() as u16;
        let flags = flags.with(Flags::ELICITS);
        let header = Header { tag, last, cmd, flags, len, sid, pn: self.pn, xid, off, ..HEADER };
        let frame = raw(&header, payload);
        let (target, host) = (self.world.sockets[0].state.mac, self.world.sockets[1].state.mac);
        let (to, from) = if self.to_target { (target, host) } else { (host, target) };
        self.world.inject(to, from, &frame);
        self.world.rest(Duration::from_millis(1));
    }

    pub(crate) fn request(&mut self, tag: u16, xid: u32, command: &Command, data: &[u8]) {
        let mut payload = Vec::new();
        Request::Command(command.clone()).encode(&mut payload);
        payload.extend_from_slice(data);
        self.say(Cmd::Request, Flags::default(), (tag, xid, 0), true, &payload);
    }

    /// Sends several requests in one frame; `change` may damage its payload.
    pub(crate) fn requests(&mut self, requests: &[(u16, u32, Command)], change: impl FnOnce(&mut Vec<u8>)) {
        let mut blocks = requests.iter().map(|(tag, xid, command)| {
            let mut block = Vec::new();
            Request::Command(command.clone()).encode(&mut block);
            let len = block.len() as u16;
            (Header { len, tag: *tag, xid: *xid, ..HEADER }, block)
        });
        let (first, block) = blocks.next().unwrap();
        let further: Vec<_> = blocks.collect();
        let mut payload = Vec::new();
        parts::encode(further.iter().map(|(header, _)| *header), &mut payload);
        payload.extend_from_slice(&block);
        further.iter().for_each(|(_, block)| payload.extend_from_slice(block));
        change(&mut payload);
        self.say(Cmd::Request, Flags::PARTS, (first.tag, first.xid, 0), true, &payload);
    }

    pub(crate) fn data(&mut self, tag: u16, xid: u32, off: u32, data: &[u8]) {
        self.say(Cmd::Request, Flags::DATA, (tag, xid, off), false, data);
    }

    /// Acknowledges every frame that the target sent since the capture began.
    pub(crate) fn acknowledge(&mut self) {
        let (target, sid) = (self.world.sockets[0].state.mac, self.sids.0);
        let sent = self.world.capture.iter().filter(|(_, from, _)| *from == target);
        let headers = sent.map(|(.., frame)| Header::parse(frame).unwrap().0);
        let largest = headers.filter(|header| header.sid == sid).map(|header| header.pn).max().unwrap();
        let (first, pn_limit) = (largest as u32, largest + 1000);
        let ack = Ack {
            sealed: false,
            largest,
            delay_us: 0,
            first,
            pn_limit,
            xid_limit: 0,
            overruns: 0,
            ranges: Default::default(),
        };
        let mut payload = Vec::new();
        ack.encode(core::iter::empty(), &mut payload);
        self.say(Cmd::Ack, Flags::default(), (0, 0, 0), true, &payload);
    }

    fn reply(&mut self, tag: u16, xid: u32, reply: Reply<'_>) {
        let mut payload = Vec::new();
        reply.encode(&mut payload);
        self.say(Cmd::Reply, Flags::default(), (tag, xid, 0), true, &payload);
    }
}

const HEADER: Header = Header {
    tag: 0,
    last: true,
    fragment: 0,
    protected: false,
    cmd: Cmd::Request,
    flags: Flags(0),
    len: 0,
    sid: 0,
    pn: 0,
    xid: 0,
    off: 0,
};

pub(crate) fn command(op: u8, lba: u32, out: u32, unsolicited_len: u32) -> Command {
    Command {
        lun: 0,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        after: 0,
        data_in_len: 0,
        data_out_len: out,
        unsolicited_len,
        cdb: cdb(op, lba, out / BLOCK as u32),
    }
}

#[test]
fn a_request_runs_once_however_often_and_under_whichever_slot_it_comes() {
    let mut raw = Raw::new(true);
    for _ in 0..5 {
        raw.request(0, 1, &command(COUNT, 1, 0, 0), &[]);
    }
    raw.request(9, 1, &command(COUNT, 1, 0, 0), &[]);
    raw.request(1, 2, &command(COUNT, 2, 0, 0), &[]);
    raw.request(0, 1, &command(COUNT, 3, 0, 0), &[]);
    assert_eq!(raw.world.server.counts, [(1, 1), (2, 1)].into());
    assert_eq!(raw.world.engine.stats().duplicates, 6);
}

#[test]
fn requests_in_one_frame_run_once_each_however_they_come_and_each_is_judged_by_itself() {
    let mut raw = Raw::new(true);
    let count = |tag: u16, number: u32| (tag, u32::from(tag) + 1, command(COUNT, number, 0, 0));
    raw.requests(&[count(0, 1), count(1, 2), count(2, 3)], |_| {});
    raw.requests(&[count(2, 3), count(3, 4), count(0, 1)], |_| {});
    raw.request(3, 4, &command(COUNT, 4, 0, 0), &[]);
    // A request twice in one frame and again in another slot; one of the other packet number space; a
    // malformed block.
    raw.requests(&[count(4, 5), count(4, 5), (9, 5, command(COUNT, 5, 0, 0))], |_| {});
    raw.requests(&[(5, 1 << 31 | 6, command(COUNT, 6, 0, 0)), count(5, 7)], |_| {});
    raw.requests(&[count(6, 8), count(7, 9)], |payload| payload[18] = 9);
    let once = [1, 2, 3, 4, 5, 7, 9].map(|number| (number, 1));
    assert_eq!(raw.world.server.counts, once.into());
    let stats = raw.world.engine.stats();
    assert_eq!(
        (stats.duplicates, stats.unprotected, stats.malformed, stats.refused_frames),
        (5, 1, 1, 0),
        "{stats:?}"
    );
}

#[test]
fn of_a_frame_whose_parts_do_not_add_up_nothing_runs() {
    let mut raw = Raw::new(true);
    let count = |tag: u16| (tag, u32::from(tag) + 1, command(COUNT, 1, 0, 0));
    let three = [count(0), count(1), count(2)];
    let whole = |raw: &mut Raw, change: &dyn Fn(&mut Vec<u8>)| raw.requests(&three, change);
    // The number of parts, the length of the block, reserved bits, flags and lengths in its entries.
    for (at, value) in
        [(1, 0), (1, 3), (1, 64), (3, 31), (0, 2), (4, 0x80), (7, 0x20), (21, 0x04), (22, 0xff)]
    {
        whole(&mut raw, &|payload| payload[at] = value);
    }
    whole(&mut raw, &|payload| payload.truncate(40));
    assert_eq!((raw.world.server.executed, raw.world.engine.stats().refused_frames), (0, 10));
    // Only Request and Reply frames may have the flag PARTS.
    for cmd in [Cmd::Ask, Cmd::Ack, Cmd::Abort, Cmd::Disconnect] {
        raw.say(cmd, Flags::PARTS, (0, 0, 0), true, &[1, 0, 0, 4]);
    }
    assert_eq!(raw.world.engine.stats().bad_frames, 4);
    assert_eq!(raw.world.engine.sessions().count(), 1);
    whole(&mut raw, &|_| {});
    assert_eq!(raw.world.server.counts, [(1, 3)].into());
}

#[test]
fn numbers_and_slots_out_of_bounds_open_nothing() {
    let mut raw = Raw::new(true);
    raw.request(0, WINDOW + 1, &command(COUNT, 1, 0, 0), &[]);
    raw.request(0, 0, &command(COUNT, 1, 0, 0), &[]);
    raw.request(500, 1, &command(COUNT, 1, 0, 0), &[]);
    raw.request(0, 1 << 31 | 1, &command(COUNT, 1, 0, 0), &[]);
    raw.request(0, 2, &Command { after: 2, ..command(COUNT, 1, 0, 0) }, &[]);
    raw.request(0, 3, &Command { after: 7, ..command(COUNT, 1, 0, 0) }, &[]);
    assert_eq!(raw.world.server.executed, 0);
    // A slot that is in use is not taken over.
    raw.request(3, 4, &command(LINGER, 0, 0, 0), &[]);
    raw.request(3, 5, &command(COUNT, 1, 0, 0), &[]);
    assert_eq!((raw.world.server.executed, raw.world.server.tasks.len()), (1, 1));
    let stats = raw.world.engine.stats();
    assert_eq!(
        (stats.misnumbered, stats.duplicates, stats.unprotected, stats.malformed),
        (3, 1, 1, 2),
        "{stats:?}"
    );
}

#[test]
fn data_lands_within_what_was_announced_or_nowhere() {
    let mut raw = Raw::new(true);
    raw.world.server.disks.insert(0, vec![7; DISK]);
    let before = raw.world.server.disks[&0].clone();
    // 2 KiB in all, 1 KiB of it unsolicited; the target requested no other data.
    raw.request(0, 1, &command(LATE_WRITE, 4, 2048, 1024), &[1; 512]);
    raw.data(0, 1, 1000, &[2; 100]);
    raw.data(0, 1, 1024, &[2; 100]);
    raw.data(0, 1, 2047, &[2; 100]);
    raw.data(0, 1, u32::MAX - 10, &[2; 100]);
    raw.data(1, 1, 512, &[2; 100]);
    raw.data(0, 9, 512, &[2; 100]);
    raw.data(5, 7, 65_530, &[2; 100]);
    let stats = *raw.world.engine.stats();
    assert_eq!((stats.misplaced, stats.strays, stats.misnumbered), (3, 3, 1), "{stats:?}");
    assert_eq!(stats.data_out_bytes, 512);
    // The announced data is still accepted, and bytes that were received first are not overwritten.
    raw.data(0, 1, 0, &[3; 1024]);
    let task = *raw.world.server.tasks.keys().next().unwrap();
    raw.world.engine.fetch(task, 0, 1024);
    raw.world.rest(Duration::from_millis(1));
    let disk = &raw.world.server.disks[&0];
    assert_eq!(disk[4 * BLOCK..4 * BLOCK + 512], [1; 512]);
    assert_eq!(disk[4 * BLOCK + 512..6 * BLOCK], [3; 512]);
    assert!(disk[..4 * BLOCK] == before[..4 * BLOCK] && disk[6 * BLOCK..] == before[6 * BLOCK..]);
}

#[test]
fn data_without_requests_takes_a_bounded_room_and_is_forgotten() {
    let mut raw =
        Raw::within(true, EngineLimits { orphan_data_timeout: 8 * SECOND, ..EngineLimits::default() });
    for slot in 0..600_u16 {
        raw.data(slot, 2 + u32::from(slot), 0, &[1; 100]);
    }
    let held = raw.world.engine.data_bytes();
    assert!(held > 0 && held <= 128 * (64 << 10), "{held}");
    // The request of one of them is received after all.
    raw.request(0, 2, &command(WRITE, 0, 512, 512), &[]);
    raw.data(0, 2, 100, &[2; 412]);
    assert_eq!(raw.world.server.executed, 1);
    assert!(raw.world.server.disk_of(0)[..512] == [vec![1; 100], vec![2; 412]].concat()[..]);
    // The requests of the others are never received.
    raw.world.rest(6 * SECOND);
    assert!(raw.world.engine.stats().orphan_data == 0 && raw.world.engine.data_bytes() > 0);
    raw.world.rest(4 * SECOND);
    assert_eq!((raw.world.engine.stats().orphan_data, raw.world.engine.data_bytes()), (127, 0));
    assert_eq!(raw.world.engine.sessions().count(), 1);
}

/// Data that found no memory before its request was received is gone, and was acknowledged. So the request is
/// answered with BUSY, even if it comes when others have received memory meanwhile.
#[test]
fn a_request_whose_data_found_no_memory_is_answered_with_busy() {
    let mut raw =
        Raw::within(true, EngineLimits { data_out_bytes_max: 256 << 10, ..EngineLimits::default() });
    let long = 48 << 10;
    for slot in 0..4_u16 {
        raw.request(slot, 2 + u32::from(slot), &command(WRITE, u32::from(slot) * 128, long, 0), &[]);
    }
    raw.world.rest(Duration::from_millis(1));
    assert!(raw.world.engine.stats().withheld > 0, "a write waits for memory");
    let early: Vec<u16> = (4..100).collect();
    for slot in &early {
        raw.data(*slot, 2 + u32::from(*slot), 0, &[1; 512]);
    }
    for at in (0..long).step_by(1024) {
        raw.data(0, 2, at, &[2; 1024]);
    }
    raw.world.rest(Duration::from_millis(1));
    let (executed, busy) = (raw.world.server.executed, raw.world.engine.stats().busy);
    for slot in &early {
        raw.request(*slot, 2 + u32::from(*slot), &command(WRITE, 4096, 512, 512), &[]);
        raw.world.rest(Duration::from_millis(1));
    }
    let stored = raw.world.server.executed - executed;
    let dropped = raw.world.engine.stats().busy - busy;
    assert!(stored > 0 && dropped > 0, "{stored} {dropped}");
    assert_eq!(stored + dropped, early.len() as u64);
}

#[test]
fn a_request_that_was_given_up_before_it_came_never_runs() {
    let mut raw = Raw::new(true);
    let mut payload = Vec::new();
    Abort::GiveUp(AbortReason::ASKED).encode(&mut payload);
    raw.say(Cmd::Abort, Flags::default(), (4, 1, 0), true, &payload);
    raw.request(4, 1, &command(COUNT, 1, 0, 0), &[]);
    assert_eq!(raw.world.server.executed, 0);
    // And a request that is being executed is aborted.
    raw.request(5, 2, &command(LINGER, 0, 0, 0), &[]);
    assert_eq!(raw.world.server.tasks.len(), 1);
    raw.say(Cmd::Abort, Flags::default(), (5, 2, 0), true, &payload);
    raw.say(Cmd::Abort, Flags::default(), (5, 2, 0), true, &payload);
    assert_eq!(raw.world.server.tasks.len(), 0);
    assert_eq!(raw.world.engine.stats().bugs, 0);
}

#[test]
fn more_unasked_data_than_agreed_ends_the_exchange() {
    let mut raw = Raw::new(true);
    raw.request(0, 1, &command(WRITE, 0, 128 << 10, 128 << 10), &[1; 100]);
    assert_eq!(raw.world.server.executed, 0);
    assert_eq!(raw.world.engine.data_bytes(), 0);
}

#[test]
fn an_initiator_takes_no_byte_beyond_its_buffer_and_believes_one_end() {
    for (off, len) in [(512, 1), (0, 513), (511, 2), (u32::MAX, 1)] {
        let mut raw = Raw::new(false);
        let task = raw.world.read(0, 0, 0, 1);
        raw.say(Cmd::Reply, Flags::DATA, (0, 1, off), false, &vec![9; len]);
        let down = raw.world.initiators[0].down;
        let why = ours::LossReason::Misbehaved(ours::ProtocolError::DataInOutside);
        assert_eq!(down, Some(ours::SessionEnd::RetriesExhausted(why)), "{off} {len}");
        assert_eq!(raw.world.end(0, task).end, transport::initiator::TaskResult::Lost);
    }
    let response = |status, data_in_len| {
        Reply::Response(Response { status, data_in_len, transferable: 512, sense: &[] })
    };
    for second in [response(2, 256), response(0, 400)] {
        let mut raw = Raw::new(false);
        let task = raw.world.read(0, 0, 0, 1);
        raw.reply(0, 1, response(0, 256));
        raw.reply(0, 1, response(0, 256));
        assert!(raw.world.initiators[0].down.is_none() && raw.world.initiators[0].ended.is_empty());
        raw.reply(0, 1, second);
        let why = ours::LossReason::Misbehaved(ours::ProtocolError::TwoEnds);
        assert_eq!(raw.world.initiators[0].down, Some(ours::SessionEnd::RetriesExhausted(why)));
        assert_eq!(raw.world.end(0, task).end, transport::initiator::TaskResult::Lost);
    }
}

#[test]
fn an_initiator_sends_nothing_that_the_command_does_not_have() {
    for ready in [
        TransferReady { number: 0, offset: 2048, len: 1 },
        TransferReady { number: 0, offset: 2047, len: 2 },
        TransferReady { number: 5000, offset: 0, len: 1 },
    ] {
        let mut raw = Raw::new(false);
        let task = raw.world.write(0, 0, 0, 4, 1);
        raw.reply(0, 1, Reply::TransferReady(ready));
        let why = ours::LossReason::Misbehaved(ours::ProtocolError::TransferReadyOutside);
        assert_eq!(raw.world.initiators[0].down, Some(ours::SessionEnd::RetriesExhausted(why)), "{ready:?}");
        raw.world.end(0, task);
    }
    // A command that reads has no Data-Out at all, and a Transfer Ready for an unknown exchange changes
    // nothing.
    let mut raw = Raw::new(false);
    let task = raw.world.read(0, 0, 0, 1);
    for (tag, xid) in [(1, 1), (0, 2), (511, 1 << 31 | 1)] {
        raw.reply(tag, xid, Reply::TransferReady(TransferReady { number: 0, offset: 0, len: 1 }));
    }
    assert_eq!(raw.world.initiators[0].session.stats().strays, 3);
    assert!(raw.world.initiators[0].down.is_none() && !raw.world.initiators[0].ended.contains_key(&task));
}

/// Changes bytes of captured frames, corrects the CRC of unprotected ones, and sends the frames to both ends.
#[test]
fn changed_frames_break_neither_end() {
    for seed in seeds(6) {
        println!("HYPER_SEED={seed}");
        let password = (seed % 2 == 0).then_some("sesame");
        let mut world = World::new(seed, lossy(100, Duration::from_micros(100)), password);
        if password.is_some() {
            // Without this, logical units can be reached without protection, and frames to them can be
            // forged.
            world.config.levels = (0..4).map(|lun| (lun, Level::Integrity)).collect();
        }
        world.captures = true;
        world.join(world.plan_of(1));
        world.up();
        let mut rng = Rng::from_seed(seed);
        for round in 0..30_u32 {
            if world.initiators[0].session.is_down() {
                // In a session without keys, a forged GOODBYE ends the session.
                assert!(password.is_none());
                break;
            }
            let write = world.write(0, 0, round * 40, 1 + rng.below(40) as u32, seed);
            let linger = world.submit(0, Ask::new(1, cdb(COUNT, round, 0)));
            world.rest(Duration::from_micros(rng.below(300)));
            for _ in 0..40 {
                let number =
                    world.capture.len() - 1 - rng.below(world.capture.len().min(200) as u64) as usize;
                let (to, source, mut frame) = world.capture[number].clone();
                for _ in 0..=rng.below(3) {
                    let most = if rng.below(2) == 0 { HEADER_LEN + 8 } else { frame.len() };
                    let at = rng.below(most.min(frame.len()) as u64) as usize;
                    frame[at] = rng.next_u64() as u8;
                }
                if let Ok((header, _)) = Header::parse(&frame)
                    && !header.protected
                {
                    let end = HEADER_LEN + usize::from(header.len);
                    frame = raw(&header, &frame[HEADER_LEN..end]);
                }
                world.inject(to, source, &frame);
            }
            if password.is_some() {
                world.good(0, write);
                world.good(0, linger);
            }
            world.rest(Duration::from_millis(5));
        }
        assert_eq!(world.engine.stats().bugs, 0);
        assert_eq!(world.initiators[0].session.stats().bugs, 0);
        if password.is_some() {
            assert!(world.server.counts.values().all(|count| *count == 1), "something ran twice");
            assert_eq!((world.server.counts.len(), world.initiators[0].ups), (30, 1));
            world.rest(2 * SECOND);
            world.is_clean();
        }
    }
}

/// Where logical units can be reached without protection, frames of such exchanges can be forged. They use up
/// XIDs and slots of their own packet number space, and the target's acknowledgements of them are not treated
/// as a protocol error.
#[test]
fn forged_frames_without_protection_leave_what_is_protected_alone() {
    let mut world = World::new(3, FramePlan::CLEAN, Some("sesame"));
    world.config.levels = [(1, Level::Integrity)].into();
    let plan = ours::SessionPlan { level: Level::None, ..world.plan_of(1) };
    world.join(plan);
    world.initiators[0].session.set_level(1, Level::Encrypt);
    world.up();
    let sid = world.engine.sessions().next().unwrap().sids.1;
    let (target, host) = (world.sockets[0].state.mac, world.sockets[1].state.mac);
    let forge = |world: &mut World, pn: u64, lun: u64| {
        let number = pn as u32;
        let xid = 1 + number % 100;
        let mut payload = Vec::new();
        Request::Command(Command { lun, ..command(COUNT, 9000 + number, 0, 0) }).encode(&mut payload);
        let header = Header {
            tag: number as u16 % 128,
            last: true,
            fragment: 0,
            protected: false,
            cmd: Cmd::Request,
            flags: Flags::ELICITS,
            len: payload.len() as u16,
            sid,
            pn,
            xid,
            off: 0,
        };
        world.inject(target, host, &raw(&header, &payload));
        // The same XID in the space of protected frames.
        let protected = Header { xid: 1 << 31 | xid, ..header };
        world.inject(target, host, &raw(&protected, &payload));
    };
    for number in 1..=100 {
        forge(&mut world, u64::from(number) * 2, u64::from(number) % 2);
        let write = world.write(0, 1, number * 20, 20, 4);
        let count = world.submit(0, Ask::new(1, cdb(COUNT, number, 0)));
        world.good(0, write);
        world.good(0, count);
        let read = world.read(0, 1, number * 20, 20);
        assert!(world.good(0, read) == pattern(1, number * 20, 20, 4));
    }
    assert_eq!((world.initiators[0].ups, world.initiators[0].down), (1, None));
    let stats = world.engine.stats();
    assert!(stats.unprotected + stats.refused_level > 20, "{stats:?}");
    assert!((1..=100).all(|number| world.server.counts.get(&number) == Some(&1)));
    // No forged command for the logical unit that demands protection was executed.
    assert!(world.server.ran.iter().all(|(lun, number)| *lun == 0 || *number < 9000));
}

/// Initiator names are only claimed. A login that proves knowledge of another group's password gets a nexus
/// of that group, whatever name it claims.
#[test]
fn a_name_claimed_in_another_group_ends_no_session_and_stops_no_task() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(5, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        let task = world.submit(0, Ask::new(0, cdb(LINGER, 0, 0)));
        world.rest(Duration::from_millis(5));
        let group = GroupName::new(GUESTS).unwrap();
        let plan = ours::SessionPlan { group, password: None, level: Level::None, ..world.plan_of(1) };
        world.join(plan);
        world.up();
        world.rest(2 * SECOND);
        let groups: Vec<&str> = world.engine.sessions().map(|session| &**session.group).collect();
        assert_eq!(groups, [GROUP, GUESTS]);
        assert_eq!((world.engine.stats().reinstated, world.engine.handshakes().put_off), (0, 0));
        assert!(world.initiators[0].session.is_up() && !world.initiators[0].ended.contains_key(&task));
        assert_eq!(world.server.tasks.len(), 1);
        // In its own group an initiator that restarts replaces its older session.
        world.restart_initiator(0, world.plan_of(1));
        world.up();
        world.rest(SECOND);
        assert_eq!((world.engine.stats().reinstated, world.engine.sessions().count()), (1, 2));
        assert!(world.server.tasks.is_empty() && world.initiators[1].session.is_up());
    }
}

#[test]
fn each_handshake_asks_for_fresh_entropy_and_is_content_with_a_block() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(6, FramePlan::CLEAN, password);
        assert_eq!(world.engine.entropy_wanted(), 0);
        world.join(world.plan_of(1));
        world.up();
        for round in 2..4 {
            assert_eq!(world.engine.entropy_wanted(), 1);
            assert_eq!(world.initiators[0].session.entropy_wanted(), 1);
            world.engine.add_entropy([round; 32]);
            world.initiators[0].session.add_entropy([round + 100; 32]);
            world.rest(SECOND);
            assert_eq!(world.engine.entropy_wanted() + world.initiators[0].session.entropy_wanted(), 0);
            world.restart_target();
            world.count(0, 0, u32::from(round), TaskAttribute::SIMPLE);
            assert!(world.run(10 * SECOND, |world| world.initiators[0].ups == u32::from(round)));
        }
    }
}

/// The answers of a target to unknown stations are bounded in number, no longer than the frames that caused
/// them, and never sent for a frame whose source address is a group address.
#[test]
fn strangers_get_short_answers_and_few_of_them() {
    let mut world = World::new(8, FramePlan::CLEAN, Some("sesame"));
    world.captures = true;
    let target = world.sockets[0].state.mac;
    let stranger = base::ether::Mac([2, 0, 0, 0, 9, 9]);
    let mut other_version = [0; 60];
    (other_version[1], other_version[3], other_version[4]) = (4, 0x30, Cmd::Negotiate as u8);
    let header = Header {
        tag: 0,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Ask,
        flags: Flags::default(),
        len: 4,
        sid: 0x1234_5678,
        pn: 1,
        xid: 0,
        off: 0,
    };
    let mut unknown = raw(&header, &[1, 0, 0, 4]);
    unknown.resize(60, 0);
    let mut provoke = |frame: &[u8], source, to| {
        world.capture.clear();
        for _ in 0..1000 {
            world.inject(to, source, frame);
            world.rest(Duration::from_micros(10));
        }
        world.rest(2 * SECOND);
        let said = core::mem::take(&mut world.capture);
        assert!(said.iter().all(|(to, _, payload)| *to == stranger && payload.len() <= frame.len()));
        said.len()
    };
    assert_eq!(provoke(&other_version, stranger, target), 8);
    assert_eq!(provoke(&unknown, stranger, target), 256);
    let everybody = base::ether::Mac([0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(provoke(&other_version, everybody, target) + provoke(&unknown, everybody, target), 0);
    // Of frames to the broadcast address, only Discovery questions and first handshake steps are processed.
    assert_eq!(provoke(&unknown, stranger, base::ether::Mac::BROADCAST), 0);
    // A frame that is an answer itself, of whatever version, is not answered.
    other_version[4] = Cmd::Negotiated as u8;
    (unknown[4], other_version[3]) = (Cmd::Disconnect as u8, 0x30);
    assert_eq!(provoke(&other_version, stranger, target) + provoke(&unknown, stranger, target), 0);
}

/// Each command claims the largest possible expected length and does not end: it could wait for data of
/// another command that its initiator withholds.
#[test]
fn a_command_that_claims_all_memory_and_does_not_end_leaves_room_for_others() {
    let limits = EngineLimits { data_in_bytes_max: 1 << 20, ..EngineLimits::default() };
    let mut world = World::with(1, FramePlan::CLEAN, None, limits, 1500);
    for isid in 1..=2 {
        world.join(world.plan_of(isid));
    }
    world.up();
    let claim = |lun| Ask { data_in_len: u32::MAX, ..Ask::new(lun, cdb(LINGER, 0, 0)) };
    let first = world.submit(0, claim(1));
    world.submit(0, claim(1));
    world.rest(SECOND);
    assert_eq!(world.server.tasks.len(), 1);
    // Half of the memory is left; half of that is available at once, and all of it after a while.
    for (lba, blocks) in [(0, 200), (300, 512), (1000, 1024), (2000, 5000)] {
        let write = world.write(1, 0, lba, blocks, 5);
        world.good(1, write);
        let read = world.read(1, 0, lba, blocks);
        assert!(world.good(1, read) == pattern(0, lba, blocks, 5), "{lba} {blocks}");
    }
    assert!(!world.initiators[0].ended.contains_key(&first));
    // Nor is any memory left reserved when the commands end.
    for _ in 0..2 {
        let (task, _) = world.server.tasks.pop_first().unwrap();
        world.engine.abort(task);
        world.rest(SECOND);
    }
    world.is_clean();
}

#[test]
fn answers_longer_than_all_memory_come_whole_and_nothing_is_counted_twice() {
    for seed in seeds(4) {
        println!("HYPER_SEED={seed}");
        let limits = EngineLimits {
            data_in_bytes_max: 200 << 10,
            unsent_bytes_max: 150 << 10,
            ..EngineLimits::default()
        };
        let mut world = World::with(seed, lossy(100, Duration::from_micros(100)), None, limits, 1500);
        for isid in 1..=3 {
            world.join(world.plan_of(isid));
        }
        world.up();
        let write = world.write(0, 0, 0, 4000, seed);
        world.good(0, write);
        let mut rng = Rng::from_seed(seed);
        let reads: Vec<_> = (0..30)
            .map(|index| {
                let (at, blocks) = (index % 3, 1 + rng.below(if index % 2 == 0 { 3000 } else { 200 }) as u32);
                let lba = rng.below(u64::from(4000 - blocks)) as u32;
                // Some commands expect more data than they return.
                let data_in_len = (blocks * BLOCK as u32).saturating_mul(1 + index as u32 % 5);
                let ask = Ask { data_in_len, ..Ask::new(0, cdb(READ, lba, blocks)) };
                (at, world.submit(at, ask), lba, blocks)
            })
            .collect();
        for (at, task, lba, blocks) in reads {
            assert!(world.good(at, task) == pattern(0, lba, blocks, seed), "{lba} {blocks}");
        }
        world.rest(SECOND);
        world.is_clean();
    }
}
