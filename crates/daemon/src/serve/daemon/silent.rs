//! Media that do not answer, and configurations that are read and applied meanwhile. Nothing here makes the
//! main thread wait for a medium for long: it handles signals and requests of operators.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use super::Daemon;
use crate::answers::{self, ANSWER_MAX};
use crate::config::{Environment, Unit};

/// How long a configuration may be read, with a look at each medium that it names.
const READ_MAX: Duration = Duration::from_secs(10);

/// Why a configuration cannot be read.
pub(super) const NO_ANSWER: &str = "a file or device that the configuration names does not answer";

/// The files and devices that do not answer.
pub(super) type SilentPaths = BTreeSet<PathBuf>;

impl Daemon {
    /// Reads a configuration without looking at the served media that do not answer, and returns them too;
    /// `None` if another medium does not answer.
    pub(super) fn read_config<T: Send + 'static>(
        &self,
        read: impl FnOnce(Environment) -> T + Send + 'static,
    ) -> Option<(T, SilentPaths)> {
        let silent: SilentPaths = silent_paths(self.runtime.config.units.iter()).into_iter().collect();
        let environment = Environment { silent: silent.clone(), ..self.present_environment() };
        Some((answers::of_one(move || read(environment), READ_MAX)?, silent))
    }
}

/// Returns whether a medium does not answer.
pub(super) fn is_silent(unit: &Unit, silent: &SilentPaths) -> bool {
    unit.medium.path().is_some_and(|path| silent.contains(path))
}

/// Returns the media of a configuration that do not answer, if all of them are served: they stay as they are.
///
/// # Errors
/// A sentence, if a new medium does not answer.
pub(super) fn silent_among(old: &[Unit], new: &[Unit]) -> Result<SilentPaths, String> {
    let silent: SilentPaths = silent_paths(old.iter().chain(new)).into_iter().collect();
    let is_new = |unit: &&Unit| !old.iter().any(|known| known.key() == unit.key());
    match new.iter().filter(is_new).find(|unit| is_silent(unit, &silent)) {
        Some(unit) => Err(format!("{}: {} does not answer", unit.label, unit.medium)),
        None => Ok(silent),
    }
}

/// Returns the paths of these units whose file systems do not answer.
fn silent_paths<'u>(units: impl Iterator<Item = &'u Unit>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = units.filter_map(|unit| unit.medium.path().cloned()).collect();
    paths.sort_unstable();
    paths.dedup();
    let look = |path: &PathBuf| {
        let path = path.clone();
        (path.clone(), move || drop(path.metadata()))
    };
    let answers = answers::of(paths.iter().map(look), ANSWER_MAX);
    paths.into_iter().zip(answers).filter(|(_, answer)| answer.is_none()).map(|(path, _)| path).collect()
}
