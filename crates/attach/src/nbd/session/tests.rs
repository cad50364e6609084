use std::sync::{Arc, Mutex};

use base::rng::Rng;
use store::shared::SharedStore;

use super::*;
use crate::testing::{Medium, seed};
use crate::unaligned::UnalignedStore;

const MIB: u64 = 1 << 20;
const CHUNK_ERROR: u16 = 0x8001;

type Results = Arc<Mutex<Vec<(Ticket, Result<OpOutput, Failure>)>>>;

/// A client in memory: sends what the test gives it, and keeps what it receives.
struct Client {
    session: Session,
    medium: Arc<Medium>,
    disk: UnalignedStore,
    results: Results,
    heard: Vec<u8>,
}

/// A reply as a client understands it.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Simple { cookie: u64, error: u32 },
    Chunk { cookie: u64, kind: u16, payload: Vec<u8> },
}

impl Client {
    fn new() -> Self {
        Self::of(Medium::new(4 * MIB, 512, 1 << 20))
    }

    fn of(medium: Arc<Medium>) -> Self {
        let disk = UnalignedStore::new(Arc::clone(&medium) as Arc<dyn SharedStore>);
        let export =
            Export { name: "disk".to_owned(), description: "a disk".to_owned(), ..Export::default() };
        let session = Session::new(export, disk.capabilities(), Pool::new(1 << 20));
        Self { session, medium, disk, results: Arc::default(), heard: Vec::new() }
    }

    /// Returns a client that chose the disk and may send requests.
    fn ready(structured: bool) -> Self {
        Self::ready_of(Medium::new(4 * MIB, 512, 1 << 20), structured)
    }

    fn ready_of(medium: Arc<Medium>, structured: bool) -> Self {
        let mut client = Self::of(medium);
        client.says(&3_u32.to_be_bytes());
        if structured {
            client.option(8, &[]);
            client.option(10, &contexts("", &["base:allocation"]));
        }
        client.option(7, &info("", &[]));
        client.hears();
        client
    }

    fn says(&mut self, bytes: &[u8]) {
        self.session.received(bytes);
        self.turn();
    }

    /// Passes operations to the medium and answers back, until there is nothing left to do.
    fn turn(&mut self) {
        loop {
            let results = std::mem::take(&mut *self.results.lock().unwrap());
            let idle = results.is_empty() && !self.session.has_output();
            for (ticket, result) in results {
                self.session.completed(ticket, result);
            }
            while let Some((ticket, action)) = self.session.poll() {
                let results = Arc::clone(&self.results);
                let put = move |result| results.lock().unwrap().push((ticket, result));
                self.disk.submit(action, Box::new(put));
            }
            let mut out = Transmit::new();
            self.session.transmit(&mut out);
            self.heard.extend(out.pieces().flatten());
            if idle {
                return;
            }
        }
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        self.says(&bytes);
    }

    fn request(&mut self, cookie: u64, command: u16, flags: u16, at: u64, len: u32) {
        self.says(&request(cookie, command, flags, at, len));
    }

    fn write(&mut self, cookie: u64, flags: u16, at: u64, data: &[u8]) {
        let mut bytes = request(cookie, 1, flags, at, data.len() as u32).to_vec();
        bytes.extend(data);
        self.says(&bytes);
    }

    fn hears(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.heard)
    }

    /// Returns the kinds of the replies to an option, and the data of the last reply.
    fn option_replies(&mut self, option: u32) -> (Vec<u32>, Vec<u8>) {
        let heard = self.hears();
        let (mut rest, mut kinds, mut last) = (&heard[..], Vec::new(), Vec::new());
        while !rest.is_empty() {
            assert_eq!(rest[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
            assert_eq!(rest[8..12], option.to_be_bytes());
            kinds.push(u32::from_be_bytes(rest[12..16].try_into().unwrap()));
            let len = u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize;
            last = rest[20..20 + len].to_vec();
            rest = &rest[20 + len..];
        }
        (kinds, last)
    }

    /// Returns the only reply that was received, and the data of `data_len` bytes after a simple one.
    fn reply(&mut self, data_len: usize) -> (Reply, Vec<u8>) {
        let (mut replies, data) = self.replies(data_len);
        assert_eq!(replies.len(), 1);
        (replies.remove(0), data)
    }

    fn replies(&mut self, data_len: usize) -> (Vec<Reply>, Vec<u8>) {
        let heard = self.hears();
        let (mut rest, mut replies, mut data) = (&heard[..], Vec::new(), Vec::new());
        let u32_at = |rest: &[u8], at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let u64_at = |rest: &[u8], at: usize| u64::from_be_bytes(rest[at..at + 8].try_into().unwrap());
        while !rest.is_empty() {
            if u32_at(rest, 0) == 0x6744_6698 {
                let error = u32_at(rest, 4);
                let follows = if error == 0 { data_len } else { 0 };
                data = rest[16..16 + follows].to_vec();
                replies.push(Reply::Simple { cookie: u64_at(rest, 8), error });
                rest = &rest[16 + follows..];
            } else {
                assert_eq!(u32_at(rest, 0), 0x668e_33ef);
                assert_eq!(rest[4..6], [0, 1], "one chunk, the last");
                let len = u32_at(rest, 16) as usize;
                let kind = u16::from_be_bytes([rest[6], rest[7]]);
                let payload = rest[20..20 + len].to_vec();
                replies.push(Reply::Chunk { cookie: u64_at(rest, 8), kind, payload });
                rest = &rest[20 + len..];
            }
        }
        (replies, data)
    }

    fn error(&mut self) -> u32 {
        match self.reply(0).0 {
            Reply::Simple { error, .. } => error,
            Reply::Chunk { kind, payload, .. } => {
                assert_eq!(kind, CHUNK_ERROR);
                u32::from_be_bytes(payload[..4].try_into().unwrap())
            }
        }
    }
}

fn request(cookie: u64, command: u16, flags: u16, at: u64, len: u32) -> [u8; 28] {
    let mut bytes = [0; 28];
    bytes[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    bytes[4..6].copy_from_slice(&flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&command.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&at.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    bytes
}

fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn info(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = counted(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(counted(query)));
    data
}

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const META_CONTEXT: u32 = 4;
const ERR_UNSUP: u32 = 0x8000_0001;
const ERR_INVALID: u32 = 0x8000_0003;
const ERR_UNKNOWN: u32 = 0x8000_0006;
const ERR_SHUTDOWN: u32 = 0x8000_0007;
const ERR_TOO_BIG: u32 = 0x8000_0009;

#[test]
fn greets_and_haggles() {
    let mut client = Client::new();
    client.turn();
    assert_eq!(client.hears(), b"NBDMAGICIHAVEOPT\x00\x03");
    client.says(&3_u32.to_be_bytes());
    client.option(3, &[]);
    let (kinds, _) = client.option_replies(3);
    assert_eq!(kinds, [SERVER, ACK]);
    client.option(6, &info("disk", &[3, 2, 1, 77]));
    let (kinds, _) = client.option_replies(6);
    assert_eq!(kinds, [INFO, INFO, INFO, INFO, ACK]);
    for (option, data, expected) in [
        (5, vec![], ERR_UNSUP),
        (11, vec![], ERR_UNSUP),
        (3, vec![1], ERR_INVALID),
        (8, vec![1], ERR_INVALID),
        (6, info("other", &[]), ERR_UNKNOWN),
        (7, info("other", &[]), ERR_UNKNOWN),
        (7, vec![0, 0, 0, 9, 1], ERR_INVALID),
        (7, [info("", &[]), vec![0]].concat(), ERR_INVALID),
        (10, contexts("", &["base:allocation"]), ERR_INVALID),
        (7, vec![0; 70_000], ERR_TOO_BIG),
    ] {
        client.option(option, &data);
        assert_eq!(client.option_replies(option).0, [expected], "option {option}");
    }
    client.option(2, b"farewell");
    assert_eq!(client.option_replies(2).0, [ACK]);
    assert!(client.session.is_over());
}

#[test]
fn tells_what_the_disk_is() {
    let mut client = Client::new();
    client.says(&3_u32.to_be_bytes());
    client.hears();
    client.option(6, &info("", &[3]));
    let heard = client.hears();
    // Has flags, flush, FUA, trim, write zeroes, many connections, cache, fast zero.
    let flags = (1_u16 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11).to_be_bytes();
    assert_eq!(heard[20..32], [&[0, 0][..], &(4 * MIB).to_be_bytes(), &flags].concat());
    let sizes = [512_u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    assert_eq!(heard[52..66], [&[0, 3][..], &sizes].concat());
    client.medium.change_profile(|profile| profile.read_only = true);
    client.session.medium_is(client.disk.capabilities());
    client.option(6, &info("", &[]));
    assert_eq!(client.hears()[30..32], (1_u16 | 2 | 1 << 2 | 1 << 3 | 1 << 8 | 1 << 10).to_be_bytes());
}

#[test]
fn the_oldest_clients_are_served() {
    for (flags, zeros) in [(0_u32, 124), (1, 124), (3, 0)] {
        let mut client = Client::new();
        client.says(&flags.to_be_bytes());
        client.hears();
        client.option(1, b"disk");
        let heard = client.hears();
        assert_eq!(heard.len(), 10 + zeros);
        assert_eq!(heard[..8], (4 * MIB).to_be_bytes());
        client.request(1, 3, 0, 0, 0);
        assert_eq!(client.reply(0).0, Reply::Simple { cookie: 1, error: 0 });
    }
}

#[test]
fn who_breaks_the_rules_is_cut_off() {
    let cut = |says: &[&[u8]], why: ProtocolError| {
        let mut client = Client::new();
        says.iter().for_each(|bytes| client.says(bytes));
        assert_eq!(client.session.cut_off(), Some(why));
        assert!(client.session.is_over());
        client.says(b"more");
        assert!(!client.session.wants_input());
    };
    cut(&[&[0, 0, 0, 4]], ProtocolError::UnknownClientFlags);
    cut(&[&[0, 0, 0, 3], b"GET / HTTP/1.1\r\n\r\n"], ProtocolError::NotAnOption);
    cut(&[&[0, 0, 0, 3], b"IHAVEOPT\0\0\0\x01\0\0\0\x01x"], ProtocolError::UnknownExport);
    let go = [b"IHAVEOPT\0\0\0\x07\0\0\0\x06".to_vec(), info("", &[])].concat();
    cut(&[&[0, 0, 0, 3], &go, &[9; 28]], ProtocolError::NotARequest);
}

#[test]
fn contexts_are_listed_and_selected_for_one_export() {
    let mut client = Client::new();
    client.says(&3_u32.to_be_bytes());
    client.hears();
    client.option(8, &[]);
    client.hears();
    for (option, queries, expected) in [
        (9, &[][..], &[META_CONTEXT, ACK][..]),
        (9, &["base:"], &[META_CONTEXT, ACK]),
        (9, &["qemu:"], &[ACK]),
        (10, &["base:"], &[ACK]),
        (10, &[], &[ACK]),
        (10, &["x:y", "base:allocation"], &[META_CONTEXT, ACK]),
    ] {
        client.option(option, &contexts("disk", queries));
        assert_eq!(client.option_replies(option).0, expected, "option {option}, {queries:?}");
    }
    let lie = [counted("disk"), u32::MAX.to_be_bytes().to_vec()].concat();
    client.option(10, &lie);
    assert_eq!(client.option_replies(10).0, [ERR_INVALID]);
    // The failure unselected the context; a context that is selected for another name does not count.
    client.option(10, &contexts("disk", &["base:allocation"]));
    client.option(7, &info("", &[]));
    client.hears();
    client.request(1, 7, 0, 0, 4096);
    assert_eq!(client.error(), 22);
}

#[test]
fn reads_come_back_simple_or_in_a_chunk() {
    for structured in [false, true] {
        let mut client = Client::ready(structured);
        client.write(1, 0, 1000, &[7; 5000]);
        assert_eq!(client.reply(0).0, Reply::Simple { cookie: 1, error: 0 });
        client.request(2, 0, if structured { 1 << 2 } else { 0 }, 998, 6);
        let (reply, data) = client.reply(6);
        if structured {
            let payload = [&998_u64.to_be_bytes()[..], &[0, 0, 7, 7, 7, 7]].concat();
            assert_eq!(reply, Reply::Chunk { cookie: 2, kind: 1, payload });
        } else {
            assert_eq!((reply, data), (Reply::Simple { cookie: 2, error: 0 }, vec![0, 0, 7, 7, 7, 7]));
        }
    }
}

#[test]
fn each_command_reaches_the_medium_with_its_flags() {
    let mut client = Client::ready(true);
    for (command, flags, expected) in [
        (3_u16, 0_u16, &["flush 0+0"][..]),
        (4, 0, &["deallocate 4096+8192"]),
        (4, 1, &["deallocate 4096+8192", "flush 0+0"]),
        (5, 0, &["read 4096+8192"]),
        (6, 0, &["zero Cached hole 4096+8192"]),
        (6, 2, &["zero Cached 4096+8192"]),
        (6, 1, &["zero Stable hole 4096+8192"]),
        (6, 16, &["zero Cached hole 4096+8192"]),
        (7, 0, &["extents 4096+8192"]),
    ] {
        let (at, len) = if command == 3 { (0, 0) } else { (4096, 8192) };
        client.request(5, command, flags, at, len);
        assert_eq!(client.medium.log(), expected, "command {command}, flags {flags}");
        assert_ne!(client.hears(), [0_u8; 0]);
    }
    client.write(5, 1, 0, &[1; 512]);
    assert_eq!(client.medium.log(), ["write Stable 0+512"]);
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_done() {
    let end = 4 * MIB;
    let table = [
        // Command, flags, at, length, error.
        (0, 0, end, 1, 22),
        (0, 0, u64::MAX, 2, 22),
        (0, 2, 0, 512, 22),
        (0, 0, 0, 33 << 20, 22),
        (2 + 6, 0, 0, 0, 22),
        (99, 0, 0, 0, 22),
        (3, 0, 1, 0, 22),
        (4, 0, end - 1, 2, 22),
        (4, 2, 0, 512, 22),
        (5, 4, 0, 512, 22),
        (6, 0, end, 512, 28),
        (6, 16 | 2, 0, 512, 95),
        (6, 16, 1, 512, 95),
        (7, 0, 0, 0, 22),
        (7, 0, end, 1, 22),
    ];
    for structured in [false, true] {
        let mut client = Client::ready(structured);
        for (command, flags, at, len, error) in table {
            client.request(9, command, flags, at, len);
            assert_eq!(client.error(), error, "command {command}, flags {flags}, {at}+{len}");
        }
        // Deallocated blocks read as zeros, but zeroing writes them.
        client.medium.change_profile(|profile| profile.zeroes_by_deallocating = false);
        client.session.medium_is(client.disk.capabilities());
        client.request(9, 6, 16, 0, 512);
        assert_eq!(client.error(), 95);
        client.request(9, 0, 1 << 2, 0, 512);
        assert_eq!(client.hears()[..4] == 0x668e_33ef_u32.to_be_bytes(), structured);
        client.request(9, 7, 0, 0, 512);
        assert_eq!(client.hears()[..4] == 0x668e_33ef_u32.to_be_bytes(), structured);
        client.medium.log();
        client.write(9, 2, 0, &[1; 512]);
        assert_eq!(client.error(), 22);
        client.write(9, 0, end, &[1; 512]);
        assert_eq!(client.error(), 28);
        client.write(9, 0, 0, &vec![1; PAYLOAD_LEN_MAX + 1]);
        assert_eq!(client.error(), 28, "longer than the disk, too");
        assert_eq!(client.medium.log(), [""; 0]);
        // The next request is parsed correctly.
        client.write(9, 0, 0, &[]);
        assert_eq!(client.error(), 0);
    }
}

#[test]
fn a_read_only_disk_is_not_changed() {
    let medium = Medium::new(MIB, 512, 1 << 20);
    medium.change_profile(|profile| profile.read_only = true);
    let mut client = Client::ready_of(medium, false);
    client.write(1, 0, 0, &[1; 512]);
    assert_eq!(client.error(), 1);
    for command in [4, 6] {
        client.request(1, command, 0, 0, 512);
        assert_eq!(client.error(), 1);
    }
    assert_eq!(client.medium.log(), [""; 0]);
}

#[test]
fn a_grown_disk_is_seen_by_who_is_connected() {
    let mut client = Client::ready(false);
    client.request(1, 0, 0, 4 * MIB, 512);
    assert_eq!(client.error(), 22);
    client.medium.change_profile(|profile| profile.len = 8 * MIB);
    client.session.medium_is(client.disk.capabilities());
    client.request(1, 0, 0, 4 * MIB, 512);
    assert_eq!(client.reply(512).1, [0; 512]);
}

#[test]
fn failures_of_the_medium_are_told() {
    for structured in [false, true] {
        for (fault, error) in
            [(Fault::Medium, 5), (Fault::NoSpace, 28), (Fault::ReadOnly, 1), (Fault::Gone, 5)]
        {
            let mut client = Client::ready(structured);
            client.medium.fail(Some(fault.into()));
            client.request(1, 0, 0, 0, 512);
            assert_eq!(client.error(), error);
            client.request(1, 4, 1, 0, 512);
            assert_eq!(client.error(), error, "a trim that fails is not flushed");
            client.write(1, 0, 0, &[1; 512]);
            assert_eq!(client.error(), error);
        }
    }
}

#[test]
fn block_status_tells_holes() {
    let mut client = Client::ready(true);
    client.write(1, 0, 64 << 10, &[1; 4096]);
    client.hears();
    let run = |len: u32, state: u32| [len.to_be_bytes(), state.to_be_bytes()].concat();
    let payload = |runs: &[Vec<u8>]| [&1_u32.to_be_bytes()[..], &runs.concat()].concat();
    client.request(2, 7, 0, 0, 4 << 20);
    let whole = payload(&[run(64 << 10, 3), run(64 << 10, 0), run((4 << 20) - (128 << 10), 3)]);
    assert_eq!(client.reply(0).0, Reply::Chunk { cookie: 2, kind: 5, payload: whole });
    client.request(3, 7, 1 << 3, 1000, 200);
    let one = payload(&[run(200, 3)]);
    assert_eq!(client.reply(0).0, Reply::Chunk { cookie: 3, kind: 5, payload: one });
    client.medium.fail(Some(Fault::Unsupported.into()));
    client.request(4, 7, 0, 0, 1 << 20);
    let unknown = payload(&[run(1 << 20, 0)]);
    assert_eq!(client.reply(0).0, Reply::Chunk { cookie: 4, kind: 5, payload: unknown });
}

#[test]
fn answers_come_as_the_medium_is_done() {
    let mut client = Client::ready(false);
    client.medium.hold();
    (0..20).for_each(|cookie| client.request(cookie, 0, 0, cookie * 512, 512));
    assert_eq!(client.medium.held(), 20);
    assert_eq!(client.hears(), [0_u8; 0]);
    let mut rng = Rng::from_seed(seed());
    let mut cookies = Vec::new();
    while client.medium.release_one(&mut rng) {
        client.turn();
        let Reply::Simple { cookie, error: 0 } = client.reply(512).0 else { panic!("no success") };
        cookies.push(cookie);
    }
    assert!(!cookies.is_sorted());
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..20));
}

#[test]
fn takes_no_more_than_it_can_hold() {
    let mut client = Client::ready(false);
    client.medium.hold();
    let many: Vec<u8> = (0..1000).flat_map(|cookie| request(cookie, 0, 0, 0, 512)).collect();
    client.says(&many);
    assert_eq!(client.medium.held(), REQUESTS_MAX);
    assert!(!client.session.wants_input());
    client.medium.release();
    client.turn();
    assert!(client.session.wants_input());
    assert_eq!(client.replies(512).0.len(), 1000);

    client.medium.change_profile(|profile| profile.len = 64 << 20);
    client.session.medium_is(client.disk.capabilities());
    client.medium.hold();
    let long: Vec<u8> = (0..10).flat_map(|cookie| request(cookie, 0, 0, 0, 20 << 20)).collect();
    client.says(&long);
    assert_eq!(client.medium.held(), 40, "two requests of twenty operations each");
    client.medium.release();
    client.turn();
    assert_eq!(client.replies(20 << 20).0.len(), 10);
}

#[test]
fn payload_is_lent_room_for() {
    let mut client = Client::ready(false);
    assert!(client.session.take_rx_buffer().is_none());
    let payload: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
    client.says(&request(1, 1, 0, 512, payload.len() as u32));
    client.says(&payload[..100]);
    let mut at = 100;
    while let Some(mut rx_buffer) = client.session.take_rx_buffer() {
        assert!(rx_buffer.len_max > 0);
        let len = rx_buffer.len_max.min(70_000);
        rx_buffer.buf.append(&payload[at..at + len]);
        at += len;
        client.session.return_rx_buffer(rx_buffer);
    }
    client.turn();
    assert_eq!(at, payload.len());
    assert_eq!(client.error(), 0);
    assert_eq!(client.medium.bytes(512, payload.len()), payload);
}

#[test]
fn an_unfinished_write_is_never_begun() {
    let mut client = Client::ready(false);
    client.says(&request(1, 1, 0, 0, 4096));
    client.says(&[1; 4095]);
    client.session.input_ended();
    client.turn();
    assert!(client.session.is_over());
    assert_eq!(client.medium.log(), [""; 0]);
}

#[test]
fn a_disconnect_waits_for_what_is_under_way() {
    let mut client = Client::ready(false);
    client.medium.hold();
    client.write(1, 0, 0, &[1; 512]);
    client.request(0, 2, 0, 0, 0);
    assert!(!client.session.wants_input());
    assert!(!client.session.is_over());
    client.medium.release();
    client.turn();
    assert!(client.session.is_over());
    assert_eq!(client.medium.bytes(0, 512), [1; 512]);
}

#[test]
fn shutting_down_refuses_what_is_new_and_finishes_what_is_old() {
    let mut client = Client::ready(false);
    client.medium.hold();
    client.write(1, 0, 0, &[1; 512]);
    client.session.shut_down();
    client.request(2, 0, 0, 0, 512);
    assert_eq!(client.error(), 108);
    client.write(3, 0, 0, &[2; 512]);
    assert_eq!(client.error(), 108);
    assert!(!client.session.is_idle());
    client.medium.release();
    client.turn();
    assert_eq!(client.reply(0).0, Reply::Simple { cookie: 1, error: 0 });
    assert!(client.session.is_idle());
    let mut late = Client::new();
    late.session.shut_down();
    late.says(&3_u32.to_be_bytes());
    late.hears();
    late.option(7, &info("", &[]));
    assert_eq!(late.option_replies(7).0, [ERR_SHUTDOWN]);
}

/// Feeds half-valid bytes, cut anywhere: the session ends or continues, and holds a bounded number of bytes.
#[test]
fn hostile_bytes_do_no_harm() {
    let mut rng = Rng::from_seed(seed());
    for _ in 0..400 {
        let mut client = if rng.chance(1, 3) { Client::new() } else { Client::ready(rng.chance(1, 2)) };
        for _ in 0..60 {
            let len = [0, 1, 512, 5000, 1 << 20, u32::MAX][rng.below(6) as usize];
            let mut bytes = match rng.below(3) {
                0 => request(
                    rng.next_u64(),
                    rng.below(9) as u16,
                    rng.below(32) as u16,
                    rng.below(5 * MIB),
                    len,
                )
                .to_vec(),
                1 => {
                    let mut option = b"IHAVEOPT\0\0\0".to_vec();
                    option.push(rng.below(12) as u8);
                    option.extend(len.to_be_bytes());
                    option
                }
                _ => vec![rng.next_u64() as u8; rng.below(3000) as usize],
            };
            if rng.chance(1, 10) && !bytes.is_empty() {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << rng.below(8);
            }
            bytes.truncate(rng.below(bytes.len() as u64 + 1).max(1) as usize);
            client.says(&bytes);
            if rng.chance(1, 5)
                && let Some(mut rx_buffer) = client.session.take_rx_buffer()
            {
                rx_buffer.buf.append_zeros(rx_buffer.len_max.min(rng.below(10_000) as usize));
                client.session.return_rx_buffer(rx_buffer);
            }
            client.heard.clear();
            assert!(client.session.input.len() <= OPTION_LEN_MAX as usize + 8192);
        }
    }
}

#[test]
fn a_client_that_reads_no_answers_is_not_read_from() {
    let mut client = Client::new();
    client.says(&3_u32.to_be_bytes());
    let mut list = b"IHAVEOPT".to_vec();
    list.extend(3_u32.to_be_bytes());
    list.extend(0_u32.to_be_bytes());
    let sent = (0..10_000).take_while(|_| {
        client.session.received(&list);
        client.session.wants_input()
    });
    assert!(sent.count() < 1000);
    client.turn();
    assert!(client.session.wants_input());
}
