//! Payloads of HyperSCSI frames, each read as what its first byte says: whatever a parser takes, it reads the
//! same after our encoder wrote it.
#![no_main]

use ground::{Operations, hyper};
use hyperscsi::frame::{Cmd, Flags, Header};
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

const HEADER: Header = Header {
    tag: 0,
    last: true,
    fragment: 0,
    protected: false,
    cmd: Cmd::Request,
    flags: Flags(0),
    len: 0,
    sid: 1,
    pn: 1,
    xid: 1,
    off: 0,
};

fuzz_target!(|input: &[u8]| {
    for (which, payload) in Operations::of(input) {
        let flags = Flags(which >> 5 & (Flags::ACKS.0 | Flags::PARTS.0));
        let cmd = CMDS[usize::from(which & 0x1f) % CMDS.len()];
        if cmd.has_parts() || !flags.has(Flags::PARTS) {
            hyper::read(&Header { cmd, flags, ..HEADER }, payload);
        }
    }
});
