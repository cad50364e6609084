//! The share of a wire that is left for data, by loss, credit window and MTU: a table that is reviewed like
//! code.

use alloc::format;
use alloc::string::String;

use base::time::Duration;
use netem::frame::FramePlan;
use netem::probability::Probability;

use super::pair::{Config, Pair, TEN_GBIT, wire};
use super::std;
use crate::pdu::parameters::Repair;

/// Frames lost per million.
const LOSSES: [u32; 5] = [0, 1_000, 10_000, 30_000, 100_000];
/// The largest credit window, in frames.
const WINDOWS: [u64; 3] = [16, 32, 128];

/// Returns how many bytes per second arrive of messages of 256 KiB, sent eight at a time in one direction.
pub(super) fn rate(config: &Config, span: Duration) -> u64 {
    let mut pair = Pair::new(config);
    for _ in 0..250 {
        pair.give(1, 256 << 10);
    }
    pair.sides[1].depth = 8;
    // The congestion window and the path MTU are found in the first milliseconds.
    pair.run_for(Duration::from_millis(3));
    let before = pair.sides[0].arrived_bytes;
    pair.run_for(span);
    let bytes = u128::from(pair.sides[0].arrived_bytes - before);
    u64::try_from(bytes * 1_000_000_000 / span.as_nanos()).unwrap()
}

/// Returns what the frame format leaves of a wire, in bytes per second.
fn bound(mtu: u64, bytes_per_s: u64) -> u64 {
    bytes_per_s * (mtu - 28 - 4) / (mtu + 38)
}

fn percent(part: u64, whole: u64) -> String {
    let tenths = (part * 2000 / whole).div_ceil(2);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[test]
fn the_rate_by_loss_window_and_mtu_is_as_reviewed() {
    let mut table = String::from(
        "Data that arrives, in percent of what the frame format leaves of 10 Gbit/s, with 40 us there and back.\n\
         Messages of 256 KiB, eight at a time. Loss in both directions; window: the largest credit, in frames.\n\n\
         mtu    repair      window   loss 0 %   0.1 %     1 %     3 %    10 %\n",
    );
    for (mtu, ms) in [(1500, 3), (9000, 12), (65_535, 25)] {
        for repair in [Repair::Selective, Repair::Window] {
            for share in WINDOWS {
                let rates = LOSSES.map(|loss| {
                    let plan = FramePlan { loss: Probability(loss), ..wire(TEN_GBIT) };
                    let config = Config { mtu, share, repair, plans: [plan.clone(), plan], ..Config::lan() };
                    rate(&config, Duration::from_millis(ms))
                });
                let bound = bound(mtu as u64, TEN_GBIT);
                let row = rates.map(|rate| format!("{:>8}", percent(rate, bound))).concat();
                table += &format!("{mtu:<6} {:<11} {share:>6}   {row}\n", format!("{repair:?}"));
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/connection/tests/throughput.snap");
    if std::env::var_os("TARGE_BLESS").is_some() {
        std::fs::write(path, table).unwrap();
    } else {
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            table,
            "run TARGE_BLESS=1 cargo test -p targe-hyperscsi"
        );
    }
}
