//! What the reactors and the daemon have counted, at one moment.

use std::collections::BTreeMap;
use std::time::SystemTime;

use drivers::stats::Stats;
use iscsi::target::engine::EngineStats;
use shard::session_counts::{SessionName, TargetSessions};
use target::units::UnitId;

use super::{HyperScsiReport, ReactorShard, UnitView};
use crate::serve::file_systems::FileSystemUse;
use crate::serve::media::served::MediumHealth;
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::tls_handshakes::TlsHandshakes;

/// The most sessions of each reactor that the metrics name.
pub(in crate::serve) const SESSIONS_NAMED_MAX: usize = 256;

/// What one message brings from a reactor. The reactor copies counters and nothing that grows with its
/// traffic: about a microsecond for each LUN.
#[derive(Clone, Debug)]
pub(in crate::serve) struct ReactorCounts {
    pub(in crate::serve) index: usize,
    pub(in crate::serve) iscsi: EngineStats,
    pub(in crate::serve) hyperscsi: HyperScsiReport,
    pub(in crate::serve) units: Vec<UnitView>,
    pub(in crate::serve) sessions: Vec<TargetSessions>,
    pub(in crate::serve) session_names: Vec<SessionName>,
    /// The bytes of data that open commands hold.
    pub(in crate::serve) data_bytes: usize,
    /// The names of the Ethernet interfaces that are up.
    pub(in crate::serve) interfaces_up: Vec<String>,
}

impl ReactorShard {
    /// Returns what this reactor has counted.
    pub(in crate::serve) fn counts(&self) -> ReactorCounts {
        ReactorCounts {
            index: self.index,
            iscsi: *self.shard.wire_stats(),
            hyperscsi: self.frame_totals(),
            units: self.units(),
            sessions: self.shard.session_counts(),
            session_names: self.shard.session_names(SESSIONS_NAMED_MAX),
            data_bytes: self.shard.data_bytes(),
            interfaces_up: self.shard.ports_up().map(|port| self.interface(port).to_owned()).collect(),
        }
    }
}

impl ReactorCounts {
    /// Returns how many logins succeeded and how many failed so far, of both transports.
    pub(in crate::serve) const fn logins(&self) -> (u64, u64) {
        let handshakes = &self.hyperscsi.handshakes;
        let failed = handshakes.refused + handshakes.unfinished;
        (self.iscsi.logins + self.hyperscsi.stats.sessions, self.iscsi.logins_failed + failed)
    }

    /// Returns how often the state machines reached a state that should be impossible.
    pub(in crate::serve) const fn bugs(&self) -> u64 {
        self.iscsi.bugs + self.hyperscsi.stats.bugs
    }
}

/// Why a LUN without a unit is not ready, if nothing more is known.
pub(in crate::serve) const NOT_OPEN: &str = "it is not open";

/// The counters of the daemon at one moment.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Snapshot {
    /// Of every reactor, in the order of their indices.
    pub(in crate::serve) reactors: Vec<ReactorCounts>,
    /// What the driver of each reactor counted.
    pub(in crate::serve) drivers: Vec<Stats>,
    pub(in crate::serve) runtime: RuntimeConfig,
    pub(in crate::serve) started: SystemTime,
    pub(in crate::serve) generation: u64,
    pub(in crate::serve) reloads: u64,
    /// Why the last reload was not applied, if it was not.
    pub(in crate::serve) reload_failure: Option<String>,
    /// Why media are late that were not there when the daemon started.
    pub(in crate::serve) late: BTreeMap<UnitId, String>,
    /// How many threads panicked.
    pub(in crate::serve) panics: u64,
    pub(in crate::serve) tls: TlsHandshakes,
    /// How many lines of the log were dropped.
    pub(in crate::serve) log_lines_dropped: u64,
    /// The memory for data in flight of all reactors together.
    pub(in crate::serve) memory_max: u64,
}

impl Snapshot {
    /// Returns every unit.
    pub(in crate::serve) fn units(&self) -> impl Iterator<Item = &UnitView> {
        self.reactors.iter().flat_map(|reactor| &reactor.units)
    }

    /// Returns the sum of a counter over all reactors.
    pub(in crate::serve) fn sum(&self, counter: impl Fn(&ReactorCounts) -> u64) -> u64 {
        self.reactors.iter().map(counter).sum()
    }

    /// Returns how many internal errors there were.
    pub(in crate::serve) fn bugs(&self) -> u64 {
        self.sum(ReactorCounts::bugs) + self.panics
    }

    /// Returns why the daemon does not serve all that it is configured to serve; nothing if it does.
    pub(in crate::serve) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let config = &self.runtime.config;
        let views: BTreeMap<_, _> = self.units().map(|view| (view.report.unit, view)).collect();
        for target in &config.targets {
            for lun in &target.luns {
                let id = self.runtime.number(lun.unit);
                let why = match id.and_then(|id| views.get(&id)) {
                    None => match id.and_then(|id| self.late.get(&id)) {
                        Some(why) => why.clone(),
                        None => NOT_OPEN.to_owned(),
                    },
                    Some(UnitView { health: MediumHealth { withheld: Some(why), .. }, .. }) => why.clone(),
                    Some(UnitView { health: MediumHealth { lost_writes: Some(why), .. }, .. }) => {
                        format!("acknowledged writes are lost, and every flush fails: {why}")
                    }
                    Some(UnitView { health: MediumHealth { failure: Some(why), .. }, .. }) => {
                        format!("its medium has failed, until that succeeds or targe lun accept-loss: {why}")
                    }
                    Some(_) => continue,
                };
                problems.push(format!("LUN {} of {}: {why}", lun.lun, target.name));
            }
        }
        if !self.interfaces().is_empty() && self.interfaces_down().len() == self.interfaces().len() {
            problems.push("no Ethernet interface is up, so that no HyperSCSI initiator is served".to_owned());
        }
        problems
    }

    /// Returns what an operator should look at although everything is served.
    pub(in crate::serve) fn warnings(&self) -> Vec<String> {
        let reload =
            self.reload_failure.as_ref().map(|why| format!("the last reload was not applied: {why}"));
        let down = self.interfaces_down().into_iter().map(|name| format!("interface {name} is down"));
        let bugs = Some(self.bugs()).filter(|bugs| *bugs > 0);
        let bugs = bugs.map(|bugs| format!("{bugs} internal errors since the start; the log names them"));
        let files = self.units().filter_map(|view| view.health.space.as_ref());
        let full = FileSystemUse::of(files).into_iter().filter_map(|system| system.warning());
        reload.into_iter().chain(down).chain(bugs).chain(full).collect()
    }

    fn interfaces(&self) -> &[(base::ether::EtherPort, String)] {
        &self.runtime.interfaces
    }

    fn interfaces_down(&self) -> Vec<&str> {
        // Every reactor has every interface.
        let up = self.reactors.first().map(|reactor| reactor.interfaces_up.as_slice()).unwrap_or_default();
        let names = self.interfaces().iter().map(|(_, name)| name.as_str());
        names.filter(|name| !up.iter().any(|up| up == name)).collect()
    }
}
