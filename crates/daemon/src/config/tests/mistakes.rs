//! Tests of mistakes: all are reported at once, each with its source span.

use super::*;

#[test]
fn every_mistake_of_every_section_is_reported_with_its_place() {
    let scratch = Scratch::new();
    let text = r#"
colour = "red"
log = "loud"
memory = "1M"
max_sessions = 0
login_timeout = "5"
cores = "3-1"
poll = "yes"
[[portal]]
listen = "localhost:3260"
tag = 0
[[portal]]
announce = "a b"
[[group]]
name = "vm hosts"
initiators = ["host1", 5]
[session]
header_digest = "required"
first_burst_length = "2M"
time2wait = "1500ms"
error_recovery_level = 3
[[lun]]
name = "data"
type = "ram"
[[target]]
name = "disk"
portals = ["front"]
[[target.lun]]
type = "file"
sise = "10G"
path = "missing.img"
[[target.lun]]
share = "date"
[[target.lun]]
type = "floppy"
size = "5000001"
[[target.acl]]
initiators = ["@vmhosts", "x*"]
luns = [9, { lun = 0, as = 1, rw = true }, { lun = 1 }, "2"]
[target.acl.auth]
user = "alice"
"#;
    check(
        &scratch.errors(text),
        r#"
        DIR/targe.toml:2:1: unknown key "colour" in the configuration
        DIR/targe.toml:3:7: "log" must be one of error, warn, info, debug, not "loud"
        DIR/targe.toml:4:10: "memory" must be 16M to 16T
        DIR/targe.toml:5:16: "max_sessions" must be 1 to 65535
        DIR/targe.toml:6:17: "5" is not a duration (such as 5s, 250ms or 2m)
        DIR/targe.toml:7:9: "cores" must be numbers and ranges such as "0-3,6" up to 1023, not "3-1"
        DIR/targe.toml:8:8: "poll" must be true or false, not "yes"
        DIR/targe.toml:10:10: "localhost:3260" is not an address to listen on (such as 127.0.0.1:3260 or [::1]:3260)
        DIR/targe.toml:11:7: "tag" must be 1 to 65535
        DIR/targe.toml:12:1: portal has no "listen"
        DIR/targe.toml:13:12: "a b" is not HOST, HOST:PORT or [IPV6]:PORT
        DIR/targe.toml:15:8: "vm hosts" is not a name: it may contain only letters, digits, '-', '_' and '.'
        DIR/targe.toml:16:15: "host1" matches no initiator name: they begin with "iqn.", "eui." or "naa."
        DIR/targe.toml:16:24: "initiators" must be a list of strings, not a number
        DIR/targe.toml:18:17: "header_digest" must be one of offer, require, forbid, not "required" (did you mean "require"?)
        DIR/targe.toml:19:22: "first_burst_length" is more than "max_burst_length"
        DIR/targe.toml:20:13: "time2wait" must be whole seconds
        DIR/targe.toml:21:24: "error_recovery_level" must be 0 to 2
        DIR/targe.toml:24:8: lun of type ram has no "size"
        DIR/targe.toml:26:8: "disk": an iSCSI name starts with iqn., eui. or naa.
        DIR/targe.toml:27:12: no portal is named "front"
        DIR/targe.toml:30:1: unknown key "sise" in lun (did you mean "size"?)
        DIR/targe.toml:31:8: DIR/missing.img does not exist; give "size" to create it
        DIR/targe.toml:33:9: no lun is named "date" (did you mean "data"?)
        DIR/targe.toml:35:8: "type" must be one of file, block, ram, null, disc, tape, nbd, changer, sg, vhost-user-blk, vhost-user-scsi, not "floppy"
        DIR/targe.toml:36:8: "size" is not a multiple of the block length (512)
        DIR/targe.toml:38:15: no group is named "vmhosts" (did you mean "vm hosts"?)
        DIR/targe.toml:38:27: "x*" matches no initiator name: they begin with "iqn.", "eui." or "naa."
        DIR/targe.toml:39:9: the target has no LUN 9
        DIR/targe.toml:39:31: unknown key "rw" in luns entry (did you mean "ro"?)
        DIR/targe.toml:39:52: two LUNs are exported as 1
        DIR/targe.toml:39:57: an entry of "luns" must be a number or a table, not a string
        DIR/targe.toml:40:1: auth has no "secret_file"
        DIR/targe.toml:23:8: warning: no target exports lun "data"
        "#,
    );
}

#[test]
fn damaged_text_is_reported_without_what_only_seems_missing() {
    let scratch = Scratch::new();
    check(
        &scratch.errors(
            "[[target]]\nname = \"iqn.2001-04.com.example:a\"\n[[target.lun]]\ntype = ram\nsise = 5\n[x\n",
        ),
        r#"
        DIR/targe.toml:4:8: string values must be quoted, expected literal string
        DIR/targe.toml:5:1: unknown key "sise" in lun (did you mean "size"?)
        DIR/targe.toml:6:2: unknown key "x" in the configuration
        DIR/targe.toml:6:3: unclosed table, expected `]`
        "#,
    );
}

#[test]
fn a_file_that_is_none_is_reported_without_a_place() {
    let scratch = Scratch::new();
    let load = |path: PathBuf| {
        let flags = Flags { config: Some(path), ..Flags::default() };
        scratch.told(&scratch.flags(&flags).unwrap_err())
    };
    check(
        &load(scratch.path().join("missing.toml")),
        "DIR/missing.toml: cannot read: no such file or directory",
    );
    check(&load(scratch.path().to_path_buf()), "DIR: cannot read: is a directory");
    check(&load(PathBuf::from("/dev/zero")), "/dev/zero: longer than 8M");
    check(&load(scratch.file("bad.toml", b"a = 1\n# \xff\n", 0o600)), "DIR/bad.toml: not UTF-8 (on line 2)");
    check(&scratch.errors(""), "DIR/targe.toml:1:1: the configuration has no \"target\"");
}

/// Mistakes that show only when sections are compared with each other: one snippet each.
#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn contradictions_are_reported_where_the_second_word_stands() {
    let scratch = Scratch::new();
    scratch.file("a.img", vec![0; 8192], 0o600);
    scratch.file("odd.img", vec![0; 100], 0o600);
    fs::hard_link(scratch.path().join("a.img"), scratch.path().join("b.img")).unwrap();
    let target = "[[target]]\nname = \"iqn.2001-04.com.example:a\"\n";
    let ram = "[[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\n";
    for (text, expected) in [
        (
            format!(
                "{target}{ram}{}{ram}",
                target.to_uppercase().replace("TARGET", "target").replace("NAME", "name")
            ),
            "7:8: target \"iqn.2001-04.com.example:a\" is given twice (first on line 2)",
        ),
        (target.to_owned(), "1:1: target has no \"lun\""),
        (
            format!("{target}lun = []\nacl = []\n"),
            "3:7: \"lun\" is an empty list\n4:7: \"acl\" is an empty list",
        ),
        ("target = []".to_owned(), "1:10: \"target\" is an empty list"),
        (format!("{target}{ram}lun = 3\n{ram}lun = 3\n"), "10:7: LUN 3 is given twice (first on line 6)"),
        (
            format!("{target}{ram}naa = \"3000000000000001\"\n{ram}naa = \"3000000000000001\"\n"),
            "10:7: the name naa.3000000000000001 is already used by iqn.2001-04.com.example:a/0",
        ),
        (
            format!(
                "{target}[[target.lun]]\ntype = \"file\"\npath = \"a.img\"\n[[target.lun]]\ntype = \"file\"\npath = \"b.img\"\n"
            ),
            "8:8: DIR/b.img is already the medium of iqn.2001-04.com.example:a/0; to export one medium \
             through several targets, make it a top-level [[lun]] and share it",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"file\"\npath = \"new.img\"\nsize = 1048577\n"),
            "6:8: \"size\" is not a multiple of the block length (512)",
        ),
        (
            format!(
                "{target}[[target.lun]]\ntype = \"file\"\npath = \"new.img\"\nsize = \"1M\"\nro = true\n"
            ),
            "5:8: DIR/new.img does not exist, and \"ro\" does not allow creating it",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"file\"\npath = \"no/new.img\"\nsize = \"1M\"\n"),
            "5:8: cannot create DIR/no/new.img: its directory: no such file or directory",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"file\"\npath = \"odd.img\"\n"),
            "5:8: DIR/odd.img is shorter than one block; give \"size\" to make it longer",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"file\"\npath = \".\"\n"),
            "5:8: DIR/. is not a regular file",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"block\"\npath = \"a.img\"\n"),
            "5:8: DIR/a.img is a regular file; use type \"file\"",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"block\"\npath = \"/dev/null\"\nsize = \"1M\"\n"),
            "5:8: /dev/null is not a block device\n6:1: a lun of type block takes no \"size\"",
        ),
        (
            format!("{target}{ram}path = \"a.img\"\ndirect = true\n"),
            "6:1: a lun of type ram takes no \"path\"\n7:1: a lun of type ram takes no \"direct\"",
        ),
        (
            format!(
                "{target}{ram}bs = 4096\nphysical_bs = 512\nnaa = \"x\"\nserial = \"é\"\nvendor = \"TOO LONG!\"\n"
            ),
            "7:15: \"physical_bs\" is less than \"bs\" (4096)\n8:7: \"x\" is not an NAA name: it has 16 or 32 \
             hexadecimal digits\n9:10: \"é\" is not printable ASCII\n10:10: \"vendor\" is longer than 8 bytes",
        ),
        (
            format!(
                "[[portal]]\nlisten = \"0.0.0.0:3260\"\n[[portal]]\nlisten = \"127.0.0.1\"\n{target}portals = []\n{ram}"
            ),
            "4:10: portal 127.0.0.1:3260 clashes with portal 0.0.0.0:3260\n\
             7:1: \"portals\" is an empty list",
        ),
        (
            format!("[[portal]]\nlisten = \"[::1]\"\n[[portal]]\nlisten = \"[::1]:3260\"\n{target}{ram}"),
            "4:10: portal [::1]:3260 is given twice (first on line 2)",
        ),
        (
            format!(
                "[[lun]]\nname = \"x\"\ntype = \"ram\"\nsize = \"1M\"\n{target}[[target.lun]]\nshare = \"x\"\nbs = 512\n[[target.lun]]\nshare = \"x\"\n"
            ),
            "9:1: \"bs\" must be set in the shared lun, not in the target's\n11:9: the target exports \"x\" \
             twice (first on line 8)",
        ),
    ] {
        let told = scratch.errors(&text).replace("DIR/targe.toml:", "");
        check(&told, expected);
    }
}

#[test]
fn warnings_stop_nothing() {
    let scratch = Scratch::new();
    scratch.file("odd.img", vec![0; (2 << 20) + 1], 0o600);
    let text = "max_sessions = 9\nmax_connections = 8\n[[target]]\nname = 'iqn.2001-04.com.example:a'\n\
                [[target.lun]]\ntype = 'file'\npath = 'odd.img'\n\
                [[target.acl]]\ninitiators = ['*']\n[[target.acl]]\ninitiators = ['iqn.*']\n";
    check(
        &scratch.told(&scratch.load(text).unwrap().report),
        "DIR/targe.toml:2:19: warning: \"max_connections\" is less than \"max_sessions\" \
         (9)\nDIR/targe.toml:7:8: warning: DIR/odd.img ends with a partial block, which is not \
         served\nDIR/targe.toml:11:15: warning: an earlier entry of this access list matches every initiator",
    );
}
