//! Commands that change the running daemon and its configuration file in one step.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};

use serde_json::{Value, json};

use super::fixture::{Daemon, Fixture};
use super::initiator::Initiator;
use super::{NAME, ram_targets};

/// The daemon's admin socket.
const ADMIN_SOCKET: &str = "state/targe/admin/admin.sock";
/// TEST UNIT READY.
const READY: [u8; 16] = [0; 16];
/// CAPACITY DATA HAS CHANGED, as a unit attention.
const CAPACITY_CHANGED: [u8; 3] = [6, 0x2a, 0x09];

fn text(fixture: &Fixture) -> String {
    text_of(fixture, "targe.toml")
}

fn text_of(fixture: &Fixture, name: &str) -> String {
    fs::read_to_string(fixture.path(name)).unwrap()
}

/// Starts a daemon on a configuration with comments.
fn serve(fixture: &Fixture, more: &str) -> Daemon {
    fixture.write("targe.toml", &format!("# The disks of the lab.\n{}{more}", ram_targets(&["a", "b"])));
    fixture.serve(&["--config", "targe.toml"])
}

/// Returns `TARGET/LUN` of all LUNs that are served.
fn luns(daemon: &Daemon) -> Vec<String> {
    let luns = daemon.ask("luns");
    let name = |lun: &Value| format!("{}/{}", &lun["target"].as_str().unwrap()[NAME.len()..], lun["lun"]);
    luns["luns"].as_array().unwrap().iter().map(name).collect()
}

/// Runs a command that must succeed; returns what it prints.
#[track_caller]
fn done(fixture: &Fixture, args: &[&str]) -> String {
    let (code, stdout, stderr) = fixture.run(args);
    assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
    stdout
}

/// Runs a command that must end with this code and change nothing; returns what it says.
#[track_caller]
fn refused(fixture: &Fixture, daemon: &Daemon, code: i32, args: &[&str]) -> String {
    let (before, running) = (text(fixture), daemon.ask("status")["generation"].clone());
    let (found, stdout, stderr) = fixture.run(args);
    assert_eq!(found, code, "{args:?}: {stdout}{stderr}");
    assert_eq!((text(fixture), daemon.ask("status")["generation"].clone()), (before, running), "{args:?}");
    stderr
}

#[test]
fn a_file_is_shown_first_and_applied_as_a_whole_or_not_at_all() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let base = text(&fixture);
    let (taken, secret) = (TcpListener::bind("127.0.0.1:0").unwrap(), "not to be told");
    let portal = format!("[[portal]]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    let auth = format!("[target.auth]\nuser = \"u\"\nsecret = \"{secret}\"\n");
    fixture.write("new.toml", &format!("memory = \"64M\"\n{base}{auth}"));
    // A secret in a file that others can read is a mistake, which has its place in the new file.
    let told = refused(&fixture, &daemon, 2, &["apply", "new.toml"]);
    assert!(told.starts_with("new.toml:"), "{told}");
    assert!(!told.contains(secret), "{told}");
    fs::set_permissions(fixture.path("targe.toml"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .unwrap();
    let generation = daemon.ask("status")["generation"].clone();
    let shown = done(&fixture, &["apply", "new.toml", "--dry-run"]);
    assert!(shown.contains("auth: none -> CHAP user \"u\""), "{shown}");
    assert!(
        shown.contains("~ setting memory (ONLY AFTER A RESTART of targe)\n    derived -> 64M\n"),
        "{shown}"
    );
    assert!(shown.ends_with("would apply: 2 changes, 1 of them after a restart\n"), "{shown}");
    assert_eq!((text(&fixture), &daemon.ask("status")["generation"]), (base.clone(), &generation));
    // What fails at the last moment leaves everything as it was.
    fixture.write(
        "taken.toml",
        &base.replacen("[[target]]", &format!("{portal}[[target]]"), 1).replace("1M", "2M"),
    );
    let told = refused(&fixture, &daemon, 1, &["apply", "taken.toml"]);
    assert!(told.contains("data would be lost"), "{told}");
    fixture.write("taken.toml", &base.replacen("[[target]]", &format!("{portal}[[target]]"), 1));
    let told = refused(&fixture, &daemon, 1, &["apply", "taken.toml"]);
    assert!(told.contains("another program listens there"), "{told}");
    let applied: Value = serde_json::from_str(&done(&fixture, &["apply", "new.toml", "--json"])).unwrap();
    assert_eq!((&applied["applied"], &applied["changes"][0]["subject"]), (&json!(true), &json!("access")));
    assert_eq!(text(&fixture), fs::read_to_string(fixture.path("new.toml")).unwrap());
    assert_eq!(daemon.ask("status")["revision"], applied["revision"]);
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}b")).err(), Some([2, 1]));
    assert_eq!(
        done(&fixture, &["apply"]).lines().last(),
        Some("nothing to apply now: 1 change, 1 of them after a restart")
    );
    let log = fixture.log() + &fs::read_to_string(fixture.path("state/targe/audit.log")).unwrap();
    assert!(!log.contains(secret), "{log}");
    assert!(log.contains("\"action\":\"apply\",\"result\":\"refused\""), "{log}");
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn an_edit_changes_the_file_and_what_runs() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let (a, c) = (format!("{NAME}a"), format!("{NAME}c"));
    done(&fixture, &["lun", "add", &a, "null:1G,ro"]);
    done(&fixture, &["target", "add", &c, "--lun", "file:c.img,size=1M", "--lun", "ram:1M,lun=7", "alias=C"]);
    assert_eq!(luns(&daemon), ["a/0", "a/1", "b/0", "c/0", "c/7"]);
    done(&fixture, &["lun", "remove", &a, "0"]);
    done(&fixture, &["acl", "add", &c, "iqn.2001-04.com.example:other", "--luns", "7"]);
    assert_eq!(luns(&daemon), ["a/1", "b/0", "c/0", "c/7"]);
    assert_eq!(Initiator::try_log_in(daemon.address, &c).err(), Some([2, 2]));
    let told = refused(&fixture, &daemon, 1, &["acl", "remove", &c, "iqn.2001-04.com.example:other"]);
    assert!(told.contains("--admit-all"), "{told}");
    done(&fixture, &["acl", "remove", &c, "iqn.2001-04.com.example:other", "--admit-all"]);
    drop(Initiator::log_in(daemon.address, &c));
    assert!(text(&fixture).starts_with("# The disks of the lab.\n"));
    for (code, args) in [
        (1, ["lun", "add", "iqn.x", "ram:1M"].as_slice()),
        (1, &["lun", "remove", &a, "0"]),
        (1, &["lun", "remove", &a, "1"]),
        (1, &["lun", "add", &a, "rom:1M"]),
        (2, &["lun", "add", &a, "file:/nowhere/x,size=1M"]),
        (2, &["target", "set", &a, "max_sessions=many"]),
        (2, &["target", "set", &a, "alias"]),
        (1, &["lun", "resize", &c, "0", "512"]),
        (1, &["user", "remove", &a, "nobody", "--admit-all"]),
        (2, &["user", "set", &a, "nobody", "secret=on the command line"]),
    ] {
        refused(&fixture, &daemon, code, args);
    }
    daemon.kill();
    // Without a daemon the file alone is edited.
    assert_eq!(fixture.run(&["target", "remove", &c]).0, 1);
    done(&fixture, &["target", "remove", &c, "--config", "targe.toml"]);
    assert!(!text(&fixture).contains(&c));
}

#[test]
fn an_initiator_learns_that_its_disk_has_grown() {
    let fixture = Fixture::new();
    let disk = "[[target]]\nname = \"iqn.2001-04.com.example:f\"\n[[target.lun]]\ntype = \"file\"\npath = \"f.img\"\nsize = \"1M\"\n";
    let daemon = serve(&fixture, disk);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}f"));
    initiator.command(READY, &[], 0).unwrap();
    done(&fixture, &["lun", "resize", &format!("{NAME}f"), "0", "3M"]);
    assert_eq!(initiator.try_command(READY, &[], 0).err(), Some(CAPACITY_CHANGED));
    assert_eq!(fixture.path("f.img").metadata().unwrap().len(), 3 << 20);
    assert!(text(&fixture).contains("size = \"3M\""));
}

#[test]
fn a_target_in_use_names_its_initiators_whose_sessions_can_be_dropped() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let a = format!("{NAME}a");
    let mut initiator = Initiator::log_in(daemon.address, &a);
    let name = daemon.ask("sessions")["sessions"][0]["initiator"].as_str().unwrap().to_owned();
    let told = refused(&fixture, &daemon, 1, &["target", "remove", &a]);
    assert!(told.contains(&format!("is used by {name}")), "{told}");
    assert_eq!(fixture.run(&["session", "drop", "iqn.2001-04.com.example:nobody"]).0, 1);
    assert_eq!(fixture.run(&["session", "drop", &name, "--target", &format!("{NAME}b")]).0, 1);
    assert_eq!(done(&fixture, &["session", "drop", &name, "--target", &a]), "1 session ends within 3 s\n");
    // RFC 7143 §11.9.1: event 1 asks for a logout.
    let message = initiator.receive().unwrap();
    assert_eq!((message[0] & 0x3f, message[36]), (0x32, 1));
    initiator.log_out();
    done(&fixture, &["target", "remove", &a]);
    assert_eq!(luns(&daemon), ["b/0"]);
    let audit = fs::read_to_string(fixture.path("state/targe/audit.log")).unwrap();
    let actions = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["action"].clone());
    assert!(actions.collect::<Vec<_>>().contains(&json!("session drop")), "{audit}");
}

#[test]
fn a_change_that_cuts_off_a_session_is_refused_and_forced() {
    let fixture = Fixture::new();
    let me = "iqn.2001-04.com.example:test";
    let daemon = serve(
        &fixture,
        &format!(
            "[[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\n[[target.acl]]\ninitiators = [\"{me}\"]\n[[target.acl]]\n\
             initiators = [\"iqn.2001-04.com.example:other\"]\n"
        ),
    );
    let b = format!("{NAME}b");
    let mut session = Initiator::log_in(daemon.address, &b);
    let used = |luns: &str| {
        format!("{b} is used by {me} (session 800000010000, LUN {luns}); log them out first, or say --force")
    };
    let narrower = text(&fixture).replace(&format!("initiators = [\"{me}\"]"), "initiators = [\"iqn.x\"]");
    fixture.write("narrower.toml", &narrower);
    for (args, luns) in [
        (["acl", "set", &b, me, "luns=1"].as_slice(), "0"),
        (&["acl", "set", &b, me, "protection=encrypt"], "0, 1"),
        (&["acl", "remove", &b, me], "0, 1"),
        (&["lun", "set", &b, "1", "protection=integrity"], "1"),
        (&["lun", "remove", &b, "1"], "1"),
        (&["target", "remove", &b], "0, 1"),
        (&["apply", "narrower.toml"], "0, 1"),
    ] {
        let told = refused(&fixture, &daemon, 1, args);
        assert!(told.contains(&used(luns)), "{args:?}: {told}");
        // A trial is refused in the same way, and shows what would happen.
        let (code, shown, told) = fixture.run(&[args, &["--dry-run"]].concat());
        assert!(code == 1 && told.contains(&used(luns)), "{args:?}: {told}");
        assert!(shown.contains(&format!("! session 800000010000 of {me} with {b}: ")), "{args:?}: {shown}");
    }
    let told = refused(&fixture, &daemon, 1, &["target", "set", &b, "session.protection=encrypt"]);
    assert!(told.contains("which cannot log in again without protection \"encrypt\""), "{told}");
    // Nothing was taken from the session, and what takes nothing is done.
    session.command(READY, &[], 0).unwrap();
    done(&fixture, &["acl", "set", &b, me, "ro=true"]);
    done(&fixture, &["acl", "remove", &b, "iqn.2001-04.com.example:other"]);
    done(&fixture, &["target", "set", &b, "session.protection=encrypt", "--force"]);
    // The session is below the requirement already, so the next change takes nothing more from it.
    done(&fixture, &["target", "set", &b, "alias=next"]);
    assert!(session.ping());
    let shown: Value = serde_json::from_str(&done(
        &fixture,
        &["acl", "add", &b, "iqn.2001-04.com.example:t*", "--first", "--luns", "1", "--force", "--json"],
    ))
    .unwrap();
    let loss = json!([{
        "target": b, "initiator": me, "isid": "800000010000", "ends": false, "luns": [0], "login_needs": null, "logged_in": true,
        "other_tag": false,
    }]);
    assert_eq!(shown["sessions"], loss);
    done(&fixture, &["apply", "narrower.toml", "--force"]);
    assert!(!session.ping());
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn relative_paths_start_where_the_link_to_the_file_is() {
    let fixture = Fixture::new();
    for folder in ["real", "etc", "disks"] {
        fs::create_dir(fixture.path(folder)).unwrap();
    }
    let disk = "[[target.lun]]\ntype = \"file\"\npath = \"one.img\"\nsize = \"1M\"\n";
    fixture.write("real/file.toml", &format!("{}{disk}", ram_targets(&["a"])));
    std::os::unix::fs::symlink("../real/file.toml", fixture.path("etc/targe.toml")).unwrap();
    let daemon = fixture.serve(&["--config", "etc/targe.toml"]);
    let a = format!("{NAME}a");
    let from_disks = |args: &[&str]| {
        let output = fixture.command(args).current_dir(fixture.path("disks")).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    // On the command line they start at the working directory, with a daemon and without one.
    from_disks(&["lun", "add", &a, "file:two.img,size=1M"]);
    daemon.kill();
    from_disks(&["lun", "add", &a, "file:three.img,size=1M", "--config", "../etc/targe.toml"]);
    let daemon = fixture.serve(&["--config", "etc/targe.toml"]);
    let moved =
        text_of(&fixture, "real/file.toml").replacen("[[target.lun]]", "alias = \"new\"\n[[target.lun]]", 1);
    fixture.write("new.toml", &moved);
    from_disks(&["apply", "../new.toml"]);
    assert_eq!(luns(&daemon), ["a/0", "a/1", "a/2", "a/3"]);
    for (file, is_there) in [
        ("etc/one.img", true),
        ("disks/two.img", true),
        ("disks/three.img", true),
        ("real/one.img", false),
        ("one.img", false),
        ("etc/two.img", false),
    ] {
        assert_eq!(fixture.path(file).exists(), is_there, "{file}");
    }
    assert_eq!(fs::read_link(fixture.path("etc/targe.toml")).unwrap().to_str(), Some("../real/file.toml"));
    assert_eq!(text_of(&fixture, "real/file.toml"), moved);
    let reload = daemon.reload();
    assert_eq!(reload["applied"], true, "{reload}");
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_reload_by_a_signal_is_in_the_audit_log() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let last = || {
        let audit = fs::read_to_string(fixture.path("state/targe/audit.log")).unwrap();
        serde_json::from_str::<Value>(audit.lines().last().unwrap()).unwrap()
    };
    fixture
        .write("targe.toml", &text(&fixture).replacen("[[target.lun]]", "alias = \"A\"\n[[target.lun]]", 1));
    assert_eq!(daemon.reload()["applied"], true);
    let entry = last();
    assert_eq!(
        (&entry["action"], &entry["result"], &entry["via"]),
        (&json!("reload"), &json!("applied"), &json!("signal"))
    );
    for unknown in ["uid", "login_uid", "pid", "program"] {
        assert_eq!(entry[unknown], Value::Null);
    }
    assert!(entry["changes"][0].as_str().unwrap().contains("alias: none -> A"), "{entry}");
    assert_eq!(entry["revision"], daemon.ask("status")["revision"]);
    fixture.write("targe.toml", "nonsense");
    assert_eq!(daemon.reload()["applied"], false);
    let entry = last();
    assert_eq!(
        (&entry["result"], &entry["via"], &entry["changes"]),
        (&json!("refused"), &json!("signal"), &json!([]))
    );
    fixture.write("targe.toml", &ram_targets(&["a", "b"]));
    done(&fixture, &["apply"]);
    assert_eq!(last()["via"], "socket");
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn what_was_not_applied_is_not_carried_along() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let a = format!("{NAME}a");
    fixture.write(
        "targe.toml",
        &text(&fixture).replacen("[[target.lun]]", "alias = \"by hand\"\n[[target.lun]]", 1),
    );
    let told = refused(&fixture, &daemon, 1, &["target", "set", &a, "max_sessions=2"]);
    assert!(
        told.contains("has changes that are not applied") && told.contains("alias: none -> by hand"),
        "{told}"
    );
    fixture.write("other.toml", &ram_targets(&["a"]).replace("127.0.0.1:0", "127.0.0.1:1"));
    let told = refused(&fixture, &daemon, 1, &["apply", "other.toml"]);
    assert!(
        told.contains("was edited since it was applied") && told.contains("alias: none -> by hand"),
        "{told}"
    );
    done(&fixture, &["apply"]);
    done(&fixture, &["target", "set", &a, "max_sessions=2"]);
    // A comment is no change, and stays.
    fixture.write("targe.toml", &format!("{}# By hand.\n", text(&fixture)));
    done(&fixture, &["target", "set", &a, "max_sessions=3"]);
    assert!(text(&fixture).ends_with("# By hand.\n"));
}

#[test]
fn a_daemon_without_a_file_is_not_changed() {
    let fixture = Fixture::new();
    let _daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "ram:1M"]);
    let (code, _, told) = fixture.run(&["lun", "add", "iqn.2026-11.example.targe:disk", "ram:1M"]);
    assert_eq!(code, 1);
    assert!(told.contains("there is no file to change"), "{told}");
}

#[test]
fn a_shared_lun_keeps_the_name_that_its_daemon_derives() {
    let fixture = Fixture::new();
    let (a, b, socket) = (format!("{NAME}a"), format!("{NAME}b"), "own/admin/admin.sock");
    let mut base =
        "[[portal]]\nlisten = \"127.0.0.1:0\"\n[[lun]]\nname = \"x\"\ntype = \"ram\"\nsize = \"1M\"\n"
            .to_owned();
    for target in [&a, &b] {
        base += &format!(
            "[[target]]\nname = \"{target}\"\nlun = [{{ share = \"x\" }}, {{ type = \"ram\", size = \"1M\" }}]\n"
        );
    }
    fixture.write("targe.toml", &base);
    let naa = || {
        let luns: Value =
            serde_json::from_str(&done(&fixture, &["luns", "--json", "--socket", socket])).unwrap();
        let is_it = |lun: &&Value| lun["target"] == b.as_str() && lun["lun"] == 0;
        luns["luns"].as_array().unwrap().iter().find(is_it).unwrap()["naa"].clone()
    };
    // The state directory is no part of the file, as in the package.
    let serve = || fixture.serve(&["--config", "targe.toml", "--state-dir", "own"]);
    let daemon = serve();
    let served = naa();
    done(&fixture, &["lun", "remove", &a, "0", "--socket", socket]);
    assert_eq!(naa(), served);
    assert!(text(&fixture).contains(&format!("naa = {served}")), "{}", text(&fixture));
    daemon.kill();
    // Without the daemon, its state directory must be known.
    fixture.write("targe.toml", &base);
    let remove = ["target", "remove", &a, "--config", "targe.toml"];
    let (code, stdout, stderr) = fixture.run(&remove);
    assert!(code == 1 && stderr.contains("give --state-dir DIR"), "{stdout}{stderr}");
    assert_eq!(text(&fixture), base);
    done(&fixture, &[remove.as_slice(), &["--state-dir", "own"]].concat());
    let daemon = serve();
    assert_eq!(naa(), served);
    daemon.kill();
    // A file of the system's service has the system's state directory.
    fs::create_dir_all(fixture.path("etc/targe")).unwrap();
    fs::create_dir_all(fixture.path("var/lib")).unwrap();
    fs::rename(fixture.path("own"), fixture.path("var/lib/targe")).unwrap();
    fixture.write("etc/targe/targe.toml", &base);
    done(&fixture, &["target", "remove", &a, "--config", "etc/targe/targe.toml"]);
    assert!(text_of(&fixture, "etc/targe/targe.toml").contains(&format!("naa = {served}")));
}

#[test]
fn a_shared_lun_can_lose_its_last_target_and_get_one_again() {
    let fixture = Fixture::new();
    let shared = "[[lun]]\nname = \"x\"\ntype = \"file\"\npath = \"x.img\"\nsize = \"1M\"\n\
                  naa = \"600000000000000000000000000000a1\"\n";
    let target = format!(
        "[[target]]\nname = \"{NAME}c\"\nlun = [{{ share = \"x\", lun = 5 }}, {{ type = \"ram\", size = \"1M\" }}]\n"
    );
    let daemon = serve(&fixture, &format!("{shared}{target}"));
    assert_eq!(luns(&daemon), ["a/0", "b/0", "c/0", "c/5"]);
    done(&fixture, &["lun", "remove", &format!("{NAME}c"), "5"]);
    assert_eq!(luns(&daemon), ["a/0", "b/0", "c/0"]);
    done(&fixture, &["lun", "add", &format!("{NAME}b"), "share:x"]);
    assert_eq!(luns(&daemon), ["a/0", "b/0", "b/1", "c/0"]);
}

#[test]
fn a_new_lun_gets_no_number_that_a_host_used_when_the_daemon_ran() {
    let fixture = Fixture::new();
    let target = format!("{NAME}c");
    let text = |luns: &str| {
        format!(
            "portal = [{{ listen = \"127.0.0.1:0\" }}]\n[[target]]\nname = \"{target}\"\nlun = [{luns}]\n"
        )
    };
    let kept = "{ type = \"ram\", size = \"2M\", lun = 3 }";
    fixture.write("targe.toml", &text(&format!("{{ type = \"ram\", size = \"1M\" }}, {kept}")));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut host = Initiator::log_in(daemon.address, &target);
    // TEST UNIT READY.
    assert_eq!(host.command([0; 16], &[], 0), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
    let bindings = fs::read_to_string(fixture.path("state/targe/bindings")).unwrap();
    assert!(bindings.contains(" 0="), "{bindings}");
    fixture.write("targe.toml", &text(kept));
    let add = |state_dir: &str| {
        let state_dir = fixture.path(state_dir);
        let words = ["lun", "add", &target, "ram:1M", "--config", "targe.toml", "--state-dir"];
        done(&fixture, &[words.as_slice(), &[state_dir.to_str().unwrap(), "--dry-run"]].concat())
    };
    let (skipped, first) = (add("state/targe"), add("other"));
    assert!(skipped.contains(&format!("+ LUN {target}/1\n")), "{skipped}");
    assert!(first.contains(&format!("+ LUN {target}/0\n")), "{first}");
}

#[test]
fn a_plan_names_the_hosts_from_which_a_lun_will_be_withheld() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let a = format!("{NAME}a");
    let mut host = Initiator::log_in(daemon.address, &a);
    // TEST UNIT READY: the host has used LUN 0.
    assert_eq!(host.command([0; 16], &[], 0), Ok(vec![]));
    done(&fixture, &["lun", "add", &a, "ram:1M,lun=5"]);
    done(&fixture, &["lun", "remove", &a, "0", "--force"]);
    let told = |words: &[&str]| {
        let (code, stdout, stderr) = fixture.run(words);
        assert_eq!(code, 0, "{stdout}{stderr}");
        stdout + &stderr
    };
    let withheld = format!("LUN 0 of {a} will be withheld from iqn.2001-04.com.example:test (port ");
    let plan = told(&["lun", "add", &a, "ram:2M,lun=0,naa=3000000000000077", "--dry-run"]);
    assert!(plan.contains(&withheld), "{plan}");
    let plan = told(&["lun", "add", &a, "ram:2M,lun=6", "--dry-run"]);
    assert!(!plan.contains("withheld"), "{plan}");
}

#[test]
fn an_encrypted_lun_is_as_large_as_its_hosts_see_it() {
    let fixture = Fixture::new();
    fixture.write("secret", "a secret of more than thirty-two bytes\n");
    fs::set_permissions(fixture.path("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let c = format!("{NAME}c");
    let lun = "{ type = \"file\", path = \"e.img\", size = \"4M\", encrypt = \"secret\" }";
    let daemon = serve(&fixture, &format!("[[target]]\nname = \"{c}\"\nlun = [{lun}]\n"));
    let expect_len = |len: u64| {
        let luns = daemon.ask("luns");
        let shown = luns["luns"].as_array().unwrap().iter().find(|lun| lun["target"] == c.as_str()).unwrap();
        assert_eq!(shown["bytes"], len);
        let mut host = Initiator::log_in(daemon.address, &c);
        // The unit attention after a resize comes once.
        let capacity = || [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let answer = host.command(capacity(), &[], 8).unwrap();
        let word = |at: usize| u64::from(u32::from_be_bytes(answer[at..at + 4].try_into().unwrap()));
        assert_eq!((word(0) + 1) * word(4), len, "READ CAPACITY (SBC-4 §5.20)");
        host.log_out();
    };
    expect_len(4 << 20);
    assert_eq!(fs::metadata(fixture.path("e.img")).unwrap().len(), 20 << 20, "the header has 16 MiB");
    // Both sizes are below the length of the file.
    for size in [9, 15] {
        done(&fixture, &["lun", "resize", &c, "0", &format!("{size}M")]);
        expect_len(size << 20);
    }
}

#[test]
fn access_is_withdrawn_although_a_medium_is_gone() {
    let fixture = Fixture::new();
    fixture.write("gone.img", &"x".repeat(1 << 20));
    let acl = "[[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:x\", \"iqn.2001-04.com.example:y\"]\n";
    let gone =
        format!("[[target]]\nname = \"{NAME}gone\"\nlun = [{{ type = \"file\", path = \"gone.img\" }}]\n");
    let daemon = serve(&fixture, &format!("{acl}{gone}"));
    fs::remove_file(fixture.path("gone.img")).unwrap();
    let b = format!("{NAME}b");
    done(&fixture, &["acl", "remove", &b, "iqn.2001-04.com.example:x"]);
    assert!(!text(&fixture).contains("example:x"));
    assert_eq!(luns(&daemon), ["a/0", "b/0", "gone/0"]);
    done(&fixture, &["target", "remove", &format!("{NAME}gone")]);
    assert_eq!(luns(&daemon), ["a/0", "b/0"]);
}

#[test]
fn a_medium_that_is_gone_prevents_no_change_elsewhere() {
    let fixture = Fixture::new();
    fixture.write("gone.img", &"x".repeat(1 << 20));
    let lun = "lun = [{ type = \"file\", path = \"gone.img\" }]\n";
    let acl = "[[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:x\"]\n";
    let daemon = serve(&fixture, &format!("{acl}[[target]]\nname = \"{NAME}gone\"\n{lun}"));
    fs::remove_file(fixture.path("gone.img")).unwrap();
    let (a, b, gone) = (format!("{NAME}a"), format!("{NAME}b"), format!("{NAME}gone"));
    let changes = |lun: &str| {
        done(&fixture, &["lun", "add", &b, &format!("ram:1M,lun={lun}")]);
        done(&fixture, &["lun", "set", &b, lun, "limit_iops=1000"]);
        done(&fixture, &["acl", "set", &b, "iqn.2001-04.com.example:x", "ro=true"]);
        done(&fixture, &["acl", "set", &b, "iqn.2001-04.com.example:x", "ro=false"]);
        done(&fixture, &["target", "set", &a, &format!("alias={lun}")]);
        done(&fixture, &["lun", "remove", &b, lun]);
    };
    changes("1");
    // The change that names the medium is checked, and so is a medium that comes.
    refused(&fixture, &daemon, 2, &["lun", "set", &gone, "0", "write_cache=off"]);
    refused(&fixture, &daemon, 2, &["lun", "add", &b, "file:none.img"]);
    let reload = daemon.reload();
    assert_eq!(reload["applied"], true, "{reload}");
    assert!(reload["message"].as_str().unwrap().contains("gone/0 is not ready"), "{reload}");
    changes("2");
    daemon.kill();
    // Neither is it looked at when the file alone is edited, nor when a daemon waits for it.
    done(&fixture, &["lun", "add", &b, "ram:1M,lun=9", "--config", "targe.toml"]);
    let (code, ..) = fixture.run(&["lun", "set", &gone, "0", "write_cache=off", "--config", "targe.toml"]);
    assert_eq!(code, 2);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    changes("3");
    assert!(!fixture.path("gone.img").exists());
    assert_eq!(daemon.reload()["applied"], true);
}

#[test]
fn a_first_access_list_does_not_end_sessions_silently() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let a = format!("{NAME}a");
    let session = Initiator::log_in(daemon.address, &a);
    let add = ["acl", "add", &a, "iqn.2001-04.com.example:other"];
    assert!(refused(&fixture, &daemon, 1, &add).contains("say --force"));
    done(&fixture, &[add.as_slice(), &["--force"]].concat());
    drop(session);
    assert_eq!(Initiator::try_log_in(daemon.address, &a).err(), Some([2, 2]));
}

/// Forwards lines between a command and the daemon until the command sends `commit`. Then it sends `instead`
/// to the daemon, if that is anything, and breaks both connections. Later connections are only forwarded.
fn breaks_at_commit(fixture: &Fixture, instead: Option<&'static str>) -> std::thread::JoinHandle<()> {
    let listener = UnixListener::bind(fixture.path("proxy.sock")).unwrap();
    let daemon = fixture.path(ADMIN_SOCKET);
    let forward = move |client: UnixStream, breaks: bool| {
        let server = UnixStream::connect(&daemon).unwrap();
        let (mut requests, mut answers) = (BufReader::new(&client), BufReader::new(&server));
        let mut line = String::new();
        while requests.read_line(&mut line).unwrap() > 0 {
            let is_commit = breaks && line.contains("\"commit\"");
            if is_commit {
                let Some(instead) = instead else { return true };
                line = format!("{{\"method\":\"{instead}\"}}\n");
            }
            { &server }.write_all(line.as_bytes()).unwrap();
            line.clear();
            answers.read_line(&mut line).unwrap();
            if is_commit {
                return true;
            }
            { &client }.write_all(line.as_bytes()).unwrap();
            line.clear();
        }
        false
    };
    std::thread::spawn(move || {
        // The command connects anew before it sends a change.
        while !forward(listener.accept().unwrap().0, true) {}
        forward(listener.accept().unwrap().0, false);
    })
}

#[test]
fn a_command_that_loses_its_connection_asks_what_runs() {
    let fixture = Fixture::new();
    let daemon = serve(&fixture, "");
    let set =
        |alias: &str| fixture.run(&["target", "set", &format!("{NAME}a"), alias, "--socket", "proxy.sock"]);
    // The daemon finds the new file, and applies it.
    let proxy = breaks_at_commit(&fixture, None);
    let (code, stdout, stderr) = set("alias=one");
    assert_eq!(code, 0, "{stdout}{stderr}");
    proxy.join().unwrap();
    assert!(text(&fixture).contains("alias = \"one\""));
    assert_eq!(daemon.ask("status")["targets"][0]["alias"], "one");
    // The daemon drops the change.
    fs::remove_file(fixture.path("proxy.sock")).unwrap();
    let proxy = breaks_at_commit(&fixture, Some("abandon"));
    let (code, stdout, stderr) = set("alias=two");
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stderr.contains("the daemon did not apply the change"), "{stderr}");
    proxy.join().unwrap();
    assert!(text(&fixture).contains("alias = \"one\""), "{}", text(&fixture));
    done(&fixture, &["target", "set", &format!("{NAME}a"), "alias=three"]);
}
