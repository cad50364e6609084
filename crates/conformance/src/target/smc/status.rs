//! What a changer tells of its elements: mode pages and READ ELEMENT STATUS.

use crate::suite::case;
use crate::verdict::Outcome;
use crate::wire::word;

use super::super::Test;
use super::super::device::{asc, byte, hex, key, triple};
use super::super::fixture::Fixture;
use super::super::pages;
use super::{
    CURRENT_DATA, Changer, DEVICE_IDENTIFIERS, Element, VOLUME_TAGS, kind, parse, status_cdb, tag_text,
};

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    case("smc-assignment", "SMC-3, element address assignment page", "the ranges of addresses do not overlap", assignment),
    case("smc-geometry", "SMC-3, transport geometry page", "the page has a descriptor for each transport element", geometry),
    case("smc-capabilities", "SMC-3, device capabilities page", "slots hold media, and media can be moved to drives", capabilities),
    case("smc-mode-pages", "SPC-4, MODE SENSE(10)", "each page is the same alone as among all", mode_pages),
    case("smc-operation-codes", "SPC-4, REPORT SUPPORTED OPERATION CODES", "each command is the same alone as in the list", operation_codes),
    case("smc-log-pages", "SPC-4, LOG SENSE", "every page that is listed has the right form", log_pages),
    case("smc-status", "SMC-3, READ ELEMENT STATUS", "all elements are those of the address assignment page", status),
    case("smc-status-length", "SMC-3, READ ELEMENT STATUS", "BYTE COUNT OF REPORT is that of the report", length),
    case("smc-status-types", "SMC-3, READ ELEMENT STATUS", "each type alone has its elements", types),
    case("smc-status-count", "SMC-3, READ ELEMENT STATUS", "NUMBER OF ELEMENTS is the most that are reported", count),
    case("smc-status-start", "SMC-3, READ ELEMENT STATUS", "the report begins at the starting address", start),
    case("smc-status-beyond", "SMC-3, READ ELEMENT STATUS", "behind the last element nothing is reported", beyond),
    case("smc-status-allocation", "SMC-3, READ ELEMENT STATUS", "a short allocation length cuts, and counts all", allocation),
    case("smc-status-type", "SMC-3, READ ELEMENT STATUS", "a reserved element type is refused", reserved_type),
    case("smc-status-tags", "SMC-3, READ ELEMENT STATUS", "VOLTAG adds volume tags of ASCII characters", tags),
    case("smc-status-no-tags", "SMC-3, READ ELEMENT STATUS", "without VOLTAG there are no volume tags", no_tags),
    case("smc-status-identifiers", "SMC-3, READ ELEMENT STATUS", "DVCID identifies each drive", identifiers),
    case("smc-status-current", "SMC-3, READ ELEMENT STATUS", "CURDATA reports the same", current),
    case("smc-initialize", "SMC-3, INITIALIZE ELEMENT STATUS", "taking stock changes no element", initialize),
    case("smc-initialize-range", "SMC-3, INITIALIZE ELEMENT STATUS WITH RANGE", "nor does taking stock of a range", range),
];

fn assignment(fixture: &mut Fixture) -> Outcome {
    let changer = Changer::attach(fixture)?;
    let present = || changer.ranges.iter().filter(|range| range.count > 0);
    require!(changer.range(kind::TRANSPORT).count > 0, "there is no medium transport element");
    for range in present() {
        let last = u32::from(range.first) + u32::from(range.count) - 1;
        require!(last <= 0xffff, "element type {} ends at address {last}", range.kind);
        let meets = present().find(|other| {
            other.kind > range.kind
                && other.addresses().any(|address| range.addresses().any(|one| one == address))
        });
        require!(meets.is_none(), "{range:?} overlaps with {meets:?}");
    }
    Ok(())
}

fn geometry(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let page = changer.device.mode_page(0x1e)?;
    let wanted = 2 + 2 * usize::from(changer.range(kind::TRANSPORT).count);
    require!(page.len() == wanted, "expected {wanted} bytes, came {}", page.len());
    Ok(())
}

fn capabilities(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let page = changer.device.mode_page(0x1f)?;
    require!(page.len() == 20, "page 1F has {} bytes, not 20", page.len());
    // Bit n - 1 stands for element type n.
    let bit = |kind: u8| 1u8 << (kind - 1);
    let (slots, drives) =
        (changer.range(kind::STORAGE).count > 0, changer.range(kind::DATA_TRANSFER).count > 0);
    require!(!slots || byte(&page, 2) & bit(kind::STORAGE) != 0, "StorST is 0, and there are slots");
    require!(!drives || byte(&page, 2) & bit(kind::DATA_TRANSFER) != 0, "StorDT is 0, and there are drives");
    let to_drives = byte(&page, 5) & bit(kind::DATA_TRANSFER) != 0;
    require!(!(slots && drives) || to_drives, "ST->DT is 0, and there are slots and drives");
    Ok(())
}

fn mode_pages(fixture: &mut Fixture) -> Outcome {
    pages::mode_pages_agree(&mut Changer::attach(fixture)?.device)
}

fn operation_codes(fixture: &mut Fixture) -> Outcome {
    pages::operation_codes_agree(&mut Changer::attach(fixture)?.device)
}

fn log_pages(fixture: &mut Fixture) -> Outcome {
    pages::log_pages_are_well_formed(&mut Changer::attach(fixture)?.device)
}

/// Returns the types and addresses of elements, ascending.
fn names(elements: &[Element]) -> Vec<(u8, u16)> {
    let mut names: Vec<(u8, u16)> = elements.iter().map(|element| (element.kind, element.address)).collect();
    names.sort_unstable();
    names
}

/// Returns what the address assignment page says that there is, of all types or of one.
fn assigned(changer: &Changer, only: u8) -> Vec<(u8, u16)> {
    let ranges = changer.ranges.iter().filter(|range| only == kind::ALL || range.kind == only);
    ranges.flat_map(|range| range.addresses().map(|address| (range.kind, address))).collect()
}

fn status(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let came = names(&changer.status(kind::ALL, 0, u16::MAX, 0)?.elements);
    let wanted = assigned(&changer, kind::ALL);
    require!(came == wanted, "page 1D has the elements (type, address) {wanted:?}, reported are {came:?}");
    Ok(())
}

fn length(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let done = changer.device.get(&status_cdb(kind::ALL, 0, u16::MAX, 0), 0xfff0)?;
    let data = done.good("READ ELEMENT STATUS")?.data;
    let (told, came) = (triple(&data, 5), data.len().saturating_sub(8));
    require!(usize::try_from(told) == Ok(came), "it tells of {told} bytes behind the header, {came} came");
    Ok(())
}

fn types(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    for kind in kind::EACH {
        let wanted = assigned(&changer, kind);
        if wanted.is_empty() {
            continue;
        }
        let came = names(&changer.status(kind, 0, u16::MAX, 0)?.elements);
        require!(came == wanted, "element type {kind}: expected {wanted:?}, reported are {came:?}");
    }
    Ok(())
}

fn count(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let all = changer.range(kind::STORAGE);
    need!(all.count > 1, "the case needs two slots");
    let few = changer.status(kind::STORAGE, 0, 1, 0)?;
    let came = names(&few.elements);
    require!(
        came == [(kind::STORAGE, all.first)],
        "expected slot {} alone, reported are {came:?}",
        all.first
    );
    Ok(())
}

fn start(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let all = changer.range(kind::STORAGE);
    need!(all.count > 1, "the case needs two slots");
    let later = names(&changer.status(kind::STORAGE, all.first + 1, u16::MAX, 0)?.elements);
    let wanted: Vec<(u8, u16)> = assigned(&changer, kind::STORAGE).into_iter().skip(1).collect();
    require!(later == wanted, "expected {wanted:?}, reported are {later:?}");
    Ok(())
}

fn beyond(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let last = assigned(&changer, kind::ALL).into_iter().map(|(_, address)| address).max().unwrap_or(0);
    need!(last < u16::MAX, "the last element has the highest address");
    let cdb = status_cdb(kind::ALL, last + 1, u16::MAX, 0);
    let done = changer.device.get(&cdb, 0xfff0)?;
    if done.sense_code() == Some((key::ILLEGAL_REQUEST, asc::INVALID_ELEMENT_ADDRESS)) {
        changer.device.remark("the command is refused with INVALID ELEMENT ADDRESS");
        return Ok(());
    }
    let came = parse(&done.good("READ ELEMENT STATUS behind the last element")?.data)?;
    require!(came.elements.is_empty(), "reported are {:?}", names(&came.elements));
    changer.device.remark("the report has no elements");
    Ok(())
}

fn allocation(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let whole = changer.device.get(&status_cdb(kind::ALL, 0, u16::MAX, 0), 0xfff0)?;
    let whole = whole.good("READ ELEMENT STATUS")?.data;
    let [head @ .., _, _, _, _] = status_cdb(kind::ALL, 0, u16::MAX, 0);
    let cdb = [&head[..], &[0, 8, 0, 0]].concat();
    let header = changer.device.get(&cdb, 0xfff0)?.good("READ ELEMENT STATUS of 8 bytes")?.data;
    require!(
        Some(header.as_slice()) == whole.get(..8),
        "of 8 bytes came {}, the whole report begins with {}",
        hex(&header),
        hex(whole.get(..8).unwrap_or_default())
    );
    Ok(())
}

fn reserved_type(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let done = changer.device.get(&status_cdb(5, 0, u16::MAX, 0), 0xfff0)?;
    done.refused("READ ELEMENT STATUS of type 5", key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_CDB)
}

fn tags(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let status = changer.status(kind::ALL | VOLUME_TAGS, 0, u16::MAX, 0)?;
    let full: Vec<&Element> = status.elements.iter().filter(|element| element.is_full()).collect();
    need!(!full.is_empty(), "no element is full");
    let mut seen = Vec::new();
    for element in full {
        let Some(tag) = &element.tag else {
            fail!("element {} is full and has no volume tag, although VOLTAG is set", element.address)
        };
        let text = tag_text(tag);
        let is_text = tag.iter().take(32).all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        require!(
            is_text && !text.is_empty(),
            "the volume tag of element {} is no text padded with spaces: {}",
            element.address,
            hex(tag)
        );
        require!(!seen.contains(&text), "two elements have the volume tag {text}");
        seen.push(text);
    }
    Ok(())
}

fn no_tags(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let status = changer.status(kind::ALL, 0, u16::MAX, 0)?;
    let tagged = status.elements.iter().find(|element| element.tag.is_some());
    require!(tagged.is_none(), "element {:?} has a volume tag", tagged.map(|element| element.address));
    Ok(())
}

fn identifiers(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    need!(changer.range(kind::DATA_TRANSFER).count > 0, "there is no drive");
    let status = changer.status(kind::DATA_TRANSFER, 0, u16::MAX, DEVICE_IDENTIFIERS)?;
    let mut seen = Vec::new();
    for element in &status.elements {
        let (set, kind, len) =
            (byte(&element.rest, 0) & 0xf, byte(&element.rest, 1) & 0xf, byte(&element.rest, 3));
        let identifier = element.rest.get(4..4 + usize::from(len)).unwrap_or_default().to_vec();
        need!(word(&element.rest, 0) != 0, "drive {} has no identifier", element.address);
        require!(
            identifier.len() == usize::from(len) && len > 0,
            "drive {}: an identifier of {len} bytes is beyond the descriptor",
            element.address
        );
        require!((1..=3).contains(&set), "drive {}: code set {set} is reserved", element.address);
        require!(kind <= 8, "drive {}: identifier type {kind} is reserved", element.address);
        require!(!seen.contains(&identifier), "two drives have the identifier {}", hex(&identifier));
        seen.push(identifier);
    }
    Ok(())
}

fn current(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let all = changer.status(kind::ALL | VOLUME_TAGS, 0, u16::MAX, 0)?;
    let done = changer.device.get(&status_cdb(VOLUME_TAGS, 0, u16::MAX, CURRENT_DATA), 0xfff0)?;
    let done = done.optional_form("CURDATA")?.good("READ ELEMENT STATUS with CURDATA")?;
    require!(parse(&done.data)? == all, "with CURDATA other elements are reported");
    Ok(())
}

fn initialize(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let before = changer.elements()?;
    let done = changer.device.ask(&[0x07, 0, 0, 0, 0, 0])?;
    done.optional("INITIALIZE ELEMENT STATUS")?.good("INITIALIZE ELEMENT STATUS")?;
    require!(changer.elements()? == before, "elements changed");
    Ok(())
}

fn range(fixture: &mut Fixture) -> Outcome {
    let mut changer = Changer::attach(fixture)?;
    let before = changer.elements()?;
    let [a, b] = changer.range(kind::STORAGE).first.to_be_bytes();
    let done = changer.device.ask(&[0x37, 1, a, b, 0, 0, 0, 1, 0, 0])?;
    let what = "INITIALIZE ELEMENT STATUS WITH RANGE";
    done.optional(what)?.good(what)?;
    require!(changer.elements()? == before, "elements changed");
    let last = before.iter().map(|element| element.address).max().unwrap_or(0);
    need!(last < u16::MAX, "the last element has the highest address");
    let [a, b] = (last + 1).to_be_bytes();
    let done = changer.device.ask(&[0x37, 1, a, b, 0, 0, 0, 1, 0, 0])?;
    done.refused(&format!("{what}, of no element"), key::ILLEGAL_REQUEST, asc::INVALID_ELEMENT_ADDRESS)
}
