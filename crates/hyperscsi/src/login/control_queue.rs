//! The control queue: frames outside of sessions, sent and received.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch, Mac};

use crate::aead::{check_crc, put_crc};
use crate::frame::{Cmd, Flags, Header};

/// Frames that wait to be sent on their port.
#[derive(Debug, Default)]
pub(crate) struct ControlQueue {
    queue: VecDeque<ControlFrame>,
    /// The ports that `poll_port` returned and for which `transmit` was not called since.
    called: Vec<EtherPort>,
}

#[derive(Debug)]
struct ControlFrame {
    port: EtherPort,
    to: Mac,
    cmd: Cmd,
    payload: Vec<u8>,
}

impl ControlQueue {
    /// The bound on queued frames. Further ones are dropped: the other end repeats its frame if an answer is
    /// missing.
    const LETTERS_MAX: usize = 512;

    pub(crate) fn send(&mut self, port: EtherPort, to: Mac, cmd: Cmd, payload: Vec<u8>) {
        if self.queue.len() < Self::LETTERS_MAX {
            self.queue.push_back(ControlFrame { port, to, cmd, payload });
        }
    }

    /// Drops the frames that wait for a port.
    pub(crate) fn port_down(&mut self, port: EtherPort) {
        self.queue.retain(|queued| queued.port != port);
        self.called.retain(|called| *called != port);
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }

    pub(crate) fn poll_port(&mut self) -> Option<EtherPort> {
        let waiting = self.queue.iter().map(|queued| queued.port);
        let port = waiting.into_iter().find(|port| !self.called.contains(port))?;
        self.called.push(port);
        Some(port)
    }

    pub(crate) fn transmit(&mut self, port: EtherPort, out: &mut FrameBatch) {
        self.called.retain(|called| *called != port);
        let mut at = 0;
        while let Some(queued) = self.queue.get(at) {
            if out.is_full() {
                return;
            }
            if queued.port != port {
                at += 1;
                continue;
            }
            out.begin_frame(queued.to);
            out.put(&header(queued.cmd, queued.payload.len()).to_bytes());
            out.put(&queued.payload);
            put_crc(out);
            out.end_frame();
            self.queue.remove(at);
        }
    }
}

fn header(cmd: Cmd, len: usize) -> Header {
    Header {
        tag: 0,
        last: true,
        fragment: 0,
        protected: false,
        cmd,
        flags: Flags::default(),
        // All payloads of control frames have a bound far below.
        len: u16::try_from(len).unwrap_or(u16::MAX),
        sid: 0,
        pn: 0,
        xid: 0,
        off: 0,
    }
}

/// Returns the payload of a frame outside of sessions; `None` if the frame is damaged or belongs to a
/// session.
pub(crate) fn payload<'a>(header: &Header, frame: &'a mut [u8]) -> Option<&'a [u8]> {
    let plain = header.sid == 0 && !header.protected && header.flags == Flags::default();
    if !plain {
        return None;
    }
    check_crc(header, frame).ok().map(|payload| &*payload)
}
