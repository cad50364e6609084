//! Writes captures in the pcapng format (draft-ietf-opsawg-pcapng), little-endian, as blocks appended to a
//! buffer: one section, one Ethernet interface, packets, statistics. Times are nanoseconds since 1970.

use alloc::vec::Vec;

use crate::int_cast::to_u32;

/// The most bytes that a block of [`packet`] has in addition to the captured bytes, padding included.
pub const PACKET_OVERHEAD_MAX: usize = 32 + 3 + 8 + 12 + 4;

/// The direction of a packet, as the host that wrote the capture saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketDirection {
    /// Received by the host.
    Inbound,
    /// Sent by the host.
    Outbound,
}

/// A packet of a capture.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// When it was received or sent, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Its direction.
    pub direction: PacketDirection,
    /// How many packets before it were lost since the last packet in the capture.
    pub lost_before: u64,
    /// Its length on the network, in bytes.
    pub original_len: usize,
    /// The captured bytes, in parts: the first ones of the packet.
    pub captured: &'a [&'a [u8]],
}

/// Begins a capture: the section, with the name of the program that writes it, and its only interface.
pub fn begin(out: &mut Vec<u8>, program: &str, interface: &str) {
    block(out, SECTION_HEADER, |out| {
        out.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        // Version 1.0, and a section of unknown length.
        out.extend_from_slice(&[1, 0, 0, 0]);
        out.extend_from_slice(&[0xff; 8]);
        option(out, SHB_USERAPPL, program.as_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
    block(out, INTERFACE_DESCRIPTION, |out| {
        out.extend_from_slice(&LINKTYPE_ETHERNET.to_le_bytes());
        // Reserved, and no limit of the captured length.
        out.extend_from_slice(&[0; 6]);
        option(out, IF_NAME, interface.as_bytes());
        option(out, IF_TSRESOL, &[9]);
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Appends a packet.
pub fn packet(out: &mut Vec<u8>, packet: &Packet<'_>) {
    let captured_len: usize = packet.captured.iter().map(|part| part.len()).sum();
    block(out, ENHANCED_PACKET, |out| {
        out.extend_from_slice(&[0; 4]);
        put_time(out, packet.time_ns);
        out.extend_from_slice(&to_u32(captured_len).to_le_bytes());
        out.extend_from_slice(&to_u32(packet.original_len.max(captured_len)).to_le_bytes());
        packet.captured.iter().for_each(|part| out.extend_from_slice(part));
        pad(out, captured_len);
        let direction: u32 = match packet.direction {
            PacketDirection::Inbound => 1,
            PacketDirection::Outbound => 2,
        };
        option(out, EPB_FLAGS, &direction.to_le_bytes());
        if packet.lost_before > 0 {
            option(out, EPB_DROPCOUNT, &packet.lost_before.to_le_bytes());
        }
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Appends the statistics of the interface, with which a capture ends: how many packets it was given, and how
/// many of these it does not contain because there was no room for them.
pub fn statistics(out: &mut Vec<u8>, time_ns: u64, given: u64, dropped: u64, comment: &str) {
    block(out, INTERFACE_STATISTICS, |out| {
        out.extend_from_slice(&[0; 4]);
        put_time(out, time_ns);
        option(out, COMMENT, comment.as_bytes());
        option(out, ISB_IFRECV, &given.to_le_bytes());
        option(out, ISB_IFDROP, &dropped.to_le_bytes());
        option(out, END_OF_OPTIONS, &[]);
    });
}

/// Appends a block: its type, its length before and behind its content.
fn block(out: &mut Vec<u8>, kind: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    content(out);
    let len = to_u32(out.len() - start + 4).to_le_bytes();
    out.extend_from_slice(&len);
    if let Some(field) = out.get_mut(start + 4..start + 8) {
        field.copy_from_slice(&len);
    }
}

/// Appends an option. A value that is too long for its field is cut.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    let value = value.get(..len.into()).unwrap_or_default();
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

/// Appends the padding behind a field of this length.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice([0; 3].get(..len.wrapping_neg() % 4).unwrap_or_default());
}

/// Appends a time: its upper half, then its lower half.
fn put_time(out: &mut Vec<u8>, time_ns: u64) {
    out.extend_from_slice(&to_u32(time_ns >> 32).to_le_bytes());
    out.extend_from_slice(&to_u32(time_ns & u64::from(u32::MAX)).to_le_bytes());
}

// The numbers of the draft: types of blocks (§4), a link type, and codes of options (§3.5, §4.1 to §4.6).
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
const INTERFACE_DESCRIPTION: u32 = 1;
const INTERFACE_STATISTICS: u32 = 5;
const ENHANCED_PACKET: u32 = 6;
const LINKTYPE_ETHERNET: u16 = 1;
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: Packet<'_> = Packet {
        time_ns: 0x0102_0304_0506_0708,
        direction: PacketDirection::Outbound,
        lost_before: 0,
        original_len: 100,
        captured: &[b"abc", b"de"],
    };

    /// Splits a capture into the types and contents of its blocks, and checks both lengths of each.
    fn blocks(mut capture: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let mut found = Vec::new();
        while !capture.is_empty() {
            let len = usize::try_from(word(&capture[4..])).unwrap();
            assert_eq!(len % 4, 0);
            let (block, rest) = capture.split_at(len);
            assert_eq!(word(&block[4..]), word(&block[len - 4..]));
            found.push((word(block), block[8..len - 4].to_vec()));
            capture = rest;
        }
        found
    }

    #[test]
    fn a_capture_is_a_section_an_interface_packets_and_statistics() {
        let mut out = Vec::new();
        begin(&mut out, "targe", "iscsi");
        packet(&mut out, &PACKET);
        statistics(&mut out, 1 << 32, 7, 6, "why");
        let blocks = blocks(&out);
        let kinds: Vec<u32> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION_HEADER, INTERFACE_DESCRIPTION, ENHANCED_PACKET, INTERFACE_STATISTICS]);
        let interface =
            [&[1, 0, 0, 0, 0, 0, 0, 0][..], &[2, 0, 5, 0], b"iscsi\0\0\0", &[9, 0, 1, 0, 9, 0, 0, 0]];
        assert_eq!(blocks[1].1, [&interface.concat()[..], &[0; 4]].concat());
        let ends = [
            &[0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 3, 0, b'w', b'h', b'y', 0],
            &[4, 0, 8, 0, 7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 8, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(blocks[3].1, ends.concat());
    }

    #[test]
    fn a_packet_tells_its_time_both_lengths_direction_and_losses() {
        let mut out = Vec::new();
        packet(&mut out, &Packet { lost_before: 3, ..PACKET });
        let wanted = [
            &[0, 0, 0, 0, 4, 3, 2, 1, 8, 7, 6, 5, 5, 0, 0, 0, 100, 0, 0, 0][..],
            b"abcde\0\0\0",
            &[2, 0, 4, 0, 2, 0, 0, 0, 4, 0, 8, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(blocks(&out), [(ENHANCED_PACKET, wanted.concat())]);
        for len in 0..9 {
            let bytes = [7; 9];
            let (mut out, part) = (Vec::new(), [&bytes[..len]]);
            packet(&mut out, &Packet { captured: &part, lost_before: 1, original_len: 0, ..PACKET });
            assert!(out.len() <= len + PACKET_OVERHEAD_MAX, "{len}");
            assert_eq!(blocks(&out)[0].1[16..20], blocks(&out)[0].1[12..16], "{len}: nothing is cut");
        }
    }
}
