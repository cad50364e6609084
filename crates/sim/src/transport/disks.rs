//! The units of a shard: its disks, the unit that serves each of them, its saved state, and how a reload adds
//! and removes disks, in the same order as in the daemon; or the units of a library, which no reload changes.

use std::collections::BTreeMap;

use base::buffer::Pool;
use base::state_machine::{MediumId, StreamMachine as _};
use base::time::Instant;
use device::contract::Access;
use shard::config::{InitiatorEntry, LunEntry, ShardConfig};
use shard::shard::Shard;
use target::units::{DiskId, UnitId};

use super::direct::UnitSource;
use crate::layout::{Layout, Row};
use crate::media::Medium;
use crate::scenario::Scenario;
use crate::units;

/// The disks of a shard, or its other units.
pub(super) struct Disks {
    source: Source,
    /// How many there are.
    count: u16,
    saved: Vec<Option<Vec<u8>>>,
    /// The configuration; `None` where every initiator always sees every disk under its own number.
    layout: Option<Layout>,
    /// The unit that serves each disk.
    serving: BTreeMap<u16, UnitId>,
    /// Removed units whose media are not closed yet.
    closing: Vec<(UnitId, u16)>,
    /// A reload that waits until a disk that it serves again is closed.
    waiting: Option<Layout>,
    next_unit: u32,
}

/// The media and the configuration from which a world makes its units.
enum Source {
    /// Each disk is made when it is added.
    Disks(Box<Scenario>, Vec<Medium>),
    /// All units are made together.
    Units(Box<dyn UnitSource>),
}

impl Disks {
    /// Makes so many units of a source.
    pub(super) fn of(source: Box<dyn UnitSource>, count: u16) -> Self {
        Self {
            source: Source::Units(source),
            count,
            saved: vec![None; count.into()],
            layout: None,
            serving: BTreeMap::new(),
            closing: Vec::new(),
            waiting: None,
            next_unit: 0,
        }
    }

    pub(super) fn new(scenario: &Scenario, media: Vec<Medium>) -> Self {
        let layout = scenario.reloads.map(|plan| Layout::first(scenario.initiators, plan.luns));
        Self {
            count: scenario.units,
            saved: vec![None; media.len()],
            source: Source::Disks(Box::new(scenario.clone()), media),
            layout,
            serving: BTreeMap::new(),
            closing: Vec::new(),
            waiting: None,
            next_unit: 0,
        }
    }

    /// Adds the disks of the configuration to a new shard.
    pub(super) fn boot(&mut self, now: Instant, shard: &mut Shard, pool: &Pool) {
        (self.serving, self.closing, self.waiting) = (BTreeMap::new(), Vec::new(), None);
        self.next_unit = 0;
        if let Source::Units(source) = &mut self.source {
            for (number, unit) in (0..).zip(source.build(&self.saved, pool)) {
                let id = UnitId(number.into());
                assert!(shard.add_disk(now, id, unit, DiskId(number.into())), "a free number is taken");
                self.serving.insert(number, id);
            }
            return;
        }
        let disks: Vec<u16> = match &self.layout {
            Some(layout) => layout.disks().into_iter().collect(),
            None => (0..self.count).collect(),
        };
        for disk in disks {
            self.add(now, shard, pool, disk);
        }
    }

    /// Returns whether no disk is being closed and no configuration waits.
    pub(super) fn is_settled(&self) -> bool {
        self.closing.is_empty() && self.waiting.is_none()
    }

    /// Writes the LUNs of the configuration into `config`. `entry` makes the entry of a LUN that leads to a
    /// disk.
    pub(super) fn configure(&self, config: &mut ShardConfig, entry: impl Fn(u16, LunEntry) -> LunEntry) {
        let target = &mut config.targets[0];
        let Some(layout) = &self.layout else {
            target.luns = (0..self.count)
                .map(|disk| entry(disk, LunEntry::new(disk, UnitId(disk.into()), Access::ReadWrite)))
                .collect();
            return;
        };
        let luns_of = |row: &Row| {
            let rows = row.luns.iter().filter_map(|(lun, shown)| {
                let access = if shown.read_only { Access::ReadOnly } else { Access::ReadWrite };
                Some(entry(shown.disk, LunEntry::new(*lun, *self.serving.get(&shown.disk)?, access)))
            });
            rows.collect()
        };
        let rows = layout.rows.iter().enumerate().filter(|(_, row)| row.admitted);
        target.initiators = rows
            .map(|(host, row)| InitiatorEntry {
                pattern: units::initiator(host).into(),
                luns: Some(luns_of(row)),
                auth: None,
                quota: Default::default(),
            })
            .collect();
        if target.initiators.is_empty() {
            // An empty list admits every initiator, so the list names an initiator that does not exist.
            target.initiators = vec![InitiatorEntry {
                pattern: "nobody".into(),
                luns: None,
                auth: None,
                quota: Default::default(),
            }];
        }
    }

    fn add(&mut self, now: Instant, shard: &mut Shard, pool: &Pool, disk: u16) {
        let Source::Disks(scenario, media) = &self.source else { panic!("a library has other units") };
        let at = usize::from(disk);
        let unit = units::unit(disk, scenario, &media[at], self.saved[at].as_deref(), pool);
        let id = if scenario.seed.is_multiple_of(2) { self.lowest_free_number() } else { self.next_number() };
        assert!(shard.add_disk(now, id, unit, DiskId(disk.into())), "a free number is taken");
        self.serving.insert(disk, id);
    }

    /// Returns a unit number that is free. It can be the number of a unit that was just removed; so it is in
    /// half of the worlds.
    fn lowest_free_number(&self) -> UnitId {
        let taken = |id: &UnitId| self.serving.values().any(|known| known == id);
        (0..).map(UnitId).find(|id| !taken(id)).unwrap()
    }

    /// Returns a unit number that no unit has had.
    const fn next_number(&mut self) -> UnitId {
        self.next_unit += 1;
        UnitId(self.next_unit - 1)
    }

    /// Requests another configuration. It comes into force as soon as every disk that is to be served again
    /// is closed.
    pub(super) fn request_reload(&mut self, layout: Layout) {
        self.waiting = Some(layout);
    }

    /// Closes removed units that have become idle. Returns the configuration that can come into force now, if
    /// one waits.
    pub(super) fn ready(&mut self, shard: &mut Shard) -> Option<Layout> {
        while let Some((id, unit)) = shard.poll_removed() {
            // Another unit may have had the same number since, and may have been removed as well.
            let is_it = |of: &(UnitId, u16)| of.0 == id && unit.is_designated_by(1, 3, &units::naa(of.1));
            let at = self.closing.iter().position(is_it).expect("it was removed");
            self.closing.remove(at);
        }
        let wanted = self.waiting.as_ref()?.disks();
        if self.closing.iter().any(|(_, disk)| wanted.contains(disk)) {
            return None;
        }
        self.waiting.take()
    }

    /// Changes to another configuration. First adds the new disks and calls `apply` with all of them in
    /// place, then removes the disks that are no longer configured.
    pub(super) fn change(
        &mut self,
        now: Instant,
        (shard, pool): (&mut Shard, &Pool),
        layout: Layout,
        apply: impl FnOnce(&mut Shard, &Self),
    ) {
        let wanted = layout.disks();
        self.layout = Some(layout);
        for disk in &wanted {
            if !self.serving.contains_key(disk) {
                self.add(now, shard, pool, *disk);
            }
        }
        apply(shard, self);
        let gone: Vec<u16> = self.serving.keys().filter(|disk| !wanted.contains(disk)).copied().collect();
        for disk in gone {
            let Some(id) = self.serving.remove(&disk) else { continue };
            self.closing.push((id, disk));
            assert!(shard.remove_unit(now, id), "a unit that is served cannot be removed");
        }
    }

    /// Reports to the shard that media have completions.
    pub(super) fn media_ready(&self, now: Instant, shard: &mut Shard) {
        for disk in 0..self.count {
            let is_ready = match &self.source {
                Source::Disks(_, media) => media[usize::from(disk)].next().is_some_and(|at| at <= now),
                Source::Units(source) => source.is_ready(disk.into(), now),
            };
            if !is_ready {
                continue;
            }
            let closing = self.closing.iter().filter(|(_, of)| *of == disk).map(|(id, _)| *id);
            for id in closing.chain(self.serving.get(&disk).copied()) {
                shard.medium_ready(now, MediumId(id.0));
            }
        }
    }

    /// Passes on what the units of a library and its owner tell each other. Returns whether they have.
    pub(super) fn pass_on(&mut self, now: Instant, shard: &mut Shard) -> bool {
        let Source::Units(source) = &mut self.source else { return false };
        let mut any = false;
        while let Some((UnitId(unit), event)) = shard.poll_library_event() {
            any = true;
            source.library_event(now, usize::try_from(unit).unwrap(), event);
        }
        while let Some((unit, input)) = source.poll_library(now) {
            any = true;
            shard.library_input(now, UnitId(u32::try_from(unit).unwrap()), input);
        }
        any
    }

    /// Returns when the owner of a library does the next thing.
    pub(super) fn next(&self) -> Option<Instant> {
        match &self.source {
            Source::Disks(..) => None,
            Source::Units(source) => source.next(),
        }
    }

    /// Stores the state that a unit saves.
    pub(super) fn save(&mut self, unit: UnitId, state: Vec<u8>) {
        let serving = self.serving.iter().map(|(disk, id)| (*id, *disk));
        let found = serving.chain(self.closing.iter().copied()).find(|(id, _)| *id == unit);
        let (_, disk) = found.expect("a unit saves that there is not");
        self.saved[usize::from(disk)] = Some(state);
    }

    /// Returns a text that lists removed units that are not closed; `None` if there are none.
    pub(super) fn left(&self) -> Option<String> {
        (!self.closing.is_empty()).then(|| format!("removed units that are not closed: {:?}", self.closing))
    }
}
