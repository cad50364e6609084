//! The table of every command: its codes, its CDB usage map, its conditions and its handler.
//!
//! Dispatch, the CDB usage maps of REPORT SUPPORTED OPERATION CODES, reservation conflicts and unit attention
//! exemptions all use this table, so they cannot disagree.

use alloc::vec::Vec;

use scsi::cdb::Cdb;
use scsi::opcode;
use scsi::sense::{Asc, Sense};
use scsi::supported::{SupportedCommand, Timeouts};

use super::outcome::Outcome;
use super::{DeviceServer, UnitInfo};
use crate::pr::conflict::Conflict;
use crate::task::TaskInfo;

/// Executes a command: checks it, and returns its outcome or the work that it requires.
pub(crate) type Handler = fn(&mut DeviceServer, &TaskInfo) -> Outcome;

/// A command.
pub(crate) struct Row {
    /// Its operation code.
    pub(crate) opcode: u8,
    /// Its service action, if the operation code has them. Without one, beside rows with one, it is the row
    /// of all others.
    pub(crate) service_action: Option<u16>,
    /// The name of the command in its standard.
    pub(crate) name: &'static str,
    /// The CDB usage data (SPC-5 §6.34.3): the operation code and service action as such, and a one for every
    /// bit that is evaluated. A CDB with any other bit set is refused.
    pub(crate) usage: &'static [u8],
    /// Which reservations of other nexuses conflict with it.
    pub(crate) conflict: Conflict,
    /// How a pending unit attention affects it.
    pub(crate) attention: AttentionRule,
    /// What the command requires of the medium.
    pub(crate) medium: MediumNeed,
    /// Whether a nexus with read-only access may send it.
    pub(crate) read_only: ReadOnlyNexus,
    /// Recommended command timeout in seconds, for RCTD.
    pub(crate) timeout_s: u32,
    /// The function that executes the command.
    pub(crate) handler: Handler,
    /// Whether this unit supports the command, regardless of the length of its CDB.
    pub(crate) enabled: fn(&UnitInfo) -> bool,
}

impl Row {
    /// Returns whether this unit supports the command.
    pub(crate) fn is_enabled(&self, facts: &UnitInfo) -> bool {
        let long = self.opcode == opcode::VARIABLE_LENGTH;
        (!long || facts.config.long_cdbs) && (self.enabled)(facts)
    }

    /// Returns what REPORT SUPPORTED OPERATION CODES reports of the command in a list.
    pub(crate) fn describe(&self, has_timeouts: bool) -> SupportedCommand {
        SupportedCommand {
            opcode: self.opcode,
            service_action: self.service_action,
            cdb_len: u16::try_from(self.usage.len()).unwrap_or(u16::MAX),
            timeouts: has_timeouts.then(|| self.timeouts()),
        }
    }

    pub(crate) const fn timeouts(&self) -> Timeouts {
        Timeouts { nominal_s: 0, recommended_s: self.timeout_s }
    }
}

/// How a pending unit attention affects a command (SAM-5 §5.14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttentionRule {
    /// The unit attention is reported instead of executing the command.
    Reported,
    /// The command is executed: INQUIRY, REPORT LUNS, REQUEST SENSE.
    Exempt,
}

/// What a command requires of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MediumNeed {
    /// Nothing: the command does not use the medium.
    NotNeeded,
    /// The command can use the medium, and itself checks whether it may: it is executed whether or not the
    /// unit is ready.
    Optional,
    /// The unit must be ready.
    Ready,
    /// The unit must be ready, and the medium writable.
    Writable,
}

/// Whether a nexus whose access is read-only may send a command. A command that changes something another
/// nexus observes is refused with WRITE PROTECTED: not only blocks, but also reservations, mode parameters,
/// the clock, and whether the medium is loaded. Otherwise a host that may only read could stop the hosts that
/// write.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadOnlyNexus {
    /// The nexus may send it: other nexuses observe no effect.
    Admitted,
    /// The nexus may not send it.
    Refused,
    /// Depends on other bytes of the CDB: returns whether the nexus may send it.
    ByCdb(fn(&Cdb) -> bool),
}

impl ReadOnlyNexus {
    /// Returns whether a nexus with read-only access may send `cdb`.
    pub(crate) fn admits(self, cdb: &Cdb) -> bool {
        match self {
            Self::Admitted => true,
            Self::Refused => false,
            Self::ByCdb(admits) => admits(cdb),
        }
    }
}

/// For commands that every unit supports.
pub(crate) const fn always(_: &UnitInfo) -> bool {
    true
}

/// The table, arranged for lookup.
pub(crate) struct Table {
    /// The rows, sorted by operation code, then service action.
    rows: Vec<Entry>,
    /// The index of the first row of each operation code.
    starts: [u16; 257],
    /// The row of operation codes that have none.
    fallback: Option<&'static Row>,
}

struct Entry {
    row: &'static Row,
    /// The bits of the first 16 bytes that must be zero.
    forbidden: u128,
}

impl Table {
    /// Arranges the rows of several standards. A row replaces those of earlier standards with the same
    /// operation code.
    pub(crate) fn new(standards: &[&'static [Row]]) -> Self {
        let is_replaced = |at: usize, row: &Row| {
            let mut later = standards.iter().skip(at + 1).flat_map(|rows| rows.iter());
            later.any(|other| other.opcode == row.opcode)
        };
        let mut rows: Vec<Entry> = standards
            .iter()
            .enumerate()
            .flat_map(|(at, rows)| rows.iter().filter(move |row| !is_replaced(at, row)))
            .map(|row| Entry { row, forbidden: forbidden(row) })
            .collect();
        rows.sort_by_key(|entry| (entry.row.opcode, entry.row.service_action));
        let mut starts = [0; 257];
        for (code, start) in starts.iter_mut().enumerate() {
            let at = rows.partition_point(|entry| usize::from(entry.row.opcode) < code);
            *start = u16::try_from(at).unwrap_or(u16::MAX);
        }
        Self { rows, starts, fallback: None }
    }

    /// Returns the table with a row for operation codes that have none.
    pub(crate) const fn with_fallback(mut self, row: Option<&'static Row>) -> Self {
        self.fallback = row;
        self
    }

    /// Returns the table with commands that ignore the bits which had a meaning in SCSI-2, unless they
    /// evaluate them.
    pub(crate) fn without_obsolete_bits(mut self) -> Self {
        for entry in &mut self.rows {
            entry.forbidden &= !obsolete(entry.row);
        }
        self
    }

    /// Returns the rows of an operation code.
    pub(crate) fn rows_of(&self, opcode: u8) -> impl Iterator<Item = &'static Row> {
        self.entries(opcode).iter().map(|entry| entry.row)
    }

    /// Returns every row, in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &'static Row> {
        self.rows.iter().map(|entry| entry.row)
    }

    /// Finds the command that `cdb` asks for.
    ///
    /// # Errors
    /// The sense that answers an unknown command or a bit that must be zero.
    pub(crate) fn find(&self, facts: &UnitInfo, cdb: &Cdb) -> Result<&'static Row, Sense> {
        let entries = self.entries(cdb.opcode());
        if let (true, Some(row)) = (entries.is_empty(), self.fallback) {
            return Ok(row);
        }
        let (entry, known) = match entries {
            [only] if only.row.service_action.is_none() => (Some(only), true),
            [] => (None, false),
            several => {
                let action = service_action(cdb);
                let is_own = |entry: &&Entry| entry.row.service_action == Some(action);
                let is_others = |entry: &&Entry| entry.row.service_action.is_none();
                let found = several.iter().find(is_own).or_else(|| several.iter().find(is_others));
                (found, several.iter().any(|entry| entry.row.is_enabled(facts)))
            }
        };
        match entry {
            Some(entry) if entry.row.is_enabled(facts) => {
                check_reserved_bits(entry, cdb)?;
                Ok(entry.row)
            }
            _ if known && entries.iter().any(|entry| entry.row.service_action.is_some()) => {
                Err(unknown_service_action(cdb))
            }
            _ => Err(Sense::illegal(Asc::INVALID_COMMAND_OPERATION_CODE)),
        }
    }

    fn entries(&self, opcode: u8) -> &[Entry] {
        let code = usize::from(opcode);
        let bound = |at: usize| self.starts.get(at).copied().map_or(0, usize::from);
        self.rows.get(bound(code)..bound(code + 1)).unwrap_or_default()
    }
}

/// Returns the service action of a CDB whose operation code has them.
pub(crate) fn service_action(cdb: &Cdb) -> u16 {
    match cdb.opcode() {
        opcode::VARIABLE_LENGTH => cdb.u16(8),
        _ => u16::from(cdb.u8(1) & 0x1f),
    }
}

fn unknown_service_action(cdb: &Cdb) -> Sense {
    match cdb.opcode() {
        opcode::VARIABLE_LENGTH => Sense::invalid_cdb(8, None),
        _ => Sense::invalid_cdb(1, Some(4)),
    }
}

/// Returns the bits of the first 16 bytes that must be zero. The bytes with which a transport pads a shorter
/// CDB are not checked.
fn forbidden(row: &Row) -> u128 {
    let checked = head([0xff; 16].get(..row.usage.len().min(16)).unwrap_or_default());
    checked & !head(row.usage) & !head(&[0xff]) & !action_mask(row)
}

/// Returns the bits of the first 16 bytes that had a meaning in SCSI-2: the LUN in byte 1, and the
/// vendor-specific bits of the control byte, which is the last one.
fn obsolete(row: &Row) -> u128 {
    const LOGICAL_UNIT: u8 = 0xe0;
    const VENDOR_SPECIFIC: u8 = 0xc0;
    if row.opcode == opcode::VARIABLE_LENGTH {
        return 0;
    }
    let mut bits = [0; 16];
    if let [_, second, .., control] = bits.get_mut(..row.usage.len()).unwrap_or_default() {
        (*second, *control) = (LOGICAL_UNIT, VENDOR_SPECIFIC);
    }
    u128::from_be_bytes(bits)
}

/// Returns the bits of the first 16 bytes that a service action occupies.
fn action_mask(row: &Row) -> u128 {
    match (row.service_action, row.opcode) {
        (None, _) => 0,
        (Some(_), opcode::VARIABLE_LENGTH) => head(&[0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff]),
        (Some(_), _) => head(&[0, 0x1f]),
    }
}

/// Returns the first 16 bytes as one number.
fn head(bytes: &[u8]) -> u128 {
    let mut head = [0; 16];
    for (to, from) in head.iter_mut().zip(bytes) {
        *to = *from;
    }
    u128::from_be_bytes(head)
}

fn check_reserved_bits(entry: &Entry, cdb: &Cdb) -> Result<(), Sense> {
    let wrong = u128::from_be_bytes(cdb.array(0)) & entry.forbidden;
    if wrong != 0 {
        let bit = wrong.leading_zeros();
        let (byte, bit) = (u16::try_from(bit / 8).unwrap_or(0), u8::try_from(7 - bit % 8).unwrap_or(0));
        return Err(Sense::invalid_cdb(byte, Some(bit)));
    }
    if entry.row.usage.len() <= 16 {
        return Ok(());
    }
    if cdb.len_by_opcode() != Some(entry.row.usage.len()) {
        return Err(Sense::invalid_cdb(7, None));
    }
    for (at, (have, may)) in cdb.bytes().iter().zip(entry.row.usage).enumerate().skip(16) {
        let wrong = have & !may;
        if wrong != 0 {
            let bit = u8::try_from(wrong.ilog2()).unwrap_or(0);
            return Err(Sense::invalid_cdb(u16::try_from(at).unwrap_or(0), Some(bit)));
        }
    }
    Ok(())
}
