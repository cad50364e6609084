//! Nexus bindings over a restart. A host that is logged in while the daemon restarts logs in again by itself,
//! and does not check whether its LUNs still lead to the disks that it has mounted.
//!
//! The state directory keeps the bindings in the file `bindings`, as [`file`] specifies it. A record of it
//! that cannot be read must not keep anything else from being served: its initiator port finds no disk under
//! any LUN. If it does not even say whose it is, that is so for every port without a record.

use crate::mailbox::channel;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use device::contract::RelativePort;
use scsi::transport_id::TransportId as InitiatorPort;
use shard::bindings::is_port_of;
use target::bindings::NexusBindings;
use target::nexus::TargetNumber;

use super::disk_ids::{DiskIds, DiskName};
use super::placement::Owners;
use super::reactor_shard::{ReactorBindings, ReactorShard};
use super::reactors::{self, REACTOR_REPLY_TIMEOUT, ReactorThread};
use super::runtime_config::{IdAllocator, RuntimeConfig};
use super::state::{StateDir, StateError};

mod file;

/// How long a change waits to be stored, so that one write stores the changes of many logins.
pub(super) const STORE_DELAY: Duration = Duration::from_millis(500);

/// How long the daemon waits after it could not store bindings.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(60);

/// How many records of targets that are not served are kept: as many as a reactor remembers of ports without
/// a session.
const UNCLAIMED_MAX: usize = 4096;

/// How many LUNs these records may have together.
const UNCLAIMED_LUNS_MAX: usize = 65_536;

/// The bindings of an I_T nexus, with names that survive a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedNexus {
    target: String,
    initiator_port: Box<[u8]>,
    group: Option<Box<str>>,
    /// The relative identifiers of the target ports, as in [`NexusBindings::target_ports`].
    target_ports: Vec<u16>,
    /// The relative identifiers of other target ports, as in [`NexusBindings::released_ports`].
    released_ports: Option<Vec<u16>>,
    /// Some of the target ports, as in [`NexusBindings::rejoined_ports`].
    rejoined_ports: Vec<u16>,
    /// Other target ports, as in [`NexusBindings::moved_ports`].
    moved_ports: Vec<u16>,
    /// Whether it is not known which LUNs the port has used.
    is_sealed: bool,
    luns: Vec<(u16, DiskName)>,
    /// When the port lost its last session, in seconds since 1970; `None` if it has one, or if that is not
    /// known.
    lost_at: Option<u64>,
}

impl SavedNexus {
    /// Returns the name of the initiator, if the port has one.
    fn initiator(&self) -> Option<String> {
        match InitiatorPort::from_bytes(&self.initiator_port) {
            Ok(InitiatorPort::IscsiPort { name, .. }) => Some(name),
            _ => None,
        }
    }

    /// Returns the initiator port, for a message.
    fn port_text(&self) -> String {
        let group = self.group.as_ref().map_or_else(String::new, |group| format!(" in group {group:?}"));
        port_text(&self.initiator_port) + &group
    }
}

/// Returns an initiator port, from its TransportID, for a message.
pub(super) fn port_text(initiator_port: &[u8]) -> String {
    match InitiatorPort::from_bytes(initiator_port) {
        Ok(InitiatorPort::IscsiPort { name, isid }) => {
            format!("{name} (port {})", file::hex(&isid))
        }
        _ => format!("port {}", file::hex(initiator_port)),
    }
}

/// Returns the LUNs of a target that hosts may have open, as the state directory of a daemon says that does
/// not run.
///
/// # Errors
/// The file cannot be read.
pub fn stored_luns(state_dir: &Path, target: &str) -> io::Result<BTreeSet<u16>> {
    let stored = match fs::read(state_dir.join("bindings")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error),
    };
    let records = file::decode(&String::from_utf8_lossy(&stored)).records.into_iter();
    let of_target = records.filter(|nexus| nexus.target.eq_ignore_ascii_case(target));
    Ok(of_target.flat_map(|nexus| nexus.luns).map(|(number, _)| number).collect())
}

/// Returns the identifiers of all target ports that the text of the file refers to.
pub(super) fn ports_in(stored: &str) -> BTreeSet<u16> {
    let records = file::decode(stored).records.into_iter();
    records
        .flat_map(|nexus| {
            [nexus.target_ports, nexus.moved_ports, nexus.released_ports.unwrap_or_default()].concat()
        })
        .collect()
}

/// Nexus bindings to restore, by reactor.
pub(super) type ClaimedBindings = BTreeMap<usize, ReactorBindings>;

/// The stored bindings.
#[derive(Debug, Default)]
pub(super) struct BindingStore {
    /// The bindings of targets that no reactor has served since the start.
    unclaimed: Vec<SavedNexus>,
    /// The records that cannot be read and do not say whose they are.
    unreadable: Vec<String>,
    /// The contents of the file.
    stored: String,
}

impl BindingStore {
    /// Reads the bindings. Warns of the records that cannot be read.
    ///
    /// # Errors
    /// [`StateError`]: the file cannot be read at all. Without its bindings, a host could reach another disk
    /// than the one that it has mounted.
    pub(super) fn load(state: &StateDir) -> Result<Self, StateError> {
        let Some(stored) = state.load_bindings()? else { return Ok(Self::default()) };
        let file::Contents { records, unreadable } = file::decode(&stored);
        let path = state.bindings();
        for sealed in records.iter().filter(|record| record.is_sealed) {
            let initiator = sealed.initiator();
            crate::warning!(
                { initiator: initiator.as_deref(), target: &sealed.target },
                "{}: the record of {} cannot be read, or has two disks under one LUN: the LUNs of {} without a disk in \
                 it are withheld until this initiator has logged out and in again",
                path.display(),
                sealed.port_text(),
                sealed.target
            );
        }
        if !unreadable.is_empty() {
            crate::warning!(
                "{}: {} records cannot be read and do not say whose they are: all LUNs are withheld from the initiator \
                 ports that have no record, until you log out on every host, stop targe and remove the file; the \
                 first of these records: {:?}",
                path.display(),
                unreadable.len(),
                unreadable.first().map_or("", String::as_str)
            );
        }
        Ok(Self { unclaimed: records, unreadable, stored })
    }

    /// Takes the bindings of the targets that are served now, by reactor.
    pub(super) fn claim(
        &mut self,
        runtime: &RuntimeConfig,
        ids: &IdAllocator,
        disks: &mut DiskIds,
    ) -> ClaimedBindings {
        let owners: BTreeMap<String, usize> =
            runtime.owners().into_iter().map(|(name, reactor)| (name.to_string(), reactor)).collect();
        let mut claimed = ClaimedBindings::new();
        let now = unix_time();
        if !self.unreadable.is_empty() {
            for reactor in owners.values() {
                claimed.entry(*reactor).or_default().seals_unknown = true;
            }
        }
        self.unclaimed.retain(|saved| {
            let Some((reactor, target)) = owners.get(&saved.target).zip(ids.target_number(&saved.target))
            else {
                return true;
            };
            let luns = saved.luns.iter().map(|(number, disk)| (*number, disks.restore(*disk)));
            claimed.entry(*reactor).or_default().nexuses.push(NexusBindings {
                target: TargetNumber(target),
                initiator_port: saved.initiator_port.clone(),
                realm: saved.group.clone(),
                target_ports: ports_of(&saved.target_ports),
                released_ports: saved.released_ports.as_deref().map(ports_of),
                rejoined_ports: ports_of(&saved.rejoined_ports),
                moved_ports: ports_of(&saved.moved_ports),
                is_sealed: saved.is_sealed,
                luns: luns.collect(),
                lost_for: lost_for(saved.lost_at, now),
            });
            false
        });
        self.bound_unclaimed(now);
        claimed
    }

    /// Drops records of targets that are not served, if there are too many: those whose ports lost their
    /// sessions longest ago.
    fn bound_unclaimed(&mut self, now: u64) {
        let (mut count, mut luns) = (0_usize, 0_usize);
        // A port with a session when the record was stored has lost it by now.
        self.unclaimed.iter_mut().for_each(|saved| _ = saved.lost_at.get_or_insert(now));
        self.unclaimed.sort_by_key(|saved| Reverse(saved.lost_at));
        let before = self.unclaimed.len();
        self.unclaimed.retain(|saved| {
            (count, luns) = (count + 1, luns.saturating_add(saved.luns.len()));
            count <= UNCLAIMED_MAX && luns <= UNCLAIMED_LUNS_MAX
        });
        let dropped = before - self.unclaimed.len();
        if dropped > 0 {
            crate::warning!(
                "bindings: {dropped} records of targets that are not served are dropped, those of the initiator ports \
                 that lost their sessions longest ago: at most {UNCLAIMED_MAX} records with {UNCLAIMED_LUNS_MAX} LUNs \
                 are kept"
            );
        }
    }

    /// Forgets which disks the ports of an initiator have used, if no reactor has their records. Returns how
    /// many records there were.
    pub(super) fn forget(&mut self, target: Option<&str>, initiator: &str, isid: Option<[u8; 6]>) -> usize {
        let before = self.unclaimed.len();
        self.unclaimed.retain(|saved| {
            !is_port_of(&saved.initiator_port, initiator, isid)
                || target.is_some_and(|target| target != saved.target)
        });
        before - self.unclaimed.len()
    }

    /// Stores the bindings of all reactors, if they differ from the stored ones. Returns whether they are
    /// stored now, `within` a time.
    pub(super) fn store(
        &mut self,
        reactors: &[ReactorThread],
        ids: &IdAllocator,
        disks: &DiskIds,
        (state, within): (&StateDir, Duration),
    ) -> bool {
        let Some(all) = collect(reactors) else { return false };
        let now = unix_time();
        let named = all.into_iter().filter_map(|nexus| {
            let luns = nexus.luns.iter().filter_map(|(number, disk)| Some((*number, disks.find(*disk)?)));
            Some(SavedNexus {
                target: ids.target_name(nexus.target.0)?,
                initiator_port: nexus.initiator_port,
                group: nexus.realm,
                target_ports: nexus.target_ports.iter().map(|port| port.0).collect(),
                released_ports: nexus.released_ports.map(|ports| ports.iter().map(|port| port.0).collect()),
                rejoined_ports: nexus.rejoined_ports.iter().map(|port| port.0).collect(),
                moved_ports: nexus.moved_ports.iter().map(|port| port.0).collect(),
                is_sealed: nexus.is_sealed,
                luns: luns.collect(),
                lost_at: nexus.lost_for.map(|span| now.saturating_sub(span.as_secs())),
            })
        });
        // A disk that these records name may have been replaced since.
        let unclaimed = self.unclaimed.iter().map(|saved| {
            let luns = saved.luns.iter().map(|(number, disk)| (*number, disks.restored_name(*disk)));
            SavedNexus { luns: luns.collect(), ..saved.clone() }
        });
        let all: Vec<SavedNexus> = unclaimed.chain(named).collect();
        let text = file::encode(&all, &self.unreadable);
        if text == self.stored {
            return true;
        }
        if let Err(error) = state.save_bindings(&text, within) {
            // A replacement that takes longer can still happen.
            self.stored.clear();
            crate::warning!(
                "{error}; after a restart, hosts may reach other disks by LUNs that they have used"
            );
            return false;
        }
        self.stored = text;
        true
    }
}

/// A target that another reactor serves from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MovedTarget {
    target: TargetNumber,
    /// The reactor that served it last.
    from: usize,
    /// The reactor that serves it now.
    to: usize,
}

/// Returns the targets that another reactor serves from now on than the one that served them last.
pub(super) fn moved_targets(
    last: &Owners,
    now: &Owners,
    number_of: impl Fn(&str) -> Option<u32>,
) -> Vec<MovedTarget> {
    let moved = now.iter().filter_map(|(name, to)| {
        let from = last.get(name).filter(|from| *from != to)?;
        Some(MovedTarget { target: TargetNumber(number_of(name.as_str())?), from: *from, to: *to })
    });
    moved.collect()
}

/// Adds the bindings of moved targets, which it takes from the reactors that have them. A reactor restores
/// them before it applies the configuration that gives it the target.
pub(super) fn move_bindings(
    moved: &[MovedTarget],
    reactors: &[ReactorThread],
    claimed: &mut ClaimedBindings,
) {
    for MovedTarget { target, from, to } in moved {
        let Some(running) = reactors.get(*from) else { continue };
        let ((sender, receiver), target) = (channel(), *target);
        let posted = running.handle.post(move |member: &mut ReactorShard, now| {
            let _ = sender.send(member.take_bindings(now, target));
        });
        // A reactor that has ended keeps its records from being stored again, and its end stops the daemon.
        if posted.is_ok()
            && let Some(taken) = reactors::wait_for(running, &receiver)
        {
            claimed.entry(*to).or_default().nexuses.extend(taken);
        }
    }
}

/// Sorts the bindings as reactors are to restore them: a reactor forgets those first that it restores first.
pub(super) fn sort_by_age(claimed: &mut ClaimedBindings) {
    for of_reactor in claimed.values_mut() {
        of_reactor.nexuses.sort_by_key(|nexus| Reverse(nexus.lost_for));
    }
}

fn ports_of(numbers: &[u16]) -> Vec<RelativePort> {
    numbers.iter().map(|port| RelativePort(*port)).collect()
}

/// Returns the seconds since 1970.
fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_secs())
}

/// Returns how long ago a port lost its last session; `None` if that is not known, or if the clock was set
/// back.
fn lost_for(lost_at: Option<u64>, now: u64) -> Option<Duration> {
    Some(Duration::from_secs(now.checked_sub(lost_at?)?))
}

/// Returns the bindings of all reactors; `None` if one does not answer.
fn collect(reactors: &[ReactorThread]) -> Option<Vec<NexusBindings>> {
    let ask = |running: &ReactorThread| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut ReactorShard, now| {
            let _ = sender.send(member.bindings(now));
        });
        posted.ok().and_then(|()| receiver.recv_timeout(REACTOR_REPLY_TIMEOUT).ok())
    };
    let answers = reactors.iter().map(ask).collect::<Option<Vec<_>>>()?;
    Some(answers.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests;
