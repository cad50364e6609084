//! The refusal of a change that ends sessions or takes LUNs from them.

use daemon::admin::change_api::AffectedSession;

/// The most sessions that a message names.
const NAMED_MAX: usize = 5;

/// What happens to a session whose portal gets another tag.
const OTHER_TAG: &str = "cannot log in again before it discovers the portal's other tag";

/// Returns the sentence that refuses a change and names the sessions that would lose something; `None` if
/// there are none.
pub(super) fn refusal(sessions: &[AffectedSession]) -> Option<String> {
    let mut text = String::new();
    let mut target = None;
    for session in sessions.iter().take(NAMED_MAX) {
        if target != Some(&session.target) {
            let and = if text.is_empty() { "" } else { "; " };
            text += &format!("{and}{} is used by ", session.target);
        } else {
            text += ", ";
        }
        target = Some(&session.target);
        let kind = if session.logged_in { "session" } else { "without a session now, port" };
        text += &format!("{} ({kind} {}{})", session.initiator, session.isid, lost(session));
    }
    match (sessions.len(), sessions.len().saturating_sub(NAMED_MAX)) {
        (0, _) => return None,
        (_, 0) => {}
        (_, more) => text += &format!(" and {more} more"),
    }
    Some(format!("{text}; log them out first, or say --force"))
}

/// Returns what happens to a session, as one line of the plan.
pub(super) fn line(session: &AffectedSession) -> String {
    let AffectedSession { target, initiator, isid, logged_in, ends, luns, login_needs, other_tag } = session;
    if !logged_in {
        return format!(
            "! port {isid} of {initiator}, which has lost its session with {target}: loses {}",
            numbers(luns)
        );
    }
    let what = match (ends, luns.as_slice(), login_needs) {
        (true, [], _) => "ends".to_owned(),
        (true, luns, _) => format!("ends; it has {}", numbers(luns)),
        (false, [], Some(level)) => format!("cannot log in again without protection \"{level}\""),
        (false, [], None) if *other_tag => OTHER_TAG.to_owned(),
        (false, luns, _) => format!("loses {}", numbers(luns)),
    };
    format!("! session {isid} of {initiator} with {target}: {what}")
}

/// Returns what a session loses, to stand behind its name.
fn lost(session: &AffectedSession) -> String {
    match (session.luns.as_slice(), &session.login_needs) {
        ([], Some(level)) => format!(", which cannot log in again without protection \"{level}\""),
        ([], None) if session.other_tag => format!(", which {OTHER_TAG}"),
        ([], None) => String::new(),
        (luns, _) => format!(", {}", numbers(luns)),
    }
}

/// Returns LUNs as `LUN 0, 1`.
fn numbers(luns: &[u16]) -> String {
    let numbers: Vec<String> = luns.iter().map(ToString::to_string).collect();
    format!("LUN {}", numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(target: &str, initiator: &str, luns: &[u16]) -> AffectedSession {
        AffectedSession {
            target: target.to_owned(),
            initiator: initiator.to_owned(),
            isid: "00023d000001".to_owned(),
            logged_in: true,
            ends: false,
            luns: luns.to_vec(),
            login_needs: None,
            other_tag: false,
        }
    }

    #[test]
    fn the_refusal_names_holders_sessions_and_luns() {
        assert_eq!(refusal(&[]), None);
        let mut below = session("iqn.u", "iqn.c", &[]);
        below.login_needs = Some("encrypt".to_owned());
        assert_eq!(
            refusal(&[session("iqn.t", "iqn.a", &[0, 2]), session("iqn.t", "iqn.b", &[0]), below]).unwrap(),
            "iqn.t is used by iqn.a (session 00023d000001, LUN 0, 2), iqn.b (session 00023d000001, LUN 0); iqn.u is used \
             by iqn.c (session 00023d000001, which cannot log in again without protection \"encrypt\"); log them out \
             first, or say --force"
        );
        let many = vec![session("iqn.t", "iqn.a", &[0]); NAMED_MAX + 2];
        assert!(refusal(&many).unwrap().ends_with("LUN 0) and 2 more; log them out first, or say --force"));
    }

    #[test]
    fn a_line_of_the_plan_tells_what_happens_to_a_session() {
        let mut one = session("iqn.t", "iqn.a", &[1]);
        assert_eq!(line(&one), "! session 00023d000001 of iqn.a with iqn.t: loses LUN 1");
        one.ends = true;
        assert_eq!(line(&one), "! session 00023d000001 of iqn.a with iqn.t: ends; it has LUN 1");
        one = AffectedSession { other_tag: true, ..session("iqn.t", "iqn.a", &[]) };
        let told = "! session 00023d000001 of iqn.a with iqn.t: cannot log in again before it discovers the portal's other tag";
        assert_eq!(line(&one), told);
    }

    #[test]
    fn a_host_that_lost_its_session_lately_is_named_like_one_with_a_session() {
        let one = AffectedSession { logged_in: false, ..session("iqn.t", "iqn.a", &[0]) };
        assert_eq!(
            line(&one),
            "! port 00023d000001 of iqn.a, which has lost its session with iqn.t: loses LUN 0"
        );
        assert_eq!(
            refusal(&[one]).unwrap(),
            "iqn.t is used by iqn.a (without a session now, port 00023d000001, LUN 0); log them out first, or say --force"
        );
    }
}
