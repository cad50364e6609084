//! Ethernet interfaces as ports of a machine: packet sockets that carry the frames of one EtherType.
//!
//! A port is opened once ([`PortSocket::open`], which is what needs `CAP_NET_RAW`) and given to a reactor. It lives as long as
//! the reactor or until it is closed there: an interface that goes down, changes its MTU or its address, or vanishes and
//! comes back under the same name is told to the machine as such. What a machine does not hear: frames to other stations,
//! frames of other VLANs, what the port's filter refuses, and what came while its buffer was full, which is counted.
//!
//! [`raw`] is for instruments that stand between two interfaces and need every frame as it is.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use base::ether::PortState;
use rustix::net::SocketType;

use crate::files::Errno;
use interface::Interface;
use ring::Ring;

pub mod raw;

mod batch;
mod filter;
mod interface;
mod links;
mod ports;
mod ring;
mod rx_timestamp;
mod socket;

pub(crate) use batch::RxFrame;
pub(crate) use ports::Ports;
pub(crate) use rx_timestamp::RxTimestamp;
pub(crate) use socket::address;

/// How many bytes wait to be received, if the configuration does not say: as the kernel counts, some 16,000 short frames, or
/// 3,500 of 9000 bytes, or 500 of 65,535.
const RECEIVE_BYTES: usize = 64 << 20;

/// Frames are not short from here on: a block of 4 KiB fits into one.
const RING_MTU_MIN: usize = 4096;

/// How many bytes wait to be sent: a millisecond at 10 Gbit/s, and eight of the longest frames.
const SEND_BYTES: usize = 1 << 20;

/// How many times in a row a frame is tried again for which there was no room beyond the socket. It may be one that never gets
/// through, such as one that is longer than the other end of a virtual cable takes; then it is lost, like others.
const REFUSALS_MAX: u8 = 4;

/// The longest payload that is made use of: what a frame's length of 16 bits can say.
const MTU_MAX: usize = 65_535;

/// How a port is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The name of the interface.
    pub interface: String,
    /// The EtherType of the frames.
    pub ether_type: u16,
    /// Which frames are wanted when several reactors share the interface.
    pub steering: Option<Steering>,
    /// For how many bytes there should be room until they are received, as the kernel counts the frames in a socket's queue:
    /// half of it are the frames' own. It may allow less in the queue.
    pub receive_bytes: usize,
    /// Where frames come in.
    pub rx_mode: RxMode,
}

/// Where frames come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxMode {
    /// A ring of half as many bytes as there is to be room for, which the kernel fills and we read without a call. A frame of
    /// any length takes the room of the longest there. Where there is no memory for it, it is the queue.
    Ring,
    /// The socket's queue.
    Queue,
    /// The queue where frames are short when the port is opened and the queue may have its room, else the ring. Short frames take
    /// so little that who reads them from a ring is done before the next comes, and must be woken for each few.
    Auto,
}

/// Which frames come to one of several reactors: of sessions that have its number, and of none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steering {
    /// Where in the payload the name of the session is, four bytes long; zero is no session.
    pub at: u8,
    /// The first bytes of the names that are ours.
    pub mine: RangeInclusive<u8>,
}

impl PortConfig {
    /// Returns the settings of a port that takes all frames of a type.
    pub fn new(interface: &str, ether_type: u16) -> Self {
        Self {
            interface: interface.to_owned(),
            ether_type,
            steering: None,
            receive_bytes: RECEIVE_BYTES,
            rx_mode: RxMode::Auto,
        }
    }
}

/// A port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The process may not.
    #[error("raw frames need the capability CAP_NET_RAW: `sudo setcap cap_net_raw+ep {program}` grants it")]
    NotAllowed {
        /// What would have to be granted it.
        program: String,
    },
    /// There is no such interface.
    #[error("there is no interface `{0}`")]
    NoInterface(String),
    /// It carries something else.
    #[error("interface `{0}` is no Ethernet")]
    NotEthernet(String),
    /// The kernel refused something else.
    #[error("interface `{0}`")]
    Io(String, #[source] io::Error),
}

impl PortError {
    fn of(interface: &str, errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => {
                let program = std::env::current_exe()
                    .map_or_else(|_| "targe".to_owned(), |it| it.display().to_string());
                Self::NotAllowed { program }
            }
            Errno::NODEV => Self::NoInterface(interface.to_owned()),
            errno => Self::Io(interface.to_owned(), errno.into()),
        }
    }
}

/// A port that is open and that no reactor has yet. Nothing is received before one has.
pub struct PortSocket {
    socket: OwnedFd,
    config: PortConfig,
    /// For how many bytes there is room, as the kernel counts.
    room: usize,
    /// Where frames come in, unless it is the socket's queue.
    ring: Option<Ring>,
}

impl PortSocket {
    /// Opens a port. The interface has to exist; it may be down.
    ///
    /// # Errors
    /// [`PortError`]
    pub fn open(config: PortConfig) -> Result<Self, PortError> {
        let failed = |errno| PortError::of(&config.interface, errno);
        let socket = socket::open(SocketType::DGRAM).map_err(failed)?;
        let interface = Interface::look_up(&socket, &config.interface).map_err(failed)?;
        if !interface.is_ethernet() {
            return Err(PortError::NotEthernet(config.interface));
        }
        socket::attach_filter(&socket, &filter::program(&config)).map_err(failed)?;
        socket::tell_arrivals(&socket);
        let room = socket::make_room(&socket, config.receive_bytes, SEND_BYTES);
        let mut port = Self { socket, config, room, ring: None };
        port.ring = port.make_ring(interface.mtu);
        Ok(port)
    }

    /// Returns how the interface is at present, if it is up.
    pub fn state(&self) -> Option<PortState> {
        self.look()
            .filter(|interface| interface.up)
            .map(|interface| self.state_of(&interface, self.ring.as_ref()))
    }

    /// Returns how it was set up.
    pub const fn config(&self) -> &PortConfig {
        &self.config
    }

    fn look(&self) -> Option<Interface> {
        Interface::look_up(&self.socket, &self.config.interface).ok().filter(Interface::is_ethernet)
    }

    /// Returns a new ring for frames of the MTU, unless none is wanted or there is no memory for it.
    fn make_ring(&self, mtu: usize) -> Option<Ring> {
        let wanted = match self.config.rx_mode {
            RxMode::Ring => true,
            RxMode::Queue => false,
            RxMode::Auto => mtu >= RING_MTU_MIN || self.room < self.config.receive_bytes,
        };
        let set_up = || Ring::set_up(&self.socket, mtu.min(MTU_MAX), self.config.receive_bytes / 2).ok();
        wanted.then(set_up).flatten()
    }

    fn state_of(&self, interface: &Interface, ring: Option<&Ring>) -> PortState {
        let mtu = interface.mtu.min(MTU_MAX);
        // The kernel counts the memory behind a frame in the queue, which is up to twice the frame and what it keeps about it.
        let queue = (self.room / (2 * mtu + FRAME_OVERHEAD)).max(1);
        let receive_slots = ring.map_or(queue, Ring::slots);
        PortState { mac: interface.mac, mtu, receive_slots }
    }
}

/// What the kernel keeps about a frame that waits, in bytes, at most.
const FRAME_OVERHEAD: usize = 1024;

impl fmt::Debug for PortSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PortSocket").field(&self.config).finish()
    }
}

impl AsFd for PortSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns fresh bytes from the operating system's generator.
fn entropy() -> Result<[u8; 32], Errno> {
    let mut entropy = [0; 32];
    let mut filled = 0;
    while let Some(rest) = entropy.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let fill = || rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty());
        filled += rustix::io::retry_on_intr(fill)?;
    }
    Ok(entropy)
}
