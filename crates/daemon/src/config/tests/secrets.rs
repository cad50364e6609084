//! Tests of secrets, which only their owner may be able to read.

use super::*;

/// Kubernetes mounts a Secret so, and the Debian package's directory suggests it.
#[test]
fn a_secret_of_root_can_be_readable_for_a_group() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::new();
    for (name, mode) in [("mounted", 0o440), ("group", 0o640), ("writable", 0o660)] {
        let path = scratch.file(name, "twelve bytes\n", mode);
        std::os::unix::fs::chown(path, None, Some(65_532)).unwrap();
    }
    let with = |name: &str| {
        let loaded = scratch.load(&format!(
            "[[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '1M'\n\
             [target.auth]\nuser = 'u'\nsecret_file = '{name}'\n"
        ));
        loaded.map(drop).map_err(|report| scratch.told(&report))
    };
    assert_eq!(with("mounted"), Ok(()));
    assert_eq!(with("group"), Ok(()));
    let why = with("writable").unwrap_err();
    assert!(why.contains("can be read by others (mode 660); run: chmod 600 "), "{why}");
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
    scratch.file("marked", "\u{feff}twelve bytes\n", 0o600);
    scratch.file("wide", "t\0w\0e\0l\0v\0e\0 \0b\0y\0t\0e\0s\0\r\0\n\0", 0o600);
    scratch.file("twice", "twelve bytes\n\n", 0o600);
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
            "user = 'u'\nsecret_file = 'marked'",
            "8:15: secret file DIR/marked begins with a byte order mark (BOM), which would be part of the secret; save it \
             as UTF-8 without BOM",
        ),
        (
            "user = 'u'\nsecret_file = 'wide'",
            "8:15: secret file DIR/wide is in UTF-16, whose bytes are not those of the secret; save it as ASCII, or UTF-8 \
             without BOM",
        ),
        (
            "user = 'u'\nsecret_file = 'twice'",
            "8:15: secret file DIR/twice ends with more than one newline; only one is left out of the secret, so remove \
             the others",
        ),
        (
            "user = 'u'\nsecret_file = 'long'",
            "8:15: a CHAP secret has 12 to 255 bytes, not 258 (in DIR/long)",
        ),
        (
            "user = 'u'\nsecret_file = 'good'\nmutual_user = 't'\nmutual_secret_file = 'same'",
            "10:22: the mutual secret must differ from the initiator's",
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
        "DIR/targe.toml:3:31: warning: \"secret\" is stored in the configuration file; prefer \"secret_file\"",
    );
    assert!(!format!("{:?}", closed.config).contains("alas"));
}

/// A daemon reads these files on its main thread, which must not wait for the writer of a pipe.
#[test]
fn a_pipe_in_the_place_of_a_file_is_refused_without_waiting_for_its_writer() {
    let scratch = Scratch::new();
    let pipe = scratch.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    scratch.file("good", "twelve bytes\n", 0o600);
    let target =
        "[[target]]\nname = 'iqn.2001-04.com.example:a'\n[[target.lun]]\ntype = 'ram'\nsize = '1M'\n";
    let portal = "[[portal]]\nlisten = '127.0.0.1'\n";
    let secret = "secret file DIR/pipe is not a regular file";
    let tls = "cannot read DIR/pipe: it is not a regular file";
    for (text, expected) in [
        (format!("{target}[target.auth]\nuser = 'u'\nsecret_file = 'pipe'\n"), secret),
        (
            format!(
                "{target}[target.auth]\nuser = 'u'\nsecret_file = 'good'\nmutual_user = 't'\nmutual_secret_file = 'pipe'\n"
            ),
            secret,
        ),
        (format!("{target}[target.auth]\npassword_file = 'pipe'\n"), secret),
        (format!("{target}encrypt = 'pipe'\n"), secret),
        (format!("[http]\nlisten = '127.0.0.1:1'\ntoken_file = 'pipe'\n{portal}{target}"), secret),
        (
            format!(
                "[hyperscsi]\ninterfaces = ['lo']\n[[hyperscsi.group]]\nname = 'g'\npassword_file = 'pipe'\n{portal}{target}"
            ),
            secret,
        ),
        (format!("{portal}tls_certificate = 'pipe'\ntls_key = 'good'\n{target}"), tls),
    ] {
        let (report, told) = std::sync::mpsc::channel();
        let flags = Flags { config: Some(scratch.file("targe.toml", &text, 0o600)), ..Flags::default() };
        let environment = scratch.environment();
        std::thread::spawn(move || report.send(Config::load(&flags, &environment).unwrap_err()));
        let told = told.recv_timeout(std::time::Duration::from_secs(60)).expect("the pipe has no writer");
        let told = scratch.told(&told);
        assert!(told.contains(expected), "{text}: {told}");
    }
}
