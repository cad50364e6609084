//! Tests of traces whose clients fail, without reactors.

use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use iscsi::trace::TracedPdu;

use super::*;
use crate::admin::change_api::SessionSelector;
use crate::scratch::Scratch;

/// Longer than what a pair of sockets holds.
const CAPTURE_LEN: usize = 8 << 20;

fn request(initiator: &str) -> TraceRequest {
    TraceRequest {
        sessions: SessionSelector { initiator: initiator.to_owned(), target: None, isid: None },
        plain: false,
        follow: true,
        snap: None,
        count: None,
        seconds: None,
        buffer_mib: Some(64),
    }
}

struct Audited {
    scratch: Scratch,
    audit: Arc<AuditLog>,
}

impl Audited {
    fn new() -> Self {
        let scratch = Scratch::new();
        let audit = Arc::new(AuditLog::new(scratch.path().join("audit.log")));
        Self { scratch, audit }
    }

    fn file(&self) -> PathBuf {
        self.scratch.path().join("audit.log")
    }

    /// Starts a trace, whose client has not been answered yet.
    fn start(&self, initiator: &str) -> Client {
        let peer = Peer::Token { name: "test".to_owned(), address: Ipv4Addr::LOCALHOST.into() };
        let mut client = Client::new(peer);
        start(&Vec::new(), &self.audit, Some(request(initiator)), &mut client).unwrap();
        client
    }

    /// Returns the ends of traces that the audit log contains.
    fn ends(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.file()).unwrap();
        text.lines().filter(|line| line.contains("\"trace end\"")).map(str::to_owned).collect()
    }
}

#[test]
fn a_trace_whose_client_cannot_be_answered_ends() {
    let audited = Audited::new();
    for number in 1..=TRACES_MAX + 1 {
        drop(audited.start("iqn.2026-01.test:gone"));
        let ends = audited.ends();
        assert_eq!(ends.len(), number);
        assert!(ends.iter().all(|line| line.contains("the client is gone or does not read")), "{ends:?}");
    }
}

#[test]
fn nothing_follows_a_piece_that_was_sent_in_part() {
    let audited = Audited::new();
    let initiator = "iqn.2026-01.test:pauses";
    let mut client = audited.start(initiator);
    let mut running = RUNNING.lock().unwrap().clone().into_iter().filter_map(|trace| trace.upgrade());
    let recorder = running.find(|trace| trace.selection().initiator == initiator).unwrap();
    let connection = recorder.opened("192.0.2.1:3260".parse().unwrap(), "192.0.2.2:40000".parse().unwrap());
    let data = vec![7; CAPTURE_LEN];
    let parts: [&[u8]; 1] = [&data];
    let pdu =
        TracedPdu { received: true, header: &[1; 48], data: &parts, data_len: CAPTURE_LEN, trailer: &[] };
    recorder.record(connection, &pdu);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let reader = std::thread::spawn(move || {
        // The client reads on once the daemon has given it up.
        while !recorder.has_ended() {
            std::thread::yield_now();
        }
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        got
    });
    let Continuation(run) = client.continuation.take().unwrap();
    run(&ours);
    drop(ours);
    let got = reader.join().unwrap();
    let (len, piece) = got.split_first_chunk().unwrap();
    let len = usize::try_from(u32::from_be_bytes(*len)).unwrap();
    assert!(len > CAPTURE_LEN && piece.len() < len, "{} of {len} bytes were sent", piece.len());
    assert!(!piece.ends_with(b"}\n"), "the line of the end follows a part of a piece");
    assert_eq!(audited.ends().len(), 1);
}

#[test]
fn a_buffer_that_is_larger_than_the_memory_is_refused() {
    let settings =
        Settings { waiting_max: usize::MAX, ..settings(&request("iqn.2026-01.test:large")).unwrap() };
    let Err(refused) = begin(&Vec::new(), settings) else { panic!("the buffer was made") };
    assert_eq!(refused.kind, ErrorKind::Busy);
    assert_eq!(refused.message, format!("there is no memory for a buffer of {} MiB", usize::MAX >> 19));
}
