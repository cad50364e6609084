//! Takes the PDUs and frames of the traced sessions from the reactors, and keeps them as a capture until the
//! thread of the client takes them.
//!
//! The memory is bounded: what does not fit is counted. A reactor that records holds the lock while it copies
//! one PDU, and the thread of the client while it exchanges two buffers, so no reactor waits for a client.

mod tcp;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base::ether::{ETHERNET_HEADER_LEN, Mac};
use base::pcapng::{self, PACKET_OVERHEAD_MAX, Packet, PacketDirection};
use hyperscsi::ETHERTYPE;
use hyperscsi::frame::HEADER_LEN;
use iscsi::trace::{PduTrace, TracedPdu};
use scsi::opcode;

use self::tcp::{HEADERS_MAX, TcpFlow};

/// The sessions that are traced, by the names that `targe sessions` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) initiator: String,
    pub(super) target: Option<String>,
    pub(super) isid: Option<[u8; 6]>,
}

impl Selection {
    /// Returns whether a session is selected. While a login has not named its target, it is selected only by
    /// a selection without a target.
    pub(super) fn has(&self, initiator: &str, target: Option<&str>, isid: [u8; 6]) -> bool {
        self.initiator.eq_ignore_ascii_case(initiator)
            && self.isid.is_none_or(|wanted| wanted == isid)
            && match (&self.target, target) {
                (Some(wanted), Some(target)) => wanted.eq_ignore_ascii_case(target),
                (Some(_), None) => false,
                (None, _) => true,
            }
    }
}

/// What a trace records, and how much.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) selection: Selection,
    pub(super) takes_protected: bool,
    pub(super) follows: bool,
    /// The most bytes of each data segment.
    pub(super) snap: usize,
    pub(super) count_max: u64,
    /// The most bytes of the capture that wait for the client.
    pub(super) waiting_max: usize,
}

/// A trace: what the reactors and the thread of the client share.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) settings: Settings,
    began: (Instant, u64),
    state: Mutex<State>,
    /// Signalled when much waits for the client, or the trace has ended.
    wake: Condvar,
    has_ended: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// The part of the capture that the client has not taken.
    waiting: Vec<u8>,
    connections: BTreeMap<u64, TcpFlow>,
    next_connection: u64,
    /// How many HyperSCSI sessions each reactor has that are traced.
    frame_sessions: BTreeMap<usize, usize>,
    counts: Counts,
    /// How many were dropped since the last one that was recorded.
    lost_before: u64,
}

/// How many PDUs and frames there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) recorded: u64,
    pub(super) dropped: u64,
}

/// When this part of the memory is filled, the thread of the client is woken.
const WAKE_PART: usize = 4;

impl Recorder {
    /// Returns a recorder that fills `waiting`, which has room for `waiting_max` bytes.
    pub(super) fn new(settings: Settings, waiting: Vec<u8>) -> Self {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut state = State { waiting, ..State::default() };
        pcapng::begin(&mut state.waiting, concat!("targe ", env!("CARGO_PKG_VERSION")), "targe");
        Self {
            settings,
            began: (Instant::now(), u64::try_from(since_1970.as_nanos()).unwrap_or_default()),
            state: Mutex::new(state),
            wake: Condvar::new(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Takes no more PDUs and frames.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.wake.notify_all();
    }

    /// Returns what waits for the client, once that is much, the trace has ended, or `wait` has passed.
    /// `spare` is an empty buffer for what comes next.
    pub(super) fn take(&self, spare: Vec<u8>, wait: Duration) -> Vec<u8> {
        let mut state = self.state();
        if state.waiting.len() < self.settings.waiting_max / WAKE_PART && !self.has_ended() {
            let waited = self.wake.wait_timeout(state, wait);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::replace(&mut state.waiting, spare)
    }

    /// Returns the end of the capture.
    pub(super) fn statistics(&self, reason: &str) -> Vec<u8> {
        let (Counts { recorded, dropped }, mut out) = (self.counts(), Vec::new());
        let comment = format!("{recorded} PDUs and frames are recorded, {dropped} were dropped: {reason}");
        pcapng::statistics(&mut out, self.now(), recorded + dropped, dropped, &comment);
        out
    }

    pub(super) fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Returns whether no session is traced.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        state.connections.is_empty() && state.frame_sessions.values().all(|count| *count == 0)
    }

    /// Records how many HyperSCSI sessions of a reactor are traced.
    pub(super) fn set_frame_sessions(&self, reactor: usize, count: usize) {
        self.state().frame_sessions.insert(reactor, count);
    }

    pub(super) const fn selection(&self) -> &Selection {
        &self.settings.selection
    }

    /// Records a HyperSCSI frame, whose bytes behind the Ethernet header are in parts.
    pub(super) fn record_frame(&self, direction: PacketDirection, (from, to): (Mac, Mac), parts: &[&[u8]]) {
        let time_ns = self.now();
        let mut state = self.state();
        if !self.may_record(&state) {
            return;
        }
        let header = [&to.0[..], &from.0, &ETHERTYPE.to_be_bytes()].concat();
        let mut frame: Vec<&[u8]> = vec![&header];
        frame.extend_from_slice(parts);
        let original_len: usize = frame.iter().map(|part| part.len()).sum();
        let shown = (ETHERNET_HEADER_LEN + HEADER_LEN).saturating_add(self.settings.snap);
        let captured = take_front(&mut frame, shown);
        let room = shown.min(original_len) + PACKET_OVERHEAD_MAX;
        if self.has_room(&mut state, room) {
            let packet = Packet { time_ns, direction, lost_before: 0, original_len, captured: &captured };
            self.put(&mut state, packet);
            self.count(&mut state);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time in nanoseconds since 1970. It never goes back.
    fn now(&self) -> u64 {
        let (began, since_1970) = self.began;
        since_1970.saturating_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or_default())
    }

    fn may_record(&self, state: &State) -> bool {
        !self.has_ended() && state.counts.recorded < self.settings.count_max
    }

    /// Returns whether `len` more bytes fit. If not, counts what is dropped.
    fn has_room(&self, state: &mut State, len: usize) -> bool {
        let fits = state.waiting.len().saturating_add(len) <= self.settings.waiting_max;
        if !fits {
            state.counts.dropped += 1;
            state.lost_before += 1;
        }
        fits
    }

    fn put(&self, state: &mut State, packet: Packet<'_>) {
        let lost_before = std::mem::take(&mut state.lost_before);
        let before = state.waiting.len();
        pcapng::packet(&mut state.waiting, &Packet { lost_before, ..packet });
        let much = self.settings.waiting_max / WAKE_PART;
        if before < much && state.waiting.len() >= much {
            self.wake.notify_one();
        }
    }

    fn count(&self, state: &mut State) {
        state.counts.recorded += 1;
        if state.counts.recorded >= self.settings.count_max {
            self.end();
        }
    }
}

impl PduTrace for Recorder {
    fn selects(&self, initiator: &str, target: Option<&str>, isid: [u8; 6]) -> bool {
        !self.has_ended() && self.settings.selection.has(initiator, target, isid)
    }

    fn takes_protected(&self) -> bool {
        self.settings.takes_protected
    }

    /// Keys of tape drives are in the data of SECURITY PROTOCOL OUT. A host that knows a ROD token can read
    /// the data that it stands for.
    fn carries_secret(&self, cdb: &[u8]) -> bool {
        match cdb {
            [opcode::SECURITY_PROTOCOL_OUT | opcode::SECURITY_PROTOCOL_IN, ..] => true,
            [opcode::THIRD_PARTY_COPY_OUT, action, ..] => {
                matches!(action & 0x1f, EXTENDED_COPY_LID4 | WRITE_USING_TOKEN)
            }
            [opcode::THIRD_PARTY_COPY_IN, action, ..] => action & 0x1f == RECEIVE_ROD_TOKEN_INFORMATION,
            _ => false,
        }
    }

    fn opened(&self, local: SocketAddr, peer: SocketAddr) -> u64 {
        let mut state = self.state();
        let number = state.next_connection;
        state.next_connection += 1;
        state.connections.insert(number, TcpFlow::new(local, peer));
        number
    }

    fn record(&self, connection: u64, pdu: &TracedPdu<'_>) {
        let time_ns = self.now();
        let mut state = self.state();
        let Some(mut flow) = state.connections.get(&connection).copied() else { return };
        if !self.may_record(&state) {
            return;
        }
        let whole_len = pdu.header.len() + pdu.data_len + pdu.trailer.len();
        let mut shown: Vec<&[u8]> = pdu.data.to_vec();
        let data_len: usize = shown.iter().map(|part| part.len()).sum();
        let mut parts = vec![pdu.header];
        parts.extend(take_front(&mut shown, self.settings.snap));
        if data_len == pdu.data_len && data_len <= self.settings.snap {
            parts.push(pdu.trailer);
        }
        let captured_len: usize = parts.iter().map(|part| part.len()).sum();
        let room =
            captured_len + whole_len.div_ceil(flow.payload_max()) * (PACKET_OVERHEAD_MAX + HEADERS_MAX);
        if self.has_room(&mut state, room) {
            let direction = if pdu.received { PacketDirection::Inbound } else { PacketDirection::Outbound };
            let mut left = whole_len;
            while left > 0 {
                let len = left.min(flow.payload_max());
                let headers = flow.headers(pdu.received, len);
                let mut captured = take_front(&mut parts, len);
                captured.insert(0, &headers);
                let original_len = headers.len() + len;
                let packet = Packet { time_ns, direction, lost_before: 0, original_len, captured: &captured };
                self.put(&mut state, packet);
                left -= len;
            }
            self.count(&mut state);
        } else {
            flow.skip(pdu.received, whole_len);
        }
        state.connections.insert(connection, flow);
    }

    fn closed(&self, connection: u64) {
        self.state().connections.remove(&connection);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }
}

/// Takes the first `len` bytes from the front of a list of parts.
fn take_front<'b>(parts: &mut Vec<&'b [u8]>, len: usize) -> Vec<&'b [u8]> {
    let (mut taken, mut left) = (Vec::new(), len);
    let mut rest = std::mem::take(parts).into_iter();
    for part in rest.by_ref() {
        let (front, behind) = part.split_at(left.min(part.len()));
        left -= front.len();
        taken.extend((!front.is_empty()).then_some(front));
        if !behind.is_empty() {
            parts.push(behind);
            break;
        }
    }
    parts.extend(rest);
    taken
}

// Service actions (SPC-5 r22 §6.5, §6.19; SBC-4 r22 §5.59).
const EXTENDED_COPY_LID4: u8 = 0x01;
const WRITE_USING_TOKEN: u8 = 0x11;
const RECEIVE_ROD_TOKEN_INFORMATION: u8 = 0x07;

#[cfg(test)]
mod tests;
