//! SCSI devices (VIRTIO 1.2, clause 5.6): commands to one logical unit. A command and its response are bytes.
//!
//! Each command owns a part of the shared memory. Its data is copied into it or out of it: one copy for each
//! byte. The control queue exists and stays empty.

use base::buffer::{Buf, DataList};
use base::int_cast::{to_u32, to_usize};

use crate::memory::{OutOfBounds, SharedMemory};
use crate::ring::{self, Ring, RingError, Segment};

/// The feature bits that this driver uses: the device tells when it comes and goes (`VIRTIO_SCSI_F_HOTPLUG`).
pub const FEATURES: u64 = crate::blk::feature::VERSION_1 | 1 << 1;

/// The length of the configuration.
pub const CONFIG_LEN: u32 = 36;

/// The number of queues: control, event, and one for commands.
pub const QUEUES: usize = 3;

/// The most commands under way.
pub const COMMANDS_MAX: usize = 16;

/// The longest command, in bytes: the default of `cdb_size`.
pub const COMMAND_LEN_MAX: usize = 32;

/// The longest data of one command, unless the configuration says less.
pub const DATA_LEN_MAX: u32 = 1 << 20;

/// The longest sense data: the default of `sense_size`.
const SENSE_LEN_MAX: usize = 96;

/// The lengths of a request and of a response.
const REQUEST_LEN: usize = 19 + COMMAND_LEN_MAX;
const RESPONSE_LEN: usize = 12 + SENSE_LEN_MAX;

/// Where the response is in itself: a device that fails a command may write nothing else.
const RESPONSE_CODE: usize = 11;

/// The distance from one queue to the next.
const QUEUE_LEN: usize = ring::END.next_multiple_of(4096);

/// The headers of the commands; [`HEADER_LEN`] bytes each, of which the response is the second half.
const HEADERS: usize = QUEUES * QUEUE_LEN;
const HEADER_LEN: usize = 256;
const RESPONSE: usize = HEADER_LEN / 2;

/// The events: their number, where they are, and the length of one.
const EVENTS: usize = 8;
const EVENT_PLACES: usize = HEADERS + COMMANDS_MAX * HEADER_LEN;
const EVENT_LEN: usize = 16;

/// The number of the event queue.
const EVENT_QUEUE: usize = 1;

/// The event says that others were lost (`VIRTIO_SCSI_T_EVENTS_MISSED`).
const EVENTS_MISSED: u32 = 1 << 31;

/// The event is about a unit that came, went, or was reset (`VIRTIO_SCSI_T_TRANSPORT_RESET`), and the reasons
/// for the first two.
const TRANSPORT_RESET: u32 = 1;
const RESCAN: u32 = 1;
const REMOVED: u32 = 2;

/// The data of the commands.
const DATA: usize = (EVENT_PLACES + EVENTS * EVENT_LEN).next_multiple_of(4096);

/// Returns the offset of a queue in the shared memory.
pub const fn queue_at(number: usize) -> usize {
    number * QUEUE_LEN
}

/// Reads the configuration of a device. Returns the longest data of one command; `None` if it is not legal.
pub fn data_len_max(config: &[u8]) -> Option<u32> {
    // num_queues, seg_max, max_sectors, cmd_per_lun, event_info_size, sense_size, cdb_size
    let field = |at: usize| Some(u32::from_le_bytes(*config.get(at..)?.first_chunk()?));
    let (queues, sectors) = (field(0)?, field(8)?);
    let len = match sectors {
        0 => DATA_LEN_MAX,
        sectors => sectors.saturating_mul(512).min(DATA_LEN_MAX),
    };
    (queues > 0).then_some(len)
}

/// The data of a command.
#[derive(Clone, Copy, Debug)]
pub enum ScsiData<'a> {
    /// None.
    Nothing,
    /// The device sends up to this many bytes.
    In(usize),
    /// The device receives these bytes.
    Out(&'a DataList),
}

/// What a device says about a command beside its status (`VIRTIO_SCSI_S_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiResponse(pub u8);

impl ScsiResponse {
    /// The command reached the device.
    pub const OK: Self = Self(0);
    /// The data was longer than the command announced.
    pub const OVERRUN: Self = Self(1);
    /// The command was aborted by a reset or a task management function.
    pub const ABORTED: Self = Self(2);
    /// There is no such target or logical unit.
    pub const BAD_TARGET: Self = Self(3);
    /// The device was reset.
    pub const RESET: Self = Self(4);
    /// The device is busy.
    pub const BUSY: Self = Self(5);
    /// The path to the device failed.
    pub const TRANSPORT_FAILURE: Self = Self(6);
}

/// A command that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScsiReply {
    /// The token of the command.
    pub token: u64,
    /// How it ended.
    pub response: ScsiResponse,
    /// The SCSI status.
    pub status: u8,
    /// The sense data.
    pub sense: Vec<u8>,
    /// How many bytes were transferred.
    pub transferred: usize,
    /// Where the received data is, until the next command is submitted.
    at: usize,
}

impl ScsiReply {
    /// Returns whether the device says that there is no such logical unit: in the response, or by the sense
    /// data ILLEGAL REQUEST, LOGICAL UNIT NOT SUPPORTED.
    pub fn is_without_unit(&self) -> bool {
        let (key, code) = match self.sense[..] {
            [0x70 | 0xf0, _, key, _, _, _, _, _, _, _, _, _, code, ..] => (key & 0xf, code),
            [0x72, key, code, ..] => (key & 0xf, code),
            _ => (0, 0),
        };
        self.response == ScsiResponse::BAD_TARGET || (key, code) == (5, 0x25)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Command {
    token: u64,
    len: u32,
    is_read: bool,
    /// Nothing of an earlier command was where its data goes.
    is_cleared: bool,
}

/// The queue of commands to a logical unit.
#[derive(Debug)]
pub struct ScsiQueue {
    memory: SharedMemory,
    ring: Ring,
    events: Ring,
    data_len_max: u32,
    commands: [Command; COMMANDS_MAX],
    /// Whether the device has told how many bytes it wrote. Some never do.
    counts_bytes: bool,
    /// The address of the logical unit.
    lun: [u8; 8],
}

impl ScsiQueue {
    /// Makes an empty queue to logical unit 0 of target 0, in memory of its own.
    ///
    /// # Errors
    /// The error of the system.
    pub fn new(data_len_max: u32) -> std::io::Result<Self> {
        let memory = SharedMemory::new(DATA + COMMANDS_MAX * to_usize(data_len_max))?;
        let [events, ring] =
            [EVENT_QUEUE, QUEUES - 1].map(|number| Ring::new(memory.clone(), queue_at(number)));
        let commands = [Command::default(); COMMANDS_MAX];
        let lun = [1, 0, 0x40, 0, 0, 0, 0, 0];
        let mut queue = Self { memory, ring, events, data_len_max, commands, counts_bytes: false, lun };
        (0..EVENTS).try_for_each(|slot| queue.put_event(slot)).map_err(std::io::Error::other)?;
        Ok(queue)
    }

    /// Returns the memory that the device must map.
    pub const fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Returns the longest data of one command.
    pub const fn data_len_max(&self) -> u32 {
        self.data_len_max
    }

    /// Returns the index from which a device that was restarted goes on.
    pub const fn used_index(&self) -> u16 {
        self.ring.used_index()
    }

    /// Returns the index from which a device that was restarted goes on with events.
    pub const fn event_index(&self) -> u16 {
        self.events.used_index()
    }

    /// Gives the device the place of an event.
    fn put_event(&mut self, slot: usize) -> Result<(), RingError> {
        let at = EVENT_PLACES + slot * EVENT_LEN;
        self.memory.clear(at, EVENT_LEN)?;
        self.events.put(slot, &[Segment { at, len: to_u32(EVENT_LEN), is_written: true }])?;
        // The device looks for a place when it has an event, and needs no notice.
        self.events.tell().map(|_| ())
    }

    /// Takes the events that are there. Returns whether the logical unit may have been removed or exchanged.
    ///
    /// # Errors
    /// [`RingError`]; nothing that the device says can be trusted any more.
    pub fn take_events(&mut self) -> Result<bool, RingError> {
        let mut may_be_another = false;
        // A device that sends events without end gets on with its commands all the same.
        for _ in 0..EVENTS {
            let Some((slot, _)) = self.events.next_used()? else { break };
            let mut event = [0; EVENT_LEN];
            self.memory.read(EVENT_PLACES + slot * EVENT_LEN, &mut event)?;
            self.put_event(slot)?;
            let [k0, k1, k2, k3, _, target, .., r0, r1, r2, r3] = event;
            let (kind, reason) = (u32::from_le_bytes([k0, k1, k2, k3]), u32::from_le_bytes([r0, r1, r2, r3]));
            let is_about_it = kind & !EVENTS_MISSED == TRANSPORT_RESET && self.lun[1] == target;
            may_be_another |= kind & EVENTS_MISSED != 0 || is_about_it && matches!(reason, RESCAN | REMOVED);
        }
        Ok(may_be_another)
    }

    /// Makes a command available to the device. [`Self::tell`] tells it.
    ///
    /// # Errors
    /// [`RingError::Bug`]
    pub fn submit(&mut self, token: u64, bytes: &[u8], data: ScsiData<'_>) -> Result<(), RingError> {
        let slot = self.ring.free_slot().filter(|slot| *slot < COMMANDS_MAX);
        let slot = slot.ok_or(RingError::Bug("too many commands"))?;
        let (header, at) = (HEADERS + slot * HEADER_LEN, DATA + slot * to_usize(self.data_len_max));
        let len = match data {
            ScsiData::Nothing => 0,
            ScsiData::In(len) => to_u32(len),
            ScsiData::Out(data) => to_u32(data.len()),
        };
        if bytes.len() > COMMAND_LEN_MAX || len > self.data_len_max {
            return Err(RingError::Bug("a command longer than its place"));
        }
        if let ScsiData::Out(data) = data {
            let mut end = at;
            for part in data.parts() {
                self.memory.write(end, part)?;
                end += part.len();
            }
        }
        let mut request = [0; REQUEST_LEN];
        let fields = self.lun.into_iter().chain(token.to_le_bytes()).chain([0, 0, 0]);
        request.iter_mut().zip(fields.chain(bytes.iter().copied())).for_each(|(place, byte)| *place = byte);
        self.memory.write(header, &request)?;
        // A device may leave out what is zero. But the code is no legal one, so that a response which the
        // device has not written is seen.
        let mut response = [0; RESPONSE_LEN];
        response[RESPONSE_CODE] = u8::MAX;
        self.memory.write(header + RESPONSE, &response)?;
        let is_read = matches!(data, ScsiData::In(_));
        // The device counts the response with the data, or does not: what it tells as written can hide that
        // much of an earlier command. Only reads of blocks fill their place.
        let is_cleared = is_read && !(self.counts_bytes && reads_blocks(bytes));
        if is_cleared {
            self.memory.clear(at, to_usize(len))?;
        }
        let first = Segment { at: header, len: to_u32(REQUEST_LEN), is_written: false };
        let response = Segment { at: header + RESPONSE, len: to_u32(RESPONSE_LEN), is_written: true };
        let data = Segment { at, len, is_written: is_read };
        match (len, is_read) {
            (0, _) => self.ring.put(slot, &[first, response])?,
            (_, true) => self.ring.put(slot, &[first, response, data])?,
            (_, false) => self.ring.put(slot, &[first, data, response])?,
        }
        if let Some(place) = self.commands.get_mut(slot) {
            *place = Command { token, len, is_read, is_cleared };
        }
        Ok(())
    }

    /// Tells the device of the commands that were submitted. Returns whether it needs a notice.
    ///
    /// # Errors
    /// [`RingError::Bug`]
    pub fn tell(&mut self) -> Result<bool, RingError> {
        self.ring.tell()
    }

    /// Returns the next command that the device has ended.
    ///
    /// # Errors
    /// [`RingError`]; nothing that the device says can be trusted any more.
    pub fn next_reply(&mut self) -> Result<Option<ScsiReply>, RingError> {
        let Some((slot, written)) = self.ring.next_used()? else { return Ok(None) };
        let Some(command) = self.commands.get(slot).copied() else { return Ok(None) };
        let mut bytes = [0; RESPONSE_LEN];
        self.memory.read(HEADERS + slot * HEADER_LEN + RESPONSE, &mut bytes)?;
        let (fields, sense) = bytes.split_at(12);
        let number = |at: usize| {
            let field = fields.get(at..).and_then(|rest| rest.first_chunk());
            field.map_or(u32::MAX, |field| u32::from_le_bytes(*field))
        };
        let (sense_len, residual) = (to_usize(number(0)), number(4));
        let (status, response) = match fields {
            [.., status, response] => (*status, ScsiResponse(*response)),
            _ => return Err(RingError::Bug("a response without fields")),
        };
        let sense = sense.get(..sense_len).ok_or(RingError::TooLong)?;
        if response.0 > 9 {
            return Err(RingError::UnknownStatus);
        }
        let is_ok = response == ScsiResponse::OK;
        let transferred = command.len.checked_sub(residual).ok_or(RingError::TooLong)?;
        let mut transferred = if is_ok { transferred } else { 0 };
        self.counts_bytes |= written > 0;
        let counts_nothing = written == 0 && command.is_cleared;
        // What the device has not written is data of an earlier command, unless that was cleared. Some
        // devices do not count the response, some count nothing, and some tell no residual of a command
        // that fails.
        if command.is_read && status != 0 {
            transferred = transferred.min(written.saturating_sub(to_u32(RESPONSE_LEN)));
        } else if command.is_read && transferred > written && !counts_nothing {
            return Err(RingError::DataMissing);
        }
        Ok(Some(ScsiReply {
            token: command.token,
            response,
            status,
            sense: sense.to_vec(),
            transferred: to_usize(transferred),
            at: DATA + slot * to_usize(self.data_len_max),
        }))
    }

    /// Copies the received data of a command into buffers that have room for it.
    ///
    /// # Errors
    /// [`OutOfBounds`]
    pub fn copy_to(&self, reply: &ScsiReply, bufs: &mut [Buf]) -> Result<(), OutOfBounds> {
        let (mut at, mut left) = (reply.at, reply.transferred);
        for buf in bufs {
            let len = buf.spare_mut().len().min(left);
            self.memory.append_to(at, len, buf)?;
            at += len;
            left -= len;
        }
        if left == 0 { Ok(()) } else { Err(OutOfBounds) }
    }
}

/// Returns whether a command is a READ(10), READ(12) or READ(16).
fn reads_blocks(command: &[u8]) -> bool {
    matches!(command.first(), Some(0x28 | 0xa8 | 0x88))
}

const _: () = assert!(REQUEST_LEN <= RESPONSE && RESPONSE + RESPONSE_LEN <= HEADER_LEN);

#[cfg(test)]
mod tests {
    use base::buffer::Bytes;

    use super::*;

    /// Submits a command of 8 bytes to receive, and lets the device answer it with these bytes.
    fn answered(response: &[u8], head: u32, written: u32) -> Result<Option<ScsiReply>, RingError> {
        let mut queue = ScsiQueue::new(4096).unwrap();
        queue.submit(5, &[0x25; 10], ScsiData::In(8)).unwrap();
        assert_eq!(queue.tell(), Ok(true));
        queue.memory.write(HEADERS + RESPONSE, response).unwrap();
        queue.memory.write(DATA, b"12345678").unwrap();
        let used = queue_at(2) + ring::USED;
        queue.memory.write(used + 4, &[head.to_le_bytes(), written.to_le_bytes()].concat()).unwrap();
        queue.memory.store(used + 2, 1).unwrap();
        let reply = queue.next_reply()?;
        if let Some(reply) = &reply {
            let mut bufs = [Buf::with_capacity(8)];
            queue.copy_to(reply, &mut bufs).unwrap();
            assert_eq!(bufs[0].filled(), &b"12345678"[..reply.transferred]);
        }
        Ok(reply)
    }

    fn response(sense_len: u32, residual: u32, status: u8, response: u8) -> Vec<u8> {
        let numbers = [sense_len.to_le_bytes(), residual.to_le_bytes()].concat();
        [numbers, vec![0, 0, status, response, 0x70, 0, 5]].concat()
    }

    #[test]
    fn a_command_comes_back_with_its_status_sense_and_data() {
        let reply = answered(&response(3, 2, 2, 0), 0, 116).unwrap().unwrap();
        assert_eq!((reply.token, reply.status, reply.response), (5, 2, ScsiResponse::OK));
        assert_eq!((reply.sense.as_slice(), reply.transferred), (&[0x70, 0, 5][..], 6));
        let failed = answered(&response(3, 0, 2, 0), 0, 108).unwrap().unwrap();
        assert_eq!(failed.transferred, 0, "there is no residual, and no data");
        // A device that counts the data only.
        assert_eq!(answered(&response(0, 0, 0, 0), 0, 8).unwrap().unwrap().transferred, 8);
        // A device that counts nothing.
        assert_eq!(answered(&response(0, 2, 0, 0), 0, 0).unwrap().unwrap().transferred, 6);
        assert_eq!(answered(&response(3, 0, 2, 0), 0, 0).unwrap().unwrap().transferred, 0);
        // Without a response there is no data.
        assert_eq!(answered(&response(0, 0, 0, 3), 0, 12).unwrap().unwrap().transferred, 0);
    }

    #[test]
    fn events_tell_that_the_unit_may_be_another_one() {
        let mut queue = ScsiQueue::new(512).unwrap();
        let mut count = 0_u16;
        let mut told = |queue: &mut ScsiQueue, kind: u32, target: u8, reason: u32| {
            let slot = usize::from(count) % EVENTS;
            let fields =
                [&kind.to_le_bytes()[..], &[1, target, 0, 0, 0, 0, 0, 0], &reason.to_le_bytes()].concat();
            queue.memory.write(EVENT_PLACES + slot * EVENT_LEN, &fields).unwrap();
            let used = queue_at(EVENT_QUEUE) + ring::USED;
            let entry = [to_u32(slot * ring::CHAIN_MAX).to_le_bytes(), 16_u32.to_le_bytes()].concat();
            queue.memory.write(used + 4 + 8 * usize::from(count % ring::SIZE), &entry).unwrap();
            count += 1;
            queue.memory.store(used + 2, count).unwrap();
            queue.take_events().unwrap()
        };
        for _ in 0..20 {
            assert!(
                told(&mut queue, 1, 0, 2) && told(&mut queue, 1, 0, 1) && told(&mut queue, 1 << 31, 9, 0)
            );
            // Another target, a reset, and another capacity.
            assert!(!told(&mut queue, 1, 1, 2) && !told(&mut queue, 1, 0, 0) && !told(&mut queue, 3, 0, 2));
        }
        assert_eq!((queue.take_events(), queue.event_index()), (Ok(false), 120));
    }

    #[test]
    fn a_device_says_in_several_ways_that_it_has_no_such_unit() {
        let without = |code, sense: &[u8]| {
            let bytes = [&response(to_u32(sense.len()), 0, 2, code)[..12], sense].concat();
            answered(&bytes, 0, 116).unwrap().unwrap().is_without_unit()
        };
        let fixed = |key, code| [0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, 0];
        assert!(without(3, &[]) && without(0, &fixed(5, 0x25)) && without(0, &[0x72, 5, 0x25, 0]));
        assert!(!without(0, &fixed(5, 0x24)) && !without(0, &fixed(6, 0x25)) && !without(0, &[0x72, 5]));
    }

    /// Lets the device answer the command of the first slot, the one with this number.
    fn end(queue: &ScsiQueue, number: u16, written: u32) {
        let used = queue_at(2) + ring::USED;
        let entry = [0_u32.to_le_bytes(), written.to_le_bytes()].concat();
        queue.memory.write(used + 4 + 8 * usize::from(number), &entry).unwrap();
        queue.memory.store(used + 2, number + 1).unwrap();
    }

    #[test]
    fn a_device_may_write_only_the_fields_of_a_response_that_are_not_zero() {
        let mut queue = ScsiQueue::new(4096).unwrap();
        for (number, code) in [(0, 0), (1, 3)] {
            // What the command before has left is gone.
            queue.memory.write(HEADERS + RESPONSE, &[1; RESPONSE_LEN]).unwrap();
            queue.submit(5, &[0; 6], ScsiData::Nothing).unwrap();
            queue.tell().unwrap();
            queue.memory.write(HEADERS + RESPONSE + 11, &[code]).unwrap();
            end(&queue, number, 108);
            let reply = queue.next_reply().unwrap().unwrap();
            assert_eq!((reply.response, reply.status, reply.sense.len()), (ScsiResponse(code), 0, 0));
        }
    }

    #[test]
    fn a_device_that_does_not_say_what_it_wrote_shows_no_data_of_an_earlier_command() {
        let mut queue = ScsiQueue::new(8192).unwrap();
        let written = |queue: &mut ScsiQueue, number, written| {
            let secret = DataList::from(Bytes::copied_from(&[7; 5000]));
            queue.submit(1, &[0x2a; 10], ScsiData::Out(&secret)).unwrap();
            queue.tell().unwrap();
            queue.memory.write(HEADERS + RESPONSE + 11, &[0]).unwrap();
            end(queue, number, written);
            queue.next_reply().unwrap().unwrap();
            queue.submit(2, &[0x28; 10], ScsiData::In(5000)).unwrap();
            queue.tell().unwrap();
            queue.memory.write(HEADERS + RESPONSE + 11, &[0]).unwrap();
            end(queue, number + 1, 0);
            queue.next_reply()
        };
        let reply = written(&mut queue, 0, 0).unwrap().unwrap();
        let mut bufs = [Buf::with_capacity(5000)];
        queue.copy_to(&reply, &mut bufs).unwrap();
        assert_eq!(bufs[0].filled(), [0; 5000]);
        // Nothing is cleared for a device that counts.
        assert_eq!(written(&mut queue, 2, 108), Err(RingError::DataMissing));
    }

    #[test]
    fn a_short_answer_without_a_residual_shows_no_data_of_an_earlier_command() {
        let mut queue = ScsiQueue::new(4096).unwrap();
        // A device that counts the response with the data.
        let mut carry = |number, command: &[u8], data: ScsiData<'_>, written| {
            queue.submit(1, command, data).unwrap();
            queue.tell().unwrap();
            queue.memory.write(HEADERS + RESPONSE + 11, &[0]).unwrap();
            end(&queue, number, written);
            let reply = queue.next_reply().unwrap().unwrap();
            let mut bufs = [Buf::with_capacity(96)];
            if number > 0 {
                queue.copy_to(&reply, &mut bufs).unwrap();
            }
            bufs[0].filled().to_vec()
        };
        let secret = DataList::from(Bytes::copied_from(&[7; 512]));
        carry(0, &[0x2a; 10], ScsiData::Out(&secret), 108);
        // It wrote 36 bytes of 96, and tells no residual.
        assert_eq!(carry(1, &[0x12, 0, 0, 0, 96, 0], ScsiData::In(96), 108 + 36), [0; 96]);
    }

    #[test]
    fn what_a_hostile_device_answers_is_refused() {
        assert_eq!(answered(&response(97, 0, 0, 0), 0, 116), Err(RingError::TooLong));
        assert_eq!(answered(&response(u32::MAX, 0, 0, 0), 0, 116), Err(RingError::TooLong));
        assert_eq!(answered(&response(0, 9, 0, 0), 0, 116), Err(RingError::TooLong));
        assert_eq!(answered(&response(0, 0, 0, 10), 0, 116), Err(RingError::UnknownStatus));
        assert_eq!(answered(&[], 0, 116), Err(RingError::UnknownStatus));
        assert_eq!(answered(&response(0, 0, 0, 0)[..11], 0, 0), Err(RingError::UnknownStatus));
        assert_eq!(answered(&response(0, 0, 0, 0), 0, 7), Err(RingError::DataMissing));
        assert_eq!(answered(&response(0, 0, 0, 0), 3, 116), Err(RingError::NotUnderWay));
        assert_eq!(answered(&response(0, 0, 0, 0), 0, 117), Err(RingError::TooLong));
    }

    #[test]
    fn commands_have_places_of_their_own_and_no_more_than_there_are() {
        let mut queue = ScsiQueue::new(512).unwrap();
        for token in 0..16 {
            let data = DataList::from(Bytes::copied_from(&[7; 512]));
            queue.submit(token, &[0x2a; 10], ScsiData::Out(&data)).unwrap();
        }
        assert!(matches!(queue.submit(16, &[0; 6], ScsiData::Nothing), Err(RingError::Bug(_))));
        let mut data = [0; 16 * 512];
        queue.memory.read(DATA, &mut data).unwrap();
        assert!(data.iter().all(|byte| *byte == 7));
        let mut queue = ScsiQueue::new(512).unwrap();
        assert!(matches!(queue.submit(0, &[0; 33], ScsiData::Nothing), Err(RingError::Bug(_))));
        assert!(matches!(queue.submit(0, &[0; 6], ScsiData::In(513)), Err(RingError::Bug(_))));
    }

    #[test]
    fn the_longest_transfer_is_that_of_the_configuration_up_to_a_megabyte() {
        let config = |queues: u32, sectors: u32| {
            data_len_max(&[queues.to_le_bytes(), [0; 4], sectors.to_le_bytes()].concat())
        };
        assert_eq!(
            (config(1, 0), config(1, 8), config(4, u32::MAX)),
            (Some(1 << 20), Some(4096), Some(1 << 20))
        );
        assert_eq!((config(0, 8), data_len_max(&[1; 9])), (None, None));
    }
}
