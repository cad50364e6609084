//! What a device over vhost-user can write into the memory that it shares: its configuration, and anything at
//! any place of the queue.
//!
//! The first byte says which kind of device it is, and the next ones are its configuration. Each operation is
//! a request, a used entry for any number, bytes anywhere, or a look at what was used.
#![no_main]

use std::collections::BTreeSet;

use base::buffer::{Buf, Bytes, DataList};
use ground::Operations;
use libfuzzer_sys::fuzz_target;
use virtio::blk::{BlkInfo, BlkQueue, BlkRequest, BlkStatus, feature};
use virtio::ring;
use virtio::scsi::{self, ScsiData, ScsiQueue};

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((0, rest)) => block(rest),
        Some((_, rest)) => commands(rest),
        None => {}
    }
});

/// A SCSI device writes anything, and says that commands have ended.
fn commands(input: &[u8]) {
    let Some(len) = scsi::data_len_max(input.get(..12).unwrap_or_default()) else { return };
    let Ok(mut queue) = ScsiQueue::new(len.min(4096)) else { return };
    let used_at = scsi::queue_at(2) + ring::USED;
    let (mut next, mut used) = (0_u64, 0_u16);
    let mut under_way = BTreeSet::new();
    for (which, bytes) in Operations::of(&input[12..]) {
        match which >> 6 {
            0 => {
                let data = DataList::from(Bytes::copied_from(&[7; 100]));
                let data =
                    [ScsiData::Nothing, ScsiData::In(200), ScsiData::Out(&data)][usize::from(which % 3)];
                if under_way.len() < scsi::COMMANDS_MAX && len >= 200 {
                    next += 1;
                    queue.submit(next, &[0x28; 10], data).expect("a command that fits");
                    under_way.insert(next);
                    queue.tell().expect("no bug");
                }
            }
            1 => {
                let head = u32::from(which & 0x3f) * 3;
                let len = bytes.first().map_or(308, |len| u32::from(*len) * 2);
                let entry = used_at + 4 + 8 * usize::from(used % ring::SIZE);
                queue.memory().write(entry, &[head.to_le_bytes(), len.to_le_bytes()].concat()).unwrap();
                used = used.wrapping_add(1);
                queue.memory().store(used_at + 2, used).unwrap();
            }
            2 => {
                let Some(([low, high], bytes)) = bytes.split_first_chunk() else { continue };
                // Most of what is written here is a response.
                let at = 12_288 + usize::from(u16::from_le_bytes([*low, *high])) % 8192;
                queue.memory().write(at, bytes).unwrap();
            }
            _ => loop {
                match queue.next_reply() {
                    Ok(None) => break,
                    Ok(Some(reply)) => {
                        assert!(under_way.remove(&reply.token), "a command ends once");
                        let mut bufs = [Buf::with_capacity(150), Buf::with_capacity(150)];
                        assert!(reply.sense.len() <= 96 && reply.transferred <= 200);
                        queue.copy_to(&reply, &mut bufs).expect("data in the memory");
                    }
                    Err(ring::RingError::Bug(why)) => panic!("{why}"),
                    Err(_) => return,
                }
            },
        }
    }
}

/// A block device does the same.
fn block(input: &[u8]) {
    let Some((config, rest)) = input.split_at_checked(61) else { return };
    let features = feature::ALL & !(u64::from(config[60]) << 8 | u64::from(config[60] & 0x7f));
    let Ok(mut info) = BlkInfo::parse(features, &config[..60]) else { return };
    assert!(info.data_len_max >= info.block_len && info.data_len_max % info.block_len == 0);
    assert!(info.discard_len_max % info.block_len == 0 && info.len % u64::from(info.block_len) == 0);
    // A queue of any length is the same; this one is quick to make.
    info.data_len_max = info.data_len_max.min(4096);
    let Ok(mut queue) = BlkQueue::new(&info) else { return };
    let (mut next, mut used, mut under_way) = (0_u64, 0_u16, BTreeSet::new());
    for (which, bytes) in Operations::of(rest) {
        match which >> 6 {
            0 => {
                let data = DataList::from(Bytes::copied_from(&[7; 512]));
                let request = match which & 7 {
                    0 | 1 => BlkRequest::Read { at: next * 512, len: 512 },
                    2 | 3 => BlkRequest::Write { at: 512, data: &data },
                    4 => BlkRequest::Flush,
                    5 => BlkRequest::Discard { at: 0, len: 512 },
                    _ => BlkRequest::WriteZeroes { at: 0, len: 512, may_deallocate: which & 1 == 0 },
                };
                if !queue.is_full() {
                    next += 1;
                    queue.submit(next, request).expect("a request that fits");
                    under_way.insert(next);
                    queue.tell().expect("no bug");
                }
            }
            1 => {
                let entry = ring::USED + 4 + 8 * usize::from(used % ring::SIZE);
                let head = u32::from(which & 0x3f) * 3;
                let len = bytes.first().map_or(513, |len| u32::from(*len) * 8);
                queue.memory().write(entry, &[head.to_le_bytes(), len.to_le_bytes()].concat()).unwrap();
                used = used.wrapping_add(1);
                queue.memory().store(ring::USED + 2, used).unwrap();
            }
            2 => {
                let Some(([low, high], bytes)) = bytes.split_first_chunk() else { continue };
                let at = usize::from(u16::from_le_bytes([*low, *high]));
                // The device cannot write outside.
                let _ = queue.memory().write(at % queue.memory().len(), bytes);
            }
            _ => loop {
                match queue.next_reply() {
                    Ok(None) => break,
                    Ok(Some(reply)) => {
                        assert!(under_way.remove(&reply.token), "a request ends once");
                        assert!(reply.data.is_none() || reply.status == BlkStatus::Done);
                        if let Some((at, len)) = reply.data {
                            let mut buf = Buf::with_capacity(len);
                            queue.memory().append_to(at, len, &mut buf).expect("data in the memory");
                            assert_eq!(buf.len(), 512);
                        }
                    }
                    // The connection ends.
                    Err(ring::RingError::Bug(why)) => panic!("{why}"),
                    Err(_) => return,
                }
            },
        }
    }
}
