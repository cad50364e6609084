//! The binary as users run it: started, queried, reloaded, stopped.

#[cfg(test)]
mod changes;
#[cfg(test)]
mod discs;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod fixture;
#[cfg(test)]
mod initiator;
#[cfg(test)]
mod sanitize;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, Instant};

use fixture::{Fixture, PATIENCE, targe};
use initiator::Initiator;
use serde_json::json;

const NAME: &str = "iqn.2001-04.com.example:";

/// Writes a configuration of RAM disks: one target for each name, on one portal that takes any port.
fn ram_targets(names: &[&str]) -> String {
    let mut text = "[[portal]]\nlisten = \"127.0.0.1:0\"\n".to_owned();
    for name in names {
        text +=
            &format!("[[target]]\nname = \"{NAME}{name}\"\n[[target.lun]]\ntype = \"ram\"\nsize = \"1M\"\n");
    }
    text
}

#[test]
fn discovery_prints_the_portal_over_which_it_has_read_the_luns() {
    let fixture = Fixture::new();
    // An address that initiators cannot reach, as behind a network address translation.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let portal = format!("listen = \"127.0.0.1:0\"\nannounce = \"{closed}\"\n");
    fixture.write("targe.toml", &ram_targets(&["a"]).replace("listen = \"127.0.0.1:0\"\n", &portal));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let (code, found, told) = fixture.run(&["discover", &daemon.address.to_string(), "--json"]);
    assert_eq!(code, 0, "{told}");
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found[0]["url"], format!("iscsi://{}/{NAME}a/0", daemon.address), "{found}");
    assert_eq!(found[0]["portals"], json!([closed.to_string()]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn without_an_argument_there_is_a_disk_of_a_gibibyte() {
    let fixture = Fixture::new();
    let daemon = fixture.serve(&["--listen", "127.0.0.1:0"]);
    assert!(daemon.banner.contains("iscsi-ls --show-luns iscsi://127.0.0.1:"), "{}", daemon.banner);
    let disk = fs::metadata(fixture.path("state/targe/disk.img")).unwrap();
    assert_eq!(disk.len(), 1 << 30);
    let mut initiator = Initiator::discover(daemon.address);
    let port = daemon.address.port();
    assert_eq!(
        initiator.send_targets(),
        format!("TargetName=iqn.2026-11.example.targe:disk\0TargetAddress=127.0.0.1:{port},1\0")
    );
    let status = daemon.ask("status");
    assert_eq!(status["targets"][0]["name"], "iqn.2026-11.example.targe:disk");
    assert_eq!(status["sessions"], 1);
    let lun = &daemon.ask("luns")["luns"][0];
    assert_eq!((&lun["bytes"], &lun["lun"], &lun["thin"]), (&json!(1_u64 << 30), &json!(0), &json!(true)));
    assert_eq!(daemon.ask("sessions")["sessions"][0]["target"], json!(null));
    drop(initiator);
    assert_eq!(daemon.stop().0, 0);
    assert!(!fixture.path("state/targe/admin/admin.sock").exists());
    let again = fixture.serve(&["--listen", "127.0.0.1:0"]);
    assert_eq!(again.ask("luns")["luns"][0]["naa"], lun["naa"]);
    assert_eq!(again.stop().0, 0);
}

#[test]
fn what_stands_in_the_way_is_named() {
    let fixture = Fixture::new();
    let daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "file:a.img,size=1M"]);
    let port = daemon.address.port();
    let listen = format!("127.0.0.1:{port}");
    let other = ["serve", "--state-dir", "other", "--listen"];
    for (args, code, told) in [
        (
            vec!["serve", "--listen", "127.0.0.1:0"],
            1,
            "targe: another targe is running: it listens on the admin socket",
        ),
        ([&other[..], &[&listen, "--lun", "ram:1M"]].concat(), 1, "another program listens there"),
        (
            [&other[..], &["127.0.0.1:0", "--lun", "file:a.img"]].concat(),
            1,
            "a.img is in use by another process",
        ),
        (
            [&other[..], &["127.0.0.1:0", "--lun", "file:missing.img"]].concat(),
            2,
            "missing.img does not exist; give \"size\" to create it",
        ),
        ([&other[..], &["127.0.0.1:0", "--lun", "ram:1M,sise=3"]].concat(), 2, "(did you mean \"size\"?)"),
        (
            vec!["serve", "--config", "missing.toml"],
            2,
            "missing.toml: cannot read: no such file or directory",
        ),
        (vec!["serve", "--iface", "eth0"], 2, "HyperSCSI also needs --group"),
        (vec!["serve", "--group", "lab"], 2, "HyperSCSI also needs --iface"),
        (vec!["serve", "--lnu", "ram:1M"], 2, "unexpected argument '--lnu'"),
        (vec!["status", "--socket", "none.sock"], 1, "no targe is running"),
        (vec!["tape", "create", "none/tapes/a"], 1, "does not exist; make it first: mkdir -p none/tapes\n"),
        (
            vec!["changer", "create", "none/library", "--drives", "1", "--slots", "4"],
            1,
            "does not exist; make it first: mkdir -p none\n",
        ),
        (
            vec!["attach", "iscsi://127.0.0.1:1/iqn.2001-04.com.example:a/0", "--nbd", "none/disk.sock"],
            1,
            "does not exist; make it first: mkdir -p none\n",
        ),
        (
            vec!["attach", "iscsi://127.0.0.1:1/iqn.2001-04.com.example:a/0", "--fuse", "none/disk"],
            1,
            "does not exist; make it first: mkdir -p none/disk\n",
        ),
    ] {
        let (exit, _, stderr) = fixture.run(&args);
        assert_eq!(exit, code, "{args:?}: {stderr}");
        assert!(stderr.contains(told), "{args:?}: {stderr}");
    }
    assert_eq!(daemon.stop().0, 0);
    // A killed daemon leaves nothing that prevents the next start.
    fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "file:a.img"]).kill();
    assert_eq!(fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "file:a.img"]).stop().0, 0);
}

#[test]
fn a_directory_where_this_user_may_make_nothing_is_named() {
    let fixture = Fixture::new();
    let closed = fixture.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    // Root needs no permission, unless it gives up this capability.
    let root: &[&str] = &["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"];
    let prefix = if fs::metadata(&closed).unwrap().uid() == 0 { root } else { &["env"] };
    let url = "iscsi://127.0.0.1:1/iqn.2001-04.com.example:a/0";
    for (args, told) in [
        (
            ["attach", url, "--nbd", "closed/disk.sock"].as_slice(),
            "this user may not make a socket in closed: choose",
        ),
        (&["tape", "create", "closed/a"], "closed/a: this user may not make folders in closed; run targe as"),
    ] {
        let mut command = std::process::Command::new(prefix[0]);
        command.args(&prefix[1..]).arg(env!("CARGO_BIN_EXE_targe")).args(args).current_dir(fixture.path("."));
        let output = command.env("TARGE_ROOT", fixture.path(".")).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains(told), "{args:?}: {stderr}");
    }
}

/// A process that ends with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_controller_of_csi_says_that_its_daemon_does_not_answer_and_serves() {
    let fixture = Fixture::new();
    let start = |log: &str, more: &[&str]| {
        let args = ["csi", "--endpoint", "csi.sock", "--controller", "--pool", ".", "--portal", "127.0.0.1"];
        let log = fs::File::create(fixture.path(log)).unwrap();
        Running(fixture.command(&[&args[..], more].concat()).stderr(log).spawn().unwrap())
    };
    let csi = start("log", &["--socket", "none.sock"]);
    fixture.await_log("no targe is running (no process listens on none.sock); volumes cannot be made");
    fixture.await_log("serves CSI on csi.sock");
    drop(csi);
    let daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "ram:1M"]);
    let mut csi = start("other", &[]);
    let other = || fs::read_to_string(fixture.path("other")).unwrap();
    while !other().contains("serves CSI on csi.sock") {
        assert!(csi.0.try_wait().unwrap().is_none(), "{}", other());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(csi);
    assert!(!other().contains("volumes cannot be made"), "{}", other());
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn one_state_directory_is_that_of_one_daemon() {
    let fixture = Fixture::new();
    fixture.write("other.toml", &ram_targets(&["other"]));
    let daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "ram:1M"]);
    let ports = fs::read(fixture.path("state/targe/ports")).unwrap();
    let other = ["--config", "other.toml", "--socket", "other/admin.sock"];
    let (exit, stdout, stderr) = fixture.run(&[&["serve"], &other[..]].concat());
    let told = format!(
        "targe: another targe is running: it uses the state directory {}\n",
        fixture.path("state/targe").display()
    );
    assert_eq!((exit, &*stdout, &*stderr), (1, "", &*told));
    assert_eq!(fs::read(fixture.path("state/targe/ports")).unwrap(), ports);
    // Commands that only read need no lock.
    assert_eq!(fixture.run(&["check", "other.toml"]).0, 0);
    daemon.ask("status");
    daemon.kill();
    fixture.serve(&other).kill();
}

#[test]
fn what_is_made_durable_at_the_end_is_the_file_that_was_served() {
    for stands_there in [false, true] {
        let fixture = Fixture::new();
        let daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--lun", "file:a.img,size=1M"]);
        fs::rename(fixture.path("a.img"), fixture.path("renamed.img")).unwrap();
        if stands_there {
            // It cannot be opened for writing.
            fs::create_dir(fixture.path("a.img")).unwrap();
        }
        assert_eq!(daemon.stop().0, 0, "{}", fixture.log());
    }
}

#[test]
fn check_tells_every_mistake_on_stdout() {
    let fixture = Fixture::new();
    fixture.write("good.toml", &ram_targets(&["a", "b"]));
    fixture.write("bad.toml", "[[target]]\nname = \"disk\"\nsise = 1\n");
    assert_eq!(
        fixture.run(&["check", "good.toml"]),
        (0, "good.toml: ok: 1 portal, 2 targets, 2 LUNs\n".to_owned(), String::new())
    );
    let (exit, stdout, stderr) = fixture.run(&["check", "bad.toml"]);
    assert_eq!((exit, stderr.as_str()), (2, ""));
    assert_eq!(
        stdout,
        "bad.toml:1:1: target has no \"lun\"\n\
         bad.toml:2:8: \"disk\": an iSCSI name starts with iqn., eui. or naa.\n\
         bad.toml:3:1: unknown key \"sise\" in target\n"
    );
    let (exit, stdout, _) = fixture.run(&["check", "--json", "bad.toml"]);
    let told: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((exit, &told["ok"], &told["mistakes"][2]["line"]), (2, &json!(false), &json!(3)));
    assert_eq!(fixture.run(&["serve", "--config", "bad.toml"]).0, 2);
}

#[test]
fn a_reload_changes_what_it_says_and_no_session_that_it_does_not_touch() {
    let fixture = Fixture::new();
    let disk =
        "[[target.lun]]\ntype = \"file\"\npath = \"grows.img\"\nsize = \"1M\"\nnaa = \"3000000000000001\"\n";
    let before = ram_targets(&["a", "b"]) + disk;
    fixture.write("targe.toml", &before);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut kept = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    let mut lost = Initiator::log_in(daemon.address, &format!("{NAME}b"));
    let names = |of: &fixture::Daemon| -> Vec<String> {
        let luns = of.ask("luns");
        let show = |lun: &serde_json::Value| {
            format!("{}/{} {}", &lun["target"].as_str().unwrap()[NAME.len()..], lun["lun"], lun["bytes"])
        };
        luns["luns"].as_array().unwrap().iter().map(show).collect()
    };
    assert_eq!(names(&daemon), ["a/0 1048576", "b/0 1048576", "b/1 1048576"]);

    fixture.write("targe.toml", &before.replace("type = \"ram\"", "typo = \"ram\""));
    let refused = daemon.reload();
    assert_eq!(refused["applied"], false);
    assert!(
        refused["message"].as_str().unwrap().contains("targe.toml:6:1: unknown key \"typo\""),
        "{refused}"
    );
    assert_eq!(names(&daemon), ["a/0 1048576", "b/0 1048576", "b/1 1048576"]);
    assert!(kept.ping() && lost.ping());

    fixture.write(
        "targe.toml",
        &(ram_targets(&["a", "c"]) + disk).replace(
            "size = \"1M\"\n[[target]]",
            "size = \"1M\"\n[[target.lun]]\ntype = \"null\"\nsize = \"2M\"\n[[target]]",
        ),
    );
    assert_eq!(daemon.reload()["applied"], true);
    // The file moves from one target to another, and is never closed.
    assert_eq!(names(&daemon), ["a/0 1048576", "a/1 2097152", "c/0 1048576", "c/1 1048576"]);
    assert!(kept.ping(), "a session that nothing touched");
    assert!(!lost.ping(), "a session with a target that is gone");
    drop(Initiator::log_in(daemon.address, &format!("{NAME}c")));
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}b")).err(), Some([2, 3]));

    // Another process makes the file longer, and the reload makes the daemon check its size.
    fs::OpenOptions::new().write(true).open(fixture.path("grows.img")).unwrap().set_len(3 << 20).unwrap();
    assert_eq!(daemon.reload()["applied"], true);
    assert_eq!(names(&daemon)[3], "c/1 3145728");
    drop(kept);
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn changed_limits_count_for_sessions_that_go_on() {
    let fixture = Fixture::new();
    let with = |top: &str, of_b: &str| {
        let targets = ram_targets(&["a", "b", "c"]);
        let own = targets.replace(&format!("{NAME}b\"\n"), &format!("{NAME}b\"\n{of_b}"));
        assert!(of_b.is_empty() || own != targets);
        fixture.write("targe.toml", &(top.to_owned() + &own));
    };
    with("queue_depth = 4\nmax_sessions = 8\n", "");
    // Sessions are counted by reactor, so the test uses one reactor.
    let daemon = fixture.serve(&["--config", "targe.toml", "--cores", "0"]);
    let mut a = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    let mut b = Initiator::log_in(daemon.address, &format!("{NAME}b"));
    assert_eq!((a.window(), b.window()), (4, 4));
    with("queue_depth = 16\nmax_sessions = 2\nnop_interval = \"1h\"\n", "queue_depth = 64\n");
    let told = daemon.reload();
    assert_eq!(told["applied"], true);
    assert!(!told["message"].as_str().unwrap().contains("next start"), "{told}");
    assert_eq!((a.window(), b.window()), (16, 64));
    // There are two sessions, the most that are allowed now: status 0302h, out of resources.
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}c")).err(), Some([3, 2]));
    // Discovery sessions have a limit of their own.
    assert!(Initiator::discover_or(daemon.address).is_ok());
    drop(a);
    assert_eq!(b.window(), 64);
    with("queue_depth = 16\nmax_connections = 1\n", "");
    assert_eq!(daemon.reload()["applied"], true);
    assert!(b.ping(), "a connection over a smaller limit stays");
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_sanitize_operation_goes_on_after_a_kill() {
    let fixture = Fixture::new();
    let args = ["--listen", "127.0.0.1:0", "--target", &format!("{NAME}a"), "--lun", "file:a.img,size=64M"];
    let cdb = |opcode: u8, flags: u8, len: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[8]) = (opcode, flags, len);
        cdb
    };
    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    // SANITIZE, OVERWRITE, IMMED: thirty-one passes take long enough to kill the daemon that executes them.
    let list = [31, 0, 0, 1, 0xaa];
    assert_eq!(initiator.command(cdb(0x48, 0x81, 5), &list, 0), Ok(vec![]));
    assert_eq!(initiator.command(cdb(0, 0, 0), &[], 0), Err([2, 0x04, 0x1b]));
    daemon.kill();
    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.command(cdb(0, 0, 0), &[], 0), Err([2, 0x04, 0x1b]));
    // SANITIZE does not keep the daemon from stopping, and continues after the next start as well.
    assert_eq!(daemon.stop().0, 0);
    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.command(cdb(0, 0, 0), &[], 0), Err([2, 0x04, 0x1b]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn an_exchange_that_one_drive_refuses_unloads_no_drive() {
    let fixture = Fixture::new();
    let made =
        fixture.run(&["changer", "create", "library", "--drives", "2", "--slots", "2", "--cartridges", "2"]);
    assert_eq!(made.0, 0, "{made:?}");
    let target = format!("{NAME}a");
    let daemon = fixture.serve(&["--listen", "127.0.0.1:0", "--target", &target, "--lun", "changer:library"]);
    let mut initiator = Initiator::log_in(daemon.address, &target);
    let cdb = |opcode: u8, words: [u16; 4]| {
        let mut cdb = [0; 16];
        cdb[0] = opcode;
        cdb[2..10].copy_from_slice(words.map(u16::to_be_bytes).as_flattened());
        cdb
    };
    let deadline = Instant::now() + PATIENCE;
    for number in [0, 1] {
        initiator.lun = 0;
        assert_eq!(initiator.command(cdb(0xa5, [0, 1000 + number, 500 + number, 0]), &[], 0), Ok(vec![]));
        initiator.lun = 1 + u8::try_from(number).unwrap();
        while initiator.command([0; 16], &[], 0).is_err() {
            assert!(Instant::now() < deadline, "drive {number} is not ready");
        }
    }
    // A host keeps the cartridge of drive 2.
    let mut prevent = cdb(0x1e, [0; 4]);
    prevent[4] = 1;
    assert_eq!(initiator.command(prevent, &[], 0), Ok(vec![]));
    initiator.lun = 0;
    assert_eq!(initiator.command(cdb(0xa6, [0, 500, 501, 500]), &[], 0), Err([5, 0x53, 2]));
    initiator.lun = 1;
    assert_eq!(initiator.try_command([0; 16], &[], 0), Ok(vec![]), "drive 1 was neither unloaded nor loaded");
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn targets_that_share_nothing_run_on_reactors_of_their_own() {
    let fixture = Fixture::new();
    fixture.write("targe.toml", &("cores = \"0,0\"\n".to_owned() + &ram_targets(&["a", "b", "c"])));
    // The same core given twice counts once.
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    assert_eq!(daemon.ask("status")["reactors"].as_array().unwrap().len(), 1);
    assert_eq!(daemon.stop().0, 0);
    let daemon = fixture.serve(&["--config", "targe.toml", "--cores", "0,1"]);
    assert_eq!(daemon.ask("status")["reactors"].as_array().unwrap().len(), 2);
    let sessions: Vec<Initiator> = ["a", "b", "c"]
        .iter()
        .map(|name| Initiator::log_in(daemon.address, &format!("{NAME}{name}")))
        .collect();
    let found = Initiator::discover(daemon.address).send_targets();
    assert_eq!(found.matches("TargetName=").count(), 3, "{found}");
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}d")).err(), Some([2, 3]));
    let listed = daemon.ask("sessions");
    let listed: Vec<&str> = listed["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|session| session["target"].as_str())
        .collect();
    assert_eq!(listed, [format!("{NAME}a"), format!("{NAME}b"), format!("{NAME}c")]);
    drop(sessions);
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_registration_that_asks_for_it_outlives_a_kill_and_is_never_guessed() {
    let fixture = Fixture::new();
    let args = ["--listen", "127.0.0.1:0", "--target", &format!("{NAME}a"), "--lun", "file:a.img,size=1M"];
    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.read_keys(), Ok(vec![]));
    assert_eq!(initiator.register(0xabcd), Ok(vec![]));
    let naa = daemon.ask("luns")["luns"][0]["naa"].as_str().unwrap().to_owned();
    daemon.kill();

    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.read_keys(), Ok(vec![0xabcd]));
    daemon.kill();

    let state = fixture.path(&format!("state/targe/units/{naa}.state"));
    let whole = fs::read(&state).unwrap();
    for damaged in [&whole[..whole.len() - 1], &[], b"nonsense"] {
        fs::write(&state, damaged).unwrap();
        let daemon = fixture.serve(&args);
        let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
        // READ (10) is answered with PERSISTENT RESERVATION INFORMATION LOST (SPC-5 §5.14.5).
        let read = initiator.command([0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], &[], 512);
        assert_eq!(read.map_err(|[_, asc, ascq]| [asc, ascq]), Err([0x44, 0x01]));
        daemon.kill();
    }
}

#[test]
fn who_does_not_log_in_is_closed_and_who_is_refused_counted() {
    let fixture = Fixture::new();
    fixture.write("targe.toml", &("login_timeout = \"3s\"\n".to_owned() + &ram_targets(&["a"])));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let session = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    let mut silent = std::net::TcpStream::connect(daemon.address).unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    let end = silent.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(end, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{end:?}");
    assert!(Initiator::try_log_in(daemon.address, &format!("{NAME}b")).is_err());
    let status = daemon.ask("status");
    assert_eq!((&status["logins"], &status["sessions"]), (&json!(1), &json!(1)));
    assert_eq!(status["failed_logins"], 1);
    assert_eq!(daemon.ask("sessions")["sessions"][0]["peer"], session.address().to_string());
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn the_log_tells_who_came_who_went_and_who_was_refused_and_no_secret() {
    let fixture = Fixture::new();
    let auth = "[target.auth]\nuser = \"u\"\nsecret = \"a long enough secret\"\n[[target.lun]]";
    let text = ram_targets(&["a", "b"]);
    let at = text.rfind("[[target.lun]]").unwrap();
    let text = text[..at].to_owned() + &text[at..].replace("[[target.lun]]", auth);
    fixture.write("targe.toml", &text);
    fs::set_permissions(fixture.path("targe.toml"), PermissionsExt::from_mode(0o600)).unwrap();
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut polite = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    let (from, address) = (polite.address(), daemon.address);
    polite.log_out();
    drop(polite);
    let hasty = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    let from_hasty = hasty.address();
    drop(hasty);
    // A monitor looks whether the portal listens.
    drop(std::net::TcpStream::connect(daemon.address).unwrap());
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}b")).err(), Some([2, 1]));
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}c")).err(), Some([2, 3]));
    assert_eq!(daemon.stop().0, 0);
    let log = fixture.log();
    let who = "iqn.2001-04.com.example:test";
    for told in [
        format!("info  session of {who} from {from} with {NAME}a is up"),
        format!("info  session of {who} from {from} with {NAME}a is over: the initiator logged out"),
        format!(
            "info  session of {who} from {from_hasty} with {NAME}a is over: the initiator closed its half of the connection"
        ),
        format!("warn  login of {who} from 127.0.0.1:"),
        format!(" with {NAME}b is refused: "),
        format!("info  listening on {address}, portal group tag 1"),
    ] {
        assert!(log.contains(&told), "{told:?} is not in:\n{log}");
    }
    assert_eq!(log.matches("is refused: ").count(), 2, "{log}");
    let warnings = ["session", "connection", "accept"].map(|word| format!("warn  {word}"));
    assert!(!warnings.iter().any(|warning| log.contains(warning)), "{log}");
    assert!(!log.contains("long enough"), "{log}");
}

#[test]
fn sessions_are_asked_to_log_out_before_the_end() {
    let fixture = Fixture::new();
    fixture.write("targe.toml", &ram_targets(&["a"]));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut polite = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    daemon.signal("TERM");
    // RFC 7143 §11.9.1: event 1 asks for a logout within Parameter3 seconds.
    let message = polite.receive().unwrap();
    assert_eq!(
        (message[0] & 0x3f, message[36], u16::from_be_bytes([message[42], message[43]])),
        (0x32, 1, 3)
    );
    polite.log_out();
    assert_eq!(daemon.wait().0, 0);
}

#[test]
fn a_second_signal_ends_it_at_once() {
    // After the first signal, sessions have three seconds to log out. A machine that is so busy that the
    // signals come later says nothing.
    const LOGOUT_WITHIN: Duration = Duration::from_secs(3);
    let fixture = Fixture::new();
    fixture.write("targe.toml", &ram_targets(&["a"]));
    let is_judged = || {
        let daemon = fixture.serve(&["--config", "targe.toml"]);
        let mut stubborn = Initiator::log_in(daemon.address, &format!("{NAME}a"));
        let began = Instant::now();
        daemon.signal("INT");
        stubborn.receive().unwrap();
        // Signals that arrive together count as one request.
        daemon.signal("TERM");
        std::thread::sleep(Duration::from_millis(400));
        let is_served = stubborn.ping();
        daemon.signal("TERM");
        let is_late = began.elapsed() >= LOGOUT_WITHIN;
        let (code, _) = daemon.wait();
        assert!(is_late || is_served && code == 1, "{is_served}, {code}");
        !is_late && began.elapsed() < LOGOUT_WITHIN
    };
    assert!((0..10).any(|_| is_judged()), "it does not end at once");
}

#[test]
fn help_and_version_go_to_stdout() {
    let version = format!("targe {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(targe(&["-V"]), (0, version.clone(), String::new()));
    let (code, stdout, stderr) = targe(&["--version"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let lines: Vec<&str> = stdout.strip_prefix(&version).unwrap().lines().collect();
    assert!(lines[0].starts_with("commit ") || lines[0].starts_with("built without git"), "{stdout}");
    let names = lines[1..].iter().map(|line| line.split_once(": ").map_or(*line, |(name, _)| name));
    let expected = ["features", "kernel", "  io_uring", "  Ethernet receive ring", "  ublk", "  FUSE"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    for line in lines.iter().filter(|line| line.starts_with("  ")) {
        assert!(line.ends_with(": yes") || line.contains(": no: "), "{line}");
    }
    let (code, stdout, _) = targe(&["serve", "--help"]);
    assert_eq!(code, 0);
    for flag in
        ["--config", "--listen", "--iface", "--group", "--target", "--lun", "--reactor", "--poll", "--cores"]
    {
        assert!(stdout.contains(flag), "{flag}");
    }
    assert_eq!(targe(&[]).0, 2);
}

#[test]
fn what_cannot_be_printed_is_a_failure_and_a_reader_that_left_is_none() {
    let fixture = Fixture::new();
    fixture.write("targe.toml", &ram_targets(&["a"]));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    for args in [&["luns", "--json"][..], &["status"], &["sessions"], &["check", "targe.toml"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = fixture.command(args).stdout(full).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{args:?}: {told}");
        assert!(told.starts_with("targe: cannot write to stdout: "), "{args:?}: {told}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = fixture.command(args).stdout(writer).output().unwrap();
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{args:?}");
    }
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_daemon_is_found_from_another_environment() {
    let fixture = Fixture::new();
    fixture.write("targe.toml", &ram_targets(&["a"]));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let output = fixture
        .command(&["status", "--json"])
        .env("XDG_RUNTIME_DIR", fixture.path("elsewhere"))
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert!(told.contains("state/targe/admin/admin.sock answers"), "{told}");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["targets"][0]["name"], format!("{NAME}a"));
    assert_eq!(daemon.stop().0, 0);
    let (exit, _, told) = fixture.run(&["status"]);
    assert_eq!(exit, 1);
    assert!(
        told.contains("state/targe/admin/admin.sock") && told.contains("/run/targe/admin.sock"),
        "{told}"
    );
}

#[test]
fn check_warns_of_open_doors_and_of_disks_that_their_file_system_cannot_hold() {
    let fixture = Fixture::new();
    let text = "[[portal]]\nlisten = \"[::]:0\"\n[[target]]\nname = \"iqn.2001-04.com.example:vm_1\"\n\
                lun = [{ type = \"file\", path = \"a.img\", size = \"1000000T\" }]\n";
    fixture.write("targe.toml", text);
    let (exit, stdout, _) = fixture.run(&["check", "targe.toml"]);
    assert_eq!(exit, 0, "{stdout}");
    for (place, told) in [
        (
            "2:10",
            "every host that can connect to this one can access target iqn.2001-04.com.example:vm_1 without a password",
        ),
        ("4:8", "RFC 3722 does not allow '_'"),
        ("5:", "its file system holds "),
    ] {
        let line =
            stdout.lines().find(|line| line.contains(told)).unwrap_or_else(|| panic!("{told}: {stdout}"));
        assert!(line.starts_with(&format!("targe.toml:{place}")) && line.contains(" warning: "), "{line}");
    }
    // One mistake is reported in the same form as several.
    fixture.write("targe.toml", &text.replace("[::]:0", "::1:3260"));
    let (exit, _, told) = fixture.run(&["serve", "--config", "targe.toml"]);
    assert_eq!(exit, 2);
    assert!(
        told.starts_with(
            "targe.toml:2:10: \"::1:3260\" is not an address to listen on; write [::1]:3260 for"
        ),
        "{told}"
    );
}
