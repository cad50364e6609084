//! The refusal of a change that takes a disk or a target from initiators that use it.

use daemon::admin::api::Sessions;
use daemon::admin::change_api::{Plan, Subject, What};

/// What an edit takes from sessions besides what its plan shows.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// A target that gets its first access list, and the initiators in it: all others lose it.
    pub(crate) first_list: Option<(String, Vec<String>)>,
}

/// Returns the target and the initiator of each session.
pub(super) fn users(sessions: &Sessions) -> Vec<(&str, &str)> {
    let iscsi = sessions.sessions.iter();
    let iscsi = iscsi.filter_map(|session| Some((session.target.as_deref()?, session.initiator.as_str())));
    let frames = sessions.hyperscsi.iter();
    iscsi.chain(frames.map(|session| (session.target.as_str(), session.initiator.as_str()))).collect()
}

/// Refuses a change that takes something from a session.
///
/// # Errors
/// The sentence that names the initiators.
pub(super) fn refuse(plan: &Plan, guard: &Guard, users: &[(&str, &str)]) -> Result<(), String> {
    for change in &plan.changes {
        let target = match (change.subject, change.what) {
            (Subject::Target, What::Removed) => Some(change.name.as_str()),
            (Subject::Lun, What::Removed | What::Replaced) => {
                change.name.rsplit_once('/').map(|(target, _)| target)
            }
            _ => None,
        };
        if let Some(target) = target {
            refuse_used(target, users, |_| true)?;
        }
    }
    match &guard.first_list {
        Some((target, listed)) => {
            refuse_used(target, users, |user| !listed.iter().any(|name| name.eq_ignore_ascii_case(user)))
        }
        None => Ok(()),
    }
}

fn refuse_used(target: &str, users: &[(&str, &str)], loses: impl Fn(&str) -> bool) -> Result<(), String> {
    let is_it = |(known, user): &&(&str, &str)| known.eq_ignore_ascii_case(target) && loses(user);
    let mut users: Vec<&str> = users.iter().filter(is_it).map(|(_, user)| *user).collect();
    users.sort_unstable();
    users.dedup();
    if users.is_empty() {
        return Ok(());
    }
    let shown = users.iter().take(5).copied().collect::<Vec<_>>().join(", ");
    let more = match users.len().saturating_sub(5) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(format!("{target} is used by {shown}{more}; log them out first, or say --force"))
}

#[cfg(test)]
mod tests {
    use daemon::admin::change_api::{Effective, PlannedChange};

    use super::*;

    fn plan(subject: Subject, name: &str, what: What) -> Plan {
        let change = PlannedChange {
            subject,
            name: name.to_owned(),
            what,
            details: Vec::new(),
            effective: Effective::Now,
        };
        Plan {
            file: String::new(),
            revision: String::new(),
            base: None,
            generation: 0,
            changes: vec![change],
            warnings: Vec::new(),
            refusal: None,
            unapplied: Vec::new(),
        }
    }

    #[test]
    fn what_takes_something_from_a_session_is_refused() {
        let users = [("iqn.t", "iqn.b"), ("iqn.t", "iqn.a"), ("iqn.t", "iqn.a"), ("iqn.u", "iqn.c")];
        let refuse = |subject, name, what| refuse(&plan(subject, name, what), &Guard::default(), &users);
        let told = Err("iqn.t is used by iqn.a, iqn.b; log them out first, or say --force".to_owned());
        assert_eq!(refuse(Subject::Target, "iqn.t", What::Removed), told);
        assert_eq!(refuse(Subject::Lun, "iqn.t/0", What::Removed), told);
        assert_eq!(refuse(Subject::Lun, "iqn.t/0", What::Replaced), told);
        for (subject, name, what) in [
            (Subject::Target, "iqn.v", What::Removed),
            (Subject::Target, "iqn.t", What::Changed),
            (Subject::Lun, "iqn.t/0", What::Changed),
            (Subject::Lun, "iqn.t/1", What::Added),
        ] {
            assert_eq!(refuse(subject, name, what), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_first_access_list_takes_the_target_from_the_others() {
        let users = [("iqn.t", "iqn.a"), ("iqn.t", "iqn.b")];
        let plan = plan(Subject::Access, "iqn.t", What::Changed);
        let with = |listed: &[&str]| {
            let listed = listed.iter().map(|name| (*name).to_owned()).collect();
            refuse(&plan, &Guard { first_list: Some(("iqn.T".to_owned(), listed)) }, &users)
        };
        assert!(with(&["iqn.a"]).unwrap_err().contains("used by iqn.b;"));
        assert_eq!(with(&["iqn.A", "iqn.b"]), Ok(()));
    }
}
