//! What a tape drive tells of itself and of its cartridge: mode pages, log pages, densities, and the memory
//! of the cartridge.

use crate::suite::{case, writing};
use crate::verdict::Outcome;
use crate::wire::word;

use super::super::Test;
use super::super::changes::Change;
use super::super::device::{DATA_MAX, Device, asc, byte, double, half, hex, key};
use super::super::fixture::Fixture;
use super::super::pages;
use super::Tape;

/// Mode pages.
mod page {
    pub(super) const DATA_COMPRESSION: u8 = 0x0f;
    pub(super) const DEVICE_CONFIGURATION: u8 = 0x10;
    pub(super) const MEDIUM_PARTITION: u8 = 0x11;
}

const TAPE_ALERT: u8 = 0x2e;

#[rustfmt::skip]
pub(super) const CASES: &[Test] = &[
    case("ssc-mode-header", "SSC-4, mode parameters", "the mode parameters have a block descriptor", mode_header),
    case("ssc-mode-pages", "SPC-4, MODE SENSE(10)", "each page is the same alone as among all", mode_pages),
    case("ssc-mode-sense", "SPC-4, MODE SENSE(6)", "both forms return the same pages", mode_senses),
    case("ssc-mode-compression", "SSC-4, data compression page", "the page says what the drive can do", compression),
    case("ssc-mode-configuration", "SSC-4, device configuration page", "the page names an existing partition", configuration),
    case("ssc-mode-partition", "SSC-4, medium partition page", "there are no more partitions than there can be", partitions),
    writing("ssc-mode-block-length", "SSC-4, MODE SELECT(6)", "a block length is kept until it is changed", block_length),
    writing("ssc-mode-block-limit", "SSC-4, MODE SELECT(6)", "a block length beyond the limit is refused", block_limit),
    writing("ssc-mode-density", "SSC-4, MODE SELECT(6)", "a density that is not supported is refused", density_refused),
    writing("ssc-mode-buffered", "SSC-4, MODE SELECT(6)", "the buffered mode is kept until it is changed", buffered),
    writing("ssc-mode-attention", "SPC-4, MODE SELECT(6)", "other hosts are told of changed parameters", mode_attention),
    case("ssc-density", "SSC-4, REPORT DENSITY SUPPORT", "the densities ascend, and that of the cartridge is one", density),
    case("ssc-density-medium", "SSC-4, REPORT DENSITY SUPPORT", "MEDIA reports some of the same densities", density_medium),
    case("ssc-operation-codes", "SPC-4, REPORT SUPPORTED OPERATION CODES", "each command is the same alone as in the list", operation_codes),
    case("ssc-log-pages", "SPC-4, LOG SENSE", "every page that is listed has the right form", log_pages),
    case("ssc-log-alert", "SSC-4, TapeAlert log page", "the page has flags 1 to 64, a byte each", tape_alert),
    case("ssc-memory-list", "SPC-4, READ ATTRIBUTE", "the identifiers ascend, and each has a value", memory_list),
    case("ssc-memory-capacity", "SPC-4, READ ATTRIBUTE", "no more capacity remains than there is", memory_capacity),
    case("ssc-memory-first", "SPC-4, READ ATTRIBUTE", "FIRST ATTRIBUTE leaves out what is before it", memory_first),
    writing("ssc-memory-write", "SPC-4, WRITE ATTRIBUTE", "an attribute of the host comes back, and can be removed", memory_write),
    writing("ssc-memory-read-only", "SPC-4, WRITE ATTRIBUTE", "an attribute of the device cannot be written", memory_read_only),
];

fn mode_header(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::attach(fixture)?;
    let mode = tape.device.mode_6(0x3f)?;
    let len = mode.block_descriptor.len();
    require!(len == 8, "expected a block descriptor of 8 bytes, came {len}");
    let buffered = mode.device_specific >> 4 & 7;
    require!(buffered <= 2, "BUFFERED MODE {buffered} is reserved");
    let without = tape.device.get(&[0x1a, 0x08, 0x3f, 0, 255, 0], 255)?.good("MODE SENSE(6) with DBD")?;
    let without = pages::mode_parameters(&without.data, false)?;
    require!(without.block_descriptor.is_empty(), "with DBD a block descriptor comes");
    require!(without.pages == mode.pages, "with DBD other pages come");
    Ok(())
}

fn mode_pages(fixture: &mut Fixture) -> Outcome {
    pages::mode_pages_agree(&mut Tape::attach(fixture)?.device)
}

fn mode_senses(fixture: &mut Fixture) -> Outcome {
    pages::mode_senses_agree(&mut Tape::attach(fixture)?.device)
}

fn compression(fixture: &mut Fixture) -> Outcome {
    let page = Tape::attach(fixture)?.device.mode_page(page::DATA_COMPRESSION)?;
    require!(page.len() == 16, "the page has {} bytes, not 16", page.len());
    let enabled = byte(&page, 2) & 0xc0;
    require!(enabled != 0x80, "DCE is set, and DCC is not");
    Ok(())
}

fn configuration(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::attach(fixture)?;
    let configuration = tape.device.mode_page(page::DEVICE_CONFIGURATION)?;
    require!(configuration.len() == 16, "the page has {} bytes, not 16", configuration.len());
    let active = byte(&configuration, 3);
    let position = byte(&tape.short_position()?, 1);
    require!(active == position, "ACTIVE PARTITION is {active}, READ POSITION tells of partition {position}");
    Ok(())
}

fn partitions(fixture: &mut Fixture) -> Outcome {
    let page = Tape::attach(fixture)?.device.mode_page(page::MEDIUM_PARTITION)?;
    require!(page.len() >= 8, "the page has {} bytes, fewer than 8", page.len());
    let (most, defined) = (byte(&page, 2), byte(&page, 3));
    require!(defined <= most, "{defined} additional partitions are defined, {most} is the most");
    Ok(())
}

fn block_length(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    tape.with_block_len(1024, |tape| {
        let len = tape.device.mode_6(0)?.block_len();
        require!(len == 1024, "MODE SELECT set block length 1024, MODE SENSE tells {len}");
        Ok(())
    })?;
    let len = tape.device.mode_6(0)?.block_len();
    require!(len == 0, "MODE SELECT set block length 0, MODE SENSE tells {len}");
    Ok(())
}

fn block_limit(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let data = tape.device.get(&[0x05, 0, 0, 0, 0, 0], 6)?.good("READ BLOCK LIMITS")?.data;
    let longest = super::super::device::triple(&data, 1);
    need!(longest != 0 && longest < 0xff_ffff, "every length that fits into the field is allowed");
    let mode = tape.device.mode_6(0)?;
    let done = tape.set_block_len(&mode, 0xff_ffff)?;
    if done.is_good() {
        tape.set_block_len(&mode, 0)?.good("MODE SELECT(6) of block length 0")?;
    }
    let what = format!("MODE SELECT(6) of block length FFFFFFh, where {longest} is the most");
    done.refused(&what, key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_PARAMETER_LIST)
}

fn density_refused(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    // A drive that does not report its densities fails another case.
    let supported = densities(&mut tape.device, 0).unwrap_or_default();
    // Codes of reels and cassettes; 00h and 7Fh have other meanings.
    let Some(other) = [0x03, 0x05, 0x0f].into_iter().find(|code| !supported.contains(code)) else {
        need!(false, "the drive supports old densities: {}", hex(&supported));
        return Ok(());
    };
    let mode = tape.device.mode_6(0)?;
    let list = [0, 0, mode.device_specific & 0x7f, 8, other, 0, 0, 0, 0, 0, 0, 0];
    tape.will_change_mode(&mode);
    let done = tape.device.put(&[0x15, 0x10, 0, 0, 12, 0], &list)?;
    if done.is_good() {
        tape.set_block_len(&mode, 0)?.good("MODE SELECT(6) of the former density")?;
    }
    let what = format!("MODE SELECT(6) of density {other:02x}");
    done.refused(&what, key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_PARAMETER_LIST)
}

/// Sets the buffered mode, in bits 6 to 4. The case is skipped if the drive has only one.
fn select_buffered(tape: &mut Tape, mode: &pages::ModeParameters, wanted: u8) -> Outcome {
    let mut list = vec![0, 0, wanted, 8];
    list.extend_from_slice(&mode.block_descriptor);
    tape.will_change_mode(mode);
    let done = tape.device.put(&[0x15, 0x10, 0, 0, 12, 0], &list)?;
    let refused = Some((key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_PARAMETER_LIST));
    need!(done.sense_code() != refused, "the drive has one buffered mode");
    done.good(&format!("MODE SELECT(6) of BUFFERED MODE {}", wanted >> 4)).map(drop)
}

fn buffered(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let mode = tape.device.mode_6(0)?;
    let before = mode.device_specific & 0x70;
    for wanted in [before ^ 0x10, before] {
        select_buffered(&mut tape, &mode, wanted)?;
        let came = tape.device.mode_6(0)?.device_specific & 0x70;
        let wanted = wanted >> 4;
        require!(came >> 4 == wanted, "BUFFERED MODE {wanted} is set, MODE SENSE tells {}", came >> 4);
    }
    Ok(())
}

fn mode_attention(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::blank(fixture)?;
    let mut other = Device::attach(fixture)?;
    let mode = tape.device.mode_6(0)?;
    let before = mode.device_specific & 0x70;
    // All hosts share the buffered mode; drives keep the block length for each I_T nexus.
    select_buffered(&mut tape, &mode, before ^ 0x10)?;
    let what = "TEST UNIT READY of another host after MODE SELECT(6)";
    let told = other.ask(&[0; 6])?.refused(what, key::UNIT_ATTENTION, asc::MODE_PARAMETERS_CHANGED);
    // The reason why the case failed is told, rather than that of the return.
    let restored = select_buffered(&mut tape, &mode, before);
    told.and(restored)
}

/// The length of a density descriptor.
const DENSITY_LEN: usize = 52;

/// Returns the primary density codes.
fn densities(device: &mut Device, flags: u8) -> Outcome<Vec<u8>> {
    let [high, low] = 4096u16.to_be_bytes();
    let done = device.get(&[0x44, flags, 0, 0, 0, 0, 0, high, low, 0], 4096)?;
    let data = done.good("REPORT DENSITY SUPPORT")?.data;
    let len = usize::from(half(&data, 0)) + 2;
    require!(len == data.len(), "AVAILABLE DENSITY SUPPORT LENGTH tells of {len} bytes, {} came", data.len());
    let descriptors = data.get(4..).unwrap_or_default();
    require!(
        descriptors.len().is_multiple_of(DENSITY_LEN),
        "{} bytes are no number of descriptors of {DENSITY_LEN} bytes",
        descriptors.len()
    );
    Ok(descriptors.chunks(DENSITY_LEN).map(|descriptor| byte(descriptor, 0)).collect())
}

fn density(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::attach(fixture)?;
    let codes = densities(&mut tape.device, 0)?;
    require!(codes.is_sorted(), "the primary density codes do not ascend: {}", hex(&codes));
    let mode = tape.device.mode_6(0)?;
    let current = byte(&mode.block_descriptor, 0);
    require!(
        codes.contains(&current),
        "MODE SENSE tells density {current:02x}, which is none of {}",
        hex(&codes)
    );
    Ok(())
}

fn density_medium(fixture: &mut Fixture) -> Outcome {
    let mut tape = Tape::attach(fixture)?;
    let all = densities(&mut tape.device, 0)?;
    let of_medium = densities(&mut tape.device, 1)?;
    let foreign = of_medium.iter().find(|code| !all.contains(code));
    require!(foreign.is_none(), "density {foreign:02x?} of the cartridge is none of {}", hex(&all));
    require!(!of_medium.is_empty(), "MEDIA reports no density for the cartridge in the drive");
    Ok(())
}

fn operation_codes(fixture: &mut Fixture) -> Outcome {
    pages::operation_codes_agree(&mut Tape::attach(fixture)?.device)
}

fn log_pages(fixture: &mut Fixture) -> Outcome {
    pages::log_pages_are_well_formed(&mut Tape::attach(fixture)?.device)
}

fn tape_alert(fixture: &mut Fixture) -> Outcome {
    let mut device = Tape::attach(fixture)?.device;
    need!(device.log_codes()?.contains(&TAPE_ALERT), "the drive does not have log page 2E");
    let page = pages::log_page(&device.log_sense(TAPE_ALERT)?, TAPE_ALERT)?;
    let numbers: Vec<u16> = page.parameters.iter().map(|(number, _)| *number).collect();
    require!(numbers.iter().copied().eq(1..=64), "expected parameters 1 to 64, came {numbers:?}");
    let long = page.parameters.iter().find(|(_, value)| value.len() != 1);
    require!(long.is_none(), "a flag is not one byte long: {long:?}");
    Ok(())
}

/// An attribute: its identifier, the byte with READ ONLY and the format, and its value.
struct Attribute {
    id: u16,
    flags: u8,
    value: Vec<u8>,
}

/// READ ATTRIBUTE with this service action, from this attribute on; returns what follows the length.
fn read_attribute(device: &mut Device, action: u8, first: u16) -> Outcome<Vec<u8>> {
    let [high, low] = first.to_be_bytes();
    let [a, b] = DATA_MAX.to_be_bytes();
    let cdb = [0x8c, action, 0, 0, 0, 0, 0, 0, high, low, 0, 0, a, b, 0, 0];
    let data =
        device.get(&cdb, u32::from(DATA_MAX))?.optional("READ ATTRIBUTE")?.good("READ ATTRIBUTE")?.data;
    let len = usize::try_from(word(&data, 0)).unwrap_or(usize::MAX);
    require!(
        data.len().checked_sub(4) == Some(len),
        "AVAILABLE DATA tells of {len} bytes, {} came",
        data.len().saturating_sub(4)
    );
    Ok(data.get(4..).unwrap_or_default().to_vec())
}

/// Returns the attributes from this one on.
fn attributes(device: &mut Device, first: u16) -> Outcome<Vec<Attribute>> {
    let data = read_attribute(device, 0, first)?;
    let mut rest = data.as_slice();
    let mut attributes = Vec::new();
    while !rest.is_empty() {
        let id = half(rest, 0);
        let Some((attribute, after)) = rest.split_at_checked(5 + usize::from(half(rest, 3))) else {
            fail!("attribute {id:04x} is beyond the end of the data")
        };
        let value = attribute.get(5..).unwrap_or_default().to_vec();
        attributes.push(Attribute { id, flags: byte(attribute, 2), value });
        rest = after;
    }
    Ok(attributes)
}

/// Returns the identifiers of the attributes that there are.
fn identifiers(device: &mut Device) -> Outcome<Vec<u16>> {
    let list = read_attribute(device, 1, 0)?;
    let (ids, rest) = list.as_chunks::<2>();
    require!(rest.is_empty(), "{} bytes are no number of identifiers", list.len());
    Ok(ids.iter().map(|id| u16::from_be_bytes(*id)).collect())
}

fn memory_list(fixture: &mut Fixture) -> Outcome {
    let mut device = Tape::attach(fixture)?.device;
    let ids = identifiers(&mut device)?;
    require!(ids.is_sorted(), "the identifiers do not ascend: {ids:04x?}");
    let Some(first) = ids.first() else { fail!("the list has no attribute") };
    let values = attributes(&mut device, *first)?;
    let of_values: Vec<u16> = values.iter().map(|attribute| attribute.id).collect();
    require!(ids == of_values, "the list has {ids:04x?}, the values are of {of_values:04x?}");
    let odd = values.iter().find(|attribute| attribute.flags & 3 == 3);
    require!(odd.is_none(), "attribute {:04x} has a reserved format", odd.map_or(0, |odd| odd.id));
    Ok(())
}

fn memory_capacity(fixture: &mut Fixture) -> Outcome {
    let values = attributes(&mut Tape::attach(fixture)?.device, 0)?;
    let value = |id: u16| values.iter().find(|attribute| attribute.id == id);
    let (Some(left), Some(all)) = (value(0), value(1)) else {
        fail!("attributes 0000 and 0001, the remaining and the maximum capacity, are not both there")
    };
    let lens = (left.value.len(), all.value.len());
    require!(lens == (8, 8), "the capacities have {lens:?} bytes, not 8");
    let (left, all) = (double(&left.value, 0), double(&all.value, 0));
    require!(left <= all, "{left} MiB of {all} remain");
    Ok(())
}

fn memory_first(fixture: &mut Fixture) -> Outcome {
    let mut device = Tape::attach(fixture)?.device;
    let ids = identifiers(&mut device)?;
    let Some(middle) = ids.get(ids.len() / 2) else { fail!("the list has no attribute") };
    let came: Vec<u16> = attributes(&mut device, *middle)?.iter().map(|attribute| attribute.id).collect();
    let wanted: Vec<u16> = ids.iter().copied().filter(|id| id >= middle).collect();
    require!(came == wanted, "expected {wanted:04x?}, came {came:04x?}");
    Ok(())
}

/// APPLICATION NAME: 32 characters of the host.
const APPLICATION: u16 = 0x0801;

/// Returns the parameter list of WRITE ATTRIBUTE with one attribute.
fn attribute_list(id: u16, format: u8, value: &[u8]) -> Vec<u8> {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let attribute = [&id.to_be_bytes()[..], &[format], &len.to_be_bytes(), value].concat();
    let all = u32::try_from(attribute.len()).unwrap_or(0);
    [&all.to_be_bytes()[..], &attribute].concat()
}

fn write_attribute(
    device: &mut Device,
    id: u16,
    format: u8,
    value: &[u8],
) -> Outcome<super::super::task::Done> {
    let list = attribute_list(id, format, value);
    let all = u8::try_from(list.len()).unwrap_or(u8::MAX);
    device.put(&[0x8d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, all, 0, 0], &list)
}

fn memory_write(fixture: &mut Fixture) -> Outcome {
    let mut device = Tape::blank(fixture)?.device;
    let before = if identifiers(&mut device)?.contains(&APPLICATION) {
        attributes(&mut device, APPLICATION)?.into_iter().next().map(|attribute| attribute.value)
    } else {
        None
    };
    let value = *b"targe conform                   ";
    let former = attribute_list(APPLICATION, 1, &before.clone().unwrap_or_default());
    device.will_change(Change::Attribute(former));
    let done = write_attribute(&mut device, APPLICATION, 1, &value)?;
    done.optional("WRITE ATTRIBUTE")?.good("WRITE ATTRIBUTE of 0801")?;
    let came = attributes(&mut device, APPLICATION)?.into_iter().next().map(|attribute| attribute.value);
    let what = if before.is_some() { "of the former value" } else { "of no value" };
    write_attribute(&mut device, APPLICATION, 1, &before.clone().unwrap_or_default())?
        .good(&format!("WRITE ATTRIBUTE {what}"))?;
    require!(came.as_deref() == Some(&value), "the value that was written does not come back: {came:02x?}");
    let is_there = identifiers(&mut device)?.contains(&APPLICATION);
    require!(is_there == before.is_some(), "an attribute of length 0 is not removed");
    Ok(())
}

fn memory_read_only(fixture: &mut Fixture) -> Outcome {
    let mut device = Tape::blank(fixture)?.device;
    let what = "WRITE ATTRIBUTE of the maximum capacity";
    let before = attributes(&mut device, 0x0001).ok().and_then(|values| values.into_iter().next());
    let done = write_attribute(&mut device, 0x0001, 0, &[0; 8])?.optional("WRITE ATTRIBUTE")?;
    if let Some(before) = before.filter(|_| done.is_good()) {
        device.will_change(Change::Attribute(attribute_list(before.id, 0, &before.value)));
    }
    done.refused(what, key::ILLEGAL_REQUEST, asc::INVALID_FIELD_IN_PARAMETER_LIST)
}
