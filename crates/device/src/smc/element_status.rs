//! READ ELEMENT STATUS, and the commands that take stock (SMC-3).

use alloc::vec::Vec;

use cartridge::library::{Element, Library, StoredCartridge};
use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense};

use super::address;
use super::motion::{NOT_INSTALLED, invalid_element};
use crate::changer::Changer;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::pr::conflict::Conflict;
use crate::task::TaskInfo;

/// ELEMENT TYPE CODE.
mod kind {
    pub(super) const ALL: u8 = 0;
    pub(super) const TRANSPORT: u8 = 1;
    pub(super) const STORAGE: u8 = 2;
    pub(super) const IMPORT_EXPORT: u8 = 3;
    pub(super) const DATA_TRANSFER: u8 = 4;
}

/// VOLTAG, in byte 1.
const VOLUME_TAGS: u8 = 0x10;
/// CURDATA, in byte 6: without motion of the device.
const CURRENT_DATA: u8 = 0x02;
/// DVCID, in byte 6.
const DEVICE_IDENTIFIERS: u8 = 0x01;

/// The flags of an element descriptor.
mod flag {
    pub(super) const FULL: u8 = 0x01;
    pub(super) const BY_OPERATOR: u8 = 0x02;
    pub(super) const EXCEPTION: u8 = 0x04;
    pub(super) const ACCESSIBLE: u8 = 0x08;
    pub(super) const EXPORTS: u8 = 0x10;
    pub(super) const IMPORTS: u8 = 0x20;
}

/// SVALID, and the medium type of data cartridges.
const SOURCE_VALID: u8 = 0x80;
const DATA_MEDIUM: u8 = 0x01;

/// The length of a volume tag, of its identifier, and of a device identifier: vendor, product and serial
/// number.
const TAG_LEN: usize = 36;
const TAG_TEXT_LEN: usize = 32;
const IDENTIFIER_LEN: usize = 8 + 16 + DRIVE_SERIAL_LEN;
const DRIVE_SERIAL_LEN: usize = 10;

/// Returns the conflict class: only with CURDATA does the command pass reservations of other nexuses.
pub(super) fn conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(6) & CURRENT_DATA != 0 { Conflict::Never } else { Conflict::Reads }
}

pub(super) fn read_element_status(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let Some(changer) = &server.changer else { return Outcome::bug() };
    let Some(library) = &changer.library else { return Outcome::CheckCondition(NOT_INSTALLED) };
    let cdb = &task.cdb;
    let wanted = cdb.u8(1) & 0x0f;
    if wanted > kind::DATA_TRANSFER {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(3)));
    }
    let (start, count) = (cdb.u16(2), cdb.u16(4));
    let form =
        Form { has_tags: cdb.u8(1) & VOLUME_TAGS != 0, has_identifiers: cdb.u8(6) & DEVICE_IDENTIFIERS != 0 };
    let places = core::iter::once(Place::Transport).chain(library.elements().map(Place::Element));
    let places = places.filter(|place| wanted == kind::ALL || place.kind() == wanted);
    // Without such elements the report is empty: hosts ask for each type, and on from the last address.
    let from_start = places.filter(|place| place.address() >= start);
    let found: Vec<Place> = from_start.take(usize::from(count)).collect();
    let allocation = u64::from(cdb.u24(7));
    Outcome::ParameterData { bytes: report(changer, library, &found, form), allocation }
}

/// INITIALIZE ELEMENT STATUS: the library is always known.
pub(super) fn initialize(server: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    match server.changer.as_ref().and_then(|changer| changer.library.as_ref()) {
        Some(_) => Outcome::Good,
        None => Outcome::CheckCondition(NOT_INSTALLED),
    }
}

/// INITIALIZE ELEMENT STATUS WITH RANGE.
pub(super) fn initialize_range(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const RANGE: u8 = 0x01;
    let Some(library) = server.changer.as_ref().and_then(|changer| changer.library.as_ref()) else {
        return Outcome::CheckCondition(NOT_INSTALLED);
    };
    let (start, count) = (task.cdb.u16(2), task.cdb.u16(6));
    let last = library.elements().map(address::of).max().unwrap_or(address::TRANSPORT);
    if task.cdb.u8(1) & RANGE != 0 && count > 0 && start > last {
        return Outcome::CheckCondition(invalid_element(2));
    }
    Outcome::Good
}

/// An element, the transport element included.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Transport,
    Element(Element),
}

impl Place {
    const fn kind(self) -> u8 {
        match self {
            Self::Transport => kind::TRANSPORT,
            Self::Element(Element::Slot(_)) => kind::STORAGE,
            Self::Element(Element::Mail(_)) => kind::IMPORT_EXPORT,
            Self::Element(Element::Drive(_)) => kind::DATA_TRANSFER,
        }
    }

    const fn address(self) -> u16 {
        match self {
            Self::Transport => address::TRANSPORT,
            Self::Element(element) => address::of(element),
        }
    }
}

/// What element descriptors have beside the fixed part.
#[derive(Clone, Copy)]
struct Form {
    has_tags: bool,
    has_identifiers: bool,
}

impl Form {
    /// Returns the length of the descriptors of a kind of element.
    const fn descriptor_len(self, kind: u8) -> usize {
        let tag = if self.has_tags { TAG_LEN } else { 0 };
        let identifier = if self.names(kind) { IDENTIFIER_LEN } else { 0 };
        16 + tag + identifier
    }

    const fn names(self, kind: u8) -> bool {
        self.has_identifiers && kind == kind::DATA_TRANSFER
    }
}

/// Returns the element status data. The elements are in the order of their addresses, and so are the kinds:
/// there is one page for each kind.
fn report(changer: &Changer, library: &Library, places: &[Place], form: Form) -> Vec<u8> {
    let mut pages = Vec::new();
    for page in places.chunk_by(|one, next| one.kind() == next.kind()) {
        let kind = page.first().map_or(kind::ALL, |place| place.kind());
        let len = form.descriptor_len(kind);
        pages.push(kind);
        pages.push(if form.has_tags { 0x80 } else { 0 });
        pages.extend(u16::try_from(len).unwrap_or(0).to_be_bytes());
        pages.extend(count24(page.len() * len));
        for place in page {
            descriptor(changer, library, *place, form, &mut pages);
        }
    }
    let mut report = Vec::with_capacity(8 + pages.len());
    report.extend(places.first().map_or(0, |place| place.address()).to_be_bytes());
    report.extend(u16::try_from(places.len()).unwrap_or(u16::MAX).to_be_bytes());
    report.extend(count24(pages.len()));
    report.extend(pages);
    report
}

/// Returns a reserved byte and a byte count of three bytes.
fn count24(len: usize) -> [u8; 4] {
    u32::try_from(len).unwrap_or(0x00ff_ffff).min(0x00ff_ffff).to_be_bytes()
}

fn descriptor(changer: &Changer, library: &Library, place: Place, form: Form, out: &mut Vec<u8>) {
    let cartridge = match place {
        Place::Transport => None,
        Place::Element(element) => library.at(element),
    };
    let is_unusable = cartridge.is_some_and(|held| changer.unusable.contains(&held.name));
    out.extend(place.address().to_be_bytes());
    out.push(flags(place, cartridge, is_unusable));
    out.push(0);
    let code = if is_unusable { Asc::INCOMPATIBLE_MEDIUM_INSTALLED.0 } else { 0 };
    out.extend(code.to_be_bytes());
    out.extend([0; 3]);
    let source = cartridge.and_then(|held| held.source);
    let medium = if cartridge.is_some() { DATA_MEDIUM } else { 0 };
    out.push(source.map_or(0, |_| SOURCE_VALID) | medium);
    out.extend(source.map_or(0, |number| address::of(Element::Slot(number))).to_be_bytes());
    if form.has_tags {
        volume_tag(cartridge, out);
    }
    let drive = match place {
        Place::Element(Element::Drive(number)) if form.has_identifiers => Some(number),
        _ => None,
    };
    identifier(changer, library, drive, out);
}

fn flags(place: Place, cartridge: Option<&StoredCartridge>, is_unusable: bool) -> u8 {
    let is_locked = cartridge.is_some_and(|held| held.is_vaulted);
    let mut flags = if cartridge.is_some() { flag::FULL } else { 0 };
    if is_unusable {
        flags |= flag::EXCEPTION;
    }
    if place != Place::Transport && !is_locked {
        flags |= flag::ACCESSIBLE;
    }
    if matches!(place, Place::Element(Element::Mail(_))) {
        flags |= flag::EXPORTS | flag::IMPORTS;
        // A cartridge that no host has put there came from an operator.
        if cartridge.is_some_and(|held| held.source.is_none()) {
            flags |= flag::BY_OPERATOR;
        }
    }
    flags
}

/// Adds the primary volume tag: the bar code, or zeros if there is none.
fn volume_tag(cartridge: Option<&StoredCartridge>, out: &mut Vec<u8>) {
    let barcode = cartridge.map_or("", |held| held.barcode.as_str());
    let padding = if barcode.is_empty() { 0 } else { b' ' };
    out.extend(padded(barcode.as_bytes(), TAG_TEXT_LEN, padding));
    out.extend([0; TAG_LEN - TAG_TEXT_LEN]);
}

/// Adds the device identifier of a drive: a T10 vendor identification in ASCII. Other elements have none.
fn identifier(changer: &Changer, library: &Library, drive: Option<u16>, out: &mut Vec<u8>) {
    let Some(number) = drive else { return out.extend([0; 4]) };
    let len = u8::try_from(IDENTIFIER_LEN).unwrap_or(0);
    out.extend([0x02, 0x01, 0, len]);
    let name = usize::from(number).checked_sub(1).and_then(|at| changer.drives.get(at));
    out.extend(name.map_or([b' '; 8], |name| name.vendor));
    out.extend(name.map_or([b' '; 16], |name| name.product));
    out.extend(padded(library.drive_serial(number).as_bytes(), DRIVE_SERIAL_LEN, b' '));
}

fn padded(text: &[u8], len: usize, padding: u8) -> impl Iterator<Item = u8> {
    text.iter().copied().chain(core::iter::repeat(padding)).take(len)
}
