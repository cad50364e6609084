//! Makes the responses that the daemon returns over the admin socket.

mod counters;
mod events;
mod hyperscsi_api;
mod state_facts;

use crate::mailbox::{Sender, channel};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use self::events::events;
use self::hyperscsi_api::frame_session;
use base::state_machine::PortalId;
use device::rate_limit::RateLimit;
use drivers::message_queue::Handle;
use iscsi::negotiate::Digest;
use iscsi::target::contract::{self, ConnectionView};
use iscsi::target::engine::EngineStats;
use iscsi::target::protection::Protection;
use security::Level;
use serde::Serialize;
use serde_json::Value;
use shard::admin::{HyperScsiSessionReport, SessionReport};

use super::audit::AuditLog;
use super::change_lock::ChangeLock;
use super::changes;
use super::daemon_event::DaemonEvent;
use super::file_systems::FileSystemUse;
use super::late_media::LateMedia;
use super::library_change;
use super::lun_maintenance::LunMaintenance;
use super::lun_maintenance::reservations::reservation;
use super::name_servers::Reports;
use super::panics;
use super::reactor_shard::counts::{NOT_OPEN, ReactorCounts, Snapshot};
use super::reactor_shard::{ReactorShard, UnitView};
use super::reactors::{self, ReactorInfo, ReactorThread};
use super::runtime_config::RuntimeConfig;
use super::session_drop;
use super::state::StateDir;
use super::tls_handshakes::HandshakeCounters;
use super::trace;
use crate::admin::api::{
    Connection, ErrorKind, Failure, FrameTotals, Group, Method, Portal, Reactor, Reload, Repairs, Request,
    Session, Sessions, Status, Target, VERSION,
};
use crate::admin::change::{Client, Peer, Verdict};
use crate::admin::change_api::{BoundLuns, TargetLuns};
use crate::admin::lun_api::{Limit, Lun, LunSpace, Luns};
use crate::admin::server::RequestHandler;
use crate::config::{Config, HyperScsiService, Revision};

/// How long all reactors together may take to answer. It is shorter than the timeout of a client.
const REACTORS_MAX: Duration = Duration::from_secs(5);

/// What the threads of the admin socket share with the main thread, which reloads.
pub(super) struct Shared {
    started: Instant,
    started_at: SystemTime,
    config_file: Option<String>,
    pub(super) reactors: Vec<(Handle<ReactorShard>, ReactorInfo)>,
    state: StateDir,
    tls_handshakes: Arc<HandshakeCounters>,
    http: OnceLock<SocketAddr>,
    pub(super) events: Sender<DaemonEvent>,
    pub(super) audit: Arc<AuditLog>,
    name_servers: Reports,
    pub(super) current: Mutex<Current>,
    pub(super) changes: ChangeLock,
    /// The media that were not there when the daemon started.
    pub(super) late: LateMedia,
}

/// The part that a reload changes.
pub(super) struct Current {
    pub(super) runtime: RuntimeConfig,
    /// The revision of the configuration file that runs; `None` if what runs is in no file.
    pub(super) revision: Option<Revision>,
    /// Increases with every change of what runs.
    pub(super) generation: u64,
    pub(super) reloads: u64,
    pub(super) reload: Option<ReloadResult>,
}

/// The result of the last reload.
#[derive(Clone, Debug)]
pub(super) struct ReloadResult {
    pub(super) at: Instant,
    pub(super) applied: bool,
    pub(super) message: String,
}

impl RequestHandler for Shared {
    fn handle(&self, request: Request, caller: &mut Client) -> Result<Value, Failure> {
        let _change = match request.method {
            Method::DropSessions
            | Method::DrainLun
            | Method::AcceptLoss
            | Method::ClearReservations
            | Method::SnapshotLun
            | Method::SnapshotLuns
            | Method::Library
            | Method::Trace => Some(self.changes.begin()?),
            // The main thread makes one of these at a time; the others change nothing.
            _ => None,
        };
        match request.method {
            Method::Status => json(&self.status()?),
            Method::Sessions => json(&self.sessions()?),
            Method::Luns => json(&self.luns()?),
            Method::BoundLuns => json(&self.bound_luns()?),
            Method::StateFacts => {
                let config = Arc::clone(&self.current().runtime.config);
                json(&state_facts::of(&config)?)
            }
            Method::Plan => changes::request(&self.events, request.change, caller, false),
            Method::Prepare => changes::request(&self.events, request.change, caller, true),
            Method::Commit => caller.decide(Verdict::Commit),
            Method::Abandon => caller.decide(Verdict::Abandon),
            Method::DropSessions => json(&session_drop::drop_sessions(
                &self.reactors,
                &self.audit,
                request.sessions,
                &caller.peer,
            )?),
            Method::ForgetPorts => changes::forget(&self.events, request.sessions, &caller.peer),
            Method::DrainLun => json(&self.maintenance(&caller.peer).drain(request.lun)?),
            Method::AcceptLoss => json(&self.maintenance(&caller.peer).accept_loss(request.lun)?),
            Method::Reservations => json(&self.maintenance(&caller.peer).reservations(request.lun)?),
            Method::ClearReservations => {
                json(&self.maintenance(&caller.peer).clear_reservations(request.reservations)?)
            }
            Method::SnapshotLun => json(&self.maintenance(&caller.peer).snapshot(request.lun)?),
            Method::SnapshotLuns => json(&self.maintenance(&caller.peer).snapshots(request.luns)?),
            Method::Events => json(&events()),
            Method::Reload => changes::reload(&self.events, &caller.peer),
            Method::Library => {
                json(&library_change::make(&self.reactors, &self.audit, request.library, &caller.peer)?)
            }
            Method::Upgrade => changes::upgrade(&self.events, request.upgrade, caller),
            Method::Trace => json(&trace::start(&self.reactors, &self.audit, request.trace, caller)?),
        }
    }
}

impl Shared {
    /// Returns the response to a method that only reads, as JSON.
    pub(super) fn read(&self, method: Method) -> Result<Vec<u8>, Failure> {
        match method {
            Method::Status => bytes(&self.status()?),
            Method::Sessions => bytes(&self.sessions()?),
            Method::Luns => bytes(&self.luns()?),
            Method::BoundLuns => bytes(&self.bound_luns()?),
            Method::Events => bytes(&events()),
            _ => Err(changes::failure(ErrorKind::Malformed, "the method changes something")),
        }
    }

    /// Describes a daemon that has just started. `revision` is that of its configuration file.
    pub(super) fn new(
        config_file: Option<PathBuf>,
        (runtime, revision): (&RuntimeConfig, Option<Revision>),
        (reactors, tls_handshakes): (&[ReactorThread], Arc<HandshakeCounters>),
        events: Sender<DaemonEvent>,
        state: StateDir,
        name_servers: Reports,
    ) -> Self {
        let audit = Arc::new(AuditLog::new(state.audit_log()));
        let current = Current { runtime: runtime.clone(), revision, generation: 1, reloads: 0, reload: None };
        Self {
            started: Instant::now(),
            started_at: SystemTime::now(),
            tls_handshakes,
            http: OnceLock::new(),
            config_file: config_file.map(|path| path.display().to_string()),
            reactors: reactors.iter().map(|one| (one.handle.clone(), one.facts.clone())).collect(),
            events,
            state,
            audit,
            name_servers,
            current: Mutex::new(current),
            changes: ChangeLock::default(),
            late: LateMedia::default(),
        }
    }

    /// Sets the address of the HTTP server, once it is known.
    pub(super) fn serves_http_on(&self, address: Option<SocketAddr>) {
        // The main thread calls this once.
        let _ = address.map(|address| self.http.set(address));
    }

    /// Adds to what the reactors have counted what else is counted.
    pub(super) fn snapshot(&self, mut reactors: Vec<ReactorCounts>) -> Snapshot {
        reactors.sort_by_key(|counts| counts.index);
        let current = self.current();
        let failed = current.reload.as_ref().filter(|reload| !reload.applied);
        Snapshot {
            drivers: self.reactors.iter().map(|(handle, _)| handle.stats()).collect(),
            started: self.started_at,
            generation: current.generation,
            reloads: current.reloads,
            reload_failure: failed.map(|reload| reload.message.clone()),
            late: self.late.reasons(),
            panics: panics::count(),
            tls: self.tls_handshakes.read(),
            log_lines_dropped: crate::log::dropped(),
            memory_max: reactors::memory(&current.runtime.config, reactors.len()),
            runtime: current.runtime.clone(),
            reactors,
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn maintenance<'s>(&'s self, peer: &'s Peer) -> LunMaintenance<'s> {
        let runtime = self.current().runtime.clone();
        LunMaintenance { runtime, reactors: &self.reactors, state: &self.state, audit: &self.audit, peer }
    }

    fn status(&self) -> Result<Status, Failure> {
        let reports = self.all_sessions()?;
        let frames = self.frame_sessions()?;
        let counts = self.snapshot(self.query_reactors(ReactorShard::counts)?);
        let current = self.current();
        let config = &current.runtime.config;
        let sessions_of = |name: &str| {
            let frames = frames.iter().filter(|(report, _)| report.target == name).count();
            reports.iter().filter(|report| report.target.as_deref() == Some(name)).count() + frames
        };
        let restricted = |name: &str| {
            let iscsi = reports.iter().filter(|report| report.target.as_deref() == Some(name));
            let frames = frames.iter().filter(|(report, _)| report.target == name);
            let hidden = iscsi.map(|report| report.hidden_luns);
            hidden.chain(frames.map(|(report, _)| report.hidden_luns)).filter(|count| *count > 0).count()
        };
        let portals = config.portals.iter().zip(&current.runtime.portals);
        Ok(Status {
            api: VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            config: self.config_file.clone(),
            revision: current.revision.map(|revision| revision.to_string()),
            generation: current.generation,
            reloads: current.reloads,
            reload: current.reload.as_ref().map(|reload| Reload {
                ago_s: reload.at.elapsed().as_secs(),
                applied: reload.applied,
                message: reload.message.clone(),
            }),
            state_dir: config.state_dir.display().to_string(),
            max_sessions: u32::from(config.max_sessions),
            sessions: count(reports.len() + frames.len()),
            logins: counts.sum(|reactor| reactor.logins().0),
            failed_logins: counts.sum(|reactor| reactor.logins().1),
            rival_logins: counts.sum(|reactor| reactor.iscsi.rival_logins),
            medium_errors: counts.units().map(|view| view.health.errors).sum(),
            not_ready: count(
                counts.units().filter(|view| view.health.withheld.is_some()).count() + counts.late.len(),
            ),
            bugs: counts.bugs(),
            repairs: counts.reactors.iter().fold(Repairs::NONE, |sum, one| sum.with(&repairs(&one.iscsi))),
            portals: portals
                .map(|(portal, (_, listening))| Portal {
                    listen: listening.to_string(),
                    announce: portal.announce.as_ref().map(ToString::to_string),
                    tag: portal.tag,
                    tls: portal.tls.is_some(),
                })
                .collect(),
            name_servers: self.name_servers.all(),
            hyperscsi: counts.reactors.iter().fold(FrameTotals::NONE, |sum, one| sum.with(&one.hyperscsi)),
            interfaces: current.runtime.interfaces.iter().map(|(_, name)| name.clone()).collect(),
            groups: config.hyperscsi.iter().flat_map(|known| groups(config, known, &frames)).collect(),
            targets: config
                .targets
                .iter()
                .map(|target| Target {
                    name: target.name.to_string(),
                    alias: target.alias.clone(),
                    luns: count(target.luns.len()),
                    sessions: count(sessions_of(target.name.as_str())),
                    max_sessions: u32::from(target.max_sessions),
                    restricted_sessions: count(restricted(target.name.as_str())),
                })
                .collect(),
            reactors: self.reactors.iter().map(reactor).collect(),
            iscsi: counters::iscsi(&counts),
            tls_handshakes: counters::tls(&counts),
            memory: counters::memory(&counts),
            log_lines_dropped: counts.log_lines_dropped,
            http: self.http.get().map(ToString::to_string),
            problems: counts.problems(),
            warnings: counts.warnings(),
        })
    }

    fn sessions(&self) -> Result<Sessions, Failure> {
        let mut reports = self.all_sessions()?;
        reports.sort_by(|a, b| (&a.target, &a.initiator, a.isid).cmp(&(&b.target, &b.initiator, b.isid)));
        let mut frames = self.frame_sessions()?;
        frames.sort_by(|(a, _), (b, _)| {
            (&a.target, &a.initiator, a.isid).cmp(&(&b.target, &b.initiator, b.isid))
        });
        let current = self.current();
        let config = &current.runtime.config;
        let least = |group: &str| {
            config.hyperscsi.as_ref().map_or(Level::None, |frames| frames.min_protection(group))
        };
        Ok(Sessions {
            sessions: reports.into_iter().map(|report| session(report, &current.runtime)).collect(),
            hyperscsi: frames.into_iter().map(|one| frame_session(one, &least)).collect(),
        })
    }

    fn bound_luns(&self) -> Result<BoundLuns, Failure> {
        let bound = self.query_reactors(|member| member.bound_luns())?;
        let of_target =
            |(target, luns): (String, BTreeSet<u16>)| TargetLuns { target, luns: luns.into_iter().collect() };
        Ok(BoundLuns { targets: bound.into_iter().flatten().map(of_target).collect() })
    }

    fn luns(&self) -> Result<Luns, Failure> {
        let views = self.query_reactors(|member| member.units())?;
        let views: BTreeMap<_, UnitView> =
            views.into_iter().flatten().map(|view| (view.report.unit, view)).collect();
        let reservations = self.query_reactors(ReactorShard::reservations)?;
        let reservations: BTreeMap<_, _> = reservations.into_iter().flatten().collect();
        let current = self.current();
        let runtime = &current.runtime;
        let late = self.late.reasons();
        let mut luns = Vec::new();
        for target in &runtime.config.targets {
            for mapped in &target.luns {
                let (Some(unit), Some(id)) =
                    (runtime.config.units.get(mapped.unit.0), runtime.number(mapped.unit))
                else {
                    continue;
                };
                let view = views.get(&id);
                let stats = view.map(|view| view.report.stats).unwrap_or_default();
                let is_rom = view.is_some_and(|view| view.health.is_rom);
                luns.push(Lun {
                    target: target.name.to_string(),
                    lun: mapped.lun,
                    medium: unit.medium.to_string(),
                    bytes: view.map_or(0, |view| view.bytes),
                    block_bytes: unit.block_size.bytes(),
                    read_only: mapped.read_only || unit.read_only || is_rom,
                    thin: unit.thin,
                    write_cache: unit.write_cache && !is_rom,
                    encrypted: unit.encrypt.is_some(),
                    serial: unit.identity.serial.clone(),
                    naa: unit.identity.naa.to_string(),
                    commands: stats.commands,
                    read_bytes: stats.read_bytes,
                    write_bytes: stats.write_bytes,
                    medium_errors: view.map_or(0, |view| view.health.errors),
                    io_timeouts: stats.io_timeouts,
                    operations: counters::operations(&stats),
                    check_conditions: counters::check_conditions(&stats),
                    reservation_conflicts: stats.reservation_conflicts,
                    task_set_full: stats.task_set_full,
                    aborted_tasks: stats.aborts,
                    tasks: stats.tasks,
                    reservation: reservations.get(&id).map(reservation),
                    limit: limit(unit.limit),
                    delayed_commands: stats.delays.delayed,
                    delayed_ms: stats.delays.delayed_ns / 1_000_000,
                    waiting_commands: stats.waiting,
                    not_ready: match view {
                        Some(view) => view.health.withheld.clone().or_else(|| view.not_ready.clone()),
                        None => Some(late.get(&id).cloned().unwrap_or_else(|| NOT_OPEN.to_owned())),
                    },
                    lost_writes: view.and_then(|view| view.health.lost_writes.clone()),
                    medium_failure: view.and_then(|view| view.health.failure.clone()),
                    space: view.and_then(|view| view.health.space.as_ref()).map(|(_, space)| LunSpace {
                        allocated_bytes: space.allocated,
                        promised_bytes: space.promised,
                        free_bytes: space.free,
                    }),
                });
            }
        }
        let files = views.values().filter_map(|view| view.health.space.as_ref());
        let file_systems = FileSystemUse::of(files).into_iter().map(Into::into).collect();
        Ok(Luns { luns, file_systems: Some(file_systems) })
    }

    fn all_sessions(&self) -> Result<Vec<SessionReport>, Failure> {
        Ok(self.query_reactors(|member| member.sessions())?.into_iter().flatten().collect())
    }

    fn frame_sessions(&self) -> Result<Vec<(HyperScsiSessionReport, Vec<String>)>, Failure> {
        Ok(self.query_reactors(|member| member.frame_sessions())?.into_iter().flatten().collect())
    }

    /// Queries every reactor, all at the same time.
    fn query_reactors<T: Send + 'static>(
        &self,
        question: impl Fn(&ReactorShard) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, Failure> {
        let unavailable =
            |message: &str| Failure { kind: ErrorKind::Unavailable, message: message.to_owned() };
        let (sender, receiver) = channel();
        for (handle, _) in &self.reactors {
            let (sender, question) = (sender.clone(), question.clone());
            let posted = handle.post(move |member: &mut ReactorShard, _| {
                let _ = sender.send(question(member));
            });
            posted.map_err(|_| unavailable("targe is stopping"))?;
        }
        let deadline = Instant::now() + REACTORS_MAX;
        let answer = |_| receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let answers: Result<Vec<T>, _> = self.reactors.iter().map(answer).collect();
        answers.map_err(|_| unavailable("a reactor does not answer"))
    }
}

fn reactor((handle, facts): &(Handle<ReactorShard>, ReactorInfo)) -> Reactor {
    let stats = handle.stats();
    Reactor {
        engine: facts.engine.to_string(),
        fallback: facts.fallback.clone(),
        core: facts.core,
        connections: stats.connections,
        refused: stats.refused,
        wakeups: stats.wakeups,
        enters: stats.enters,
        bytes_in: stats.bytes_in,
        bytes_out: stats.bytes_out,
        frames_in: stats.frames_in,
        frames_out: stats.frames_out,
        frames_dropped: stats.frames_dropped,
        frames_unsent: stats.frames_too_long + stats.frames_unsent,
        accept_failures: stats.accept_failures,
        receives: stats.receives,
        sends: stats.sends,
        file_inline: stats.file_inline,
        file_ring: stats.file_ring,
        file_threads: stats.file_threads,
    }
}

/// Returns the description of every HyperSCSI group.
fn groups(
    config: &Config,
    known: &HyperScsiService,
    sessions: &[(HyperScsiSessionReport, Vec<String>)],
) -> Vec<Group> {
    let interfaces = |places: &Option<Vec<usize>>| match places {
        None => known.interfaces.clone(),
        Some(places) => places.iter().filter_map(|at| known.interfaces.get(*at)).cloned().collect(),
    };
    let group = |(at, group): (usize, &crate::config::Group)| Group {
        name: group.name.to_string(),
        password: group.password.is_some(),
        protection: group.min_protection.to_string(),
        interfaces: interfaces(&group.interfaces),
        targets: count(config.targets.iter().filter(|target| target.groups.has(at)).count()),
        sessions: count(sessions.iter().filter(|(report, _)| report.group == *group.name).count()),
    };
    known.groups.iter().enumerate().map(group).collect()
}

fn limit(rate: RateLimit) -> Option<Limit> {
    (!rate.is_none()).then(|| Limit {
        iops: (rate.iops > 0).then_some(rate.iops),
        bandwidth: (rate.bandwidth > 0).then_some(rate.bandwidth),
        burst_ms: u64::try_from(rate.burst.as_millis()).unwrap_or(u64::MAX),
    })
}

fn session(report: SessionReport, runtime: &RuntimeConfig) -> Session {
    Session {
        protection: report.protection.level().to_string(),
        protection_by: protection_by(report.protection, report.portal, runtime),
        hidden_luns: count(report.hidden_luns),
        limit: report.limit.and_then(|(rate, _)| limit(rate)),
        delayed_commands: report.limit.map_or(0, |(_, stats)| stats.delayed),
        delayed_ms: report.limit.map_or(0, |(_, stats)| stats.delayed_ns / 1_000_000),
        target: report.target,
        initiator: report.initiator,
        isid: report.isid.iter().map(|byte| format!("{byte:02x}")).collect(),
        tsih: report.tsih,
        peer: report.peer.map(|peer| peer.to_string()),
        connections: u64::try_from(report.connections).unwrap_or(u64::MAX),
        error_recovery_level: u16::from(report.error_recovery_level),
        tasks: report.tasks,
        commands: report.traffic.commands,
        data_in_bytes: report.traffic.data_in_bytes,
        data_out_bytes: report.traffic.data_out_bytes,
        members: report.members.iter().map(connection).collect(),
        lost_connections: u64::try_from(report.lost).unwrap_or(u64::MAX),
        repairs: Repairs::NONE.with(&report.repairs),
        other_disk_luns: report.withheld_luns,
    }
}

/// Returns what protects a session whose first connection came through `portal`; `None` for nothing.
pub(super) fn protection_by(
    protection: Protection,
    portal: Option<PortalId>,
    runtime: &RuntimeConfig,
) -> Option<String> {
    match protection {
        Protection::None => None,
        Protection::Tls => {
            let on = portal.and_then(|portal| runtime.portal_name(portal));
            Some(on.map_or_else(|| "TLS 1.3".to_owned(), |name| format!("TLS 1.3 on portal {name}")))
        }
        Protection::Digest(digest) => Some(digest.name().to_owned()),
    }
}

/// Returns the repair counters of an iSCSI engine.
const fn repairs(stats: &EngineStats) -> contract::Repairs {
    contract::Repairs {
        header_digest_errors: stats.header_digest_errors,
        data_digest_errors: stats.data_digest_errors,
        snacks: stats.snacks,
        recovery_r2ts: stats.recovery_r2ts,
        reassigns: stats.reassigns,
    }
}

impl Repairs {
    const NONE: Self =
        Self { header_digest_errors: 0, data_digest_errors: 0, snacks: 0, recovery_r2ts: 0, reassigns: 0 };

    fn with(self, more: &contract::Repairs) -> Self {
        Self {
            header_digest_errors: self.header_digest_errors + more.header_digest_errors,
            data_digest_errors: self.data_digest_errors + more.data_digest_errors,
            snacks: self.snacks + more.snacks,
            recovery_r2ts: self.recovery_r2ts + more.recovery_r2ts,
            reassigns: self.reassigns + more.reassigns,
        }
    }
}

/// Returns the repair counters of HyperSCSI from the counters of its parts; the first argument has the number
/// of duplicate requests and of late frames.
fn connection(view: &ConnectionView) -> Connection {
    Connection {
        cid: view.cid,
        peer: view.peer.to_string(),
        header_digest: view.parameters.header_digest != Digest::None,
        data_digest: view.parameters.data_digest != Digest::None,
        unacknowledged: u64::try_from(view.unacknowledged).unwrap_or(u64::MAX),
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn bytes<T: Serialize>(answer: &T) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(answer)
        .map_err(|error| Failure { kind: ErrorKind::Unavailable, message: error.to_string() })
}

/// Converts an answer to JSON.
pub(super) fn json<T: Serialize>(answer: &T) -> Result<Value, Failure> {
    serde_json::to_value(answer)
        .map_err(|error| Failure { kind: ErrorKind::Unavailable, message: error.to_string() })
}
