//! `targe bench`: generates load and shows the results.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use drivers::config::Config;
use initiator::EnvSecrets;
use initiator::driver::plan;
use initiator::endpoint::Scheme;
use lab::bench::{BenchError, BenchPlan, BenchReport, DirectionStats, Histogram, Job, run as run_load};
use scsi::lun::Lun;
use serde_json::{Value, json};
use store::encrypt::shared_volume::VolumeCipher;
use store::shared::SharedStore;

use crate::cli::BenchArgs;
use crate::progress::{TimeBar, amount, to_f64};
use crate::tables::Table;
use crate::{Failure, confirm, connect, luks, print, signals};

pub(crate) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let urls: Vec<_> = args.url.iter().map(|text| connect::url(text)).collect::<Result<_, _>>()?;
    if args.rw < 100 {
        let names: Vec<String> = urls.iter().map(ToString::to_string).collect();
        confirm::ask(args.write, &format!("this overwrites what is on {}", names.join(", ")))?;
    }
    if let Some(url) = urls.iter().find(|url| url.endpoint.transport.scheme() == Scheme::HyperScsi)
        && args.connections.is_some()
    {
        return Err(Failure::Misused(format!(
            "--connections is for iscsi:// URLs; {url} has paths, by ?paths=INTERFACE,..."
        )));
    }
    let block_bytes = u32::try_from(args.bs).ok().filter(|bytes| *bytes > 0);
    let block_bytes = block_bytes.ok_or_else(|| Failure::Misused("--bs: from one block to 4G".to_owned()))?;
    let reactor = Config { engine: args.reactor, busy_poll: args.poll, ..Config::default() };
    let mut jobs = Vec::new();
    let client = connect::client()?;
    for url in &urls {
        let disk = connect::disk(&client, url)?;
        let geometry = disk.geometry();
        if args.rw < 100 && geometry.write_protected {
            return Err(Failure::Failed(format!("{url}: the unit is write protected")));
        }
        let medium: Arc<dyn SharedStore> = Arc::new(disk.clone());
        let volume = args.luks.as_deref().map(|key_file| luks::volume(&medium, key_file, &url.to_string()));
        let cipher = volume.transpose()?.map(|volume| Arc::new(VolumeCipher::new(&volume)));
        drop(medium);
        // The session that read the geometry is logged out before the load begins.
        let gone = disk.session().log_out();
        drop(disk);
        let _ = gone.wait();
        for _ in 0..args.sessions {
            let mut session =
                plan(url, &EnvSecrets).map_err(|why| Failure::Misused(connect::error_chain(&why)))?;
            session.renew_isid();
            if let Some(connections) = args.connections {
                session.set_connections(connections);
            }
            session.want_tasks(usize::try_from(args.depth).unwrap_or(0));
            let lun = Lun::from_number(url.lun).unwrap_or(Lun(0));
            let command_timeout = url.endpoint.options.command_timeout;
            let name = url.to_string();
            let (geometry, cipher) = (geometry.clone(), cipher.clone());
            jobs.push(Job { session, lun, geometry, name, command_timeout, cipher });
        }
    }
    drop(client);
    let (from, len) = args.range.unwrap_or((0, u64::MAX));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(processors, |threads| usize::try_from(threads).unwrap_or(1));
    let plan = BenchPlan {
        read_percent: args.rw,
        random: args.random,
        block_bytes,
        depth: usize::try_from(args.depth).unwrap_or(1),
        rate: None,
        range: (from, from.saturating_add(len)),
        time: args.time,
        warmup: args.warmup,
        count: args.count,
        seed: args.seed,
        threads: threads.min(jobs.len()),
        reactor,
        jobs,
    };
    let wanted: usize = plan.jobs.iter().map(|job| usize::from(job.session.connections())).sum();
    let stop = signals::flag()?;
    // Without a number of commands, the length of the run is known.
    let bar = plan.count.is_none().then(|| TimeBar::start(plan.warmup.saturating_add(plan.time)));
    let report = run_load(&plan, &stop);
    drop(bar);
    let report = report.map_err(|why| match why {
        BenchError::Plan(text) => Failure::Misused(text),
        other => Failure::Failed(connect::error_chain(&other)),
    })?;
    if report.connections < wanted {
        eprintln!(
            "targe: {} of {wanted} connections were established; the target allows no more",
            report.connections
        );
    }
    if report.connections_lost > 0 {
        eprintln!("targe: {} connections were lost during the run", report.connections_lost);
    }
    if args.json {
        print(&format!("{:#}\n", as_json(&plan, &report)));
    } else {
        print(&show(&plan, &report));
    }
    if let Some(why) = &report.failure {
        return Err(Failure::Failed(format!("{why}; the report covers the {:.1} s before", report.seconds)));
    }
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::Failed(format!("a signal ended it after {:.1} s", report.seconds)));
    }
    Ok(())
}

fn as_json(plan: &BenchPlan, report: &BenchReport) -> Value {
    let total = report.total();
    let mut all = side_as_json(&total, report.seconds);
    if let Value::Object(all) = &mut all {
        all.insert("cpu_s".to_owned(), json!(report.cpu_s));
        all.insert("seconds".to_owned(), json!(report.seconds));
        all.insert("system_calls_per_io".to_owned(), json!(calls_per_io(report)));
        all.insert("block_bytes".to_owned(), json!(plan.block_bytes));
        all.insert("depth".to_owned(), json!(plan.depth));
        all.insert("sessions".to_owned(), json!(plan.jobs.len()));
        all.insert("connections".to_owned(), json!(report.connections));
        all.insert("connections_lost".to_owned(), json!(report.connections_lost));
        all.insert("threads".to_owned(), json!(plan.threads));
        all.insert("luks".to_owned(), json!(plan.jobs.iter().any(|job| job.cipher.is_some())));
        all.insert("negotiated".to_owned(), negotiated_as_json(report));
        all.insert("reactor".to_owned(), json!(report.engine));
        all.insert("read_percent".to_owned(), json!(plan.read_percent));
        all.insert("random".to_owned(), json!(plan.random));
        if plan.read_percent > 0 {
            all.insert("read".to_owned(), side_as_json(&report.reads, report.seconds));
        }
        if plan.read_percent < 100 {
            all.insert("write".to_owned(), side_as_json(&report.writes, report.seconds));
        }
    }
    all
}

/// Returns what the sessions agreed on: an object for each different set.
fn negotiated_as_json(report: &BenchReport) -> Value {
    let object = |found: &lab::bench::Negotiated| -> Value {
        found
            .0
            .iter()
            .map(|(name, value)| ((*name).to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    report.negotiated.iter().map(object).collect::<Vec<Value>>().into()
}

/// Names the digests of the sessions: a default can negotiate what nobody asked for.
fn digests(report: &BenchReport) -> String {
    let pair = |found: &lab::bench::Negotiated| {
        Some(format!(
            "header digest {}, data digest {}",
            found.get("HeaderDigest")?,
            found.get("DataDigest")?
        ))
    };
    let mut all: Vec<String> = report.negotiated.iter().filter_map(pair).collect();
    all.sort();
    all.dedup();
    if all.is_empty() { String::new() } else { format!("negotiated: {}\n", all.join("; ")) }
}

fn side_as_json(side: &DirectionStats, seconds: f64) -> Value {
    let per_second = |count: u64| if seconds > 0.0 { to_f64(count) / seconds } else { 0.0 };
    let latency = &side.latency;
    let us = |span: Duration| span.as_secs_f64() * 1e6;
    json!({
        "ios": side.count,
        "iops": per_second(side.count),
        "bytes_per_s": per_second(side.bytes),
        "latency_us": {
            "mean": us(latency.mean()),
            "p50": us(latency.percentile(5000)),
            "p90": us(latency.percentile(9000)),
            "p99": us(latency.percentile(9900)),
            "p999": us(latency.percentile(9990)),
            "max": us(latency.max()),
        },
    })
}

fn calls_per_io(report: &BenchReport) -> f64 {
    if report.commands == 0 { 0.0 } else { to_f64(report.system_calls) / to_f64(report.commands) }
}

fn show(plan: &BenchPlan, report: &BenchReport) -> String {
    let mut table = Table::new(&["", "IOPS", "BYTES/S", "MEAN", "P50", "P90", "P99", "P99.9", "MAX"]);
    let mut row = |name: &str, side: &DirectionStats| {
        let per_second = |count: u64| to_f64(count) / report.seconds.max(1e-9);
        let spans = spans(&side.latency);
        let mut cells =
            vec![name.to_owned(), format!("{:.0}", per_second(side.count)), amount(per_second(side.bytes))];
        cells.extend(spans);
        table.row(&cells.iter().map(String::as_str).collect::<Vec<_>>());
    };
    if plan.read_percent > 0 {
        row("read", &report.reads);
    }
    if plan.read_percent < 100 {
        row("write", &report.writes);
    }
    if (1..100).contains(&plan.read_percent) {
        row("total", &report.total());
    }
    let order = if plan.random { "random" } else { "sequential" };
    format!(
        "{table}\n{order} commands of {} bytes, {} outstanding in each of {} sessions, {} connections, {} reactors \
         ({})\n{}{:.1} s, {:.2} s of processor time, {:.2} system calls for each command\n",
        plan.block_bytes,
        plan.depth,
        plan.jobs.len(),
        report.connections,
        plan.threads,
        report.engine,
        digests(report),
        report.seconds,
        report.cpu_s,
        calls_per_io(report)
    )
}

fn spans(latency: &Histogram) -> Vec<String> {
    let percentiles = [5000, 9000, 9900, 9990].map(|per_ten_thousand| latency.percentile(per_ten_thousand));
    let all = [latency.mean()].into_iter().chain(percentiles).chain([latency.max()]);
    all.map(|span| format!("{:.0}us", span.as_secs_f64() * 1e6)).collect()
}
