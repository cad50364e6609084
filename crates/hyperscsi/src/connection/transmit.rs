//! Sent frames: chooses what each path sends next, and builds the frames.

use alloc::vec::Vec;

use base::ether::{EtherPort, FrameBatch};
use base::int_cast::to_usize;
use base::time::Instant;

use super::{Connection, ConnectionEvent};
use crate::aead::{EncryptError, trailer_len};
use crate::exchange::xid::xid_ahead;
use crate::fault_injection::{Bug, is_injected};
use crate::frame::{Cmd, Flags, HEADER_LEN, Header};
use crate::path::pn_space::{FrameContent, PATH_SHIFT};
use crate::path::{PROBES, Path, SUSPECT_AFTER};
use crate::pdu::ask::{Ask, PathValidation as Step};
use crate::pdu::parts::{self, PART_LEN, PARTS_HEAD_LEN};
use crate::send_queue::Chunk;
use security::Level;

/// How many frames are sent on one of several paths before the best path is chosen again.
const TURN: usize = 16;

/// Parts up to this length are copied: that is cheaper than one more piece in the vector of the system call.
const COPIED_MAX: u32 = 512;

/// The properties of a frame other than its payload.
#[derive(Clone, Copy)]
struct Shape<'a> {
    cmd: Cmd,
    flags: Flags,
    level: Level,
    carried: FrameContent,
    /// The parts behind the first.
    further: &'a [Chunk],
    elicits: bool,
}

impl Connection {
    /// Returns a port that has something to send; each port only once until [`Self::transmit`] is called for
    /// it.
    pub fn poll_port(&mut self) -> Option<EtherPort> {
        if self.lost {
            return None;
        }
        let index = (0..self.paths.len()).find(|index| self.has_work(*index))?;
        let port = self.paths.get(index)?.address.port;
        self.paths.iter_mut().filter(|path| path.address.port == port).for_each(|path| path.announced = true);
        Some(port)
    }

    /// Appends the frames that a port has to send, until `out` is full or nothing is left.
    pub fn transmit(&mut self, now: Instant, port: EtherPort, out: &mut FrameBatch) {
        if self.lost {
            return;
        }
        let several = self.paths.len() > 1;
        for index in 0..self.paths.len() {
            let Some(path) = self.paths.get_mut(index).filter(|path| path.address.port == port) else {
                continue;
            };
            path.announced = false;
            let mut left = if several { TURN } else { usize::MAX };
            while left > 0 && !out.is_full() && self.transmit_one(now, index, out) {
                left -= 1;
            }
        }
    }

    /// Returns the packet number spaces in which frames can be sent, in order of preference.
    const fn lanes(&self) -> &'static [usize] {
        if self.keyed { &[1, 0] } else { &[0] }
    }

    fn has_work(&mut self, index: usize) -> bool {
        let Some(path) = self.paths.get(index).filter(|path| !path.announced && path.port_up) else {
            return false;
        };
        let asks = path.step_wanted || path.challenge == 0 && (path.receives_wanted || path.ping_wanted);
        let tells = path.spaces.iter().any(|space| space.incoming.must_send_ack());
        let used = path.is_usable() && (path.pmtu.wants_probe().is_some() || !path.leaves.is_empty());
        let speaks = path.may_speak(self.keyed);
        if path.probes > 0 || speaks && (asks || tells || used) {
            return true;
        }
        self.lanes().iter().copied().any(|space_index| {
            self.send_queue.has_more(space_index)
                && (self.may_carry(index, space_index) || self.must_wait(index, space_index))
        }) || (speaks && self.raised_xid_limit(index).is_some())
    }

    /// Sends one frame. Returns whether there was one.
    fn transmit_one(&mut self, now: Instant, index: usize, out: &mut FrameBatch) -> bool {
        let Some(path) = self.paths.get_mut(index).filter(|path| path.port_up) else { return false };
        if path.probes > 0 {
            let is_first = path.probes == PROBES;
            path.probes -= 1;
            if self.probe(now, index, is_first, out) {
                return true;
            }
        }
        let Some(path) = self.paths.get_mut(index) else { return false };
        if let Some((ask, carried)) = next_ask(path, self.keyed, self.plan.token) {
            return self.send_ask(now, index, ask, carried, out);
        }
        for space_index in self.lanes().iter().copied() {
            if !self.send_queue.has_more(space_index) {
                continue;
            }
            if self.may_carry(index, space_index) {
                let most = self.paths.get(index).map_or(0, |path| path.pmtu.current());
                if self.send_data(now, index, space_index, most, out) {
                    return true;
                }
            }
            self.held_back(now, index, space_index);
        }
        self.bare_ack(now, index, out)
    }

    /// Sends a probe: data that was not acknowledged, new data, or a ping. A ping is sent only without data:
    /// beside data its acknowledgement would prove nothing more. Returns whether a frame was sent.
    fn probe(&mut self, now: Instant, index: usize, is_first: bool, out: &mut FrameBatch) -> bool {
        let others = self.paths.iter().enumerate().any(|(other, path)| other != index && path.is_good());
        let Some(path) = self.paths.get_mut(index) else { return false };
        if path.challenge != 0 {
            path.step_wanted = true;
        }
        if !path.step_wanted && path.is_usable() {
            // If the path MTU shrank, long frames would be lost and prove nothing.
            let most = if path.backoff > SUSPECT_AFTER { path.pmtu.base() } else { path.pmtu.current() };
            for space_index in self.lanes().iter().copied() {
                // A ping goes in the space with keys, and its acknowledgement brings no credit for the other
                // one.
                let is_wanted =
                    !others || self.paths.get(index).is_some_and(|path| path.lacks_credit(space_index));
                if is_wanted
                    && self.send_queue.has_more(space_index)
                    && self.send_data(now, index, space_index, most, out)
                {
                    return true;
                }
            }
        }
        let Some(path) = self.paths.get_mut(index) else { return false };
        path.probes = 0;
        if !is_first {
            return false;
        }
        if !path.step_wanted {
            path.ping_wanted = true;
        }
        next_ask(path, self.keyed, self.plan.token)
            .is_some_and(|(ask, carried)| self.send_ask(now, index, ask, carried, out))
    }

    /// Records that a path could not send the data that waits: the congestion window or the credit is used
    /// up.
    fn held_back(&mut self, now: Instant, index: usize, space_index: usize) {
        let Some(path) = self.paths.get_mut(index).filter(|path| path.is_usable()) else { return };
        if path.congestion.room() == 0 {
            path.congestion.limited();
        } else if path.must_wait(space_index) {
            path.wait_for_credit(now);
        }
    }

    /// Returns whether this path is the one to send data on now.
    fn may_carry(&self, index: usize, space_index: usize) -> bool {
        // Once even probes are short, the rest of the data that they retransmit would still be sent in frames
        // as long as before, so it waits until the path answers.
        let able =
            |path: &Path| path.is_usable() && path.backoff <= SUSPECT_AFTER && path.has_room(space_index);
        let Some(path) = self.paths.get(index).filter(|path| able(path)) else { return false };
        if self.paths.len() == 1 {
            return true;
        }
        // A path that does not answer is used only when no other answers, however full the others are.
        let good = path.is_good();
        if !good && self.paths.iter().any(Path::is_good) {
            return false;
        }
        let own = path.score();
        let is_better = |other: &Path| able(other) && other.is_good() == good && other.score() < own;
        !self.paths.iter().any(|other| other.id != path.id && is_better(other))
    }

    /// Returns whether a path has to begin to wait for credit.
    fn must_wait(&self, index: usize, space_index: usize) -> bool {
        self.paths.get(index).is_some_and(|path| path.must_wait(space_index))
    }

    /// Returns the packet number space whose raised XID limit must be sent to the peer.
    fn raised_xid_limit(&self, index: usize) -> Option<usize> {
        if self.xid_limits == self.xid_announced {
            return None;
        }
        let step = u32::from(self.plan.exchanges / 4).max(1);
        let is_due = |space_index: &usize| {
            let (limit, announced) =
                (self.xid_limits.get(*space_index), self.xid_announced.get(*space_index));
            let (limit, announced) =
                (limit.copied().unwrap_or_default(), announced.copied().unwrap_or_default());
            limit != 0 && (announced == 0 || xid_ahead(limit, announced).is_some_and(|more| more >= step))
        };
        let able = self.paths.get(index).is_some_and(Path::is_usable)
            && !self.paths.iter().take(index).any(Path::is_good);
        self.lanes().iter().copied().find(is_due).filter(|_| able)
    }

    /// Sends an acknowledgement in a frame of its own, if one is due.
    fn bare_ack(&mut self, now: Instant, index: usize, out: &mut FrameBatch) -> bool {
        if !self.paths.get(index).is_some_and(|path| path.may_speak(self.keyed)) {
            // The frame would be lost, with the acknowledgement in it.
            return false;
        }
        if self.raised_xid_limit(index).is_some() {
            // The XID limit must reach the peer, so it is sent in a frame that is acknowledged itself.
            return self.send_ask(now, index, Ask::Ping, FrameContent::Nothing, out);
        }
        let Some(path) = self.paths.get(index) else { return false };
        let [open, sealed] = &path.spaces;
        let space_index = match (sealed.incoming.must_send_ack(), open.incoming.must_send_ack()) {
            (true, _) => 1,
            (_, true) => 0,
            _ => return false,
        };
        self.scratch.clear();
        self.tell(now, index, space_index, false);
        let shape = Shape {
            cmd: Cmd::Ack,
            flags: Flags::default(),
            level: self.control_level(),
            carried: FrameContent::Nothing,
            further: &[],
            elicits: false,
        };
        let sent = self.send_control_frame(now, index, shape, out);
        if let Some(path) = self.paths.get_mut(index).filter(|_| sent) {
            path.stats.acks_sent += 1;
            if let Some(space) = path.spaces.get_mut(space_index) {
                space.incoming.record_bare_ack();
            }
        }
        sent
    }

    /// Sends an Ask, with an acknowledgement if one is worth sending.
    fn send_ask(
        &mut self,
        now: Instant,
        index: usize,
        ask: Ask,
        carried: FrameContent,
        out: &mut FrameBatch,
    ) -> bool {
        self.scratch.clear();
        //= hyperscsi#section-9.1
        //# An acknowledgement does not go in front of an
        //# Ask MTU
        let may_get_lost = matches!(ask, Ask::Mtu(_));
        let flags = if may_get_lost {
            Flags::default()
        } else {
            self.piggyback_ack(now, index, usize::from(self.keyed))
        };
        ask.encode(&mut self.scratch);
        let level = self.control_level();
        if let Ask::Mtu(len) = ask {
            // The frame is as long as the length that it probes, from header to authentication tag.
            let payload = usize::from(len).saturating_sub(HEADER_LEN + trailer_len(level));
            self.scratch.resize(payload.max(self.scratch.len()), 0);
        }
        self.send_control_frame(
            now,
            index,
            Shape { cmd: Cmd::Ask, flags, level, carried, further: &[], elicits: true },
            out,
        )
    }

    /// Sends the content of `scratch` as a frame that belongs to no exchange.
    fn send_control_frame(
        &mut self,
        now: Instant,
        index: usize,
        shape: Shape<'_>,
        out: &mut FrameBatch,
    ) -> bool {
        let Some(path) = self.paths.get(index) else { return false };
        let Ok(len) = u16::try_from(self.scratch.len()) else { return false };
        let header = Header {
            tag: 0,
            last: true,
            fragment: 0,
            protected: shape.level != Level::None,
            cmd: shape.cmd,
            flags: shape.flags,
            len,
            sid: self.sid_out,
            pn: 0,
            xid: 0,
            off: 0,
        };
        out.begin_frame(path.address.mac);
        self.finish(now, index, header, shape, out, |_, _| {})
    }

    /// Sends a part of a message in a frame of at most `most` bytes, and behind it the next parts, for as
    /// long as each fits whole.
    fn send_data(
        &mut self,
        now: Instant,
        index: usize,
        space_index: usize,
        most: usize,
        out: &mut FrameBatch,
    ) -> bool {
        let Some(path) = self.paths.get(index) else { return false };
        let trailer = trailer_len(if space_index == 0 { Level::None } else { Level::Encrypt });
        let room = most.saturating_sub(HEADER_LEN + trailer);
        let about = self.ack_space_for(index, space_index);
        let ack_len = about
            .and_then(|space_index| path.spaces.get(space_index))
            .map_or(0, |space| space.incoming.tell_len());
        let further_max = path.spaces.get(space_index).map_or(0, |space| space.outgoing.further_max());
        let Some(chunk) = self.send_queue.take(space_index, room.saturating_sub(ack_len)) else {
            return false;
        };
        let left = room.saturating_sub(ack_len + PARTS_HEAD_LEN + to_usize(chunk.to - chunk.from));
        let mut further = core::mem::take(&mut self.further);
        self.gather(space_index, &chunk, left, further_max, &mut further);
        self.scratch.clear();
        let flags = self.piggyback_ack(now, index, space_index);
        let sent = self.frame_of(now, index, (chunk, &further), room, flags, out);
        if !sent {
            core::iter::once(&chunk).chain(&further).for_each(|chunk| _ = self.send_queue.lost(chunk));
        }
        self.further = further;
        sent
    }

    /// Collects the parts that are sent behind the first one, in the `left` bytes of the frame.
    fn gather(
        &mut self,
        space_index: usize,
        first: &Chunk,
        mut left: usize,
        most: usize,
        further: &mut Vec<Chunk>,
    ) {
        further.clear();
        //= hyperscsi#section-4.11
        //# A sender MUST NOT hold a part back because others may come
        while left > PART_LEN && further.len() < most {
            let Some(next) = self.send_queue.take_beside(space_index, left - PART_LEN, first) else { return };
            left -= PART_LEN + to_usize(next.to - next.from);
            further.push(next);
        }
    }

    /// Sends a frame of one or several parts, behind the acknowledgement that `scratch` may hold.
    fn frame_of(
        &mut self,
        now: Instant,
        index: usize,
        (first, further): (Chunk, &[Chunk]),
        room: usize,
        flags: Flags,
        out: &mut FrameBatch,
    ) -> bool {
        let Some((mut header, level)) = self.chunk_header(&first, room) else { return false };
        header.flags = header.flags.with(flags);
        let mut len = usize::from(header.len);
        if !further.is_empty() {
            let mut scratch = core::mem::take(&mut self.scratch);
            header.flags = header.flags.with(Flags::PARTS);
            let headers = further.iter().filter_map(|chunk| self.chunk_header(chunk, room));
            let headers = headers.map(|(header, _)| header).inspect(|header| len += usize::from(header.len));
            parts::encode(headers, &mut scratch);
            self.scratch = scratch;
        }
        let Ok(len) = u16::try_from(len + self.scratch.len()) else { return false };
        header.len = len;
        let carried = FrameContent::Chunk(first);
        let shape = Shape { cmd: header.cmd, flags: header.flags, level, carried, further, elicits: true };
        let Some(path) = self.paths.get(index) else { return false };
        out.begin_frame(path.address.mac);
        self.finish(now, index, header, shape, out, |own, out| {
            let mut write = |chunk: &Chunk| {
                let copied = level == Level::Encrypt || chunk.to - chunk.from <= COPIED_MAX;
                own.send_queue.write(chunk, copied, out);
            };
            write(&first);
            further.iter().for_each(write);
        })
    }

    /// Returns the header that a part has in a frame of its own, and its level.
    fn chunk_header(&self, chunk: &Chunk, room: usize) -> Option<(Header, Level)> {
        let message = self.send_queue.message(chunk)?;
        let (is_end, head_len) =
            (self.send_queue.is_end(chunk), u32::try_from(message.head.len()).unwrap_or(u32::MAX));
        let with_head = chunk.from < head_len;
        let data = !with_head && (message.data || head_len > 0);
        let flag = |set: bool, flag: Flags| if set { flag } else { Flags::default() };
        let len = if message.is_empty() { 0 } else { chunk.to - chunk.from };
        let room = u32::try_from(room).unwrap_or(u32::MAX).max(1);
        let header = Header {
            tag: message.tag,
            last: is_end && message.last,
            fragment: u16::try_from(chunk.from / room % 1024).unwrap_or_default(),
            protected: message.level != Level::None,
            cmd: message.cmd,
            flags: flag(data, Flags::DATA).with(flag(is_end && message.good, Flags::GOOD)),
            len: u16::try_from(len).ok()?,
            sid: self.sid_out,
            pn: 0,
            xid: message.xid,
            off: if with_head { 0 } else { message.off.wrapping_add(chunk.from - head_len) },
        };
        Some((header, message.level))
    }

    /// Appends header, `scratch` and the output of `body` to the frame that was begun, protects the frame and
    /// records it as sent.
    fn finish(
        &mut self,
        now: Instant,
        index: usize,
        mut header: Header,
        shape: Shape<'_>,
        out: &mut FrameBatch,
        body: impl FnOnce(&mut Self, &mut FrameBatch),
    ) -> bool {
        let space_index = usize::from(header.protected);
        let Some(path) = self.paths.get(index) else { return false };
        let Some(space) = path.spaces.get(space_index).filter(|space| space.outgoing.has_room()) else {
            out.cancel();
            return false;
        };
        header.pn = (u64::from(path.id) << PATH_SHIFT) | space.outgoing.next();
        if is_injected(Bug::FramesReuseNumber) && header.pn % 128 == 127 {
            header.pn -= 1;
        }
        if header.protected && self.encryptor.phase() {
            header.flags = header.flags.with(Flags::PHASE);
        }
        if shape.level == Level::Encrypt {
            header.flags = header.flags.with(Flags::ENCRYPTED);
        }
        if shape.elicits {
            header.flags = header.flags.with(Flags::ELICITS);
        }
        out.put(&header.to_bytes());
        out.put(&self.scratch);
        body(self, out);
        if let Err(why) = self.encryptor.seal(&header, out) {
            out.cancel();
            if why == EncryptError::Exhausted && !self.exhausted {
                self.exhausted = true;
                // Without keys no frame can be acknowledged, sent or answered any more, so all deadlines are
                // void.
                self.lost = true;
                self.events.push_back(ConnectionEvent::KeysExhausted);
            }
            return false;
        }
        out.end_frame();
        let len = HEADER_LEN + usize::from(header.len) + trailer_len(shape.level);
        if let Some(path) = self.paths.get_mut(index) {
            path.record_sent(now, space_index, len, shape.elicits, shape.carried, shape.further);
        }
        if self.encryptor.wants_update(now) {
            self.update_keys(now);
        }
        true
    }

    /// Returns the packet number space whose waiting acknowledgement a frame of `space_index` may carry.
    fn space_with_ack(&self, path: &Path, space_index: usize) -> Option<usize> {
        // In a keyed session, an acknowledgement is always protected.
        let lanes: &[usize] = match (self.keyed, space_index) {
            (true, 0) => &[],
            (true, _) => &[1, 0],
            (false, _) => &[0],
        };
        lanes.iter().copied().find(|space_index| {
            path.spaces.get(*space_index).is_some_and(|space| space.incoming.has_ack_to_send())
        })
    }

    /// Returns the packet number space whose acknowledgement a frame of `space_index` is to carry: one with a
    /// raised XID limit, or else one with a waiting acknowledgement.
    fn ack_space_for(&self, index: usize, space_index: usize) -> Option<usize> {
        let raised_limit =
            if space_index == usize::from(self.keyed) { self.raised_xid_limit(index) } else { None };
        raised_limit.or_else(|| self.space_with_ack(self.paths.get(index)?, space_index))
    }

    /// Writes an acknowledgement to `scratch` if one is worth sending along. Returns the flag for it.
    fn piggyback_ack(&mut self, now: Instant, index: usize, space_index: usize) -> Flags {
        let Some(about) = self.ack_space_for(index, space_index) else { return Flags::default() };
        self.tell(now, index, about, true);
        Flags::ACKS
    }

    fn tell(&mut self, now: Instant, index: usize, about: usize, surely: bool) {
        let Some(path) = self.paths.get_mut(index) else { return };
        let limit = self.xid_limits.get(about).copied().unwrap_or_default();
        if let Some(space) = path.spaces.get_mut(about) {
            space.incoming.write_ack(now, path.id, about == 1, limit, path.overruns, &mut self.scratch);
        }
        if let Some(announced) = self.xid_announced.get_mut(about).filter(|_| surely) {
            *announced = limit;
        }
    }

    fn control_level(&self) -> Level {
        if self.keyed { Level::Integrity } else { Level::None }
    }
}

/// Removes and returns the next Ask that a path has to send.
fn next_ask(path: &mut Path, keyed: bool, token: [u8; 16]) -> Option<(Ask, FrameContent)> {
    if !path.may_speak(keyed) {
        return None;
    }
    let takes = u16::try_from(path.local_mtu).unwrap_or(u16::MAX);
    if core::mem::take(&mut path.step_wanted) {
        let token = (!keyed && path.challenge != 0).then_some(token);
        let step = Step { challenge: path.challenge, echo: path.echo, frame_max: takes, token };
        return Some((Ask::Path(step), FrameContent::PathStep));
    }
    //= hyperscsi#section-8.2
    //# Until then it sends nothing on it but PATH.
    if path.challenge != 0 {
        return None;
    }
    if core::mem::take(&mut path.receives_wanted) {
        return Some((Ask::Receives(takes), FrameContent::Receives));
    }
    if path.is_usable()
        && let Some(left) = path.leaves.pop()
    {
        return Some((Ask::Leave { path: left }, FrameContent::Leave(left)));
    }
    if core::mem::take(&mut path.ping_wanted) {
        return Some((Ask::Ping, FrameContent::Nothing));
    }
    let size = path.pmtu.wants_probe().filter(|_| path.is_usable())?;
    path.pmtu.probe_sent();
    let size = u16::try_from(size).unwrap_or(u16::MAX);
    Some((Ask::Mtu(size), FrameContent::Mtu(size)))
}
