//! Examines the media and secrets of LUNs before the LUNs are resolved. A file system can hang, so each
//! directory has a thread of its own, and a medium that does not answer delays no other one and is reported.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::nbd::uri::{NbdUri, ServerAddress};

use super::super::library_record::ServedLibrary;
use super::super::raw;
use super::super::secret;
use super::super::source_span::{ConfigReport, SourceSpan};
use super::disk_files::{block_size_of_lun, check_device, check_file, warn_of_size};
use super::medium_key::{MediumKey, medium_keys};
use super::over_commit::Promise;
use super::{Environment, changers, discs, nbd, sg, tapes};
use crate::answers::{self, ANSWER_MAX, Place, Wait};

/// What was found of the medium and the secret of a LUN.
#[derive(Default)]
pub(super) struct Examination {
    pub(super) medium: Finding,
    pub(super) secret: Finding,
}

/// What was found at a path.
#[derive(Default)]
pub(super) struct Finding {
    /// The mistakes and warnings.
    pub(super) report: ConfigReport,
    /// What identifies the medium; without it the path does.
    pub(super) keys: Option<Vec<MediumKey>>,
    pub(super) promise: Option<Promise>,
    /// The library, if the path is that of one which can be read.
    pub(super) library: Option<ServedLibrary>,
}

/// One path to examine.
struct Piece {
    /// The LUN, by its place in the order.
    at: usize,
    is_secret: bool,
    path: PathBuf,
    /// Examines the path, on a thread that may be abandoned.
    look: Box<dyn FnOnce() -> Finding + Send>,
    /// What is found if the path does not answer.
    silent: Finding,
}

/// Examines the media and secrets of LUNs, and returns what was found of each. `known` are the libraries that
/// are served, or were.
pub(super) fn of<'l>(
    luns: impl Iterator<Item = &'l raw::Lun>,
    environment: &Environment,
    known: &BTreeMap<PathBuf, ServedLibrary>,
) -> Vec<Examination> {
    let (mut examinations, mut pieces) = (Vec::new(), Vec::new());
    let environment = Arc::new(environment.clone());
    for (at, lun) in luns.enumerate() {
        let mut examination = Examination::default();
        if lun.share.is_none() {
            match piece_of_medium((at, lun), &environment, known) {
                Some(piece) if environment.silent.contains(&piece.path) => examination.medium = piece.silent,
                piece => pieces.extend(piece),
            }
            pieces.extend(piece_of_secret((at, lun), &environment));
        }
        examinations.push(examination);
    }
    let (mut places, mut work) = (Vec::new(), Vec::new());
    for Piece { at, is_secret, path, look, silent } in pieces {
        places.push((at, is_secret, silent));
        work.push((Place::of(&path), look));
    }
    let found = answers::of_or_late(work, Wait::Each(ANSWER_MAX), |_, late| drop(late));
    for ((at, is_secret, silent), found) in places.into_iter().zip(found) {
        let Some(examination) = examinations.get_mut(at) else { continue };
        let finding = if is_secret { &mut examination.secret } else { &mut examination.medium };
        *finding = found.unwrap_or(silent);
    }
    examinations
}

fn piece_of_medium(
    (at, lun): (usize, &raw::Lun),
    environment: &Arc<Environment>,
    known: &BTreeMap<PathBuf, ServedLibrary>,
) -> Option<Piece> {
    let (path, span) = medium_path(lun, environment)?;
    let (of, is_known) = (path.clone(), known.contains_key(&path));
    if environment.examines_media {
        let silent = silent_medium(lun, &path, span, is_known);
        let (lun, environment) = (lun.clone(), Arc::clone(environment));
        let look = Box::new(move || medium(&lun, &of, is_known, &environment));
        return Some(Piece { at, is_secret: false, path, look, silent });
    }
    // The numbers of the drives of a library are needed all the same.
    (is_kind(lun, "changer") && !is_known).then(|| {
        let look = Box::new(move || Finding { library: changers::read(&of), ..Finding::default() });
        Piece { at, is_secret: false, path, look, silent: Finding::default() }
    })
}

fn piece_of_secret((at, lun): (usize, &raw::Lun), environment: &Arc<Environment>) -> Option<Piece> {
    let given = lun.encrypt.as_ref().filter(|_| environment.examines_media)?;
    let path = environment.absolute(&given.value);
    let silent = silent(&path, &given.span);
    let (span, environment, of) = (given.span.clone(), Arc::clone(environment), path.clone());
    let look = Box::new(move || secret(&of, &span, &environment));
    Some(Piece { at, is_secret: true, path, look, silent })
}

/// Returns the path of the medium of a LUN, if it has one, and where it is given.
fn medium_path<'l>(lun: &'l raw::Lun, environment: &Environment) -> Option<(PathBuf, &'l SourceSpan)> {
    match lun.kind.as_ref()?.value {
        "ram" | "null" => None,
        "nbd" => {
            let given = lun.uri.as_ref()?;
            match NbdUri::parse(&given.value).ok()?.server {
                ServerAddress::Unix(path) => Some((PathBuf::from(path), &given.span)),
                ServerAddress::Tcp(..) => None,
            }
        }
        _ => {
            let given = lun.path.as_ref()?;
            Some((environment.absolute(&given.value), &given.span))
        }
    }
}

/// Returns what is known of a path that does not answer.
fn silent(path: &Path, span: &SourceSpan) -> Finding {
    let mut finding = Finding::default();
    finding.report.silent_medium(path, span);
    finding
}

fn silent_medium(lun: &raw::Lun, path: &Path, span: &SourceSpan, is_known: bool) -> Finding {
    if is_kind(lun, "changer") && !is_known {
        // Without its library the numbers of its drives, and of the LUNs after them, are unknown.
        let mut finding = Finding::default();
        finding.report.silent_library(path, span);
        return finding;
    }
    silent(path, span)
}

fn is_kind(lun: &raw::Lun, kind: &str) -> bool {
    lun.kind.as_ref().is_some_and(|given| given.value == kind)
}

/// Examines the medium of a LUN.
fn medium(lun: &raw::Lun, path: &Path, is_known: bool, environment: &Environment) -> Finding {
    let mut finding = Finding::default();
    let report = &mut finding.report;
    let Some((kind, (_, span))) = lun.kind.as_ref().zip(medium_path(lun, environment)) else {
        return finding;
    };
    let bs = block_size_of_lun(lun);
    let checked = match kind.value {
        "disc" => {
            discs::examine(lun, path, span, report);
            return finding;
        }
        "nbd" => nbd::check_socket(path, "the NBD server"),
        "file" => check_file(path, span, lun, bs, report),
        "tape" => tapes::check(path, lun.ro),
        "changer" => changers::check(path, lun.ro),
        "sg" => sg::check(path, lun.shared_with_host),
        "vhost-user-blk" | "vhost-user-scsi" => nbd::check_socket(path, "the process of the device"),
        _ => check_device(path, lun, bs),
    };
    let is_nbd = kind.value == "nbd";
    let checked =
        checked.and_then(|()| if is_nbd { Ok(()) } else { environment.expect_open_to_service(path) });
    match checked {
        Ok(()) => {}
        // Without its library the numbers of its drives, and of the LUNs after them, are unknown, unless it
        // was served before.
        Err(why) if kind.value == "changer" && !is_known => report.medium_error(span, why),
        Err(why) => report.unusable_medium(path, span, why),
    }
    if is_nbd {
        return finding;
    }
    warn_of_size(path, lun, report);
    if kind.value == "file" && !lun.ro {
        finding.promise = Promise::of(path, lun.size.as_ref().map(|at| at.value), span);
    }
    finding.keys = Some(medium_keys(path));
    if kind.value == "changer" {
        finding.library = changers::read(path);
    }
    finding
}

/// Examines the secret of an encrypted LUN.
fn secret(path: &Path, span: &SourceSpan, environment: &Environment) -> Finding {
    let mut finding = Finding::default();
    let readable = secret::key_file(path).and_then(|_| environment.expect_open_to_service(path));
    match readable {
        Ok(()) => {}
        // The file can be on a file system that is mounted later.
        Err(why) if secret::is_missing(path) => finding.report.unusable_medium(path, span, why),
        Err(why) => finding.report.error(span, why),
    }
    finding
}
