//! The text that an edit makes of a configuration file.

use std::path::{Path, PathBuf};

use daemon::admin::change_api::{KnownLibrary, StateFacts};
use daemon::config::{
    Config, Edit, EditContext, Environment, Flags, Loaded, ServedLibrary, Setting, StateSource, edit,
};
use daemon::config_file::LockedFile;

use super::Candidate;
use crate::Failure;

/// Parses `KEY=VALUE`.
pub(crate) fn setting(text: &str) -> Result<Setting, String> {
    let (key, value) = text.split_once('=').ok_or_else(|| format!("\"{text}\" is not KEY=VALUE"))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns the text that an edit makes of a file.
pub(crate) fn candidate(
    done: &Edit,
    action: &str,
    force: bool,
    source: &Source<'_>,
) -> Result<Candidate, Failure> {
    candidate_of_all(std::slice::from_ref(done), action, force, source)
}

/// Returns whether a file has a target. That a medium cannot be used does not matter.
pub(crate) fn has_target(name: &str, source: &Source<'_>) -> Result<bool, Failure> {
    let Loaded { config, .. } = source.load(source.file.text())?;
    Ok(config.targets.iter().any(|target| target.name.as_str() == name.to_lowercase()))
}

/// Returns the text that edits make of a file, one after the other.
pub(crate) fn candidate_of_all(
    done: &[Edit],
    action: &str,
    force: bool,
    source: &Source<'_>,
) -> Result<Candidate, Failure> {
    let file = source.file;
    let Loaded { config, report, .. } = source.load(file.text())?;
    let resolve = |text: &str| {
        let loaded = source.load(text);
        loaded.map(|loaded| loaded.config).map_err(|failure| match failure {
            Failure::Failed(why) | Failure::Misused(why) | Failure::Misconfigured(why) => why,
        })
    };
    let context = EditContext {
        directory: source.environment.directory.clone(),
        resolve: &resolve,
        unknown_names: report.unknown_names().map(str::to_owned),
    };
    let text = edit(file.text(), config, done, &context).map_err(Failure::Failed)?;
    let (name, action) = (file.given_path().display().to_string(), action.to_owned());
    Ok(Candidate { text, name, action, needs_applied_file: true, force })
}

/// A configuration file, and what the meaning of its text depends on besides.
pub(crate) struct Source<'f> {
    file: &'f LockedFile,
    pub(super) environment: Environment,
    pub(super) flags: Flags,
}

impl<'f> Source<'f> {
    /// Returns the source for a daemon that runs; `None` if it is of a release that cannot say the facts.
    pub(super) fn of_daemon(file: &'f LockedFile, facts: Option<StateFacts>) -> Result<Self, Failure> {
        let Some(StateFacts { salt, libraries }) = facts else { return Self::of_file(file, None) };
        let library =
            |KnownLibrary { path, serial, drives }| (PathBuf::from(path), ServedLibrary { serial, drives });
        let environment = Environment {
            state_source: StateSource::Daemon { salt },
            served_libraries: libraries.into_iter().map(library).collect(),
            examines_media: false,
            ..environment()?
        };
        Ok(Self { file, environment, flags: flags(file, None) })
    }

    /// Returns the source for a daemon that is not asked, with its state directory if that is given.
    pub(crate) fn of_file(file: &'f LockedFile, state_dir: Option<&Path>) -> Result<Self, Failure> {
        let environment = environment()?.without_daemon(file.given_path());
        Ok(Self { file, environment, flags: flags(file, state_dir) })
    }

    /// Returns the state directory of the daemon.
    pub(crate) fn state_dir(&self) -> Result<PathBuf, Failure> {
        Ok(self.load(self.file.text())?.config.state_dir)
    }

    /// Reads a text for an edit. Which media must be usable is decided when the edit is applied: by the
    /// daemon, or for the file alone.
    fn load(&self, text: &str) -> Result<Loaded, Failure> {
        let (name, access) = (self.file.given_path(), self.file.access());
        Config::load_text_without_media(&self.flags, &self.environment, name, text, access)
            .map_err(|report| Failure::Misconfigured(report.to_string()))
    }
}

fn environment() -> Result<Environment, Failure> {
    Environment::from_process().map_err(|error| Failure::Failed(error.to_string()))
}

fn flags(file: &LockedFile, state_dir: Option<&Path>) -> Flags {
    let state_dir = state_dir.map(Path::to_path_buf);
    Flags { config: Some(file.given_path().to_path_buf()), state_dir, ..Flags::default() }
}
