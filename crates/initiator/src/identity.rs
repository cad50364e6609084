//! Identifies the device behind a LUN by the names that it reports and that no other device has.
//!
//! After a session recovery, another device may be under the same LUN of the same target: an operator changed
//! the export, or the address leads to another host. Commands for the first device must not reach the second.

use std::fmt;

use scsi::cdb::Cdb;
use scsi::inquiry::{DeviceType, StandardInquiry};
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
    /// The VPD page with the names; `None` for the standard INQUIRY data.
    page: Option<u8>,
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

    /// Returns what is known of a device without a name: its model, which other devices have, too.
    pub(crate) fn of_model(inquiry: &StandardInquiry) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes.trim_ascii()).into_owned();
        let StandardInquiry { device_type: DeviceType(kind), vendor, product, .. } = inquiry;
        // The revision changes with the version of the target.
        let model = format!("{} {} (device type {kind:02x}h, without a name)", text(vendor), text(product));
        Self { page: None, names: vec![(MODEL, model.into_bytes())] }
    }

    /// Returns whether the device has a name that no other device has.
    pub(crate) const fn is_named(&self) -> bool {
        self.page.is_some()
    }

    /// Parses the names of the unit itself from a page; `None` if there are none. The page of a LUN without a
    /// device counts for nothing: some targets give the names of LUN 0 there.
    pub(crate) fn learn(page: u8, bytes: &[u8]) -> Option<Self> {
        if !is_connected(bytes) {
            return None;
        }
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
        (!names.is_empty()).then_some(Self { page: Some(page), names })
    }

    /// Returns the command that reads the same data again.
    pub(crate) fn question_again(&self, lun: Lun) -> Command {
        match self.page {
            Some(page) => Self::question(lun, page),
            None => {
                let cdb = [opcode::INQUIRY, 0, 0, 0, MODEL_LEN, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
                Command::new(lun, Cdb::from_16(cdb)).reading(MODEL_LEN.into()).repeatable()
            }
        }
    }

    /// Compares the device of a page with this one. They are the same if they have a name in common, of the
    /// most specific type that both have. Names of other types may appear, disappear and change with the
    /// target's version.
    pub(crate) fn compare(&self, answer: &[u8]) -> Comparison {
        if !is_connected(answer) {
            return Comparison::Unknown("no device is connected there");
        }
        let other = match self.page {
            Some(page) => Self::learn(page, answer),
            None => {
                let inquiry = StandardInquiry::parse(answer).ok();
                // A target may have no device for the LUN yet.
                let inquiry = inquiry.filter(|inquiry| inquiry.device_type != DeviceType::UNKNOWN);
                inquiry.map(|inquiry| Self::of_model(&inquiry))
            }
        };
        let Some(other) = other else {
            return Comparison::Unknown("the device has no identifier");
        };
        let of = |names: &[(u8, Vec<u8>)], kind: u8| names.iter().any(|name| name.0 == kind);
        let kinds = TELLING.iter().map(|kind| kind.0).chain([SERIAL, MODEL]);
        let kind = kinds.into_iter().find(|kind| of(&self.names, *kind) && of(&other.names, *kind));
        let Some(kind) = kind else {
            return Comparison::Unknown("the device has no identifier of a former type");
        };
        if other.names.iter().any(|name| name.0 == kind && self.names.contains(name)) {
            return Comparison::Same;
        }
        Comparison::Other(OtherDevice { was: self.to_string(), is: other.to_string() })
    }
}

/// The result of comparing the device behind a LUN with an earlier one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// The same device.
    Same,
    /// A device with another name.
    Other(OtherDevice),
    /// The answer proves neither, for this reason.
    Unknown(&'static str),
}

/// Returns whether INQUIRY data come from a unit with a device: PERIPHERAL QUALIFIER is 000b (SPC-5 §6.7.2).
/// A target may answer with another qualifier until the device of the LUN is ready.
fn is_connected(inquiry: &[u8]) -> bool {
    inquiry.first().is_some_and(|byte| byte >> 5 == 0)
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
    /// The present device.
    pub is: String,
}

/// The error for a LUN whose unit does not confirm that it is the device that was there before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the LUN does not confirm that it leads to the same device as before ({was}): {why}; nothing is read from it or written to it until it does"
)]
pub struct UnconfirmedDevice {
    /// The previous device.
    pub was: String,
    /// Why the present device is unknown.
    pub why: String,
}

/// The types of designators that name one device and no other, the most specific first.
const TELLING: [DesignatorType; 4] =
    [DesignatorType::NAA, DesignatorType::EUI_64, DesignatorType::SCSI_NAME, DesignatorType::T10_VENDOR];

/// The type that stands for a serial number. Designator types are below 16.
const SERIAL: u8 = 0xff;

/// The type that stands for the model of a device without a name.
const MODEL: u8 = 0xfe;

/// The allocation length of the INQUIRY for the model.
const MODEL_LEN: u8 = 36;

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

    fn is_same(identity: &Identity, answer: &[u8]) -> Option<bool> {
        match identity.compare(answer) {
            Comparison::Same => Some(true),
            Comparison::Other(_) => Some(false),
            Comparison::Unknown(_) => None,
        }
    }

    #[test]
    fn a_device_is_known_by_its_own_names_and_not_by_its_port() {
        let port: (u8, u8, &[u8]) = (4, 1, &[0, 0, 0, 1]);
        let identity = Identity::learn(0x83, &page_83(&[NAA, VENDOR, port])).unwrap();
        assert_eq!(identity.to_string(), "naa.6001020304050607");
        for (names, same) in [
            (&[NAA, VENDOR, port][..], Some(true)),
            (&[VENDOR, NAA, (4, 1, &[0, 0, 0, 2])], Some(true)),
            (&[NAA], Some(true)),
            (&[NAA, VENDOR, (8, 0, b"naa.6001")], Some(true)),
            (&[OTHER_NAA, VENDOR], Some(false)),
            (&[OTHER_NAA], Some(false)),
            (&[NAA, (1, 0, b"TARGE   disk-2")], Some(true)),
            (&[VENDOR], Some(true)),
            (&[(1, 0, b"TARGE   disk-2")], Some(false)),
            (&[(2, 0, &[1, 2, 3, 4, 5, 6, 7, 8])], None),
            (&[port], None),
            (&[], None),
        ] {
            assert_eq!(is_same(&identity, &page_83(names)), same, "{names:?}");
        }
        assert_eq!(is_same(&identity, &[]), None);
        assert_eq!(is_same(&identity, &[0, 0x80, 0, 1, b'1']), None);
        let Comparison::Other(why) = identity.compare(&page_83(&[OTHER_NAA])) else { panic!("the same") };
        let why = why.to_string();
        assert!(why.contains("was naa.6001020304050607") && why.contains("is naa.6009090909090909"), "{why}");
    }

    #[test]
    fn a_serial_number_does_where_there_is_nothing_better() {
        assert_eq!(Identity::learn(0x83, &page_83(&[(4, 1, &[0, 0, 0, 1])])), None);
        assert_eq!(Identity::learn(0x80, &[0, 0x80, 0, 2, b' ', b' ']), None);
        let identity = Identity::learn(0x80, &[0, 0x80, 0, 3, b' ', b'4', b'2']).unwrap();
        assert_eq!(is_same(&identity, &[0, 0x80, 0, 2, b'4', b'2']), Some(true));
        assert_eq!(is_same(&identity, &[0, 0x80, 0, 2, b'4', b'3']), Some(false));
    }

    #[test]
    fn a_device_without_a_name_is_known_by_its_model() {
        let data = |kind: u8, vendor: &[u8; 8], revision: &[u8; 4]| {
            [&[kind, 0, 6, 2, 31, 0, 0, 0][..], vendor, b"DISK            ", revision].concat()
        };
        let is = data(0, b"ACME    ", b"1.0 ");
        let identity = Identity::of_model(&StandardInquiry::parse(&is).unwrap());
        assert!(!identity.is_named());
        assert_eq!(identity.to_string(), "ACME DISK (device type 00h, without a name)");
        for (answer, same) in [
            (data(0, b"ACME    ", b"2.0 "), Some(true)),
            (data(0, b"OTHER   ", b"1.0 "), Some(false)),
            (data(5, b"ACME    ", b"1.0 "), Some(false)),
            (data(0x1f, b"ACME    ", b"1.0 "), None),
            (data(0x20, b"ACME    ", b"1.0 "), None),
            (is[..20].to_vec(), None),
        ] {
            assert_eq!(is_same(&identity, &answer), same, "{answer:02x?}");
        }
    }

    /// Some targets return the names of LUN 0 for a LUN that is not there.
    #[test]
    fn the_page_of_a_lun_without_a_device_says_nothing_of_a_device() {
        let identity = Identity::learn(0x83, &page_83(&[NAA])).unwrap();
        for byte in [0x7f, 0x20, 0x60] {
            for name in [NAA, OTHER_NAA] {
                let mut page = page_83(&[name]);
                page[0] = byte;
                assert_eq!(Identity::learn(0x83, &page), None);
                assert_eq!(is_same(&identity, &page), None, "{byte:02x}h");
            }
        }
    }
}
