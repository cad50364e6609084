//! A state machine for tests. A peer sends it small frames, by which it asks for an echo, for generated data,
//! or for the end of the connection.
//!
//! A frame is a kind, three unused bytes, and a length (big-endian); an `ECHO` frame is followed by so many
//! bytes.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::time::Duration;

use base::buffer::{Buf, Bytes};
use base::ether::FrameMachine;
use base::state_machine::{
    AcceptInfo, Action, ConnId, DisconnectReason, MediumId, PortalId, RxBuffer, StreamMachine,
};
use base::time::Instant;
use base::transmit::Transmit;

pub(crate) const ECHO: u8 = b'E';
pub(crate) const BABBLE: u8 = b'B';
pub(crate) const CLOSE: u8 = b'C';
pub(crate) const ABORT: u8 = b'A';

/// Payloads from this size on are received into receive buffers.
const LOAN_MIN: usize = 1024;

pub(crate) fn frame(kind: u8, len: usize) -> [u8; 8] {
    let [a, b, c, d] = u32::try_from(len).unwrap().to_be_bytes();
    [kind, 0, 0, 0, a, b, c, d]
}

/// Returns the byte at index `at` of all generated data.
pub(crate) fn babble_byte(at: usize) -> u8 {
    u8::try_from(at % 251).unwrap()
}

#[derive(Default)]
pub(crate) struct Parrot {
    pub(crate) conns: BTreeMap<u32, Conn>,
    pub(crate) arrivals: Vec<(PortalId, SocketAddr, [u8; 32])>,
    pub(crate) gone: Vec<(ConnId, DisconnectReason)>,
    pub(crate) loaned_bytes: usize,
    pub(crate) received_calls: usize,
    pub(crate) media_ready: Vec<MediumId>,
    pub(crate) alarms: VecDeque<Instant>,
    /// Receives the time of every alarm.
    pub(crate) bell: Option<Sender<Instant>>,
    pub(crate) rung: Vec<Instant>,
    /// How many bytes were received, and how many when each alarm rang.
    pub(crate) heard: usize,
    pub(crate) heard_at_alarms: Vec<usize>,
    /// Whether the connection stays after the peer sends no more, because the parrot has more to send.
    pub(crate) stays: bool,
    pub(crate) ended: Vec<ConnId>,
    actions: VecDeque<Action>,
}

#[derive(Default)]
pub(crate) struct Conn {
    head: Vec<u8>,
    payload: Option<Buf>,
    want: usize,
    lent: bool,
    out: VecDeque<Out>,
    /// How many bytes were put into batches.
    pub(crate) transmitted: usize,
    asked: bool,
    /// The peer has asked for the end of the connection; later bytes are ignored.
    deaf: bool,
}

enum Out {
    Bytes(Bytes),
    Babble { at: usize, end: usize },
}

impl Parrot {
    fn conn(&mut self, conn: ConnId) -> &mut Conn {
        self.conns.get_mut(&conn.0).expect("a call for a connection that is not there")
    }

    fn ask(&mut self, conn: ConnId) {
        let state = self.conn(conn);
        if !state.out.is_empty() && !state.asked {
            state.asked = true;
            self.actions.push_back(Action::Transmit(conn));
        }
    }

    fn obey(&mut self, conn: ConnId, kind: u8, len: usize) {
        let state = self.conn(conn);
        match kind {
            ECHO => {
                state.payload = Some(Buf::with_capacity(len));
                state.want = len;
                state.finish_payload();
            }
            BABBLE => state.out.push_back(Out::Babble { at: 0, end: len }),
            CLOSE | ABORT => {
                state.deaf = true;
                self.actions.push_back(if kind == CLOSE { Action::Close(conn) } else { Action::Abort(conn) });
            }
            other => panic!("frame of kind {other}"),
        }
    }

    pub(crate) fn close(&mut self, conn: ConnId) {
        self.actions.push_back(Action::Close(conn));
    }

    pub(crate) fn abort(&mut self, conn: ConnId) {
        self.actions.push_back(Action::Abort(conn));
    }

    pub(crate) fn babble(&mut self, conn: ConnId, len: usize) {
        self.conn(conn).out.push_back(Out::Babble { at: 0, end: len });
        self.ask(conn);
    }

    pub(crate) fn ring_in(&mut self, now: Instant, span: Duration) {
        self.alarms.push_back(now.after(span));
    }
}

impl Conn {
    fn finish_payload(&mut self) {
        if self.payload.as_ref().is_some_and(|buf| buf.len() == self.want) {
            let bytes = self.payload.take().unwrap().freeze();
            self.out.push_back(Out::Bytes(bytes));
        }
    }
}

impl FrameMachine for Parrot {}

impl StreamMachine for Parrot {
    fn connected(&mut self, _: Instant, conn: ConnId, arrival: &AcceptInfo) {
        self.arrivals.push((arrival.portal, arrival.peer, arrival.entropy));
        assert!(self.conns.insert(conn.0, Conn::default()).is_none(), "a number is used twice");
    }

    fn received(&mut self, _: Instant, conn: ConnId, mut bytes: &[u8]) {
        self.received_calls += 1;
        self.heard += bytes.len();
        assert!(!self.conn(conn).lent, "received while a loan is out");
        while !bytes.is_empty() {
            let state = self.conn(conn);
            if state.deaf {
                return;
            }
            if let Some(buf) = &mut state.payload {
                let taken = bytes.len().min(state.want - buf.len());
                assert_eq!(buf.append(&bytes[..taken]), taken);
                bytes = &bytes[taken..];
                state.finish_payload();
                continue;
            }
            let taken = bytes.len().min(8 - state.head.len());
            state.head.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let Ok(head) = <[u8; 8]>::try_from(state.head.as_slice()) {
                state.head.clear();
                let len = u32::from_be_bytes(head[4..].try_into().unwrap());
                self.obey(conn, head[0], len.try_into().unwrap());
            }
        }
        self.ask(conn);
    }

    fn take_rx_buffer(&mut self, conn: ConnId) -> Option<RxBuffer> {
        let state = self.conn(conn);
        assert!(!state.lent, "a second loan is asked for");
        let left = state.payload.as_ref().map(|buf| state.want - buf.len())?;
        if left < LOAN_MIN {
            return None;
        }
        state.lent = true;
        Some(RxBuffer { buf: state.payload.take()?, len_max: left })
    }

    fn received_eof(&mut self, _: Instant, conn: ConnId) -> bool {
        self.ended.push(conn);
        self.stays
    }

    fn return_rx_buffer(&mut self, _: Instant, conn: ConnId, rx_buffer: RxBuffer) {
        let state = self.conn(conn);
        assert!(std::mem::take(&mut state.lent), "repaid what was not lent");
        let before = state.want - rx_buffer.len_max;
        let got = rx_buffer.buf.len() - before;
        assert!(got <= rx_buffer.len_max);
        state.payload = Some(rx_buffer.buf);
        state.finish_payload();
        self.loaned_bytes += got;
        self.heard += got;
        self.ask(conn);
    }

    fn transmit(&mut self, _: Instant, conn: ConnId, out: &mut Transmit) {
        let state = self.conn(conn);
        state.asked = false;
        let before = out.len();
        while !out.is_full() {
            match state.out.front_mut() {
                None => break,
                Some(Out::Bytes(bytes)) => {
                    out.put_shared(bytes.clone());
                    state.out.pop_front();
                }
                Some(Out::Babble { at, end }) => {
                    let len = (*end - *at).min(8192);
                    let words: Vec<u8> = (*at..*at + len).map(babble_byte).collect();
                    out.put(&words);
                    *at += len;
                    if at == end {
                        state.out.pop_front();
                    }
                }
            }
        }
        state.transmitted += out.len() - before;
        self.ask(conn);
    }

    fn disconnected(&mut self, _: Instant, conn: ConnId, why: DisconnectReason) {
        let state = self.conns.remove(&conn.0).expect("a connection ends once");
        assert!(!state.lent, "a loan comes back before the end");
        self.gone.push((conn, why));
    }

    fn medium_ready(&mut self, _: Instant, medium: MediumId) {
        self.media_ready.push(medium);
    }

    fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.front().copied()
    }

    fn handle_timeout(&mut self, now: Instant) {
        while self.alarms.front().is_some_and(|at| *at <= now) {
            self.alarms.pop_front();
            self.rung.push(now);
            self.heard_at_alarms.push(self.heard);
            self.bell.iter().for_each(|bell| _ = bell.send(now));
        }
    }
}
