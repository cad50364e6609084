//! The rates between two samples of the daemon's counters.

use std::collections::BTreeMap;
use std::time::Instant;

use daemon::admin::api::{FrameSession, Session, Sessions, Status};
use daemon::admin::lun_api::{Lun, Luns};
use serde::Serialize;

/// The counters of the daemon at one time.
#[derive(Debug)]
pub(crate) struct Sample {
    at: Instant,
    status: Status,
    luns: Vec<Lun>,
    sessions: Vec<SessionCounters>,
}

/// The counters of a session, whatever its transport.
#[derive(Clone, Debug)]
struct SessionCounters {
    initiator: String,
    isid: String,
    /// `None` for a discovery session.
    target: Option<String>,
    tsih: Option<u16>,
    from: String,
    tasks: u32,
    commands: u64,
    read_bytes: u64,
    write_bytes: u64,
    repaired: u64,
}

impl Sample {
    pub(crate) fn new(at: Instant, status: Status, luns: Luns, sessions: Sessions) -> Self {
        let iscsi = sessions.sessions.into_iter().map(SessionCounters::from);
        let frames = sessions.hyperscsi.into_iter().map(SessionCounters::from);
        Self { at, status, luns: luns.luns, sessions: iscsi.chain(frames).collect() }
    }
}

impl From<Session> for SessionCounters {
    fn from(session: Session) -> Self {
        let repairs = session.repairs;
        Self {
            initiator: session.initiator,
            isid: session.isid,
            target: session.target,
            tsih: Some(session.tsih),
            from: session.peer.unwrap_or_default(),
            tasks: session.tasks,
            commands: session.commands,
            read_bytes: session.data_in_bytes,
            write_bytes: session.data_out_bytes,
            repaired: repairs.header_digest_errors
                + repairs.data_digest_errors
                + repairs.snacks
                + repairs.recovery_r2ts
                + repairs.reassigns,
        }
    }
}

impl From<FrameSession> for SessionCounters {
    fn from(session: FrameSession) -> Self {
        let path = session.paths.iter().find(|path| path.up).or(session.paths.first());
        Self {
            from: path.map_or_else(String::new, |path| format!("{}%{}", path.peer, path.interface)),
            initiator: session.initiator,
            isid: session.isid,
            target: Some(session.target),
            tsih: None,
            tasks: session.tasks,
            commands: session.commands,
            read_bytes: session.data_in_bytes,
            write_bytes: session.data_out_bytes,
            repaired: session.repairs.frames_lost + session.repairs.damaged_frames,
        }
    }
}

/// Rates, each for one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rate {
    pub(crate) commands: f64,
    pub(crate) read_bytes: f64,
    pub(crate) write_bytes: f64,
}

impl Rate {
    /// Returns the rates between two states of the same counters: commands, bytes read, bytes written. `None`
    /// if they began anew in between.
    fn between(before: [u64; 3], now: [u64; 3], seconds: f64) -> Option<Self> {
        let [commands, read_bytes, write_bytes] = [0, 1, 2].map(|at| {
            let (was, is): (u64, u64) = (*before.get(at)?, *now.get(at)?);
            is.checked_sub(was).map(|grown| as_float(grown) / seconds)
        });
        Some(Self { commands: commands?, read_bytes: read_bytes?, write_bytes: write_bytes? })
    }

    /// Returns the sum of both.
    fn with(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            read_bytes: self.read_bytes + other.read_bytes,
            write_bytes: self.write_bytes + other.write_bytes,
        }
    }

    /// Returns the bytes that are read and written.
    pub(crate) fn bytes(&self) -> f64 {
        self.read_bytes + self.write_bytes
    }
}

/// What a LUN does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct LunRate {
    pub(crate) target: String,
    pub(crate) lun: u16,
    pub(crate) medium: String,
    /// `None` for a LUN that was not there before.
    pub(crate) rate: Option<Rate>,
    /// How long its reads took in the mean, in microseconds; `None` if there were none.
    pub(crate) read_us: Option<f64>,
    /// The same of its writes.
    pub(crate) write_us: Option<f64>,
    pub(crate) medium_errors: u64,
    pub(crate) not_ready: Option<String>,
}

/// What a session does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SessionRate {
    pub(crate) initiator: String,
    pub(crate) isid: String,
    pub(crate) target: Option<String>,
    pub(crate) from: String,
    pub(crate) tasks: u32,
    /// `None` for a session that was not there before.
    pub(crate) rate: Option<Rate>,
    /// What was lost or damaged on the network and repaired, since the login.
    pub(crate) repaired: u64,
}

/// What the daemon does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Rates {
    pub(crate) uptime_s: u64,
    pub(crate) seconds: f64,
    pub(crate) session_count: u32,
    pub(crate) medium_errors: u64,
    pub(crate) not_ready: u32,
    pub(crate) bugs: u64,
    /// Of every unit, once.
    pub(crate) total: Rate,
    pub(crate) luns: Vec<LunRate>,
    pub(crate) sessions: Vec<SessionRate>,
}

impl Rates {
    pub(crate) fn between(before: &Sample, now: &Sample) -> Self {
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64().max(1e-6);
        let of_lun = |lun: &Lun| [lun.commands, lun.read_bytes, lun.write_bytes];
        let known: BTreeMap<(&str, u16, &str), &Lun> =
            before.luns.iter().map(|lun| ((&*lun.target, lun.lun, &*lun.naa), lun)).collect();
        let was = |lun: &Lun| known.get(&(&*lun.target, lun.lun, &*lun.naa)).copied();
        let rate_of = |lun: &Lun| Rate::between(of_lun(was(lun)?), of_lun(lun), seconds);
        let mean = |lun: &Lun, op: &str| mean_us(class(was(lun)?, op)?, class(lun, op)?);
        let luns: Vec<LunRate> = now
            .luns
            .iter()
            .map(|lun| LunRate {
                read_us: mean(lun, "read"),
                write_us: mean(lun, "write"),
                target: lun.target.clone(),
                lun: lun.lun,
                medium: lun.medium.clone(),
                rate: rate_of(lun),
                medium_errors: lun.medium_errors,
                not_ready: lun.not_ready.clone(),
            })
            .collect();
        // A unit that several targets export counts once.
        let units: BTreeMap<&str, Rate> =
            now.luns.iter().filter_map(|lun| Some((&*lun.naa, rate_of(lun)?))).collect();
        let total = units.into_values().fold(Rate::default(), Rate::with);
        let of_session = |one: &SessionCounters| [one.commands, one.read_bytes, one.write_bytes];
        let key =
            |one: &SessionCounters| (one.initiator.clone(), one.isid.clone(), one.target.clone(), one.tsih);
        let former: BTreeMap<_, [u64; 3]> =
            before.sessions.iter().map(|one| (key(one), of_session(one))).collect();
        let sessions = now.sessions.iter().map(|one| SessionRate {
            initiator: one.initiator.clone(),
            isid: one.isid.clone(),
            target: one.target.clone(),
            from: one.from.clone(),
            tasks: one.tasks,
            rate: former.get(&key(one)).and_then(|was| Rate::between(*was, of_session(one), seconds)),
            repaired: one.repaired,
        });
        Self {
            uptime_s: now.status.uptime_s,
            seconds,
            session_count: now.status.sessions,
            medium_errors: now.status.medium_errors,
            not_ready: now.status.not_ready,
            bugs: now.status.bugs,
            total,
            sessions: sessions.collect(),
            luns,
        }
    }
}

/// Returns the counters of a class of commands: their number, and how long all took together.
fn class(lun: &Lun, op: &str) -> Option<(u64, u64)> {
    let found = lun.operations.iter().find(|one| one.op == op)?;
    Some((found.commands, found.total_us))
}

/// Returns how long the commands between two samples took in the mean.
fn mean_us(before: (u64, u64), now: (u64, u64)) -> Option<f64> {
    let commands = now.0.checked_sub(before.0).filter(|commands| *commands > 0)?;
    Some(as_float(now.1.checked_sub(before.1)?) / as_float(commands))
}

/// Converts a counter for display.
#[expect(clippy::cast_precision_loss, reason = "a rate is shown with three digits")]
fn as_float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_growth_in_a_second() {
        let rate = Rate::between([10, 0, 4096], [30, 8192, 4096], 2.0);
        assert_eq!(rate, Some(Rate { commands: 10.0, read_bytes: 4096.0, write_bytes: 0.0 }));
        assert_eq!(rate.unwrap().bytes(), 4096.0);
    }

    #[test]
    fn the_mean_latency_is_that_of_the_commands_in_between() {
        assert_eq!(mean_us((10, 1000), (14, 1200)), Some(50.0));
        assert_eq!(mean_us((10, 1000), (10, 1000)), None);
        assert_eq!(mean_us((10, 1000), (11, 900)), None);
    }

    #[test]
    fn counters_that_began_anew_have_no_rate() {
        assert_eq!(Rate::between([10, 0, 0], [9, 5, 5], 1.0), None);
    }
}
