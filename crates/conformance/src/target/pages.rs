//! Mode pages and log pages of any type of unit: their form, and the cases on it that all types share.

use crate::verdict::Outcome;
use crate::wire::word;

use super::device::{DATA_MAX, Device, byte, half, hex};

/// PAGE CODE for all pages.
const ALL_PAGES: u8 = 0x3f;

/// Mode parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModeParameters {
    pub(super) medium_type: u8,
    pub(super) device_specific: u8,
    pub(super) block_descriptor: Vec<u8>,
    pub(super) pages: Vec<ModePage>,
}

/// A mode page with its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ModePage {
    pub(super) code: u8,
    pub(super) subpage: u8,
    pub(super) bytes: Vec<u8>,
}

impl ModeParameters {
    /// Returns the page with this code and subpage 0.
    pub(super) fn page(&self, code: u8) -> Option<&[u8]> {
        self.pages
            .iter()
            .find(|page| (page.code, page.subpage) == (code, 0))
            .map(|page| page.bytes.as_slice())
    }

    /// Returns BLOCK LENGTH of the block descriptor.
    pub(super) fn block_len(&self) -> u32 {
        super::device::triple(&self.block_descriptor, 5)
    }
}

/// Parses the data of MODE SENSE(6), or of MODE SENSE(10) if `is_long`.
///
/// # Errors
/// Lengths that contradict each other.
pub(super) fn mode_parameters(data: &[u8], is_long: bool) -> Outcome<ModeParameters> {
    let header = if is_long { 8 } else { 4 };
    require!(data.len() >= header, "{} bytes are no mode parameter header", data.len());
    let (told, descriptor_len, medium_type, device_specific) = if is_long {
        (usize::from(half(data, 0)) + 2, usize::from(half(data, 6)), byte(data, 2), byte(data, 3))
    } else {
        (usize::from(byte(data, 0)) + 1, usize::from(byte(data, 3)), byte(data, 1), byte(data, 2))
    };
    require!(told == data.len(), "MODE DATA LENGTH tells of {told} bytes, {} came", data.len());
    let Some((block_descriptor, mut rest)) =
        data.get(header..).and_then(|rest| rest.split_at_checked(descriptor_len))
    else {
        fail!("BLOCK DESCRIPTOR LENGTH {descriptor_len} is beyond the end of {} bytes", data.len())
    };
    let mut pages = Vec::new();
    while !rest.is_empty() {
        let (head, subpage, len) = if byte(rest, 0) & 0x40 == 0 {
            (2, 0, usize::from(byte(rest, 1)))
        } else {
            (4, byte(rest, 1), usize::from(half(rest, 2)))
        };
        let code = byte(rest, 0) & 0x3f;
        let Some((page, after)) = rest.split_at_checked(head + len) else {
            fail!("mode page {code:02x}/{subpage:02x} of {len} bytes is beyond the end of the data")
        };
        pages.push(ModePage { code, subpage, bytes: page.to_vec() });
        rest = after;
    }
    Ok(ModeParameters { medium_type, device_specific, block_descriptor: block_descriptor.to_vec(), pages })
}

impl Device {
    /// Returns the mode parameters by MODE SENSE(6); PC in the two high bits of `page`. Skips the case if the
    /// unit does not have the page.
    pub(super) fn mode_6(&mut self, page: u8) -> Outcome<ModeParameters> {
        let done = self.get(&[0x1a, 0, page, 0, 255, 0], 255)?;
        let done = done.optional_form(&format!("mode page {:02x}", page & 0x3f))?.good("MODE SENSE(6)")?;
        mode_parameters(&done.data, false)
    }

    /// The same by MODE SENSE(10).
    pub(super) fn mode_10(&mut self, page: u8) -> Outcome<ModeParameters> {
        let done = self.get(&[0x5a, 0, page, 0, 0, 0, 0, 4, 0, 0], 1024)?;
        let done = done
            .optional_form(&format!("MODE SENSE(10) of page {:02x}", page & 0x3f))?
            .good("MODE SENSE(10)")?;
        mode_parameters(&done.data, true)
    }

    /// Returns one mode page. Skips the case if the unit does not have it.
    pub(super) fn mode_page(&mut self, code: u8) -> Outcome<Vec<u8>> {
        let mode = self.mode_6(code)?;
        match mode.page(code) {
            Some(page) => Ok(page.to_vec()),
            None => fail!("MODE SENSE(6) of page {code:02x} returns no such page"),
        }
    }
}

/// Judges that each mode page is the same alone as among all, that pages ascend, and that the changeable mask
/// and the defaults have the form of the current values.
pub(super) fn mode_pages_agree(device: &mut Device) -> Outcome {
    let all = device.mode_10(ALL_PAGES)?;
    require!(!all.pages.is_empty(), "MODE SENSE of all pages returns none");
    let order: Vec<u8> = all.pages.iter().map(|page| page.code).collect();
    // Page 00h, which is vendor specific, comes last.
    let numbered: Vec<u8> = order.iter().copied().filter(|code| *code != 0).collect();
    require!(numbered.is_sorted(), "the pages do not ascend: {}", hex(&order));
    for page in &all.pages {
        let (code, subpage) = (page.code, page.subpage);
        require!(
            subpage == 0,
            "page {code:02x}/{subpage:02x} is among all pages, and subpages were not asked for"
        );
        let alone = device.mode_10(code)?;
        require!(
            alone.pages.first() == Some(page),
            "page {code:02x} among all pages is {}, alone it is {}",
            hex(&page.bytes),
            alone.pages.first().map(|page| hex(&page.bytes)).unwrap_or_default()
        );
        for control in [0x40, 0x80] {
            let other = device.mode_10(control | code)?;
            let len = other.page(code).map(<[u8]>::len);
            require!(
                len == Some(page.bytes.len()),
                "page {code:02x} has {} bytes, and with PC {} {len:?}",
                page.bytes.len(),
                control >> 6
            );
        }
    }
    Ok(())
}

/// Judges that MODE SENSE(6) and MODE SENSE(10) return the same pages and the same block descriptor.
pub(super) fn mode_senses_agree(device: &mut Device) -> Outcome {
    let long = device.mode_10(ALL_PAGES)?;
    let done = device.get(&[0x1a, 0, ALL_PAGES, 0, 255, 0], 255)?.optional("MODE SENSE(6)")?;
    let told = usize::from(byte(&done.good("MODE SENSE(6)")?.data, 0)) + 1;
    need!(told <= 255, "all pages together are too long for MODE SENSE(6)");
    let short = device.mode_6(ALL_PAGES)?;
    require!(short == long, "MODE SENSE(6) returns other mode parameters than MODE SENSE(10)");
    Ok(())
}

/// A log page: its code, and the parameters with their control bytes.
pub(super) struct LogPage {
    pub(super) parameters: Vec<(u16, Vec<u8>)>,
}

/// Parses the data of LOG SENSE.
///
/// # Errors
/// Another page than `code`, or lengths that contradict each other.
pub(super) fn log_page(data: &[u8], code: u8) -> Outcome<LogPage> {
    require!(byte(data, 0) & 0x3f == code, "log page {code:02x} was asked for, came {:02x}", byte(data, 0));
    let len = usize::from(half(data, 2));
    require!(
        data.len() == len + 4,
        "log page {code:02x} tells of {len} bytes, {} came",
        data.len().saturating_sub(4)
    );
    let mut rest = data.get(4..).unwrap_or_default();
    let mut parameters = Vec::new();
    while !rest.is_empty() {
        let len = usize::from(byte(rest, 3));
        let Some((parameter, after)) = rest.split_at_checked(4 + len) else {
            fail!("parameter {:04x} of log page {code:02x} is beyond its end", half(rest, 0))
        };
        parameters.push((half(parameter, 0), parameter.get(4..).unwrap_or_default().to_vec()));
        rest = after;
    }
    Ok(LogPage { parameters })
}

impl Device {
    /// Returns the data of LOG SENSE for the cumulative values of a page.
    pub(super) fn log_sense(&mut self, code: u8) -> Outcome<Vec<u8>> {
        let [high, low] = DATA_MAX.to_be_bytes();
        let done = self.get(&[0x4d, 0, 0x40 | code, 0, 0, 0, 0, high, low, 0], u32::from(DATA_MAX))?;
        Ok(done.optional("LOG SENSE")?.good(&format!("LOG SENSE of page {code:02x}"))?.data)
    }

    /// Returns the codes of the log pages that the unit has.
    pub(super) fn log_codes(&mut self) -> Outcome<Vec<u8>> {
        let data = self.log_sense(0)?;
        let len = usize::from(half(&data, 2));
        let codes = data.get(4..).unwrap_or_default().to_vec();
        require!(codes.len() == len, "log page 00 tells of {len} bytes, {} came", codes.len());
        Ok(codes)
    }
}

/// Judges that log page 00h lists itself and ascends, and that every page in it can be read and has the right
/// form.
pub(super) fn log_pages_are_well_formed(device: &mut Device) -> Outcome {
    let codes = device.log_codes()?;
    require!(codes.is_sorted(), "the log pages do not ascend: {}", hex(&codes));
    require!(codes.first() == Some(&0), "log page 00 does not list itself: {}", hex(&codes));
    for code in codes.into_iter().filter(|code| *code != 0) {
        let page = log_page(&device.log_sense(code)?, code)?;
        let ascends = page.parameters.is_sorted_by_key(|(number, _)| *number);
        require!(ascends, "the parameters of log page {code:02x} do not ascend");
    }
    Ok(())
}

/// REPORT SUPPORTED OPERATION CODES with this reporting option.
fn operation_codes(device: &mut Device, option: u8, opcode: u8, action: u16) -> Outcome<Vec<u8>> {
    let ([a, b], [c, d]) = (action.to_be_bytes(), DATA_MAX.to_be_bytes());
    let cdb = [0xa3, 0x0c, option, opcode, a, b, 0, 0, c, d, 0, 0];
    let what = "REPORT SUPPORTED OPERATION CODES";
    Ok(device.get(&cdb, u32::from(DATA_MAX))?.optional_form(what)?.good(what)?.data)
}

/// Judges that every command of the list is supported when it is asked for alone, with a CDB of the same
/// length that begins with its operation code.
pub(super) fn operation_codes_agree(device: &mut Device) -> Outcome {
    /// Of reporting options: a command without service actions, and one with.
    const PLAIN: u8 = 1;
    const WITH_ACTION: u8 = 2;
    let list = operation_codes(device, 0, 0, 0)?;
    let told = usize::try_from(word(&list, 0)).unwrap_or(usize::MAX);
    let (commands, rest) = list.get(4..).unwrap_or_default().as_chunks::<8>();
    require!(
        list.len().checked_sub(4) == Some(told) && rest.is_empty(),
        "COMMAND DATA LENGTH tells of {told} bytes, {} came",
        list.len().saturating_sub(4)
    );
    require!(!commands.is_empty(), "the list is empty");
    for command in commands {
        let (opcode, action, len) = (byte(command, 0), half(command, 2), usize::from(half(command, 6)));
        let option = if byte(command, 5) & 1 == 0 { PLAIN } else { WITH_ACTION };
        let alone = operation_codes(device, option, opcode, action)?;
        let support = byte(&alone, 1) & 7;
        require!(support == 3, "{opcode:02x}/{action:02x} is in the list; alone, SUPPORT is {support}");
        let usage = alone.get(4..).unwrap_or_default();
        require!(
            usage.len() == len && usize::from(half(&alone, 2)) == len && usage.first() == Some(&opcode),
            "{opcode:02x}/{action:02x} has {len} bytes in the list; alone, its usage map is {}",
            hex(usage)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Stop;

    fn fails<T>(outcome: Outcome<T>, part: &str) {
        match outcome {
            Err(Stop::Fail(why)) => assert!(why.contains(part), "{why}"),
            _ => panic!("expected a failure: {part}"),
        }
    }

    #[test]
    fn mode_parameters_are_read_in_both_forms() {
        let body = [0, 0, 0, 0, 0, 0, 2, 0, 0x0a, 2, 7, 8, 0x4a, 1, 0, 1, 9];
        let short = [&[20, 0x98, 0x90, 8][..], &body].concat();
        let long = [&[0, 23, 0x98, 0x90, 0, 0, 0, 8][..], &body].concat();
        let mode = mode_parameters(&short, false).unwrap();
        assert_eq!(mode, mode_parameters(&long, true).unwrap());
        assert_eq!((mode.medium_type, mode.device_specific, mode.block_len()), (0x98, 0x90, 512));
        assert_eq!(mode.page(0x0a), Some(&[0x0a, 2, 7, 8][..]));
        assert_eq!((mode.pages[1].subpage, mode.pages[1].bytes.len()), (1, 5));
    }

    #[test]
    fn mode_parameters_that_contradict_themselves_fail() {
        fails(mode_parameters(&[4, 0, 0, 0], false), "MODE DATA LENGTH tells of 5 bytes, 4 came");
        fails(mode_parameters(&[3, 0, 0, 8], false), "BLOCK DESCRIPTOR LENGTH 8");
        fails(mode_parameters(&[6, 0, 0, 0, 0x0a, 2, 0], false), "mode page 0a/00 of 2 bytes");
    }

    #[test]
    fn log_pages_that_contradict_themselves_fail() {
        let page = [0x2e, 0, 0, 5, 0, 1, 0x40, 1, 9];
        assert_eq!(log_page(&page, 0x2e).unwrap().parameters, [(1, vec![9])]);
        fails(log_page(&page, 0x0c), "log page 0c was asked for, came 2e");
        fails(log_page(&page[..8], 0x2e), "tells of 5 bytes, 4 came");
        fails(log_page(&[0x2e, 0, 0, 4, 0, 1, 0x40, 1], 0x2e), "parameter 0001");
    }
}
