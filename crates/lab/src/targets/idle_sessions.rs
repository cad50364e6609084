//! What idle sessions cost a target: its memory with none, some and many of them, and the time of their
//! logins.
//!
//! A target is started anew for this, since one that was under load keeps memory that sessions then use. The
//! sessions of a smaller count stay when more log in, so that the memory of every count is compared with the
//! same start. No session sends a command.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use initiator::{Client, Session, block_on};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client_load::run_on;

use super::contestant::{Contestant, Stage};
use super::plan::TargetsPlan;
use super::rival::Rival;
use super::samples::{IdleCost, IdleSessions};

/// How long a target may take to put away what its logins needed.
const SETTLE: Duration = Duration::from_secs(1);

/// The longest that all logins of a target may take. A target that sleeps for a second at each manages a
/// hundred.
const LOGINS_WITHIN: Duration = Duration::from_secs(120);

/// The descriptors of this process beside those of the sessions, and those of each session.
const OTHER_DESCRIPTORS: u64 = 512;
const DESCRIPTORS: u64 = 2;

/// Starts a target and measures it. `number` is its place among the targets that have run.
pub(super) fn measure(
    rival: &Rival,
    stage: &Stage<'_>,
    number: u16,
    plan: &TargetsPlan,
) -> Result<IdleSessions, String> {
    let contestant = Contestant::start(rival, stage, number)?;
    contestant.pause(false);
    std::thread::sleep(SETTLE);
    let mut found = IdleSessions {
        listens_after: contestant.listens_after.as_secs_f64(),
        before: contestant.resident(),
        costs: Vec::new(),
        after: None,
    };
    let counted = run_on(Some(stage.bed), || {
        let client = Client::new().map_err(|why| why.report().to_string())?;
        let (mut sessions, mut spent) = (Vec::new(), Duration::ZERO);
        for count in &plan.idle_sessions {
            let (begun, wanted) = (Instant::now(), usize::try_from(*count).unwrap_or(usize::MAX));
            let result = log_in(&contestant, stage, &client, &mut sessions, (wanted, LOGINS_WITHIN - spent));
            spent = (spent + begun.elapsed()).min(LOGINS_WITHIN);
            let Err(why) = result else {
                std::thread::sleep(SETTLE);
                let cost = IdleCost { logins: spent.as_secs_f64(), resident: contestant.resident() };
                found.costs.push(Ok(cost));
                continue;
            };
            found.costs.push(Err(format!("session {}: {why}", sessions.len() + 1)));
            break;
        }
        // All at once: a target may answer each logout late.
        let logouts: Vec<_> = sessions.iter().map(Session::log_out).collect();
        for logout in logouts {
            // A target that has ended answers nothing.
            let _ = block_on(logout);
        }
        Ok::<_, String>(())
    });
    counted.map_err(|why| why.to_string())??;
    std::thread::sleep(SETTLE);
    found.after = found.costs.iter().all(Result::is_ok).then(|| contestant.resident());
    Ok(found)
}

/// Logs in until there are so many sessions. The error tells why the next one failed.
fn log_in(
    contestant: &Contestant,
    stage: &Stage<'_>,
    client: &Client,
    sessions: &mut Vec<Session>,
    (wanted, within): (usize, Duration),
) -> Result<(), String> {
    let deadline = Instant::now() + within;
    while sessions.len() < wanted {
        if stage.stop.load(Ordering::Relaxed) {
            return Err("the run was stopped".to_owned());
        }
        if Instant::now() >= deadline {
            return Err(format!("the logins took more than {} s", LOGINS_WITHIN.as_secs()));
        }
        let plan = contestant.idle_session().map_err(|why| why.to_string())?;
        sessions.push(block_on(client.log_in_planned(plan)).map_err(|why| why.to_string())?);
    }
    Ok(())
}

/// Raises the limit on open files of this process, and so of the targets that it starts, to what the sessions
/// need, as far as the system lets it.
pub(super) fn raise_file_limit(plan: &TargetsPlan) {
    let Some(most) = plan.idle_sessions.iter().max() else { return };
    let needed = OTHER_DESCRIPTORS + DESCRIPTORS * u64::from(*most);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < needed) {
        let current = Some(limit.maximum.map_or(needed, |maximum| maximum.min(needed)));
        // Where this fails, a login fails, and its error is told.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum: limit.maximum });
    }
}
