//! Whole configurations: what is right, what is wrong and where, and what leads from one to the next.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use device::contract::{Claims, Level as SpcLevel};
use hyperscsi::seal::Level;
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use iscsi::target::engine::SessionLimits;

use super::*;
use crate::log;
use crate::scratch::Scratch;

impl Scratch {
    fn file(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn around(&self) -> Surroundings {
        Surroundings {
            directory: self.path().to_path_buf(),
            state_dir: self.path().to_path_buf(),
            admin_socket: None,
            host: "host".to_owned(),
            file_mode: None,
            name_is_ours: false,
        }
    }

    fn load(&self, text: &str) -> Result<Loaded, Report> {
        let flags = Flags { config: Some(self.file("targe.toml", text, 0o600)), ..Flags::default() };
        Config::load(&flags, &self.around())
    }

    fn flags(&self, flags: &Flags) -> Result<Loaded, Report> {
        Config::load(flags, &self.around())
    }

    /// Returns the report with the directory's name replaced by `DIR`.
    fn told(&self, report: &Report) -> String {
        report.to_string().replace(self.path().to_str().unwrap(), "DIR")
    }

    fn mistakes(&self, text: &str) -> String {
        self.told(&self.load(text).expect_err("the configuration has mistakes"))
    }

    fn config(&self, text: &str) -> Config {
        let loaded = self.load(text).map_err(|report| self.told(&report)).unwrap();
        assert_eq!(loaded.report.to_string(), "");
        loaded.config
    }
}

/// Every line of `expected` without its indentation.
#[track_caller]
fn check(told: &str, expected: &str) {
    let lines =
        |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(told), lines(expected));
}

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
type = "tape"
size = "5000001"
[[target.acl]]
initiators = ["@vmhosts", "x*"]
luns = [9, { lun = 0, as = 1, rw = true }, { lun = 1 }, "2"]
[target.acl.auth]
user = "alice"
"#;
    check(
        &scratch.mistakes(text),
        r#"
        DIR/targe.toml:2:1: unknown key "colour" in the configuration
        DIR/targe.toml:3:7: "log" must be one of error, warn, info, debug, not "loud"
        DIR/targe.toml:4:10: "memory" must be 16M to 16T
        DIR/targe.toml:5:16: "max_sessions" must be 1 to 65535
        DIR/targe.toml:6:17: "5" is not a span of time (such as 5s, 250ms or 2m)
        DIR/targe.toml:7:9: "cores" must be numbers and ranges such as "0-3,6" up to 1023, not "3-1"
        DIR/targe.toml:8:8: "poll" must be true or false, not "yes"
        DIR/targe.toml:10:10: "localhost:3260" is no address to listen on (such as 127.0.0.1:3260 or [::1]:3260)
        DIR/targe.toml:11:7: "tag" must be 1 to 65535
        DIR/targe.toml:12:1: portal has no "listen"
        DIR/targe.toml:13:12: "a b" is no HOST, HOST:PORT or [IPV6]:PORT
        DIR/targe.toml:15:8: "vm hosts" is no name: only letters, digits, '-', '_' and '.'
        DIR/targe.toml:16:15: "host1" fits no initiator name: they begin with "iqn.", "eui." or "naa."
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
        DIR/targe.toml:35:8: "type" must be one of file, block, ram, null, not "tape"
        DIR/targe.toml:36:8: "size" is no multiple of the block length (512)
        DIR/targe.toml:38:15: no group is named "vmhosts" (did you mean "vm hosts"?)
        DIR/targe.toml:38:27: "x*" fits no initiator name: they begin with "iqn.", "eui." or "naa."
        DIR/targe.toml:39:9: the target has no LUN 9
        DIR/targe.toml:39:31: unknown key "rw" in luns entry (did you mean "ro"?)
        DIR/targe.toml:39:52: two LUNs are shown as 1
        DIR/targe.toml:39:57: an entry of "luns" must be a number or a table, not a string
        DIR/targe.toml:40:1: auth has no "secret_file"
        DIR/targe.toml:23:8: warning: no target shows lun "data"
        "#,
    );
}

#[test]
fn damaged_text_is_reported_without_what_only_seems_missing() {
    let scratch = Scratch::new();
    check(
        &scratch.mistakes(
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
    check(&load(scratch.file("bad.toml", b"a = 1\n# \xff\n", 0o600)), "DIR/bad.toml: not UTF-8 (on line 2)");
    check(&scratch.mistakes(""), "DIR/targe.toml:1:1: the configuration has no \"target\"");
}

/// Mistakes that show only when sections are held against each other: one snippet each.
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
            "10:7: the name naa.3000000000000001 is already that of iqn.2001-04.com.example:a/0",
        ),
        (
            format!(
                "{target}[[target.lun]]\ntype = \"file\"\npath = \"a.img\"\n[[target.lun]]\ntype = \"file\"\npath = \"b.img\"\n"
            ),
            "8:8: DIR/b.img is already the medium of iqn.2001-04.com.example:a/0; to show one medium in several \
             targets, make it a top-level [[lun]] and share it",
        ),
        (
            format!("{target}[[target.lun]]\ntype = \"file\"\npath = \"new.img\"\nsize = 1048577\n"),
            "6:8: \"size\" is no multiple of the block length (512)",
        ),
        (
            format!(
                "{target}[[target.lun]]\ntype = \"file\"\npath = \"new.img\"\nsize = \"1M\"\nro = true\n"
            ),
            "5:8: DIR/new.img does not exist, and \"ro\" forbids to create it",
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
            "7:15: \"physical_bs\" is less than \"bs\" (4096)\n\
             8:7: \"x\" is no NAA name: 16 or 32 hexadecimal digits\n\
             9:10: \"é\" is not printable ASCII\n\
             10:10: \"vendor\" is longer than 8 bytes",
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
            "9:1: \"bs\" belongs to the shared lun, not to the target's\n\
             11:9: the target shows \"x\" twice (first on line 8)",
        ),
    ] {
        let told = scratch.mistakes(&text).replace("DIR/targe.toml:", "");
        check(&told, expected);
    }
}

/// CVE-2020-13867: secrets in files that everybody could read.
#[test]
fn secrets_must_be_closed_long_enough_and_two() {
    let scratch = Scratch::new();
    scratch.file("good", "twelve bytes\n", 0o600);
    scratch.file("same", "twelve bytes\r\n", 0o400);
    scratch.file("other", "a different secret", 0o600);
    scratch.file("open", "twelve bytes", 0o640);
    scratch.file("short", "eleven char\n", 0o600);
    scratch.file("long", "x".repeat(300), 0o600);
    for (auth, expected) in [
        ("user = 'u'\nsecret_file = 'good'\nmutual_user = 't'\nmutual_secret_file = 'other'", ""),
        (
            "user = 'u'\nsecret_file = 'good'\nsecret = 'good good good'",
            "9:10: give \"secret_file\" or \"secret\", not both",
        ),
        (
            "user = 'u'\nsecret_file = 'open'",
            "8:15: secret file DIR/open can be read by others (mode 640); run: chmod 600 DIR/open",
        ),
        (
            "user = 'u'\nsecret_file = 'none'",
            "8:15: cannot read secret file DIR/none: no such file or directory",
        ),
        ("user = 'u'\nsecret_file = '.'", "8:15: secret file DIR/. is not a regular file"),
        (
            "user = 'u'\nsecret_file = 'short'",
            "8:15: a CHAP secret has 12 to 255 bytes, not 11 (in DIR/short)",
        ),
        (
            "user = 'u'\nsecret_file = 'long'",
            "8:15: a CHAP secret has 12 to 255 bytes, not 258 (in DIR/long)",
        ),
        (
            "user = 'u'\nsecret_file = 'good'\nmutual_user = 't'\nmutual_secret_file = 'same'",
            "10:22: the mutual secret must be another one than the initiator's",
        ),
        (
            "user = 'u'\nsecret_file = 'good'\nmutual_user = 't'",
            "9:15: auth has a \"mutual_user\" and no \"mutual_secret_file\"",
        ),
        (
            "user = 'u'\nsecret_file = 'good'\nmutual_secret_file = 'other'",
            "9:22: auth has a mutual secret and no \"mutual_user\"",
        ),
        ("secret_file = 'good'", "6:1: auth has no \"user\""),
        ("method = 'none'\nuser = 'u'", "8:8: auth with method \"none\" takes no names or secrets"),
        ("user = 'u'\nsecret_file = 'good'\nalgorithms = []", "6:1: auth accepts no algorithm"),
        (
            "user = 'u'\nsecret_file = 'good'\nalgorithms = ['MD5', 'SHA-512', 'md5']",
            "9:22: \"algorithms\" must be one of SHA3-256, SHA-256, SHA1, MD5, not \"SHA-512\"\n\
             9:33: \"MD5\" is given twice",
        ),
    ] {
        let text = format!(
            "[[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '1M'\n[target.auth]\n{auth}\n"
        );
        let told = match scratch.load(&text) {
            Ok(loaded) => scratch.told(&loaded.report),
            Err(report) => scratch.told(&report),
        };
        check(&told.replace("DIR/targe.toml:", ""), expected);
        assert!(!told.contains("twelve"), "{told}");
    }
}

#[test]
fn a_secret_in_the_configuration_needs_a_closed_file() {
    let scratch = Scratch::new();
    let text = "[[target]]\nname = 'iqn.2001-04.com.example:a'\nauth = { user = 'u', secret = 'in the open, alas' }\n\
                [[target.lun]]\ntype = 'ram'\nsize = '1M'\n";
    let open = Flags { config: Some(scratch.file("open.toml", text, 0o644)), ..Flags::default() };
    check(
        &scratch.told(&scratch.flags(&open).unwrap_err()),
        "DIR/open.toml:3:31: \"secret\" in a file that others can read (mode 644); use \"secret_file\" or chmod 600",
    );
    let closed = scratch.load(text).unwrap();
    check(
        &scratch.told(&closed.report),
        "DIR/targe.toml:3:31: warning: \"secret\" is written in the configuration; \"secret_file\" keeps it apart",
    );
    assert!(!format!("{:?}", closed.config).contains("alas"));
}

const SHARED: &str = r#"
state_dir = "state"
nop_interval = "0s"
cores = "0-2,1,5"
[[portal]]
name = "front"
listen = "[::1]:3261"
announce = "san.example.net"
[[portal]]
listen = "127.0.0.1"
tag = 2
[session]
data_digest = "require"
max_burst_length = "128K"
[[group]]
name = "vm"
initiators = ["IQN.1994-05.com.redhat:*"]
[[lun]]
name = "data"
type = "ram"
size = "2M"
ro = true
[[target]]
name = "iqn.2001-04.com.Example:a"
[target.session]
header_digest = "forbid"
[[target.lun]]
type = "null"
size = "1T"
bs = 4096
lun = 1
[[target.lun]]
share = "data"
[[target.lun]]
type = "file"
path = "disk.img"
size = "1M"
vendor = "ACME"
[[target.acl]]
initiators = ["@vm", "eui.0123456789abcdef"]
luns = [2, { lun = 1, as = 0, ro = true }]
[[target]]
name = "iqn.2001-04.com.example:b"
portals = ["front"]
[[target.lun]]
share = "data"
lun = 9
"#;

#[test]
fn a_whole_configuration_resolves_to_what_it_says() {
    let scratch = Scratch::new();
    let config = scratch.config(SHARED);
    assert_eq!(config.state_dir, scratch.path().join("state"));
    assert_eq!(config.admin_socket, scratch.path().join("state/admin/admin.sock"));
    assert_eq!((config.log, config.reactor, config.poll), (log::Level::Info, ReactorChoice::Auto, false));
    assert_eq!(config.cores, [0, 1, 2, 5]);
    let portals: Vec<_> = config
        .portals
        .iter()
        .map(|p| (p.listen.to_string(), p.announce.as_ref().map(ToString::to_string), p.tag))
        .collect();
    assert_eq!(
        portals,
        [
            ("[::1]:3261".to_owned(), Some("san.example.net:3261".to_owned()), 1),
            ("127.0.0.1:3260".to_owned(), None, 2)
        ]
    );
    let [a, b] = &config.targets[..] else { panic!("two targets") };
    assert_eq!(a.name.as_str(), "iqn.2001-04.com.example:a");
    assert_eq!((&a.portals[..], &b.portals[..]), (&[0, 1][..], &[0][..]));
    assert_eq!(a.keys.header_digest, DigestPolicy::RequireNone);
    assert_eq!(b.keys.header_digest, DigestPolicy::PreferCrc32c);
    assert_eq!(
        (a.keys.data_digest, b.keys.data_digest),
        (DigestPolicy::RequireCrc32c, DigestPolicy::RequireCrc32c)
    );
    assert_eq!((a.keys.max_burst_length, a.keys.first_burst_length), (128 << 10, 128 << 10));
    assert_eq!(config.limits.ping_after, std::time::Duration::MAX);
    let show = |luns: &[MappedLun]| -> Vec<(u16, String, bool)> {
        luns.iter().map(|lun| (lun.lun, config.units[lun.unit.0].medium.to_string(), lun.read_only)).collect()
    };
    let file = format!("file:{}/disk.img", scratch.path().display());
    assert_eq!(
        show(&a.luns),
        [(0, "ram:2M".to_owned(), true), (1, "null:1T".to_owned(), false), (2, file.clone(), false)]
    );
    assert_eq!(show(&b.luns), [(9, "ram:2M".to_owned(), true)]);
    assert_eq!(a.luns[0].unit, b.luns[0].unit);
    let entry = &a.acl.as_ref().unwrap()[0];
    assert_eq!(show(&entry.luns), [(0, "null:1T".to_owned(), true), (2, file, false)]);
    let patterns: Vec<_> = entry.initiators.iter().map(NamePattern::as_str).collect();
    assert_eq!(patterns, ["iqn.1994-05.com.redhat:*", "eui.0123456789abcdef"]);
    let unit = &config.units[a.luns[2].unit.0];
    assert_eq!((unit.identity.vendor.as_str(), unit.identity.product.as_str()), ("ACME", "Virtual Disk"));
    assert_eq!(unit.identity.serial, unit.identity.naa.to_string());
    assert!(unit.thin && unit.write_cache && !unit.read_only);
    assert_eq!(unit.physical_block_size.bytes(), 4096);
}

#[test]
fn a_target_has_the_limits_of_the_top_level_unless_it_has_its_own() {
    let scratch = Scratch::new();
    let lun = "[[target.lun]]\ntype = 'null'\nsize = '1M'\n";
    let target = |name, keys| format!("[[target]]\nname = 'iqn.2001-04.com.example:{name}'\n{keys}{lun}");
    let top = "queue_depth = 7\nnop_interval = '0s'\n";
    let own = "queue_depth = 9\nnop_interval = '3s'\nnop_timeout = '1s'\n";
    let config = scratch.config(&[top, &target("a", ""), &target("b", own)].concat());
    let show = |limits: &SessionLimits| (limits.queue_depth, limits.ping_after, limits.pong_within);
    let seconds = std::time::Duration::from_secs;
    let usual = (7, std::time::Duration::MAX, seconds(15));
    assert_eq!(show(&config.limits), usual);
    assert_eq!(show(&config.targets[0].limits), usual);
    assert_eq!(show(&config.targets[1].limits), (9, seconds(3), seconds(1)));
}

#[test]
fn what_a_lun_claims_can_be_less_than_it_can() {
    let scratch = Scratch::new();
    let claims = |spec: &str| {
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        scratch.flags(&flags).unwrap().config.units[0].claims
    };
    let usual = Claims { write_same_to_end: false, compare_and_write_max: 1, ..Claims::default() };
    assert_eq!(claims("ram:1M"), usual);
    assert_eq!(claims("ram:1M,spc=3"), Claims { level: SpcLevel::Spc3, ..usual });
    assert_eq!(claims("ram:1M,spc=5"), Claims { level: SpcLevel::Spc5, ..usual });
    assert_eq!(
        claims("ram:1M,unmapped=unspecified,write_same_to_end,compare_and_write_max=255"),
        Claims { unmapped_zeros: false, write_same_to_end: true, compare_and_write_max: 255, ..usual }
    );
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
        "DIR/targe.toml:2:19: warning: \"max_connections\" is less than \"max_sessions\" (9)\n\
         DIR/targe.toml:7:8: warning: the end of DIR/odd.img is no whole block and is not served\n\
         DIR/targe.toml:11:15: warning: an earlier entry of this access list fits every initiator",
    );
}

#[test]
fn no_flag_at_all_serves_a_default_disk() {
    let scratch = Scratch::new();
    let config = scratch.flags(&Flags::default()).unwrap().config;
    assert_eq!(config.portals[0].listen.to_string(), "127.0.0.1:3260");
    assert_eq!(config.targets[0].name.as_str(), DEFAULT_TARGET);
    let Medium::File { path, size, direct: false } = &config.units[0].medium else { panic!("a file") };
    assert_eq!((path, size.unwrap().0), (&scratch.path().join("disk.img"), 1 << 30));
    // Two hosts that serve a default disk must not be taken for two paths to one.
    let other = Surroundings { host: "other".to_owned(), ..scratch.around() };
    let other = Config::load(&Flags::default(), &other).unwrap().config;
    assert_ne!(other.units[0].identity.naa, config.units[0].identity.naa);
    let named = Flags { target: Some(DEFAULT_TARGET.to_owned()), ..Flags::default() };
    assert_eq!(
        scratch.flags(&named).unwrap().config.units[0].identity,
        Config::load(&named, &Surroundings { host: "other".to_owned(), ..scratch.around() })
            .unwrap()
            .config
            .units[0]
            .identity
    );
}

#[test]
fn what_no_key_changes_is_what_the_protocol_engine_offers() {
    let scratch = Scratch::new();
    let keys = scratch.flags(&Flags::default()).unwrap().config.targets[0].keys.clone();
    // RFC 7143 §13.23 has a default of its own; we offer more.
    assert_eq!(keys.task_reporting, ["FastAbort", "ResponseFence", "RFC3720"]);
    let task_reporting = KeyPolicy::default().task_reporting;
    assert_eq!(KeyPolicy { task_reporting, ..keys }, KeyPolicy::default());
}

#[test]
fn flags_build_what_a_file_builds() {
    let scratch = Scratch::new();
    let flags = Flags {
        listen: vec!["[::1]:0".to_owned(), "127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()],
        target: Some("iqn.2001-04.com.example:a".to_owned()),
        luns: vec![
            "file:a\\,b.img,size=10M,bs=4096,direct,lun=5".to_owned(),
            "ram:4M,ro".to_owned(),
            "null:1T,write_cache=off,serial=X1".to_owned(),
        ],
        reactor: Some("epoll".to_owned()),
        poll: true,
        cores: Some("1".to_owned()),
        log: Some("debug".to_owned()),
        ..Flags::default()
    };
    let by_flags = scratch.flags(&flags).map_err(|report| report.to_string()).unwrap().config;
    let by_file = scratch.config(
        "reactor = 'epoll'\npoll = true\ncores = '1'\nlog = 'debug'\n\
         [[portal]]\nlisten = '[::1]:0'\n[[portal]]\nlisten = '127.0.0.1:0'\n[[portal]]\nlisten = '127.0.0.1:0'\n\
         [[target]]\nname = 'iqn.2001-04.com.example:a'\n\
         [[target.lun]]\ntype = 'file'\npath = 'a,b.img'\nsize = '10M'\nbs = 4096\ndirect = true\nlun = 5\n\
         [[target.lun]]\ntype = 'ram'\nsize = '4M'\nro = true\n\
         [[target.lun]]\ntype = 'null'\nsize = '1T'\nwrite_cache = false\nserial = 'X1'\n",
    );
    assert_eq!(by_flags, by_file);
    assert_eq!(by_flags.targets[0].luns.iter().map(|lun| lun.lun).collect::<Vec<_>>(), [0, 1, 5]);
}

/// CVE-2017-1000198: a backend's description that makes no sense.
#[test]
fn wrong_specs_say_what_is_wrong() {
    let scratch = Scratch::new();
    scratch.file("open", [7; 32], 0o640);
    scratch.file("short", [7; 31], 0o600);
    scratch.file("good", [7; 32], 0o600);
    for (spec, expected) in [
        ("disk.img", "a LUN begins with file:, block:, ram: or null:, not \"disk.img\""),
        ("fill:/x", "a LUN begins with file:, block:, ram: or null:, not \"fill\" (did you mean \"file\"?)"),
        ("tape:/x", "media of type \"tape\" are not in this build"),
        ("file:", "\"file\" has no path (such as file:/srv/disk.img)"),
        ("ram:", "\"ram\" has no size (such as ram:512M)"),
        ("ram:lots", "\"lots\" is not a size (such as 512M or 10G)"),
        ("ram:1M,sise=5", "unknown key \"sise\" in lun (did you mean \"size\"?)"),
        ("ram:1M,size=5M", "\"size\" is given twice"),
        ("ram:1M,bs", "\"bs\" needs a value (bs=…)"),
        ("ram:1M,bs=1024", "\"bs\" must be one of 512, 4096, not \"1024\""),
        ("ram:1M,ro=maybe", "\"ro\" must be true or false, not \"maybe\""),
        ("ram:1M,lun=16384", "\"lun\" must be 0 to 16383"),
        ("ram:1M,lun=x", "\"lun\" must be a whole number, not \"x\""),
        ("ram:1M,encrypt=none", "cannot read secret file DIR/none: no such file or directory"),
        (
            "ram:1M,encrypt=open",
            "secret file DIR/open can be read by others (mode 640); run: chmod 600 DIR/open",
        ),
        (
            "ram:1M,encrypt=short",
            "secret file DIR/short has 31 bytes where 32 to 4096 random ones are needed; run: head -c 32 /dev/urandom > \
             DIR/short",
        ),
        ("null:1M,encrypt=good", "a lun of type null takes no \"encrypt\""),
        ("file:none.img,atomic_bs=4096", "a lun of type file takes no \"atomic_bs\""),
        ("ram:1M,bs=4096,atomic_bs=512", "\"atomic_bs\" is less than \"bs\" (4096)"),
        ("ram:1M,spc=2", "\"spc\" must be one of 3, 4, 5, not \"2\" (did you mean \"3\"?)"),
        ("ram:1M,compare_and_write_max=256", "\"compare_and_write_max\" must be 1 to 255"),
        ("ram:1M,direct", "a lun of type ram takes no \"direct\""),
        ("ram:1M,", "unknown key \"\" in lun"),
        ("file:none.img", "DIR/none.img does not exist; give \"size\" to create it"),
    ] {
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        let told = scratch.told(&scratch.flags(&flags).expect_err(spec));
        assert!(told.lines().any(|line| line == format!("--lun {spec}: {expected}")), "{spec}: {told}");
    }
}

#[test]
fn flags_go_over_the_file() {
    let scratch = Scratch::new();
    let file = scratch.file("targe.toml", SHARED.replace("portals = [\"front\"]", ""), 0o600);
    let flags = Flags {
        config: Some(file),
        listen: vec!["127.0.0.1:0".to_owned()],
        cores: Some("7".to_owned()),
        ..Flags::default()
    };
    let config = scratch.flags(&flags).unwrap().config;
    assert_eq!((config.portals.len(), config.portals[0].listen.port(), &config.cores[..]), (1, 0, &[7][..]));
    let both = Flags {
        luns: vec!["ram:1M".to_owned()],
        target: Some("iqn.2001-04.com.example:b".to_owned()),
        ..flags
    };
    check(
        &scratch.told(&scratch.flags(&both).unwrap_err()),
        "--lun ram:1M: the LUNs are those of the --config file\n\
         --target iqn.2001-04.com.example:b: the targets are those of the --config file",
    );
}

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
fn the_example_of_the_page_is_right() {
    let page = include_str!("../../../../docs/config.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let scratch = Scratch::new();
    scratch.file("vm.secret", "twelve bytes or more", 0o600);
    let example = example.replace("/srv/san", scratch.path().to_str().unwrap());
    // The one thing of the example that a host may lack is its block device.
    let told = scratch.load(&example).map_or_else(|report| scratch.told(&report), |_| String::new());
    assert!(told.is_empty() || told.lines().count() == 1 && told.contains("/dev/vg0/data"), "{told}");
}

#[test]
fn hyperscsi_has_interfaces_groups_and_levels() {
    let scratch = Scratch::new();
    scratch.file("backup.password", "correct horse battery\n", 0o600);
    let config = scratch.config(
        r#"
        [hyperscsi]
        interfaces = ["eth0", "eth1"]
        [[hyperscsi.group]]
        name = "Lager 7"
        interfaces = ["eth1"]
        [[hyperscsi.group]]
        name = "backup"
        password_file = "backup.password"
        [[target]]
        name = "iqn.2001-04.com.example:a"
        groups = ["backup", "Lager 7"]
        lun = [
            { type = "ram", size = "1M" },
            { type = "ram", size = "1M", protection = "encrypt", groups = ["backup"] },
        ]
        [[target]]
        name = "iqn.2001-04.com.example:b"
        lun = [{ type = "ram", size = "1M" }]
        "#,
    );
    assert!(config.portals.is_empty(), "nobody asked for iSCSI");
    let frames = config.frames.unwrap();
    assert_eq!(frames.interfaces, ["eth0", "eth1"]);
    let [open, secret] = frames.groups.as_slice() else { panic!("two groups") };
    assert_eq!(
        (&*open.name, open.least, open.interfaces.as_deref()),
        ("Lager 7", Level::None, Some(&[1][..]))
    );
    assert_eq!((&*secret.name, secret.least, &secret.interfaces), ("backup", Level::Integrity, &None));
    assert_eq!(**secret.password.as_ref().unwrap().0, *b"correct horse battery");
    assert!(!format!("{secret:?}").contains("horse"));
    let [a, b] = config.targets.as_slice() else { panic!("two targets") };
    assert_eq!((a.groups, b.groups), (GroupSet::NONE.with(0).with(1), GroupSet::NONE));
    let levels: Vec<_> = a.luns.iter().map(|lun| (lun.protection, lun.groups)).collect();
    assert_eq!(levels, [(Level::None, GroupSet::ALL), (Level::Encrypt, GroupSet::NONE.with(1))]);
}

#[test]
fn mistakes_about_hyperscsi_have_their_places() {
    let scratch = Scratch::new();
    scratch.file("open.password", "correct horse battery", 0o644);
    let told = scratch.mistakes(
        r#"
        portal = [{ listen = "127.0.0.1", tag = 65535 }]
        [hyperscsi]
        interfaces = ["eth0", "eth0", "eth/0"]
        [[hyperscsi.group]]
        name = "backup"
        password_file = "open.password"
        [[hyperscsi.group]]
        name = "backup"
        protection = "encrypt"
        interfaces = ["eth2"]
        [[target]]
        name = "iqn.2001-04.com.example:a"
        groups = ["backups"]
        lun = [{ type = "ram", size = "1M", groups = ["nobody"], protection = "most" }]
        "#,
    );
    check(
        &told,
        r#"
        DIR/targe.toml:3:9: portal 127.0.0.1:3260 has the tag 65535; those from 32768 on are for HyperSCSI's ports
        DIR/targe.toml:4:31: interface "eth0" is given twice
        DIR/targe.toml:4:39: "eth/0" is no name of an interface
        DIR/targe.toml:7:25: secret file DIR/open.password can be read by others (mode 644); run: chmod 600 DIR/open.password
        DIR/targe.toml:9:16: group "backup" is given twice (first on line 6)
        DIR/targe.toml:10:22: protection "encrypt" needs a "password_file"
        DIR/targe.toml:11:23: hyperscsi has no interface "eth2" (did you mean "eth0"?)
        DIR/targe.toml:14:19: hyperscsi has no group "backups" (did you mean "backup"?)
        DIR/targe.toml:15:55: hyperscsi has no group "nobody"
        DIR/targe.toml:15:79: "protection" must be one of none, integrity, encrypt, not "most"
        "#,
    );
}

#[test]
fn flags_serve_hyperscsi_with_or_without_iscsi() {
    let scratch = Scratch::new();
    let password = scratch.file("password", "correct horse battery", 0o600);
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let flags = Flags {
        interfaces: text(&["eth0", "eth1"]),
        groups: text(&["backup"]),
        group_password: Some(password),
        luns: text(&["ram:1M", "ram:1M,protection=encrypt"]),
        ..Flags::default()
    };
    let alone = scratch.flags(&flags).map_err(|report| report.to_string()).unwrap().config;
    assert!(alone.portals.is_empty());
    let frames = alone.frames.unwrap();
    assert_eq!((frames.interfaces.len(), frames.groups.len()), (2, 1));
    assert!(frames.groups[0].password.is_some());
    assert_eq!(alone.targets[0].groups, GroupSet::NONE.with(0));
    assert_eq!(alone.targets[0].luns[1].protection, Level::Encrypt);
    let beside = Flags { listen: text(&["127.0.0.1:0"]), ..flags };
    assert_eq!(scratch.flags(&beside).map_err(|report| report.to_string()).unwrap().config.portals.len(), 1);
    let half = Flags { interfaces: text(&["eth0"]), ..Flags::default() };
    let told = scratch.flags(&half).unwrap_err().to_string();
    assert!(told.contains("--iface eth0: HyperSCSI needs --group as well"), "{told}");
}
