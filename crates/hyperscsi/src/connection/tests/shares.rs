//! Tests of the ring quota of a session, and of the XID limits.

use base::ether::EtherPort;
use base::time::{Duration, Instant};

use super::pair::{Config, Pair, mac, state};
use crate::connection::{Connection, ConnectionEvent, PathAddress};
use crate::exchange::xid::{XID_PROTECTED_BIT, xid_plus};

/// Returns the sum of the largest windows over a port.
fn granted(connection: &Connection, port: u32, spaces: usize) -> u64 {
    let there = connection.paths.iter().filter(|path| path.address.port == EtherPort(port));
    there
        .flat_map(|path| path.spaces.iter().rev().take(spaces))
        .map(|space| space.incoming.grant.share())
        .sum()
}

#[test]
fn windows_of_all_spaces_and_paths_over_a_port_keep_to_its_share_together() {
    for keyed in [false, true] {
        let mut pair = Pair::new(&Config { keyed, share: 100, ports: 2, ..Config::lan() });
        let spaces = if keyed { 2 } else { 1 };
        let own = &mut pair.sides[0].connection;
        assert_eq!(own.windows_at(EtherPort(0)), spaces);
        assert!(granted(own, 0, spaces) <= 100);
        own.set_ring_quota(EtherPort(0), 40);
        assert!((39..=40).contains(&granted(own, 0, spaces)));
        assert!(!own.take_rewindowed(), "no path came or went");
        // Two more paths: one over the same port, one over another port, which has a ring of its own.
        let there = |port| PathAddress { port: EtherPort(port), mac: mac(1, 7) };
        let same = own.add_path(Instant(0), there(0), &state(0, 0, 9000));
        let other = own.add_path(Instant(0), there(1), &state(0, 1, 9000));
        assert!(same.is_some() && other.is_some() && own.take_rewindowed());
        assert!((36..=40).contains(&granted(own, 0, spaces)) && granted(own, 1, spaces) <= 100);
        // Where the windows would become too small to work, a path is not added.
        own.set_ring_quota(EtherPort(0), 16);
        let more = PathAddress { port: EtherPort(0), mac: mac(1, 8) };
        assert_eq!(own.add_path(Instant(0), more, &state(0, 0, 9000)), None);
        own.remove_path(Instant(0), same.unwrap());
        assert!(own.take_rewindowed());
        assert_eq!(granted(own, 0, spaces), 16);
    }
}

#[test]
fn limits_for_exchanges_go_on_across_the_wrap_of_their_numbers_and_never_back() {
    let mut pair = Pair::new(&Config { keyed: true, ..Config::lan() });
    let (open, sealed) = (XID_PROTECTED_BIT - 600, u32::MAX - 600);
    let mut heard = (0, 0);
    for step in 0..6_u32 {
        let limits = [xid_plus(open, step * 200), xid_plus(sealed, step * 200)];
        pair.sides[1].connection.set_xid_limits(limits);
        pair.give(0, 100);
        pair.run_for(Duration::from_millis(200));
        assert_eq!(pair.sides[0].connection.peer_xid_limits(), limits, "step {step}");
        // A limit behind the present one changes nothing, though it is larger as a bare number; nor does a
        // limit of 0.
        pair.sides[1].connection.set_xid_limits([xid_plus(open, step * 100), xid_plus(sealed, step * 100)]);
        pair.sides[1].connection.set_xid_limits([0, 0]);
        pair.give(0, 100);
        pair.run_for(Duration::from_millis(200));
        assert_eq!(pair.sides[0].connection.peer_xid_limits(), limits, "step {step}");
        heard = (limits[0], limits[1]);
    }
    assert!(heard.0 < 1000 && heard.1 > XID_PROTECTED_BIT && heard.1 < XID_PROTECTED_BIT + 1000, "{heard:?}");
    let limits_announced =
        pair.sides[0].events.iter().filter(|(_, event)| matches!(event, ConnectionEvent::XidLimit { .. }));
    assert_eq!(limits_announced.count(), 12);
}
