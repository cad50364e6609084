//! The wire monitor reads all frames on all nets and checks the rules that every end must obey. No end may
//! use a packet number twice, accept a frame that it accepted before, keep keys for longer than agreed, send
//! beyond the credit that the other end granted, or put parts into one frame that do not belong together.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Instant;
use hyperscsi::exchange::xid::XID_PROTECTED_BIT;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header};
use hyperscsi::pdu::ack::Ack;
use hyperscsi::pdu::command::Request;
use hyperscsi::pdu::parts::Parts;
use hyperscsi::pdu::reply::Reply;

use super::net::Node;

/// What the monitor knows of all sessions.
#[derive(Default)]
pub(super) struct WireMonitor {
    /// Whether acknowledgements, and with them the credit, are protected.
    keyed: bool,
    /// After how many frames the target, and initiators, must update keys.
    key_frames: [Option<u64>; 2],
    /// The last packet number of each sender, session and packet number space; the path is the last field of
    /// the key.
    last: BTreeMap<(Node, u32, bool, u8), u64>,
    /// The frames that their receiver accepted.
    taken: BTreeSet<(Node, u32, bool, u64)>,
    /// The key phase of each sender, and how many frames it has protected since the phase began.
    phases: BTreeMap<(Node, u32), (bool, u64)>,
    /// The session identifier of one end, by that of the other end.
    names: BTreeMap<u32, u32>,
    /// The credit (PN LIMIT) that the other end granted in frames with this session identifier, by path.
    told: BTreeMap<(u32, u8), u64>,
    /// How many frames of data went beyond the credit at one point in time.
    beyond: BTreeMap<(u32, u8), (Instant, u32)>,
    /// How many frames had several parts, how many parts those had, and how many frames the monitor could not
    /// read.
    pub(super) shared: [u64; 3],
    pub(super) violations: Vec<String>,
}

/// The credit of a sender before the other end has granted any.
const INITIAL_CREDIT: u64 = 32;

/// How many frames of data may go beyond the credit at a time: the probes of one time-out, and those of
/// another path.
const PROBES: u32 = 4;

const COUNT: u64 = (1 << 56) - 1;

impl WireMonitor {
    pub(super) fn new(keyed: bool, key_frames: [Option<u64>; 2]) -> Self {
        Self { keyed, key_frames, ..Self::default() }
    }

    /// Records the identifiers that both ends use for a session.
    pub(super) fn agreed(&mut self, sids: (u32, u32)) {
        for (sid, peer) in [sids, (sids.1, sids.0)] {
            let former = self.names.insert(sid, peer);
            // Identifiers are random. With keys, a session may have the identifier of an earlier one, since
            // frames of the earlier one do not open in it. Without keys, it must not.
            if self.keyed && former.is_some_and(|former| former != peer) {
                self.forget(sid);
            }
        }
    }

    /// Forgets the frames of an earlier session with this identifier.
    fn forget(&mut self, sid: u32) {
        self.last.retain(|(_, known, ..), _| *known != sid);
        self.taken.retain(|(_, known, ..)| *known != sid);
        self.phases.retain(|(_, known), _| *known != sid);
        self.told.retain(|(known, _), _| *known != sid);
        self.beyond.retain(|(known, _), _| *known != sid);
    }

    /// Checks a frame that a host sends.
    pub(super) fn sent(&mut self, now: Instant, from: Node, payload: &[u8]) {
        let Ok((header, _)) = Header::parse(payload) else {
            self.violations.push(format!("{from:?} sent a frame that is none"));
            return;
        };
        if header.sid == 0 {
            return;
        }
        let [path, ..] = header.pn.to_be_bytes();
        let last = self.last.entry((from, header.sid, header.protected, path)).or_default();
        if header.pn & COUNT <= *last {
            let line = format!("{from:?} used a packet number twice, or an old one: {header:?}");
            self.violations.push(line);
        }
        *last = header.pn & COUNT;
        self.count_keys(from, &header);
        self.read_parts(from, &header, payload);
        self.count_credit(now, from, &header, path, payload);
    }

    fn count_keys(&mut self, from: Node, header: &Header) {
        let limit = self.key_frames[usize::from(from != Node::Target)];
        let Some(limit) = limit.filter(|_| header.protected) else { return };
        let phase = header.flags.has(Flags::PHASE);
        let known = self.phases.entry((from, header.sid)).or_default();
        *known = if known.0 == phase { (phase, known.1 + 1) } else { (phase, 1) };
        if known.1 == 2 * limit + 1 {
            self.violations.push(format!("{from:?} protects more with one generation of keys than it may"));
        }
    }

    /// Checks which parts a frame carries, and whether they may be together. The monitor cannot read
    /// encrypted frames.
    fn read_parts(&mut self, from: Node, header: &Header, payload: &[u8]) {
        let [frames, count, unread] = &mut self.shared;
        if !header.cmd.has_parts() {
            return;
        }
        if header.flags.has(Flags::ENCRYPTED) {
            *unread += 1;
            return;
        }
        let end = HEADER_LEN + usize::from(header.len);
        let mut wrong = |what: &str| self.violations.push(format!("{from:?} sent {what}: {header:?}"));
        let Some(mut rest) = payload.get(HEADER_LEN..end) else { return wrong("a frame that is cut short") };
        if header.flags.has(Flags::ACKS) {
            let Ok((_, behind)) = Ack::parse(rest) else { return wrong("an acknowledgement that is none") };
            rest = behind;
        }
        let mut parts = vec![(*header, rest)];
        if header.flags.has(Flags::PARTS) {
            let Ok(read) = Parts::parse(rest) else { return wrong("parts that are none") };
            *frames += 1;
            *count += read.count() as u64;
            parts.clear();
            read.each(header, &mut |header, payload| parts.push((*header, payload)));
        }
        // The position of each part in its message: no data may be in the frame twice.
        let mut places: Vec<_> =
            parts.iter().map(|(part, _)| (part.xid, part.flags.has(Flags::DATA), part.off)).collect();
        places.retain(|(_, is_data, _)| *is_data);
        let whole = places.len();
        places.sort_unstable();
        places.dedup();
        if places.len() < whole {
            wrong("the same twice in one frame");
        }
        for (part, payload) in parts {
            let reads = match part.cmd {
                _ if part.flags.has(Flags::DATA) => true,
                Cmd::Request => Request::parse(payload).is_ok(),
                _ => Reply::parse(payload).is_ok(),
            };
            // A response may be protected more than its request, but never less.
            let of_its_class = match part.cmd {
                Cmd::Request => header.protected == (part.xid & XID_PROTECTED_BIT != 0),
                _ => header.protected || part.xid & XID_PROTECTED_BIT == 0,
            };
            if !reads || !of_its_class || part.xid & !XID_PROTECTED_BIT == 0 {
                wrong("a part that cannot stand there");
            }
        }
    }

    /// Checks the credit. If acknowledgements are protected, the monitor cannot read the credit and checks
    /// nothing.
    fn count_credit(&mut self, now: Instant, from: Node, header: &Header, path: u8, payload: &[u8]) {
        if self.keyed {
            return;
        }
        let block = payload.get(HEADER_LEN..).unwrap_or_default();
        if (header.cmd == Cmd::Ack || header.flags.has(Flags::ACKS))
            && let Ok((ack, _)) = Ack::parse(block)
        {
            let [about, ..] = ack.largest.to_be_bytes();
            let told = self.told.entry((header.sid, about)).or_insert(INITIAL_CREDIT);
            *told = (*told).max(ack.pn_limit & COUNT);
        }
        if !matches!(header.cmd, Cmd::Request | Cmd::Reply) {
            return;
        }
        let Some(name) = self.names.get(&header.sid) else { return };
        let told = self.told.get(&(*name, path)).copied().unwrap_or(INITIAL_CREDIT);
        if header.pn & COUNT > told {
            let (at, count) = self.beyond.entry((header.sid, path)).or_insert((now, 0));
            *count = if *at == now { *count + 1 } else { 1 };
            *at = now;
            if *count == PROBES + 1 {
                self.violations
                    .push(format!("{from:?} sends beyond {told}, which is all that it may: {header:?}"));
            }
        }
    }

    /// Records that a receiver accepted a frame. No frame may be accepted twice.
    pub(super) fn took(&mut self, who: Node, header: &Header) {
        if !self.taken.insert((who, header.sid, header.protected, header.pn)) {
            self.violations.push(format!("{who:?} took a frame twice: {header:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_may_return_for_another_session_only_with_keys() {
        for keyed in [true, false] {
            let mut monitor = WireMonitor::new(keyed, [None; 2]);
            let frame = Header {
                tag: 0,
                last: true,
                fragment: 0,
                protected: keyed,
                cmd: Cmd::Ask,
                flags: Flags::default(),
                len: 0,
                sid: 7,
                pn: 1,
                xid: 0,
                off: 0,
            };
            monitor.agreed((3, 7));
            monitor.took(Node::Target, &frame);
            monitor.agreed((3, 7));
            monitor.took(Node::Target, &frame);
            assert_eq!(monitor.violations.len(), 1, "one session accepts a frame twice");
            monitor.agreed((4, 7));
            monitor.took(Node::Target, &frame);
            assert_eq!(monitor.violations.len(), if keyed { 1 } else { 2 }, "{keyed}");
        }
    }
}
