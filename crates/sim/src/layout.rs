//! Which disk stands under which LUN for whom, and how a reload changes that.

use std::collections::{BTreeMap, BTreeSet};

use base::rng::Rng;

use crate::scenario::{ReloadPlan, pick};

/// What a target's configuration shows its initiators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// A row for each initiator.
    pub rows: Vec<Row>,
}

/// What one initiator is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whether it may log in.
    pub admitted: bool,
    /// Its LUNs.
    pub luns: BTreeMap<u16, MappedDisk>,
}

/// What stands under a LUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedDisk {
    /// The disk.
    pub disk: u16,
    /// Whether it may only be read.
    pub read_only: bool,
}

/// What a reload does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutChange {
    /// A LUN is taken away from everybody.
    Remove,
    /// A disk that nobody sees is put under a free LUN.
    Add,
    /// Two LUNs of everybody change places.
    Swap,
    /// Another disk is put under a LUN that is in use.
    Replace,
    /// One initiator's LUNs are dealt out anew.
    Remap,
    /// An initiator may not log in any more.
    Refuse,
    /// It may again.
    Admit,
    /// A LUN of one initiator becomes read-only, or writable again.
    Protect,
    /// Everything is as it was at first.
    Restore,
    /// The configuration is as it was.
    Nothing,
}

impl LayoutChange {
    /// Every kind, as [`Layout::change`] draws them.
    const ALL: [Self; 15] = [
        Self::Remove,
        Self::Remove,
        Self::Add,
        Self::Add,
        Self::Swap,
        Self::Swap,
        Self::Replace,
        Self::Replace,
        Self::Remap,
        Self::Refuse,
        Self::Admit,
        Self::Protect,
        Self::Restore,
        Self::Restore,
        Self::Nothing,
    ];

    /// The name under which it is counted.
    pub const fn counted_as(self) -> &'static str {
        match self {
            Self::Remove => "reloads that removed a LUN",
            Self::Add => "reloads that added a LUN",
            Self::Swap => "reloads that swapped two LUNs",
            Self::Replace => "reloads that replaced the disk of a LUN",
            Self::Remap => "reloads that remapped one initiator's LUNs",
            Self::Refuse => "reloads that took the access of an initiator",
            Self::Admit => "reloads that gave the access back",
            Self::Protect => "reloads that changed who may write",
            Self::Restore => "reloads that restored the first LUNs",
            Self::Nothing => "reloads that changed nothing",
        }
    }
}

impl Layout {
    /// Shows everybody the same: each disk under the LUN of its own number, as many as there are LUNs.
    pub fn first(initiators: usize, luns: u16) -> Self {
        let shown = |disk| (disk, MappedDisk { disk, read_only: false });
        let row = Row { admitted: true, luns: (0..luns).map(shown).collect() };
        Self { rows: vec![row; initiators] }
    }

    /// Returns what a LUN leads an initiator to.
    pub fn mapping(&self, initiator: usize, lun: u16) -> Option<MappedDisk> {
        let row = self.rows.get(initiator).filter(|row| row.admitted)?;
        row.luns.get(&lun).copied()
    }

    /// Returns the disks that somebody is shown, or would be if he was admitted.
    pub fn disks(&self) -> BTreeSet<u16> {
        self.rows.iter().flat_map(|row| row.luns.values()).map(|shown| shown.disk).collect()
    }

    /// Changes something at random. Returns what, or nothing where it cannot be done.
    pub fn change(&mut self, rng: &mut Rng, plan: &ReloadPlan, disks: u16) -> Option<LayoutChange> {
        let change = *pick(rng, &LayoutChange::ALL);
        // The last initiator's row stays as it is where no reload is to concern it; its disks stay, then, as well.
        let count = self.rows.len() - usize::from(plan.still);
        let one = usize::try_from(rng.below(count as u64)).unwrap();
        let lun = u16::try_from(rng.below(plan.luns.into())).unwrap();
        let other = u16::try_from(rng.below(plan.luns.into())).unwrap();
        let seen: BTreeSet<u16> = self.rows[..count].iter().flat_map(Row::disks).collect();
        let unseen: Vec<u16> = (0..disks).filter(|disk| !seen.contains(disk)).collect();
        let concerned = &mut self.rows[..count];
        let put = |rows: &mut [Row], disk| {
            for row in rows.iter_mut().filter(|row| !row.disks().any(|known| known == disk)) {
                row.luns.insert(lun, MappedDisk { disk, read_only: false });
            }
        };
        let everybody_has_it = concerned.iter().all(|row| row.luns.contains_key(&lun));
        match change {
            LayoutChange::Remove => {
                let before = concerned.to_vec();
                concerned.iter_mut().for_each(|row| {
                    row.luns.remove(&lun);
                });
                (before != concerned).then_some(change)
            }
            LayoutChange::Add => {
                let free = concerned.iter().all(|row| !row.luns.contains_key(&lun));
                let disk = unseen.first().filter(|_| free)?;
                put(concerned, *disk);
                Some(change)
            }
            LayoutChange::Replace => {
                let disk = unseen.last().filter(|_| everybody_has_it)?;
                put(concerned, *disk);
                Some(change)
            }
            LayoutChange::Swap => {
                let has_other = concerned.iter().all(|row| row.luns.contains_key(&other));
                if lun == other || !everybody_has_it || !has_other {
                    return None;
                }
                for row in concerned {
                    if let (Some(a), Some(b)) = (row.luns.remove(&lun), row.luns.remove(&other)) {
                        row.luns.extend([(lun, b), (other, a)]);
                    }
                }
                Some(change)
            }
            LayoutChange::Remap => {
                let mut free: Vec<u16> = (0..plan.luns).collect();
                let luns = concerned[one].luns.values().copied();
                let mut dealt = BTreeMap::new();
                for shown in luns {
                    let at = usize::try_from(rng.below(free.len() as u64)).unwrap();
                    dealt.insert(free.swap_remove(at), shown);
                }
                let changed = dealt != concerned[one].luns;
                concerned[one].luns = dealt;
                changed.then_some(change)
            }
            LayoutChange::Refuse => std::mem::replace(&mut concerned[one].admitted, false).then_some(change),
            LayoutChange::Admit => {
                let refused = concerned.iter_mut().find(|row| !row.admitted)?;
                refused.admitted = true;
                Some(change)
            }
            LayoutChange::Protect => {
                let shown = concerned[one].luns.get_mut(&lun)?;
                shown.read_only = !shown.read_only;
                Some(change)
            }
            LayoutChange::Restore => {
                let first = Self::first(count, plan.luns);
                let changed = first.rows != concerned;
                concerned.clone_from_slice(&first.rows);
                changed.then_some(change)
            }
            LayoutChange::Nothing => Some(change),
        }
    }
}

impl Row {
    fn disks(&self) -> impl Iterator<Item = u16> {
        self.luns.values().map(|shown| shown.disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::time::Duration;

    #[test]
    fn no_reload_shows_a_disk_twice_or_concerns_the_initiator_that_is_left_alone() {
        let within = Duration::from_secs(1);
        let plan = ReloadPlan { luns: 3, every: 1, within, still: true, calm: true };
        let first = Layout::first(3, plan.luns);
        let (mut layout, mut rng, mut seen) = (first.clone(), Rng::from_seed(1), Vec::new());
        for _ in 0..2000 {
            let before = layout.clone();
            let Some(change) = layout.change(&mut rng, &plan, 5) else { continue };
            assert_eq!(before == layout, change == LayoutChange::Nothing, "{change:?}");
            seen.push(change);
            assert_eq!(layout.rows[2], first.rows[2]);
            for row in &layout.rows {
                assert_eq!(row.disks().collect::<BTreeSet<_>>().len(), row.luns.len(), "{change:?} {row:?}");
                assert!(row.luns.keys().all(|lun| *lun < plan.luns));
            }
        }
        assert!(LayoutChange::ALL.iter().all(|change| seen.contains(change)), "some change never happens");
    }
}
