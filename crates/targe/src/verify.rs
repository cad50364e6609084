//! `targe verify`: checks that every block is present, whole, in its place and up to date.

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use initiator::{Disk, Url, block_on};
use lab::verify::journal::{Journal, JournalError};
use lab::verify::plan::{RunError, Until, VerifyPlan, Work};
use lab::verify::report::{Progress, Stage, VerifyReport};
use lab::verify::{Control, check, run as verify};
use oracle::pattern::Pattern;
use serde_json::{Value, json};
use store::shared::SharedStore;

use crate::cli::VerifyArgs;
use crate::progress::amount;
use crate::{Failure, confirm, connect, luks, print, signals};

pub(crate) fn run(args: &VerifyArgs) -> Result<(), Failure> {
    let url = connect::url(&args.url)?;
    if args.check {
        return judge(args, &url);
    }
    confirm::ask(args.write, &format!("this overwrites what is on {url}"))?;
    let journal = args.journal.as_deref().map(|path| create(path, args.sync_journal)).transpose()?;
    let client = connect::client()?;
    let disk = connect::disk(&client, &url)?;
    let medium = luks::decrypted(Arc::new(disk.clone()), args.luks.as_deref(), &url.to_string())?;
    let plan = plan(args, &*medium)?;
    let mut teller = Teller::new()?;
    let _still = signals::StallWatch::after_signal(disk.session())?;
    eprintln!("targe: seed {}", plan.seed);
    let report = verify(&*medium, &plan, journal, &mut |progress| teller.tell(progress));
    teller.end();
    let report = report.map_err(|why| refused(&url, &why))?;
    tell(args, &url, &disk, &report)
}

/// Judges the LUN by the journal of an earlier run.
fn judge(args: &VerifyArgs, url: &Url) -> Result<(), Failure> {
    let Some(path) = &args.journal else {
        return Err(Failure::Misused("--check: name the journal with --journal".to_owned()));
    };
    let journal =
        std::fs::read(path).map_err(|error| Failure::Misused(format!("{}: {error}", path.display())))?;
    let client = connect::client()?;
    let disk = connect::disk(&client, url)?;
    let mut teller = Teller::new()?;
    let _still = signals::StallWatch::after_signal(disk.session())?;
    let medium = luks::decrypted(Arc::new(disk.clone()), args.luks.as_deref(), &url.to_string())?;
    let report = check(&*medium, &journal, args.power_lost, args.stop_on_corruption, &mut |progress| {
        teller.tell(progress)
    });
    teller.end();
    let report = report.map_err(|why| match why {
        JournalError::NotOne => Failure::Misused(format!("{}: {why}", path.display())),
        JournalError::Refused(_) => {
            Failure::Failed(format!("{}: {}", path.display(), connect::error_chain(&why)))
        }
    })?;
    tell(args, url, &disk, &report)
}

fn create(path: &std::path::Path, synced: bool) -> Result<Journal, Failure> {
    let file = std::fs::File::create_new(path);
    let file = file.map_err(|error| Failure::Misused(format!("--journal {}: {error}", path.display())))?;
    Ok(Journal::new(file, synced))
}

fn plan(args: &VerifyArgs, disk: &dyn SharedStore) -> Result<VerifyPlan, Failure> {
    let pattern = args.pattern.as_deref().map(|name| {
        let names = || Pattern::ALL.map(Pattern::name).join(", ");
        Pattern::by_name(name)
            .ok_or_else(|| Failure::Misused(format!("--pattern {name}: known patterns are {}", names())))
    });
    let profile = disk.capabilities();
    let (from, len) = match args.range {
        Some((from, len)) => (from, Some(len)),
        None => (0, None),
    };
    let unit = match args.unit {
        Some(unit) => usize::try_from(unit).unwrap_or(usize::MAX),
        None => VerifyPlan::unit_for(len.unwrap_or(profile.len), profile.logical_block_len),
    };
    Ok(VerifyPlan {
        from,
        len,
        unit,
        io_max: usize::try_from(args.bs).unwrap_or(usize::MAX).max(unit),
        depth: usize::try_from(args.depth).unwrap_or(1),
        work: match args.count {
            _ if args.full => Work::Whole,
            Some(count) => Work::Random(Until::Drawn(count)),
            None => Work::Random(Until::Passed(args.time)),
        },
        pattern: pattern.transpose()?,
        stop_on_corruption: args.stop_on_corruption,
        zeroes: !args.no_zeroes,
        compare: !args.no_compare,
        errors_max: args.errors,
        seed: args.seed.unwrap_or_else(seed),
    })
}

/// Returns a seed from the clock, so that runs have different seeds as far as the clock differs.
fn seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap_or(0)
}

fn refused(url: &Url, why: &RunError) -> Failure {
    match why {
        RunError::ReadOnly | RunError::Journal(_) => {
            Failure::Failed(format!("{url}: {}", connect::error_chain(why)))
        }
        why => Failure::Misused(format!("{url}: {}", connect::error_chain(why))),
    }
}

/// Shows the progress, and handles the signals that end the run.
struct Teller {
    shown: bool,
    ends: Arc<AtomicBool>,
}

impl Teller {
    fn new() -> Result<Self, Failure> {
        Ok(Self { shown: std::io::stderr().is_terminal(), ends: signals::flag()? })
    }

    fn tell(&self, progress: &Progress) -> Control {
        if self.shown {
            eprint!("\r\x1b[K{}", line(progress));
            let _ = std::io::stderr().flush();
        }
        if self.ends.load(Ordering::Relaxed) { Control::Stop } else { Control::Continue }
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

fn line(progress: &Progress) -> String {
    let stage = match progress.stage {
        Stage::Writing => "writing",
        Stage::Verifying => "verifying",
    };
    let percent =
        (u128::from(progress.done) * 100).checked_div(u128::from(progress.total)).unwrap_or(0).min(100);
    let mut text = format!("{stage} {percent:3} %, {:.0} s", progress.elapsed.as_secs_f64());
    for (count, what) in [(progress.wrong, "WRONG BLOCKS"), (progress.errors, "errors")] {
        if count > 0 {
            // Writing to a string does not fail.
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

/// Logs out. Returns the damage that the session detected and the repairs that it made, up to the last PDU.
fn repairs(disk: &Disk) -> Value {
    let gone = disk.session().log_out();
    // A session that ended by itself is reported, too.
    let _ = block_on(gone);
    let Ok(stats) = block_on(disk.session().stats()) else { return Value::Null };
    json!({
        "commands": stats.tasks,
        "header_digest_errors": stats.header_digest_errors,
        "data_digest_errors": stats.data_digest_errors,
        "data_snacks": stats.data_snacks,
        "status_snacks": stats.status_snacks,
        "retries": stats.retries,
        "rejects": stats.rejects,
        "reassigns": stats.reassigns,
        "replays": stats.replays,
        "logins": stats.logins,
        "connections_lost": stats.connections_lost,
        "sessions_rebuilt": stats.sessions_rebuilt,
        "sessions_continued": stats.sessions_continued,
    })
}

fn tell(args: &VerifyArgs, url: &Url, disk: &Disk, report: &VerifyReport) -> Result<(), Failure> {
    let verdict = if report.wrong.total() > 0 {
        Some(format!("{} wrong blocks", report.wrong.total()))
    } else if report.errors > 0 {
        Some(connect::with_loss(disk.session(), format!("{} operations failed", report.errors)))
    } else if !report.complete {
        Some("the run ended before everything was verified".to_owned())
    } else {
        None
    };
    if args.json {
        let mut object = json!(report);
        if let Value::Object(object) = &mut object {
            object.insert("url".to_owned(), json!(url.to_string()));
            object.insert("sound".to_owned(), json!(report.is_sound()));
            object.insert("session".to_owned(), repairs(disk));
        }
        print(&format!("{object}\n"));
    } else {
        print(&show(report));
    }
    match verdict {
        None => Ok(()),
        Some(what) => Err(Failure::Failed(format!("{url}: {what}"))),
    }
}

fn show(report: &VerifyReport) -> String {
    let mut text = String::new();
    let bytes = |count: u64| amount(crate::progress::to_f64(count));
    let took = Duration::from_secs_f64(report.seconds);
    let mut row = |what: &str| {
        let _ = writeln!(text, "{what}");
    };
    row(&format!(
        "{} written in {} writes, {} read back",
        bytes(report.written_bytes),
        report.writes,
        bytes(report.read_bytes)
    ));
    if report.zeroed + report.freed > 0 {
        row(&format!("{} ranges zeroed, {} unmapped", report.zeroed, report.freed));
    }
    if report.compared + report.differed > 0 {
        let (same, other) = (report.compared, report.differed);
        row(&format!("{same} COMPARE AND WRITE commands that matched, {other} that did not"));
    }
    row(&format!(
        "{} of {} verified, {:.1} s in all",
        bytes(report.verified_bytes),
        bytes(report.range_bytes),
        took.as_secs_f64()
    ));
    let wrong = &report.wrong;
    for (count, what) in [
        (wrong.lost, "lost"),
        (wrong.stale, "stale"),
        (wrong.torn, "torn"),
        (wrong.misdirected, "misdirected"),
        (wrong.foreign, "foreign"),
        (wrong.garbled, "garbled"),
        (wrong.unsubmitted, "unsubmitted"),
        (report.errors, "operations failed"),
    ] {
        if count > 0 {
            row(&format!("{count} {what}"));
        }
    }
    report.findings.iter().chain(&report.error_texts).for_each(|finding| row(finding));
    if report.is_sound() {
        row("every block is right");
    }
    text
}
