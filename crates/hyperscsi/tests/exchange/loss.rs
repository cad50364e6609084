//! Tests of tasks whose nexus, peer or wire is lost; and of recorded frames that are sent again later.

use base::ether::{EtherPort, Mac};
use base::time::Duration;
use hyperscsi::initiator::contract::{self as ours, SessionPlan};
use hyperscsi::pdu::disconnect::DisconnectReason;
use hyperscsi::target::contract::SessionEnd;
use netem::frame::{FramePlan, lossy};
use transport::command::TaskAttribute;
use transport::initiator::{InitiatorTransport as _, Request, TaskResult};
use transport::target::TargetTransport as _;

use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

fn lingering(world: &mut World, at: usize, replay: bool) -> transport::initiator::TaskId {
    world.submit(at, Request { replay, ..Request::new(0, cdb(LINGER, 0, 0)) })
}

#[test]
fn a_cable_that_is_pulled_for_twenty_seconds_costs_nothing_but_time() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(3, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        let write = world.write(0, 0, 10, 500, 1);
        world.rest(Duration::from_micros(50));
        world.sockets[1].unplugged = true;
        let read = world.read(0, 0, 2000, 300);
        world.rest(20 * SECOND);
        assert!(!world.initiators[0].ended.contains_key(&read));
        world.sockets[1].unplugged = false;
        world.good(0, write);
        world.good(0, read);
        let check = world.read(0, 0, 10, 500);
        assert!(world.good(0, check) == pattern(0, 10, 500, 1));
        assert_eq!((world.initiators[0].ups, world.engine.stats().sessions), (1, 1), "the same session");
        world.rest(SECOND);
        world.is_clean();
    }
}

#[test]
fn a_target_that_restarts_is_found_again_and_only_what_may_be_repeated_is() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(4, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        let (repeated, lost) = (lingering(&mut world, 0, true), lingering(&mut world, 0, false));
        world.rest(Duration::from_millis(10));
        assert_eq!(world.server.executed, 2);
        world.restart_target();
        // The initiator needs something to send, so that the new target can answer that it does not know the
        // session.
        let later = world.count(0, 0, 7, TaskAttribute::SIMPLE);
        assert_eq!(world.end(0, lost).end, TaskResult::Lost);
        let up = world.run(10 * SECOND, |world| world.initiators[0].ups == 2);
        assert!(
            up,
            "found within seconds, not after the session's time-out: {:?}",
            world.initiators[0].events
        );
        assert_eq!(world.end(0, later).end, TaskResult::Lost, "nobody can know whether it ran");
        world.rest(SECOND);
        assert_eq!(world.server.tasks.len(), 1, "the one that may be repeated runs again");
        world.initiators[0].session.abort(world.now, repeated).unwrap();
        assert_eq!(world.end(0, repeated).end, TaskResult::Aborted);
        let check = world.count(0, 0, 8, TaskAttribute::SIMPLE);
        world.good(0, check);
        world.rest(SECOND);
        assert_eq!(world.initiators[0].session.stats().replays, 1);
        world.is_clean();
    }
}

#[test]
fn who_does_not_want_another_session_is_down_when_the_target_forgot_him_and_stays_so() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(5, FramePlan::CLEAN, password);
        let plan = SessionPlan { retry: transport::initiator::Retry::NONE, ..world.plan_of(1) };
        world.join(plan);
        world.up();
        world.restart_target();
        let task = world.count(0, 0, 7, TaskAttribute::SIMPLE);
        assert_eq!(world.end(0, task).end, TaskResult::Lost);
        world.rest(2 * SECOND);
        let initiator = &world.initiators[0];
        assert_eq!(
            initiator.down,
            Some(ours::SessionEnd::RetriesExhausted(ours::LossReason::UnknownToTarget))
        );
        assert!(initiator.session.is_down() && !initiator.session.is_up());
        assert_eq!(initiator.ups, 1, "what was found beside the old session is not begun");
        assert_eq!(world.engine.sessions().count(), 0, "and the target was told");
    }
}

#[test]
fn an_initiator_that_restarts_takes_the_place_of_its_older_session() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(5, lossy(30, Duration::from_micros(100)), password);
        world.join(world.plan_of(1));
        world.join(world.plan_of(2));
        world.up();
        lingering(&mut world, 0, false);
        let other = lingering(&mut world, 1, false);
        world.rest(Duration::from_millis(100));
        assert_eq!(world.server.tasks.len(), 2);
        let plan = world.plan_of(1);
        world.restart_initiator(0, plan);
        world.up();
        world.rest(SECOND);
        assert_eq!(world.server.downs, [SessionEnd::Reinstated]);
        assert_eq!(world.server.tasks.len(), 1, "the other's task goes on");
        assert_eq!(world.engine.sessions().count(), 2);
        world.initiators[1].session.abort(world.now, other).unwrap();
        world.end(1, other);
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn a_session_without_a_sign_of_life_is_collected_and_its_end_is_a_nexus_loss() {
    let mut world = World::new(6, FramePlan::CLEAN, Some("sesame"));
    let mut plan = world.plan_of(1);
    plan.retry = transport::initiator::Retry::NONE;
    world.join(plan);
    world.up();
    let task = lingering(&mut world, 0, true);
    world.rest(SECOND);
    world.sockets[1].unplugged = true;
    world.rest(90 * SECOND);
    assert_eq!(world.server.downs, [SessionEnd::PathLost]);
    assert_eq!(world.engine.sessions().count(), 0);
    assert_eq!(world.end(0, task).end, TaskResult::Lost);
    assert_eq!(
        world.initiators[0].down,
        Some(ours::SessionEnd::RetriesExhausted(ours::LossReason::PathLost))
    );
    world.is_clean();
}

#[test]
fn a_session_that_is_idle_stays() {
    let mut world = World::new(6, FramePlan::CLEAN, Some("sesame"));
    world.join(world.plan_of(1));
    world.up();
    world.rest(600 * SECOND);
    assert_eq!(world.engine.sessions().count(), 1);
    assert!(world.server.downs.is_empty());
    let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
    world.good(0, task);
}

#[test]
fn a_logout_waits_for_what_was_asked_and_ends_in_order_at_both_ends() {
    for seed in seeds(6) {
        println!("HYPER_SEED={seed}");
        let mut world = World::new(seed, lossy(5, Duration::from_micros(200)), Some("sesame"));
        world.join(world.plan_of(1));
        world.up();
        let task = world.write(0, 0, 0, 200, seed);
        let now = world.now;
        world.initiators[0].session.logout(now);
        world.good(0, task);
        let down = world.run(10 * SECOND, |world| world.initiators[0].down.is_some());
        assert!(down);
        assert_eq!(world.initiators[0].down, Some(ours::SessionEnd::LoggedOut));
        world.rest(5 * SECOND);
        assert_eq!(world.server.downs, [SessionEnd::LoggedOut]);
        assert_eq!(world.engine.sessions().count(), 0);
        world.is_clean();
    }
}

#[test]
fn a_session_closed_at_once_is_told_to_the_target() {
    let mut world = World::new(8, FramePlan::CLEAN, Some("sesame"));
    world.join(world.plan_of(1));
    world.up();
    let task = lingering(&mut world, 0, true);
    world.rest(SECOND);
    let now = world.now;
    world.initiators[0].session.close(now);
    world.rest(SECOND);
    assert_eq!(world.end(0, task).end, TaskResult::Lost);
    assert_eq!(world.server.downs, [SessionEnd::LoggedOut]);
    world.is_clean();
}

#[test]
fn a_session_that_the_target_closes_comes_back() {
    for (down, reason) in
        [(SessionEnd::Closed, DisconnectReason::CLOSED), (SessionEnd::ShutDown, DisconnectReason::SHUTDOWN)]
    {
        let mut world = World::new(9, FramePlan::CLEAN, Some("sesame"));
        world.join(world.plan_of(1));
        world.up();
        let session = world.server.sessions[0];
        match down {
            SessionEnd::ShutDown => world.engine.shut_session(world.now, session),
            _ => world.engine.close_session(world.now, session),
        }
        let up = world.run(10 * SECOND, |world| world.initiators[0].ups == 2);
        assert!(up, "{:?} {:?}", world.initiators[0].events, world.initiators[0].down);
        assert_eq!(world.server.downs, [down]);
        let is_told = |event: &ours::Event| matches!(event, ours::Event::Recovering(ours::LossReason::Ended(said)) if *said == reason);
        assert!(world.initiators[0].events.iter().any(is_told), "{:?}", world.initiators[0].events);
        let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
        world.good(0, task);
        world.rest(2 * SECOND);
        world.is_clean();
    }
}

#[test]
fn a_recorded_session_that_is_played_again_runs_nothing() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(10, lossy(40, Duration::from_micros(100)), password);
        world.captures = true;
        world.join(world.plan_of(1));
        world.up();
        let mut tasks = Vec::new();
        for number in 0..40 {
            tasks.push(world.count(0, 0, number, TaskAttribute::SIMPLE));
            tasks.push(world.write(0, 0, number * 10, 10, 1));
        }
        for task in tasks {
            world.good(0, task);
        }
        let newer = world.write(0, 0, 0, 400, 2);
        world.good(0, newer);
        world.captures = false;
        let (record, executed) = (core::mem::take(&mut world.capture), world.server.executed);
        world.replan(&FramePlan::CLEAN);
        // At once, in another order, after a logout, after a restart.
        for round in 0..4 {
            for (to, source, payload) in &record {
                world.inject(*to, *source, payload);
                if round == 1 {
                    world.inject(*to, *source, payload);
                }
            }
            if round == 1 {
                for (to, source, payload) in record.iter().rev() {
                    world.inject(*to, *source, payload);
                }
            }
            world.rest(5 * SECOND);
            assert_eq!(world.server.executed, executed, "round {round}: something ran");
            assert!(world.server.counts.values().all(|count| *count == 1));
            if round == 1 {
                let check = world.read(0, 0, 0, 400);
                assert!(world.good(0, check) == pattern(0, 0, 400, 2), "the newer data stays");
                let now = world.now;
                world.initiators[0].session.logout(now);
                world.rest(5 * SECOND);
            }
            if round == 2 {
                world.restart_target();
            }
            if round > 0 {
                world.server.executed = executed;
            }
        }
        assert_eq!(world.engine.stats().bugs, 0);
    }
}

#[test]
fn hints_that_are_forged_move_nothing() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(11, FramePlan::CLEAN, password);
        world.captures = true;
        world.join(world.plan_of(1));
        world.up();
        // Forged hints that name the target's SID of the session, from the target's address and from another
        // one.
        let (target, host) = (world.sockets[0].state.mac, world.sockets[1].state.mac);
        let task = world.count(0, 0, 1, TaskAttribute::SIMPLE);
        world.good(0, task);
        let sid = world.engine.sessions().next().unwrap().sids.1;
        for _ in 0..50 {
            let hint = hint(sid);
            world.inject(host, target, &hint);
            world.inject(host, Mac([2, 9, 9, 9, 9, 9]), &hint);
            world.rest(Duration::from_millis(300));
        }
        let hints = world.initiators[0].session.stats().hints;
        assert!(hints > 5);
        // A hint to the broadcast address is ignored.
        world.rest(2 * SECOND);
        world.inject(Mac::BROADCAST, target, &hint(sid));
        world.rest(SECOND);
        assert_eq!(world.initiators[0].session.stats().hints, hints);
        assert_eq!((world.initiators[0].ups, world.engine.stats().sessions), (1, 1), "the session goes on");
        world.is_clean();
    }
}

#[test]
fn a_target_hints_at_what_initiators_send_and_at_nothing_else() {
    use hyperscsi::frame::{Cmd, Flags, Header};
    let mut world = World::new(12, FramePlan::CLEAN, None);
    let (target, stranger) = (world.sockets[0].state.mac, Mac([2, 9, 9, 9, 9, 9]));
    let hinted_at = |cmd: Cmd, world: &mut World| {
        let before = world.engine.stats().hints;
        let header = Header {
            tag: 0,
            last: true,
            fragment: 0,
            protected: false,
            cmd,
            flags: Flags::default(),
            len: 0,
            sid: 0x0bad_cafe,
            pn: 1,
            xid: 1,
            off: 0,
        };
        world.inject(target, stranger, &raw(&header, &[]));
        world.rest(Duration::from_millis(10));
        world.engine.stats().hints - before
    };
    for cmd in [Cmd::Request, Cmd::Ask, Cmd::Abort] {
        assert_eq!(hinted_at(cmd, &mut world), 1, "{cmd:?}");
    }
    // These frames are for an initiator that shares the interface.
    for cmd in [Cmd::Reply, Cmd::Ack, Cmd::Disconnect, Cmd::Negotiated] {
        assert_eq!(hinted_at(cmd, &mut world), 0, "{cmd:?}");
    }
    assert_eq!(world.engine.stats().unknown_sids, 7);
}

/// Returns a Disconnect frame with the hint that the session is unknown.
pub(crate) fn hint(sid: u32) -> Vec<u8> {
    use hyperscsi::frame::{Cmd, Flags, Header};
    let mut payload = Vec::new();
    hyperscsi::pdu::disconnect::Disconnect::Unknown { sid }.encode(&mut payload);
    let header = Header {
        tag: 0,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Disconnect,
        flags: Flags::default(),
        len: payload.len() as u16,
        sid: 0,
        pn: 0,
        xid: 0,
        off: 0,
    };
    raw(&header, &payload)
}

#[test]
fn a_wrong_password_ends_with_one_clear_message() {
    let mut world = World::new(12, FramePlan::CLEAN, Some("sesame"));
    let password = security::opaque::Password::new(b"guess").unwrap();
    let plan = SessionPlan { password: Some(password), ..world.plan_of(1) };
    world.join(plan);
    let down = world.run(60 * SECOND, |world| world.initiators[0].down.is_some());
    assert!(down);
    assert_eq!(world.initiators[0].down.unwrap().to_string(), "the handshake failed: wrong password");
    assert_eq!(world.engine.sessions().count(), 0);
}

#[test]
fn nobody_who_serves_the_group_is_silence_and_then_a_clear_end() {
    let mut world = World::new(13, FramePlan::CLEAN, None);
    let group = hyperscsi::pdu::name::GroupName::new("others").unwrap();
    let plan = SessionPlan { group, ..world.plan_of(1) };
    world.join(plan);
    let down = world.run(60 * SECOND, |world| world.initiators[0].down.is_some());
    assert!(down);
    assert_eq!(
        world.initiators[0].down,
        Some(ours::SessionEnd::RetriesExhausted(ours::LossReason::NotFound))
    );
    assert_eq!(world.sockets[1].link.stats().sent, 0, "the target says nothing");
}

#[test]
fn several_paths_carry_one_session_and_any_of_them_alone_does_too() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(14, lossy(200, Duration::from_micros(50)), password);
        world.plug(Who::Target, EtherPort(1));
        world.join(world.plan_of(1));
        world.plug(Who::Initiator(0), EtherPort(1));
        world.up();
        let paths = world.run(20 * SECOND, |world| {
            world.initiators[0].session.paths().filter(|path| path.is_up).count() == 4
        });
        assert!(paths, "{:?} {:?} {:?}", world.initiators[0].down, world.engine.stats(), world.server.downs);
        // The target's ports, then the initiator's.
        for gone in [None, Some(0), Some(1), Some(2), Some(3)] {
            for socket in 0..=3 {
                world.sockets[socket].unplugged = gone == Some(socket);
            }
            let write = world.write(0, 0, 0, 2000, 9);
            let read = world.read(0, 0, 3000, 2000);
            world.good(0, write);
            world.good(0, read);
            let check = world.read(0, 0, 0, 2000);
            assert!(world.good(0, check) == pattern(0, 0, 2000, 9));
        }
        assert_eq!(world.initiators[0].ups, 1);
        world.rest(2 * SECOND);
        world.is_clean();
    }
}
