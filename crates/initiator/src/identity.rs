//! Which device is behind a LUN: what it says of itself that no other device says.
//!
//! A session that is built anew may find another device under the same LUN of the same target: an operator changed the
//! export, or the address leads to another machine. What was meant for the first one must not reach it.

use std::fmt;

use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::opcode;
use scsi::vpd::{Association, Designator, DesignatorType, Page, page};

use crate::command::Command;

/// What is asked for of a page: enough for any number of designators that a unit in its senses has, and what is longer is
/// cut at the same place every time.
const LEN: u16 = 1024;

/// What a device is known by.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    page: u8,
    /// Kinds and names, sorted.
    names: Vec<(u8, Vec<u8>)>,
}

impl Identity {
    /// The pages that can tell, the better one first: Device Identification, Unit Serial Number.
    pub(crate) const PAGES: [u8; 2] = [page::DEVICE_IDENTIFICATION, page::UNIT_SERIAL_NUMBER];

    /// Makes the command that reads what [`Self::learn`] takes.
    pub(crate) fn question(lun: Lun, page: u8) -> Command {
        let [high, low] = LEN.to_be_bytes();
        let cdb = Cdb::from_16([opcode::INQUIRY, 1, page, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        Command::new(lun, cdb).reading(LEN.into()).repeatable()
    }

    /// Takes what a page says of the unit itself; `None` if that is nothing.
    pub(crate) fn learn(page: u8, bytes: &[u8]) -> Option<Self> {
        let view = Page::parse(bytes).ok().filter(|view| view.code == page)?;
        let mut names: Vec<(u8, Vec<u8>)> = if page == page::DEVICE_IDENTIFICATION {
            // Others name the port that was asked, or the target.
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

    /// Makes the command that asks again.
    pub(crate) fn question_again(&self, lun: Lun) -> Command {
        Self::question(lun, self.page)
    }

    /// Returns whether an answer to the question comes from the same device: of the most telling kind of name that was
    /// and is there, one at least is the same. Names of other kinds may come, go and change with the target's version.
    pub(crate) fn is_same(&self, answer: &[u8]) -> Result<(), OtherDevice> {
        let Some(other) = Self::learn(self.page, answer) else {
            return Err(OtherDevice { was: self.to_string(), is: "one without a name".to_owned() });
        };
        let of = |names: &[(u8, Vec<u8>)], kind: u8| names.iter().any(|name| name.0 == kind);
        let kinds = TELLING.iter().map(|kind| kind.0).chain([SERIAL]);
        let kind = kinds.into_iter().find(|kind| of(&self.names, *kind) && of(&other.names, *kind));
        let same = other.names.iter().any(|name| Some(name.0) == kind && self.names.contains(name));
        if same { Ok(()) } else { Err(OtherDevice { was: self.to_string(), is: other.to_string() }) }
    }
}

impl fmt::Display for Identity {
    /// Shows the name that says most: the worldwide one if there is one.
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

/// Another device is behind a LUN than before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another device is there than before: it was {was}, it is {is}; nothing is read from it or written to it"
)]
pub struct OtherDevice {
    /// What was there.
    pub was: String,
    /// What is there, or why that is not known.
    pub is: String,
}

/// Designators that name a device and no other, the most telling first.
const TELLING: [DesignatorType; 4] =
    [DesignatorType::NAA, DesignatorType::EUI_64, DesignatorType::SCSI_NAME, DesignatorType::T10_VENDOR];

/// Stands for a serial number among the kinds of designators, of which there are 16.
const SERIAL: u8 = 0xff;

#[cfg(test)]
mod tests {
    use super::*;

    /// Kind, association, name.
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
