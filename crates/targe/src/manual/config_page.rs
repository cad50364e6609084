//! targe.toml(5): the reference of the configuration file, made from the one in `docs/config.md`, so that the
//! two agree.

use clap_mangen::roff::{Roff, bold, italic, roman};

use crate::version::COMMIT_DATE;

/// The name of the page.
pub(super) const NAME: &str = "targe.toml.5";

const EXAMPLE: &str = r#"[[portal]]
listen = "0.0.0.0:3260"

[[target]]
name = "iqn.2026-01.com.example:web"

[[target.lun]]
type = "file"
path = "/srv/web.img"
size = "20G"

[[target.acl]]
initiators = ["iqn.2026-01.com.example:host1"]
"#;

/// Returns the page.
pub(super) fn page() -> String {
    let mut roff = Roff::new();
    let source = concat!("targe ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["targe.toml", "5", COMMIT_DATE, source, "targe manual"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("targe.toml - configuration file of targe serve")]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([
        bold("targe serve --config"),
        roman(" reads this file, in the format TOML. Every key that is unknown or wrong is an error, which "),
        bold("targe check"),
        roman(" reports with its line. Relative paths start at the directory of the file. A running daemon takes \
               over another file by "),
        bold("targe apply"),
        roman("."),
    ]);
    for line in daemon::config::reference().lines() {
        add(&mut roff, line);
    }
    roff.control("SH", ["EXAMPLES"]);
    roff.control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([
        bold("targe-serve"),
        roman("(1), "),
        bold("targe-check"),
        roman("(1), "),
        bold("targe-apply"),
        roman("(1)"),
    ]);
    roff.control("PP", []);
    roff.text([roman("docs/config.md in the source, and in /usr/share/doc/targe of the package.")]);
    roff.to_roff()
}

/// Adds a line of the reference: a heading, a sentence about a section, or the row of a key.
fn add(roff: &mut Roff, line: &str) {
    if let Some(heading) = line.strip_prefix("### ") {
        roff.control("SH", [plain(heading).as_str()]);
    } else if let Some(row) = line.strip_prefix("| `") {
        let cells: Vec<&str> = row.trim_end_matches(" |").splitn(4, " | ").collect();
        if let [key, value, absent, meaning] = cells[..] {
            roff.control("TP", []);
            roff.text([bold(key.trim_end_matches('`')), roman(" = "), italic(plain(value))]);
            roff.text([roman(format!("{} If absent: {}.", plain(meaning), plain(absent)))]);
        }
    } else if !line.is_empty() && !line.starts_with('|') {
        roff.text([roman(plain(line))]);
    }
}

/// Returns a text without the marks of Markdown: backquotes, and the targets of links.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        plain += before;
        match link.split_once("](") {
            Some((name, target)) if !name.contains('[') => {
                plain += name;
                rest = target.split_once(')').map_or("", |(_, after)| after);
            }
            _ => {
                plain.push('[');
                rest = link;
            }
        }
    }
    plain += rest;
    plain.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_markdown_are_left_out() {
        for (text, expected) in [
            ("`file` (see [Protection](security.md#x)), or `[lun]`.", "file (see Protection), or [lun]."),
            ("[[target.lun]]", "[[target.lun]]"),
            ("no marks", "no marks"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn every_key_of_the_reference_is_on_the_page() {
        let page = page();
        let keys = daemon::config::reference();
        let keys = keys.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let mut count = 0;
        for (key, _) in keys {
            assert!(page.contains(&format!("\\fB{}\\fR", key.replace('-', "\\-"))), "{key}\n{page}");
            count += 1;
        }
        assert!(count > 100, "{count}");
        assert!(!page.contains('`') && page.contains("SH EXAMPLES"), "{page}");
    }
}
