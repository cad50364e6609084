//! Writes that a file or device has lost, found while no store serves it: at the start, and at the end.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use backends::open::{LostWrites, Opened};
use target::units::UnitId;

use super::MediaError;
use crate::answers;
use crate::config::Unit;
use crate::mailbox::channel;
use crate::os_error;
use crate::serve::media::identity::MediumIdentity;
use crate::serve::media::lost_writes::{self, LossRecord, LossSubject};
use crate::serve::state::{StateDir, StateError};

/// Finds out whether writes to a file or device that was opened are lost; returns why. What the system has
/// reported while it was opened is recorded before a host is served: the system reports it once.
pub(in crate::serve) fn check(
    unit: &Unit,
    (opened, path): (&mut Opened, &Path),
    identity: MediumIdentity,
    state: &StateDir,
) -> Result<Option<String>, MediaError> {
    let failed = |error: StateError| MediaError::new(unit, error.to_string());
    let subject = LossSubject::of(unit, path, identity);
    let known = lost_writes::find(state, &subject).map_err(failed)?;
    let record = match (known, opened.lost_writes()) {
        (Some(known), _) => known,
        (None, Some(LostWrites::Reported(errno))) => {
            let why = os_error(&errno.into());
            let why = format!("the system could not write what was written before the start: {why}");
            let record = LossRecord::new(&subject, &why);
            lost_writes::save(state, &subject, &record).map_err(|error| {
                let why = format!("{}: acknowledged writes are lost ({why}), and {error}", path.display());
                MediaError::new(unit, why)
            })?;
            record
        }
        (None, Some(LostWrites::Known) | None) => {
            if let Some(why) = lost_writes::of_former(state, &subject) {
                let (label, path) = (&unit.label, path.display());
                crate::warning!("{label}: {path} is not the file or device that lost writes there ({why})");
            }
            if !opened.is_read_only() {
                lost_writes::reserve(state, &subject);
            }
            opened.accept_lost_writes();
            return Ok(None);
        }
    };
    opened.set_lost_writes();
    log_known(unit, &path.display(), &record);
    Ok(Some(record.why))
}

/// Finds out whether an earlier process has recorded that the server of an export lost writes; returns why.
pub(in crate::serve) fn check_export(
    unit: &Unit,
    address: &dyn Display,
    state: &StateDir,
) -> Result<Option<String>, MediaError> {
    let subject = LossSubject::of(unit, Path::new(&address.to_string()), MediumIdentity::Unknown);
    let known = lost_writes::find(state, &subject);
    let known = known.map_err(|error| MediaError::new(unit, error.to_string()))?;
    match &known {
        Some(record) => log_known(unit, address, record),
        None if unit.read_only => {}
        None => lost_writes::reserve(state, &subject),
    }
    Ok(known.map(|record| record.why))
}

fn log_known(unit: &Unit, medium: &dyn Display, record: &LossRecord) {
    let (label, why) = (&unit.label, &record.why);
    crate::error!(
        "{label}: {medium}: acknowledged writes are lost ({why}); every flush fails until targe lun accept-loss"
    );
}

/// A file or device that hosts can write.
#[derive(Debug)]
pub(in crate::serve) struct WrittenFile {
    pub(in crate::serve) id: UnitId,
    /// The path by which it was opened. It can lead to another file since.
    pub(in crate::serve) path: PathBuf,
    /// Its identity when it was opened.
    pub(in crate::serve) medium: MediumIdentity,
    /// Another descriptor of it.
    pub(in crate::serve) file: std::io::Result<File>,
    /// A descriptor of it to which the system reports failed writes as well, if there is one.
    pub(in crate::serve) verifier: Option<std::io::Result<File>>,
}

/// A file or device that no store serves any more, and its unit. The file is the one that was served, since
/// its path can lead to another one.
#[derive(Debug)]
struct Ended {
    label: String,
    path: PathBuf,
    subject: LossSubject,
    file: Option<File>,
    /// To it the system reports failed writes too. The report to `file` may have gone to a flush that was
    /// abandoned.
    verifier: Option<File>,
}

impl Ended {
    /// # Errors
    /// A sentence.
    fn new(unit: &Unit, written: WrittenFile) -> Result<Self, String> {
        let WrittenFile { path, medium, file, verifier, .. } = written;
        let failed = |error: std::io::Error| {
            format!("{}: cannot make {} durable: {}", unit.label, path.display(), os_error(&error))
        };
        let file = file.map_err(failed)?;
        let verifier = verifier.transpose().map_err(failed)?;
        let subject = LossSubject::of(unit, &path, medium);
        Ok(Self { label: unit.label.clone(), path, subject, file: Some(file), verifier })
    }

    /// Makes all its data durable. A failure may be the system's only report that writes are lost, so it is
    /// recorded.
    ///
    /// # Errors
    /// A sentence.
    fn sync(&mut self, state: &StateDir) -> Result<(), String> {
        let synced = self.file.take().map_or(Ok(()), |file| file.sync_all());
        let verified = self.verifier.take().map_or(Ok(()), |file| file.sync_all());
        let is_known = lost_writes::find(state, &self.subject).ok().flatten().is_some();
        match (synced, verified) {
            (Ok(()), Err(_)) if is_known => Ok(()),
            (Err(error), _) | (Ok(()), Err(error)) => {
                let why = format!("the system could not write what hosts had written: {}", os_error(&error));
                let recorded = if is_known { Ok(()) } else { self.record(state, &why) };
                let recorded = recorded.err().map_or_else(String::new, |error| format!("; {error}"));
                Err(format!("{}: cannot make {} durable: {why}{recorded}", self.label, self.path.display()))
            }
            (Ok(()), Ok(())) => Ok(()),
        }
    }

    fn record(&self, state: &StateDir, why: &str) -> Result<(), StateError> {
        lost_writes::save(state, &self.subject, &LossRecord::new(&self.subject, why))
    }
}

/// Makes all data of files and devices durable when no store serves them any more, all at the same time, and
/// returns what could not be made durable. A disk that hangs keeps its thread, and delays neither the others
/// nor the end of the daemon beyond `within`. Whether its data become durable will never be known, so it is
/// recorded as one that has lost writes, if the state directory takes the record within [`RECORD_MAX`].
pub(in crate::serve) fn sync_all(
    files: impl Iterator<Item = (Unit, WrittenFile)>,
    state: &StateDir,
    within: Duration,
) -> Vec<String> {
    let (done, ended) = channel();
    let mut running = BTreeMap::new();
    let mut failed = Vec::new();
    for (number, (unit, written)) in files.enumerate() {
        let mut file = match Ended::new(&unit, written) {
            Ok(file) => file,
            Err(why) => {
                failed.push(why);
                continue;
            }
        };
        let late = Ended {
            label: file.label.clone(),
            path: file.path.clone(),
            subject: file.subject.clone(),
            file: None,
            verifier: None,
        };
        let (done, state) = (done.clone(), state.clone());
        let work = move || drop(done.send((number, file.sync(&state))));
        match std::thread::Builder::new().name("sync".to_owned()).spawn(work) {
            Ok(_) => drop(running.insert(number, late)),
            Err(error) => {
                let (label, path) = (&late.label, late.path.display());
                failed.push(format!("{label}: cannot make {path} durable: {}", os_error(&error)));
            }
        }
    }
    let deadline = Instant::now() + within;
    while !running.is_empty() {
        let Ok((number, synced)) = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        else {
            break;
        };
        running.remove(&number);
        failed.extend(synced.err());
    }
    let late: Vec<Ended> = running.into_values().collect();
    let sentence = |file: &Ended| {
        format!("{}: {} was not made durable within {within:?}", file.label, file.path.display())
    };
    failed.extend(late.iter().map(sentence));
    if !late.is_empty() {
        let (state, labels) = (state.clone(), late.len());
        let record = move || {
            let why =
                format!("targe ended before the system had written what hosts had written, after {within:?}");
            late.iter().filter(|file| file.record(&state, &why).is_ok()).count()
        };
        if answers::of_one(record, RECORD_MAX) != Some(labels) {
            failed.push("the state directory does not record that their writes may be lost".to_owned());
        }
    }
    failed
}

/// How long the records of disks that hang may take, whose state directory may be on one of them.
const RECORD_MAX: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::tests::unit;
    use crate::serve::media::{self, FileRollback};

    fn written(path: &Path, file: std::io::Result<File>, verifier: Option<File>) -> WrittenFile {
        let medium = File::open(path).as_ref().map_or(MediumIdentity::Unknown, MediumIdentity::of_file);
        WrittenFile { id: UnitId(1), path: path.to_owned(), medium, file, verifier: verifier.map(Ok) }
    }

    /// Returns a file that the system cannot make durable.
    fn pipe() -> File {
        let (_, pipe) = std::io::pipe().unwrap();
        std::os::fd::OwnedFd::from(pipe).into()
    }

    #[test]
    fn a_loss_that_the_end_of_the_daemon_finds_is_known_at_the_next_start() {
        let scratch = Scratch::new();
        let (path, state) = (scratch.path().join("disk.img"), StateDir::open(scratch.path()).unwrap());
        let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
        let open = || {
            let mut provisional = FileRollback::default();
            let opened = media::open(&unit, &state, &mut provisional, None);
            provisional.commit();
            opened.unwrap().loss().map(str::to_owned)
        };
        assert_eq!(open(), None);
        let accept = || {
            let identity = MediumIdentity::of_file(&File::open(&path).unwrap());
            lost_writes::remove(&state, &LossSubject::of(&unit, &path, identity)).unwrap();
        };
        let sync = |file, verifier| {
            let mut ended = Ended::new(&unit, written(&path, File::open(&path), None)).unwrap();
            (ended.file, ended.verifier) = (Some(file), verifier);
            ended.sync(&state)
        };
        let good = || File::open(&path).unwrap();
        sync(good(), Some(good())).unwrap();
        assert_eq!(open(), None);
        // The report to one of the two may have gone to a flush that was abandoned.
        for (file, verifier) in [(pipe(), None), (pipe(), Some(good())), (good(), Some(pipe()))] {
            let why = sync(file, verifier).unwrap_err();
            assert!(why.contains("cannot make"), "{why}");
            for _ in 0..2 {
                assert!(open().is_some_and(|why| why.contains("could not write what hosts had written")));
            }
            // What is recorded already is no new failure.
            sync(good(), Some(pipe())).unwrap();
            accept();
            assert_eq!(open(), None);
        }
    }

    #[test]
    fn a_disk_that_is_not_durable_in_time_is_recorded_as_one_that_lost_writes() {
        let scratch = Scratch::new();
        let (path, state) = (scratch.path().join("disk.img"), StateDir::open(scratch.path()).unwrap());
        File::create(&path).unwrap();
        let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
        let file = || File::open(&path);
        let subject = LossSubject::of(&unit, &path, MediumIdentity::of_file(&file().unwrap()));
        // Without time, a sync that ends at once may still be in time.
        let late = (0..100).find_map(|_| {
            let written = written(&path, file(), None);
            sync_all([(unit.clone(), written)].into_iter(), &state, Duration::ZERO).pop()
        });
        assert!(late.unwrap().contains("was not made durable within 0ns"));
        let record = lost_writes::find(&state, &subject).unwrap().unwrap();
        assert!(record.why.contains("targe ended before the system had written"), "{}", record.why);
    }

    #[test]
    fn many_files_are_synced_at_the_same_time_and_each_failure_is_named() {
        let scratch = Scratch::new();
        let (path, state) = (scratch.path().join("disk.img"), StateDir::open(scratch.path()).unwrap());
        File::create(&path).unwrap();
        let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
        let file = |file| (unit.clone(), written(&path, file, None));
        let files = || (0..20).map(|_| file(File::open(&path)));
        assert_eq!(sync_all(files(), &state, Duration::from_secs(60)), Vec::<String>::new());
        let broken = file(Err(std::io::ErrorKind::NotFound.into()));
        assert_eq!(sync_all(files().chain([broken]), &state, Duration::from_secs(60)).len(), 1);
    }
}
