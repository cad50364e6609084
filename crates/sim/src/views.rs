//! What each initiator knows of the LUNs that reloads change, and which disk it may find under each.
//!
//! Workloads name disks. A host knows a disk only by a LUN under which it has found the disk. To find it, the
//! host sends INQUIRY (page 83h) to the LUN; from then on it sends commands to that LUN whatever reloads do.
//! Each command of a workload is therefore addressed to a LUN under which its disk was found, or replaced by
//! such an INQUIRY.

use std::collections::{BTreeMap, BTreeSet};

use base::rng::Rng;
use base::time::{Duration, Instant};

use crate::layout::{Layout, LayoutChange, MappedDisk};
use crate::oracle_adapter::Effect;
use crate::property::{Property, PropertyViolation};
use crate::scenario::{ReloadPlan, Scenario, pick};
use crate::transport::{Attribute, CommandOutcome, ScsiCommand, TaskManagement, Ticket};
use crate::units;

/// The knowledge of all initiators, and the configuration in force.
pub struct InitiatorViews {
    plan: ReloadPlan,
    disks: u16,
    rng: Rng,
    /// The configuration in force.
    layout: Layout,
    /// The configuration that was last requested; it may wait until a disk is closed.
    wanted: Layout,
    hosts: Vec<Host>,
    sent: BTreeMap<Ticket, Sent>,
    managing: BTreeMap<Ticket, (usize, u16)>,
    /// How many commands may be sent until the next reload; `due` is the time of that reload at the latest.
    orders_left: u64,
    due: Instant,
    /// Whether the last reload was requested.
    over: bool,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

#[derive(Clone, Debug, Default)]
struct Host {
    /// The disk that it found first under each LUN.
    opened: BTreeMap<u16, u16>,
    /// The LUNs that have led to another disk, or to none, than at first.
    moved: BTreeSet<u16>,
    /// How often its LUNs were changed.
    changes: u64,
    /// How often it received REPORTED LUNS DATA HAS CHANGED, by LUN.
    attentions: BTreeMap<u16, u64>,
    /// Whether it may lose its session: its access was taken away, or it requested the loss itself.
    may_lose_session: bool,
    /// When its access was last taken or given, or a reset was last requested.
    refused: Option<Instant>,
}

/// A command that has not ended.
struct Sent {
    initiator: usize,
    lun: u16,
    /// The disk that the command is meant for; `None` for an INQUIRY to a LUN that was not opened.
    disk: Option<u16>,
    asks: bool,
    /// Whether the command is answered at a LUN without a unit (INQUIRY, REPORT LUNS, REQUEST SENSE).
    needs_no_unit: bool,
    /// The mappings that its LUN has had since the command was sent.
    seen: Vec<Option<MappedDisk>>,
    /// Whether a disk that its LUN led to became read-only for its initiator since, under any LUN.
    protected: bool,
}

impl Sent {
    fn leads(&self, shown: &Option<MappedDisk>) -> bool {
        shown.is_some_and(|shown| self.disk.is_none_or(|disk| disk == shown.disk))
    }

    /// Returns whether its LUN led to another disk, or to none, at some time.
    fn was_hidden(&self) -> bool {
        !self.seen.iter().all(|shown| self.leads(shown))
    }
}

const OPENS: &str = "LUNs that were opened";
const GONE: &str = "commands ended because their LUN was gone";
const BARRED: &str = "commands ended because their LUN was another disk's";
const MANAGED_GONE: &str = "task management functions of LUNs that were gone";
const REFUSED: &str = "sessions ended because their access was taken";
const TOLD: &str = "initiators told that their LUNs changed";
const PROTECTED: &str = "writes refused because their access was taken";

/// All events that views count, besides reloads.
const COUNTED: [&str; 7] = [OPENS, GONE, BARRED, MANAGED_GONE, REFUSED, TOLD, PROTECTED];

/// Every kind of reload.
const CHANGES: [LayoutChange; 10] = [
    LayoutChange::Remove,
    LayoutChange::Add,
    LayoutChange::Swap,
    LayoutChange::Replace,
    LayoutChange::Remap,
    LayoutChange::Refuse,
    LayoutChange::Admit,
    LayoutChange::Protect,
    LayoutChange::Restore,
    LayoutChange::Nothing,
];

/// Returns the names of all counters of worlds with reloads.
pub fn counted() -> impl Iterator<Item = &'static str> {
    CHANGES.into_iter().map(LayoutChange::counted_as).chain(COUNTED)
}

impl InitiatorViews {
    /// Starts with hosts that have opened nothing.
    pub fn new(scenario: &Scenario, plan: ReloadPlan, now: Instant, seed: u64) -> Self {
        let layout = Layout::first(scenario.initiators, plan.luns);
        Self {
            plan,
            disks: scenario.units,
            rng: Rng::from_seed(seed),
            wanted: layout.clone(),
            layout,
            hosts: vec![Host::default(); scenario.initiators],
            sent: BTreeMap::new(),
            managing: BTreeMap::new(),
            orders_left: plan.every,
            due: now.after(plan.within),
            over: false,
            counts: BTreeMap::new(),
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Returns whether nothing but reloads goes wrong.
    pub const fn is_calm(&self) -> bool {
        self.plan.calm
    }

    /// Returns when the next reload happens at the latest.
    pub fn next(&self) -> Option<Instant> {
        (!self.over).then_some(self.due)
    }

    /// Returns the configuration that is to be applied now, if a reload is due.
    pub fn reload(&mut self, now: Instant) -> Option<(LayoutChange, Layout)> {
        if self.over || self.orders_left > 0 && now < self.due {
            return None;
        }
        self.orders_left = 1 + self.rng.below(self.plan.every);
        self.due = now.after(self.plan.within);
        let change = (0..8).find_map(|_| self.wanted.change(&mut self.rng, &self.plan, self.disks))?;
        self.count(change.counted_as());
        Some((change, self.wanted.clone()))
    }

    /// Returns the last configuration, which is the first one again.
    pub fn end(&mut self) -> Layout {
        self.over = true;
        self.wanted = Layout::first(self.hosts.len(), self.plan.luns);
        self.wanted.clone()
    }

    /// Records that another configuration is in force.
    pub fn layout_applied(&mut self, now: Instant, layout: Layout) {
        for (at, host) in self.hosts.iter_mut().enumerate() {
            let (old, new) = (&self.layout.rows[at], &layout.rows[at]);
            host.changes += u64::from(old != new);
            host.may_lose_session |= !new.admitted;
            let disk_of = |layout: &Layout, lun| layout.mapping(at, lun).map(|shown| shown.disk);
            let luns = 0..self.plan.luns;
            host.moved.extend(luns.filter(|lun| disk_of(&self.layout, *lun) != disk_of(&layout, *lun)));
            if !(old.admitted && new.admitted) {
                host.refused = Some(now);
            }
        }
        self.layout = layout;
        for sent in self.sent.values_mut() {
            sent.seen.push(self.layout.mapping(sent.initiator, sent.lun));
            // The access of a nexus to a disk is the same under each of its LUNs.
            let is_own = |shown: &MappedDisk| sent.seen.iter().flatten().any(|own| own.disk == shown.disk);
            let luns = self.layout.rows[sent.initiator].luns.values();
            sent.protected |= luns.filter(|shown| is_own(shown)).any(|shown| shown.read_only);
        }
    }

    /// Addresses a command to a LUN under which its initiator found the disk that the command is meant for,
    /// or replaces it by an INQUIRY for page 83h.
    pub fn address(
        &mut self,
        initiator: usize,
        mut order: ScsiCommand,
        meaning: Effect,
    ) -> (ScsiCommand, Effect) {
        self.orders_left = self.orders_left.saturating_sub(1);
        let opened = &self.hosts[initiator].opened;
        let luns: Vec<u16> =
            opened.iter().filter(|(_, disk)| **disk == order.unit).map(|(lun, _)| *lun).collect();
        if luns.is_empty() || self.rng.chance(1, 12) {
            let lun = u16::try_from(self.rng.below(self.plan.luns.into())).unwrap();
            return (inquire_device_id(lun), Effect::Nothing);
        }
        order.unit = *pick(&mut self.rng, &luns);
        (order, meaning)
    }

    /// Addresses a task management function to a LUN.
    pub fn address_function(&mut self, initiator: usize, function: TaskManagement) -> TaskManagement {
        let opened = &self.hosts[initiator].opened;
        let lun_of = |disk: u16| {
            let found = opened.iter().find(|(_, known)| **known == disk);
            found.map_or(disk % self.plan.luns, |(lun, _)| *lun)
        };
        match function {
            TaskManagement::AbortTaskSet(disk) => TaskManagement::AbortTaskSet(lun_of(disk)),
            TaskManagement::ClearTaskSet(disk) => TaskManagement::ClearTaskSet(lun_of(disk)),
            TaskManagement::UnitReset(disk) => TaskManagement::UnitReset(lun_of(disk)),
            other => other,
        }
    }

    /// Records that a command is about to be sent.
    pub fn sent(&mut self, initiator: usize, ticket: Ticket, order: &ScsiCommand) {
        let lun = order.unit;
        let asks = order.cdb == INQUIRY_DEVICE_ID;
        let sent = Sent {
            initiator,
            lun,
            disk: self.hosts[initiator].opened.get(&lun).copied(),
            asks,
            needs_no_unit: matches!(order.cdb.first(), Some(0x03 | 0x12 | 0xa0)),
            seen: vec![self.layout.mapping(initiator, lun)],
            protected: false,
        };
        self.sent.insert(ticket, sent);
    }

    /// Records that a task management function is requested.
    pub fn asked(&mut self, now: Instant, initiator: usize, ticket: Ticket, function: TaskManagement) {
        match function {
            TaskManagement::AbortTaskSet(lun)
            | TaskManagement::ClearTaskSet(lun)
            | TaskManagement::UnitReset(lun) => {
                self.managing.insert(ticket, (initiator, lun));
            }
            TaskManagement::AbortTask(task) | TaskManagement::QueryTask(task) => {
                if let Some(sent) = self.sent.get(&task) {
                    self.managing.insert(ticket, (initiator, sent.lun));
                }
            }
            // A reset of the target ends every session with it.
            TaskManagement::ColdReset | TaskManagement::WarmReset => {
                self.hosts
                    .iter_mut()
                    .for_each(|host| (host.may_lose_session, host.refused) = (true, Some(now)));
            }
        }
    }

    /// Records that a task management function was answered.
    pub fn managed(&mut self, ticket: Ticket, answer: Option<bool>) {
        let Some((initiator, lun)) = self.managing.remove(&ticket) else { return };
        if answer.is_some() && self.layout.mapping(initiator, lun).is_none() {
            self.count(MANAGED_GONE);
        }
    }

    /// Returns whether the LUN of a command has led to another disk, or to none, at some time since the
    /// command was sent.
    pub fn was_hidden(&self, ticket: Ticket) -> bool {
        self.sent.get(&ticket).is_some_and(Sent::was_hidden)
    }

    /// Returns whether a command may find no unit: its LUN has led to another disk, or to none, since it was
    /// sent, or before, and the nexus had opened it. An INQUIRY whose answer is under way opens a LUN.
    pub fn may_find_no_unit(&self, ticket: Ticket) -> bool {
        self.sent.get(&ticket).is_some_and(|sent| {
            let was_moved = self.hosts[sent.initiator].moved.contains(&sent.lun);
            sent.was_hidden() || sent.asks && was_moved
        })
    }

    /// Records that an initiator ends its I_T nexus because a function was not answered.
    pub fn gives_up(&mut self, initiator: usize) {
        self.hosts[initiator].may_lose_session = true;
    }

    /// Records that an initiator has a session.
    pub fn up(&mut self, now: Instant, initiator: usize) {
        // A session may have been refused, or reset, while it began. The report of its end may still be under
        // way.
        let host = &mut self.hosts[initiator];
        let was_refused = host.refused.is_some_and(|at| now.since(at) < NEWS_WITHIN);
        host.may_lose_session = was_refused || !self.layout.rows[initiator].admitted;
    }

    /// Records that an initiator lost its session. Returns a violation if it may not.
    pub fn down(&mut self, initiator: usize) -> Option<PropertyViolation> {
        if !self.layout.rows[initiator].admitted {
            self.count(REFUSED);
        }
        let excused = self.hosts[initiator].may_lose_session || !self.plan.calm;
        (!excused).then(|| {
            PropertyViolation::new(Property::Undisturbed, format!("initiator {initiator} lost its session"))
        })
    }

    /// Records how a command ended. Returns the property that this breaks, if any.
    pub fn ended(&mut self, ticket: Ticket, ended: &CommandOutcome) -> Option<PropertyViolation> {
        let sent = self.sent.remove(&ticket)?;
        let CommandOutcome::Status { status, data, .. } = ended else { return None };
        let (initiator, lun) = (sent.initiator, sent.lun);
        let order = format!("order {} of initiator {initiator} to LUN {lun}", ticket.0);
        if *status == GOOD {
            if sent.asks {
                return self.found(&sent, &order, data);
            }
            let disk = sent.disk?;
            let led = sent.seen.iter().any(|shown| sent.leads(shown));
            let wrong = !led && !sent.needs_no_unit;
            return wrong.then(|| {
                PropertyViolation::new(
                    Property::Opened,
                    format!("{order} was carried out, though it never led to disk {disk}"),
                )
            });
        }
        match crate::oracle_adapter::sense_code(ended)? {
            (ILLEGAL_REQUEST, NO_LUN) => {
                let barred = |shown: &Option<MappedDisk>| shown.is_some() && !sent.leads(shown);
                self.count(if sent.seen.iter().any(barred) { BARRED } else { GONE });
                let wrong = sent.disk.is_some() && !sent.was_hidden();
                wrong.then(|| {
                    PropertyViolation::new(
                        Property::Undisturbed,
                        format!("{order} found no unit, though its LUN did not change"),
                    )
                })
            }
            (DATA_PROTECT, WRITE_PROTECTED) => {
                self.count(PROTECTED);
                let read_only = |shown: &Option<MappedDisk>| shown.is_some_and(|shown| shown.read_only);
                let wrong = !sent.protected && !sent.seen.iter().any(read_only);
                wrong.then(|| {
                    PropertyViolation::new(
                        Property::Undisturbed,
                        format!("{order} was refused, though its initiator may write"),
                    )
                })
            }
            (UNIT_ATTENTION, LUNS_CHANGED) => {
                self.count(TOLD);
                let host = &mut self.hosts[initiator];
                let told = host.attentions.entry(lun).or_default();
                *told += 1;
                let wrong = *told > host.changes;
                wrong.then(|| {
                    PropertyViolation::new(
                        Property::Undisturbed,
                        format!("{order} is told that LUNs changed, and none did"),
                    )
                })
            }
            _ => None,
        }
    }

    /// Records which disk a host found under a LUN. Returns the property that this breaks, if any.
    fn found(&mut self, sent: &Sent, order: &str, data: &[u8]) -> Option<PropertyViolation> {
        let prefix = &units::naa(0)[..14];
        let at = data.windows(prefix.len()).position(|bytes| bytes == prefix)? + prefix.len();
        let found = u16::from_be_bytes([*data.get(at)?, *data.get(at + 1)?]);
        let (initiator, lun) = (sent.initiator, sent.lun);
        if let Some(opened) = self.hosts[initiator].opened.get(&lun).copied() {
            let wrong = found != opened;
            return wrong.then(|| {
                PropertyViolation::new(
                    Property::Opened,
                    format!("{order} found disk {found}, and disk {opened} before"),
                )
            });
        }
        let configured = sent.seen.iter().any(|shown| shown.is_some_and(|shown| shown.disk == found));
        self.hosts[initiator].opened.insert(lun, found);
        self.count(OPENS);
        (!configured).then(|| {
            PropertyViolation::new(
                Property::Configured,
                format!("{order} found disk {found}, which is not there"),
            )
        })
    }
}

/// INQUIRY, page 83h.
const INQUIRY_DEVICE_ID: [u8; 6] = [0x12, 1, 0x83, 1, 0, 0];

fn inquire_device_id(lun: u16) -> ScsiCommand {
    ScsiCommand {
        unit: lun,
        cdb: INQUIRY_DEVICE_ID.to_vec(),
        data_out: Vec::new(),
        data_in_len: 256,
        attribute: Attribute::Simple,
        immediate: false,
        replay: true,
    }
}

/// The longest time until an initiator learns that its session is over.
const NEWS_WITHIN: Duration = Duration::from_secs(5);

const GOOD: u8 = 0;
const ILLEGAL_REQUEST: u8 = 0x5;
const UNIT_ATTENTION: u8 = 0x6;
const DATA_PROTECT: u8 = 0x7;
const NO_LUN: u16 = 0x2500;
const WRITE_PROTECTED: u16 = 0x2700;
const LUNS_CHANGED: u16 = 0x3f0e;
