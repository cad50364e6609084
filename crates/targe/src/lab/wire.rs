//! `targe lab wire`: simulates a bad Ethernet cable.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::time::Instant;
use clap::{Args, ValueEnum};
use drivers::ether::PortError;
use lab::proxy::faults;
use lab::wire::{DirectionReport, Wire, WireReport};
use netem::frame::FramePlan;
use netem::probability::{DurationRange, Probability};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::cli::size;
use crate::tables::Table;
use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct WireArgs {
    /// The first interface
    #[arg(long, value_name = "IFACE")]
    a: String,
    /// The second interface
    #[arg(long, value_name = "IFACE")]
    b: String,
    /// Probability of dropping a frame, written like all probabilities as 0.5%, 1/2000 or 500ppm
    #[arg(long, value_name = "PROBABILITY", value_parser = odds, default_value = "0%")]
    loss: Probability,
    /// Probability of dropping the frame after a dropped one
    #[arg(long, value_name = "PROBABILITY", value_parser = odds)]
    burst: Option<Probability>,
    /// Probability of duplicating a frame
    #[arg(long, value_name = "PROBABILITY", value_parser = odds, default_value = "0%")]
    dup: Probability,
    /// Probability of delaying a frame so that others overtake it
    #[arg(long, value_name = "PROBABILITY", value_parser = odds, default_value = "0%")]
    reorder: Probability,
    /// Longest such delay
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "300us")]
    reorder_by: Duration,
    /// Probability of flipping bits of a frame
    #[arg(long, value_name = "PROBABILITY", value_parser = odds, default_value = "0%")]
    corrupt: Probability,
    /// Delay of every frame
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0us")]
    delay: Duration,
    /// Limit the rate to this many bits per second, such as 100M or 1G
    #[arg(long, value_name = "BITS", value_parser = bits)]
    rate: Option<u64>,
    /// With --rate: queue at most this many bytes and drop further frames
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "1M", requires = "rate")]
    queue: u64,
    /// Drop frames with a longer payload, as a switch does
    #[arg(long, value_name = "LENGTH")]
    mtu: Option<usize>,
    /// Cut the link: FROM:SECONDS after the start; may be repeated
    #[arg(long, value_name = "FROM:SECONDS", value_parser = cut)]
    cut: Vec<(Instant, Instant)>,
    /// Impair both directions or only one
    #[arg(long, value_enum, default_value_t = Ways::Both)]
    way: Ways,
    /// Forward only frames of this EtherType, in hexadecimal, or all
    #[arg(long, value_name = "TYPE", value_parser = ether_type, default_value = "889a")]
    ethertype: EtherTypes,
    /// Seed of the random numbers: the same seed impairs the same frames in the same way
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// End after this many seconds [default: at a signal]
    #[arg(long, value_name = "S")]
    time: Option<u64>,
    /// Print the counts as a table, not as one JSON object
    #[arg(long)]
    table: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ways {
    Both,
    AToB,
    BToA,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EtherTypes(Option<u16>);

pub(super) fn run(args: &WireArgs) -> Result<(), Failure> {
    let failed = |what: &str, error: std::io::Error| Failure::Failed(format!("{what}: {error}"));
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends)).map_err(|error| failed("signals", error))?;
    }
    let bad = plan(args);
    let plans = match args.way {
        Ways::Both => [bad.clone(), bad],
        Ways::AToB => [bad, FramePlan::CLEAN],
        Ways::BToA => [FramePlan::CLEAN, bad],
    };
    let mut wire =
        Wire::open([&args.a, &args.b], args.ethertype.0, plans, args.seed).map_err(|error| match error {
            PortError::NoInterface(_) | PortError::NotEthernet(_) => Failure::Misused(error.to_string()),
            error => Failure::Failed(crate::connect::error_chain(&error)),
        })?;
    eprintln!("between {} and {}, seed {}", args.a, args.b, args.seed);
    wire.run(&ends, args.time.map(Duration::from_secs)).map_err(|error| failed("waiting", error))?;
    let report = wire.report();
    if args.table {
        print(&show(&report));
    } else {
        print(&format!("{}\n", serde_json::json!(report)));
    }
    Ok(())
}

fn plan(args: &WireArgs) -> FramePlan {
    FramePlan {
        delay: DurationRange::exactly(args.delay),
        bytes_per_s: args.rate.unwrap_or(0) / 8,
        queue_len_max: args.rate.map_or(0, |_| usize::try_from(args.queue).unwrap_or(usize::MAX)),
        loss: args.loss,
        burst: args.burst.unwrap_or(args.loss),
        duplicate: args.dup,
        reorder: args.reorder,
        reorder_by: DurationRange::between(Duration::ZERO, args.reorder_by),
        corrupt: args.corrupt,
        frame_len_max: args.mtu.map(|mtu| (Instant::ORIGIN, mtu + HEADER_LEN)).into_iter().collect(),
        cuts: args.cut.clone(),
        ..FramePlan::CLEAN
    }
}

/// The length of the header before a frame's payload.
const HEADER_LEN: usize = base::ether::ETHERNET_HEADER_LEN;

fn odds(text: &str) -> Result<Probability, String> {
    faults::odds(text).map_err(|error| error.to_string())
}

fn time(text: &str) -> Result<Duration, String> {
    faults::time(text).map_err(|error| error.to_string())
}

/// Parses `100M` as a hundred million: link rates are decimal.
fn bits(text: &str) -> Result<u64, String> {
    let bad = || "expected a number of bits per second, such as 100M, 1G or 64k".to_owned();
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let factor = match text.get(digits.len()..).unwrap_or_default() {
        "" => 1,
        "k" | "K" => 1000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        _ => return Err(bad()),
    };
    let rate = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(factor));
    rate.filter(|rate| *rate >= 8).ok_or_else(bad)
}

fn cut(text: &str) -> Result<(Instant, Instant), String> {
    let bad = || "expected FROM:SECONDS, such as 5:20 for 20 seconds from second 5 on".to_owned();
    let (from, span) = text.split_once(':').ok_or_else(bad)?;
    let moment =
        |text: &str| text.parse::<u32>().map(|count| Duration::from_secs(count.into())).map_err(|_| bad());
    let from = Instant::ORIGIN.after(moment(from)?);
    Ok((from, from.after(moment(span)?)))
}

fn ether_type(text: &str) -> Result<EtherTypes, String> {
    if text == "all" {
        return Ok(EtherTypes(None));
    }
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let number = u16::from_str_radix(digits, 16).ok().filter(|number| *number >= ETHER_TYPE_MIN);
    let number =
        number.ok_or_else(|| "expected `all` or an EtherType in hexadecimal, such as 889a".to_owned())?;
    Ok(EtherTypes(Some(number)))
}

/// The smallest EtherType. Below it the field is a length (IEEE 802.3).
const ETHER_TYPE_MIN: u16 = 0x600;

fn show(report: &WireReport) -> String {
    let mut table = Table::new(&["FRAMES", "A TO B", "B TO A"]);
    type Count = fn(&DirectionReport) -> u64;
    let rows: [(&str, Count); 12] = [
        ("came in", |lane| lane.sent),
        ("went out", |lane| lane.arrived),
        ("(bytes)", |lane| lane.bytes),
        ("lost", |lane| lane.lost),
        ("queue full", |lane| lane.queue_full),
        ("too long", |lane| lane.too_long),
        ("cut", |lane| lane.cut),
        ("duplicated", |lane| lane.duplicated),
        ("reordered", |lane| lane.reordered),
        ("corrupted", |lane| lane.corrupted),
        ("unheard", |lane| lane.unheard),
        ("unsent", |lane| lane.unsent),
    ];
    for (name, count) in rows {
        table.row(&[name, &count(&report.a_to_b).to_string(), &count(&report.b_to_a).to_string()]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cuts_and_types_are_read() {
        for (text, rate) in [("100M", 100_000_000), ("1G", 1_000_000_000), ("64k", 64_000), ("8", 8)] {
            assert_eq!(bits(text), Ok(rate), "{text}");
        }
        for text in ["", "G", "1T", "-1", "7", "99999999999999G"] {
            assert!(bits(text).is_err(), "{text}");
        }
        let moment = |seconds| Instant::ORIGIN.after(Duration::from_secs(seconds));
        assert_eq!(cut("5:20"), Ok((moment(5), moment(25))));
        assert!(cut("5").is_err() && cut("5:").is_err() && cut("x:1").is_err());
        assert_eq!(ether_type("889a"), Ok(EtherTypes(Some(0x889a))));
        assert_eq!(ether_type("0x0800"), Ok(EtherTypes(Some(0x800))));
        assert_eq!(ether_type("all"), Ok(EtherTypes(None)));
        assert!(ether_type("05dc").is_err() && ether_type("ether").is_err());
    }
}
