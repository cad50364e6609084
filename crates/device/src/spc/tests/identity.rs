use alloc::vec;

use scsi::inquiry::StandardInquiry;
use scsi::vpd::{BlockLimits, Page};

use super::*;
use crate::contract::{InquiryOverrides, SpcLevel, UnitConfig};
use crate::no_lun;
use crate::unit::LogicalUnit;

fn inquiry(rig: &mut Rig, vital: bool, page: u8, allocation: u16) -> Reply {
    let [high, low] = allocation.to_be_bytes();
    let cdb = [op::INQUIRY, u8::from(vital), page, high, low, 0];
    rig.run(A, &cdb, usize::from(allocation), &[])
}

/// libiscsi Inquiry.Standard, Inquiry.AllocLength.
#[test]
fn standard_data_comes_in_any_length() {
    let mut rig = Rig::new();
    let whole = inquiry(&mut rig, false, 0, 512).good();
    assert_eq!(whole.len(), StandardInquiry::LEN);
    for allocation in 0..=255 {
        let reply = inquiry(&mut rig, false, 0, allocation);
        assert_eq!(reply.transferable, u64::from(allocation.min(96)));
        assert_eq!(reply.good(), whole[..usize::from(allocation.min(96))]);
    }
    assert_eq!(inquiry(&mut rig, false, 0, 511).good(), whole);
    let data = StandardInquiry::parse(&whole).unwrap();
    assert_eq!((data.version, data.qualifier.0, data.device_type.0), (6, 0, 0));
}

/// libiscsi Inquiry.EVPD.
#[test]
fn a_page_code_without_evpd_is_an_error() {
    let mut rig = Rig::new();
    inquiry(&mut rig, false, 1, 256).illegal(Asc::INVALID_FIELD_IN_CDB);
    inquiry(&mut rig, true, 0x42, 256).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// libiscsi Inquiry.SupportedVPD, Inquiry.MandatoryVPDSBC, the page codes sorted.
#[test]
fn every_listed_page_can_be_read() {
    for config in [config(), UnitConfig { thin: false, ..config() }] {
        let thin = config.thin;
        let mut rig = Rig::with(config, Box::new(Ram::new(BLOCKS * 512)));
        let list = inquiry(&mut rig, true, 0, 255).good();
        for code in &list[4..] {
            let page = inquiry(&mut rig, true, *code, 1024).good();
            assert_eq!(Page::parse(&page).unwrap().code, *code);
        }
        assert!(list[4..].is_sorted());
        assert_eq!(list.contains(&0xb2), thin);
    }
}

#[test]
fn block_limits_follow_the_configuration() {
    let mut rig = Rig::new();
    let page = inquiry(&mut rig, true, 0xb0, 255).good();
    let limits = BlockLimits::parse(Page::parse(&page).unwrap().body).unwrap();
    assert_eq!(limits.transfer_max, config().transfer_blocks_max);
    assert!(limits.transfer_optimal <= limits.transfer_max && limits.transfer_granularity >= 8);
    assert!(!limits.write_same_non_zero);
}

/// libiscsi Inquiry.BlockLimits: the limits that it considers sane.
#[test]
fn unmap_limits_are_what_initiators_take_for_sane() {
    for thin in [true, false] {
        let config = UnitConfig { thin, ..config() };
        let physical = 1 << config.physical_exponent;
        let mut rig = Rig::with(config, Box::new(Ram::new(BLOCKS * 512)));
        let page = inquiry(&mut rig, true, 0xb0, 255).good();
        let limits = BlockLimits::parse(Page::parse(&page).unwrap().body).unwrap();
        let (blocks, descriptors) = (limits.unmap_max, limits.unmap_descriptors_max);
        if thin {
            assert!((physical..=1 << 20).contains(&blocks) && (2..=1 << 20).contains(&descriptors));
        } else {
            assert_eq!((blocks, descriptors), (0, 0));
        }
    }
}

#[test]
fn inquiry_answers_before_an_attention_and_through_reservations() {
    let mut rig = Rig::fresh(config(), Box::new(Ram::new(BLOCKS * 512)));
    inquiry(&mut rig, false, 0, 96).good();
    rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    rig.hears(B, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    rig.run(B, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).good();
    inquiry(&mut rig, false, 0, 96).good();
}

#[test]
fn report_luns_lists_what_the_nexus_sees_and_settles_the_attention() {
    let mut rig = Rig::new();
    let cdb = |select, allocation| [op::REPORT_LUNS, 0, select, 0, 0, 0, 0, 0, 0, allocation, 0, 0];
    assert_eq!(rig.run(A, &cdb(0, 16), 16, &[]).good(), [&[0, 0, 0, 8][..], &[0; 12]].concat());
    assert_eq!(rig.run(A, &cdb(1, 16), 16, &[]).good(), [0; 8]);
    rig.run(A, &cdb(0, 15), 15, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &cdb(0x10, 16), 16, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let luns = vec![scsi::lun::Lun(0), scsi::lun::Lun(1 << 48)];
    let changed = crate::contract::Nexus { luns: luns.into(), ..crate::testing::nexus(A) };
    rig.unit.nexus_changed(Instant::ORIGIN, changed.clone());
    assert_eq!(rig.run(A, &cdb(0, 64), 64, &[]).good().len(), 24);
    rig.ready_for(A).good();
    let fewer = crate::contract::Nexus { luns: [scsi::lun::Lun(0)].into(), ..changed };
    rig.unit.nexus_changed(Instant::ORIGIN, fewer);
    rig.hears(A, Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
}

#[test]
fn an_absent_unit_reports_the_same_luns() {
    let cdb = scsi::cdb::Cdb::from_bytes(&[op::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0]).unwrap();
    let mut rig = Rig::new();
    let here = rig.run(A, cdb.bytes(), 16, &[]).good();
    assert_eq!(no_lun::respond(&cdb, &[scsi::lun::Lun(0)], no_lun::Absence::NotMapped, 16).data, here);
}

#[test]
fn identifying_information_is_answered_when_it_is_saved() {
    let mut rig = Rig::new();
    let set = |len: u8, kind: u8| [op::MAINTENANCE_OUT, 6, 0, 0, 0, 0, 0, 0, 0, len, kind << 1, 0];
    let report = |kind: u8| [op::MAINTENANCE_IN, 5, 0, 0, 0, 0, 0, 0, 0, 255, kind << 1, 0];
    let key = rig.start(A, &set(5, 2), 0, 5);
    let Some(UnitEvent::FetchDataOut { offset: 0, len: 5, .. }) = rig.event_of(key) else {
        panic!("no fetch")
    };
    rig.send(key, b"here\0", 0, 5);
    assert!(rig.event_of(key).is_none(), "not before it is saved");
    let state = rig.save(true);
    rig.finish(key, &[]).good();
    rig.hears(B, Asc::DEVICE_IDENTIFIER_CHANGED);
    rig.ready_for(A).good();
    rig.run(A, &set(5, 2), 0, b"here\0").good();
    assert_eq!(rig.run(B, &report(2), 255, &[]).good(), b"\0\0\0\x05here\0");
    rig.run(A, &set(65, 0), 0, &[1; 65]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    rig.run(A, &set(1, 5), 0, &[1]).illegal(Asc::INVALID_FIELD_IN_CDB);

    let (medium, pool) = (Box::new(Ram::new(BLOCKS * 512)), base::buffer::Pool::new(1 << 20));
    let mut again = Rig::of(LogicalUnit::new(config(), medium, Some(&state), pool).unwrap());
    assert_eq!(again.run(B, &report(2), 255, &[]).good(), b"\0\0\0\x05here\0");

    let key = rig.start(A, &set(0, 2), 0, 0);
    assert_eq!(rig.save(false).len(), 0, "nothing is left to survive");
    rig.finish(key, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
}

#[test]
fn the_timestamp_can_be_set_and_read() {
    let mut rig = Rig::new();
    let report = [op::MAINTENANCE_IN, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0];
    assert_eq!(rig.run(A, &report, 12, &[]).good(), [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let set = |len: u8| [op::MAINTENANCE_OUT, 0x0f, 0, 0, 0, 0, 0, 0, 0, len, 0, 0];
    rig.run(A, &set(12), 0, &[0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0]).good();
    assert_eq!(rig.run(A, &report, 12, &[]).good(), [0, 10, 2, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
    rig.hears(B, Asc::TIMESTAMP_CHANGED);
    rig.run(A, &set(11), 0, &[0; 11]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    rig.run(A, &set(12), 0, &[0; 11]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
}

fn claiming(level: SpcLevel) -> UnitConfig {
    UnitConfig { overrides: InquiryOverrides { level, ..InquiryOverrides::default() }, ..config() }
}

#[test]
fn a_unit_claims_the_standards_it_is_told_to_and_has_no_command_of_later_ones() {
    use scsi::copy::copy_out;
    for (level, version, newest, later) in [
        (SpcLevel::Spc3, 5, [0x0300, 0x04c0], false),
        (SpcLevel::Spc4, 6, [0x05c0, 0x0600], true),
        (SpcLevel::Spc5, 7, [0x05c0, 0x0600], true),
    ] {
        let (medium, pool) = (Box::new(Ram::new(BLOCKS * 512)), base::buffer::Pool::new(1 << 20));
        let mut unit = LogicalUnit::new(claiming(level), medium, None, pool).unwrap();
        unit.seed(&[7; 32]);
        let mut rig = Rig::of(unit);
        let data = StandardInquiry::parse(&inquiry(&mut rig, false, 0, 96).good()).unwrap();
        assert_eq!(data.version, version);
        let claimed: Vec<u16> = data.versions.into_iter().filter(|version| *version != 0).collect();
        assert!(claimed.ends_with(&newest), "{claimed:04x?}");
        assert!(data.third_party_copy);
        let pages = inquiry(&mut rig, true, 0, 255).good();
        assert_eq!(pages.contains(&0x8f), later);
        let limits = inquiry(&mut rig, true, 0xb0, 255).good();
        let limits = BlockLimits::parse(Page::parse(&limits).unwrap().body).unwrap();
        assert_eq!(limits.atomic_max > 0, later);
        let has = |rig: &mut Rig, opcode: u8, action: u16| {
            let [high, low] = action.to_be_bytes();
            let form = if opcode == op::THIRD_PARTY_COPY_OUT { 2 } else { 1 };
            let ask = [op::MAINTENANCE_IN, 0x0c, form, opcode, high, low, 0, 0, 0, 255, 0, 0];
            rig.run(A, &ask, 255, &[]).good()[1] & 7 == 3
        };
        assert!(has(&mut rig, op::THIRD_PARTY_COPY_OUT, copy_out::EXTENDED_COPY_LID1));
        for action in [copy_out::EXTENDED_COPY_LID4, copy_out::POPULATE_TOKEN, copy_out::WRITE_USING_TOKEN] {
            assert_eq!(has(&mut rig, op::THIRD_PARTY_COPY_OUT, action), later, "{level:?} {action:#x}");
        }
        assert_eq!(has(&mut rig, op::WRITE_ATOMIC_16, 0), later);
        assert!(has(&mut rig, op::UNMAP, 0));
    }
}

#[test]
fn changed_claims_are_told_to_everyone() {
    let mut rig = Rig::new();
    rig.unit.reconfigure(Instant::ORIGIN, config());
    rig.ready();
    rig.unit.reconfigure(Instant::ORIGIN, claiming(SpcLevel::Spc3));
    rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::INQUIRY_DATA_HAS_CHANGED);
    rig.hears(B, Asc::INQUIRY_DATA_HAS_CHANGED);
    assert_eq!(inquiry(&mut rig, false, 0, 96).good()[2], 5);
}

/// A medium in memory that says whether it rotates.
struct Rotating(Ram, bool);

impl Store for Rotating {
    fn capabilities(&self) -> Capabilities {
        Capabilities { rotational: self.1, ..self.0.capabilities() }
    }

    fn submit(&mut self, op: Op) {
        self.0.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.poll()
    }
}

#[test]
fn the_rotation_rate_is_what_the_medium_is_unless_it_is_claimed() {
    for (rotational, claimed, told) in [
        (false, None, 1),
        (true, None, 0),
        (true, Some(1), 1),
        (false, Some(7200), 7200),
        (false, Some(0), 0),
    ] {
        let claims = InquiryOverrides { rotation_rate: claimed, ..InquiryOverrides::default() };
        let medium = Rotating(Ram::new(BLOCKS * 512), rotational);
        let mut rig = Rig::with(UnitConfig { overrides: claims, ..config() }, Box::new(medium));
        let page = inquiry(&mut rig, true, 0xb1, 64).good();
        assert_eq!(u16::from_be_bytes([page[4], page[5]]), told, "{rotational} {claimed:?}");
    }
}
