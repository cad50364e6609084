//! Values of keys, from words of a command line.

use toml_edit::{Array, Item, Table, TableLike, Value};

use super::{EditContext, Setting};
use crate::config::document::RawValue;
use crate::config::schema::{Kind, Section};
use crate::config::source_span::{Located, did_you_mean};

/// Sets keys of a table. An empty value removes the key.
pub(super) fn set_all(
    table: &mut dyn TableLike,
    section: &Section,
    settings: &[Setting],
    context: &EditContext<'_>,
) -> Result<(), String> {
    settings.iter().try_for_each(|(key, word)| set(table, section, key, word, context))
}

fn set(
    table: &mut dyn TableLike,
    section: &Section,
    name: &str,
    word: &str,
    context: &EditContext<'_>,
) -> Result<(), String> {
    let (head, rest) = name.split_once('.').map_or((name, None), |(head, rest)| (head, Some(rest)));
    let Some(key) = section.key(head) else {
        let hint = did_you_mean(head, section.keys.iter().map(|key| key.name));
        return Err(format!("unknown key \"{head}\" in {}{hint}", section.noun));
    };
    match (key.kind, rest) {
        (Kind::Table(inner), Some(rest)) => {
            if !table.contains_key(head) {
                if word.is_empty() {
                    return Ok(());
                }
                table.insert(head, Item::Table(Table::new()));
            }
            let item = table.get_mut(head).and_then(Item::as_table_like_mut);
            let inner_table = item.ok_or_else(|| format!("\"{head}\" is not a table"))?;
            set(inner_table, inner, rest, word, context)?;
            if inner_table.is_empty() {
                table.remove(head);
            }
            Ok(())
        }
        (Kind::Table(_), None) => Err(format!("\"{head}\" is a table; set its keys as {head}.KEY=VALUE")),
        (Kind::Tables(_), _) => Err(format!("\"{head}\" has commands of its own")),
        (_, Some(_)) => Err(format!("\"{head}\" is not a table")),
        (_, None) if word.is_empty() => {
            table.remove(head);
            Ok(())
        }
        (kind, None) => {
            put(table, head, value(head, kind, word, context)?);
            Ok(())
        }
    }
}

/// Sets a key. The comment beside the former value stays.
pub(super) fn put(table: &mut dyn TableLike, key: &str, mut value: Value) {
    match table.get_mut(key) {
        Some(Item::Value(former)) => {
            *value.decor_mut() = former.decor().clone();
            *former = value;
        }
        _ => {
            table.insert(key, Item::Value(value));
        }
    }
}

/// Converts a word. A word that does not fit stays a string, so that the check of the whole configuration
/// reports the mistake with its place.
fn value(name: &str, kind: Kind, word: &str, context: &EditContext<'_>) -> Result<Value, String> {
    let parts = || word.split([',', ' ']).filter(|part| !part.is_empty());
    Ok(match kind {
        Kind::Switch => match word {
            "true" | "yes" | "on" => Value::from(true),
            "false" | "no" | "off" => Value::from(false),
            _ => Value::from(word),
        },
        Kind::Count { .. } | Kind::Choice(_) => {
            word.parse::<i64>().map_or_else(|_| Value::from(word), Value::from)
        }
        Kind::Texts { .. } | Kind::Choices(_) => Value::from(parts().collect::<Array>()),
        Kind::Mappings(_) => {
            let number = |part: &str| {
                part.parse::<i64>()
                    .map_err(|_| format!("\"{name}\" must be LUNs such as 0,2 here; edit the file for more"))
            };
            let numbers = parts().map(number).collect::<Result<Array, String>>()?;
            if numbers.is_empty() {
                return Err(format!("\"{name}\" names no LUN"));
            }
            Value::from(numbers)
        }
        Kind::Path => {
            let path = context.directory.join(word);
            Value::from(path.to_str().ok_or_else(|| format!("the path {} is not UTF-8", path.display()))?)
        }
        Kind::Text { .. } | Kind::Size { .. } | Kind::Span { .. } => Value::from(word),
        Kind::Table(_) | Kind::Tables(_) => return Err(format!("\"{name}\" is a table")),
    })
}

/// Converts a value of a LUN spec.
pub(super) fn from_raw(
    kind: Kind,
    raw: &Located<RawValue>,
    context: &EditContext<'_>,
) -> Result<Value, String> {
    let text = |text: &str| value("path", kind, text, context);
    match &raw.value {
        RawValue::Text(word) => text(word),
        RawValue::Integer(Some(number)) => Ok(Value::from(*number)),
        RawValue::Switch(on) => Ok(Value::from(*on)),
        RawValue::List(list) => {
            let items = list.iter().filter_map(|item| match &item.value {
                RawValue::Text(word) => Some(word.as_str()),
                _ => None,
            });
            Ok(Value::from(items.collect::<Array>()))
        }
        other => Err(format!("{} has no place in a LUN spec", other.noun())),
    }
}
