//! Mutants of medium changers: `smc-*`.

use crate::mutant::{Mutant, Nth, by, change};
use crate::pdu::Pdu;

use super::pages;

/// Operation codes.
const INITIALIZE: u8 = 0x07;
const MODE_SENSE: u8 = 0x1a;
const PREVENT: u8 = 0x1e;
const POSITION: u8 = 0x2b;
const INITIALIZE_RANGE: u8 = 0x37;
const MOVE: u8 = 0xa5;
const EXCHANGE: u8 = 0xa6;
const STATUS: u8 = 0xb8;

/// VOLTAG in byte 1, and CURDATA in byte 6, of READ ELEMENT STATUS.
const VOLUME_TAGS: u8 = 0x10;
const CURRENT_DATA: u8 = 0x02;
/// Bits of byte 2 of an element descriptor.
const FULL: u8 = 0x01;
const BY_OPERATOR: u8 = 0x02;
const ACCESS: u8 = 0x08;

/// Changes each element descriptor of READ ELEMENT STATUS.
fn on_elements(pdu: &mut Pdu, change: fn(&mut [u8])) {
    pdu.on_data(STATUS, |data| on_element_descriptors(data, change));
}

/// Changes each element descriptor of element status data.
pub(crate) fn on_element_descriptors(data: &mut [u8], change: fn(&mut [u8])) {
    let mut rest = data.get_mut(8..).unwrap_or_default();
    while rest.len() > 8 {
        let descriptor_len = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let page_len = u32::from_be_bytes([0, rest[5], rest[6], rest[7]]) as usize;
        let (page, after) = std::mem::take(&mut rest)[8..].split_at_mut(page_len);
        page.chunks_mut(descriptor_len).for_each(change);
        rest = after;
    }
}

pub(super) const MUTANTS: &[Mutant] = &[
    change("smc-assignment", "overlaps with", |pdu| {
        // The slots begin where the transport elements do.
        pdu.on_data(MODE_SENSE, |data| data.copy_within(6..8, 10));
    }),
    change("smc-geometry", "expected 6 bytes, came 4", |pdu| {
        pdu.on_data(MODE_SENSE, |data| {
            if data[4] & 0x3f == 0x1d {
                data[9] = 2
            }
        });
    }),
    change("smc-capabilities", "StorST is 0", |pdu| {
        pdu.on_data(MODE_SENSE, |data| {
            if data[4] & 0x3f == 0x1f {
                data[6] = 0
            }
        });
    }),
    change("smc-capabilities", "ST->DT is 0", |pdu| {
        pdu.on_data(MODE_SENSE, |data| {
            if data[4] & 0x3f == 0x1f {
                data[9] = 0
            }
        });
    }),
    change("smc-mode-pages", "among all pages is", pages::differs_among_all),
    change("smc-operation-codes", "alone, SUPPORT is 1", pages::is_unsupported_alone),
    change("smc-log-pages", "the log pages do not ascend", pages::lists_pages_in_disorder),
    change("smc-status", "page 1D has the elements", |pdu| pdu.on_data(STATUS, |data| data[8] ^= 4)),
    change("smc-status-length", "bytes behind the header", |pdu| pdu.on_data(STATUS, |data| data[7] ^= 1)),
    change("smc-status-types", "element type 1: expected", |pdu| pdu.on_data(STATUS, |data| data[8] ^= 4)),
    change("smc-status-count", "alone, reported are", |pdu| {
        pdu.on_cdb(STATUS, |cdb| {
            if cdb[4..6] == [0, 1] {
                cdb[5] = 2
            }
        });
    }),
    change("smc-status-start", "reported are [(2", |pdu| pdu.on_cdb(STATUS, |cdb| cdb[2..4].fill(0))),
    change("smc-status-beyond", "reported are [(", |pdu| pdu.on_cdb(STATUS, |cdb| cdb[2..4].fill(0))),
    change("smc-status-allocation", "of 8 bytes came", |pdu| {
        pdu.on_data(STATUS, |data| {
            if data.len() == 8 {
                data[3] ^= 1
            }
        });
    }),
    change("smc-status-type", "READ ELEMENT STATUS of type 5: expected sense 5/2400", |pdu| {
        pdu.accept(STATUS)
    }),
    change("smc-status-tags", "is no text padded with spaces", |pdu| {
        on_elements(pdu, |element| element[12] = 1);
    }),
    change("smc-status-no-tags", "has a volume tag", |pdu| pdu.on_cdb(STATUS, |cdb| cdb[1] |= VOLUME_TAGS)),
    change("smc-status-identifiers", "code set 0 is reserved", |pdu| {
        on_elements(pdu, |element| {
            if element.len() > 12 {
                element[12] &= 0xf0
            }
        });
    }),
    change("smc-status-current", "with CURDATA other elements are reported", |pdu| {
        pdu.on_cdb(STATUS, |cdb| {
            if cdb[6] & CURRENT_DATA != 0 {
                cdb[1] &= !VOLUME_TAGS
            }
        });
    }),
    by("smc-initialize", "elements changed", |wire, mut pdu| {
        pdu.on_cdb(INITIALIZE, |_| wire.count += 1);
        if wire.count > 0 {
            on_elements(&mut pdu, |element| element[2] ^= FULL);
        }
        wire.pass(pdu);
    }),
    by("smc-initialize-range", "elements changed", |wire, mut pdu| {
        pdu.on_cdb(INITIALIZE_RANGE, |_| wire.count += 1);
        if wire.count > 0 {
            on_elements(&mut pdu, |element| element[2] ^= FULL);
        }
        wire.pass(pdu);
    }),
    change("smc-initialize-range", "of no element: expected sense 5/2101", |pdu| {
        pdu.accept(INITIALIZE_RANGE)
    }),
    // Motions.
    change("smc-move", "is still full", |pdu| pdu.forget(MOVE)),
    change("smc-move", "the source had", |pdu| {
        // A tag with a letter that depends on the element.
        on_elements(pdu, |element| {
            if element.len() > 48 {
                element[43] = element[1] | 0x20
            }
        });
    }),
    by("smc-move", "the case left cartridges in other elements; 1 motions", |wire, pdu| {
        Nth(MOVE, 2).refuse(wire, pdu);
    }),
    change("smc-move-source", "the cartridge came from", |pdu| {
        on_elements(pdu, |element| element[11] ^= 0x40);
    }),
    change("smc-move-access", "has the flags", |pdu| on_elements(pdu, |element| element[2] &= !ACCESS)),
    change("smc-move-drive", "IMPEXP is set", |pdu| on_elements(pdu, |element| element[2] |= BY_OPERATOR)),
    change("smc-move-mail", "IMPEXP is set", |pdu| on_elements(pdu, |element| element[2] |= BY_OPERATOR)),
    change("smc-move-transport", "is still full", |pdu| {
        pdu.on_cdb(MOVE, |cdb| {
            if cdb[2..4] != [0, 0] {
                cdb.fill(0)
            }
        });
    }),
    change("smc-move-empty", "MOVE MEDIUM from an empty slot: expected sense 5/3b0e", |pdu| pdu.accept(MOVE)),
    change("smc-move-full", "MOVE MEDIUM to a full slot: expected sense 5/3b0d", |pdu| pdu.accept(MOVE)),
    change("smc-move-address", "MOVE MEDIUM from no element: expected sense 5/2101", |pdu| pdu.accept(MOVE)),
    change("smc-move-invert", "MOVE MEDIUM with INVERT: expected sense 5/2400", |pdu| pdu.accept(MOVE)),
    change("smc-exchange", "does not hold the cartridge", |pdu| pdu.forget(EXCHANGE)),
    change("smc-exchange-three", "does not hold the cartridge", |pdu| pdu.forget(EXCHANGE)),
    by("smc-exchange", "the case left cartridges in other elements; 3 motions", |wire, pdu| {
        Nth(EXCHANGE, 2).refuse(wire, pdu);
    }),
    by("smc-exchange-three", "the case left cartridges in other elements; 1 motions", |wire, pdu| {
        Nth(MOVE, 2).refuse(wire, pdu);
    }),
    change("smc-exchange-empty", "EXCHANGE MEDIUM from an empty slot: expected sense 5/3b0e", |pdu| {
        pdu.accept(EXCHANGE);
    }),
    change("smc-exchange-full", "EXCHANGE MEDIUM to a full second slot: expected sense 5/3b0d", |pdu| {
        pdu.accept(EXCHANGE);
    }),
    change("smc-position", "POSITION TO ELEMENT of no element: expected sense 5/2101", |pdu| {
        pdu.accept(POSITION);
    }),
    by("smc-prevent", "MOVE MEDIUM: ", |wire, mut pdu| {
        pdu.on_cdb(PREVENT, |cdb| wire.count = u32::from(cdb[4]));
        if wire.count > 0 {
            pdu.refuse(MOVE);
        }
        wire.pass(pdu);
    }),
    // The other rules of cases that judge several.
    change("smc-assignment", "there is no medium transport element", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[8..10].fill(0));
    }),
    change("smc-capabilities", "StorDT is 0", |pdu| {
        pdu.on_data(MODE_SENSE, |data| {
            if data[4] & 0x3f == 0x1f {
                data[6] &= !8
            }
        });
    }),
    change("smc-status-tags", "is full and has no volume tag", |pdu| {
        pdu.on_cdb(STATUS, |cdb| cdb[1] &= !VOLUME_TAGS);
    }),
    change("smc-status-tags", "two elements have the volume tag", |pdu| {
        on_elements(pdu, |element| element[12..44].fill(b'A'));
    }),
    change("smc-status-identifiers", "identifier type 15 is reserved", |pdu| {
        on_elements(pdu, |element| {
            if element.len() > 13 {
                element[13] |= 0xf
            }
        });
    }),
    change("smc-status-identifiers", "two drives have the identifier", |pdu| {
        on_elements(pdu, |element| {
            if element.len() > 16 {
                let end = 16 + usize::from(element[15]);
                element[16..end].fill(b'A');
            }
        });
    }),
    change("smc-initialize", "INITIALIZE ELEMENT STATUS: expected GOOD", |pdu| pdu.refuse(INITIALIZE)),
    by("smc-move-address", "MOVE MEDIUM to no element: expected sense 5/2101", |wire, pdu| {
        Nth(MOVE, 2).accept(wire, pdu);
    }),
    by("smc-move-address", "MOVE MEDIUM by no element: expected sense 5/2101", |wire, pdu| {
        Nth(MOVE, 3).accept(wire, pdu);
    }),
    change("smc-position", "POSITION TO ELEMENT: expected GOOD", |pdu| {
        pdu.refuse(POSITION);
    }),
    by("smc-prevent", "PREVENT ALLOW MEDIUM REMOVAL, allow: expected GOOD", |wire, pdu| {
        Nth(PREVENT, 2).refuse(wire, pdu);
    }),
    change("smc-exchange-three", "element 1004 does not hold the cartridge of element 1001", |pdu| {
        // The former cartridge of the second slot goes to the first one.
        pdu.on_cdb(EXCHANGE, |cdb| cdb.copy_within(4..6, 8));
    }),
];
