//! Lists of tables in a document, in either of the two forms of TOML: `[[name]]`, or `name = [{ … }]`.

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, TableLike, Value};

/// Returns the tables of a list.
pub(super) fn all<'d>(parent: &'d dyn TableLike, key: &str) -> Vec<&'d dyn TableLike> {
    match parent.get(key) {
        Some(Item::ArrayOfTables(list)) => list.iter().map(|table| table as &dyn TableLike).collect(),
        Some(Item::Value(Value::Array(list))) => {
            list.iter().filter_map(Value::as_inline_table).map(|table| table as &dyn TableLike).collect()
        }
        _ => Vec::new(),
    }
}

/// Returns a table of a list.
pub(super) fn get_mut<'d>(
    parent: &'d mut dyn TableLike,
    key: &str,
    at: usize,
) -> Option<&'d mut dyn TableLike> {
    match parent.get_mut(key)? {
        Item::ArrayOfTables(list) => list.get_mut(at).map(|table| table as &mut dyn TableLike),
        Item::Value(Value::Array(list)) => list
            .iter_mut()
            .filter_map(Value::as_inline_table_mut)
            .nth(at)
            .map(|table| table as &mut dyn TableLike),
        _ => None,
    }
}

/// Appends a table to a list, in the form that the list has.
pub(super) fn push(parent: &mut dyn TableLike, key: &str, table: Table) -> Result<(), String> {
    let at = all(parent, key).len();
    insert(parent, key, at, table)
}

/// Inserts a table into a list before the one at an index.
pub(super) fn insert(parent: &mut dyn TableLike, key: &str, at: usize, table: Table) -> Result<(), String> {
    match parent.get_mut(key) {
        None => {
            let mut list = ArrayOfTables::new();
            list.push(table);
            parent.insert(key, Item::ArrayOfTables(list));
            Ok(())
        }
        Some(Item::ArrayOfTables(list)) => {
            let mut tables: Vec<Table> = std::mem::take(list).into_iter().collect();
            // A table without a position is written after the one before it.
            let next = tables.get(at).and_then(Table::position);
            let mut table = table;
            if let (0, Some(next)) = (at, next) {
                table.set_position(Some(next));
            }
            tables.insert(at.min(tables.len()), table);
            tables.into_iter().for_each(|table| list.push(table));
            Ok(())
        }
        Some(Item::Value(Value::Array(list))) => {
            list.insert(at.min(list.len()), Value::InlineTable(table.into_inline_table()));
            Ok(())
        }
        Some(_) => Err(format!("\"{key}\" is not a list of tables")),
    }
}

/// Removes a table from a list; removes the list if it is empty then. Returns the comments above the table
/// that are not its own: those with an empty line below them. If another table of the list follows, it gets
/// them instead.
pub(super) fn remove(parent: &mut dyn TableLike, key: &str, at: usize) -> String {
    let mut comment = String::new();
    let is_empty = match parent.get_mut(key) {
        Some(Item::ArrayOfTables(list)) => {
            let above = list.get(at).and_then(|table| table.decor().prefix()?.as_str());
            comment = foreign_comment(above.unwrap_or_default());
            list.remove(at);
            if let Some(next) = list.get_mut(at) {
                let own = next.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
                let both = format!("{comment}{own}");
                if !comment.is_empty() {
                    next.decor_mut().set_prefix(both);
                }
                comment.clear();
            }
            list.is_empty()
        }
        Some(Item::Value(Value::Array(list))) => {
            remove_value(list, at);
            list.is_empty()
        }
        _ => false,
    };
    if is_empty {
        parent.remove(key);
    }
    comment
}

fn remove_value(list: &mut Array, at: usize) {
    let mut tables = list.iter().enumerate().filter(|(_, value)| value.is_inline_table());
    let index = tables.nth(at).map(|(index, _)| index);
    drop(tables);
    if let Some(index) = index {
        list.remove(index);
    }
}

/// Returns the part of the text above a table that ends with an empty line, if it has a comment.
fn foreign_comment(above: &str) -> String {
    let end = above.rfind("\n\n").map_or(0, |at| at + 1);
    let foreign = above.get(..end).unwrap_or_default();
    if foreign.contains('#') { foreign.to_owned() } else { String::new() }
}

/// Adds a comment to the end of a document.
pub(super) fn add_trailing(document: &mut DocumentMut, comment: &str) {
    if !comment.is_empty() {
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        document.set_trailing(format!("{comment}{trailing}"));
    }
}

/// Returns the position of the table that is written last.
pub(super) fn last_position(table: &Table) -> isize {
    let inner = table.iter().map(|(_, item)| match item {
        Item::Table(table) => last_position(table),
        Item::ArrayOfTables(list) => list.iter().map(last_position).max().unwrap_or_default(),
        _ => 0,
    });
    inner.max().unwrap_or_default().max(table.position().unwrap_or_default())
}

/// Returns a string of a table.
pub(super) fn text<'t>(table: &'t dyn TableLike, key: &str) -> Option<&'t str> {
    table.get(key).and_then(Item::as_str)
}
