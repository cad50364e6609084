use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::*;

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A PDU with `data` and no digests.
fn pdu(opcode: u8, flags: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    bytes[0] = opcode;
    bytes[1] = flags;
    bytes[5..8].copy_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes()[1..]);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Accepts one connection, ends its login, echoes all bytes, and returns all bytes that it received.
fn echo() -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind(LOCAL).unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut all, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(len @ 1..) = stream.read(&mut chunk) {
            all.extend_from_slice(&chunk[..len]);
            if stream.write_all(&chunk[..len]).is_err() {
                break;
            }
        }
        all
    });
    (address, server)
}

/// Sends `sent` through a proxy with these faults. Returns the bytes that the target and the initiator
/// received, and the report.
fn pass(faults: &str, seed: u64, sent: &[u8]) -> (Vec<u8>, Vec<u8>, ProxyReport) {
    let (upstream, server) = echo();
    let proxy = Proxy::start(LOCAL, upstream, faults.parse().unwrap(), seed, None).unwrap();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let mut back = Vec::new();
    // A cut connection shows as an error of the write or of the read.
    if stream.write_all(sent).is_ok() {
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    let _ = stream.read_to_end(&mut back);
    let arrived = server.join().unwrap();
    (arrived, back, proxy.report())
}

fn commands(count: usize) -> Vec<u8> {
    (0..count).flat_map(|n| pdu(0x01, 0x80, &vec![u8::try_from(n % 251).unwrap(); n * 7])).collect()
}

#[test]
fn passes_everything_on_without_faults() {
    let sent = commands(200);
    let (arrived, back, report) = pass("", 1, &sent);
    assert!(arrived == sent && back == sent);
    let bytes = u64::try_from(sent.len()).unwrap();
    assert_eq!((report.connections, report.requests.bytes, report.responses.bytes), (1, bytes, bytes));
    assert_eq!(report.requests.total() + report.responses.total(), 0);
}

/// The receiver can detect such a PDU only once.
#[test]
fn a_pdu_with_damaged_data_and_a_damaged_digest_is_one_damaged_pdu() {
    let proxy = Proxy::start(LOCAL, LOCAL, Faults::NONE, 1, None).unwrap();
    let fault = |way, unit, kind| InjectedFault {
        at: base::time::Instant::ORIGIN,
        way,
        unit,
        first_byte: 0x25,
        task_tag: 0,
        kind,
    };
    use FaultKind::{Data, DataDigest, Header, HeaderDigest, Stall};
    proxy.shared.happened(&[
        fault(StreamDirection::Backward, 3, Data),
        fault(StreamDirection::Forward, 3, DataDigest),
        fault(StreamDirection::Backward, 4, Stall),
        fault(StreamDirection::Backward, 4, Header),
        fault(StreamDirection::Backward, 4, HeaderDigest),
        fault(StreamDirection::Backward, 4, Data),
        fault(StreamDirection::Backward, 4, DataDigest),
    ]);
    // The same PDU number in another connection is another PDU.
    proxy.shared.happened(&[fault(StreamDirection::Backward, 4, Data)]);
    let ProxyReport { requests, responses, .. } = proxy.report();
    assert_eq!((requests.damaged_headers, requests.damaged_data, requests.total()), (0, 1, 1));
    assert_eq!((responses.damaged_headers, responses.damaged_data, responses.total()), (1, 3, 7));
}

#[test]
fn flips_bits_of_data_and_counts_them() {
    let sent = commands(200);
    let (arrived, _, report) = pass("requests.data=20%,unprotected,login", 2, &sent);
    assert_eq!(arrived.len(), sent.len());
    let mut damaged = 0;
    let (mut at, mut n) = (0, 0_usize);
    while at < sent.len() {
        let end = at + 48 + (n * 7).next_multiple_of(4);
        assert_eq!(arrived[at..at + 48], sent[at..at + 48], "a header was touched");
        damaged += u64::from(arrived[at..end] != sent[at..end]);
        (at, n) = (end, n + 1);
    }
    assert!(damaged > 10, "{damaged}");
    assert_eq!(report.requests.data, damaged);
    assert_eq!(report.responses.total(), 0);
}

#[test]
fn what_was_damaged_before_a_socket_failed_is_counted() {
    let pair = || {
        let listener = TcpListener::bind(LOCAL).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let ((mut initiator, near_initiator), (mut target, near_target)) = (pair(), pair());
    let faults = "requests.header=100%,unprotected,login".parse().unwrap();
    let proxy = Proxy::start(LOCAL, LOCAL, faults, 1, None).unwrap();
    let sent = commands(5);
    initiator.write_all(&sent).unwrap();
    // In the same turn in which the requests are passed on, a response cannot be.
    target.write_all(&pdu(0x21, 0x80, &[])).unwrap();
    near_initiator.shutdown(std::net::Shutdown::Write).unwrap();
    relay::run(&near_initiator, &near_target, 1, &proxy.shared).unwrap_err();
    drop(near_target);
    let mut arrived = Vec::new();
    target.read_to_end(&mut arrived).unwrap();
    assert!(arrived.len() == sent.len() && arrived != sent);
    assert_eq!(proxy.report().requests.damaged_headers, 5);
}

#[test]
fn one_seed_does_the_same_to_the_same_pdus() {
    let sent = commands(300);
    let faults = "requests.drop=5%,requests.duplicate=5%,requests.header=3%,unprotected,login";
    let (first, _, one) = pass(faults, 7, &sent);
    let (second, _, two) = pass(faults, 7, &sent);
    assert!(first == second && one == two);
    assert!(one.requests.drop > 0 && one.requests.duplicate > 0 && one.requests.header > 0, "{one:?}");
    let (third, _, _) = pass(faults, 8, &sent);
    assert!(third != first);
}

#[test]
fn a_cut_breaks_the_connection_on_both_sides() {
    let sent = commands(300);
    let (arrived, _, report) = pass("requests.cut=5%,login", 3, &sent);
    assert!(arrived.len() < sent.len());
    assert_eq!(report.requests.cut, 1);
    assert!(sent.starts_with(&arrived));
}

#[test]
fn the_login_is_spared_unless_it_is_asked_for() {
    let sent: Vec<u8> = (0..50).flat_map(|_| pdu(0x43, 0x87, b"HeaderDigest=None\0")).collect();
    let (arrived, _, report) = pass("requests.drop=50%", 4, &sent);
    assert!(arrived == sent);
    assert_eq!(report.requests.drop, 0);
    let (_, _, report) = pass("requests.drop=50%,login", 4, &sent);
    assert!(report.requests.drop > 0);
}

#[test]
fn a_target_that_cannot_be_reached_is_a_refused_connection() {
    let gone = TcpListener::bind(LOCAL).unwrap().local_addr().unwrap();
    let proxy = Proxy::start(LOCAL, gone, Faults::NONE, 1, None).unwrap();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let mut back = Vec::new();
    assert_eq!(stream.read_to_end(&mut back).unwrap_or(0), 0);
    assert_eq!(proxy.report().refused, 1);
}

#[test]
fn a_new_plan_holds_for_connections_in_being() {
    let (upstream, server) = echo();
    let proxy = Proxy::start(LOCAL, upstream, Faults::NONE, 1, None).unwrap();
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    let ping = pdu(0x00, 0x80, &[]);
    stream.write_all(&ping).unwrap();
    let mut back = vec![0; ping.len()];
    stream.read_exact(&mut back).unwrap();
    proxy.replan("requests.drop=100%,login".parse().unwrap());
    // The relay applies the new plan when it next wakes up; from then on it drops every PDU.
    let mut sent = 1;
    while proxy.report().requests.drop == 0 {
        stream.write_all(&ping).unwrap();
        sent += 1;
        std::thread::sleep(POLL_INTERVAL / 4);
    }
    drop(stream);
    assert!(server.join().unwrap().len() < sent * ping.len());
}
