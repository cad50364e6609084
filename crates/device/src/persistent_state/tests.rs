use alloc::vec::Vec;

use scsi::pr::{BasicList, MoveList, ReservationKey, ReservationType};
use scsi::transport_id::TransportId;

use super::*;
use crate::contract::RelativePort;
use crate::contract::TaskRules;
use crate::pr::out::{KnownPorts, Request};
use crate::pr::{NexusName, PrRole};
use crate::settings::ProvisioningReports;

/// Files written by releases with versions 1 to 4: three registrants, the second of which holds Exclusive
/// Access - Registrants Only, and identifying information of both kinds. Version 2 also has settings, version
/// 3 also a failed format operation, version 4 also LBPERE.
const V1: &[u8] = include_bytes!("v1.bin");
const V2: &[u8] = include_bytes!("v2.bin");
const V3: &[u8] = include_bytes!("v3.bin");
const V4: &[u8] = include_bytes!("v4.bin");

const PORTS: [RelativePort; 2] = [RelativePort(1), RelativePort(2)];

fn port(name: &str, isid: u8) -> TransportId {
    TransportId::iscsi_port(name, [0x00, 0x02, 0x3d, 0, 0, isid]).unwrap()
}

fn nexus(id: &TransportId, target_port: u16) -> NexusName {
    NexusName { initiator_port: id.encode().into(), target_port: RelativePort(target_port) }
}

/// Returns the state of the fixture, made by commands.
fn sample() -> (PersistentReservations, IdentifyingInformation) {
    let a = port("iqn.1993-08.org.debian:01:node-a", 1);
    let b = port("iqn.1991-05.com.microsoft:node-b", 2);
    let (key_a, key_b) = (ReservationKey(0x1234_5678_9abc_def0), ReservationKey(0x4d53_0000_0001));
    let mut pr = PersistentReservations::new();
    let mut send = |from: &NexusName, request| {
        pr.out(from, request, KnownPorts { target_ports: &PORTS, initiator_ports: &[] }).unwrap();
    };
    let register =
        |key| Request::Register(BasicList { service_action_key: key, persist: true, ..BasicList::default() });
    send(&nexus(&a, 1), register(key_a));
    send(&nexus(&b, 2), register(key_b));
    send(&nexus(&a, 2), register(key_a));
    let kind = ReservationType::ExclusiveAccessRegistrantsOnly;
    send(&nexus(&a, 1), Request::Reserve(key_a, kind));
    let to_b = MoveList {
        key: key_a,
        service_action_key: key_b,
        unregister: false,
        persist: true,
        relative_port: 2,
        initiator_port: b,
    };
    send(&nexus(&a, 1), Request::Move(to_b));
    let mut information = IdentifyingInformation::default();
    information.set(0, b"shelf 3").unwrap();
    information.set(2, "Büro\0".as_bytes()).unwrap();
    (pr, information)
}

/// Returns the state with `change` applied and the checksum corrected.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = V3[..V3.len() - CHECKSUM_LEN].to_vec();
    change(&mut bytes);
    let sum = crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn the_oldest_version_that_holds_the_state_is_what_is_written() {
    let (pr, information) = sample();
    assert_eq!(encode(&pr, &information, Some(&settings()), Some(&work())), V3);
    assert_eq!(encode(&pr, &information, Some(&settings_of_v4()), Some(&work())), V4);
}

/// Returns the sanitize journal of the fixture.
fn work() -> SanitizeJournal {
    SanitizeJournal::take(&mut Reader::new(&[1, 1, 1])).unwrap().unwrap()
}

/// Returns the settings of the fixture.
fn settings() -> Settings {
    Settings { write_cache: false, descriptor_sense: true, ..Settings::new(true, TaskRules::SHARED) }
}

/// Returns the settings of the fixture with those that version 4 adds.
fn settings_of_v4() -> Settings {
    Settings { provisioning_reports: ProvisioningReports { on: false, is_set: true }, ..settings() }
}

#[test]
fn every_version_is_read() {
    let first = decode(V1).unwrap();
    let second = PersistentState { settings: Some(settings()), ..first.clone() };
    assert_eq!(decode(V2).unwrap(), second);
    let third = PersistentState { sanitize_journal: Some(work()), ..second };
    assert_eq!(decode(V3).unwrap(), third);
    let settings = Some(settings_of_v4());
    assert_eq!(decode(V4).unwrap(), PersistentState { settings, ..third });
    let PersistentState { reservations: pr, information, settings, sanitize_journal: medium_work } = first;
    assert_eq!((settings, medium_work), (None, None));
    assert_eq!(information, sample().1);
    assert_eq!(pr.full_status().registrants, sample().0.full_status().registrants);
    assert_eq!(pr.kind(), Some(ReservationType::ExclusiveAccessRegistrantsOnly));
    let b = nexus(&port("iqn.1991-05.com.microsoft:node-b", 2), 2);
    assert_eq!(pr.role_of(&b), PrRole::Holder);
    assert!(pr.persists());
    assert_eq!(pr.keys().generation, 0, "a power cycle sets it to zero");
    assert_eq!(decode(&encode(&pr, &information, None, None)), decode(V1));
}

#[test]
fn nothing_to_survive_is_no_bytes() {
    let none = PersistentState::nothing();
    assert_eq!(encode(&none.reservations, &none.information, None, None), [0_u8; 0]);
    assert_eq!(decode(&[]), Ok(none));
}

#[test]
fn reservations_without_aptpl_are_left_out() {
    let (_, information) = sample();
    let mut volatile = PersistentReservations::new();
    let a = nexus(&port("iqn.a", 1), 1);
    let register = BasicList { service_action_key: ReservationKey(1), ..BasicList::default() };
    volatile
        .out(&a, Request::Register(register), KnownPorts { target_ports: &PORTS, initiator_ports: &[] })
        .unwrap();
    let back = decode(&encode(&volatile, &information, None, None)).unwrap();
    assert_eq!(back, PersistentState { information, ..PersistentState::nothing() });
}

#[test]
fn the_checksum_is_crc32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

/// CVE-2025-57275 was a state file that was not checked. Every truncation and every flipped bit of the
/// fixture is an error.
#[test]
fn a_damaged_state_is_an_error() {
    for len in 1..V3.len() {
        assert!(decode(&V3[..len]).is_err(), "cut to {len}");
    }
    for at in 0..V3.len() * 8 {
        let mut bytes = V3.to_vec();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(decode(&bytes).is_err(), "bit {at} flipped");
    }
}

#[test]
fn a_state_that_lies_with_a_good_checksum_is_an_error() {
    assert!(decode(&forged(|_| {})).is_ok());
    for (change, why) in [
        ((|bytes| bytes[0] = b'x') as fn(&mut Vec<u8>), StateDecodeError::Foreign),
        (|bytes| bytes[5] = 5, StateDecodeError::UnknownVersion(5)),
        // Whether settings are saved, and their bits.
        (|bytes| *bytes.iter_mut().nth_back(5).unwrap() = 0, StateDecodeError::Inconsistent),
        (|bytes| *bytes.iter_mut().nth_back(5).unwrap() = 2, StateDecodeError::Inconsistent),
        (|bytes| *bytes.iter_mut().nth_back(3).unwrap() |= 0x80, StateDecodeError::Inconsistent),
        // The sanitize journal.
        (|bytes| *bytes.iter_mut().nth_back(2).unwrap() = 5, StateDecodeError::Inconsistent),
        (|bytes| *bytes.last_mut().unwrap() = 2, StateDecodeError::Inconsistent),
        // APTPL, type, holder, count.
        (|bytes| bytes[6] = 0, StateDecodeError::Inconsistent),
        (|bytes| bytes[6] = 2, StateDecodeError::Inconsistent),
        (|bytes| bytes[7] = 2, StateDecodeError::Inconsistent),
        (|bytes| bytes[7] = 0, StateDecodeError::Inconsistent),
        (|bytes| bytes[7] = 7, StateDecodeError::Inconsistent),
        (|bytes| bytes[9] = 3, StateDecodeError::Inconsistent),
        (|bytes| bytes[8..10].fill(0xff), StateDecodeError::Inconsistent),
        (|bytes| bytes[10..12].fill(0xff), StateDecodeError::Inconsistent),
        (|bytes| bytes[11] = 2, StateDecodeError::Truncated),
        (|bytes| bytes[11] = 4, StateDecodeError::Truncated),
        // Key, length of the TransportID, its format.
        (|bytes| bytes[12..20].fill(0), StateDecodeError::Inconsistent),
        (|bytes| bytes[22..24].fill(0xff), StateDecodeError::Truncated),
        (|bytes| bytes[24] = 0xff, StateDecodeError::Inconsistent),
        (|bytes| bytes.push(0), StateDecodeError::Inconsistent),
        (|bytes| bytes.resize(MAX_LEN, 0), StateDecodeError::TooLong),
    ] {
        assert_eq!(decode(&forged(change)), Err(why));
    }
}

#[test]
fn the_same_nexus_twice_is_an_error() {
    // The first registrant occupies bytes 12..76; the count is incremented.
    let bytes = forged(|bytes| {
        let first = bytes[12..76].to_vec();
        bytes.splice(12..12, first);
        bytes[9] += 1;
        bytes[11] += 1;
    });
    assert_eq!(decode(&bytes), Err(StateDecodeError::Inconsistent));
}

#[test]
fn a_state_tells_of_its_unfinished_sanitize_operation() {
    assert_eq!(unfinished_sanitize(V3), Some(UnfinishedSanitize::Failed));
    let journal = SanitizeJournal::take(&mut Reader::new(&[2, 0, 0])).unwrap();
    let information = IdentifyingInformation::default();
    let running = encode(&PersistentReservations::new(), &information, None, journal.as_ref());
    assert_eq!(unfinished_sanitize(&running), Some(UnfinishedSanitize::InProgress));
    for none in [&[][..], &[0], V2, &V3[..V3.len() - 1]] {
        assert_eq!(unfinished_sanitize(none), None);
    }
}
