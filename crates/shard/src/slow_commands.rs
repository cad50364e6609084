//! Slow commands, with the names of their initiators.

use base::time::Duration;

use crate::admin::ShardEvent;
use crate::shard::Shard;

impl Shard {
    /// Sets from which time on a command is slow and reported; `None` for no limit.
    pub fn set_slow_limit(&mut self, limit: Option<Duration>) {
        self.target.set_slow_limit(limit);
    }

    pub(crate) fn poll_slow_command(&mut self) -> Option<ShardEvent> {
        let (unit, command) = self.target.poll_slow_command()?;
        let entry = self.target.nexus(command.nexus);
        let target = entry.and_then(|entry| self.config.target_of(entry.target()));
        Some(ShardEvent::Slow {
            initiator: entry.map(|entry| entry.initiator().into()),
            target: target.map(|target| target.name.as_str().into()),
            lun: entry.and_then(|entry| entry.lun_of(unit)),
            command,
        })
    }
}
