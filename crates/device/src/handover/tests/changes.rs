//! What has changed between both processes: time, nexuses, configuration.

use super::fixture::*;
use crate::contract::NexusId as Id;
use crate::contract::{Access, InquiryOverrides, SpcLevel};
use crate::space_threshold::{SpaceLevel, SpaceThreshold};

const AT: fn(u64) -> Instant = |seconds| Instant(seconds * 1_000_000_000);

/// Runs a command without data at a time.
#[track_caller]
fn at(rig: &mut Rig, now: Instant, nexus: Id, cdb: &[u8]) -> Reply {
    rig.unit.store_ready(now);
    rig.unit.handle_timeout(now);
    rig.drain();
    let command = crate::contract::Command {
        nexus,
        key: crate::contract::TaskKey(9000),
        level: security::Level::None,
        attribute: scsi::status::TaskAttribute::Simple,
        priority: 0,
        cdb: scsi::cdb::Cdb::from_bytes(cdb).unwrap(),
        data_in_len: 65_536,
        data_out_len: 0,
    };
    rig.unit.execute(now, command);
    rig.drain();
    rig.finish(crate::contract::TaskKey(9000), &[])
}

#[test]
fn clocks_go_on_although_those_of_the_processes_differ() {
    let mut old = served(config(), Box::new(Shared::new()));
    populate(&mut old, A, 1, 100).good();
    // The old process has run for 100 s, the new one for one.
    let state = old.unit.export(AT(100), index_of).unwrap();
    let mut unit = next_unit(config(), Box::new(Shared::new()));
    unit.restore(AT(1), &state, nexus_of).unwrap();
    let mut new = rig_of(unit);
    let timestamp = [op::MAINTENANCE_IN, 0x0f, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    let uptime = [op::LOG_SENSE, 0, 0x40 | 0x15, 0, 0, 0, 0, 1, 0, 0];
    for (was, is) in [(100, 1), (199, 100), (250, 151)] {
        let expected = at(&mut old, AT(was), A, &timestamp).good();
        assert_eq!(at(&mut new, AT(is), A2, &timestamp).good(), expected);
        let expected = at(&mut old, AT(was), A, &uptime).good();
        assert_eq!(at(&mut new, AT(is), A2, &uptime).good(), expected);
    }
    // A token is valid for 300 s: until second 300 of the old process, which is second 201 of the new one.
    let mut tokens = cdb_16(op::THIRD_PARTY_COPY_IN, 0x08, 0, 4096);
    tokens[2..10].fill(0);
    for (was, is) in [(300, 201), (301, 202)] {
        let expected = at(&mut old, AT(was), A, &tokens).good();
        assert_eq!(at(&mut new, AT(is), A2, &tokens).good(), expected, "{was}");
    }
}

#[test]
fn a_threshold_that_was_reported_is_not_reported_again() {
    const THRESHOLD_PAGE: [u8; 6] = [op::MODE_SENSE_6, 8, 0x1c, 2, 255, 0];
    let asc = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
    let mut old = served(config(), Box::new(Shared::new()));
    let tell = |rig: &mut Rig, level| {
        rig.unit.set_space_threshold(Instant::ORIGIN, SpaceThreshold { bytes: 3 << 20, level });
    };
    tell(&mut old, SpaceLevel::Short);
    run(&mut old, A, &[0; 6], &[]).check(SenseKey::UNIT_ATTENTION, asc);
    let page = run(&mut old, A, &THRESHOLD_PAGE, &[]).good();
    let mut new = resumed(config(), Box::new(Shared::new()), &export(&old));
    assert_eq!(run(&mut new, A2, &THRESHOLD_PAGE, &[]).good(), page);
    for level in [SpaceLevel::Near, SpaceLevel::Short] {
        tell(&mut new, level);
        run(&mut new, A2, &[0; 6], &[]).good();
    }
    // It was reported to the other host, which has not asked yet.
    run(&mut new, B2, &[0; 6], &[]).check(SenseKey::UNIT_ATTENTION, asc);
    run(&mut new, B2, &[0; 6], &[]).good();
    tell(&mut new, SpaceLevel::Ample);
    tell(&mut new, SpaceLevel::Short);
    run(&mut new, A2, &[0; 6], &[]).check(SenseKey::UNIT_ATTENTION, asc);
}

#[test]
fn a_host_that_hears_of_no_threshold_hears_of_none_after_a_hand_over_and_a_reset() {
    let mut old = served(config(), Box::new(Shared::new()));
    change_mode(&mut old, A, 0x01, true, (7, 0x80)).good();
    let mut new = resumed(config(), Box::new(Shared::new()), &export(&old));
    let is_on =
        |rig: &mut Rig| run(rig, A2, &[op::MODE_SENSE_6, 8, 1, 0, 255, 0], &[]).good()[4 + 7] & 0x80 != 0;
    assert!(!is_on(&mut new));
    new.unit.reset(Instant::ORIGIN, Reset::LogicalUnit);
    new.drain();
    while run(&mut new, A2, &[0; 6], &[]).sense.is_some() {}
    assert!(!is_on(&mut new));
}

#[test]
fn a_nexus_that_is_not_handed_over_counts_as_lost() {
    counts_as_lost(|id| (id == A).then_some(0));
}

#[test]
fn a_nexus_that_does_not_see_the_unit_any_more_counts_as_lost() {
    counts_as_lost(index_of);
}

/// Hands over a unit of which a nexus holds a lot, to a unit that the nexus does not see at first.
fn counts_as_lost(index_of: fn(Id) -> Option<u32>) {
    let mut old = served(rich(), Box::new(Shared::new()));
    run(&mut old, B, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], &[]).good();
    run(&mut old, B, &[op::WRITE_BUFFER, 0x0a, 0, 0, 0, 0, 0, 0, 4, 0], &[6; 4]).good();
    run(&mut old, B, &[op::RESERVE_6, 0, 0, 0, 0, 0], &[]).good();
    let state = old.unit.export(Instant::ORIGIN, index_of).unwrap();
    let mut unit =
        LogicalUnit::new(rich(), Box::new(Shared::new()), None, base::buffer::Pool::new(1 << 20)).unwrap();
    unit.seed(&[9; 32]);
    unit.nexus_established(Instant::ORIGIN, Nexus { id: A2, ..nexus(A) });
    unit.restore(Instant::ORIGIN, &state, nexus_of).unwrap();
    let mut new = rig_of(unit);
    run(&mut new, A2, &[0; 6], &[]).good();
    run(&mut new, A2, &[op::RESERVE_6, 0, 0, 0, 0, 0], &[]).good();
    run(&mut new, A2, &[op::RELEASE_6, 0, 0, 0, 0, 0], &[]).good();
    run(&mut new, A2, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0], &[]).good();
    new.unit.nexus_established(Instant::ORIGIN, Nexus { id: B2, ..nexus(B) });
    let unit_attention = SenseKey::UNIT_ATTENTION;
    run(&mut new, B2, &[0; 6], &[]).check(unit_attention, Asc::I_T_NEXUS_LOSS_OCCURRED);
    let echo = [op::READ_BUFFER_10, 0x0a, 0, 0, 0, 0, 0, 0x10, 0, 0];
    run(&mut new, B2, &echo, &[]).illegal(Asc::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn a_changed_configuration_is_reported_and_nothing_else() {
    let old = served(config(), Box::new(Shared::new()));
    let state = export(&old);
    for (config, expected) in
        [(config(), None), (UnitConfig { read_only: true, ..config() }, Some(Asc::MODE_PARAMETERS_CHANGED))]
    {
        let mut new = resumed(config, Box::new(Shared::new()), &state);
        for nexus in [A2, B2] {
            if let Some(asc) = expected {
                run(&mut new, nexus, &[0; 6], &[]).check(SenseKey::UNIT_ATTENTION, asc);
            }
            run(&mut new, nexus, &[0; 6], &[]).good();
        }
    }
}

#[test]
fn inquiry_data_of_another_release_end_no_command() {
    let state = export(&served(config(), Box::new(Shared::new())));
    let mut identity = config().identity;
    identity.revision = *b"0002";
    let overrides = InquiryOverrides { level: SpcLevel::Spc3, ..config().overrides };
    for config in [UnitConfig { identity, ..config() }, UnitConfig { overrides, ..config() }] {
        let mut new = resumed(config, Box::new(Shared::new()), &state);
        let inquiry = [op::INQUIRY, 0, 0, 0, 96, 0];
        run(&mut new, A2, &inquiry, &[]).good();
        for nexus in [A2, B2] {
            run(&mut new, nexus, &cdb_16(op::WRITE_16, 0, 3, 1), &[7; 512]).good();
        }
    }
}

#[test]
fn a_nexus_that_may_only_read_now_holds_nothing() {
    let mut old = served(rich(), Box::new(Shared::new()));
    run(&mut old, A, &[op::RESERVE_6, 0, 0, 0, 0, 0], &[]).good();
    let state = export(&old);
    let mut unit = next_unit(rich(), Box::new(Shared::new()));
    let reader = Nexus { id: A2, access: Access::ReadOnly, ..nexus(A) };
    unit.nexus_changed(Instant::ORIGIN, reader);
    unit.restore(Instant::ORIGIN, &state, nexus_of).unwrap();
    let mut new = rig_of(unit);
    run(&mut new, B2, &[op::RESERVE_6, 0, 0, 0, 0, 0], &[]).good();
}

#[test]
fn what_was_loaded_gives_way_to_what_is_handed_over() {
    // The saved state was written when A held a reservation; it was released later, and never saved again.
    let mut old = served(config(), Box::new(Shared::new()));
    pr_out(&mut old, A, (0, 0), (0, 1), true);
    let key = old.start(A, &[op::PERSISTENT_RESERVE_OUT, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, 24);
    let mut list = [0; 24];
    (list[7], list[15], list[20]) = (1, 2, 1);
    old.send(key, &list, 0, 24);
    let saved = old.keep(true).unwrap();
    old.finish(key, &list).good();
    pr_out(&mut old, A, (3, 0), (2, 0), false).good();
    let state = export(&old);
    let (medium, pool) = (Shared::new(), base::buffer::Pool::new(1 << 20));
    let mut unit = LogicalUnit::new(config(), Box::new(medium), Some(&saved), pool).unwrap();
    unit.seed(&[9; 32]);
    for (id, was) in [(A2, A), (B2, B)] {
        unit.nexus_established(Instant::ORIGIN, Nexus { id, ..nexus(was) });
    }
    assert_eq!(unit.reservations().unwrap().registrations, 1);
    unit.restore(Instant::ORIGIN, &state, nexus_of).unwrap();
    assert_eq!(unit.reservations(), None);
    let mut new = rig_of(unit);
    let keys = [op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(run(&mut new, A2, &keys, &[]).good(), run(&mut old, A, &keys, &[]).good());
}

#[test]
fn a_unit_that_has_begun_to_serve_takes_no_state() {
    let state = export(&served(config(), Box::new(Shared::new())));
    let mut unit = next_unit(config(), Box::new(Shared::new()));
    let command = crate::contract::Command {
        nexus: A2,
        key: crate::contract::TaskKey(1),
        level: security::Level::None,
        attribute: scsi::status::TaskAttribute::Simple,
        priority: 0,
        cdb: scsi::cdb::Cdb::from_bytes(&[0; 6]).unwrap(),
        data_in_len: 0,
        data_out_len: 0,
    };
    unit.execute(Instant::ORIGIN, command);
    assert_eq!(unit.restore(Instant::ORIGIN, &state, nexus_of), Err(RestoreError::InUse));
}

#[test]
fn what_a_limit_has_saved_up_stays() {
    let limit = crate::rate_limit::RateLimit { iops: 10, bandwidth: 0, burst: Duration::from_secs(1) };
    let config = UnitConfig { limit, ..config() };
    let mut old = served(config.clone(), Box::new(Shared::new()));
    let read = cdb_16(op::READ_16, 0, 0, 1);
    for _ in 0..10 {
        run(&mut old, A, &read, &[]).good();
    }
    let mut new = resumed(config, Box::new(Shared::new()), &export(&old));
    let key = new.start(A2, &read, 512, 0);
    assert_eq!(new.unit.stats().waiting, 1, "the bucket is empty");
    new.unit.handle_timeout(AT(1));
    new.drain();
    new.finish(key, &[]).good();
}
