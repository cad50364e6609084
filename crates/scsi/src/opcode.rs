//! Operation codes and service actions (SPC-5 §F.3, SBC-4 §5, SSC-4, MMC-6).

#![allow(missing_docs, reason = "the names are the standard's")]

pub const TEST_UNIT_READY: u8 = 0x00;
pub const REWIND: u8 = 0x01;
pub const REQUEST_SENSE: u8 = 0x03;
pub const FORMAT_UNIT: u8 = 0x04;
/// FORMAT MEDIUM (SSC-4) has the code of FORMAT UNIT.
pub const FORMAT_MEDIUM: u8 = 0x04;
pub const SET_CAPACITY: u8 = 0x0b;
pub const READ_BLOCK_LIMITS: u8 = 0x05;
pub const REASSIGN_BLOCKS: u8 = 0x07;
/// The code of REASSIGN BLOCKS, on a medium changer.
pub const INITIALIZE_ELEMENT_STATUS: u8 = 0x07;
pub const READ_6: u8 = 0x08;
pub const WRITE_6: u8 = 0x0a;
pub const WRITE_FILEMARKS_6: u8 = 0x10;
pub const SPACE_6: u8 = 0x11;
pub const INQUIRY: u8 = 0x12;
pub const VERIFY_6: u8 = 0x13;
pub const MODE_SELECT_6: u8 = 0x15;
pub const RESERVE_6: u8 = 0x16;
pub const RELEASE_6: u8 = 0x17;
pub const ERASE_6: u8 = 0x19;
pub const MODE_SENSE_6: u8 = 0x1a;
pub const START_STOP_UNIT: u8 = 0x1b;
/// LOAD UNLOAD has the operation code of START STOP UNIT.
pub const LOAD_UNLOAD: u8 = 0x1b;
/// The code of START STOP UNIT, on a medium changer.
pub const OPEN_CLOSE_IMPORT_EXPORT_ELEMENT: u8 = 0x1b;
pub const RECEIVE_DIAGNOSTIC_RESULTS: u8 = 0x1c;
pub const SEND_DIAGNOSTIC: u8 = 0x1d;
pub const PREVENT_ALLOW_MEDIUM_REMOVAL: u8 = 0x1e;
pub const READ_FORMAT_CAPACITIES: u8 = 0x23;
pub const READ_CAPACITY_10: u8 = 0x25;
pub const READ_10: u8 = 0x28;
pub const WRITE_10: u8 = 0x2a;
pub const LOCATE_10: u8 = 0x2b;
/// The code of LOCATE(10), on a medium changer.
pub const POSITION_TO_ELEMENT: u8 = 0x2b;
pub const WRITE_AND_VERIFY_10: u8 = 0x2e;
pub const VERIFY_10: u8 = 0x2f;
pub const PRE_FETCH_10: u8 = 0x34;
/// READ POSITION has the operation code of PRE-FETCH(10).
pub const READ_POSITION: u8 = 0x34;
pub const SYNCHRONIZE_CACHE_10: u8 = 0x35;
pub const READ_DEFECT_DATA_10: u8 = 0x37;
/// The code of READ DEFECT DATA(10), on a medium changer.
pub const INITIALIZE_ELEMENT_STATUS_WITH_RANGE: u8 = 0x37;
pub const WRITE_BUFFER: u8 = 0x3b;
pub const READ_BUFFER_10: u8 = 0x3c;
pub const WRITE_SAME_10: u8 = 0x41;
pub const UNMAP: u8 = 0x42;
pub const READ_TOC_PMA_ATIP: u8 = 0x43;
pub const REPORT_DENSITY_SUPPORT: u8 = 0x44;
pub const GET_CONFIGURATION: u8 = 0x46;
pub const SANITIZE: u8 = 0x48;
pub const GET_EVENT_STATUS_NOTIFICATION: u8 = 0x4a;
pub const LOG_SELECT: u8 = 0x4c;
pub const LOG_SENSE: u8 = 0x4d;
pub const READ_DISC_INFORMATION: u8 = 0x51;
pub const READ_TRACK_INFORMATION: u8 = 0x52;
pub const RESERVE_TRACK: u8 = 0x53;
pub const SEND_OPC_INFORMATION: u8 = 0x54;
pub const MODE_SELECT_10: u8 = 0x55;
pub const RESERVE_10: u8 = 0x56;
pub const RELEASE_10: u8 = 0x57;
pub const MODE_SENSE_10: u8 = 0x5a;
pub const CLOSE_TRACK_SESSION: u8 = 0x5b;
pub const READ_BUFFER_CAPACITY: u8 = 0x5c;
pub const PERSISTENT_RESERVE_IN: u8 = 0x5e;
pub const PERSISTENT_RESERVE_OUT: u8 = 0x5f;
pub const VARIABLE_LENGTH: u8 = 0x7f;
pub const WRITE_FILEMARKS_16: u8 = 0x80;
pub const THIRD_PARTY_COPY_OUT: u8 = 0x83;
pub const THIRD_PARTY_COPY_IN: u8 = 0x84;
pub const ALLOW_OVERWRITE: u8 = 0x82;
pub const READ_16: u8 = 0x88;
pub const COMPARE_AND_WRITE: u8 = 0x89;
pub const WRITE_16: u8 = 0x8a;
pub const ORWRITE_16: u8 = 0x8b;
pub const READ_ATTRIBUTE: u8 = 0x8c;
pub const WRITE_ATTRIBUTE: u8 = 0x8d;
pub const WRITE_AND_VERIFY_16: u8 = 0x8e;
pub const VERIFY_16: u8 = 0x8f;
pub const PRE_FETCH_16: u8 = 0x90;
pub const SYNCHRONIZE_CACHE_16: u8 = 0x91;
/// SPACE(16) has the operation code of SYNCHRONIZE CACHE(16).
pub const SPACE_16: u8 = 0x91;
pub const LOCATE_16: u8 = 0x92;
pub const WRITE_SAME_16: u8 = 0x93;
/// ERASE(16) has the operation code of WRITE SAME(16).
pub const ERASE_16: u8 = 0x93;
pub const WRITE_ATOMIC_16: u8 = 0x9c;
pub const SERVICE_ACTION_IN_16: u8 = 0x9e;
pub const READ_BUFFER_16: u8 = 0x9b;
pub const REPORT_LUNS: u8 = 0xa0;
pub const SECURITY_PROTOCOL_IN: u8 = 0xa2;
pub const MAINTENANCE_IN: u8 = 0xa3;
pub const MAINTENANCE_OUT: u8 = 0xa4;
pub const MOVE_MEDIUM: u8 = 0xa5;
pub const EXCHANGE_MEDIUM: u8 = 0xa6;
pub const READ_12: u8 = 0xa8;
pub const WRITE_12: u8 = 0xaa;
pub const GET_PERFORMANCE: u8 = 0xac;
pub const READ_DISC_STRUCTURE: u8 = 0xad;
pub const WRITE_AND_VERIFY_12: u8 = 0xae;
pub const VERIFY_12: u8 = 0xaf;
pub const SECURITY_PROTOCOL_OUT: u8 = 0xb5;
pub const SET_STREAMING: u8 = 0xb6;
pub const READ_DEFECT_DATA_12: u8 = 0xb7;
pub const READ_ELEMENT_STATUS: u8 = 0xb8;
pub const READ_CD_MSF: u8 = 0xb9;
pub const SET_CD_SPEED: u8 = 0xbb;
pub const MECHANISM_STATUS: u8 = 0xbd;
pub const READ_CD: u8 = 0xbe;

/// Service actions of SERVICE ACTION IN(16).
pub mod service_action_in_16 {
    pub const READ_CAPACITY_16: u16 = 0x10;
    pub const GET_LBA_STATUS: u16 = 0x12;
}

/// Service actions of READ POSITION.
pub mod read_position {
    pub const SHORT: u16 = 0x00;
    pub const SHORT_VENDOR_SPECIFIC: u16 = 0x01;
    pub const LONG: u16 = 0x06;
    pub const EXTENDED: u16 = 0x08;
}

/// Service actions of READ ATTRIBUTE.
pub mod read_attribute {
    pub const VALUES: u16 = 0x00;
    pub const LIST: u16 = 0x01;
    pub const LOGICAL_VOLUME_LIST: u16 = 0x02;
    pub const PARTITION_LIST: u16 = 0x03;
    pub const SUPPORTED: u16 = 0x05;
}

/// Service actions of MAINTENANCE IN.
pub mod maintenance_in {
    pub const REPORT_IDENTIFYING_INFORMATION: u16 = 0x05;
    pub const REPORT_TARGET_PORT_GROUPS: u16 = 0x0a;
    pub const REPORT_SUPPORTED_OPERATION_CODES: u16 = 0x0c;
    pub const REPORT_SUPPORTED_TASK_MANAGEMENT_FUNCTIONS: u16 = 0x0d;
    pub const REPORT_TIMESTAMP: u16 = 0x0f;
}

/// Service actions of MAINTENANCE OUT.
pub mod maintenance_out {
    pub const SET_IDENTIFYING_INFORMATION: u16 = 0x06;
    pub const SET_TARGET_PORT_GROUPS: u16 = 0x0a;
    pub const SET_TIMESTAMP: u16 = 0x0f;
}

/// Service actions of SANITIZE.
pub mod sanitize {
    pub const OVERWRITE: u16 = 0x01;
    pub const BLOCK_ERASE: u16 = 0x02;
    pub const CRYPTOGRAPHIC_ERASE: u16 = 0x03;
    pub const EXIT_FAILURE_MODE: u16 = 0x1f;
}

/// Service actions of variable-length CDBs (32 bytes).
pub mod variable_length {
    pub const READ_32: u16 = 0x09;
    pub const VERIFY_32: u16 = 0x0a;
    pub const WRITE_32: u16 = 0x0b;
    pub const WRITE_AND_VERIFY_32: u16 = 0x0c;
    pub const WRITE_SAME_32: u16 = 0x0d;
    pub const ORWRITE_32: u16 = 0x0e;
    pub const WRITE_ATOMIC_32: u16 = 0x0f;
    pub const GET_LBA_STATUS_32: u16 = 0x12;
}
