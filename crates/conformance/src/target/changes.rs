//! What the cases change on a unit other than a disk: the list from which [`restore`](super::restore) undoes
//! it.

use std::cell::RefCell;
use std::rc::Rc;

/// Something that a case changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Change {
    /// The removal of the medium is prevented.
    Prevention,
    /// The medium is out of the drive, or stopped. The last byte of the CDB that loads it.
    Medium(u8),
    /// The mode parameters. The parameter list of MODE SELECT(6) that sets the former ones.
    Mode(Vec<u8>),
    /// An attribute in the memory of a cartridge. The parameter list of WRITE ATTRIBUTE that sets the former
    /// value.
    Attribute(Vec<u8>),
    /// The cartridges of a changer. Which element held which cartridge.
    Cartridges(Vec<Holding>),
    /// The position of a tape. The object at which it stood.
    Position(u32),
}

/// A change, and the ISID of the session that made it.
type MadeChange = ([u8; 6], Change);

/// The changes of a case.
#[derive(Clone, Debug, Default)]
pub(super) struct Changes {
    inner: Rc<RefCell<Vec<MadeChange>>>,
}

impl Changes {
    /// Registers a change. The first change of a kind has the state that the case found; later ones are
    /// ignored.
    pub(super) fn register(&self, isid: [u8; 6], change: Change) {
        let mut changes = self.inner.borrow_mut();
        let kind = std::mem::discriminant(&change);
        if changes.iter().all(|(_, known)| std::mem::discriminant(known) != kind) {
            changes.push((isid, change));
        }
    }

    /// Takes the changes, in the order in which they must be undone.
    pub(super) fn take(&self) -> Vec<MadeChange> {
        let mut changes = self.inner.take();
        changes.sort_by(|(_, one), (_, other)| one.cmp(other));
        changes
    }
}

/// A cartridge in an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holding {
    pub(super) address: u16,
    /// The volume tag.
    pub(super) tag: Option<Vec<u8>>,
}

impl Change {
    /// Returns what the report says if the change cannot be undone.
    pub(super) const fn not_undone(&self) -> &'static str {
        match self {
            Self::Prevention => "the removal of the medium may still be prevented",
            Self::Medium(_) => "THE MEDIUM IS NOT IN THE DRIVE",
            Self::Mode(_) => "the mode parameters were not restored",
            Self::Attribute(_) => "the attribute was not restored",
            Self::Cartridges(_) => "CARTRIDGES ARE NOT IN THEIR ELEMENTS",
            Self::Position(_) => "the position was not restored",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_change_of_a_kind_counts_and_removal_is_allowed_first() {
        let changes = Changes::default();
        let (one, two) = ([1; 6], [2; 6]);
        changes.register(one, Change::Position(7));
        changes.register(one, Change::Mode(vec![1]));
        changes.register(two, Change::Mode(vec![2]));
        changes.register(one, Change::Medium(3));
        changes.register(two, Change::Prevention);
        let wanted = [
            (two, Change::Prevention),
            (one, Change::Medium(3)),
            (one, Change::Mode(vec![1])),
            (one, Change::Position(7)),
        ];
        assert_eq!(changes.take(), wanted);
        assert_eq!(changes.take(), []);
    }
}
