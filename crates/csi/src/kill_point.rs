//! The moments at which a process can be killed in the middle of a call: after each durable step. Tests stop
//! the call there, as a kill would, and repeat it with a new controller.

use crate::error::CsiResult;

/// Goes on, or fails if a test wants the process to be killed here.
#[cfg(not(test))]
#[expect(clippy::unnecessary_wraps, reason = "it fails in tests")]
pub(crate) const fn kill_point() -> CsiResult<()> {
    Ok(())
}

/// Returns whether a call failed because a test killed it: nothing more may happen then.
#[cfg(not(test))]
pub(crate) const fn was_killed(_: &crate::error::CsiError) -> bool {
    false
}

#[cfg(test)]
pub(crate) use testing::{kill_point, was_killed};

#[cfg(test)]
pub(crate) mod testing {
    //! Kills.

    use std::cell::Cell;

    use super::CsiResult;
    use crate::error::CsiError;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        static FAILS: Cell<bool> = const { Cell::new(false) };
    }

    /// The sentence of a call that was killed.
    pub(crate) const KILLED: &str = "killed";
    /// The sentence of a call that failed.
    pub(crate) const FAILED: &str = "failed";

    /// Lets this many steps of this thread pass, and has the next one fail, in a process that goes on.
    pub(crate) fn fail_after(steps: u32) {
        LEFT.set(Some(steps));
        FAILS.set(true);
    }

    /// Lets this many steps of this thread pass, and then none. `None` lets all pass.
    pub(crate) fn kill_after(steps: Option<u32>) {
        LEFT.set(steps);
        FAILS.set(false);
    }

    /// Returns whether a call failed by a kill.
    pub(crate) fn was_killed(error: &CsiError) -> bool {
        error.message == KILLED
    }

    /// Goes on, or fails.
    pub(crate) fn kill_point() -> CsiResult<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) if FAILS.get() => {
                LEFT.set(None);
                Err(CsiError::internal(FAILED))
            }
            Some(0) => Err(CsiError::internal(KILLED)),
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
