//! Generates the reference in `docs/config.md` from the schema.

use std::fmt::Write;

use super::quantity::show_size;
use super::schema::{Absent, Key, Kind, SECTIONS, Section};

/// Returns the reference of every section and key, in Markdown.
pub fn reference() -> String {
    let mut page = String::new();
    for (header, section) in SECTIONS {
        let title = if header.is_empty() { "Top level".to_owned() } else { format!("`{header}`") };
        // Writing to a string does not fail.
        let _ = write!(page, "### {title}\n\n{}\n\n", section.doc);
        page.push_str("| key | value | if absent | meaning |\n|---|---|---|---|\n");
        for key in section.keys {
            let _ = writeln!(page, "| `{}` | {} | {} | {} |", key.name, kind(key), absent(key), key.doc);
        }
        page.push('\n');
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn kind(key: &Key) -> String {
    let words = |words: &[&str]| words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    match key.kind {
        Kind::Text { len_max } => format!("string, at most {len_max} bytes"),
        Kind::Switch => "`true` or `false`".to_owned(),
        Kind::Count { min, max } => format!("{min} to {max}"),
        Kind::Size { min, max } => format!("size, {} to {}", show_size(min), show_size(max)),
        Kind::Span { min_ms, max_ms } => format!("time, {} to {}", show_span(min_ms), show_span(max_ms)),
        Kind::Choice(choice) => format!("one of {}", words(choice)),
        Kind::Path => "path".to_owned(),
        Kind::Texts { what } => format!("list of {what}"),
        Kind::Choices(choice) => format!("list of {}", words(choice)),
        Kind::Mappings(section) => format!("list of numbers or {}", link("tables", section)),
        Kind::Table(section) => link("table", section),
        Kind::Tables(section) => link("tables", section),
    }
}

fn link(word: &str, section: &Section) -> String {
    let header =
        SECTIONS.iter().find(|(_, known)| std::ptr::eq(*known, section)).map_or("", |(header, _)| *header);
    format!("{word}, see `{header}`")
}

fn absent(key: &Key) -> String {
    match key.absent {
        Absent::Required => "required".to_owned(),
        Absent::Value(value) => format!("`{value}`"),
        Absent::Told(words) => words.to_owned(),
    }
}

fn show_span(millis: u64) -> String {
    if millis.is_multiple_of(1000) { format!("{}s", millis / 1000) } else { format!("{millis}ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The heading at which the generated part of the page begins.
    const MARK: &str = "\n## Reference\n\n";

    #[test]
    fn the_page_holds_the_reference_of_this_schema() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (introduction, printed) = page.split_once(MARK).expect("docs/config.md has a section Reference");
        if std::env::var_os("TARGE_BLESS").is_some() {
            std::fs::write(path, format!("{introduction}{MARK}{}", reference())).unwrap();
        } else {
            assert_eq!(printed, reference(), "run TARGE_BLESS=1 cargo test -p targe-daemon");
        }
    }

    #[test]
    fn every_section_that_a_key_names_has_its_part() {
        for (_, section) in SECTIONS {
            for key in section.keys {
                if let Kind::Table(inner) | Kind::Tables(inner) | Kind::Mappings(inner) = key.kind {
                    assert!(SECTIONS.iter().any(|(_, known)| std::ptr::eq(*known, inner)), "{}", key.name);
                }
            }
        }
    }
}
