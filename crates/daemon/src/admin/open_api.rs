//! The admin protocol over HTTP: which methods there are, and the OpenAPI document of the HTTP server,
//! generated from the types of the protocol.

use std::collections::BTreeMap;

use utoipa::openapi::path::{OperationBuilder, PathItem, PathsBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::SchemaType;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ArrayBuilder, ComponentsBuilder, ContentBuilder, HttpMethod, InfoBuilder, ObjectBuilder, OneOfBuilder,
    OpenApi, OpenApiBuilder, Ref, RefOr, Required, Response, ResponseBuilder, Schema, SecurityRequirement,
    Type,
};

use super::api::{Failure, Method, VERSION};
use super::change_api::{Change, LibraryRequest, SessionSelector};
use super::document::{result_shapes, word};
use super::lun_api::{LunList, LunSelector, ReservationSelector};
use super::shape::{Described, Object, Shape};

/// The methods that only read: `GET /api/v1/METHOD`.
pub const READS: [Method; 5] =
    [Method::Status, Method::Sessions, Method::Luns, Method::BoundLuns, Method::Events];

/// The methods that change something, try a change or need an argument: `POST /api/v1/METHOD`. Those that
/// belong to a connection of the admin socket, because the client replaces the configuration file, are not
/// among them, nor are the facts that its edits need.
pub const CHANGES: [Method; 11] = [
    Method::Plan,
    Method::Reload,
    Method::DropSessions,
    Method::ForgetPorts,
    Method::DrainLun,
    Method::AcceptLoss,
    Method::Reservations,
    Method::ClearReservations,
    Method::SnapshotLun,
    Method::SnapshotLuns,
    Method::Library,
];

/// The path of the OpenAPI document.
pub const DOCUMENT_PATH: &str = "/api/openapi.json";

/// Returns the path of a method.
pub fn path(method: Method) -> String {
    format!("/api/v1/{}", word(method))
}

/// The media type of JSON.
pub const JSON: &str = "application/json";

/// The media type of sentences.
const TEXT: &str = "text/plain";

/// Returns the document.
pub fn open_api() -> OpenApi {
    let mut types = BTreeMap::new();
    let mut paths = PathsBuilder::new();
    let failure = schema(&Failure::describe(&mut types));
    let results = result_shapes(&mut types);
    for method in READS.into_iter().chain(CHANGES) {
        let result = results.iter().find(|(known, _)| *known == method).map(|(_, shape)| schema(shape));
        let operation = OperationBuilder::new()
            .operation_id(Some(word(method)))
            .summary(Some(summary(method, &mut types)))
            .response("200", content("The result.", JSON, result));
        let late = |doc| content(doc, JSON, Some(failure.clone()));
        let item = if CHANGES.contains(&method) {
            let argument = argument(method, &mut types);
            let operation = operation.response("503", late(CHANGE_LATE));
            PathItem::new(HttpMethod::Post, change(operation, argument.as_ref(), &failure))
        } else {
            PathItem::new(HttpMethod::Get, read(operation.response("503", late(SILENT))))
        };
        paths = paths.path(path(method), item);
    }
    for (path, item) in monitoring() {
        paths = paths.path(path, item);
    }
    let mut components = ComponentsBuilder::new()
        .security_scheme("read", bearer("A token of the role `read` or `admin`, if the server has tokens."))
        .security_scheme("admin", bearer("A token of the role `admin`."));
    for (name, object) in &types {
        components = components.schema(*name, object_schema(object));
    }
    let info = InfoBuilder::new().title("targe").version(VERSION.to_string()).description(Some(ABOUT));
    OpenApiBuilder::new().info(info.build()).paths(paths).components(Some(components.build())).build()
}

const ABOUT: &str = "The HTTP server of targe: what the admin socket offers, metrics and health. A new release only \
                     adds fields.";

const SILENT: &str = "A reactor does not answer in time.";
const CHANGE_LATE: &str =
    "The daemon does not answer in time, or it makes other changes; the change may still be made.";

/// Returns what a method does, without the fields that a request over the socket needs.
fn summary(method: Method, types: &mut BTreeMap<&'static str, Object>) -> &'static str {
    let Shape::Words(methods) = Method::describe(types) else { return "" };
    let doc = methods.iter().find(|(known, _)| *known == word(method)).map_or("", |(_, doc)| *doc);
    doc.split(" Needs `").next().unwrap_or_default().trim()
}

/// Returns the shape of the body of a change; `None` if it needs none.
fn argument(method: Method, types: &mut BTreeMap<&'static str, Object>) -> Option<Shape> {
    match method {
        Method::Plan => Some(Change::describe(types)),
        Method::DropSessions | Method::ForgetPorts => Some(SessionSelector::describe(types)),
        Method::DrainLun | Method::SnapshotLun | Method::AcceptLoss | Method::Reservations => {
            Some(LunSelector::describe(types))
        }
        Method::ClearReservations => Some(ReservationSelector::describe(types)),
        Method::SnapshotLuns => Some(LunList::describe(types)),
        Method::Library => Some(LibraryRequest::describe(types)),
        _ => None,
    }
}

/// Adds what every path that is read has in common.
fn read(operation: OperationBuilder) -> OperationBuilder {
    let refused = content("The token is missing or wrong.", TEXT, None);
    operation
        .response("401", refused)
        .security(SecurityRequirement::new("read", [""; 0]))
        .security(SecurityRequirement::default())
}

/// Adds what every path that changes something has in common.
fn change(
    operation: OperationBuilder,
    argument: Option<&Shape>,
    failure: &RefOr<Schema>,
) -> OperationBuilder {
    let refused = |status, doc| (status, content(doc, JSON, Some(failure.clone())));
    let told = |status, doc| (status, content(doc, TEXT, None));
    let mut operation = operation.security(SecurityRequirement::new("admin", [""; 0]));
    for (status, response) in [
        refused("400", "The body is not the object that the path needs."),
        told("401", "The token is missing or wrong."),
        told("403", "The token does not allow changes, or a web page of another site sent the request."),
        refused("409", "The configuration has changed meanwhile; nothing was changed."),
        refused("413", "The body is too long."),
        told("415", "The body is not of the type application/json."),
        refused("422", "The request was not granted; `message` says what was changed all the same."),
    ] {
        operation = operation.response(status, response);
    }
    let Some(argument) = argument else { return operation };
    let body = ContentBuilder::new().schema(Some(schema(argument))).build();
    let body = RequestBodyBuilder::new().content(JSON, body).required(Some(Required::True)).build();
    operation.request_body(Some(body))
}

/// Returns the paths for monitoring, and that of the document.
fn monitoring() -> [(&'static str, PathItem); 4] {
    let get = |path: &'static str, doc, media, not: Option<&str>| {
        let operation = OperationBuilder::new()
            .operation_id(Some(path.trim_start_matches('/').replace(['/', '.'], "-")))
            .summary(Some(doc))
            .response("200", content("The result.", media, None));
        let operation = match not {
            Some(not) => read(operation.response("503", content(not, media, None))),
            None => operation.security(SecurityRequirement::default()),
        };
        (path, PathItem::new(HttpMethod::Get, operation))
    };
    let silent = Some(SILENT);
    let metrics =
        "The metrics in the format of OpenMetrics; for `Accept: text/plain`, in that of Prometheus.";
    [
        get("/metrics", metrics, "application/openmetrics-text", silent),
        get("/healthz", "Whether every reactor answers.", TEXT, silent),
        get(
            "/readyz",
            "Whether all that is configured is served.",
            JSON,
            Some("Not so; `problems` tells why."),
        ),
        get(DOCUMENT_PATH, "This document. It needs no token.", JSON, None),
    ]
}

fn bearer(doc: &str) -> SecurityScheme {
    SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(doc)).build())
}

fn content(doc: &str, media: &str, schema: Option<RefOr<Schema>>) -> Response {
    ResponseBuilder::new()
        .description(doc)
        .content(media, ContentBuilder::new().schema(schema).build())
        .build()
}

fn object_schema(object: &Object) -> Schema {
    let mut described = ObjectBuilder::new().description(Some(object.doc.trim()));
    for field in &object.fields {
        described = described.property(field.name, with_doc(schema(&field.shape), field.doc.trim()));
        if !matches!(field.shape, Shape::Nullable(_)) {
            described = described.required(field.name);
        }
    }
    described.build().into()
}

fn with_doc(schema: RefOr<Schema>, doc: &str) -> RefOr<Schema> {
    let doc = doc.to_owned();
    match schema {
        RefOr::Ref(mut reference) => {
            reference.description = doc;
            RefOr::Ref(reference)
        }
        RefOr::T(mut schema) => {
            match &mut schema {
                Schema::Object(object) => object.description = Some(doc),
                Schema::Array(array) => array.description = Some(doc),
                Schema::OneOf(one_of) => one_of.description = Some(doc),
                _ => {}
            }
            RefOr::T(schema)
        }
    }
}

fn schema(shape: &Shape) -> RefOr<Schema> {
    match shape {
        Shape::Object(name) => Ref::from_schema_name(*name).into(),
        Shape::List(inner) => ArrayBuilder::new().items(schema(inner)).into(),
        Shape::Words(words) => {
            let words = words.iter().map(|(word, _)| *word);
            ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).into()
        }
        Shape::Plain(name) => plain(name, SchemaType::Type(plain_type(name))),
        Shape::Nullable(inner) => match &**inner {
            Shape::Plain(name) => plain(name, SchemaType::Array(vec![plain_type(name), Type::Null])),
            inner => OneOfBuilder::new()
                .item(ObjectBuilder::new().schema_type(Type::Null))
                .item(schema(inner))
                .into(),
        },
    }
}

fn plain(name: &str, kind: SchemaType) -> RefOr<Schema> {
    let object = ObjectBuilder::new().schema_type(kind);
    // Every number of the protocol is a count.
    if name == "number" { object.minimum(Some(0_u32)).into() } else { object.into() }
}

fn plain_type(name: &str) -> Type {
    match name {
        "number" => Type::Integer,
        "boolean" => Type::Boolean,
        _ => Type::String,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_committed_document_is_that_of_these_types() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/http-api.json");
        let written = open_api().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("TARGE_BLESS").is_some() {
            std::fs::write(path, written).unwrap();
        } else {
            let committed = std::fs::read_to_string(path).unwrap();
            assert_eq!(committed, written, "run TARGE_BLESS=1 cargo test -p targe-daemon");
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_no_operation_has_the_name_of_another() {
        let document = serde_json::to_value(open_api()).unwrap();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let (mut references, mut names) = (BTreeSet::new(), Vec::new());
        collect(&document, "$ref", &mut |found| {
            references.insert(found.to_owned());
        });
        collect(&document["paths"], "operationId", &mut |found| names.push(found.to_owned()));
        for reference in &references {
            let name = reference.strip_prefix("#/components/schemas/").unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        assert!(references.len() > 20, "{references:?}");
        assert_eq!(names.len(), READS.len() + CHANGES.len() + 4);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    }

    #[test]
    fn methods_that_belong_to_a_connection_of_the_socket_are_not_offered() {
        let Shape::Words(methods) = Method::describe(&mut BTreeMap::new()) else { panic!("no words") };
        let offered: Vec<String> = READS.into_iter().chain(CHANGES).map(word).collect();
        let others = methods
            .iter()
            .map(|(method, _)| *method)
            .filter(|method| !offered.iter().any(|known| known == method));
        assert_eq!(
            others.collect::<Vec<_>>(),
            ["state-facts", "prepare", "commit", "abandon", "trace", "upgrade"]
        );
    }

    fn collect(value: &Value, wanted: &str, found: &mut impl FnMut(&str)) {
        match value {
            Value::Object(map) => {
                for (key, inner) in map {
                    match inner {
                        Value::String(text) if key == wanted => found(text),
                        _ => collect(inner, wanted, found),
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|inner| collect(inner, wanted, found)),
            _ => {}
        }
    }
}
