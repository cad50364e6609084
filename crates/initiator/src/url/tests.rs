//! Tests correct and incorrect URLs.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hyperscsi::pdu::parameters::Repair;
use iscsi::aead::AeadMode;
use iscsi::negotiate::DigestPolicy;
use security::Level;

use super::query::{DIGESTS, ISIDS, LENGTHS};
use super::*;

const IQN: &str = "iqn.2001-04.com.example:disk";

#[test]
fn takes_urls_as_libiscsi_writes_them() {
    for (text, shown) in [
        (
            "iscsi://127.0.0.1/iqn.2001-04.com.example:disk/0",
            "iscsi://127.0.0.1:3260/iqn.2001-04.com.example:disk/0",
        ),
        (
            "iscsi://san:860/iqn.2001-04.com.example:disk/16383",
            "iscsi://san:860/iqn.2001-04.com.example:disk/16383",
        ),
        ("iscsi://[::1]:3261/eui.02004567A425678D/7", "iscsi://[::1]:3261/eui.02004567A425678D/7"),
        ("iscsi://[fe80::1]/iqn.2001-04.com.example/0/", "iscsi://[fe80::1]:3260/iqn.2001-04.com.example/0"),
        ("iscsi://me@h/iqn.2001-04.com.example%3Ax/1", "iscsi://me@h:3260/iqn.2001-04.com.example:x/1"),
        (
            "iscsi://me%secret/@word@h/iqn.2001-04.com.example:x/1?",
            "iscsi://me@h:3260/iqn.2001-04.com.example:x/1",
        ),
    ] {
        assert_eq!(Url::parse(text).unwrap().to_string(), shown, "{text}");
    }
}

#[test]
fn an_ipv6_address_keeps_its_zone() {
    let host = |name: &str, port| TargetAddress::Host { name: name.to_owned(), port };
    for (written, expected) in [
        ("[fe80::a%eth0]", host("fe80::a%eth0", 3260)),
        ("[fe80::a%25eth0]:99", host("fe80::a%eth0", 99)),
        ("[fe80::a%2]", host("fe80::a%2", 3260)),
    ] {
        let url = Url::parse(&format!("iscsi://{written}/iqn.2001-04.com.example:disk/0")).unwrap();
        let Transport::Iscsi(portal) = &url.endpoint.transport else { panic!() };
        assert_eq!(*portal, expected, "{written}");
        assert_eq!(Url::parse(&url.to_string()).unwrap().endpoint.transport, url.endpoint.transport);
        assert_eq!(Endpoint::parse(written).unwrap().transport, url.endpoint.transport);
    }
    for wrong in ["[fe80::a%]", "[192.0.2.1%eth0]", "[san%eth0]", "[fe80::a%e th0]", "fe80::a%eth0"] {
        assert!(Url::parse(&format!("iscsi://{wrong}/iqn.2001-04.com.example:disk/0")).is_err(), "{wrong}");
    }
}

#[test]
fn a_target_is_written_as_it_was_read() {
    let text = "iscsi://192.0.2.1:3260/iqn.2001-04.com.Example:Disk/0";
    let url = Url::parse(text).unwrap();
    assert_eq!(url.to_string(), text);
    assert_eq!(url.target, Url::parse(&text.to_lowercase()).unwrap().target);
}

#[test]
fn says_what_is_wrong_with_a_url() {
    for (text, told) in [
        ("127.0.0.1", "a URL starts with iscsi://"),
        ("http://h/x/0", "a URL starts with iscsi://"),
        ("hyperscsi://eth0/iqn.2001-04.com.example:x/0", "no group"),
        ("hyperscsi://group@/iqn.2001-04.com.example:x/0", "\"\" is not an interface name"),
        ("hyperscsi://group@sixteen-letters0/iqn.2001-04.com.example:x/0", "is not an interface name"),
        ("hyperscsi://group@eth0/t/0", "\"t\" is not a target name"),
        ("hyperscsi://group@eth0", "no target"),
        ("hyperscsi://group@eth0/iqn.2001-04.com.example:x/0?erl=2", "option erl is for iscsi:// URLs"),
        (
            "hyperscsi://group@eth0/iqn.2001-04.com.example:x/0?paths=eth1,a/b",
            "\"a/b\" is not an interface name",
        ),
        (
            "hyperscsi://group@eth0/iqn.2001-04.com.example:x/0?mtu=1400",
            "mtu=1400: the value must be 1500 to 65535",
        ),
        ("iscsi:///iqn.2001-04.com.example:x/0", "no host"),
        ("iscsi://:3260/iqn.2001-04.com.example:x/0", "no host"),
        ("iscsi://::1/iqn.2001-04.com.example:x/0", "in brackets"),
        ("iscsi://[::1/iqn.2001-04.com.example:x/0", "is not a host"),
        ("iscsi://[::1]x/iqn.2001-04.com.example:x/0", "is not a host"),
        ("iscsi://a b/iqn.2001-04.com.example:x/0", "is not a host"),
        ("iscsi://h:0/iqn.2001-04.com.example:x/0", "\"0\" is not a port"),
        ("iscsi://h:65536/iqn.2001-04.com.example:x/0", "\"65536\" is not a port"),
        ("iscsi://h:+1/iqn.2001-04.com.example:x/0", "\"+1\" is not a port"),
        ("iscsi://h", "no target"),
        ("iscsi://h/", "no target"),
        ("iscsi://h/disk/0", "\"disk\" is not a target name: an iSCSI name starts with"),
        ("iscsi://h/iqn.2001-04.com.example%zz/0", "two hex digits"),
        ("iscsi://h/iqn.2001-04.com.example:x", "no LUN"),
        ("iscsi://h/iqn.2001-04.com.example:x/", "no LUN"),
        ("iscsi://h/iqn.2001-04.com.example:x/16384", "\"16384\" is not a LUN"),
        ("iscsi://h/iqn.2001-04.com.example:x/-1", "\"-1\" is not a LUN"),
        ("iscsi://h/iqn.2001-04.com.example:x/0/1", "\"1\" follows the LUN"),
        ("iscsi://@h/iqn.2001-04.com.example:x/0", "user name is empty"),
        ("iscsi://me%@h/iqn.2001-04.com.example:x/0", "the password is empty"),
    ] {
        let error = Url::parse(text).unwrap_err().to_string();
        assert!(error.contains(told), "{text}: {error}");
    }
}

#[test]
fn a_hyperscsi_url_names_a_group_and_interfaces() {
    let text = format!(
        "hyperscsi://backup%pass/word@eth0/{IQN}/3?paths=eth1,eth0&protection=encrypt&retransmission=window&mtu=9000"
    );
    let url = Url::parse(&text).unwrap();
    assert_eq!(url.to_string(), format!("hyperscsi://backup@eth0/{IQN}/3"), "no secret, no options");
    assert_eq!(url.endpoint.transport, Transport::HyperScsi(vec!["eth0".into(), "eth1".into()]), "each once");
    let options = &url.endpoint.options;
    assert_eq!(options.protection, Some(Protection::Encrypt));
    assert_eq!((options.retransmission, options.mtu), (Repair::Window, Some(9000)));
    let login = &url.endpoint.login;
    assert_eq!(login.own_password(options, &Nowhere).unwrap(), login.password);
    assert_eq!(login.password.as_ref().unwrap().secret_bytes(), b"pass/word");
    let open = Url::parse(&format!("hyperscsi://backup@eth0/{IQN}/3")).unwrap();
    assert_eq!(open.endpoint.login.own_password(&open.endpoint.options, &Nowhere).unwrap(), None);
    assert!(!format!("{url:?}").contains("pass/word"));
    let place = Endpoint::parse("hyperscsi://backup@eth0").unwrap();
    assert_eq!(place.to_string(), "hyperscsi://backup@eth0");
}

/// Provides no files and no environment.
struct Nowhere;

impl Secrets for Nowhere {
    fn file(&self, _: &str) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn variable(&self, _: &str) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn every_option_is_checked() {
    let parse =
        |query: &str| Url::parse(&format!("iscsi://h/{IQN}/0?{query}")).map(|url| url.endpoint.options);
    let options =
        parse("header_digest=none,crc32c&data_digest=CRC32C&erl=1&connections=4&timeout=7").unwrap();
    assert_eq!(options.keys.header_digest, DigestPolicy::PreferNone);
    assert_eq!(options.keys.data_digest, DigestPolicy::RequireCrc32c);
    assert_eq!((options.keys.error_recovery_level, options.keys.max_connections), (1, 4));
    assert_eq!((options.connections, options.patience), (4, Some(Duration::from_secs(7))));
    let safe = parse("protection=integrity").unwrap();
    assert_eq!(safe.keys.header_digest, DigestPolicy::RequireCrc32c);
    assert_eq!(parse("").unwrap(), Options::default());
    for (query, told) in [
        ("erl", "\"erl\" in the query is not key=value"),
        ("erl=3", "erl=3: the value must be 0, 1 or 2"),
        ("erl=+1", "erl=+1: the value must be"),
        ("erl=1&erl=1", "the URL has option erl twice"),
        ("connections=17", "connections=17: the value must be 1 to 16"),
        ("connections=0", "the value must be 1 to 16"),
        ("headerdigest=none", "did you mean header_digest?"),
        ("bogus=1", "a URL has no option \"bogus\"; known are header_digest, "),
        ("header_digest=md5", "the value must be crc32c, none"),
        ("protection=encrypt", "protection=encrypt needs auth=opaque"),
        ("auth=none", "auth=none: the value must be chap or opaque"),
        ("auth=opaque&chap=md5", "option chap is for CHAP and contradicts auth=opaque"),
        ("auth=opaque&target_user=disk", "option target_user is for CHAP"),
        ("mtu=9000", "option mtu is for hyperscsi:// URLs"),
        ("protection=integrity&data_digest=none", "data_digest=none disables one"),
        ("initiator=me", "the value must be an iSCSI name"),
        ("isid=0080000000", "the value must be 12 hexadecimal digits"),
        ("isid=+08000000001", "the value must be 12 hexadecimal digits"),
        ("chap=md4", "the value must be a list of"),
        ("max_burst_length=1", "the value must be 512 to 16777215"),
        ("timeout=86401", "the value must be 0 to 86400 seconds"),
        ("tls=no", "the value must be yes"),
        ("tls_certificate=a.pem", "tls_certificate and tls_key need each other"),
        ("tls_ca=a.pem&tls_key=b.pem", "tls_certificate and tls_key need each other"),
    ] {
        let error = parse(query).unwrap_err().to_string();
        assert!(error.contains(told), "{query}: {error}");
    }
    let error = parse("target_password=").unwrap_err().to_string();
    assert!(error.contains("target_password=…"), "{error}");
}

#[test]
fn every_key_takes_a_value_of_its_kind_and_no_other() {
    for key in &KEYS {
        let good = match key.takes {
            DIGESTS => "none",
            LENGTHS => "4096",
            ISIDS => "0080aB000001",
            "yes or no" => "no",
            "chap or opaque" => "opaque",
            "yes" => "yes",
            "selective or window" => "window",
            "none, integrity or encrypt" => "none",
            "1500 to 65535" => "9000",
            "an iSCSI name" => IQN,
            "a list of md5, sha1, sha256 and sha3-256" => "md5,sha3-256",
            _ => "1",
        };
        let scheme = key.of.unwrap_or(Scheme::Iscsi);
        let needed = match key.name {
            "tls_certificate" => "&tls_key=1",
            "tls_key" => "&tls_certificate=1",
            _ => "",
        };
        let parse = |value: &str| Options::parse(scheme, Some(&format!("{}={value}{needed}", key.name)));
        assert!(parse(good).is_ok(), "{key:?}");
        assert!(parse("%").is_err(), "{key:?}");
        assert!(parse("").is_err(), "{key:?}");
    }
}

#[test]
fn discovery_is_pointed_at_a_portal() {
    for (text, shown) in [
        ("h", "iscsi://h:3260"),
        ("10.0.0.1:3261", "iscsi://10.0.0.1:3261"),
        ("[::1]", "iscsi://[::1]:3260"),
        ("iscsi://me@h/", "iscsi://me@h:3260"),
    ] {
        assert_eq!(Endpoint::parse(text).unwrap().to_string(), shown);
    }
    let error = Endpoint::parse(&format!("iscsi://h/{IQN}/0")).unwrap_err().to_string();
    assert!(error.contains("write only HOST[:PORT] here"), "{error}");
    assert_eq!(Endpoint::parse(""), Err(BadUrl::NoHost));
}

#[derive(Default)]
struct Drawer(BTreeMap<&'static str, &'static [u8]>);

impl Secrets for Drawer {
    fn file(&self, path: &str) -> io::Result<Vec<u8>> {
        self.0.get(path).map(|bytes| bytes.to_vec()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn variable(&self, name: &str) -> Option<Vec<u8>> {
        self.0.get(name).map(|bytes| bytes.to_vec())
    }
}

fn auth(url: &str, drawer: &Drawer) -> Result<AuthPlan, SecretError> {
    let place = Endpoint::parse(url).unwrap();
    place.login.auth(&place.options, drawer)
}

fn secrets(plan: AuthPlan) -> (Secret, Option<Secret>) {
    match plan {
        AuthPlan::Chap { own, peer, .. } => (own.secret, peer.map(|peer| peer.secret)),
        AuthPlan::None | AuthPlan::Opaque { .. } => panic!("no CHAP"),
    }
}

#[test]
fn secrets_come_from_a_file_the_url_or_the_environment() {
    let secret = |text: &str| Secret::of_any_strength(text.as_bytes()).unwrap();
    let drawer = Drawer(BTreeMap::from([
        ("/p", &b"in the file\r\n"[..]),
        ("/empty", b"\n"),
        (PASSWORD_VARIABLE, b"in the environment"),
        (TARGET_PASSWORD_VARIABLE, b"the target's"),
    ]));
    for (url, own, peer) in [
        ("iscsi://me@h", "in the environment", None),
        ("iscsi://me%50%25%zz@h", "50%%zz", None),
        ("iscsi://me%%41b@h", "Ab", None),
        ("iscsi://me@h?password_file=/p", "in the file", None),
        ("iscsi://me@h?password_file=%2Fp&target_user=t", "in the file", Some("the target's")),
        ("iscsi://me@h?target_user=t&target_password_file=/p", "in the environment", Some("in the file")),
        ("iscsi://me@h?target_user=t&target_password=x", "in the environment", Some("x")),
    ] {
        assert_eq!(secrets(auth(url, &drawer).unwrap()), (secret(own), peer.map(secret)), "{url}");
    }
    assert!(matches!(auth("iscsi://h", &drawer), Ok(AuthPlan::None)));
    for (url, told) in [
        ("iscsi://h?target_user=t", "the URL has no user"),
        ("iscsi://me@h?password_file=/gone", "cannot read the password file /gone"),
        ("iscsi://me@h?password_file=/empty", "the password in /empty is empty"),
    ] {
        assert!(auth(url, &drawer).unwrap_err().to_string().contains(told), "{url}");
    }
    let error = auth("iscsi://me@h", &Drawer::default()).unwrap_err().to_string();
    assert_eq!(error, "user \"me\" has no password; set it with password_file=PATH or in TARGE_PASSWORD");
}

#[test]
fn no_secret_is_ever_shown() {
    let url = Url::parse(&format!("iscsi://me%hush-hush@h/{IQN}/0?target_user=t&target_password=hush-too"))
        .unwrap();
    for shown in [format!("{url}"), format!("{url:?}")] {
        assert!(!shown.contains("hush"), "{shown}");
    }
}

#[test]
fn the_manual_lists_every_key_as_it_is() {
    let manual = include_str!("../../../../docs/initiator.md");
    for key in &KEYS {
        let row = format!("| `{}` | {} | {} |", key.name, key.takes, key.meaning);
        assert!(manual.contains(&row), "docs/initiator.md lacks: {row}");
    }
}

#[test]
fn a_password_login_takes_the_user_and_a_password_from_any_source_and_gives_the_protection() {
    let drawer = Drawer(BTreeMap::new());
    let plan = auth("iscsi://alice%correct@h?auth=opaque&protection=encrypt", &drawer);
    let Ok(AuthPlan::Opaque { user, password }) = plan else { panic!("{plan:?}") };
    assert_eq!((user.as_str(), password.secret_bytes()), ("alice", &b"correct"[..]));
    for (url, what) in [
        ("iscsi://h?auth=opaque", "auth=opaque needs a user"),
        ("iscsi://alice@h?auth=opaque", "user \"alice\" has no password"),
    ] {
        let error = auth(url, &drawer).unwrap_err().to_string();
        assert!(error.contains(what), "{url}: {error}");
    }
    let keys = |query: &str| {
        let url = format!("iscsi://alice%correct@h?auth=opaque{query}");
        Endpoint::parse(&url).unwrap().options.keys
    };
    assert_eq!(keys("").min_protection, Level::None);
    assert_eq!(keys("").aead_digests[0].mode, AeadMode::Encrypt);
    assert_eq!(keys("&protection=encrypt").min_protection, Level::Encrypt);
    assert_eq!(keys("&protection=integrity").min_protection, Level::Integrity);
    assert_eq!(keys("&protection=integrity").aead_digests[0].mode, AeadMode::Integrity);
    assert_eq!(keys("&protection=integrity").header_digest, DigestPolicy::PreferCrc32c);
    let without = Endpoint::parse("iscsi://alice@h?protection=integrity").unwrap().options.keys;
    assert_eq!((without.min_protection, without.header_digest), (Level::None, DigestPolicy::RequireCrc32c));
}
