use super::*;
use crate::contract::TaskRules;
use crate::settings::QueueError;

const MEDIUM: MediumParameters = MediumParameters {
    write_protected: false,
    descriptor: BlockDescriptor { blocks: 0x20_0000, block_len: 512 },
    locked: false,
    tape: TapeParameters::EMPTY,
    elements: Counts { drives: 0, slots: 0, mail_slots: 0 },
    threshold_sets: None,
    layout: &crate::sbc::COMMAND_SET.mode,
};

fn ask(code: u8, subpage: u8) -> SenseRequest {
    SenseRequest {
        form: HeaderFormat::Six,
        values: PageControl::Current,
        code,
        subpage,
        descriptor: false,
        long: false,
    }
}

fn fresh() -> Settings {
    Settings::new(true, TaskRules::SHARED)
}

fn answer(request: SenseRequest, settings: &Settings) -> Vec<u8> {
    sense(request, lists(settings, &fresh()), MEDIUM).unwrap()
}

/// Returns mode values with these current settings and these saved ones.
fn lists<'a>(current: &'a Settings, saved: &'a Settings) -> ModeValues<'a> {
    const DEFAULTS: &Settings = &Settings::new(true, TaskRules::SHARED);
    ModeValues { current, defaults: DEFAULTS, saved }
}

/// Returns the pages that a request returns, as (code, subpage).
fn pages(code: u8, subpage: u8) -> Vec<(u8, u8)> {
    let bytes = answer(ask(code, subpage), &fresh());
    let view = Parameters::parse(HeaderFormat::Six, &bytes).unwrap();
    assert_eq!(usize::from(bytes[0]), bytes.len() - 1);
    Page::list(view.pages).iter().map(|page| (page.code, page.subpage)).collect()
}

/// Returns a MODE SELECT(6) parameter list with one page in it.
fn list(page: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 0];
    bytes.extend_from_slice(page);
    bytes
}

/// Returns the current page, ready to be sent back.
fn current(code: u8, subpage: u8) -> Vec<u8> {
    answer(ask(code, subpage), &fresh())[4..].to_vec()
}

#[test]
fn all_pages_come_in_ascending_order() {
    let plain = [(0x01, 0), (0x02, 0), (0x08, 0), (0x0a, 0), (0x1a, 0), (0x1c, 0)];
    assert_eq!(pages(0x3f, 0), plain);
    let mut all = plain.to_vec();
    all.insert(4, (0x0a, 1));
    assert_eq!(pages(0x3f, 0xff), all);
    assert_eq!(pages(0x0a, 0xff), [(0x0a, 0), (0x0a, 1)]);
    assert_eq!(pages(0x0a, 1), [(0x0a, 1)]);
}

#[test]
fn only_a_unit_with_a_threshold_has_its_page() {
    let medium = MediumParameters { threshold_sets: Some(0x0102_0304), ..MEDIUM };
    let settings = fresh().with_provisioning_reports(true);
    let page = |values, medium| {
        let request = SenseRequest { values, ..ask(0x1c, 2) };
        sense(request, lists(&settings, &settings), medium)
    };
    assert_eq!(page(PageControl::Current, MEDIUM).unwrap_err(), Sense::invalid_cdb(3, None));
    let expected =
        [[0x5c, 2, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].as_slice(), &[0x80, 1, 0, 0, 1, 2, 3, 4]];
    assert_eq!(page(PageControl::Current, medium).unwrap()[4..], expected.concat());
    let changeable = page(PageControl::Changeable, medium).unwrap();
    assert_eq!(changeable[8..], [0; 20]);
    let list = list(&expected.concat());
    assert_eq!(select(HeaderFormat::Six, &list, &settings, medium).unwrap(), settings);
    assert!(select(HeaderFormat::Six, &list, &settings, MEDIUM).is_err());
}

#[test]
fn everything_fits_what_mode_sense_6_can_say() {
    let request = SenseRequest { descriptor: true, ..ask(0x3f, 0xff) };
    let bytes = answer(request, &fresh());
    assert!(bytes.len() <= 256);
    assert_eq!(usize::from(bytes[0]) + 1, bytes.len());
}

#[test]
fn a_page_that_there_is_none_of_is_pointed_at() {
    for (code, subpage, why) in [
        (0x03, 0x00, Sense::invalid_cdb(2, Some(5))),
        (0x00, 0x00, Sense::invalid_cdb(2, Some(5))),
        (0x03, 0xff, Sense::invalid_cdb(2, Some(5))),
        (0x08, 0x01, Sense::invalid_cdb(3, None)),
        (0x0a, 0x02, Sense::invalid_cdb(3, None)),
        (0x3f, 0x01, Sense::invalid_cdb(3, None)),
    ] {
        assert_eq!(
            sense(ask(code, subpage), lists(&fresh(), &fresh()), MEDIUM),
            Err(why),
            "{code:02x}/{subpage:02x}"
        );
    }
}

#[test]
fn pages_have_the_bytes_of_the_standard() {
    assert_eq!(current(0x01, 0), [&[0x81, 0x0a][..], &[0; 10]].concat());
    assert_eq!(current(0x02, 0), [&[0x02, 0x0e][..], &[0; 14]].concat());
    assert_eq!(current(0x08, 0), [&[0x88, 0x12, 0x04][..], &[0; 17]].concat());
    assert_eq!(current(0x0a, 0), [0x8a, 0x0a, 0x02, 0x10, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert_eq!(current(0x0a, 1), [&[0x4a, 0x01, 0x00, 0x1c][..], &[0; 28]].concat());
    assert_eq!(current(0x1a, 0), [&[0x1a, 0x26][..], &[0; 38]].concat());
    assert_eq!(current(0x1c, 0), [&[0x1c, 0x0a, 0, 6][..], &[0; 8]].concat());
}

#[test]
fn changeable_values_are_the_settings_and_nothing_else() {
    let masks = answer(SenseRequest { values: PageControl::Changeable, ..ask(0x3f, 0xff) }, &fresh());
    let view = Parameters::parse(HeaderFormat::Six, &masks).unwrap();
    for page in Page::list(view.pages) {
        let mut expected = vec![0; page.body.len()];
        match (page.code, page.subpage) {
            (0x01, 0) => expected[5] = 0x80,
            (0x08, 0) => expected[0] = 0x04,
            (0x0a, 0) => expected[..4].copy_from_slice(&[0x04, 0x06, 0x28, 0x40]),
            _ => {}
        }
        assert_eq!(page.body, expected, "{:02x}", page.code);
    }
}

#[test]
fn default_values_do_not_follow_the_settings() {
    let changed = Settings { write_cache: false, descriptor_sense: true, ..fresh() };
    let defaults = SenseRequest { values: PageControl::Default, ..ask(0x3f, 0) };
    assert_eq!(answer(defaults, &changed), answer(ask(0x3f, 0), &fresh()));
    assert_ne!(answer(ask(0x3f, 0), &changed), answer(ask(0x3f, 0), &fresh()));
    let saved = SenseRequest { values: PageControl::Saved, ..ask(0x3f, 0) };
    assert_eq!(
        sense(saved, lists(&fresh(), &changed), MEDIUM).unwrap(),
        answer(ask(0x3f, 0), &changed),
        "those that were saved"
    );
}

#[test]
fn the_header_tells_of_write_protection_and_blocks() {
    let request = SenseRequest { descriptor: true, ..ask(0x08, 0) };
    let medium = MediumParameters { write_protected: true, ..MEDIUM };
    let bytes = sense(request, lists(&fresh(), &fresh()), medium).unwrap();
    assert_eq!(bytes[..12], [31, 0, 0x90, 8, 0, 0x20, 0, 0, 0, 0, 2, 0]);
    let request = SenseRequest { form: HeaderFormat::Ten, long: true, ..request };
    let bytes = sense(request, lists(&fresh(), &fresh()), MEDIUM).unwrap();
    assert_eq!(bytes[..8], [0, 42, 0, 0x10, 1, 0, 0, 16]);
    assert_eq!(bytes[8..24], [0, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    let request = SenseRequest { descriptor: false, ..request };
    assert_eq!(sense(request, lists(&fresh(), &fresh()), MEDIUM).unwrap()[..8], [0, 26, 0, 0x10, 0, 0, 0, 0]);
}

#[test]
fn what_was_sensed_can_be_selected() {
    for (form, long) in [(HeaderFormat::Six, false), (HeaderFormat::Ten, false), (HeaderFormat::Ten, true)] {
        let request = SenseRequest { form, long, descriptor: true, ..ask(0x3f, 0xff) };
        let bytes = answer(request, &fresh());
        assert_eq!(select(form, &bytes, &fresh(), MEDIUM), Ok(fresh()));
    }
    assert_eq!(select(HeaderFormat::Six, &[], &fresh(), MEDIUM), Ok(fresh()));
    assert_eq!(select(HeaderFormat::Six, &[0; 4], &fresh(), MEDIUM), Ok(fresh()));
}

#[test]
fn each_setting_can_be_changed_alone() {
    for (code, byte, mask, expected) in [
        (0x08, 2, 0x04, Settings { write_cache: false, ..fresh() }),
        (0x0a, 2, 0x04, Settings { descriptor_sense: true, ..fresh() }),
        (0x0a, 4, 0x08, Settings { software_write_protect: true, ..fresh() }),
        (0x0a, 4, 0x20, Settings { attention_interlock: AttentionInterlock::Kept, ..fresh() }),
        (0x0a, 5, 0x40, Settings { task_aborted_status: true, ..fresh() }),
    ] {
        let mut page = current(code, 0);
        page[byte] ^= mask;
        let new = select(HeaderFormat::Six, &list(&page), &fresh(), MEDIUM).unwrap();
        assert_eq!(new, expected);
        assert_eq!(answer(ask(code, 0), &new)[4..], page);
        page[0] ^= 0x80;
        assert_eq!(select(HeaderFormat::Six, &list(&page), &fresh(), MEDIUM), Ok(expected), "PS is ignored");
    }
}

#[test]
fn any_other_bit_is_refused_and_pointed_at() {
    for row in MEDIUM.layout.pages.iter().filter(|row| row.is_present(&MEDIUM)) {
        let page = current(row.code, row.subpage);
        let header = page.len() - row.len;
        for bit in 0..row.len * 8 {
            let (byte, bit) = (bit / 8, u8::try_from(bit % 8).unwrap());
            if row.changeable()[byte] >> bit & 1 == 1 {
                continue;
            }
            let mut page = page.clone();
            page[header + byte] ^= 1 << bit;
            let expected = Sense::invalid_parameter(u16::try_from(4 + header + byte).unwrap(), Some(bit));
            assert_eq!(select(HeaderFormat::Six, &list(&page), &fresh(), MEDIUM), Err(expected));
        }
    }
}

#[test]
fn nothing_changes_unless_the_whole_list_is_right() {
    let mut caching = current(0x08, 0);
    caching[2] = 0;
    let mut control = current(0x0a, 0);
    control[2] |= 0x80;
    let both = list(&[caching, control].concat());
    assert_eq!(
        select(HeaderFormat::Six, &both, &fresh(), MEDIUM),
        Err(Sense::invalid_parameter(26, Some(7)))
    );
}

#[test]
fn a_list_that_is_cut_anywhere_is_an_error_or_has_fewer_pages() {
    let request = SenseRequest { descriptor: true, ..ask(0x3f, 0xff) };
    let bytes = answer(request, &fresh());
    let mut ends = vec![12];
    for row in MEDIUM.layout.pages {
        ends.push(ends.last().unwrap() + row.len + if row.subpage == 0 { 2 } else { 4 });
    }
    for len in 1..bytes.len() {
        let expected = if ends.contains(&len) {
            Ok(fresh())
        } else {
            Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR))
        };
        assert_eq!(select(HeaderFormat::Six, &bytes[..len], &fresh(), MEDIUM), expected, "{len}");
    }
}

/// spdk#873: a page parser that followed lengths from page to page read beyond its buffer.
#[test]
fn pages_that_claim_to_hold_pages_are_refused() {
    let control = current(0x0a, 0);
    for page in [
        [&[0x08, 0x12][..], &control, &[0; 6]].concat(),
        vec![0x08, 0xff],
        vec![0x4a, 0x01, 0xff, 0xff],
        vec![0x7f, 0xff, 0xff, 0xff],
        vec![0x3f, 0x00],
        vec![0x0a, 0x00],
        vec![0x4a, 0x01, 0x00, 0x00],
        vec![0x48],
    ] {
        let answer = select(HeaderFormat::Six, &list(&page), &fresh(), MEDIUM);
        assert!(answer.is_err(), "{page:02x?}");
    }
    let deep: Vec<u8> = core::iter::repeat_n([0x4a, 0x01, 0x00, 0x1c], 10_000).flatten().collect();
    assert!(select(HeaderFormat::Six, &list(&deep), &fresh(), MEDIUM).is_err());
}

#[test]
fn a_block_descriptor_cannot_resize_the_disk() {
    let list = |blocks: u32, len: u32| {
        let mut bytes = vec![0, 0, 0, 8];
        bytes.extend_from_slice(&blocks.to_be_bytes());
        bytes.extend_from_slice(&len.to_be_bytes());
        select(HeaderFormat::Six, &bytes, &fresh(), MEDIUM)
    };
    for blocks in [0, 0x20_0000, u32::MAX] {
        assert_eq!(list(blocks, 512), Ok(fresh()));
    }
    assert_eq!(list(1, 512), Err(Sense::invalid_parameter(4, None)));
    assert_eq!(list(0, 4096), Err(Sense::invalid_parameter(9, None)));
    assert_eq!(list(0, 0), Err(Sense::invalid_parameter(9, None)));
    let odd = [0, 0, 0, 4, 0, 0, 0, 0];
    assert_eq!(select(HeaderFormat::Six, &odd, &fresh(), MEDIUM), Err(Sense::invalid_parameter(3, None)));
    let medium_type = [0, 1, 0, 0];
    assert_eq!(
        select(HeaderFormat::Six, &medium_type, &fresh(), MEDIUM),
        Err(Sense::invalid_parameter(1, None))
    );
}

#[test]
fn a_reserved_value_of_qerr_is_refused_and_the_others_are_taken() {
    for (bits, expected) in
        [(0, Some((false, false))), (2, Some((true, false))), (6, Some((true, true))), (4, None)]
    {
        let mut control = current(0x0a, 0);
        control[3] |= bits;
        let selected = select(HeaderFormat::Six, &list(&control), &fresh(), MEDIUM);
        match expected {
            Some((aborts, only_own)) => {
                assert_eq!(selected.unwrap().queue_error, QueueError { aborts, only_own });
            }
            None => assert_eq!(selected, Err(Sense::invalid_parameter(7, Some(2)))),
        }
    }
}

#[test]
fn task_sets_of_nexuses_are_told_and_cannot_be_changed() {
    let own = Settings::new(true, TaskRules::default());
    let page = answer(ask(0x0a, 0), &own)[4..].to_vec();
    assert_eq!((page[2] >> 5, page[5] & 0x40), (0b001, 0x40));
    assert_eq!(answer(ask(0x0a, 0), &fresh())[6] >> 5, 0b000);
    let changeable = SenseRequest { values: PageControl::Changeable, ..ask(0x0a, 0) };
    assert_eq!(answer(changeable, &own)[6] >> 5, 0b000);
    let mut other = page.clone();
    other[2] ^= 0x20;
    assert_eq!(
        select(HeaderFormat::Six, &list(&other), &own, MEDIUM),
        Err(Sense::invalid_parameter(6, Some(5)))
    );
    assert_eq!(select(HeaderFormat::Six, &list(&page), &own, MEDIUM), Ok(own));
}
