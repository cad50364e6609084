//! The headers that stand before the PDUs of a connection in a capture: Ethernet, IP and TCP as the
//! connection has them, with sequence numbers that count the bytes of the PDUs.
//!
//! The addresses and ports are those of the connection. The MAC addresses are made up, the sequence numbers
//! begin at 1, and the TCP checksum is 0, since the segments of the connection are not known: the kernel, and
//! with TLS its records, divide the stream otherwise.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The most bytes of a stream in one packet. Wireshark accepts packets of 256 KiB, and IPv4 packets that are
/// longer than their header can tell, as cards with segmentation offload pass them to the kernel: their
/// length is 0. The dissector finds out whether there are data digests from the first PDU that is whole in a
/// packet, so packets are long.
const IPV4_PAYLOAD_MAX: usize = (256 << 10) - 56;
const _: () = assert!(IPV4_PAYLOAD_MAX + 14 + IPV4_LEN + TCP_LEN <= 256 << 10);

/// The same for IPv6, where Wireshark expects a length.
const IPV6_PAYLOAD_MAX: usize = (64 << 10) - 56;

/// The most bytes of headers: Ethernet, IPv6, TCP.
pub(super) const HEADERS_MAX: usize = 14 + 40 + 20;

/// Both directions of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct TcpFlow {
    target: SocketAddr,
    initiator: SocketAddr,
    /// The next sequence number of the initiator, and of the target.
    received: u32,
    sent: u32,
}

impl TcpFlow {
    /// Returns the connection between two addresses.
    pub(super) fn new(target: SocketAddr, initiator: SocketAddr) -> Self {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        let (target, initiator) = (canonical(target), canonical(initiator));
        Self { target, initiator, received: 1, sent: 1 }
    }

    /// Returns the most bytes of one packet.
    pub(super) const fn payload_max(&self) -> usize {
        if self.is_ipv4() { IPV4_PAYLOAD_MAX } else { IPV6_PAYLOAD_MAX }
    }

    const fn is_ipv4(&self) -> bool {
        self.target.is_ipv4() && self.initiator.is_ipv4()
    }

    /// Returns the headers before the next `len` bytes of one direction, which has these bytes behind it
    /// then.
    pub(super) fn headers(&mut self, is_received: bool, len: usize) -> Vec<u8> {
        let (from, to) =
            if is_received { (self.initiator, self.target) } else { (self.target, self.initiator) };
        let (number, acknowledged) =
            if is_received { (self.received, self.sent) } else { (self.sent, self.received) };
        let mut out = Vec::with_capacity(HEADERS_MAX);
        let (target, initiator) = ([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]);
        let macs = if is_received { [target, initiator] } else { [initiator, target] };
        out.extend(macs.concat());
        put_ip(&mut out, from.ip(), to.ip(), TCP_LEN + len);
        out.extend(from.port().to_be_bytes());
        out.extend(to.port().to_be_bytes());
        out.extend(number.to_be_bytes());
        out.extend(acknowledged.to_be_bytes());
        // The header has five words; PSH and ACK; the widest window; no checksum, no urgent data.
        out.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
        self.skip(is_received, len);
        out
    }

    /// Goes past bytes of one direction that the capture does not contain.
    pub(super) fn skip(&mut self, is_received: bool, len: usize) {
        let number = if is_received { &mut self.received } else { &mut self.sent };
        // Sequence numbers wrap.
        *number = number.wrapping_add(u32::try_from(len % (1 << 32)).unwrap_or_default());
    }
}

/// Appends an EtherType and an IP header before `len` bytes. If one address is of IPv6, both are.
fn put_ip(out: &mut Vec<u8>, from: IpAddr, to: IpAddr, len: usize) {
    if let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) {
        out.extend(0x0800_u16.to_be_bytes());
        let mut header = [0; IPV4_LEN];
        // Version 4 and five words; do not fragment; 64 hops; TCP.
        let fixed = [(0, 0x45), (6, 0x40), (8, 64), (9, TCP)];
        fixed.iter().for_each(|(at, value)| put(&mut header, *at, &[*value]));
        // With segmentation offload, 0.
        put(&mut header, 2, &u16::try_from(IPV4_LEN + len).unwrap_or_default().to_be_bytes());
        put(&mut header, 12, &from.octets());
        put(&mut header, 16, &to.octets());
        let sum = checksum(&header);
        put(&mut header, 10, &sum.to_be_bytes());
        return out.extend(header);
    }
    let wide = |address: IpAddr| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    out.extend(0x86dd_u16.to_be_bytes());
    out.extend([0x60, 0, 0, 0]);
    out.extend(u16::try_from(len).unwrap_or_default().to_be_bytes());
    out.extend([TCP, 64]);
    for address in [from, to].map(wide) {
        out.extend(Ipv6Addr::octets(&address));
    }
}

fn put(header: &mut [u8], at: usize, value: &[u8]) {
    if let Some(field) = header.get_mut(at..at + value.len()) {
        field.copy_from_slice(value);
    }
}

/// Returns the Internet checksum (RFC 1071) of a header whose checksum is 0.
fn checksum(header: &[u8]) -> u16 {
    let (words, _) = header.as_chunks::<2>();
    let mut sum: u32 = words.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !u16::try_from(sum).unwrap_or_default()
}

const IPV4_LEN: usize = 20;
const TCP_LEN: usize = 20;
/// The protocol number of TCP.
const TCP: u8 = 6;

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(target: &str, initiator: &str) -> TcpFlow {
        TcpFlow::new(target.parse().unwrap(), initiator.parse().unwrap())
    }

    /// Returns the sequence and acknowledgement numbers of headers.
    fn numbers(headers: &[u8]) -> (u32, u32) {
        let tcp = &headers[headers.len() - TCP_LEN..];
        let word = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
        (word(4), word(8))
    }

    #[test]
    fn each_direction_counts_its_bytes_and_acknowledges_those_of_the_other() {
        let mut flow = flow("192.0.2.1:3260", "192.0.2.2:40000");
        assert_eq!(numbers(&flow.headers(true, 48)), (1, 1));
        assert_eq!(numbers(&flow.headers(false, 100)), (1, 49));
        flow.skip(true, 1000);
        assert_eq!(numbers(&flow.headers(true, 1)), (1049, 101));
        flow.sent = u32::MAX;
        assert_eq!(numbers(&flow.headers(false, 2)), (u32::MAX, 1050));
        assert_eq!(numbers(&flow.headers(false, 2)), (1, 1050));
    }

    #[test]
    fn ipv4_headers_have_the_addresses_and_a_checksum() {
        let headers = flow("192.0.2.1:3260", "[::ffff:192.0.2.2]:40000").headers(true, 48);
        assert_eq!(headers.len(), 54);
        assert_eq!(headers[12..18], [8, 0, 0x45, 0, 0, 88]);
        assert_eq!(headers[26..34], [192, 0, 2, 2, 192, 0, 2, 1]);
        assert_eq!(headers[34..38], [0x9c, 0x40, 0x0c, 0xbc]);
        assert_eq!(checksum(&headers[14..34]), 0, "the sum with the checksum is zero");
        assert_eq!(headers[..6], [2, 0, 0, 0, 0, 2], "to the target");
    }

    #[test]
    fn a_packet_that_is_too_long_for_ipv4_has_the_length_zero() {
        let mut flow = flow("192.0.2.1:3260", "192.0.2.2:40000");
        assert_eq!(flow.headers(true, 65_495)[16..18], [0xff, 0xff]);
        assert_eq!(flow.headers(true, 65_496)[16..18], [0, 0]);
        assert_eq!((flow.payload_max(), flow.received), (IPV4_PAYLOAD_MAX, 1 + 65_495 + 65_496));
    }

    #[test]
    fn one_ipv6_address_makes_both_ipv6() {
        let headers = flow("[2001:db8::1]:3260", "192.0.2.2:40000").headers(false, IPV6_PAYLOAD_MAX);
        assert_eq!(headers.len(), HEADERS_MAX);
        assert_eq!(headers[12..14], [0x86, 0xdd]);
        assert_eq!(usize::from(u16::from_be_bytes([headers[18], headers[19]])), IPV6_PAYLOAD_MAX + 20);
        assert_eq!(headers[22..24], [0x20, 0x01]);
        assert_eq!(headers[48..54], [0xff, 0xff, 192, 0, 2, 2]);
    }
}
