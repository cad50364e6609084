//! Which holder loses an entry when a bounded table is full: the one with most of them.

use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Returns the part of a peer's address that the peer cannot choose: hosts choose the lower half of their
/// IPv6 addresses.
pub fn source(peer: SocketAddr) -> IpAddr {
    match peer.ip() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

/// Returns the holder whose entries weigh most together. Each entry is given as its holder and its weight.
pub fn largest_holder<K: Ord>(entries: impl Iterator<Item = (K, usize)>) -> Option<K> {
    let mut held = BTreeMap::<K, usize>::new();
    for (holder, weight) in entries {
        let sum = held.entry(holder).or_default();
        *sum = sum.saturating_add(weight);
    }
    held.into_iter().max_by_key(|(_, sum)| *sum).map(|(holder, _)| holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_ipv4_address_and_one_ipv6_network() {
        let of = |text: &str| source(text.parse().unwrap());
        assert_eq!(of("192.0.2.1:1"), of("192.0.2.1:2"));
        assert_ne!(of("192.0.2.1:1"), of("192.0.2.2:1"));
        assert_eq!(of("[2001:db8::1:2]:1"), of("[2001:db8::ffff:3]:2"));
        assert_ne!(of("[2001:db8:0:1::1]:1"), of("[2001:db8:0:2::1]:1"));
    }

    #[test]
    fn the_largest_holder_is_the_one_whose_entries_weigh_most() {
        assert_eq!(largest_holder([('a', 1), ('b', 3), ('a', 1)].into_iter()), Some('b'));
        assert_eq!(largest_holder([('a', 2), ('b', 3), ('a', 2)].into_iter()), Some('a'));
        assert_eq!(largest_holder(core::iter::empty::<(u8, usize)>()), None);
    }
}
