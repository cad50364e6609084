//! Tests of the queue with a device that is honest, and with devices that are not.

use base::buffer::{Buf, Bytes};
use base::rng::Rng;

use super::*;
use crate::memory::DEVICE_BASE;

const LEN: usize = 1 << 20;

fn config() -> Vec<u8> {
    let mut config = vec![0; 60];
    config[..8].copy_from_slice(&2048_u64.to_le_bytes());
    config[8..12].copy_from_slice(&(64_u32 << 10).to_le_bytes());
    config[20..24].copy_from_slice(&512_u32.to_le_bytes());
    config[24] = 3;
    for at in [36, 48] {
        config[at..at + 4].copy_from_slice(&33_u32.to_le_bytes());
        config[at + 4] = 1;
    }
    config
}

/// The offset, length and direction of a part of a chain.
type Part = (usize, usize, bool);

/// The other half of the queue, over bytes in memory.
struct Device {
    memory: SharedMemory,
    taken: u16,
    used: u16,
    disk: Vec<u8>,
}

impl Device {
    fn number<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        self.memory.read(at, &mut bytes).unwrap();
        bytes
    }

    fn short(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.number(at))
    }

    /// Takes the next chain: its head, and its parts.
    fn take(&mut self) -> Option<(u16, Vec<Part>)> {
        if self.short(ring::AVAILABLE + 2) == self.taken {
            return None;
        }
        let head = self.short(ring::AVAILABLE + 4 + 2 * usize::from(self.taken % ring::SIZE));
        self.taken = self.taken.wrapping_add(1);
        let (mut number, mut parts) = (head, Vec::new());
        loop {
            let entry = ring::DESCRIPTORS + 16 * usize::from(number);
            let address = u64::from_le_bytes(self.number(entry)) - DEVICE_BASE;
            let flags = self.short(entry + 12);
            let len = u32::from_le_bytes(self.number(entry + 8));
            parts.push((to_usize(address), to_usize(len), flags & 2 != 0));
            if flags & 1 == 0 {
                return Some((head, parts));
            }
            number = self.short(entry + 14);
        }
    }

    fn give(&mut self, head: u32, len: u32) {
        let entry = ring::USED + 4 + 8 * usize::from(self.used % ring::SIZE);
        self.memory.write(entry, &[head.to_le_bytes(), len.to_le_bytes()].concat()).unwrap();
        self.used = self.used.wrapping_add(1);
        self.memory.store(ring::USED + 2, self.used).unwrap();
    }

    /// Carries out one request. Returns whether there was one.
    fn serve(&mut self) -> bool {
        let Some((head, parts)) = self.take() else { return false };
        let kind = u32::from_le_bytes(self.number(parts[0].0));
        let mut at = to_usize(u64::from_le_bytes(self.number(parts[0].0 + 8))) * 512;
        let (mut written, mut status) = (1, 0);
        match (kind, parts.len()) {
            (TYPE_IN, 3) => {
                let (place, len, is_written) = parts[1];
                assert!(is_written);
                self.memory.write(place, &self.disk[at..at + len]).unwrap();
                written += len;
            }
            (TYPE_OUT, 3) => {
                let (place, len, is_written) = parts[1];
                assert!(!is_written);
                self.memory.read(place, &mut self.disk[at..at + len]).unwrap();
            }
            (TYPE_FLUSH, 2) => {}
            (TYPE_WRITE_ZEROES, 3) => {
                at = to_usize(u64::from_le_bytes(self.number(parts[1].0))) * 512;
                let len = to_usize(u32::from_le_bytes(self.number(parts[1].0 + 8))) * 512;
                self.disk[at..at + len].fill(0);
            }
            _ => status = 2,
        }
        let (place, len, is_written) = parts[parts.len() - 1];
        assert_eq!((len, is_written), (1, true));
        self.memory.write(place, &[status]).unwrap();
        self.give(u32::from(head), u32::try_from(written).unwrap());
        true
    }
}

fn pair() -> (BlkQueue, Device) {
    let info = BlkInfo::parse(feature::ALL, &config()).unwrap();
    let queue = BlkQueue::new(&info).unwrap();
    let memory = queue.memory().clone();
    (queue, Device { memory, taken: 0, used: 0, disk: vec![0; LEN] })
}

fn data_of(queue: &BlkQueue, reply: BlkReply) -> Vec<u8> {
    let (at, len) = reply.data.unwrap();
    let mut buf = Buf::with_capacity(len);
    queue.memory().append_to(at, len, &mut buf).unwrap();
    buf.filled().to_vec()
}

#[test]
fn reads_the_configuration_of_a_device_by_its_features() {
    let info = BlkInfo::parse(feature::ALL & !feature::READ_ONLY, &config()).unwrap();
    let expected = BlkInfo {
        len: 1 << 20,
        block_len: 512,
        physical_block_len: 4096,
        data_len_max: 64 << 10,
        read_only: false,
        flush: true,
        discard_len_max: 33 * 512,
        zeroes_len_max: 33 * 512,
    };
    assert_eq!(info, expected);
    let plain = BlkInfo::parse(feature::VERSION_1, &config()[..32]).unwrap();
    assert_eq!((plain.block_len, plain.physical_block_len, plain.discard_len_max), (512, 512, 0));
    assert!(!plain.flush && !plain.read_only && plain.data_len_max == DATA_LEN_MAX);
}

#[test]
fn refuses_an_illegal_configuration() {
    let with = |at: usize, bytes: &[u8]| {
        let mut config = config();
        config[at..at + bytes.len()].copy_from_slice(bytes);
        BlkInfo::parse(feature::ALL, &config)
    };
    assert_eq!(with(0, &[0xff; 8]), Err(ConfigError::Size(u64::MAX)));
    assert_eq!(with(20, &[0, 3, 0, 0]), Err(ConfigError::BlockLen(768)));
    assert_eq!(with(20, &[0, 0, 0, 0]), Err(ConfigError::BlockLen(0)));
    assert_eq!(with(20, &[0, 0, 0x20, 0]), Err(ConfigError::BlockLen(2 << 20)));
    assert_eq!(with(8, &[1, 1, 0, 0]), Err(ConfigError::SegmentLen(257)));
    assert_eq!(BlkInfo::parse(feature::ALL, &config()[..50]), Err(ConfigError::TooShort));
    assert_eq!(with(8, &[0; 4]).unwrap().data_len_max, DATA_LEN_MAX);
    // A physical block that nothing has is no reason to refuse the device.
    assert_eq!(with(24, &[200]).unwrap().physical_block_len, 512);
    assert_eq!(with(40, &[0]).unwrap().discard_len_max, 0);
}

#[test]
fn requests_of_every_kind_come_back_with_their_data_also_when_the_indices_wrap() {
    let seed = std::process::id();
    let mut rng = Rng::from_seed(u64::from(seed));
    let (mut queue, mut device) = pair();
    let mut model = vec![0; LEN];
    let bytes: Vec<u8> = (0..=255).cycle().take(4096).collect();
    for round in 0..70_000_u64 {
        let at = rng.below(2040) * 512;
        let place = to_usize(at);
        let request = match rng.below(4) {
            0 | 1 => BlkRequest::Read { at, len: 1024 },
            2 => {
                let data = DataList::from(Bytes::copied_from(&bytes[..1024]));
                model[place..place + 1024].copy_from_slice(&bytes[..1024]);
                queue.submit(round, BlkRequest::Write { at, data: &data }).unwrap();
                BlkRequest::Flush
            }
            _ => {
                model[place..place + 512].fill(0);
                queue.submit(round, BlkRequest::WriteZeroes { at, len: 512, may_deallocate: true }).unwrap();
                BlkRequest::Flush
            }
        };
        let is_read = matches!(request, BlkRequest::Read { .. });
        queue.submit(round, request).unwrap();
        assert_eq!(queue.tell(), Ok(true));
        assert_eq!(queue.tell(), Ok(false), "nothing was submitted since");
        while device.serve() {}
        while let Some(reply) = queue.next_reply().unwrap() {
            assert_eq!((reply.token, reply.status), (round, BlkStatus::Done), "seed {seed}");
            assert_eq!(reply.data.is_some(), is_read);
            if is_read {
                assert!(data_of(&queue, reply) == model[place..place + 1024], "seed {seed}, round {round}");
            }
        }
    }
    assert_eq!(queue.ring.under_way(), 0);
    assert!(device.disk == model, "seed {seed}");
}

#[test]
fn requests_end_in_any_order_and_a_full_queue_takes_no_more() {
    let (mut queue, mut device) = pair();
    for token in 0..u64::from(SLOTS) {
        assert!(!queue.is_full());
        queue.submit(token, BlkRequest::Read { at: token * 512, len: 512 }).unwrap();
    }
    assert!(queue.is_full());
    assert!(matches!(queue.submit(99, BlkRequest::Flush), Err(RingError::Bug(_))));
    assert_eq!(queue.tell(), Ok(true));
    let heads: Vec<u16> = std::iter::from_fn(|| Some(device.take()?.0)).collect();
    for head in heads.iter().rev() {
        let status = HEADERS + usize::from(*head) / ring::CHAIN_MAX * HEADER_LEN + STATUS;
        device.memory.write(status, &[1]).unwrap();
        device.give(u32::from(*head), 1);
    }
    for token in (0..u64::from(SLOTS)).rev() {
        let reply = BlkReply { token, status: BlkStatus::Failed, data: None };
        assert_eq!(queue.next_reply(), Ok(Some(reply)));
    }
    assert_eq!(queue.next_reply(), Ok(None));
}

#[test]
fn a_device_that_wants_no_notices_gets_none() {
    let (mut queue, device) = pair();
    device.memory.write(ring::USED, &[1, 0]).unwrap();
    queue.submit(1, BlkRequest::Flush).unwrap();
    assert_eq!(queue.tell(), Ok(false));
}

#[test]
fn what_a_hostile_device_writes_is_refused() {
    let hostile = |attack: &dyn Fn(&mut Device, u32)| {
        let (mut queue, mut device) = pair();
        for token in 0..3 {
            queue.submit(token, BlkRequest::Read { at: 0, len: 4096 }).unwrap();
        }
        queue.tell().unwrap();
        let (head, _) = device.take().unwrap();
        attack(&mut device, u32::from(head));
        loop {
            match queue.next_reply() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    };
    let done = |device: &mut Device, head: u32| {
        let status = HEADERS + to_usize(head) / ring::CHAIN_MAX * HEADER_LEN + STATUS;
        device.memory.write(status, &[0]).unwrap();
    };
    assert_eq!(hostile(&|_, _| {}), None);
    let index =
        |value: u16| move |device: &mut Device, _: u32| device.memory.store(ring::USED + 2, value).unwrap();
    assert_eq!(hostile(&index(4)), Some(RingError::TooManyUsed));
    assert_eq!(hostile(&index(u16::MAX)), Some(RingError::TooManyUsed));
    for head in [1, 2, 3 * 42, 128, u32::MAX] {
        assert_eq!(hostile(&|device, _| device.give(head, 1)), Some(RingError::UnknownRequest), "{head}");
    }
    assert_eq!(hostile(&|device, _| device.give(3 * 40, 1)), Some(RingError::NotUnderWay));
    let twice = |device: &mut Device, head: u32| {
        done(device, head);
        device.give(head, 4097);
        device.give(head, 4097);
    };
    assert_eq!(hostile(&twice), Some(RingError::NotUnderWay));
    assert_eq!(hostile(&|device, head| device.give(head, 4098)), Some(RingError::TooLong));
    assert_eq!(hostile(&|device, head| device.give(head, u32::MAX)), Some(RingError::TooLong));
    assert_eq!(hostile(&|device, head| device.give(head, 4097)), Some(RingError::UnknownStatus));
    let short = |device: &mut Device, head: u32| {
        done(device, head);
        device.give(head, 4095);
    };
    assert_eq!(hostile(&short), Some(RingError::DataMissing));
}
