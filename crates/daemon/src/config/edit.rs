//! Edits of the text of a configuration file. Comments, order and layout stay as they are, except where the
//! edit is.
//!
//! An edit changes what the operator named, and nothing else: LUNs without a number of their own get it
//! written down before the edit would renumber them, and a shared LUN gets its world-wide name written down
//! before it would change with the first target that exports it. Whether the new text makes sense is checked
//! afterwards, with the whole configuration.
//!
//! What depends on more than one table of the file (the numbers of LUNs, the members of groups, the names of
//! shared LUNs) comes from the resolved configuration, as the daemon has it. The edited text is resolved too,
//! and the two configurations are compared LUN by LUN (`served`).

mod access;
mod luns;
mod served;
mod tables;
mod unchanged;
mod values;

#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::PathBuf;

use iscsi::name::IscsiName;
use toml_edit::{DocumentMut, Item, Table, TableLike};

use super::resolved::{Config, LunNumbers};
use super::schema::{AUTH, TARGET};

/// A key and its new value, as on a command line. An empty value removes the key.
pub type Setting = (String, String);

/// What edits need to know besides the text.
pub struct EditContext<'c> {
    /// The directory that relative paths of the edit start at.
    pub directory: PathBuf,
    /// Returns the meaning of a text, or its mistakes. That a medium cannot be used is no mistake.
    pub resolve: &'c dyn Fn(&str) -> Result<Config, String>,
    /// Why the derived world-wide names are not known to be those that the daemon serves, if they are not.
    pub unknown_names: Option<String>,
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
    /// Removes a target, and adds one with its name.
    ReplaceTarget {
        /// Its name.
        name: String,
        /// The specs of its new LUNs.
        luns: Vec<String>,
        /// Its other new keys.
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
        /// The numbers that it does not get unless its spec sets one of them: a host may still have other
        /// disks open under them.
        reserved: BTreeSet<u16>,
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
        /// The numbers that it does not get, as for [`Self::AddLun`].
        reserved: BTreeSet<u16>,
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
    /// Requires the password login, by the users of a file of password records.
    AddPasswordFile {
        /// Of whom.
        place: AuthPlace,
        /// The file.
        password_file: String,
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

/// Applies edits to a text with the meaning `config`, one after the other. If the lines of the text end with
/// CR LF, so do those of the result.
///
/// # Errors
/// A fragment that says why an edit is impossible.
pub fn edit(text: &str, config: Config, edits: &[Edit], context: &EditContext<'_>) -> Result<String, String> {
    let with_cr = text.matches("\r\n").count();
    if with_cr > 0 && with_cr != text.matches('\n').count() {
        return Err("some lines of the file end with CR LF, and some with LF; give all of them the same end"
            .to_owned());
    }
    let mut text = text.replace("\r\n", "\n");
    let mut config = Ok(config);
    for run in
        edits.chunk_by(|one, next| added_access(one).is_some() && added_access(one) == added_access(next))
    {
        (text, config) = edit_lines(&text, &config?, run, context)?;
    }
    Ok(if with_cr > 0 { text.replace('\n', "\r\n") } else { text })
}

/// Returns the target whose access list an edit only adds to. Such edits change neither the order of targets
/// nor the numbers of LUNs, so that several of them need the meaning of the text before the first one only.
fn added_access(edit: &Edit) -> Option<&str> {
    match edit {
        Edit::AddAcl { target, .. } => Some(target),
        Edit::AddUser { place: AuthPlace::Initiator(target, _), .. }
        | Edit::AddPasswordFile { place: AuthPlace::Initiator(target, _), .. } => Some(target),
        _ => None,
    }
}

/// Applies an edit, or several that add to the access list of one target, to a text whose lines end with LF.
/// Returns the new text and its meaning, or the mistakes in it.
fn edit_lines(
    text: &str,
    config: &Config,
    edits: &[Edit],
    context: &EditContext<'_>,
) -> Result<(String, Result<Config, String>), String> {
    let before: DocumentMut = text
        .parse()
        .map_err(|error: toml_edit::TomlError| format!("cannot parse the file: {}", error.message()))?;
    let mut document = before.clone();
    for edit in edits {
        apply(&mut document, config, edit, context)?;
    }
    let mut after = (context.resolve)(&document.to_string());
    if let Ok(meaning) = &after
        && luns::pin_shared_names(&mut document, config, meaning, context)?
    {
        after = (context.resolve)(&document.to_string());
    }
    let text = document.to_string();
    // All of them may change the same part of the text.
    if let Some(edit) = edits.first() {
        unchanged::check(&before, &text, config, edit)?;
    }
    // A text with mistakes is not used.
    if let Ok(meaning) = &after {
        served::check(config, meaning, edits)?;
    }
    Ok((text, after))
}

fn apply(
    document: &mut DocumentMut,
    config: &Config,
    edit: &Edit,
    context: &EditContext<'_>,
) -> Result<(), String> {
    match edit {
        Edit::AddTarget { name, luns, settings } => {
            if target_index(config, name).is_ok() {
                return Err(format!("target \"{name}\" exists already"));
            }
            add_target(document, (name, luns, settings), context)
        }
        Edit::ReplaceTarget { name, luns, settings } => {
            let comment = tables::remove(document.as_table_mut(), "target", target_index(config, name)?);
            tables::keep_comment(document, comment);
            add_target(document, (name, luns, settings), context)
        }
        Edit::SetTarget { name, settings } => {
            refuse_auth(settings)?;
            values::set_all(target(document, config, name)?.0, &TARGET, settings, context)
        }
        Edit::RemoveTarget { name } => {
            let at = target_index(config, name)?;
            let comment = tables::remove(document.as_table_mut(), "target", at);
            tables::keep_comment(document, comment);
            Ok(())
        }
        Edit::AddLun { target: name, spec, reserved } => {
            let (target, numbers) = target(document, config, name)?;
            luns::add(target, spec, (&luns::used(numbers), reserved), context).map(drop)
        }
        Edit::CloneLun { target: name, lun, to, path, settings, reserved } => {
            let source = target_index(config, name)?;
            let table = luns::copy(document.as_table(), source, numbers(config, source), *lun)?;
            let (target, numbers) = target(document, config, to)?;
            luns::add_clone(target, (&luns::used(numbers), reserved), table, (path, settings), context)
        }
        Edit::SetLun { target: name, lun, settings } => {
            let (target, numbers) = target(document, config, name)?;
            luns::set(target, numbers, *lun, settings, context)
        }
        Edit::RemoveLun { target: name, lun } => {
            let (target, numbers) = target(document, config, name)?;
            let comment = luns::remove(target, numbers, *lun)?;
            tables::keep_comment(document, comment);
            Ok(())
        }
        Edit::AddAcl { target: name, initiators, settings, first } => {
            refuse_auth(settings)?;
            access::add(target(document, config, name)?.0, initiators, settings, *first, context)
        }
        Edit::SetAcl { target: name, initiator, settings } => {
            refuse_auth(settings)?;
            access::set(target(document, config, name)?.0, initiator, settings, context)
        }
        Edit::RemoveAcl { target: name, initiator, admit_all, even_if_others_match } => {
            let allowed = (*admit_all, *even_if_others_match);
            let (target, _) = target(document, config, name)?;
            let comment = access::remove(target, initiator, &config.groups, allowed)?;
            tables::keep_comment(document, comment);
            Ok(())
        }
        Edit::AddUser { place, user, settings } => {
            let owner = auth_owner(document, config, place, true)?;
            let user = ("user".to_owned(), user.clone());
            add_auth(owner, &[&[user], settings.as_slice()].concat(), context)
        }
        Edit::AddPasswordFile { place, password_file } => {
            let owner = auth_owner(document, config, place, true)?;
            add_auth(owner, &[("password_file".to_owned(), password_file.clone())], context)
        }
        Edit::SetUser { place, user, settings } => {
            let auth = access::auth_of(auth_owner(document, config, place, false)?, user)?;
            values::set_all(auth, &AUTH, settings, context)?;
            let admits =
                tables::text(auth, "method").is_some_and(|method| method.eq_ignore_ascii_case("none"));
            if admits || !auth.contains_key("user") {
                return Err("that would admit initiators that prove nothing; see \"user remove\"".to_owned());
            }
            Ok(())
        }
        Edit::RemoveUser { place, user, admit_all } => {
            let owner = auth_owner(document, config, place, false)?;
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

/// Adds an authentication where none is.
fn add_auth(
    owner: &mut dyn TableLike,
    settings: &[Setting],
    context: &EditContext<'_>,
) -> Result<(), String> {
    if owner.contains_key("auth") {
        return Err("an authentication is configured there already; change it with \"user set\"".to_owned());
    }
    let mut table = Table::new();
    values::set_all(&mut table, &AUTH, settings, context)?;
    owner.insert("auth", Item::Table(table));
    Ok(())
}

/// Refuses keys of authentications, which have commands that guard them.
fn refuse_auth(settings: &[Setting]) -> Result<(), String> {
    match settings.iter().find(|(key, _)| key.split('.').next() == Some("auth")) {
        Some((key, _)) => Err(format!("\"{key}\" is set by \"targe user\"")),
        None => Ok(()),
    }
}

/// Adds a target. Its LUNs get the numbers that the daemon gives to the same LUNs.
fn add_target(
    document: &mut DocumentMut,
    (name, specs, settings): (&str, &[String], &[Setting]),
    context: &EditContext<'_>,
) -> Result<(), String> {
    if specs.is_empty() {
        return Err("a target needs a LUN".to_owned());
    }
    refuse_auth(settings)?;
    let mut table = Table::new();
    values::set_all(&mut table, &TARGET, &[("name".to_owned(), name.to_owned())], context)?;
    values::set_all(&mut table, &TARGET, settings, context)?;
    // A table without a position would be written after the table that was visited last, which is not always
    // the last one of the file. The tables of the target follow it.
    table.set_position(Some(tables::last_position(document.as_table()) + 1));
    let mut draft = (document.clone(), table.clone());
    for spec in specs {
        luns::add_without_number(&mut draft.1, spec, context)?;
    }
    tables::push(draft.0.as_table_mut(), "target", draft.1)?;
    let meaning = (context.resolve)(&draft.0.to_string());
    let found = meaning.ok().and_then(|meaning| {
        let at = target_index(&meaning, name).ok()?;
        Some(numbers(&meaning, at).to_vec())
    });
    // The numbers of a text with mistakes do not matter: it is not used.
    let mut used = BTreeSet::new();
    for (at, spec) in specs.iter().enumerate() {
        match found.as_ref().and_then(|found| found.get(at)) {
            Some(own) => luns::add_as(&mut table, spec, own.lun, context)?,
            None => {
                used.insert(luns::add(&mut table, spec, (&used, &BTreeSet::new()), context)?);
            }
        }
    }
    tables::push(document.as_table_mut(), "target", table)
}

/// Returns the table of a target, and the numbers of its LUN tables.
fn target<'d, 'c>(
    document: &'d mut DocumentMut,
    config: &'c Config,
    name: &str,
) -> Result<(&'d mut dyn TableLike, &'c [LunNumbers]), String> {
    let at = target_index(config, name)?;
    let table = tables::get_mut(document.as_table_mut(), "target", at);
    table.map(|table| (table, numbers(config, at))).ok_or_else(|| format!("target \"{name}\" is not a table"))
}

/// Returns the numbers of the LUN tables of a target.
fn numbers(config: &Config, target: usize) -> &[LunNumbers] {
    config.targets.get(target).map_or(&[], |target| target.numbers.as_slice())
}

/// Returns the index of a target, which is that of its table.
fn target_index(config: &Config, name: &str) -> Result<usize, String> {
    let wanted = name.parse::<IscsiName>();
    let found = wanted.ok().and_then(|wanted| config.targets.iter().position(|known| known.name == wanted));
    found.ok_or_else(|| {
        let names = config.targets.iter().map(|target| target.name.as_str());
        let hint = super::source_span::did_you_mean(name, names);
        format!("no target is named \"{name}\"{hint}")
    })
}

/// Returns the table that has, or gets, a table `auth`.
fn auth_owner<'d>(
    document: &'d mut DocumentMut,
    config: &Config,
    place: &AuthPlace,
    make: bool,
) -> Result<&'d mut dyn TableLike, String> {
    match place {
        AuthPlace::Target(name) => Ok(target(document, config, name)?.0),
        AuthPlace::Initiator(name, initiator) => {
            access::own_entry(target(document, config, name)?.0, initiator)
        }
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
