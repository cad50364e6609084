//! Commands that use the medium: each runs when it has its turn.

use alloc::boxed::Box;

use base::buffer::DataList;
use cartridge::command::{self, Command};
use cartridge::error::Error;

use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::task::{Origin, TaskInfo};

/// A command that uses the medium.
pub(super) trait TapeCommand {
    /// Whether a cartridge must be loaded when the turn begins.
    const NEEDS_CARTRIDGE: bool = true;

    /// Returns how many bytes of the initiator it requests before its turn, if they may be held so long.
    fn first_data_len(&self) -> u32 {
        0
    }

    /// Requests these bytes.
    fn request_data(&mut self, _: &mut DeviceServer, _: &TaskInfo) {}

    /// Keeps bytes of the Data-Out buffer that it has requested.
    fn keep_data(&mut self, _: DataList) {}

    /// Begins: the task has its turn.
    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep;

    /// Continues after a command of the cartridge.
    fn ended(
        &mut self,
        server: &mut DeviceServer,
        task: &TaskInfo,
        result: Result<command::Outcome, Error>,
    ) -> JobStep;

    /// Continues with bytes of the Data-Out buffer that it keeps.
    fn data_arrived(&mut self, _: &mut DeviceServer, _: &TaskInfo) -> JobStep {
        JobStep::unexpected_input()
    }
}

/// Returns the outcome that runs a command when it has its turn.
pub(super) fn in_turn<C: TapeCommand + 'static>(command: C) -> Outcome {
    Outcome::Run(Box::new(InTurn { command, has_turn: false }))
}

/// Returns the outcome that runs a command, or that answers it at once and then runs it (IMMED). If that
/// fails, the host is told by its next command.
pub(super) fn in_turn_or_at_once<C: TapeCommand + 'static>(
    server: &mut DeviceServer,
    task: &TaskInfo,
    is_immediate: bool,
    command: C,
) -> Outcome {
    if !is_immediate {
        return in_turn(command);
    }
    if let Some(sense) = server.tape.as_mut().and_then(|drive| drive.deferred.take(task.nexus)) {
        return Outcome::CheckCondition(sense);
    }
    server.spawn(task, Box::new(InTurn { command, has_turn: false }));
    Outcome::Good
}

struct InTurn<C> {
    command: C,
    has_turn: bool,
}

impl<C: TapeCommand> InTurn<C> {
    fn begin(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.has_turn = true;
        if let Some(outcome) = former_error(server, task) {
            return JobStep::Done(outcome);
        }
        if C::NEEDS_CARTRIDGE {
            // The cartridge may have been unloaded, or another one loaded, while the task waited.
            if let Some(sense) = server.tape_not_ready().or_else(|| server.tape_changed()) {
                server.tape_attention_reported(task, sense.asc);
                return JobStep::Done(Outcome::CheckCondition(sense));
            }
            if let Some(sense) = server.unheard_loss(task.nexus) {
                return JobStep::Done(Outcome::CheckCondition(sense));
            }
        }
        self.command.start(server, task)
    }

    fn progress(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                server.request_turn(task, self.command.first_data_len());
                JobStep::Wait
            }
            JobInput::Woken if self.has_turn => match server.take_cartridge_outcome() {
                Some(result) => {
                    if matches!(result, Err(Error::WriteLost { .. })) {
                        server.loss_is_heard(task.nexus);
                    }
                    self.command.ended(server, task, result)
                }
                None => JobStep::Wait,
            },
            JobInput::Woken if server.has_turn(task.id) => self.begin(server, task),
            JobInput::Woken => {
                self.command.request_data(server, task);
                JobStep::Wait
            }
            JobInput::DataOut { data, .. } => {
                self.command.keep_data(data);
                if self.has_turn {
                    return self.command.data_arrived(server, task);
                }
                server.turn_data_arrived(task.id);
                JobStep::Wait
            }
            _ => JobStep::unexpected_input(),
        }
    }
}

/// Returns the outcome of a command that is not run, because a command of its host that was answered before
/// has failed: the position is not the one that the host expects.
fn former_error(server: &mut DeviceServer, task: &TaskInfo) -> Option<Outcome> {
    let deferred = &mut server.tape.as_mut()?.deferred;
    match task.origin {
        // This one was answered too, so it cannot tell. The next one does.
        Origin::Background => deferred.is_pending(task.nexus).then_some(Outcome::Good),
        _ => deferred.take(task.nexus).map(Outcome::CheckCondition),
    }
}

impl<C: TapeCommand> Job for InTurn<C> {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        if let (JobInput::Start, Origin::Background, Some(drive)) = (&input, &task.origin, &mut server.tape) {
            drive.immediate.insert(task.id, task.nexus);
        }
        let step = self.progress(server, task, input);
        if let (JobStep::Done(outcome), Some(drive)) = (&step, &mut server.tape) {
            let failure = match outcome {
                Outcome::CheckCondition(sense) => Some(*sense),
                _ => None,
            };
            drive.immediate_ended(task.id, failure);
            drive.is_turn_over |= self.has_turn;
        }
        step
    }
}

/// Starts a command of the cartridge and waits for its end.
pub(super) fn run(server: &mut DeviceServer, command: Command) -> JobStep {
    server.run_cartridge(command);
    JobStep::Wait
}

/// Ends a command with the sense data of an error of the cartridge.
pub(super) fn failed(server: &mut DeviceServer, error: &Error) -> JobStep {
    JobStep::Done(Outcome::CheckCondition(server.cartridge_failure(error)))
}
