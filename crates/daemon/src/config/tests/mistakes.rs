//! Tests of mistakes: all are reported at once, each with its source span.

use std::collections::BTreeMap;

use base::units::BlockSize;

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
            format!(
                "[[portal]]\nlisten = \"[fe80::a]\"\n[[portal]]\nlisten = \"[fe80::a%gone]\"\n{target}{ram}"
            ),
            "2:10: \"[fe80::a]\" is on every link: name the interface, as in [fe80::a%eth0]:3260\n\
             4:10: \"[fe80::a%gone]\" names the interface \"gone\", which is not there",
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
         served\nDIR/targe.toml:11:15: warning: \"iqn.*\" has no effect here: \"*\" in an earlier entry of this access list \
         (on line 9) already matches it",
    );
}

#[test]
fn names_in_certificates_need_certificates() {
    let scratch = Scratch::new();
    let text = |names: &str| {
        format!(
            "[[portal]]\nlisten = '127.0.0.1'\n{names}[[target]]\nname = 'iqn.2001-04.com.example:a'\n\
             [[target.lun]]\ntype = 'ram'\nsize = '1M'\n"
        )
    };
    check(
        &scratch.errors(&text("tls_client_names = true\n")).replace("DIR/targe.toml:", ""),
        "3:20: \"tls_client_names\" needs a \"tls_client_authority\": initiators have no certificate without one",
    );
    assert!(scratch.load(&text("tls_client_names = false\n")).is_ok());
}

#[test]
fn a_certificate_that_is_demanded_or_wrong_is_no_missing_password_or_certificate() {
    let scratch = Scratch::new();
    let tls = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/src/testdata");
    for name in ["target.crt", "target.key", "authority.crt", "initiator.key"] {
        scratch.file(name, fs::read(tls.join(name)).unwrap(), 0o600);
    }
    let told = |portal: &str, http: &str| {
        let target =
            "[[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '1M'\n";
        let text = format!("[[portal]]\nlisten = '0.0.0.0'\n{portal}{target}{http}");
        scratch.told(&scratch.load(&text).map_or_else(|report| report, |loaded| loaded.report))
    };
    let (certificate, authority) =
        ("tls_certificate = 'target.crt'\n", "tls_client_authority = 'authority.crt'\n");
    let key = "tls_key = 'target.key'\n";
    assert!(told("", "").contains("without a password"));
    assert!(told(&format!("{certificate}{key}"), "").contains("without a password"));
    assert_eq!(told(&format!("{certificate}{key}{authority}"), ""), "");

    scratch.file("token", "0123456789abcdef0123456789abcdef\n", 0o600);
    let closed = format!("{certificate}{key}{authority}");
    let http = "[http]\nlisten = '0.0.0.0:9260'\ntoken_file = 'token'\n";
    assert!(told(&closed, http).contains("there is no \"tls_certificate\""));
    let told = told(&closed, &format!("{http}{certificate}tls_key = 'initiator.key'\n"));
    assert!(told.contains("target.crt cannot be used with its key"), "{told}");
    assert!(!told.contains("there is no"), "{told}");
}

#[test]
fn the_first_lun_that_linux_numbers_otherwise_is_named() {
    let scratch = Scratch::new();
    let lun = |number: u16| format!("[[target.lun]]\ntype = 'ram'\nsize = '1M'\nlun = {number}\n");
    let told = |numbers: &[u16]| {
        let luns: Vec<String> = numbers.iter().map(|number| lun(*number)).collect();
        let acl = "[[target.acl]]\ninitiators = ['iqn.2000-01.x:a']\n";
        let text = format!("[[target]]\nname = 'iqn.2001-04.com.example:a'\n{}{acl}", luns.concat());
        scratch.told(&scratch.load(&text).unwrap().report).replace("DIR/targe.toml:", "")
    };
    check(&told(&[0, 255]), "");
    check(
        &told(&[0, 300, 256]),
        "10:7: warning: Linux shows LUN 300 as 16684, and every LUN from 256 on by its number and 16384 (flat space \
         addressing); numbers below 256 are the same everywhere",
    );
}

#[test]
fn entries_of_an_access_list_that_never_apply_are_named() {
    let scratch = Scratch::new();
    let head = "[[group]]\nname = 'lab'\ninitiators = ['iqn.2000-01.x:a', 'iqn.2000-01.x:b']\n\
                [[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '1M'\n";
    let told = |entries: &[&str]| {
        let entries: Vec<String> =
            entries.iter().map(|words| format!("[[target.acl]]\ninitiators = [{words}]\n")).collect();
        let report = scratch.load(&format!("{head}{}", entries.concat())).unwrap().report;
        scratch.told(&report).replace("DIR/targe.toml:", "")
    };
    let line = |place: &str, word: &str, by: &str, line: u8| {
        format!(
            "{place}: warning: \"{word}\" has no effect here: \"{by}\" in an earlier entry of this access list (on line \
             {line}) already matches it"
        )
    };
    // The same initiator again, in other case, after a pattern, and after a group.
    check(
        &told(&["'iqn.1991-05.com.microsoft:HOST'", "'iqn.1991-05.com.microsoft:host'"]),
        &line("12:15", "iqn.1991-05.com.microsoft:host", "iqn.1991-05.com.microsoft:HOST", 10),
    );
    check(
        &told(&["'iqn.2000-01.*'", "'iqn.2000-01.x:a', 'iqn.2001-01.x:a'", "'iqn.2000-01.y*'"]),
        &[
            line("12:15", "iqn.2000-01.x:a", "iqn.2000-01.*", 10),
            line("14:15", "iqn.2000-01.y*", "iqn.2000-01.*", 10),
        ]
        .join("\n"),
    );
    check(&told(&["'@lab'", "'iqn.2000-01.x:b'"]), &line("12:15", "iqn.2000-01.x:b", "@lab", 10));
    check(&told(&["'iqn.2000-01.x:*'", "'@lab'"]), &line("12:15", "@lab", "iqn.2000-01.x:*", 10));
    // These entries select somebody.
    check(&told(&["'iqn.2000-01.x:a'", "'@lab'", "'iqn.2000-01.x:*'", "'iqn.*:a'"]), "");
    // An initiator that one entry names twice is no mistake.
    check(&told(&["'iqn.2000-01.x:a', 'IQN.2000-01.x:a'"]), "");
}

#[test]
fn a_lun_is_not_both_read_only_and_writable_for_an_initiator() {
    let scratch = Scratch::new();
    let head = "[[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '1M'\n\
                [[target.acl]]\ninitiators = ['iqn.2000-01.x:a']\n";
    let expected =
        "8:9: LUN 0 is exported twice, once read-only and once not: the initiator could write to it";
    for (rows, expected) in [
        ("{ lun = 0, ro = true }, { lun = 0, as = 1 }", expected.replace("8:9", "8:41")),
        ("0, { lun = 0, as = 1, ro = true }", expected.replace("8:9", "8:20")),
    ] {
        check(&scratch.errors(&format!("{head}luns = [{rows}]\n")).replace("DIR/targe.toml:", ""), &expected);
    }
    for rows in ["0, { lun = 0, as = 1 }", "{ lun = 0, ro = true }, { lun = 0, as = 1, ro = true }"] {
        assert!(scratch.load(&format!("{head}luns = [{rows}]\n")).is_ok(), "{rows}");
    }
    assert!(
        scratch.load(&format!("{head}luns = [0, {{ lun = 0, as = 1, ro = true }}]\nro = true\n")).is_ok()
    );
}

#[test]
fn equal_serial_numbers_are_named() {
    let scratch = Scratch::new();
    let text = "[[lun]]\nname = 's'\ntype = 'ram'\nsize = '1M'\nserial = 'AAA'\n\
                [[target]]\nname = 'iqn.2001-04.com.example:a'\nlun = [{ type = 'ram', size = '1M', serial = 'AAA' }, \
                { share = 's' }, { type = 'ram', size = '1M', serial = 'BBB' }]\n";
    check(
        &scratch.told(&scratch.load(text).unwrap().report),
        "DIR/targe.toml:5:10: warning: the serial number \"AAA\" is already used by iqn.2001-04.com.example:a/0: hosts \
         can take the two for one disk",
    );
}

#[test]
fn what_only_another_user_can_open_is_a_mistake_for_the_service() {
    let scratch = Scratch::new();
    scratch.file("secret", "0123456789abcdef", 0o600);
    scratch.file("disk.img", [0; 4096], 0o600);
    scratch.file("group.img", [0; 4096], 0o660);
    let text = "[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
                auth = { method = \"chap\", user = \"u\", secret_file = \"secret\" }\n\
                lun = [{ type = \"file\", path = \"disk.img\" }, { type = \"file\", path = \"group.img\" }]\n";
    let loaded = |service_user| {
        let name = scratch.path().join("targe.toml");
        let environment = Environment { service_user, ..scratch.environment() };
        let flags = Flags { config: Some(name.clone()), ..Flags::default() };
        let loaded = Config::load_text(&flags, &environment, &name, text, None);
        loaded.map(drop).map_err(|report| report.to_string().replace(scratch.path().to_str().unwrap(), "DIR"))
    };
    let user = rustix::process::geteuid().as_raw();
    loaded(None).unwrap();
    loaded(Some(user)).unwrap();
    let other = user + 1;
    let line = |at: &str, name: &str| {
        format!(
            "DIR/targe.toml:{at}: only user {user} can open DIR/{name}, and the service runs as user {other}, which its \
             state directory belongs to; run: chown {other} DIR/{name}\n"
        )
    };
    check(&loaded(Some(other)).unwrap_err(), &(line("3:53", "secret") + &line("4:32", "disk.img")));
}

#[test]
fn blocks_that_the_medium_cannot_write_are_a_mistake_that_names_path_and_key() {
    let scratch = Scratch::new();
    let file = scratch.file("disk.img", [0; 4096], 0o600);
    let expect = |path: &Path, medium, bs| expect_block_len(path, medium, bs);
    expect(&file, 4096, BlockSize::B4096).unwrap();
    expect(&file, 512, BlockSize::B4096).unwrap();
    check(
        &expect(&file, 4096, BlockSize::B512).unwrap_err().replace(scratch.path().to_str().unwrap(), "DIR"),
        "DIR/disk.img must be read and written with \"direct\" in blocks of 4096 bytes, and \"bs\" is 512; give bs = \
         \"4096\", or leave out \"direct\"",
    );
    check(
        &expect(Path::new("/dev/zero"), 4096, BlockSize::B512).unwrap_err(),
        "/dev/zero must be read and written in blocks of 4096 bytes, and \"bs\" is 512; give bs = \"4096\"",
    );
}

#[test]
fn a_library_that_was_served_before_can_still_come_with_its_drives() {
    let scratch = Scratch::new();
    let text = "[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
                lun = [{ type = \"changer\", path = \"library\" }, { type = \"ram\", size = \"1M\" }]\n";
    assert!(
        !scratch.load(text).unwrap_err().has_only_absent_media(),
        "the number of the last LUN is unknown"
    );
    let drives = ["LIB0000101", "LIB0000102"].map(str::to_owned).to_vec();
    let library = ServedLibrary { serial: "LIB00001".to_owned(), drives };
    let record = BTreeMap::from([(scratch.path().join("library"), library)]);
    let environment = Environment::for_tests(scratch.path());
    fs::create_dir_all(&environment.state_dir).unwrap();
    fs::write(library_record::file(&environment.state_dir), library_record::encode(&record)).unwrap();
    let report = scratch.load(text).unwrap_err();
    assert!(report.has_only_absent_media(), "{report}");
    let file = scratch.path().join("targe.toml");
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let loaded = Config::load_text_without_media(&flags, &environment, &file, text, None).unwrap();
    let luns: Vec<u16> = loaded.config.targets[0].luns.iter().map(|mapped| mapped.lun).collect();
    assert_eq!((luns, loaded.config.units.len()), (vec![0, 1, 2, 3], 4));
    // A folder that is there and holds no library is a mistake.
    fs::create_dir(scratch.path().join("library")).unwrap();
    assert!(!scratch.load(text).unwrap_err().has_only_absent_media());
}

#[test]
fn only_a_medium_that_is_not_there_can_still_come() {
    let scratch = Scratch::new();
    scratch.file("regular", [0; 4096], 0o600);
    scratch.file("short", [0; 16], 0o600);
    for (keys, can_come) in [
        ("type = \"file\", path = \"regular\", encrypt = \"none/secret\"", true),
        ("type = \"file\", path = \"none.img\", encrypt = \"none/secret\"", true),
        ("type = \"ram\", size = \"1M\", encrypt = \"none/secret\"", true),
        ("type = \"file\", path = \"regular\", encrypt = \"short\"", false),
        ("type = \"file\", path = \"none.img\", encrypt = \"short\"", false),
        ("type = \"block\", path = \"/dev/none\"", true),
        ("type = \"file\", path = \"none/disk.img\", size = \"1M\"", true),
        ("type = \"file\", path = \"none.img\"", true),
        ("type = \"sg\", path = \"/dev/sg-none\"", true),
        ("type = \"vhost-user-blk\", path = \"none.sock\"", true),
        ("type = \"nbd\", uri = \"nbd+unix:///?socket=/none\"", true),
        ("type = \"block\", path = \"regular\"", false),
        ("type = \"vhost-user-blk\", path = \"regular\"", false),
        // The numbers of the LUNs after it are not known.
        ("type = \"changer\", path = \"none\"", false),
        ("type = \"block\", path = \"/dev/none\", bs = 7", false),
    ] {
        let text = format!("[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{{ {keys} }}]\n");
        let report = scratch.load(&text).unwrap_err();
        assert_eq!(report.has_only_absent_media(), can_come, "{keys}: {report}");
    }
}

#[test]
fn a_medium_that_does_not_answer_is_not_looked_at() {
    let scratch = Scratch::new();
    // Looking at it would find a mistake.
    let path = scratch.path().join("folder");
    fs::create_dir(&path).unwrap();
    let text =
        "[[target]]\nname = \"iqn.2001-04.com.example:a\"\nlun = [{ type = \"file\", path = \"folder\" }]\n";
    assert!(!scratch.load(text).unwrap_err().has_only_absent_media());
    let environment = Environment { silent: [path].into(), ..Environment::for_tests(scratch.path()) };
    let file = scratch.path().join("targe.toml");
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let report = Config::load_text(&flags, &environment, &file, text, None).unwrap_err();
    assert!(
        report.has_only_absent_media() && report.to_string().contains("folder does not answer"),
        "{report}"
    );
}
