//! Session and engine together: the results for a user of both, with every combination of keys and with
//! faults in transit.

use alloc::vec::Vec;

use base::rng::Rng;
use base::state_machine::ConnId;
use base::time::Duration;
use base::transmit::Transmit;
use transport::command::TaskAttribute;
use transport::initiator::{
    InitiatorTransport as _, Request, Residual, SubmitError, TaskId, TaskResult, TmfParameters,
};
use transport::task_management::{TmfFunction, TmfResult};

use super::pair::*;
use crate::initiator::contract::*;
use crate::negotiate::{DigestPolicy, KeyPolicy};

#[test]
fn what_is_written_is_read_back() {
    //= rfc7143#section-6.3.2
    //= type=test
    //# If the next stage is FullFeaturePhase, the target MUST reply with a Login Response
    //# with the TSIH value.
    //= rfc7143#section-11.3.1
    //= type=test
    //# they MUST NOT both be 0 when the Expected Data Transfer Length and/or Bidirectional Read Expected Data
    //# Transfer Length are not 0
    //= rfc7143#section-11.7
    //= type=test
    //# Although targets MAY choose to send even non-exception status in separate responses, initiators MUST
    //# support non-exception status in Data-In PDUs.
    for len in [1usize, 512, 4096, 70_001, 1 << 20, 3 << 20] {
        let mut pair = Pair::up(Setup::default());
        let data = pattern(7, len);
        let task = pair.submit(write(3, 1, &data));
        pair.run();
        let outcome = pair.outcome(task);
        assert!(outcome.end.is_good() && outcome.data_in.is_none(), "{outcome:?}");
        let task = pair.submit(read(3, u32::try_from(len).unwrap()));
        pair.run();
        let outcome = pair.outcome(task);
        assert!(outcome.end.is_good(), "{outcome:?}");
        assert_eq!(outcome.data_in.as_deref(), Some(&data[..]), "{len}");
        assert_eq!(pair.executed[&1], 1);
        assert_eq!(pair.session.stats().bugs, 0);
    }
}

#[test]
fn residuals_and_sense_are_reported() {
    let mut pair = Pair::up(Setup::default());
    let short = pair.submit(Request { data_in_len: 1000, ..Request::new(LUN, cdb(SHORT_READ, 0, 0)) });
    let long = pair.submit(Request { data_in_len: 1000, ..Request::new(LUN, cdb(LONG_READ, 0, 0)) });
    let broken = pair.submit(Request::new(LUN, cdb(BROKEN, 0, 0)));
    pair.run();
    for (task, residual, len) in
        [(short, Residual::Underflow(499), 501), (long, Residual::Overflow(1000), 1000)]
    {
        let outcome = pair.outcome(task);
        let TaskResult::Status(ending) = outcome.end else { panic!("{outcome:?}") };
        assert_eq!((ending.status, ending.residual), (0, residual));
        assert_eq!(outcome.data_in.as_deref(), Some(&pair.medium[..len]));
    }
    let TaskResult::Status(ending) = pair.outcome(broken).end else { panic!("no status") };
    assert_eq!((ending.status, ending.sense.as_deref()), (2, Some(&SENSE[..])));
}

/// Random reads and writes, each at an address of its own so that their order does not matter, checked at the
/// end.
pub(super) fn work(seed: u64, pair: &mut Pair, rng: &mut Rng, count: u32, span: Duration) {
    let mut expected = pair.medium.clone();
    let mut reads = Vec::new();
    let mut writes = Vec::new();
    let room = MEDIUM / 512 / usize::try_from(count).unwrap();
    for id in 0..count {
        let lba = id * u32::try_from(room).unwrap();
        let len = match rng.below(4) {
            0 => 512,
            1 => 4096,
            _ => 1 + usize::try_from(rng.below(u64::try_from(room * 512).unwrap())).unwrap(),
        };
        if rng.chance(1, 2) {
            let data = pattern(rng.next_u64(), len);
            let at = usize::try_from(lba).unwrap() * 512;
            expected[at..at + len].copy_from_slice(&data);
            writes.push((pair.submit(write(lba, id, &data)), id));
        } else {
            reads.push((pair.submit(read(lba, u32::try_from(len).unwrap())), lba, len));
        }
        if rng.chance(1, 8) {
            pair.run();
        }
    }
    pair.settle(seed, span);
    for (task, lba, len) in reads {
        let outcome = pair.outcome(task);
        assert!(
            outcome.end.is_good(),
            "seed {seed}: read at {lba}: {outcome:?} {:?} {:?}",
            pair.events,
            pair.engine.stats()
        );
        let at = usize::try_from(lba).unwrap() * 512;
        assert!(
            outcome.data_in.as_deref() == Some(&expected[at..at + len]),
            "seed {seed}: garbled read of {len} at {lba}"
        );
    }
    for (task, id) in writes {
        let outcome = pair.outcome(task);
        assert!(outcome.end.is_good(), "seed {seed}: write {id} {task:?}: {outcome:?} {:?}", pair.events);
        assert_eq!(pair.executed.get(&id), Some(&1), "seed {seed}: write {id} is carried out once");
    }
    assert!(pair.medium == expected, "seed {seed}: the medium holds what was written");
    assert_eq!(pair.session.stats().bugs, 0);
}

pub(super) fn random_keys(rng: &mut Rng) -> KeyPolicy {
    let digests = [
        DigestPolicy::PreferCrc32c,
        DigestPolicy::PreferNone,
        DigestPolicy::RequireCrc32c,
        DigestPolicy::RequireNone,
    ];
    let mut pick =
        |choices: &[u32]| choices[usize::try_from(rng.below(u64::try_from(choices.len()).unwrap())).unwrap()];
    let small = |number: u32| u16::try_from(number).unwrap();
    KeyPolicy {
        header_digest: digests[usize::try_from(pick(&[0, 1])).unwrap()],
        data_digest: digests[usize::try_from(pick(&[0, 1])).unwrap()],
        initial_r2t: pick(&[0, 1]) == 1,
        immediate_data: pick(&[0, 1]) == 1,
        max_recv_data_segment_length: pick(&[512, 1024, 8192, 65536, 262_144]),
        max_burst_length: pick(&[512, 4096, 65536, 1 << 20]),
        first_burst_length: pick(&[512, 4096, 65536]),
        max_outstanding_r2t: small(pick(&[1, 2, 8])),
        data_pdu_in_order: pick(&[0, 1]) == 1,
        data_sequence_in_order: pick(&[0, 1]) == 1,
        error_recovery_level: u8::try_from(pick(&[0, 1, 2])).unwrap(),
        default_time2wait: 0,
        ..KeyPolicy::default()
    }
}

#[test]
fn every_combination_of_keys_moves_data_whole() {
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# the total unsolicited data MUST be either FirstBurstLength or all of the data, if the
    //# total amount is less than the FirstBurstLength.
    //= rfc7143#section-4.2.5.2
    //= type=test
    //# An initiator MUST honor an R2T data request for a valid outstanding command (i.e.,
    //# carrying a valid Initiator Task Tag) and deliver all the requested data, provided the
    //# command is supposed to deliver outgoing data and the R2T specifies data within the
    //# command bounds.
    //= rfc7143#section-11.3.4
    //= type=test
    //# If the Expected Data Transfer Length is higher than the FirstBurstLength (the negotiated maximum
    //# amount of unsolicited data the target will accept), the initiator MUST send the maximum amount of
    //# unsolicited data OR ONLY the immediate data, if any.
    //= rfc7143#section-11.7.1
    //= type=test
    //# DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent, and the total
    //# of all the DataSegmentLength of all PDUs in a sequence MUST NOT exceed MaxBurstLength (or
    //# FirstBurstLength for unsolicited data).
    //= rfc7143#section-11.8
    //= type=test
    //# In order to allow write operations without an explicit initial R2T, the initiator and target MUST have
    //# negotiated the key InitialR2T to No during login.
    for seed in 0..20 {
        let mut rng = Rng::from_seed(seed);
        let mut setup = Setup { seed, target_keys: random_keys(&mut rng), ..Setup::default() };
        setup.plan.keys = random_keys(&mut rng);
        setup.plan.connections = 1 + u16::try_from(rng.below(4)).unwrap();
        let mut pair = Pair::new(setup);
        pair.run();
        assert!(pair.session.is_up(), "seed {seed}: {:?}", pair.events);
        work(seed, &mut pair, &mut rng, 24, Duration::from_secs(10));
    }
}

/// A pair with digests and with random bit errors.
fn faulty(seed: u64, level: u8, connections: u16, faults: Faults) -> Pair {
    let mut rng = Rng::from_seed(seed);
    let guard = |mut keys: KeyPolicy| {
        keys.header_digest = DigestPolicy::RequireCrc32c;
        keys.data_digest = DigestPolicy::RequireCrc32c;
        keys.error_recovery_level = level;
        keys
    };
    let mut setup = Setup { seed, target_keys: guard(random_keys(&mut rng)), ..Setup::default() };
    setup.plan.keys = guard(random_keys(&mut rng));
    setup.plan.connections = connections;
    let mut pair = Pair::up(setup);
    pair.faults = faults;
    pair
}

#[test]
fn level_1_repairs_flipped_bits_and_the_caller_notices_nothing() {
    //= rfc7143#section-7.1.5
    //= type=test
    //# When a defined value of ErrorRecoveryLevel is proposed by an originator in a text negotiation, the
    //# originator MUST support the functionality defined for the proposed value and, additionally,
    //# functionality corresponding to any defined value numerically less than the proposed value.
    let mut injected = 0;
    let mut repaired = 0;
    for seed in 0..30 {
        let faults = Faults { flips_up: 20, flips_down: 20, budget: 12, ..Faults::default() };
        let mut pair = faulty(seed, 1, 1, faults);
        // A bit error in a length that makes it longer costs the connection, which only level 2 recovers.
        let mut rng = Rng::from_seed(seed);
        let before = pair.session.stats();
        work(seed, &mut pair, &mut rng, 24, Duration::from_secs(120));
        let after = pair.session.stats();
        assert_eq!(before.connections_lost, after.connections_lost, "seed {seed}");
        injected += pair.injected;
        repaired += u32::try_from(after.data_digest_errors + after.header_digest_errors).unwrap();
    }
    assert!(injected > 50 && repaired > 10, "{injected} injected, {repaired} seen here");
}

#[test]
fn a_lost_session_is_built_anew_and_only_what_may_be_repeated_is() {
    //= rfc7143#section-7.14
    //= type=test
    //# On connection failure, the initiator and target MUST do one of the following:
    let mut setup = Setup::default();
    setup.plan.keys.error_recovery_level = 0;
    let mut pair = Pair::up(setup);
    pair.answering = false;
    let data = pattern(1, 4096);
    let lost = pair.submit(write(0, 1, &data));
    let repeated = pair.submit(Request { replay: true, ..read(8, 4096) });
    pair.run();
    assert_eq!(pair.held(), 2);
    pair.cut_slot(0);
    assert!(matches!(pair.outcome(lost).end, TaskResult::Lost));
    assert!(pair.events.iter().any(|event| matches!(event, Event::Recovering)));
    pair.answering = true;
    pair.settle(0, Duration::from_secs(30));
    let outcome = pair.outcome(repeated);
    assert!(outcome.end.is_good());
    assert_eq!(outcome.data_in.as_deref(), Some(&pair.medium[4096..8192]));
    let up = pair.events.iter().find_map(|event| if let Event::Up(up) = event { Some(up) } else { None });
    assert_eq!(up.unwrap().origin, SessionOrigin::Rebuilt);
    assert_eq!((pair.session.stats().replays, pair.session.stats().sessions_rebuilt), (1, 1));
}

#[test]
fn requests_wait_while_the_target_is_away_and_fail_when_patience_ends() {
    let mut setup = Setup::default();
    setup.plan.keys.error_recovery_level = 0;
    setup.plan.retry.timeout = Duration::from_secs(20);
    let mut pair = Pair::up(setup);
    pair.reachable = false;
    pair.cut_slot(0);
    let waits = pair.submit(read(0, 512));
    pair.pass(Duration::from_secs(10));
    assert_eq!(pair.session.open_tasks(), 1);
    pair.reachable = true;
    pair.settle(0, Duration::from_secs(6));
    assert!(pair.outcome(waits).end.is_good());

    pair.reachable = false;
    pair.cut_slot(0);
    let fails = pair.submit(read(0, 512));
    pair.pass(Duration::from_secs(21));
    assert_eq!(pair.outcome(fails).end, TaskResult::NotSent);
    let why = SessionEnd::RetriesExhausted(ConnectionDown::Unreachable);
    assert!(matches!(pair.events.last(), Some(Event::Down(down)) if *down == why), "{:?}", pair.events);
    assert_eq!(pair.session.submit(pair.now, read(0, 512)), Err(SubmitError::Down));
    assert_eq!(pair.session.poll_timeout(), None);
}

#[test]
fn an_unreachable_target_is_told_at_once() {
    let mut setup = Setup::default();
    let other = Portal { address: crate::login::directory::TargetAddress::Socket(portal_address(1)) };
    setup.plan.portals.push(other);
    let mut pair = Pair::new(setup);
    assert!(pair.session.is_up() || !pair.events.iter().any(|event| matches!(event, Event::Down(_))));
    let mut setup = Setup::default();
    setup.plan.purpose = Purpose::Target(target_name(9));
    pair = Pair::new(setup);
    pair.run();
    let status = crate::login::Status::NOT_FOUND;
    let expected = SessionEnd::Permanent(ConnectionDown::Refused(status));
    assert!(matches!(pair.events.last(), Some(Event::Down(down)) if *down == expected), "{:?}", pair.events);
}

#[test]
fn a_logout_waits_for_open_tasks() {
    let mut pair = Pair::up(Setup::default());
    pair.answering = false;
    let task = pair.submit(read(0, 512));
    pair.run();
    let now = pair.now;
    pair.session.logout(now);
    pair.run();
    assert_eq!(pair.session.submit(now, read(0, 512)), Err(SubmitError::Down));
    pair.answering = true;
    pair.run();
    assert!(pair.outcome(task).end.is_good());
    assert!(matches!(pair.events.last(), Some(Event::Down(SessionEnd::LoggedOut))), "{:?}", pair.events);
    assert_eq!(pair.engine.sessions().count(), 0);
}

#[test]
fn task_management_ends_what_it_should() {
    //= rfc7143#section-4.2.3.3
    //= type=test
    //# The initiator MUST thus conclude all affected tasks as part of this step in either
    //# case and MUST discard any TMF Response received after the affected tasks are
    //# concluded.
    //= rfc7143#section-4.2.3.4
    //= type=test
    //# d) MUST treat the TMF Response as terminating all affected tasks for which responses
    //# have not been received
    for function in [
        TmfFunction::ABORT_TASK,
        TmfFunction::ABORT_TASK_SET,
        TmfFunction::CLEAR_TASK_SET,
        TmfFunction::LOGICAL_UNIT_RESET,
        TmfFunction::TARGET_WARM_RESET,
    ] {
        let mut pair = Pair::up(Setup::default());
        pair.answering = false;
        let task = pair.submit(read(0, 512));
        let other = pair.submit(Request { lun: 2 << 48, ..read(8, 512) });
        pair.run();
        let wanted = TmfParameters { function, lun: LUN, task: Some(task) };
        let now = pair.now;
        let id = pair.session.submit_tmf(now, wanted).unwrap();
        pair.run();
        assert_eq!(pair.outcome(task).end, TaskResult::Aborted, "{function:?}");
        let managed = |event: &Event| matches!(event, Event::TmfDone { id: of, result: Some(TmfResult::COMPLETE) } if *of == id);
        assert!(pair.events.iter().any(managed), "{function:?}: {:?}", pair.events);
        let wide = function == TmfFunction::TARGET_WARM_RESET;
        assert_eq!(pair.session.open_tasks(), usize::from(!wide));
        pair.answering = true;
        pair.run();
        assert_eq!(pair.outcome(other).end.is_good(), !wide);
    }
}

#[test]
fn the_command_window_holds_back_what_it_has_no_room_for() {
    //= rfc7143#section-4.2.2.1
    //= type=test
    //# iSCSI initiators and targets MUST support the command numbering scheme.
    let mut pair = Pair::up(Setup::default());
    pair.answering = false;
    let tasks: Vec<TaskId> = (0..500).map(|_| pair.submit(read(0, 512))).collect();
    pair.run();
    assert_eq!(pair.held(), 128);
    // An unsent task is aborted without any PDU to the target.
    let now = pair.now;
    let wanted = TmfParameters { function: TmfFunction::ABORT_TASK, lun: LUN, task: tasks.last().copied() };
    pair.session.submit_tmf(now, wanted).unwrap();
    pair.run();
    assert_eq!(pair.outcome(tasks[499]).end, TaskResult::NotSent);
    assert!(pair.tmfs.is_empty());
    pair.answering = true;
    pair.settle(0, Duration::from_secs(1));
    for task in &tasks[..499] {
        assert!(pair.outcome(*task).end.is_good());
    }
}

/// open-iscsi PR #224: a list of some 250 targets overflowed a buffer.
#[test]
fn ten_thousand_targets_are_discovered() {
    let mut setup = Setup::default();
    setup.plan.purpose = Purpose::Discovery;
    setup.plan.keys.max_recv_data_segment_length = 4096;
    let mut pair = Pair::new(setup);
    pair.names.count = 10_000;
    let now = pair.now;
    pair.session.send_targets(now, None).unwrap();
    pair.run();
    let found = pair.events.iter().find_map(|event| match event {
        Event::Targets { targets, ignored: 0 } => Some(targets),
        _ => None,
    });
    let found = found.expect("a list");
    assert_eq!(found.len(), 10_000);
    assert_eq!(found[9999].name, target_name(9999));
    pair.session.logout(now);
    pair.run();
    assert!(pair.session.is_down());
}

#[test]
fn chap_proves_both_sides_or_ends_the_session_for_good() {
    let policy = |own: Option<&[u8]>| crate::login::directory::AuthPolicy {
        allows_none: false,
        opaque: false,
        chap: crate::chap::Algorithms::ALL,
        own: own.map(|own| crate::chap::Credentials {
            name: "target".into(),
            secret: crate::chap::Secret::new(own).unwrap(),
        }),
    };
    for (own, peer, good) in [
        (&b"secret of twelve"[..], None, true),
        (b"secret of twelve", Some(&b"target's own secret"[..]), true),
        (b"another secret, wrong", None, false),
        (b"secret of twelve", Some(b"not the target's secret"), false),
    ] {
        let mut setup = Setup::default();
        setup.plan.auth = Pair::chap(own, peer);
        let mut pair = Pair::new(setup);
        pair.names.auth = policy(Some(b"target's own secret"));
        pair.names.user = Some(("user", b"secret of twelve"));
        pair.run();
        assert_eq!(pair.session.is_up(), good, "{:?}", pair.events);
        if !good {
            assert!(
                matches!(pair.events.last(), Some(Event::Down(SessionEnd::Permanent(_)))),
                "{:?}",
                pair.events
            );
        }
    }
}

#[test]
fn a_redirection_is_followed() {
    //= rfc7143#section-11.13.5
    //= type=test
    //# A redirection SHOULD be accepted by an initiator, even without having the target complete a security
    //# negotiation if any security negotiation is required, and MUST be accepted by the initiator after the
    //# completion of the security negotiation if any security negotiation is required.
    let mut pair = Pair::new(Setup::default());
    let to = portal_address(5);
    pair.names.moved = Some((portal_address(0), crate::login::directory::TargetAddress::Socket(to)));
    pair.run();
    assert!(pair.session.is_up(), "{:?}", pair.events);
    assert_eq!(pair.asked_for.last(), Some(&(Slot(0), to)));
}

#[test]
fn both_ends_ping_a_silent_peer_and_stay_together() {
    let mut pair = Pair::up(Setup::default());
    pair.pass(Duration::from_secs(120));
    assert!(pair.session.is_up());
    assert_eq!(pair.session.stats().connections_lost, 0);
    assert!(pair.session.stats().pdus_out > 10);
}

#[test]
fn level_2_survives_cut_connections_and_the_caller_notices_nothing() {
    //= rfc7143#section-7.1.5
    //= type=test
    //# When a defined value of ErrorRecoveryLevel is proposed by an originator in a text negotiation, the
    //# originator MUST support the functionality defined for the proposed value and, additionally,
    //# functionality corresponding to any defined value numerically less than the proposed value.
    let (mut cut, mut reassigned) = (0, 0);
    for seed in 0..40 {
        let connections = 1 + u16::try_from(seed % 4).unwrap();
        let faults = Faults { flips_up: 10, flips_down: 10, cuts: 20_000, budget: 12, ..Faults::default() };
        let mut pair = faulty(seed, 2, connections, faults);
        let mut rng = Rng::from_seed(seed);
        work(seed, &mut pair, &mut rng, 24, Duration::from_secs(60));
        let stats = pair.session.stats();
        assert_eq!((stats.sessions_rebuilt, stats.replays), (0, 0), "seed {seed}");
        cut += pair.cut;
        reassigned += stats.reassigns;
    }
    assert!(cut > 40 && reassigned > 20, "{cut} cut, {reassigned} tasks moved");
}

#[test]
fn several_connections_share_the_work() {
    let mut setup = Setup::default();
    setup.plan.connections = 4;
    let mut pair = Pair::up(setup);
    assert_eq!(pair.session.connections().filter(|view| view.up).count(), 4);
    pair.answering = false;
    for at in 0..40 {
        pair.submit(read(at, 4096));
    }
    pair.run();
    for view in pair.session.connections() {
        assert_eq!(view.tasks, 10, "{view:?}");
    }
    pair.answering = true;
    pair.settle(0, Duration::from_secs(1));
}

/// Whichever connection sends first: SIMPLE tasks are numbered as they are sent, and no other task changes
/// its order.
#[test]
fn ordered_and_head_of_queue_tasks_are_numbered_in_the_order_in_which_they_come() {
    const SIMPLE: TaskAttribute = TaskAttribute::SIMPLE;
    let mut setup = Setup::default();
    setup.plan.connections = 4;
    let mut pair = Pair::up(setup);
    let attributes =
        [SIMPLE, SIMPLE, TaskAttribute::ORDERED, SIMPLE, SIMPLE, TaskAttribute::HEAD_OF_QUEUE, SIMPLE];
    for (lba, attribute) in (0..).zip(attributes) {
        pair.submit(Request { attribute, ..read(lba, 512) });
    }
    for _ in 0..attributes.len() {
        for conn in (0..4).rev().map(ConnId) {
            let mut out = Transmit::new();
            pair.session.transmit(pair.now, conn, &mut out);
            out.clear(&pair.pools[0]);
        }
    }
    let mut sent: Vec<_> = (pair.session.tasks.iter())
        .map(|(_, task)| (task.cmd_sn.0, task.request.attribute, task.request.cdb[5]))
        .collect();
    sent.sort_unstable_by_key(|(number, ..)| *number);
    let order: Vec<u8> = sent.iter().map(|(_, _, lba)| *lba).collect();
    assert_eq!(order, [1, 0, 2, 4, 3, 5, 6]);
}
