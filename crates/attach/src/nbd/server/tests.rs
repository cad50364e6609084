use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use store::api::Fault;

use super::*;
use crate::nbd::refuse_served;
use crate::testing::Medium;

/// A directory for one test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("targe-attach-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(scratch: &Scratch, medium: &Arc<Medium>) -> Result<Server, NbdStartError> {
    let disk = Arc::clone(medium) as Arc<dyn SharedStore>;
    Server::start(&scratch.socket(), disk, Export::default(), Arc::new(|_| ()))
}

fn medium() -> Arc<Medium> {
    Medium::new(64 << 20, 512, 1 << 20)
}

/// A client that is ready to send requests.
fn connect(scratch: &Scratch) -> UnixStream {
    try_to_connect(scratch).unwrap()
}

fn try_to_connect(scratch: &Scratch) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(scratch.socket())?;
    stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\0")?;
    let mut heard = [0; 18 + 10];
    stream.read_exact(&mut heard)?;
    Ok(stream)
}

/// Closes the connection of a client that has not read an answer: the server finds it reset.
fn reset(mut client: UnixStream) {
    send(&mut client, 77, 0, 0, &[]);
    client.read_exact(&mut [0]).unwrap();
}

fn send(stream: &mut UnixStream, command: u16, at: u64, len: usize, payload: &[u8]) {
    let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(command.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend(at.to_be_bytes());
    bytes.extend((len as u32).to_be_bytes());
    bytes.extend(payload);
    stream.write_all(&bytes).unwrap();
}

/// Reads one simple reply: its cookie and error.
fn reply(stream: &mut UnixStream) -> (u64, u32) {
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[..4], 0x6744_6698_u32.to_be_bytes());
    (u64::from_be_bytes(head[8..].try_into().unwrap()), u32::from_be_bytes(head[4..8].try_into().unwrap()))
}

#[test]
fn serves_several_clients_and_stops_clean() {
    let (scratch, medium) = (Scratch::new("several"), medium());
    let server = start(&scratch, &medium).unwrap();
    let mode = std::fs::metadata(scratch.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "only its owner may connect");
    let (mut one, mut two) = (connect(&scratch), connect(&scratch));
    let data: Vec<u8> = (0..9_000_000_u32).map(|n| (n >> 3) as u8).collect();
    send(&mut one, 1, 512, data.len(), &data);
    assert_eq!(reply(&mut one), (512, 0));
    send(&mut two, 0, 512, data.len(), &[]);
    assert_eq!(reply(&mut two), (512, 0));
    let mut read = vec![0; data.len()];
    two.read_exact(&mut read).unwrap();
    assert!(read == data);
    medium.log();
    server.stop().unwrap();
    assert_eq!(medium.log(), ["flush 0+0"]);
    assert!(!scratch.socket().exists());
    assert_eq!(one.read(&mut [0]).unwrap(), 0, "the server hung up");
}

#[test]
fn stopping_answers_what_is_under_way() {
    let (scratch, medium) = (Scratch::new("under-way"), medium());
    let server = start(&scratch, &medium).unwrap();
    let mut client = connect(&scratch);
    medium.hold();
    send(&mut client, 1, 4096, 512, &[5; 512]);
    medium.await_held(1);
    let stopping = std::thread::spawn(move || server.stop());
    while scratch.socket().exists() {
        std::thread::yield_now();
    }
    medium.release();
    assert_eq!(reply(&mut client), (4096, 0));
    stopping.join().unwrap().unwrap();
    assert_eq!(medium.bytes(4096, 512), [5; 512]);
}

#[test]
fn what_could_not_be_made_durable_is_told_at_the_end() {
    let (scratch, medium) = (Scratch::new("not-durable"), medium());
    let server = start(&scratch, &medium).unwrap();
    medium.fail(Some(Fault::Gone.into()));
    assert_eq!(server.stop().unwrap_err().fault, Fault::Gone);
}

#[test]
fn a_client_may_go_at_any_time() {
    let (scratch, medium) = (Scratch::new("gone"), medium());
    let server = start(&scratch, &medium).unwrap();
    medium.hold();
    for _ in 0..3 * CLIENTS_MAX {
        let mut client = connect(&scratch);
        send(&mut client, 0, 0, 1 << 20, &[]);
        send(&mut client, 1, 0, 4096, &[1; 100]);
        drop(client);
        // The thread of the client ends only once its read is completed.
        medium.await_held(1);
        medium.release();
        medium.hold();
    }
    medium.release();
    let mut client = connect(&scratch);
    send(&mut client, 3, 0, 0, &[]);
    assert_eq!(reply(&mut client), (0, 0));
    drop(client);
    server.stop().unwrap();
    assert!(!medium.log().iter().any(|line| line.starts_with("write")), "half a write is none");
}

#[test]
fn requests_wait_for_the_changes_of_a_client_that_has_gone() {
    const MIB: usize = 1 << 20;
    for was_there in [false, true] {
        let (scratch, medium) = (Scratch::new("orphans"), medium());
        let server = start(&scratch, &medium).unwrap();
        let mut one = connect(&scratch);
        let other = was_there.then(|| connect(&scratch));
        medium.hold();
        send(&mut one, 1, 0, MIB, &[1; MIB]);
        medium.await_held(1);
        drop(one);
        let mut other = other.unwrap_or_else(|| connect(&scratch));
        send(&mut other, 1, 4096, 512, &[2; 512]);
        send(&mut other, 0, 512, 512, &[]);
        send(&mut other, 1, 8 << 20, 512, &[3; 512]);
        medium.await_held(2);
        assert_eq!(medium.held_ranges(), [(0, MIB as u64), (8 << 20, 512)]);
        medium.release();
        for _ in 0..3 {
            let (cookie, error) = reply(&mut other);
            assert_eq!(error, 0);
            if cookie == 512 {
                let mut read = [0; 512];
                other.read_exact(&mut read).unwrap();
                assert_eq!(read, [1; 512]);
            }
        }
        assert_eq!(medium.bytes(4096, 512), [2; 512]);
        server.stop().unwrap();
    }
}

#[test]
fn a_client_that_has_gone_keeps_its_place_until_its_operations_end() {
    let (scratch, medium) = (Scratch::new("places"), medium());
    let server = start(&scratch, &medium).unwrap();
    medium.hold();
    for count in 1..=CLIENTS_MAX {
        let mut client = connect(&scratch);
        send(&mut client, 1, count as u64 * 512, 512, &[1; 512]);
        medium.await_held(count);
        reset(client);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(try_to_connect(&scratch).is_err());
    medium.release();
    let begun = Instant::now();
    while try_to_connect(&scratch).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    server.stop().unwrap();
}

#[test]
fn stopping_waits_for_the_changes_of_clients_that_have_gone() {
    let (scratch, medium) = (Scratch::new("last-orphans"), medium());
    let server = start(&scratch, &medium).unwrap();
    let mut client = connect(&scratch);
    medium.hold();
    send(&mut client, 1, 0, 512, &[1; 512]);
    medium.await_held(1);
    reset(client);
    let stopping = std::thread::spawn(move || server.stop());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(medium.held(), 1, "the last flush waits");
    medium.release();
    stopping.join().unwrap().unwrap();
    assert_eq!(medium.log(), ["write Cached 0+512", "flush 0+0"]);
}

#[test]
fn a_client_that_reads_nothing_holds_up_nobody_else() {
    let (scratch, medium) = (Scratch::new("deaf"), medium());
    let server = start(&scratch, &medium).unwrap();
    let mut deaf = connect(&scratch);
    for _ in 0..100 {
        send(&mut deaf, 0, 0, 1 << 20, &[]);
    }
    let mut client = connect(&scratch);
    send(&mut client, 3, 0, 0, &[]);
    assert_eq!(reply(&mut client), (0, 0));
    drop(deaf);
    server.stop().unwrap();
}

#[test]
fn a_client_that_does_not_complete_the_negotiation_loses_its_place() {
    let (scratch, medium) = (Scratch::new("silent"), medium());
    let (sender, events) = std::sync::mpsc::channel();
    let watch: EventHandler = Arc::new(move |event| sender.send(event).unwrap());
    let disk = Arc::clone(&medium) as Arc<dyn SharedStore>;
    let limit = Duration::from_secs(1);
    let server = Server::start_with(&scratch.socket(), disk, Export::default(), watch, limit).unwrap();
    // On a busy machine this client, too, can be too slow.
    let begun = Instant::now();
    let mut served = loop {
        match try_to_connect(&scratch) {
            Ok(client) => break client,
            Err(why) => assert!(begun.elapsed() < 50 * limit, "{why:?}"),
        }
    };
    let mut silent = UnixStream::connect(scratch.socket()).unwrap();
    let mut slow = UnixStream::connect(scratch.socket()).unwrap();
    // A list of exports, again and again.
    slow.write_all(b"\0\0\0\x03").unwrap();
    let begun = Instant::now();
    while slow.write_all(b"IHAVEOPT\0\0\0\x03\0\0\0\0").is_ok() && begun.elapsed() < 50 * limit {
        std::thread::sleep(limit / 20);
    }
    assert!((limit / 2..50 * limit).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    let mut greeting = Vec::new();
    silent.set_read_timeout(Some(50 * limit)).unwrap();
    silent.read_to_end(&mut greeting).unwrap();
    assert_eq!(greeting.len(), 18);
    for _ in 0..2 {
        assert_eq!(events.recv(), Ok(AttachEvent::Misbehaved(ProtocolError::TooSlow)));
    }
    // A client that has chosen the export may be silent.
    std::thread::sleep(2 * limit);
    send(&mut served, 3, 0, 0, &[]);
    assert_eq!(reply(&mut served), (0, 0));
    server.stop().unwrap();
}

#[test]
fn only_a_stale_socket_is_replaced() {
    let (scratch, medium) = (Scratch::new("stale"), medium());
    drop(UnixListener::bind(scratch.socket()).unwrap());
    assert!(scratch.socket().exists());
    let server = start(&scratch, &medium).unwrap();
    assert!(matches!(start(&scratch, &medium), Err(NbdStartError::InUse(_))));
    connect(&scratch);
    server.stop().unwrap();
    std::fs::write(scratch.socket(), "precious").unwrap();
    assert!(matches!(start(&scratch, &medium), Err(NbdStartError::NotASocket(_))));
    assert_eq!(std::fs::read(scratch.socket()).unwrap(), b"precious");
    let long = scratch.0.join("x".repeat(120));
    let disk = Arc::clone(&medium) as Arc<dyn SharedStore>;
    let refused = Server::start(&long, disk, Export::default(), Arc::new(|_| ()));
    assert!(matches!(refused, Err(NbdStartError::PathTooLong(_))));
}

#[test]
fn the_file_of_another_is_left_alone() {
    let (scratch, medium) = (Scratch::new("another"), medium());
    let server = start(&scratch, &medium).unwrap();
    std::fs::remove_file(scratch.socket()).unwrap();
    std::fs::write(scratch.socket(), "another's").unwrap();
    server.stop().unwrap();
    assert!(scratch.socket().exists());
}

#[test]
fn the_socket_of_a_dead_server_is_not_continued_with_another_disk() {
    use crate::device_key::{DeviceKey, DeviceStack};
    let key = |decryption: Option<&str>| {
        let decryption = decryption.map(str::to_owned);
        let stack = DeviceStack { disks: "naa.6001".to_owned(), decryption, ..DeviceStack::default() };
        DeviceKey::new(b"iscsi://host/iqn.2026-11.org.targe:rig/0", &stack)
    };
    let (scratch, medium) = (Scratch::new("other-disk"), medium());
    let start = |key: DeviceKey| {
        let disk = Arc::clone(&medium) as Arc<dyn SharedStore>;
        let export = Export { key: Some(key), ..Export::default() };
        Server::start(&scratch.socket(), disk, export, Arc::new(|_| ()))
    };
    let note_path = scratch.0.join("socket.disk");
    let decrypted = key(Some("1111 16777216 512"));
    let server = start(decrypted).unwrap();
    let note = std::fs::read(&note_path).unwrap();
    server.stop().unwrap();
    assert!(!note_path.exists(), "no client waits");
    // A server that was killed leaves both; one that was stopped with clients connected leaves the key.
    for was_killed in [true, false] {
        if was_killed {
            drop(UnixListener::bind(scratch.socket()).unwrap());
        } else {
            std::fs::remove_file(scratch.socket()).unwrap();
        }
        std::fs::write(&note_path, &note).unwrap();
        for other in [key(None), key(Some("2222 16777216 512"))] {
            let refused = start(other).map(drop).unwrap_err();
            assert!(matches!(refused, NbdStartError::OtherDisk(_)));
            assert!(refused.to_string().contains(note_path.to_str().unwrap()), "{refused}");
            assert_eq!(scratch.socket().exists(), was_killed);
        }
    }
    // A client may wait for longer than a server lives.
    start(decrypted).unwrap().stop().unwrap();
    assert!(matches!(start(key(None)), Err(NbdStartError::OtherDisk(_))));
    // By removing the key, the user confirms that no client waits.
    std::fs::remove_file(&note_path).unwrap();
    start(key(None)).unwrap().stop().unwrap();
}

#[test]
fn the_key_stays_for_clients_that_the_server_has_disconnected() {
    use crate::device_key::{DeviceKey, DeviceStack};
    let (scratch, medium) = (Scratch::new("kept-key"), medium());
    let start = || {
        let key = DeviceKey::new(b"disk", &DeviceStack::default());
        let disk = Arc::clone(&medium) as Arc<dyn SharedStore>;
        let export = Export { key: Some(key), ..Export::default() };
        Server::start(&scratch.socket(), disk, export, Arc::new(|_| ())).unwrap()
    };
    let note_path = scratch.0.join("socket.disk");
    // This client ends before the server.
    let server = start();
    drop(connect(&scratch));
    server.stop().unwrap();
    assert!(!note_path.exists());
    // This one does not.
    let server = start();
    let client = connect(&scratch);
    server.stop().unwrap();
    assert!(note_path.exists() && !scratch.socket().exists());
    drop(client);
    // This one waits until it is accepted.
    std::fs::remove_file(&note_path).unwrap();
    let server = start();
    let busy = server.shared.clients();
    let [gone, waiting] = [(); 2].map(|()| UnixStream::connect(scratch.socket()).unwrap());
    drop(gone);
    server.shared.stopping.store(true, Ordering::Release);
    drop(busy);
    server.stop().unwrap();
    assert!(note_path.exists());
    drop(waiting);
}

#[test]
fn a_socket_is_known_to_be_served_before_a_server_starts() {
    let (scratch, medium) = (Scratch::new("served"), medium());
    refuse_served(&scratch.socket()).unwrap();
    let server = start(&scratch, &medium).unwrap();
    assert!(matches!(refuse_served(&scratch.socket()), Err(NbdStartError::InUse(_))));
    server.stop().unwrap();
    drop(UnixListener::bind(scratch.socket()).unwrap());
    refuse_served(&scratch.socket()).unwrap();
}

/// Linux reports the error of a write-back to every open file once (errseq_t).
#[test]
fn a_loss_fails_one_flush_of_every_client() {
    let (scratch, medium) = (Scratch::new("losses"), medium());
    let server = start(&scratch, &medium).unwrap();
    let (mut one, mut two, mut gone) = (connect(&scratch), connect(&scratch), connect(&scratch));
    let flush = |client: &mut UnixStream| {
        send(client, 3, 0, 0, &[]);
        reply(client).1 != 0
    };
    for client in [&mut one, &mut two, &mut gone] {
        send(client, 1, 0, 512, &[1; 512]);
        assert_eq!(reply(client), (0, 0));
        assert!(!flush(client));
    }
    medium.lose(Fault::Medium.into());
    drop(gone);
    let mut back = connect(&scratch);
    assert!(flush(&mut back), "a client that has reconnected may be one whose writes are lost");
    assert!(flush(&mut one) && !flush(&mut one), "once");
    let mut late = connect(&scratch);
    assert!(!flush(&mut late), "the loss was reported before this client came");
    medium.lose(Fault::Medium.into());
    medium.lose(Fault::Medium.into());
    assert!(flush(&mut two) && !flush(&mut two), "once for all losses so far");
    assert!(flush(&mut late) && flush(&mut one));
    medium.lose(Fault::Medium.into());
    drop((one, two, late, back));
    server.stop().unwrap_err();
}

#[test]
fn the_end_reports_only_losses_that_no_client_knows_of() {
    let (scratch, medium) = (Scratch::new("known-losses"), medium());
    let server = start(&scratch, &medium).unwrap();
    let mut client = connect(&scratch);
    medium.lose(Fault::Medium.into());
    send(&mut client, 3, 0, 0, &[]);
    assert_ne!(reply(&mut client).1, 0);
    server.stop().unwrap();
}
