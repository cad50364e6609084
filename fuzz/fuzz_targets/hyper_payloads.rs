//! Payloads of HyperSCSI frames, each read as what its first byte says: whatever a parser takes, it reads the same after
//! our encoder wrote it.
#![no_main]

use ground::{Operations, hyper};
use hyperscsi::frame::{Cmd, Flags};
use libfuzzer_sys::fuzz_target;

const CMDS: [Cmd; 9] = [
    Cmd::Request,
    Cmd::Reply,
    Cmd::Discovery,
    Cmd::Negotiate,
    Cmd::Negotiated,
    Cmd::Disconnect,
    Cmd::Ask,
    Cmd::Ack,
    Cmd::Abort,
];

fuzz_target!(|input: &[u8]| {
    for (which, payload) in Operations::of(input) {
        let flags = if which & 0x80 == 0 { Flags::default() } else { Flags::ACKS };
        hyper::read(CMDS[usize::from(which & 0x7f) % CMDS.len()], flags, payload);
    }
});
