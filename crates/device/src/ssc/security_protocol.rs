//! SECURITY PROTOCOL IN (SPC-5) with the tape data encryption security protocol (SSC-4).

use alloc::vec::Vec;

use cartridge::command::{self, Command, RecordInfo};
use cartridge::error::Error;
use scsi::sense::Sense;

use super::data;
use super::turn::{TapeCommand, failed, in_turn, run};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::tape_drive::encrypted_record::{
    ALGORITHM, AUTHENTICATED_LEN_MAX, EncryptedInfo, UNAUTHENTICATED_LEN_MAX,
};
use crate::tape_drive::encryption::{DecryptionMode, EncryptionMode};
use crate::tape_drive::encryption_key::KeyAssociated;
use crate::task::TaskInfo;

/// SECURITY PROTOCOL.
pub(super) mod protocol {
    pub(super) const INFORMATION: u8 = 0x00;
    pub(in super::super) const TAPE_ENCRYPTION: u8 = 0x20;
}

/// The pages of SECURITY PROTOCOL SPECIFIC with protocol 20h.
mod page {
    pub(super) const IN_SUPPORT: u16 = 0x0000;
    pub(super) const OUT_SUPPORT: u16 = 0x0001;
    pub(super) const CAPABILITIES: u16 = 0x0010;
    pub(super) const KEY_FORMATS: u16 = 0x0011;
    pub(super) const MANAGEMENT_CAPABILITIES: u16 = 0x0012;
    pub(super) const STATUS: u16 = 0x0020;
    pub(super) const NEXT_BLOCK_STATUS: u16 = 0x0021;
    pub(super) const RANDOM_NUMBER: u16 = 0x0030;
    pub(super) const ALL: [u16; 8] = [
        IN_SUPPORT,
        OUT_SUPPORT,
        CAPABILITIES,
        KEY_FORMATS,
        MANAGEMENT_CAPABILITIES,
        STATUS,
        NEXT_BLOCK_STATUS,
        RANDOM_NUMBER,
    ];
}

/// The page Set Data Encryption of SECURITY PROTOCOL OUT.
pub(super) const SET_DATA_ENCRYPTION: u16 = 0x0010;
/// KEY FORMAT: the key itself.
pub(super) const PLAIN_KEY: u8 = 0x00;
/// INC_512: the length counts units of 512 bytes.
pub(super) const UNITS_OF_512: u8 = 0x80;

/// KEY DESCRIPTOR TYPE of key-associated data.
pub(super) mod descriptor {
    pub(in super::super) const UNAUTHENTICATED: u8 = 0;
    pub(in super::super) const AUTHENTICATED: u8 = 1;
}

/// Returns ALLOCATION LENGTH or TRANSFER LENGTH in bytes.
pub(super) fn transfer_len(task: &TaskInfo) -> u64 {
    let unit = if task.cdb.u8(4) & UNITS_OF_512 != 0 { 512 } else { 1 };
    u64::from(task.cdb.u32(6)) * unit
}

pub(super) fn security_protocol_in(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let bytes = match (task.cdb.u8(1), task.cdb.u16(2)) {
        (protocol::INFORMATION, 0x0000) => {
            Vec::from([0, 0, 0, 0, 0, 0, 0, 2, protocol::INFORMATION, protocol::TAPE_ENCRYPTION])
        }
        // There is no certificate.
        (protocol::INFORMATION, 0x0001) => Vec::from([0; 4]),
        (protocol::TAPE_ENCRYPTION, code) => {
            if !page::ALL.contains(&code) {
                return Outcome::CheckCondition(Sense::invalid_cdb(2, None));
            }
            if let Some(drive) = &mut server.tape {
                drive.encryption.register(task.nexus);
            }
            match code {
                // What commands before this one change is told when they have ended.
                page::STATUS => return in_turn(ReportStatus),
                page::NEXT_BLOCK_STATUS => return in_turn(ReportNextBlock),
                _ => encode(code, &page_body(server, code)),
            }
        }
        (protocol::INFORMATION, _) => return Outcome::CheckCondition(Sense::invalid_cdb(2, None)),
        _ => return Outcome::CheckCondition(Sense::invalid_cdb(1, None)),
    };
    parameter_data(task, bytes)
}

fn parameter_data(task: &TaskInfo, bytes: Vec<u8>) -> Outcome {
    data(bytes, u32::try_from(transfer_len(task)).unwrap_or(u32::MAX))
}

/// Puts the header before the body of a page.
fn encode(code: u16, body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap_or(u16::MAX);
    [&code.to_be_bytes()[..], &len.to_be_bytes(), body].concat()
}

fn page_body(server: &mut DeviceServer, code: u16) -> Vec<u8> {
    match code {
        page::IN_SUPPORT => page::ALL.iter().flat_map(|code| code.to_be_bytes()).collect(),
        page::OUT_SUPPORT => Vec::from(SET_DATA_ENCRYPTION.to_be_bytes()),
        page::CAPABILITIES => capabilities(server),
        page::KEY_FORMATS => Vec::from([PLAIN_KEY]),
        // LOCK_C; CKOD_C, CKORP_C and CKORL_C; all scopes.
        page::MANAGEMENT_CAPABILITIES => Vec::from([0x01, 0x07, 0, 0x07, 0, 0, 0, 0, 0, 0, 0, 0]),
        _ => {
            let random = server.tape.as_mut().map(|drive| drive.encryption.random.bytes::<32>());
            random.map(Vec::from).unwrap_or_default()
        }
    }
}

/// Returns the capabilities: AES-256-GCM in hardware. To a host the drive is the hardware, and Proxmox Backup
/// Server uses no drive without an algorithm in hardware.
fn capabilities(server: &DeviceServer) -> Vec<u8> {
    /// CFG_P 01b: a host may change the parameters.
    const CHANGES_ALLOWED: u8 = 0x01;
    /// MAC_C, DED_C, and DECRYPT_C and ENCRYPT_C 10b: by hardware.
    const CIPHER: u8 = 0x3a;
    /// AVFMV: the cartridge can be written with the algorithm.
    const VALID_FOR_VOLUME: u8 = 0x80;
    /// NONCE_C 01b: the drive makes the nonce. KADF_C and VCELB_C.
    const NONCE_AND_STATUS: u8 = 0x1c;
    /// EEMC_C 10b: CEEM is honoured. RDMC_C 4h: raw reads are off by default, and RDMC turns them on. EAREM:
    /// records keep how they were written.
    const MODE_CONTROL: u8 = 0x29;
    /// SECURITY ALGORITHM CODE of AES-256-GCM with a tag of 16 bytes.
    const AES_256_GCM: u32 = 0x0001_0014;
    let is_loaded = server.tape.as_ref().is_some_and(|drive| drive.is_loaded());
    let mut body = Vec::from([0; 16]);
    if let Some(first) = body.first_mut() {
        *first = CHANGES_ALLOWED;
    }
    body.extend_from_slice(&[ALGORITHM, 0, 0, 20]);
    body.extend_from_slice(&[if is_loaded { CIPHER | VALID_FOR_VOLUME } else { CIPHER }, NONCE_AND_STATUS]);
    body.extend_from_slice(&UNAUTHENTICATED_LEN_MAX.to_be_bytes());
    body.extend_from_slice(&AUTHENTICATED_LEN_MAX.to_be_bytes());
    body.extend_from_slice(&[0, 32, MODE_CONTROL, 0, 0, 0, 0, 0, 0, 0]);
    body.extend_from_slice(&AES_256_GCM.to_be_bytes());
    body
}

/// Appends the descriptors of key-associated data. `states` are the AUTHENTICATED fields of the two kinds.
fn put_associated(body: &mut Vec<u8>, associated: &KeyAssociated, states: [u8; 2]) {
    let kinds = [
        (descriptor::UNAUTHENTICATED, &associated.unauthenticated),
        (descriptor::AUTHENTICATED, &associated.authenticated),
    ];
    for ((kind, value), state) in kinds.into_iter().zip(states) {
        if !value.is_empty() {
            body.extend_from_slice(&[kind, state]);
            body.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
            body.extend_from_slice(value);
        }
    }
}

/// The page Data Encryption Status: the parameters that the nexus uses.
#[derive(Debug)]
struct ReportStatus;

impl TapeCommand for ReportStatus {
    const NEEDS_CARTRIDGE: bool = false;

    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        /// PARAMETERS CONTROL 001b: no key manager controls them.
        const BY_HOSTS: u8 = 0x10;
        /// VCELB: the cartridge holds encrypted records.
        const HOLDS_ENCRYPTED: u8 = 0x08;
        /// RDMD: records are written such that they cannot be read in RAW mode.
        const RAW_READS_DISABLED: u8 = 0x01;
        let Some(drive) = &server.tape else { return JobStep::unexpected_input() };
        let encryption = &drive.encryption;
        let (nexus_scope, key_scope) = encryption.scopes(task.nexus);
        let parameters = encryption.parameters(task.nexus);
        let in_use = parameters.as_deref();
        let is_enabled = in_use.is_some_and(|set| {
            (set.encryption, set.decryption) != (EncryptionMode::Disable, DecryptionMode::Disable)
        });
        let mut parts = (0..=u8::MAX).map_while(|number| drive.cartridge().partition(number));
        let is_encrypted = parts.any(|part| part.first_encrypted != 0);
        let mut body = Vec::from([
            nexus_scope << 5 | key_scope,
            in_use.map_or(0, |set| set.encryption as u8),
            in_use.map_or(0, |set| set.decryption as u8),
            if is_enabled { ALGORITHM } else { 0 },
        ]);
        body.extend_from_slice(&encryption.counter(task.nexus).to_be_bytes());
        let is_raw_disabled =
            in_use.is_some_and(|set| set.encryption == EncryptionMode::Encrypt && !set.allows_raw_reads);
        let status = BY_HOSTS
            | if is_encrypted { HOLDS_ENCRYPTED } else { 0 }
            | in_use.map_or(0, |set| set.external_check as u8) << 1
            | if is_raw_disabled { RAW_READS_DISABLED } else { 0 };
        body.extend_from_slice(&[status, in_use.map_or(0, |set| set.associated.format)]);
        body.extend_from_slice(&[0; 10]);
        if let Some(set) = in_use {
            put_associated(&mut body, &set.associated, [0, 0]);
        }
        JobStep::Done(parameter_data(task, encode(page::STATUS, &body)))
    }

    fn ended(&mut self, _: &mut DeviceServer, _: &TaskInfo, _: Result<command::Outcome, Error>) -> JobStep {
        JobStep::unexpected_input()
    }
}

/// The page Next Block Encryption Status: how the block at the position can be read.
#[derive(Debug)]
struct ReportNextBlock;

/// The values of COMPRESSION STATUS and ENCRYPTION STATUS.
mod block_status {
    /// The block cannot be read.
    pub(super) const UNKNOWN: u8 = 1;
    pub(super) const NO_BLOCK: u8 = 2;
    /// Not compressed, not encrypted.
    pub(super) const PLAIN: u8 = 3;
    pub(super) const COMPRESSED: u8 = 4;
    /// By an algorithm that the drive does not have.
    pub(super) const UNSUPPORTED: u8 = 4;
    /// The nexus can read it.
    pub(super) const DECRYPTED: u8 = 5;
    /// The nexus has not the right key.
    pub(super) const WRONG_KEY: u8 = 6;
}

impl ReportNextBlock {
    fn body(server: &DeviceServer, task: &TaskInfo, record: Option<&RecordInfo>, absent: u8) -> Vec<u8> {
        /// EMES: written in EXTERNAL mode.
        const EXTERNAL: u8 = 0x02;
        /// RDMDS: cannot be read in RAW mode.
        const RAW_READS_DISABLED: u8 = 0x01;
        let drive = server.tape.as_ref();
        let object = drive.map_or(0, |drive| drive.cartridge().position().object);
        let mut body = Vec::from(object.to_be_bytes());
        let compression = |is_compressed| {
            if is_compressed { block_status::COMPRESSED } else { block_status::PLAIN }
        };
        let Some(record) = record else {
            body.extend_from_slice(&[absent << 4 | absent, 0, 0, 0]);
            return body;
        };
        if record.encryption == 0 {
            let status = compression(record.is_compressed) << 4 | block_status::PLAIN;
            body.extend_from_slice(&[status, 0, 0, 0]);
            return body;
        }
        let info = EncryptedInfo::of_metadata(&record.metadata).filter(|_| record.encryption == ALGORITHM);
        let Some(info) = info else {
            let status = block_status::UNKNOWN << 4 | block_status::UNSUPPORTED;
            body.extend_from_slice(&[status, record.encryption, 0, 0]);
            return body;
        };
        let parameters = drive.and_then(|drive| drive.encryption.parameters(task.nexus));
        let is_readable = parameters.is_some_and(|set| set.can_decrypt(&info));
        let encryption = if is_readable { block_status::DECRYPTED } else { block_status::WRONG_KEY };
        let flags = if info.is_external { EXTERNAL } else { 0 }
            | if info.allows_raw_reads { 0 } else { RAW_READS_DISABLED };
        let status = compression(info.is_compressed) << 4 | encryption;
        body.extend_from_slice(&[status, ALGORITHM, flags, info.associated.format]);
        // The U-KAD is not covered by the tag; of the A-KAD it was not checked.
        put_associated(&mut body, &info.associated, [1, 2]);
        body
    }
}

impl TapeCommand for ReportNextBlock {
    fn start(&mut self, server: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        run(server, Command::Peek)
    }

    fn ended(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep {
        let (record, absent) = match result {
            Ok(command::Outcome::Peeked(record)) => (record, block_status::NO_BLOCK),
            Ok(_) => return JobStep::unexpected_input(),
            Err(Error::Damaged { .. } | Error::Read(_)) => (None, block_status::UNKNOWN),
            Err(error) => return failed(server, &error),
        };
        let body = Self::body(server, task, record.as_ref(), absent);
        JobStep::Done(parameter_data(task, encode(page::NEXT_BLOCK_STATUS, &body)))
    }
}
