//! Parses sense data that an initiator received, in either format, from a device that may send anything.

use base::bytes::{Reader, UnexpectedEof};

use super::{Asc, Forwarded, ForwardedFrom, Sense, SenseKey, SenseKeySpecific};
use crate::status::Status;

impl Sense {
    /// Parses sense data in fixed or descriptor format. Fields that were cut off and descriptors of unknown
    /// type are left out.
    ///
    /// # Errors
    /// When the response code is not one of 70h to 73h, or the bytes end before ADDITIONAL SENSE LENGTH
    /// (fixed format) or within the first four bytes (descriptor format).
    pub fn parse(bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let response = bytes.first().copied().unwrap_or(0);
        match response & 0x7f {
            0x70 | 0x71 => parse_fixed(bytes),
            0x72 | 0x73 => parse_descriptors(bytes),
            _ => Err(UnexpectedEof),
        }
    }
}

fn parse_fixed(bytes: &[u8]) -> Result<Sense, UnexpectedEof> {
    let mut data = Reader::new(bytes);
    let [response, _, key] = data.array()?;
    let information = data.u32()?;
    let additional = data.u8()?;
    let command_specific = data.u32().unwrap_or(0);
    // Old devices send no additional sense code.
    let code = if additional >= 6 { data.u16().unwrap_or(0) } else { 0 };
    data.u8().ok();
    let key_value = SenseKey(key & 0x0f);
    let specific =
        data.array().ok().filter(|_| additional >= 10).and_then(|bytes| specific(key_value, bytes));
    Ok(Sense {
        key: key_value,
        asc: Asc(code),
        information: (response & 0x80 != 0).then_some(information.into()),
        command_specific: command_specific.into(),
        specific,
        deferred: response & 0x7f == 0x71,
        stream_bits: key & 0xf0,
        forwarded: None,
    })
}

fn parse_descriptors(bytes: &[u8]) -> Result<Sense, UnexpectedEof> {
    let mut data = Reader::new(bytes);
    let [response, key] = data.array()?;
    let mut sense = Sense::new(SenseKey(key & 0x0f), Asc(data.u16()?));
    sense.deferred = response & 0x7f == 0x73;
    let [_, _, _, additional] = data.array().unwrap_or_default();
    let mut list = Reader::new(data.take(usize::from(additional).min(data.remaining()))?);
    while let Ok([kind, len]) = list.array() {
        let Ok(body) = list.take(usize::from(len)) else { break };
        // A descriptor that is too short is ignored.
        let _ = take_descriptor(&mut sense, kind, body);
    }
    Ok(sense)
}

fn take_descriptor(sense: &mut Sense, kind: u8, body: &[u8]) -> Result<(), UnexpectedEof> {
    let mut data = Reader::new(body);
    match kind {
        0x00 => {
            let [valid, _] = data.array()?;
            let information = data.u64()?;
            sense.information = (valid & 0x80 != 0).then_some(information);
        }
        0x01 => {
            data.u16()?;
            sense.command_specific = data.u64()?;
        }
        0x02 => {
            data.u16()?;
            sense.specific = specific(sense.key, data.array()?);
        }
        0x04 => {
            let [_, bits] = data.array()?;
            sense.stream_bits = bits & 0xf0;
        }
        0x0c if sense.forwarded.is_none() => {
            let [source, status] = data.array()?;
            let from = if source & 0x0f == 1 { ForwardedFrom::Source } else { ForwardedFrom::Destination };
            // Parses one level only: forwarded sense data within the forwarded sense data is ignored.
            let inner = data.take(data.remaining())?;
            let [_, key, asc, ascq] = Reader::new(inner).array()?;
            sense.forwarded = Some(Forwarded {
                from,
                status: Status(status),
                key: SenseKey(key & 0x0f),
                asc: Asc(u16::from_be_bytes([asc, ascq])),
                information: forwarded_information(inner),
            });
        }
        _ => {}
    }
    Ok(())
}

/// Returns the INFORMATION field of sense data in descriptor format, if it is in the first descriptor.
fn forwarded_information(sense: &[u8]) -> Option<u64> {
    let mut data = Reader::new(sense.get(8..)?);
    let [kind, _, valid, _] = data.array().ok()?;
    data.u64().ok().filter(|_| kind == 0 && valid & 0x80 != 0)
}

/// Decodes the sense-key specific field, whose meaning depends on the sense key (SPC-5 §4.4.2).
fn specific(key: SenseKey, [first, high, low]: [u8; 3]) -> Option<SenseKeySpecific> {
    if first & 0x80 == 0 {
        return None;
    }
    let (bit, number) = ((first & 0x08 != 0).then_some(first & 7), u16::from_be_bytes([high, low]));
    match key {
        SenseKey::ILLEGAL_REQUEST => {
            Some(SenseKeySpecific::FieldPointer { in_cdb: first & 0x40 != 0, bit, byte: number })
        }
        SenseKey::COPY_ABORTED => {
            Some(SenseKeySpecific::SegmentPointer { in_segment: first & 0x20 != 0, bit, byte: number })
        }
        SenseKey::NO_SENSE | SenseKey::NOT_READY => Some(SenseKeySpecific::Progress(number)),
        SenseKey::MEDIUM_ERROR | SenseKey::HARDWARE_ERROR | SenseKey::RECOVERED_ERROR => {
            Some(SenseKeySpecific::ActualRetryCount(number))
        }
        SenseKey::UNIT_ATTENTION => (first & 1 != 0).then_some(SenseKeySpecific::Overflow),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(sense: Sense, descriptors: bool) -> Sense {
        let mut out = [0xa5; Sense::MAX_LEN];
        let len = sense.encode(descriptors, &mut out);
        Sense::parse(&out[..len]).unwrap()
    }

    #[test]
    fn what_is_encoded_comes_back() {
        let plain = [
            Sense::new(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED),
            Sense::invalid_cdb(3, Some(4)),
            Sense::invalid_parameter(3, None),
            Sense::new(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR).with_information(77),
            Sense::new(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS)
                .with_specific(SenseKeySpecific::Progress(9)),
            Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY)
                .with_information(1)
                .with_command_specific(8),
        ];
        for sense in plain {
            assert_eq!(there_and_back(sense, false), sense);
            assert_eq!(there_and_back(sense, true), sense);
        }
        let forwarded = Sense::new(SenseKey::COPY_ABORTED, Asc::NONE).with_forwarded(Forwarded {
            from: ForwardedFrom::Source,
            status: Status::CHECK_CONDITION,
            key: SenseKey::DATA_PROTECT,
            asc: Asc::WRITE_PROTECTED,
            information: Some(1 << 40),
        });
        assert_eq!(there_and_back(forwarded, true), forwarded);
    }

    #[test]
    fn no_cut_and_no_byte_makes_it_panic() {
        let mut out = [0; Sense::MAX_LEN];
        let sense = Sense::invalid_cdb(1, None).with_information(1 << 33).with_command_specific(2);
        let len = sense.encode(true, &mut out);
        for cut in 0..len {
            for (at, value) in (0..cut).zip([0, 0xff, 0x7f].into_iter().cycle()) {
                let mut bytes = out[..cut].to_vec();
                bytes[at] = value;
                let _ = Sense::parse(&bytes);
            }
        }
        for nonsense in [&[][..], &[0x7f; 20], &[0x70, 0], &[0; 18]] {
            assert_eq!(Sense::parse(nonsense), Err(UnexpectedEof));
        }
    }
}
