//! Somebody who reads along on all wires, and knows what no end may do: use a packet number twice, let a frame count that came
//! before, keep keys for longer than agreed, send more than the other end has room for, put into one frame what does not
//! belong together.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Instant;
use hyperscsi::exchange::xid::XID_PROTECTED_BIT;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header};
use hyperscsi::pdu::ack::Ack;
use hyperscsi::pdu::command::Request;
use hyperscsi::pdu::parts::Parts;
use hyperscsi::pdu::reply::Reply;

use super::net::Node;

/// What was seen.
#[derive(Default)]
pub(super) struct WireMonitor {
    /// Whether what ends allow each other is protected.
    keyed: bool,
    /// After how many frames the target, and initiators, are to change keys.
    key_frames: [Option<u64>; 2],
    /// The last packet number of each sender, session and space, its path in front. A name is that of one session, even
    /// when the target was started again.
    last: BTreeMap<(Node, u32, bool, u8), u64>,
    /// What counted as received.
    taken: BTreeSet<(Node, u32, bool, u64)>,
    /// The phase that a sender is in, and how many frames it protected since it began.
    phases: BTreeMap<(Node, u32), (bool, u64)>,
    /// Each end's name of a session, by the other's.
    names: BTreeMap<u32, u32>,
    /// How far the other end was told to go, in frames that name their receiver so; by path.
    told: BTreeMap<(u32, u8), u64>,
    /// How many frames of data went beyond that in one moment.
    beyond: BTreeMap<(u32, u8), (Instant, u32)>,
    /// How many frames had several parts, how many parts those had, and how many frames could not be read.
    pub(super) shared: [u64; 3],
    pub(super) violations: Vec<String>,
}

/// What a sender may send before it was told anything.
const INITIAL_CREDIT: u64 = 32;

/// How many frames of data may go beyond the limit at a time: the probes of one time-out, and those of another path's.
const PROBES: u32 = 4;

const COUNT: u64 = (1 << 56) - 1;

impl WireMonitor {
    pub(super) fn new(keyed: bool, key_frames: [Option<u64>; 2]) -> Self {
        Self { keyed, key_frames, ..Self::default() }
    }

    /// Takes note of the names that both ends have for a session.
    pub(super) fn agreed(&mut self, sids: (u32, u32)) {
        self.names.insert(sids.0, sids.1);
        self.names.insert(sids.1, sids.0);
    }

    /// Looks at a frame that somebody sends.
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

    /// Looks at what a frame carries, and whether all of it may be there. What is encrypted cannot be read.
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
        // Where in which message a part stands: nothing may be there twice.
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
            // An answer may be protected more than what it answers; never less.
            let of_its_class = match part.cmd {
                Cmd::Request => header.protected == (part.xid & XID_PROTECTED_BIT != 0),
                _ => header.protected || part.xid & XID_PROTECTED_BIT == 0,
            };
            if !reads || !of_its_class || part.xid & !XID_PROTECTED_BIT == 0 {
                wrong("a part that cannot stand there");
            }
        }
    }

    /// Where acknowledgements are protected, what each end allows the other cannot be read along.
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

    /// Takes note that a frame counted as received.
    pub(super) fn took(&mut self, who: Node, header: &Header) {
        if !self.taken.insert((who, header.sid, header.protected, header.pn)) {
            self.violations.push(format!("{who:?} took a frame twice: {header:?}"));
        }
    }
}
