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
