//! The SCSI statuses that a transport itself returns or treats specially (SAM-5 §5.3), and the bound of
//! sense data.

/// The command completed without an error.
pub const GOOD: u8 = 0x00;

/// Sense data describes the error or condition.
pub const CHECK_CONDITION: u8 = 0x02;

/// The target cannot execute the command at present; the initiator tries again.
pub const BUSY: u8 = 0x08;

/// The longest sense data that a response carries (SPC-5 §4.4: 252 bytes).
pub const SENSE_MAX: usize = 252;

/// The sense key ILLEGAL REQUEST.
pub const ILLEGAL_REQUEST: u8 = 0x05;

/// The sense key ABORTED COMMAND.
pub const ABORTED_COMMAND: u8 = 0x0b;

/// Returns the sense data, in fixed format (SPC-5 §4.4.3), of a command that the transport itself ends.
pub const fn sense(key: u8, [code, qualifier]: [u8; 2]) -> [u8; 18] {
    [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0]
}
