//! REPORT TARGET PORT GROUPS parameter data (SPC-5 §6.36) for asymmetric logical unit access (ALUA), for
//! initiators and targets.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

/// PARAMETER DATA FORMAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The header is the length alone.
    LengthOnly,
    /// The header also has the IMPLICIT TRANSITION TIME.
    Extended,
}

impl Format {
    /// Decodes the three bits of the CDB. Returns `None` for a reserved value.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::LengthOnly),
            1 => Some(Self::Extended),
            _ => None,
        }
    }
}

/// ASYMMETRIC ACCESS STATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccessState(pub u8);

#[allow(missing_docs, reason = "the names are the standard's")]
impl AccessState {
    pub const ACTIVE_OPTIMIZED: Self = Self(0x0);
    pub const ACTIVE_NON_OPTIMIZED: Self = Self(0x1);
    pub const STANDBY: Self = Self(0x2);
    pub const UNAVAILABLE: Self = Self(0x3);
    pub const OFFLINE: Self = Self(0xe);
    pub const TRANSITIONING: Self = Self(0xf);
}

/// A target port group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// PREF.
    pub preferred: bool,
    /// ASYMMETRIC ACCESS STATE.
    pub state: AccessState,
    /// The byte that lists the supported access states: T_SUP to AO_SUP.
    pub supported: u8,
    /// TARGET PORT GROUP.
    pub number: u16,
    /// STATUS CODE.
    pub status: u8,
    /// The relative identifiers of the ports in the group, at most 255.
    pub ports: Vec<u16>,
}

impl Group {
    /// AO_SUP: the group can be active and optimized.
    pub const ACTIVE_OPTIMIZED_SUPPORTED: u8 = 0x01;
}

/// The parameter data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    /// The format of the header.
    pub format: Format,
    /// The groups.
    pub groups: Vec<Group>,
}

impl Groups {
    /// Returns the bytes on the wire. They do not depend on the allocation length: the length field counts
    /// bytes that it cuts off, too.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        if self.format == Format::Extended {
            // IMPLICIT TRANSITION TIME zero: the time is not reported.
            body.extend_from_slice(&[0x10, 0, 0, 0]);
        }
        for group in &self.groups {
            let [high, low] = group.number.to_be_bytes();
            let count = u8::try_from(group.ports.len()).unwrap_or(u8::MAX);
            let preferred = u8::from(group.preferred) << 7;
            body.extend_from_slice(&[preferred | (group.state.0 & 0x0f), group.supported, high, low]);
            body.extend_from_slice(&[0, group.status, 0, count]);
            for port in group.ports.iter().take(usize::from(count)) {
                let [high, low] = port.to_be_bytes();
                body.extend_from_slice(&[0, 0, high, low]);
            }
        }
        let mut bytes = Vec::from(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Parses the bytes. Groups and ports that were cut off are missing.
    ///
    /// # Errors
    /// When the data is shorter than the header.
    pub fn parse(format: Format, bytes: &[u8]) -> Result<Self, UnexpectedEof> {
        let mut data = Reader::new(bytes);
        let len = usize::try_from(data.u32()?).unwrap_or(usize::MAX);
        let mut body = Reader::new(data.take(len.min(data.remaining()))?);
        if format == Format::Extended {
            body.u32()?;
        }
        let mut groups = Vec::new();
        while let Ok([state, supported, high, low, _, status, _, count]) = body.array() {
            let mut ports = Vec::new();
            for _ in 0..count {
                let Ok([_, _, high, low]) = body.array() else { break };
                ports.push(u16::from_be_bytes([high, low]));
            }
            groups.push(Group {
                preferred: state & 0x80 != 0,
                state: AccessState(state & 0x0f),
                supported,
                number: u16::from_be_bytes([high, low]),
                status,
                ports,
            });
        }
        Ok(Self { format, groups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(format: Format) -> Groups {
        let group = |number: u16, ports: &[u16]| Group {
            preferred: number == 1,
            state: AccessState::ACTIVE_OPTIMIZED,
            supported: Group::ACTIVE_OPTIMIZED_SUPPORTED,
            number,
            status: 0,
            ports: ports.to_vec(),
        };
        Groups { format, groups: Vec::from([group(1, &[1, 2]), group(0x203, &[])]) }
    }

    #[test]
    fn both_headers_stand_as_spc_shows_them() {
        let groups = [0x80, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 2, 3, 0, 0, 0, 0];
        let short = sample(Format::LengthOnly).encode();
        assert_eq!((&short[..4], &short[4..]), (&[0, 0, 0, 24][..], &groups[..]));
        let long = sample(Format::Extended).encode();
        assert_eq!((&long[..8], &long[8..]), (&[0, 0, 0, 28, 0x10, 0, 0, 0][..], &groups[..]));
        for format in [Format::LengthOnly, Format::Extended] {
            assert_eq!(Groups::parse(format, &sample(format).encode()), Ok(sample(format)));
        }
    }

    #[test]
    fn data_that_is_cut_off_has_fewer_groups() {
        let bytes = sample(Format::LengthOnly).encode();
        let ports = |len: usize| {
            let groups = Groups::parse(Format::LengthOnly, &bytes[..len]).unwrap().groups;
            groups.iter().map(|group| group.ports.len()).collect::<Vec<_>>()
        };
        assert_eq!(ports(8), []);
        assert_eq!(ports(12), [0]);
        assert_eq!(ports(16), [1]);
        assert_eq!(ports(27), [2]);
        assert_eq!(ports(28), [2, 0]);
        assert!(Groups::parse(Format::LengthOnly, &bytes[..3]).is_err());
    }
}
