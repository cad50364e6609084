//! Cases on medium changers: SMC-3, a case for each rule.
//!
//! A case that moves a cartridge moves it back. If it cannot, the run does when the case has ended. Motions
//! are between storage elements where one is empty; a case that finds no element of the kind that it needs is
//! skipped.

mod motion;
mod status;
mod way_back;

use crate::verdict::Outcome;

use super::Test;
use super::changes::Change;
use super::device::{DATA_MAX, Device, byte, half, hex, triple};
use super::fixture::Fixture;

pub(super) use way_back::put_back;

pub(super) const TABLES: &[&[Test]] = &[status::CASES, motion::CASES];

/// Element type codes.
mod kind {
    pub(super) const ALL: u8 = 0;
    pub(super) const TRANSPORT: u8 = 1;
    pub(super) const STORAGE: u8 = 2;
    pub(super) const IMPORT_EXPORT: u8 = 3;
    pub(super) const DATA_TRANSFER: u8 = 4;
    /// Every type, in the order of the element address assignment page.
    pub(super) const EACH: [u8; 4] = [TRANSPORT, STORAGE, IMPORT_EXPORT, DATA_TRANSFER];
}

/// VOLTAG in byte 1 of READ ELEMENT STATUS.
const VOLUME_TAGS: u8 = 0x10;
/// The bits of byte 6.
const DEVICE_IDENTIFIERS: u8 = 0x01;
const CURRENT_DATA: u8 = 0x02;

/// ACCESS in an element descriptor.
const ACCESS: u8 = 0x08;

/// The elements of one type: the first address and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    kind: u8,
    first: u16,
    count: u16,
}

impl Range {
    /// Returns the addresses.
    fn addresses(self) -> impl Iterator<Item = u16> {
        (self.first..=u16::MAX).take(usize::from(self.count))
    }
}

/// An element, as READ ELEMENT STATUS reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Element {
    kind: u8,
    address: u16,
    flags: u8,
    /// The address of the storage element that the cartridge came from, if it is valid.
    source: Option<u16>,
    /// The primary volume tag, if there is one.
    tag: Option<Vec<u8>>,
    /// What follows the volume tags.
    rest: Vec<u8>,
}

impl Element {
    fn is_full(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// Element status data: the header and the elements.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Status {
    first: u16,
    count: u16,
    elements: Vec<Element>,
}

impl Status {
    /// Fails unless the header names the lowest address of the report.
    fn begins_rightly(&self) -> Outcome {
        let lowest = self.elements.iter().map(|element| element.address).min();
        require!(
            lowest.is_none_or(|lowest| lowest == self.first),
            "FIRST ELEMENT ADDRESS REPORTED is {}, the lowest in the report is {lowest:?}",
            self.first
        );
        Ok(())
    }
}

/// Parses element status data. BYTE COUNT OF REPORT is judged by a case of its own.
///
/// # Errors
/// Other lengths and numbers that contradict each other.
fn parse(data: &[u8]) -> Outcome<Status> {
    require!(data.len() >= 8, "{} bytes are no element status header", data.len());
    let (first, count) = (half(data, 0), half(data, 2));
    let mut rest = data.get(8..).unwrap_or_default();
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let (kind, flags, each) = (byte(rest, 0), byte(rest, 1), usize::from(half(rest, 2)));
        let len = usize::try_from(triple(rest, 5)).unwrap_or(usize::MAX);
        let Some((page, after)) = rest.get(8..).and_then(|rest| rest.split_at_checked(len)) else {
            fail!("the page of element type {kind}, {len} bytes long, is beyond the end of the report")
        };
        require!(
            each >= 12 && len.is_multiple_of(each),
            "{len} bytes of element type {kind} are no number of descriptors of {each} bytes"
        );
        for descriptor in page.chunks(each) {
            elements.push(element(kind, flags, descriptor)?);
        }
        rest = after;
    }
    require!(
        elements.len() == usize::from(count),
        "NUMBER OF ELEMENTS AVAILABLE is {count}, {} are reported",
        elements.len()
    );
    Ok(Status { first, count, elements })
}

/// Parses an element descriptor; `page_flags` is byte 1 of the page header.
fn element(kind: u8, page_flags: u8, descriptor: &[u8]) -> Outcome<Element> {
    let mut rest = descriptor.get(12..).unwrap_or_default();
    let mut tag = |is_there: bool| -> Outcome<Option<Vec<u8>>> {
        if !is_there {
            return Ok(None);
        }
        let Some((tag, after)) = rest.split_at_checked(36) else {
            fail!("a descriptor of {} bytes has no place for a volume tag", descriptor.len())
        };
        rest = after;
        Ok(Some(tag.to_vec()))
    };
    let primary = tag(page_flags & 0x80 != 0)?;
    tag(page_flags & 0x40 != 0)?;
    let is_source_valid = byte(descriptor, 9) & 0x80 != 0;
    Ok(Element {
        kind,
        address: half(descriptor, 0),
        flags: byte(descriptor, 2),
        source: is_source_valid.then(|| half(descriptor, 10)),
        tag: primary,
        rest: rest.to_vec(),
    })
}

/// A changer.
struct Changer {
    device: Device,
    /// The elements, as the element address assignment page has them.
    ranges: [Range; 4],
}

impl Changer {
    /// Logs in to a changer that is ready.
    fn attach(fixture: &mut Fixture) -> Outcome<Self> {
        let mut device = Device::attach(fixture)?;
        device.need_ready()?;
        Self::of(device)
    }

    /// Logs in to a changer whose cartridges may be moved.
    fn attach_to_move(fixture: &mut Fixture) -> Outcome<Self> {
        let mut changer = Self::attach(fixture)?;
        // A changer that does not report its elements fails other cases.
        if let Ok(elements) = changer.elements() {
            changer.device.will_change(Change::Cartridges(way_back::held(&elements)));
        }
        Ok(changer)
    }

    fn of(mut device: Device) -> Outcome<Self> {
        let done = device.get(&[0x1a, 0x08, 0x1d, 0, 255, 0], 255)?.good("MODE SENSE(6) of page 1D")?;
        let mode = super::pages::mode_parameters(&done.data, false)?;
        let Some(page) = mode.page(0x1d) else { fail!("MODE SENSE(6) of page 1D returns no such page") };
        require!(page.len() == 20, "page 1D has {} bytes, not 20", page.len());
        let range = |kind: u8, at: usize| Range { kind, first: half(page, at), count: half(page, at + 2) };
        let [a, b, c, d] = kind::EACH;
        Ok(Self { device, ranges: [range(a, 2), range(b, 6), range(c, 10), range(d, 14)] })
    }

    fn range(&self, kind: u8) -> Range {
        self.ranges.into_iter().find(|range| range.kind == kind).unwrap_or(Range { kind, first: 0, count: 0 })
    }

    /// Returns the data of READ ELEMENT STATUS; `kind` may have VOLTAG.
    fn status(&mut self, kind: u8, start: u16, count: u16, flags: u8) -> Outcome<Status> {
        let done = self.device.get(&status_cdb(kind, start, count, flags), u32::from(DATA_MAX))?;
        let status = parse(&done.good("READ ELEMENT STATUS")?.data)?;
        status.begins_rightly()?;
        Ok(status)
    }

    /// Returns every element, with volume tags. Asks for one type at a time, as Linux and mtx do, and takes
    /// what is missing at the end of a report for zeros: the cases of READ ELEMENT STATUS judge that.
    fn elements(&mut self) -> Outcome<Vec<Element>> {
        let mut elements = Vec::new();
        for range in self.ranges.into_iter().filter(|range| range.count > 0) {
            let cdb = status_cdb(range.kind | VOLUME_TAGS, range.first, range.count, 0);
            let done = self.device.get(&cdb, u32::from(DATA_MAX))?;
            let mut data = done.good("READ ELEMENT STATUS")?.data;
            let told = usize::try_from(triple(&data, 5)).unwrap_or(0).saturating_add(8);
            data.resize(told.clamp(data.len(), data.len().saturating_add(MISSING_MAX)), 0);
            elements.append(&mut parse(&data)?.elements);
        }
        elements.sort_by_key(|element| element.address);
        Ok(elements)
    }

    /// Returns the element with this address.
    fn element(&mut self, address: u16) -> Outcome<Element> {
        match self.elements()?.into_iter().find(|element| element.address == address) {
            Some(element) => Ok(element),
            None => fail!("READ ELEMENT STATUS does not report element {address}"),
        }
    }

    /// Returns the full, or the empty, elements of a type. A cartridge that an operator keeps from motions is
    /// left out; that is so in mail slots alone.
    fn find(&mut self, kind: u8, is_full: bool) -> Outcome<Vec<Element>> {
        let mut elements = self.elements()?;
        elements.retain(|element| {
            let is_kept = element.kind == kind::IMPORT_EXPORT && element.flags & ACCESS == 0;
            element.kind == kind && element.is_full() == is_full && !is_kept
        });
        Ok(elements)
    }

    /// Returns a full storage element and an empty one; skips the case if there are none.
    fn full_and_empty(&mut self) -> Outcome<(Element, Element)> {
        let full = self.find(kind::STORAGE, true)?.into_iter().next();
        let empty = self.find(kind::STORAGE, false)?.into_iter().next();
        match (full, empty) {
            (Some(full), Some(empty)) => Ok((full, empty)),
            _ => Err(crate::verdict::Stop::Skip("the case needs a full slot and an empty one".to_owned())),
        }
    }

    /// MOVE MEDIUM by the default medium transport element.
    fn moves(&mut self, from: u16, to: u16) -> Outcome<super::task::Done> {
        let ([a, b], [c, d]) = (from.to_be_bytes(), to.to_be_bytes());
        self.device.ask(&[0xa5, 0, 0, 0, a, b, c, d, 0, 0, 0, 0])
    }
}

/// The most bytes at the end of a report that are taken for zeros: fewer than a volume tag.
const MISSING_MAX: usize = 32;

/// Returns READ ELEMENT STATUS with the longest allocation length that a case uses.
fn status_cdb(kind: u8, start: u16, count: u16, flags: u8) -> [u8; 12] {
    let ([a, b], [c, d], [e, f]) = (start.to_be_bytes(), count.to_be_bytes(), DATA_MAX.to_be_bytes());
    [0xb8, kind, a, b, c, d, flags, 0, e, f, 0, 0]
}

/// Returns a volume tag as text.
fn tag_text(tag: &[u8]) -> String {
    let text = tag.get(..32).unwrap_or(tag);
    if text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
        String::from_utf8_lossy(text).trim_end().to_owned()
    } else {
        hex(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Stop;

    /// A report on two slots with volume tags, of which the second holds a cartridge from slot 1000.
    fn report() -> Vec<u8> {
        let mut report = vec![0x03, 0xe8, 0, 2, 0, 0, 0, 8 + 2 * 52];
        report.extend([2, 0x80, 0, 52, 0, 0, 0, 104]);
        for (address, flags, source) in [(1000u16, 8, 0u16), (1001, 9, 1000)] {
            report.extend(address.to_be_bytes());
            report.extend([flags, 0, 0, 0, 0, 0, 0, if source == 0 { 0 } else { 0x81 }]);
            report.extend(source.to_be_bytes());
            report.extend([b'A'; 32]);
            report.extend([0; 8]);
        }
        report
    }

    fn fails(report: &[u8], part: &str) {
        match parse(report) {
            Err(Stop::Fail(why)) => assert!(why.contains(part), "{why}"),
            other => panic!("expected a failure, {part}; came {other:?}"),
        }
    }

    #[test]
    fn element_status_is_read() {
        let status = parse(&report()).unwrap();
        assert_eq!((status.first, status.count), (1000, 2));
        let [empty, full] = status.elements.as_slice() else { panic!("{status:?}") };
        assert!(!empty.is_full() && full.is_full());
        assert_eq!((full.source, empty.source), (Some(1000), None));
        assert_eq!(full.tag.as_deref().map(tag_text), Some("A".repeat(32)));
        assert_eq!(full.rest, [0; 4]);
    }

    #[test]
    fn element_status_that_contradicts_itself_fails() {
        let with = |at: usize, value: u8| {
            let mut report = report();
            report[at] = value;
            report
        };
        fails(&report()[..100], "beyond the end of the report");
        fails(&with(3, 3), "NUMBER OF ELEMENTS AVAILABLE is 3, 2 are reported");
        match parse(&with(1, 0xe7)).unwrap().begins_rightly() {
            Err(Stop::Fail(why)) => assert!(why.contains("REPORTED is 999"), "{why}"),
            other => panic!("expected a failure; came {other:?}"),
        }
        fails(&with(11, 50), "104 bytes of element type 2");
        fails(&with(15, 105), "beyond the end of the report");
    }
}
