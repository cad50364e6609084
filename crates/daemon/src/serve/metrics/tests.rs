//! Tests of the metrics: their names, their text, and the table in the documentation.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::exposition::{open_metrics, plain_text};
use super::*;
use crate::config::{Config, Environment, Flags};
use crate::scratch::Scratch;
use crate::serve::media::served::MediumHealth;
use crate::serve::placement::Owners;
use crate::serve::reactor_shard::counts::ReactorCounts;
use crate::serve::reactor_shard::{HyperScsiReport, UnitView};
use crate::serve::runtime_config::{IdAllocator, RuntimeConfig};
use backends::store::FileSpace;
use device::drain::Drain;
use device::stats::UnitStats;
use target::target::UnitReport;
use target::units::UnitId;

fn runtime(text: &str) -> RuntimeConfig {
    let scratch = Scratch::new();
    let file = scratch.path().join("targe.toml");
    let environment = Environment::for_tests(scratch.path());
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let loaded = Config::load_text_without_media(&flags, &environment, &file, text, None);
    let config = loaded.map_err(|report| report.to_string()).unwrap().config;
    let mut numbers = IdAllocator::default();
    let listening: Vec<_> = config.portals.iter().map(|portal| portal.listen).collect();
    numbers.assign_ports_and_records(&config).unwrap();
    numbers.runtime_config(Arc::new(config), &listening, &Owners::new())
}

/// Returns the counters of a daemon each of whose units has executed `commands` commands that read 4 KiB.
fn snapshot(text: &str, commands: u64) -> Snapshot {
    let runtime = runtime(text);
    let mut latencies = Latencies { sum_ns: commands * 1_000, ..Latencies::default() };
    latencies.buckets[0] = commands;
    let mut stats = UnitStats { commands, read_bytes: commands * 4096, ..UnitStats::default() };
    (stats.latencies[0], stats.sense_keys[6]) = (latencies, 1);
    let view = |unit: UnitId| UnitView {
        report: UnitReport {
            unit,
            stats,
            capacity: 1 << 20,
            not_ready: None,
            medium_present: true,
            removal_prevented: false,
            drain: Drain::No,
            has_failed_flush: false,
        },
        bytes: 1 << 20,
        health: MediumHealth::default(),
        not_ready: None,
    };
    let units = runtime.units(0).map(|(id, ..)| view(id)).collect();
    let hyperscsi = HyperScsiReport {
        stats: Default::default(),
        handshakes: Default::default(),
        paths: Default::default(),
    };
    let reactor = ReactorCounts {
        index: 0,
        iscsi: Default::default(),
        hyperscsi,
        units,
        sessions: Vec::new(),
        session_names: vec![shard::session_counts::SessionName {
            target: "iqn.2001-04.com.example:a".to_owned(),
            initiator: "a\"b\\c\nd".to_owned(),
            hyperscsi: false,
        }],
        data_bytes: 0,
        interfaces_up: Vec::new(),
    };
    Snapshot {
        reactors: vec![reactor],
        drivers: vec![Default::default()],
        runtime,
        started: UNIX_EPOCH + Duration::from_secs(1_795_206_412),
        generation: 1,
        reloads: 0,
        reload_failure: None,
        late: Default::default(),
        panics: 0,
        tls: Default::default(),
        log_lines_dropped: 0,
        memory_max: 256 << 20,
    }
}

const SHARED: &str = r#"
[[lun]]
name = "data"
type = "ram"
size = "1M"
[[target]]
name = "iqn.2001-04.com.example:b"
[[target.lun]]
share = "data"
lun = 3
[[target.lun]]
type = "null"
size = "2M"
[[target]]
name = "iqn.2001-04.com.example:a"
[[target.lun]]
share = "data"
"#;

#[test]
fn a_medium_that_has_failed_is_a_problem_and_a_metric() {
    let mut snapshot = snapshot(SHARED, 1);
    assert!(snapshot.problems().is_empty());
    let [first, ..] = &mut *snapshot.reactors[0].units else { panic!("no unit") };
    first.health.failure = Some("a write of 512 bytes at byte 0 failed: no space left".to_owned());
    let problem = "its medium has failed, until that succeeds or targe lun accept-loss: a write of 512 bytes at byte 0 \
                   failed: no space left";
    let problems = snapshot.problems();
    assert!(!problems.is_empty() && problems.iter().all(|told| told.ends_with(problem)), "{problems:?}");
    let text = open_metrics(&snapshot).unwrap();
    assert_eq!(sum(&text, "targe_lun_medium_failed", "lun=\"3\""), 1, "{text}");
}

/// Returns the sum of the samples whose line begins with `name` and holds `label`.
fn sum(text: &str, name: &str, label: &str) -> u64 {
    let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")) && line.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn every_metric_stands_once_with_type_help_and_samples_under_its_name() {
    let snapshot = snapshot(SHARED, 5);
    let text = open_metrics(&snapshot).unwrap();
    assert!(text.ends_with("\n# EOF\n"));
    let mut lines = text.lines();
    for family in families(&snapshot) {
        let unit = if family.full_name().ends_with("_total") { "_total" } else { "_info" };
        let full = family.full_name();
        let name = if matches!(family.kind, Kind::Counter | Kind::Info) {
            full.strip_suffix(unit).unwrap().to_owned()
        } else {
            full.clone()
        };
        assert_eq!(lines.next().unwrap(), format!("# HELP {name} {}", family.help()));
        assert!(lines.next().unwrap().starts_with(&format!("# TYPE {name} ")), "{name}");
        if family.unit.is_some() {
            assert!(lines.next().unwrap().starts_with(&format!("# UNIT {name} ")), "{name}");
        }
        let of_a_sample = if family.kind == Kind::Histogram { 20 } else { 1 };
        for _ in 0..family.samples.len() * of_a_sample {
            let line = lines.next().unwrap();
            assert!(line.starts_with(&full), "{line} is no sample of {full}");
        }
        for sample in &family.samples {
            assert_eq!(sample.labels.len(), family.labels.len(), "{full}");
        }
    }
    assert_eq!((lines.next(), lines.next()), (Some("# EOF"), None));
    assert!(text.contains(r#"initiator="a\"b\\c\nd""#), "a peer's text is escaped");
}

#[test]
fn a_unit_is_counted_once_however_many_luns_lead_to_it() {
    let text = open_metrics(&snapshot(SHARED, 5)).unwrap();
    assert_eq!(sum(&text, "targe_lun_commands_total", "op=\"read\""), 2 * 5);
    assert_eq!(sum(&text, "targe_lun_data_bytes_total", "op=\"read\""), 2 * 5 * 4096);
    assert_eq!(sum(&text, "targe_lun_check_conditions_total", "unit_attention"), 2);
    assert_eq!(sum(&text, "targe_lun_info", "serial="), 3, "all three LUNs are described");
}

#[test]
fn errors_that_alerts_watch_have_samples_before_the_first_one() {
    let text = open_metrics(&snapshot(SHARED, 0)).unwrap();
    for key in ["medium_error", "hardware_error"] {
        let label = format!("sense_key=\"{key}\"}} 0");
        let lines = text.lines().filter(|line| line.starts_with("targe_lun_check_conditions_total{"));
        assert_eq!(lines.filter(|line| line.ends_with(&label)).count(), 2, "{key}");
    }
    assert!(!text.contains("sense_key=\"miscompare\""));
}

#[test]
fn a_device_that_commands_are_passed_to_has_no_size() {
    let sg = "[[target]]\nname = \"iqn.2001-04.com.example:c\"\n[[target.lun]]\ntype = \"sg\"\npath = \"/dev/sg0\"\n";
    let text = open_metrics(&snapshot(&format!("{SHARED}{sg}"), 5)).unwrap();
    let of = |name: &str| text.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
    assert_eq!((of("targe_lun_size_bytes"), of("targe_lun_ready")), (2, 3));
}

#[test]
fn what_limits_delay_is_counted() {
    let mut snapshot = snapshot(SHARED, 5);
    let stats = &mut snapshot.reactors[0].units[0].report.stats;
    (stats.waiting, stats.delays.delayed, stats.delays.delayed_ns) = (4, 7, 2_500_000_000);
    let text = open_metrics(&snapshot).unwrap();
    assert_eq!(sum(&text, "targe_lun_waiting_commands", ""), 4);
    assert_eq!(sum(&text, "targe_lun_delayed_commands_total", ""), 7);
    let samples = text.lines().filter(|line| line.starts_with("targe_lun_delay_seconds_total{"));
    assert_eq!(samples.filter(|line| line.ends_with(" 2.5")).count(), 1, "{text}");
}

#[test]
fn the_number_of_series_is_bounded_and_the_sum_stays_right() {
    let mut config = "[[target]]\nname = \"iqn.2001-04.com.example:many\"\n".to_owned();
    for lun in 0..1200 {
        let _ =
            write!(config, "[[target.lun]]\ntype = \"null\"\nsize = \"{}M\"\nserial = \"s{lun}\"\n", lun + 1);
    }
    let text = open_metrics(&snapshot(&config, 3)).unwrap();
    assert_eq!(sum(&text, "targe_lun_commands_total", "op=\"read\""), 1200 * 3);
    assert_eq!(sum(&text, "targe_lun_commands_total", "lun=\"other\",op=\"read\""), 200 * 3);
    let series = text.lines().filter(|line| line.starts_with("targe_lun_size_bytes{")).count();
    assert_eq!(series, 1001);
}

#[test]
fn the_older_format_has_the_same_samples_and_its_own_names_of_types() {
    let text = open_metrics(&snapshot(SHARED, 5)).unwrap();
    let plain = plain_text(&text);
    let samples = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(&plain), samples(&text));
    assert!(plain.contains("# TYPE targe_lun_commands_total counter\n"), "{plain}");
    assert!(plain.contains("# TYPE targe_build_info gauge\n"), "{plain}");
    assert!(!plain.contains("# UNIT") && !plain.contains("# EOF"));
}

#[test]
fn a_disk_that_is_withheld_is_a_problem_and_a_failed_reload_a_warning() {
    let mut snapshot = snapshot(SHARED, 0);
    assert_eq!((snapshot.problems().len(), snapshot.warnings().len()), (0, 0));
    snapshot.reactors[0].units[0].health.withheld = Some("the file ends before the disk does".to_owned());
    snapshot.reload_failure = Some("line 3: no".to_owned());
    let problems = snapshot.problems();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].ends_with(": the file ends before the disk does"), "{problems:?}");
    assert_eq!(snapshot.warnings(), ["the last reload was not applied: line 3: no"]);
    snapshot.reactors[0].units.clear();
    assert_eq!(snapshot.problems().len(), 3);
}

/// The lines between which the generated table of the page stands.
const MARKS: (&str, &str) = ("<!-- metrics: generated -->\n", "<!-- end of metrics -->\n");

#[test]
fn the_page_has_the_table_of_these_metrics() {
    let mut table = "| metric | type | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for family in families(&snapshot(SHARED, 0)) {
        let kind = format!("{:?}", family.kind).to_lowercase();
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ =
            writeln!(table, "| `{}` | {kind} | {} | {} |", family.full_name(), labels.join(", "), family.doc);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/serve.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(MARKS.0).expect("docs/serve.md has a table of metrics");
    let (printed, after) = rest.split_once(MARKS.1).expect("the table of metrics ends");
    if std::env::var_os("TARGE_BLESS").is_some() {
        std::fs::write(path, format!("{before}{}{table}{}{after}", MARKS.0, MARKS.1)).unwrap();
    } else {
        assert_eq!(printed, table, "run TARGE_BLESS=1 cargo test -p targe-daemon");
    }
}

#[test]
fn no_two_samples_have_the_same_labels_although_two_file_systems_share_a_directory() {
    let mut snapshot = snapshot(SHARED, 1);
    for (system, view) in (5..).zip(&mut snapshot.reactors[0].units) {
        let space = FileSpace { system, whole: 1000, free: 90, allocated: 100, promised: 200 };
        view.health.space = Some((PathBuf::from(format!("/srv/{system}.img")), space));
    }
    let text = open_metrics(&snapshot).unwrap();
    for text in [plain_text(&text), text] {
        let mut seen = std::collections::BTreeSet::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (sample, _) = line.rsplit_once(' ').unwrap();
            assert!(seen.insert(sample), "twice: {sample}");
        }
        assert!(
            text.contains("targe_file_system_free_bytes{directory=\"/srv\",device=\"0:5\"} 90\n"),
            "{text}"
        );
        assert!(
            text.contains("targe_file_system_free_bytes{directory=\"/srv\",device=\"0:6\"} 90\n"),
            "{text}"
        );
    }
}
