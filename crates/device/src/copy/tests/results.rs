//! RECEIVE COPY RESULTS in all its forms, and the copy operations that the unit reports.

use base::rng::Rng;
use base::units::BlockSize;
use scsi::copy::copy_in;
use scsi::copy::list::{Format, ListIdUsage};
use scsi::copy::results::{CopyStatus1, CopyStatus4, ManagerStatus, OperatingParameters, OperationStatus};
use scsi::copy::vpd;
use scsi::sense::{Asc, SenseKey};

use super::world::{LID4, MIB_512, World, blocks, cscd, in_cdb, list};
use crate::testing::{A, B};

const B512: BlockSize = BlockSize::B512;
const BY_LIST_ID: [u16; 3] = [
    copy_in::RECEIVE_COPY_STATUS_LID1,
    copy_in::RECEIVE_COPY_DATA_LID1,
    copy_in::RECEIVE_COPY_FAILURE_DETAILS_LID1,
];

#[test]
fn an_unknown_list_identifier_is_an_invalid_field() {
    let mut world = World::new(&[MIB_512]);
    world.copy(0, A, &list(LID4, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)])).good();
    for action in BY_LIST_ID {
        world.ask_lid1(0, A, action, 2).illegal(Asc::INVALID_FIELD_IN_CDB);
        world.ask_lid1(0, B, action, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for action in [copy_in::RECEIVE_COPY_STATUS_LID4, copy_in::RECEIVE_ROD_TOKEN_INFORMATION] {
        world.ask_lid4(0, A, action, 0x100).illegal(Asc::INVALID_FIELD_IN_CDB);
        world.ask_lid4(0, A, action, 1).good();
    }
}

#[test]
fn a_copy_that_ended_well_is_told_of_once() {
    let mut world = World::new(&[MIB_512]);
    world.copy(0, A, &list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100); 3])).good();
    let data = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_DATA_LID1, 1).good();
    assert_eq!(data, [0; 4], "nothing is held");
    let none = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_FAILURE_DETAILS_LID1, 1).good();
    assert_eq!(none, [0; 4], "nothing failed");
    let status = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_STATUS_LID1, 1).good();
    let wanted = CopyStatus1::new(ManagerStatus::COMPLETED, 3, 3 * 4096);
    assert_eq!(CopyStatus1::parse(&status), Ok(wanted));
    world.ask_lid1(0, A, copy_in::RECEIVE_COPY_STATUS_LID1, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_copy_that_failed_is_known_until_its_details_were_told() {
    let mut world = World::new(&[MIB_512]);
    let steps = [blocks(0, 0, 8, 0, 100), blocks(0, 0, 8, 5000, 0)];
    let failed = world.copy(0, A, &list(Format::Lid1, &[cscd(0, B512)], &steps));
    failed.check(SenseKey::COPY_ABORTED, Asc::NONE);
    for _ in 0..2 {
        let status = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_STATUS_LID1, 1).good();
        let wanted = CopyStatus1::new(ManagerStatus::FAILED, 1, 4096);
        assert_eq!(CopyStatus1::parse(&status), Ok(wanted));
    }
    let status = world.ask_lid4(0, A, copy_in::RECEIVE_COPY_STATUS_LID4, 1).good();
    let (status, _) = CopyStatus4::parse(&status).unwrap();
    assert_eq!((status.status, status.completion_status), (OperationStatus::FAILED, 2));
    assert_eq!(status.sense, failed.sense_bytes);
    let details = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_FAILURE_DETAILS_LID1, 1).good();
    assert_eq!(details[60..], failed.sense_bytes);
    for action in BY_LIST_ID {
        world.ask_lid1(0, A, action, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn a_copy_that_goes_on_says_so() {
    let mut rng = Rng::from_seed(1);
    let mut world = World::new(&[MIB_512]);
    for usage in [ListIdUsage::Hold, ListIdUsage::Discard] {
        world.slow(true);
        let mut copy = list(Format::Lid1, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)]);
        copy.usage = usage;
        let key = world.start_copy(0, A, &copy);
        let status = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_STATUS_LID1, 1).good();
        assert_eq!(CopyStatus1::parse(&status).unwrap().status, ManagerStatus::IN_PROGRESS);
        let status = world.ask_lid4(0, A, copy_in::RECEIVE_COPY_STATUS_LID4, 1).good();
        assert_eq!(CopyStatus4::parse(&status).unwrap().0.status, OperationStatus::IN_FOREGROUND);
        world.finish(&mut rng, 0, key).good();
        let after = world.ask_lid1(0, A, copy_in::RECEIVE_COPY_STATUS_LID1, 1);
        assert_eq!(after.sense.is_none(), usage == ListIdUsage::Hold);
        world.slow(false);
    }
}

#[test]
fn allocation_lengths_cut_and_never_fail() {
    let mut world = World::new(&[MIB_512]);
    world.copy(0, A, &list(LID4, &[cscd(0, B512)], &[blocks(0, 0, 8, 0, 100)])).good();
    for action in [copy_in::RECEIVE_COPY_OPERATING_PARAMETERS, copy_in::REPORT_ALL_ROD_TOKENS] {
        let whole = world.run(0, A, &in_cdb(action, 4096), 4096, &[]).good();
        for len in 0..whole.len() + 4 {
            let cut = world.run(0, A, &in_cdb(action, u32::try_from(len).unwrap()), 4096, &[]).good();
            assert_eq!(cut, whole[..len.min(whole.len())]);
        }
    }
}

#[test]
fn the_vital_product_data_and_the_operating_parameters_say_the_same_and_the_truth() {
    let mut world = World::new(&[MIB_512]);
    let page = world.run(0, A, &[0x12, 1, 0x8f, 0x10, 0, 0], 4096, &[]).good();
    assert_eq!((page[1], usize::from(u16::from_be_bytes([page[2], page[3]]))), (0x8f, page.len() - 4));
    let body = &page[4..];
    let of = |wanted| vpd::descriptors(body).find(|(kind, _)| *kind == wanted).unwrap().1;
    let bytes = world.run(0, A, &in_cdb(copy_in::RECEIVE_COPY_OPERATING_PARAMETERS, 4096), 4096, &[]).good();
    let parameters = OperatingParameters::parse(&bytes).unwrap();
    let limits = parameters.limits;
    assert_eq!(of(4)[4..6], limits.cscds_max.to_be_bytes());
    assert_eq!(of(4)[6..8], limits.segments_max.to_be_bytes());
    assert_eq!(of(4)[8..12], limits.descriptors_len_max.to_be_bytes());
    assert_eq!(of(0x8001)[8..12], parameters.segment_len_max.to_be_bytes());
    assert_eq!(of(8)[1..5], parameters.descriptor_types);
    // Every service action is listed if, and only if, it is supported.
    for (opcode, action) in
        [0x83, 0x84].into_iter().flat_map(|code| (0..32).map(move |action| (code, action)))
    {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        let reply = world.run(0, A, &cdb, 0, &[]);
        let unknown = reply.sense == Some((SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB))
            && reply.sense_bytes[15..18] == [0xcc, 0, 1];
        assert_eq!(vpd::supports(body, opcode, action), !unknown, "{opcode:#x}/{action:#x}: {reply:?}");
    }
    let standard = world.run(0, A, &[0x12, 0, 0, 0, 96, 0], 96, &[]).good();
    assert_eq!(standard[5] & 0x08, 0x08, "3PC");
}
