//! The media of the units. Their operations take time, complete out of order and fail at random. Media lose
//! unflushed writes when the power is cut, and count how often each signed block is written to them.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use base::buffer::DataList;
use base::rng::Rng;
use base::time::Instant;
use netem::probability::DurationRange;
use oracle::block_check::BlockCheck;
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op, OpAction, OpId, OpOutput};
use store::fault_inject::{FaultInjector, FaultRules, OpKind, Rule};
use store::powercut::Power;
use store::ram::Ram;

use crate::corruption::{CorruptingStore, Corruptions};
use crate::reservations::Signature;
use crate::scenario::CorruptionPlan;

/// The clock of the world, for code that is called without the time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Rc<Cell<u64>>);

impl Clock {
    /// Returns the time.
    pub fn now(&self) -> Instant {
        Instant(self.0.get())
    }

    /// Sets the time.
    pub fn set(&self, now: Instant) {
        self.0.set(now.0);
    }
}

/// The properties of a medium.
#[derive(Clone, Copy, Debug)]
pub struct MediumPlan {
    /// Its length in bytes.
    pub len: u64,
    /// Whether it has a volatile cache and its power can be cut.
    pub volatile: bool,
    /// The time from the submission of an operation to its effect.
    pub effect: DurationRange,
    /// The time from the effect of an operation to its completion.
    pub answer: DurationRange,
    /// One operation in this many fails; zero for none.
    pub fails_one_in: u64,
    /// The length of a logical block, for code that examines the contents of writes.
    pub block_len: usize,
    /// How the medium corrupts data silently; `None`: it does not.
    pub corruption: Option<CorruptionPlan>,
}

/// An operation that a medium failed.
#[derive(Clone, Copy, Debug)]
pub struct MediumFailure {
    /// When.
    pub at: Instant,
    /// The first byte that the operation concerned; `to` is the first one behind. A flush concerns all of the
    /// medium.
    pub from: u64,
    /// See `from`.
    pub to: u64,
}

/// A medium, as the world uses it. Clones share it.
#[derive(Clone)]
pub struct Medium(Rc<RefCell<State>>);

/// A medium, as a unit uses it.
struct Plugged(Rc<RefCell<State>>, u64);

struct State {
    plan: MediumPlan,
    clock: Clock,
    rng: Rng,
    power: Option<Power>,
    inner: Box<dyn Store>,
    faults: FaultRules,
    corruptions: Option<Corruptions>,
    /// Operations without effect yet, by the time of their effect, then in order of submission.
    waiting: BTreeMap<(Instant, u64), Op>,
    /// Completions that are not visible to the unit yet, by the time when they become visible.
    ready: BTreeMap<(Instant, u64), Completion>,
    number: u64,
    /// Which plug is current: completions are not reported to a unit that was dropped in a crash.
    plug: u64,
    executions: BTreeMap<(u32, u64, u64), u32>,
    twice: Vec<String>,
    /// The writes that may take effect several times.
    repeatable: BTreeSet<Signature>,
    /// How many blocks of such writes were written again.
    repeated: u64,
    /// The signatures (writer and sequence) of writes that took effect, if they are recorded.
    landed: Option<Vec<Signature>>,
    /// The operations that failed and that nobody has asked for yet.
    failed: Vec<MediumFailure>,
    /// Whether fault injection has stopped. It does not start again after a loss of power.
    healed: bool,
}

impl Medium {
    /// Makes a medium of zeros.
    pub fn new(plan: MediumPlan, clock: Clock, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed);
        let power = plan.volatile.then(|| Power::new(plan.len));
        let (inner, faults, corruptions) = wired(&plan, power.as_ref(), rng.next_u64());
        Self(Rc::new(RefCell::new(State {
            plan,
            clock,
            power,
            inner,
            faults,
            corruptions,
            waiting: BTreeMap::new(),
            ready: BTreeMap::new(),
            number: 0,
            plug: 0,
            executions: BTreeMap::new(),
            twice: Vec::new(),
            repeatable: BTreeSet::new(),
            repeated: 0,
            landed: None,
            failed: Vec::new(),
            healed: false,
            rng,
        })))
    }

    /// Plugs the medium into a unit. The unit that used it before is cut off.
    pub fn plug(&self) -> Box<dyn Store> {
        let mut state = self.0.borrow_mut();
        state.plug += 1;
        Box::new(Plugged(Rc::clone(&self.0), state.plug))
    }

    /// Returns when the next operation takes effect or the next completion becomes visible.
    pub fn next(&self) -> Option<Instant> {
        let state = self.0.borrow();
        let effect = state.waiting.first_key_value().map(|((at, _), _)| *at);
        let answer = state.ready.first_key_value().map(|((at, _), _)| *at);
        [effect, answer].into_iter().flatten().min()
    }

    /// Executes all operations whose effect is due. Returns whether there are completions to collect.
    pub fn advance(&self, now: Instant) -> bool {
        let mut state = self.0.borrow_mut();
        while state.waiting.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
            if let Some(((at, number), op)) = state.waiting.pop_first() {
                state.perform(at, number, op);
            }
        }
        state.ready.first_key_value().is_some_and(|((at, _), _)| *at <= now)
    }

    /// Cuts the power. Operations that were waiting may or may not take effect, unflushed writes may be lost,
    /// and no open operation completes.
    pub fn cut(&self, seed: u64) {
        let mut state = self.0.borrow_mut();
        let waiting = std::mem::take(&mut state.waiting);
        state.ready.clear();
        state.plug += 1;
        if let Some(power) = state.power.clone() {
            power.hold();
            let mut store = power.store();
            for (_, op) in waiting {
                store.submit(op);
            }
            power.cut(seed);
        }
        if state.power.is_some() {
            (state.inner, state.faults, state.corruptions) = wired(&state.plan, state.power.as_ref(), seed);
        }
        if state.healed {
            state.faults.clear();
        }
    }

    /// Stops fault injection in this medium.
    pub fn stop_faults(&self) {
        let mut state = self.0.borrow_mut();
        state.healed = true;
        state.faults.clear();
        state.corruptions.iter().for_each(Corruptions::end);
    }

    /// Returns the record of how the medium corrupted data; `None` if it corrupts none.
    pub fn corruptions(&self) -> Option<Corruptions> {
        self.0.borrow().corruptions.clone()
    }

    /// Returns whether no operation is under way.
    pub fn is_idle(&self) -> bool {
        let state = self.0.borrow();
        state.waiting.is_empty() && state.ready.is_empty()
    }

    /// Reads the present contents directly from the inner store, without simulated delay.
    pub fn contents(&self, at: u64, len: usize) -> Vec<u8> {
        let mut state = self.0.borrow_mut();
        let id = OpId(u64::MAX);
        state.inner.submit(Op { id, action: OpAction::Read { at, len } });
        let mut bytes = vec![0; len];
        match state.inner.poll() {
            Some(Completion { result: Ok(OpOutput::Data(data)), .. }) => data.copy_to(0, &mut bytes),
            other => panic!("a medium cannot be inspected: {other:?}"),
        };
        bytes
    }

    /// Records the writes that take effect from now on, for [`Self::take_landed`].
    pub fn watch(&self) {
        self.0.borrow_mut().landed = Some(Vec::new());
    }

    /// Takes the signatures of the writes that took effect since the last call.
    pub fn take_landed(&self) -> Vec<Signature> {
        self.0.borrow_mut().landed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Lets a write take effect several times, because its initiator may repeat it in a new session.
    pub fn admit_repeats(&self, signature: Signature) {
        self.0.borrow_mut().repeatable.insert(signature);
    }

    /// Returns how many blocks were written again by writes that may take effect several times.
    pub fn repeated(&self) -> u64 {
        self.0.borrow().repeated
    }

    /// Takes the operations that failed since the last call.
    pub fn take_failed(&self) -> Vec<MediumFailure> {
        std::mem::take(&mut self.0.borrow_mut().failed)
    }

    /// Returns the writes that were executed more often than they were sent.
    pub fn executed_twice(&self) -> Vec<String> {
        self.0.borrow().twice.clone()
    }
}

impl State {
    fn perform(&mut self, at: Instant, number: u64, op: Op) {
        self.note(&op);
        let (from, to) = extent_of(&op.action);
        self.inner.submit(op);
        while let Some(completion) = self.inner.poll() {
            if completion.result.is_err() {
                self.failed.push(MediumFailure { at, from, to });
            }
            let answer = at.after(self.plan.answer.pick(&mut self.rng));
            self.ready.insert((answer, number), completion);
        }
    }

    /// Counts the signed blocks of a write that are at the address in their signature. A copy or a WRITE SAME
    /// may write a block to other addresses many times; those are not counted.
    fn note(&mut self, op: &Op) {
        let OpAction::Write { at, data, .. } = &op.action else { return };
        let block_len = self.plan.block_len;
        let mut bytes = vec![0; data.len()];
        data.copy_to(0, &mut bytes);
        let first = at / u64::try_from(block_len).unwrap_or(1);
        for (lba, block) in (first..).zip(bytes.chunks(block_len)) {
            let BlockCheck::Signed(block_header) = BlockCheck::of(block) else { continue };
            if block_header.lba.0 != lba {
                continue;
            }
            let count =
                self.executions.entry((block_header.writer.0, block_header.sequence.0, lba)).or_default();
            *count += 1;
            if let Some(landed) = &mut self.landed {
                let signature = (block_header.writer.0, block_header.sequence.0);
                if landed.last() != Some(&signature) {
                    landed.push(signature);
                }
            }
            if self.repeatable.contains(&(block_header.writer.0, block_header.sequence.0)) {
                self.repeated += u64::from(*count > 1);
            } else if *count == 2 {
                self.twice.push(format!("{block_header} was written to the medium twice"));
            }
        }
    }
}

/// Returns the first byte that an operation concerns, and the first one behind.
fn extent_of(action: &OpAction) -> (u64, u64) {
    let (at, len) = match action {
        OpAction::Read { at, len } => (*at, u64::try_from(*len).unwrap_or(u64::MAX)),
        OpAction::Write { at, data, .. } => (*at, u64::try_from(data.len()).unwrap_or(u64::MAX)),
        OpAction::Deallocate { at, len }
        | OpAction::WriteZeroes { at, len, .. }
        | OpAction::MapStatus { at, len, .. } => (*at, *len),
        _ => (0, u64::MAX),
    };
    (at, at.saturating_add(len))
}

/// Wraps the medium in the layers that inject corruption and faults.
fn wired(
    plan: &MediumPlan,
    power: Option<&Power>,
    seed: u64,
) -> (Box<dyn Store>, FaultRules, Option<Corruptions>) {
    let mut medium: Box<dyn Store> = match power {
        Some(power) => Box::new(power.store()),
        None => Box::new(Ram::new(plan.len)),
    };
    let mut corruptions = None;
    if let Some(harm) = plan.corruption {
        let (harmful, known) = CorruptingStore::new(medium, harm, plan.len, plan.block_len, seed);
        (medium, corruptions) = (Box::new(harmful), Some(known));
    }
    let (faulty, faults) = FaultInjector::new(medium, seed);
    if plan.fails_one_in > 0 {
        for kind in [OpKind::Read, OpKind::Write, OpKind::Flush, OpKind::Deallocate, OpKind::WriteZeroes] {
            let chance = (1, plan.fails_one_in);
            faults.add(Rule { chance, ..Rule::always(kind, 0, plan.len, Fault::Medium) });
        }
    }
    (Box::new(faulty), faults, corruptions)
}

impl Store for Plugged {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().inner.capabilities()
    }

    fn submit(&mut self, op: Op) {
        let mut state = self.0.borrow_mut();
        if state.plug != self.1 {
            return;
        }
        let at = state.clock.now();
        state.number += 1;
        let number = state.number;
        let plan = state.plan;
        if plan.effect == DurationRange::ZERO && plan.answer == DurationRange::ZERO {
            state.perform(at, number, op);
        } else {
            let effect = at.after(plan.effect.pick(&mut state.rng));
            state.waiting.insert((effect, number), op);
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut state = self.0.borrow_mut();
        let now = state.clock.now();
        let due =
            state.plug == self.1 && state.ready.first_key_value().is_some_and(|((at, _), _)| *at <= now);
        due.then(|| state.ready.pop_first().map(|(_, completion)| completion)).flatten()
    }
}

/// Puts bytes into a data list of several pieces, cut at random places, as a receive path does.
pub fn scattered(rng: &mut Rng, bytes: &[u8]) -> DataList {
    let mut list = DataList::new();
    let mut rest: VecDeque<&[u8]> = VecDeque::from([bytes]);
    while let Some(part) = rest.pop_front() {
        if part.len() > 512 && rng.chance(1, 3) {
            let at = usize::try_from(rng.below(u64::try_from(part.len()).unwrap_or(1))).unwrap_or(0);
            let (head, tail) = part.split_at(at);
            rest.push_front(tail);
            rest.push_front(head);
        } else if !part.is_empty() {
            list.push(base::buffer::Bytes::copied_from(part));
        }
    }
    list
}
