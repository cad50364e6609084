//! Tests of a handshake beside a session that the target seems not to know, and of the end of that session if
//! the handshake itself replaces it.

use base::ether::Mac;
use base::time::Duration;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header};
use hyperscsi::initiator::contract as ours;
use hyperscsi::pdu::ack::Ack;
use hyperscsi::pdu::disconnect::{Disconnect, DisconnectReason};
use hyperscsi::pdu::negotiate::Negotiate;
use hyperscsi::target::contract::SessionEnd;
use netem::frame::FramePlan;
use transport::command::TaskAttribute;
use transport::initiator::InitiatorTransport as _;
use transport::target::TargetTransport as _;

use crate::loss::hint;
use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);
const REPLACED: ours::LossReason = ours::LossReason::Ended(DisconnectReason::REPLACED);

/// Returns whether a frame carries the last step of an initiator's handshake.
fn is_last_step((_, _, payload): &(Mac, Mac, Vec<u8>)) -> bool {
    let Ok((header, len)) = Header::parse(payload) else { return false };
    header.cmd == Cmd::Negotiate
        && match Negotiate::parse(&payload[HEADER_LEN..len]) {
            Ok(Negotiate::Finish(_)) => true,
            Ok(Negotiate::Start(start)) => start.ke1.is_none(),
            _ => false,
        }
}

/// Returns a world with an initiator that received a hint that its session is unknown, receives no frame of
/// the session, and has just sent the last step of a handshake. The target's frames of the old session are
/// withheld.
fn at_the_last_step(password: Option<&'static str>) -> World {
    at_the_last_step_with(password, transport::initiator::Retry::default())
}

fn at_the_last_step_with(password: Option<&'static str>, retry: transport::initiator::Retry) -> World {
    let mut world = World::new(21, FramePlan::CLEAN, password);
    world.join(ours::SessionPlan { retry, ..world.plan_of(1) });
    world.up();
    world.rest(SECOND);
    let (target, host) = (world.sockets[0].state.mac, world.sockets[1].state.mac);
    let sids = world.engine.sessions().next().unwrap().sids;
    (world.captures, world.withholds) = (true, Some(sids.0));
    world.inject(host, target, &hint(sids.1));
    assert!(world.run(2 * SECOND, |world| world.capture.iter().any(is_last_step)));
    assert_eq!(world.engine.stats().sessions, 1, "the step is under way");
    assert!(!world.withheld.is_empty(), "the target gave a sign of life");
    world
}

/// Delivers the withheld frames to the initiator.
fn release(world: &mut World) {
    world.withholds = None;
    for (to, source, payload) in core::mem::take(&mut world.withheld) {
        world.inject(to, source, &payload);
    }
}

/// Checks that the initiator can use its disk, and that there is one session.
fn serves(world: &mut World) {
    let task = world.count(0, 0, 7, TaskAttribute::SIMPLE);
    world.good(0, task);
    assert_eq!((world.initiators[0].down, world.engine.sessions().count()), (None, 1));
    world.rest(2 * SECOND);
    world.is_clean();
}

#[test]
fn a_sign_of_life_behind_the_last_step_does_not_end_the_handshake() {
    for password in [None, Some("sesame")] {
        let mut world = at_the_last_step(password);
        release(&mut world);
        world.rest(2 * SECOND);
        let initiator = &world.initiators[0];
        assert_eq!((initiator.down, initiator.ups), (None, 2), "{:?}", initiator.events);
        assert_eq!(world.engine.stats().sessions, 2, "the one that it made");
        assert_eq!(world.server.downs, [SessionEnd::Reinstated]);
        serves(&mut world);
    }
}

#[test]
fn a_session_that_a_dropped_handshake_replaced_is_built_anew() {
    for password in [None, Some("sesame")] {
        let mut world = at_the_last_step(password);
        let lively = world.withheld.clone();
        assert!(world.run(SECOND, |world| world.engine.stats().sessions == 2));
        // ACCEPT is lost, and so are all other frames until the handshake has begun again.
        world.sockets[1].unplugged = true;
        world.rest(6 * SECOND);
        world.sockets[1].unplugged = false;
        let ends = world.withheld.split_off(lively.len());
        release(&mut world);
        world.rest(Duration::from_micros(1));
        assert_eq!(world.engine.stats().sessions, 2, "the handshake that begins anew is dropped");
        world.withheld = ends;
        release(&mut world);
        world.rest(2 * SECOND);
        let initiator = &world.initiators[0];
        assert_eq!((initiator.down, initiator.ups), (None, 2), "{:?}", initiator.events);
        assert!(initiator.events.iter().any(|event| matches!(event, ours::Event::Recovering(REPLACED))));
        assert_eq!(world.engine.stats().sessions, 3, "one that nobody heard of, and one more");
        serves(&mut world);
    }
}

#[test]
fn who_is_replaced_by_another_of_the_same_name_is_told_and_does_not_fight() {
    for password in [None, Some("sesame")] {
        // Neither a handshake that led to a session nor one of long ago explains why another initiator
        // replaced the session.
        let mut finished = at_the_last_step(password);
        release(&mut finished);
        finished.rest(2 * SECOND);
        let mut dropped = at_the_last_step(password);
        let lively = dropped.withheld.clone();
        dropped.sockets[0].unplugged = true;
        dropped.rest(6 * SECOND);
        (dropped.withheld, dropped.withholds) = (lively, None);
        release(&mut dropped);
        dropped.rest(SECOND);
        dropped.sockets[0].unplugged = false;
        dropped.rest(60 * SECOND);
        assert_eq!(dropped.engine.stats().sessions, 1, "the old session goes on");
        for mut world in [finished, dropped] {
            assert!(world.initiators[0].session.is_up());
            let sessions = world.engine.stats().sessions;
            world.join(world.plan_of(1));
            world.rest(30 * SECOND);
            assert_eq!(world.initiators[0].down, Some(ours::SessionEnd::Permanent(REPLACED)));
            assert!(world.initiators[1].session.is_up());
            assert_eq!(world.engine.stats().sessions, sessions + 1);
        }
    }
}

#[test]
fn who_wants_no_second_session_is_told_once_that_the_first_was_forgotten() {
    for password in [None, Some("sesame")] {
        // The end of the old session is reported before the ACCEPT of the new one, or that report is lost, or
        // the ACCEPT arrives first.
        for (accepted, ended) in [(false, true), (false, false), (true, true)] {
            let mut world = at_the_last_step_with(password, transport::initiator::Retry::NONE);
            let lively = world.withheld.len();
            assert!(world.run(SECOND, |world| world.engine.stats().sessions == 2));
            world.sockets[1].unplugged = !accepted;
            world.rest(Duration::from_millis(1));
            world.sockets[1].unplugged = false;
            let ends = world.withheld.split_off(lively);
            assert!(!ends.is_empty(), "the target says goodbye");
            world.withheld = if ended { ends } else { Vec::new() };
            let task = (!accepted).then(|| world.count(0, 0, 7, TaskAttribute::SIMPLE));
            release(&mut world);
            world.rest(40 * SECOND);
            let initiator = &world.initiators[0];
            assert_eq!(
                initiator.down,
                Some(ours::SessionEnd::RetriesExhausted(ours::LossReason::UnknownToTarget)),
                "{accepted} {ended}"
            );
            assert!(task.is_none_or(|task| initiator.ended.contains_key(&task)), "a task hangs");
            assert_eq!(initiator.session.poll_timeout(), None, "nothing is waited for");
            assert_eq!(world.engine.sessions().count(), 0, "nothing is left of it");
        }
    }
}

#[test]
fn a_handshake_that_begins_anew_names_its_session_as_its_owner_wants_it() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(22, FramePlan::CLEAN, password);
        let sid_first = core::num::NonZeroU8::new(0x5a);
        world.join(ours::SessionPlan { sid_first, ..world.plan_of(1) });
        // The parameters that were offered are no longer valid.
        for mtu in 1600..1605 {
            world.sockets[1].state.mtu = mtu;
            world.port_up(1);
        }
        world.up();
        let (sid, _) = world.engine.sessions().next().unwrap().sids;
        assert_eq!(sid.to_be_bytes()[0], 0x5a, "{sid:#x}");
        let task = world.count(0, 0, 7, TaskAttribute::SIMPLE);
        world.good(0, task);
    }
}

/// Returns the Disconnect that a frame carries.
fn disconnect((_, _, payload): &(Mac, Mac, Vec<u8>)) -> Option<Disconnect> {
    let (header, _) = Header::parse(payload).ok().filter(|(header, _)| header.cmd == Cmd::Disconnect)?;
    let said = &payload[HEADER_LEN..HEADER_LEN + usize::from(header.len)];
    let rest = if header.flags.has(Flags::ACKS) { Ack::parse(said).unwrap().1 } else { said };
    Some(Disconnect::parse(rest).unwrap())
}

#[test]
fn a_goodbye_is_answered_as_often_as_it_is_said_and_a_new_session_begins_beside_it() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(23, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        world.rest(SECOND);
        let (session, sids) = (world.server.sessions[0], world.engine.sessions().next().unwrap().sids);
        // The initiator's frames of the old session are withheld, so the target retransmits its GOODBYE again
        // and again.
        (world.captures, world.withholds) = (true, Some(sids.1));
        world.engine.close_session(world.now, session);
        world.rest(Duration::from_millis(500));
        let goodbye = Disconnect::Goodbye(DisconnectReason::CLOSED);
        let count =
            |frames: &[_], said| frames.iter().filter(|frame| disconnect(frame) == Some(said)).count();
        let (said, done) = (count(&world.capture, goodbye), count(&world.withheld, Disconnect::Done));
        assert!(said > 3 && done >= said, "{done} answers to {said}");
        assert_eq!((world.initiators[0].ups, world.initiators[0].down), (2, None));
        // Once the target receives the DONE, it sends no more.
        release(&mut world);
        world.rest(Duration::from_millis(10));
        world.capture.clear();
        world.rest(3 * SECOND);
        assert_eq!(count(&world.capture, goodbye), 0);
        serves(&mut world);
    }
}
