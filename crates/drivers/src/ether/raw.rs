//! A raw interface: every frame on it, whole, with its header, unfiltered.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SocketType;

use super::batch::{RxBatch, TxBatch};
use super::interface::Interface;
use super::{PortError, REFUSALS_MAX, SEND_BYTES, socket};
use crate::files::Errno;

/// All EtherTypes (`ETH_P_ALL` of linux/if_ether.h).
const EVERY_TYPE: u16 = 3;

/// The longest header before the payload of a frame: addresses, a VLAN tag and an EtherType.
const HEADER_BYTES: usize = 18;

/// An interface opened for raw frames.
pub struct RawPort {
    socket: OwnedFd,
    name: String,
    mtu: usize,
    intake: RxBatch,
    outtake: TxBatch,
    /// How many times in a row the first frame was refused.
    refusals: u8,
}

/// The result of sending frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentRaw {
    /// How many frames are finished, in order. The frames after them found no free buffer; they may be sent
    /// again.
    pub done: usize,
    /// How many of these were not sent because they are longer than the interface allows.
    pub too_long: usize,
    /// How many were not sent for another reason: the interface is down, or the link refuses them.
    pub failed: usize,
}

impl RawPort {
    /// Opens an interface for frames of an EtherType, or of all, whatever their destination.
    ///
    /// # Errors
    /// [`PortError`]
    pub fn open(interface: &str, ether_type: Option<u16>, receive_bytes: usize) -> Result<Self, PortError> {
        let failed = |errno| PortError::of(interface, errno);
        let socket = socket::open(SocketType::RAW).map_err(failed)?;
        let known = Interface::look_up(&socket, interface).map_err(failed)?;
        if !known.is_ethernet() {
            return Err(PortError::NotEthernet(interface.to_owned()));
        }
        socket::make_room(&socket, receive_bytes, SEND_BYTES);
        socket::be_promiscuous(&socket, known.index).map_err(failed)?;
        socket::bind(&socket, known.index, ether_type.unwrap_or(EVERY_TYPE)).map_err(failed)?;
        let mut intake = RxBatch::new();
        intake.fit(known.mtu + HEADER_BYTES);
        let outtake = TxBatch::new();
        Ok(Self { socket, name: interface.to_owned(), mtu: known.mtu, intake, outtake, refusals: 0 })
    }

    /// Returns the MTU of the interface when it was opened, or last refreshed with [`Self::look`].
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Queries the MTU of the interface again.
    pub fn look(&mut self) {
        if let Ok(known) = Interface::look_up(&self.socket, &self.name) {
            self.mtu = known.mtu;
            self.intake.fit(known.mtu + HEADER_BYTES);
        }
    }

    /// Receives the frames that wait, and passes each one to `each`. Returns how many there were, and whether
    /// there may be more. An interface that is down delivers none.
    pub fn receive(&mut self, mut each: impl FnMut(&[u8])) -> (usize, bool) {
        // An error means that the interface went down; it is reported once.
        self.intake
            .receive(&self.socket, |taken| {
                if taken.kind != libc::PACKET_OUTGOING {
                    each(taken.bytes);
                }
            })
            .unwrap_or((0, false))
    }

    /// Sends frames until the buffer of the socket is full.
    pub fn send<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]> + Clone) -> SentRaw {
        let mut sent = SentRaw::default();
        let mut left = frames;
        while left.clone().next().is_some() {
            let whole = left.clone().map(|frame| (None, std::iter::once(frame)));
            let gone = match self.outtake.send(&self.socket, (0, 0), whole) {
                Ok(count) => count.max(1),
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) if self.refusals >= REFUSALS_MAX => {
                    sent.failed += 1;
                    1
                }
                Err(errno @ (Errno::AGAIN | Errno::NOBUFS)) => {
                    self.refusals += u8::from(errno == Errno::NOBUFS);
                    return sent;
                }
                Err(Errno::MSGSIZE) => {
                    sent.too_long += 1;
                    1
                }
                Err(_) => {
                    sent.failed += 1;
                    1
                }
            };
            self.refusals = 0;
            sent.done += gone;
            for _ in 0..gone {
                left.next();
            }
        }
        sent
    }

    /// Returns how many frames were lost since the last call because the receive buffer was full.
    pub fn take_drops(&self) -> u64 {
        u64::from(socket::take_drops(&self.socket))
    }
}

impl AsFd for RawPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
