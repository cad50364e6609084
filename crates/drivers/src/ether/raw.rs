//! An interface as a wire ends in it: every frame of it, whole, and none held back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SocketType;

use super::batch::{RxBatch, TxBatch};
use super::interface::Interface;
use super::{PortError, REFUSALS_MAX, SEND_BYTES, socket};
use crate::files::Errno;

/// All EtherTypes (`ETH_P_ALL` of linux/if_ether.h).
const EVERY_TYPE: u16 = 3;

/// What comes before a frame's payload at most: addresses, a VLAN tag and an EtherType.
const HEADER_BYTES: usize = 18;

/// One end of a wire.
pub struct RawPort {
    socket: OwnedFd,
    name: String,
    mtu: usize,
    intake: RxBatch,
    outtake: TxBatch,
    /// How many times in a row the first frame was refused.
    refusals: u8,
}

/// What became of frames that were to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentRaw {
    /// How many were dealt with, in order. Those behind them found no room; they may be tried again.
    pub done: usize,
    /// How many of these did not go because they are longer than the interface allows.
    pub too_long: usize,
    /// How many did not go for another reason: the interface is down, or whatever is behind it refuses them.
    pub failed: usize,
}

impl RawPort {
    /// Opens an interface for frames of a type, or all, to whomever they are sent.
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

    /// Returns the interface's MTU as of when it was opened, or looked at.
    pub const fn mtu(&self) -> usize {
        self.mtu
    }

    /// Takes note of a changed MTU.
    pub fn look(&mut self) {
        if let Ok(known) = Interface::look_up(&self.socket, &self.name) {
            self.mtu = known.mtu;
            self.intake.fit(known.mtu + HEADER_BYTES);
        }
    }

    /// Receives what is there, and hands each frame over. Returns how many there were, and whether there may be more. An
    /// interface that is down has nothing.
    pub fn receive(&mut self, mut each: impl FnMut(&[u8])) -> (usize, bool) {
        // An error is that of an interface that went down, and told once.
        self.intake
            .receive(&self.socket, |taken| {
                if taken.kind != libc::PACKET_OUTGOING {
                    each(taken.bytes);
                }
            })
            .unwrap_or((0, false))
    }

    /// Sends frames until there is no room.
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

    /// Returns how many frames were lost, since this was asked last, because nobody had received those before them.
    pub fn take_drops(&self) -> u64 {
        u64::from(socket::take_drops(&self.socket))
    }
}

impl AsFd for RawPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
