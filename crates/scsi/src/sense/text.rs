//! Sense data as text, for logs and error messages.

use core::fmt;

use super::{Asc, Sense, SenseKey};

impl fmt::Display for Sense {
    /// Writes the sense key, the additional sense code as text if it is in the table, both codes in
    /// hexadecimal, and the position of the error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [asc, ascq] = self.asc.0.to_be_bytes();
        write!(f, "{}", self.key)?;
        if let Some((_, text)) = TEXTS.iter().find(|(code, _)| *code == self.asc) {
            write!(f, ", {text}")?;
        }
        write!(f, " ({asc:02x}/{ascq:02x})")?;
        match self.information {
            Some(at) if self.key == SenseKey::MEDIUM_ERROR => write!(f, " at block {at}"),
            Some(at) if self.key == SenseKey::MISCOMPARE => write!(f, " at byte {at}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for SenseKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::NO_SENSE => "no sense",
            Self::RECOVERED_ERROR => "recovered error",
            Self::NOT_READY => "not ready",
            Self::MEDIUM_ERROR => "medium error",
            Self::HARDWARE_ERROR => "hardware error",
            Self::ILLEGAL_REQUEST => "illegal request",
            Self::UNIT_ATTENTION => "unit attention",
            Self::DATA_PROTECT => "data protect",
            Self::BLANK_CHECK => "blank check",
            Self::COPY_ABORTED => "copy aborted",
            Self::ABORTED_COMMAND => "aborted command",
            Self::VOLUME_OVERFLOW => "volume overflow",
            Self::MISCOMPARE => "miscompare",
            Self::COMPLETED => "completed",
            Self(other) => return write!(f, "sense key {other:x}h"),
        })
    }
}

/// Texts of the additional sense codes of disks that an operator is likely to see.
const TEXTS: [(Asc, &str); 38] = [
    (Asc::FORMAT_IN_PROGRESS, "format in progress"),
    (Asc::SANITIZE_IN_PROGRESS, "sanitize in progress"),
    (Asc::NOT_READY_INITIALIZING_COMMAND_REQUIRED, "the unit is stopped"),
    (Asc::NOT_READY_MANUAL_INTERVENTION_REQUIRED, "the unit waits for its operator"),
    (Asc::NOT_READY_SPACE_ALLOCATION_IN_PROGRESS, "space is being allocated"),
    (Asc::NOT_READY_TARGET_PORT_STANDBY, "the target port is in standby"),
    (Asc::NOT_READY_TARGET_PORT_UNAVAILABLE, "the target port is unavailable"),
    (Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION, "the unit does not respond"),
    (Asc::LOGICAL_UNIT_COMMUNICATION_FAILURE, "communication with the unit failed"),
    (Asc::WRITE_ERROR, "write error"),
    (Asc::UNRECOVERED_READ_ERROR, "unrecovered read error"),
    (Asc::PARAMETER_LIST_LENGTH_ERROR, "parameter list length error"),
    (Asc::MISCOMPARE_DURING_VERIFY, "the blocks differ"),
    (Asc::INVALID_COMMAND_OPERATION_CODE, "command not supported"),
    (Asc::LBA_OUT_OF_RANGE, "block address out of range"),
    (Asc::INVALID_FIELD_IN_CDB, "invalid field in the command"),
    (Asc::LOGICAL_UNIT_NOT_SUPPORTED, "no such LUN"),
    (Asc::INVALID_FIELD_IN_PARAMETER_LIST, "invalid field in the parameter list"),
    (Asc::WRITE_PROTECTED, "write protected"),
    (Asc::SOFTWARE_WRITE_PROTECTED, "write protected by software"),
    (Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT, "no space left on the medium"),
    (Asc::MEDIUM_MAY_HAVE_CHANGED, "the medium may have changed"),
    (Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET, "power on or reset"),
    (Asc::POWER_ON_OCCURRED, "power on"),
    (Asc::BUS_DEVICE_RESET_OCCURRED, "the unit was reset"),
    (Asc::I_T_NEXUS_LOSS_OCCURRED, "the session was lost"),
    (Asc::CAPACITY_DATA_HAS_CHANGED, "the capacity has changed"),
    (Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR, "another initiator cleared the commands"),
    (Asc::MEDIUM_NOT_PRESENT, "no medium"),
    (Asc::TIMEOUT_ON_LOGICAL_UNIT, "the medium took too long"),
    (Asc::REPORTED_LUNS_DATA_HAS_CHANGED, "the list of LUNs has changed"),
    (Asc::INTERNAL_TARGET_FAILURE, "internal failure of the target"),
    (Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS, "no access rights"),
    (
        Asc::LOGICAL_UNIT_ACCESS_NOT_AUTHORIZED,
        "access to the unit is not authorized: it may want more protection than the session has",
    ),
    (Asc::PROTOCOL_SERVICE_CRC_ERROR, "data arrived damaged"),
    (Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT, "commands ended with their connection"),
    (Asc::INSUFFICIENT_RESOURCES, "the target lacks resources"),
    (Asc::SYSTEM_RESOURCE_FAILURE, "the target lacks resources"),
];

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn an_operator_reads_what_went_wrong_and_where() {
        let medium = Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).with_information(5);
        assert_eq!(medium.to_string(), "medium error, unrecovered read error (11/00) at block 5");
        let unknown = Sense::new(SenseKey(0xc), Asc(0x8123));
        assert_eq!(unknown.to_string(), "sense key ch (81/23)");
    }
}
