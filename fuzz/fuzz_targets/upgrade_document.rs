//! Documents of live upgrades: a process hands its sessions and units to the next one in such a document.
//!
//! The first byte says what follows: the bytes of a document, the body of one whose header is right, or
//! changes of the document that a shard exports here, or the place of a number in it, which then becomes each
//! of the values that calculations end at. No document may make the decoder panic or take memory
//! out of proportion; what it takes it must write again as it was. A shard of the same configuration then
//! resumes what was decoded, or refuses it. A shard that resumes it serves no session a LUN that the
//! configuration does not give it, and what it exports is what the next one exports after it. A client goes
//! on with each connection to an NBD server, or what was negotiated for it is refused.
#![no_main]

use std::sync::LazyLock;

use base::bytes::Reader;
use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, StreamMachine as _};
use base::time::{Duration, Instant};
use device::contract::Access;
use ground::Operations;
use ground::exports::EXPORTS;
use iscsi::aead::AeadDigest;
use iscsi::digest::Crc32c;
use iscsi::negotiate::KeyPolicy;
use iscsi::pdu::login_response::LoginResponse;
use iscsi::pdu::nop_out::NopOut;
use iscsi::pdu::{Itt, PduHeader as _, Ttt};
use iscsi::serial::StatSn;
use libfuzzer_sys::fuzz_target;
use nbd::handshake::ExportInfo;
use security::Level;
use serde_json::{Value, json};
use shard::config::{InitiatorEntry, InitiatorQuota, LunEntry, ShardConfig};
use shard::handover::ShardState;
use store::Store;
use store::ram::Ram;
use target::bindings::NexusBindings;
use target::units::UnitId;

use frames::{Member, both, lun};
use pair::{Initiator, TARGET, World, login_request, pdu};

#[allow(dead_code, reason = "as above")]
#[path = "../../crates/shard/tests/whole/ether.rs"]
mod ether;
#[allow(dead_code, unused_imports, reason = "as above")]
#[path = "../../crates/shard/tests/whole/frames.rs"]
mod frames;
#[allow(dead_code, reason = "as above")]
#[path = "../../crates/shard/tests/hostile/medium.rs"]
mod medium;
#[allow(dead_code, reason = "the tests of the shard use the rest")]
#[path = "../../crates/shard/tests/pair/mod.rs"]
mod pair;

/// The codec of the daemon, which is private to its module `serve`.
#[path = "../../crates/daemon/src/serve/upgrade"]
mod serve {
    mod document;

    use document::{
        Bytes, DeviceState, DirectionState, Document, ExportState, FORMAT, MAGIC, MemoryState, ReactorState,
        RelayState,
    };
    use iscsi::digest::Crc32c;
    use nbd::handshake::ExportInfo;
    use shard::handover::ShardState;

    /// Decodes a document, and checks that it is written as it was read. Returns the state and the
    /// connections of each reactor.
    pub fn read(bytes: &[u8]) -> Option<Vec<(ShardState, Vec<Vec<usize>>)>> {
        let document = Document::decode(bytes).ok()?;
        let written = document.encode().expect("it is not longer than what was read");
        let again = Document::decode(&written).expect("its own bytes");
        assert_eq!(again.encode().unwrap(), written);
        for info in document.exports.iter().take(super::EXPORTS_MAX).filter_map(|export| export.info().ok()) {
            assert_eq!(ExportState::new(String::new(), &info, true).info(), Ok(info));
            ground::exports::go_on(info);
        }
        let parts = |document: Document| {
            document.reactors.into_iter().map(|reactor| (reactor.shard, reactor.connections)).collect()
        };
        let (read, again): (Vec<_>, Vec<_>) = (parts(document), parts(again));
        assert!(read == again, "it reads otherwise than it was written");
        Some(read)
    }

    /// Returns the body of the document of one reactor.
    pub fn body(shard: ShardState, connections: Vec<Vec<usize>>, exports: &[ExportInfo]) -> Vec<u8> {
        let device = DeviceState {
            unit: "naa.5000000000000002".to_owned(),
            kind: 5,
            block_len: Some(2048),
            transfer_max: 1 << 20,
            names: vec![b"disc".to_vec(), Vec::new()],
            is_locked: true,
        };
        let process =
            DeviceState { unit: "naa.5000000000000003".to_owned(), is_locked: false, ..device.clone() };
        // A document with connections has devices, too.
        let devices = exports.iter().take(1).flat_map(|_| [device.clone(), process.clone()]).collect();
        let export = |(at, info)| ExportState::new("naa.5000000000000001".to_owned(), info, at == 0);
        let exports: Vec<ExportState> = exports.iter().enumerate().map(export).collect();
        let reactors = vec![ReactorState { shard, connections, tls_addresses: Vec::new() }];
        let relays = exports.iter().take(1).map(|_: &ExportState| relay()).collect();
        let unit = || "naa.5000000000000004".to_owned();
        let memory = |_: &ExportState| MemoryState { unit: unit(), len: 1 << 20, chunks: vec![(0, 2), (9, 1)] };
        let memories = exports.iter().take(1).map(memory).collect();
        let document = Document { reactors, cartridges: Vec::new(), exports, devices, memories, relays };
        let bytes = document.encode().unwrap();
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        bytes[end + 1..].to_vec()
    }

    /// Returns a connection inside TLS.
    fn relay() -> RelayState {
        let direction = |secret, sequence| DirectionState { secret: Bytes::from(vec![secret; 32]), sequence };
        let [handshake, received, incoming, outgoing, unsent] = [24, 23, 5, 6, 8].map(|byte| vec![byte].into());
        let (send, receive) = (direction(1, 2), direction(3, 4));
        let (owes_key_update, fruitless, network_ended, is_closed) = (true, 1, false, false);
        let (portal, suite, incoming_ended, outgoing_ended) = (1, 0x1301, false, false);
        RelayState {
            portal, suite, send, receive, handshake, owes_key_update, fruitless, received, network_ended, is_closed,
            incoming, incoming_ended, outgoing, outgoing_ended, unsent,
        }
    }

    /// Puts a right header before a body.
    pub fn with_header(body: &[u8]) -> Vec<u8> {
        let (len, crc32c) = (body.len(), u32::from_le_bytes(Crc32c::of(body)));
        let header = format!(
            "{{\"magic\":\"{MAGIC}\",\"format\":{FORMAT},\"version\":\"0\",\"len\":{len},\"crc32c\":{crc32c}}}\n"
        );
        [header.as_bytes(), body].concat()
    }
}

const ALICE: &str = "iqn.2026-11.org.example:alice";
const BOB: &str = "iqn.2026-11.org.example:bob";
/// The one initiator with LUNs of its own.
const CAROL: &str = "iqn.2026-11.org.example:carol";
const GOOD: u8 = 0;
#[allow(dead_code, reason = "the tests of the shard use it")]
const CHECK: u8 = 2;
/// As many connections as are told to a shard: each takes memory before its state is looked at.
const CONNECTIONS_MAX: usize = 64;
/// With as many connections to NBD servers a client goes on.
const EXPORTS_MAX: usize = 8;
/// What two shards with their media take, and documents of a few times the length of the longest input.
const MEMORY_MAX_KIB: u64 = 32 << 10;
const MEDIUM_LEN: u64 = 1 << 20;
const UNITS: usize = 3;
const NOW: Instant = Instant(1 << 60);
/// Values at which types and calculations end.
const EDGES: [u64; 17] = [
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    (1 << 63) - 1,
    1 << 62,
    1 << 48,
    (1 << 48) - 1,
    1 << 32,
    u32::MAX as u64,
    u32::MAX as u64 - 1,
    1 << 31,
    (1 << 31) - 1,
    65535,
    255,
    2,
    1,
    0,
];

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    match first {
        0 => judge_within_memory(rest),
        1 => judge_within_memory(&serve::with_header(rest)),
        3 => with_edges(rest).for_each(|body| judge_within_memory(&serve::with_header(&body))),
        _ => judge_within_memory(&serve::with_header(&changed(rest))),
    }
});

fn judge_within_memory(document: &[u8]) {
    let before = address_space_max_kib();
    judge(document);
    let taken = address_space_max_kib().saturating_sub(before);
    assert!(taken < MEMORY_MAX_KIB, "{taken} KiB for a document of {} bytes", document.len());
}

/// Returns how large the address space of the process was at most, in KiB, which counts memory that was
/// reserved and never used.
fn address_space_max_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Decodes a document and lets a shard resume what each reactor has.
fn judge(bytes: &[u8]) {
    for (state, connections) in serve::read(bytes).unwrap_or_default().into_iter().take(2) {
        let counts: Vec<usize> = connections.iter().map(Vec::len).collect();
        if counts.iter().sum::<usize>() <= CONNECTIONS_MAX {
            resume(&state, &counts);
        }
    }
}

/// Lets two shards resume a state, one after the other, and returns what the first one exports.
fn resume(state: &ShardState, counts: &[usize]) -> Option<Value> {
    let mut next = Next::resume(state, counts, &[])?;
    // The owner saves which disks hosts have used.
    let bindings: Vec<NexusBindings> = next.world.shard.bindings(NOW).collect();
    let (exported, counts) = next.export()?;
    let told = serde_json::to_value(&exported).unwrap();
    check_luns(&told);
    let last = Next::resume(&exported, &counts, &bindings);
    let mut last = last.expect("the state of a shard that resumed it");
    let (again, _) = last.export().expect("it was idle before");
    assert_equal("", &told, &serde_json::to_value(again).unwrap());
    next.end();
    Some(told)
}

/// Checks that two states are equal, but for what moves on at every upgrade: the packet numbers of sent
/// frames, and the keys of sent PDUs, for a resumed session sends one at once.
fn assert_equal(path: &str, one: &Value, other: &Value) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) if one.keys().eq(other.keys()) => {
            one.iter().for_each(|(name, value)| assert_equal(&format!("{path}/{name}"), value, &other[name]));
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            let pairs = one.iter().zip(other).enumerate();
            pairs.for_each(|(at, (one, other))| assert_equal(&format!("{path}/{at}"), one, other));
        }
        _ => {
            let moves = path.ends_with("/sent") || path.contains("/record_keys/send/");
            assert!(one == other || moves, "{path}: {one} became {other}");
        }
    }
}

/// Checks that every session has no other LUNs than those that the configuration gives it.
fn check_luns(state: &Value) {
    let naa = |unit: &Value| {
        let at = usize::try_from(unit.as_u64().unwrap()).unwrap();
        state["target"]["units"][at]["naa"].as_str().unwrap().to_owned()
    };
    let sessions = state["sessions"].as_array().unwrap();
    let nexuses = state["target"]["nexuses"].as_array().unwrap();
    assert_eq!(sessions.len(), nexuses.len());
    for (session, nexus) in sessions.iter().zip(nexuses) {
        let (what, is_protected) = match (&session["Iscsi"], &session["HyperScsi"]) {
            (Value::Null, what) => (what, !what["connection"]["keys"].is_null()),
            (what, _) => (what, !what["protection"].is_null()),
        };
        let allowed: &[(u64, u8)] = match what["initiator"].as_str().unwrap() {
            CAROL => &[(0, 0), (2, 2)],
            _ if is_protected => &[(0, 0), (1, 1)],
            _ => &[(0, 0)],
        };
        for row in nexus["luns"].as_array().unwrap() {
            let of = |(lun, unit): &(u64, u8)| {
                row[0].as_u64() == Some(*lun)
                    && naa(&row[1]) == format!("60123456{}{unit:02x}", "00".repeat(11))
            };
            assert!(allowed.iter().any(of), "LUN {row} of {}", what["initiator"]);
        }
    }
}

/// The shard of the next process, and its connections.
struct Next {
    world: World,
    open: Vec<ConnId>,
}

impl Next {
    /// Makes a shard that resumes a state; `None` if it refuses to.
    fn resume(state: &ShardState, counts: &[usize], bindings: &[NexusBindings]) -> Option<Self> {
        let mut next = Self { world: World::new(site(), media()), open: vec![] };
        // So late that no time before it is before the clock began.
        next.world.now = NOW;
        next.world.plug_in([6; 32]);
        bindings.iter().for_each(|saved| next.world.shard.restore_bindings(NOW, saved.clone()));
        let arrival = AcceptInfo {
            portal: next.world.portal,
            local: "127.0.0.1:3260".parse().unwrap(),
            peer: "127.0.0.1:50000".parse().unwrap(),
            entropy: [8; 32],
        };
        let mut numbers = 0..;
        let mut connections = vec![];
        for count in counts {
            let conns: Vec<_> = numbers.by_ref().take(*count).map(ConnId).collect();
            for conn in &conns {
                next.world.shard.taken_over(next.world.now, *conn, &arrival);
            }
            next.open.extend(&conns);
            connections.push(conns);
        }
        next.world.shard.resume(next.world.now, state, &connections).ok()?;
        next.drain();
        Some(next)
    }

    /// Returns the state and how many connections each session has; `None` if the shard is busy.
    fn export(&mut self) -> Option<(ShardState, Vec<usize>)> {
        let is_busy = self.world.shard.busy().is_some();
        let exported = self.world.shard.export(self.world.now);
        assert_eq!(exported.is_err(), is_busy);
        exported.ok().map(|exported| (exported.state, exported.connections.iter().map(Vec::len).collect()))
    }

    /// Serves the sessions until all initiators have left.
    fn end(mut self) {
        self.world.shard.thaw(self.world.now);
        self.drain();
        self.pass(1);
        for conn in std::mem::take(&mut self.open) {
            self.world.shard.disconnected(self.world.now, conn, DisconnectReason::Failed);
            self.drain();
        }
        // An hour each is the most that Time2Wait, Time2Retain and LOST AFTER can be.
        (0..3).for_each(|_| self.pass(3601));
    }

    fn pass(&mut self, seconds: u64) {
        self.world.now = self.world.now.after(Duration::from_secs(seconds));
        self.world.shard.handle_timeout(self.world.now);
        self.drain();
    }

    /// Plays the drivers, whose peers receive everything and say nothing.
    fn drain(&mut self) {
        let Self { world, open } = self;
        for _ in 0..10_000 {
            if let Some(save) = world.shard.poll_save() {
                world.shard.state_saved(world.now, save.unit, save.ticket, true);
            } else if let Some(action) = world.shard.poll_action() {
                let (Action::Transmit(conn) | Action::Close(conn) | Action::Abort(conn)) = action;
                let mut out = base::transmit::Transmit::new();
                world.shard.transmit(world.now, conn, &mut out);
                out.clear(&world.pool);
                if !matches!(action, Action::Transmit(_)) && open.contains(&conn) {
                    open.retain(|other| *other != conn);
                    world.shard.disconnected(world.now, conn, DisconnectReason::Closed);
                }
            } else if world.shard.poll_event().is_none() && world.frames(world.now).is_empty() {
                assert_eq!(world.shard.wire_stats().bugs + world.shard.frame_stats().bugs, 0);
                return;
            }
        }
        panic!("it never stops sending");
    }
}

/// Every initiator has LUN 0, and LUN 1 if its session is encrypted; Carol has LUN 0 and LUN 2.
fn site() -> ShardConfig {
    thread_local!(static SITE: ShardConfig = {
        let mut config = both(Level::Integrity);
        let row = |number, unit| LunEntry::new(number, UnitId(unit), Access::ReadWrite);
        let entry = |pattern: &str, luns| {
            InitiatorEntry { pattern: pattern.into(), luns, auth: None, quota: InitiatorQuota::default() }
        };
        let target = &mut config.targets[0];
        target.initiators = vec![entry(CAROL, Some(vec![row(0, 0), row(2, 2)])), entry("*", None)];
        target.keys = KeyPolicy { error_recovery_level: 2, max_connections: 4, ..KeyPolicy::default() };
        config
    });
    SITE.with(Clone::clone)
}

fn media() -> Vec<Box<dyn Store>> {
    (0..UNITS).map(|_| Box::new(Ram::new(MEDIUM_LEN)) as Box<dyn Store>).collect()
}

/// Returns the body of one of the exported documents with changes.
fn changed(input: &[u8]) -> Vec<u8> {
    let Some((first, rest)) = input.split_first() else { return vec![] };
    let mut document = EXPORTED[usize::from(*first) % EXPORTED.len()].clone();
    for (which, bytes) in Operations::of(rest).take(16) {
        change(&mut document, which, bytes);
    }
    serde_json::to_vec(&document).unwrap()
}

/// Returns the bodies of one of the exported documents with one of its numbers replaced. The first byte says
/// which document, the next two which number.
fn with_edges(input: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut reader = Reader::new(input);
    let document = &EXPORTED[usize::from(reader.u8().unwrap_or(0)) % EXPORTED.len()];
    let number = usize::from(reader.u16().unwrap_or(0)) % count_numbers(document);
    EDGES.iter().map(move |edge| {
        let mut document = document.clone();
        if let Some(value) = nth_number(&mut document, &mut { number }) {
            *value = json!(edge);
        }
        serde_json::to_vec(&document).unwrap()
    })
}

fn count_numbers(value: &Value) -> usize {
    match value {
        Value::Number(_) => 1,
        Value::Array(list) => list.iter().map(count_numbers).sum(),
        Value::Object(fields) => fields.values().map(count_numbers).sum(),
        _ => 0,
    }
}

fn nth_number<'a>(value: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    match value {
        Value::Number(_) if *at == 0 => Some(value),
        Value::Number(_) => {
            *at -= 1;
            None
        }
        Value::Array(list) => list.iter_mut().find_map(|value| nth_number(value, at)),
        Value::Object(fields) => fields.values_mut().find_map(|value| nth_number(value, at)),
        _ => None,
    }
}

/// Changes a value of a document. The first two bytes say which, and the next two name another value.
fn change(document: &mut Value, which: u8, bytes: &[u8]) {
    let mut reader = Reader::new(bytes);
    let nodes = count(document);
    let mut place = || usize::from(reader.u16().unwrap_or(0)) % nodes;
    let (mut at, mut other) = (place(), place());
    let source = nth(document, &mut other).cloned().unwrap_or_default();
    let rest = bytes.get(4..).unwrap_or_default();
    let number = rest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let Some(value) = nth(document, &mut at) else { return };
    match (which & 7, &mut *value) {
        (0, _) => *value = json!(number),
        (1, _) => {
            let edges = [u64::MAX, 1 << 63, 1 << 62, 1 << 48, u64::from(u32::MAX), 1 << 31, 65535, 255, 0];
            *value = json!(edges[usize::try_from(number % 9).unwrap()]);
        }
        (2, _) => *value = json!(String::from_utf8_lossy(rest)),
        (3, _) => *value = if number == 0 { Value::Null } else { json!(number & 1 == 0) },
        (4, Value::Array(list)) if list.len() < 4096 => list.push(source),
        (4 | 5, _) => *value = source,
        (6, Value::Array(list)) if !list.is_empty() => {
            drop(list.remove(usize::from(which >> 3) % list.len()))
        }
        (6, Value::Object(fields)) => {
            let name = fields.keys().nth(usize::from(which >> 3) % fields.len().max(1)).cloned();
            name.map(|name| fields.remove(&name));
        }
        (7, Value::Array(list)) if !list.is_empty() && list.len() < 2048 => {
            let (copies, first) = (usize::from(which >> 3) + 1, list[0].clone());
            list.extend(std::iter::repeat_n(first, copies));
        }
        (_, Value::Number(of)) => {
            let known = of.as_u64().unwrap_or(0);
            *value =
                json!(if which & 8 == 0 { known.wrapping_add(number) } else { known.wrapping_sub(number) });
        }
        (_, Value::String(text)) => {
            let end =
                text.char_indices().map(|(at, _)| at).nth(usize::from(which >> 3)).unwrap_or(text.len());
            text.insert_str(end, &String::from_utf8_lossy(rest));
        }
        _ => {}
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns the value with this number, in the order of the text.
fn nth<'a>(value: &'a mut Value, at: &mut usize) -> Option<&'a mut Value> {
    if *at == 0 {
        return Some(value);
    }
    *at -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| nth(value, at)),
        Value::Object(fields) => fields.values_mut().find_map(|value| nth(value, at)),
        _ => None,
    }
}

/// What shards with sessions of every kind export.
static EXPORTED: LazyLock<Vec<Value>> = LazyLock::new(|| {
    let kinds: [(&[fn(&mut World)], &[ExportInfo]); 6] = [
        (&[plain], &[]),
        (&[recovering], &[]),
        (&[hyperscsi], &[]),
        (&[recovering], &[]),
        (&[plain, recovering, hyperscsi], &[]),
        (&[plain], &EXPORTS),
    ];
    let mut documents: Vec<Value> = kinds.iter().map(|(kind, exports)| exported(kind, exports)).collect();
    seal(&mut documents[3]);
    for document in &documents {
        let bytes = serve::with_header(&serde_json::to_vec(document).unwrap());
        let (state, connections) = serve::read(&bytes).expect("a document").remove(0);
        let counts: Vec<usize> = connections.iter().map(Vec::len).collect();
        let told = resume(&state, &counts).expect("it is resumed and idle");
        assert_equal("", &document["reactors"][0]["shard"], &told);
    }
    documents
});

/// Exports a shard with these sessions, and connections to NBD servers.
fn exported(kind: &[fn(&mut World)], exports: &[ExportInfo]) -> Value {
    let mut world = World::new(site(), media());
    kind.iter().for_each(|log_in| log_in(&mut world));
    world.shard.freeze(world.now);
    // Acknowledgements that the target owes are due in that time.
    for _ in 0..20 {
        world.pass(Duration::from_millis(1));
        drop(world.frames(world.now));
    }
    let exported = world.shard.export(world.now).expect("idle");
    let connections = exported.connections.iter().map(|conns| vec![0; conns.len()]).collect();
    serde_json::from_slice(&serve::body(exported.state, connections, exports)).unwrap()
}

/// Two sessions without digests, a persistent reservation of one, and unit attentions of the other.
fn plain(world: &mut World) {
    let mut alice = Initiator::login(world, ALICE, 1);
    alice.clear_attentions(world, 0);
    Initiator::login(world, "iqn.2026-11.org.example:dave", 2);
    let mut list = [0; 24];
    list[15] = 9;
    assert_eq!(alice.run(world, 0, &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0], &list, 0).status, GOOD);
    (list[7], list[15]) = (9, 0);
    assert_eq!(alice.run(world, 0, &[0x5f, 1, 5, 0, 0, 0, 0, 0, 24, 0], &list, 0).status, GOOD);
}

/// A session of two connections with CRC32C and error recovery level 2.
fn recovering(world: &mut World) {
    let mut tsih = 0;
    for cid in 0..2 {
        let conn = world.connect();
        let mut text = format!(
            "InitiatorName={CAROL}\0TargetName={TARGET}\0SessionType=Normal\0HeaderDigest=CRC32C\0\
             DataDigest=CRC32C\0"
        );
        if tsih == 0 {
            text.push_str("ErrorRecoveryLevel=2\0MaxConnections=2\0");
        }
        let request = iscsi::pdu::login_request::LoginRequest { tsih, cid, ..login_request(3) };
        world.send(conn, &pdu(request.encode(), text.as_bytes()));
        let (bhs, _) = world.receive(conn).expect("a login response");
        let response = LoginResponse::decode(&bhs).unwrap();
        assert_eq!(response.status, 0, "{response:?}");
        tsih = response.tsih;
        let acknowledged = NopOut {
            immediate: true,
            lun: 0,
            itt: Itt::NONE,
            ttt: Ttt::NONE,
            cmd_sn: response.sn.exp_cmd_sn,
            exp_stat_sn: StatSn(response.sn.stat_sn.0.wrapping_add(1)),
        };
        let header = acknowledged.encode().to_bytes();
        world.send(conn, &[&header[..], &Crc32c::of(&header)].concat());
    }
}

/// A session with keys and one without.
fn hyperscsi(world: &mut World) {
    let mut bob = Member::up(world, BOB, "backup", Some("correct horse battery"));
    bob.clear_attentions(world, lun(0));
    let mut eve = Member::up(world, "iqn.2026-11.org.example:eve", "open", None);
    eve.clear_attentions(world, lun(0));
    world.shard.freeze(world.now);
    for member in [&mut bob, &mut eve] {
        let quiet = std::cell::Cell::new(0);
        member.until(world, |_| quiet.replace(quiet.get() + 1) > 20);
    }
    world.shard.thaw(world.now);
}

/// Gives a session the AEAD digest that a password login would have agreed on.
fn seal(document: &mut Value) {
    let digest = AeadDigest::ALL[0].name();
    let direction = json!({ "secret": "5a".repeat(64), "last_pdu": 7, "used_pdus": 8, "used_bytes": 4096 });
    let session = &mut document["reactors"][0]["shard"]["sessions"][0]["Iscsi"];
    session["protection"] = json!(digest);
    for connection in session["connections"].as_array_mut().unwrap() {
        connection["header_digest"] = json!(digest);
        connection["data_digest"] = json!(digest);
        connection["record_keys"] = json!({
            "digest": digest, "generation_pdus": 1 << 20, "generation_bytes": 1 << 30,
            "send": direction, "receive": direction,
        });
    }
}
