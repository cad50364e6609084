//! MOVE MEDIUM, EXCHANGE MEDIUM, POSITION TO ELEMENT and PREVENT ALLOW MEDIUM REMOVAL.

use crate::suite::writing;
use crate::verdict::Outcome;

use super::super::Test;
use super::super::changes::Change;
use super::super::device::{asc, key};
use super::super::fixture::Fixture;
use super::super::task::Done;
use super::{ACCESS, Changer, Element, kind, tag_text};

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    writing("smc-move", "SMC-3, MOVE MEDIUM", "a cartridge moves with its volume tag, from slot to slot", move_slot),
    writing("smc-move-source", "SMC-3, READ ELEMENT STATUS", "an element tells which slot its cartridge came from", move_source),
    writing("smc-move-access", "SMC-3, READ ELEMENT STATUS", "slots that cartridges move between are ACCESS", move_access),
    writing("smc-move-drive", "SMC-3, MOVE MEDIUM", "a cartridge moves into a drive and out again", move_drive),
    writing("smc-move-mail", "SMC-3, MOVE MEDIUM", "a cartridge moves into a mail slot and out again", move_mail),
    writing("smc-move-transport", "SMC-3, MOVE MEDIUM", "the first transport element is the default one", transport),
    writing("smc-move-empty", "SMC-3, MOVE MEDIUM", "an empty source is refused", empty_source),
    writing("smc-move-full", "SMC-3, MOVE MEDIUM", "a full destination is refused", full_destination),
    writing("smc-move-address", "SMC-3, MOVE MEDIUM", "addresses of no fitting element are refused", no_element),
    writing("smc-move-invert", "SMC-3, MOVE MEDIUM", "INVERT is refused where media are not rotated", invert),
    writing("smc-exchange", "SMC-3, EXCHANGE MEDIUM", "two slots exchange their cartridges", exchange),
    writing("smc-exchange-three", "SMC-3, EXCHANGE MEDIUM", "the second destination takes the former cartridge", exchange_three),
    writing("smc-exchange-empty", "SMC-3, EXCHANGE MEDIUM", "an empty source is refused", exchange_empty),
    writing("smc-exchange-full", "SMC-3, EXCHANGE MEDIUM", "a full second destination is refused", exchange_full),
    writing("smc-position", "SMC-3, POSITION TO ELEMENT", "the transport element goes to elements that exist", position),
    writing("smc-prevent", "SPC-4, PREVENT ALLOW MEDIUM REMOVAL", "motions among slots go on while removal is prevented", prevent),
];

/// Fails unless `to` holds the cartridge that `from` held in `before`, and `from` is empty.
fn has_moved(changer: &mut Changer, before: &Element, to: u16) -> Outcome {
    let (source, destination) = (changer.element(before.address)?, changer.element(to)?);
    require!(!source.is_full(), "the source {} is still full", source.address);
    require!(destination.is_full(), "the destination {to} is empty");
    require!(
        destination.tag == before.tag,
        "the destination has the volume tag {:?}, the source had {:?}",
        destination.tag.as_deref().map(tag_text),
        before.tag.as_deref().map(tag_text)
    );
    Ok(())
}

/// Moves a cartridge, judges it with `check`, and moves it back whatever the verdict.
fn there_and_back(
    changer: &mut Changer,
    from: &Element,
    to: u16,
    check: impl FnOnce(&mut Changer) -> Outcome,
) -> Outcome {
    changer.moves(from.address, to)?.good("MOVE MEDIUM")?;
    let outcome = has_moved(changer, from, to).and_then(|()| check(changer));
    let back = changer.moves(to, from.address)?.good("MOVE MEDIUM back");
    outcome.and(back.map(drop))
}

fn move_slot(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    there_and_back(&mut changer, &full, empty.address, |_| Ok(()))?;
    let back = changer.element(full.address)?;
    require!(
        back.is_full() && back.tag == full.tag,
        "after the way back the source does not hold its cartridge"
    );
    Ok(())
}

fn move_source(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    there_and_back(&mut changer, &full, empty.address, |changer| {
        let source = changer.element(empty.address)?.source;
        need!(source.is_some(), "SVALID is 0");
        require!(
            source == Some(full.address),
            "SOURCE STORAGE ELEMENT ADDRESS is {source:?}, the cartridge came from {}",
            full.address
        );
        Ok(())
    })
}

fn move_access(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    there_and_back(&mut changer, &full, empty.address, |_| {
        for slot in [&full, &empty] {
            require!(slot.flags & ACCESS != 0, "slot {} has the flags {:02x}", slot.address, slot.flags);
        }
        Ok(())
    })
}

fn move_to(fixture: &mut Fixture, kind: u8, what: &str) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let full = changer.find(kind::STORAGE, true)?.into_iter().next();
    let place = changer.find(kind, false)?.into_iter().next();
    let (Some(full), Some(place)) = (full, place) else {
        need!(false, "the case needs a full slot and an empty {what}");
        return Ok(());
    };
    there_and_back(&mut changer, &full, place.address, |changer| {
        let flags = changer.element(place.address)?.flags;
        // IMPEXP: only an operator's hand sets it.
        require!(flags & 2 == 0, "IMPEXP is set, and the changer put the cartridge there: {flags:02x}");
        Ok(())
    })
}

fn move_drive(fixture: &mut Fixture) -> Outcome {
    move_to(fixture, kind::DATA_TRANSFER, "drive")
}

fn move_mail(fixture: &mut Fixture) -> Outcome {
    move_to(fixture, kind::IMPORT_EXPORT, "mail slot")
}

/// MOVE MEDIUM with each field given.
fn move_by(changer: &mut Changer, transport: u16, from: u16, to: u16, flags: u8) -> Outcome<Done> {
    let ([a, b], [c, d], [e, f]) = (transport.to_be_bytes(), from.to_be_bytes(), to.to_be_bytes());
    changer.device.ask(&[0xa5, 0, a, b, c, d, e, f, 0, 0, flags, 0])
}

fn transport(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    let first = changer.range(kind::TRANSPORT).first;
    move_by(&mut changer, first, full.address, empty.address, 0)?
        .good(&format!("MOVE MEDIUM by transport element {first}"))?;
    let moved = has_moved(&mut changer, &full, empty.address);
    let back =
        move_by(&mut changer, 0, empty.address, full.address, 0)?.good("MOVE MEDIUM by the default one");
    moved.and(back.map(drop))
}

/// Fails unless a motion is refused with this code, and no element has changed.
fn refused(
    changer: &mut Changer,
    what: &str,
    code: u16,
    motion: impl FnOnce(&mut Changer) -> Outcome<Done>,
) -> Outcome {
    let before = changer.elements()?;
    motion(changer)?.optional(what)?.refused(what, key::ILLEGAL_REQUEST, code)?;
    require!(changer.elements()? == before, "{what} was refused, and elements changed");
    Ok(())
}

fn empty_source(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let empty = changer.find(kind::STORAGE, false)?;
    let others = [kind::STORAGE, kind::IMPORT_EXPORT, kind::DATA_TRANSFER];
    let mut places = Vec::new();
    for kind in others {
        places.append(&mut changer.find(kind, false)?);
    }
    let from = empty.first();
    let to = places.iter().find(|place| Some(place.address) != from.map(|from| from.address));
    let (Some(from), Some(to)) = (from, to) else {
        need!(false, "the case needs an empty slot, and another empty element");
        return Ok(());
    };
    refused(&mut changer, "MOVE MEDIUM from an empty slot", asc::SOURCE_EMPTY, |changer| {
        changer.moves(from.address, to.address)
    })
}

fn full_destination(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let full = changer.find(kind::STORAGE, true)?;
    let [from, to, ..] = full.as_slice() else {
        need!(false, "the case needs two full slots");
        return Ok(());
    };
    refused(&mut changer, "MOVE MEDIUM to a full slot", asc::DESTINATION_FULL, |changer| {
        changer.moves(from.address, to.address)
    })
}

/// Returns an address that no element has.
fn unused(changer: &Changer) -> u16 {
    let is_used =
        |address: &u16| changer.ranges.iter().any(|range| range.addresses().any(|one| one == *address));
    (1..u16::MAX).rev().find(|address| !is_used(address)).unwrap_or(u16::MAX)
}

fn no_element(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    let none = unused(&changer);
    let code = asc::INVALID_ELEMENT_ADDRESS;
    refused(&mut changer, "MOVE MEDIUM from no element", code, |changer| changer.moves(none, empty.address))?;
    refused(&mut changer, "MOVE MEDIUM to no element", code, |changer| changer.moves(full.address, none))?;
    refused(&mut changer, "MOVE MEDIUM by no element", code, |changer| {
        move_by(changer, none, full.address, empty.address, 0)
    })
}

fn invert(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    let geometry = changer.device.mode_page(0x1e)?;
    need!(geometry.get(2).is_some_and(|flags| flags & 1 == 0), "the transport element rotates media");
    refused(&mut changer, "MOVE MEDIUM with INVERT", asc::INVALID_FIELD_IN_CDB, |changer| {
        move_by(changer, 0, full.address, empty.address, 1)
    })
}

/// EXCHANGE MEDIUM by the default transport element.
fn exchange_by(changer: &mut Changer, from: u16, first: u16, second: u16) -> Outcome<Done> {
    let ([a, b], [c, d], [e, f]) = (from.to_be_bytes(), first.to_be_bytes(), second.to_be_bytes());
    changer.device.ask(&[0xa6, 0, 0, 0, a, b, c, d, e, f, 0, 0])
}

/// Returns two full slots and an empty one.
fn slots(changer: &mut Changer) -> Outcome<(Element, Element, Element)> {
    let (full, empty) = (changer.find(kind::STORAGE, true)?, changer.find(kind::STORAGE, false)?);
    match (full.as_slice(), empty.as_slice()) {
        ([one, two, ..], [empty, ..]) => Ok((one.clone(), two.clone(), empty.clone())),
        _ => Err(crate::verdict::Stop::Skip("the case needs two full slots and an empty one".to_owned())),
    }
}

/// Fails unless an element holds the cartridge that another one held in `before`.
fn holds(changer: &mut Changer, address: u16, before: &Element) -> Outcome {
    let element = changer.element(address)?;
    require!(
        element.is_full() && element.tag == before.tag,
        "element {address} does not hold the cartridge of element {}",
        before.address
    );
    Ok(())
}

fn exchange(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (one, two, _) = slots(&mut changer)?;
    let done = exchange_by(&mut changer, one.address, two.address, one.address)?;
    done.optional("EXCHANGE MEDIUM")?.good("EXCHANGE MEDIUM of two slots")?;
    let outcome =
        holds(&mut changer, two.address, &one).and_then(|()| holds(&mut changer, one.address, &two));
    let back = exchange_by(&mut changer, one.address, two.address, one.address)?.good("EXCHANGE MEDIUM back");
    outcome.and(back.map(drop))
}

fn exchange_three(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (one, two, empty) = slots(&mut changer)?;
    let done = exchange_by(&mut changer, one.address, two.address, empty.address)?;
    done.optional("EXCHANGE MEDIUM")?.good("EXCHANGE MEDIUM of three slots")?;
    let outcome =
        holds(&mut changer, two.address, &one).and_then(|()| holds(&mut changer, empty.address, &two));
    // The reason why the case failed is told, rather than that of the return.
    let first = changer.moves(two.address, one.address)?.good("MOVE MEDIUM back");
    let second = changer.moves(empty.address, two.address)?.good("MOVE MEDIUM back");
    outcome.and(first.map(drop)).and(second.map(drop))
}

fn exchange_empty(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (one, _, empty) = slots(&mut changer)?;
    refused(&mut changer, "EXCHANGE MEDIUM from an empty slot", asc::SOURCE_EMPTY, |changer| {
        exchange_by(changer, empty.address, one.address, empty.address)
    })
}

fn exchange_full(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let full = changer.find(kind::STORAGE, true)?;
    let [one, two, three, ..] = full.as_slice() else {
        need!(false, "the case needs three full slots");
        return Ok(());
    };
    refused(&mut changer, "EXCHANGE MEDIUM to a full second slot", asc::DESTINATION_FULL, |changer| {
        exchange_by(changer, one.address, two.address, three.address)
    })
}

fn position(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let to = |address: u16| {
        let [a, b] = address.to_be_bytes();
        [0x2b, 0, 0, 0, a, b, 0, 0, 0, 0]
    };
    let slot = changer.range(kind::STORAGE).first;
    changer.device.ask(&to(slot))?.optional("POSITION TO ELEMENT")?.good("POSITION TO ELEMENT")?;
    let none = unused(&changer);
    let code = asc::INVALID_ELEMENT_ADDRESS;
    refused(&mut changer, "POSITION TO ELEMENT of no element", code, |changer| changer.device.ask(&to(none)))
}

fn prevent(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach_to_move(fixture)?;
    let (full, empty) = changer.full_and_empty()?;
    changer.device.will_change(Change::Prevention);
    let done = changer.device.ask(&[0x1e, 0, 0, 0, 1, 0])?;
    done.optional("PREVENT ALLOW MEDIUM REMOVAL")?.good("PREVENT ALLOW MEDIUM REMOVAL, prevent")?;
    let outcome = there_and_back(&mut changer, &full, empty.address, |_| Ok(()));
    let allowed = changer.device.ask(&[0x1e, 0, 0, 0, 0, 0])?.good("PREVENT ALLOW MEDIUM REMOVAL, allow");
    outcome.and(allowed.map(drop))
}
