//! Log pages (SPC-5 §7.3): the counters and test results of a unit.
//!
//! Only known values are reported: the unit has no thermometer and no medium scan, and a medium reports no
//! corrected errors.

use alloc::vec;
use alloc::vec::Vec;

use scsi::log::{Page, Parameter, control, page};
use scsi::sense::Sense;

use crate::self_test::SelfTestResults;

/// The parameters of a LOG SENSE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogRequest {
    /// PC: which values of counters.
    pub(crate) page_control: u8,
    /// PAGE CODE.
    pub(crate) code: u8,
    /// SUBPAGE CODE.
    pub(crate) subpage: u8,
    /// PARAMETER POINTER: parameters with lower codes are left out.
    pub(crate) pointer: u16,
}

/// The values that the log pages report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogSource<'a> {
    /// How often and how much was read and written since the counters were last reset.
    pub(crate) statistics: Statistics,
    /// The results of the self-tests.
    pub(crate) self_tests: &'a SelfTestResults,
    /// The storage of a thin unit.
    pub(crate) storage: Option<Storage>,
    /// For how many minutes the unit has existed.
    pub(crate) powered_on_minutes: u32,
    /// The pages that every unit of the device type has, ascending.
    pub(crate) pages: &'static [u8],
    /// The parameters of the requested page, if the device type defines them.
    pub(crate) of_type: &'a Option<Vec<Parameter>>,
}

/// How much storage a thin unit uses and could use, in threshold sets (SBC-4 §6.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Storage {
    /// Available LBA mapping resources.
    pub(crate) available: u32,
    /// Used LBA mapping resources.
    pub(crate) used: u32,
    /// Whether the available resources are dedicated to this unit.
    pub(crate) dedicated: bool,
}

/// How often and how much was read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// Commands that read blocks.
    pub(crate) read_commands: u64,
    /// Commands that wrote blocks.
    pub(crate) write_commands: u64,
    /// Blocks received from initiators.
    pub(crate) blocks_received: u64,
    /// Blocks sent to initiators.
    pub(crate) blocks_transmitted: u64,
    /// Bytes read by commands.
    pub(crate) read_bytes: u64,
    /// Bytes written by commands.
    pub(crate) written_bytes: u64,
    /// Errors of the medium.
    pub(crate) errors: ErrorCounts,
    /// For how many milliseconds the unit was idle.
    pub(crate) idle_ms: u64,
}

/// Errors of the medium, none of which was corrected, and the bytes verified, which no other counter holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ErrorCounts {
    /// Errors of commands that read.
    pub(crate) reading: u64,
    /// Errors of commands that write.
    pub(crate) writing: u64,
    /// Errors of commands that verify.
    pub(crate) verifying: u64,
    /// Bytes processed by commands that verify.
    pub(crate) verified_bytes: u64,
}

/// PC. It has a meaning for counters only (SPC-5 §7.3): lists, and the list of pages, have one value. The
/// field is ignored for them, because tapeinfo and other programs that read TapeAlert flags leave it zero.
mod page_control {
    pub(super) const THRESHOLD: u8 = 0b00;
    #[cfg(test)]
    pub(super) const CUMULATIVE: u8 = 0b01;
    pub(super) const DEFAULT_THRESHOLD: u8 = 0b10;
    pub(super) const DEFAULT_CUMULATIVE: u8 = 0b11;
}

/// Returns a parameter with the values that PC selects. Counters have no threshold that anything compares
/// them with: it is the largest number, as that of LTO drives.
fn with_values(parameter: Parameter, page_control: u8) -> Parameter {
    let filler = match page_control {
        page_control::THRESHOLD | page_control::DEFAULT_THRESHOLD => 0xff,
        page_control::DEFAULT_CUMULATIVE => 0,
        _ => return parameter,
    };
    if parameter.control & control::LIST != 0 {
        return parameter;
    }
    Parameter { value: vec![filler; parameter.value.len()], ..parameter }
}

/// Returns the page codes of a unit, ascending.
fn pages(facts: LogSource<'_>) -> Vec<u8> {
    let storage = facts.storage.map(|_| page::LOGICAL_BLOCK_PROVISIONING);
    let all = [page::SUPPORTED_PAGES].into_iter().chain(facts.pages.iter().copied()).chain(storage);
    let mut pages: Vec<u8> = all.collect();
    pages.sort_unstable();
    pages
}

/// Answers LOG SENSE.
///
/// # Errors
/// INVALID FIELD IN CDB for a page or a parameter that is not supported.
pub(crate) fn sense(request: LogRequest, facts: LogSource<'_>) -> Result<Vec<u8>, Sense> {
    let pages = pages(facts);
    if !pages.contains(&request.code) {
        return Err(Sense::invalid_cdb(2, Some(5)));
    }
    let lists_subpages = request.subpage == page::SUPPORTED_SUBPAGES && request.code == page::SUPPORTED_PAGES;
    if request.subpage != 0 && !lists_subpages {
        return Err(Sense::invalid_cdb(3, None));
    }
    let parameters = match request.code {
        _ if facts.of_type.is_some() => facts.of_type.clone().unwrap_or_default(),
        page::LOGICAL_BLOCK_PROVISIONING => facts.storage.map_or_else(Vec::new, Storage::parameters),
        page::SELF_TEST_RESULTS => facts.self_tests.parameters(),
        page::WRITE_ERROR_COUNTERS => {
            error_counters(facts.statistics.written_bytes, facts.statistics.errors.writing)
        }
        page::READ_ERROR_COUNTERS => {
            error_counters(facts.statistics.read_bytes, facts.statistics.errors.reading)
        }
        page::VERIFY_ERROR_COUNTERS => {
            error_counters(facts.statistics.errors.verified_bytes, facts.statistics.errors.verifying)
        }
        page::BACKGROUND_SCAN => Vec::from([background_scan(facts.powered_on_minutes)]),
        page::GENERAL_STATISTICS => facts.statistics.parameters(),
        page::INFORMATIONAL_EXCEPTIONS => Vec::from([NOTHING_WRONG.parameter()]),
        _ => return Ok(supported(&pages, lists_subpages)),
    };
    if parameters.iter().all(|parameter| parameter.code < request.pointer) {
        return Err(Sense::invalid_cdb(5, None));
    }
    let mut body = Vec::new();
    for parameter in parameters.into_iter().filter(|parameter| parameter.code >= request.pointer) {
        with_values(parameter, request.page_control).encode(&mut body);
    }
    Ok(Page { code: request.code, subpage: None, body: &body }.encode())
}

fn supported(pages: &[u8], with_subpages: bool) -> Vec<u8> {
    if with_subpages {
        let mut body = Vec::from([page::SUPPORTED_PAGES, 0, page::SUPPORTED_PAGES, page::SUPPORTED_SUBPAGES]);
        body.extend(pages.iter().skip(1).flat_map(|code| [*code, 0]));
        Page { code: page::SUPPORTED_PAGES, subpage: Some(page::SUPPORTED_SUBPAGES), body: &body }.encode()
    } else {
        Page { code: page::SUPPORTED_PAGES, subpage: None, body: pages }.encode()
    }
}

/// Returns the parameters of an error counter page (SPC-5 §7.3): errors corrected without and with delay,
/// repetitions, errors corrected, runs of the correction algorithm, bytes processed, errors that were not
/// corrected.
fn error_counters(bytes: u64, uncorrected: u64) -> Vec<Parameter> {
    let counts = [0, 0, 0, 0, 0, bytes, uncorrected];
    let parameter = |(code, count): (u16, u64)| Parameter {
        code,
        control: control::COUNTER,
        value: Vec::from(count.to_be_bytes()),
    };
    (0..).zip(counts).map(parameter).collect()
}

/// Returns parameter 0000h of the background scan page (SBC-4 §6.4.2): minutes of power on, and that no scan
/// is or was active.
fn background_scan(powered_on_minutes: u32) -> Parameter {
    let value = [&powered_on_minutes.to_be_bytes()[..], &[0; 8]].concat();
    Parameter { code: 0, control: control::BINARY_LIST, value }
}

impl Storage {
    fn parameters(self) -> Vec<Parameter> {
        // SCOPE: 1 dedicated to the unit, 2 not dedicated to any.
        let parameter = |code, count: u32, scope: u8| {
            let value = [&count.to_be_bytes()[..], &[scope, 0, 0, 0]].concat();
            Parameter { code, control: control::BINARY_LIST, value }
        };
        let available = if self.dedicated { 1 } else { 2 };
        Vec::from([parameter(1, self.available, available), parameter(2, self.used, 1)])
    }
}

impl Statistics {
    /// Returns the parameters of the general statistics page (SPC-5 §7.3): statistics, of which processing
    /// intervals are not measured; idle time, counted in time intervals; and the length of these, 1 × 10⁻³ s.
    fn parameters(self) -> Vec<Parameter> {
        let counts = [
            self.read_commands,
            self.write_commands,
            self.blocks_received,
            self.blocks_transmitted,
            0,
            0,
            0,
            0,
        ];
        let statistics = counts.iter().flat_map(|count| count.to_be_bytes()).collect();
        let idle = Vec::from(self.idle_ms.to_be_bytes());
        let interval = Vec::from([0, 0, 0, 3, 0, 0, 0, 1]);
        let parameter = |code, value| Parameter { code, control: control::BINARY_LIST, value };
        Vec::from([parameter(1, statistics), parameter(2, idle), parameter(3, interval)])
    }

    /// Returns the counts since `earlier`.
    pub(crate) const fn since(self, earlier: Self) -> Self {
        Self {
            read_commands: self.read_commands.saturating_sub(earlier.read_commands),
            write_commands: self.write_commands.saturating_sub(earlier.write_commands),
            blocks_received: self.blocks_received.saturating_sub(earlier.blocks_received),
            blocks_transmitted: self.blocks_transmitted.saturating_sub(earlier.blocks_transmitted),
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            errors: self.errors.since(earlier.errors),
            idle_ms: self.idle_ms.saturating_sub(earlier.idle_ms),
        }
    }
}

impl ErrorCounts {
    const fn since(self, earlier: Self) -> Self {
        Self {
            reading: self.reading.saturating_sub(earlier.reading),
            writing: self.writing.saturating_sub(earlier.writing),
            verifying: self.verifying.saturating_sub(earlier.verifying),
            verified_bytes: self.verified_bytes.saturating_sub(earlier.verified_bytes),
        }
    }
}

/// The parameter of the informational exceptions page: an additional sense code and qualifier, and two
/// temperatures.
struct Exceptions([u8; 4]);

/// No exception; the present and the highest temperature are unknown.
const NOTHING_WRONG: Exceptions = Exceptions([0, 0, 0xff, 0xff]);

impl Exceptions {
    fn parameter(&self) -> Parameter {
        Parameter { code: 0, control: control::BINARY_LIST, value: Vec::from(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::self_test::{SelfTestCode, SelfTestResult};

    const STATISTICS: Statistics = Statistics {
        read_commands: 1,
        write_commands: 2,
        blocks_received: 3,
        blocks_transmitted: 0x0405,
        read_bytes: 0x0607,
        written_bytes: 0x0809,
        errors: ErrorCounts { reading: 5, writing: 6, verifying: 7, verified_bytes: 0x0a0b },
        idle_ms: 0x0c0d,
    };

    fn facts(self_tests: &SelfTestResults, storage: Option<Storage>) -> LogSource<'_> {
        LogSource {
            statistics: STATISTICS,
            self_tests,
            storage,
            powered_on_minutes: 0x0102_0304,
            pages: crate::sbc::COMMAND_SET.log_pages,
            of_type: &None,
        }
    }

    fn ask(code: u8, subpage: u8, pointer: u16) -> Result<Vec<u8>, Sense> {
        ask_for(page_control::CUMULATIVE, code, subpage, pointer)
    }

    fn ask_for(page_control: u8, code: u8, subpage: u8, pointer: u16) -> Result<Vec<u8>, Sense> {
        let mut self_tests = SelfTestResults::default();
        self_tests.record(SelfTestCode::BackgroundShort, SelfTestResult::Passed, 7);
        let request = LogRequest { page_control, code, subpage, pointer };
        let storage = Some(Storage { available: 0x0102_0304, used: 5, dedicated: false });
        sense(request, facts(&self_tests, storage))
    }

    #[test]
    fn the_pages_that_are_listed_exist() {
        let list = ask(0, 0, 0).unwrap();
        assert_eq!(list, [0x80, 0, 0, 9, 0x00, 0x02, 0x03, 0x05, 0x0c, 0x10, 0x15, 0x19, 0x2f]);
        for code in 0..0x40 {
            assert_eq!(ask(code, 0, 0).is_ok(), list[4..].contains(&code), "{code:02x}");
        }
        let with_subpages = ask(0, 0xff, 0).unwrap();
        assert_eq!(with_subpages[..8], [0xc0, 0xff, 0, 20, 0, 0, 0, 0xff]);
        assert_eq!(with_subpages[8..16], [2, 0, 3, 0, 5, 0, 0x0c, 0]);
        assert_eq!(with_subpages[16..], [0x10, 0, 0x15, 0, 0x19, 0, 0x2f, 0]);
    }

    #[test]
    fn what_there_is_none_of_is_pointed_at() {
        assert_eq!(ask(0x0d, 0, 0), Err(Sense::invalid_cdb(2, Some(5))));
        assert_eq!(ask(0x2f, 1, 0), Err(Sense::invalid_cdb(3, None)));
        assert_eq!(ask(0x2f, 0xff, 0), Err(Sense::invalid_cdb(3, None)));
        assert_eq!(ask(0x2f, 0, 1), Err(Sense::invalid_cdb(5, None)));
        let self_tests = SelfTestResults::default();
        let facts = facts(&self_tests, None);
        let request =
            LogRequest { page_control: page_control::CUMULATIVE, code: 0x0c, subpage: 0, pointer: 0 };
        assert_eq!(sense(request, facts), Err(Sense::invalid_cdb(2, Some(5))));
    }

    #[test]
    fn the_page_control_selects_values_of_counters_only() {
        for page_control in 0..4 {
            for (code, subpage) in
                [(0x00, 0), (0x00, 0xff), (0x0c, 0), (0x10, 0), (0x15, 0), (0x19, 0), (0x2f, 0)]
            {
                assert_eq!(ask_for(page_control, code, subpage, 0), ask(code, subpage, 0), "{code:02x}");
            }
            for code in [0x02, 0x03, 0x05] {
                let (page, cumulative) =
                    (ask_for(page_control, code, 0, 0).unwrap(), ask(code, 0, 0).unwrap());
                assert_eq!(page[..8], cumulative[..8]);
                for (parameter, cumulative) in page[4..].chunks(12).zip(cumulative[4..].chunks(12)) {
                    let expected = match page_control {
                        page_control::CUMULATIVE => &cumulative[4..],
                        page_control::DEFAULT_CUMULATIVE => &[0; 8],
                        _ => &[0xff; 8],
                    };
                    assert_eq!((&parameter[..4], &parameter[4..]), (&cumulative[..4], expected));
                }
            }
        }
    }

    #[test]
    fn no_exception_is_told_as_such() {
        assert_eq!(ask(0x2f, 0, 0).unwrap(), [0xaf, 0, 0, 8, 0, 0, 0x23, 4, 0, 0, 0xff, 0xff]);
    }

    #[test]
    fn storage_is_two_counts() {
        let page = ask(0x0c, 0, 0).unwrap();
        assert_eq!(page[..16], [0x8c, 0, 0, 24, 0, 1, 0x23, 8, 1, 2, 3, 4, 2, 0, 0, 0]);
        assert_eq!(page[16..], [0, 2, 0x23, 8, 0, 0, 0, 5, 1, 0, 0, 0]);
        assert_eq!(ask(0x0c, 0, 2).unwrap().len(), 4 + 12);
    }

    #[test]
    fn statistics_are_eight_counters() {
        let page = ask(0x19, 0, 0).unwrap();
        assert_eq!(page[..8], [0x99, 0, 0, 92, 0, 1, 0x23, 64]);
        assert_eq!(page[8..40], [1, 2, 3, 0x0405_u64].map(u64::to_be_bytes).concat());
        assert_eq!(page[40..72], [0; 32]);
        assert_eq!(page[72..84], [0, 2, 0x23, 8, 0, 0, 0, 0, 0, 0, 0x0c, 0x0d]);
        assert_eq!(page[84..], [0, 3, 0x23, 8, 0, 0, 0, 3, 0, 0, 0, 1]);
        assert_eq!(ask(0x19, 0, 4), Err(Sense::invalid_cdb(5, None)));
        assert_eq!(STATISTICS.since(STATISTICS), Statistics::default());
    }

    #[test]
    fn errors_are_counted_by_what_the_commands_do() {
        for (code, bytes, errors) in [(0x02, 0x0809_u64, 6_u64), (0x03, 0x0607, 5), (0x05, 0x0a0b, 7)] {
            let page = ask(code, 0, 0).unwrap();
            assert_eq!(page[..8], [0x80 | code, 0, 0, 84, 0, 0, 0x20, 8]);
            assert!(
                (0..5_u8)
                    .all(|at| page[4 + 12 * usize::from(at)..][..12]
                        == [0, at, 0x20, 8, 0, 0, 0, 0, 0, 0, 0, 0])
            );
            assert_eq!(page[64..76], [&[0, 5, 0x20, 8][..], &bytes.to_be_bytes()].concat());
            assert_eq!(page[76..], [&[0, 6, 0x20, 8][..], &errors.to_be_bytes()].concat());
        }
    }

    #[test]
    fn no_background_scan_is_told_as_such() {
        assert_eq!(
            ask(0x15, 0, 0).unwrap(),
            [0x95, 0, 0, 16, 0, 0, 0x23, 12, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn self_tests_are_twenty_results_and_the_pointer_skips() {
        let page = ask(0x10, 0, 0).unwrap();
        assert_eq!(page.len(), 4 + 20 * 20);
        assert_eq!(page[4..14], [0, 1, 0x23, 16, 0x20, 0, 0, 7, 0xff, 0xff]);
        assert_eq!(ask(0x10, 0, 20).unwrap().len(), 24);
        assert_eq!(ask(0x10, 0, 21), Err(Sense::invalid_cdb(5, None)));
    }
}
