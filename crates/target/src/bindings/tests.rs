use alloc::rc::Rc;

use super::lost::{LOST_LUNS_MAX, LOST_MAX};
use super::*;
use crate::nexus::TargetNumber;

fn name(port: u32) -> NexusName {
    NexusName { target: TargetNumber(0), initiator_port: Rc::from(port.to_be_bytes()), realm: None }
}

const PORT: RelativePort = RelativePort(1);
const OTHER_PORT: RelativePort = RelativePort(2);

impl Bindings {
    fn begins(&mut self, name: &NexusName) {
        self.session_begins(name, PORT);
    }

    fn ended(&mut self, name: &NexusName, deliberately: bool) {
        self.session_ended(Instant(0), name, PORT, deliberately);
    }

    /// Sets the ports of the only target.
    fn has_ports(&mut self, ports: &[RelativePort]) {
        self.set_target_ports([(TargetNumber(0), ports.iter().copied().collect())].into());
    }

    /// Stores all bindings and restores them, as over a restart.
    fn restarted(&self) -> Self {
        let mut restored = Self { target_ports: self.target_ports.clone(), ..Self::default() };
        self.all(Instant(0)).for_each(|one| restored.restore(Instant(0), one));
        restored
    }
}

#[test]
fn a_binding_outlives_a_lost_session_and_falls_with_a_deliberate_end() {
    let mut bindings = Bindings::default();
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(7));
    bindings.bind(&name(1), 0, DiskId(8));
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
    bindings.ended(&name(1), false);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
    bindings.begins(&name(1));
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
    bindings.ended(&name(1), true);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
    assert!(bindings.nexuses.is_empty() && bindings.lost.records.is_empty());
}

#[test]
fn a_second_session_of_the_same_port_keeps_the_bindings() {
    let mut bindings = Bindings::default();
    bindings.begins(&name(1));
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(7));
    bindings.ended(&name(1), true);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
    bindings.ended(&name(1), true);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
}

#[test]
fn each_target_port_needs_a_logout_of_its_own() {
    for last in [true, false] {
        let mut bindings = Bindings::default();
        bindings.session_begins(&name(1), PORT);
        bindings.session_begins(&name(1), OTHER_PORT);
        bindings.bind(&name(1), 0, DiskId(7));
        bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
        bindings.session_ended(Instant(0), &name(1), PORT, true);
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)), "the lost path can come back");
        let saved: Vec<_> = bindings.all(Instant(0)).collect();
        assert_eq!(saved[0].target_ports, [OTHER_PORT]);

        // The same holds after a restart.
        let mut restored = Bindings::default();
        saved.into_iter().for_each(|one| restored.restore(Instant(0), one));
        restored.session_begins(&name(1), PORT);
        restored.session_ended(Instant(0), &name(1), PORT, true);
        assert_eq!(restored.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
        restored.session_begins(&name(1), OTHER_PORT);
        restored.session_ended(Instant(0), &name(1), OTHER_PORT, last);
        assert_eq!(restored.disk_of(&name(1), PORT, 0), Some(DiskId(7)).filter(|_| !last));
    }
}

/// Returns bindings of a host that had a session through both ports and lost that through the other one.
fn lost_through_the_other_port() -> Bindings {
    let mut bindings = Bindings::default();
    bindings.has_ports(&[PORT, OTHER_PORT]);
    bindings.begins(&name(1));
    bindings.session_begins(&name(1), OTHER_PORT);
    bindings.bind(&name(1), 0, DiskId(7));
    bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
    bindings
}

#[test]
fn a_port_that_the_target_no_longer_has_needs_no_logout() {
    let mut bindings = lost_through_the_other_port();
    assert_eq!(bindings.claims_on(&name(1), PORT, 0), [PORT, OTHER_PORT]);
    bindings.has_ports(&[PORT]);
    assert_eq!(bindings.claims_on(&name(1), PORT, 0), [PORT]);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)), "the initiator has not logged out");
    bindings.ended(&name(1), true);
    bindings.begins(&name(1));
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
}

#[test]
fn a_port_that_comes_back_leads_to_its_disk_or_to_none() {
    for is_restarted in [false, true] {
        let mut bindings = lost_through_the_other_port();
        bindings.has_ports(&[PORT]);
        bindings.ended(&name(1), true);
        bindings.begins(&name(1));
        bindings.bind(&name(1), 0, DiskId(8));
        bindings.has_ports(&[PORT, OTHER_PORT]);
        if is_restarted {
            bindings = bindings.restarted();
            bindings.begins(&name(1));
        }
        bindings.session_begins(&name(1), OTHER_PORT);
        assert_eq!(bindings.disk_of(&name(1), OTHER_PORT, 0), Some(DiskId(7)));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(8)));
        assert_eq!(bindings.claims_on(&name(1), OTHER_PORT, 0), [OTHER_PORT]);
        bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
        bindings.session_begins(&name(1), OTHER_PORT);
        assert_eq!(bindings.disk_of(&name(1), OTHER_PORT, 0), Some(DiskId(7)), "it was lost again");
        bindings.session_ended(Instant(0), &name(1), OTHER_PORT, true);
        assert_eq!(bindings.disk_of(&name(1), OTHER_PORT, 0), Some(DiskId(8)));
        assert!(bindings.former.is_empty());
    }
}

#[test]
fn a_session_that_continues_either_of_two_records_finds_no_disk_where_they_differ() {
    const NEW_PORT: RelativePort = RelativePort(3);
    // The tag of the only portal is changed twice. The second time it is a new one, or the first one again.
    for (port, is_restarted) in [(NEW_PORT, false), (NEW_PORT, true), (OTHER_PORT, false), (OTHER_PORT, true)]
    {
        let mut bindings = Bindings::default();
        bindings.has_ports(&[OTHER_PORT]);
        bindings.session_begins(&name(1), OTHER_PORT);
        bindings.bind(&name(1), 0, DiskId(7));
        bindings.bind(&name(1), 1, DiskId(9));
        bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
        bindings.has_ports(&[PORT]);
        bindings.begins(&name(1));
        bindings.ended(&name(1), true);
        bindings.begins(&name(1));
        bindings.bind(&name(1), 0, DiskId(8));
        bindings.bind(&name(1), 1, DiskId(9));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(8)));
        bindings.ended(&name(1), false);
        bindings.has_ports(&[port]);
        if is_restarted {
            bindings = bindings.restarted();
        }
        bindings.session_begins(&name(1), port);
        assert_eq!(bindings.disk_of(&name(1), port, 0), Some(DiskId::UNKNOWN), "7 or 8");
        assert_eq!(bindings.disk_of(&name(1), port, 1), Some(DiskId(9)), "both have it");
        // A port that comes back makes nothing clearer.
        bindings.has_ports(&[PORT, port]);
        assert_eq!(bindings.disk_of(&name(1), port, 0), Some(DiskId::UNKNOWN));
        bindings.has_ports(&[port]);
        bindings.session_ended(Instant(0), &name(1), port, true);
        bindings.session_begins(&name(1), port);
        assert_eq!(bindings.disk_of(&name(1), port, 0), None);
    }
}

#[test]
fn a_lun_that_led_to_either_of_two_disks_leads_to_none_of_them_later() {
    const PORTS: [RelativePort; 3] = [RelativePort(3), RelativePort(4), RelativePort(5)];
    let mut bindings = lost_through_the_other_port();
    bindings.has_ports(&[PORT]);
    bindings.ended(&name(1), true);
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(8));
    bindings.ended(&name(1), false);
    // The tag of the only portal changes again and again, and the session is lost each time.
    for port in PORTS {
        bindings.has_ports(&[port]);
        bindings.session_begins(&name(1), port);
        assert_eq!(bindings.disk_of(&name(1), port, 0), Some(DiskId::UNKNOWN), "7 or 8");
        bindings.session_ended(Instant(0), &name(1), port, false);
        bindings = bindings.restarted();
    }
}

#[test]
fn a_session_that_lives_keeps_its_disk_when_another_one_is_unclear() {
    const THIRD_PORT: RelativePort = RelativePort(3);
    const NEW_PORT: RelativePort = RelativePort(4);
    let mut bindings = lost_through_the_other_port();
    bindings.has_ports(&[PORT, THIRD_PORT]);
    bindings.session_begins(&name(1), THIRD_PORT);
    bindings.session_ended(Instant(0), &name(1), THIRD_PORT, true);
    bindings.ended(&name(1), true);
    // The initiator has logged out of both. It uses another disk, and the tag of one portal changes.
    bindings.begins(&name(1));
    bindings.session_begins(&name(1), THIRD_PORT);
    bindings.bind(&name(1), 0, DiskId(8));
    bindings.session_ended(Instant(0), &name(1), THIRD_PORT, false);
    bindings.has_ports(&[PORT, NEW_PORT]);
    bindings.session_begins(&name(1), NEW_PORT);
    bindings.bind(&name(1), 5, DiskId(9));
    for is_restarted in [false, true] {
        if is_restarted {
            bindings = bindings.restarted();
            bindings.session_begins(&name(1), NEW_PORT);
            bindings.rebind(&name(1), NEW_PORT, 0, DiskId(8));
            bindings.begins(&name(1));
        }
        assert_eq!(bindings.disk_of(&name(1), NEW_PORT, 0), Some(DiskId::UNKNOWN), "7 or 8");
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(8)), "this session was never in doubt");
        assert_eq!(bindings.disk_of(&name(1), PORT, 5), Some(DiskId(9)));
    }
    // A lost session may be the one in doubt.
    bindings.session_ended(Instant(0), &name(1), NEW_PORT, false);
    bindings.has_ports(&[PORT, THIRD_PORT]);
    bindings.session_begins(&name(1), THIRD_PORT);
    assert_eq!(bindings.disk_of(&name(1), THIRD_PORT, 0), Some(DiskId::UNKNOWN));
}

#[test]
fn a_former_record_that_a_session_uses_outlives_the_port_that_it_waits_for() {
    const NEW_PORT: RelativePort = RelativePort(3);
    let mut bindings = lost_through_the_other_port();
    bindings.has_ports(&[PORT]);
    bindings.ended(&name(1), true);
    bindings.has_ports(&[PORT, OTHER_PORT, NEW_PORT]);
    for port in [OTHER_PORT, NEW_PORT] {
        bindings.session_begins(&name(1), port);
        assert_eq!(bindings.disk_of(&name(1), port, 0), Some(DiskId(7)));
    }
    assert!(bindings.lost.records.is_empty(), "a record in use is not forgotten");
    bindings.session_ended(Instant(0), &name(1), OTHER_PORT, true);
    assert_eq!(bindings.disk_of(&name(1), NEW_PORT, 0), Some(DiskId(7)));
    bindings.session_ended(Instant(0), &name(1), NEW_PORT, true);
    assert!(bindings.former.is_empty() && bindings.nexuses.is_empty());
}

#[test]
fn a_session_that_a_former_record_led_finds_its_disk_or_none_through_a_port_that_was_logged_out_of() {
    for is_restarted in [false, true] {
        let mut bindings = lost_through_the_other_port();
        bindings.has_ports(&[PORT]);
        bindings.ended(&name(1), true);
        bindings.begins(&name(1));
        bindings.bind(&name(1), 0, DiskId(8));
        bindings.bind(&name(1), 1, DiskId(9));
        // The other port is back, and the host continues its session there. Then its portal gets the tag of
        // the first one.
        bindings.has_ports(&[PORT, OTHER_PORT]);
        bindings.session_begins(&name(1), OTHER_PORT);
        assert_eq!(bindings.disk_of(&name(1), OTHER_PORT, 0), Some(DiskId(7)));
        bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
        bindings.has_ports(&[PORT]);
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(8)), "this session lives");
        if is_restarted {
            // The session is handed over, which makes nothing unclear.
            bindings = bindings.restarted();
            bindings.set_resuming(true);
            bindings.begins(&name(1));
            bindings.set_resuming(false);
            assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(8)));
        }
        // A session of the same initiator port takes the place of the one that lives.
        bindings.begins(&name(1));
        bindings.ended(&name(1), false);
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId::UNKNOWN), "7 or 8");
        bindings.ended(&name(1), false);
        bindings.begins(&name(1));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId::UNKNOWN), "7 or 8");
        // Its logout ends the doubt.
        bindings.ended(&name(1), true);
        bindings.begins(&name(1));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
        bindings.bind(&name(1), 0, DiskId(8));
        bindings.ended(&name(1), false);
        bindings.begins(&name(1));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(8)));
    }
}

#[test]
fn a_session_whose_portal_moves_to_a_port_that_was_logged_out_of_finds_its_disk_or_none() {
    for is_restarted in [false, true] {
        let mut bindings = lost_through_the_other_port();
        bindings.has_ports(&[PORT]);
        bindings.ended(&name(1), true);
        // The former record leads a session through the other port, which is lost again. Its portal gets the
        // tag of the first one, and the target keeps the other port by another portal.
        bindings.has_ports(&[PORT, OTHER_PORT]);
        bindings.session_begins(&name(1), OTHER_PORT);
        bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
        bindings.portal_moved(TargetNumber(1), OTHER_PORT, PORT);
        assert_eq!(bindings.restarted().disk_of(&name(1), PORT, 0), None, "a portal of another target");
        bindings.portal_moved(TargetNumber(0), OTHER_PORT, PORT);
        if is_restarted {
            bindings = bindings.restarted();
        }
        bindings.begins(&name(1));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
        bindings.ended(&name(1), true);
        bindings.begins(&name(1));
        assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
    }
}

#[test]
fn two_former_records_of_different_disks_lead_to_none() {
    const THIRD_PORT: RelativePort = RelativePort(3);
    let mut bindings = lost_through_the_other_port();
    bindings.has_ports(&[PORT]);
    bindings.ended(&name(1), true);
    bindings.has_ports(&[PORT, THIRD_PORT]);
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(8));
    bindings.session_begins(&name(1), THIRD_PORT);
    bindings.session_ended(Instant(0), &name(1), THIRD_PORT, false);
    bindings.has_ports(&[PORT]);
    bindings.ended(&name(1), true);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
    for port in [OTHER_PORT, THIRD_PORT] {
        assert_eq!(bindings.restarted().disk_of(&name(1), port, 0), Some(DiskId::UNKNOWN));
    }
}

#[test]
fn the_operator_forgets_records_without_a_session() {
    let mut bindings = lost_through_the_other_port();
    bindings.begins(&name(2));
    bindings.bind(&name(2), 0, DiskId(7));
    let wanted = |port: u32| move |one: &NexusBindings| *one.initiator_port == port.to_be_bytes();
    assert_eq!(bindings.forget(wanted(1)), Forgotten { records: 0, in_use: 1 });
    bindings.ended(&name(1), false);
    let before = bindings.changes();
    assert_eq!(bindings.forget(wanted(1)), Forgotten { records: 1, in_use: 0 });
    assert_eq!(bindings.forget(wanted(1)), Forgotten::default());
    assert!(bindings.changes() > before);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
    assert_eq!(bindings.disk_of(&name(2), PORT, 0), Some(DiskId(7)));
    assert_eq!((bindings.lost.records.len(), bindings.lost.luns), (0, 0));
}

#[test]
fn the_time_of_a_loss_survives_a_restart() {
    let mut bindings = Bindings::default();
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(7));
    bindings.session_ended(Instant(0), &name(1), PORT, false);
    let at = Instant(0).after(Duration::from_secs(700));
    let saved: Vec<_> = bindings.all(at).collect();
    assert_eq!(saved[0].lost_for, Some(Duration::from_secs(700)));
    let mut restored = Bindings::default();
    saved.into_iter().for_each(|one| restored.restore(Instant(5), one));
    let later = Instant(5).after(Duration::from_secs(1));
    assert_eq!(restored.lost(later).next().unwrap().lost_for, Some(Duration::from_secs(701)));
    let before = restored.session_changes();
    restored.begins(&name(1));
    assert_eq!(restored.all(later).next().unwrap().lost_for, None);
    assert_eq!(restored.session_changes(), before + 1, "the owner stores that");
}

#[test]
fn a_session_that_was_lost_before_the_first_binding_needs_no_logout() {
    let mut bindings = Bindings::default();
    bindings.session_begins(&name(1), OTHER_PORT);
    bindings.session_begins(&name(1), PORT);
    bindings.session_ended(Instant(0), &name(1), OTHER_PORT, false);
    bindings.bind(&name(1), 0, DiskId(7));
    bindings.session_ended(Instant(0), &name(1), PORT, true);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
}

#[test]
fn bindings_with_unknown_target_ports_fall_with_one_logout() {
    let mut bindings = Bindings::default();
    let luns = alloc::vec![(0, DiskId(7))];
    bindings.restore(
        Instant(0),
        NexusBindings {
            target: TargetNumber(0),
            initiator_port: 1_u32.to_be_bytes().into(),
            realm: None,
            target_ports: Vec::new(),
            released_ports: None,
            rejoined_ports: Vec::new(),
            moved_ports: Vec::new(),
            is_sealed: false,
            luns,
            lost_for: None,
        },
    );
    bindings.begins(&name(1));
    bindings.ended(&name(1), false);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
    bindings.begins(&name(1));
    bindings.ended(&name(1), true);
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
}

#[test]
fn a_sealed_nexus_finds_no_disk_until_it_logs_out() {
    let mut bindings = Bindings::default();
    bindings.restore(
        Instant(0),
        NexusBindings {
            target: TargetNumber(0),
            initiator_port: 1_u32.to_be_bytes().into(),
            realm: None,
            target_ports: Vec::new(),
            released_ports: None,
            rejoined_ports: Vec::new(),
            moved_ports: Vec::new(),
            is_sealed: true,
            luns: Vec::new(),
            lost_for: None,
        },
    );
    assert_eq!(bindings.disk_of(&name(2), PORT, 5), None, "another nexus");
    bindings.begins(&name(1));
    assert_eq!(bindings.disk_of(&name(1), PORT, 5), Some(DiskId::UNKNOWN));
    bindings.ended(&name(1), false);
    assert!(bindings.all(Instant(0)).next().unwrap().is_sealed);
    bindings.begins(&name(1));
    assert!(bindings.is_sealed(&name(1)));
    bindings.ended(&name(1), true);
    bindings.begins(&name(1));
    assert_eq!(bindings.disk_of(&name(1), PORT, 5), None);
}

#[test]
fn lost_records_seal_the_nexuses_without_one() {
    let mut bindings = Bindings::default();
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(7));
    bindings.ended(&name(1), false);
    bindings.seal_unknown();
    for port in [1, 2] {
        bindings.begins(&name(port));
    }
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), Some(DiskId(7)));
    assert_eq!(bindings.disk_of(&name(1), PORT, 1), None);
    assert_eq!(bindings.disk_of(&name(2), PORT, 0), Some(DiskId::UNKNOWN));
    bindings.ended(&name(2), true);
    bindings.begins(&name(2));
    assert_eq!(
        bindings.disk_of(&name(2), PORT, 0),
        Some(DiskId::UNKNOWN),
        "a logout does not show whose it was"
    );
}

#[test]
fn bindings_are_restored_for_nexuses_without_a_session_until_a_deliberate_end() {
    let mut bindings = Bindings::default();
    for port in 1..=3 {
        bindings.begins(&name(port));
        bindings.bind(&name(port), 5, DiskId(port.into()));
    }
    bindings.ended(&name(2), false);
    assert_eq!(bindings.changes(), 3, "a lost session changes no binding");
    let saved: Vec<_> = bindings.all(Instant(0)).collect();
    assert_eq!(saved.iter().map(|one| one.luns[0].1.0).collect::<Vec<_>>(), [2, 1, 3]);

    let mut restored = Bindings::default();
    restored.begins(&name(3));
    restored.bind(&name(3), 5, DiskId(9));
    saved.iter().cloned().for_each(|one| restored.restore(Instant(0), one));
    assert_eq!(restored.disk_of(&name(1), PORT, 5), Some(DiskId(1)));
    assert_eq!(restored.disk_of(&name(3), PORT, 5), Some(DiskId(9)), "what is known already stays");
    restored.begins(&name(1));
    restored.bind(&name(1), 5, DiskId(8));
    assert_eq!(restored.disk_of(&name(1), PORT, 5), Some(DiskId(1)));
    let before = restored.changes();
    restored.ended(&name(1), true);
    assert_eq!(restored.disk_of(&name(1), PORT, 5), None);
    assert_eq!(restored.changes(), before + 1);
    assert_eq!(restored.all(Instant(0)).count(), 2);
}

#[test]
fn who_lost_its_session_longest_ago_is_forgotten_first_and_who_has_one_never() {
    let mut bindings = Bindings::default();
    bindings.begins(&name(0));
    bindings.bind(&name(0), 0, DiskId(1));
    for port in 1..=u32::try_from(LOST_MAX).unwrap() + 1 {
        bindings.begins(&name(port));
        bindings.bind(&name(port), 0, DiskId(1));
        bindings.ended(&name(port), false);
    }
    assert_eq!(bindings.disk_of(&name(0), PORT, 0), Some(DiskId(1)));
    assert_eq!(bindings.disk_of(&name(1), PORT, 0), None);
    assert_eq!(bindings.disk_of(&name(2), PORT, 0), Some(DiskId(1)));
    assert_eq!((bindings.lost.records.len(), bindings.lost.luns), (LOST_MAX, LOST_MAX));
}

#[test]
fn nexuses_with_many_luns_count_for_as_many() {
    let mut bindings = Bindings::default();
    for port in 0..5 {
        bindings.begins(&name(port));
        for number in 0..16_384 {
            bindings.bind(&name(port), number, DiskId(1));
        }
        bindings.ended(&name(port), false);
    }
    assert_eq!(bindings.disk_of(&name(0), PORT, 0), None);
    assert_eq!(bindings.lost.luns, LOST_LUNS_MAX);
    for port in 1..5 {
        bindings.begins(&name(port));
    }
    assert_eq!((bindings.lost.records.len(), bindings.lost.luns), (0, 0));
}

#[test]
fn an_initiator_with_very_many_ports_makes_the_target_forget_only_its_own() {
    let port_of = |target, name: &str, isid: u32| {
        let [a, b, c, d] = isid.to_be_bytes();
        let port = scsi::transport_id::TransportId::iscsi_port(name, [0x80, 0, a, b, c, d]).unwrap();
        NexusName { target: TargetNumber(target), initiator_port: port.encode().into(), realm: None }
    };
    let lose = |bindings: &mut Bindings, name: &NexusName| {
        bindings.begins(name);
        bindings.bind(name, 0, DiskId(1));
        bindings.ended(name, false);
    };
    let most = u32::try_from(LOST_MAX).unwrap();
    for (target, stranger) in [(1, "iqn.b"), (1, "iqn.a"), (0, "iqn.b")] {
        let mut bindings = Bindings::default();
        let victim = port_of(0, "iqn.a", 1);
        lose(&mut bindings, &victim);
        (0..most + 9).for_each(|isid| lose(&mut bindings, &port_of(target, stranger, isid)));
        assert_eq!(bindings.disk_of(&victim, PORT, 0), Some(DiskId(1)), "{target} {stranger}");
        assert_eq!((bindings.evictions(), bindings.lost.records.len()), (10, LOST_MAX));
        let kept = |isid| bindings.disk_of(&port_of(target, stranger, isid), PORT, 0).is_some();
        assert!(!kept(9) && kept(10));
    }
}

#[test]
fn the_records_of_a_target_are_taken_whole() {
    let other_target = NexusName { target: TargetNumber(1), ..name(1) };
    let mut bindings = lost_through_the_other_port();
    bindings.has_ports(&[PORT]);
    bindings.ended(&name(1), true);
    bindings.begins(&name(1));
    bindings.bind(&name(1), 0, DiskId(8));
    bindings.begins(&name(2));
    bindings.bind(&name(2), 0, DiskId(9));
    bindings.ended(&name(2), false);
    bindings.begins(&other_target);
    bindings.bind(&other_target, 0, DiskId(7));
    bindings.ended(&other_target, false);
    let (all, before) = (bindings.all(Instant(0)).collect::<Vec<_>>(), bindings.changes());
    let taken = bindings.take(Instant(0), TargetNumber(0));
    assert_eq!(taken.len(), 3, "a present one with a session, one without, and a former one");
    assert!(bindings.changes() > before, "the owner stores that");
    let left: Vec<_> = bindings.all(Instant(0)).collect();
    assert_eq!(left.iter().map(|one| one.target).collect::<Vec<_>>(), [TargetNumber(1)]);
    assert_eq!((bindings.lost.records.len(), bindings.lost.luns), (1, 1));
    // The session that is left ends, and binds nothing before.
    bindings.bind(&name(1), 1, DiskId(3));
    bindings.ended(&name(1), false);
    assert_eq!(bindings.all(Instant(0)).count(), 1);

    let mut elsewhere = Bindings::default();
    taken.into_iter().chain(left).for_each(|one| elsewhere.restore(Instant(0), one));
    assert_eq!(elsewhere.all(Instant(0)).count(), all.len());
    for (port, disk) in [(PORT, 8), (OTHER_PORT, 7)] {
        assert_eq!(elsewhere.disk_of(&name(1), port, 0), Some(DiskId(disk)));
    }
}

#[test]
fn two_records_of_one_nexus_that_disagree_lead_to_no_disk() {
    let record = |luns: &[(u16, u64)], lost_s: u64| NexusBindings {
        target: TargetNumber(0),
        initiator_port: 1_u32.to_be_bytes().into(),
        realm: None,
        target_ports: alloc::vec![PORT],
        released_ports: None,
        rejoined_ports: Vec::new(),
        moved_ports: Vec::new(),
        is_sealed: false,
        luns: luns.iter().map(|(number, disk)| (*number, DiskId(*disk))).collect(),
        lost_for: Some(Duration::from_secs(lost_s)),
    };
    let mut bindings = Bindings::default();
    bindings.restore(Instant(0), record(&[(0, 1), (1, 5)], 70));
    bindings.restore(Instant(0), record(&[(0, 2), (1, 5), (2, 6)], 7));
    let found = |lun| bindings.disk_of(&name(1), PORT, lun);
    assert_eq!(found(0), Some(DiskId::UNKNOWN), "nothing shows which of both the host has open");
    assert_eq!((found(1), found(2)), (Some(DiskId(5)), Some(DiskId(6))));
    assert_eq!((bindings.lost.records.len(), bindings.lost.luns), (1, 2));
    assert_eq!(bindings.lost(Instant(0)).next().unwrap().lost_for, Some(Duration::from_secs(7)));
    // A nexus with a session keeps what it has.
    bindings.begins(&name(1));
    bindings.restore(Instant(0), record(&[(1, 9)], 0));
    assert_eq!(bindings.disk_of(&name(1), PORT, 1), Some(DiskId(5)));
}

#[test]
fn the_records_of_ports_that_had_a_session_are_not_forgotten_over_a_restart() {
    let mut bindings = Bindings::default();
    for port in 0..=u32::try_from(LOST_MAX).unwrap() {
        bindings.begins(&name(port));
        for number in 0..32 {
            bindings.bind(&name(port), number, DiskId(1));
        }
    }
    let mut restored = bindings.restarted();
    assert_eq!((restored.all(Instant(0)).count(), restored.evictions()), (LOST_MAX + 1, 0));
    assert_eq!(restored.disk_of(&name(0), PORT, 31), Some(DiskId(1)));
    // Ports that lose their sessions now are forgotten first, and only they.
    for port in 10_000..10_003 + u32::try_from(LOST_MAX).unwrap() {
        restored.begins(&name(port));
        restored.bind(&name(port), 0, DiskId(1));
        restored.ended(&name(port), false);
    }
    assert_eq!((restored.evictions(), restored.lost.records.len()), (3, LOST_MAX));
    assert_eq!(restored.disk_of(&name(10_002), PORT, 0), None);
    assert_eq!(restored.disk_of(&name(0), PORT, 0), Some(DiskId(1)));
    // Those that have not come back by the next restart have lost their sessions.
    let again = restored.restarted();
    assert!(again.lost.awaited.is_empty() && again.lost.luns <= LOST_LUNS_MAX);
}

#[test]
fn a_hand_over_adds_no_lun_of_a_former_record_to_the_present_one() {
    let mut bindings = lost_through_the_other_port();
    bindings.has_ports(&[PORT]);
    bindings.ended(&name(1), true);
    bindings.has_ports(&[PORT, OTHER_PORT]);
    bindings.session_begins(&name(1), OTHER_PORT);
    let mut restored = bindings.restarted();
    restored.session_begins(&name(1), OTHER_PORT);
    restored.rebind(&name(1), OTHER_PORT, 0, DiskId(7));
    restored.rebind(&name(1), OTHER_PORT, 1, DiskId(8));
    restored.begins(&name(1));
    assert_eq!(restored.disk_of(&name(1), OTHER_PORT, 0), Some(DiskId(7)));
    assert_eq!(restored.disk_of(&name(1), PORT, 0), None, "the initiator has logged out of this port");
    assert_eq!(restored.disk_of(&name(1), PORT, 1), Some(DiskId(8)));
}
