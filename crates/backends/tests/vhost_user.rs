//! A client over vhost-user, with the example device behind it, and with processes that say nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "all of this is test code, where a panic is the verdict"
)]

#[path = "../../../docs/examples/vhost_user_device.rs"]
mod device;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::nbd::client::{Client, ClientAction, ClientConfig};
use backends::vhost_user::{BlkConnection, VhostUserError, open_blk};
use base::buffer::{Bytes, Pool};
use base::time::Instant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use store::api::{Durability, Op, OpAction, OpId, OpOutput};

/// No step takes a second; one that takes this long hangs.
const HANG: Duration = Duration::from_secs(60);

struct Socket(PathBuf);

impl Socket {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("targe-{}-{name}.sock", std::process::id()));
        Self(path)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Connects to a device that is starting.
fn connect(path: &Path) -> BlkConnection {
    let deadline = std::time::Instant::now() + HANG;
    loop {
        match open_blk(path, HANG) {
            Ok(connection) => return connection,
            Err(VhostUserError::Connect { .. }) if std::time::Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Carries out operations over one connection.
fn run(connection: BlkConnection, actions: Vec<OpAction>) -> Vec<OpOutput> {
    let BlkConnection { socket: _alive, info, mut link, call } = connection;
    let config = ClientConfig { patience: None, write_cache: true, read_only: false, block_len: 512 };
    let mut client = Client::new(config, info, Pool::new(1 << 20));
    let now = Instant::ORIGIN;
    client.connected(now, info);
    let mut outputs = Vec::new();
    for (id, action) in (0..).zip(actions) {
        client.submit(now, Op { id: OpId(id), action });
        loop {
            while let Some(action) = client.poll_action() {
                assert_eq!(action, ClientAction::Transmit);
                client.transmit(now, &mut link);
                link.kick().unwrap();
            }
            if let Some(done) = client.poll() {
                outputs.push(done.result.unwrap());
                break;
            }
            let wait = Timespec { tv_sec: HANG.as_secs().try_into().unwrap(), tv_nsec: 0 };
            let ready = poll(&mut [PollFd::new(&call, PollFlags::IN)], Some(&wait)).unwrap();
            assert_eq!(ready, 1, "the device says nothing");
            rustix::io::read(&call, &mut [0_u8; 8][..]).unwrap();
            link.collect(now, &mut client).unwrap();
        }
    }
    outputs
}

#[test]
fn the_example_counts_writes_also_over_a_second_connection() {
    let socket = Socket::new("example");
    let path = socket.0.to_str().unwrap().to_owned();
    // The thread ends with the process of the test.
    std::thread::spawn(move || device::serve(&path, 2048).map_err(|error| error.to_string()));
    let write = |at, blocks: usize| OpAction::Write {
        at,
        data: Bytes::copied_from(&vec![7; blocks * 512]).into(),
        durability: Durability::Stable,
    };
    let first = connect(&socket.0);
    assert_eq!((first.info.len, first.info.block_len), (1 << 20, 512));
    // More than one request can carry.
    run(first, vec![write(0, 1500), write(512, 1), OpAction::Flush]);
    let outputs = run(connect(&socket.0), vec![write(512, 1), OpAction::Read { at: 0, len: 1 << 20 }]);
    let Some(OpOutput::Data(data)) = outputs.last() else { panic!("{outputs:?}") };
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(data.copy_to(0, &mut bytes), 1 << 20);
    let count = |block: usize| u64::from_be_bytes(bytes[block * 512..][..8].try_into().unwrap());
    assert_eq!((count(0), count(1), count(2), count(1499), count(1500)), (1, 3, 1, 1, 0));
    assert!(bytes[8..512].iter().all(|byte| *byte == 7) && bytes[1500 * 512..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_process_that_says_nothing_is_left_in_time() {
    let socket = Socket::new("silent");
    let _listener = UnixListener::bind(&socket.0).unwrap();
    let error = open_blk(&socket.0, Duration::from_secs(2)).unwrap_err();
    let expected = format!("the process behind {} did not answer within 2s", socket.0.display());
    assert_eq!(error.to_string(), expected);
}
