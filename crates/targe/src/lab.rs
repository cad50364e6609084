//! `targe lab`: experiments, and the instruments that they use.

mod compare;
mod digests;
mod experiment;
mod hyperscsi;
mod output;
mod risk;
mod security;
mod targets;
mod wire;

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use lab::proxy::faults::Faults;
use lab::proxy::{DirectionCounts, FaultHandler, Proxy, ProxyReport};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::tables::Table;
use crate::{Failure, print};

#[derive(Debug, Args)]
pub(crate) struct LabArgs {
    #[command(subcommand)]
    instrument: Instrument,
}

#[derive(Debug, Subcommand)]
enum Instrument {
    /// Compare runs of an experiment, one or several on each side: which quantities became better or worse
    Compare(compare::CompareArgs),
    /// Measure what iSCSI digests cost on a path, and say whether to use them
    Digests(digests::DigestsArgs),
    /// Measure HyperSCSI beside iSCSI on virtual links of this machine; needs root
    Hyperscsi(hyperscsi::HyperScsiArgs),
    /// Proxy iSCSI connections between initiators and a target and inject faults into PDUs, above TCP
    Proxy(ProxyArgs),
    /// Damage iSCSI PDUs, and count what digests detect and what stays silent
    Risk(risk::RiskArgs),
    /// Measure what encryption costs: TLS 1.3, AEAD records and IPsec; needs root
    Security(security::SecurityArgs),
    /// Compare targe with other targets on this machine: speed, cost and conformance
    Targets(targets::TargetsArgs),
    /// Forward frames between two Ethernet interfaces and drop, duplicate, reorder and corrupt them
    Wire(Box<wire::WireArgs>),
}

#[derive(Debug, Args)]
struct ProxyArgs {
    /// Listen for initiators on this address; port 0 selects a free port, which is printed on stderr
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The target
    #[arg(long, value_name = "HOST:PORT")]
    upstream: String,
    /// Faults to inject into PDUs: data=0.5%,cut=1/20000,stall=1%:200ms,responses.drop=1/500; kinds are
    /// header, header_digest, data, data_digest, drop, duplicate, stall, cut, silence, and delay, rate, bits,
    /// limit, login, unprotected
    #[arg(long, value_name = "PLAN", default_value = "")]
    faults: String,
    /// Seed of the random numbers: the same seed injects the same faults into the same PDUs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// End after this many seconds [default: at a signal]
    #[arg(long, value_name = "S")]
    time: Option<u64>,
    /// Print each fault on stderr
    #[arg(long)]
    verbose: bool,
    /// Print the report as one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &LabArgs) -> Result<(), Failure> {
    match &args.instrument {
        Instrument::Compare(args) => compare::run(args),
        Instrument::Digests(args) => digests::run(args),
        Instrument::Hyperscsi(args) => hyperscsi::run(args),
        Instrument::Proxy(args) => proxy(args),
        Instrument::Risk(args) => risk::run(args),
        Instrument::Security(args) => security::run(args),
        Instrument::Targets(args) => targets::run(args),
        Instrument::Wire(args) => wire::run(args),
    }
}

fn proxy(args: &ProxyArgs) -> Result<(), Failure> {
    let faults: Faults =
        args.faults.parse().map_err(|error| Failure::Misused(format!("--faults: {error}")))?;
    let upstream = resolve(&args.upstream)?;
    let failed = |what: &str, error: std::io::Error| Failure::Failed(format!("{what}: {error}"));
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ends)).map_err(|error| failed("signals", error))?;
    }
    let watch = match args.verbose {
        true => Some((|injected| eprintln!("{injected}")) as FaultHandler),
        false => None,
    };
    let proxy = Proxy::start(args.listen, upstream, faults, args.seed, watch)
        .map_err(|error| failed(&args.listen.to_string(), error))?;
    eprintln!("listening on {} for {upstream}, seed {}", proxy.address(), args.seed);
    let until = args.time.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    while !ends.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
        std::thread::sleep(POLL_INTERVAL);
    }
    let report = proxy.report();
    if args.json {
        print(&format!("{}\n", serde_json::json!(report)));
    } else {
        print(&show(&report));
    }
    Ok(())
}

/// How often the end is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

fn resolve(name: &str) -> Result<SocketAddr, Failure> {
    let mut found =
        name.to_socket_addrs().map_err(|error| Failure::Misused(format!("--upstream {name}: {error}")))?;
    found.next().ok_or_else(|| Failure::Misused(format!("--upstream {name}: no such host")))
}

fn show(report: &ProxyReport) -> String {
    let mut table = Table::new(&["", "REQUESTS", "RESPONSES"]);
    type Count = fn(&DirectionCounts) -> u64;
    let rows: [(&str, Count); 12] = [
        ("bytes", |lane| lane.bytes),
        ("header", |lane| lane.header),
        ("header digest", |lane| lane.header_digest),
        ("data", |lane| lane.data),
        ("data digest", |lane| lane.data_digest),
        ("drop", |lane| lane.drop),
        ("duplicate", |lane| lane.duplicate),
        ("stall", |lane| lane.stall),
        ("cut", |lane| lane.cut),
        ("silence", |lane| lane.silence),
        ("damaged headers", |lane| lane.damaged_headers),
        ("damaged data", |lane| lane.damaged_data),
    ];
    for (name, count) in rows {
        table.row(&[name, &count(&report.requests).to_string(), &count(&report.responses).to_string()]);
    }
    format!("{} connections, {} refused\n{table}", report.connections, report.refused)
}
