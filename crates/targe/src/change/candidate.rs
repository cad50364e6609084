//! The text that an edit makes of a configuration file.

use daemon::config::{Config, Edit, EditContext, Environment, Flags, Setting, edit};
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
    file: &LockedFile,
) -> Result<Candidate, Failure> {
    candidate_of_all(std::slice::from_ref(done), action, force, file)
}

/// Returns the text that edits make of a file, one after the other.
pub(crate) fn candidate_of_all(
    done: &[Edit],
    action: &str,
    force: bool,
    file: &LockedFile,
) -> Result<Candidate, Failure> {
    let around = Environment::from_process().map_err(|error| Failure::Failed(error.to_string()))?;
    let flags = Flags { config: Some(file.given_path().to_path_buf()), ..Flags::default() };
    let removes = |edit: &Edit| {
        matches!(
            edit,
            Edit::RemoveTarget { .. }
                | Edit::RemoveLun { .. }
                | Edit::RemoveAcl { .. }
                | Edit::RemoveUser { .. }
        )
    };
    let only_removes = done.iter().all(removes);
    let load = if only_removes { Config::load_text_without_media } else { Config::load_text };
    let config = load(&flags, &around, file.given_path(), file.text(), file.mode())
        .map_err(|report| Failure::Misconfigured(report.to_string()))?
        .config;
    let context = EditContext::new(around.directory.clone(), &config);
    let text = done.iter().try_fold(file.text().to_owned(), |text, one| edit(&text, one, &context));
    let text = text.map_err(Failure::Failed)?;
    let (name, action) = (file.given_path().display().to_string(), action.to_owned());
    Ok(Candidate { text, name, action, needs_applied_file: true, force, only_removes })
}
