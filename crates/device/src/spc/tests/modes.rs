use scsi::mode::{HeaderFormat, Page, Parameters};

use super::write_cache::{reload, switched, synchronize};
use super::*;
use crate::contract::UnitConfig;
use crate::testing::cdb_16;

/// Returns the current page.
fn page(rig: &mut Rig, nexus: NexusId, code: u8) -> Vec<u8> {
    let cdb = [op::MODE_SENSE_6, 0x08, code, 0, 255, 0];
    rig.run(nexus, &cdb, 255, &[]).good()[4..].to_vec()
}

/// Sends a page with some of its bits changed.
fn change(rig: &mut Rig, nexus: NexusId, code: u8, byte: usize, mask: u8) -> Reply {
    let mut list = Vec::from([0; 4]);
    list.extend(page(rig, nexus, code));
    list[4 + byte] ^= mask;
    select(rig, nexus, 0x10, &list)
}

fn select(rig: &mut Rig, nexus: NexusId, flags: u8, list: &[u8]) -> Reply {
    let len = u8::try_from(list.len()).unwrap();
    rig.run(nexus, &[op::MODE_SELECT_6, flags, 0, 0, len, 0], 0, list)
}

const WCE: (u8, usize, u8) = (0x08, 2, 0x04);
const D_SENSE: (u8, usize, u8) = (0x0a, 2, 0x04);
const SWP: (u8, usize, u8) = (0x0a, 4, 0x08);
const INTERLOCK: (u8, usize, u8) = (0x0a, 4, 0x20);

fn flip(rig: &mut Rig, nexus: NexusId, (code, byte, mask): (u8, usize, u8)) {
    change(rig, nexus, code, byte, mask).good();
}

/// libiscsi ModeSense6.AllPages, ModeSense6.Residuals.
#[test]
fn all_pages_come_with_six_and_ten() {
    let mut rig = Rig::new();
    let six = rig.run(A, &[op::MODE_SENSE_6, 0, 0x3f, 0, 255, 0], 255, &[]).good();
    let ten = rig.run(A, &[op::MODE_SENSE_10, 0, 0x3f, 0, 0, 0, 0, 1, 0, 0], 256, &[]).good();
    assert_eq!(usize::from(six[0]), six.len() - 1);
    assert_eq!(usize::from(ten[1]), ten.len() - 2);
    assert_eq!(
        Parameters::parse(HeaderFormat::Six, &six).unwrap().pages,
        Parameters::parse(HeaderFormat::Ten, &ten).unwrap().pages
    );
    let short = rig.run(A, &[op::MODE_SENSE_6, 0, 0x3f, 0, 4, 0], 4, &[]);
    assert_eq!((short.transferable, short.good()), (4, six[..4].to_vec()));
    assert_eq!(
        rig.run(A, &[op::MODE_SENSE_6, 0, 0xff, 0, 255, 0], 255, &[]).good(),
        six,
        "nothing was saved yet"
    );
    rig.run(A, &[op::MODE_SENSE_6, 0, 0x05, 0, 255, 0], 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// libiscsi ModeSense6.ControlSWP.
#[test]
fn software_write_protection_lets_nobody_write() {
    let mut rig = Rig::new();
    flip(&mut rig, A, SWP);
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    for nexus in BOTH {
        read(&mut rig, nexus).good();
        write(&mut rig, nexus).check(SenseKey::DATA_PROTECT, Asc::SOFTWARE_WRITE_PROTECTED);
        let header = rig.run(nexus, &[op::MODE_SENSE_6, 0, 0x0a, 0, 4, 0], 4, &[]).good();
        assert_eq!(header[2], 0x90);
    }
    flip(&mut rig, A, SWP);
    write(&mut rig, A).good();
}

/// libiscsi ModeSense6.ControlDSense.
#[test]
fn the_sense_format_follows_d_sense() {
    let mut rig = Rig::new();
    let far = cdb_16(op::READ_16, 0, u64::MAX, 1);
    assert_eq!(rig.run(A, &far, 512, &[]).sense_bytes[0], 0x70);
    flip(&mut rig, A, D_SENSE);
    assert_eq!(rig.run(A, &far, 512, &[]).sense_bytes[0], 0x72);
    let fixed = rig.run(A, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0], 252, &[]).good();
    assert_eq!(fixed[0], 0x70, "REQUEST SENSE says itself which format it wants");
}

#[test]
fn a_change_is_told_to_the_others_and_no_change_to_nobody() {
    let mut rig = Rig::new();
    flip(&mut rig, A, D_SENSE);
    rig.ready_for(A).good();
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    let mut same = Vec::from([0; 4]);
    same.extend(page(&mut rig, A, 0x0a));
    select(&mut rig, A, 0x10, &same).good();
    rig.ready_for(B).good();
}

#[test]
fn turning_the_write_cache_off_writes_it_and_then_every_write_is_durable() {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    write(&mut rig, A).good();
    flip(&mut rig, A, WCE);
    assert_eq!(recording.borrow().flushes, 1);
    write(&mut rig, A).good();
    flip(&mut rig, A, WCE);
    assert_eq!(recording.borrow().flushes, 1, "turning it on again writes nothing");
    write(&mut rig, A).good();
    let cached = Durability::Cached;
    assert_eq!(recording.borrow().writes, [cached, Durability::Stable, cached]);
}

#[test]
fn a_write_with_fua_is_durable_although_the_unit_does_not_know_yet_that_its_medium_has_a_cache() {
    let (store, recording) = Recorder::new();
    recording.borrow_mut().write_through = true;
    let mut rig = Rig::with(config(), Box::new(store));
    let mut forced = WRITE;
    forced[1] = 0x08;
    rig.run(A, &forced, 0, &[1; 512]).good();
    assert_eq!(recording.borrow().writes, [Durability::Stable]);
}

#[test]
fn a_cache_that_cannot_be_written_fails_the_command_that_turns_it_off() {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    recording.borrow_mut().fail_flushes = true;
    let (code, byte, mask) = WCE;
    change(&mut rig, A, code, byte, mask).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
}

#[test]
fn a_reset_brings_the_defaults_back() {
    let mut rig = Rig::new();
    for setting in [WCE, D_SENSE, SWP] {
        flip(&mut rig, A, setting);
    }
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
    rig.drain();
    for nexus in BOTH {
        while rig.ready_for(nexus).status != scsi::status::Status::GOOD {}
    }
    let default = rig.run(A, &[op::MODE_SENSE_6, 0x08, 0xbf, 0, 255, 0], 255, &[]).good();
    let current = rig.run(A, &[op::MODE_SENSE_6, 0x08, 0x3f, 0, 255, 0], 255, &[]).good();
    assert_eq!(current, default);
    write(&mut rig, A).good();
}

#[test]
fn a_reset_does_not_tell_that_the_cache_is_off_before_it_is_written() {
    for why in [crate::unit::Reset::LogicalUnit, crate::unit::Reset::Target] {
        for fails in [false, true] {
            let (mut rig, power, switches) = switched();
            change_for_good(&mut rig, WCE, true).0.good();
            flip(&mut rig, A, WCE);
            write(&mut rig, A).good();
            rig.unit.reset(Instant::ORIGIN, why);
            rig.drain();
            while rig.ready_for(A).status != scsi::status::Status::GOOD {}
            let is_on = |rig: &mut Rig| page(rig, A, WCE.0)[WCE.1] & WCE.2 != 0;
            assert!(is_on(&mut rig), "the host flushes no more");
            rig.write(7, &[3; 512]);
            switches.fails_flushes.set(fails);
            if fails {
                synchronize(&mut rig).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
                assert!(is_on(&mut rig), "nothing is written");
                let (code, byte, mask) = WCE;
                change(&mut rig, A, code, byte, mask)
                    .check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
            } else {
                synchronize(&mut rig).good();
                assert!(!is_on(&mut rig), "the saved value is in force");
            }
            // The write after the reset is durable at once.
            assert_eq!(power.sectors_at_risk(), usize::from(fails));
        }
    }
}

#[test]
fn a_reload_does_not_tell_that_the_cache_is_off_before_it_is_written() {
    let (mut rig, power, switches) = switched();
    write(&mut rig, A).good();
    reload(&mut rig, &switches, false);
    let is_on = |rig: &mut Rig| page(rig, A, WCE.0)[WCE.1] & WCE.2 != 0;
    assert!(is_on(&mut rig));
    // MODE SELECT turns off what counts as on.
    flip(&mut rig, A, WCE);
    assert!(!is_on(&mut rig));
    assert_eq!(power.sectors_at_risk(), 0);
}

/// Sends MODE SELECT with SP for a page with some of its bits changed, and returns the state that is to be
/// saved.
fn change_for_good(rig: &mut Rig, (code, byte, mask): (u8, usize, u8), saved: bool) -> (Reply, Vec<u8>) {
    let mut list = Vec::from([0; 4]);
    list.extend(page(rig, A, code));
    list[4 + byte] ^= mask;
    let len = u8::try_from(list.len()).unwrap();
    let key = rig.start(A, &[op::MODE_SELECT_6, 0x11, 0, 0, len, 0], 0, list.len());
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, 0, len.into());
    assert!(rig.event_of(key).is_none(), "not before it is saved");
    let state = rig.save(saved);
    (rig.finish(key, &[]), state)
}

fn restarted(configuration: UnitConfig, state: &[u8]) -> Rig {
    let medium = Box::new(Ram::new(BLOCKS * 512));
    let pool = base::buffer::Pool::new(0);
    Rig::of(crate::unit::LogicalUnit::new(configuration, medium, Some(state), pool).unwrap())
}

/// Returns the saved values of a page (PC 11b).
fn saved_page(rig: &mut Rig, code: u8) -> Vec<u8> {
    rig.run(A, &[op::MODE_SENSE_6, 0x08, 0xc0 | code, 0, 255, 0], 255, &[]).good()[4..].to_vec()
}

#[test]
fn saved_settings_outlive_a_reset_and_a_restart_and_others_do_not() {
    let mut rig = Rig::new();
    let untouched = page(&mut rig, A, 0x0a);
    let (answer, state) = change_for_good(&mut rig, D_SENSE, true);
    answer.good();
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    let saved = page(&mut rig, A, 0x0a);
    flip(&mut rig, A, INTERLOCK);
    assert_eq!(saved_page(&mut rig, 0x0a), saved);
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
    rig.drain();
    while rig.ready_for(A).status != scsi::status::Status::GOOD {}
    assert_eq!(page(&mut rig, A, 0x0a), saved);
    let default = rig.run(A, &[op::MODE_SENSE_6, 0x08, 0x8a, 0, 255, 0], 255, &[]).good();
    assert_eq!(default[4..], untouched);
    let mut rig = restarted(config(), &state);
    assert_eq!(page(&mut rig, A, 0x0a), saved);
}

#[test]
fn a_host_that_wants_no_reports_of_thresholds_gets_none_after_a_restart() {
    const LBPERE: (u8, usize, u8) = (0x01, 7, 0x80);
    const PS: u8 = 0x80;
    let mut rig = Rig::new();
    let is_on = |page: &[u8]| page[7] & 0x80 != 0;
    assert_eq!(page(&mut rig, A, 0x01)[0] & PS, PS);
    let (answer, off) = change_for_good(&mut rig, LBPERE, true);
    answer.good();
    assert!(!is_on(&saved_page(&mut rig, 0x01)));
    let mut rig = restarted(config(), &off);
    assert!(!is_on(&page(&mut rig, A, 0x01)) && !is_on(&saved_page(&mut rig, 0x01)));
    // Other settings that are saved leave it to the configuration.
    let mut rig = Rig::new();
    let (_, other) = change_for_good(&mut rig, D_SENSE, true);
    for (removable, expected) in [(false, true), (true, false)] {
        let mut rig = restarted(UnitConfig { removable, ..config() }, &other);
        assert_eq!(is_on(&page(&mut rig, A, 0x01)), expected);
    }
}

#[test]
fn a_saved_write_cache_is_not_brought_back_against_the_configuration() {
    let mut rig = Rig::new();
    let (answer, off) = change_for_good(&mut rig, WCE, true);
    answer.good();
    let (answer, on) = change_for_good(&mut rig, WCE, true);
    answer.good();
    for (configured, state, expected) in [(true, &off, 0), (true, &on, 4), (false, &on, 0), (false, &off, 0)]
    {
        let mut rig = restarted(UnitConfig { write_cache: configured, ..config() }, state);
        assert_eq!(page(&mut rig, A, 0x08)[2], expected);
    }
}

#[test]
fn settings_that_could_not_be_saved_are_not_called_so() {
    let mut rig = Rig::new();
    let untouched = page(&mut rig, A, 0x0a);
    change_for_good(&mut rig, D_SENSE, false).0.check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    assert_eq!(saved_page(&mut rig, 0x0a), untouched);
}

#[test]
fn an_interlocked_attention_stays_until_request_sense() {
    let mut rig = Rig::new();
    flip(&mut rig, A, INTERLOCK);
    for _ in 0..3 {
        rig.ready_for(B).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    }
    let sense = rig.run(B, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0], 252, &[]).good();
    assert_eq!((sense[2], &sense[12..14]), (6, &[0x2a, 1][..]));
    rig.ready_for(B).good();
}

#[test]
fn lists_that_are_wrong_change_nothing() {
    let mut rig = Rig::new();
    let before = page(&mut rig, A, 0x0a);
    let mut list = Vec::from([0; 4]);
    list.extend(&before);
    list[6] ^= 0x04;
    select(&mut rig, A, 0x00, &list).illegal(Asc::INVALID_FIELD_IN_CDB);
    select(&mut rig, A, 0x12, &list).illegal(Asc::INVALID_FIELD_IN_CDB);
    select(&mut rig, A, 0x10, &list[..10]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    select(&mut rig, A, 0x10, &list[..3]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let announced = [op::MODE_SELECT_6, 0x10, 0, 0, 60, 0];
    rig.run(A, &announced, 0, &list).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    list[5] = 0x09;
    select(&mut rig, A, 0x10, &list).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    select(&mut rig, A, 0x10, &[]).good();
    assert_eq!(page(&mut rig, A, 0x0a), before);
    rig.ready_for(B).good();
}

#[test]
fn mode_select_10_takes_the_same_pages() {
    let mut rig = Rig::new();
    let mut list = Vec::from([0; 8]);
    list.extend(page(&mut rig, A, 0x0a));
    list[8 + 2] ^= 0x04;
    let len = u8::try_from(list.len()).unwrap();
    rig.run(A, &[op::MODE_SELECT_10, 0x10, 0, 0, 0, 0, 0, 0, len, 0], 0, &list).good();
    assert_eq!(Page::list(&page(&mut rig, A, 0x0a))[0].body[0] & 0x04, 0x04);
}

#[test]
fn a_nexus_that_may_only_read_sees_a_protected_medium() {
    let mut rig = Rig::new();
    let access = crate::contract::Access::ReadOnly;
    rig.unit.nexus_changed(Instant::ORIGIN, crate::contract::Nexus { access, ..crate::testing::nexus(B) });
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    for (nexus, parameter) in [(A, 0x10), (B, 0x90)] {
        assert_eq!(rig.run(nexus, &[op::MODE_SENSE_6, 0, 0x0a, 0, 4, 0], 4, &[]).good()[2], parameter);
    }
    write(&mut rig, B).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
}
