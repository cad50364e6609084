use std::sync::Mutex;

use base::buffer::{Bytes, DataList};
use store::api::{Capabilities, Failure, Fault, OpAction, OpOutput};
use store::shared::{Compared, OnCompared, OnComplete};

use super::plan::{Until, Work};
use super::*;

const LEN: u64 = 4 << 20;

/// A fault of the medium, at the n-th write counted from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    Nothing,
    /// Acknowledges the write without writing.
    Lose(u64),
    /// Writes the data one unit further on.
    Misdirect(u64),
    /// Writes the first half only.
    Tear(u64),
    /// Flips a bit at this offset of the data.
    Flip(u64, usize),
    /// Fails without a write.
    Fail(u64),
    /// Fails after writing half.
    FailHalfway(u64),
    /// Reverts the whole medium to its content at an earlier write.
    Revert(u64, u64),
    /// Acknowledges WRITE SAME without zeroing.
    KeepZeroed,
    /// Also zeroes the blocks behind the range.
    ZeroBeyond,
    /// Also deallocates the blocks behind the range.
    FreeBeyond,
    /// Supports neither WRITE SAME nor UNMAP.
    ClearNothing,
    /// Writes even if the comparison fails.
    WriteAnyway,
    /// Always reports a miscompare.
    DifferAlways,
    /// Reports success for a COMPARE AND WRITE, but only compares.
    CompareOnly,
    /// Loses the response to every COMPARE AND WRITE that it executes, or to every one that it does not
    /// execute.
    LoseAnswer {
        carries_out: bool,
    },
    /// Does not support COMPARE AND WRITE.
    CompareNothing,
}

/// A medium in memory that answers at once, and injects faults.
struct Medium {
    lie: Lie,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    writes: u64,
    snapshot: Vec<u8>,
}

impl Medium {
    fn new(lie: Lie) -> Self {
        let state = State { bytes: vec![0; usize::try_from(LEN).unwrap()], ..State::default() };
        Self { lie, state: Mutex::new(state) }
    }

    fn act(&self, action: OpAction) -> Result<OpOutput, Failure> {
        let mut state = self.state.lock().unwrap();
        match action {
            OpAction::Read { at, len } => {
                let at = usize::try_from(at).unwrap();
                Ok(OpOutput::Data(Bytes::copied_from(&state.bytes[at..at + len]).into()))
            }
            OpAction::Write { at, data, .. } => state.write(self.lie, usize::try_from(at).unwrap(), data),
            OpAction::Flush => Ok(OpOutput::Done(DataList::new())),
            OpAction::Deallocate { .. } | OpAction::WriteZeroes { .. } if self.lie == Lie::ClearNothing => {
                Err(Fault::Unsupported.into())
            }
            OpAction::Deallocate { at, len } => Ok(state.clear(at, len, self.lie == Lie::FreeBeyond)),
            OpAction::WriteZeroes { .. } if self.lie == Lie::KeepZeroed => {
                Ok(OpOutput::Done(DataList::new()))
            }
            OpAction::WriteZeroes { at, len, .. } => Ok(state.clear(at, len, self.lie == Lie::ZeroBeyond)),
            _ => Err(Fault::Unsupported.into()),
        }
    }
}

impl State {
    fn clear(&mut self, at: u64, len: u64, beyond: bool) -> OpOutput {
        let (at, len) = (usize::try_from(at).unwrap(), usize::try_from(len).unwrap());
        let end = (at + len + if beyond { 4096 } else { 0 }).min(self.bytes.len());
        self.bytes[at..end].fill(0);
        OpOutput::Done(DataList::new())
    }

    fn write(&mut self, lie: Lie, at: usize, data: DataList) -> Result<OpOutput, Failure> {
        let number = self.writes;
        self.writes += 1;
        let mut whole = vec![0; data.len()];
        data.copy_to(0, &mut whole);
        let (mut at, mut result) = (at, Ok(OpOutput::Done(data)));
        match lie {
            Lie::Lose(n) if n == number => return result,
            Lie::Misdirect(n) if n == number => at = (at + 4096) % (self.bytes.len() - whole.len()),
            Lie::Tear(n) if n == number => whole.truncate(whole.len() / 2 + 512),
            Lie::Flip(n, offset) if n == number => whole[offset % 4096] ^= 0x10,
            Lie::Fail(n) if n == number => return Err(Fault::Medium.into()),
            Lie::FailHalfway(n) if n == number => {
                whole.truncate(whole.len() / 2 + 512);
                result = Err(Fault::Medium.into());
            }
            Lie::Revert(n, _) if n == number => self.snapshot = self.bytes.clone(),
            Lie::Revert(_, n) if n == number => {
                self.bytes = std::mem::take(&mut self.snapshot);
            }
            _ => {}
        }
        self.bytes[at..at + whole.len()].copy_from_slice(&whole);
        result
    }
}

impl State {
    fn compare_and_write(&mut self, lie: Lie, at: usize, data: &DataList) -> Result<Compared, Failure> {
        let mut both = vec![0; data.len()];
        data.copy_to(0, &mut both);
        let (old, new) = both.split_at(both.len() / 2);
        let place = &mut self.bytes[at..at + old.len()];
        let is_same = place == old;
        let writes = match lie {
            Lie::CompareNothing => return Err(Fault::Unsupported.into()),
            Lie::WriteAnyway => true,
            Lie::DifferAlways | Lie::CompareOnly => false,
            Lie::LoseAnswer { carries_out } => is_same && carries_out,
            _ => is_same,
        };
        if writes {
            place.copy_from_slice(new);
        }
        match lie {
            Lie::LoseAnswer { .. } => Err(Fault::Gone.into()),
            Lie::CompareOnly if is_same => Ok(Compared::Written),
            _ if writes => Ok(Compared::Written),
            _ => Ok(Compared::Differed),
        }
    }
}

impl SharedStore for Medium {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            len: LEN,
            logical_block_len: 512,
            preferred_block_len: 4096,
            io_len_max: 1 << 20,
            atomic_len_max: 0,
            read_only: false,
            volatile_cache: true,
            thin: true,
            deallocated_reads_zero: true,
            zeroes_by_deallocating: true,
            deallocated_is_gone: true,
            rotational: false,
            crypto_erase: false,
        }
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        done(self.act(action));
    }

    fn compare_and_write_max(&self) -> usize {
        10_000
    }

    fn compare_and_write(&self, at: u64, data: DataList, done: OnCompared) {
        assert!(data.len() / 2 <= self.compare_and_write_max() && data.len().is_multiple_of(2 * 512));
        let at = usize::try_from(at).unwrap();
        let result = self.state.lock().unwrap().compare_and_write(self.lie, at, &data);
        done(result);
    }
}

/// A medium that drops every operation after the first ones, as a client does whose thread has panicked.
struct Dying {
    medium: Medium,
    left: Mutex<u32>,
}

impl Dying {
    fn lives(&self) -> bool {
        let mut left = self.left.lock().unwrap();
        *left = left.saturating_sub(1);
        *left > 0
    }
}

impl SharedStore for Dying {
    fn capabilities(&self) -> Capabilities {
        self.medium.capabilities()
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        if self.lives() {
            self.medium.submit(action, done);
        }
    }

    fn compare_and_write_max(&self) -> usize {
        self.medium.compare_and_write_max()
    }

    fn compare_and_write(&self, at: u64, data: DataList, done: OnCompared) {
        if self.lives() {
            self.medium.compare_and_write(at, data, done);
        }
    }
}

fn whole() -> VerifyPlan {
    VerifyPlan { work: Work::Whole, io_max: 64 << 10, compare: false, seed: 11, ..VerifyPlan::default() }
}

fn judge(lie: Lie, plan: &VerifyPlan) -> VerifyReport {
    run(&Medium::new(lie), plan, None, &mut |_| Control::Continue).unwrap()
}

/// Random work by count: the medium answers at once, so a seed makes the same run on any machine. Each unit
/// of the 64 in the range changes many times, so every seed finds every fault.
fn random(seed: u64) -> VerifyPlan {
    let work = Work::Random(Until::Drawn(1000));
    VerifyPlan { work, unit: 512, io_max: 8 << 10, len: Some(32 << 10), seed, ..whole() }
}

/// Judges random work with several seeds, one run for each.
fn judge_random(lie: Lie, compare: bool) -> impl Iterator<Item = VerifyReport> {
    SEEDS.into_iter().map(move |seed| judge(lie, &VerifyPlan { compare, ..random(seed) }))
}

const SEEDS: [u64; 3] = [1, 2, 3];

#[test]
fn a_sound_medium_is_found_sound() {
    let report = judge(Lie::Nothing, &whole());
    assert!(report.is_sound(), "{report:?}");
    assert_eq!((report.verified_bytes, report.range_bytes), (LEN, LEN));
    assert!(report.written_bytes >= LEN && report.read_bytes >= report.written_bytes && report.flushes > 0);
}

#[test]
fn zeros_and_freed_storage_are_part_of_the_mix_and_judged() {
    let sound = judge(Lie::Nothing, &whole());
    assert!(sound.zeroed > 0 && sound.freed > 0 && sound.is_sound(), "{sound:?}");
    for sound in judge_random(Lie::Nothing, false) {
        assert!(sound.zeroed > 0 && sound.freed > 0 && sound.is_sound(), "{sound:?}");
    }
    // Blocks that keep their old content although they were zeroed, and blocks that vanish although they were
    // not cleared.
    for lie in [Lie::KeepZeroed, Lie::ZeroBeyond, Lie::FreeBeyond] {
        for report in judge_random(lie, false) {
            assert!(report.wrong.total() > 0 && report.errors == 0, "{lie:?}: {report:?}");
        }
    }
    // A device without support for clearing is not at fault, and a plan with `zeroes: false` clears nothing.
    for (lie, plan) in [(Lie::ClearNothing, whole()), (Lie::Nothing, VerifyPlan { zeroes: false, ..whole() })]
    {
        let report = judge(lie, &plan);
        assert!(report.is_sound() && report.zeroed + report.freed == 0, "{report:?}");
    }
}

#[test]
fn writes_on_a_condition_are_part_of_the_mix_and_judged() {
    let sound = judge(Lie::Nothing, &VerifyPlan { compare: true, ..whole() });
    assert!(sound.compared > 0 && sound.is_sound(), "{sound:?}");
    for sound in judge_random(Lie::Nothing, true) {
        assert!(sound.compared > 0 && sound.differed > 0 && sound.is_sound(), "{sound:?}");
    }
    // Both the response and a block that must not have been written show this fault.
    for report in judge_random(Lie::WriteAnyway, true) {
        assert!(report.errors > 0 && report.wrong.unsubmitted > 0, "{report:?}");
        assert!(report.error_texts[0].contains("executed although"), "{:?}", report.error_texts);
    }
    for report in judge_random(Lie::DifferAlways, true) {
        assert!(report.errors > 0 && report.differed > 0 && report.wrong.total() == 0, "{report:?}");
    }
    // Acknowledged data is missing.
    for report in judge_random(Lie::CompareOnly, true) {
        assert!(report.errors == 0 && report.wrong.total() > 0, "{report:?}");
    }
    // Without a response the oracle accepts either result: the run reports errors, and no corruption.
    for carries_out in [false, true] {
        for report in judge_random(Lie::LoseAnswer { carries_out }, true) {
            assert!(report.errors > 0 && report.wrong.total() == 0, "{report:?}");
        }
    }
    for report in judge_random(Lie::CompareNothing, true) {
        assert!(report.is_sound() && report.compared + report.differed == 0, "{report:?}");
    }
}

#[test]
fn each_lie_is_told_by_its_name() {
    let wrong = |lie| judge(lie, &whole()).wrong;
    // This is the first write to the block, which held no signed data before it, so a lost write reads as
    // zeros.
    assert!(wrong(Lie::Lose(3)).lost > 0);
    assert!(wrong(Lie::Misdirect(4)).misdirected > 0);
    assert!(wrong(Lie::Tear(5)).torn > 0);
    assert_eq!(wrong(Lie::Flip(6, 0)), report::Counts { garbled: 1, ..Default::default() });
    assert_eq!(wrong(Lie::Flip(6, 3000)), report::Counts { garbled: 1, ..Default::default() });
    let reverted = wrong(Lie::Revert(20, 60));
    assert!(reverted.lost + reverted.stale > 0, "{reverted:?}");
}

#[test]
fn a_block_that_was_destroyed_behind_our_back_shows_at_the_end() {
    // A misdirected write is wrong in two places: at its own address, where the data is missing, and at the
    // address it was written to.
    let report = judge(Lie::Misdirect(10), &whole());
    let blocks: std::collections::BTreeSet<_> =
        report.findings.iter().filter_map(|text| text.split_once(':').map(|(bytes, _)| bytes)).collect();
    assert!(blocks.len() >= 2, "{:?}", report.findings);
    assert!(!report.is_sound());
}

#[test]
fn what_failed_is_an_error_and_no_corruption() {
    for lie in [Lie::Fail(9), Lie::FailHalfway(9)] {
        let report = judge(lie, &whole());
        assert_eq!((report.errors, report.wrong.total()), (1, 0), "{lie:?}: {:?}", report.findings);
        assert!(report.complete && !report.is_sound());
        assert!(report.error_texts[0].contains("medium error"), "{:?}", report.error_texts);
    }
}

#[test]
fn a_disk_that_drops_operations_is_gone() {
    for left in [3, 20, 50] {
        let disk = Dying { medium: Medium::new(Lie::Nothing), left: Mutex::new(left) };
        let report = run(&disk, &random(SEEDS[0]), None, &mut |_| Control::Continue).unwrap();
        assert!(!report.is_sound() && report.wrong.total() == 0, "{report:?}");
        assert!(report.error_texts[0].contains("gone"), "{:?}", report.error_texts);
    }
}

#[test]
fn stops_at_the_first_wrong_block_if_asked_to() {
    let report = judge(Lie::Flip(2, 100), &VerifyPlan { stop_on_corruption: true, ..whole() });
    assert_eq!(report.wrong.garbled, 1);
    assert!(!report.complete && report.written_bytes < LEN / 2);
}

#[test]
fn a_run_by_time_ends() {
    let report = judge(
        Lie::Nothing,
        &VerifyPlan { work: Work::Random(Until::Passed(Duration::from_millis(50))), ..whole() },
    );
    assert!(report.is_sound() && report.verified_bytes == LEN, "{report:?}");
}

#[test]
fn random_work_verifies_all_of_its_range_and_touches_nothing_else() {
    let plan = VerifyPlan { from: 1 << 20, len: Some(1 << 20), ..random(SEEDS[0]) };
    let medium = Medium::new(Lie::Nothing);
    let report = run(&medium, &plan, None, &mut |_| Control::Continue).unwrap();
    assert!(report.is_sound() && report.writes > 0, "{report:?}");
    assert_eq!(report.verified_bytes, 1 << 20);
    let state = medium.state.lock().unwrap();
    assert!(state.bytes[..1 << 20].iter().all(|byte| *byte == 0), "wrote before the range");
    assert!(state.bytes[2 << 20..].iter().all(|byte| *byte == 0), "wrote behind the range");
}

#[test]
fn one_seed_writes_the_same_blocks() {
    let (first, second) = (Medium::new(Lie::Nothing), Medium::new(Lie::Nothing));
    for plan in [whole(), VerifyPlan { compare: true, ..random(SEEDS[0]) }] {
        for medium in [&first, &second] {
            run(medium, &plan, None, &mut |_| Control::Continue).unwrap();
        }
        let (first, second) = (first.state.lock().unwrap(), second.state.lock().unwrap());
        // Blocks contain the time at which they were written; address and writer are the same.
        assert_eq!(first.writes, second.writes);
        for (one, other) in first.bytes.chunks(512).zip(second.bytes.chunks(512)) {
            assert_eq!((&one[..40], &one[48..56]), (&other[..40], &other[48..56]));
        }
    }
}

#[test]
fn refuses_what_does_not_fit_the_device() {
    let refused = |plan: VerifyPlan| {
        run(&Medium::new(Lie::Nothing), &plan, None, &mut |_| Control::Continue).unwrap_err()
    };
    assert!(matches!(refused(VerifyPlan { unit: 1000, ..whole() }), RunError::Unit(1000)));
    assert!(matches!(refused(VerifyPlan { from: 100, ..whole() }), RunError::Unaligned(4096)));
    assert!(matches!(refused(VerifyPlan { len: Some(LEN + 4096), ..whole() }), RunError::BeyondEnd { .. }));
    assert!(matches!(refused(VerifyPlan { len: Some(0), ..whole() }), RunError::Empty));
    assert_eq!(VerifyPlan::unit_for(1 << 30, 512), 4096);
    assert_eq!(VerifyPlan::unit_for(1 << 37, 512), 8192);
}

#[test]
fn a_journal_judges_what_a_crash_left() {
    let path = std::env::temp_dir().join(format!("targe-verify-journal-{}", std::process::id()));
    let medium = Medium::new(Lie::Nothing);
    let journal = Journal::new(std::fs::File::create(&path).unwrap(), false);
    run(&medium, &whole(), Some(journal), &mut |_| Control::Continue).unwrap();
    let mut kept = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let judge =
        |medium: &Medium, kept: &[u8]| check(medium, kept, false, false, &mut |_| Control::Continue).unwrap();
    let report = judge(&medium, &kept);
    assert!(report.is_sound() && report.verified_bytes == LEN, "{report:?}");
    // The writer was killed in the middle of an entry: a write that the journal does not hold may have
    // happened or not.
    kept.truncate(kept.len() / 2 + 7);
    let report = judge(&medium, &kept);
    assert!(report.journal_entries.unwrap() > 0);
    // A block that was written twice may be newer than the journal; every other block is right.
    let newer = report.wrong.unsubmitted + report.wrong.foreign;
    assert_eq!(report.wrong.total(), newer, "{:?}", report.findings);
    medium.state.lock().unwrap().bytes[5000] ^= 1;
    assert!(!judge(&medium, &kept).is_sound() || kept.is_empty());
    assert!(check(&medium, b"nonsense", false, false, &mut |_| Control::Continue).is_err());
}
