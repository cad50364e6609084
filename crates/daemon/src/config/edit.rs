//! Edits of the text of a configuration file. Comments, order and layout stay as they are, except where the
//! edit is.
//!
//! An edit changes what the operator named, and nothing else: LUNs without a number of their own get it
//! written down before a removal would renumber them, and a shared LUN gets its world-wide name written down
//! before it would change with the first target that exports it. Whether the new text makes sense is checked
//! afterwards, with the whole configuration.

mod access;
mod luns;
mod tables;
mod unchanged;
mod values;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::resolved::Config;
use super::schema::{AUTH, TARGET};

/// A key and its new value, as on a command line. An empty value removes the key.
pub type Setting = (String, String);

/// What an edit needs to know besides the text.
#[derive(Clone, Debug, Default)]
pub struct EditContext {
    /// The directory that relative paths of the edit start at.
    pub directory: PathBuf,
    /// The world-wide names of shared LUNs, by name.
    pub shared_naas: BTreeMap<String, String>,
}

impl EditContext {
    /// Returns the context of a text with this meaning.
    pub fn new(directory: PathBuf, config: &Config) -> Self {
        let names = config.units.iter().map(|unit| (unit.label.clone(), unit.identity.naa.to_string()));
        Self { directory, shared_naas: names.collect() }
    }
}

/// An edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Adds a target.
    AddTarget {
        /// Its name.
        name: String,
        /// The specs of its LUNs.
        luns: Vec<String>,
        /// Its other keys.
        settings: Vec<Setting>,
    },
    /// Sets keys of a target.
    SetTarget {
        /// The target.
        name: String,
        /// The keys.
        settings: Vec<Setting>,
    },
    /// Removes a target.
    RemoveTarget {
        /// The target.
        name: String,
    },
    /// Adds a LUN.
    AddLun {
        /// The target.
        target: String,
        /// The spec of the LUN.
        spec: String,
    },
    /// Adds a LUN like another one, with a file and an identity of its own.
    CloneLun {
        /// The target of the other LUN.
        target: String,
        /// The number of the other LUN.
        lun: u16,
        /// The target of the new LUN.
        to: String,
        /// The file of the new LUN.
        path: String,
        /// The keys that differ besides.
        settings: Vec<Setting>,
    },
    /// Sets keys of a LUN.
    SetLun {
        /// The target.
        target: String,
        /// The number.
        lun: u16,
        /// The keys.
        settings: Vec<Setting>,
    },
    /// Removes a LUN.
    RemoveLun {
        /// The target.
        target: String,
        /// The number.
        lun: u16,
    },
    /// Adds an entry to an access list.
    AddAcl {
        /// The target.
        target: String,
        /// The initiators.
        initiators: Vec<String>,
        /// The other keys of the entry.
        settings: Vec<Setting>,
        /// Whether the entry comes before all others.
        first: bool,
    },
    /// Sets keys of the entry of an initiator.
    SetAcl {
        /// The target.
        target: String,
        /// The initiator.
        initiator: String,
        /// The keys.
        settings: Vec<Setting>,
    },
    /// Removes an initiator from an access list.
    RemoveAcl {
        /// The target.
        target: String,
        /// The initiator.
        initiator: String,
        /// Whether the list may be removed, which admits every initiator.
        admit_all: bool,
        /// Whether other entries may match the initiator, and admit it.
        even_if_others_match: bool,
    },
    /// Requires authentication.
    AddUser {
        /// Of whom.
        place: AuthPlace,
        /// The name that the initiator gives.
        user: String,
        /// The other keys.
        settings: Vec<Setting>,
    },
    /// Sets keys of an authentication.
    SetUser {
        /// Of whom.
        place: AuthPlace,
        /// The name that the initiator gives.
        user: String,
        /// The keys.
        settings: Vec<Setting>,
    },
    /// Removes an authentication.
    RemoveUser {
        /// Of whom.
        place: AuthPlace,
        /// The name that the initiator gives.
        user: String,
        /// Whether initiators may be admitted without authentication then.
        admit_all: bool,
    },
}

/// The place of an authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthPlace {
    /// Discovery sessions.
    Discovery,
    /// Every initiator of a target.
    Target(String),
    /// One initiator in the access list of a target.
    Initiator(String, String),
}

/// Applies an edit to a text. If its lines end with CR LF, so do those of the result.
///
/// # Errors
/// A fragment that says why the edit is impossible.
pub fn edit(text: &str, edit: &Edit, context: &EditContext) -> Result<String, String> {
    let with_cr = text.matches("\r\n").count();
    match with_cr {
        0 => edit_lines(text, edit, context),
        _ if with_cr == text.matches('\n').count() => {
            let after = edit_lines(&text.replace("\r\n", "\n"), edit, context)?;
            Ok(after.replace('\n', "\r\n"))
        }
        _ => Err("some lines of the file end with CR LF, and some with LF; give all of them the same end"
            .to_owned()),
    }
}

/// Applies an edit to a text whose lines end with LF.
fn edit_lines(text: &str, edit: &Edit, context: &EditContext) -> Result<String, String> {
    let before: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| format!("cannot parse the file: {}", error.message()))?;
    let mut document = before.clone();
    let exporters = luns::first_exporters(document.as_table());
    apply(&mut document, edit, context)?;
    luns::pin_shared_names(&mut document, &exporters, context);
    let after = document.to_string();
    unchanged::check(&before, &after, edit)?;
    Ok(after)
}

fn apply(document: &mut DocumentMut, edit: &Edit, context: &EditContext) -> Result<(), String> {
    match edit {
        Edit::AddTarget { name, luns, settings } => add_target(document, name, luns, settings, context),
        Edit::SetTarget { name, settings } => {
            refuse_auth(settings)?;
            values::set_all(target(document, name)?, &TARGET, settings, context)
        }
        Edit::RemoveTarget { name } => {
            let at = target_index(document.as_table(), name)?;
            let comment = tables::remove(document.as_table_mut(), "target", at);
            tables::keep_comment(document, comment);
            Ok(())
        }
        Edit::AddLun { target: name, spec } => luns::add(target(document, name)?, spec, context),
        Edit::CloneLun { target: name, lun, to, path, settings } => {
            let source = target_index(document.as_table(), name)?;
            let table = luns::copy(document.as_table(), source, *lun)?;
            luns::add_clone(target(document, to)?, table, path, settings, context)
        }
        Edit::SetLun { target: name, lun, settings } => {
            luns::set(target(document, name)?, *lun, settings, context)
        }
        Edit::RemoveLun { target: name, lun } => {
            let comment = luns::remove(target(document, name)?, *lun)?;
            tables::keep_comment(document, comment);
            Ok(())
        }
        Edit::AddAcl { target: name, initiators, settings, first } => {
            refuse_auth(settings)?;
            access::add(target(document, name)?, initiators, settings, *first, context)
        }
        Edit::SetAcl { target: name, initiator, settings } => {
            refuse_auth(settings)?;
            access::set(target(document, name)?, initiator, settings, context)
        }
        Edit::RemoveAcl { target: name, initiator, admit_all, even_if_others_match } => {
            let groups = access::groups(document.as_table());
            let allowed = (*admit_all, *even_if_others_match);
            let comment = access::remove(target(document, name)?, initiator, &groups, allowed)?;
            tables::keep_comment(document, comment);
            Ok(())
        }
        Edit::AddUser { place, user, settings } => {
            let owner = auth_owner(document, place, true)?;
            if owner.contains_key("auth") {
                return Err(
                    "an authentication is configured there already; change it with \"user set\"".to_owned()
                );
            }
            let mut table = Table::new();
            values::set_all(&mut table, &AUTH, &[("user".to_owned(), user.clone())], context)?;
            values::set_all(&mut table, &AUTH, settings, context)?;
            owner.insert("auth", Item::Table(table));
            Ok(())
        }
        Edit::SetUser { place, user, settings } => {
            let auth = access::auth_of(auth_owner(document, place, false)?, user)?;
            values::set_all(auth, &AUTH, settings, context)?;
            let admits =
                tables::text(auth, "method").is_some_and(|method| method.eq_ignore_ascii_case("none"));
            if admits || !auth.contains_key("user") {
                return Err("that would admit initiators that prove nothing; see \"user remove\"".to_owned());
            }
            Ok(())
        }
        Edit::RemoveUser { place, user, admit_all } => {
            let owner = auth_owner(document, place, false)?;
            access::auth_of(owner, user)?;
            if !admit_all {
                return Err(
                    "without this authentication, initiators may be admitted that prove nothing; say \
                            --admit-all if that is wanted"
                        .to_owned(),
                );
            }
            owner.remove("auth");
            Ok(())
        }
    }
}

/// Refuses keys of authentications, which have commands that guard them.
fn refuse_auth(settings: &[Setting]) -> Result<(), String> {
    match settings.iter().find(|(key, _)| key.split('.').next() == Some("auth")) {
        Some((key, _)) => Err(format!("\"{key}\" is set by \"targe user\"")),
        None => Ok(()),
    }
}

fn add_target(
    document: &mut DocumentMut,
    name: &str,
    specs: &[String],
    settings: &[Setting],
    context: &EditContext,
) -> Result<(), String> {
    if target_index(document.as_table(), name).is_ok() {
        return Err(format!("target \"{name}\" exists already"));
    }
    if specs.is_empty() {
        return Err("a target needs a LUN".to_owned());
    }
    refuse_auth(settings)?;
    let mut table = Table::new();
    values::set_all(&mut table, &TARGET, &[("name".to_owned(), name.to_owned())], context)?;
    values::set_all(&mut table, &TARGET, settings, context)?;
    for spec in specs {
        luns::add(&mut table, spec, context)?;
    }
    // A table without a position would be written behind the table that was visited last, which is not always
    // the last one of the file. The tables of the target follow it.
    table.set_position(Some(tables::last_position(document.as_table()) + 1));
    tables::push(document.as_table_mut(), "target", table)
}

/// Returns the table of a target.
fn target<'d>(document: &'d mut DocumentMut, name: &str) -> Result<&'d mut dyn TableLike, String> {
    let at = target_index(document.as_table(), name)?;
    tables::get_mut(document.as_table_mut(), "target", at)
        .ok_or_else(|| format!("target \"{name}\" is not a table"))
}

/// Returns the index of a target. Names of targets are compared in lower case, as they are used.
fn target_index(root: &dyn TableLike, name: &str) -> Result<usize, String> {
    let wanted = name.to_lowercase();
    let names: Vec<String> = tables::all(root, "target")
        .into_iter()
        .map(|target| tables::text(target, "name").unwrap_or_default().to_lowercase())
        .collect();
    names.iter().position(|known| *known == wanted).ok_or_else(|| {
        let hint = super::source_span::did_you_mean(&wanted, names.iter().map(String::as_str));
        format!("no target is named \"{name}\"{hint}")
    })
}

/// Returns the table that has, or gets, a table `auth`.
fn auth_owner<'d>(
    document: &'d mut DocumentMut,
    place: &AuthPlace,
    make: bool,
) -> Result<&'d mut dyn TableLike, String> {
    match place {
        AuthPlace::Target(name) => target(document, name),
        AuthPlace::Initiator(name, initiator) => access::own_entry(target(document, name)?, initiator),
        AuthPlace::Discovery => {
            let root = document.as_table_mut();
            if make && !root.contains_key("discovery") {
                let mut table = Table::new();
                table.set_implicit(true);
                root.insert("discovery", Item::Table(table));
            }
            let table = root.get_mut("discovery").and_then(Item::as_table_like_mut);
            table.ok_or_else(|| "no authentication is configured for discovery".to_owned())
        }
    }
}
