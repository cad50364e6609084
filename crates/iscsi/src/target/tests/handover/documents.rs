//! Documents of sessions: what is refused, and that no document does harm.

extern crate std;

use alloc::string::{String, ToString};
use alloc::vec::Vec;

use base::rng::Rng;
use base::state_machine::ConnId;
use serde_json::{Value, json};

use super::{ack, connect, exported, session};
use crate::aead::login_keys::LoginKeys;
use crate::aead::{AeadDigest, GenerationLimits};
use crate::keys::Role;
use crate::login::directory::TargetId;
use crate::serial::StatSn;
use crate::target::engine::{Engine, Limits};
use crate::target::handover::{ResumeError, SessionState};
use crate::target::tests::world::World;

const SEEDS: u64 = 300;

/// Returns the document of a session of two connections at this level.
fn document(level: u8) -> String {
    let (mut world, conns, _) = session(level, 2);
    if level > 0 {
        conns.iter().for_each(|conn| ack(&mut world, *conn, StatSn(2)));
    }
    exported(&world).0
}

/// Returns the document of a session whose connections have an AEAD digest.
fn sealed_document() -> String {
    let (mut world, conns, _) = session(0, 2);
    for conn in &conns {
        let secret = zeroize::Zeroizing::new([1; 64]);
        let keys = LoginKeys::new(&secret, &[2; 64]).connection_keys(&[u8::try_from(conn.0).unwrap(); 64]);
        let make = || keys.record_keys(Role::Target, AeadDigest::ALL[0], GenerationLimits::default());
        assert!(world.engine.inject_record_keys(*conn, make));
    }
    let mut value: Value = serde_json::from_str(&exported(&world).0).unwrap();
    // As a login would have negotiated it.
    let name = AeadDigest::ALL[0].name();
    value["protection"] = json!(name);
    for at in 0..2 {
        value["connections"][at]["header_digest"] = json!(name);
        value["connections"][at]["data_digest"] = json!(name);
    }
    value.to_string()
}

/// Resumes a document in a new engine with two connections.
fn resume(document: &str) -> Result<(Engine, World), Option<ResumeError>> {
    let world = World::new();
    let mut engine = Engine::new(Limits::default(), world.pool.clone());
    let conns = [ConnId(0), ConnId(1)];
    conns.iter().for_each(|conn| connect(&mut engine, &world, *conn, 40000));
    let state: SessionState = serde_json::from_str(document).map_err(|_| None)?;
    match engine.resume(world.now, state, TargetId(0), &conns, &world.names) {
        Ok(_) => Ok((engine, world)),
        Err(why) => {
            assert_eq!(engine.sessions().count(), 0);
            assert!(engine.poll_event().is_none() && engine.poll_action().is_none());
            Err(Some(why))
        }
    }
}

/// Returns why a document is refused in which a place has another value.
fn refusal(document: &str, place: &str, value: Value) -> Option<ResumeError> {
    let mut whole: Value = serde_json::from_str(document).unwrap();
    *whole.pointer_mut(place).unwrap_or_else(|| panic!("no {place} in {document}")) = value;
    match resume(&whole.to_string()) {
        Ok(_) => panic!("{place} is accepted: {whole}"),
        Err(why) => why,
    }
}

#[test]
fn each_field_is_checked() {
    use ResumeError as E;
    let plain = document(0);
    assert!(resume(&plain).is_ok());
    let long = "x".repeat(256);
    for (place, value, why) in [
        ("/target", json!("not a name"), E::Name("target")),
        ("/target", json!("iqn.2026-01.test:Upper"), E::Name("target")),
        ("/initiator", json!(""), E::Name("initiator")),
        ("/initiator", json!("a/b"), E::Name("initiator")),
        ("/initiator_alias", json!(long), E::Text("InitiatorAlias")),
        ("/initiator_alias", json!("two\nlines"), E::Text("InitiatorAlias")),
        ("/user", json!("\u{7}"), E::Text("user name")),
        ("/password_login", json!({"user": "\u{7}", "protection": 0}), E::Text("user name")),
        ("/password_login", json!({"user": "alice", "protection": 3}), E::Protection),
        ("/tsih", json!(0), E::NoTsih),
        ("/protection", json!("CRC32C"), E::Protection),
        ("/protection", json!(AeadDigest::ALL[0].name()), E::Protection),
        ("/max_cmd_sn", json!(100 + 1024), E::Window),
        ("/max_cmd_sn", json!(98), E::Window),
        ("/traffic/commands", json!(u64::MAX), E::Counter("commands")),
        ("/repairs/snacks", json!(u64::MAX), E::Counter("snacks")),
        (
            "/takeovers",
            json!({"last": {"secs": 1, "nanos": 0}, "last_report": null, "times": u64::MAX, "unreported": 0}),
            E::Counter("takeovers"),
        ),
        ("/lost", json!([{"cid": 5, "logged_out": false}]), E::LostConnections),
        ("/parameters/max_connections", json!(0), E::Parameter("MaxConnections")),
        ("/parameters/max_connections", json!(17), E::Parameter("MaxConnections")),
        ("/parameters/max_connections", json!(1), E::ConnectionCount { state: 2, given: 2, max: 1 }),
        ("/parameters/max_burst_length", json!(511), E::Parameter("MaxBurstLength")),
        ("/parameters/max_burst_length", json!(1 << 24), E::Parameter("MaxBurstLength")),
        ("/parameters/first_burst_length", json!((1 << 24) - 1), E::Parameter("FirstBurstLength")),
        ("/parameters/default_time2wait", json!(3601), E::Parameter("DefaultTime2Wait")),
        ("/parameters/default_time2retain", json!(3601), E::Parameter("DefaultTime2Retain")),
        ("/parameters/max_outstanding_r2t", json!(0), E::Parameter("MaxOutstandingR2T")),
        ("/parameters/error_recovery_level", json!(3), E::Parameter("ErrorRecoveryLevel")),
        ("/parameters/task_reporting", json!("FastAbort "), E::Parameter("TaskReporting")),
        ("/parameters/protocol_level", json!(32), E::Parameter("iSCSIProtocolLevel")),
        ("/connections", json!([]), E::ConnectionCount { state: 0, given: 2, max: 4 }),
        ("/connections/1/cid", json!(0), E::DuplicateCid(0)),
        ("/connections/1/peer", json!("127.0.0.1:40001"), E::Peer(ConnId(1))),
        ("/connections/0/header_digest", json!("MD5"), E::Parameter("HeaderDigest")),
        ("/connections/0/data_digest", json!(""), E::Parameter("DataDigest")),
        ("/connections/0/header_digest", json!(AeadDigest::ALL[0].name()), E::RecordKeys(0)),
        ("/connections/0/initiator_max_recv", json!(511), E::Parameter("MaxRecvDataSegmentLength")),
        ("/connections/1/target_max_recv", json!(1 << 24), E::Parameter("MaxRecvDataSegmentLength")),
        ("/connections/1/wrong_tags", json!(1024), E::RecordKeys(1)),
    ] {
        assert_eq!(refusal(&plain, place, value.clone()), Some(why), "{place} = {value}");
    }
    let level_1 = document(1);
    assert_eq!(refusal(&level_1, "/connections/1/stat_sn", json!(9)), Some(E::Unacknowledged(1)));
    let level_2 = document(2);
    let lost: Vec<Value> = (0..17).map(|cid| json!({"cid": cid, "logged_out": true})).collect();
    assert_eq!(refusal(&level_2, "/lost", json!(lost)), Some(E::LostConnections));

    let sealed = sealed_document();
    assert!(resume(&sealed).is_ok());
    let secret = |at: usize| json!("0".repeat(at));
    for (place, value, why) in [
        ("/connections/0/record_keys", json!(null), Some(E::RecordKeys(0))),
        ("/connections/0/record_keys/digest", json!(AeadDigest::ALL[1].name()), Some(E::RecordKeys(0))),
        ("/connections/0/record_keys/send/last_pdu", json!(u64::MAX), Some(E::RecordKeys(0))),
        ("/connections/0/record_keys/send/secret", secret(127), None),
        ("/connections/0/data_digest", json!("CRC32C"), Some(E::RecordKeys(0))),
        ("/protection", json!("Y-org.example.none"), Some(E::Protection)),
    ] {
        assert_eq!(refusal(&sealed, place, value.clone()), why, "{place} = {value}");
    }
}

#[test]
fn a_field_that_this_release_does_not_know_is_refused() {
    for place in ["", "/parameters", "/traffic", "/repairs", "/connections/0"] {
        let mut whole: Value = serde_json::from_str(&document(0)).unwrap();
        let object = whole.pointer_mut(place).unwrap().as_object_mut().unwrap();
        object.insert("later".to_string(), json!(1));
        assert!(matches!(resume(&whole.to_string()), Err(None)), "{place}");
    }
}

/// Whatever a document holds: it is refused, or the engine is consistent and goes on.
#[test]
fn mutated_documents_are_refused_or_give_a_session_that_works() {
    let seed = std::env::var("TARGE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = std::env::var("TARGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(SEEDS);
    let originals = [document(0), document(1), document(2), sealed_document()];
    let (mut resumed, mut refused) = (0, 0);
    for seed in seed.map_or(0..seeds, |seed: u64| seed..seed + 1) {
        let mut rng = Rng::from_seed(seed);
        let original = &originals[pick(&mut rng, originals.len())];
        let mutated = mutate(&mut rng, original);
        match resume(&mutated) {
            Ok((engine, world)) => {
                resumed += 1;
                check_works(seed, &mutated, engine, &world, &mut rng);
            }
            Err(_) => refused += 1,
        }
    }
    if seeds >= SEEDS && seed.is_none() {
        assert!(resumed > 30 && refused > 30, "{resumed} resumed, {refused} refused");
    }
}

/// Drains the engine, checks that it exports what was resumed, and feeds it with random bytes.
fn check_works(seed: u64, document: &str, mut engine: Engine, world: &World, rng: &mut Rng) {
    let conns = [ConnId(0), ConnId(1)];
    let drain = |engine: &mut Engine| {
        while engine.poll_event().is_some() {}
        while engine.poll_action().is_some() {}
        for conn in conns {
            let mut out = base::transmit::Transmit::new();
            engine.transmit(world.now, conn, &mut out);
            out.clear(&world.pool);
        }
        while engine.poll_event().is_some() || engine.poll_action().is_some() {}
    };
    let view = engine.sessions().next().map(|view| view.session).unwrap();
    drain(&mut engine);
    let (state, order) = engine.export(view).unwrap_or_else(|busy| panic!("seed {seed}: {busy}: {document}"));
    assert_eq!(order, conns, "seed {seed}");
    let before: Value = serde_json::from_str(document).unwrap();
    let after: Value = serde_json::to_value(&state).unwrap();
    for place in ["/target", "/initiator", "/isid", "/tsih", "/user", "/exp_cmd_sn", "/parameters", "/lost"] {
        assert_eq!(before.pointer(place), after.pointer(place), "seed {seed}: {place}");
    }
    for _ in 0..20 {
        let mut bytes = alloc::vec![0; 48 * (1 + pick(rng, 4))];
        rng.fill(&mut bytes);
        let conn = conns[pick(rng, 2)];
        engine.received(world.now, conn, &bytes, &world.names);
        drain(&mut engine);
    }
    let later = world.now.after(base::time::Duration::from_secs(3600));
    engine.handle_timeout(later);
    drain(&mut engine);
    assert_eq!(engine.stats().bugs, 0, "seed {seed}: {document}");
}

fn mutate(rng: &mut Rng, document: &str) -> String {
    if rng.chance(1, 4) {
        // Damage to the text.
        let mut bytes = document.as_bytes().to_vec();
        for _ in 0..=rng.below(3) {
            let at = pick(rng, bytes.len());
            match rng.below(3) {
                0 => bytes[at] = b"0123456789\",:{}[]nt-e.\\"[pick(rng, 23)],
                1 => {
                    bytes.remove(at);
                }
                _ => bytes.insert(at, bytes[at]),
            }
        }
        return String::from_utf8_lossy(&bytes).into_owned();
    }
    let mut whole: Value = serde_json::from_str(document).unwrap();
    for _ in 0..=rng.below(3) {
        mutate_value(rng, &mut whole);
    }
    whole.to_string()
}

/// Changes one value somewhere inside of `value`.
fn mutate_value(rng: &mut Rng, value: &mut Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !rng.chance(1, 40) => {
            let at = pick(rng, fields.len());
            if let Some(field) = fields.values_mut().nth(at) {
                mutate_value(rng, field);
            }
        }
        Value::Array(items) if !items.is_empty() && !rng.chance(1, 6) => {
            let at = pick(rng, items.len());
            match rng.below(8) {
                0 => {
                    items.remove(at);
                }
                1 => items.push(items[at].clone()),
                _ => mutate_value(rng, &mut items[at]),
            }
        }
        Value::Number(number) => {
            let near = number.as_u64().unwrap_or(0);
            let new = match rng.below(6) {
                0 => near.wrapping_add(1 + rng.below(3)),
                1 => near.wrapping_sub(1 + rng.below(3)),
                2 => rng.below(1 << 16),
                3 => 1 << rng.below(64),
                4 => u64::MAX - rng.below(2),
                _ => rng.next_u64() >> rng.below(64),
            };
            *value = json!(new);
        }
        Value::String(text) => {
            let new = ["", "None", "CRC32C", "iqn.2026-01.test:other", "a", "127.0.0.1:40000", "FastAbort"];
            *text = match rng.below(3) {
                0 => text.to_uppercase(),
                1 => text.chars().rev().collect(),
                _ => new[pick(rng, new.len())].to_string(),
            };
        }
        Value::Bool(flag) => *flag = !*flag,
        other => {
            let values = [json!(null), json!(7), json!("x"), json!([]), json!({})];
            *other = values[pick(rng, values.len())].clone();
        }
    }
}

fn pick(rng: &mut Rng, below: usize) -> usize {
    usize::try_from(rng.below(u64::try_from(below).unwrap())).unwrap()
}
