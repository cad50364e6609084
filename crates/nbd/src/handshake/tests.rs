use alloc::format;
use alloc::string::ToString;
use alloc::vec;

use super::*;
use crate::wire::{CHUNK_DONE, greeting, option_reply};

/// What a server says, one message after the other.
fn server_says(messages: &[&[u8]]) -> Vec<u8> {
    messages.concat()
}

fn reply(opt: Opt, kind: Rep, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    option_reply(&mut out, opt, kind, &[data]);
    out
}

fn export(len: u64, flags: u16) -> Vec<u8> {
    reply(Opt::GO, Rep::INFO, &[&[0, 0][..], &len.to_be_bytes(), &flags.to_be_bytes()].concat())
}

fn block_sizes(least: u32, preferred: u32, most: u32) -> Vec<u8> {
    let sizes = [least.to_be_bytes(), preferred.to_be_bytes(), most.to_be_bytes()].concat();
    reply(Opt::GO, Rep::INFO, &[&[0, 3][..], &sizes].concat())
}

fn go() -> Vec<u8> {
    reply(Opt::GO, Rep::ACK, &[])
}

fn no(opt: Opt) -> Vec<u8> {
    reply(opt, Rep::ERR_UNSUP, b"what?")
}

/// Feeds a negotiation in pieces of `piece` bytes. Returns the result and all that the client sent.
fn negotiate(said: &[u8], piece: usize) -> (Result<Option<ExportInfo>, HandshakeError>, Vec<u8>) {
    let mut handshake = Handshake::new("disk");
    let (mut left, mut sent) = (said, Vec::new());
    loop {
        let len = handshake.wanted().min(piece).min(left.len());
        let (bytes, rest) = left.split_at(len);
        left = rest;
        match handshake.received(bytes) {
            Ok(None) if len > 0 => sent.extend(handshake.take_output()),
            end => {
                assert!(left.is_empty() || end.is_err(), "{} bytes were left over", left.len());
                return (end, sent);
            }
        }
    }
}

#[test]
fn a_negotiation_is_the_bytes_of_the_protocol_however_they_are_split() {
    let context = [&[0, 0, 0, 9][..], b"base:allocation"].concat();
    let said = server_says(&[
        &greeting(),
        &reply(Opt::STRUCTURED_REPLY, Rep::ACK, &[]),
        &reply(Opt::SET_META_CONTEXT, Rep::META_CONTEXT, &context),
        &reply(Opt::SET_META_CONTEXT, Rep::ACK, &[]),
        &export(1 << 30, 0x6d),
        &reply(Opt::GO, Rep::INFO, &[0, 1, b'd']),
        &block_sizes(512, 4096, 1 << 25),
        &go(),
    ]);
    let asked = [
        &[0, 0, 0, 3][..],
        b"IHAVEOPT\0\0\0\x08\0\0\0\0",
        b"IHAVEOPT\0\0\0\x0a\0\0\0\x1f\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation",
        b"IHAVEOPT\0\0\0\x07\0\0\0\x0c\0\0\0\x04disk\0\x01\0\x03",
    ]
    .concat();
    let info = ExportInfo {
        len: 1 << 30,
        flags: 0x6d,
        block_len: 512,
        preferred_block_len: 4096,
        payload_len_max: 1 << 25,
        change_len_max: 1 << 31,
        structured: true,
        allocation_id: Some(9),
    };
    for piece in [1, 2, 3, 7, 19, 20, 21, 64, 8192] {
        let (result, sent) = negotiate(&said, piece);
        assert_eq!(result, Ok(Some(info)), "pieces of {piece}");
        assert_eq!(sent, asked, "pieces of {piece}");
    }
}

#[test]
fn a_server_may_refuse_what_is_optional() {
    let refused = server_says(&[&greeting(), &no(Opt::STRUCTURED_REPLY), &export(1000, 1), &go()]);
    let info = negotiate(&refused, 64).0.unwrap().unwrap();
    let usual = (info.block_len, info.preferred_block_len, info.payload_len_max);
    assert_eq!((info.structured, info.allocation_id, usual), (false, None, (1, 4096, 32 << 20)));

    let no_context = server_says(&[
        &greeting(),
        &reply(Opt::STRUCTURED_REPLY, Rep::ACK, &[]),
        &reply(Opt::SET_META_CONTEXT, Rep::ERR_POLICY, &[]),
        &export(1000, 0),
        &block_sizes(4096, 4096, u32::MAX),
        &go(),
    ]);
    let info = negotiate(&no_context, 64).0.unwrap().unwrap();
    assert_eq!((info.structured, info.allocation_id, info.flags), (true, None, 0));
    // The part of a block at the end cannot be read.
    assert_eq!((info.len, info.payload_len_max), (0, u32::MAX - 4095));
}

#[test]
fn servers_that_refuse_or_speak_nonsense_are_refused() {
    let begun = server_says(&[&greeting(), &no(Opt::STRUCTURED_REPLY)]);
    let after = |messages: &[&[u8]]| [&begun[..], &messages.concat()].concat();
    let big = b"\0\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\x7f\xff\xff\xff".to_vec();
    let refused = |kind: u32, text: &[u8]| after(&[&reply(Opt::GO, Rep(0x8000_0000 | kind), text)]);
    let many = vec![reply(Opt::GO, Rep::INFO, &[0, 9]).as_slice(); 100].concat();
    let quiet = HandshakeError::Refused(0x8000_0002, String::new());
    let table: Vec<(&str, Vec<u8>, HandshakeError)> = vec![
        ("another protocol", b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec(), HandshakeError::NotNbd),
        ("oldstyle", b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53\0\0".to_vec(), HandshakeError::NotNbd),
        ("not fixed", b"NBDMAGICIHAVEOPT\0\0".to_vec(), HandshakeError::NotFixedNewstyle),
        ("no reply", [&greeting()[..], &[7; 20]].concat(), HandshakeError::NotAnOptionReply),
        ("another option", [&greeting()[..], &go()].concat(), HandshakeError::OtherOption),
        ("a huge reply", after(&[&big]), HandshakeError::ReplyTooLong),
        ("replies without end", after(&[&many]), HandshakeError::TooManyReplies),
        ("a short reply", after(&[&reply(Opt::GO, Rep::INFO, &[0])]), HandshakeError::MalformedReply),
        ("a long reply", after(&[&reply(Opt::GO, Rep::INFO, &[0; 13])]), HandshakeError::MalformedReply),
        ("a list", after(&[&reply(Opt::GO, Rep::SERVER, &[])]), HandshakeError::MalformedReply),
        ("no size", after(&[&go()]), HandshakeError::NoExportInfo),
        (
            "no power of two",
            after(&[&export(9, 1), &block_sizes(3, 4096, 9999), &go()]),
            HandshakeError::BadBlockSizes,
        ),
        ("zero", after(&[&export(9, 1), &block_sizes(0, 4096, 9999), &go()]), HandshakeError::BadBlockSizes),
        (
            "huge blocks",
            after(&[&export(9, 1), &block_sizes(1 << 17, 1 << 17, 1 << 20), &go()]),
            HandshakeError::BadBlockSizes,
        ),
        (
            "tiny payloads",
            after(&[&export(9, 1), &block_sizes(1, 4096, 512), &go()]),
            HandshakeError::PayloadTooShort,
        ),
        ("no GO", refused(1, b""), HandshakeError::NoGo),
        ("no export", refused(6, b""), HandshakeError::UnknownExport),
        ("TLS", refused(5, b""), HandshakeError::TlsRequired),
        ("policy", refused(2, b""), quiet),
    ];
    for (what, said, error) in table {
        for piece in [1, 5, 8192] {
            let (result, _) = negotiate(&said, piece);
            assert_eq!(result, Err(error.clone()), "{what}, pieces of {piece}");
        }
    }
    let shown = negotiate(&refused(2, b"only\non weekdays"), 64).0.unwrap_err().to_string();
    assert_eq!(shown, "the server refuses the export: onlyon weekdays");
    let long = "x".repeat(5000);
    let shown = format!("{}", negotiate(&refused(2, long.as_bytes()), 64).0.unwrap_err());
    assert!(shown.len() < 300, "{shown}");
    assert_eq!(CHUNK_DONE, 1);
}

#[test]
fn what_another_process_has_negotiated_is_checked() {
    let good = ExportInfo {
        len: 1 << 30,
        flags: 0x6d,
        block_len: 512,
        preferred_block_len: 4096,
        payload_len_max: 1 << 25,
        change_len_max: CHANGE_LEN_MAX,
        structured: true,
        allocation_id: None,
    };
    assert_eq!(good.checked(), Ok(good));
    for bad in [
        ExportInfo { len: (1 << 30) + 1, ..good },
        ExportInfo { block_len: 0, ..good },
        ExportInfo { block_len: 513, ..good },
        ExportInfo { block_len: 1 << 17, preferred_block_len: 1 << 17, ..good },
        ExportInfo { preferred_block_len: 0, ..good },
        ExportInfo { preferred_block_len: 256, ..good },
        ExportInfo { payload_len_max: (1 << 25) + 1, ..good },
        ExportInfo { change_len_max: 0, ..good },
    ] {
        assert_eq!(bad.checked(), Err(HandshakeError::BadBlockSizes), "{bad:?}");
    }
    for payload_len_max in [0, 2048] {
        let bad = ExportInfo { payload_len_max, ..good };
        assert_eq!(bad.checked(), Err(HandshakeError::PayloadTooShort), "{bad:?}");
    }
}
