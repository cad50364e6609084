//! Displays what a change does.

use std::fmt::Write;
use std::path::Path;

use daemon::admin::change_api::{Effective, Plan, PlannedChange, Subject, What};
use daemon::config::{self, ConfigReport, Revision};
use serde_json::json;

use super::ChangeArgs;
use crate::print;

/// The most sessions that a plan shows; `--json` has all of them.
const SESSIONS_MAX: usize = 20;

/// Prints the differences, and the warnings.
pub(super) fn show(plan: &Plan) {
    for warning in &plan.warnings {
        eprintln!("warning: {warning}");
    }
    print(&in_words(plan));
}

/// Returns the differences, one item below the other.
fn in_words(plan: &Plan) -> String {
    let mut text = String::new();
    for change in &plan.changes {
        let sign = match change.what {
            What::Added => '+',
            What::Removed => '-',
            What::Changed | What::Replaced => '~',
        };
        let subject = match change.subject {
            Subject::Portal => "portal",
            Subject::Target => "target",
            Subject::Lun => "LUN",
            Subject::Access => "access to",
            Subject::Setting => "setting",
        };
        let when = match change.effective {
            Effective::Now => "",
            Effective::NewSessions => " (for sessions that log in from now on)",
            Effective::Restart => " (ONLY AFTER A RESTART of targe)",
        };
        let other = if change.what == What::Replaced { " is another disk" } else { "" };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{sign} {subject} {}{other}{when}", change.name);
        for detail in &change.details {
            let _ = writeln!(text, "    {detail}");
        }
    }
    for session in plan.sessions.iter().take(SESSIONS_MAX) {
        let _ = writeln!(text, "{}", super::busy::line(session));
    }
    if let Some(more) = plan.sessions.len().checked_sub(SESSIONS_MAX).filter(|more| *more > 0) {
        let _ = writeln!(text, "! and {more} more sessions");
    }
    text
}

/// The end of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End<'m> {
    /// It was applied; the daemon says what changed.
    Applied(&'m str),
    /// It was shown, as the operator wanted.
    Trial,
    /// It runs already, except for what waits for a restart.
    Unchanged,
    /// It was written to the file, and no daemon was asked to apply it.
    Written,
    /// It cannot be applied.
    Refused,
}

/// Prints the end of a change: one JSON object, or a sentence.
pub(super) fn end(how: &ChangeArgs, plan: &Plan, end: End<'_>) {
    if how.json {
        let object = json!({
            "file": plan.file,
            "revision": plan.revision,
            "dry_run": how.dry_run,
            "applied": matches!(end, End::Applied(_)),
            "changes": plan.changes,
            "warnings": plan.warnings,
            "sessions": plan.sessions,
            "refusal": plan.refusal,
            "message": if let End::Applied(message) = end { Some(message) } else { None },
        });
        print(&format!("{object:#}\n"));
        return;
    }
    if let End::Applied(message) = end {
        let not_ready = message.split("; ").filter(|part| part.contains(" is not ready: "));
        not_ready.for_each(|part| print(&format!("{part}\n")));
    }
    let restart = plan.changes.iter().filter(|change| change.effective == Effective::Restart).count();
    print(&match (end, plan.changes.len()) {
        (End::Refused, _) => return,
        (_, 0) => "nothing changes\n".to_owned(),
        (End::Applied(_), some) => format!("applied: {}\n", counted(some, restart)),
        (End::Trial, some) => format!("would apply: {}\n", counted(some, restart)),
        (End::Unchanged, some) => format!("nothing to apply now: {}\n", counted(some, restart)),
        (End::Written, some) => format!("written: {}; no daemon was asked to apply it\n", counted(some, 0)),
    });
}

fn counted(changes: usize, restart: usize) -> String {
    let plural = if changes == 1 { "" } else { "s" };
    let waiting = match restart {
        0 => String::new(),
        1 => ", 1 of them after a restart".to_owned(),
        some => format!(", {some} of them after a restart"),
    };
    format!("{changes} change{plural}{waiting}")
}

/// Says which changes of the file were not applied.
pub(super) fn unapplied(plan: &Plan) -> String {
    let mut text = format!(
        "targe: {} has changes that are not applied; run \"targe apply\" first, or undo them:\n",
        plan.file
    );
    for line in &plan.unapplied {
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// Returns the plan of a change to a file alone.
pub(super) fn plan_of_file(
    file: &Path,
    text: &str,
    changes: Vec<config::PlannedChange>,
    report: &ConfigReport,
) -> Plan {
    Plan {
        file: file.display().to_string(),
        revision: Revision::of(text.as_bytes()).to_string(),
        base: None,
        generation: 0,
        changes: changes.into_iter().map(PlannedChange::from).collect(),
        warnings: report.warning_lines().collect(),
        sessions: Vec::new(),
        refusal: None,
        unapplied: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_restart_is_told() {
        let change = |subject, name: &str, effective| PlannedChange {
            subject,
            name: name.to_owned(),
            what: What::Changed,
            details: vec!["a -> b".to_owned()],
            effective,
            disruptive: false,
        };
        let plan = Plan {
            file: "/f".to_owned(),
            revision: String::new(),
            base: None,
            generation: 1,
            changes: vec![
                change(Subject::Access, "iqn.x", Effective::Now),
                change(Subject::Setting, "memory", Effective::Restart),
            ],
            warnings: Vec::new(),
            sessions: Vec::new(),
            refusal: None,
            unapplied: Vec::new(),
        };
        assert_eq!(
            in_words(&plan),
            "~ access to iqn.x\n    a -> b\n~ setting memory (ONLY AFTER A RESTART of targe)\n    a -> b\n"
        );
        assert_eq!(counted(2, 1), "2 changes, 1 of them after a restart");
    }
}
