//! Checks that `targe-initiator` can be published. It and the crates that it depends on are published to a
//! registry; no other crate is. Their manifests have all the fields that a registry requires, and they depend
//! on each other with the version of the workspace. A crate that is not published has no version in the
//! workspace's dependencies, so that none becomes part of a package unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::layers::crates_used;
use super::tree::{Finding, Tree};

/// The crate that is published for its own sake.
const LIBRARY: &str = "initiator";
const WORKSPACE: &str = "Cargo.toml";
/// The fields that a registry requires, or that describe the package to a reader.
const TOLD: [&str; 4] = ["description", "license", "readme", "include"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let rooms = crate_manifests(tree);
    let workspace = tree.text(WORKSPACE).and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
    let needed = needed(&rooms);
    let version = at(&workspace, &["workspace", "package", "version"]).and_then(Value::as_str);
    let pinned = format!("={}", version.unwrap_or_default());
    let mut findings = Vec::new();
    for (room, manifest) in &rooms {
        let path = manifest_of(room);
        let named = at(&workspace, &["workspace", "dependencies", room, "version"]).and_then(Value::as_str);
        match (needed.contains(room), is_published(&workspace, manifest)) {
            (true, false) => findings.push(Finding::whole(
                &path,
                format!("`{LIBRARY}` is published and needs `{room}`, which is not: set `publish`"),
            )),
            (false, true) => findings.push(Finding::whole(
                &path,
                format!("`{room}` would be published, and `{LIBRARY}` does not need it: publish = false"),
            )),
            (true, true) => {
                if named != Some(&pinned) {
                    findings
                        .push(Finding::whole(WORKSPACE, format!("`{room}` needs version = \"{pinned}\"")));
                }
                findings.extend(untold(tree, room, manifest));
            }
            (false, false) if named.is_some() => {
                findings.push(Finding::whole(WORKSPACE, format!("`{room}` is not published: no version")));
            }
            (false, false) => {}
        }
    }
    findings
}

/// Returns the manifests of crates. Cargo itself reports one that is not valid TOML.
fn crate_manifests(tree: &Tree) -> BTreeMap<String, Table> {
    let room = |path: &str| Some(path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?.to_owned());
    let manifests = tree.ending_in(&["/Cargo.toml"]);
    manifests.filter_map(|(path, text)| Some((room(path)?, text.parse().ok()?))).collect()
}

fn manifest_of(room: &str) -> String {
    format!("crates/{room}/Cargo.toml")
}

/// Returns the library and all crates that it depends on.
fn needed(rooms: &BTreeMap<String, Table>) -> BTreeSet<String> {
    let known = rooms.keys().map(|room| (room.clone(), BTreeSet::new())).collect();
    let mut needed = BTreeSet::new();
    let mut left = vec![LIBRARY.to_owned()];
    while let Some(room) = left.pop() {
        if let Some(manifest) = rooms.get(&room)
            && needed.insert(room)
        {
            left.extend(crates_used(manifest, &known));
        }
    }
    needed
}

fn is_published(workspace: &Table, manifest: &Table) -> bool {
    let own = at(manifest, &["package", "publish"]);
    let inherits = own.and_then(Value::as_table).is_some();
    let said = if inherits { at(workspace, &["workspace", "package", "publish"]) } else { own };
    match said {
        Some(Value::Boolean(published)) => *published,
        Some(Value::Array(registries)) => !registries.is_empty(),
        _ => true,
    }
}

fn untold(tree: &Tree, room: &str, manifest: &Table) -> Vec<Finding> {
    let path = manifest_of(room);
    let missing = TOLD.iter().filter(|key| at(manifest, &["package", key]).is_none());
    let mut findings: Vec<_> =
        missing.map(|key| Finding::whole(&path, format!("`{room}` is published without `{key}`"))).collect();
    let readme = format!("crates/{room}/README.md");
    if tree.text(&readme).is_none() {
        findings.push(Finding::whole(&path, format!("`{room}` is published without {readme}")));
    }
    findings
}

fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (last, folders) = path.split_last()?;
    let mut table = table;
    for folder in folders {
        table = table.get(*folder)?.as_table()?;
    }
    table.get(*last)
}

#[cfg(test)]
mod tests {
    use super::super::tree::planted;
    use super::*;

    const ALL: &str = "[workspace.package]\nversion = \"0.1.0\"\npublish = false\n[workspace.dependencies]\n\
        base = { path = \"crates/base\", version = \"=0.1.0\" }\ninitiator = { path = \"crates/initiator\", version = \"=0.1.0\" }\n\
        lab = { path = \"crates/lab\" }\n";
    const TOLD: &str = "publish = [\"crates-io\"]\ndescription = \"\"\nlicense = \"MIT\"\nreadme = \"README.md\"\ninclude = []\n";
    const HIDDEN: &str = "publish.workspace = true\n";
    const USES_BASE: &str = "[dependencies]\nbase.workspace = true\n";

    fn found(workspace: &str, base: &str, initiator: &str, lab: &str) -> Vec<String> {
        let package = |rest: &str| format!("[package]\n{rest}");
        let tree = planted(&[
            ("Cargo.toml", workspace),
            ("crates/base/Cargo.toml", &package(base)),
            ("crates/base/README.md", ""),
            ("crates/initiator/Cargo.toml", &package(initiator)),
            ("crates/initiator/README.md", ""),
            ("crates/lab/Cargo.toml", &package(lab)),
        ]);
        check(&tree).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn accepts_the_library_its_rooms_and_nothing_else() {
        let library = format!("{TOLD}{USES_BASE}[dev-dependencies]\nlab.workspace = true\n");
        assert_eq!(found(ALL, TOLD, &library, HIDDEN), Vec::<String>::new());
    }

    #[test]
    fn finds_a_needed_room_that_stays_at_home_and_one_that_goes_out_for_nothing() {
        let library = format!("{TOLD}{USES_BASE}");
        assert_eq!(found(ALL, HIDDEN, &library, HIDDEN).len(), 1);
        assert_eq!(found(ALL, TOLD, &format!("{library}lab.workspace = true\n"), HIDDEN).len(), 1);
        assert_eq!(found(ALL, TOLD, &library, "").len(), 1);
        assert_eq!(found(ALL, "publish = []\n", &library, "publish = false\n").len(), 1);
    }

    #[test]
    fn finds_a_version_that_is_another_one_or_stands_where_none_should() {
        let library = format!("{TOLD}{USES_BASE}");
        assert_eq!(found(&ALL.replacen("=0.1.0", "0.1.0", 1), TOLD, &library, HIDDEN).len(), 1);
        assert_eq!(
            found(&ALL.replacen("version = \"0.1.0\"", "version = \"0.2.0\"", 1), TOLD, &library, HIDDEN)
                .len(),
            2
        );
        let named = ALL.replace("\"crates/lab\"", "\"crates/lab\", version = \"=0.1.0\"");
        assert_eq!(found(&named, TOLD, &library, HIDDEN).len(), 1);
    }

    #[test]
    fn finds_what_a_manifest_leaves_unsaid() {
        let library = format!("{TOLD}{USES_BASE}");
        assert_eq!(found(ALL, &TOLD.replace("license = \"MIT\"\n", ""), &library, HIDDEN).len(), 1);
    }
}
