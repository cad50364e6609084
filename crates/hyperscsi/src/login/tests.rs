//! Both halves of the handshake on one link, with and without an attacker on it.

pub(crate) mod abuse;
pub(crate) mod fixture;
mod table;

use alloc::string::ToString;

use base::time::Duration;

use super::*;
use crate::Role;
use crate::aead::{Decryptor, Encryptor};
use crate::login::initiator::{HandshakeError, Login, LoginPlan};
use crate::login::target::{HandshakeServer, RefusalCause};
use fixture::{GROUP, OPEN_GROUP, PASSWORD, Rig, plan};
use security::Level;

#[test]
fn both_ends_agree_on_keys_and_parameters() {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 1);
    rig.target_mtu = 9000;
    rig.initiator_mtu = 1500;
    rig.bring_up();
    let ours = rig.run().unwrap();
    let theirs = rig.agreed.pop().unwrap();
    assert!(rig.agreed.is_empty());
    assert_eq!((ours.sid_in, ours.sid_out), (theirs.sid_out, theirs.sid_in));
    assert_eq!(ours.sid_out >> 24, 0x5a, "the steering byte");
    assert_eq!((ours.token, ours.instance), (theirs.token, theirs.instance));
    assert_eq!((&ours.group, &ours.target, &ours.isid), (&theirs.group, &theirs.target, &theirs.isid));
    // The ports differ: the shorter frame counts, and both ends know it.
    assert_eq!((ours.frame_max, ours.parameters.frame_max, ours.frame_max_common()), (1500, 9000, 1500));
    assert_eq!(
        (theirs.frame_max, theirs.parameters.frame_max, theirs.frame_max_common()),
        (9000, 1500, 1500)
    );
    assert_eq!(ours.parameters.levels, theirs.parameters.levels);
    assert!(speak_to_each_other(&ours, &theirs));
}

/// Returns whether a frame that one end of the session protects is decrypted by the other, in both
/// directions.
pub(super) fn speak_to_each_other(a: &HandshakeResult, b: &HandshakeResult) -> bool {
    let (Some(a), Some(b)) = (&a.keys, &b.keys) else { return false };
    [(a, Role::Initiator, b, Role::Target), (b, Role::Target, a, Role::Initiator)].into_iter().all(
        |(from, role, to, other)| {
            let header = crate::frame::Header {
                tag: 0,
                last: true,
                fragment: 0,
                protected: true,
                cmd: crate::frame::Cmd::Ask,
                flags: crate::frame::Flags::ENCRYPTED,
                len: 5,
                sid: 1,
                pn: 1,
                xid: 0,
                off: 0,
            };
            let mut batch = base::ether::FrameBatch::new();
            batch.begin_frame(Mac::BROADCAST);
            batch.put(&header.to_bytes());
            batch.put(b"hello");
            Encryptor::for_role(from, role).seal(&header, &mut batch).unwrap();
            batch.end_frame();
            let mut frame: alloc::vec::Vec<u8> =
                batch.frames().next().unwrap().2.flatten().copied().collect();
            let now = base::time::Instant::ORIGIN;
            Decryptor::for_role(to, other)
                .open(now, &header, &mut frame)
                .is_ok_and(|payload| *payload == *b"hello")
        },
    )
}

#[test]
fn a_group_without_a_password_gets_a_session_without_keys() {
    let mut rig = Rig::new(plan(OPEN_GROUP, None), 2);
    rig.bring_up();
    let ours = rig.run().unwrap();
    let theirs = rig.agreed.pop().unwrap();
    assert!(ours.keys.is_none() && theirs.keys.is_none());
    assert_eq!((ours.token, ours.sid_in, ours.sid_out), (theirs.token, theirs.sid_out, theirs.sid_in));
    assert_eq!(ours.parameters.levels, Levels::OPEN);
}

#[test]
fn what_is_wrong_is_said_in_one_sentence() {
    let refusals = core::cell::RefCell::new(alloc::vec::Vec::new());
    let fails = |plan: LoginPlan| {
        let mut rig = Rig::new(plan, 3);
        rig.bring_up();
        let begin = rig.now;
        let why = rig.run().unwrap_err();
        assert!(rig.agreed.is_empty());
        rig.handshakes.handle_timeout(rig.now.after(HandshakeServer::HALF_LIFETIME));
        refusals.borrow_mut().extend(core::iter::from_fn(|| rig.handshakes.poll_refusal()).map(|it| it.why));
        (why, rig.now.since(begin))
    };
    let (why, took) = fails(plan(GROUP, Some("not the password")));
    assert_eq!(why.to_string(), "wrong password");
    assert!(took < Duration::from_secs(2), "{took:?}");
    for silent in [
        plan("nobody's", Some(PASSWORD)),
        LoginPlan {
            target: Name::new("iqn.2026-11.com.example:other").unwrap(),
            ..plan(GROUP, Some(PASSWORD))
        },
    ] {
        let (why, took) = fails(silent);
        assert_eq!((why, took), (HandshakeError::NoAnswer, Duration::from_secs(10)));
    }
    assert_eq!(fails(plan(GROUP, None)).0, HandshakeError::PasswordNeeded);
    assert_eq!(fails(plan(OPEN_GROUP, Some(PASSWORD))).0, HandshakeError::OpenGroup);
    let refused = LoginPlan { protection: Level::Integrity, ..plan(fixture::PLAIN_GROUP, Some(PASSWORD)) };
    assert_eq!(fails(refused).0, HandshakeError::ProtectionRefused(Level::Integrity));
    let watched = [
        RefusalCause::Unfinished,
        RefusalCause::PasswordNeeded,
        RefusalCause::OpenGroup,
        RefusalCause::Parameters,
    ];
    assert_eq!(*refusals.borrow(), watched, "what the target's log says");
    let open = LoginPlan { protection: Level::Encrypt, ..plan(OPEN_GROUP, None) };
    let why = Login::new(base::time::Instant::ORIGIN, open, [0; 32]).unwrap_err();
    assert_eq!(why, HandshakeError::ProtectionNeedsPassword(Level::Encrypt));
}

#[test]
fn an_initiator_without_an_interface_says_so() {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 4);
    assert_eq!(rig.run().unwrap_err(), HandshakeError::NoPort);
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 4);
    rig.initiator_mtu = 1400;
    rig.bring_up();
    assert_eq!(rig.run().unwrap_err(), HandshakeError::PortTooNarrow(1400));
}

#[test]
fn another_version_is_told() {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 5);
    rig.bring_up();
    // A target of another version gets a frame that it cannot read, and refuses it in its own version.
    rig.meddle = alloc::boxed::Box::new(|to_target, mut frame| {
        if !to_target {
            return alloc::vec![frame];
        }
        frame[3] = 0x30;
        alloc::vec![frame]
    });
    assert_eq!(rig.run().unwrap_err(), HandshakeError::OtherVersion);
}

#[test]
fn a_target_that_restarts_in_the_middle_is_found_again() {
    for frames in 1..12 {
        let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 6);
        rig.bring_up();
        rig.restart_target_after = Some(frames);
        let ours = rig.run().unwrap();
        let theirs = rig.agreed.pop().unwrap();
        assert!(speak_to_each_other(&ours, &theirs), "restart after {frames} frames");
    }
}

#[test]
fn a_pause_holds_new_handshakes_back_and_lets_others_end() {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 6);
    rig.bring_up();
    rig.handshakes.pause(true);
    assert!(rig.run().is_err());
    assert_eq!((rig.handshakes.stats().hellos, rig.handshakes.half_open()), (0, 0));
    for frames in 1..12 {
        let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 6);
        rig.bring_up();
        rig.pause_after = Some(frames);
        assert!(rig.run().is_ok(), "a pause after {frames} frames");
    }
}

#[test]
fn a_port_that_changes_or_vanishes_in_the_middle_delays_and_nothing_else() {
    for frames in 1..12 {
        let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 7);
        rig.bring_up();
        rig.change_port_after = Some(frames);
        let ours = rig.run().unwrap();
        assert!(speak_to_each_other(&ours, &rig.agreed.pop().unwrap()), "change after {frames} frames");
        assert_eq!(ours.frame_max, if frames < 6 { 1600 } else { ours.frame_max });
    }
}

#[test]
fn a_repeated_step_is_answered_with_the_same_bytes_and_makes_no_second_session() {
    for group in [(GROUP, Some(PASSWORD)), (OPEN_GROUP, None)] {
        let mut rig = Rig::new(plan(group.0, group.1), 8);
        rig.bring_up();
        // Every frame is delivered twice, and the whole handshake is replayed afterwards.
        rig.meddle = alloc::boxed::Box::new(|_, frame| alloc::vec![frame.clone(), frame]);
        rig.run().unwrap();
        let said: alloc::vec::Vec<_> =
            rig.log.iter().filter(|(to_target, _)| *to_target).map(|(_, frame)| frame.clone()).collect();
        for frame in said {
            rig.target_hears(&frame);
        }
        assert_eq!(rig.agreed.len(), 1);
        assert_eq!(rig.handshakes.half_open(), 0);
    }
}

//= hyperscsi#section-6.4
//= type=test
//# A target MUST NOT make a second session of a
//# START, not even when the first is over
#[test]
fn a_copy_of_what_began_a_session_begins_nothing_when_that_is_over() {
    for (group, password) in [(GROUP, Some(PASSWORD)), (OPEN_GROUP, None)] {
        for wait in [0, 9, 29] {
            let mut rig = Rig::new(plan(group, password), 8);
            rig.bring_up();
            rig.run().unwrap();
            rig.end_sessions();
            rig.now = rig.now.after(Duration::from_secs(wait));
            let said: alloc::vec::Vec<_> =
                rig.log.iter().filter(|(to_target, _)| *to_target).map(|(_, frame)| frame.clone()).collect();
            for frame in said.iter().chain(&said) {
                rig.target_hears(frame);
            }
            assert_eq!(rig.agreed.len(), 1, "{group}, {wait} s later");
        }
    }
}

//= hyperscsi#section-6.4
//= type=test
//# An initiator MUST NOT send a START with two cookies
#[test]
fn no_two_sessions_have_one_name_whoever_forgets_what() {
    // The initiator does not learn of its first session. Meanwhile the target ends the session, is restarted,
    // or both.
    let time_limit = Duration::from_secs(30);
    for (group, password) in [(GROUP, Some(PASSWORD)), (OPEN_GROUP, None)] {
        let mut several = 0;
        for (frames, forgets) in (1..16).flat_map(|frames| (0..3).map(move |forgets| (frames, forgets))) {
            let mut rig = Rig::new(LoginPlan { time_limit, ..plan(group, password) }, 10);
            rig.bring_up();
            rig.end_sessions_after = (forgets != 0).then_some(frames);
            rig.restart_target_after = (forgets != 1).then_some(frames + forgets);
            let mut accepts = 0;
            rig.meddle = alloc::boxed::Box::new(move |to_target, frame| {
                accepts += usize::from(!to_target && abuse::kind(&frame) == 6);
                let drop = !to_target && abuse::kind(&frame) == 6 && accepts < 5;
                if drop { alloc::vec![] } else { alloc::vec![frame] }
            });
            let ours = rig.run().unwrap();
            let mut names: alloc::vec::Vec<_> = rig.agreed.iter().map(|agreed| agreed.sid_out).collect();
            assert_eq!(names.last(), Some(&ours.sid_in), "{group}, {frames} frames, {forgets}");
            several += usize::from(names.len() > 1);
            let made = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), made, "{group}, {frames} frames, {forgets}: one name for two sessions");
        }
        assert!(several > 10, "{group}: {several}");
    }
}

#[test]
fn nothing_secret_is_printed() {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), 9);
    rig.bring_up();
    let ours = rig.run().unwrap();
    let printed = alloc::format!("{:?} {:?} {ours:?} {:?}", rig.login, rig.handshakes, rig.agreed);
    assert!(!printed.contains(PASSWORD));
    assert!(!printed.contains("token") && !printed.contains("random: Random {"), "{printed}");
}
