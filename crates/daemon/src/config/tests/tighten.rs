//! Tests of the access that a new configuration withdraws.

use security::Level;

use super::*;

const BEFORE: &str = r#"
portal = [{ listen = "127.0.0.1" }]
lun = [{ name = "data", type = "ram", size = "1M" }, { name = "more", type = "ram", size = "1M" }]
[hyperscsi]
interfaces = ["eth0"]
group = [{ name = "backup" }, { name = "guests" }]
[[target]]
name = "iqn.2001-04.com.example:a"
groups = ["backup", "guests"]
lun = [{ share = "data" }, { share = "more" }, { lun = 2, type = "null", size = "1M" }]
[[target.acl]]
initiators = ["iqn.2001-04.com.example:one", "iqn.2001-04.com.example:two"]
[[target.acl]]
initiators = ["iqn.2001-04.com.example:v*"]
luns = [0, 1]
[[target]]
name = "iqn.2001-04.com.example:b"
groups = ["guests"]
lun = [{ share = "data" }]
"#;

/// Returns the access list of a target: the patterns of each entry, then its LUNs with their write
/// protection.
fn views(config: &Config, at: usize) -> String {
    let luns = |luns: &[MappedLun]| {
        luns.iter()
            .map(|lun| {
                let protected = lun.read_only || config.units[lun.unit.0].read_only;
                format!("{}{}", lun.lun, if protected { "r" } else { "w" })
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    let target = &config.targets[at];
    let Some(acl) = &target.acl else { return format!("all: {}", luns(&target.luns)) };
    let short = |pattern: &NamePattern| pattern.to_string().replace("iqn.2001-04.com.example:", "");
    let rows = |entry: &AclEntry| -> Vec<String> {
        let seen = luns(&entry.luns);
        entry.initiators.iter().map(|pattern| format!("{}: {seen}", short(pattern))).collect()
    };
    acl.iter().flat_map(rows).collect::<Vec<_>>().join("; ")
}

#[test]
fn what_is_given_is_left_out_and_what_is_taken_away_is_taken() {
    let scratch = Scratch::new();
    let old = scratch.config(BEFORE);
    assert_eq!(old.tightened(&old).units, old.units);
    for (from, to, a, b) in [
        ("", "", "one: 0w 1w 2w; two: 0w 1w 2w; v*: 0w 1w", Some("all: 0w")),
        // An initiator and a target are removed.
        ("\"iqn.2001-04.com.example:one\", ", "", "two: 0w 1w 2w; v*: 0w 1w", Some("all: 0w")),
        ("example:b", "example:renamed", "one: 0w 1w 2w; two: 0w 1w 2w; v*: 0w 1w", None),
        // A new initiator sees nothing before the whole configuration is applied.
        (
            "\"iqn.2001-04.com.example:one\"",
            "\"iqn.2001-04.com.example:new\"",
            "two: 0w 1w 2w; v*: 0w 1w",
            Some("all: 0w"),
        ),
        // A pattern is narrowed, and one is widened.
        ("example:v*", "example:v7", "one: 0w 1w 2w; two: 0w 1w 2w; v7: 0w 1w", Some("all: 0w")),
        ("example:v*", "example:*", "one: 0w 1w 2w; two: 0w 1w 2w; v*: 0w 1w", Some("all: 0w")),
        // Disks are no longer shown, have another LUN, or become read-only.
        ("luns = [0, 1]", "luns = [1]", "one: 0w 1w 2w; two: 0w 1w 2w; v*: 1w", Some("all: 0w")),
        ("luns = [0, 1]", "luns = [0, 2]", "one: 0w 1w 2w; two: 0w 1w 2w; v*: 0w", Some("all: 0w")),
        (
            "luns = [0, 1]",
            "luns = [{ lun = 1, as = 0, ro = true }]",
            "one: 0w 1w 2w; two: 0w 1w 2w; v*: 1r",
            Some("all: 0w"),
        ),
        ("{ share = \"more\" }, ", "", "one: 0w 2w; two: 0w 2w; v*: 0w", Some("all: 0w")),
        (
            "name = \"data\", type",
            "name = \"data\", ro = true, type",
            "one: 0r 1w 2w; two: 0r 1w 2w; v*: 0r 1w",
            Some("all: 0r"),
        ),
    ] {
        let mut text = BEFORE.replacen(from, to, 1);
        if from.contains("more") {
            text = text.replace("luns = [0, 1]", "luns = [0, 2]");
        }
        let new = scratch.load(&text).map_err(|report| scratch.told(&report)).unwrap().config;
        let tight = old.tightened(&new);
        assert_eq!(views(&tight, 0), a, "{to}");
        assert_eq!((tight.targets.len() > 1).then(|| views(&tight, 1)).as_deref(), b, "{to}");
        assert_eq!(tight.units.len(), old.units.len());
    }
}

#[test]
fn passwords_and_protection_are_asked_for_and_never_dropped() {
    let scratch = Scratch::new();
    scratch.file("secret", "a long enough secret", 0o600);
    let auth = "auth = { user = \"u\", secret_file = \"secret\" }\n";
    let open = scratch.config(BEFORE);
    let text = BEFORE.replace("groups = [\"guests\"]\n", &format!("groups = [\"guests\"]\n{auth}")).replace(
        "{ name = \"backup\" }",
        "{ name = \"backup\", password_file = \"secret\", protection = \"encrypt\" }",
    ) + &format!("\n[discovery]\n{auth}");
    let closed = scratch.load(&text).map_err(|report| scratch.told(&report)).unwrap().config;
    let tight = open.tightened(&closed);
    assert_eq!(
        (&tight.discovery_auth, &tight.targets[1].auth),
        (&closed.discovery_auth, &closed.targets[1].auth)
    );
    assert!(tight.hyperscsi.as_ref().unwrap().groups[0].password.is_some());
    assert_eq!(closed.tightened(&open).discovery_auth, closed.discovery_auth);
    assert_eq!(closed.tightened(&open).targets[1].auth, closed.targets[1].auth);
    assert_eq!(closed.tightened(&open).hyperscsi, closed.hyperscsi);
    let text = BEFORE.replace("groups = [\"backup\", \"guests\"]", "groups = [\"guests\"]");
    let fewer = scratch.load(&text).map_err(|report| scratch.told(&report)).unwrap().config;
    let groups = open.tightened(&fewer).targets[0].groups;
    assert!(!groups.has(0) && groups.has(1));
}

#[test]
fn patterns_that_overlap_lose_only_what_changed() {
    let scratch = Scratch::new();
    let before = BEFORE
        .replace("\"iqn.2001-04.com.example:one\", \"iqn.2001-04.com.example:two\"", "\"iqn.*:db*\"")
        .replace("example:v*", "example:*");
    let old = scratch.config(&before);
    assert_eq!(old.tightened(&old), old);
    let within = before.replace("[\"iqn.*:db*\"]", "[\"iqn.*:db*\", \"iqn.2001-04.com.example:*\"]");
    // A warning names the pattern that stands there twice.
    let within = scratch.load(&within).unwrap().config;
    assert_eq!(within.tightened(&within), within);
    // A third entry is put first; the two others stay as they were.
    let more = before.replacen(
        "[[target.acl]]",
        "[[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:new\"]\n[[target.acl]]",
        1,
    );
    let new = scratch.config(&more);
    assert_eq!(
        views(&old.tightened(&new), 0),
        "new: 0w 1w; iqn.*:db*: 0w 1w 2w; *:db*: 0w 1w; db*: 0w 1w; *: 0w 1w"
    );
}

#[test]
fn a_disk_that_cannot_be_used_keeps_no_access_from_being_taken_away() {
    let scratch = Scratch::new();
    let disk = scratch.file("disk", [0; 4096], 0o600);
    let before = BEFORE.replace(
        "lun = [{ share = \"data\" }]",
        "lun = [{ share = \"data\" }, { type = \"file\", path = \"disk\" }]",
    );
    let old = scratch.config(&before);
    fs::remove_file(disk).unwrap();
    let read = |text: &str| {
        let flags = Flags { config: Some(scratch.file("targe.toml", text, 0o600)), ..Flags::default() };
        *Config::read(&flags, &scratch.environment()).unwrap_err()
    };
    // The disk is missing, and an initiator is removed as well.
    let without = before.replace("\"iqn.2001-04.com.example:one\", ", "");
    let unusable = read(&without);
    assert!(scratch.told(&unusable.report).contains("DIR/disk does not exist"), "{}", unusable.report);
    let tight = old.tightened(&unusable.config.unwrap());
    assert_eq!(views(&tight, 0), "two: 0w 1w 2w; v*: 0w 1w");
    assert_eq!(views(&tight, 1), "all: 0w 1w");
    // A disk whose replacement does not exist stays visible to every initiator.
    let _disk = scratch.file("disk", [0; 4096], 0o600);
    let unusable = read(&without.replace("path = \"disk\"", "path = \"dsik\""));
    let tight = old.tightened(&unusable.config.unwrap());
    assert_eq!(views(&tight, 0), "two: 0w 1w 2w; v*: 0w 1w");
    assert_eq!(views(&tight, 1), "all: 0w 1w");
    // A configuration with other mistakes withdraws nothing.
    let unusable = read(&without.replace("luns = [0, 1]", "luns = [0, 7]"));
    assert!(unusable.config.is_none(), "{}", unusable.report);
    let unusable = read(&without.replace("[hyperscsi]", "[hyperscsy]"));
    assert!(unusable.config.is_none(), "{}", unusable.report);
}

/// Returns whether a name fits a pattern.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|run| fits(rest, &name[run..])),
        ([x, rest @ ..], [y, others @ ..]) => x == y && fits(rest, others),
        _ => false,
    }
}

/// Returns the LUNs of the first target that an initiator sees.
fn seen(config: &Config, name: &str) -> Vec<u16> {
    let fits = |entry: &&AclEntry| {
        entry.initiators.iter().any(|pattern| fits(pattern.as_str().as_bytes(), name.as_bytes()))
    };
    let row = config.targets[0].acl.iter().flatten().find(fits);
    row.iter().flat_map(|row| &row.luns).map(|lun| lun.lun).collect()
}

#[test]
fn everybody_sees_afterwards_what_both_configurations_show() {
    let scratch = Scratch::new();
    let config = scratch.config(BEFORE);
    let mut state = 1_u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % end
    };
    let mut some = |config: &Config| {
        let mut config = config.clone();
        let all = config.targets[0].luns.clone();
        let pattern = |below: &mut dyn FnMut(u64) -> u64| {
            let text: String =
                (0..=below(5)).map(|_| ['a', 'b', '*'][usize::try_from(below(3)).unwrap()]).collect();
            NamePattern::parse(&format!("iqn.{text}")).unwrap()
        };
        let entry = |below: &mut dyn FnMut(u64) -> u64| {
            let initiators = (0..=below(2)).map(|_| pattern(below)).collect();
            let luns = all.iter().filter(|_| below(3) > 0).cloned().collect();
            AclEntry { initiators, luns, auth: Auth::None, quota: Default::default() }
        };
        config.targets[0].acl = Some((0..=below(3)).map(|_| entry(&mut below)).collect());
        config
    };
    let mut names = vec!["iqn.".to_owned()];
    for at in 0..63 {
        names.extend(["a", "b"].map(|next| format!("{}{next}", names[at])));
    }
    for _ in 0..1000 {
        let (old, new) = (some(&config), some(&config));
        let tight = old.tightened(&new);
        for name in &names {
            let (before, after) = (seen(&old, name), seen(&new, name));
            let both: Vec<u16> = before.into_iter().filter(|lun| after.contains(lun)).collect();
            let acl = |config: &Config| format!("{:?}", config.targets[0].acl);
            assert_eq!(seen(&tight, name), both, "{name}\n{}\n{}", acl(&old), acl(&new));
        }
        assert_eq!(old.tightened(&old), old);
    }
}

#[test]
fn a_tape_drive_stays_open_and_its_luns_are_write_protected() {
    let scratch = Scratch::new();
    let text = |ro: bool| {
        format!(
            "portal = [{{ listen = \"127.0.0.1\" }}]\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
             lun = [{{ type = \"tape\", path = \"A1\", ro = {ro} }}, {{ type = \"ram\", size = \"1M\", ro = {ro} }}]\n\
             [[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:one\"]\n"
        )
    };
    let config = |ro: bool| {
        let name = scratch.path().join("targe.toml");
        let environment = Environment::for_tests(scratch.path());
        let loaded = Config::load_text_without_media(&Flags::default(), &environment, &name, &text(ro), None);
        loaded.map_err(|report| report.to_string()).unwrap().config
    };
    let old = config(false);
    let tight = old.tightened(&config(true));
    let keys = |config: &Config| config.units.iter().map(Unit::key).collect::<Vec<_>>();
    assert_eq!(keys(&tight), keys(&old));
    assert_eq!(views(&tight, 0), "one: 0r 1r");
    assert!(tight.targets[0].luns[0].read_only && !tight.targets[0].luns[1].read_only);
    assert_eq!(old.tightened(&old), old);
}

#[test]
fn the_protection_of_a_target_is_raised_and_never_lowered() {
    let scratch = Scratch::new();
    scratch.records("users", &["alice"]);
    let open = scratch.config(BEFORE);
    let raised = BEFORE.replacen(
        "groups = [\"guests\"]\n",
        "groups = [\"guests\"]\nauth = { password_file = \"users\" }\nsession = { protection = \"encrypt\", max_connections = 2 }\n",
        1,
    );
    let raised = scratch.load(&raised).map_err(|report| scratch.told(&report)).unwrap().config;
    let level = |config: &Config| config.targets[1].keys.min_protection;
    let tight = open.tightened(&raised);
    assert_eq!((level(&open), level(&tight)), (Level::None, Level::Encrypt));
    // Nothing else changes.
    assert_eq!(tight.targets[1].keys.max_connections, open.targets[1].keys.max_connections);
    assert_eq!(level(&raised.tightened(&open)), Level::Encrypt);
}
