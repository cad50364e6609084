//! The parameter data of RECEIVE COPY RESULTS (SPC-4 §6.20 to §6.26): the progress of a copy, its result, the
//! limits of the copy manager.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

use super::list::{CscdFields, Limits};
use super::rod::{ROD_TOKEN_LEN, RodToken};
use super::{len16, len32, size};

/// The unit of a transfer count (SPC-4 §6.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferUnits(pub u8);

impl TransferUnits {
    /// Bytes.
    pub const BYTES: Self = Self(0x00);
    /// 1024 bytes; each code up to 06h is 1024 times the one before.
    pub const KIBIBYTES: Self = Self(0x01);
    /// Logical blocks of the unit that the command was sent to.
    pub const LOGICAL_BLOCKS: Self = Self(0xf1);
}

/// COPY MANAGER STATUS of LID1 commands (SPC-4 §6.25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerStatus(pub u8);

impl ManagerStatus {
    /// The copy is in progress.
    pub const IN_PROGRESS: Self = Self(0x00);
    /// The copy completed without errors.
    pub const COMPLETED: Self = Self(0x01);
    /// The copy failed.
    pub const FAILED: Self = Self(0x02);
}

/// COPY OPERATION STATUS of LID4 commands and ROD token operations (SPC-4 §6.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationStatus(pub u8);

impl OperationStatus {
    /// The operation completed without errors.
    pub const COMPLETED: Self = Self(0x01);
    /// The operation failed.
    pub const FAILED: Self = Self(0x02);
    /// The operation completed without errors, but part of the token's data was not used.
    pub const COMPLETED_PARTIAL_TOKEN: Self = Self(0x03);
    /// The operation completed without errors, but the data was shorter than the destination ranges.
    pub const COMPLETED_RESIDUAL: Self = Self(0x04);
    /// The command that started the operation has not returned status yet.
    pub const IN_FOREGROUND: Self = Self(0x11);
    /// The command that started the operation has returned status, and the operation continues.
    pub const IN_BACKGROUND: Self = Self(0x12);
    /// The operation was aborted.
    pub const TERMINATED: Self = Self(0x60);
}

/// The parameter data of RECEIVE COPY STATUS(LID1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus1 {
    /// Whether held data was discarded.
    pub held_data_discarded: bool,
    /// The state of the copy.
    pub status: ManagerStatus,
    /// The number of segments that were processed.
    pub segments_processed: u16,
    /// The unit of `transfer_count`.
    pub units: TransferUnits,
    /// The amount of data written.
    pub transfer_count: u32,
}

impl CopyStatus1 {
    /// The length of the parameter data.
    pub const LEN: usize = 12;

    /// Makes the status of a copy that wrote `bytes` bytes, in the finest unit whose count fits in 32 bits.
    pub fn new(status: ManagerStatus, segments_processed: u16, bytes: u64) -> Self {
        let mut count = bytes;
        let mut units = TransferUnits::BYTES;
        let transfer_count = loop {
            match u32::try_from(count) {
                Ok(fits) => break fits,
                Err(_) => {
                    count >>= 10;
                    units = TransferUnits(units.0 + 1);
                }
            }
        };
        Self { held_data_discarded: false, status, segments_processed, units, transfer_count }
    }

    /// Builds the parameter data.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::LEN);
        out.extend(len32(Self::LEN - 4));
        out.push(u8::from(self.held_data_discarded) << 7 | self.status.0 & 0x7f);
        out.extend(self.segments_processed.to_be_bytes());
        out.push(self.units.0);
        out.extend(self.transfer_count.to_be_bytes());
        out
    }

    /// Parses the parameter data.
    ///
    /// # Errors
    /// When the data is shorter than [`Self::LEN`].
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let mut reader = Reader::new(bytes);
        let _available = reader.u32()?;
        let status = reader.u8()?;
        Ok(Self {
            held_data_discarded: status & 0x80 != 0,
            status: ManagerStatus(status & 0x7f),
            segments_processed: reader.u16()?,
            units: TransferUnits(reader.u8()?),
            transfer_count: reader.u32()?,
        })
    }
}

/// The parameter data of RECEIVE COPY OPERATING PARAMETERS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatingParameters {
    /// Whether a list identifier can be omitted (SNLID).
    pub no_list_id: bool,
    /// The limits of a parameter list.
    pub limits: Limits,
    /// The longest segment in bytes.
    pub segment_len_max: u32,
    /// The most data that is held for the application client, in bytes.
    pub held_len_max: u32,
    /// The most copies with and without list identifiers that can run at once.
    pub total_concurrent: u16,
    /// The most copies with list identifiers that can run at once.
    pub concurrent: u8,
    /// The base-2 logarithm of the segment granularity: segment lengths in bytes are multiples of it.
    pub segment_granularity: u8,
    /// The type codes of the supported descriptors, sorted.
    pub descriptor_types: Vec<u8>,
}

impl OperatingParameters {
    /// Builds the parameter data.
    pub fn to_bytes(&self) -> Vec<u8> {
        let types = self.descriptor_types.len().min(usize::from(u8::MAX));
        let mut out = Vec::with_capacity(44 + types);
        out.extend(len32(40 + types));
        out.extend([u8::from(self.no_list_id), 0, 0, 0]);
        out.extend(self.limits.cscds_max.to_be_bytes());
        out.extend(self.limits.segments_max.to_be_bytes());
        out.extend(self.limits.descriptors_len_max.to_be_bytes());
        out.extend(self.segment_len_max.to_be_bytes());
        out.extend(self.limits.inline_len_max.to_be_bytes());
        out.extend(self.held_len_max.to_be_bytes());
        // The transfer size of stream devices, which are not supported, and two reserved bytes.
        out.extend([0; 6]);
        out.extend(self.total_concurrent.to_be_bytes());
        out.extend([self.concurrent, self.segment_granularity, 0, 0, 0, 0, 0]);
        out.push(u8::try_from(types).unwrap_or(0));
        out.extend(self.descriptor_types.iter().take(types));
        out
    }

    /// Parses the parameter data.
    ///
    /// # Errors
    /// When the data is shorter than its fields.
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let mut reader = Reader::new(bytes);
        let _available = reader.u32()?;
        let [flags, ..] = reader.array::<4>()?;
        let cscds_max = reader.u16()?;
        let segments_max = reader.u16()?;
        let descriptors_len_max = reader.u32()?;
        let segment_len_max = reader.u32()?;
        let inline_len_max = reader.u32()?;
        let held_len_max = reader.u32()?;
        let _stream = reader.take(6)?;
        let total_concurrent = reader.u16()?;
        let concurrent = reader.u8()?;
        let segment_granularity = reader.u8()?;
        let _reserved = reader.take(5)?;
        let types = usize::from(reader.u8()?);
        Ok(Self {
            no_list_id: flags & 1 != 0,
            limits: Limits {
                cscds_max,
                segments_max,
                descriptors_len_max,
                inline_len_max,
                cscd_fields: CscdFields::Spc4,
            },
            segment_len_max,
            held_len_max,
            total_concurrent,
            concurrent,
            segment_granularity,
            descriptor_types: reader.take(types)?.to_vec(),
        })
    }
}

/// Builds the parameter data of RECEIVE COPY FAILURE DETAILS(LID1): the status and sense data with which the
/// copy ended. Without such a failed copy, only the length field, which is zero.
pub fn failure_details(failed: Option<(u8, &[u8])>) -> Vec<u8> {
    let mut out = Vec::new();
    let Some((status, sense)) = failed else {
        out.extend([0; 4]);
        return out;
    };
    out.extend(len32(56 + sense.len()));
    out.extend([0; 52]);
    out.extend([status, 0]);
    out.extend(len16(sense.len()));
    out.extend_from_slice(sense);
    out
}

/// Builds the parameter data of RECEIVE COPY DATA(LID1 or LID4) with the data that is held for the
/// application client.
pub fn held_data(held: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + held.len());
    out.extend(len32(held.len()));
    out.extend_from_slice(held);
    out
}

/// The parameter data of RECEIVE COPY STATUS(LID4), and the common part of RECEIVE ROD TOKEN INFORMATION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStatus4 {
    /// The service action of the command that started the operation.
    pub service_action: u8,
    /// Whether held data was discarded.
    pub held_data_discarded: bool,
    /// The state of the operation.
    pub status: OperationStatus,
    /// A counter that grows while the operation makes progress.
    pub operation_counter: u16,
    /// When the initiator should ask again, in milliseconds.
    pub update_delay_ms: u32,
    /// The status with which the command ended or will end.
    pub completion_status: u8,
    /// The unit of `transfer_count`.
    pub units: TransferUnits,
    /// The amount of data written, or represented by the token.
    pub transfer_count: u64,
    /// The number of segments that were processed.
    pub segments_processed: u16,
    /// The sense data with which the command ended; at most 255 bytes.
    pub sense: Vec<u8>,
}

impl CopyStatus4 {
    /// The length without sense data, in bytes.
    pub const LEN: usize = 32;

    /// An `update_delay_ms` that means that the operation has ended and asking again returns nothing new.
    pub const NO_MORE_UPDATES: u32 = 0xffff_ffff;

    /// Builds the parameter data of RECEIVE COPY STATUS(LID4).
    pub fn to_bytes(&self) -> Vec<u8> {
        self.with_tail(&[])
    }

    /// Builds the parameter data of RECEIVE ROD TOKEN INFORMATION.
    pub fn with_tokens(&self, tokens: &[&RodToken]) -> Vec<u8> {
        let mut tail = Vec::with_capacity(4 + tokens.len() * (2 + ROD_TOKEN_LEN));
        tail.extend(len32(tokens.len() * (2 + ROD_TOKEN_LEN)));
        for token in tokens {
            // The token was not created from a segment descriptor, so it has no CSCD descriptor.
            tail.extend([0; 2]);
            tail.extend_from_slice(token.bytes());
        }
        self.with_tail(&tail)
    }

    fn with_tail(&self, tail: &[u8]) -> Vec<u8> {
        let sense = self.sense.get(..usize::from(u8::MAX)).unwrap_or(&self.sense);
        let sense_len = u8::try_from(sense.len()).unwrap_or(0);
        let mut out = Vec::with_capacity(Self::LEN + sense.len() + tail.len());
        out.extend(len32(Self::LEN - 4 + sense.len() + tail.len()));
        out.push(self.service_action & 0x1f);
        out.push(u8::from(self.held_data_discarded) << 7 | self.status.0 & 0x7f);
        out.extend(self.operation_counter.to_be_bytes());
        out.extend(self.update_delay_ms.to_be_bytes());
        out.extend([self.completion_status, sense_len, sense_len, self.units.0]);
        out.extend(self.transfer_count.to_be_bytes());
        out.extend(self.segments_processed.to_be_bytes());
        out.extend([0; 6]);
        out.extend_from_slice(sense);
        out.extend_from_slice(tail);
        out
    }

    /// Parses the parameter data and returns the bytes after the sense data, too.
    ///
    /// # Errors
    /// When the data is shorter than its fields.
    pub fn parse(bytes: &[u8]) -> Result<(Self, &[u8]), UnexpectedEof> {
        let mut reader = Reader::new(bytes);
        let _available = reader.u32()?;
        let service_action = reader.u8()? & 0x1f;
        let status = reader.u8()?;
        let operation_counter = reader.u16()?;
        let update_delay_ms = reader.u32()?;
        let [completion_status, field_len, sense_len, units] = reader.array()?;
        let transfer_count = reader.u64()?;
        let segments_processed = reader.u16()?;
        let _reserved = reader.take(6)?;
        let field = reader.take(usize::from(field_len))?;
        let this = Self {
            service_action,
            held_data_discarded: status & 0x80 != 0,
            status: OperationStatus(status & 0x7f),
            operation_counter,
            update_delay_ms,
            completion_status,
            units: TransferUnits(units),
            transfer_count,
            segments_processed,
            sense: field.get(..usize::from(sense_len)).unwrap_or(field).to_vec(),
        };
        Ok((this, reader.rest()))
    }

    /// Parses the parameter data of RECEIVE ROD TOKEN INFORMATION.
    ///
    /// # Errors
    /// When the data is shorter than its fields.
    pub fn parse_with_tokens(bytes: &[u8]) -> Result<(Self, Vec<RodToken>), UnexpectedEof> {
        let (status, rest) = Self::parse(bytes)?;
        let mut reader = Reader::new(rest);
        let len = size(reader.u32()?);
        let mut reader = Reader::new(reader.take(len)?);
        let mut tokens = Vec::new();
        while !reader.is_empty() {
            let _cscd = reader.u16()?;
            tokens.push(RodToken(reader.array()?));
        }
        Ok((status, tokens))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use super::*;

    #[test]
    fn copy_status_picks_the_finest_unit_that_fits() {
        for (bytes, units, count) in [
            (0, 0, 0),
            (u64::from(u32::MAX), 0, u32::MAX),
            (1 << 32, 1, 1 << 22),
            (1 << 43, 2, 1 << 23),
            (u64::MAX, 4, (1 << 24) - 1),
        ] {
            let status = CopyStatus1::new(ManagerStatus::COMPLETED, 3, bytes);
            assert_eq!((status.units.0, status.transfer_count), (units, count), "{bytes}");
            assert_eq!(CopyStatus1::parse(&status.to_bytes()), Ok(status));
        }
        let status = CopyStatus1::new(ManagerStatus::FAILED, 0x0102, 5);
        assert_eq!(status.to_bytes(), [0, 0, 0, 8, 2, 1, 2, 0, 0, 0, 0, 5]);
    }

    #[test]
    fn operating_parameters_stand_where_spc_puts_them() {
        let limits = Limits {
            cscds_max: 8,
            segments_max: 64,
            descriptors_len_max: 2304,
            inline_len_max: 0,
            cscd_fields: CscdFields::Spc4,
        };
        let sent = OperatingParameters {
            no_list_id: true,
            limits,
            segment_len_max: 0x1000_0000,
            held_len_max: 0,
            total_concurrent: 300,
            concurrent: 16,
            segment_granularity: 9,
            descriptor_types: vec![2, 7, 10, 0xe4],
        };
        let bytes = sent.to_bytes();
        assert_eq!(bytes[..16], [0, 0, 0, 44, 1, 0, 0, 0, 0, 8, 0, 64, 0, 0, 9, 0]);
        assert_eq!(bytes[16..20], [0x10, 0, 0, 0]);
        assert_eq!(bytes[34..48], [1, 44, 16, 9, 0, 0, 0, 0, 0, 4, 2, 7, 10, 0xe4]);
        assert_eq!(OperatingParameters::parse(&bytes), Ok(sent));
        assert_eq!(OperatingParameters::parse(&bytes[..47]), Err(UnexpectedEof));
    }

    #[test]
    fn failure_details_carry_status_and_sense() {
        assert_eq!(failure_details(None), [0; 4]);
        let bytes = failure_details(Some((2, &[0x72, 0xa, 0, 0])));
        assert_eq!(bytes[..4], [0, 0, 0, 60]);
        assert_eq!(bytes[56..], [2, 0, 0, 4, 0x72, 0xa, 0, 0]);
    }

    #[test]
    fn rod_token_information_carries_sense_and_tokens() {
        let status = CopyStatus4 {
            service_action: 0x10,
            held_data_discarded: false,
            status: OperationStatus::COMPLETED,
            operation_counter: 1,
            update_delay_ms: CopyStatus4::NO_MORE_UPDATES,
            completion_status: 0,
            units: TransferUnits::LOGICAL_BLOCKS,
            transfer_count: 0x0102_0304_0506_0708,
            segments_processed: 2,
            sense: vec![0x70; 18],
        };
        let token = RodToken::zeros();
        let bytes = status.with_tokens(&[&token]);
        assert_eq!(bytes.len(), 32 + 18 + 4 + 514);
        assert_eq!(bytes[..4], [0, 0, 2, 52], "available data");
        assert_eq!(bytes[12..24], [0, 18, 18, 0xf1, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[50..56], [0, 0, 2, 2, 0, 0], "descriptors length");
        assert_eq!(CopyStatus4::parse_with_tokens(&bytes), Ok((status.clone(), vec![token])));
        let none = status.with_tokens(&[]);
        assert_eq!(CopyStatus4::parse_with_tokens(&none), Ok((status, Vec::new())));
        for cut in 0..bytes.len() {
            assert_eq!(CopyStatus4::parse_with_tokens(&bytes[..cut]), Err(UnexpectedEof), "{cut}");
        }
    }
}
