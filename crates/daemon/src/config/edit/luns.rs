//! Edits of the LUNs of a target.

use std::collections::{BTreeMap, BTreeSet};

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use super::tables::FreeComment;
use super::{EditContext, Setting, tables, values};
use crate::config::document::{RawValue, flag_span};
use crate::config::lun_spec;
use crate::config::schema::{LUN, LUN_MAX};
use crate::config::source_span::ConfigReport;

/// The keys of a LUN that its clone does not get: its place, and what hosts recognise it by.
const OWN_KEYS: [&str; 6] = ["lun", "share", "name", "path", "naa", "serial"];

/// Adds a LUN with its number.
pub(super) fn add(target: &mut dyn TableLike, spec: &str, context: &EditContext) -> Result<(), String> {
    let mut report = ConfigReport::new(None);
    let tree = lun_spec::parse(spec, &flag_span("LUN", spec), &mut report);
    if let Some(mistake) = report.errors.first() {
        return Err(mistake.message.clone());
    }
    let before: BTreeSet<i64> = numbers(target).into_iter().collect();
    let number = match tree.entries.get("lun").map(|entry| &entry.value.value) {
        Some(RawValue::Integer(Some(number))) if before.contains(number) => {
            return Err(format!("LUN {number} exists already"));
        }
        // No LUN without a number of its own has this one, so none of them changes its number.
        Some(RawValue::Integer(Some(number))) => *number,
        Some(_) => return Err("\"lun\" must be a number".to_owned()),
        None => free_number(&before)?,
    };
    let mut table = Table::new();
    values::put(&mut table, "lun", Value::from(number));
    for key in LUN.keys.iter().filter(|key| key.name != "lun") {
        if let Some(entry) = tree.entries.get(key.name) {
            values::put(&mut table, key.name, values::from_raw(key.kind, &entry.value, context)?);
        }
    }
    tables::push(target, "lun", table)
}

/// Returns the table of a LUN of a target without its number and its identity. That of a shared LUN has the
/// keys of the target as well.
pub(super) fn copy(root: &dyn TableLike, target: usize, lun: u16) -> Result<Table, String> {
    let target = tables::all(root, "target").into_iter().nth(target);
    let target = target.ok_or_else(|| "the target is not a table".to_owned())?;
    let own = tables::all(target, "lun").into_iter().nth(index(target, lun)?);
    let own = own.ok_or_else(|| format!("LUN {lun} is not a table"))?;
    let shared = tables::text(own, "share").and_then(|name| {
        tables::all(root, "lun").into_iter().find(|known| tables::text(*known, "name") == Some(name))
    });
    let mut copy = Table::new();
    for table in shared.into_iter().chain([own]) {
        for (key, item) in table.iter().filter(|(key, _)| !OWN_KEYS.contains(key)) {
            if let Ok(mut value) = item.clone().into_value() {
                value.decor_mut().clear();
                values::put(&mut copy, key, value);
            }
        }
    }
    Ok(copy)
}

/// Adds a LUN with the keys of another one.
pub(super) fn add_clone(
    target: &mut dyn TableLike,
    copy: Table,
    path: &str,
    settings: &[Setting],
    context: &EditContext,
) -> Result<(), String> {
    let mut table = Table::new();
    values::put(&mut table, "lun", Value::from(free_number(&numbers(target).into_iter().collect())?));
    for (key, item) in copy {
        table.insert(&key, item);
    }
    values::put(&mut table, "path", Value::from(path));
    values::set_all(&mut table, &LUN, settings, context)?;
    tables::push(target, "lun", table)
}

/// Returns the lowest number that a target has free.
fn free_number(used: &BTreeSet<i64>) -> Result<i64, String> {
    let max = i64::try_from(LUN_MAX).unwrap_or(i64::MAX);
    let free = (0..=max).find(|number| !used.contains(number));
    free.ok_or_else(|| "the target has no free number for another LUN".to_owned())
}

/// Sets keys of a LUN.
pub(super) fn set(
    target: &mut dyn TableLike,
    lun: u16,
    settings: &[Setting],
    context: &EditContext,
) -> Result<(), String> {
    let at = index(target, lun)?;
    if settings.iter().any(|(key, _)| key == "lun") {
        pin(target, |_| true);
    }
    let table = tables::get_mut(target, "lun", at).ok_or_else(|| format!("LUN {lun} is not a table"))?;
    values::set_all(table, &LUN, settings, context)
}

/// Removes a LUN, and the rows for it in the access list.
pub(super) fn remove(target: &mut dyn TableLike, lun: u16) -> Result<FreeComment, String> {
    let at = index(target, lun)?;
    if numbers(target).len() == 1 {
        return Err(format!("LUN {lun} is the only one; a target needs a LUN, so remove the target instead"));
    }
    // A LUN without a number could get the one that becomes free, wherever it stands.
    pin(target, |number| number > i64::from(lun));
    let comment = tables::remove(target, "lun", at);
    for entry in 0..tables::all(target, "acl").len() {
        let Some(entry) = tables::get_mut(target, "acl", entry) else { continue };
        if let Some(Item::ArrayOfTables(rows)) = entry.get_mut("luns") {
            rows.retain(|row| explicit(row) != Some(i64::from(lun)));
            // An entry without the key would admit its initiators to every LUN.
            if rows.is_empty() {
                entry.insert("luns", Item::Value(Array::new().into()));
            }
            continue;
        }
        let rows = entry.get_mut("luns");
        if let Some(rows) = rows.and_then(Item::as_array_mut) {
            tables::remove_values(rows, |row| row_number(row) == Some(i64::from(lun)));
        }
    }
    Ok(comment)
}

/// Returns the number of a row of an access list: a number, or a table with one.
fn row_number(row: &Value) -> Option<i64> {
    let table = row.as_inline_table();
    row.as_integer().or_else(|| table.and_then(|table| table.get("lun")?.as_integer()))
}

fn index(target: &dyn TableLike, lun: u16) -> Result<usize, String> {
    let numbers = numbers(target);
    let found = numbers.iter().position(|number| *number == i64::from(lun));
    found.ok_or_else(|| {
        let known: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        format!("the target has no LUN {lun}; it has {}", known.join(", "))
    })
}

fn explicit(lun: &dyn TableLike) -> Option<i64> {
    lun.get("lun").and_then(Item::as_integer)
}

/// Returns the number of each LUN: its own, or the lowest that is free when those before it have theirs.
pub(super) fn numbers(target: &dyn TableLike) -> Vec<i64> {
    let own: Vec<Option<i64>> = tables::all(target, "lun").into_iter().map(explicit).collect();
    let mut used: BTreeSet<i64> = own.iter().flatten().copied().collect();
    let mut next = 0;
    let mut free = || {
        while !used.insert(next) {
            next += 1;
        }
        next
    };
    own.into_iter().map(|number| number.unwrap_or_else(&mut free)).collect()
}

/// Writes down the numbers of LUNs that have none of their own, where an edit could change them.
fn pin(target: &mut dyn TableLike, could_change: impl Fn(i64) -> bool) {
    for (at, number) in numbers(target).into_iter().enumerate() {
        let table = tables::get_mut(target, "lun", at);
        if let Some(table) = table.filter(|table| explicit(*table).is_none() && could_change(number)) {
            values::put(table, "lun", Value::from(number));
        }
    }
}

/// Returns the first target that exports each shared LUN, by the name of the LUN.
pub(super) fn first_exporters(root: &dyn TableLike) -> BTreeMap<String, String> {
    let mut first = BTreeMap::new();
    for target in tables::all(root, "target") {
        let name = tables::text(target, "name").unwrap_or_default().to_lowercase();
        for lun in tables::all(target, "lun") {
            if let Some(shared) = tables::text(lun, "share") {
                first.entry(shared.to_owned()).or_insert_with(|| name.clone());
            }
        }
    }
    first
}

/// Writes down the world-wide names of shared LUNs whose first exporter has changed.
pub(super) fn pin_shared_names(
    document: &mut DocumentMut,
    before: &BTreeMap<String, String>,
    context: &EditContext,
) {
    let after = first_exporters(document.as_table());
    for at in 0..tables::all(document.as_table(), "lun").len() {
        let Some(lun) = tables::get_mut(document.as_table_mut(), "lun", at) else { continue };
        let Some(name) = tables::text(lun, "name").map(str::to_owned) else { continue };
        let (was, is) = (before.get(&name), after.get(&name));
        if let (Some(naa), false) = (context.shared_naas.get(&name), lun.contains_key("naa"))
            && was.is_some()
            && is.is_some()
            && was != is
        {
            values::put(lun, "naa", Value::from(naa.as_str()));
        }
    }
}
