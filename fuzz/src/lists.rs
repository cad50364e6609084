//! Commands with parameter lists, and those that answer with one, so well formed that lists and fields are
//! what is looked at: each operation names a command of a table, some bytes for its fields, and a list of the
//! right length.

use base::rng::Rng;

/// A command: operation code, service action (or 0), length of the CDB, and where its length field stands.
struct Row {
    code: u8,
    action: u8,
    cdb_len: usize,
    len_at: (usize, usize),
    way: Way,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The list goes to the unit.
    Out,
    /// The unit answers.
    In,
}

const fn row(code: u8, action: u8, cdb_len: usize, len_at: (usize, usize), way: Way) -> Row {
    Row { code, action, cdb_len, len_at, way }
}

const ROWS: &[Row] = &[
    // MODE SELECT, MODE SENSE.
    row(0x15, 0, 6, (4, 1), Way::Out),
    row(0x55, 0, 10, (7, 2), Way::Out),
    row(0x1a, 0, 6, (4, 1), Way::In),
    row(0x5a, 0, 10, (7, 2), Way::In),
    // PERSISTENT RESERVE OUT and IN.
    row(0x5f, 0, 10, (5, 4), Way::Out),
    row(0x5e, 0, 10, (7, 2), Way::In),
    // UNMAP, GET LBA STATUS.
    row(0x42, 0, 10, (7, 2), Way::Out),
    row(0x9e, 0x12, 16, (10, 4), Way::In),
    // WRITE BUFFER, READ BUFFER.
    row(0x3b, 0, 10, (6, 3), Way::Out),
    row(0x3c, 0, 10, (6, 3), Way::In),
    // EXTENDED COPY, POPULATE TOKEN, WRITE USING TOKEN, RECEIVE COPY RESULTS.
    row(0x83, 0x00, 16, (10, 4), Way::Out),
    row(0x83, 0x01, 16, (10, 4), Way::Out),
    row(0x83, 0x10, 16, (10, 4), Way::Out),
    row(0x83, 0x11, 16, (10, 4), Way::Out),
    row(0x83, 0x1c, 16, (10, 4), Way::Out),
    row(0x84, 0, 16, (10, 4), Way::In),
    // REPORT SUPPORTED OPERATION CODES and task management functions, timestamps, identifying information,
    // port groups.
    row(0xa3, 0x0c, 12, (6, 4), Way::In),
    row(0xa3, 0, 12, (6, 4), Way::In),
    row(0xa4, 0x06, 12, (6, 4), Way::Out),
    row(0xa4, 0x0a, 12, (6, 4), Way::Out),
    row(0xa4, 0x0f, 12, (6, 4), Way::Out),
    // LOG SELECT, LOG SENSE.
    row(0x4c, 0, 10, (7, 2), Way::Out),
    row(0x4d, 0, 10, (7, 2), Way::In),
    // SANITIZE, FORMAT UNIT, SEND DIAGNOSTIC, RECEIVE DIAGNOSTIC RESULTS, READ DEFECT DATA.
    row(0x48, 0, 10, (7, 2), Way::Out),
    row(0x04, 0, 6, (5, 0), Way::Out),
    row(0x1d, 0, 6, (3, 2), Way::Out),
    row(0x1c, 0, 6, (3, 2), Way::In),
    row(0xb7, 0, 12, (6, 4), Way::In),
    // INQUIRY, REQUEST SENSE, REPORT LUNS.
    row(0x12, 0, 6, (3, 2), Way::In),
    row(0x03, 0, 6, (4, 1), Way::In),
    row(0xa0, 0, 12, (6, 4), Way::In),
    // COMPARE AND WRITE, ORWRITE, WRITE SAME, WRITE ATOMIC: the length is in blocks and stands in the fields.
    row(0x89, 0, 16, (13, 0), Way::Out),
    row(0x8b, 0, 16, (13, 0), Way::Out),
    row(0x93, 0, 16, (13, 0), Way::Out),
    row(0x9c, 0, 16, (13, 0), Way::Out),
    // SECURITY PROTOCOL IN and OUT, SET CAPACITY.
    row(0xa2, 0, 12, (6, 4), Way::In),
    row(0xb5, 0, 12, (6, 4), Way::Out),
    row(0x0b, 0, 6, (5, 0), Way::Out),
    // WRITE ATTRIBUTE, READ ATTRIBUTE.
    row(0x8d, 0, 16, (10, 4), Way::Out),
    row(0x8c, 0, 16, (10, 4), Way::In),
];

/// How many bytes of an operation say whom it is from and fill the fields of its CDB.
const HEAD: usize = 1 + 6;

/// Makes the description that [`crate::unit`] takes of a command, from an operation.
pub(crate) fn command(which: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    let row = ROWS.get(usize::from(which) % ROWS.len())?;
    let (head, list) = bytes.split_at_checked(HEAD)?;
    let (from, fields) = head.split_first()?;
    let mut cdb = vec![0; row.cdb_len];
    cdb[0] = row.code;
    cdb[1] = if row.action == 0 { fields[0] } else { row.action | fields[0] & 0xe0 };
    // Three fields in front, where pages, codes and identifiers stand, and two at the end, where counts do.
    for (at, field) in (2..).zip(&fields[1..4]) {
        cdb[at.min(row.cdb_len - 1)] = *field;
    }
    if row.cdb_len == 16 {
        (cdb[9], cdb[13]) = (cdb[2], fields[4]);
        (cdb[2], cdb[3], cdb[4]) = (0, 0, 0);
    }
    let answer = u32::from(fields[5]) * 16;
    let len = if row.way == Way::Out { u32::try_from(list.len()).ok()? } else { answer };
    let (at, width) = row.len_at;
    cdb[at..at + width].copy_from_slice(&len.to_be_bytes()[4 - width..]);
    let (receive, send) = if row.way == Way::Out { (0, len) } else { (len, 0) };
    let mut description = vec![*from];
    description.extend(&receive.to_be_bytes()[1..]);
    description.extend(&send.to_be_bytes()[1..]);
    description.push(u8::try_from(cdb.len()).ok()?);
    description.extend(cdb);
    description.extend(if list.is_empty() { &[0; 1][..] } else { list });
    Some(description)
}

/// The beginnings of lists that mean something.
const LISTS: &[&[u8]] = &[
    // Mode parameter headers with a caching, a control and an exceptions page.
    &[0, 0, 0, 0, 0x08, 0x12, 4, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x0a, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0, 0, 0, 8, 0, 0, 0x20, 0, 0, 0, 2, 0, 0x1c, 0x0a, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    // Keys of reservations.
    &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
    &[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 4, 5, 0, 0, 0],
    // Two ranges to unmap.
    &[
        0, 38, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0,
        0, 0, 1, 0, 0, 0, 0,
    ],
    // A token over one range.
    &[0, 30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0],
    // A pattern to sanitize with, groups of ports, a name.
    &[1, 0, 0, 4, 0xde, 0xad, 0xbe, 0xef],
    &[0, 0, 0, 0, 0, 0, 0, 1],
    b"a name\0",
    // A text label of a cartridge, and the medium partition page for two partitions.
    &[0, 0, 0, 9, 0x08, 0x03, 2, 0, 4, b'm', b'i', b'n', b'e'],
    &[0, 0, 0x10, 0, 0x11, 14, 3, 1, 0x44, 3, 0, 0, 0, 1, 0xff, 0xff, 0, 0, 0, 0],
    &[],
];

/// Makes an input of operations that mean something, so that a corpus starts beyond the first checks.
pub fn meaningful(seed: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(seed);
    let mut byte = |below: u64| rng.below(below).to_le_bytes()[0];
    let mut input = vec![byte(256)];
    for _ in 0..byte(24) {
        let list = LISTS[usize::from(byte(12)) % LISTS.len()];
        let mut bytes = vec![byte(256), byte(32), byte(64), byte(8), byte(8), byte(8), byte(256)];
        bytes.extend_from_slice(list);
        if byte(4) == 0 && !list.is_empty() {
            let at = HEAD + usize::from(byte(255)) % list.len();
            bytes[at] = byte(256);
        }
        // Most are commands; the others are what happens between them.
        input.push(if byte(6) == 0 { 0xe0 | byte(32) } else { byte(0xe0) });
        input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        input.extend(bytes);
    }
    input
}
