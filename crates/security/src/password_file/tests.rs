//! Tests of password files.

use super::*;
use crate::opaque::Password;
use alloc::borrow::ToOwned as _;
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

const CHEAP: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

fn name(text: &str) -> UserName {
    UserName::new(text).unwrap()
}

fn record(password: &str, user: &str) -> PasswordRecord {
    let password = Password::new(password.as_bytes()).unwrap();
    PasswordRecord::make(&password, user, CHEAP, [7; 32]).unwrap()
}

fn two_users() -> PasswordFile {
    let mut file = PasswordFile::new(CHEAP, [3; 32]).unwrap();
    assert_eq!(file.set(name("bob  the builder"), record("correct horse", "bob  the builder")), Ok(false));
    assert_eq!(file.set(name("alice"), record("battery staple", "alice")), Ok(false));
    file
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let file = two_users();
    let text = file.to_text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "targe passwords 1");
    assert!(lines[1].starts_with("decoy 8,1,1 "), "{}", lines[1]);
    assert!(lines[2].starts_with("user 8,1,1 ") && lines[2].ends_with(" alice"), "{}", lines[2]);
    assert!(lines[3].ends_with(" bob  the builder"), "{}", lines[3]);
    assert_eq!(lines.len(), 4);
    assert!(text.lines().all(|line| line.len() < LINE_LEN_MAX));
    assert!(!text.contains("horse") && !text.contains("staple"));
    assert_eq!(PasswordFile::parse(text.as_bytes()), Ok(file));
}

/// The text of version 1 as the first release wrote it. Later ones must read it.
#[test]
fn a_file_of_version_1_is_read() {
    let file = PasswordFile::parse(include_bytes!("version-1.txt")).unwrap();
    let users: Vec<&str> = file.users().map(|(user, _)| user.as_str()).collect();
    assert_eq!(users, ["alice", "bob  the builder"]);
    assert_eq!(file, two_users());
}

#[test]
fn users_are_replaced_and_removed_and_strangers_get_the_decoy() {
    let mut file = two_users();
    let first = file.find("alice").unwrap().clone();
    assert_eq!(file.set(name("alice"), record("another one", "alice")), Ok(true));
    assert_ne!(*file.find("alice").unwrap(), first);
    assert_eq!(file.find("carol"), None);
    let decoy = file.answering("carol").clone();
    assert_eq!(file.answering("dave"), &decoy);
    assert_ne!(file.answering("alice"), &decoy);
    assert!(file.remove(&name("alice")) && !file.remove(&name("alice")));
    assert_eq!(file.answering("alice"), &decoy);
    let Ok(read) = PasswordFile::parse(file.to_text().as_bytes()) else { panic!() };
    assert_eq!(read.answering("carol"), &decoy);
}

#[test]
fn what_is_no_password_file_is_refused_by_line() {
    let whole = two_users().to_text();
    let lines: Vec<&str> = whole.lines().collect();
    let (head, decoy, alice) = (lines[0], lines[1], lines[2]);
    let file = |lines: &[&str]| {
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        PasswordFile::parse(text.as_bytes()).map(|_| ()).map_err(|why| why.to_string())
    };
    assert_eq!(file(&[head, decoy]), Ok(()));
    let bad = |why: &str| Err(why.to_owned());
    let no_head = bad("no password records: the first line is not \"targe passwords 1\"");
    assert_eq!(file(&["correct horse"]), no_head);
    assert_eq!(file(&[]), no_head);
    let other = bad("password records of a version that this release does not know");
    assert_eq!(file(&["targe passwords 2", decoy]), other);
    assert_eq!(file(&["targe passwords 1 ", decoy]), other);
    assert_eq!(file(&[head, alice]), bad("no line \"decoy\""));
    assert_eq!(file(&[head, decoy, alice, alice]), bad("line 4: a second record of one user"));
    assert_eq!(file(&[head, decoy, alice, decoy]), bad("line 4: a second record of one user"));
    let shorter = decoy.strip_suffix(char::is_alphanumeric).unwrap();
    for line in [
        "",
        "user",
        "decoy 8,1,1 ",
        shorter,
        &format!("{decoy}0"),
        &decoy.to_uppercase(),
        &decoy.replace("8,1,1", "8,1"),
        &decoy.replace("8,1,1", "8,1,1,1"),
        &decoy.replace("8,1,1", "08,1,1"),
        &decoy.replace("8,1,1", "+8,1,1"),
        &decoy.replace("8,1,1", "8,0,1"),
        &decoy.replace("8,1,1", "99999999,1,1"),
        &format!("{decoy} alice"),
        &alice.replace(" alice", ""),
        &alice.replace(" alice", " "),
        &alice.replace("alice", "ali\tce"),
        &alice.replace("user", "User"),
    ] {
        assert_eq!(file(&[head, line]), bad("line 2: not a password record"), "{line}");
    }
    // A file that was cut off.
    let cut = |len: usize| PasswordFile::parse(&whole.as_bytes()[..len]).is_ok();
    let ends: Vec<usize> = (HEAD.len()..whole.len()).filter(|len| cut(*len)).collect();
    assert!(ends.iter().all(|len| whole.as_bytes()[len - 1] == b'\n'), "{ends:?}");
    let long = PasswordFile::parse(&[HEAD.as_bytes(), &[b'x'; PasswordFile::LEN_MAX]].concat());
    assert_eq!(long, Err(BadPasswordFile::NotText));
    assert_eq!(PasswordFile::parse(b"targe passwords 1\n\xff\n"), Err(BadPasswordFile::NotText));
}

#[test]
fn names_are_text_of_bounded_length() {
    for bad in ["", "a\nb", "a\u{7f}", &"x".repeat(256)] {
        assert_eq!(UserName::new(bad), Err(BadUserName), "{bad:?}");
    }
    for good in ["a", " ", "grüße", &"x".repeat(255)] {
        assert_eq!(UserName::new(good).unwrap().as_str(), good);
    }
}
