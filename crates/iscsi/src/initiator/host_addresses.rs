//! The addresses of a host, which an attempt to log in tries one after the other.

use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;

/// The most addresses of a host that one attempt tries. More would leave each less than two seconds of the
/// usual [`Limits::login_within`](super::contract::Limits::login_within). The next attempt goes on with the
/// others.
const MAX_ADDRESSES: usize = 16;

/// The addresses of a host.
#[derive(Debug, Default)]
pub(super) struct HostAddresses {
    /// The name of the host; `None` if its address was not resolved from a name.
    pub(super) name: Option<String>,
    /// The addresses that the present attempt has not tried.
    untried: VecDeque<SocketAddr>,
    /// The address that was tried last, and whether a session of the target can be reached there.
    last: Option<(SocketAddr, bool)>,
}

impl HostAddresses {
    /// Takes the addresses for a new attempt. It begins with the address that worked last, or with the one
    /// after the address that failed last.
    pub(super) fn start(&mut self, mut addresses: Vec<SocketAddr>) {
        let last = self.last.and_then(|(last, worked)| {
            Some((addresses.iter().position(|address| *address == last)?, worked))
        });
        if let Some((at, worked)) = last {
            addresses.rotate_left(if worked { at } else { at + 1 });
        }
        addresses.truncate(MAX_ADDRESSES);
        self.untried = addresses.into();
    }

    /// Returns the next address to try.
    pub(super) fn next(&mut self) -> Option<SocketAddr> {
        let next = self.untried.pop_front()?;
        self.last = Some((next, false));
        Some(next)
    }

    /// Returns how many addresses the present attempt has not tried.
    pub(super) fn untried(&self) -> usize {
        self.untried.len()
    }

    /// Records that the target answers as it should at the last address.
    pub(super) fn note_working(&mut self) {
        if let Some((_, worked)) = &mut self.last {
            *worked = true;
        }
    }

    /// Ends the present attempt.
    pub(super) fn stop(&mut self) {
        self.untried.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(hosts: &[u8]) -> Vec<SocketAddr> {
        hosts.iter().map(|last| ([192, 0, 2, *last], 3260).into()).collect()
    }

    fn tried(host: &mut HostAddresses) -> Vec<SocketAddr> {
        core::iter::from_fn(|| host.next()).collect()
    }

    #[test]
    fn an_attempt_begins_with_the_address_that_worked_or_after_the_one_that_failed() {
        let mut host = HostAddresses::default();
        host.start(addresses(&[1, 2, 3]));
        assert_eq!(host.next(), addresses(&[1]).pop());
        host.stop();
        host.start(addresses(&[1, 2, 3]));
        assert_eq!(host.next(), addresses(&[2]).pop());
        host.note_working();
        host.start(addresses(&[3, 1, 2]));
        assert_eq!(tried(&mut host), addresses(&[2, 3, 1]));
        host.start(addresses(&[3, 1, 2]));
        assert_eq!(tried(&mut host), addresses(&[2, 3, 1]));
        host.start(addresses(&[7, 8]));
        assert_eq!(tried(&mut host), addresses(&[7, 8]));
    }

    #[test]
    fn attempts_reach_every_address_of_a_host_with_many() {
        let all: Vec<u8> = (0..40).collect();
        let mut host = HostAddresses::default();
        let mut reached = Vec::new();
        for _ in 0..3 {
            host.start(addresses(&all));
            let some = tried(&mut host);
            assert!(some.len() <= MAX_ADDRESSES);
            reached.extend(some);
        }
        reached.sort_unstable();
        reached.dedup();
        assert_eq!(reached, addresses(&all));
    }
}
