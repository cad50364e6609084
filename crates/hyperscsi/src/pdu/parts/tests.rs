use super::*;
use crate::frame::Cmd;
use base::rng::Rng;

fn frame() -> Header {
    Header {
        tag: 3,
        last: true,
        fragment: 7,
        protected: true,
        cmd: Cmd::Reply,
        flags: Flags::ELICITS.with(Flags::PHASE).with(Flags::ENCRYPTED).with(Flags::ACKS).with(Flags::PARTS),
        len: 0,
        sid: 0x0102_0304,
        pn: 77,
        xid: 9,
        off: 0,
    }
}

fn part(len: u16) -> Header {
    Header {
        tag: 511,
        last: false,
        fragment: 1023,
        flags: Flags::DATA.with(Flags::GOOD),
        len,
        xid: 10,
        off: 4096,
        ..frame()
    }
}

/// Returns a payload: the block of the further parts, then the data of all parts.
fn payload(first: &[u8], further: &[(Header, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(further.iter().map(|(header, _)| *header), &mut out);
    out.extend_from_slice(first);
    further.iter().for_each(|(_, payload)| out.extend_from_slice(payload));
    out
}

fn read(header: &Header, payload: &[u8]) -> Result<Vec<(Header, Vec<u8>)>, Malformed> {
    let parts = Parts::parse(payload)?;
    let mut out = Vec::new();
    parts.each(header, &mut |header, payload| out.push((*header, payload.to_vec())));
    assert_eq!(out.len(), parts.count());
    Ok(out)
}

#[test]
fn each_part_has_the_header_that_it_would_have_in_a_frame_of_its_own() {
    let written = payload(b"first", &[(part(2), b"ab"), (part(0), b""), (part(3), b"xyz")]);
    assert_eq!(written[..18], [1, 3, 0, 46, 0x0f, 0xfb, 0xff, 0x18, 0, 2, 0, 0, 0, 10, 0, 0, 16, 0]);
    let parts = read(&frame(), &written).unwrap();
    let shared = Flags::ELICITS.with(Flags::PHASE).with(Flags::ENCRYPTED);
    let own = |len| Header { flags: part(0).flags.with(shared), ..part(len) };
    let want = [
        (Header { len: 5, ..frame() }, b"first".to_vec()),
        (own(2), b"ab".to_vec()),
        (own(0), Vec::new()),
        (own(3), b"xyz".to_vec()),
    ];
    assert_eq!(parts, want);
}

//= hyperscsi#section-4.11
//= type=test
//# A receiver MUST check the whole block before it looks at any part, and drop the payload whole if something
//# is wrong with it
#[test]
fn a_block_that_is_wrong_anywhere_leaves_nothing_of_the_payload() {
    let right = payload(b"first", &[(part(2), b"ab"), (part(3), b"xyz")]);
    let with = |at: usize, value: u8| {
        let mut wrong = right.clone();
        wrong[at] = value;
        read(&frame(), &wrong).map(|parts| parts.len())
    };
    assert_eq!(with(0, 1), Ok(3));
    assert_eq!(with(0, 2), Err(Malformed::Kind));
    // A count of 0, of more entries than the block has, of more parts than are allowed.
    for (count, want) in
        [(0, Malformed::Value), (3, Malformed::Short), (64, Malformed::Value), (255, Malformed::Value)]
    {
        assert_eq!(with(1, count), Err(want), "{count}");
    }
    // Wrong lengths of the block.
    for len in [3, 31, 33, 255] {
        assert!(with(3, len).is_err(), "{len}");
    }
    // In the last entry: reserved bits, flags that belong to the frame, more bytes than there are.
    assert_eq!(with(4 + 14, 0x1f), Err(Malformed::Value));
    for flag in [0x80, 0x40, 0x20, 0x04, 0x02, 0x01] {
        assert_eq!(with(4 + 14 + 3, flag), Err(Malformed::Value), "{flag:02x}");
    }
    assert_eq!(with(4 + 14 + 5, 8), Ok(3), "the first part may be empty");
    assert_eq!(with(4 + 14 + 5, 9), Err(Malformed::Short));
    assert_eq!(with(4 + 14 + 4, 1), Err(Malformed::Short));
}

#[test]
fn as_many_parts_as_there_may_be_are_read_and_no_more() {
    for (count, is_right) in [(PARTS_MAX - 1, true), (PARTS_MAX, false)] {
        let further: Vec<(Header, &[u8])> = (0..count).map(|_| (part(1), &b"x"[..])).collect();
        let parts = read(&frame(), &payload(b"", &further));
        assert_eq!(
            parts.map(|parts| parts.len()),
            if is_right { Ok(PARTS_MAX) } else { Err(Malformed::Value) }
        );
    }
}

#[test]
fn what_is_read_is_what_was_written_and_no_bytes_make_more_of_themselves() {
    for seed in 0..2000 {
        let mut rng = Rng::from_seed(seed);
        let mut bytes = [0; 64 << 1];
        rng.fill(&mut bytes);
        let mut slices = Vec::new();
        for _ in 0..=rng.below(5) {
            let len = usize::try_from(rng.below(20)).unwrap();
            let header = Header {
                tag: u16::try_from(rng.below(512)).unwrap(),
                last: rng.chance(1, 2),
                fragment: u16::try_from(rng.below(1024)).unwrap(),
                flags: Flags(
                    frame().flags.0 & 0xe0 | [0, 0x08, 0x10, 0x18][usize::try_from(rng.below(4)).unwrap()],
                ),
                len: u16::try_from(len).unwrap(),
                xid: u32::try_from(rng.below(1 << 32)).unwrap(),
                off: u32::try_from(rng.below(1 << 32)).unwrap(),
                ..frame()
            };
            slices.push((header, &bytes[..len]));
        }
        let first = &bytes[..usize::try_from(rng.below(20)).unwrap()];
        let mut written = payload(first, &slices);
        let parts = read(&frame(), &written).unwrap();
        assert_eq!(parts[0].1, first, "seed {seed}");
        let want: Vec<_> = slices.iter().map(|(header, payload)| (*header, payload.to_vec())).collect();
        assert_eq!(parts[1..], want, "seed {seed}");
        // With any bytes, parts never overlap and never reach beyond the payload.
        for _ in 0..4 {
            let at = usize::try_from(rng.below(written.len() as u64)).unwrap();
            written[at] = bytes[at % bytes.len()];
            if rng.chance(1, 4) {
                written.truncate(at);
            }
            if let Ok(parts) = read(&frame(), &written) {
                let whole = parts.iter().map(|(_, payload)| payload.len()).sum::<usize>();
                let block = usize::from(u16::from_be_bytes([written[2], written[3]]));
                assert_eq!(block + whole, written.len(), "seed {seed}");
            }
            if written.is_empty() {
                break;
            }
        }
    }
}
