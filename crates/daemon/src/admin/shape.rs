//! Types of the admin protocol that describe themselves, for `docs/admin-api.json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

/// The shape of a type in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A built-in type of JSON.
    Plain(&'static str),
    /// Null or this type.
    Nullable(Box<Shape>),
    /// A list of this type.
    List(Box<Shape>),
    /// One of these words, each with its meaning.
    Words(&'static [(&'static str, &'static str)]),
    /// An object of the protocol, by name.
    Object(&'static str),
}

/// A field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// Its shape.
    pub shape: Shape,
}

/// An object and its fields.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it describes.
    pub doc: &'static str,
    /// Its fields in order.
    pub fields: Vec<Field>,
}

/// A type of the protocol that can describe its own shape.
pub trait Described {
    /// Returns the shape of the type, and adds the objects that it contains to `types`.
    fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape;
}

macro_rules! plain {
    ($($type:ty: $name:literal),*) => {
        $(impl Described for $type {
            fn describe(_: &mut BTreeMap<&'static str, Object>) -> Shape {
                Shape::Plain($name)
            }
        })*
    };
}

plain!(String: "string", Cow<'_, str>: "string", bool: "boolean", u16: "number", u32: "number", u64: "number");

impl<T: Described> Described for Option<T> {
    fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape {
        Shape::Nullable(Box::new(T::describe(types)))
    }
}

impl<T: Described> Described for Vec<T> {
    fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape {
        Shape::List(Box::new(T::describe(types)))
    }
}

/// Declares an object of the protocol; its text in `docs/admin-api.json` comes from its doc comments.
macro_rules! object {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[doc = $field_doc])+ pub $field: $type,)*
        }

        impl Described for $name {
            fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape {
                if !types.contains_key(stringify!($name)) {
                    let doc = concat!($($doc),+);
                    types.insert(stringify!($name), Object { doc, fields: Vec::new() });
                    let fields = vec![
                        $(Field {
                            name: stringify!($field),
                            doc: concat!($($field_doc),+),
                            shape: <$type>::describe(types),
                        },)*
                    ];
                    types.insert(stringify!($name), Object { doc, fields });
                }
                Shape::Object(stringify!($name))
            }
        }
    };
}

pub(super) use object;

/// Declares an enumeration of words of the protocol.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $variant,)*
        }

        impl Described for $name {
            fn describe(_: &mut BTreeMap<&'static str, Object>) -> Shape {
                Shape::Words(&[$(($word, concat!($($word_doc),+)),)*])
            }
        }
    };
}

pub(super) use words;
