//! Copies the memory of LUNs to the files that another process gets, while the LUNs are served.

use crate::mailbox::channel;
use std::io;
use std::time::Instant;

use drivers::message_queue::Handle;

use crate::serve::media::handed_over::Obstacle;
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactors::{REACTOR_REPLY_TIMEOUT, ReactorThread};

/// How many bytes are copied between two questions to a reactor. A chunk that a host writes meanwhile needs
/// its memory twice.
const STEP_LEN: u64 = 16 << 20;

/// With less to copy than this, in bytes, the rest is copied while the sessions are frozen.
const CAUGHT_UP_LEN: u64 = 4 << 20;

/// How often the memory is gone through. Each time there is less to copy, unless hosts write faster.
const PASSES_MAX: u32 = 8;

/// How many bytes that were copied the C library may keep before they are given back to the system: without
/// that, the memory would be needed twice.
const KEPT_MAX: u64 = 64 << 20;

/// The reactors while the memory of their LUNs moves. Dropping this makes it stay.
pub(super) struct MemoryCopy {
    /// Those that have such LUNs.
    reactors: Vec<Handle<ReactorShard>>,
    /// How many bytes were copied since the memory was last given back.
    kept: u64,
}

impl MemoryCopy {
    /// Begins to move the memory of LUNs.
    pub(super) fn begin(reactors: &[ReactorThread]) -> Result<Self, String> {
        let mut begun = Self { reactors: Vec::new(), kept: 0 };
        for running in reactors {
            // From then on dropping ends what has begun.
            begun.reactors.push(running.handle.clone());
            let has_memory = ask(&running.handle, |member| member.begin_memory_move())?;
            if !has_memory.map_err(|error| failed(&error).sentence)? {
                begun.reactors.pop();
            }
        }
        Ok(begun)
    }

    /// Copies what has changed since the last time, until little is left, or until this moment. Calls
    /// `attend` meanwhile.
    ///
    /// # Errors
    /// The memory cannot be copied, or `attend` failed.
    pub(super) fn catch_up(
        &mut self,
        until: Option<Instant>,
        attend: &mut dyn FnMut() -> Result<(), String>,
    ) -> Result<(), Obstacle> {
        for _ in 0..PASSES_MAX {
            let mut is_behind = false;
            for handle in &self.reactors {
                if ask(handle, |member| member.memory_to_move())? <= CAUGHT_UP_LEN {
                    continue;
                }
                is_behind = true;
                let mut copied = None;
                while let Some((id, taken)) = ask(handle, move |member| member.move_memory(copied, STEP_LEN))?
                {
                    if until.is_some_and(|until| until <= Instant::now()) {
                        return Ok(());
                    }
                    taken.copy().map_err(|error| failed(&error))?;
                    attend()?;
                    self.kept += STEP_LEN;
                    if self.kept >= KEPT_MAX {
                        self.kept = 0;
                        drivers::memory::give_back();
                    }
                    copied = Some((id, taken));
                }
            }
            if !is_behind {
                break;
            }
        }
        Ok(())
    }

    /// Leaves the memory as it is, because another process has it.
    pub(super) fn leave(mut self) {
        self.reactors.clear();
    }
}

impl Drop for MemoryCopy {
    fn drop(&mut self) {
        for handle in &self.reactors {
            // The end of a reactor is an event of its own.
            let _ = handle.post(|member: &mut ReactorShard, _| member.end_memory_move());
        }
    }
}

/// Describes why memory cannot be copied.
pub(super) fn failed(error: &io::Error) -> Obstacle {
    let sentence = format!("cannot copy the memory of a LUN: {}", crate::os_error(error));
    Obstacle { sentence, can_end: false }
}

fn ask<T: Send + 'static>(
    handle: &Handle<ReactorShard>,
    question: impl FnOnce(&mut ReactorShard) -> T + Send + 'static,
) -> Result<T, String> {
    let (answer, answers) = channel();
    let post = move |member: &mut ReactorShard, _| drop(answer.send(question(member)));
    handle.post(post).map_err(|_| "targe is stopping".to_owned())?;
    answers.recv_timeout(REACTOR_REPLY_TIMEOUT).map_err(|_| "a reactor does not answer".to_owned())
}
