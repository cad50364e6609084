//! Tests of secrets, which only their owner may be able to read.

use super::*;

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
