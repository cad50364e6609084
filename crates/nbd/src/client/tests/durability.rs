//! What a flush or a write with FUA promises, when others fail or hang.

use super::*;

const FLUSH_ONLY: u16 = 1 | transmission::SEND_FLUSH;

fn rig(flags: u16) -> Rig {
    let mut rig = Rig::new(Server::new(ExportInfo { flags, ..info(1 << 20) }));
    rig.server.fua_flushes = true;
    rig
}

fn done(rig: &mut Rig, id: OpId) -> Option<Option<Fault>> {
    rig.result(id).map(|result| result.err().map(|failure| failure.fault))
}

#[test]
fn after_a_failed_write_with_fua_a_flush_repeats_the_changes_first() {
    let mut rig = rig(FLUSH_ONLY | transmission::SEND_FUA);
    rig.write(0, &[1; 512]);
    rig.settle();
    rig.server.fua_errors = vec![Errno::IO];
    let failed = rig.write_stable(4096, &[2; 512]);
    rig.settle();
    assert_eq!(rig.ended(), [(OpId(1), None), (failed, Some(Fault::Medium))]);
    let flush = rig.submit(OpAction::Flush);
    rig.settle();
    assert_eq!(done(&mut rig, flush), Some(None));
    assert_eq!(rig.server.durable[..512], [1; 512]);
}

#[test]
fn a_flush_that_fails_loses_nothing_once_the_client_knows_all_changes() {
    for (earlier, flushes_first, fails_first) in
        [("trusted", false, false), ("flushed", true, false), ("lost", true, true), ("unknown", false, false)]
    {
        let mut rig = rig(FLUSH_ONLY);
        rig.client.knows_all = earlier == "trusted";
        if flushes_first {
            rig.server.flush_errors = if fails_first { vec![Errno::IO] } else { vec![] };
            rig.client.flush_earlier_changes();
            rig.settle();
        }
        let is_lost = |rig: &Rig| (rig.client.has_lost(), rig.client.keeps_changes());
        assert_eq!(is_lost(&rig), (fails_first, ["trusted", "flushed"].contains(&earlier)), "{earlier}");
        if !fails_first {
            rig.write(0, &[1; 512]);
            rig.settle();
            rig.server.flush_errors = vec![Errno::IO];
            rig.submit(OpAction::Flush);
            rig.settle();
            let is_unknown = earlier == "unknown";
            assert_eq!(
                is_lost(&rig),
                (is_unknown, !is_unknown),
                "{earlier}: an earlier change is not repeated"
            );
        }
        rig.client.accept_lost_changes();
        let flush = rig.submit(OpAction::Flush);
        rig.settle();
        assert_eq!(done(&mut rig, flush), Some(None), "{earlier}");
        assert!(fails_first || rig.server.durable[..512] == [1; 512], "{earlier}");
        assert_eq!(is_lost(&rig), (false, true), "{earlier}");
    }
}

#[test]
fn after_a_failed_flush_that_of_a_write_repeats_the_changes_first() {
    let mut rig = rig(FLUSH_ONLY);
    rig.write(0, &[1; 512]);
    rig.settle();
    rig.server.flush_errors = vec![Errno::IO];
    let failed = rig.write_stable(4096, &[2; 512]);
    rig.settle();
    assert_eq!(rig.ended(), [(OpId(1), None), (failed, Some(Fault::Medium))]);
    let good = rig.write_stable(8192, &[3; 512]);
    rig.settle();
    let flush = rig.submit(OpAction::Flush);
    rig.settle();
    assert_eq!(rig.ended(), [(good, None), (flush, None)]);
    assert_eq!((rig.server.durable[0], rig.server.durable[8192]), (1, 3));
}

#[test]
fn after_a_failed_flush_the_clients_own_flushes_repeat_the_changes_first() {
    for closes in [false, true] {
        let mut rig = rig(FLUSH_ONLY);
        rig.write(0, &[1; 512]);
        rig.settle();
        rig.server.flush_errors = vec![Errno::IO];
        rig.submit(OpAction::Flush);
        rig.settle();
        if closes {
            rig.client.close()
        } else {
            rig.client.set_write_cache(false)
        }
        rig.settle();
        assert_eq!(rig.server.durable[..512], [1; 512], "{closes}");
        assert!(!rig.client.has_lost_changes());
    }
}

#[test]
fn a_flush_or_a_durable_write_during_which_another_failed_begins_again() {
    for stable in [false, true] {
        for flags in [FLUSH_ONLY, FLUSH_ONLY | transmission::SEND_FUA] {
            let mut rig = rig(flags);
            rig.write(0, &[1; 512]);
            rig.settle();
            let second = |rig: &mut Rig| match stable {
                true => rig.write_stable(512, &[2; 512]),
                false => rig.submit(OpAction::Flush),
            };
            // The second one writes before the first one fails, and is told nothing of the failure.
            let good = second(&mut rig);
            rig.drain();
            if stable && flags == FLUSH_ONLY {
                rig.answer(0);
            }
            let failed = rig.submit(OpAction::Flush);
            rig.drain();
            rig.server.flush_errors = vec![Errno::IO];
            rig.answer(1);
            rig.settle();
            assert_eq!(rig.ended(), [(OpId(1), None), (failed, Some(Fault::Medium)), (good, None)]);
            let flush = rig.submit(OpAction::Flush);
            rig.settle();
            assert_eq!(done(&mut rig, flush), Some(None));
            assert_eq!(rig.server.durable[..512], [1; 512], "stable {stable}, flags {flags:#x}");
            assert!(!stable || rig.server.durable[512..1024] == [2; 512], "flags {flags:#x}");
        }
    }
}

/// The server carries out what it holds, in order, and then sends the replies in the other order: each by
/// itself, or all of them at once.
fn answer_backwards(rig: &mut Rig, at_once: bool) {
    let replies: Vec<_> = core::iter::from_fn(|| rig.server.answer(0)).collect();
    if at_once {
        let all: Vec<u8> = replies.into_iter().rev().flatten().collect();
        rig.client.received(rig.now, &all);
        rig.drain();
        return;
    }
    for reply in replies.iter().rev() {
        assert_eq!(rig.ended(), [], "nothing is known before the last reply");
        rig.deliver(reply, &mut Rng::from_seed(1));
        rig.drain();
    }
}

#[test]
fn a_success_that_comes_before_the_failure_of_another_counts_for_nothing() {
    for (stable, at_once) in [(false, false), (false, true), (true, false), (true, true)] {
        for flags in [FLUSH_ONLY, FLUSH_ONLY | transmission::SEND_FUA] {
            let case = format!("stable {stable}, at once {at_once}, flags {flags:#x}");
            let mut rig = rig(flags);
            rig.write(0, &[1; 512]);
            let second = stable.then(|| rig.write_stable(512, &[2; 512]));
            rig.drain();
            if flags == FLUSH_ONLY {
                // The changes are written; what follows are flushes.
                (0..rig.server.held()).for_each(|_| rig.answer(0));
            } else {
                rig.answer(0);
            }
            assert_eq!(rig.ended(), [(OpId(1), None)]);
            let other = rig.submit(OpAction::Flush);
            rig.drain();
            let first = second.unwrap_or_else(|| rig.submit(OpAction::Flush));
            rig.drain();
            assert_eq!(rig.server.held(), 2);
            // The one that the server carries out first fails, and takes the only report with it.
            if flags == FLUSH_ONLY || !stable {
                rig.server.flush_errors = vec![Errno::IO];
            } else {
                rig.server.fua_errors = vec![Errno::IO];
            }
            let (failed, good) = if stable { (first, other) } else { (other, first) };
            answer_backwards(&mut rig, at_once);
            assert_eq!(rig.ended(), [(failed, Some(Fault::Medium))], "{case}");
            rig.settle();
            assert_eq!(rig.ended(), [(good, None)], "{case}");
            assert_eq!(rig.server.durable[..512], [1; 512], "{case}");
        }
    }
}

#[test]
fn a_durable_write_that_succeeds_before_a_flush_fails_is_written_again() {
    let mut rig = rig(FLUSH_ONLY | transmission::SEND_FUA);
    let write = rig.write_stable(0, &[1; 512]);
    let flush = rig.submit(OpAction::Flush);
    rig.drain();
    let written = rig.server.answer(0).unwrap();
    // The disk has lost it, and the flush is told.
    rig.server.durable.fill(0);
    rig.server.flush_errors = vec![Errno::IO];
    rig.deliver(&written, &mut Rng::from_seed(1));
    assert_eq!(rig.ended(), []);
    rig.settle();
    assert_eq!(rig.ended(), [(flush, Some(Fault::Medium)), (write, None)]);
    assert_eq!(rig.server.durable[..512], [1; 512]);
}

#[test]
fn a_success_waits_for_no_flush_that_begins_later_and_a_lost_connection_repeats_it() {
    let mut rig = rig(FLUSH_ONLY);
    rig.write(0, &[1; 512]);
    rig.settle();
    let (first, second) = (rig.submit(OpAction::Flush), rig.submit(OpAction::Flush));
    rig.drain();
    rig.answer(1);
    let third = rig.submit(OpAction::Flush);
    rig.drain();
    rig.answer(0);
    // The first one waits for the third one, which was under way when it ended.
    assert_eq!(rig.ended(), [(OpId(1), None), (second, None)]);
    rig.server.flush_errors = vec![Errno::IO];
    rig.restart(None);
    assert_eq!(rig.ended(), []);
    rig.server.flush_errors.clear();
    rig.settle();
    assert_eq!(rig.ended(), [(first, None), (third, None)]);
    assert_eq!(rig.server.durable[..512], [1; 512]);
}

#[test]
fn a_flush_that_waits_for_a_repetition_that_is_not_needed_any_more_is_sent() {
    let mut rig = rig(FLUSH_ONLY);
    rig.write(0, &[1; 512]);
    rig.settle();
    rig.client.set_write_cache(false);
    let first = rig.submit(OpAction::Flush);
    rig.drain();
    rig.server.flush_errors = vec![Errno::IO, Errno::IO];
    // The job's flush fails. The client's own is under way when the next flush comes, and drops the change.
    assert_eq!(rig.server.held(), 2);
    rig.answer(1);
    let next = rig.submit(OpAction::Flush);
    let last = rig.submit(OpAction::Flush);
    rig.settle();
    let lost = Some(Fault::Medium);
    assert_eq!(rig.ended(), [(OpId(1), None), (first, lost), (next, lost), (last, None)]);
}

#[test]
fn a_flush_that_comes_while_one_failed_and_one_is_under_way_is_sent() {
    let mut rig = rig(FLUSH_ONLY);
    rig.write(0, &[1; 512]);
    rig.settle();
    let failed = rig.submit(OpAction::Flush);
    let other = rig.submit(OpAction::Flush);
    rig.drain();
    rig.server.flush_errors = vec![Errno::IO];
    rig.answer(0);
    let next = rig.submit(OpAction::Flush);
    rig.settle();
    let mut ended = rig.ended();
    ended.sort_by_key(|(id, _)| id.0);
    assert_eq!(ended, [(OpId(1), None), (failed, Some(Fault::Medium)), (other, None), (next, None)]);
    assert_eq!(rig.server.durable[..512], [1; 512]);
}

#[test]
fn a_change_that_hangs_ends_with_its_reply_and_its_connection_is_kept_until_then() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let hung = rig.write(0, &[1; 512]);
    let read = rig.read(4096, 512);
    rig.drain();
    rig.wait();
    assert_eq!(rig.ended(), [(read, Some(Fault::Gone))]);
    assert_eq!(rig.notices, [Notice::Unanswered]);
    assert!(!rig.actions.contains(&ClientAction::Abort));
    let refused = rig.write(4096, &[2; 512]);
    assert_eq!(rig.ended(), [(refused, Some(Fault::Gone))]);
    rig.now = rig.now.after(Duration::from_secs(10));
    rig.answer(0);
    assert_eq!(rig.ended(), [(hung, None)]);
    assert_eq!(rig.actions.last(), Some(&ClientAction::Abort));
    rig.reconnect();
    rig.settle();
    let newer = rig.write(0, &[3; 512]);
    rig.settle();
    assert_eq!(rig.ended(), [(newer, None)]);
    rig.server.carry_out_left(0);
    assert_eq!(rig.server.present[..512], [3; 512]);
}

#[test]
fn a_closing_client_does_not_wait_for_a_change_that_hangs() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let hung = rig.write(0, &[1; 512]);
    rig.drain();
    rig.client.close();
    rig.drain();
    rig.wait();
    assert_eq!(rig.ended(), [(hung, Some(Fault::Gone))]);
    assert!(rig.client.is_closed());
}

#[test]
fn a_read_that_is_never_answered_ends_its_connection_although_others_are_answered() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let hung = rig.read(0, 512);
    rig.drain();
    for _ in 0..11 {
        rig.now = rig.now.after(Duration::from_secs(10));
        let other = rig.write(4096, &[1; 512]);
        rig.drain();
        rig.answer(1);
        assert_eq!(rig.ended(), [(other, None)]);
    }
    let last = rig.write(4096, &[2; 512]);
    rig.drain();
    rig.wait();
    assert_eq!(rig.now, Instant::ORIGIN.after(Duration::from_secs(120)));
    // The change that is under way ends first.
    assert!(!rig.actions.contains(&ClientAction::Abort));
    rig.answer(1);
    assert_eq!(rig.ended(), [(last, None)]);
    assert_eq!(rig.actions.last(), Some(&ClientAction::Abort));
    rig.reconnect();
    rig.settle();
    assert!(matches!(rig.result(hung), Some(Ok(_))));
}

#[test]
fn an_export_that_is_accepted_gets_no_changes_of_the_one_before() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(512, &[4; 512]);
    rig.settle();
    rig.server = Server::new(info(1 << 19));
    rig.restart(None);
    rig.client.accept_export();
    rig.drain();
    rig.client.connected(rig.now, rig.server.info);
    rig.settle();
    assert_eq!(rig.server.seen, []);
    assert!(rig.notices.contains(&Notice::LostChanges(Fault::Medium)), "{:?}", rig.notices);
    let (first, second) = (rig.submit(OpAction::Flush), rig.submit(OpAction::Flush));
    rig.settle();
    assert_eq!(rig.ended(), [(OpId(1), None), (first, Some(Fault::Medium)), (second, None)]);
}

#[test]
fn a_flush_tells_of_lost_changes_although_the_accepted_export_has_no_flush() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(512, &[4; 512]);
    rig.settle();
    rig.server = Server::new(ExportInfo { flags: 1, ..info(1 << 20) });
    rig.restart(None);
    assert_eq!(rig.notices.last(), Some(&Notice::Differs("it does not support FLUSH any more".into())));
    rig.client.accept_export();
    rig.drain();
    rig.client.connected(rig.now, rig.server.info);
    rig.settle();
    let (first, second) = (rig.submit(OpAction::Flush), rig.submit(OpAction::Flush));
    assert_eq!(rig.ended(), [(OpId(1), None), (first, Some(Fault::Medium)), (second, None)]);
}

#[test]
fn a_change_that_is_durable_is_not_undone_by_the_repetition_of_an_earlier_one() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    rig.write(0, &[1; 4096]);
    rig.settle();
    rig.write_stable(1024, &[2; 1024]);
    rig.settle();
    let whole = [vec![1; 1024], vec![2; 1024], vec![1; 2048]].concat();
    rig.server.seen.clear();
    rig.restart(None);
    rig.settle();
    let repeated: Vec<_> = rig.server.seen.iter().map(|request| (request.at, request.len)).collect();
    assert_eq!(repeated, [(0, 1024), (2048, 2048)]);
    assert_eq!(rig.server.present[..4096], whole);
    let flush = rig.submit(OpAction::Flush);
    rig.settle();
    assert_eq!(done(&mut rig, flush), Some(None));
    assert_eq!(rig.server.durable[..4096], whole);
}

#[test]
fn changes_are_repeated_in_pieces_that_the_server_accepts_now() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let data: Vec<u8> = (0..1_u32 << 20).map(|at| u8::try_from(at / 512 % 251).unwrap()).collect();
    rig.write(0, &data);
    rig.settle();
    rig.server.info.payload_len_max = 96 << 10;
    rig.restart(None);
    rig.settle();
    assert_eq!(rig.server.present, data);
    assert_eq!(rig.notices, [Notice::Lost, Notice::Back(1)]);
}
