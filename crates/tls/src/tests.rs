//! Portals and initiators on 127.0.0.1. The certificates in `testdata` are valid until 2126; that of
//! `expired.crt` expired in 2026.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::client::connect_relay;
use crate::{
    Accepted, ClientSettings, MovedRelay, MovingRelay, PausedRelays, Portal, Refused, ServerSettings,
    TlsError, connect,
};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// The directory of the certificates, and a directory for keys, which no other user may read.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("targe-tls-{}-{number}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/testdata");
        for entry in fs::read_dir(source).unwrap() {
            let entry = entry.unwrap();
            let copy = directory.join(entry.file_name());
            fs::copy(entry.path(), &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
        }
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn server(
        &self,
        name: &str,
        client_authority: Option<&str>,
    ) -> Result<ServerSettings, TlsError> {
        let (certificate, key) = (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key")));
        let authority = client_authority.map(|name| self.path(&format!("{name}.crt")));
        ServerSettings::read(&certificate, &key, authority.as_deref())
    }

    fn client(&self, authority: &str, identity: Option<&str>) -> ClientSettings {
        let identity =
            identity.map(|name| (self.path(&format!("{name}.crt")), self.path(&format!("{name}.key"))));
        let identity = identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
        ClientSettings::read(Some(&self.path(&format!("{authority}.crt"))), identity).unwrap()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A portal, its address, and what it delivers.
fn portal(settings: ServerSettings) -> (Portal, SocketAddr, Receiver<Result<Accepted, Refused>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, delivered) = channel();
    let deliver = Arc::new(move |arrived| sender.send(arrived).unwrap());
    (Portal::start(listener, settings, deliver).unwrap(), address, delivered)
}

fn dial(address: SocketAddr, name: &str, settings: &ClientSettings) -> Result<UnixStream, TlsError> {
    let (socket, local) = connect(address, name, settings, PATIENCE, drop)?;
    assert!(local.ip().is_loopback());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    Ok(socket)
}

fn both_ends(files: &Files) -> (Portal, UnixStream, UnixStream) {
    let (portal, address, delivered) = portal(files.server("target", None).unwrap());
    let ours = dial(address, "127.0.0.1", &files.client("authority", None)).unwrap();
    let accepted = delivered.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(accepted.local, address);
    accepted.socket.set_read_timeout(Some(PATIENCE)).unwrap();
    (portal, ours, accepted.socket)
}

#[test]
fn a_paused_portal_leaves_connections_to_another_process() {
    let files = Files::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, shared) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
    let (sender, delivered) = channel();
    let deliver = Arc::new(move |arrived| sender.send(arrived).unwrap());
    let portal = Portal::start(listener, files.server("target", None).unwrap(), deliver).unwrap();
    portal.pauser().unwrap().pause(true);
    // The portal may accept one more before it pauses.
    let is_left = |_| {
        let _stream = TcpStream::connect(address).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        shared.accept().is_ok()
    };
    assert!((0..50).any(is_left));
    portal.pauser().unwrap().pause(false);
    dial(address, "127.0.0.1", &files.client("authority", None)).unwrap();
    // Those that were closed before the pause are refused.
    assert!((0..50).any(|_| delivered.recv_timeout(PATIENCE).unwrap().is_ok()));
    let pauser = portal.pauser().unwrap();
    drop(portal);
    pauser.pause(true);
}

#[test]
fn bytes_cross_in_both_directions_at_the_same_time() {
    let files = Files::new();
    let (_portal, ours, theirs) = both_ends(&files);
    // More than all buffers on the way together, so that both ends wait for each other at times.
    let len: usize = 8 << 20;
    let pattern = |seed: usize| (0..len).map(move |at| (at.wrapping_mul(seed) >> 7).to_le_bytes()[0]);
    std::thread::scope(|scope| {
        for (end, sends, receives) in [(&ours, 3, 5), (&theirs, 5, 3)] {
            scope.spawn(move || {
                let mut end = end;
                end.write_all(&pattern(sends).collect::<Vec<u8>>()).unwrap();
            });
            scope.spawn(move || {
                let (mut end, mut got) = (end, vec![0; len]);
                end.read_exact(&mut got).unwrap();
                assert!(got.into_iter().eq(pattern(receives)), "{receives}");
            });
        }
    });
}

/// Pauses the only relay of a portal.
fn paused(portal: &Portal) -> (PausedRelays, MovingRelay) {
    let paused = portal.pause_relays();
    let mut relays = paused.wait(Instant::now() + PATIENCE).unwrap();
    assert_eq!(relays.len(), 1);
    (paused, relays.remove(0))
}

/// Moves the only connection of a portal to a portal that is new, as to one of another process.
fn move_to_another(files: &Files, from: &Portal) -> Portal {
    let (to, _, _) = portal(files.server("target", None).unwrap());
    let (paused, moving) = paused(from);
    let moved = MovedRelay::new(moving).unwrap();
    to.take_over(moved);
    paused.leave();
    to
}

#[test]
fn connections_move_while_bytes_cross_and_go_on_when_they_do_not_move() {
    let files = Files::new();
    let (mut portal, ours, theirs) = both_ends(&files);
    let len: usize = 4 << 20;
    let pattern = |seed: usize| (0..len).map(move |at| (at.wrapping_mul(seed) >> 7).to_le_bytes()[0]);
    // The last piece of each end waits for this many moves, however long one takes on a busy machine.
    const MOVES_MIN: u32 = 4;
    let moves = &AtomicU32::new(0);
    std::thread::scope(|scope| {
        let ends = [(&ours, 3, 5), (&theirs, 5, 3)].map(|(end, sends, receives)| {
            scope.spawn(move || {
                let mut end = end;
                let bytes: Vec<u8> = pattern(sends).collect();
                let (most, last) = bytes.split_at(len - (64 << 10));
                for piece in most.chunks(64 << 10) {
                    end.write_all(piece).unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
                while moves.load(Ordering::Relaxed) < MOVES_MIN {
                    std::thread::sleep(Duration::from_millis(2));
                }
                end.write_all(last).unwrap();
            });
            scope.spawn(move || {
                let (mut end, mut got) = (end, vec![0; len]);
                end.read_exact(&mut got).unwrap();
                assert!(got.into_iter().eq(pattern(receives)), "{receives}");
            })
        });
        while !ends.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            portal = move_to_another(&files, &portal);
            moves.fetch_add(1, Ordering::Relaxed);
            // Another process fails, with the connection or before it has that.
            drop(paused(&portal));
            drop(portal.pause_relays());
            let (paused, moving) = paused(&portal);
            drop(MovedRelay::new(moving).unwrap());
            drop(paused);
        }
    });
}

#[test]
fn what_a_relay_holds_moves_and_ends_are_passed_on_afterwards() {
    let files = Files::new();
    let (first, address, delivered) = portal(files.server("target", None).unwrap());
    let (mut ours, near) = UnixStream::pair().unwrap();
    let (relay, _) = connect_relay(address, "127.0.0.1", &files.client("authority", None), PATIENCE).unwrap();
    // A peer that sends what it holds before it closes the connection.
    std::thread::spawn(move || relay.run(near.into(), None));
    let mut theirs = delivered.recv_timeout(PATIENCE).unwrap().unwrap().socket;
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    let written = fill(&mut ours);
    let (_, moving) = paused(&first);
    // A part of a record is held, too, unless the last bytes that were received end with one.
    assert!(!moving.state.incoming.is_empty(), "{} received", moving.state.received.len());
    drop(moving);
    let second = move_to_another(&files, &first);
    drop(ours);
    let third = move_to_another(&files, &second);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(got.len(), written);
    drop(theirs);
    let deadline = Instant::now() + PATIENCE;
    while third.pause_relays().relays() > 0 {
        assert!(Instant::now() < deadline, "the relay has not ended");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_handshake_is_under_way_until_its_connection_is_delivered() {
    let files = Files::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((sender, delivered), (let_go, go_on)) = (channel(), channel::<()>());
    let go_on = Mutex::new(go_on);
    let deliver = move |arrived| {
        let _ = go_on.lock().unwrap().recv_timeout(PATIENCE);
        sender.send(arrived).unwrap();
    };
    let portal = Portal::start(listener, files.server("target", None).unwrap(), Arc::new(deliver)).unwrap();
    let pauser = portal.pauser().unwrap();
    let wait_for = |count| {
        let deadline = Instant::now() + PATIENCE;
        while pauser.handshakes() != count {
            assert!(Instant::now() < deadline, "{} handshakes, not {count}", pauser.handshakes());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(0);
    let silent = TcpStream::connect(address).unwrap();
    wait_for(1);
    let _ours = dial(address, "127.0.0.1", &files.client("authority", None)).unwrap();
    assert_eq!(pauser.handshakes(), 2);
    let_go.send(()).unwrap();
    let _theirs = delivered.recv_timeout(PATIENCE).unwrap().unwrap();
    wait_for(1);
    drop(silent);
    let_go.send(()).unwrap();
    wait_for(0);
}

#[test]
fn connections_that_moved_count_for_the_portal() {
    let files = Files::new();
    let (first, _ours, _theirs) = both_ends(&files);
    let second = move_to_another(&files, &first);
    assert_eq!(second.connections(), 1);
}

#[test]
fn states_that_no_relay_can_have_are_refused() {
    let files = Files::new();
    let (portal, _ours, _theirs) = both_ends(&files);
    for at in 0..5 {
        let (_paused, mut moving) = paused(&portal);
        let (long, state) = (vec![0; (64 << 10) + 1025], &mut moving.state);
        match at {
            0 => state.received = long,
            1 => state.incoming = long.into(),
            2 => state.outgoing = long.into(),
            3 => state.unsent = long,
            _ => (state.outgoing, state.outgoing_ended) = (vec![0].into(), true),
        }
        let refused = MovedRelay::new(moving).unwrap_err();
        assert_eq!(refused.to_string(), "its state is damaged");
    }
}

#[test]
fn the_end_of_each_direction_is_passed_on() {
    let files = Files::new();
    let (_portal, mut ours, mut theirs) = both_ends(&files);
    ours.write_all(b"the last request").unwrap();
    drop(ours);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"the last request");

    let (_portal, mut ours, mut theirs) = both_ends(&files);
    theirs.write_all(b"the last response").unwrap();
    drop(theirs);
    got.clear();
    ours.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"the last response");
}

#[test]
fn a_certificate_that_is_not_good_is_refused_with_its_reason() {
    let files = Files::new();
    for (server, name, authority, wanted) in [
        (
            "target",
            "localhost",
            "stranger",
            "the certificate of the other end is not signed by a trusted authority",
        ),
        (
            "target",
            "san.example",
            "authority",
            "the certificate of the other end is for another name than that of the host",
        ),
        (
            "target",
            "127.0.0.2",
            "authority",
            "the certificate of the other end is for another name than that of the host",
        ),
        ("expired", "localhost", "authority", "the certificate of the other end has expired"),
        (
            "target",
            "no host",
            "authority",
            "\"no host\" is neither a host name nor an IP address that a certificate could name",
        ),
    ] {
        let (_portal, address, delivered) = portal(files.server(server, None).unwrap());
        let refused = dial(address, name, &files.client(authority, None)).unwrap_err();
        assert_eq!(refused.to_string(), wanted);
        if !matches!(refused, TlsError::Name(_)) {
            let refused = delivered.recv_timeout(PATIENCE).unwrap().unwrap_err().why.to_string();
            assert!(
                refused.starts_with("the other end refused the TLS handshake with the alert "),
                "{refused}"
            );
        }
    }
    for name in ["localhost", "[::1]", "127.0.0.1"] {
        let (_portal, address, delivered) = portal(files.server("target", None).unwrap());
        dial(address, name, &files.client("authority", None)).unwrap();
        assert!(delivered.recv_timeout(PATIENCE).unwrap().is_ok());
    }
}

#[test]
fn an_initiator_needs_a_certificate_where_the_portal_asks_for_one() {
    let files = Files::new();
    let (_portal, address, delivered) = portal(files.server("target", Some("authority")).unwrap());
    let known = dial(address, "localhost", &files.client("authority", Some("initiator"))).unwrap();
    assert!(delivered.recv_timeout(PATIENCE).unwrap().is_ok());
    drop(known);
    // In TLS 1.3 a client learns only by its first read that its certificate was refused.
    let mut nameless = dial(address, "localhost", &files.client("authority", None)).unwrap();
    let why = delivered.recv_timeout(PATIENCE).unwrap().unwrap_err().why;
    assert_eq!(why.to_string(), "the other end presented no certificate");
    assert_eq!(nameless.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn an_initiator_that_is_refused_after_its_handshake_learns_why_before_its_connection_closes() {
    let files = Files::new();
    let (_portal, address, _delivered) = portal(files.server("target", Some("stranger")).unwrap());
    for (identity, wanted) in [
        (None, "certificate_required: it demands a certificate of this end"),
        (Some("initiator"), "unknown_ca: it does not know the authority"),
    ] {
        // The target may reset the connection before the login request is sent, or afterwards.
        for round in 0..20 {
            let why = Arc::new(Mutex::new(None));
            let told = Arc::clone(&why);
            let refused = move |why: TlsError| *told.lock().unwrap() = Some(why.to_string());
            let client = files.client("authority", identity);
            let (mut socket, _) = connect(address, "localhost", &client, PATIENCE, refused).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            std::thread::sleep(Duration::from_millis(round % 4));
            let _ = socket.write_all(&[0x43; 48]);
            assert_eq!(socket.read(&mut [0]).unwrap_or(0), 0);
            let why = why.lock().unwrap().take().unwrap_or_default();
            let start = "the other end ended the TLS connection with the alert ";
            assert!(why.strip_prefix(start).is_some_and(|rest| rest.starts_with(wanted)), "{why}");
        }
    }
}

#[test]
fn the_version_of_a_certificate_that_openssl_makes_by_default_is_named() {
    let files = Files::new();
    let refused = ServerSettings::read(&files.path("version1.crt"), &files.path("target.key"), None);
    let refused = refused.unwrap_err().to_string();
    let wanted = "has X.509 version 1; make one of version 3 (openssl x509 -req does so with -extfile)";
    assert!(
        refused.ends_with(&format!("version1.crt cannot be used with its key: it {wanted}")),
        "{refused}"
    );
    // The certificate of the other end, in the words of rustls.
    let word = Arc::new(std::io::Error::other("UnsupportedCertVersion"));
    let why = rustls::CertificateError::Other(rustls::OtherError(word));
    let refused = TlsError::Handshake(rustls::Error::InvalidCertificate(why)).to_string();
    assert_eq!(refused, format!("the certificate of the other end {wanted}"));
}

#[test]
fn a_peer_without_tls_is_refused_and_delays_nobody() {
    let files = Files::new();
    let (_portal, address, delivered) = portal(files.server("target", None).unwrap());
    let _silent = TcpStream::connect(address).unwrap();
    let mut plain = TcpStream::connect(address).unwrap();
    plain.write_all(&[0x43; 48]).unwrap();
    let why = delivered.recv_timeout(PATIENCE).unwrap().unwrap_err().why;
    assert_eq!(why.to_string(), "the other end does not speak TLS");
    drop(TcpStream::connect(address).unwrap());
    let why = delivered.recv_timeout(PATIENCE).unwrap().unwrap_err().why;
    assert!(matches!(why, TlsError::Silent), "{why}");
    // The begin of a handshake message.
    TcpStream::connect(address).unwrap().write_all(&[0x16, 3, 1]).unwrap();
    let why = delivered.recv_timeout(PATIENCE).unwrap().unwrap_err().why;
    assert_eq!(why.to_string(), "the other end closed the connection during the TLS handshake");
    let plain_target = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain_address = plain_target.local_addr().unwrap();
    let answers = std::thread::spawn(move || plain_target.accept().unwrap().0.write_all(&[0x23; 48]));
    let refused = dial(plain_address, "localhost", &files.client("authority", None)).unwrap_err();
    assert_eq!(refused.to_string(), "the other end does not speak TLS");
    answers.join().unwrap().unwrap();
}

#[test]
fn damaged_records_end_the_connection_and_deliver_nothing() {
    let files = Files::new();
    let (_portal, address, delivered) = portal(files.server("target", None).unwrap());
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay_address = relay.local_addr().unwrap();
    // It flips one bit of the first record after the handshake, whose messages are below 1000 bytes.
    std::thread::spawn(move || {
        let (client, server) = (relay.accept().unwrap().0, TcpStream::connect(address).unwrap());
        let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
        let (mut client, mut server, mut buf) = (client, server, [0; 4096]);
        while let Ok(len) = client
            .read(&mut buf)
            .and_then(|len| if len == 0 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(len) })
        {
            if len > 1000 {
                buf[700] ^= 1;
            }
            if server.write_all(&buf[..len]).is_err() {
                return;
            }
        }
    });
    let mut ours = dial(relay_address, "127.0.0.1", &files.client("authority", None)).unwrap();
    let mut theirs = delivered.recv_timeout(PATIENCE).unwrap().unwrap().socket;
    theirs.set_read_timeout(Some(PATIENCE)).unwrap();
    ours.write_all(&[7; 2000]).unwrap();
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).unwrap();
    assert!(got.is_empty(), "{} bytes of a damaged record", got.len());
    assert_eq!(ours.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn files_that_cannot_be_used_are_named_with_their_reason() {
    let files = Files::new();
    let refused = |certificate: &str, key: &str| {
        let read = ServerSettings::read(&files.path(certificate), &files.path(key), None);
        read.unwrap_err().to_string().replace(&format!("{}/", files.0.display()), "")
    };
    assert_eq!(
        refused("none.crt", "target.key"),
        "cannot read none.crt: No such file or directory (os error 2)"
    );
    assert_eq!(refused("target.key", "target.key"), "target.key contains no certificate in PEM form");
    assert_eq!(refused("target.crt", "target.crt"), "target.crt contains no private key in PEM form");
    assert_eq!(
        refused("target.crt", "initiator.key"),
        "the certificate in target.crt cannot be used with its key: the key belongs to another certificate"
    );
    fs::set_permissions(files.path("target.key"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(
        refused("target.crt", "target.key"),
        "others than its owner may read target.key, which contains a private key; chmod 600 it"
    );
}

#[test]
fn other_settings_are_used_for_the_connections_that_follow() {
    let files = Files::new();
    let (portal, address, delivered) = portal(files.server("expired", None).unwrap());
    let client = files.client("authority", None);
    assert!(dial(address, "localhost", &client).is_err());
    assert!(delivered.recv_timeout(PATIENCE).unwrap().is_err());
    let settings = files.server("target", None).unwrap();
    assert_eq!(settings, files.server("target", None).unwrap());
    assert_ne!(settings, files.server("expired", None).unwrap());
    assert_ne!(settings, files.server("target", Some("authority")).unwrap());
    portal.change(settings);
    assert!(dial(address, "localhost", &client).is_ok());
    drop(portal);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn what_an_initiator_that_has_gone_left_at_the_proxy_never_reaches_a_target_that_was_stalled() {
    let files = Files::new();
    let (_portal, address, delivered) = portal(files.server("target", None).unwrap());
    let (mut initiator, near) = UnixStream::pair().unwrap();
    let (relay, _) = connect_relay(address, "127.0.0.1", &files.client("authority", None), PATIENCE).unwrap();
    let relay = std::thread::spawn(move || relay.run_for_initiator(near.into(), |_| ()));
    let mut target = delivered.recv_timeout(PATIENCE).unwrap().unwrap().socket;
    // The target receives nothing until then.
    let written = fill(&mut initiator);
    initiator.shutdown(Shutdown::Write).unwrap();
    initiator.set_read_timeout(Some(PATIENCE)).unwrap();
    // The proxy closes this connection, and does not wait for the target.
    let closed = initiator.read(&mut [0]).unwrap_err();
    assert_eq!(closed.kind(), std::io::ErrorKind::ConnectionReset);
    assert_eq!(relay.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let mut got = Vec::new();
    target.set_read_timeout(Some(PATIENCE)).unwrap();
    target.read_to_end(&mut got).unwrap();
    assert!(got.len() < written, "{} of {written} bytes reached the target", got.len());
}

#[test]
fn what_was_given_up_does_not_reach_a_target_that_was_stalled() {
    let files = Files::new();
    let (_portal, mut initiator, mut target) = both_ends(&files);
    let written = fill(&mut initiator);
    drop(initiator);
    let mut got = Vec::new();
    // The connection was reset, so the target may find an error instead of the end.
    let _ = target.read_to_end(&mut got);
    assert!(got.len() < written, "{} of {written} bytes reached the target", got.len());
}

#[test]
fn a_peer_that_takes_nothing_does_not_keep_a_connection_that_the_portal_has_ended() {
    let files = Files::new();
    let (portal, _initiator, mut target) = both_ends(&files);
    fill(&mut target);
    assert_eq!(portal.connections(), 1);
    drop(target);
    let until = Instant::now() + PATIENCE;
    while portal.connections() > 0 {
        assert!(Instant::now() < until, "the relay waits for its peer");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_only_tcp_holds_is_dropped_with_the_connection_that_gave_it_up() {
    let files = Files::new();
    let (_portal, address, delivered) = portal(files.server("target", None).unwrap());
    let (mut initiator, near) = UnixStream::pair().unwrap();
    let (relay, _) = connect_relay(address, "127.0.0.1", &files.client("authority", None), PATIENCE).unwrap();
    let network = relay.network_for_tests();
    rustix::net::sockopt::set_socket_send_buffer_size(&network, 4 << 20).unwrap();
    let relay = std::thread::spawn(move || relay.run_for_initiator(near.into(), |_| ()));
    let mut target = delivered.recv_timeout(PATIENCE).unwrap().unwrap().socket;
    // Looks, and not time, are counted: on a machine that stands still, the relays stand still too.
    let arrives = |looks: u32, socket: &dyn Fn() -> usize| {
        (0..looks).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            socket() == 0
        })
    };
    let (bytes, mut written) = (vec![7; 64 << 10], 0);
    // The target receives nothing until every buffer on the way is full, and what follows stays with TCP.
    while arrives(1000, &|| drivers::unreceived::bytes(&network).unwrap()) {
        initiator.write_all(&bytes).unwrap();
        written += bytes.len();
        let is_taken = arrives(20_000, &|| drivers::unreceived::bytes(&initiator).unwrap());
        assert!(is_taken, "the relay holds something");
    }
    drop((initiator, network));
    assert_eq!(relay.join().unwrap().unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let mut got = Vec::new();
    // The connection was reset, so the target may find an error instead of the end.
    let _ = target.read_to_end(&mut got);
    assert!(got.len() < written, "{} of {written} bytes reached the target", got.len());
}

/// Writes until every buffer on the way is full. On a busy machine, the relay may not run for a while before;
/// a machine that stands still meanwhile costs no more than one of the tries.
fn fill(end: &mut UnixStream) -> usize {
    end.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let (bytes, mut written, mut tries) = (vec![7; 1 << 20], 0, 0);
    while tries < 6 {
        match end.write(&bytes) {
            Ok(len) => (written, tries) = (written + len, 0),
            Err(_) => tries += 1,
        }
    }
    written
}

#[test]
fn the_names_in_the_certificate_of_a_connection_are_known_while_it_lasts() {
    const NAMED: &str = "iqn.2026-11.com.example:named";
    let files = Files::new();
    let names = Arc::default();
    let read = || files.server("target", Some("named-authority")).unwrap().with_client_names(&names);
    let (_portal, address, delivered) = portal(read());
    // The settings of a configuration that is read later know the connection, too.
    let known = Arc::clone(read().client_names().unwrap());
    let connection = dial(address, "127.0.0.1", &files.client("authority", Some("named"))).unwrap();
    let accepted = delivered.recv_timeout(PATIENCE).unwrap().unwrap();
    let has = |name: &str| known.contain(accepted.local, accepted.peer, name);
    assert!(has(NAMED) && has("iqn.2026-11.com.example:OTHER"));
    assert!(!has("iqn.2026-11.com.example:name") && !has("localhost") && !has(""));
    assert!(!known.contain(accepted.peer, accepted.local, NAMED), "another connection");
    drop((connection, accepted.socket));
    let end = Instant::now() + PATIENCE;
    while known.contain(accepted.local, accepted.peer, NAMED) {
        assert!(Instant::now() < end, "the connection has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
}
