//! Writes that a file or device has lost, found while no store serves it: at the start, and at the end.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use backends::open::{LostWrites, Opened};

use super::MediaError;
use crate::config::Unit;
use crate::mailbox::channel;
use crate::os_error;
use crate::serve::lost_writes::{self, LossRecord, LossSubject};
use crate::serve::medium_identity::MediumIdentity;
use crate::serve::nbd::ExportAddress;
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
    address: &ExportAddress,
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

fn log_known(unit: &Unit, medium: &dyn std::fmt::Display, record: &LossRecord) {
    let (label, why) = (&unit.label, &record.why);
    crate::error!(
        "{label}: {medium}: acknowledged writes are lost ({why}); every flush fails until targe lun accept-loss"
    );
}

/// Makes all data of the file or device of a unit durable when no store serves it any more. A failure may be
/// the system's only report that writes are lost, so it is recorded. The file is the one that was served,
/// since its path can lead to another one.
pub(in crate::serve) fn sync(
    unit: &Unit,
    (path, file): (&Path, std::io::Result<File>),
    state: &StateDir,
) -> Result<(), MediaError> {
    let failed = |why| MediaError::new(unit, why);
    let synced = file.as_ref().map_or(Ok(()), File::sync_all);
    if let Err(error) = &synced {
        let identity = file.as_ref().map_or(MediumIdentity::Unknown, MediumIdentity::of_file);
        let subject = LossSubject::of(unit, path, identity);
        let known = lost_writes::find(state, &subject).ok().flatten().is_some();
        let why = format!("the system could not write what hosts had written: {}", os_error(error));
        if !known && let Err(error) = lost_writes::save(state, &subject, &LossRecord::new(&subject, &why)) {
            return Err(failed(format!("cannot make {} durable: {why}; {error}", path.display())));
        }
    }
    file.and(synced)
        .map_err(|error| failed(format!("cannot make {} durable: {}", path.display(), os_error(&error))))
}

/// Does the same for many units at the same time, and returns what could not be made durable. A disk that
/// hangs keeps its thread, and delays neither the others nor the end of the daemon beyond `within`.
pub(in crate::serve) fn sync_all(
    files: impl Iterator<Item = (Unit, PathBuf, std::io::Result<File>)>,
    state: &StateDir,
    within: Duration,
) -> Vec<String> {
    let (done, ended) = channel();
    let mut running = BTreeMap::new();
    let mut failed = Vec::new();
    for (number, (unit, path, file)) in files.enumerate() {
        let (label, done, state) =
            (format!("{}: {}", unit.label, path.display()), done.clone(), state.clone());
        let work = move || {
            let _ =
                done.send((number, sync(&unit, (&path, file), &state).map_err(|error| error.to_string())));
        };
        match std::thread::Builder::new().name("sync".to_owned()).spawn(work) {
            Ok(_) => drop(running.insert(number, label)),
            Err(error) => failed.push(format!("cannot make {label} durable: {}", os_error(&error))),
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
    let late = running.into_values().map(|label| format!("{label} was not made durable within {within:?}"));
    failed.extend(late);
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use crate::serve::media::tests::unit;
    use crate::serve::media::{self, FileRollback};

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
        sync(&unit, (&path, File::open(&path)), &state).unwrap();
        assert_eq!(open(), None);
        // The system cannot make a pipe durable.
        let (_, pipe) = std::io::pipe().unwrap();
        let why = sync(&unit, (&path, Ok(std::os::fd::OwnedFd::from(pipe).into())), &state).unwrap_err();
        assert!(why.to_string().contains("cannot make"), "{why}");
        for _ in 0..2 {
            assert!(open().is_some_and(|why| why.contains("could not write what hosts had written")));
        }
    }

    #[test]
    fn many_files_are_synced_at_the_same_time_and_each_failure_is_named() {
        let scratch = Scratch::new();
        let (path, state) = (scratch.path().join("disk.img"), StateDir::open(scratch.path()).unwrap());
        File::create(&path).unwrap();
        let unit = unit(scratch.path(), "type = \"file\", path = \"disk.img\", size = \"2M\"");
        let file = |file| (unit.clone(), path.clone(), file);
        let files = || (0..20).map(|_| file(File::open(&path)));
        assert_eq!(sync_all(files(), &state, Duration::from_secs(60)), Vec::<String>::new());
        let broken = file(Err(std::io::ErrorKind::NotFound.into()));
        assert_eq!(sync_all(files().chain([broken]), &state, Duration::from_secs(60)).len(), 1);
        assert!(sync_all(files(), &state, Duration::ZERO).len() <= 20);
    }
}
