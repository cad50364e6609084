use super::*;
use crate::block_model::MAX_VERSIONS;
use crate::order::{Attribute, TaskPosition};
use crate::pattern::Pattern;
use alloc::string::ToString;
use alloc::vec;
use base::rng::Rng;

const DEVICE: DeviceId = DeviceId(7);
const ME: WriterId = WriterId(1);
const BLOCK: usize = 1024;

/// A history, and a sequence number for its writes.
#[derive(Clone)]
struct Desk {
    history: History,
    sequence: u64,
}

impl Desk {
    fn new() -> Self {
        Self { history: History::new(InitialContent::Zero, true), sequence: 0 }
    }

    /// Submits a write of one block. Returns the operation and the bytes that it writes.
    fn write(&mut self, lba: u64, stable: bool) -> (OpId, Vec<u8>) {
        self.sequence += 1;
        let bytes = self.signed(lba, self.sequence);
        let content = Planned::Signed(ME, Sequence(self.sequence));
        (self.history.submit(change(lba, 1, content, stable)), bytes)
    }

    fn signed(&self, lba: u64, sequence: u64) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        let block_header = BlockHeader {
            device: DEVICE,
            lba: Lba(lba),
            generation: self.history.next_generation(DEVICE, Lba(lba)),
            writer: ME,
            sequence: Sequence(sequence),
            time_ns: 0,
            seed: 0,
            pattern: Pattern::Fixed,
        };
        block_header.sign(&mut bytes).unwrap();
        bytes
    }

    fn done(&mut self, lba: u64) -> Vec<u8> {
        let (op, bytes) = self.write(lba, false);
        self.history.end_change(op, ChangeResult::Done);
        bytes
    }

    fn begin(&mut self, lba: u64) -> ReadId {
        self.history.read_begin(DEVICE, Lba(lba), 1)
    }

    fn judge(&mut self, read: ReadId, bytes: &[u8]) -> Option<Violation> {
        let findings = self.history.read_end(read, BLOCK, bytes);
        findings.first().map(|finding| finding.violation)
    }

    fn read(&mut self, lba: u64, bytes: &[u8]) -> Option<Violation> {
        let read = self.begin(lba);
        self.judge(read, bytes)
    }

    fn flush(&mut self) {
        let flush = self.history.flush_begin(DEVICE);
        self.history.flush_end(flush);
    }
}

fn change(lba: u64, blocks: u64, content: Planned, stable: bool) -> Change {
    Change { device: DEVICE, lba: Lba(lba), blocks, content, stable, optional: false }
}

const ZEROS: [u8; BLOCK] = [0; BLOCK];

#[test]
fn what_was_acknowledged_must_be_read_back() {
    let mut desk = Desk::new();
    assert_eq!(desk.read(1, &ZEROS), None);
    let old = desk.done(1);
    assert_eq!(desk.read(1, &old), None);
    assert_eq!(desk.read(1, &ZEROS), Some(Violation::Lost));
    let new = desk.done(1);
    assert_eq!(desk.read(1, &old), Some(Violation::Stale));
    assert_eq!(desk.read(1, &new), None);
    assert_eq!(desk.history.versions(), 3, "nothing is forgotten while a crash could bring it back");
    desk.flush();
    assert_eq!(desk.history.versions(), 1);
    assert_eq!(desk.read(1, &old), Some(Violation::Stale), "still known for what it is");
}

#[test]
fn a_block_of_another_place_or_nobody_is_told_apart() {
    let mut desk = Desk::new();
    let one = desk.done(1);
    desk.done(2);
    assert_eq!(desk.read(2, &one), Some(Violation::Misdirected));
    let unsent = desk.signed(2, 99);
    assert_eq!(desk.read(2, &unsent), Some(Violation::Unsubmitted));
    let mut foreign = vec![0; BLOCK];
    let BlockCheck::Signed(block_header) = BlockCheck::of(&one) else { panic!() };
    BlockHeader { device: DeviceId(8), ..block_header }.sign(&mut foreign).unwrap();
    assert_eq!(desk.read(1, &foreign), Some(Violation::Foreign));
    let mut garbled = one.clone();
    garbled[700] ^= 4;
    assert_eq!(desk.read(1, &garbled), Some(Violation::Garbled));
}

#[test]
fn a_write_under_way_may_be_seen_or_not_but_never_unseen_again() {
    let mut desk = Desk::new();
    let old = desk.done(1);
    let (_, new) = desk.write(1, false);
    assert_eq!(desk.read(1, &old), None);
    assert_eq!(desk.read(1, &new), None);
    assert_eq!(desk.read(1, &old), Some(Violation::Stale));
}

#[test]
fn a_read_that_began_earlier_may_still_see_the_old_block() {
    let mut desk = Desk::new();
    let old = desk.done(1);
    let early = desk.begin(1);
    let (op, new) = desk.write(1, false);
    desk.history.end_change(op, ChangeResult::Done);
    assert_eq!(desk.read(1, &new), None);
    desk.flush();
    assert_eq!(desk.judge(early, &old), None);
}

#[test]
fn of_two_writes_at_once_either_may_win_and_the_first_read_decides() {
    for second_wins in [false, true] {
        let mut desk = Desk::new();
        let (a, first) = desk.write(1, false);
        let (b, second) = desk.write(1, false);
        desk.history.end_change(b, ChangeResult::Done);
        desk.history.end_change(a, ChangeResult::Done);
        let (winner, loser) = if second_wins { (second, first) } else { (first, second) };
        assert_eq!(desk.read(1, &winner), None);
        assert_eq!(desk.read(1, &loser), Some(Violation::Stale));
        assert_eq!(desk.read(1, &ZEROS), Some(Violation::Lost));
    }
}

#[test]
fn a_lost_write_may_still_take_effect_until_its_task_is_gone() {
    let mut desk = Desk::new();
    let (zombie, late) = desk.write(1, false);
    desk.history.end_change(zombie, ChangeResult::Unknown);
    let new = desk.done(1);
    assert_eq!(desk.read(1, &new), None);
    assert_eq!(desk.read(1, &late), None, "executed late, after all");
    assert_eq!(desk.read(1, &new), Some(Violation::Stale), "the other one cannot come back");
    let (zombie, late) = desk.write(1, false);
    desk.history.end_change(zombie, ChangeResult::Unknown);
    desk.history.conclude_unknown(zombie);
    let newest = desk.done(1);
    assert_eq!(desk.read(1, &late), Some(Violation::Stale));
    assert_eq!(desk.read(1, &newest), None);
}

#[test]
fn a_write_executed_twice_shows() {
    let mut desk = Desk::new();
    let (op, first) = desk.write(1, false);
    assert_eq!(desk.read(1, &first), None);
    desk.done(1);
    desk.history.end_change(op, ChangeResult::Done);
    assert_eq!(desk.read(1, &first), Some(Violation::Stale));
}

#[test]
fn what_was_refused_must_not_have_happened() {
    let mut desk = Desk::new();
    let (op, bytes) = desk.write(1, false);
    desk.history.end_change(op, ChangeResult::Refused);
    assert_eq!(desk.read(1, &bytes), Some(Violation::Unsubmitted));
    assert_eq!(desk.read(1, &ZEROS), None);
}

#[test]
fn a_failed_write_may_have_happened_in_part() {
    let mut desk = Desk::new();
    let old = desk.done(1);
    let (op, new) = desk.write(1, false);
    let torn = [&new[..512], &old[512..]].concat();
    assert_eq!(desk.read(1, &torn), Some(Violation::Torn));
    desk.history.end_change(op, ChangeResult::Failed);
    assert_eq!(desk.read(1, &torn), None);
    assert_eq!(desk.read(1, &old), None);
    let third = desk.done(1);
    assert_eq!(desk.read(1, &torn), Some(Violation::Torn));
    assert_eq!(desk.read(1, &third), None);
}

#[test]
fn a_crash_may_bring_back_forgotten_versions_whole_or_in_part() {
    let mut desk = Desk::new();
    let change = change(1, 1, Planned::Zero, false);
    let zeros = desk.history.submit(change);
    desk.history.end_change(zeros, ChangeResult::Done);
    let oldest = desk.done(1);
    for _ in 0..2 * MAX_VERSIONS {
        desk.done(1);
    }
    let newest = desk.done(1);
    let mut flushed = desk.clone();
    desk.history.crash(DEVICE);
    let torn = [&newest[..512], &ZEROS[512..]].concat();
    assert_eq!(desk.clone().read(1, &torn), None, "in part");
    assert_eq!(desk.clone().read(1, &ZEROS), None, "whole");
    assert_eq!(desk.clone().read(1, &oldest), None, "whole");
    let foreign = desk.signed(2, 1);
    assert_eq!(desk.read(1, &foreign), Some(Violation::Misdirected), "no write to this block");
    let fresh = flushed.done(1);
    flushed.flush();
    flushed.history.crash(DEVICE);
    for old in [&torn, &ZEROS.to_vec(), &oldest] {
        assert!(flushed.clone().read(1, old).is_some(), "a flush came between");
    }
    assert_eq!(flushed.read(1, &fresh), None);
}

#[test]
fn a_crash_brings_back_what_was_not_flushed_and_nothing_else() {
    let mut desk = Desk::new();
    let versions: Vec<_> = (0..4).map(|_| desk.done(1)).collect();
    desk.flush();
    let cached = [desk.done(1), desk.done(1)];
    let (_, under_way) = desk.write(1, true);
    desk.history.crash(DEVICE);
    for (bytes, wrong) in [
        (&versions[2], Some(Violation::Stale)),
        (&versions[3], None),
        (&cached[0], None),
        (&cached[1], None),
        (&under_way, None),
    ] {
        assert_eq!(desk.clone_for().read(1, bytes), wrong);
    }
    assert_eq!(desk.read(1, &cached[0]), None);
    assert_eq!(desk.read(1, &cached[1]), Some(Violation::Stale), "what is found after a crash stays");
    desk.history.crash(DEVICE);
    assert_eq!(desk.read(1, &cached[1]), Some(Violation::Stale), "also after the next");
}

#[test]
fn an_answer_that_arrives_after_a_crash_says_nothing_of_what_was_kept() {
    let mut desk = Desk::new();
    let (op, bytes) = desk.write(1, false);
    let (through, stable) = desk.write(2, true);
    let flush = desk.history.flush_begin(DEVICE);
    desk.history.crash(DEVICE);
    desk.history.end_change(op, ChangeResult::Done);
    desk.history.end_change(through, ChangeResult::Done);
    desk.history.flush_end(flush);
    assert_eq!(desk.clone_for().read(1, &ZEROS), None);
    assert_eq!(desk.read(1, &bytes), None);
    assert_eq!(desk.clone_for().read(2, &ZEROS), Some(Violation::Lost));
    assert_eq!(desk.read(2, &stable), None);
}

#[test]
fn a_read_that_a_crash_came_into_does_not_tell_what_was_kept() {
    let mut desk = Desk::new();
    let old = desk.done(1);
    let new = desk.done(1);
    let read = desk.begin(1);
    desk.history.crash(DEVICE);
    assert_eq!(desk.judge(read, &new), None);
    assert_eq!(desk.read(1, &old), None);
}

#[test]
fn what_was_written_through_survives() {
    let mut desk = Desk::new();
    let old = desk.done(1);
    let (op, new) = desk.write(1, true);
    desk.history.end_change(op, ChangeResult::Done);
    desk.history.crash(DEVICE);
    assert_eq!(desk.read(1, &old), Some(Violation::Stale));
    assert_eq!(desk.read(1, &new), None);
}

#[test]
fn a_flush_does_not_cover_what_ended_after_it_began() {
    let mut desk = Desk::new();
    let (op, bytes) = desk.write(1, false);
    let flush = desk.history.flush_begin(DEVICE);
    desk.history.end_change(op, ChangeResult::Done);
    desk.history.flush_end(flush);
    desk.history.crash(DEVICE);
    assert_eq!(desk.clone_for().read(1, &ZEROS), None);
    assert_eq!(desk.read(1, &bytes), None);
}

#[test]
fn zeros_and_copies_and_one_block_for_many_are_judged() {
    let mut desk = Desk::new();
    let source = desk.done(1);
    desk.done(5);
    let copy = desk.history.submit(change(5, 1, Planned::CopyOf(DEVICE, Lba(1)), false));
    let newer = desk.done(1);
    assert_eq!(desk.clone_for().read(5, &newer), None, "copied late, and seen before it ended");
    desk.history.end_change(copy, ChangeResult::Done);
    assert_eq!(desk.clone_for().read(5, &newer), None, "copied before or after");
    assert_eq!(desk.read(5, &source), None);
    assert_eq!(desk.read(5, &newer), Some(Violation::Misdirected), "but not both");
    let same = desk.signed(20, 50);
    let mark = BlockSignature { device: DEVICE, lba: Lba(20), writer: ME, sequence: Sequence(50) };
    let op = desk.history.submit(change(20, 3, Planned::Same(mark), false));
    desk.history.end_change(op, ChangeResult::Done);
    assert_eq!(desk.read(22, &same), None);
    assert_eq!(desk.read(23, &same), Some(Violation::Misdirected));
    let hint = Change { optional: true, ..change(20, 1, Planned::Zero, false) };
    let op = desk.history.submit(hint);
    desk.history.end_change(op, ChangeResult::Done);
    assert_eq!(desk.clone_for().read(20, &same), None);
    assert_eq!(desk.read(20, &ZEROS), None);
    assert_eq!(desk.read(20, &same), Some(Violation::Stale));
}

#[test]
fn a_comparison_tells_what_a_block_held() {
    let mut desk = Desk::new();
    let old = Content::Zero;
    desk.done(1);
    let now = desk.history.expected_content(DEVICE, Lba(1))[0];
    for (content, matched, plausible) in
        [(old, true, false), (old, false, true), (now, true, true), (now, false, false)]
    {
        let read = desk.begin(1);
        let finding = desk.history.judge_compare(read, Lba(1), content, matched, None);
        assert_eq!(finding.map(|finding| finding.violation), (!plausible).then_some(Violation::Miscompared));
        desk.history.read_failed(read);
    }
}

#[test]
fn an_unknown_medium_is_believed_once() {
    let mut desk = Desk::new();
    desk.history = History::new(InitialContent::Anything, false);
    let noise = [0x5a; BLOCK];
    assert_eq!(desk.read(1, &noise), None);
    assert_eq!(desk.read(2, &ZEROS), None);
    let bytes = desk.done(1);
    assert_eq!(desk.read(1, &noise), Some(Violation::Garbled));
    assert_eq!(desk.read(1, &bytes), None);
    let left = desk.signed(2, 40);
    assert_eq!(desk.read(2, &left), Some(Violation::Unsubmitted));
}

#[test]
fn a_finding_says_what_was_expected_and_found() {
    let mut desk = Desk::new();
    let old = desk.done(1);
    desk.done(1);
    let read = desk.begin(1);
    let findings = desk.history.read_end(read, BLOCK, &old);
    assert_eq!(
        findings[0].to_string(),
        "LBA 0x1 of device 0000000000000007 is stale: it holds generation 1 of LBA 0x1 on device 0000000000000007, by \
         writer 00000001 as its operation 1 at 0.000000000 s; expected operation 2 of writer 00000001 for LBA 0x1"
    );
}

#[test]
fn memory_stays_bounded_without_flushes() {
    let mut desk = Desk::new();
    for _ in 0..1000 {
        desk.done(1);
    }
    assert!(desk.history.versions() <= 65);
    let early = desk.signed(1, 3);
    desk.history.crash(DEVICE);
    assert_eq!(desk.read(1, &early), None, "what was forgotten gets the benefit of the doubt");
}

impl Desk {
    /// Returns a copy for checks that must not affect the original.
    fn clone_for(&self) -> Self {
        Self { history: self.history.clone(), sequence: self.sequence }
    }
}

/// A write under way in a run against the simulated medium.
struct Running {
    op: OpId,
    lba: u64,
    bytes: Vec<u8>,
    applied: bool,
}

/// Runs random operations, each of which takes effect at a random moment between its submission and its end,
/// with a volatile cache and crashes. From step `bug` on, writes are lost silently. Returns the first
/// violation.
fn run(seed: u64, bug: Option<u64>) -> Option<Violation> {
    let mut rng = Rng::from_seed(seed);
    let mut desk = Desk::new();
    let mut cached: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut durable = cached.clone();
    let mut writes: Vec<Running> = vec![];
    let mut reads: Vec<(ReadId, u64, Option<Vec<u8>>)> = vec![];
    for step in 0..400 {
        let lba = rng.below(3);
        match rng.below(20) {
            0..5 => {
                let (op, bytes) = desk.write(lba, false);
                writes.push(Running { op, lba, bytes, applied: false });
            }
            5..10 if !writes.is_empty() => {
                let at = usize::try_from(rng.below(u64::try_from(writes.len()).unwrap())).unwrap();
                if !writes[at].applied {
                    writes[at].applied = true;
                    if bug.is_none_or(|bug| step < bug) {
                        cached.insert(writes[at].lba, writes[at].bytes.clone());
                    }
                } else {
                    let ended = writes.remove(at);
                    desk.history.end_change(
                        ended.op,
                        if rng.chance(1, 4) { ChangeResult::Failed } else { ChangeResult::Done },
                    );
                }
            }
            10..13 => reads.push((desk.begin(lba), lba, None)),
            13..18 if !reads.is_empty() => {
                let at = usize::try_from(rng.below(u64::try_from(reads.len()).unwrap())).unwrap();
                let (read, lba, value) = &mut reads[at];
                match value {
                    None => *value = Some(cached.get(lba).cloned().unwrap_or(ZEROS.to_vec())),
                    Some(bytes) => {
                        let wrong = desk.judge(*read, bytes);
                        if wrong.is_some() {
                            return wrong;
                        }
                        reads.remove(at);
                    }
                }
            }
            18 => {
                desk.flush();
                durable.clone_from(&cached);
            }
            _ if rng.chance(1, 8) => {
                desk.history.crash(DEVICE);
                for running in writes.drain(..) {
                    desk.history.end_change(running.op, ChangeResult::Failed);
                }
                for (read, ..) in reads.drain(..) {
                    desk.history.read_failed(read);
                }
                for (lba, bytes) in &cached {
                    if rng.chance(1, 2) {
                        durable.insert(*lba, bytes.clone());
                    }
                }
                cached.clone_from(&durable);
            }
            _ => {}
        }
    }
    None
}

#[test]
fn a_medium_that_keeps_its_promises_is_never_accused() {
    for seed in 0..300 {
        assert_eq!(run(seed, None), None, "seed {seed}");
    }
}

#[test]
fn a_medium_that_loses_writes_is_found_out() {
    let found = (0..100).filter(|seed| run(*seed, Some(50)).is_some()).count();
    assert!(found >= 99, "{found} of 100");
}

/// Returns a position in the only task set of the tests.
fn place(number: u64, attribute: Attribute) -> Option<TaskPosition> {
    Some(TaskPosition { set: 1, number, attribute })
}

/// Submits a write of block 0 at a position in the task set.
fn write_at(desk: &mut Desk, place: Option<TaskPosition>) -> (OpId, Vec<u8>) {
    desk.sequence += 1;
    let bytes = desk.signed(0, desk.sequence);
    let content = Planned::Signed(ME, Sequence(desk.sequence));
    (desk.history.submit_ordered(change(0, 1, content, false), place), bytes)
}

#[test]
fn an_ordered_write_comes_after_older_ones_and_before_younger_ones() {
    use Attribute::{Ordered, Simple};
    for (first, second, legal) in [
        (Simple, Simple, true),
        (Simple, Ordered, false),
        (Ordered, Simple, false),
        (Attribute::HeadOfQueue, Simple, false),
        (Ordered, Attribute::HeadOfQueue, true),
    ] {
        let mut desk = Desk::new();
        let (older, old) = write_at(&mut desk, place(1, first));
        let (younger, new) = write_at(&mut desk, place(2, second));
        desk.history.end_change(younger, ChangeResult::Done);
        desk.history.end_change(older, ChangeResult::Done);
        let wrong = (!legal).then_some(Violation::Reordered);
        assert_eq!(desk.clone().read(0, &old), wrong, "{first:?} {second:?}");
        assert_eq!(desk.read(0, &new), None, "{first:?} {second:?}");
    }
}

#[test]
fn a_read_shows_nothing_of_what_comes_after_it_and_all_of_what_comes_before() {
    let mut desk = Desk::new();
    let old = desk.done(0);
    let read =
        |desk: &mut Desk, at: Option<TaskPosition>| desk.history.read_begin_ordered(DEVICE, Lba(0), 1, at);
    let before = read(&mut desk, place(1, Attribute::Simple));
    let (op, new) = write_at(&mut desk, place(2, Attribute::Ordered));
    let after = read(&mut desk, place(3, Attribute::Simple));
    let elsewhere = read(&mut desk, None);
    desk.history.end_change(op, ChangeResult::Done);
    assert_eq!(desk.clone().judge(before, &new), Some(Violation::Reordered));
    assert_eq!(desk.clone().judge(before, &old), None);
    assert_eq!(desk.clone().judge(after, &old), Some(Violation::Reordered));
    assert_eq!(desk.clone().judge(after, &new), None);
    assert_eq!(desk.clone().judge(elsewhere, &old), None);
    assert_eq!(desk.judge(elsewhere, &new), None);
}

#[test]
fn a_read_that_waits_for_the_power_may_miss_what_its_loss_undid() {
    let mut desk = Desk::new();
    let old = desk.done(0);
    desk.flush();
    let (op, new) = write_at(&mut desk, place(1, Attribute::Ordered));
    let read = desk.history.read_begin_ordered(DEVICE, Lba(0), 1, place(2, Attribute::Simple));
    desk.history.end_change(op, ChangeResult::Done);
    desk.history.crash(DEVICE);
    assert_eq!(desk.clone().judge(read, &old), None);
    assert_eq!(desk.judge(read, &new), None);
}

/// Submits a COMPARE AND WRITE of block 0.
fn swap(desk: &mut Desk) -> (OpId, ReadId, Vec<u8>) {
    let read = desk.begin(0);
    let (op, bytes) = desk.write(0, false);
    (op, read, bytes)
}

fn content_of_block(bytes: &[u8]) -> Content {
    content_of(&BlockCheck::of(bytes)).unwrap()
}

#[test]
fn no_write_comes_between_the_halves_of_a_compare_and_write() {
    for acknowledged_first in [false, true] {
        let mut desk = Desk::new();
        let old = content_of_block(&desk.done(0));
        let (op, read, swapped) = swap(&mut desk);
        let (other, bytes) = desk.write(0, false);
        if acknowledged_first {
            desk.history.end_change(other, ChangeResult::Done);
        }
        assert_eq!(desk.history.judge_compare_and_write(op, read, Lba(0), old), None);
        desk.history.end_change(op, ChangeResult::Done);
        if !acknowledged_first {
            desk.history.end_change(other, ChangeResult::Done);
        }
        assert_eq!(desk.clone().read(0, &swapped), Some(Violation::NotAtomic), "{acknowledged_first}");
        assert_eq!(desk.read(0, &bytes), None, "{acknowledged_first}");
    }
}

#[test]
fn two_of_them_cannot_both_replace_the_same() {
    let mut desk = Desk::new();
    let old = content_of_block(&desk.done(0));
    let (one, first, _) = swap(&mut desk);
    let (two, second, _) = swap(&mut desk);
    assert_eq!(desk.history.judge_compare_and_write(one, first, Lba(0), old), None);
    desk.history.end_change(one, ChangeResult::Done);
    let finding = desk.history.judge_compare_and_write(two, second, Lba(0), old).unwrap();
    assert_eq!(finding.violation, Violation::NotAtomic);
}

#[test]
fn one_that_is_undone_by_a_loss_of_power_may_be_done_again() {
    let mut desk = Desk::new();
    let old = content_of_block(&desk.done(0));
    desk.flush();
    let (one, first, _) = swap(&mut desk);
    assert_eq!(desk.history.judge_compare_and_write(one, first, Lba(0), old), None);
    desk.history.end_change(one, ChangeResult::Done);
    desk.history.crash(DEVICE);
    let (two, second, swapped) = swap(&mut desk);
    assert_eq!(desk.history.judge_compare_and_write(two, second, Lba(0), old), None);
    desk.history.end_change(two, ChangeResult::Done);
    assert_eq!(desk.read(0, &swapped), None);
}

#[test]
fn one_that_found_something_else_has_written_nothing() {
    let mut desk = Desk::new();
    let old = desk.done(0);
    let (op, read, swapped) = swap(&mut desk);
    desk.history.read_failed(read);
    desk.history.end_miscompared(op);
    assert_eq!(desk.clone().read(0, &swapped), Some(Violation::WrittenDespite));
    assert_eq!(desk.read(0, &old), None);
}
