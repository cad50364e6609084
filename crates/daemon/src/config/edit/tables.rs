//! Lists of tables in a document, in either of the two forms of TOML: `[[name]]`, or `name = [{ … }]`.

use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, RawString, Table, TableLike, Value};

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

/// The comments above a removed table that are not its own: those with an empty line below them.
#[must_use]
#[derive(Debug, Default)]
pub(super) struct FreeComment {
    text: String,
    /// The position of the removed table.
    position: Option<isize>,
}

/// Removes a table from a list; removes the list if it is empty then.
pub(super) fn remove(parent: &mut dyn TableLike, key: &str, at: usize) -> FreeComment {
    let mut comment = FreeComment::default();
    let is_empty = match parent.get_mut(key) {
        Some(Item::ArrayOfTables(list)) => {
            let above = list.get(at).and_then(|table| table.decor().prefix()?.as_str());
            comment.text = foreign_comment(above.unwrap_or_default());
            comment.position = list.get(at).and_then(Table::position);
            list.remove(at);
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
        remove_at(list, index);
    }
}

/// Removes values from an array. Comments between the values stay.
pub(super) fn remove_values(list: &mut Array, is_removed: impl Fn(&Value) -> bool) {
    for index in (0..list.len()).rev() {
        if list.get(index).is_some_and(&is_removed) {
            remove_at(list, index);
        }
    }
}

/// Removes a value. Its layout and the comments around it go to the value after it, or to the end.
fn remove_at(list: &mut Array, index: usize) {
    let text = |raw: Option<&RawString>| raw.and_then(RawString::as_str).unwrap_or_default().to_owned();
    let removed = list.remove(index);
    let mut above = text(removed.decor().prefix());
    let behind = text(removed.decor().suffix());
    if behind.contains('#') {
        above = joined(&above, &behind);
    }
    if let Some(next) = list.get_mut(index) {
        let own = text(next.decor().prefix());
        let both = if above.contains('#') || own.contains('#') { joined(&above, &own) } else { above };
        next.decor_mut().set_prefix(both);
    } else {
        let both = joined(&above, &text(Some(list.trailing())));
        list.set_trailing(both);
    }
}

/// Returns the comments of two pieces of text between values, with the layout of the second one.
fn joined(first: &str, second: &str) -> String {
    if !first.contains('#') {
        return second.to_owned();
    }
    let (kept, after) = first.split_at(first.trim_end().len());
    let lead = second.split('#').next().unwrap_or_default();
    // A comment extends to the end of its line.
    if lead.contains('\n') {
        format!("{kept}{second}")
    } else {
        format!("{kept}{after}{}", second.trim_start())
    }
}

/// Returns the part of the text above a table that ends with an empty line, if it has a comment.
fn foreign_comment(above: &str) -> String {
    let end = above.rfind("\n\n").map_or(0, |at| at + 1);
    let foreign = above.get(..end).unwrap_or_default();
    if foreign.contains('#') { foreign.to_owned() } else { String::new() }
}

/// Puts the comments of a removed table above the table that followed it, or at the end of the document.
pub(super) fn keep_comment(document: &mut DocumentMut, FreeComment { text, position }: FreeComment) {
    if text.is_empty() {
        return;
    }
    let next = position.and_then(|position| next_position(document.as_table(), position));
    match next.and_then(|next| at_position(document.as_table_mut(), next)) {
        Some(next) => {
            let own = next.decor().prefix().and_then(RawString::as_str).unwrap_or_default();
            let both = format!("{text}{own}");
            next.decor_mut().set_prefix(both);
        }
        None => {
            let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
            document.set_trailing(format!("{text}{trailing}"));
        }
    }
}

/// Returns the lowest position after another one of a table whose header is written.
fn next_position(table: &Table, after: isize) -> Option<isize> {
    let inner = table.iter().filter_map(|(_, item)| match item {
        Item::Table(table) => next_position(table, after),
        Item::ArrayOfTables(list) => list.iter().filter_map(|table| next_position(table, after)).min(),
        _ => None,
    });
    let own = if table.is_implicit() || table.is_dotted() { None } else { table.position() };
    inner.chain(own.filter(|own| *own > after)).min()
}

/// Returns the table at a position.
fn at_position(table: &mut Table, position: isize) -> Option<&mut Table> {
    if table.position() == Some(position) && !table.is_implicit() && !table.is_dotted() {
        return Some(table);
    }
    table.iter_mut().find_map(|(_, item)| match item {
        Item::Table(table) => at_position(table, position),
        Item::ArrayOfTables(list) => list.iter_mut().find_map(|table| at_position(table, position)),
        _ => None,
    })
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
