//! Compares the allowed dependencies between crates (`xtask/layers.toml`) with the dependencies in each
//! crate's manifest. Dev-dependencies are free: a test may use any crate.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::tree::{Finding, Tree};

const LAYERS: &str = "xtask/layers.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let allowed = match allowed_edges(tree) {
        Ok(allowed) => allowed,
        Err(finding) => return vec![finding],
    };
    let mut findings = Vec::new();
    let mut rooms = BTreeSet::new();
    for (path, text) in tree.ending_in(&["/Cargo.toml"]) {
        let Some(room) = path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        rooms.insert(room.to_owned());
        let Some(may_use) = allowed.get(room) else {
            findings.push(Finding::whole(path, format!("room `{room}` is not in {LAYERS}")));
            continue;
        };
        let manifest = match text.parse::<Table>() {
            Ok(manifest) => manifest,
            Err(why) => {
                findings.push(Finding::whole(path, format!("not TOML: {why}")));
                continue;
            }
        };
        for used in crates_used(&manifest, &allowed) {
            if !may_use.contains(&used) {
                findings
                    .push(Finding::whole(path, format!("`{room}` must not depend on `{used}` ({LAYERS})")));
            }
        }
    }
    for room in allowed.keys().filter(|room| !rooms.contains(*room)) {
        findings.push(Finding::whole(LAYERS, format!("`{room}` has no crates/{room}/Cargo.toml")));
    }
    findings
        .extend(cycle(&allowed).map(|ring| Finding::whole(LAYERS, format!("edges run in a ring: {ring}"))));
    findings
}

type Edges = BTreeMap<String, BTreeSet<String>>;

fn allowed_edges(tree: &Tree) -> Result<Edges, Finding> {
    let text = tree.text(LAYERS).ok_or_else(|| Finding::whole(LAYERS, "missing"))?;
    let table = text.parse::<Table>().map_err(|why| Finding::whole(LAYERS, format!("not TOML: {why}")))?;
    let layers = table.get("layers").and_then(Value::as_table);
    let layers = layers.ok_or_else(|| Finding::whole(LAYERS, "has no [layers]"))?;
    let mut edges = Edges::new();
    for (room, list) in layers {
        let list =
            list.as_array().ok_or_else(|| Finding::whole(LAYERS, format!("`{room}` is not a list")))?;
        edges.insert(room.clone(), list.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    Ok(edges)
}

/// Returns the crates that a manifest depends on, in `[dependencies]`, `[build-dependencies]` and under
/// `[target.….]`.
pub(super) fn crates_used(manifest: &Table, rooms: &Edges) -> BTreeSet<String> {
    let per_target = manifest.get("target").and_then(Value::as_table);
    let tables = per_target.into_iter().flat_map(Table::values).filter_map(Value::as_table).chain([manifest]);
    let mut used = BTreeSet::new();
    for table in tables {
        for kind in ["dependencies", "build-dependencies"] {
            let dependencies = table.get(kind).and_then(Value::as_table);
            for (name, how) in dependencies.into_iter().flatten() {
                let package = how.get("package").and_then(Value::as_str).unwrap_or(name);
                let room = package.strip_prefix("targe-").unwrap_or(package);
                if rooms.contains_key(room) {
                    used.insert(room.to_owned());
                }
            }
        }
    }
    used
}

/// Removes crates that depend on no remaining crate, until none is left to remove. The remaining crates form
/// a dependency cycle, or depend on one.
fn cycle(edges: &Edges) -> Option<String> {
    let mut left = edges.clone();
    loop {
        let free: BTreeSet<String> = left
            .iter()
            .filter(|(_, uses)| uses.iter().all(|used| !left.contains_key(used)))
            .map(|(room, _)| room.clone())
            .collect();
        if free.is_empty() {
            break;
        }
        left.retain(|room, _| !free.contains(room));
    }
    (!left.is_empty()).then(|| left.into_keys().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    const EDGES: &str = "[layers]\nbase = []\niscsi = [\"base\"]\n";
    const BASE: (&str, &str) = ("crates/base/Cargo.toml", "[dependencies]\n");

    fn findings(layers: &str, iscsi: &str) -> Vec<String> {
        let tree = planted(&[("xtask/layers.toml", layers), BASE, ("crates/iscsi/Cargo.toml", iscsi)]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_a_listed_edge_and_foreign_crates() {
        let manifest = "[dependencies]\nbase.workspace = true\nsmallvec = \"1\"\n";
        assert_eq!(findings(EDGES, manifest), Vec::<String>::new());
    }

    #[test]
    fn finds_an_edge_that_is_not_listed_however_it_is_spelled() {
        let edges = "[layers]\nbase = []\niscsi = []\n";
        for manifest in [
            "[dependencies]\nbase.workspace = true\n",
            "[dependencies]\nfoundation = { path = \"../base\", package = \"targe-base\" }\n",
            "[build-dependencies]\ntarge-base = { path = \"../base\" }\n",
            "[target.'cfg(unix)'.dependencies]\nbase.workspace = true\n",
        ] {
            assert_eq!(findings(edges, manifest).len(), 1, "{manifest}");
        }
    }

    #[test]
    fn leaves_dev_dependencies_free() {
        let edges = "[layers]\nbase = []\niscsi = []\n";
        assert!(findings(edges, "[dev-dependencies]\nbase.workspace = true\n").is_empty());
    }

    #[test]
    fn finds_a_room_without_layer_a_layer_without_room_and_a_ring() {
        assert_eq!(findings("[layers]\nbase = []\n", "").len(), 1);
        assert_eq!(findings("[layers]\nbase = []\niscsi = []\nlab = []\n", "").len(), 1);
        assert_eq!(findings("[layers]\nbase = [\"iscsi\"]\niscsi = [\"base\"]\n", "").len(), 1);
    }
}
