use base::time::Instant;

use crate::contract::Command;
use crate::unit::LogicalUnit;

mod attentions;
mod inside;
mod limits;
mod manage;
mod order;
mod peers;
mod removal;
mod task_sets;
mod time_limit;

impl LogicalUnit {
    /// Executes a command whose initiator has all of its data ready. A logical unit fetches the data all the
    /// same; a transport can send some of it with the command.
    pub(crate) fn execute_with(&mut self, now: Instant, command: Command, _data: &[u8]) {
        self.execute(now, command);
    }
}
