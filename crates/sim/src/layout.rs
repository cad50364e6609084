//! The layout: which disk each LUN leads to, for each initiator, and how a reload changes that.

use std::collections::{BTreeMap, BTreeSet};

use base::rng::Rng;

use crate::scenario::{ReloadPlan, pick};

/// The LUNs that a target's configuration shows to its initiators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// One row for each initiator.
    pub rows: Vec<Row>,
}

/// The configuration for one initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Whether the initiator may log in.
    pub admitted: bool,
    /// Its LUNs and the disks that they lead to.
    pub luns: BTreeMap<u16, MappedDisk>,
}

/// The disk that a LUN leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedDisk {
    /// The disk.
    pub disk: u16,
    /// Whether the disk is read-only under this LUN.
    pub read_only: bool,
}

/// The change that a reload makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutChange {
    /// Removes a LUN for all initiators.
    Remove,
    /// Assigns a disk that no initiator sees to a free LUN.
    Add,
    /// Swaps the disks of two LUNs for all initiators.
    Swap,
    /// Assigns another disk to a LUN that is in use.
    Replace,
    /// Assigns the LUNs of one initiator again at random.
    Remap,
    /// Takes an initiator's access away: it may not log in any more.
    Refuse,
    /// Lets an initiator log in again that could not.
    Admit,
    /// Makes a LUN of one initiator read-only, or writable again.
    Protect,
    /// Restores the first configuration, for all initiators that reloads concern.
    Restore,
    /// Changes nothing.
    Nothing,
}

impl LayoutChange {
    /// All kinds of change, as [`Layout::change`] draws them.
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

    /// Returns the name of the counter for this kind of change.
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
    /// Makes the first layout: for every initiator, each of the LUNs leads to the disk with its own number.
    pub fn first(initiators: usize, luns: u16) -> Self {
        let shown = |disk| (disk, MappedDisk { disk, read_only: false });
        let row = Row { admitted: true, luns: (0..luns).map(shown).collect() };
        Self { rows: vec![row; initiators] }
    }

    /// Returns the disk that a LUN leads an initiator to.
    pub fn mapping(&self, initiator: usize, lun: u16) -> Option<MappedDisk> {
        let row = self.rows.get(initiator).filter(|row| row.admitted)?;
        row.luns.get(&lun).copied()
    }

    /// Returns the disks that at least one initiator sees, or would see if it was admitted.
    pub fn disks(&self) -> BTreeSet<u16> {
        self.rows.iter().flat_map(|row| row.luns.values()).map(|shown| shown.disk).collect()
    }

    /// Makes a random change. Returns its kind, or `None` if the drawn change is not possible.
    pub fn change(&mut self, rng: &mut Rng, plan: &ReloadPlan, disks: u16) -> Option<LayoutChange> {
        let change = *pick(rng, &LayoutChange::ALL);
        // If no reload is to concern the last initiator, its row does not change, and its disks stay as well.
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
