//! The send queue: messages that are not acknowledged, and which of their bytes have arrived.
//!
//! The queue retransmits ranges of a message's bytes, not frames: a lost range is sent again in frames of the
//! size that the path has then, perhaps on another path. A message is delivered when every byte of it was
//! acknowledged.
//!
//! Order of sending: urgent messages, then lost ranges, then the other messages. Among those, short and long
//! ones alternate, a portion each, so that a command does not wait for the end of a transfer. Long messages
//! follow each other, as whole as can be, so that the data of one is complete at the receiver while it is
//! still in the receiver's cache.
//!
//! The space that is left in a frame behind a part is filled with the next parts, for as long as each of them
//! fits whole.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use base::arena::{Arena, Key};
use base::buffer::DataList;
use base::ether::FrameBatch;
use base::int_cast::to_usize;

use crate::frame::Cmd;
use crate::path::ranges::Ranges;
use crate::pdu::disconnect::Disconnect;
use security::Level;

/// Names a message until it is delivered or withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(pub(crate) Key);

/// A message from one end to the other in one direction of an exchange: a command with its first data, a run
/// of data, a response.
///
/// If there is a `head`, the first frame carries it whole, at OFF 0 and without DATA, with as much of `body`
/// as fits behind it; the rest of `body` is sent as DATA.
#[derive(Clone, Debug)]
pub struct Message {
    /// The command of its frames.
    pub cmd: Cmd,
    /// The exchange; 0 for a message that concerns the session.
    pub xid: u32,
    /// The slot of the exchange.
    pub tag: u16,
    /// The protection level of its frames.
    pub level: Level,
    /// A block that is not data: a command, a response. Short enough for one frame of any path.
    pub head: Vec<u8>,
    /// Whether the body is data. Behind a head it always is.
    pub data: bool,
    /// The data.
    pub body: DataList,
    /// The offset of the body in the data of the command.
    pub off: u32,
    /// Whether its last frame has the flag `last`.
    pub last: bool,
    /// Whether its last frame has the flag GOOD.
    pub good: bool,
    /// Whether it is sent before other messages.
    pub urgent: bool,
    /// The owner's key, which is reported with the delivery.
    pub owner: Option<Key>,
}

impl Message {
    /// Returns a message that is one block.
    pub fn block(cmd: Cmd, xid: u32, tag: u16, level: Level, head: Vec<u8>) -> Self {
        Self { head, data: false, last: true, ..Self::data(cmd, xid, tag, level, 0, DataList::new()) }
    }

    //= hyperscsi#section-7.1
    //# In a keyed session, Ack, Ask, Abort and Disconnect are protected always, at `integrity`
    /// Returns a message that ends a session, or acknowledges its end.
    pub fn disconnect(said: Disconnect, keyed: bool) -> Self {
        let level = if keyed { Level::Integrity } else { Level::None };
        let mut head = Vec::new();
        said.encode(&mut head);
        Self::block(Cmd::Disconnect, 0, 0, level, head)
    }

    /// Returns whether the message has no bytes. Such a message is sent all the same, as one frame.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty() && self.body.is_empty()
    }

    /// Returns a message that is data.
    pub const fn data(cmd: Cmd, xid: u32, tag: u16, level: Level, off: u32, body: DataList) -> Self {
        let (last, good, urgent) = (false, false, false);
        let head = Vec::new();
        Self { cmd, xid, tag, level, head, data: true, body, off, last, good, urgent, owner: None }
    }
}

/// The longest block that every path carries in one frame together with an acknowledgement.
pub const HEAD_LEN_MAX: usize = 1024;

/// A part of a message, in bytes from the front of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) key: Key,
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// A message of at most this length is short: a command with its first burst.
const SHORT_MAX: u32 = (64 << 10) + 1024;

/// How many bytes of short messages, or of long ones, are sent before the other kind is served.
const PORTION: u32 = 256 << 10;

/// How many bytes of one long message are sent before the next long one is served: the usual maximum of one
/// transfer.
const LONG_PORTION: u32 = 1 << 20;

#[derive(Debug)]
struct Entry {
    message: Message,
    /// The length in bytes; 1 for an empty message, so that it is sent and acknowledged like the others.
    len: u32,
    /// The bytes from here on were never sent.
    next: u32,
    /// All bytes before this offset were acknowledged, and so were the ranges.
    arrived: u32,
    arrived_beyond: Ranges,
    /// The ranges to be sent again.
    lost: Ranges,
    lost_queued: bool,
    turn_end: u32,
    /// The index of a part of the body and its offset, so that the parts of a long body are not traversed for
    /// each frame.
    part: (usize, usize),
}

/// The messages of one session, in a queue for each packet number space: unprotected messages, and the
/// others.
#[derive(Debug, Default)]
pub(crate) struct SendQueue {
    entries: Arena<Entry>,
    lanes: [SpaceQueues; 2],
}

#[derive(Debug, Default)]
struct SpaceQueues {
    urgent: VecDeque<Key>,
    lost: VecDeque<Key>,
    short: VecDeque<Key>,
    long: VecDeque<Key>,
    /// Whether long messages are being served, and how many bytes were sent since the last change.
    long_turn: bool,
    spent: u32,
}

/// A message of which every byte was acknowledged.
#[derive(Debug)]
pub(crate) struct DeliveredMessage {
    pub(crate) key: Key,
    pub(crate) message: Message,
}

impl SendQueue {
    /// Adds a message.
    ///
    /// # Panics
    /// When the message is longer than OFF can count, or its head longer than [`HEAD_LEN_MAX`]: a truncated
    /// message would corrupt a medium.
    pub(crate) fn push(&mut self, message: Message) -> Key {
        let len = u32::try_from(message.head.len().saturating_add(message.body.len()));
        let len = len.ok().filter(|len| len.checked_add(message.off).is_some());
        assert!(len.is_some() && message.head.len() <= HEAD_LEN_MAX, "the message is too long");
        let (space_index, urgent) = (pn_space_index(message.level), message.urgent);
        let entry = Entry {
            message,
            len: len.unwrap_or_default().max(1),
            next: 0,
            arrived: 0,
            arrived_beyond: Ranges::new(),
            lost: Ranges::new(),
            lost_queued: false,
            turn_end: LONG_PORTION,
            part: (0, 0),
        };
        let short = entry.len <= SHORT_MAX;
        let key = self.entries.insert_with(|_| entry);
        if let Some(queues) = self.lanes.get_mut(space_index) {
            match (urgent, short) {
                (true, _) => queues.urgent.push_back(key),
                (false, true) => queues.short.push_back(key),
                (false, false) => queues.long.push_back(key),
            }
        }
        key
    }

    /// Withdraws a message: its unsent bytes are not sent, and its sent bytes are not retransmitted.
    pub(crate) fn withdraw(&mut self, key: Key) -> Option<Message> {
        self.entries.remove(key).map(|entry| entry.message)
    }

    /// Returns the messages that have an owner.
    pub(crate) fn owned(&self) -> impl Iterator<Item = Key> {
        self.entries.iter().filter(|(_, entry)| entry.message.owner.is_some()).map(|(key, _)| key)
    }

    /// Returns how many messages are not delivered.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether a packet number space has something to send.
    pub(crate) fn has_more(&mut self, space_index: usize) -> bool {
        let Some(queues) = self.lanes.get_mut(space_index) else { return false };
        queues.settle(&mut self.entries);
        !(queues.urgent.is_empty()
            && queues.lost.is_empty()
            && queues.short.is_empty()
            && queues.long.is_empty())
    }

    /// Removes the next part of at most `room` bytes from the queue of a packet number space. The part counts
    /// as sent.
    pub(crate) fn take(&mut self, space_index: usize, room: usize) -> Option<Chunk> {
        let room = u32::try_from(room).unwrap_or(u32::MAX);
        let queues = self.lanes.get_mut(space_index)?;
        queues.settle(&mut self.entries);
        if let Some(key) = queues.urgent.front().copied() {
            let entry = self.entries.get_mut(key)?;
            let chunk = entry.take_fresh(key, room)?;
            if entry.next == entry.len {
                queues.urgent.pop_front();
            }
            return Some(chunk);
        }
        if let Some(key) = queues.lost.front().copied() {
            let entry = self.entries.get_mut(key)?;
            let chunk = entry.take_lost(key, room)?;
            if entry.lost.is_empty() {
                entry.lost_queued = false;
                queues.lost.pop_front();
            }
            return Some(chunk);
        }
        let queue = queues.whose_turn();
        let key = queue.front().copied()?;
        let entry = self.entries.get_mut(key)?;
        let chunk = entry.take_fresh(key, room)?;
        if entry.next == entry.len {
            queue.pop_front();
        } else if entry.next >= entry.turn_end {
            entry.turn_end = entry.next.saturating_add(LONG_PORTION);
            queue.rotate_left(1);
        }
        queues.spent = queues.spent.saturating_add(chunk.to - chunk.from);
        Some(chunk)
    }

    /// Removes the next part of the same packet number space for the frame that carries `first`, if three
    /// conditions hold: the whole next range has at most `room` bytes, it has the command and level of
    /// `first`, and that command allows several parts in a frame. The part counts as sent.
    pub(crate) fn take_beside(&mut self, space_index: usize, room: usize, first: &Chunk) -> Option<Chunk> {
        let Message { cmd, level, .. } = self.entries.get(first.key)?.message;
        let (key, from, to) = self.lanes.get_mut(space_index)?.front(&mut self.entries)?;
        let next = &self.entries.get(key)?.message;
        //= hyperscsi#section-4.11
        //# They MUST all have the level of the frame.
        let fits = cmd.has_parts() && next.cmd == cmd && next.level == level && to_usize(to - from) <= room;
        if fits { self.take(space_index, room) } else { None }
    }

    /// Returns the message that a part belongs to, unless the message was delivered or withdrawn.
    pub(crate) fn message(&self, chunk: &Chunk) -> Option<&Message> {
        self.entries.get(chunk.key).map(|entry| &entry.message)
    }

    /// Returns whether a part reaches the end of its message.
    pub(crate) fn is_end(&self, chunk: &Chunk) -> bool {
        self.entries.get(chunk.key).is_some_and(|entry| entry.len == chunk.to)
    }

    /// Appends a part's bytes to the frame that was begun; shared, unless they are to be `copied`.
    pub(crate) fn write(&mut self, chunk: &Chunk, copied: bool, out: &mut FrameBatch) {
        let Some(entry) = self.entries.get_mut(chunk.key) else { return };
        let (from, to) = (to_usize(chunk.from), to_usize(chunk.to));
        let head = &entry.message.head;
        if let Some(part) = head.get(from..to.min(head.len())) {
            out.put(part);
        }
        let (start, end) = (from.saturating_sub(head.len()), to.saturating_sub(head.len()));
        if entry.part.1 > start {
            entry.part = (0, 0);
        }
        let (mut number, mut at) = entry.part;
        while let Some(part) = entry.message.body.parts().get(number).filter(|_| at < end) {
            entry.part = (number, at);
            let next = at + part.len();
            if next > start {
                let (a, b) = (start.saturating_sub(at), end.min(next) - at);
                if copied {
                    out.put(part.get(a..b).unwrap_or_default())
                } else {
                    out.put_shared(part.slice(a, b))
                }
            }
            (number, at) = (number + 1, next);
        }
    }

    /// Records that a part was acknowledged. Returns its message if no other byte was missing.
    pub(crate) fn arrived(&mut self, chunk: &Chunk) -> Option<DeliveredMessage> {
        let entry = self.entries.get_mut(chunk.key)?;
        entry.arrived(chunk.from, chunk.to);
        if entry.arrived < entry.len {
            return None;
        }
        self.entries
            .remove(chunk.key)
            .map(|entry| DeliveredMessage { key: chunk.key, message: entry.message })
    }

    /// Records that a part was lost, except for bytes that arrived in another frame. Returns whether anything
    /// is to be sent again.
    pub(crate) fn lost(&mut self, chunk: &Chunk) -> bool {
        let Some(entry) = self.entries.get_mut(chunk.key) else { return false };
        entry.lost.insert(u64::from(chunk.from.max(entry.arrived)), u64::from(chunk.to));
        for (from, to) in entry.arrived_beyond.runs() {
            entry.lost.remove(*from, *to);
        }
        let queue = !entry.lost.is_empty();
        if queue && !entry.lost_queued {
            entry.lost_queued = true;
            if let Some(queues) = self.lanes.get_mut(pn_space_index(entry.message.level)) {
                queues.lost.push_back(chunk.key);
            }
        }
        queue
    }
}

impl SpaceQueues {
    /// Returns the queue to serve next: that of the short or that of the long messages.
    fn whose_turn(&mut self) -> &mut VecDeque<Key> {
        let over = self.spent >= PORTION;
        let long = match (self.short.is_empty(), self.long.is_empty()) {
            (false, false) => self.long_turn != over,
            (short_is_empty, _) => short_is_empty,
        };
        if over || long != self.long_turn {
            (self.long_turn, self.spent) = (long, 0);
        }
        if long { &mut self.long } else { &mut self.short }
    }

    /// Returns the range to send next: its message, start and end.
    fn front(&mut self, entries: &mut Arena<Entry>) -> Option<(Key, u32, u32)> {
        self.settle(entries);
        if self.urgent.is_empty()
            && let Some(key) = self.lost.front().copied()
        {
            let (from, to) = entries.get(key)?.lost.first()?;
            return Some((key, u32::try_from(from).ok()?, u32::try_from(to).ok()?));
        }
        let key = self.urgent.front().copied().or_else(|| self.whose_turn().front().copied())?;
        let entry = entries.get(key)?;
        Some((key, entry.next, entry.len))
    }

    /// Removes delivered and withdrawn messages from the front of the queues.
    fn settle(&mut self, entries: &mut Arena<Entry>) {
        for queue in [&mut self.urgent, &mut self.short, &mut self.long] {
            while queue.front().is_some_and(|key| entries.get(*key).is_none()) {
                queue.pop_front();
            }
        }
        while let Some(key) = self.lost.front() {
            match entries.get_mut(*key) {
                Some(entry) if !entry.lost.is_empty() => break,
                Some(entry) => entry.lost_queued = false,
                None => {}
            }
            self.lost.pop_front();
        }
    }
}

impl Entry {
    fn take_fresh(&mut self, key: Key, room: u32) -> Option<Chunk> {
        let chunk = self.part_of(key, self.next, self.len, room)?;
        self.next = chunk.to;
        Some(chunk)
    }

    fn take_lost(&mut self, key: Key, room: u32) -> Option<Chunk> {
        let (from, to) = self.lost.first()?;
        let (from, to) = (u32::try_from(from).ok()?, u32::try_from(to).ok()?);
        let chunk = self.part_of(key, from, to, room)?;
        self.lost.remove(u64::from(chunk.from), u64::from(chunk.to));
        Some(chunk)
    }

    /// Cuts a part off the front of a range. The head is never split.
    fn part_of(&self, key: Key, from: u32, to: u32, room: u32) -> Option<Chunk> {
        let end = to.min(from.saturating_add(room));
        let head = u32::try_from(self.message.head.len()).unwrap_or(u32::MAX);
        (end > from && (from >= head || end >= head.min(to))).then_some(Chunk { key, from, to: end })
    }

    fn arrived(&mut self, from: u32, to: u32) {
        if !self.lost.is_empty() {
            self.lost.remove(u64::from(from), u64::from(to));
        }
        if from > self.arrived {
            return self.arrived_beyond.insert(u64::from(from), u64::from(to));
        }
        self.arrived = self.arrived.max(to);
        while let Some((from, to)) =
            self.arrived_beyond.first().filter(|(from, _)| *from <= u64::from(self.arrived))
        {
            self.arrived = self.arrived.max(u32::try_from(to).unwrap_or(u32::MAX));
            self.arrived_beyond.remove(from, to);
        }
    }
}

/// Returns the index of the packet number space of a level.
pub(crate) const fn pn_space_index(level: Level) -> usize {
    match level {
        Level::None => 0,
        Level::Integrity | Level::Encrypt => 1,
    }
}

#[cfg(test)]
mod tests;
