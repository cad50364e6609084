//! Tests that the constants in docs/hyperscsi.md are those of the code.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use base::time::Duration;

use crate::aead::{KEEP_MAX, UPDATE_AFTER_BYTES, UPDATE_AFTER_FRAMES, UPDATE_EVERY};
use crate::connection::{ConnectionConfig, PATHS_MAX};
use crate::exchange::xid;
use crate::frame::{CRC_LEN, HEADER_LEN, TAGS};
use crate::initiator::session::{RESERVE_MAX, RESERVE_SHARE};
use crate::login::cookie::Cookies;
use crate::login::target::HandshakeServer;
use crate::path::congestion::{IGNORED_PERMILLE, TOLERATED_PERMILLE, WAITING_BYTES};
use crate::path::credit::{BEYOND_MAX, SHARED_PERCENT, WINDOW_INITIAL, WINDOW_MAX, WINDOW_MIN};
use crate::path::loss_detection::PACKET_THRESHOLD;
use crate::path::pmtu::SIZES;
use crate::path::replay::REPLAY_WINDOW;
use crate::path::{MTU_MIN, PROBE_INTERVAL_MAX};
use crate::pdu::ack::RANGES_MAX;
use crate::pdu::negotiate::HELLO_PAYLOAD_MIN;
use crate::pdu::parameters::Parameters;
use crate::pdu::parts::PARTS_MAX;
use crate::send_queue::HEAD_LEN_MAX;
use crate::target::request::REFUSALS_MAX;
use security::opaque::USUAL_COST;

const DOCUMENT: &str = include_str!("../../../docs/hyperscsi.md");

/// Returns the rows of the first table below a heading, as cells, without the table's head.
fn table(heading: &str) -> Vec<Vec<String>> {
    let lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(heading));
    let rows = lines.skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect();
    rows.skip(2).map(cells).collect()
}

fn span(span: Duration) -> String {
    match span.as_micros() {
        us if us % 1_000_000 == 0 => format!("{} s", us / 1_000_000),
        us if us % 1000 == 0 => format!("{} ms", us / 1000),
        us => format!("{us} µs"),
    }
}

fn bytes(len: u32) -> String {
    if len.is_multiple_of(1 << 20) { format!("{} MiB", len >> 20) } else { format!("{} KiB", len >> 10) }
}

fn power(of_two: u64) -> String {
    assert!(of_two.is_power_of_two());
    format!("2^{}", of_two.trailing_zeros())
}

#[test]
fn every_constant_of_the_specification_is_that_of_the_code() {
    let usual = Parameters::DEFAULT;
    assert_eq!(usize::from(usual.paths), PATHS_MAX);
    let halves = (HandshakeServer::HALVES_MAX, HandshakeServer::HALF_LIFETIME, HandshakeServer::HALVES_KEPT);
    let code: BTreeMap<&str, String> = [
        ("EtherType", format!("{:X}h", crate::ETHERTYPE)),
        ("header", format!("{HEADER_LEN} bytes")),
        ("slots (TAG)", format!("{TAGS} in each class")),
        ("slots that commands leave free", format!("one of {RESERVE_SHARE}, 1 to {RESERVE_MAX}")),
        ("CRC32C", format!("{CRC_LEN} bytes")),
        ("replay window", format!("{REPLAY_WINDOW}")),
        ("credit window", format!("{WINDOW_INITIAL}; {WINDOW_MIN} to {WINDOW_MAX} frames")),
        ("share of the receive ring", format!("{SHARED_PERCENT} %")),
        ("beyond the credit", format!("{BEYOND_MAX}")),
        ("answers to Requests that make no sense", format!("{REFUSALS_MAX} of a session")),
        ("ranges in an Ack", format!("{RANGES_MAX}")),
        ("exchange window", format!("{}", xid::WINDOW)),
        ("parts of a frame", format!("{PARTS_MAX}")),
        ("block, at most", format!("{HEAD_LEN_MAX} bytes")),
        ("key update", format!("{} frames, {} bytes", power(UPDATE_AFTER_FRAMES), power(UPDATE_AFTER_BYTES))),
        ("key update, at most", format!("once in {}; old keys {}", span(UPDATE_EVERY), span(KEEP_MAX))),
        ("PTO floor", span(ConnectionConfig::PROBE_FLOOR)),
        ("longest probe interval", span(PROBE_INTERVAL_MAX)),
        ("order broken by", format!("{PACKET_THRESHOLD} frames")),
        ("ACK DELAY MAX", span(Duration::from_micros(usual.ack_delay_max_us.into()))),
        ("delay allowance", span(ConnectionConfig::DELAY_ALLOWANCE)),
        ("waits at hosts", format!("{} KiB", WAITING_BYTES >> 10)),
        (
            "loss that is borne",
            format!("{} %; slower growth above {} %", TOLERATED_PERMILLE / 10, IGNORED_PERMILLE / 10),
        ),
        ("FIRST BURST", bytes(usual.first_burst)),
        ("BURST MAX", bytes(usual.burst_max)),
        ("LOST AFTER", span(Duration::from_millis(usual.lost_after_ms.into()))),
        ("paths", format!("{PATHS_MAX}")),
        ("cookie", span(Cookies::LIFETIME)),
        ("HELLO payload, at least", format!("{HELLO_PAYLOAD_MIN} bytes")),
        (
            "half-open handshakes",
            format!("{} of {}, {} of them for members", halves.0, span(halves.1), halves.2),
        ),
        ("Argon2id", format!("{}, {} passes", bytes(USUAL_COST.memory_kib << 10), USUAL_COST.passes)),
    ]
    .into();
    let said: BTreeMap<String, String> =
        table("## 15.").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    for (name, value) in &said {
        assert_eq!(code.get(name.as_str()), Some(value), "{name}");
    }
    assert_eq!(said.len(), code.len());
}

#[test]
fn every_parameter_has_the_default_that_the_specification_says() {
    let usual = Parameters::DEFAULT;
    let code = [
        ("FRAME MAX", u32::from(usual.frame_max)),
        ("FRAMES INITIAL", usual.frames_initial),
        ("ACK DELAY MAX", usual.ack_delay_max_us),
        ("LEVELS", 7),
        ("EXCHANGES", usual.exchanges.into()),
        ("FIRST BURST", usual.first_burst),
        ("BURST MAX", usual.burst_max),
        ("PATHS", usual.paths.into()),
        ("REPAIR", usual.repair as u32),
        ("LOST AFTER", usual.lost_after_ms),
    ];
    assert_eq!(usual.levels, crate::pdu::parameters::Levels::ALL);
    let rows = table("### 4.10.");
    assert_eq!(rows.len(), code.len());
    for (at, (row, (name, default))) in (1..).zip(rows.iter().zip(code)) {
        assert_eq!([&row[0], &row[1], &row[3]], [&format!("{at}"), name, &format!("{default}")]);
    }
}

#[test]
fn the_lengths_that_are_searched_are_those_that_the_specification_lists() {
    let sizes = SIZES.map(|size| format!("{size}")).join(", ");
    assert!(DOCUMENT.contains(&format!("leads down the table {sizes}.")), "{sizes}");
    assert!(DOCUMENT.contains(&format!("a path of less than {MTU_MIN} bytes carries nothing")));
}
