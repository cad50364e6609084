//! Failures of client commands, and the messages that the user sees.

use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{Fixture, PATIENCE};
use crate::{NAME, content, feed, pattern, two_disks, url};

#[test]
fn each_obstacle_is_named() {
    let (fixture, daemon) = two_disks();
    let at = daemon.address;
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (place, told) in [
        (format!("iscsi://{closed}/{NAME}/0"), "no process listens there"),
        (format!("iscsi://{at}/iqn.2001-04.com.example:other/0"), "the target does not exist"),
        (format!("iscsi://{at}/{NAME}/7"), "this target has no LUN 7"),
        (
            format!("iscsi://no-such-host.invalid/{NAME}/0"),
            "cannot resolve the host name no-such-host.invalid",
        ),
    ] {
        for args in [
            &["info", &place][..],
            &["read", &place],
            &["write", &place, "--write"],
            &["bench", &place],
            &["verify", &place, "--write"],
            &["attach", &place, "--nbd", "socket"],
        ] {
            let (code, text, said) = fixture.run(args);
            assert_eq!((code, text.as_str()), (1, ""), "{args:?}: {said}");
            assert!(said.starts_with("targe: ") && said.contains(told), "{args:?}: {said}");
        }
    }
    assert!(!fixture.path("socket").exists(), "there is no disk, and no socket of one");
    let (code, _, said) = fixture.run(&["discover", &closed.to_string()]);
    assert_eq!(code, 1);
    assert!(said.contains("no process listens there"), "{said}");
}

#[test]
fn bad_usage_is_told_before_anything_is_tried() {
    let fixture = Fixture::new();
    for (args, told) in [
        (&["info", "127.0.0.1"][..], "a URL starts with iscsi://"),
        (&["info", "hyperscsi://eth0/iqn.2001-04.com.example:x/0"], "the URL has no group"),
        (&["read", "iscsi://127.0.0.1/iqn.2001-04.com.example:x"], "the URL has no LUN"),
        (
            &["read", "iscsi://127.0.0.1/iqn.2001-04.com.example:x/0?erl=7"],
            "erl=7: the value must be 0, 1 or 2",
        ),
        (&["read", "iscsi://me@127.0.0.1/iqn.2001-04.com.example:x/0"], "user \"me\" has no password"),
        (&["read", "iscsi://h/iqn.2001-04.com.example:x/0", "--length", "x"], "\"x\" is not a size"),
        (&["discover"], "no portal is given; name HOST[:PORT]"),
        (&["discover", "--group", "g"], "--iface"),
        (
            &["discover", "--group", "", "--iface", "lo"],
            "--group \"\": the name of a group has 1 to 64 bytes",
        ),
        (
            &["discover", "--group", "g", "--iface", "lo", "--password-file", "x"],
            "cannot be used with '--password-file",
        ),
        (
            &["bench", "hyperscsi://g@lo/iqn.2001-04.com.example:x/0", "--connections", "2"],
            "--connections is for iscsi:// URLs",
        ),
        (&["discover", "iscsi://h/iqn.2001-04.com.example:x/0"], "write only HOST[:PORT] here"),
        (&["discover", "h", "--initiator", "me"], "--initiator: an iSCSI name starts with"),
    ] {
        let (code, text, said) = fixture.run(args);
        assert_eq!((code, text.as_str()), (2, ""), "{args:?}: {said}");
        assert!(said.contains(told), "{args:?}: {said}");
    }
}

/// Without the logout, the target would have to detect by itself that the initiator is gone, and would keep
/// its reservations until then.
#[test]
fn a_command_that_a_signal_ends_logs_out() {
    let (fixture, daemon) = two_disks();
    let url = url(&daemon, 0);
    for (args, moved, code) in [
        (&["read", &url, "--bs", "4K"][..], "data_in_bytes", None),
        (&["write", &url, "--write", "--bs", "4K"], "data_out_bytes", None),
        (&["bench", &url, "--time", "600"], "data_in_bytes", Some(1)),
    ] {
        let mut command = fixture.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // Both ends stay open: at some point the output has no reader, and the input never ends.
        let mut stdin = child.stdin.take().unwrap();
        let feeder = std::thread::spawn(move || {
            let _ = stdin.write_all(&[7; 64 << 10]);
            stdin
        });
        let deadline = Instant::now() + PATIENCE;
        while daemon.ask("sessions")["sessions"][0][moved].as_u64().unwrap_or(0) < 16 << 10 {
            assert!(Instant::now() < deadline, "{args:?} moves nothing");
        }
        let before = fixture.log().matches("the initiator logged out").count();
        let deadline = Instant::now() + PATIENCE;
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
        assert!(sent.unwrap().success());
        let status = child.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (code, code.is_none().then_some(15)), "{args:?}");
        drop(feeder.join().unwrap());
        while fixture.log().matches("the initiator logged out").count() == before {
            assert!(Instant::now() < deadline, "{args:?}: {}", fixture.log());
        }
    }
    assert!(!fixture.log().contains("was lost"), "{}", fixture.log());
}

#[test]
fn chap_is_passed_with_the_password_of_a_file_or_the_environment_and_refused_with_another() {
    let fixture = Fixture::new();
    fixture.write(
        "targe.toml",
        &format!(
            "[[portal]]\nlisten = \"127.0.0.1:0\"\n[[target]]\nname = \"{NAME}\"\n[target.auth]\nuser = \"vm\"\n\
             secret = \"correct-horse\"\nmutual_user = \"san\"\nmutual_secret = \"battery-staple\"\n\
             [[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\n"
        ),
    );
    std::fs::set_permissions(fixture.path("targe.toml"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    fixture.write("right", "correct-horse\n");
    fixture.write("wrong", "correct-house\n");
    fixture.write("theirs", "battery-staple");
    for secret in ["right", "wrong", "theirs"] {
        std::fs::set_permissions(fixture.path(secret), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    fixture.write("exposed", "correct-horse");
    std::fs::set_permissions(fixture.path("exposed"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let info = |user: &str, query: &str, password: &str| {
        let url = format!("iscsi://{user}{}/{NAME}/0{query}", daemon.address);
        let output = fixture.command(&["info", &url]).env("TARGE_PASSWORD", password).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    for (user, query, password) in [
        ("vm@", "", "correct-horse"),
        ("vm@", "?password_file=right", ""),
        ("vm%correct-horse@", "", ""),
        ("vm@", "?password_file=right&target_user=san&target_password_file=theirs", ""),
        ("vm@", "?chap=md5", "correct-horse"),
    ] {
        let (code, told) = info(user, query, password);
        assert_eq!(code, 0, "{user}{query}: {told}");
    }
    for (user, query, password, why) in [
        ("vm@", "", "correct-house", "the login was refused"),
        ("vm@", "?password_file=wrong", "", "the login was refused"),
        ("", "", "", "the login was refused"),
        ("vm@", "?target_user=other", "correct-horse", "the target's user \"other\" has no password"),
        ("vm@", "?target_user=san&target_password_file=wrong", "correct-horse", "the login failed"),
        ("vm@", "?password_file=missing", "", "cannot read the password file missing"),
        ("vm@", "?password_file=exposed", "", "can be read by others (mode 644); run: chmod 600 exposed"),
        ("", "?password_file=right", "", "the URL has a password (password_file) but no user"),
    ] {
        let (code, told) = info(user, query, password);
        assert_ne!(code, 0, "{user}{query}");
        assert!(told.contains(why), "{user}{query}: {told}");
        assert!(!told.contains("correct-ho"), "{told}");
    }
    let portal = daemon.address.to_string();
    let output = fixture.command(&["discover", &portal]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let args = ["discover", &portal, "--user", "vm", "--password-file", "right"];
    let (code, text, told) = fixture.run(&args);
    assert_eq!(code, 0, "{told}");
    assert!(text.contains(&format!("iscsi://vm@{portal}/{NAME}/0")), "{text}");
}

#[test]
fn a_medium_that_shrinks_under_its_reader_is_an_error() {
    let fixture = Fixture::new();
    std::fs::write(fixture.path("disk.img"), pattern(1, 8 << 20)).unwrap();
    let daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--target", NAME, "--lun", "file:disk.img"]);
    let url = url(&daemon, 0);
    assert_eq!(content(&fixture, &url, 0, 1 << 20), pattern(1, 8 << 20)[..1 << 20]);
    std::fs::File::options().write(true).open(fixture.path("disk.img")).unwrap().set_len(1 << 20).unwrap();
    let (code, data, told) = feed(&fixture, &["read", &url, "--bs", "64K", "--depth", "4"], &[]);
    assert_eq!(code, 1);
    assert!(data.len() <= 1 << 20 && told.contains(&url), "{} bytes, {told}", data.len());
}

#[test]
fn a_target_that_dies_is_waited_for_as_long_as_the_url_says() {
    let (fixture, daemon) = two_disks();
    let url = format!("{}?timeout=0", url(&daemon, 0));
    let mut child = fixture
        .command(&["bench", &url, "--time", "600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    while daemon.ask("sessions")["sessions"][0]["data_in_bytes"].as_u64().unwrap_or(0) < 16 << 10 {
        assert!(Instant::now() < deadline, "it moves nothing");
    }
    assert!(child.try_wait().unwrap().is_none());
    daemon.kill();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{told}");
    assert!(told.contains(&format!("{NAME}/0: ")), "{told}");
}

/// A target process that is stopped keeps its connections, and answers nothing.
#[test]
fn a_signal_ends_a_command_whose_target_does_not_answer() {
    for args in [
        &["read", "--bs", "4K"][..],
        &["bench", "--time", "600"],
        &["verify", "--write", "--time", "600"],
        &["attach", "--nbd", "socket"],
    ] {
        let (fixture, daemon) = two_disks();
        let url = url(&daemon, 0);
        let mut command = fixture.command(&[&args[..1], &[&url], &args[1..]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let is_attach = args.contains(&"attach");
        loop {
            let moved = daemon.ask("sessions")["sessions"][0]["data_in_bytes"].as_u64().unwrap_or(0);
            if if is_attach { fixture.path("socket").exists() } else { moved >= 16 << 10 } {
                break;
            }
            assert!(Instant::now() < deadline, "{args:?} moves nothing");
        }
        let child_id = child.id().to_string();
        let signal = |name| {
            assert!(Command::new("kill").args([name, &*child_id]).status().unwrap().success());
        };
        daemon.signal("STOP");
        // A command that is under way then is never answered.
        std::thread::sleep(Duration::from_millis(200));
        signal("-TERM");
        // The command must not wait for its target: then it ends within a few seconds. If it does wait, it
        // ends when the session gives up, after minutes.
        let deadline = Instant::now() + PATIENCE;
        let ended = loop {
            if child.try_wait().unwrap().is_some() {
                break true;
            }
            if Instant::now() > deadline {
                break false;
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        daemon.signal("CONT");
        if !ended {
            signal("-KILL");
        }
        let output = child.wait_with_output().unwrap();
        assert!(ended, "{args:?} waits for its target: {}", String::from_utf8_lossy(&output.stderr));
        assert_ne!(output.status.code(), Some(0), "{args:?}");
    }
}

#[test]
fn whoever_loses_his_session_for_good_is_told_why() {
    for (args, why) in [
        (&["read", "--bs", "4K"][..], "the session was lost ("),
        (&["verify", "--write", "--time", "600"], " operations failed; the session was lost: "),
        (&["bench", "--time", "600"], "the session was lost ("),
    ] {
        let (fixture, daemon) = two_disks();
        let url = format!("{}?timeout=0", url(&daemon, 0));
        let mut command = fixture.command(&[&args[..1], &[&url], &args[1..]].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while daemon.ask("sessions")["sessions"][0]["data_in_bytes"].as_u64().unwrap_or(0) < 16 << 10 {
            assert!(
                Instant::now() < deadline && child.try_wait().unwrap().is_none(),
                "{args:?} moves nothing"
            );
        }
        daemon.kill();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let last = told.lines().last().unwrap();
        assert!(last.contains(why) && last.contains("connection"), "{told}");
    }
}

#[test]
fn a_write_goes_on_when_its_target_comes_back() {
    use std::io::Write;
    let fixture = Fixture::new();
    // The kernel releases an io_uring, and with it the port, some time after its process has ended.
    let lun = ["--reactor", "epoll", "--target", NAME, "--lun", "file:disk.img,size=4M"];
    // The port must not be an ephemeral one: while no process listens there, the system could give it to an
    // outgoing connection.
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    // Tests of other processes look for such a port too, and begin elsewhere.
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    let listen = format!("127.0.0.1:{}", (first..30_000).chain(20_000..first).find(free).unwrap());
    let daemon = fixture.serve(&[&["--listen", &listen][..], &lun].concat());
    let url = url(&daemon, 0);
    let data = pattern(3, 4 << 20);
    let mut child = fixture
        .command(&["write", &url, "--write", "--bs", "64K"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&data[..2 << 20]).unwrap();
    daemon.kill();
    let daemon = fixture.serve(&[&["--listen", &listen][..], &lun].concat());
    stdin.write_all(&data[2 << 20..]).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(content(&fixture, &url, 0, 4 << 20), data);
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_command_whose_messages_nobody_reads_tells_its_result() {
    let (fixture, daemon) = two_disks();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (gone, pipe) = std::io::pipe().unwrap();
    drop(gone);
    for stderr in [Stdio::from(full), Stdio::from(pipe)] {
        let args = ["verify", &url(&daemon, 1), "--write", "--full", "--json"];
        let ended = fixture.command(&args).stderr(stderr).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!((ended.status.code(), &report["sound"]), (Some(0), &true.into()));
    }
}
