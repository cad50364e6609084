//! Finds modules of one parent that use each other in a circle, with what is below them. A module and its own
//! children may use each other. `xtask/circles.toml` lists how many modules of a parent are in circles now;
//! the number only shrinks.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const RATCHET: &str = "xtask/circles.toml";

/// Which children of a parent module use which others.
type Uses = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let ratchet = match tree.text(RATCHET).unwrap_or_default().parse::<Table>() {
        Ok(ratchet) => ratchet,
        Err(why) => return vec![Finding::whole(RATCHET, format!("not TOML: {why}"))],
    };
    let mut uses = Uses::new();
    for (path, text) in tree.ending_in(&[".rs"]) {
        let Some((name, file)) = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/"))
        else {
            continue;
        };
        let mut module = vec![name];
        module.extend(file.trim_end_matches(".rs").split('/').filter(|part| *part != "lib"));
        if !module.contains(&"tests") && !module.contains(&"testing") {
            add_uses(&mut uses, &module, text);
        }
    }
    let mut findings = Vec::new();
    for (parent, children) in &uses {
        let circle: Vec<&str> =
            children.keys().filter(|child| reaches_itself(children, child)).map(String::as_str).collect();
        let allowed = ratchet.get(parent).and_then(Value::as_integer).unwrap_or(0);
        let what = match i64::try_from(circle.len()).unwrap_or(i64::MAX) {
            now if now > allowed => {
                format!("{now} modules of {parent} use each other in circles: {}", circle.join(", "))
            }
            now if now < allowed => format!("{now} modules of {parent} are in circles now: lower its number"),
            _ => continue,
        };
        findings.push(Finding::whole(RATCHET, what));
    }
    let gone = ratchet.keys().filter(|parent| !uses.contains_key(*parent));
    findings.extend(gone.map(|parent| Finding::whole(RATCHET, format!("`{parent}` uses nothing: drop it"))));
    findings
}

fn reaches_itself(children: &BTreeMap<String, BTreeSet<String>>, start: &str) -> bool {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(child) = next.pop() {
        let used = children.get(child).into_iter().flatten();
        next.extend(used.filter(|child| reached.insert(child.as_str())).map(String::as_str));
    }
    reached.contains(start)
}

/// Records what a module uses: each path that begins with `crate` or `super`, up to the first part in which
/// it differs from the module.
fn add_uses(uses: &mut Uses, module: &[&str], text: &str) {
    let text = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: Vec<&str> =
        text.lines().map(|line| line.split("//").next().unwrap_or_default().trim()).collect();
    let code = code.join(" ");
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let inside = code.get(..at).and_then(|head| head.chars().next_back());
            if inside.is_some_and(|c| c.is_alphanumeric() || "_:$".contains(c)) {
                continue;
            }
            let mut rest = code.get(at..).unwrap_or_default();
            let mut base = module.get(..1).unwrap_or_default();
            if let Some(path) = rest.strip_prefix("crate::") {
                rest = path;
            } else {
                base = module;
                while let Some(path) = rest.strip_prefix("super::") {
                    (rest, base) = (path, base.split_last().map_or(base, |(_, parents)| parents));
                }
            }
            for path in paths(rest) {
                let full: Vec<&str> = base.iter().copied().chain(path.split("::")).collect();
                let common = full.iter().zip(module).take_while(|(used, own)| used == own).count();
                if let (Some(used), Some(own)) = (full.get(common), module.get(common)) {
                    let parent = uses.entry(full.get(..common).unwrap_or_default().join("::")).or_default();
                    parent.entry((*own).to_owned()).or_default().insert((*used).to_owned());
                }
            }
        }
    }
}

/// Returns the paths that a text begins with: several for `a::{b, c::{d, e}}`.
fn paths(text: &str) -> Vec<String> {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':').unwrap_or(text.len());
    let (head, rest) = text.split_at(end);
    let Some(group) = rest.strip_prefix('{').filter(|_| head.is_empty() || head.ends_with("::")) else {
        return vec![head.trim_end_matches(':').to_owned()];
    };
    let (mut found, mut depth, mut start) = (Vec::new(), 0_usize, 0_usize);
    for (at, c) in group.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            let part = group.get(start..at).unwrap_or_default().trim();
            found.extend(paths(part).into_iter().map(|path| format!("{head}{path}")));
            start = at.saturating_add(1);
        }
        match c {
            '{' => depth = depth.saturating_add(1),
            '}' if depth == 0 => break,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn found(a: &str, b: &str, ratchet: &str) -> Vec<String> {
        let files = [("crates/x/src/y/a.rs", a), ("crates/x/src/y/b.rs", b), (RATCHET, ratchet)];
        check(&planted(&files)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn finds_modules_that_use_each_other_and_lets_their_number_only_shrink() {
        let (to_b, to_a) = ("use super::{c, b::{D, E}};\n", "fn f() { crate::y::a::g() }\n");
        let circle = "2 modules of x::y use each other in circles: a, b";
        assert_eq!(found(to_b, to_a, ""), [circle]);
        assert!(found(to_b, to_a, "\"x::y\" = 2\n").is_empty());
        assert_eq!(found(to_b, "// crate::y::a::g\n", "\"x::y\" = 2\n").len(), 1, "lower the number");
        assert!(
            found(to_b, "use super::T;\n#[cfg(test)]\nmod tests { use super::super::a::T; }\n", "")
                .is_empty()
        );
        assert_eq!(found("", "", "\"x::z\" = 2\n").len(), 1, "no such module");
    }
}
