//! The refusal of a change that takes a disk or a target from initiators that use it.

use daemon::admin::api::Sessions;
use daemon::admin::change_api::{Plan, Subject};
use daemon::config::NamePattern;

/// What an edit takes from sessions besides what its plan shows.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// The target that gets its first access list.
    pub(crate) first_list: Option<FirstList>,
}

/// The first access list of a target: initiators that it does not admit to all LUNs lose something.
#[derive(Debug)]
pub(crate) struct FirstList {
    /// The target.
    pub(crate) target: String,
    /// The initiators that lose nothing.
    pub(crate) listed: Vec<NamePattern>,
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
    for change in plan.changes.iter().filter(|change| change.disruptive) {
        let target = match change.subject {
            Subject::Target | Subject::Access => Some(change.name.as_str()),
            Subject::Lun => change.name.rsplit_once('/').map(|(target, _)| target),
            Subject::Portal | Subject::Setting => None,
        };
        if let Some(target) = target {
            refuse_used(target, users, |_| true)?;
        }
    }
    match &guard.first_list {
        Some(FirstList { target, listed }) => {
            refuse_used(target, users, |user| !listed.iter().any(|pattern| pattern.overlaps(user)))
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
    use daemon::admin::change_api::{Effective, PlannedChange, What};

    use super::*;

    fn plan(subject: Subject, name: &str, disruptive: bool) -> Plan {
        let change = PlannedChange {
            subject,
            name: name.to_owned(),
            what: What::Changed,
            details: Vec::new(),
            effective: Effective::Now,
            disruptive,
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
    fn a_change_that_takes_something_from_a_session_is_refused() {
        let users = [("iqn.t", "iqn.b"), ("iqn.t", "iqn.a"), ("iqn.t", "iqn.a"), ("iqn.u", "iqn.c")];
        let refuse = |subject, name, takes| refuse(&plan(subject, name, takes), &Guard::default(), &users);
        let told = Err("iqn.t is used by iqn.a, iqn.b; log them out first, or say --force".to_owned());
        for (subject, name) in
            [(Subject::Target, "iqn.t"), (Subject::Access, "iqn.t"), (Subject::Lun, "iqn.t/0")]
        {
            assert_eq!(refuse(subject, name, true), told);
            assert_eq!(refuse(subject, name, false), Ok(()));
        }
        assert_eq!(refuse(Subject::Target, "iqn.v", true), Ok(()));
    }

    #[test]
    fn a_first_access_list_takes_the_target_from_the_others() {
        let users = [("iqn.t", "iqn.a"), ("iqn.t", "iqn.b")];
        let plan = plan(Subject::Access, "iqn.t", false);
        let with = |listed: &[&str]| {
            let listed = listed.iter().map(|name| NamePattern::parse(name).unwrap()).collect();
            let first_list = Some(FirstList { target: "iqn.T".to_owned(), listed });
            refuse(&plan, &Guard { first_list }, &users)
        };
        assert!(with(&["iqn.a"]).unwrap_err().contains("used by iqn.b;"));
        assert!(with(&[]).unwrap_err().contains("used by iqn.a, iqn.b;"));
        assert_eq!(with(&["iqn.A", "iqn.b"]), Ok(()));
        assert_eq!(with(&["iqn.*"]), Ok(()));
    }
}
