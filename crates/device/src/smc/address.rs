//! The addresses of elements. They depend on nothing but the kind and the number of an element.

use cartridge::library::{Counts, DRIVES_MAX, Element, MAIL_SLOTS_MAX};

/// The address of the medium transport element.
pub(super) const TRANSPORT: u16 = 1;
/// The address of the first import/export element.
pub(super) const MAIL: u16 = 10;
/// The address of the first data transfer element.
pub(super) const DRIVE: u16 = 500;
/// The address of the first storage element.
pub(super) const SLOT: u16 = 1000;

const _: () = assert!(TRANSPORT < MAIL && MAIL + MAIL_SLOTS_MAX <= DRIVE && DRIVE + DRIVES_MAX <= SLOT);

/// Returns the address of an element, which is numbered from 1.
pub(super) const fn of(element: Element) -> u16 {
    match element {
        Element::Mail(number) => (MAIL - 1).saturating_add(number),
        Element::Drive(number) => (DRIVE - 1).saturating_add(number),
        Element::Slot(number) => (SLOT - 1).saturating_add(number),
    }
}

/// Returns the element with an address.
pub(super) fn element(address: u16, counts: Counts) -> Option<Element> {
    let number = |first: u16, count: u16| {
        let number = address.checked_sub(first - 1)?;
        (1..=count).contains(&number).then_some(number)
    };
    let mail = number(MAIL, counts.mail_slots).map(Element::Mail);
    let drive = number(DRIVE, counts.drives).map(Element::Drive);
    mail.or(drive).or_else(|| number(SLOT, counts.slots).map(Element::Slot))
}
