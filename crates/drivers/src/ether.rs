//! Ethernet interfaces as ports of a state machine: packet sockets that carry the frames of one EtherType.
//!
//! A port is opened once with [`PortSocket::open`], which needs `CAP_NET_RAW`, and given to a reactor. It
//! exists as long as the reactor, or until the reactor closes it. The state machine is informed when an
//! interface goes down, changes its MTU or its address, or vanishes and comes back under the same name. The
//! state machine does not receive frames to other stations, frames of other VLANs, frames that the filter of
//! the port rejects, and frames that arrived while the receive buffer of the port was full. The last are
//! counted.
//!
//! [`raw`] is for tools that forward between two interfaces and need every frame unchanged.

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

/// The default size of the receive buffer, in bytes as the kernel counts: some 16,000 short frames, or 3,500
/// of 9000 bytes, or 500 of 65,535.
const RECEIVE_BYTES: usize = 64 << 20;

/// From this MTU on, frames do not count as short: a block of 4 KiB fits into one.
const RING_MTU_MIN: usize = 4096;

/// The size of the send buffer, in bytes: a millisecond at 10 Gbit/s, and eight of the longest frames.
const SEND_BYTES: usize = 1 << 20;

/// How many times in a row a frame is sent again that was refused because the queue beyond the socket was
/// full. A frame may never get through, such as one that is longer than the other end of a veth pair accepts;
/// after so many attempts it is dropped, like other lost frames.
const REFUSALS_MAX: u8 = 4;

/// The longest payload that is used: the most that the 16-bit length of a frame can express.
const MTU_MAX: usize = 65_535;

/// The settings of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The name of the interface.
    pub interface: String,
    /// The EtherType of the frames.
    pub ether_type: u16,
    /// The frames to receive when several reactors share the interface.
    pub steering: Option<Steering>,
    /// The size of the receive buffer, in bytes as the kernel counts the frames in the queue of a socket:
    /// half of it is the frames themselves. The kernel may allow less in the queue.
    pub receive_bytes: usize,
    /// How frames are received.
    pub rx_mode: RxMode,
}

/// How frames are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxMode {
    /// A ring of half of `receive_bytes`, which the kernel fills and the reactor reads without a system call.
    /// A frame of any length takes a slot for the longest frame. Where there is no memory for the ring, the
    /// queue is used.
    Ring,
    /// The queue of the socket.
    Queue,
    /// The queue if frames are short when the port is opened and the kernel allows the queue its full size;
    /// otherwise the ring. Short frames take so little time that a reactor that reads them from a ring
    /// finishes before the next one arrives, and must be woken for each few.
    Auto,
}

/// The frames that one of several reactors receives: those of sessions that have its numbers, and those of no
/// session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steering {
    /// The offset in the payload of the session identifier, which is four bytes long; zero is no session.
    pub at: u8,
    /// The range of the first byte of the session identifiers that belong to this reactor.
    pub mine: RangeInclusive<u8>,
}

impl PortConfig {
    /// Returns the settings of a port that receives all frames of an EtherType.
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
    /// The process lacks the capability.
    #[error("raw frames need the capability CAP_NET_RAW: `sudo setcap cap_net_raw+ep {program}` grants it")]
    NotAllowed {
        /// The program that needs the capability.
        program: String,
    },
    /// There is no such interface.
    #[error("there is no interface `{0}`")]
    NoInterface(String),
    /// The interface is not Ethernet.
    #[error("interface `{0}` is not an Ethernet interface")]
    NotEthernet(String),
    /// The kernel reported another error.
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

/// An open port that no reactor owns yet. It receives nothing until a reactor owns it.
pub struct PortSocket {
    socket: OwnedFd,
    config: PortConfig,
    /// The size of the receive buffer, in bytes as the kernel counts.
    room: usize,
    /// The ring that receives frames, unless the queue of the socket does.
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

    /// Returns the present state of the interface, if it is up.
    pub fn state(&self) -> Option<PortState> {
        self.look()
            .filter(|interface| interface.up)
            .map(|interface| self.state_of(&interface, self.ring.as_ref()))
    }

    /// Returns the settings of the port.
    pub const fn config(&self) -> &PortConfig {
        &self.config
    }

    fn look(&self) -> Option<Interface> {
        Interface::look_up(&self.socket, &self.config.interface).ok().filter(Interface::is_ethernet)
    }

    /// Returns a new ring for frames of the MTU, unless the settings ask for none or there is no memory for
    /// it.
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
        // The kernel counts the memory of a frame in the queue: up to twice the frame, and its own data about
        // the frame.
        let queue = (self.room / (2 * mtu + FRAME_OVERHEAD)).max(1);
        let receive_slots = ring.map_or(queue, Ring::slots);
        PortState { mac: interface.mac, mtu, receive_slots }
    }
}

/// Checks whether this process can open Ethernet ports, and receive frames through a ring.
///
/// # Errors
/// The error of the system; without CAP_NET_RAW, that it is not permitted.
pub fn probe_ring() -> io::Result<()> {
    let socket = socket::open(SocketType::DGRAM)?;
    Ring::set_up(&socket, PROBED_MTU, PROBED_BYTES)?;
    Ok(())
}

/// The MTU and the length in bytes of the ring that [`probe_ring`] makes.
const PROBED_MTU: usize = 1500;
const PROBED_BYTES: usize = 1 << 16;

/// The memory that the kernel keeps about a waiting frame, in bytes, at most.
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

/// Returns random bytes from the generator of the operating system.
fn entropy() -> Result<[u8; 32], Errno> {
    let mut entropy = [0; 32];
    let mut filled = 0;
    while let Some(rest) = entropy.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        let fill = || rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty());
        filled += rustix::io::retry_on_intr(fill)?;
    }
    Ok(entropy)
}
