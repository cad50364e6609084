use alloc::vec::Vec;

use scsi::pr::ReservationKey;

use super::*;

/// What a release with version 1 wrote: three registrants, the second of which holds Exclusive Access - Registrants
/// Only.
const V1: &[u8] = include_bytes!("v1.bin");

fn sample() -> PersistentReservations {
    let registrant = |name: &str, isid: u8, port: u16, key: u64| Registrant {
        nexus: NexusName {
            initiator_port: TransportId::iscsi_port(name, [0x00, 0x02, 0x3d, 0, 0, isid])
                .unwrap()
                .encode()
                .into(),
            target_port: RelativePort(port),
        },
        key: ReservationKey(key),
    };
    let registrants = Vec::from([
        registrant("iqn.1993-08.org.debian:01:node-a", 1, 1, 0x1234_5678_9abc_def0),
        registrant("iqn.1991-05.com.microsoft:node-b", 2, 2, 0x0000_4d53_0000_0001),
        registrant("iqn.1993-08.org.debian:01:node-a", 1, 2, 0x1234_5678_9abc_def0),
    ]);
    let holder = registrants[1].nexus.clone();
    PersistentReservations {
        registrants,
        reservation: Some(Held::ByOne(ReservationType::ExclusiveAccessRegistrantsOnly, holder)),
        generation: 0,
        persist: true,
        lost: false,
    }
}

/// The state with `change` made to it and the checksum put right.
fn forged(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = V1[..V1.len() - 4].to_vec();
    change(&mut bytes);
    let sum = crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn version_1_is_still_read() {
    assert_eq!(PersistentReservations::decode(V1), Ok(sample()));
}

#[test]
fn version_1_is_what_is_written() {
    assert_eq!(sample().encode(), V1);
}

#[test]
fn no_bytes_mean_no_reservations() {
    assert_eq!(PersistentReservations::decode(&[]), Ok(PersistentReservations::new()));
}

#[test]
fn the_checksum_is_crc32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

/// CVE-2025-57275 was a state file that was believed. Every cut and every flipped bit of ours is an error.
#[test]
fn a_damaged_state_is_an_error() {
    for len in 1..V1.len() {
        assert!(PersistentReservations::decode(&V1[..len]).is_err(), "cut to {len}");
    }
    for at in 0..V1.len() * 8 {
        let mut bytes = V1.to_vec();
        bytes[at / 8] ^= 1 << (at % 8);
        assert!(PersistentReservations::decode(&bytes).is_err(), "bit {at} flipped");
    }
}

#[test]
fn a_state_that_lies_with_a_good_checksum_is_an_error() {
    let inconsistent = |change: fn(&mut Vec<u8>)| {
        assert!(PersistentReservations::decode(&forged(|_| {})).is_ok());
        PersistentReservations::decode(&forged(change)).unwrap_err()
    };
    for (change, why) in [
        ((|bytes| bytes[0] = b'x') as fn(&mut Vec<u8>), StateFault::Foreign),
        (|bytes| bytes[5] = 2, StateFault::UnknownVersion(2)),
        (|bytes| bytes[6] = 2, StateFault::Inconsistent),
        (|bytes| bytes[6] = 0, StateFault::Inconsistent),
        (|bytes| bytes[6] = 7, StateFault::Inconsistent),
        (|bytes| bytes[9] = 3, StateFault::Inconsistent),
        (|bytes| bytes[8..10].fill(0xff), StateFault::Inconsistent),
        (|bytes| bytes[10..12].fill(0xff), StateFault::Inconsistent),
        (|bytes| bytes[11] = 2, StateFault::Inconsistent),
        (|bytes| bytes[11] = 4, StateFault::Truncated),
        (|bytes| bytes[12..20].fill(0), StateFault::Inconsistent),
        (|bytes| bytes[22..24].fill(0xff), StateFault::Truncated),
        (|bytes| bytes[24] = 0xff, StateFault::Inconsistent),
        (|bytes| bytes.push(0), StateFault::Inconsistent),
        (|bytes| bytes.resize(MAX_LEN, 0), StateFault::TooLong),
    ] {
        assert_eq!(inconsistent(change), why);
    }
}

#[test]
fn the_same_nexus_twice_is_an_error() {
    let mut twice = sample();
    let first = twice.registrants[0].clone();
    twice.registrants.push(first);
    assert_eq!(PersistentReservations::decode(&twice.encode()), Err(StateFault::Inconsistent));
}
