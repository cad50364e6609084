//! Edits of access lists and authentications.

use std::collections::BTreeMap;

use toml_edit::{Array, Item, Table, TableLike, Value};

use super::tables::FreeComment;
use super::{EditContext, Setting, tables, values};
use crate::config::names::NamePattern;
use crate::config::schema::ACL;

/// Adds an entry to the access list.
pub(super) fn add(
    target: &mut dyn TableLike,
    initiators: &[String],
    settings: &[Setting],
    first: bool,
    context: &EditContext<'_>,
) -> Result<(), String> {
    for initiator in initiators {
        if find(target, initiator).is_ok() {
            return Err(format!("the access list has \"{initiator}\" already; change it with \"acl set\""));
        }
    }
    let mut table = Table::new();
    values::put(
        &mut table,
        "initiators",
        Value::from(initiators.iter().map(String::as_str).collect::<Array>()),
    );
    values::set_all(&mut table, &ACL, settings, context)?;
    let at = if first { 0 } else { tables::all(target, "acl").len() };
    tables::insert(target, "acl", at, table)
}

/// Sets keys of the entry of an initiator. An entry that lists several initiators is split first.
pub(super) fn set(
    target: &mut dyn TableLike,
    initiator: &str,
    settings: &[Setting],
    context: &EditContext<'_>,
) -> Result<(), String> {
    values::set_all(own_entry(target, initiator)?, &ACL, settings, context)
}

/// The initiators of each `[[group]]`, by its name.
pub(super) type Groups = BTreeMap<String, Vec<NamePattern>>;

/// Returns the patterns that a word of an access list stands for.
pub(super) fn patterns(word: &str, groups: &Groups) -> Vec<NamePattern> {
    match word.strip_prefix('@') {
        Some(group) => groups.get(group).cloned().unwrap_or_default(),
        None => NamePattern::parse(word).into_iter().collect(),
    }
}

/// Removes an initiator from the access list, and its entry if it is the only one there.
///
/// Unless `even_if_others`, no other name of the list may match it: such an entry could give it more access
/// than the removed one.
pub(super) fn remove(
    target: &mut dyn TableLike,
    initiator: &str,
    groups: &Groups,
    (admit_all, even_if_others): (bool, bool),
) -> Result<FreeComment, String> {
    let (at, others) = find(target, initiator)?;
    if let (Some(other), false) = (also_matches(target, (at, initiator), groups), even_if_others) {
        return Err(format!(
            "\"{other}\" of the access list also matches \"{initiator}\", which would keep the access of that entry; \
             remove \"{other}\" first, or say --even-if-others-match"
        ));
    }
    if others.is_empty() {
        if tables::all(target, "acl").len() == 1 && !admit_all {
            return Err(format!(
                "\"{initiator}\" is the last in the access list, and a target without one admits every initiator; say \
                 --admit-all if that is wanted, or remove the target"
            ));
        }
        return Ok(tables::remove(target, "acl", at));
    }
    let entry =
        tables::get_mut(target, "acl", at).ok_or_else(|| "the access list is not readable".to_owned())?;
    drop_initiator(entry, initiator);
    Ok(FreeComment::default())
}

/// Returns another name of the access list that matches some of the initiators that a name of the entry
/// `at` matches.
fn also_matches(target: &dyn TableLike, (at, name): (usize, &str), groups: &Groups) -> Option<String> {
    let removed = patterns(name, groups);
    let matches = |other: &String| {
        let others = patterns(other, groups);
        others.iter().any(|other| removed.iter().any(|name| name.overlaps(other.as_str())))
    };
    let entries = tables::all(target, "acl").into_iter().map(initiators).enumerate();
    let is_other = |index: usize, other: &str| index != at || !is_same(other, name);
    entries
        .flat_map(|(index, names)| names.into_iter().map(move |name| (index, name)))
        .find_map(|(index, other)| (is_other(index, &other) && matches(&other)).then_some(other))
}

/// Returns the entry of an initiator. An entry that lists several is split, so that this one has its own:
/// before the others, or behind them if it is a pattern or a group, which could match them as well.
pub(super) fn own_entry<'t>(
    target: &'t mut dyn TableLike,
    initiator: &str,
) -> Result<&'t mut dyn TableLike, String> {
    let (mut at, others) = find(target, initiator)?;
    let unreadable = || "the access list is not readable".to_owned();
    if !others.is_empty() {
        let entry = tables::get_mut(target, "acl", at).ok_or_else(unreadable)?;
        // Without positions, the tables of the copy are written where the copy is.
        let copy = |(key, item): (&str, &Item)| (key.to_owned(), without_position(item.clone()));
        let mut own: Table = entry.iter().map(copy).collect();
        drop_initiator(entry, initiator);
        values::put(&mut own, "initiators", Value::from([initiator].into_iter().collect::<Array>()));
        at += usize::from(initiator.contains('*') || initiator.starts_with('@'));
        tables::insert(target, "acl", at, own)?;
    }
    tables::get_mut(target, "acl", at).ok_or_else(unreadable)
}

/// Returns an authentication, if it is that of the user.
pub(super) fn auth_of<'t>(owner: &'t mut dyn TableLike, user: &str) -> Result<&'t mut dyn TableLike, String> {
    let auth = owner.get_mut("auth").and_then(Item::as_table_like_mut);
    let auth = auth.ok_or_else(|| "no authentication is configured there".to_owned())?;
    match tables::text(auth, "user").map(str::to_owned) {
        Some(known) if known == user => Ok(auth),
        Some(known) => Err(format!("the user there is \"{known}\", not \"{user}\"")),
        None => {
            Err("the authentication there has no user: it is a password login, see \"targe passwd\""
                .to_owned())
        }
    }
}

/// Returns the index of the first entry that lists an initiator, and the other initiators of that entry.
fn find(target: &dyn TableLike, initiator: &str) -> Result<(usize, Vec<String>), String> {
    let mut entries = tables::all(target, "acl").into_iter().map(initiators).enumerate();
    let is_it = |name: &String| is_same(name, initiator);
    let found = entries.find(|(_, names)| names.iter().any(is_it));
    let (at, mut names) =
        found.ok_or_else(|| format!("no entry of the access list names \"{initiator}\""))?;
    names.retain(|name| !is_it(name));
    Ok((at, names))
}

/// Returns the initiators of an entry: a list, or a single string.
fn initiators(entry: &dyn TableLike) -> Vec<String> {
    match entry.get("initiators") {
        Some(Item::Value(Value::String(one))) => vec![one.value().clone()],
        Some(Item::Value(Value::Array(list))) => {
            list.iter().filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns whether two words of an access list are the same. Names of groups are compared as they are
/// written, as where they are used.
fn is_same(one: &str, other: &str) -> bool {
    if one.starts_with('@') { one == other } else { one.to_lowercase() == other.to_lowercase() }
}

fn without_position(mut item: Item) -> Item {
    match &mut item {
        Item::Table(table) => clear_positions(table),
        Item::ArrayOfTables(list) => list.iter_mut().for_each(clear_positions),
        _ => {}
    }
    item
}

fn clear_positions(table: &mut Table) {
    table.set_position(None);
    for (_, item) in table.iter_mut() {
        *item = without_position(std::mem::take(item));
    }
}

fn drop_initiator(entry: &mut dyn TableLike, initiator: &str) {
    if let Some(list) = entry.get_mut("initiators").and_then(Item::as_array_mut) {
        tables::remove_values(list, |name| name.as_str().is_some_and(|name| is_same(name, initiator)));
    }
}
