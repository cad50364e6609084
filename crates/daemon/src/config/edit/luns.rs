//! Edits of the LUNs of a target.

use std::collections::BTreeSet;

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use super::tables::FreeComment;
use super::{EditContext, Setting, tables, values};
use crate::config::document::{RawValue, Tree, flag_span};
use crate::config::lun_spec;
use crate::config::resolved::{Config, LunNumbers, Naa};
use crate::config::schema::{LUN, LUN_MAX};
use crate::config::source_span::ConfigReport;

/// The keys of a LUN that its clone does not get: its place, and what hosts recognise it by.
const OWN_KEYS: [&str; 7] = ["lun", "drive_lun", "share", "name", "path", "naa", "serial"];

/// Adds a LUN with its number: the one that the spec sets, or the lowest that is neither used nor reserved.
/// Returns the number.
pub(super) fn add(
    target: &mut dyn TableLike,
    spec: &str,
    (used, reserved): (&BTreeSet<u16>, &BTreeSet<u16>),
    context: &EditContext<'_>,
) -> Result<u16, String> {
    let tree = parsed(spec)?;
    let number = match tree.entries.get("lun").map(|entry| &entry.value.value) {
        // No LUN without a number of its own has this one, so none of them changes its number.
        Some(RawValue::Integer(Some(number))) => match u16::try_from(*number) {
            Ok(number) if used.contains(&number) => return Err(format!("LUN {number} exists already")),
            Ok(number) if u64::from(number) <= LUN_MAX => number,
            _ => return Err(format!("\"lun\" must be a number from 0 to {LUN_MAX}")),
        },
        Some(_) => return Err("\"lun\" must be a number".to_owned()),
        None => free_number(used, reserved)?,
    };
    push(target, &tree, Some(number), context)?;
    Ok(number)
}

/// Adds a LUN with this number.
pub(super) fn add_as(
    target: &mut dyn TableLike,
    spec: &str,
    number: u16,
    context: &EditContext<'_>,
) -> Result<(), String> {
    push(target, &parsed(spec)?, Some(number), context)
}

/// Adds a LUN with the number that the spec sets, if it sets one.
pub(super) fn add_without_number(
    target: &mut dyn TableLike,
    spec: &str,
    context: &EditContext<'_>,
) -> Result<(), String> {
    push(target, &parsed(spec)?, None, context)
}

fn parsed(spec: &str) -> Result<Tree, String> {
    let mut report = ConfigReport::new(None);
    let tree = lun_spec::parse(spec, &flag_span("LUN", spec), &mut report);
    report.errors.first().map_or(Ok(tree), |mistake| Err(mistake.message.clone()))
}

fn push(
    target: &mut dyn TableLike,
    tree: &Tree,
    number: Option<u16>,
    context: &EditContext<'_>,
) -> Result<(), String> {
    let mut table = Table::new();
    if let Some(number) = number {
        values::put(&mut table, "lun", Value::from(i64::from(number)));
    }
    for key in LUN.keys.iter().filter(|key| key.name != "lun" || number.is_none()) {
        if let Some(entry) = tree.entries.get(key.name) {
            values::put(&mut table, key.name, values::from_raw(key.kind, &entry.value, context)?);
        }
    }
    tables::push(target, "lun", table)
}

/// Returns every number that the tables of a target have.
pub(super) fn used(numbers: &[LunNumbers]) -> BTreeSet<u16> {
    numbers.iter().flat_map(LunNumbers::all).collect()
}

/// Returns the table of a LUN of a target without its number and its identity. That of a shared LUN has the
/// keys of the target as well.
pub(super) fn copy(
    root: &dyn TableLike,
    target: usize,
    numbers: &[LunNumbers],
    lun: u16,
) -> Result<Table, String> {
    let target = tables::all(root, "target").into_iter().nth(target);
    let target = target.ok_or_else(|| "the target is not a table".to_owned())?;
    let own = tables::all(target, "lun").into_iter().nth(index(numbers, lun)?);
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
    (used, reserved): (&BTreeSet<u16>, &BTreeSet<u16>),
    copy: Table,
    (path, settings): (&str, &[Setting]),
    context: &EditContext<'_>,
) -> Result<(), String> {
    let mut table = Table::new();
    values::put(&mut table, "lun", Value::from(i64::from(free_number(used, reserved)?)));
    for (key, item) in copy {
        table.insert(&key, item);
    }
    values::put(&mut table, "path", Value::from(path));
    values::set_all(&mut table, &LUN, settings, context)?;
    tables::push(target, "lun", table)
}

/// Returns the lowest number that a target has free, and that is not reserved.
fn free_number(used: &BTreeSet<u16>, reserved: &BTreeSet<u16>) -> Result<u16, String> {
    let max = u16::try_from(LUN_MAX).unwrap_or(u16::MAX);
    let free = (0..=max).find(|number| !used.contains(number) && !reserved.contains(number));
    free.ok_or_else(|| "the target has no free number for another LUN".to_owned())
}

/// Sets keys of a LUN.
pub(super) fn set(
    target: &mut dyn TableLike,
    numbers: &[LunNumbers],
    lun: u16,
    settings: &[Setting],
    context: &EditContext<'_>,
) -> Result<(), String> {
    let at = index(numbers, lun)?;
    let is_library = numbers.get(at).is_some_and(|own| !own.drives.is_empty());
    let renumbers = |(key, value): &Setting| match key.as_str() {
        "lun" | "drive_lun" | "share" => true,
        "type" => value == "changer",
        _ => false,
    };
    if is_library || settings.iter().any(renumbers) {
        pin(target, numbers, |other, _| other != at);
    }
    let table = tables::get_mut(target, "lun", at).ok_or_else(|| format!("LUN {lun} is not a table"))?;
    values::set_all(table, &LUN, settings, context)
}

/// Removes a LUN, and the rows for it and the drives of its library in the access list.
pub(super) fn remove(
    target: &mut dyn TableLike,
    numbers: &[LunNumbers],
    lun: u16,
) -> Result<FreeComment, String> {
    let at = index(numbers, lun)?;
    if numbers.len() == 1 {
        return Err(format!("LUN {lun} is the only one; a target needs a LUN, so remove the target instead"));
    }
    let freed: BTreeSet<u16> = numbers.get(at).into_iter().flat_map(LunNumbers::all).collect();
    // A LUN without a number could get one that becomes free, wherever it stands.
    let lowest = freed.first().copied().unwrap_or(lun);
    pin(target, numbers, |other, number| other != at && number > lowest);
    let comment = tables::remove(target, "lun", at);
    let is_freed = |row: Option<i64>| {
        row.and_then(|number| u16::try_from(number).ok()).is_some_and(|number| freed.contains(&number))
    };
    for entry in 0..tables::all(target, "acl").len() {
        let Some(entry) = tables::get_mut(target, "acl", entry) else { continue };
        if let Some(Item::ArrayOfTables(rows)) = entry.get_mut("luns") {
            rows.retain(|row| !is_freed(row.get("lun").and_then(Item::as_integer)));
            // An entry without the key would admit its initiators to every LUN.
            if rows.is_empty() {
                entry.insert("luns", Item::Value(Array::new().into()));
            }
            continue;
        }
        let rows = entry.get_mut("luns");
        if let Some(rows) = rows.and_then(Item::as_array_mut) {
            tables::remove_values(rows, |row| is_freed(row_number(row)));
        }
    }
    Ok(comment)
}

/// Returns the number of a row of an access list: a number, or a table with one.
fn row_number(row: &Value) -> Option<i64> {
    let table = row.as_inline_table();
    row.as_integer().or_else(|| table.and_then(|table| table.get("lun")?.as_integer()))
}

/// Returns the index of the table of a LUN.
pub(super) fn index(numbers: &[LunNumbers], lun: u16) -> Result<usize, String> {
    let found = numbers.iter().position(|table| table.lun == lun);
    found.ok_or_else(|| {
        let library = numbers.iter().find_map(|table| {
            Some((table.lun, table.drives.iter().position(|number| *number == lun)?))
        });
        if let Some((changer, drive)) = library {
            return format!(
                "LUN {lun} is drive {} of the library whose changer is LUN {changer}, and has no keys of its own; name \
                 LUN {changer}",
                drive + 1
            );
        }
        let known: Vec<String> = numbers.iter().flat_map(LunNumbers::all).map(|n| n.to_string()).collect();
        format!("the target has no LUN {lun}; it has {}", known.join(", "))
    })
}

/// Writes down the numbers of LUNs and drives that have none of their own, where an edit could change them:
/// `could_change` gets the index of the table and the number. Drives whose numbers do not follow each other
/// cannot be written down.
fn pin(target: &mut dyn TableLike, numbers: &[LunNumbers], could_change: impl Fn(usize, u16) -> bool) {
    for (at, own) in numbers.iter().enumerate() {
        let Some(table) = tables::get_mut(target, "lun", at) else { continue };
        if !table.contains_key("lun") && could_change(at, own.lun) {
            values::put(table, "lun", Value::from(i64::from(own.lun)));
        }
        let follow = own.drives.iter().zip(own.drives.iter().skip(1)).all(|(one, next)| one + 1 == *next);
        if let Some(first) = own.drives.first().filter(|_| follow && !table.contains_key("drive_lun"))
            && own.drives.iter().any(|number| could_change(at, *number))
        {
            values::put(table, "drive_lun", Value::from(i64::from(*first)));
        }
    }
}

/// Writes down the world-wide names of shared LUNs that an edit would change. Returns whether there are any.
///
/// # Errors
/// There are some, and the names that the daemon serves are not known.
pub(super) fn pin_shared_names(
    document: &mut DocumentMut,
    before: &Config,
    after: &Config,
    context: &EditContext<'_>,
) -> Result<bool, String> {
    let mut pinned = false;
    for at in 0..tables::all(document.as_table(), "lun").len() {
        let Some(lun) = tables::get_mut(document.as_table_mut(), "lun", at) else { continue };
        let Some(name) = tables::text(lun, "name").map(str::to_owned) else { continue };
        if let (Some(was), Some(is), false) =
            (exported_naa(before, &name), exported_naa(after, &name), lun.contains_key("naa"))
            && was != is
        {
            if let Some(why) = &context.unknown_names {
                return Err(format!(
                    "the edit would change the world-wide name of the shared LUN \"{name}\", which must be written down \
                     first, and cannot be derived here: {why}; or set \"naa\" of the LUN to the name that hosts see"
                ));
            }
            values::put(lun, "naa", Value::from(was.to_string()));
            pinned = true;
        }
    }
    Ok(pinned)
}

/// Returns the world-wide name of a shared LUN, if a target exports it.
fn exported_naa(config: &Config, name: &str) -> Option<Naa> {
    let at = config.units.iter().position(|unit| unit.label == name)?;
    let mut exported = config.targets.iter().flat_map(|target| &target.luns);
    exported.find(|lun| lun.unit.0 == at)?;
    config.units.get(at).map(|unit| unit.identity.naa)
}
