//! Sense data in a document.

use scsi::sense::{Asc, Forwarded, ForwardedFrom, Sense, SenseKey, SenseKeySpecific};
use scsi::status::Status;
use serde::{Deserialize, Serialize};

/// Sense data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SenseState {
    key: u8,
    asc: u16,
    information: Option<u64>,
    command_specific: u64,
    specific: Option<SpecificState>,
    deferred: bool,
    stream_bits: u8,
    forwarded: Option<ForwardedState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum SpecificState {
    FieldPointer { in_cdb: bool, bit: Option<u8>, byte: u16 },
    Progress(u16),
    ActualRetryCount(u16),
    SegmentPointer { in_segment: bool, bit: Option<u8>, byte: u16 },
    Overflow,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardedState {
    from_source: bool,
    status: u8,
    key: u8,
    asc: u16,
    information: Option<u64>,
}

impl SenseState {
    pub(crate) fn of(sense: &Sense) -> Self {
        let Sense {
            key: SenseKey(key),
            asc: Asc(asc),
            information,
            command_specific,
            specific,
            deferred,
            stream_bits,
            forwarded,
        } = *sense;
        let specific = specific.map(|specific| match specific {
            SenseKeySpecific::FieldPointer { in_cdb, bit, byte } => {
                SpecificState::FieldPointer { in_cdb, bit, byte }
            }
            SenseKeySpecific::Progress(count) => SpecificState::Progress(count),
            SenseKeySpecific::ActualRetryCount(count) => SpecificState::ActualRetryCount(count),
            SenseKeySpecific::SegmentPointer { in_segment, bit, byte } => {
                SpecificState::SegmentPointer { in_segment, bit, byte }
            }
            SenseKeySpecific::Overflow => SpecificState::Overflow,
        });
        let forwarded = forwarded.map(|forwarded| {
            let Forwarded { from, status: Status(status), key: SenseKey(key), asc: Asc(asc), information } =
                forwarded;
            let from_source = from == ForwardedFrom::Source;
            ForwardedState { from_source, status, key, asc, information }
        });
        Self { key, asc, information, command_specific, specific, deferred, stream_bits, forwarded }
    }

    pub(crate) fn restore(&self) -> Sense {
        let specific = self.specific.as_ref().map(|specific| match *specific {
            SpecificState::FieldPointer { in_cdb, bit, byte } => {
                SenseKeySpecific::FieldPointer { in_cdb, bit, byte }
            }
            SpecificState::Progress(count) => SenseKeySpecific::Progress(count),
            SpecificState::ActualRetryCount(count) => SenseKeySpecific::ActualRetryCount(count),
            SpecificState::SegmentPointer { in_segment, bit, byte } => {
                SenseKeySpecific::SegmentPointer { in_segment, bit, byte }
            }
            SpecificState::Overflow => SenseKeySpecific::Overflow,
        });
        let forwarded = self.forwarded.as_ref().map(|forwarded| Forwarded {
            from: if forwarded.from_source { ForwardedFrom::Source } else { ForwardedFrom::Destination },
            status: Status(forwarded.status),
            key: SenseKey(forwarded.key),
            asc: Asc(forwarded.asc),
            information: forwarded.information,
        });
        Sense {
            key: SenseKey(self.key & 0xf),
            asc: Asc(self.asc),
            information: self.information,
            command_specific: self.command_specific,
            specific,
            deferred: self.deferred,
            stream_bits: self.stream_bits,
            forwarded,
        }
    }
}
