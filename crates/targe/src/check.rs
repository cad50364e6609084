//! `targe check`.

use daemon::config::{Config, ConfigError, ConfigReport, Environment, Flags, Loaded, SourceSpan};
use serde_json::{Value, json};

use crate::cli::CheckArgs;
use crate::{Failure, print};

pub(crate) fn run(args: &CheckArgs) -> Result<(), Failure> {
    let around = Environment::from_process().map_err(|error| Failure::Failed(error.to_string()))?;
    let around = Environment { is_of_service: true, ..around.without_daemon(&args.file) };
    let flags =
        Flags { config: Some(args.file.clone()), state_dir: args.state_dir.clone(), ..Flags::default() };
    let (mut report, mut config) = match Config::load(&flags, &around) {
        Ok(Loaded { config, report, .. }) => (report, Some(config)),
        Err(report) => (report, None),
    };
    let headers = config.iter().flat_map(|config| daemon::luks::check_headers(&config.units));
    report.errors.extend(headers.map(|message| ConfigError { span: None, message }));
    if !report.errors.is_empty() {
        config = None;
    }
    if args.json {
        print(&format!("{:#}\n", as_json(&report)));
    } else {
        print(&report.to_string());
    }
    match config {
        Some(config) => {
            if !args.json {
                let count =
                    |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
                let luns = config.targets.iter().map(|target| target.luns.len()).sum();
                let groups = config.hyperscsi.as_ref().map(|frames| (frames.groups.len(), "HyperSCSI group"));
                let portals = Some((config.portals.len(), "portal"));
                let portals = portals.filter(|(n, _)| *n > 0 || groups.is_none());
                let rest = [(config.targets.len(), "target"), (luns, "LUN")];
                let what: Vec<String> =
                    portals.into_iter().chain(groups).chain(rest).map(|(n, noun)| count(n, noun)).collect();
                let what = what.join(", ");
                print(&format!("{}: ok: {what}\n", args.file.display()));
            }
            Ok(())
        }
        None => Err(Failure::Misused(String::new())),
    }
}

fn as_json(report: &ConfigReport) -> Value {
    let list = |mistakes: &std::collections::BTreeSet<ConfigError>| -> Vec<Value> {
        mistakes.iter().map(mistake).collect()
    };
    json!({
        "file": report.file,
        "ok": report.is_clean(),
        "mistakes": list(&report.errors),
        "warnings": list(&report.warnings),
    })
}

fn mistake(mistake: &ConfigError) -> Value {
    let (line, column) = match mistake.span {
        Some(SourceSpan::File { line, column }) => (Some(line), Some(column)),
        _ => (None, None),
    };
    json!({ "line": line, "column": column, "message": mistake.message })
}
