//! Tests of session reinstatement: which session a new one replaces.

use base::ether::{EtherPort, Mac};
use base::time::Duration;
use hyperscsi::frame::{Cmd, HEADER_LEN, Header, SID_AT};
use hyperscsi::initiator::contract as ours;
use hyperscsi::initiator::contract::SessionPlan;
use hyperscsi::pdu::discovery::{Answer, Discovery};
use hyperscsi::target::contract::SessionEnd;
use netem::frame::FramePlan;

use crate::world::*;

#[test]
fn who_says_the_same_name_without_a_password_does_not_end_the_session_of_who_knew_it() {
    let mut world = World::new(1, FramePlan::CLEAN, Some("sesame"));
    world.join(world.plan_of(1));
    world.up();
    world.config.unlock();
    world.join(world.plan_of(1));
    world.rest(Duration::from_secs(3));
    assert!(world.engine.handshakes().put_off > 0 && world.engine.stats().reinstated == 0);
    assert_eq!(world.initiators[1].ups, 0, "he is not told that he has a session");
    assert_eq!(world.engine.stats().unknown_sids, 0);
    assert_eq!(world.engine.sessions().map(|session| session.authenticated).collect::<Vec<_>>(), [true]);
    let task = world.write(0, 0, 8, 1, 5);
    world.good(0, task);
}

#[test]
fn who_begins_again_ends_its_own_older_session() {
    for password in [None, Some("sesame")] {
        let mut world = World::new(1, FramePlan::CLEAN, password);
        world.join(world.plan_of(1));
        world.up();
        world.restart_initiator(0, world.plan_of(1));
        world.run(Duration::from_secs(5), |world| world.engine.stats().reinstated == 1);
        assert_eq!((world.engine.stats().reinstated, world.engine.handshakes().put_off), (1, 0));
        assert_eq!(world.server.downs, [SessionEnd::Reinstated]);
    }
}

//= hyperscsi#section-5
//= type=test
//# An initiator MUST NOT use both as paths of one session, and SHOULD say so to its user.
#[test]
fn another_server_of_the_same_name_is_told_once_and_no_path_leads_to_it() {
    let mut world = World::new(1, FramePlan::CLEAN, Some("sesame"));
    world.captures = true;
    world.join(world.plan_of(1));
    world.up();
    world.rest(Duration::from_millis(10));
    let mut questions = world.capture.iter().filter_map(|(_, _, payload)| {
        let header = Header::parse(payload).ok()?.0;
        let body = &payload[HEADER_LEN..HEADER_LEN + usize::from(header.len)];
        match Discovery::parse(body).ok().filter(|_| header.cmd == Cmd::Discovery)? {
            Discovery::Question(question) if question.target.is_some() => Some((header, question)),
            _ => None,
        }
    });
    let (header, question) = questions.next_back().expect("it looks for more paths");
    let (here, other) = (world.sockets[1].state.mac, Mac([2, 0, 0, 0, 0, 99]));
    for instance in [[8; 16], [9; 16]] {
        let answer = Discovery::Answer(Answer {
            nonce: question.nonce,
            instance,
            group: question.group.clone(),
            target: name(TARGET),
            authenticates: true,
            luns: Vec::new(),
            more: false,
            macs: vec![other],
            frame_max: 1500,
        });
        let mut body = Vec::new();
        answer.encode(&mut body);
        let header = Header { len: body.len() as u16, ..header };
        world.inject(here, other, &raw(&header, &body));
        world.rest(Duration::from_millis(10));
    }
    let told =
        |event: &&ours::Event| matches!(event, ours::Event::OtherServer { peer, .. } if *peer == other);
    assert_eq!(world.initiators[0].events.iter().filter(told).count(), 1);
    let peers: Vec<Mac> = world.initiators[0].session.paths().map(|path| path.address.mac).collect();
    assert_eq!(peers, [world.sockets[0].state.mac]);
    assert!(world.capture.iter().all(|(to, ..)| *to != other), "nothing is sent there");
}

#[test]
fn the_names_of_an_initiators_sessions_begin_as_its_driver_wants() {
    let mut world = World::new(1, FramePlan::CLEAN, Some("sesame"));
    world.captures = true;
    let first = core::num::NonZeroU8::new(0xa7);
    world.join(SessionPlan { sid_first: first, ..world.plan_of(1) });
    world.up();
    let task = world.write(0, 0, 8, 1, 5);
    world.good(0, task);
    world.restart_target();
    world.run(Duration::from_secs(30), |world| world.initiators[0].ups == 2);
    let task = world.read(0, 0, 8, 1);
    world.good(0, task);
    let host = world.sockets[1].state.mac;
    let heard = world.capture.iter().filter(|(to, ..)| *to == host);
    let sids = heard.map(|(.., payload)| &payload[usize::from(SID_AT)..][..4]);
    let named: Vec<_> = sids.filter(|sid| **sid != [0; 4]).collect();
    assert!(named.len() >= 2 && named.iter().all(|sid| sid[0] == 0xa7), "{named:x?}");
    let mut names: Vec<_> = named.iter().map(|sid| sid.to_vec()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2, "the rest is another for each session");
}

#[test]
fn who_has_two_ports_shakes_hands_over_one_of_them() {
    let mut world = World::new(1, FramePlan::CLEAN, Some("sesame"));
    world.join(world.plan_of(1));
    world.plug(Who::Initiator(0), EtherPort(1));
    world.up();
    world.rest(Duration::from_secs(12));
    assert_eq!(world.engine.handshakes().unfinished, 0, "each would count as a guess");
    assert_eq!(world.initiators[0].session.paths().count(), 2);
}
