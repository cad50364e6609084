//! Tests of logout: the target acknowledges a Disconnect for as long as the initiator may not have received
//! the acknowledgement.

use base::time::Duration;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header};
use hyperscsi::pdu::ack::Ack;
use hyperscsi::pdu::disconnect::{Disconnect, DisconnectReason};
use hyperscsi::target::engine::EngineLimits;
use netem::frame::FramePlan;
use transport::command::TaskAttribute;
use transport::initiator::{InitiatorTransport as _, Request, SubmitError, TaskResult};

use crate::hostile::Raw;
use crate::world::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn goodbye(raw: &mut Raw) {
    let mut payload = Vec::new();
    Disconnect::Goodbye(DisconnectReason::CLOSED).encode(&mut payload);
    raw.say(Cmd::Disconnect, Flags::default(), (0, 0, 0), true, &payload);
}

/// Returns how many DONE frames the target sent, and how many other frames except acknowledgements.
fn dones(raw: &Raw) -> (usize, usize) {
    let (mut dones, mut others) = (0, 0);
    for (_, from, frame) in &raw.world.capture {
        let (header, len) = Header::parse(frame).unwrap();
        if *from != raw.world.sockets[0].state.mac || header.cmd == Cmd::Ack {
            continue;
        }
        let payload = &frame[HEADER_LEN..len - 4];
        let payload = if header.flags.has(Flags::ACKS) { Ack::parse(payload).unwrap().1 } else { payload };
        match header.cmd {
            Cmd::Disconnect if Disconnect::parse(payload) == Ok(Disconnect::Done) => dones += 1,
            _ => others += 1,
        }
    }
    (dones, others)
}

#[test]
fn a_goodbye_that_comes_again_is_answered_again() {
    let mut raw = Raw::new(true);
    raw.world.captures = true;
    let mut said = 0;
    for round in 0..5 {
        goodbye(&mut raw);
        assert_eq!(dones(&raw), (said + 1, 0), "round {round}");
        assert!(
            raw.world.engine.sessions().count() == 0 && !raw.world.engine.is_frame_idle(),
            "it is under way"
        );
        // A second GOODBYE does not cause a second DONE at the same time. The DONE is retransmitted until it
        // is acknowledged, and nothing else is sent.
        goodbye(&mut raw);
        raw.world.rest(100 * MILLISECOND);
        let (again, others) = dones(&raw);
        assert!((said + 1..said + 10).contains(&again) && others == 0, "round {round}: {again} after {said}");
        assert!(round > 0 || again > said + 1);
        said = again;
        raw.acknowledge();
        assert!(raw.world.engine.is_frame_idle());
        raw.world.rest(50 * MILLISECOND);
        assert_eq!(dones(&raw), (said, 0), "nothing of its own accord");
    }
    raw.world.rest(300 * MILLISECOND);
    goodbye(&mut raw);
    assert_eq!(dones(&raw), (said, 0), "nothing is left of it");
    assert_eq!(raw.world.engine.stats().unknown_sids, 1);
}

#[test]
fn who_said_goodbye_keeps_nobody_out() {
    let limits = EngineLimits { sessions_max: 1, ..EngineLimits::default() };
    let mut world = World::with(3, FramePlan::CLEAN, Some("sesame"), limits, 1500);
    // The engine admits one session more than the limit, as it may belong to an initiator that logs in again.
    (1..=2).for_each(|isid| _ = world.join(world.plan_of(isid)));
    world.up();
    world.join(world.plan_of(3));
    world.rest(Duration::from_secs(1));
    assert_eq!((world.initiators[2].ups, world.engine.sessions().count()), (0, 2), "there is no room");
    world.initiators[2].session.close(world.now);
    for at in 0..20 {
        let now = world.now;
        let last = if at == 0 { 0 } else { at + 2 };
        world.initiators[last].session.logout(now);
        world.rest(5 * MILLISECOND);
        assert_eq!(world.engine.sessions().count(), 1);
        let next = world.join(world.plan_of(10 + at as u8));
        let up = world.run(100 * MILLISECOND, |world| world.initiators[next].session.is_up());
        assert!(up, "round {at}");
    }
    let task = world.count(1, 0, 7, TaskAttribute::SIMPLE);
    world.good(1, task);
    world.rest(Duration::from_secs(2));
    world.is_clean();
}

#[test]
fn a_logout_waits_for_a_task_that_waits_for_an_identity_check() {
    for is_same in [true, false] {
        let mut world = World::new(3, FramePlan::CLEAN, None);
        world.join(world.plan_of(1));
        world.up();
        world.initiators[0].session.require_identity_check(0);
        let held = world.count(0, 0, 7, TaskAttribute::SIMPLE);
        let now = world.now;
        world.initiators[0].session.logout(now);
        let other = world.initiators[0].session.submit(now, Request::new(0, cdb(COUNT, 8, 0)));
        assert_eq!(other, Err(SubmitError::Down), "a new request");
        let probe = Request { is_identity_check: true, ..Request::new(0, cdb(COUNT, 1, 0)) };
        let probe = world.submit(0, probe);
        world.good(0, probe);
        assert!(!world.initiators[0].ended.contains_key(&held));
        let now = world.now;
        if is_same {
            world.initiators[0].session.confirm_identity(now, 0);
            world.good(0, held);
        } else {
            world.initiators[0].session.fail_identity(now, 0);
            assert_eq!(world.end(0, held).end, TaskResult::NotSent);
        }
        let ended = world.run(100 * MILLISECOND, |world| world.initiators[0].down.is_some());
        assert!(ended, "the session does not end");
        let late = Request { is_identity_check: true, ..Request::new(0, cdb(COUNT, 2, 0)) };
        let now = world.now;
        assert_eq!(world.initiators[0].session.submit(now, late), Err(SubmitError::Down));
        world.rest(Duration::from_secs(2));
        world.is_clean();
    }
}
