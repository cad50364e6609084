//! Sessions that log in with a password.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base::time::Duration;
use security::opaque::{KE2_LEN, Password, PasswordRecord, PendingClientLogin, StretchCost, StretchJob};
use security::random::HmacDrbg;
use transport::initiator::InitiatorTransport as _;
use zeroize::Zeroizing;

use super::pair::{Pair, Setup, pattern, read, write};
use crate::aead::AeadDigest;
use crate::initiator::contract::*;
use crate::login::directory::AuthPolicy;
use crate::login::initiator::{AuthPlan, InitiatorLoginError};
use crate::opaque::OpaqueError;

/// Returns a pair whose initiator logs in with this password.
pub(super) fn pair(password: &str, connections: u16, digests: &'static [AeadDigest]) -> Pair {
    let mut setup = Setup::default();
    let own = Password::new(password.as_bytes()).unwrap();
    setup.plan.auth = AuthPlan::Opaque { user: "alice".into(), password: own };
    setup.plan.connections = connections;
    setup.plan.keys.max_connections = connections;
    setup.plan.keys.aead_digests = digests;
    let mut pair = Pair::new(setup);
    let cost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
    let known = Password::new(b"correct horse").unwrap();
    let record = PasswordRecord::make(&known, "alice", cost, [1; 32]).unwrap();
    pair.names.auth = AuthPolicy { opaque: true, ..AuthPolicy::default() };
    pair.names.records.push(("alice", Arc::new(record)));
    pair.run();
    pair
}

pub(super) static EACH: [AeadDigest; 4] = AeadDigest::ALL;

#[test]
fn a_session_of_several_connections_logs_in_with_one_password_and_protects_its_data() {
    let digests = (0..EACH.len()).map(|at| &EACH[at..=at]).chain([&[][..]]);
    for digests in digests {
        let mut pair = pair("correct horse", 6, digests);
        pair.pass(Duration::from_secs(1));
        assert!(pair.session.is_up(), "{:?}", pair.events);
        assert_eq!(pair.session.stats().logins, 6);
        assert_eq!(pair.target_sessions.len(), 1);
        assert_eq!(pair.target_sessions[0].user.as_deref(), Some("alice"));
        let proven = |event: &Event| matches!(event, Event::Up(up) if up.peer_authenticated);
        assert!(pair.events.iter().any(proven), "{:?}", pair.events);
        let chosen = |event: &Event| match event {
            Event::ConnectionUp { parameters, .. } => Some(parameters.data_digest.aead()),
            _ => None,
        };
        let chosen: Vec<_> = pair.events.iter().filter_map(chosen).collect();
        assert_eq!(chosen, [digests.first().copied(); 6]);
        for round in 0..20 {
            let data = pattern(round, 40_000);
            let written = pair.submit(write(64, u32::try_from(round).unwrap(), &data));
            pair.settle(round, Duration::from_secs(5));
            assert!(pair.outcome(written).end.is_good(), "{digests:?}");
            let task = pair.submit(read(64, 40_000));
            pair.settle(round, Duration::from_secs(5));
            let outcome = pair.outcome(task);
            assert_eq!(outcome.data_in.as_deref(), Some(&data[..]), "{digests:?}");
        }
        assert_eq!(pair.session.stats().data_digest_errors, 0);
        assert_eq!(pair.session.stats().bugs + pair.engine.stats().bugs, 0);
    }
}

#[test]
fn a_wrong_password_ends_the_session_for_good() {
    let pair = pair("battery staple", 1, &[]);
    let wrong = ConnectionDown::Login(InitiatorLoginError::Opaque(OpaqueError::WrongPassword));
    let end = |event: &Event| matches!(event, Event::Down(SessionEnd::Permanent(why)) if *why == wrong);
    assert!(pair.events.iter().any(end), "{:?}", pair.events);
}

#[test]
fn a_result_that_no_login_waits_for_is_discarded() {
    let mut pair = pair("correct horse", 1, &[]);
    let password = Password::new(b"correct horse").unwrap();
    let (attempt, _) = PendingClientLogin::start(&password, &mut HmacDrbg::new([1; 32])).unwrap();
    let job = StretchJob {
        attempt,
        password,
        user: b"alice".to_vec(),
        cost: StretchCost { memory_kib: 8, passes: 1, lanes: 1 },
        ke2: [0; KE2_LEN],
        context: [0; 64],
        entropy: Zeroizing::new([1; 32]),
        digest: [0; 64],
    };
    pair.session.job_done(pair.now, job.run());
    pair.run();
    assert!(pair.session.is_up());
    assert_eq!(pair.session.stats().bugs, 0);
}
