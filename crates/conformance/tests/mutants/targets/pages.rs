//! What mutants of units of several types do with mode pages, log pages and operation codes.

use crate::pdu::Pdu;

const MODE_SENSE_10: u8 = 0x5a;
const OPERATION_CODES: u8 = 0xa3;
pub(super) const LOG_SENSE: u8 = 0x4d;

/// The longest mode parameters with one page, and the longest report on one operation code.
const ONE_PAGE_MAX: usize = 48;
const ONE_CODE_MAX: usize = 40;

/// Changes a byte of the last mode page among all.
pub(super) fn differs_among_all(pdu: &mut Pdu) {
    pdu.on_data(MODE_SENSE_10, |data| {
        if data.len() > ONE_PAGE_MAX
            && let Some(last) = data.last_mut()
        {
            *last ^= 1;
        }
    });
}

/// Reports of each operation code alone that it is not supported.
pub(super) fn is_unsupported_alone(pdu: &mut Pdu) {
    pdu.on_data(OPERATION_CODES, |data| {
        if data.len() < ONE_CODE_MAX {
            data[1] = data[1] & !7 | 1;
        }
    });
}

/// Lists the last log page first.
pub(super) fn lists_pages_in_disorder(pdu: &mut Pdu) {
    pdu.on_data(LOG_SENSE, |data| {
        if data[0] & 0x3f == 0 {
            data[4] = 0x3f;
        }
    });
}
