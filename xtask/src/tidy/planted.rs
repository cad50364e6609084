//! Checks that the feature `planted`, which puts bugs into a build on purpose, is enabled only when a cargo
//! command names it: no dependency enables it, and no feature enables it except one of the same name.

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const FEATURE: &str = "planted";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending_in(&["Cargo.toml"]) {
        // Cargo itself reports a manifest that is not valid TOML.
        let Ok(manifest) = text.parse::<Table>() else { continue };
        for (feature, enables) in manifest.get("features").and_then(Value::as_table).into_iter().flatten() {
            if feature != FEATURE && names(enables).any(is_it) {
                findings.push(Finding::whole(path, format!("feature `{feature}` enables `{FEATURE}`")));
            }
        }
        for dependency in enabling("", &Value::Table(manifest)) {
            findings.push(Finding::whole(path, format!("`{dependency}` is used with `{FEATURE}`")));
        }
    }
    findings
}

/// Returns the tables, at any depth, that enable the feature of a dependency.
fn enabling(name: &str, value: &Value) -> Vec<String> {
    let Some(table) = value.as_table() else { return Vec::new() };
    let is_one = table.get("features").is_some_and(|features| names(features).any(is_it));
    let below = table.iter().flat_map(|(name, value)| enabling(name, value));
    is_one.then(|| name.to_owned()).into_iter().chain(below).collect()
}

fn names(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

fn is_it(name: &str) -> bool {
    name.rsplit(['/', ':']).next() == Some(FEATURE)
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    fn count(manifest: &str) -> usize {
        check(&planted(&[("crates/sim/Cargo.toml", manifest)])).len()
    }

    #[test]
    fn leaves_the_feature_itself_alone() {
        assert_eq!(count("[features]\nplanted = []\n"), 0);
        assert_eq!(
            count(
                "[features]\nplanted = [\"base/planted\"]\ndefault = [\"std\"]\n[dependencies]\nbase = \"1\"\n"
            ),
            0
        );
    }

    #[test]
    fn finds_whatever_else_enables_it() {
        for manifest in [
            "[features]\ndefault = [\"planted\"]\nplanted = []\n",
            "[features]\nextra = [\"base?/planted\"]\n",
            "[dependencies]\nbase = { path = \"../base\", features = [\"planted\"] }\n",
            "[dev-dependencies.base]\nworkspace = true\nfeatures = [\"std\", \"planted\"]\n",
            "[target.'cfg(unix)'.dependencies]\nbase = { workspace = true, features = [\"planted\"] }\n",
            "[workspace.dependencies]\nbase = { path = \"crates/base\", features = [\"planted\"] }\n",
        ] {
            assert_eq!(count(manifest), 1, "{manifest}");
        }
    }
}
