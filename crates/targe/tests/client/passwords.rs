//! `targe passwd`: records of users' passwords.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::{NAME, content, feed, pattern};

/// Runs `targe passwd` with a line on stdin. Returns the exit code and stderr.
fn passwd(fixture: &Fixture, args: &[&str], input: &str) -> (i32, String) {
    let mut command = fixture.command(&[&["passwd"], args].concat());
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that needs no password closes its end of the pipe.
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

const CHEAP: [&str; 4] = ["--memory", "8K", "--passes", "1"];

#[test]
fn users_are_added_changed_listed_and_removed() {
    let fixture = Fixture::new();
    let set = |user: &str, input: &str| {
        passwd(&fixture, &[&["passwords", "--user", user][..], &CHEAP].concat(), input)
    };
    let said = |text: &str| (0, format!("targe: passwords: user {text}\n"));
    assert_eq!(set("alice", "correct horse\n"), said("\"alice\" is added"));
    assert_eq!(set("bob", "battery staple"), said("\"bob\" is added"));
    assert_eq!(set("alice", "another one\r\n"), said("\"alice\" has a new password"));
    assert_eq!(fixture.path("passwords").metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(fixture.path("passwords")).unwrap();
    assert!(!text.contains("horse") && !text.contains("staple") && !text.contains("another"));
    let (code, list, _) = fixture.run(&["passwd", "passwords", "--list"]);
    assert_eq!(
        (code, list.as_str()),
        (0, "USER   MEMORY  PASSES  LANES\nalice  8K      1       1\nbob    8K      1       1\n")
    );
    let (_, list, _) = fixture.run(&["passwd", "passwords", "--list", "--json"]);
    let bob = json!({ "user": "bob", "memory_kib": 8, "passes": 1, "lanes": 1 });
    assert_eq!(serde_json::from_str::<Value>(&list).unwrap()[1], bob);
    assert_eq!(passwd(&fixture, &["passwords", "--user", "bob", "--delete"], ""), said("\"bob\" is removed"));
    let gone = passwd(&fixture, &["passwords", "--user", "bob", "--delete"], "");
    assert_eq!(gone, (1, "targe: passwords has no user \"bob\"\n".to_owned()));
}

#[test]
fn what_is_wrong_is_told_and_changes_nothing() {
    let fixture = Fixture::new();
    fixture.write("other", "correct horse battery\n");
    fs::set_permissions(fixture.path("other"), fs::Permissions::from_mode(0o644)).unwrap();
    let cases: [(&[&str], &str, i32, &str); 8] = [
        (&["passwords", "--user", "alice"], "", 2, "the password is empty"),
        (&["passwords", "--user", "alice"], "\n", 2, "the password is empty"),
        (&["passwords", "--user", ""], "x\n", 2, "a user name must have 1 to 255 bytes"),
        (&["passwords"], "x\n", 2, "--user"),
        (&["passwords", "--user", "a", "--memory", "512M"], "x\n", 2, "initiators refuse this cost"),
        (&["passwords", "--user", "a", "--passes", "0"], "x\n", 1, "does not accept these parameters"),
        (
            &["other", "--user", "a"],
            "x\n",
            1,
            "secret file other can be read by others (mode 644); run: chmod 600 other",
        ),
        (&["passwords", "--list"], "", 1, "cannot read secret file passwords: no such file or directory"),
    ];
    for (args, input, code, told) in cases {
        let (got, said) = passwd(&fixture, args, input);
        assert_eq!(got, code, "{args:?}: {said}");
        assert!(said.contains(told), "{args:?}: {said}");
    }
    let (code, said) = passwd(&fixture, &["passwords", "--user", "a"], &"x".repeat(256));
    assert!(code == 2 && said.contains("a password must have 1 to 255 bytes"), "{said}");
    assert!(!fixture.path("passwords").exists());
    assert_eq!(fs::read_to_string(fixture.path("other")).unwrap(), "correct horse battery\n");
}

#[test]
fn a_password_login_protects_a_session_from_the_url_to_the_disk() {
    let fixture = Fixture::new();
    for (file, user, password) in [("users", "alice", "correct horse"), ("finders", "eve", "battery staple")]
    {
        let args = [&[file, "--user", user][..], &CHEAP].concat();
        assert_eq!(passwd(&fixture, &args, password).0, 0);
    }
    fixture.write(
        "targe.toml",
        &format!(
            "[discovery.auth]\npassword_file = \"finders\"\n[[portal]]\nlisten = \"127.0.0.1:0\"\n\
             [[target]]\nname = \"{NAME}\"\n[target.auth]\npassword_file = \"users\"\n\
             [target.session]\nprotection = \"integrity\"\n\
             [[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\nprotection = \"encrypt\"\n\
             [[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\n"
        ),
    );
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    fixture.write("secret", "correct horse\n");
    fs::set_permissions(fixture.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let url =
        |user: &str, lun: u16, query: &str| format!("iscsi://{user}@{}/{NAME}/{lun}?{query}", daemon.address);
    let data = pattern(7, 65536);
    let own = url("alice", 0, "auth=opaque&protection=encrypt&connections=3&password_file=secret");
    let (code, _, told) = feed(&fixture, &["write", &own, "--write"], &data);
    assert_eq!(code, 0, "{told}");
    assert!(content(&fixture, &own, 0, data.len()) == data);
    let digest = |url: &str| {
        let (code, text, told) = fixture.run(&["info", url, "--json"]);
        assert_eq!(code, 0, "{told}");
        let digest = text.split("\"data_digest\": \"").nth(1).unwrap();
        digest.split('"').next().unwrap().to_owned()
    };
    assert_eq!(digest(&own), "Y-org.targe.aes-256-gcm");
    let weaker = url("alice", 1, "auth=opaque&protection=integrity&password_file=secret");
    assert_eq!(digest(&weaker), "Y-org.targe.aes-256-gcm.integrity");
    let hidden = url("alice", 0, "auth=opaque&protection=integrity&password_file=secret");
    for (url, why) in [
        (hidden, "this target has no LUN 0"),
        (url("alice", 1, "password_file=secret"), "authentication failed"),
        (url("bob", 1, "auth=opaque&password_file=secret"), "unknown user or wrong password"),
        (url("alice", 1, "auth=opaque&header_digest=none&password_file=secret"), "the login was refused"),
    ] {
        let (code, _, told) = fixture.run(&["info", &url]);
        assert_ne!(code, 0, "{url}");
        assert!(told.contains(why), "{url}: {told}");
    }
    let portal = format!("iscsi://eve%battery staple@{}?auth=opaque", daemon.address);
    let (_, _, told) = fixture.run(&["discover", &portal]);
    assert!(told.contains(NAME), "eve finds the target, and cannot log in to it: {told}");
    fixture.await_log("broke the password login off");
    drop(daemon);
}
