//! How long a session waits before it recovers (Time2Wait), and how often its logins are redirected.

use base::time::Duration;
use transport::initiator::InitiatorTransport;

use super::pair::Setup;
use super::scripted_target::{ScriptedTarget, level_2};
use crate::login::Status;
use crate::pdu::TargetSn;
use crate::pdu::async_message::{AsyncEventCode, AsyncMessage};
use crate::pdu::login_request::LoginRequest;

/// Returns the message that the connection with this CID is dropped, and that the initiator is to wait for
/// three seconds.
fn dropped(sn: TargetSn, cid: u16) -> AsyncMessage {
    AsyncMessage {
        lun: 0,
        sn,
        event: AsyncEventCode::CONNECTION_DROP,
        vendor_code: 0,
        parameter1: cid,
        parameter2: 3,
        parameter3: 20,
    }
}

/// Checks that the session connects again after this time and not earlier.
fn connects_after(raw: &mut ScriptedTarget, millis: u64) {
    let before = raw.ends.len();
    raw.pass(Duration::from_millis(millis - 100));
    assert_eq!(raw.ends.len(), before, "it did not wait");
    raw.pass(Duration::from_millis(200));
    assert_eq!(raw.ends.len(), before + 1, "it still waits");
}

#[test]
fn a_lost_session_is_established_again_after_the_default_time2wait() {
    //= rfc7143#section-7.5
    //= type=test
    //# Recovery attempts for the connection and/or task(s) SHOULD NOT be made before Time2Wait
    //# seconds but MUST be completed within Time2Retain seconds after that initial Time2Wait waiting
    //# period.
    for level in [0, 1] {
        let (mut raw, conn) = ScriptedTarget::level(level, &["DefaultTime2Wait=2"]);
        raw.cut(conn);
        connects_after(&mut raw, 2000);
    }
}

#[test]
fn a_dropped_connection_is_replaced_after_the_time_that_the_target_asked_for() {
    for level in [0, 1] {
        let (mut raw, conn) = ScriptedTarget::level(level, &["DefaultTime2Wait=1"]);
        let message = dropped(raw.next_sn(conn), 0);
        raw.send(conn, &message, &[]);
        connects_after(&mut raw, 3000);
    }
    // At level 2, the session goes on over its other connection meanwhile.
    let (mut raw, conns) = level_2(2);
    let message = dropped(raw.next_sn(conns[0]), 1);
    raw.send(conns[0], &message, &[]);
    assert!(raw.session.is_up());
    connects_after(&mut raw, 3000);
}

#[test]
fn every_attempt_to_log_in_may_be_redirected() {
    let mut setup = Setup::default();
    setup.plan.retry.timeout = Duration::from_secs(3600);
    setup.plan.retry.attempts = 0;
    let (mut raw, conn) = ScriptedTarget::up(setup, &[]);
    raw.manual = true;
    raw.cut(conn);
    // The portal redirects the initiator to a member that is not up yet.
    let redirected = |raw: &mut ScriptedTarget| {
        while raw.wanted.is_empty() {
            raw.pass(Duration::from_secs(1));
        }
        let portal = raw.connect();
        raw.drain();
        let request: LoginRequest = raw.expect(portal);
        raw.login_response(
            portal,
            &request,
            Status::MOVED_TEMPORARILY.0,
            0,
            &["TargetAddress=127.0.0.1:3265"],
        );
        assert_eq!(raw.wanted.len(), 1, "the redirection is followed: {:?}", raw.events);
    };
    for _ in 0..20 {
        redirected(&mut raw);
        let slot = raw.wanted.remove(0);
        raw.session.connect_failed(raw.now, slot);
        raw.drain();
    }
    redirected(&mut raw);
    let member = raw.connect();
    raw.drain();
    raw.log_in(member, 8, &[]);
    assert!(raw.session.is_up(), "{:?}", raw.events);
}
