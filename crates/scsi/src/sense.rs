//! Sense data (SPC-5 §4.4): how a device server explains that a command did not simply succeed.

mod parse;
mod text;

use base::bytes::Writer;

use crate::status::Status;

/// The sense key: the general kind of a condition (SPC-5 §4.4.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SenseKey(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl SenseKey {
    pub const NO_SENSE: Self = Self(0x0);
    pub const RECOVERED_ERROR: Self = Self(0x1);
    pub const NOT_READY: Self = Self(0x2);
    pub const MEDIUM_ERROR: Self = Self(0x3);
    pub const HARDWARE_ERROR: Self = Self(0x4);
    pub const ILLEGAL_REQUEST: Self = Self(0x5);
    pub const UNIT_ATTENTION: Self = Self(0x6);
    pub const DATA_PROTECT: Self = Self(0x7);
    pub const BLANK_CHECK: Self = Self(0x8);
    pub const COPY_ABORTED: Self = Self(0xa);
    pub const ABORTED_COMMAND: Self = Self(0xb);
    pub const VOLUME_OVERFLOW: Self = Self(0xd);
    pub const MISCOMPARE: Self = Self(0xe);
    pub const COMPLETED: Self = Self(0xf);
}

/// The additional sense code (high byte) and its qualifier (low byte).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asc(pub u16);

/// Sense data as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sense {
    /// The sense key.
    pub key: SenseKey,
    /// The additional sense code and its qualifier.
    pub asc: Asc,
    /// The INFORMATION field, if valid: an LBA, the byte offset of a miscompare, …
    pub information: Option<u64>,
    /// The COMMAND-SPECIFIC INFORMATION field; zero if the command defines none.
    pub command_specific: u64,
    /// The sense-key specific field, if valid.
    pub specific: Option<SenseKeySpecific>,
    /// Whether the error was found after an earlier command had ended with GOOD (deferred error).
    pub deferred: bool,
    /// The FILEMARK, EOM, ILI and SDAT_OVFL bits at their positions in byte 2 of fixed format (SPC-5 §4.4.3).
    pub stream_bits: u8,
    /// The sense data that another logical unit returned to the copy manager; only descriptor format can
    /// carry it.
    pub forwarded: Option<Forwarded>,
}

/// Bits of [`Sense::stream_bits`].
#[allow(missing_docs, reason = "the names are the standard's")]
pub mod stream_bits {
    pub const FILEMARK: u8 = 0x80;
    pub const EOM: u8 = 0x40;
    pub const ILI: u8 = 0x20;
}

/// The sense data of another logical unit that took part in a third-party copy (SPC-5 §4.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Whether the unit was the source or the destination.
    pub from: ForwardedFrom,
    /// The status that the unit returned.
    pub status: Status,
    /// The sense key that it returned.
    pub key: SenseKey,
    /// The additional sense code and qualifier that it returned.
    pub asc: Asc,
    /// The INFORMATION field that it returned, if valid.
    pub information: Option<u64>,
}

/// Whether a unit was the source or the destination of a copy (the SENSE DATA SOURCE field).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedFrom {
    /// The unit was read.
    Source,
    /// The unit was written.
    Destination,
}

impl Forwarded {
    const LEN: u8 = 4 + 8;
    const LEN_WITH_INFORMATION: u8 = Self::LEN + 12;

    const fn len(&self) -> u8 {
        if self.information.is_some() { Self::LEN_WITH_INFORMATION } else { Self::LEN }
    }

    fn encode(&self, out: &mut Writer<'_>) -> Result<(), base::bytes::UnexpectedEof> {
        let from = match self.from {
            ForwardedFrom::Source => 1,
            ForwardedFrom::Destination => 2,
        };
        let [asc, ascq] = self.asc.0.to_be_bytes();
        let additional = self.len() - Self::LEN;
        out.put(&[0x0c, self.len() - 2, from, self.status.0])?;
        out.put(&[0x72, self.key.0 & 0xf, asc, ascq, 0, 0, 0, additional])?;
        if let Some(information) = self.information {
            out.put(&[0x00, 0x0a, 0x80, 0])?;
            out.u64(information)?;
        }
        Ok(())
    }
}

/// The sense-key specific field (SPC-5 §4.4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SenseKeySpecific {
    /// The position of the illegal field in the CDB or the parameter list.
    FieldPointer {
        /// Whether the field is in the CDB, else in the parameter list.
        in_cdb: bool,
        /// The most significant bit of the field, unless the field is the whole byte.
        bit: Option<u8>,
        /// The first byte of the field.
        byte: u16,
    },
    /// The progress of a long operation, in 65536ths.
    Progress(u16),
    /// How often the device server retried.
    ActualRetryCount(u16),
    /// The position of the error in the parameter list of a copy (SPC-5 §4.4.2).
    SegmentPointer {
        /// Whether the pointer is relative to the segment descriptor.
        in_segment: bool,
        /// The most significant bit of the field, unless the field is the whole byte.
        bit: Option<u8>,
        /// The first byte of the field.
        byte: u16,
    },
    /// A queue of unit attentions overflowed.
    Overflow,
}

impl SenseKeySpecific {
    /// Returns the three bytes of the field, with SKSV set.
    pub fn to_bytes(self) -> [u8; 3] {
        let pointer = |flag: u8, bit: Option<u8>, byte: u16| {
            let [high, low] = byte.to_be_bytes();
            [0x80 | flag | bit.map_or(0, |bit| 0x08 | (bit & 7)), high, low]
        };
        match self {
            Self::FieldPointer { in_cdb, bit, byte } => pointer(u8::from(in_cdb) << 6, bit, byte),
            Self::SegmentPointer { in_segment, bit, byte } => pointer(u8::from(in_segment) << 5, bit, byte),
            Self::Progress(n) | Self::ActualRetryCount(n) => pointer(0, None, n),
            Self::Overflow => [0x81, 0, 0],
        }
    }
}

impl Sense {
    /// The longest sense data that [`Self::encode`] writes.
    pub const MAX_LEN: usize = 8 + 12 + 12 + 8 + 4 + Forwarded::LEN_WITH_INFORMATION as usize;

    /// Makes sense data with only a sense key and an additional sense code.
    pub const fn new(key: SenseKey, asc: Asc) -> Self {
        Self {
            key,
            asc,
            information: None,
            command_specific: 0,
            specific: None,
            deferred: false,
            stream_bits: 0,
            forwarded: None,
        }
    }

    /// Makes sense data with ILLEGAL REQUEST and an additional sense code.
    pub const fn illegal(asc: Asc) -> Self {
        Self::new(SenseKey::ILLEGAL_REQUEST, asc)
    }

    /// Makes INVALID FIELD IN CDB with a pointer to `byte` and, unless the field is the whole byte, to its
    /// top `bit`.
    pub const fn invalid_cdb(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::illegal(Asc::INVALID_FIELD_IN_CDB);
        sense.specific = Some(SenseKeySpecific::FieldPointer { in_cdb: true, bit, byte });
        sense
    }

    /// Makes INVALID FIELD IN PARAMETER LIST with a pointer to `byte` of the list and, unless the field is
    /// the whole byte, to its top `bit`.
    pub const fn invalid_parameter(byte: u16, bit: Option<u8>) -> Self {
        let mut sense = Self::illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
        sense.specific = Some(SenseKeySpecific::FieldPointer { in_cdb: false, bit, byte });
        sense
    }

    /// Returns the sense data with the INFORMATION field set.
    #[must_use]
    pub const fn with_information(mut self, information: u64) -> Self {
        self.information = Some(information);
        self
    }

    /// Returns the sense data with bits of [`stream_bits`] set.
    #[must_use]
    pub const fn with_stream_bits(mut self, bits: u8) -> Self {
        self.stream_bits |= bits;
        self
    }

    /// Returns the sense data as those of a deferred error.
    #[must_use]
    pub const fn as_deferred(mut self) -> Self {
        self.deferred = true;
        self
    }

    /// Returns the sense data with the COMMAND-SPECIFIC INFORMATION field set.
    #[must_use]
    pub const fn with_command_specific(mut self, value: u64) -> Self {
        self.command_specific = value;
        self
    }

    /// Returns the sense data with the sense-key specific field set.
    #[must_use]
    pub const fn with_specific(mut self, specific: SenseKeySpecific) -> Self {
        self.specific = Some(specific);
        self
    }

    /// Returns the sense data with the sense data of another logical unit added.
    #[must_use]
    pub const fn with_forwarded(mut self, forwarded: Forwarded) -> Self {
        self.forwarded = Some(forwarded);
        self
    }

    /// Encodes in descriptor format (response code 72h/73h) or fixed format (70h/71h) and returns the length.
    ///
    /// A 64-bit INFORMATION value that fixed format cannot hold leaves its VALID bit clear (SPC-5 §4.4.3).
    pub fn encode(&self, descriptor_format: bool, out: &mut [u8; Self::MAX_LEN]) -> usize {
        out.fill(0);
        let mut writer = Writer::new(out);
        // `MAX_LEN` is the length of the longest sense data of either format, so no write can fail.
        let _fits = if descriptor_format { self.descriptor(&mut writer) } else { self.fixed(&mut writer) };
        writer.len()
    }

    fn fixed(&self, out: &mut Writer<'_>) -> Result<(), base::bytes::UnexpectedEof> {
        let information = self.information.and_then(|value| self.short_information(value));
        let valid = u8::from(information.is_some()) << 7;
        out.put(&[
            valid | 0x70 | u8::from(self.deferred),
            0,
            (self.stream_bits & 0xf0) | (self.key.0 & 0xf),
        ])?;
        out.u32(information.unwrap_or(0))?;
        out.u8(10)?;
        out.u32(u32::try_from(self.command_specific).unwrap_or(0))?;
        out.u16(self.asc.0)?;
        out.u8(0)?;
        out.put(&self.specific.map_or([0; 3], SenseKeySpecific::to_bytes))
    }

    /// Returns the INFORMATION field of fixed format. A length that is greater than what a command requested
    /// (ILI) is a negative number (SSC-4).
    fn short_information(&self, value: u64) -> Option<u32> {
        let negative = || i32::try_from(value.cast_signed()).ok().map(i32::cast_unsigned);
        let is_length = self.stream_bits & stream_bits::ILI != 0;
        u32::try_from(value).ok().or_else(|| negative().filter(|_| is_length))
    }

    fn descriptor(&self, out: &mut Writer<'_>) -> Result<(), base::bytes::UnexpectedEof> {
        let [asc, ascq] = self.asc.0.to_be_bytes();
        let mut additional = 0;
        if self.information.is_some() {
            additional += 12;
        }
        if self.command_specific != 0 {
            additional += 12;
        }
        if self.specific.is_some() {
            additional += 8;
        }
        if self.stream_bits != 0 {
            additional += 4;
        }
        if let Some(forwarded) = &self.forwarded {
            additional += forwarded.len();
        }
        out.put(&[0x72 | u8::from(self.deferred), self.key.0 & 0xf, asc, ascq, 0, 0, 0, additional])?;
        if let Some(information) = self.information {
            out.put(&[0x00, 0x0a, 0x80, 0])?;
            out.u64(information)?;
        }
        if self.command_specific != 0 {
            out.put(&[0x01, 0x0a, 0, 0])?;
            out.u64(self.command_specific)?;
        }
        if let Some(specific) = self.specific {
            out.put(&[0x02, 0x06, 0, 0])?;
            out.put(&specific.to_bytes())?;
            out.u8(0)?;
        }
        if self.stream_bits != 0 {
            out.put(&[0x04, 0x02, 0, self.stream_bits & 0xf0])?;
        }
        if let Some(forwarded) = &self.forwarded {
            forwarded.encode(out)?;
        }
        Ok(())
    }
}

#[allow(missing_docs, reason = "the names are the standard's (SPC-5 §F.2)")]
impl Asc {
    pub const NONE: Self = Self(0x0000);
    pub const FILEMARK_DETECTED: Self = Self(0x0001);
    pub const END_OF_PARTITION: Self = Self(0x0002);
    pub const BEGINNING_OF_PARTITION: Self = Self(0x0004);
    pub const END_OF_DATA: Self = Self(0x0005);
    pub const PROGRAMMABLE_EARLY_WARNING: Self = Self(0x0007);
    pub const OPERATION_IN_PROGRESS: Self = Self(0x0016);
    pub const FORMAT_IN_PROGRESS: Self = Self(0x0404);
    pub const NOT_READY_BECOMING_READY: Self = Self(0x0401);
    pub const SANITIZE_IN_PROGRESS: Self = Self(0x041b);
    pub const NOT_READY_INITIALIZING_COMMAND_REQUIRED: Self = Self(0x0402);
    pub const NOT_READY_MANUAL_INTERVENTION_REQUIRED: Self = Self(0x0403);
    pub const NOT_READY_OPERATION_IN_PROGRESS: Self = Self(0x0407);
    pub const NOT_READY_SPACE_ALLOCATION_IN_PROGRESS: Self = Self(0x0414);
    pub const NOT_READY_TARGET_PORT_STANDBY: Self = Self(0x040b);
    pub const NOT_READY_TARGET_PORT_UNAVAILABLE: Self = Self(0x040c);
    pub const LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION: Self = Self(0x0500);
    pub const LOGICAL_UNIT_COMMUNICATION_FAILURE: Self = Self(0x0800);
    pub const UNREACHABLE_COPY_TARGET: Self = Self(0x0804);
    pub const WRITE_ERROR: Self = Self(0x0c00);
    pub const UNEXPECTED_UNSOLICITED_DATA: Self = Self(0x0c0c);
    pub const NOT_ENOUGH_UNSOLICITED_DATA: Self = Self(0x0c0d);
    pub const INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT: Self = Self(0x0e03);
    pub const COPY_TARGET_DEVICE_NOT_REACHABLE: Self = Self(0x0d02);
    pub const THIRD_PARTY_DEVICE_FAILURE: Self = Self(0x0d01);
    pub const INCORRECT_COPY_TARGET_DEVICE_TYPE: Self = Self(0x0d03);
    pub const LOGICAL_BLOCK_GUARD_CHECK_FAILED: Self = Self(0x1001);
    pub const UNRECOVERED_READ_ERROR: Self = Self(0x1100);
    pub const PARAMETER_LIST_LENGTH_ERROR: Self = Self(0x1a00);
    pub const MISCOMPARE_DURING_VERIFY: Self = Self(0x1d00);
    pub const INVALID_COMMAND_OPERATION_CODE: Self = Self(0x2000);
    pub const ACCESS_DENIED_NO_ACCESS_RIGHTS: Self = Self(0x2002);
    pub const LBA_OUT_OF_RANGE: Self = Self(0x2100);
    pub const INVALID_ELEMENT_ADDRESS: Self = Self(0x2101);
    pub const INVALID_ADDRESS_FOR_WRITE: Self = Self(0x2102);
    pub const LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS: Self = Self(0x0408);
    pub const SESSION_FIXATION_ERROR_INCOMPLETE_TRACK_IN_SESSION: Self = Self(0x7203);
    pub const EMPTY_OR_PARTIALLY_WRITTEN_RESERVED_TRACK: Self = Self(0x7204);
    pub const NO_MORE_TRACK_RESERVATIONS_ALLOWED: Self = Self(0x7205);
    pub const ILLEGAL_MODE_FOR_THIS_TRACK: Self = Self(0x6400);
    pub const SECURITY_ERROR: Self = Self(0x7400);
    pub const UNABLE_TO_DECRYPT_DATA: Self = Self(0x7401);
    pub const UNENCRYPTED_DATA_ENCOUNTERED_WHILE_DECRYPTING: Self = Self(0x7402);
    pub const INCORRECT_DATA_ENCRYPTION_KEY: Self = Self(0x7403);
    pub const CRYPTOGRAPHIC_INTEGRITY_VALIDATION_FAILED: Self = Self(0x7404);
    pub const LOGICAL_UNIT_ACCESS_NOT_AUTHORIZED: Self = Self(0x7471);
    pub const INVALID_FIELD_IN_CDB: Self = Self(0x2400);
    pub const LOGICAL_UNIT_NOT_SUPPORTED: Self = Self(0x2500);
    pub const INVALID_FIELD_IN_PARAMETER_LIST: Self = Self(0x2600);
    pub const PARAMETER_NOT_SUPPORTED: Self = Self(0x2601);
    pub const PARAMETER_VALUE_INVALID: Self = Self(0x2602);
    pub const INVALID_RELEASE_OF_PERSISTENT_RESERVATION: Self = Self(0x2604);
    pub const TOO_MANY_TARGET_DESCRIPTORS: Self = Self(0x2606);
    pub const UNSUPPORTED_TARGET_DESCRIPTOR_TYPE: Self = Self(0x2607);
    pub const TOO_MANY_SEGMENT_DESCRIPTORS: Self = Self(0x2608);
    pub const UNSUPPORTED_SEGMENT_DESCRIPTOR_TYPE: Self = Self(0x2609);
    pub const UNEXPECTED_INEXACT_SEGMENT: Self = Self(0x260a);
    pub const INLINE_DATA_LENGTH_EXCEEDED: Self = Self(0x260b);
    pub const COPY_SOURCE_OR_DESTINATION_INVALID: Self = Self(0x260c);
    pub const COPY_SEGMENT_GRANULARITY_VIOLATION: Self = Self(0x260d);
    pub const WRITE_PROTECTED: Self = Self(0x2700);
    pub const SOFTWARE_WRITE_PROTECTED: Self = Self(0x2702);
    pub const SPACE_ALLOCATION_FAILED_WRITE_PROTECT: Self = Self(0x2707);
    pub const MEDIUM_MAY_HAVE_CHANGED: Self = Self(0x2800);
    pub const IMPORT_OR_EXPORT_ELEMENT_ACCESSED: Self = Self(0x2801);
    pub const POWER_ON_RESET_OR_BUS_DEVICE_RESET: Self = Self(0x2900);
    pub const POWER_ON_OCCURRED: Self = Self(0x2901);
    pub const BUS_DEVICE_RESET_OCCURRED: Self = Self(0x2903);
    pub const I_T_NEXUS_LOSS_OCCURRED: Self = Self(0x2907);
    pub const MODE_PARAMETERS_CHANGED: Self = Self(0x2a01);
    pub const LOG_PARAMETERS_CHANGED: Self = Self(0x2a02);
    pub const RESERVATIONS_PREEMPTED: Self = Self(0x2a03);
    pub const RESERVATIONS_RELEASED: Self = Self(0x2a04);
    pub const REGISTRATIONS_PREEMPTED: Self = Self(0x2a05);
    pub const ASYMMETRIC_ACCESS_STATE_CHANGED: Self = Self(0x2a06);
    pub const CAPACITY_DATA_HAS_CHANGED: Self = Self(0x2a09);
    pub const TIMESTAMP_CHANGED: Self = Self(0x2a10);
    pub const DATA_ENCRYPTION_PARAMETERS_CHANGED: Self = Self(0x2a11);
    pub const DATA_ENCRYPTION_KEY_INSTANCE_COUNTER_HAS_CHANGED: Self = Self(0x2a13);
    pub const COMMAND_SEQUENCE_ERROR: Self = Self(0x2c00);
    pub const ORWRITE_GENERATION_DOES_NOT_MATCH: Self = Self(0x2c0c);
    pub const COMMANDS_CLEARED_BY_ANOTHER_INITIATOR: Self = Self(0x2f00);
    pub const INCOMPATIBLE_MEDIUM_INSTALLED: Self = Self(0x3000);
    pub const CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT: Self = Self(0x3002);
    pub const CANNOT_READ_MEDIUM_UNKNOWN_FORMAT: Self = Self(0x3001);
    pub const WORM_OVERWRITE_ATTEMPTED: Self = Self(0x300c);
    pub const CANNOT_FORMAT_MEDIUM_INCOMPATIBLE_MEDIUM: Self = Self(0x3006);
    pub const MEDIUM_NOT_FORMATTED: Self = Self(0x3010);
    pub const MEDIUM_FORMAT_CORRUPTED: Self = Self(0x3100);
    pub const FORMAT_COMMAND_FAILED: Self = Self(0x3101);
    pub const SANITIZE_COMMAND_FAILED: Self = Self(0x3103);
    pub const SAVING_PARAMETERS_NOT_SUPPORTED: Self = Self(0x3900);
    pub const MEDIUM_NOT_PRESENT: Self = Self(0x3a00);
    pub const SEQUENTIAL_POSITIONING_ERROR: Self = Self(0x3b00);
    pub const POSITION_PAST_BEGINNING_OF_MEDIUM: Self = Self(0x3b0c);
    pub const MEDIUM_NOT_PRESENT_TRAY_CLOSED: Self = Self(0x3a01);
    pub const MEDIUM_NOT_PRESENT_TRAY_OPEN: Self = Self(0x3a02);
    pub const MEDIUM_DESTINATION_ELEMENT_FULL: Self = Self(0x3b0d);
    pub const MEDIUM_SOURCE_ELEMENT_EMPTY: Self = Self(0x3b0e);
    pub const TIMEOUT_ON_LOGICAL_UNIT: Self = Self(0x3e02);
    pub const LOGICAL_UNIT_FAILED_SELF_TEST: Self = Self(0x3e03);
    pub const INQUIRY_DATA_HAS_CHANGED: Self = Self(0x3f03);
    pub const DEVICE_IDENTIFIER_CHANGED: Self = Self(0x3f05);
    pub const REPORTED_LUNS_DATA_HAS_CHANGED: Self = Self(0x3f0e);
    pub const ECHO_BUFFER_OVERWRITTEN: Self = Self(0x3f0f);
    pub const THIN_PROVISIONING_SOFT_THRESHOLD_REACHED: Self = Self(0x3807);
    pub const INTERNAL_TARGET_FAILURE: Self = Self(0x4400);
    pub const PERSISTENT_RESERVATION_INFORMATION_LOST: Self = Self(0x4401);
    pub const COMMAND_PHASE_ERROR: Self = Self(0x4a00);
    pub const DATA_PHASE_ERROR: Self = Self(0x4b00);
    pub const PROTOCOL_SERVICE_CRC_ERROR: Self = Self(0x4705);
    pub const SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT: Self = Self(0x477f);
    pub const INVALID_MESSAGE_ERROR: Self = Self(0x4900);
    pub const OVERLAPPED_COMMANDS_ATTEMPTED: Self = Self(0x4e00);
    pub const WRITE_APPEND_ERROR: Self = Self(0x5000);
    pub const MEDIA_LOAD_OR_EJECT_FAILED: Self = Self(0x5300);
    pub const MEDIUM_REMOVAL_PREVENTED: Self = Self(0x5302);
    pub const INSUFFICIENT_RESOURCES: Self = Self(0x5503);
    pub const AUXILIARY_MEMORY_OUT_OF_SPACE: Self = Self(0x5506);
    pub const INSUFFICIENT_REGISTRATION_RESOURCES: Self = Self(0x5504);
    pub const SYSTEM_RESOURCE_FAILURE: Self = Self(0x5500);
    pub const INVALID_TOKEN_OPERATION_CAUSE_NOT_REPORTABLE: Self = Self(0x2300);
    pub const UNSUPPORTED_TOKEN_TYPE: Self = Self(0x2301);
    pub const TOKEN_UNKNOWN: Self = Self(0x2304);
    pub const TOKEN_CORRUPT: Self = Self(0x2305);
    pub const TOKEN_REVOKED: Self = Self(0x2306);
    pub const TOKEN_EXPIRED: Self = Self(0x2307);
    pub const TOKEN_CANCELLED: Self = Self(0x2308);
    pub const INVALID_TOKEN_LENGTH: Self = Self(0x230a);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(sense: Sense, descriptor: bool) -> alloc::vec::Vec<u8> {
        let mut out = [0xa5; Sense::MAX_LEN];
        let len = sense.encode(descriptor, &mut out);
        out[..len].to_vec()
    }

    #[test]
    fn a_length_that_is_too_long_is_a_negative_number() {
        let sense = |bits| {
            let sense = Sense::new(SenseKey::NO_SENSE, Asc::NONE);
            sense.with_information((-512_i64).cast_unsigned()).with_stream_bits(bits)
        };
        assert_eq!(encoded(sense(stream_bits::ILI), false)[..7], [0xf0, 0, 0x20, 0xff, 0xff, 0xfe, 0]);
        assert_eq!(encoded(sense(0), false)[..7], [0x70, 0, 0, 0, 0, 0, 0], "no block has such a number");
        let long = encoded(sense(stream_bits::ILI), true);
        assert_eq!(long[8..20], [0, 10, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0]);
        assert_eq!(long[20..], [4, 2, 0, 0x20]);
    }

    #[test]
    fn a_cdb_field_pointer_stands_where_spc_puts_it() {
        let sense = Sense::invalid_cdb(1, Some(4));
        assert_eq!(encoded(sense, false), [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0, 0, 0xcc, 0, 1]);
        assert_eq!(encoded(sense, true), [0x72, 5, 0x24, 0, 0, 0, 0, 8, 2, 6, 0, 0, 0xcc, 0, 1, 0]);
    }

    #[test]
    fn a_large_lba_is_invalid_in_fixed_format_and_whole_in_descriptor_format() {
        let sense = Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).with_information(1 << 40);
        assert_eq!(encoded(sense, false)[0], 0x70);
        let bytes = encoded(sense, true);
        assert_eq!(bytes[7], 12);
        assert_eq!(bytes[8..20], [0, 10, 0x80, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(sense.with_information(7), false)[..7], [0xf0, 0, 3, 0, 0, 0, 7]);
    }

    #[test]
    fn what_another_unit_said_follows_in_descriptor_format_only() {
        let said = Forwarded {
            from: ForwardedFrom::Destination,
            status: Status::CHECK_CONDITION,
            key: SenseKey::DATA_PROTECT,
            asc: Asc::WRITE_PROTECTED,
            information: None,
        };
        let sense = Sense::new(SenseKey::COPY_ABORTED, Asc::NONE).with_forwarded(said);
        assert_eq!(encoded(sense, false).len(), 18);
        let bytes = encoded(sense, true);
        assert_eq!(bytes[..8], [0x72, 0xa, 0, 0, 0, 0, 0, 12]);
        assert_eq!(bytes[8..], [0x0c, 10, 2, 2, 0x72, 7, 0x27, 0, 0, 0, 0, 0]);
        let bytes = encoded(sense.with_forwarded(Forwarded { information: Some(7), ..said }), true);
        assert_eq!((bytes[7], bytes[9], bytes[19]), (24, 22, 12));
        assert_eq!(bytes[20..], [0, 10, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    }
}
