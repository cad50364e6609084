//! How many connections a portal has at a time, and how many of them may come from one address or network.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{CONNECTIONS_MAX, CONNECTIONS_PER_ADDRESS_MAX, CONNECTIONS_PER_NETWORK_MAX};

/// The connections that are open. Clones share the count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Has entries only for holders of open connections, so at most two for each place.
    holders: BTreeMap<Holder, usize>,
}

/// An address or a network, whose connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Address(IpAddr),
    /// An IPv6 network of 64 bits: one host can have any address in it.
    Network([u16; 4]),
}

/// How many of the places one address, and one IPv6 network, may hold while half of all places are taken.
/// Before that there are enough for everyone: a host with many disks has as many connections.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// For one address.
    pub address: usize,
    /// For one IPv6 network of 64 bits, which can be a whole LAN.
    pub network: usize,
}

impl Share {
    /// No limit but that of all connections.
    pub const ALL: Self = Self { address: CONNECTIONS_MAX, network: CONNECTIONS_MAX };

    /// The limits of a portal.
    pub const OF_PORTAL: Self =
        Self { address: CONNECTIONS_PER_ADDRESS_MAX, network: CONNECTIONS_PER_NETWORK_MAX };
}

/// Why a connection gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// There are [`CONNECTIONS_MAX`] connections.
    #[error("there are {CONNECTIONS_MAX} connections already")]
    Full,
    /// The address has its share.
    #[error("its address has {0} connections already")]
    Address(usize),
    /// The IPv6 network has its share.
    #[error("its network, of 64 bits, has {0} connections already")]
    Network(usize),
}

impl Places {
    /// Takes a place for a connection from `peer`.
    pub(crate) fn take(&self, peer: IpAddr, share: Share) -> Result<Place, NoPlace> {
        let counts = self.lock();
        if counts.all >= CONNECTIONS_MAX {
            return Err(NoPlace::Full);
        }
        let (address, network) = holders(peer);
        let is_scarce = counts.all >= CONNECTIONS_MAX / 2;
        let held = |holder| if is_scarce { counts.holders.get(&holder).copied().unwrap_or(0) } else { 0 };
        if held(address) >= share.address {
            return Err(NoPlace::Address(share.address));
        }
        if network.is_some_and(|network| held(network) >= share.network) {
            return Err(NoPlace::Network(share.network));
        }
        Ok(self.insert(counts, peer))
    }

    /// Takes a place for a connection from `peer` that had one in another process.
    pub(crate) fn take_again(&self, peer: IpAddr) -> Place {
        self.insert(self.lock(), peer)
    }

    /// Returns how many connections are open.
    pub(crate) fn count(&self) -> usize {
        self.lock().all
    }

    fn insert(&self, mut counts: MutexGuard<'_, Counts>, peer: IpAddr) -> Place {
        let (address, network) = holders(peer);
        counts.all += 1;
        for holder in [Some(address), network].into_iter().flatten() {
            *counts.holders.entry(holder).or_default() += 1;
        }
        Place { places: self.clone(), peer }
    }

    fn give_back(&self, peer: IpAddr) {
        let mut counts = self.lock();
        counts.all = counts.all.saturating_sub(1);
        let (address, network) = holders(peer);
        for holder in [Some(address), network].into_iter().flatten() {
            let left = counts.holders.remove(&holder).map_or(0, |held| held.saturating_sub(1));
            if left > 0 {
                counts.holders.insert(holder, left);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the connections. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    peer: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.give_back(self.peer);
    }
}

/// Returns whom a connection from this address counts for.
fn holders(peer: IpAddr) -> (Holder, Option<Holder>) {
    // A socket for both versions of IP reports IPv4 addresses in this form.
    match peer.to_canonical() {
        IpAddr::V4(address) => (Holder::Address(address.into()), None),
        IpAddr::V6(address) => (Holder::Address(address.into()), Some(network(address))),
    }
}

fn network(address: Ipv6Addr) -> Holder {
    let [a, b, c, d, ..] = address.segments();
    Holder::Network([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_address_holds_no_more_than_its_share() {
        let (places, share) = (Places::default(), Share::OF_PORTAL);
        let attacker: Vec<_> =
            (0..CONNECTIONS_MAX / 2).map(|_| places.take(ip("192.0.2.1"), share).unwrap()).collect();
        let refused = NoPlace::Address(CONNECTIONS_PER_ADDRESS_MAX);
        assert_eq!(places.take(ip("192.0.2.1"), share).unwrap_err(), refused);
        // The same address, as a socket for both versions of IP reports it.
        assert_eq!(places.take(ip("::ffff:192.0.2.1"), share).unwrap_err(), refused);
        let other = places.take(ip("192.0.2.2"), share).unwrap();
        drop(attacker);
        drop(other);
        assert!(places.lock().holders.is_empty() && places.lock().all == 0);
        assert!(places.take(ip("192.0.2.1"), share).is_ok());
    }

    #[test]
    fn an_ipv6_network_leaves_places_for_others() {
        let (places, share) = (Places::default(), Share::OF_PORTAL);
        let mut held = Vec::new();
        let refused = loop {
            match places.take(ip(&format!("2001:db8:0:1::{:x}", held.len())), share) {
                Ok(place) => held.push(place),
                Err(why) => break why,
            }
        };
        assert_eq!(refused, NoPlace::Network(CONNECTIONS_PER_NETWORK_MAX));
        assert_eq!(held.len(), CONNECTIONS_PER_NETWORK_MAX);
        let all = (CONNECTIONS_PER_NETWORK_MAX..CONNECTIONS_MAX).map(|at| {
            let network = at / CONNECTIONS_PER_ADDRESS_MAX;
            places.take(ip(&format!("2001:db8:1:{network:x}::1")), share).unwrap()
        });
        held.extend(all);
        assert_eq!(places.take(ip("198.51.100.1"), share).unwrap_err(), NoPlace::Full);
    }

    #[test]
    fn without_shares_one_address_can_hold_all_places() {
        let places = Places::default();
        let held: Vec<_> =
            (0..CONNECTIONS_MAX).map(|_| places.take(ip("127.0.0.1"), Share::ALL).unwrap()).collect();
        assert_eq!(places.take(ip("127.0.0.1"), Share::ALL).unwrap_err(), NoPlace::Full);
        assert_eq!(held.len(), CONNECTIONS_MAX);
    }
}
