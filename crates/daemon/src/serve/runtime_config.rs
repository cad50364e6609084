//! The runtime configuration: identifiers for everything that is configured, and the plain values that the
//! shards are built from.
//!
//! Identifiers are assigned once, on the thread that reads configurations, and stay with the items that they
//! identify across reloads. The values for a shard are made on the reactor's thread, where they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use base::ether::EtherPort;
use base::state_machine::PortalId;
use device::contract::{Access, DeviceKind, Identity, RelativePort, TargetPort, UnitConfig};
use hyperscsi::frame::TAGS;
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::name::GroupName;
use iscsi::chap::Algorithms;
use iscsi::login::directory::{AuthPolicy, TargetAddress, TargetId};
use iscsi::name::{IscsiName, PortalGroupTag};
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use security::opaque::{Password, PasswordRecord, USUAL_COST};
use shard::config::{
    AuthConfig, DiscoveryConfig, GroupConfig, HyperScsiConfig, InitiatorEntry, InitiatorQuota, LunEntry,
    Portal, ShardConfig, TargetConfig,
};
use target::units::{MAX_UNITS as UNIT_IDS, UnitId};

use super::client_certificates::certificates_of;
use super::placement::{Owners, Placement};
use super::target_ports::TargetPorts;
use crate::config::{
    Announced, Auth, AuthMethods, Config, Group, GroupPassword, GroupSecret, GroupSet, MappedLun, Medium,
    Target, UNITS_MAX, Unit, UnitIndex, UnitKey,
};

/// The PROTOCOL IDENTIFIER of iSCSI (SPC-5 §7.6).
const PROTOCOL_ISCSI: u8 = 5;

/// The single target port group, which contains every port: all paths are active/optimized.
const PORT_GROUP: u16 = 1;

/// The longest transfer in bytes that a unit accepts in one command. Initiators split longer transfers; a
/// smaller limit would cost them more commands without benefit.
const TRANSFER_BYTES_MAX: u32 = 8 << 20;
// Third-party copies between LUNs need transfers of this length.
const _: () = assert!(TRANSFER_BYTES_MAX >= device::contract::THIRD_PARTY_TRANSFER_MAX);
// The longest read of a tape drive is accounted for as that of a disk is.
const _: () = assert!(TRANSFER_BYTES_MAX >= device::contract::TAPE_TRANSFER_MAX);
// The longest read is accounted for as a whole before it begins.
const _: () = assert!(TRANSFER_BYTES_MAX as usize <= iscsi::target::engine::Limits::UNSENT_BYTES_MAX);
const _: () =
    assert!(TRANSFER_BYTES_MAX as usize <= hyperscsi::target::engine::EngineLimits::UNSENT_BYTES_MAX);

// While a configuration replaces another one, the units of both have numbers.
const _: () = assert!(UNIT_IDS >= 2 * UNITS_MAX);

/// The most tasks in a unit's task set: the largest command window (4096) for each of four busy initiators.
const TASK_SET_MAX: u16 = 16_384;

/// The receive buffer of an interface in bytes, as the kernel counts: for all reactors together, and the
/// least for one reactor.
const RECEIVE_BYTES: usize = 64 << 20;
const RECEIVE_BYTES_MIN: usize = 8 << 20;

/// Assigns identifiers. An item that was configured before gets the same identifier again.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdAllocator {
    portals: BTreeMap<(SocketAddr, bool, usize), u32>,
    targets: BTreeMap<IscsiName, u32>,
    units: BTreeMap<UnitKey, u32>,
    next_unit: u32,
    interfaces: BTreeMap<String, u32>,
    /// The password records of the groups. Making one is slow, so it is made again only when the password
    /// changes.
    records: BTreeMap<GroupName, (GroupSecret, Arc<PasswordRecord>)>,
    /// The relative target port identifiers, which persist across restarts.
    pub(crate) ports: TargetPorts,
    /// The number of reactors.
    pub(crate) reactors: usize,
}

/// A configuration with identifiers.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeConfig {
    pub(crate) config: Arc<Config>,
    /// For each portal of the configuration: its identifier, and its actual listening address.
    pub(crate) portals: Vec<(PortalId, SocketAddr)>,
    /// For each target: its identifier, and the reactor that owns it.
    targets: Vec<(TargetId, usize)>,
    /// For each interface: its identifier and name.
    pub(crate) interfaces: Vec<(EtherPort, String)>,
    /// The password records, by index of each HyperSCSI group with a password.
    records: BTreeMap<usize, Arc<PasswordRecord>>,
    reactors: usize,
    /// For each unit: its identifier.
    units: Vec<UnitId>,
    /// The index of each unit.
    indices: Arc<BTreeMap<UnitId, usize>>,
    /// For each unit: the indices of the targets that show it, in ascending order.
    showing: Arc<Vec<Vec<usize>>>,
    /// For each target: the port of each of its portal group tags.
    ports: Vec<BTreeMap<u16, RelativePort>>,
    /// For each target: the port of each group that the target is exported to, by index of the group. The
    /// port's identifier is its tag as well.
    group_ports: Vec<BTreeMap<usize, RelativePort>>,
}

impl IdAllocator {
    /// Assigns identifiers to the portals of a configuration. A portal that gets TLS or loses it is another
    /// one, so that the identifier tells whether a connection is inside TLS.
    pub(crate) fn portals(&mut self, config: &Config) -> Vec<PortalId> {
        let mut met = BTreeMap::new();
        let mut ids = Vec::new();
        for portal in &config.portals {
            // Several portals may ask for any free port of the same address.
            let nth = met.entry(portal.listen).and_modify(|n| *n += 1).or_insert(0);
            let next = u32::try_from(self.portals.len()).unwrap_or(u32::MAX);
            let key = (portal.listen, portal.tls.is_some(), *nth);
            ids.push(PortalId(*self.portals.entry(key).or_insert(next)));
        }
        ids
    }

    /// Assigns identifiers to new target ports, and makes the password records of groups.
    ///
    /// # Errors
    /// A sentence that says why an identifier or record cannot be made.
    pub(crate) fn assign_ports_and_records(&mut self, config: &Config) -> Result<(), String> {
        self.ports.assign(config)?;
        for group in config.hyperscsi.iter().flat_map(|frames| &frames.groups) {
            let Some(secret) = &group.password else { continue };
            if self.records.get(&group.name).is_some_and(|(known, _)| known == secret) {
                continue;
            }
            let record = match secret {
                GroupSecret::Record(record) => Arc::clone(record),
                GroupSecret::Password(password) => make_record(&group.name, password)?,
            };
            self.records.insert(group.name.clone(), (secret.clone(), record));
        }
        Ok(())
    }

    /// Returns the number of a target that was configured once.
    pub(crate) fn target_number(&self, name: &str) -> Option<u32> {
        let number_of = |(known, number): (&IscsiName, &u32)| (known.as_str() == name).then_some(*number);
        self.targets.iter().find_map(number_of)
    }

    /// Returns the name of the target with a number.
    pub(crate) fn target_name(&self, number: u32) -> Option<String> {
        let found = self.targets.iter().find(|(_, known)| **known == number);
        found.map(|(name, _)| name.to_string())
    }

    /// Gives interfaces the numbers that another process knows them by.
    pub(crate) fn restore_interfaces(&mut self, interfaces: &[(EtherPort, String)]) {
        self.interfaces.extend(interfaces.iter().map(|(port, name)| (name.clone(), port.0)));
    }

    /// Assigns identifiers to all other items. `listening` has the actual address of each portal.
    pub(crate) fn runtime_config(
        &mut self,
        config: Arc<Config>,
        listening: &[SocketAddr],
        owners: &Owners,
    ) -> RuntimeConfig {
        let portals = self.portals(&config).into_iter().zip(listening.iter().copied()).collect();
        let targets = config.targets.iter().map(|target| {
            let next = u32::try_from(self.targets.len()).unwrap_or(u32::MAX);
            let id = TargetId(*self.targets.entry(target.name.clone()).or_insert(next));
            (id, owners.get(&target.name).copied().unwrap_or(0))
        });
        let targets = targets.collect();
        let keys: Vec<UnitKey> = config.units.iter().map(Unit::key).collect();
        // The numbers of the units that are served now are not free before this configuration is applied: a
        // new unit with such a number would be taken for the unit that is served.
        let units: Vec<UnitId> = keys.iter().map(|key| UnitId(self.unit(key))).collect();
        let known: BTreeSet<&UnitKey> = keys.iter().collect();
        self.units.retain(|key, _| known.contains(key));
        let indices = Arc::new(units.iter().enumerate().map(|(at, id)| (*id, at)).collect());
        let showing = Arc::new(showing(&config));
        let ports = config.targets.iter().map(|target| self.ports.of_portals(&config, target)).collect();
        let group_ports = config.targets.iter().map(|target| self.ports.of_groups(&config, target)).collect();
        let (mut interfaces, mut records) = (Vec::new(), BTreeMap::new());
        if let Some(frames) = &config.hyperscsi {
            for name in &frames.interfaces {
                let number = self.interface(name);
                interfaces.push((EtherPort(number), name.clone()));
            }
            let known = frames
                .groups
                .iter()
                .map(|group| self.records.get(&group.name).filter(|_| group.password.is_some()));
            records.extend(known.enumerate().filter_map(|(at, known)| Some((at, Arc::clone(&known?.1)))));
        }
        let reactors = self.reactors.max(1);
        RuntimeConfig {
            config,
            portals,
            targets,
            interfaces,
            records,
            reactors,
            units,
            indices,
            showing,
            ports,
            group_ports,
        }
    }

    /// Assigns a number to an interface. Lower numbers can be those of interfaces that were removed before
    /// this process took over.
    fn interface(&mut self, name: &str) -> u32 {
        let next = self.interfaces.values().max().map_or(0, |highest| highest.saturating_add(1));
        *self.interfaces.entry(name.to_owned()).or_insert(next)
    }

    /// Assigns an identifier to a unit. Identifiers of removed units are used again as late as possible.
    fn unit(&mut self, key: &UnitKey) -> u32 {
        if let Some(number) = self.units.get(key) {
            return *number;
        }
        let taken = |number: u32| self.units.values().any(|other| *other == number);
        let from = self.next_unit;
        // There is a free number: the units that are served and the new ones are at most twice UNITS_MAX.
        let number = (from..UNIT_IDS).chain(0..from).find(|number| !taken(*number)).unwrap_or(UNIT_IDS);
        self.next_unit = (number + 1) % UNIT_IDS;
        self.units.insert(key.clone(), number);
        number
    }
}

/// Returns, for each unit, the indices of the targets that show it.
fn showing(config: &Config) -> Vec<Vec<usize>> {
    let mut showing: Vec<Vec<usize>> = vec![Vec::new(); config.units.len()];
    for (at, target) in config.targets.iter().enumerate() {
        for lun in &target.luns {
            if let Some(targets) = showing.get_mut(lun.unit.0)
                && targets.last() != Some(&at)
            {
                targets.push(at);
            }
        }
    }
    showing
}

impl RuntimeConfig {
    /// Returns the units that a reactor serves, with their identifiers. No reactor serves a unit that no
    /// target shows.
    pub(crate) fn units(&self, reactor: usize) -> impl Iterator<Item = (UnitId, UnitIndex, &Unit)> {
        let owner = |target: &usize| self.targets.get(*target).map(|(_, owner)| *owner);
        let owned = move |index: UnitIndex| {
            let showing = self.showing.get(index.0);
            showing.is_some_and(|targets| targets.iter().any(|target| owner(target) == Some(reactor)))
        };
        let units = self.units.iter().zip(&self.config.units).enumerate();
        units.map(|(at, (id, unit))| (*id, UnitIndex(at), unit)).filter(move |(_, index, _)| owned(*index))
    }

    /// Returns the name of a portal in quotes, or its address if it has none; `None` if the portal was
    /// removed.
    pub(crate) fn portal_name(&self, id: PortalId) -> Option<String> {
        let mut portals = self.config.portals.iter().zip(&self.portals);
        let (portal, (_, address)) = portals.find(|(_, (known, _))| *known == id)?;
        Some(portal.name.as_ref().map_or_else(|| address.to_string(), |name| format!("\"{name}\"")))
    }

    /// Returns a unit and its index by identifier.
    pub(crate) fn find(&self, id: UnitId) -> Option<(UnitIndex, &Unit)> {
        let at = *self.indices.get(&id)?;
        Some((UnitIndex(at), self.config.units.get(at)?))
    }

    /// Returns a unit by identifier.
    pub(crate) fn unit(&self, id: UnitId) -> Option<&Unit> {
        self.find(id).map(|(_, unit)| unit)
    }

    /// Returns the identifier of a unit.
    pub(crate) fn number(&self, index: UnitIndex) -> Option<UnitId> {
        self.units.get(index.0).copied()
    }

    /// Returns whether a unit is in `before` with other properties or other ports.
    pub(crate) fn presents_otherwise(&self, before: &Self, id: UnitId) -> bool {
        let of = |runtime: &Self| {
            let (index, unit) = runtime.find(id)?;
            Some((unit.clone(), runtime.unit_config(index)?.ports))
        };
        matches!((of(before), of(self)), (Some(was), Some(is)) if was != is)
    }

    /// Returns whether a unit has to be changed before LUNs lead to it by this configuration: compared with
    /// the configuration `before`, it becomes read-only or has another target port.
    pub(crate) fn is_changed_first(&self, before: &Self, id: UnitId) -> bool {
        let (Some((was_index, was)), Some((index, unit))) = (before.find(id), self.find(id)) else {
            return false;
        };
        let ports = |runtime: &Self, index| runtime.unit_config(index).map(|config| config.ports);
        let (was_ports, ports) = (ports(before, was_index), ports(self, index));
        let known = |port| was_ports.iter().any(|was_ports| was_ports.contains(port));
        (unit.read_only && !was.read_only) || ports.iter().any(|ports| !ports.iter().all(known))
    }

    /// Returns the present placement of targets and units on reactors.
    pub(crate) fn placement(&self) -> Placement {
        let reactors = self.targets.iter().map(|(_, owner)| *owner).collect::<BTreeSet<_>>();
        let units =
            reactors.into_iter().flat_map(|at| self.units(at).map(move |(.., unit)| (unit.key(), at)));
        Placement { targets: self.owners(), units: units.collect(), former: Owners::new() }
    }

    /// Returns the reactor that owns each target.
    pub(crate) fn owners(&self) -> Owners {
        let targets = self.config.targets.iter().zip(&self.targets);
        targets.map(|(target, (_, owner))| (target.name.clone(), *owner)).collect()
    }

    /// Makes the configuration of a reactor's shard.
    ///
    /// Targets of other reactors are in it as well, without LUNs and with a limit of no sessions, so that
    /// discovery, which any reactor can handle, returns all targets.
    pub(crate) fn shard_config(&self, reactor: usize) -> ShardConfig {
        let portals = self.config.portals.iter().zip(&self.portals);
        let mut targets: Vec<TargetConfig> =
            (0..self.config.targets.len()).filter_map(|at| self.target_config(at, reactor)).collect();
        targets.sort_by(|a, b| a.name.cmp(&b.name));
        // A discovery session carries only names: no target's policy applies, so every initiator that may
        // discover gets an answer.
        let offer = DigestPolicy::PreferCrc32c;
        let keys = KeyPolicy { header_digest: offer, data_digest: offer, ..KeyPolicy::default() };
        ShardConfig {
            portals: portals
                .map(|(portal, (id, listening))| Portal {
                    id: *id,
                    group: PortalGroupTag(portal.tag),
                    bound: (!listening.ip().is_unspecified()).then_some(*listening),
                    announced: portal.announce.as_ref().map(address),
                    tls: portal.tls.is_some(),
                    certificates: portal.tls.as_ref().and_then(certificates_of),
                })
                .collect(),
            targets,
            frames: self.frames_config(reactor),
            discovery: DiscoveryConfig { enabled: true, auth: auth(&self.config.discovery_auth), keys },
        }
    }

    /// Makes the configuration of a reactor's shard as if it owned all targets, to compare records with:
    /// those of a target that moves to another reactor are in the former one until then.
    pub(crate) fn shard_config_with_all_luns(&self, reactor: usize) -> ShardConfig {
        let owned = |(at, (_, owner)): (usize, &(TargetId, usize))| self.target_config(at, *owner);
        let targets = self.targets.iter().enumerate().filter_map(owned).collect();
        ShardConfig { targets, ..self.shard_config(reactor) }
    }

    /// Returns the receive buffer of each reactor at an interface in bytes, as the kernel counts.
    pub(crate) fn receive_bytes(&self) -> usize {
        (RECEIVE_BYTES / self.reactors.max(1)).max(RECEIVE_BYTES_MIN)
    }

    /// Returns the range of the first byte of the session identifiers of a reactor's HyperSCSI sessions. By
    /// this byte the kernel steers frames to the reactor.
    pub(crate) fn steering(&self, reactor: usize) -> RangeInclusive<u8> {
        let bound = |at: usize| u8::try_from((at * 256 / self.reactors).min(255)).unwrap_or(u8::MAX);
        let first = bound(reactor);
        let last = if reactor + 1 >= self.reactors { u8::MAX } else { bound(reactor + 1).saturating_sub(1) };
        first..=last.max(first)
    }

    fn frames_config(&self, reactor: usize) -> HyperScsiConfig {
        let Some(frames) = &self.config.hyperscsi else { return HyperScsiConfig::default() };
        let group = |(at, group): (usize, &Group)| GroupConfig {
            name: group.name.clone(),
            access: self
                .records
                .get(&at)
                .map_or(GroupAccess::Open, |known| GroupAccess::Password(Arc::clone(known))),
            min_level: group.min_protection,
            ports: group.interfaces.as_ref().map(|places| {
                places.iter().filter_map(|place| self.interfaces.get(*place)).map(|(port, _)| *port).collect()
            }),
        };
        HyperScsiConfig {
            instance: crate::config::instance(&self.config.state_dir),
            steering: *self.steering(reactor).start(),
            groups: frames.groups.iter().enumerate().map(group).collect(),
        }
    }

    /// Returns the names of the groups in a set.
    fn groups(&self, set: GroupSet) -> Vec<GroupName> {
        let groups = self.config.hyperscsi.iter().flat_map(|frames| &frames.groups).enumerate();
        groups.filter(|(at, _)| set.has(*at)).map(|(_, group)| group.name.clone()).collect()
    }

    /// Returns the groups that a target is exported to, with the target's ports for them.
    fn exports(&self, at: usize) -> Vec<(GroupName, RelativePort)> {
        let groups = self.config.hyperscsi.iter().flat_map(|frames| frames.groups.iter().enumerate());
        let port = |place: usize| self.group_ports.get(at)?.get(&place).copied();
        groups.filter_map(|(place, group)| Some((group.name.clone(), port(place)?))).collect()
    }

    fn target_config(&self, at: usize, reactor: usize) -> Option<TargetConfig> {
        let target = self.config.targets.get(at)?;
        let (id, owner) = *self.targets.get(at)?;
        let ours = owner == reactor;
        let ports = self.ports.get(at)?;
        let port = |index: &usize| {
            let portal = self.config.portals.get(*index)?;
            Some((self.portals.get(*index)?.0, *ports.get(&portal.tag)?))
        };
        Some(TargetConfig {
            id,
            name: target.name.clone(),
            alias: target.alias.clone(),
            ports: target.portals.iter().filter_map(port).collect(),
            luns: if ours { self.luns(&target.luns) } else { Vec::new() },
            initiators: self.initiators(target, ours),
            auth: auth(&target.auth),
            keys: target.keys.clone(),
            groups: self.exports(at),
            // Initiators leave one of two slots free for task management.
            exchanges: u16::try_from(target.limits.queue_depth).unwrap_or(TAGS).clamp(2, TAGS),
            session_limits: (target.limits != self.config.limits).then_some(target.limits),
            sessions_max: if ours { u32::from(target.max_sessions) } else { 0 },
        })
    }

    fn initiators(&self, target: &Target, ours: bool) -> Vec<InitiatorEntry> {
        let Some(acl) = &target.acl else { return Vec::new() };
        let mut rows: Vec<InitiatorEntry> = Vec::new();
        for entry in acl {
            let luns = if ours { self.luns(&entry.luns) } else { Vec::new() };
            let own_auth = (entry.auth != target.auth).then(|| auth(&entry.auth));
            rows.extend(entry.initiators.iter().map(|pattern| InitiatorEntry {
                pattern: Rc::from(pattern.as_str()),
                luns: Some(luns.clone()),
                auth: own_auth.clone(),
                quota: entry.quota,
            }));
        }
        if rows.is_empty() {
            // An access list without rows would admit every initiator. This row fits no initiator, since no
            // name is empty.
            let quota = InitiatorQuota::default();
            rows.push(InitiatorEntry { pattern: Rc::from(""), luns: Some(Vec::new()), auth: None, quota });
        }
        rows
    }

    fn luns(&self, luns: &[MappedLun]) -> Vec<LunEntry> {
        let entry = |lun: &MappedLun| {
            let access = if lun.read_only { Access::ReadOnly } else { Access::ReadWrite };
            Some(LunEntry {
                number: lun.lun,
                unit: *self.units.get(lun.unit.0)?,
                access,
                min_level: lun.protection,
                groups: (lun.groups != GroupSet::ALL).then(|| self.groups(lun.groups).into()),
            })
        };
        luns.iter().filter_map(entry).collect()
    }

    /// Makes the device server's configuration of a unit.
    pub(crate) fn unit_config(&self, index: UnitIndex) -> Option<UnitConfig> {
        let unit = self.config.units.get(index.0)?;
        let identity = &unit.identity;
        let showing = self.showing.get(index.0).into_iter().flatten().filter_map(|at| {
            Some((self.config.targets.get(*at)?, self.ports.get(*at)?, self.group_ports.get(*at)?))
        });
        let mut ports: Vec<TargetPort> = showing
            .flat_map(|(target, portals, groups)| {
                let portals = portals.iter().map(|(tag, relative)| (*tag, *relative));
                let groups = groups.values().map(|relative| (relative.0, *relative));
                portals.chain(groups).map(|(tag, relative)| TargetPort {
                    relative,
                    group: PORT_GROUP,
                    port_name: target.name.target_port(PortalGroupTag(tag)),
                    device_name: target.name.as_str().to_owned(),
                    protocol: PROTOCOL_ISCSI,
                })
            })
            .collect();
        ports.sort_by_key(|port| port.relative);
        let exponent = unit.physical_block_size.shift().saturating_sub(unit.block_size.shift());
        Some(UnitConfig {
            identity: Identity {
                vendor: padded(&identity.vendor),
                product: padded(&identity.product),
                revision: padded(&identity.revision),
                serial: identity.serial.clone(),
                naa: identity.naa.bytes().to_vec(),
            },
            device: match unit.medium {
                Medium::Disc { profile, .. } => DeviceKind::Disc { profile },
                Medium::Tape { .. } | Medium::LibraryDrive { .. } => DeviceKind::Tape,
                Medium::Changer { .. } => DeviceKind::Changer,
                Medium::Sg { dangerous_commands, .. } | Medium::VhostUserScsi { dangerous_commands, .. } => {
                    DeviceKind::PassThrough { dangerous_commands }
                }
                _ => DeviceKind::Disk,
            },
            block_size: unit.block_size,
            physical_exponent: u8::try_from(exponent).unwrap_or(0),
            read_only: unit.read_only,
            removable: unit.removable,
            long_cdbs: unit.long_cdbs,
            atomic_blocks: unit.atomic_block_size.map_or(1, |size| size.bytes() / unit.block_size.bytes()),
            thin: unit.thin,
            write_cache: unit.write_cache,
            overrides: unit.claims,
            tasks: unit.tasks,
            task_set_max: TASK_SET_MAX,
            io_timeout: unit.io_timeout,
            limit: unit.limit,
            transfer_blocks_max: TRANSFER_BYTES_MAX >> unit.block_size.shift(),
            ports: Rc::from(ports),
        })
    }
}

/// Makes the record of a group's password.
fn make_record(group: &GroupName, password: &GroupPassword) -> Result<Arc<PasswordRecord>, String> {
    let cannot = |why: &dyn std::fmt::Display| format!("group \"{group}\": {why}");
    let entropy = crate::random::entropy().map_err(|error| cannot(&crate::os_error(&error)))?;
    let secret = Password::new(&password.0).map_err(|error| cannot(&error))?;
    let record = PasswordRecord::make(&secret, group, USUAL_COST, entropy);
    record.map(Arc::new).map_err(|error| cannot(&error))
}

fn auth(auth: &Auth) -> AuthConfig {
    let Auth::Required(AuthMethods { chap, passwords }) = auth else {
        return AuthPolicy { allows_none: true, ..AuthPolicy::default() }.into();
    };
    let policy = AuthPolicy {
        allows_none: false,
        chap: chap.as_ref().map_or(Algorithms::NONE, |chap| chap.algorithms),
        own: chap.as_ref().and_then(|chap| chap.own.clone()),
        opaque: passwords.is_some(),
    };
    let users = chap.iter().map(|chap| chap.user.clone()).collect();
    AuthConfig { policy, users, passwords: passwords.clone() }
}

fn address(announced: &Announced) -> TargetAddress {
    // The zone of an address has a meaning on this host alone (RFC 4007 §11.2).
    let host = match announced.host.split_once('%') {
        Some((ip, _)) => format!("{ip}]"),
        None => announced.host.clone(),
    };
    match format!("{host}:{}", announced.port).parse() {
        Ok(socket) => TargetAddress::Socket(socket),
        Err(_) => TargetAddress::Host { name: announced.host.clone(), port: announced.port },
    }
}

/// Pads a text with spaces, as INQUIRY data requires.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (to, from) in field.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    field
}

#[cfg(test)]
mod tests;
