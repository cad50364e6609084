//! Media for the tests of this crate.

use std::sync::{Arc, Condvar, Mutex};

use base::rng::Rng;
use store::api::{Capabilities, Failure, Fault, Op, OpAction, OpId, OpOutput, Store};
use store::ram::Ram;
use store::shared::{Losses, OnComplete, SharedStore};

/// A medium in memory that refuses what breaks the contract, and can hold operations until a test releases
/// them.
pub(crate) struct Medium {
    state: Mutex<State>,
    arrived: Condvar,
}

struct State {
    ram: Ram,
    profile: Capabilities,
    holding: bool,
    held: Vec<(OpAction, OnComplete)>,
    failing: Option<Failure>,
    losses: Losses,
    log: Vec<String>,
}

impl Medium {
    /// Creates a medium of `len` bytes in blocks of `block_len` bytes, which takes transfers of up to
    /// `io_len_max`.
    pub(crate) fn new(len: u64, block_len: u32, io_len_max: usize) -> Arc<Self> {
        let ram = Ram::new(len);
        let profile = Capabilities {
            logical_block_len: block_len,
            io_len_max,
            volatile_cache: true,
            ..ram.capabilities()
        };
        let state = State {
            ram,
            profile,
            holding: false,
            held: Vec::new(),
            failing: None,
            losses: Losses::default(),
            log: Vec::new(),
        };
        Arc::new(Self { state: Mutex::new(state), arrived: Condvar::new() })
    }

    pub(crate) fn change_profile(&self, change: impl FnOnce(&mut Capabilities)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state.profile);
        let len = state.profile.len;
        state.ram.resize(len).expect("all chunks are in memory");
    }

    /// Makes later operations wait for [`Self::release`].
    pub(crate) fn hold(&self) {
        self.state.lock().unwrap().holding = true;
    }

    /// Makes every later operation fail with `failure`, or succeed again if it is `None`.
    pub(crate) fn fail(&self, failure: Option<Failure>) {
        self.state.lock().unwrap().failing = failure;
    }

    /// Loses changes that were acknowledged. No flush of this medium reports it.
    pub(crate) fn lose(&self, failure: Failure) {
        let losses = &mut self.state.lock().unwrap().losses;
        *losses = Losses { count: losses.count + 1, last: Some(failure) };
    }

    /// Waits until `count` operations are held.
    pub(crate) fn await_held(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.arrived.wait_while(state, |state| state.held.len() < count).unwrap());
    }

    /// Returns the offsets and lengths of the held operations, in the order of their arrival.
    pub(crate) fn held_ranges(&self) -> Vec<(u64, u64)> {
        self.state.lock().unwrap().held.iter().map(|(action, _)| action.range()).collect()
    }

    pub(crate) fn held(&self) -> usize {
        self.state.lock().unwrap().held.len()
    }

    /// Executes one held operation, chosen at random. Returns whether there was one.
    pub(crate) fn release_one(&self, rng: &mut Rng) -> bool {
        let mut state = self.state.lock().unwrap();
        if state.held.is_empty() {
            return false;
        }
        let pick = rng.below(state.held.len() as u64) as usize;
        let (action, done) = state.held.swap_remove(pick);
        let result = state.perform(action);
        drop(state);
        done(result);
        true
    }

    /// Executes all held operations, and stops holding.
    pub(crate) fn release(&self) {
        self.state.lock().unwrap().holding = false;
        while self.release_one(&mut Rng::from_seed(0)) {}
    }

    /// Returns and clears the log of operations: `write 512+1024 stable`.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    pub(crate) fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut state = self.state.lock().unwrap();
        state.ram.submit(Op { id: OpId(0), action: OpAction::Read { at, len } });
        let Ok(OpOutput::Data(data)) = state.ram.poll().unwrap().result else { panic!("cannot read") };
        let mut bytes = vec![0; len];
        data.copy_to(0, &mut bytes);
        bytes
    }
}

impl State {
    fn perform(&mut self, action: OpAction) -> Result<OpOutput, Failure> {
        let (at, len) = action.range();
        let block_len = u64::from(self.profile.logical_block_len);
        let what = match &action {
            OpAction::Read { .. } => "read".to_owned(),
            OpAction::Write { durability, .. } => format!("write {durability:?}"),
            OpAction::Flush => "flush".to_owned(),
            OpAction::CryptoErase => "forget".to_owned(),
            OpAction::Command(_) | OpAction::Reset => "command".to_owned(),
            OpAction::Deallocate { .. } => "deallocate".to_owned(),
            OpAction::WriteZeroes { may_deallocate, durability, .. } => {
                format!("zero {durability:?}{}", if *may_deallocate { " hole" } else { "" })
            }
            OpAction::MapStatus { .. } => "extents".to_owned(),
        };
        self.log.push(format!("{what} {at}+{len}"));
        if let Some(failure) = self.failing {
            return Err(failure);
        }
        if at % block_len != 0 || len % block_len != 0 {
            return Err(Fault::Bug.into());
        }
        let transfer = matches!(action, OpAction::Read { .. } | OpAction::Write { .. });
        if transfer && len > self.profile.io_len_max as u64 {
            return Err(Fault::Bug.into());
        }
        self.ram.submit(Op { id: OpId(0), action });
        self.ram.poll().unwrap().result
    }
}

impl SharedStore for Medium {
    fn capabilities(&self) -> Capabilities {
        self.state.lock().unwrap().profile.clone()
    }

    fn losses(&self) -> Losses {
        self.state.lock().unwrap().losses
    }

    fn submit(&self, action: OpAction, done: OnComplete) {
        let mut state = self.state.lock().unwrap();
        if state.holding {
            state.held.push((action, done));
            self.arrived.notify_all();
            return;
        }
        let result = state.perform(action);
        drop(state);
        done(result);
    }
}

/// Returns the seed of a random test, from the environment or fixed. It prints the seed, so that a failure
/// can be reproduced.
pub(crate) fn seed() -> u64 {
    let seed = std::env::var("TARGE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_121);
    println!("TARGE_SEED={seed}");
    seed
}
