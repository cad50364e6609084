//! LUN specs: `file:PATH[,size=10G][,ro][,bs=4096]…`. The words after the first comma are the keys of a
//! `[[target.lun]]` table; a switch without a value is switched on; `\,` is a comma that does not separate
//! words.

use super::document::{Tree, from_word};
use super::schema::{Key, Kind, LUN};
use super::source_span::{ConfigReport, Located, SourceSpan, did_you_mean};

/// Media types that are reserved for later releases.
const LATER: &[&str] = &["rbd"];

/// Parses a spec into the table that it stands for. Mistakes are added to the report; the valid part is
/// returned all the same.
pub(crate) fn parse(spec: &str, span: &SourceSpan, report: &mut ConfigReport) -> Tree {
    let mut tree = Tree::new(span.clone());
    let mut words = split(spec).into_iter();
    let head = words.next().unwrap_or_default();
    let (kind, argument) = head.split_once(':').unwrap_or((&head, ""));
    let argument_key = match kind {
        "file" | "block" | "disc" | "tape" | "changer" | "sg" | "vhost-user-blk" | "vhost-user-scsi" => {
            Some("path")
        }
        "nbd" => Some("uri"),
        "ram" | "null" => Some("size"),
        "share" => Some("share"),
        later if LATER.contains(&later) => {
            report.error(span, format!("media of type \"{later}\" are not in this build"));
            None
        }
        _ => {
            let kinds = [
                "file",
                "block",
                "ram",
                "null",
                "disc",
                "tape",
                "nbd",
                "changer",
                "sg",
                "vhost-user-blk",
                "vhost-user-scsi",
            ];
            let hint = did_you_mean(kind, kinds);
            report.error(
                span,
                format!(
                    "a LUN must begin with file:, block:, ram:, null:, disc:, tape:, nbd:, changer:, sg:, vhost-user-blk: or vhost-user-scsi:, not \"{kind}\"{hint}"
                ),
            );
            None
        }
    };
    if let Some(name) = argument_key {
        if name != "share" {
            tree.set("type", from_word(kind, Kind::Choice(&[]), span));
        }
        if argument.is_empty() {
            let example = match (name, kind) {
                ("path", "disc") => "/srv/disc.iso",
                ("path", "tape") => "/srv/cartridge",
                ("path", "changer") => "/srv/library",
                ("path", "sg") => "/dev/sg0",
                ("path", "vhost-user-blk" | "vhost-user-scsi") => "/run/disk.sock",
                ("path", _) => "/srv/disk.img",
                ("share", _) => "NAME",
                ("uri", _) => "nbd://host/export",
                _ => "512M",
            };
            report.error(span, format!("\"{kind}\" has no {name} (such as {kind}:{example})"));
        }
        tree.set(name, from_word(argument, Kind::Path, span));
    }
    for word in words {
        option(&word, &mut tree, span, report);
    }
    tree
}

fn option(word: &str, tree: &mut Tree, span: &SourceSpan, report: &mut ConfigReport) {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (word, None),
    };
    let Some(key) = options().find(|key| key.name == name) else {
        let hint = did_you_mean(name, options().map(|key| key.name));
        report.error(span, format!("unknown key \"{name}\" in lun{hint}"));
        return;
    };
    if tree.entries.contains_key(name) {
        report.error(span, format!("\"{name}\" is given twice"));
        return;
    }
    match (value, key.kind) {
        (Some(value), kind) => tree.set(name, from_word(value, kind, span)),
        (None, Kind::Switch) => {
            tree.set(name, Located::new(super::document::RawValue::Switch(true), span.clone()))
        }
        (None, _) => report.error(span, format!("\"{name}\" needs a value ({name}=…)")),
    }
}

/// Returns the keys that may stand after the first comma.
fn options() -> impl Iterator<Item = &'static Key> {
    LUN.keys.iter().filter(|key| !["type", "path", "uri", "share"].contains(&key.name))
}

/// Splits at commas, except those after a backslash.
fn split(spec: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = spec.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&',') => {
                chars.next();
                if let Some(word) = words.last_mut() {
                    word.push(',')
                }
            }
            ',' => words.push(String::new()),
            c => {
                if let Some(word) = words.last_mut() {
                    word.push(c)
                }
            }
        }
    }
    words
}
