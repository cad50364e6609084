//! Runs many commands as one operation: some are under way at a time, and the others follow as those end.

use std::sync::{Arc, Mutex, PoisonError};

use crate::client::Session;
use crate::command::{Command, CommandError, Reply};

/// How many commands of one operation are under way at a time: enough to fill a long path with commands of 1
/// MiB each, and not so many that one operation uses the whole command window.
const UNDER_WAY: usize = 8;

/// Returns the next command.
pub(super) type Next = Box<dyn FnMut() -> Option<Command> + Send>;
/// Processes the result of the command with this index.
pub(super) type Take = Box<dyn FnMut(usize, Reply) -> Result<(), CommandError> + Send>;
/// Processes the end of the operation. After an error no further command was started, and those under way
/// have ended.
pub(super) type End = Box<dyn FnOnce(Result<(), CommandError>) + Send>;

struct Chain {
    session: Session,
    state: Mutex<State>,
}

struct State {
    next: Next,
    take: Take,
    end: Option<End>,
    started: usize,
    under_way: usize,
    exhausted: bool,
    error: Option<CommandError>,
}

/// Runs the commands that `next` returns.
pub(super) fn run(session: Session, next: Next, take: Take, end: End) {
    let state = State { next, take, end: Some(end), started: 0, under_way: 0, exhausted: false, error: None };
    Chain { session, state: Mutex::new(state) }.into_motion();
}

impl Chain {
    fn into_motion(self) {
        Arc::new(self).pump();
    }

    /// Starts commands up to the limit, and ends the operation when no command is left.
    fn pump(self: &Arc<Self>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut commands = Vec::new();
        while state.under_way < UNDER_WAY && !state.exhausted && state.error.is_none() {
            match (state.next)() {
                Some(command) => {
                    commands.push((state.started, command));
                    state.started += 1;
                    state.under_way += 1;
                }
                None => state.exhausted = true,
            }
        }
        let over = state.under_way == 0;
        let end = if over { state.end.take() } else { None };
        let error = if over { state.error.take() } else { None };
        drop(state);
        if let Some(end) = end {
            end(error.map_or(Ok(()), Err));
        }
        for (index, command) in commands {
            let chain = Arc::clone(self);
            self.session.submit(command, move |result| chain.finished(index, result));
        }
    }

    fn finished(self: &Arc<Self>, index: usize, result: Result<Reply, CommandError>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.under_way -= 1;
        let result = result.and_then(|reply| (state.take)(index, reply));
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        drop(state);
        self.pump();
    }
}
