//! Generates `docs/admin-api.json`, the description of the admin protocol, from the types.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::api::{Failure, LINE_LEN_MAX, Method, REQUEST_LEN_MAX, Request, Sessions, Status, VERSION};
use super::change_api::{
    Abandoned, Applied, BoundLuns, DroppedSessions, ForgottenPorts, LibraryChanged, Plan, Reloaded,
    StateFacts,
};
use super::event_api::Events;
use super::lun_api::{
    ClearedReservations, Drained, LossAccepted, LunReservations, Luns, Snapshot, Snapshots,
};
use super::shape::{Described, Object, Shape};
use super::trace_api::{TraceEnd, TraceStarted};
use super::upgrade_api::Upgraded;

/// Returns the description of the protocol.
pub fn document() -> Value {
    let mut types = BTreeMap::new();
    let request = value(&Request::describe(&mut types));
    TraceEnd::describe(&mut types);
    let error = value(&Failure::describe(&mut types));
    let mut results = Map::new();
    for (method, shape) in result_shapes(&mut types) {
        results.insert(word(method), value(&shape));
    }
    let types: Map<String, Value> =
        types.iter().map(|(name, object)| ((*name).to_owned(), object_value(object))).collect();
    json!({
        "api": VERSION,
        "transport": "A Unix stream socket of mode 0600. A client sends one request per line and gets one answer per \
                      line, in order: {\"result\": …} with the object of the method, or {\"error\": …}.",
        "limits": { "request_bytes": REQUEST_LEN_MAX, "answer_bytes": LINE_LEN_MAX },
        "request": request,
        "results": results,
        "error": error,
        "types": types,
    })
}

/// Returns the shape of the result of every method.
pub(super) fn result_shapes(types: &mut BTreeMap<&'static str, Object>) -> Vec<(Method, Shape)> {
    vec![
        (Method::Status, Status::describe(types)),
        (Method::Sessions, Sessions::describe(types)),
        (Method::Luns, Luns::describe(types)),
        (Method::BoundLuns, BoundLuns::describe(types)),
        (Method::StateFacts, StateFacts::describe(types)),
        (Method::Plan, Plan::describe(types)),
        (Method::Prepare, Plan::describe(types)),
        (Method::Commit, Applied::describe(types)),
        (Method::Abandon, Abandoned::describe(types)),
        (Method::DropSessions, DroppedSessions::describe(types)),
        (Method::ForgetPorts, ForgottenPorts::describe(types)),
        (Method::DrainLun, Drained::describe(types)),
        (Method::AcceptLoss, LossAccepted::describe(types)),
        (Method::Reservations, LunReservations::describe(types)),
        (Method::ClearReservations, ClearedReservations::describe(types)),
        (Method::SnapshotLun, Snapshot::describe(types)),
        (Method::SnapshotLuns, Snapshots::describe(types)),
        (Method::Library, LibraryChanged::describe(types)),
        (Method::Trace, TraceStarted::describe(types)),
        (Method::Events, Events::describe(types)),
        (Method::Reload, Reloaded::describe(types)),
        (Method::Upgrade, Upgraded::describe(types)),
    ]
}

/// Returns the word that stands for a method.
pub(super) fn word(method: Method) -> String {
    serde_json::to_value(method).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn object_value(object: &Object) -> Value {
    let fields: Vec<Value> = object
        .fields
        .iter()
        .map(|field| json!({ "name": field.name, "type": value(&field.shape), "doc": field.doc.trim() }))
        .collect();
    json!({ "doc": object.doc.trim(), "fields": fields })
}

fn value(shape: &Shape) -> Value {
    match shape {
        Shape::Plain(name) | Shape::Object(name) => json!(name),
        Shape::Nullable(inner) => json!({ "nullable": value(inner) }),
        Shape::List(inner) => json!({ "list": value(inner) }),
        Shape::Words(words) => {
            let words: Map<String, Value> =
                words.iter().map(|(word, doc)| ((*word).to_owned(), json!(doc.trim()))).collect();
            json!({ "words": words })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_document_is_that_of_these_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin-api.json");
        let written = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("TARGE_BLESS").is_some() {
            std::fs::write(path, written).unwrap();
        } else {
            let committed = std::fs::read_to_string(path).unwrap();
            assert_eq!(committed, written, "run TARGE_BLESS=1 cargo test -p targe-daemon");
        }
    }

    #[test]
    fn every_object_that_is_named_is_described() {
        let document = document();
        let types = document["types"].as_object().unwrap();
        let mut named = Vec::new();
        collect(&document, &mut named);
        for name in named {
            assert!(types.contains_key(&name), "{name}");
        }
        for object in types.values() {
            assert!(!object["fields"].as_array().unwrap().is_empty());
        }
    }

    /// Collects every name in the position of a type that begins with a capital letter.
    fn collect(value: &Value, named: &mut Vec<String>) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    match inner {
                        Value::String(name) if key == "type" || key == "list" || key == "nullable" => {
                            named.extend(name.starts_with(char::is_uppercase).then(|| name.clone()));
                        }
                        _ => collect(inner, named),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|inner| collect(inner, named)),
            _ => {}
        }
    }
}
