//! The SCSI statuses that a transport itself returns or treats specially (SAM-5 §5.3), and the bound of
//! sense data.

/// The command completed without an error.
pub const GOOD: u8 = 0x00;

/// Sense data describes the error or condition.
pub const CHECK_CONDITION: u8 = 0x02;

/// The target cannot execute the command at present; the initiator tries again.
pub const BUSY: u8 = 0x08;

/// The longest sense data that a response carries (SPC-5 §4.5: 252 bytes).
pub const SENSE_MAX: usize = 252;
