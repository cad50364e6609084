//! The state writer: makes the persistent state of units durable on a thread of its own, so that no reactor
//! waits for the disk.

use crate::mailbox::{Receiver, RecvTimeoutError, Sender, channel};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use target::units::UnitId;

use drivers::message_queue::Handle;

use super::media::known_loss::RecordProgress;
use super::media::lost_writes::{self, LossRecord, LossSubject};
use super::reactor_shard::ReactorShard;
use super::sanitize_record::SanitizeRecord;
use super::state::StateDir;
use crate::config::Naa;

/// A state that must be durable before a command is answered. There are never more of these under way than
/// PERSISTENT RESERVE OUT commands, which the task sets bound.
#[derive(Debug)]
pub(super) struct StateWrite {
    /// The reactor that waits for the write.
    pub(super) reactor: Handle<ReactorShard>,
    pub(super) unit: UnitId,
    pub(super) ticket: u64,
    /// The world-wide name of the unit, which names the file.
    pub(super) naa: Naa,
    /// The record of the unit's medium.
    pub(super) medium: Arc<SanitizeRecord>,
    pub(super) state: Vec<u8>,
}

/// How long the state writer waits before it writes records of losses again that it could not write.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The polling interval while waiting for the end of the thread.
const JOIN_LOOK: Duration = Duration::from_millis(10);

/// A record that writes to the medium of a unit are lost.
#[derive(Debug)]
pub(super) struct LossWrite {
    /// The reactor that waits for the write.
    pub(super) reactor: Handle<ReactorShard>,
    pub(super) unit: UnitId,
    /// The name of the unit for the log.
    pub(super) label: String,
    pub(super) subject: LossSubject,
    pub(super) record: LossRecord,
    /// Told when the record is durable, or cannot be written.
    pub(super) progress: Arc<RecordProgress>,
}

/// What the state writer makes durable.
#[derive(Debug)]
pub(super) enum StateJob {
    Unit(StateWrite),
    Loss(LossWrite),
}

/// The sender of jobs to the state writer.
pub(super) type StateWriter = Sender<StateJob>;

/// The thread. It returns a sentence for each loss that is not recorded when it ends.
pub(super) type StateThread = JoinHandle<Vec<String>>;

/// Starts the thread. It ends when the last sender is dropped.
pub(super) fn start(state: StateDir) -> io::Result<(StateWriter, StateThread)> {
    let (sender, receiver) = channel();
    let thread =
        std::thread::Builder::new().name("saver".to_owned()).spawn(move || keep_all(&state, &receiver))?;
    Ok((sender, thread))
}

/// Waits for the end of the thread, for a limited time. Returns what it could not record.
pub(super) fn join(thread: StateThread, within: Duration) -> Vec<String> {
    let deadline = Instant::now() + within;
    while !thread.is_finished() {
        if Instant::now() >= deadline {
            let why = "the state directory does not answer: reservations and records of losses that were to be stored can be missing in it";
            crate::error!("{why}");
            return vec![why.to_owned()];
        }
        std::thread::sleep(JOIN_LOOK);
    }
    thread.join().unwrap_or_else(|_| vec!["the thread that writes the state directory panicked".to_owned()])
}

fn keep_all(state: &StateDir, jobs: &Receiver<StateJob>) -> Vec<String> {
    let mut unrecorded = Unrecorded::default();
    loop {
        let job = match unrecorded.due() {
            None => jobs.recv().map_err(RecvTimeoutError::from),
            Some(due) => jobs.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        match job {
            Ok(StateJob::Unit(write)) => keep(state, write),
            Ok(StateJob::Loss(write)) => unrecorded.keep(state, write),
            Err(RecvTimeoutError::Timeout) => unrecorded.keep_again(state),
            Err(RecvTimeoutError::Disconnected) => return unrecorded.end(state),
        }
    }
}

fn keep(state: &StateDir, write: StateWrite) {
    let StateWrite { reactor, unit, ticket, naa, medium, state: bytes } = write;
    let kept = state.save(naa, &bytes, &medium);
    if let Err(error) = &kept {
        crate::error!("{error}; the command that needed it stored is refused");
    }
    let ok = kept.is_ok();
    // A reactor that has stopped answers no command, so an error is ignored.
    let _ = reactor.post(move |member, now| member.state_saved(now, unit, ticket, ok));
}

/// The losses whose records could not be written: the storage of the state directory is often the one that
/// has failed. They are written again until they are durable, or accepted.
#[derive(Debug, Default)]
struct Unrecorded {
    losses: Vec<LossWrite>,
    due: Option<Instant>,
}

impl Unrecorded {
    /// Returns when to try again, if there is something to be written again.
    const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Writes a record for the first time.
    fn keep(&mut self, state: &StateDir, write: LossWrite) {
        if let Err(why) = keep_loss(state, &write) {
            crate::error!(
                "{}: {why}: the record that acknowledged writes are lost is written again until it is stored; \
                 if targe ends before, flushes succeed after the next start",
                write.label
            );
            self.losses.push(write);
            self.due.get_or_insert_with(|| Instant::now() + AGAIN_AFTER);
        }
    }

    /// Writes the records again.
    fn keep_again(&mut self, state: &StateDir) {
        self.losses.retain(|write| {
            if write.progress.is_accepted() {
                return false;
            }
            if !write.progress.begin_again() || keep_loss(state, write).is_err() {
                return true;
            }
            crate::info!("{}: the record that acknowledged writes are lost is stored now", write.label);
            false
        });
        self.due = (!self.losses.is_empty()).then(|| Instant::now() + AGAIN_AFTER);
    }

    /// Writes the records for the last time. Returns a sentence for each that cannot be written.
    fn end(mut self, state: &StateDir) -> Vec<String> {
        self.keep_again(state);
        let sentence = |write: &LossWrite| {
            let LossWrite { label, record, .. } = write;
            format!(
                "{label}: acknowledged writes are lost ({}), and the state directory does not record that",
                record.why
            )
        };
        self.losses.iter().map(sentence).inspect(|loss| crate::error!("{loss}")).collect()
    }
}

fn keep_loss(state: &StateDir, write: &LossWrite) -> Result<(), String> {
    let LossWrite { reactor, unit, subject, record, progress, .. } = write;
    let kept = lost_writes::save(state, subject, record);
    progress.end(kept.is_ok());
    let unit = *unit;
    // A reactor that has stopped answers no command, so an error is ignored.
    let _ = reactor.post(move |member, now| member.loss_recorded(now, unit));
    kept.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use drivers::config::{Config, EngineChoice};
    use drivers::reactor::Reactor;

    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::identity::MediumIdentity;
    use crate::serve::media::tests::unit;

    #[test]
    fn a_record_that_cannot_be_written_is_written_later_or_named_at_the_end() {
        for is_mended in [true, false] {
            let scratch = Scratch::new();
            let state = StateDir::open(scratch.path()).unwrap();
            let served = unit(scratch.path(), "type = \"ram\", size = \"2M\"");
            let subject = LossSubject::of(&served, Path::new("/a"), MediumIdentity::Unknown);
            let reactor =
                Reactor::<ReactorShard>::new(&Config { engine: EngineChoice::Epoll, ..Config::default() });
            let write = LossWrite {
                reactor: reactor.unwrap().handle(),
                unit: UnitId(1),
                label: "disk".to_owned(),
                record: LossRecord::new(&subject, "why"),
                subject: subject.clone(),
                progress: Arc::default(),
            };
            // A folder whose name the record needs.
            let units = scratch.path().join("units");
            let obstacle = units.join(format!("{}-.lost-writes.new", served.identity.naa));
            std::fs::create_dir(&obstacle).unwrap();
            let mut unrecorded = Unrecorded::default();
            unrecorded.keep(&state, write);
            assert!(unrecorded.due().is_some());
            unrecorded.keep_again(&state);
            assert!(unrecorded.due().is_some());
            if is_mended {
                std::fs::remove_dir(&obstacle).unwrap();
            }
            let failed = unrecorded.end(&state);
            assert_eq!(failed.is_empty(), is_mended, "{failed:?}");
            assert!(lost_writes::find(&state, &subject).unwrap().is_some());
            let next = StateDir::open(scratch.path()).unwrap();
            assert_eq!(lost_writes::find(&next, &subject).unwrap().is_some(), is_mended);
        }
    }
}
