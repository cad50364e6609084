//! What a server can send that must not be believed.

use super::*;
use crate::wire::{
    CHUNK_BLOCK_STATUS, CHUNK_ERROR_OFFSET, CHUNK_NONE, CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE, Head,
};

const LEN: u32 = 8192;

/// Makes a chunk.
fn chunk(cookie: u64, is_last: bool, kind: u16, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let mut out = 0x668e_33ef_u32.to_be_bytes().to_vec();
    out.extend(u16::from(is_last).to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(cookie.to_be_bytes());
    out.extend(u32::try_from(content.len()).unwrap().to_be_bytes());
    out.extend(content);
    out
}

fn data(cookie: u64, is_last: bool, at: u64, len: usize) -> Vec<u8> {
    chunk(cookie, is_last, CHUNK_OFFSET_DATA, &[&at.to_be_bytes(), &vec![5; len]])
}

fn hole(cookie: u64, is_last: bool, at: u64, len: u32) -> Vec<u8> {
    chunk(cookie, is_last, CHUNK_OFFSET_HOLE, &[&at.to_be_bytes(), &len.to_be_bytes()])
}

fn rig(structured: bool) -> (Rig, u64) {
    let mut rig = Rig::new(Server::new(ExportInfo { structured, ..info(1 << 20) }));
    rig.read(4096, to_usize(LEN));
    rig.drain();
    let cookie = rig.server.seen[0].cookie;
    (rig, cookie)
}

#[test]
fn nonsense_ends_the_connection_and_the_operation_is_repeated_on_the_next() {
    use ProtocolError::*;
    let simple = |cookie, error| Head::simple(cookie, error).bytes().to_vec();
    let at = |offset: u64| 4096 + offset;
    let error = |kind: u16, content: Vec<u8>| move |cookie| chunk(cookie, true, kind, &[&content]);
    type Said = alloc::boxed::Box<dyn Fn(u64) -> Vec<u8>>;
    let said = |says: &'static dyn Fn(u64) -> Vec<u8>| -> Said { alloc::boxed::Box::new(says) };
    let table: Vec<(&str, bool, Said, ProtocolError)> = vec![
        ("no reply", true, said(&|_| b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), NotAReply),
        (
            "unknown cookie",
            true,
            said(&|cookie| Head::simple(cookie ^ 256, None).bytes().to_vec()),
            UnknownCookie,
        ),
        ("unknown slot", false, said(&|_| Head::simple(u64::MAX, None).bytes().to_vec()), UnknownCookie),
        (
            "simple reply",
            true,
            alloc::boxed::Box::new(move |cookie| simple(cookie, None)),
            UnexpectedSimpleReply,
        ),
        ("chunk", false, said(&|cookie| data(cookie, true, 4096, 8192)), UnexpectedChunk),
        ("before the range", true, said(&|cookie| data(cookie, true, 4095, 512)), ChunkOutsideRequest),
        (
            "after the range",
            true,
            alloc::boxed::Box::new(move |cookie| data(cookie, true, at(7681), 512)),
            ChunkOutsideRequest,
        ),
        ("far away", true, said(&|cookie| data(cookie, true, u64::MAX, 512)), ChunkOutsideRequest),
        ("too long", true, said(&|cookie| data(cookie, true, 4096, 8193)), ChunkLength),
        ("no data", true, said(&|cookie| data(cookie, true, 4096, 0)), ChunkLength),
        ("empty hole", true, said(&|cookie| hole(cookie, true, 4096, 0)), ChunkLength),
        ("huge hole", true, said(&|cookie| hole(cookie, true, 4096, u32::MAX)), ChunkOutsideRequest),
        (
            "twice",
            true,
            said(&|cookie| [data(cookie, false, 4096, 512), hole(cookie, true, 4607, 8)].concat()),
            ChunksOverlap,
        ),
        ("too little", true, said(&|cookie| data(cookie, true, 4096, 8191)), DataMissing),
        ("nothing", true, said(&|cookie| chunk(cookie, true, CHUNK_NONE, &[])), DataMissing),
        ("an end that goes on", true, said(&|cookie| chunk(cookie, false, CHUNK_NONE, &[])), ChunkLength),
        ("an end with content", true, said(&|cookie| chunk(cookie, true, CHUNK_NONE, &[b"x"])), ChunkLength),
        ("unknown kind", true, said(&|cookie| chunk(cookie, true, 77, &[&[0; 12]])), WrongChunk),
        (
            "status of a read",
            true,
            said(&|cookie| chunk(cookie, true, CHUNK_BLOCK_STATUS, &[&[0; 12]])),
            WrongChunk,
        ),
        ("short error", true, alloc::boxed::Box::new(error(0x8001, vec![0; 5])), ChunkLength),
        (
            "message too long",
            true,
            alloc::boxed::Box::new(error(0x8001, vec![0, 0, 0, 5, 0, 9, 1])),
            ChunkLength,
        ),
        ("huge error", true, alloc::boxed::Box::new(error(0x8001, vec![0; 9000])), ChunkLength),
        (
            "error elsewhere",
            true,
            alloc::boxed::Box::new(error(CHUNK_ERROR_OFFSET, vec![0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            ChunkOutsideRequest,
        ),
    ];
    for (what, structured, says, error) in table {
        for seed in 0..4 {
            let (mut rig, cookie) = rig(structured);
            rig.deliver(&says(cookie), &mut Rng::from_seed(seed));
            rig.drain();
            assert_eq!(rig.notices, [Notice::Broken(error)], "{what}, seed {seed}");
            assert!(rig.actions.contains(&ClientAction::Abort) && rig.ended().is_empty(), "{what}");
            rig.reconnect();
            rig.settle();
            assert_eq!(rig.ended(), [(OpId(1), None)], "{what}");
            assert_eq!(rig.notices.last(), Some(&Notice::Back(0)), "{what}");
        }
    }
}

#[test]
fn a_block_status_must_describe_something_of_the_context_that_was_chosen() {
    let table: [(&str, &[u8], ProtocolError); 4] = [
        ("nothing", &[0, 0, 0, 1], ProtocolError::ChunkLength),
        ("half", &[0, 0, 0, 1, 0, 0, 2, 0, 0, 0], ProtocolError::ChunkLength),
        ("no length", &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], ProtocolError::BadBlockStatus),
        ("another context", &[0, 0, 0, 7, 0, 0, 2, 0, 0, 0, 0, 0], ProtocolError::BadBlockStatus),
    ];
    for (what, content, error) in table {
        let mut rig = Rig::new(Server::new(info(1 << 20)));
        rig.submit(OpAction::MapStatus { at: 0, len: 4096, count_max: 4 });
        rig.drain();
        let cookie = rig.server.seen[0].cookie;
        rig.client.received(rig.now, &chunk(cookie, true, CHUNK_BLOCK_STATUS, &[content]));
        rig.drain();
        assert_eq!(rig.notices, [Notice::Broken(error)], "{what}");
    }
}

#[test]
fn chunks_in_any_order_and_split_anywhere_make_the_read() {
    let seed = 0x5eed_u64;
    let mut rng = Rng::from_seed(seed);
    for round in 0..300 {
        let (mut rig, cookie) = rig(true);
        let mut chunks: Vec<(u32, u32, bool)> = Vec::new();
        let mut at = 0;
        while at < LEN {
            let len = u32::try_from(1 + rng.below(2000)).unwrap().min(LEN - at);
            chunks.push((at, len, rng.chance(1, 3)));
            at += len;
        }
        for last in (1..chunks.len()).rev() {
            if rng.chance(1, 2) {
                chunks.swap(last, to_usize(rng.below(to_u64(last + 1))));
            }
        }
        let mut expected = vec![0; to_usize(LEN)];
        let mut said = Vec::new();
        for (index, (at, len, is_hole)) in chunks.iter().enumerate() {
            let is_last = index + 1 == chunks.len();
            if *is_hole {
                said.extend(hole(cookie, is_last, 4096 + u64::from(*at), *len));
            } else {
                let bytes: Vec<u8> = (0..*len).map(|_| u8::try_from(rng.below(256)).unwrap()).collect();
                expected[to_usize(*at)..to_usize(at + len)].copy_from_slice(&bytes);
                let offset = (4096 + u64::from(*at)).to_be_bytes();
                said.extend(chunk(cookie, is_last, CHUNK_OFFSET_DATA, &[&offset, &bytes]));
            }
        }
        rig.deliver(&said, &mut rng);
        assert_eq!(data_of(rig.result(OpId(1))), expected, "seed {seed}, round {round}");
    }
}

#[test]
fn errors_of_any_number_become_faults_and_keep_the_connection() {
    let table = [
        (1, Fault::ReadOnly),
        (5, Fault::Medium),
        (12, Fault::Medium),
        (22, Fault::Hardware),
        (28, Fault::NoSpace),
        (95, Fault::Unsupported),
        (0xffff_ffff, Fault::Medium),
    ];
    for (number, fault) in table {
        let (mut rig, cookie) = rig(true);
        let content = [&u32::to_be_bytes(number)[..], &[0, 2], b"no", &5000_u64.to_be_bytes()].concat();
        let said = chunk(cookie, true, CHUNK_ERROR_OFFSET, &[&content]);
        rig.deliver(&said, &mut Rng::from_seed(3));
        let failure = rig.result(OpId(1)).unwrap().unwrap_err();
        assert_eq!(failure, Failure { fault, at: Some(5000) }, "{number}");
        rig.drain();
        assert_eq!(rig.notices, []);
    }
    let (mut rig, cookie) = rig(false);
    rig.client.received(rig.now, Head::simple(cookie, Some(Errno::IO)).bytes());
    assert_eq!(rig.ended(), [(OpId(1), Some(Fault::Medium))]);
}
