//! Servers that die, hang, shut down and come back as something else.

use super::*;

/// An operation, and the block that it reads, or fills with a byte and whether durably; none for a flush.
type UnderWay = (OpId, Option<(u64, Option<(u8, bool)>)>);

/// What was acknowledged last for a block, and how many operations had begun by then; none after a failure.
type Known = Option<([u8; 512], u64)>;

#[test]
fn what_a_dead_server_had_not_flushed_is_repeated_before_anything_is_read() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    for (at, byte) in [(0, 1), (512, 2), (0, 3)] {
        rig.write(at, &[byte; 512]);
        rig.settle();
    }
    rig.submit(OpAction::Deallocate { at: 512, len: 512 });
    rig.settle();
    assert_eq!(rig.ended().len(), 4);
    let read = rig.read(0, 1024);
    rig.drain();
    rig.restart(None);
    rig.settle();
    assert_eq!(data_of(rig.result(read)), [[3; 512], [0; 512]].concat());
    assert_eq!(rig.notices, [Notice::Lost, Notice::Back(2)]);
    let flush = rig.submit(OpAction::Flush);
    rig.settle();
    assert!(matches!(rig.result(flush), Some(Ok(_))));
    assert_eq!(rig.server.durable[..512], [3; 512]);
    let before = rig.server.seen.len();
    rig.restart(None);
    rig.settle();
    assert_eq!(rig.server.seen.len(), before, "what was flushed is not repeated");
}

#[test]
fn commands_wait_within_the_limit_fail_after_it_and_work_again_when_the_server_is_back() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(0, &[9; 512]);
    rig.settle();
    assert_eq!(rig.ended(), [(OpId(1), None)]);
    rig.server.die(None);
    rig.client.disconnected(rig.now);
    rig.drain();
    let (read, flush) = (rig.read(0, 512), rig.submit(OpAction::Flush));
    let mut attempts = 0;
    while !rig.client.has_completions() {
        rig.wait();
        if rig.actions.last() == Some(&ClientAction::Connect) {
            rig.actions.clear();
            attempts += 1;
            rig.client.connect_failed(rig.now);
        }
    }
    assert_eq!(rig.now, Instant::ORIGIN.after(Duration::from_secs(30)));
    assert!((8..20).contains(&attempts), "{attempts}");
    // A flush that was not carried out has lost nothing.
    assert_eq!(rig.ended(), [(read, Some(Fault::Gone)), (flush, Some(Fault::NotSubmitted))]);
    assert_eq!(rig.notices, [Notice::Lost, Notice::Unanswered]);
    let late = rig.read(0, 512);
    assert_eq!(rig.ended(), [(late, Some(Fault::Gone))]);

    rig.reconnect();
    rig.settle();
    assert_eq!(rig.notices.last(), Some(&Notice::Back(1)));
    let read = rig.read(0, 512);
    rig.settle();
    assert_eq!(data_of(rig.result(read)), [9; 512]);
}

#[test]
fn a_server_that_hangs_is_left_after_the_limit() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    assert_eq!(rig.client.poll_timeout(), None);
    rig.now = Instant::ORIGIN.after(Duration::from_secs(1000));
    let read = rig.read(0, 512);
    rig.drain();
    rig.wait();
    assert_eq!(rig.now, Instant::ORIGIN.after(Duration::from_secs(1030)));
    assert_eq!(rig.ended(), [(read, Some(Fault::Gone))]);
    assert!(rig.actions.contains(&ClientAction::Abort));
    rig.reconnect();
    let read = rig.read(0, 512);
    rig.settle();
    assert!(matches!(rig.result(read), Some(Ok(_))));
}

#[test]
fn an_operation_that_ends_the_server_each_time_is_not_repeated_for_ever() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let poison = rig.write(0, &[6; 512]);
    rig.drain();
    for round in 0.. {
        assert!(round < 100);
        rig.now = rig.now.after(Duration::from_secs(7));
        let other = rig.read(4096, 512);
        rig.drain();
        let answer = rig.server.answer(rig.server.held() - 1).unwrap();
        rig.client.received(rig.now, &answer);
        let ended = rig.ended();
        assert!(ended.contains(&(other, None)), "{ended:?}");
        rig.restart(None);
        let ended = rig.ended();
        if ended == [(poison, Some(Fault::Gone))] {
            break;
        }
        assert!(ended.is_empty(), "{ended:?}");
    }
}

#[test]
fn a_server_that_shuts_down_is_left_and_its_requests_are_repeated() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let write = rig.write(0, &[6; 512]);
    rig.server.change_errors = vec![Errno::SHUTDOWN];
    rig.settle();
    assert!(rig.ended().is_empty());
    rig.reconnect();
    rig.settle();
    assert!(matches!(rig.result(write), Some(Ok(_))));
    assert_eq!(rig.notices, [Notice::Lost, Notice::Back(0)]);
}

#[test]
fn after_a_failed_flush_the_changes_are_repeated_before_the_next_one() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(512, &[4; 512]);
    rig.settle();
    rig.server.flush_errors = vec![Errno::IO];
    let first = rig.submit(OpAction::Flush);
    rig.settle();
    assert_eq!(rig.ended(), [(OpId(1), None), (first, Some(Fault::Medium))]);
    assert_eq!(rig.server.durable[512], 0, "the server dropped the write");
    let second = rig.submit(OpAction::Flush);
    rig.settle();
    assert_eq!(rig.ended(), [(second, None)]);
    assert_eq!(rig.server.durable[512..1024], [4; 512]);
}

#[test]
fn a_change_that_cannot_be_repeated_makes_the_next_flush_fail() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(512, &[4; 512]);
    rig.settle();
    rig.server.change_errors = vec![Errno::NOSPC];
    rig.restart(None);
    rig.settle();
    assert_eq!(rig.notices, [Notice::Lost, Notice::LostChanges(Fault::NoSpace), Notice::Back(1)]);
    let (first, second) = (rig.submit(OpAction::Flush), rig.submit(OpAction::Flush));
    rig.settle();
    assert_eq!(rig.ended(), [(OpId(1), None), (first, Some(Fault::NoSpace)), (second, None)]);
}

#[test]
fn an_export_that_has_changed_is_served_if_it_only_grew() {
    let smaller = ExportInfo { len: 1 << 19, ..info(1 << 20) };
    let read_only = ExportInfo { flags: 3, ..info(1 << 20) };
    let coarse = ExportInfo { block_len: 4096, ..info(1 << 20) };
    for (other, why) in [
        (smaller, "it has shrunk to 524288 bytes; 1048576 are served"),
        (read_only, "it is read-only now"),
        (coarse, "it must be read and written in blocks of 4096 bytes now"),
    ] {
        let mut rig = Rig::new(Server::new(info(1 << 20)));
        let read = rig.read(0, 512);
        rig.drain();
        rig.server = Server::new(other);
        rig.restart(None);
        assert_eq!(rig.notices, [Notice::Lost, Notice::Differs(why.into())]);
        assert_eq!(rig.ended(), [(read, Some(Fault::Gone))]);
        rig.client.accept_export();
        rig.drain();
        assert_eq!(rig.actions.last(), Some(&ClientAction::Connect));
        rig.client.connected(rig.now, other);
        assert_eq!(rig.client.capabilities().len, other.len);
        let read = rig.read(0, 4096);
        rig.settle();
        assert!(matches!(rig.result(read), Some(Ok(_))), "{why}");
    }
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.server = Server::new(info(2 << 20));
    rig.restart(None);
    assert_eq!(rig.notices, [Notice::Lost, Notice::Resized, Notice::Back(0)]);
    assert_eq!(rig.client.capabilities().len, 2 << 20);
}

/// Operations that do not overlap are under way together while the server answers in any order, and dies and
/// loses any of the changes that were not flushed. Some servers also fail to flush and forget it, or hang for
/// longer than the limit. Each read must return what was acknowledged last. When a flush is good, the disk of
/// the server must hold everything that was acknowledged before it; when a durable change is good, that one.
#[test]
fn no_acknowledged_change_is_lost_whenever_the_server_dies() {
    const BLOCKS: u64 = 16;
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let flags = [0, transmission::SEND_FUA][to_usize(rng.below(2))] | 1 | transmission::SEND_FLUSH;
        let flags = flags | transmission::SEND_TRIM | transmission::SEND_WRITE_ZEROES;
        let structured = rng.chance(1, 2);
        let (fails, hangs) = (rng.chance(1, 2), rng.chance(1, 2));
        let mut rig = Rig::new(Server::new(ExportInfo { flags, structured, ..info(BLOCKS * 512) }));
        rig.server.fua_flushes = rng.chance(1, 2);
        let mut model: Vec<Known> = vec![Some(([0_u8; 512], 0)); to_usize(BLOCKS)];
        let mut under_way: Vec<UnderWay> = Vec::new();
        for step in 0..500_u32 {
            match rng.below(12) {
                0..=4 => {
                    let block = rng.below(BLOCKS);
                    let is_used = |op: &UnderWay| matches!(op.1, Some((other, _)) if other == block);
                    if step < 400 && under_way.len() < 20 && !under_way.iter().any(is_used) {
                        let (action, effect) = some_action(&mut rng, block * 512);
                        let id = rig.submit(action);
                        under_way.push((id, Some((block, effect))));
                    }
                }
                5 if step < 400 => {
                    let id = rig.submit(OpAction::Flush);
                    under_way.push((id, None));
                }
                6 if rng.chance(1, 4) && rig.client.link == Link::Up => rig.restart(Some(&mut rng)),
                6 if fails && step < 400 => match rng.chance(1, 2) {
                    true => rig.server.flush_errors = vec![Errno::IO],
                    false => rig.server.fua_errors = vec![Errno::IO],
                },
                7 if hangs && step < 400 && rng.chance(1, 4) => {
                    rig.now = rig.now.after(Duration::from_secs(31));
                    rig.client.handle_timeout(rig.now);
                }
                8 => rig.server.carry_out_left(to_usize(rng.below(64))),
                _ => {
                    rig.drain();
                    let which = to_usize(rng.below(64));
                    if let Some(answer) = rig.server.answer(which) {
                        rig.deliver(&answer, &mut rng);
                    }
                }
            }
            rig.drain();
            if step >= 400 {
                rig.server.flush_errors.clear();
                rig.server.fua_errors.clear();
            }
            match rig.client.link {
                Link::Down { .. } if rng.chance(1, 2) => rig.reconnect(),
                Link::Connecting => {
                    rig.client.connected(rig.now, rig.server.info);
                    rig.drain();
                }
                _ => {}
            }
            if step >= 490 {
                rig.settle();
            }
            let context = format!("seed {seed}, step {step}");
            check_ended(&mut rig, &mut model, &mut under_way, (fails || hangs, &context));
        }
        assert!(under_way.is_empty(), "seed {seed}");
        rig.server.carry_out_left(0);
        let flush = rig.submit(OpAction::Flush);
        rig.settle();
        assert!(matches!(rig.result(flush), Some(Ok(_))), "seed {seed}");
        for (block, known) in model.iter().enumerate() {
            if let Some((expected, _)) = known {
                assert_eq!(rig.server.durable[block * 512..][..512], *expected, "seed {seed}, block {block}");
            }
        }
        assert!(
            !rig.notices.iter().any(|notice| matches!(notice, Notice::Broken(_) | Notice::LostChanges(_)))
        );
    }
}

fn some_action(rng: &mut Rng, at: u64) -> (OpAction, Option<(u8, bool)>) {
    let byte = u8::try_from(1 + rng.below(255)).unwrap();
    let durability = [Durability::Cached, Durability::Stable][to_usize(rng.below(2))];
    let is_stable = durability == Durability::Stable;
    match rng.below(6) {
        0 => (OpAction::Deallocate { at, len: 512 }, Some((0, false))),
        1 => {
            let action = OpAction::WriteZeroes { at, len: 512, may_deallocate: true, durability };
            (action, Some((0, is_stable)))
        }
        2 | 3 => (OpAction::Read { at, len: 512 }, None),
        _ => {
            let data = Bytes::copied_from(&[byte; 512]).into();
            (OpAction::Write { at, data, durability }, Some((byte, is_stable)))
        }
    }
}

/// Checks the operations that have ended.
fn check_ended(
    rig: &mut Rig,
    model: &mut [Known],
    under_way: &mut Vec<UnderWay>,
    (may_fail, context): (bool, &str),
) {
    while let Some(done) = rig.client.poll() {
        let place = under_way.iter().position(|(id, _)| *id == done.id).unwrap();
        let (_, what) = under_way.swap_remove(place);
        let on_disk = |block: usize| &rig.server.durable[block * 512..block * 512 + 512];
        match (what, done.result) {
            (Some((block, Some((byte, is_stable)))), Ok(_)) => {
                let block = to_usize(block);
                model[block] = Some(([byte; 512], rig.next_op));
                let is_lost = is_stable && on_disk(block) != [byte; 512];
                assert!(!is_lost, "{context}, durable block {block}");
            }
            (Some((block, Some(_))), Err(_)) => model[to_usize(block)] = None,
            (Some((block, None)), Ok(OpOutput::Data(data))) => {
                let got: Vec<u8> = data.parts().iter().flat_map(|part| part.to_vec()).collect();
                if let Some((expected, _)) = model[to_usize(block)] {
                    assert_eq!(got, expected, "{context}, block {block}");
                }
            }
            (None, Ok(_)) => {
                for (block, known) in model.iter().enumerate() {
                    let changes =
                        |op: &UnderWay| matches!(op.1, Some((at, Some(_))) if to_usize(at) == block);
                    if let Some((expected, since)) = known
                        && *since < done.id.0
                        && !under_way.iter().any(changes)
                    {
                        assert_eq!(on_disk(block), expected, "{context}, flushed block {block}");
                    }
                }
            }
            (_, Err(failure)) => assert!(may_fail, "{context}: {failure:?}"),
            (what, Ok(_)) => panic!("{context}: {what:?}"),
        }
    }
}

#[test]
fn a_change_waits_for_an_earlier_one_of_the_same_bytes() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let (first, second) = (rig.write(0, &[1; 1024]), rig.write(512, &[2; 1024]));
    // It overlaps only the one that waits, and would make it wait for ever if it passed it each time.
    let third = rig.write(1024, &[3; 512]);
    let (other, read) = (rig.write(4096, &[4; 512]), rig.read(0, 512));
    rig.drain();
    assert_eq!(rig.server.held(), 3, "the first and the other write, and the read");
    rig.answer(1);
    assert_eq!(rig.ended(), [(other, None)]);
    rig.answer(0);
    assert_eq!((rig.ended(), rig.server.held()), (vec![(first, None)], 2));
    rig.settle();
    assert_eq!(rig.ended(), [(read, None), (second, None), (third, None)]);
    let written = [[1; 512], [2; 512], [3; 512]].concat();
    assert_eq!(rig.server.present[..1536], written);
    rig.restart(None);
    rig.settle();
    assert_eq!(rig.server.present[..1536], written);
    // The operations that wait fail with the others, and work on the next connection.
    rig.write(0, &[5; 512]);
    let waits = rig.write(0, &[6; 512]);
    rig.drain();
    rig.restart(None);
    rig.settle();
    assert_eq!((rig.ended().last(), rig.server.present[0]), (Some(&(waits, None)), 6));
}

/// Changes overlap, and the server carries them out in one order and answers in another one. What hosts read
/// when all are acknowledged must be there after the server has lost everything that was not flushed.
#[test]
fn what_is_repeated_is_what_hosts_have_read() {
    for seed in 0..200 {
        let mut rng = Rng::from_seed(seed);
        let payload_len_max = [1024, 32 << 20][to_usize(rng.below(2))];
        let mut rig = Rig::new(Server::new(ExportInfo { payload_len_max, ..info(16 * 512) }));
        for byte in 1..12 {
            let at = rng.below(12);
            let len = 1 + rng.below(4);
            rig.write(at * 512, &vec![byte; to_usize(len) * 512]);
        }
        rig.drain();
        while rig.server.held() > 0 {
            let mut answers: Vec<Vec<u8>> = Vec::new();
            while let Some(answer) = rig.server.answer(to_usize(rng.below(64))) {
                answers.push(answer);
            }
            while !answers.is_empty() {
                let answer = answers.swap_remove(to_usize(rng.below(to_u64(answers.len()))));
                rig.deliver(&answer, &mut rng);
            }
            rig.drain();
        }
        assert_eq!(rig.ended().len(), 11, "seed {seed}");
        let read = rig.server.present.clone();
        rig.restart(None);
        rig.settle();
        assert_eq!(rig.server.present, read, "seed {seed}");
    }
}
