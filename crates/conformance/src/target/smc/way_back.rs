//! Brings the cartridges of a changer back to the elements that held them before a case.

use crate::verdict::Outcome;

use super::super::changes::Holding;
use super::super::device::Device;
use super::{Changer, Element, kind};

/// Returns the cartridges and their elements.
pub(super) fn held(elements: &[Element]) -> Vec<Holding> {
    let full = elements.iter().filter(|element| element.is_full());
    full.map(|element| Holding { address: element.address, tag: element.tag.clone() }).collect()
}

/// Moves cartridges until each is in the element that held it. Returns how many had to be moved, in words.
///
/// # Errors
/// A motion that fails, and cartridges that are not found.
pub(in super::super) fn put_back(device: Device, before: &[Holding]) -> Outcome<Option<String>> {
    let mut changer = Changer::of(device)?;
    // A cartridge may have to go out of the way first.
    for moved in 0..=2 * before.len() {
        let elements = changer.elements()?;
        let now = held(&elements);
        let empty = elements.iter().find(|element| element.kind == kind::STORAGE && !element.is_full());
        let Some((from, to)) = next_motion(before, &now, empty.map(|element| element.address)) else {
            require!(
                now == before,
                "the elements {:?} held cartridges, now {:?} do",
                shown(before),
                shown(&now)
            );
            return Ok((moved > 0).then(|| {
                format!("the case left cartridges in other elements; {moved} motions brought them back")
            }));
        };
        changer.moves(from, to)?.good("MOVE MEDIUM back")?;
    }
    fail!("the motions back do not lead to the former elements")
}

fn shown(holdings: &[Holding]) -> Vec<u16> {
    holdings.iter().map(|holding| holding.address).collect()
}

/// Returns the source and the destination of the next motion from `now` to `before`; `empty` is an empty
/// storage element.
fn next_motion(before: &[Holding], now: &[Holding], empty: Option<u16>) -> Option<(u16, u16)> {
    let holds = |holdings: &[Holding], address| holdings.iter().any(|holding| holding.address == address);
    let astray: Vec<&Holding> = now.iter().filter(|holding| !before.contains(holding)).collect();
    for place in before.iter().filter(|place| !holds(now, place.address)) {
        let by_tag = astray.iter().find(|holding| holding.tag == place.tag);
        // Without a tag to go by: a cartridge in an element that was empty.
        let in_new_place = astray.iter().find(|holding| !holds(before, holding.address));
        if let Some(source) = by_tag.or(in_new_place) {
            return Some((source.address, place.address));
        }
    }
    Some((astray.first()?.address, empty?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holdings(list: &[(u16, &str)]) -> Vec<Holding> {
        let of =
            |(address, tag): &(u16, &str)| Holding { address: *address, tag: Some(tag.as_bytes().to_vec()) };
        list.iter().map(of).collect()
    }

    /// Returns the motions, which are executed on `now` until none is left.
    fn way(before: &[(u16, &str)], now: &[(u16, &str)], slots: &[u16]) -> Vec<(u16, u16)> {
        let (before, mut now) = (holdings(before), holdings(now));
        let mut way = Vec::new();
        while way.len() < 10 {
            let empty = slots.iter().copied().find(|slot| now.iter().all(|holding| holding.address != *slot));
            let Some((from, to)) = next_motion(&before, &now, empty) else { break };
            assert!(now.iter().all(|holding| holding.address != to), "a motion to a full element");
            now.iter_mut().find(|holding| holding.address == from).unwrap().address = to;
            way.push((from, to));
        }
        now.sort();
        assert_eq!(now, before, "{way:?}");
        way
    }

    #[test]
    fn cartridges_come_back_from_wherever_they_are() {
        let before = [(1, "a"), (2, "b")];
        assert_eq!(way(&before, &before, &[1, 2, 3]), []);
        assert_eq!(way(&before, &[(2, "b"), (9, "a")], &[1, 2, 3]), [(9, 1)]);
        assert_eq!(way(&before, &[(2, "a"), (3, "b")], &[1, 2, 3]), [(2, 1), (3, 2)]);
        assert_eq!(way(&before, &[(1, "b"), (2, "a")], &[1, 2, 3]).len(), 3, "two that changed places");
        assert_eq!(way(&[(1, "")], &[(3, "")], &[1, 2, 3]), [(3, 1)]);
    }

    #[test]
    fn a_cartridge_that_is_gone_or_has_no_way_ends_the_motions() {
        let before = holdings(&[(1, "a"), (2, "b")]);
        assert_eq!(next_motion(&before, &holdings(&[(2, "b")]), Some(1)), None);
        assert_eq!(next_motion(&before, &holdings(&[(1, "b"), (2, "a")]), None), None);
    }
}
