//! `targe passwd`: records of users' passwords.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Runs `targe passwd` with a line on stdin. Returns the exit code and stderr.
fn passwd(fixture: &Fixture, args: &[&str], input: &str) -> (i32, String) {
    let mut command = fixture.command(&[&["passwd"], args].concat());
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
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
