//! Every field of a document matters: a unit that is restored without it answers differently.

use alloc::string::{String, ToString};

use serde_json::Value;

use super::fixture::*;

/// The fields that no probe shows, and why.
const UNSEEN: &[&str] = &[
    // They are counters for the operator, whom `LogicalUnit::stats` tells.
    "/server/stats/commands",
    "/server/stats/check_conditions",
    "/server/stats/sense_keys",
    "/server/stats/reservation_conflicts",
    "/server/stats/aborts",
    "/server/stats/latencies",
];

/// The fields that the commands of this test leave as a new unit has them.
const UNSET: &[&str] = &[
    "/limit",
    "/server/drain",
    "/server/errors/reading",
    "/server/errors/verifying",
    "/server/errors/writing",
    "/server/flush_failed",
    "/server/full_at",
    "/server/idle_ns",
    "/server/nexuses/lost",
    "/server/nexuses/unread_alerts",
    "/server/orw_generations/of_other",
    "/server/orw_generations/previous",
    "/server/owes_flush",
    "/server/pass_through",
    "/server/recorder",
    "/server/reported/block_len",
    "/server/reported/capacity",
    "/server/reported/device_type",
    "/server/reported/is_pass_through",
    "/server/reported/nexus_task_sets",
    "/server/reported/read_only",
    "/server/reported/task_aborted_status",
    "/server/reported/write_cache",
    "/server/settings/keeps_attentions",
    "/server/settings/provisioning_reports",
    "/server/settings/provisioning_reports_set",
    "/server/settings/queue_error_only_own",
    "/server/settings/software_write_protect",
    "/server/settings/stream/block_len",
    "/server/settings/stream/crc32c",
    "/server/settings/stream/early_warning_mb",
    "/server/settings/stream/has_protection_length",
    "/server/settings/stream/is_append_only",
    "/server/settings/stream/is_buffered",
    "/server/settings/stream/is_compressing",
    "/server/settings/stream/partitioning",
    "/server/settings/stream/protects_reads",
    "/server/settings/stream/protects_writes",
    "/server/settings/stream/reed_solomon",
    "/server/settings/write_parameters",
    "/server/space_threshold",
    "/server/spc/counted_before/idle_ms",
    "/server/spc/data_buffers/overwritten",
    "/server/spc/removal/place",
    "/server/spc/removal/stopped",
    "/server/spc/reservations/lost",
    "/server/spc/reservations/persist",
    "/server/spc/sanitize_failure",
    "/server/spc/saved_settings/descriptor_sense",
    "/server/spc/saved_settings/keeps_attentions",
    "/server/spc/saved_settings/provisioning_reports",
    "/server/spc/saved_settings/provisioning_reports_set",
    "/server/spc/saved_settings/queue_error_aborts",
    "/server/spc/saved_settings/queue_error_only_own",
    "/server/spc/saved_settings/software_write_protect",
    "/server/spc/saved_settings/stream",
    "/server/spc/saved_settings/task_aborted_status",
    "/server/spc/saved_settings/write_cache",
    "/server/spc/saved_settings/write_parameters",
    "/server/spc/spc2_holder",
    "/server/spc/uptime_ns",
    "/server/stats/aborts",
    "/server/stats/delayed",
    "/server/stats/delayed_ns",
    "/server/stats/io_timeouts",
    "/server/stats/medium_failures",
    "/server/stats/reservation_conflicts",
    "/server/stats/task_set_full",
    "/server/tape",
    "/server/unusable_cartridges",
];

/// Returns a unit with state in every place, and its medium.
fn full() -> (Rig, Shared) {
    let medium = Shared::new();
    let mut rig = Rig::fresh(rich(), Box::new(medium.clone()));
    rig.unit.seed(&[3; 32]);
    for id in [A, B] {
        run(&mut rig, id, &[0; 6], &[]);
    }
    run(&mut rig, A, &cdb_16(op::WRITE_16, 0, 0, 4), &[1; 2048]).good();
    run(&mut rig, A, &cdb_16(op::READ_16, 0, 0, 3), &[]).good();
    run(&mut rig, A, &cdb_16(op::VERIFY_16, 0, 0, 2), &[]).good();
    run(&mut rig, A, &[op::LOG_SELECT, 2, 0x40, 0, 0, 0, 0, 0, 0, 0], &[]).good();
    run(&mut rig, B, &[0; 6], &[]);
    run(&mut rig, A, &cdb_16(op::READ_16, 0, 0, 2), &[]).good();
    run(&mut rig, A, &cdb_16(op::WRITE_16, 0, 0, 4), &[1; 2048]).good();
    run(&mut rig, A, &cdb_16(op::VERIFY_16, 0, 0, 2), &[]).good();
    change_mode(&mut rig, A, 0x0a, true, (2, 0x04)).good();
    change_mode(&mut rig, A, 0x0a, false, (3, 0x02)).good();
    change_mode(&mut rig, A, 0x0a, false, (5, 0x40)).good();
    change_mode(&mut rig, A, 0x08, false, (2, 0x04)).good();
    let list = [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0];
    run(&mut rig, A, &[op::MAINTENANCE_OUT, 0x0f, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0], &list).good();
    run(&mut rig, A, &[op::MAINTENANCE_OUT, 0x06, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0], &[7, 8, 9]).good();
    run(&mut rig, A, &[op::MAINTENANCE_OUT, 0x06, 0, 0, 0, 0, 0, 0, 0, 3, 4, 0], b"it\0").good();
    run(&mut rig, A, &[op::WRITE_BUFFER, 0x02, 0, 0, 0, 0, 0, 0, 32, 0], &[5; 32]).good();
    run(&mut rig, A, &[op::WRITE_BUFFER, 0x0a, 0, 0, 0, 0, 0, 0, 32, 0], &[6; 32]).good();
    run(&mut rig, A, &[op::SEND_DIAGNOSTIC, 0xa0, 0, 0, 0, 0], &[]).good();
    populate(&mut rig, A, 1, 100).good();
    let mut change = cdb_32(0x000e, 0, 5, 1);
    (change[2], change[3]) = (1, 2);
    change[24..28].copy_from_slice(&7_u32.to_be_bytes());
    run(&mut rig, A, &change, &[0xff; 512]).good();
    run(&mut rig, B, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], &[]);
    run(&mut rig, B, &[0; 6], &[]);
    run(&mut rig, B, &[0; 6], &[]);
    run(&mut rig, B, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], &[]).good();
    pr_out(&mut rig, A, (0, 0), (0, 1), false).good();
    pr_out(&mut rig, A, (1, 5), (1, 0), false).good();
    run(&mut rig, A, &[op::START_STOP_UNIT, 0, 0, 0, 0, 0], &[]).good();
    rig.unit.tasks_cleared(Instant::ORIGIN, B, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
    rig.drain();
    (rig, medium)
}

/// Returns the paths of everything below a value, down to a depth.
fn paths(value: &Value, prefix: &str, depth: usize, found: &mut Vec<String>) {
    let Value::Object(fields) = value else { return };
    for (name, inner) in fields {
        let path = alloc::format!("{prefix}/{name}");
        if depth > 0 && inner.is_object() {
            paths(inner, &path, depth - 1, found);
        } else {
            found.push(path);
        }
    }
}

#[test]
fn a_unit_without_any_field_of_its_state_answers_differently() {
    let (rig, _) = full();
    let whole = serde_json::to_value(export(&rig)).unwrap();
    let mut empty = Rig::fresh(rich(), Box::new(Shared::new()));
    for id in [A, B] {
        run(&mut empty, id, &[0; 6], &[]);
    }
    let empty = serde_json::to_value(export(&empty)).unwrap();
    let answers = |document: &Value| {
        let medium = Shared::new();
        let state = serde_json::from_value(document.clone()).unwrap();
        transcript(&mut resumed(rich(), Box::new(medium), &state), [A2, B2])
    };
    let expected = answers(&whole);
    let (mut fields, mut unseen) = (Vec::new(), Vec::new());
    paths(&whole, "", 3, &mut fields);
    let mut unset = Vec::new();
    for path in fields {
        let (here, there) = (whole.pointer(&path).unwrap(), empty.pointer(&path));
        let Some(there) = there.filter(|there| *there != here) else {
            unset.push(path);
            continue;
        };
        let mut without = whole.clone();
        *without.pointer_mut(&path).unwrap() = there.clone();
        if path.starts_with("/server/spc/reservations/registrants") {
            *without.pointer_mut("/server/spc/reservations/reservation").unwrap() = Value::Null;
        }
        if answers(&without) == expected {
            unseen.push(path.to_string());
        }
    }
    assert_eq!(unset, UNSET, "the fields that no command of this test sets");
    let surprising: Vec<_> = unseen.iter().filter(|path| !UNSEEN.contains(&path.as_str())).collect();
    assert!(surprising.is_empty(), "no probe shows {surprising:?}");
}
