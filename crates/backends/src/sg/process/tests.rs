//! A device whose process is the test.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;

use base::int_cast::to_u64;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recvmsg,
    sendmsg,
};
use virtio::memory::DEVICE_BASE;
use virtio::ring::{self, SIZE};
use virtio::scsi::queue_at;

use super::*;

/// No step takes a second; one that takes this long hangs.
const HANG: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// The messages of vhost-user that matter here.
const GET_FEATURES: u32 = 1;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_BASE: u32 = 10;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_VRING_ENABLE: u32 = 18;
const GET_INFLIGHT_FD: u32 = 31;

const LAST_QUEUE: u32 = 2;

/// The place of the process, and what it keeps when it dies.
struct Rig {
    path: PathBuf,
    listener: UnixListener,
    region: File,
}

/// How the fake process treats a connection.
#[derive(Clone, Copy)]
struct Behaviour {
    /// Its name, which is in the answers to INQUIRY.
    name: u8,
    /// How many commands it answers before the test goes on.
    answers: usize,
    /// It ends a command when it starts its last queue, and dies.
    dies: bool,
    /// It says that it has no such target.
    absent: bool,
}

const FRESH: Behaviour = Behaviour { name: 1, answers: 3, dies: false, absent: false };
const RESUMED: Behaviour = Behaviour { name: 1, answers: 0, dies: false, absent: false };

/// A response that tells of no target.
const BAD_TARGET: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3];

/// The process's end of a connection.
struct Connection {
    socket: UnixStream,
    memory: Option<File>,
    kick: Option<OwnedFd>,
    call: Option<File>,
    base: u16,
    /// The indexes of the next chain to take, and of the next one to give back.
    taken: u16,
    given: u16,
}

impl Rig {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("targe-{}-{name}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let region = rustix::fs::memfd_create("region", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        Self { path, listener, region: region.into() }
    }

    fn spec(&self) -> ScsiSpec {
        ScsiSpec { path: self.path.clone(), patience: None }
    }

    /// Lets the process accept the next connection.
    fn accept(&self, behaviour: Behaviour) -> JoinHandle<Connection> {
        let (listener, region) = (self.listener.try_clone().unwrap(), self.region.try_clone().unwrap());
        std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            let (memory, kick, call) = (None, None, None);
            let mut connection = Connection { socket, memory, kick, call, base: 0, taken: 0, given: 0 };
            connection.negotiate(&region);
            if behaviour.dies {
                connection.end(0, 0);
                connection.socket.shutdown(Shutdown::Both).unwrap();
                return connection;
            }
            connection.acknowledge(SET_VRING_ENABLE);
            for _ in 0..behaviour.answers {
                let head = connection.next();
                match behaviour.absent {
                    true => connection.end_with(head, &BAD_TARGET, &[]),
                    false => connection.end(head, behaviour.name),
                }
            }
            connection
        })
    }

    fn open(&self) -> (ScsiDevice, Connection) {
        let process = self.accept(FRESH);
        let (device, _) = self.spec().connect().unwrap();
        (device, process.join().unwrap())
    }

    /// Lets the process die, and the device notice.
    fn die(&self, device: &mut ScsiDevice, connection: Connection) {
        drop(connection);
        while device.is_connected() {
            device.wait(None);
        }
    }

    /// Lets the device make its next attempt at once.
    fn attempt(&self, device: &mut ScsiDevice, behaviour: Behaviour) -> Connection {
        device.outage.as_mut().unwrap().retry_at = Instant::now();
        let process = self.accept(behaviour);
        assert!(device.receive().is_none());
        process.join().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Connection {
    /// Does what the front end asks for, until it starts the last queue, and does not acknowledge that.
    fn negotiate(&mut self, region: &File) {
        loop {
            let mut head = [0; 12];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut head)];
            let received = recvmsg(&self.socket, parts, &mut control, RecvFlags::WAITALL).unwrap();
            assert_eq!(received.bytes, 12);
            let mut descriptors = control.drain().flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
                _ => Vec::new(),
            });
            let descriptor = descriptors.next();
            let field = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
            let (request, flags) = (field(0), field(4));
            let mut body = vec![0; to_usize(field(8))];
            self.socket.read_exact(&mut body).unwrap();
            match request {
                GET_FEATURES => self.reply(request, &(1_u64 << 30 | 1 << 32).to_le_bytes(), None),
                // Acknowledgements and an in-flight region, and no configuration.
                GET_PROTOCOL_FEATURES => self.reply(request, &(1_u64 << 3 | 1 << 12).to_le_bytes(), None),
                GET_INFLIGHT_FD => {
                    let fields = [4096_u64, 0, u64::from(SIZE) << 16 | 3].map(u64::to_le_bytes);
                    self.reply(request, &fields.concat(), Some(region));
                }
                _ => {}
            }
            let is_last = body.first().is_some_and(|number| u32::from(*number) == LAST_QUEUE);
            match request {
                SET_MEM_TABLE => self.memory = descriptor.map(File::from),
                SET_VRING_KICK if is_last => self.kick = descriptor,
                SET_VRING_CALL if is_last => self.call = descriptor.map(File::from),
                SET_VRING_BASE if is_last => {
                    self.base = u16::from_le_bytes([body[4], body[5]]);
                    (self.taken, self.given) = (self.base, self.base);
                }
                SET_VRING_ENABLE if is_last => return,
                _ => {}
            }
            let is_answered = matches!(request, GET_FEATURES | GET_PROTOCOL_FEATURES | GET_INFLIGHT_FD);
            if flags & 8 != 0 && !is_answered {
                self.acknowledge(request);
            }
        }
    }

    fn acknowledge(&self, request: u32) {
        self.reply(request, &[0; 8], None);
    }

    fn reply(&self, request: u32, body: &[u8], aside: Option<&File>) {
        let head = [request, 1 | 4, u32::try_from(body.len()).unwrap()].map(u32::to_le_bytes).concat();
        let descriptors: Vec<_> = aside.iter().map(|file| file.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if aside.is_some() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        }
        let parts = [IoSlice::new(&head), IoSlice::new(body)];
        sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL).unwrap();
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        self.memory.as_ref().unwrap().read_exact_at(&mut bytes, to_u64(at)).unwrap();
        bytes
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.as_ref().unwrap().write_all_at(bytes, to_u64(at)).unwrap();
    }

    /// Takes the next command. Returns the number of its first descriptor.
    fn next(&mut self) -> u16 {
        let ring = queue_at(to_usize(LAST_QUEUE)) + ring::AVAILABLE;
        while u16::from_le_bytes(self.get(ring + 2)) == self.taken {
            let kick = self.kick.as_ref().unwrap();
            assert_eq!(poll(&mut [PollFd::new(kick, PollFlags::IN)], Some(&HANG)), Ok(1), "no command comes");
            let _ = rustix::io::read(kick, &mut [0_u8; 64][..]);
        }
        let head = u16::from_le_bytes(self.get(ring + 4 + 2 * usize::from(self.taken % SIZE)));
        self.taken += 1;
        head
    }

    /// Sends the first event: the device was removed.
    fn removed(&self) {
        let queue = queue_at(1);
        let place = u64::from_le_bytes(self.get(queue + ring::DESCRIPTORS)).wrapping_sub(DEVICE_BASE);
        let event = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0];
        self.put(usize::try_from(place).unwrap(), &event);
        self.put(queue + ring::USED + 4, &[0, 0, 0, 0, 16, 0, 0, 0]);
        self.put(queue + ring::USED + 2, &[1, 0]);
        self.call.as_ref().unwrap().write_all(&1_u64.to_ne_bytes()).unwrap();
    }

    /// Ends a command as good, with data that are `name` after a first byte.
    fn end(&mut self, head: u16, name: u8) {
        // A processor device, which has no blocks.
        self.end_with(head, &[], &[&[3], &[name; 35][..]].concat());
    }

    /// Ends a command with a response and data, which zeros follow.
    fn end_with(&mut self, head: u16, response: &[u8], data: &[u8]) {
        let queue = queue_at(to_usize(LAST_QUEUE));
        let mut written = 0;
        for number in usize::from(head)..usize::from(head) + ring::CHAIN_MAX {
            let entry: [u8; 16] = self.get(queue + ring::DESCRIPTORS + 16 * number);
            let place = u64::from_le_bytes(entry[..8].try_into().unwrap()).wrapping_sub(DEVICE_BASE);
            let len = u32::from_le_bytes(entry[8..12].try_into().unwrap());
            if entry[12] & 2 != 0 {
                // The response comes first.
                let start = if written == 0 { response } else { data };
                let mut bytes = vec![0; to_usize(len)];
                bytes.iter_mut().zip(start).for_each(|(place, byte)| *place = *byte);
                self.put(usize::try_from(place).unwrap(), &bytes);
                written += len;
            }
            if entry[12] & 1 == 0 {
                break;
            }
        }
        let used = queue + ring::USED;
        let entry = [u32::from(head).to_le_bytes(), written.to_le_bytes()].concat();
        self.put(used + 4 + 8 * usize::from(self.given % SIZE), &entry);
        self.given += 1;
        self.put(used + 2, &self.given.to_le_bytes());
        self.call.as_ref().unwrap().write_all(&1_u64.to_ne_bytes()).unwrap();
    }
}

/// Returns the device as it is in the process that takes it over, and that it has no connection.
fn taken(rig: &Rig, names: Vec<Vec<u8>>) -> ScsiDevice {
    let info = DeviceInfo { kind: 3, block_len: None, transfer_max: u32::MAX };
    let opened = rig.spec().take(MovedSg { info, names, locked: None }).unwrap();
    assert!(!opened.is_connected());
    match opened.device {
        Device::VhostUser(device) => *device,
        Device::Sg(_) => unreachable!("it has no node"),
    }
}

fn command(token: u64, timeout_ms: u32) -> SgRequest {
    SgRequest { token, command: vec![0; 6], data: SgData::Nothing, timeout_ms }
}

/// Waits for the end of a command. Returns its token and what the host adapter says.
fn ended(device: &mut ScsiDevice) -> (u64, u16) {
    loop {
        if let Some(reply) = device.receive() {
            return (reply.token, reply.host_status);
        }
        device.wait(None);
    }
}

fn news(device: &mut ScsiDevice) -> Vec<String> {
    let text =
        |news: Result<(), SgError>| news.map_or_else(|error| error.to_string(), |()| "back".to_owned());
    std::iter::from_fn(|| device.take_news()).map(text).collect()
}

#[test]
fn the_time_of_a_command_does_not_pass_while_the_process_is_away() {
    let rig = Rig::new("away");
    let (mut device, mut connection) = rig.open();
    device.submit(command(7, 300_000)).unwrap();
    let head = connection.next();
    rig.die(&mut device, connection);
    // The process is away for twice the time that the command has.
    let long = Duration::from_secs(600);
    device.commands[0].since -= long;
    device.outage.as_mut().unwrap().lost_at -= long;
    let mut connection = rig.attempt(&mut device, RESUMED);
    assert!(device.receive().is_none() && device.is_connected());
    connection.end(head, 0);
    assert_eq!(ended(&mut device), (7, 0));
}

#[test]
fn a_command_that_ends_each_process_is_not_resumed_for_ever() {
    let rig = Rig::new("deadly");
    let (mut device, mut connection) = rig.open();
    device.submit(command(7, 300_000)).unwrap();
    connection.next();
    rig.die(&mut device, connection);
    let since = device.outage.unwrap().since;
    for round in 1..=RESUMPTIONS_MAX {
        let connection = rig.attempt(&mut device, RESUMED);
        assert_eq!((device.commands[0].resumptions, connection.base), (round, 3));
        rig.die(&mut device, connection);
        assert_eq!(device.outage.unwrap().since, since, "no answer came");
    }
    assert_eq!(device.delay, RETRY_MAX);
    device.outage.as_mut().unwrap().retry_at = Instant::now();
    let process = rig.accept(FRESH);
    assert_eq!(ended(&mut device), (7, did::TRANSPORT_DISRUPTED));
    let mut connection = process.join().unwrap();
    assert_eq!((device.is_connected(), connection.base, device.delay), (true, 0, RETRY_MAX));
    device.submit(command(8, 300_000)).unwrap();
    let head = connection.next();
    connection.end(head, 0);
    assert_eq!(ended(&mut device), (8, 0));
    assert_eq!(device.delay, RETRY_FIRST);
}

#[test]
fn what_a_process_ends_before_its_start_fails_is_collected_and_the_next_one_goes_on_behind_it() {
    let rig = Rig::new("start");
    let (mut device, mut connection) = rig.open();
    device.submit(command(7, 300_000)).unwrap();
    device.submit(command(8, 300_000)).unwrap();
    assert_eq!((connection.next(), connection.next()), (0, 3));
    rig.die(&mut device, connection);
    rig.attempt(&mut device, Behaviour { dies: true, ..RESUMED });
    assert!(!device.is_connected());
    device.outage.as_mut().unwrap().retry_at = Instant::now();
    let process = rig.accept(RESUMED);
    assert_eq!(ended(&mut device), (7, 0));
    let mut connection = process.join().unwrap();
    assert_eq!(connection.base, 4);
    connection.end(3, 0);
    assert_eq!(ended(&mut device), (8, 0));
}

#[test]
fn after_a_timeout_the_process_must_leave_before_it_gets_commands_again() {
    let rig = Rig::new("slow");
    let (mut device, mut connection) = rig.open();
    device.submit(command(7, 0)).unwrap();
    connection.next();
    assert_eq!(ended(&mut device), (7, did::TIME_OUT));
    assert_eq!(connection.socket.read(&mut [0; 1]).unwrap(), 0, "the process is told to leave");
    device.submit(command(8, 300_000)).unwrap();
    assert_eq!(ended(&mut device), (8, did::NO_CONNECT));
    device.outage.as_mut().unwrap().retry_at = Instant::now();
    rig.listener.set_nonblocking(true).unwrap();
    assert!(device.receive().is_none() && rig.listener.accept().is_err(), "another connection");
    rig.listener.set_nonblocking(false).unwrap();
    drop(connection);
    device.wait(None);
    rig.attempt(&mut device, FRESH);
    assert!(device.is_connected());
    let left = "the process did not answer a command in time; commands fail until its process has closed";
    let news = news(&mut device);
    assert!(news[0].contains(left) && news[1] == "back" && news.len() == 2, "{news:?}");
}

#[test]
fn another_device_at_the_socket_gets_no_commands() {
    let rig = Rig::new("other");
    let (mut device, connection) = rig.open();
    rig.die(&mut device, connection);
    for _ in 0..2 {
        rig.attempt(&mut device, Behaviour { name: 2, ..FRESH });
        assert!(!device.is_connected());
    }
    device.submit(command(7, 300_000)).unwrap();
    let mut connection = rig.attempt(&mut device, FRESH);
    let head = connection.next();
    connection.end(head, 0);
    assert_eq!(ended(&mut device), (7, 0));
    let news = news(&mut device);
    assert!(news[0].contains("its process has ended") && news[1].contains("is not the device"), "{news:?}");
    assert_eq!(news[2..], ["back"]);
}

#[test]
fn a_process_that_goes_on_with_commands_gets_no_other_one_before_it_was_asked_who_it_is() {
    let rig = Rig::new("unverified");
    let (mut device, mut connection) = rig.open();
    device.submit(command(7, 300_000)).unwrap();
    let head = connection.next();
    rig.die(&mut device, connection);
    let mut connection = rig.attempt(&mut device, RESUMED);
    device.submit(command(8, 300_000)).unwrap();
    connection.end(head, 0);
    assert_eq!(ended(&mut device), (7, 0));
    assert_eq!(connection.socket.read(&mut [0; 1]).unwrap(), 0, "the process is told to leave");
    let ring = queue_at(to_usize(LAST_QUEUE)) + ring::AVAILABLE;
    assert_eq!(u16::from_le_bytes(connection.get(ring + 2)), connection.base + 1, "a command that waits");
    drop(connection);
    device.wait(None);
    rig.attempt(&mut device, Behaviour { name: 2, ..FRESH });
    assert!(!device.is_connected() && device.in_flight() == 1);
    let mut connection = rig.attempt(&mut device, FRESH);
    let head = connection.next();
    connection.end(head, 0);
    assert_eq!(ended(&mut device), (8, 0));
    let news = news(&mut device);
    assert!(news[0].contains("its process has ended") && news[1].contains("is not the device"), "{news:?}");
    assert_eq!(news[2..], ["back"]);
}

#[test]
fn a_device_without_names_is_not_taken_for_the_one_that_was_served() {
    let [inquiry, name, none] = [vec![3; 36], vec![0, 0x80, 0, 1, b'1'], Vec::new()];
    let [header, spaces] = [vec![0, 0x83, 0, 0], vec![0, 0x80, 0, 4, b' ', b' ', b' ', b' ']];
    let names =
        |serial: &Vec<u8>, designators: &Vec<u8>| vec![inquiry.clone(), serial.clone(), designators.clone()];
    let path = Path::new("/run/scsi.sock");
    for (served, found, why) in [
        (names(&name, &none), names(&name, &none), None),
        (names(&none, &name), names(&none, &name), None),
        (names(&none, &name), names(&name, &none), Some("is not the device that was served before")),
        (names(&none, &none), names(&none, &none), Some("neither a serial number nor designators")),
        (names(&none, &header), names(&none, &header), Some("neither a serial number nor designators")),
        (names(&spaces, &header), names(&spaces, &header), Some("neither a serial number nor designators")),
    ] {
        let result = check_same(path, &served, &found).map_err(|error| error.to_string());
        assert_eq!(result.is_err(), why.is_some(), "{result:?}");
        assert!(result.err().zip(why).is_none_or(|(told, why)| told.contains(why)));
    }
}

#[test]
fn a_device_that_the_process_removed_gets_no_commands_until_it_is_back() {
    let sense_len = [18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let not_supported = [&sense_len[..], &[0x70, 0, 5], &[0; 9], &[0x25, 0, 0, 0, 0, 0]].concat();
    let answers: [(&[u8], &[u8]); 3] = [(&not_supported, &[]), (&BAD_TARGET, &[]), (&[], &[0x7f])];
    for (number, (response, data)) in answers.into_iter().enumerate() {
        let rig = Rig::new(&format!("removed{number}"));
        let (mut device, mut connection) = rig.open();
        let bufs = vec![Buf::with_capacity(36)];
        let inquiry = vec![0x12, 0, 0, 0, 36, 0];
        let data_in = SgData::In { len: 36, bufs };
        device.submit(SgRequest { command: inquiry, data: data_in, ..command(7, 300_000) }).unwrap();
        for token in [8, 9] {
            device.submit(command(token, 300_000)).unwrap();
        }
        let heads = [connection.next(), connection.next(), connection.next()];
        connection.end_with(heads[0], response, data);
        connection.end(heads[1], 0);
        let gone = did::NO_CONNECT;
        assert_eq!([7, 8, 9].map(|_| ended(&mut device)), [(7, gone), (8, 0), (9, gone)]);
        assert_eq!(connection.socket.read(&mut [0; 1]).unwrap(), 0, "the process is told to leave");
        device.submit(command(10, 300_000)).unwrap();
        drop(connection);
        device.wait(None);
        for behaviour in [Behaviour { absent: true, ..FRESH }, Behaviour { name: 2, ..FRESH }] {
            rig.attempt(&mut device, behaviour);
            assert!(!device.is_connected());
        }
        let mut connection = rig.attempt(&mut device, FRESH);
        let head = connection.next();
        connection.end(head, 0);
        assert_eq!(ended(&mut device), (10, 0));
        let news = news(&mut device);
        let removed = "its process has removed the device; commands wait without a limit";
        assert!(news[0].contains(removed) && news[1].contains("is not the device"), "{news:?}");
        assert_eq!(news[2..], ["back"]);
    }
}

#[test]
fn a_device_that_lacks_a_page_is_not_one_that_was_removed() {
    let rig = Rig::new("page");
    let (mut device, mut connection) = rig.open();
    let inquiry = vec![0x12, 1, 0xb0, 0, 36, 0];
    let data = SgData::In { len: 36, bufs: vec![Buf::with_capacity(36)] };
    device.submit(SgRequest { command: inquiry, data, ..command(7, 300_000) }).unwrap();
    let head = connection.next();
    // It transfers nothing.
    let invalid_field =
        [&[18, 0, 0, 0, 36, 0, 0, 0, 0, 0, 2, 0, 0x70, 0, 5][..], &[0; 9], &[0x24, 0]].concat();
    connection.end_with(head, &invalid_field, &[]);
    assert_eq!(ended(&mut device), (7, 0));
    assert!(device.is_connected() && news(&mut device).is_empty());
}

#[test]
fn a_device_that_was_exchanged_while_no_command_was_sent_is_not_used() {
    let rig = Rig::new("exchanged");
    let (mut device, connection) = rig.open();
    connection.removed();
    device.wait(None);
    assert!(device.receive().is_none() && !device.is_connected());
    drop(connection);
    device.wait(None);
    rig.attempt(&mut device, Behaviour { name: 2, ..FRESH });
    assert!(!device.is_connected());
    let news = news(&mut device);
    assert!(news[0].contains("has removed the device") && news[1].contains("is not the device"), "{news:?}");
}

#[test]
fn opening_ends_when_the_process_dies_meanwhile() {
    let rig = Rig::new("opening");
    let process = rig.accept(Behaviour { answers: 1, ..FRESH });
    let (opened, open) = std::sync::mpsc::channel();
    let spec = rig.spec();
    std::thread::spawn(move || opened.send(spec.open().map(drop)));
    drop(process.join().unwrap());
    let result = open.recv_timeout(Duration::from_secs(60)).expect("it waits for a process to come back");
    assert!(result.unwrap_err().to_string().contains("its process has ended"));
}

#[test]
fn a_device_that_another_process_served_is_connected_to_at_once_when_it_is_driven() {
    let rig = Rig::new("taken");
    let (first, connection) = rig.open();
    let mut device = taken(&rig, first.names.clone());
    device.submit(command(7, 300_000)).unwrap();
    rig.listener.set_nonblocking(true).unwrap();
    assert!(rig.listener.accept().is_err(), "a connection beside that of the other process");
    rig.listener.set_nonblocking(false).unwrap();
    drop((first, connection));
    let process = rig.accept(FRESH);
    assert!(device.receive().is_none());
    let mut connection = process.join().unwrap();
    let head = connection.next();
    connection.end(head, 0);
    assert_eq!(ended(&mut device), (7, 0));
    assert_eq!(news(&mut device), ["back"]);
}

#[test]
fn a_device_that_another_process_served_gets_no_commands_if_it_is_another_one_or_away() {
    let rig = Rig::new("taken-other");
    let names = rig.open().0.names;
    let mut device = taken(&rig, names);
    device.submit(command(7, 300_000)).unwrap();
    rig.attempt(&mut device, Behaviour { name: 2, ..FRESH });
    assert!(!device.is_connected() && device.in_flight() == 1);
    let told = news(&mut device);
    assert!(told.len() == 1 && told[0].contains("is not the device"), "{told:?}");

    let mut device = taken(&rig, device.names);
    std::fs::remove_file(&rig.path).unwrap();
    for _ in 0..2 {
        device.outage.as_mut().unwrap().retry_at = Instant::now();
        assert!(device.receive().is_none() && !device.is_connected());
    }
    let told = news(&mut device);
    assert!(told.len() == 1 && told[0].contains("cannot connect to"), "{told:?}");
}

#[test]
fn a_command_does_not_wait_longer_than_the_limit_for_a_process_that_removed_the_device_and_stays() {
    let rig = Rig::new("stays");
    let (mut device, connection) = rig.open();
    device.spec.patience = Some(Duration::from_millis(50));
    connection.removed();
    device.wait(None);
    assert!(device.receive().is_none() && !device.is_connected());
    device.submit(command(7, 300_000)).unwrap();
    assert!(device.next_deadline().is_some(), "nothing ends the wait");
    assert_eq!(ended(&mut device), (7, did::NO_CONNECT));
    assert!(device.next_deadline().is_none(), "there is no connection until the process has left");
}
