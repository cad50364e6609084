use base::buffer::{Bytes, DataList};
use base::rng::Rng;
use store::api::{Extent, Fault};

use super::*;
use crate::testing::seed;

const TOLD: DeviceParams = DeviceParams { len: 1 << 20, block: 4096, io_len_max: 64 << 10, cache: true };

/// Formats a request for comparison.
fn shown(op_flags: u32, start: u64, sectors: u32) -> String {
    understood(&Descriptor { op_flags, sectors, start, addr: 0 }, &TOLD)
}

fn understood(request: &Descriptor, told: &DeviceParams) -> String {
    match parse_request(request, told) {
        Ok(Request::Read { at, len }) => format!("read {at}+{len}"),
        Ok(Request::Write { at, len, durability }) => format!("write {at}+{len} {durability:?}"),
        Ok(Request::Plain(OpAction::Flush)) => "flush".to_owned(),
        Ok(Request::Plain(OpAction::Deallocate { at, len })) => format!("discard {at}+{len}"),
        Ok(Request::Plain(OpAction::WriteZeroes { at, len, may_deallocate, durability })) => {
            format!("zero {at}+{len} {durability:?}{}", if may_deallocate { " hole" } else { "" })
        }
        Ok(other) => format!("{other:?}"),
        Err(errno) => format!("error {errno}"),
    }
}

#[test]
fn requests_mean_what_the_kernel_means() {
    for (op_flags, start, sectors, meaning) in [
        (0, 0, 8, "read 0+4096"),
        // Reads and writes with all hints of the kernel: fail fast, metadata, swap.
        (0x1_0f00, 8, 16, "read 4096+8192"),
        (1, 8, 8, "write 4096+4096 Cached"),
        (1 | REQUEST_FUA, 8, 8, "write 4096+4096 Stable"),
        (2, 0, 0, "flush"),
        (3, 16, 2032, "discard 8192+1040384"),
        (5, 0, 2048, "zero 0+1048576 Cached hole"),
        (5 | REQUEST_NOUNMAP, 0, 8, "zero 0+4096 Cached"),
        (5 | REQUEST_FUA, 0, 8, "zero 0+4096 Stable hole"),
    ] {
        assert_eq!(shown(op_flags, start, sectors), meaning);
    }
}

#[test]
fn refuses_what_cannot_be() {
    for (op_flags, start, sectors, errno) in [
        (0, 2048, 8, libc::EIO),
        (0, 2040, 16, libc::EIO),
        (0, u64::MAX, 8, libc::EIO),
        (0, u64::MAX / 512, 8, libc::EIO),
        (1, 0, 0, libc::EIO),
        (1, 1, 8, libc::EIO),
        (1, 0, 7, libc::EIO),
        (1, 0, 129, libc::EIO),
        (0, 0, 136, libc::EIO),
        (3, 0, u32::MAX, libc::EIO),
        (4, 0, 8, libc::EOPNOTSUPP),
        (18, 0, 8, libc::EOPNOTSUPP),
        (255, 0, 8, libc::EOPNOTSUPP),
    ] {
        assert_eq!(shown(op_flags, start, sectors), format!("error {errno}"), "{op_flags} {start} {sectors}");
    }
    let no_blocks = DeviceParams { block: 0, ..TOLD };
    let read = Descriptor { op_flags: 0, sectors: 8, start: 0, addr: 0 };
    assert_eq!(understood(&read, &no_blocks), format!("error {}", libc::EIO));
}

#[test]
fn a_cache_that_the_kernel_does_not_know_is_not_used() {
    let untold = DeviceParams { cache: false, ..TOLD };
    let write = Descriptor { op_flags: 1, sectors: 8, start: 0, addr: 0 };
    assert_eq!(understood(&write, &untold), "write 0+4096 Stable");
    assert_eq!(understood(&write, &TOLD), "write 0+4096 Cached", "a flush follows");
}

#[test]
fn whatever_is_asked_stays_within_the_device() {
    let mut rng = Rng::from_seed(seed());
    let mut good = 0;
    for _ in 0..100_000 {
        let near =
            |rng: &mut Rng, max: u64| if rng.below(4) == 0 { rng.next_u64() } else { rng.below(max) * 8 };
        let start = near(&mut rng, 300);
        let sectors = near(&mut rng, 40) as u32;
        let op_flags = rng.next_u64() as u32 & !0xf8;
        let request = Descriptor { op_flags, sectors, start, addr: rng.next_u64() };
        let (at, len) = match parse_request(&request, &TOLD) {
            Ok(Request::Read { at, len } | Request::Write { at, len, .. }) => {
                assert!(len as u64 <= TOLD.io_len_max);
                (at, len as u64)
            }
            Ok(Request::Plain(OpAction::Flush)) | Err(_) => continue,
            Ok(Request::Plain(action)) => action.range(),
        };
        good += 1;
        assert!(len > 0 && at + len <= TOLD.len && at % TOLD.block == 0 && len % TOLD.block == 0);
        assert_eq!((at / 512, len / 512), (start, sectors.into()));
    }
    assert!(good > 1000, "only {good} requests were good");
}

#[test]
fn answers_say_how_much_is_done_or_why_not() {
    let data = |len| Ok(OpOutput::Data(DataList::from(Bytes::copied_from(&vec![0; len]))));
    let extent = Extent { at: 0, len: 1, state: store::api::ExtentState::Hole };
    for (len, outcome, answer) in [
        (4096, data(4096), 4096),
        (4096, data(4095), -libc::EIO),
        (4096, Ok(OpOutput::Done(DataList::new())), 4096),
        (0, Ok(OpOutput::Done(DataList::new())), 0),
        (0, Ok(OpOutput::MapStatus(vec![extent])), -libc::EIO),
        (4096, Err(Fault::Medium.into()), -libc::EIO),
        (4096, Err(Fault::NoSpace.into()), -libc::ENOSPC),
        (0, Err(Fault::Unsupported.into()), -libc::EOPNOTSUPP),
        (4096, Err(Fault::ReadOnly.into()), -libc::EROFS),
    ] {
        assert_eq!(result(len, &outcome), answer, "{len} {outcome:?}");
    }
}

#[test]
fn a_tag_is_served_answered_and_served_again() {
    let mut tags = Tags::new(2);
    assert_eq!(tags.arrived(1, 0), TagCompletion::Request(1));
    assert_eq!(tags.arrived(1, 0), TagCompletion::Unasked, "its request is with us");
    assert!(tags.answer(0, 0).is_none(), "it has no request");
    let commit = tags.answer(1, -5).unwrap();
    assert_eq!((commit.tag, commit.result), (1, -5));
    assert!(tags.answer(1, 0).is_none(), "answered twice");
    assert_eq!(tags.arrived(1, 0), TagCompletion::Request(1));
}

#[test]
fn the_end_is_reached_once_every_tag_has_ended() {
    let mut tags = Tags::new(3);
    assert_eq!(tags.arrived(0, 0), TagCompletion::Request(0));
    assert_eq!(tags.arrived(1, ABORTED), TagCompletion::Ended);
    assert_eq!(tags.arrived(1, ABORTED), TagCompletion::Unasked);
    assert_eq!(tags.arrived(2, -libc::EINVAL), TagCompletion::Refused(libc::EINVAL));
    assert!(!tags.are_ended(), "a request is with us");
    assert!(tags.answer(0, 512).is_some());
    assert!(!tags.are_ended(), "its answer is under way");
    assert_eq!(tags.arrived(0, ABORTED), TagCompletion::Ended);
    assert!(tags.are_ended());
}

#[test]
fn completions_of_no_tag_are_told_apart() {
    let mut tags = Tags::new(2);
    for name in [2, 65535, 65536, u64::MAX] {
        assert_eq!(tags.arrived(name, 0), TagCompletion::Unasked);
    }
    assert!(tags.answer(2, 0).is_none());
}
