//! Identifies the device behind a LUN by the names that it reports and that no other device has.
//!
//! After a session recovery, another device may be under the same LUN of the same target: an operator changed
//! the export, or the address leads to another host. Commands for the first device must not reach the second.

use std::fmt;

use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::opcode;
use scsi::vpd::{Association, Designator, DesignatorType, Page, page};

use crate::command::Command;

/// The allocation length for a page, in bytes: enough for every reasonable number of designators. A longer
/// page is truncated at the same offset every time.
const LEN: u16 = 1024;

/// The identity of a device.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    page: u8,
    /// The types and bytes of the names, sorted.
    names: Vec<(u8, Vec<u8>)>,
}

impl Identity {
    /// The VPD pages with names, the better one first: Device Identification, Unit Serial Number.
    pub(crate) const PAGES: [u8; 2] = [page::DEVICE_IDENTIFICATION, page::UNIT_SERIAL_NUMBER];

    /// Returns the command that reads the page for [`Self::learn`].
    pub(crate) fn question(lun: Lun, page: u8) -> Command {
        let [high, low] = LEN.to_be_bytes();
        let cdb = Cdb::from_16([opcode::INQUIRY, 1, page, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        Command::new(lun, cdb).reading(LEN.into()).repeatable()
    }

    /// Parses the names of the unit itself from a page; `None` if there are none.
    pub(crate) fn learn(page: u8, bytes: &[u8]) -> Option<Self> {
        let view = Page::parse(bytes).ok().filter(|view| view.code == page)?;
        let mut names: Vec<(u8, Vec<u8>)> = if page == page::DEVICE_IDENTIFICATION {
            // Other designators name the target port or the target device.
            let of_unit = |name: &Designator| {
                name.association == Association::LOGICAL_UNIT && TELLING.contains(&name.kind)
            };
            let all = Designator::list(view.body).into_iter();
            all.filter(of_unit).map(|name| (name.kind.0, name.bytes)).collect()
        } else {
            let serial = view.body.trim_ascii();
            if serial.is_empty() { Vec::new() } else { vec![(SERIAL, serial.to_vec())] }
        };
        names.sort();
        names.dedup();
        (!names.is_empty()).then_some(Self { page, names })
    }

    /// Returns the command that reads the same page again.
    pub(crate) fn question_again(&self, lun: Lun) -> Command {
        Self::question(lun, self.page)
    }

    /// Checks whether a page comes from the same device. Both must have a name in common, of the most
    /// specific type that both have. Names of other types may appear, disappear and change with the target's
    /// version.
    pub(crate) fn is_same(&self, answer: &[u8]) -> Result<(), OtherDevice> {
        let Some(other) = Self::learn(self.page, answer) else {
            return Err(OtherDevice {
                was: self.to_string(),
                is: "a device without an identifier".to_owned(),
            });
        };
        let of = |names: &[(u8, Vec<u8>)], kind: u8| names.iter().any(|name| name.0 == kind);
        let kinds = TELLING.iter().map(|kind| kind.0).chain([SERIAL]);
        let kind = kinds.into_iter().find(|kind| of(&self.names, *kind) && of(&other.names, *kind));
        let same = other.names.iter().any(|name| Some(name.0) == kind && self.names.contains(name));
        if same { Ok(()) } else { Err(OtherDevice { was: self.to_string(), is: other.to_string() }) }
    }
}

impl fmt::Display for Identity {
    /// Writes the most specific name: the worldwide one if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = |kind: u8| TELLING.iter().position(|known| known.0 == kind);
        let Some((kind, name)) = self.names.iter().min_by_key(|(kind, _)| rank(*kind).unwrap_or(usize::MAX))
        else {
            return Ok(());
        };
        let printable = name.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        if printable && *kind != DesignatorType::NAA.0 {
            return f.write_str(String::from_utf8_lossy(name).trim());
        }
        f.write_str(if *kind == DesignatorType::NAA.0 { "naa." } else { "" })?;
        name.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({self})")
    }
}

/// The error for another device behind a LUN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the LUN leads to another device than before: it was {was}, it is {is}; nothing is read from it or written to it"
)]
pub struct OtherDevice {
    /// The previous device.
    pub was: String,
    /// The present device, or why it is unknown.
    pub is: String,
}

/// The types of designators that name one device and no other, the most specific first.
const TELLING: [DesignatorType; 4] =
    [DesignatorType::NAA, DesignatorType::EUI_64, DesignatorType::SCSI_NAME, DesignatorType::T10_VENDOR];

/// The type that stands for a serial number. Designator types are below 16.
const SERIAL: u8 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds page 83h from type, association and name of each designator.
    fn page_83(names: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (kind, association, name) in names {
            body.extend([1, association << 4 | kind, 0, u8::try_from(name.len()).unwrap()]);
            body.extend_from_slice(name);
        }
        let len = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[0, 0x83, len[0], len[1]][..], &body].concat()
    }

    const NAA: (u8, u8, &[u8]) = (3, 0, &[0x60, 1, 2, 3, 4, 5, 6, 7]);
    const OTHER_NAA: (u8, u8, &[u8]) = (3, 0, &[0x60, 9, 9, 9, 9, 9, 9, 9]);
    const VENDOR: (u8, u8, &[u8]) = (1, 0, b"TARGE   disk-1");

    #[test]
    fn a_device_is_known_by_its_own_names_and_not_by_its_port() {
        let port: (u8, u8, &[u8]) = (4, 1, &[0, 0, 0, 1]);
        let identity = Identity::learn(0x83, &page_83(&[NAA, VENDOR, port])).unwrap();
        assert_eq!(identity.to_string(), "naa.6001020304050607");
        for (names, same) in [
            (&[NAA, VENDOR, port][..], true),
            (&[VENDOR, NAA, (4, 1, &[0, 0, 0, 2])], true),
            (&[NAA], true),
            (&[NAA, VENDOR, (8, 0, b"naa.6001")], true),
            (&[OTHER_NAA, VENDOR], false),
            (&[OTHER_NAA], false),
            (&[NAA, (1, 0, b"TARGE   disk-2")], true),
            (&[VENDOR], true),
            (&[(1, 0, b"TARGE   disk-2")], false),
            (&[port], false),
            (&[], false),
        ] {
            assert_eq!(identity.is_same(&page_83(names)).is_ok(), same, "{names:?}");
        }
        assert!(identity.is_same(&[]).is_err() && identity.is_same(&[0, 0x80, 0, 1, b'1']).is_err());
        let why = identity.is_same(&page_83(&[OTHER_NAA])).unwrap_err().to_string();
        assert!(why.contains("was naa.6001020304050607") && why.contains("is naa.6009090909090909"), "{why}");
    }

    #[test]
    fn a_serial_number_does_where_there_is_nothing_better() {
        assert_eq!(Identity::learn(0x83, &page_83(&[(4, 1, &[0, 0, 0, 1])])), None);
        assert_eq!(Identity::learn(0x80, &[0, 0x80, 0, 2, b' ', b' ']), None);
        let identity = Identity::learn(0x80, &[0, 0x80, 0, 3, b' ', b'4', b'2']).unwrap();
        assert!(identity.is_same(&[0, 0x80, 0, 2, b'4', b'2']).is_ok());
        assert!(identity.is_same(&[0, 0x80, 0, 2, b'4', b'3']).is_err());
    }
}
