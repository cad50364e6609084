//! A relay between two sockets of the test: an initiator that ends its connection, and a target that receives
//! nothing until the test lets it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use base::state_machine::{AcceptInfo, Action, ConnId, PortalId};
use base::time::Instant as Time;
use base::transmit::Transmit;
use iscsi::aead::AeadDigest;
use iscsi::chap::Secret;
use iscsi::login::directory::{
    AuthPolicy, ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo,
    SessionQuery, TargetAccess, TargetId, TargetLookup,
};
use iscsi::name::{IscsiName, PortalGroupTag};
use iscsi::negotiate::KeyPolicy;
use iscsi::pdu::login_request::LoginRequest;
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{BHS_LEN, Bhs, Itt, PduHeader};
use iscsi::serial::{CmdSn, StatSn};
use iscsi::target::contract::Event;
use iscsi::target::engine::{Engine, Limits};
use security::opaque::{Password, PasswordRecord, StretchCost};
use transport::command::TaskAttribute;

use super::*;

const CONN: ConnId = ConnId(0);
const USER: &str = "alice";
const PASSWORD: &[u8] = b"correct horse";

/// The immediate data of each write, in bytes.
const WRITE_LEN: u32 = 32 << 10;

/// A target that is not told to receive does it after this time, so that a test in which the end is not
/// passed on fails and does not hang.
const GUARD: Duration = Duration::from_secs(60);

struct Site;

impl Directory for Site {
    fn certifies(&self, _: &ConnectionPath, _: &IscsiName) -> bool {
        true
    }

    fn find_target(&self, _: &ConnectionPath, _: &IscsiName, _: &IscsiName) -> TargetLookup {
        TargetLookup::Found(TargetAccess {
            sessions_max: None,
            target: TargetId(1),
            portal_group: PortalGroupTag(1),
            alias: None,
            auth: AuthPolicy { opaque: true, ..AuthPolicy::default() },
            keys: KeyPolicy::default(),
        })
    }

    fn discovery(&self, _: &ConnectionPath, _: &IscsiName) -> DiscoveryAccess {
        DiscoveryAccess::NotServed
    }

    fn chap_secret(&self, _: Realm, _: &IscsiName, _: &str) -> Option<Secret> {
        None
    }

    fn password_record(&self, _: Realm, _: &IscsiName, _: &str) -> Option<Arc<PasswordRecord>> {
        let cost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
        PasswordRecord::make(&Password::new(PASSWORD).unwrap(), USER, cost, [7; 32]).ok().map(Arc::new)
    }

    fn find_session(&self, _: &SessionQuery<'_>) -> Option<SessionInfo> {
        None
    }

    fn next_target(
        &self,
        _: &ConnectionPath,
        _: &IscsiName,
        _: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        None
    }
}

/// What reached the target.
#[derive(Debug)]
struct Reached {
    /// The LBAs of the writes.
    lbas: Vec<u32>,
    /// Whether the connection ended by a reset.
    is_reset: bool,
}

struct Target {
    socket: TcpStream,
    engine: Engine,
    pool: Pool,
    is_up: bool,
    lbas: Vec<u32>,
}

impl Target {
    fn accept(listener: &TcpListener) -> Self {
        let (socket, peer) = listener.accept().unwrap();
        let pool = Pool::new(1 << 20);
        let limits = Limits { queue_depth: 4096, ..Limits::default() };
        let mut engine = Engine::new(limits, pool.clone());
        let local = socket.local_addr().unwrap();
        let arrival = AcceptInfo { portal: PortalId(0), local, peer, entropy: [5; 32] };
        engine.connected(Time::ORIGIN, CONN, &arrival);
        Self { socket, engine, pool, is_up: false, lbas: vec![] }
    }

    /// Receives once. Returns whether the connection continues.
    fn receive(&mut self) -> io::Result<bool> {
        let mut chunk = vec![0; 64 << 10];
        let len = self.socket.read(&mut chunk)?;
        self.engine.received(Time::ORIGIN, CONN, &chunk[..len], &Site);
        while let Some(event) = self.engine.poll_event() {
            match event {
                Event::SessionUp(_) => self.is_up = true,
                Event::Command(command) => {
                    assert_eq!(command.data_out.map(|data| data.len()), Some(WRITE_LEN as usize));
                    self.lbas.push(u32::from_be_bytes(command.cdb[2..6].try_into().unwrap()));
                }
                _ => {}
            }
        }
        while let Some(action) = self.engine.poll_action() {
            let Action::Transmit(_) = action else { panic!("the target closes the connection") };
            let mut out = Transmit::new();
            self.engine.transmit(Time::ORIGIN, CONN, &mut out);
            self.socket.write_all(&out.pieces().collect::<Vec<_>>().concat()).unwrap();
            out.clear(&self.pool);
        }
        Ok(len > 0)
    }

    /// Serves a login, and receives everything else when it is told to.
    fn run(listener: &TcpListener, may_receive: &Receiver<()>) -> Reached {
        let mut target = Self::accept(listener);
        while !target.is_up {
            assert!(target.receive().unwrap(), "the proxy closes the connection during the login");
        }
        let _ = may_receive.recv_timeout(GUARD);
        let is_reset = loop {
            match target.receive() {
                Ok(true) => {}
                Ok(false) => break false,
                Err(why) => {
                    assert_eq!(why.kind(), ErrorKind::ConnectionReset);
                    break true;
                }
            }
        };
        Reached { lbas: target.lbas, is_reset }
    }
}

/// An initiator and a target that are logged in through a relay.
struct World<'a> {
    initiator: TcpStream,
    relay: Relay<'a>,
    target: JoinHandle<Reached>,
    may_receive: Sender<()>,
}

impl<'a> World<'a> {
    fn logged_in(far: TcpListener, upstream: &'a AeadUpstream) -> Self {
        // The kernel's buffers hold less than the proxy, so what the proxy holds cannot disappear in them.
        sockopt::set_socket_recv_buffer_size(&far, 64 << 10).unwrap();
        let (may_receive, told) = channel();
        let target = std::thread::spawn(move || Target::run(&far, &told));
        let near = listener();
        let mut initiator = TcpStream::connect(near.local_addr().unwrap()).unwrap();
        let mut relay = Relay::new(near.accept().unwrap().0, upstream).unwrap();
        initiator.write_all(&login()).unwrap();
        loop {
            assert!(!relay.advance().unwrap(), "the login fails");
            if relay.proxy.is_logged_in() {
                break;
            }
            relay.wait().unwrap();
        }
        // Closing a socket with unread bytes would reset the connection.
        let mut header = [0; BHS_LEN];
        initiator.read_exact(&mut header).unwrap();
        let text_len = Bhs::from_bytes(header).data_len().next_multiple_of(4);
        initiator.read_exact(&mut vec![0; text_len as usize]).unwrap();
        sockopt::set_socket_send_buffer_size(relay.far.as_ref().unwrap(), 64 << 10).unwrap();
        Self { initiator, relay, target, may_receive }
    }

    /// Sends writes until the proxy takes no more. Returns how many that were.
    fn fill(&mut self) -> u32 {
        let mut count = 0;
        loop {
            self.relay.receive(Side::Local).unwrap();
            self.relay.handle_received(Side::Local);
            self.relay.send(Side::Remote).unwrap();
            if !self.relay.proxy.can_receive(Side::Local) {
                return count;
            }
            if self.relay.from_near.is_empty() {
                self.initiator.write_all(&write(count)).unwrap();
                count += 1;
            }
        }
    }

    /// Ends the initiator's connection, waits until the kernel knows it, and lets the relay run to its end.
    /// Returns what reached the target.
    fn end(self, close: fn(TcpStream)) -> Reached {
        close(self.initiator);
        poll(&mut [PollFd::new(&self.relay.near, PollFlags::RDHUP)], None).unwrap();
        self.relay.run().unwrap();
        // The target receives already if the test took too long.
        let _ = self.may_receive.send(());
        self.target.join().unwrap()
    }
}

fn upstream(far: &TcpListener) -> AeadUpstream {
    AeadUpstream {
        host: Ipv4Addr::LOCALHOST.to_string(),
        port: far.local_addr().unwrap().port(),
        plan: ProxyPlan {
            user: USER.into(),
            password: Password::new(PASSWORD).unwrap(),
            aead_digests: &AeadDigest::ALL,
            min_protection: Level::Encrypt,
        },
        patience: GUARD,
    }
}

fn listener() -> TcpListener {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap()
}

fn login() -> Vec<u8> {
    let text = "InitiatorName=iqn.2026-11.com.example:host\0TargetName=iqn.2026-11.com.example:disk\0";
    let header = LoginRequest {
        transit: true,
        continues: false,
        csg: 1,
        nsg: 3,
        version_max: 0,
        version_min: 0,
        isid: [0x80, 0, 0, 0, 0, 1],
        tsih: 0,
        itt: Itt(1),
        cid: 0,
        cmd_sn: CmdSn(0),
        exp_stat_sn: StatSn(0),
    };
    pdu(&header.encode(), text.as_bytes())
}

/// A WRITE(10) whose data is immediate.
fn write(number: u32) -> Vec<u8> {
    let mut cdb = [0; 16];
    cdb[0] = 0x2a;
    cdb[2..6].copy_from_slice(&number.to_be_bytes());
    let header = ScsiCommand {
        immediate: false,
        is_final: true,
        read: false,
        write: true,
        attribute: TaskAttribute::SIMPLE,
        priority: 0,
        lun: 0,
        itt: Itt(number),
        expected_data_transfer_length: WRITE_LEN,
        cmd_sn: CmdSn(number),
        exp_stat_sn: StatSn(0),
        cdb,
    };
    pdu(&header.encode(), &[0x5a; WRITE_LEN as usize])
}

fn pdu(header: &Bhs, data: &[u8]) -> Vec<u8> {
    let mut bytes = [&header.with_data_len(data.len()).to_bytes(), data].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Ends the initiator's connection while the target receives nothing, the proxy holds what it can, and the
/// initiator has sent more.
fn nothing_follows(close: fn(TcpStream)) {
    let far = listener();
    let upstream = upstream(&far);
    let mut world = World::logged_in(far, &upstream);
    let first = world.fill();
    for late in first..first + 4 {
        world.initiator.write_all(&write(late)).unwrap();
    }
    let reached = world.end(close);
    let count = u32::try_from(reached.lbas.len()).unwrap();
    assert_eq!(reached.lbas, (0..count).collect::<Vec<_>>());
    assert!(reached.is_reset);
    // The proxy alone held half a MiB.
    assert!(0 < count && count <= first - 16, "{count} of {first} writes reached the target");
}

#[test]
fn nothing_follows_the_reset_of_an_initiator_whose_target_is_stalled() {
    nothing_follows(|initiator| {
        sockopt::set_socket_linger(&initiator, Some(Duration::ZERO)).unwrap();
    });
}

#[test]
fn nothing_follows_the_end_of_an_initiator_whose_target_is_stalled() {
    nothing_follows(drop);
}

#[test]
fn everything_reaches_the_target_before_the_end_of_an_initiator_that_closes() {
    let far = listener();
    let upstream = upstream(&far);
    let mut world = World::logged_in(far, &upstream);
    world.initiator.write_all(&write(0)).unwrap();
    let reached = world.end(drop);
    assert_eq!(reached.lbas, [0]);
    assert!(!reached.is_reset);
}
