//! Tests of the differences between a configuration and the next one.

use super::*;

#[test]
fn a_reload_tells_what_it_touches() {
    let scratch = Scratch::new();
    let old = scratch.config(SHARED);
    for (from, to, expected) in [
        ("\n", "\n", "nothing changed"),
        ("cores = \"0-2,1,5\"", "log = \"warn\"", "log changed; cores takes effect at the next start"),
        (
            "listen = \"127.0.0.1\"",
            "listen = \"127.0.0.2\"",
            "portal 127.0.0.1:3260 removed; portal 127.0.0.2:3260 added; target iqn.2001-04.com.example:a changed: offer",
        ),
        ("announce = \"san.example.net\"", "", "portal [::1]:3261 changed"),
        (
            "name = \"iqn.2001-04.com.example:b\"",
            "name = \"iqn.2001-04.com.example:c\"",
            "target iqn.2001-04.com.example:b removed; target iqn.2001-04.com.example:c added",
        ),
        ("size = \"1M\"", "size = \"3M\"", "target iqn.2001-04.com.example:a changed: LUN 2 changed"),
        (
            "ro = true\n[[target]]",
            "[[target]]",
            "target iqn.2001-04.com.example:a changed: LUN 0 changed; target iqn.2001-04.com.example:b changed: LUN 9 changed",
        ),
        (
            "size = \"2M\"",
            "size = \"4M\"",
            "target iqn.2001-04.com.example:a changed: LUN 0 replaced; target iqn.2001-04.com.example:b changed: LUN 9 replaced",
        ),
        ("lun = 9", "lun = 8", "target iqn.2001-04.com.example:b changed: LUN 9 removed, LUN 8 added"),
        ("IQN.1994-05", "iqn.1995-05", "target iqn.2001-04.com.example:a changed: access"),
        (
            "nop_interval = \"0s\"",
            "queue_depth = 9\nmax_sessions = 8\nsend_timeout = \"1s\"",
            "target iqn.2001-04.com.example:a changed: limits; target iqn.2001-04.com.example:b changed: limits; \
             max_sessions changed; queue_depth changed; nop_interval changed; send_timeout changed",
        ),
        (
            "[target.session]",
            "queue_depth = 9\nnop_interval = \"0s\"\n[target.session]",
            "target iqn.2001-04.com.example:a changed: limits",
        ),
        (
            "data_digest = \"require\"",
            "",
            "target iqn.2001-04.com.example:a changed: offer; target iqn.2001-04.com.example:b changed: offer",
        ),
    ] {
        assert!(SHARED.contains(from), "{from}");
        let new = scratch.config(&SHARED.replacen(from, to, 1));
        let changes = Config::diff(&old, &new);
        assert_eq!(changes.to_string(), expected);
        assert_eq!(changes.is_empty(), from == to);
    }
}

#[test]
fn a_plan_says_which_changes_sessions_can_lose_something_by() {
    let scratch = Scratch::new();
    let text = r#"
        [[portal]]
        listen = "127.0.0.1:3260"
        name = "in"
        tag = 1
        [[portal]]
        listen = "127.0.0.2:3260"
        name = "out"
        tag = 2
        [hyperscsi]
        interfaces = ["eth0"]
        [[hyperscsi.group]]
        name = "a"
        [[hyperscsi.group]]
        name = "b"
        [[target]]
        name = "iqn.2001-04.com.example:t"
        alias = "x"
        groups = ["a", "b"]
        portals = ["in", "out"]
        lun = [{ type = "ram", size = "1M", groups = ["a", "b"] }, { type = "ram", size = "1M", protection = "integrity" }]
    "#;
    // LUN 1 requires a protection that no session can have, of which the report warns.
    let config = |text: &str| scratch.load(text).unwrap_or_else(|report| panic!("{report}")).config;
    let old = config(text);
    let told = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let plan = plan(&old, &config(&text.replacen(from, to, 1)));
        let told = plan.into_iter().map(|change| {
            (format!("{}: {}", change.name, change.details.join("; ")), change.effective, change.disruptive)
        });
        told.collect::<Vec<_>>()
    };
    let one = |text: &str, effective, disruptive| vec![(text.to_owned(), effective, disruptive)];
    let (now, later) = (WhenEffective::Now, WhenEffective::NewSessions);
    let (t, both) = ("iqn.2001-04.com.example:t", "127.0.0.1:3260, 127.0.0.2:3260");
    let ends = "sessions through other portals end";
    assert_eq!(
        told("portals = [\"in\", \"out\"]", "portals = [\"in\"]"),
        one(&format!("{t}: portals: {both} -> 127.0.0.1:3260; {ends}"), now, true)
    );
    let both_keys = told(
        "alias = \"x\"\n        groups = [\"a\", \"b\"]\n        portals = [\"in\", \"out\"]",
        "groups = [\"a\", \"b\"]\n        portals = [\"in\"]",
    );
    assert_eq!(both_keys[0].1, now);
    assert_eq!(both_keys[1..], one(&format!("{t}: alias: x -> none"), later, false));
    let groups = told("groups = [\"a\", \"b\"]", "groups = [\"b\"]");
    let access = format!("{t}: groups: a, b -> b; HyperSCSI sessions of other groups end");
    assert!(groups.contains(&(access, now, true)), "{groups:?}");
    assert_eq!(
        told("size = \"1M\", groups = [\"a\", \"b\"]", "size = \"1M\", groups = [\"a\"]"),
        one(&format!("{t}/0: groups: a, b -> a"), now, true)
    );
    assert_eq!(
        told("\"integrity\"", "\"encrypt\""),
        one(&format!("{t}/1: protection: integrity -> encrypt"), now, true)
    );
    assert_eq!(
        told("\"integrity\"", "\"none\""),
        one(&format!("{t}/1: protection: integrity -> none"), now, false)
    );
}
