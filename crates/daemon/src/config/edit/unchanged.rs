//! The check that an edit changed nothing in the text but what the operator named.
//!
//! It compares the text before and after the edit by meaning, and knows nothing of how an edit is made: a
//! mistake in the edit, or in the library that writes the text, is found before the text is used. The numbers
//! of LUNs are compared by `served`, in the resolved configurations.

use std::collections::BTreeMap;

use toml_edit::{DocumentMut, Item, TableLike, Value};

use super::{AuthPlace, Edit, luns, numbers, tables, target_index};
use crate::config::resolved::Config;

/// A target: its LUN tables in their order, without their numbers, and its other keys.
#[derive(Debug, Default, PartialEq, Eq)]
struct Meaning {
    luns: Vec<String>,
    keys: BTreeMap<String, String>,
}

/// What of the named target an edit may change.
enum Scope<'e> {
    /// Everything; the second name is its new one.
    Target(&'e str, Option<&'e str>),
    /// A LUN that is new.
    NewLun(&'e str),
    /// The table of one LUN.
    Lun(&'e str, usize),
    /// The table of one LUN, which goes, and the rows for it in the access list.
    NoLun(&'e str, usize),
    /// The keys other than the LUNs.
    Access(&'e str),
    /// Nothing of any target.
    Discovery,
}

/// Checks that the new text means the same as the old one, except for what the edit names.
///
/// # Errors
/// A fragment that says what else would change.
pub(super) fn check(before: &DocumentMut, after: &str, config: &Config, edit: &Edit) -> Result<(), String> {
    let wrong = |what: &str| {
        format!(
            "internal error: the edit would also change {what}; nothing was changed, edit the file by hand"
        )
    };
    let after: DocumentMut = after.parse().map_err(|_| wrong("the syntax of the file"))?;
    let scope = scope(edit, config);
    let (was, is) = (targets(before.as_table()), targets(after.as_table()));
    for name in was.keys().chain(is.keys()) {
        let is_it = |own: &str| own.to_lowercase() == *name;
        let named = match scope {
            Scope::Target(own, renamed) => is_it(own) || renamed.is_some_and(is_it),
            Scope::NewLun(own) | Scope::Lun(own, _) | Scope::NoLun(own, _) | Scope::Access(own) => is_it(own),
            Scope::Discovery => false,
        };
        let (was, is) = (was.get(name), is.get(name));
        let same = match (&scope, was, is) {
            _ if !named => was == is,
            (Scope::Target(..), ..) => true,
            (Scope::NewLun(_), Some(was), Some(is)) => {
                was.keys == is.keys && is.luns.split_last().is_some_and(|(_, rest)| *rest == was.luns)
            }
            (Scope::Lun(_, at), Some(was), Some(is)) => {
                was.keys == is.keys && without_lun(&was.luns, *at) == without_lun(&is.luns, *at)
            }
            (Scope::NoLun(_, at), Some(was), Some(is)) => {
                let keys = |target: &Meaning| {
                    let rest = target.keys.clone().into_iter().filter(|(key, _)| key != "acl");
                    rest.collect::<BTreeMap<_, _>>()
                };
                keys(was) == keys(is) && without_lun(&was.luns, *at) == is.luns
            }
            (Scope::Access(_), Some(was), Some(is)) => was.luns == is.luns,
            _ => false,
        };
        if !same {
            return Err(wrong(&format!("target \"{name}\"")));
        }
    }
    for key in before.iter().chain(after.iter()).map(|(key, _)| key) {
        // A shared LUN may get its world-wide name written down.
        let may_change =
            key == "target" || key == "lun" || key == "discovery" && matches!(scope, Scope::Discovery);
        if !may_change && before.get(key).map(meaning) != after.get(key).map(meaning) {
            return Err(wrong(&format!("\"{key}\"")));
        }
    }
    if shared(before.as_table()) != shared(after.as_table()) {
        return Err(wrong("a shared LUN"));
    }
    Ok(())
}

fn scope<'e>(edit: &'e Edit, config: &Config) -> Scope<'e> {
    // An edit of a LUN that does not exist has failed.
    let at = |name: &str, lun: u16| {
        let target = target_index(config, name).unwrap_or(usize::MAX);
        luns::index(numbers(config, target), lun).unwrap_or(usize::MAX)
    };
    match edit {
        Edit::AddTarget { name, .. } | Edit::ReplaceTarget { name, .. } | Edit::RemoveTarget { name } => {
            Scope::Target(name, None)
        }
        Edit::SetTarget { name, settings } => {
            let renamed = settings.iter().rfind(|(key, _)| key == "name");
            Scope::Target(name, renamed.map(|(_, name)| name.as_str()))
        }
        Edit::AddLun { target, .. } | Edit::CloneLun { to: target, .. } => Scope::NewLun(target),
        Edit::SetLun { target, lun, .. } => Scope::Lun(target, at(target, *lun)),
        Edit::RemoveLun { target, lun } => Scope::NoLun(target, at(target, *lun)),
        Edit::AddAcl { target, .. } | Edit::SetAcl { target, .. } | Edit::RemoveAcl { target, .. } => {
            Scope::Access(target)
        }
        Edit::AddUser { place, .. }
        | Edit::AddPasswordFile { place, .. }
        | Edit::SetUser { place, .. }
        | Edit::RemoveUser { place, .. } => match place {
            AuthPlace::Target(name) | AuthPlace::Initiator(name, _) => Scope::Access(name),
            AuthPlace::Discovery => Scope::Discovery,
        },
    }
}

/// Returns the LUN tables except one.
fn without_lun(luns: &[String], at: usize) -> Vec<String> {
    luns.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, lun)| lun.clone()).collect()
}

fn targets(root: &dyn TableLike) -> BTreeMap<String, Meaning> {
    let mut targets: BTreeMap<String, Meaning> = BTreeMap::new();
    for target in tables::all(root, "target") {
        let name = tables::text(target, "name").unwrap_or_default().to_lowercase();
        let entry = targets.entry(name).or_default();
        let luns = tables::all(target, "lun").into_iter();
        entry.luns.extend(luns.map(|lun| without(lun, &["lun", "drive_lun"])));
        let keys = target.iter().filter(|(key, _)| !matches!(*key, "lun" | "name"));
        entry.keys = keys.map(|(key, item)| (key.to_owned(), meaning(item))).collect();
    }
    targets
}

fn shared(root: &dyn TableLike) -> Vec<String> {
    tables::all(root, "lun").into_iter().map(|lun| without(lun, &["naa"])).collect()
}

/// Returns the meaning of a table without some of its keys.
fn without(table: &dyn TableLike, left_out: &[&str]) -> String {
    of_table(table.iter().filter(|(key, _)| !left_out.contains(key)).map(|(key, item)| (key, meaning(item))))
}

fn of_table<'k>(entries: impl Iterator<Item = (&'k str, String)>) -> String {
    format!("{:?}", entries.collect::<BTreeMap<_, _>>())
}

/// Returns a text that is the same for items that mean the same, however they are written.
fn meaning(item: &Item) -> String {
    match item {
        Item::None => String::new(),
        Item::Value(value) => of_value(value),
        Item::Table(table) => of_table(table.iter().map(|(key, item)| (key, meaning(item)))),
        Item::ArrayOfTables(list) => {
            format!("{:?}", list.iter().map(|table| without(table, &[])).collect::<Vec<_>>())
        }
    }
}

fn of_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{:?}", text.value()),
        Value::Integer(number) => number.value().to_string(),
        Value::Float(number) => number.value().to_string(),
        Value::Boolean(on) => on.value().to_string(),
        Value::Datetime(time) => time.value().to_string(),
        Value::Array(list) => format!("{:?}", list.iter().map(of_value).collect::<Vec<_>>()),
        Value::InlineTable(table) => of_table(table.iter().map(|(key, value)| (key, of_value(value)))),
    }
}
