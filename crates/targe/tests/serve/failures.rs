//! Failures around a daemon: disks that are full or broken, files that are not as they should be.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::time::{Duration, Instant};

use crate::NAME;
use crate::fixture::Fixture;
use crate::initiator::Initiator;

const BLOCK: usize = 512;

/// SBC-4 §5.40, §5.16: WRITE (10), READ (10) of `count` blocks.
fn cdb(code: u8, lba: u32, count: u8) -> [u8; 16] {
    let [a, b, c, d] = lba.to_be_bytes();
    [code, 0, a, b, c, d, 0, 0, count, 0, 0, 0, 0, 0, 0, 0]
}

fn write(lba: u32, count: u8) -> [u8; 16] {
    cdb(0x2a, lba, count)
}

fn read(lba: u32, count: u8) -> [u8; 16] {
    cdb(0x28, lba, count)
}

/// INFORMATION of sense data in fixed format, if it is valid (SPC-5 §4.4.3).
fn information(sense: &[u8]) -> Option<u32> {
    (sense[0] == 0xf0).then(|| u32::from_be_bytes([sense[3], sense[4], sense[5], sense[6]]))
}

fn code(sense: &[u8]) -> [u8; 3] {
    [sense[2] & 0xf, sense[12], sense[13]]
}

/// Sense key DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
const NO_SPACE: [u8; 3] = [7, 0x27, 7];

#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk_and_kills_nobody() {
    let fixture = Fixture::new();
    fs::File::create(fixture.path("a.img")).unwrap().set_len(8 << 20).unwrap();
    let target = format!("{NAME}a");
    for reactor in ["auto", "epoll"] {
        let args =
            ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img", "--reactor", reactor];
        // The limit is in units of 512 bytes: one mebibyte.
        let daemon = fixture.serve_behind(&["sh"], "ulimit -f 2048", &args);
        let mut initiator = Initiator::log_in(daemon.address, &target);
        let data = vec![0x5a; 8 * BLOCK];
        assert_eq!(initiator.command(write(0, 8), &data, 0), Ok(vec![]));
        assert_eq!(initiator.command(write(8192, 8), &data, 0), Err(NO_SPACE));
        assert_eq!(initiator.command(write(2040, 8), &data, 0), Ok(vec![]), "up to the limit");
        assert_eq!(initiator.command(read(0, 8), &[], 4096), Ok(data.clone()));
        assert_eq!(initiator.command(read(8192, 8), &[], 4096), Ok(vec![0; 4096]), "as it was");
        assert_eq!(daemon.stop().0, 0);
    }
}

#[test]
fn a_full_file_system_refuses_writes_tells_the_others_and_recovers() {
    let fixture = Fixture::new();
    let shell: &[&str] = &["unshare", "--mount", "sh"];
    if !std::process::Command::new("unshare")
        .args(["--mount", "true"])
        .status()
        .is_ok_and(|done| done.success())
    {
        eprintln!("skipped: no right to mount a small file system in a name space of its own");
        return;
    }
    fs::create_dir(fixture.path("small")).unwrap();
    let target = format!("{NAME}a");
    let args = ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:small/a.img,size=8M"];
    let daemon = fixture.serve_behind(shell, "mount -t tmpfs -o size=2m tmpfs small", &args);
    let mut initiator = Initiator::log_in(daemon.address, &target);
    let data = vec![0x5a; 64 * BLOCK];
    let written = (0..200).take_while(|at| match initiator.command(write(at * 64, 64), &data, 0) {
        Ok(_) => true,
        Err(code) => {
            assert_eq!(code, NO_SPACE);
            false
        }
    });
    let written = u32::try_from(written.count()).unwrap();
    assert!((32..=64).contains(&written), "{written} writes of 32 KiB fit into 2 MiB");
    // Written blocks can be read, and can be overwritten in place.
    for at in 0..written {
        assert_eq!(initiator.command(read(at * 64, 64), &[], 1 << 15), Ok(data.clone()));
    }
    assert_eq!(initiator.command(write(0, 64), &data, 0), Ok(vec![]));
    let full = initiator.failure(write(9000, 64), &data, 0);
    assert_eq!(code(&full), NO_SPACE);
    assert!((9000..9064).contains(&information(&full).unwrap()), "{full:02x?}");
    // UNMAP of the first half frees space again (SBC-4 §5.35).
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    list.extend((written / 2 * 64).to_be_bytes());
    list.extend([0; 4]);
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(initiator.command(unmap, &list, 0), Ok(vec![]));
    assert_eq!(initiator.command(write(9000, 64), &data, 0), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
}

/// NOT READY, MANUAL INTERVENTION REQUIRED.
const WITHHELD: [u8; 3] = [2, 4, 3];

/// UNIT ATTENTION, NOT READY TO READY CHANGE, MEDIUM MAY HAVE CHANGED.
const BACK: [u8; 3] = [6, 0x28, 0];

fn cut(path: &std::path::Path, len: u64) {
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// Reads block 0 until the read is refused, and returns the sense code.
fn withheld(initiator: &mut Initiator) -> [u8; 3] {
    let began = Instant::now();
    loop {
        match initiator.try_command(read(0, 1), &[], 512) {
            Err(code) => return code,
            Ok(_) => assert!(began.elapsed() < Duration::from_secs(60), "it is served for ever"),
        }
    }
}

fn one_file(size: &str) -> String {
    let target = format!("{NAME}a");
    format!(
        "[[portal]]\nlisten = \"127.0.0.1:0\"\n[[target]]\nname = \"{target}\"\n[[target.lun]]\ntype = \"file\"\n\
         path = \"a.img\"\n{size}\n"
    )
}

#[test]
fn a_file_that_somebody_cuts_shorter_is_no_disk_from_there_on() {
    let fixture = Fixture::new();
    let target = format!("{NAME}a");
    let data = vec![0x5a; 8 * BLOCK];
    for reactor in ["auto", "epoll"] {
        let args =
            ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img,size=2M", "--reactor"];
        let daemon = fixture.serve(&[&args[..], &[reactor]].concat());
        let mut initiator = Initiator::log_in(daemon.address, &target);
        assert_eq!(initiator.command(write(0, 8), &data, 0), Ok(vec![]));
        cut(&fixture.path("a.img"), 1 << 20);
        let sense = initiator.failure(read(2044, 8), &[], 4096);
        // The read that detects the loss is answered with "does not respond to selection", unless the
        // daemon's check of the file came first. No data are made up for blocks that are gone.
        assert!([[2, 5, 0], WITHHELD].contains(&code(&sense)), "{sense:02x?}");
        assert_eq!(withheld(&mut initiator), WITHHELD);
        assert!(initiator.ping());
        let lun = &daemon.ask("luns")["luns"][0];
        assert!(lun["not_ready"].is_string() && lun["bytes"] == 2 << 20, "{lun}");
        assert_eq!(daemon.ask("status")["not_ready"], 1);
        assert_eq!(daemon.stop().0, 0);
        assert!(fixture.log().contains(&format!("{target}/0: ")), "{}", fixture.log());
        cut(&fixture.path("a.img"), 2 << 20);
    }
}

#[test]
fn a_file_that_shrank_is_not_filled_with_zeros_by_a_reload_but_by_its_operator() {
    let fixture = Fixture::new();
    let data = vec![0x5a; 8 * BLOCK];
    fixture.write("targe.toml", &one_file("size = \"2M\""));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.command(write(3000, 8), &data, 0), Ok(vec![]));
    cut(&fixture.path("a.img"), 1 << 20);
    let told = daemon.reload();
    assert!(told["message"].as_str().unwrap().contains("has shrunk to 1048576 bytes"), "{told}");
    assert_eq!(initiator.try_command(read(3000, 8), &[], 4096), Err(WITHHELD), "no zeros");
    assert_eq!(initiator.try_command(write(3000, 8), &data, 0), Err(WITHHELD), "nothing makes it longer");
    assert_eq!(fs::metadata(fixture.path("a.img")).unwrap().len(), 1 << 20);
    // A longer size does not confirm the loss of data.
    fixture.write("targe.toml", &one_file("size = \"3M\""));
    daemon.reload();
    assert_eq!(fs::metadata(fixture.path("a.img")).unwrap().len(), 1 << 20);
    assert_eq!(initiator.try_command(read(0, 1), &[], 512), Err(WITHHELD));
    // The shorter size confirms it, and from there the file may grow.
    fixture.write("targe.toml", &one_file("size = \"1M\""));
    assert_eq!(daemon.reload()["message"], format!("target {NAME}a changed: LUN 0 changed"));
    assert_eq!(initiator.command(read(0, 1), &[], 512), Ok(vec![0; 512]));
    assert_eq!(daemon.ask("luns")["luns"][0]["bytes"], 1 << 20);
    fixture.write("targe.toml", &one_file("size = \"2M\""));
    daemon.reload();
    assert_eq!(initiator.command(read(3000, 8), &[], 4096), Ok(vec![0; 4096]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_file_that_another_was_renamed_over_is_withheld_until_it_is_back() {
    let fixture = Fixture::new();
    let data = vec![0x5a; BLOCK];
    fixture.write("targe.toml", &one_file("size = \"1M\""));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.command(write(0, 1), &data, 0), Ok(vec![]));
    fs::rename(fixture.path("a.img"), fixture.path("kept.img")).unwrap();
    fs::write(fixture.path("a.img"), vec![0x11; 1 << 20]).unwrap();
    // No reload is requested: the daemon checks the file by itself.
    assert_eq!(withheld(&mut initiator), WITHHELD);
    let told = daemon.reload();
    assert!(told["message"].as_str().unwrap().contains("is not the file or device"), "{told}");
    assert_eq!(initiator.try_command(read(0, 1), &[], 512), Err(WITHHELD));
    fs::rename(fixture.path("kept.img"), fixture.path("a.img")).unwrap();
    assert_eq!(
        initiator.try_command(read(0, 1), &[], 512),
        Err(WITHHELD),
        "the operator says so, not the clock"
    );
    assert_eq!(daemon.reload()["message"], "nothing changed");
    assert_eq!(initiator.try_command(read(0, 1), &[], 512), Err(BACK));
    assert_eq!(initiator.command(read(0, 1), &[], 512), Ok(data));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn secrets_that_others_can_read_stop_the_start_and_change_nothing_at_a_reload() {
    let fixture = Fixture::new();
    let auth = "[target.auth]\nuser = \"u\"\nsecret_file = \"secret\"\n";
    let text = crate::ram_targets(&["a"]);
    let guarded = text.replace("[[target.lun]]", &format!("{auth}[[target.lun]]"));
    fixture.write("targe.toml", &guarded);
    fixture.write("secret", "a long enough secret");
    fs::set_permissions(fixture.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let (exit, _, told) = fixture.run(&["serve", "--config", "targe.toml"]);
    assert_eq!(exit, 2);
    assert!(told.contains("can be read by others (mode 644); run: chmod 600"), "{told}");
    assert!(!told.contains("a long enough secret"));

    fixture.write("targe.toml", &text);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut kept = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    fixture.write("targe.toml", &guarded);
    let refused = daemon.reload();
    assert_eq!(refused["applied"], false);
    assert!(kept.ping());
    drop(Initiator::log_in(daemon.address, &format!("{NAME}a")));
    fs::set_permissions(fixture.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(daemon.reload()["applied"], true);
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}a")).err(), Some([2, 1]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn places_that_cannot_be_used_are_named() {
    let fixture = Fixture::new();
    fixture.write("file", "");
    fs::create_dir(fixture.path("open")).unwrap();
    fs::set_permissions(fixture.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(fixture.path("socket")).unwrap();
    fs::set_permissions(fixture.path("socket"), fs::Permissions::from_mode(0o700)).unwrap();
    fixture.write("socket/admin.sock", "");
    fixture.write("targe.toml", &crate::ram_targets(&["a"]));
    let serve = ["serve", "--config", "targe.toml"];
    for (line, told) in [
        ("state_dir = \"file\"", "file"),
        ("state_dir = \"file/below\"", "file/below"),
        ("admin_socket = \"open/admin.sock\"", "open"),
        ("admin_socket = \"file/admin.sock\"", "file"),
        ("admin_socket = \"socket/admin.sock\"", "the file is not a socket"),
    ] {
        fixture.write("targe.toml", &format!("{line}\n{}", crate::ram_targets(&["a"])));
        let (exit, stdout, stderr) = fixture.run(&serve);
        assert_eq!((exit, stdout.as_str()), (1, ""), "{line}: {stderr}");
        assert!(stderr.contains(told) && stderr.starts_with("targe: "), "{line}: {stderr}");
    }
    fs::create_dir(fixture.path("foreign")).unwrap();
    fs::set_permissions(fixture.path("foreign"), fs::Permissions::from_mode(0o700)).unwrap();
    if chown(fixture.path("foreign"), Some(65534), None).is_err() {
        eprintln!("skipped: only root can give a directory to somebody else");
        return;
    }
    let socket = "admin_socket = \"foreign/admin.sock\"\n";
    fixture.write("targe.toml", &(socket.to_owned() + &crate::ram_targets(&["a"])));
    let (exit, _, stderr) = fixture.run(&serve);
    assert_eq!(exit, 1, "{stderr}");
    assert!(stderr.contains("foreign"), "{stderr}");
}

#[test]
fn a_reservation_that_cannot_be_saved_is_not_acknowledged() {
    let fixture = Fixture::new();
    let target = format!("{NAME}a");
    let args = ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img,size=1M"];
    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &target);
    let units = fixture.path("state/targe/units");
    fs::rename(&units, fixture.path("elsewhere")).unwrap();
    fs::write(&units, "in the way").unwrap();
    let refused = initiator.register(0xabcd);
    assert!(refused.is_err(), "it cannot be durable: {refused:?}");
    assert!(initiator.ping());
    fs::remove_file(&units).unwrap();
    fs::rename(fixture.path("elsewhere"), &units).unwrap();
    assert_eq!(daemon.stop().0, 0);
    let daemon = fixture.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &target);
    assert_eq!(initiator.read_keys(), Ok(vec![]), "what was refused has not happened");
    assert_eq!(initiator.register(0xabcd), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_registration_stays_with_its_port_when_a_target_is_added_and_targe_restarted() {
    let fixture = Fixture::new();
    let config = |names: &[&str]| {
        let mut text = "portal = [{ listen = \"127.0.0.1:0\" }]\n\
             lun = [{ name = \"data\", type = \"file\", path = \"a.img\", size = \"1M\", naa = \"3000000000000001\" }]\n"
            .to_owned();
        for name in names {
            text += &format!("[[target]]\nname = \"{NAME}{name}\"\nlun = [{{ share = \"data\" }}]\n");
        }
        fixture.write("targe.toml", &text);
    };
    config(&["m", "z"]);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}m"));
    assert_eq!(initiator.register(0xabcd), Ok(vec![]));
    config(&["a", "m", "z"]);
    assert_eq!(daemon.reload()["applied"], true);
    assert_eq!(daemon.stop().0, 0);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    // PERSISTENT RESERVE OUT (SPC-5 §6.17), RESERVE, write exclusive; RESERVATION CONFLICT for an initiator
    // that is not registered through this port.
    let reserve = [0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
    let list = [&0xabcd_u64.to_be_bytes()[..], &[0; 16]].concat();
    let mut other = Initiator::log_in(daemon.address, &format!("{NAME}z"));
    assert!(other.command(reserve, &list, 0).is_err(), "it never registered through z");
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}m"));
    assert_eq!(initiator.command(reserve, &list, 0), Ok(vec![]));
    let ports = fs::read_to_string(fixture.path("state/targe/ports")).unwrap();
    assert!(ports.starts_with("targe ports 1\n"), "{ports}");
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_damaged_file_of_ports_is_set_aside_and_nobody_is_taken_for_one_that_registered() {
    let fixture = Fixture::new();
    let target = format!("{NAME}a");
    let args = ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img,size=1M"];
    let daemon = fixture.serve(&args);
    let mut holder = Initiator::log_in(daemon.address, &target);
    let list = [&0xabcd_u64.to_be_bytes()[..], &[0; 16]].concat();
    // PERSISTENT RESERVE OUT (SPC-5 §6.17), RESERVE, write exclusive.
    let reserve = [0x5f, 1, 1, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(holder.register(0xabcd), Ok(vec![]));
    assert_eq!(holder.command(reserve, &list, 0), Ok(vec![]));
    daemon.kill();
    let ports = fixture.path("state/targe/ports");
    let whole = fs::read_to_string(&ports).unwrap();
    let id_of = |text: &str| -> u16 {
        let line = text.lines().find(|line| line.contains(" portal ")).unwrap();
        line.split(' ').next().unwrap().parse().unwrap()
    };
    for damaged in [&whole.as_bytes()[..whole.len() - 1], b"", b"\xff\xfe 1 portal"] {
        fs::write(&ports, damaged).unwrap();
        let daemon = fixture.serve(&args);
        assert_eq!(fs::read(fixture.path("state/targe/ports.damaged")).unwrap(), damaged);
        assert_ne!(
            id_of(&fs::read_to_string(&ports).unwrap()),
            id_of(&whole),
            "the holder has registered there"
        );
        let log = fixture.log();
        assert!(log.contains("ports cannot be read, and is kept as"), "{log}");
        assert!(
            log.contains("get RESERVATION CONFLICT where others do: iqn.2001-04.com.example:test"),
            "{log}"
        );
        // The same initiator port is not registered through the new target port.
        let mut initiator = Initiator::log_in(daemon.address, &target);
        assert!(initiator.command(write(0, 1), &[1; BLOCK], 0).is_err());
        assert_eq!(initiator.register(0xef), Ok(vec![]));
        assert_eq!(initiator.read_keys().unwrap().len(), 2);
        // It unregisters, so that the next round begins like this one.
        let list = [&0xef_u64.to_be_bytes()[..], &[0; 12], &[1, 0, 0, 0]].concat();
        let unregister = [0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(initiator.command(unregister, &list, 0), Ok(vec![]));
        daemon.kill();
    }
}

#[test]
fn a_reload_that_is_refused_still_takes_away_and_leaves_nothing_behind() {
    let fixture = Fixture::new();
    let config = |first: &str, acl: &str, more: &str| {
        fixture.write(
            "targe.toml",
            &format!(
                "portal = [{{ listen = \"127.0.0.1:0\" }}]\n\
                 lun = [{{ name = \"data\", type = \"file\", path = \"a.img\", size = \"1M\" }}]\n\
                 [[target]]\nname = \"{NAME}{first}\"\nlun = [{{ share = \"data\" }}]\n\
                 [[target]]\nname = \"{NAME}x\"\nlun = [{{ share = \"data\" }}]\nacl = [{{ initiators = [\"{acl}\"] }}]\n\
                 [[target]]\nname = \"{NAME}y\"\nlun = [{{ type = \"ram\", size = \"1M\" }}{more}]\n"
            ),
        );
    };
    config("a", "*", "");
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut evicted = Initiator::log_in(daemon.address, &format!("{NAME}x"));
    let mut kept = Initiator::log_in(daemon.address, &format!("{NAME}y"));
    assert!(evicted.ping());
    // The name of the shared disk is derived from the name of its first target, which cannot change while the
    // disk is served.
    config("b", "iqn.2001-04.com.example:nobody", "");
    let told = daemon.reload();
    assert_eq!(told["applied"], false);
    let message = told["message"].as_str().unwrap();
    assert!(
        message.contains(
            "restart targe to apply this\nreload refused; only its access restrictions were applied: "
        ),
        "{message}"
    );
    assert!(message.contains(&format!("target {NAME}x changed: access")), "{message}");
    fixture.await_log("reload: reload refused; only its access restrictions were applied");
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}x")).err(), Some([2, 2]));
    assert!(kept.ping() && !evicted.ping());
    // No space is allocated before the whole configuration can be applied, and files that were created for it
    // are removed again.
    let more = ", { type = \"file\", path = \"new.img\", size = \"1M\", provisioning = \"full\" }, { type = \
                \"file\", path = \"vast.img\", size = \"1000000T\", provisioning = \"full\" }";
    config("a", "*", more);
    let told = daemon.reload();
    assert_eq!(told["applied"], false, "{told}");
    assert!(!fixture.path("new.img").exists() && !fixture.path("vast.img").exists());
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}x")).err(), Some([2, 2]));
    config("a", "*", "");
    assert_eq!(daemon.reload()["applied"], true);
    assert!(Initiator::log_in(daemon.address, &format!("{NAME}x")).ping());
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn what_a_disk_says_of_itself_changes_with_the_configuration_or_the_reload_is_refused() {
    let fixture = Fixture::new();
    let disk = |type_and_size: &str, more: &str| {
        format!(
            "portal = [{{ listen = \"127.0.0.1:0\" }}]\n[[target]]\nname = \"{NAME}a\"\n[[target.lun]]\n{type_and_size}\n{more}\n"
        )
    };
    let file = "type = \"file\"\npath = \"a.img\"\nsize = \"1M\"";
    fixture.write("targe.toml", &disk(file, ""));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    let inquiry = [0x12, 0, 0, 0, 96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // MODE SENSE (6): caching page, without block descriptor (SBC-4 §6.5.6).
    let caching = [0x1a, 8, 8, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(initiator.command(caching, &[], 64).unwrap()[6] & 4, 4);
    fixture.write("targe.toml", &disk(file, "vendor = \"ACME\"\nserial = \"0815\"\nwrite_cache = false"));
    assert_eq!(daemon.reload()["applied"], true);
    // INQUIRY DATA HAS CHANGED, MODE PARAMETERS CHANGED.
    let heard: Vec<_> = (0..2).map(|_| initiator.try_command(read(0, 1), &[], 512).unwrap_err()).collect();
    assert!(heard.contains(&[6, 0x3f, 3]) && heard.contains(&[6, 0x2a, 1]), "{heard:02x?}");
    assert_eq!(initiator.command(inquiry, &[], 96).unwrap()[8..16], *b"ACME    ");
    assert_eq!(initiator.command(caching, &[], 64).unwrap()[6] & 4, 0);
    assert_eq!(daemon.ask("luns")["luns"][0]["serial"], "0815");
    assert_eq!(initiator.command(write(0, 1), &[7; 512], 0), Ok(vec![]));
    for (ro, applied) in [("true", true), ("false", true)] {
        fixture.write("targe.toml", &disk(file, &format!("ro = {ro}")));
        assert_eq!(daemon.reload()["applied"], applied, "{ro}: the file is open for writing");
    }
    assert_eq!(initiator.command(write(0, 1), &[8; 512], 0), Ok(vec![]));
    // Otherwise LUN 0 could lead it to no other disk, not even after a restart.
    initiator.log_out();
    assert_eq!(daemon.stop().0, 0);

    fixture.write("targe.toml", &disk(file, "ro = true"));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    fixture.write("targe.toml", &disk(file, ""));
    let told = daemon.reload();
    assert!(told["message"].as_str().unwrap().contains("\"ro\" of "), "{told}");
    assert_eq!(daemon.ask("luns")["luns"][0]["read_only"], true);
    assert_eq!(daemon.stop().0, 0);

    let ram = "type = \"ram\"\nsize = \"1M\"";
    fixture.write("targe.toml", &disk(ram, ""));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.command(write(0, 1), &[7; 512], 0), Ok(vec![]));
    for other in ["type = \"null\"\nsize = \"1M\"", "type = \"ram\"\nsize = \"2M\"", file] {
        fixture.write("targe.toml", &disk(other, ""));
        let told = daemon.reload();
        assert!(told["message"].as_str().unwrap().contains("its data would be lost"), "{told}");
        assert_eq!(initiator.command(read(0, 1), &[], 512), Ok(vec![7; 512]), "{other}");
    }
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_reservation_is_kept_when_its_disk_moves_to_another_file() {
    let fixture = Fixture::new();
    let naa = "naa = \"3000000000000001\"";
    for name in ["a.img", "b.img"] {
        fs::File::create(fixture.path(name)).unwrap().set_len(1 << 20).unwrap();
    }
    let moved = one_file(naa).replace("a.img", "b.img");
    let without = one_file("").replace("\"file\"\npath = \"a.img\"", "\"null\"\nsize = \"1M\"");
    fixture.write("targe.toml", &one_file(naa));
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    fixture.write("targe.toml", &moved);
    let told = daemon.reload();
    assert!(
        told["message"].as_str().unwrap().contains("naa.3000000000000001 cannot move from file:"),
        "{told}"
    );
    // What is registered while the reload is under way is on the disk that stays.
    assert_eq!(initiator.register(0xabcd), Ok(vec![]));
    initiator.log_out();
    fixture.write("targe.toml", &without.replace("[[target.lun]]", "[[target.lun]]\nlun = 1"));
    assert_eq!(daemon.reload()["applied"], true);
    fixture.write("targe.toml", &moved);
    assert_eq!(daemon.reload()["applied"], true);
    let mut initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    assert_eq!(initiator.read_keys(), Ok(vec![0xabcd]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_file_and_the_loop_device_over_it_are_one_medium() {
    let fixture = Fixture::new();
    fs::File::create(fixture.path("a.img")).unwrap().set_len(1 << 20).unwrap();
    let attached =
        std::process::Command::new("losetup").args(["-f", "--show"]).arg(fixture.path("a.img")).output();
    let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
        eprintln!("skipped: no right to attach a loop device");
        return;
    };
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    let (exit, _, stderr) =
        fixture.run(&["serve", "--lun", "file:a.img", "--lun", &format!("block:{device}")]);
    let detached = std::process::Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert!(detached.success());
    assert_eq!(exit, 2, "{stderr}");
    assert!(stderr.contains(&format!("{device} is already the medium of ")), "{stderr}");
}

#[test]
fn a_file_that_shrank_or_vanished_while_targe_was_down_is_not_made_up_at_its_start() {
    let fixture = Fixture::new();
    let config = |size: &str| {
        let text = one_file(&format!("size = \"{size}\""));
        fixture.write("targe.toml", &text.replace("a.img", "disks/a.img"));
    };
    let refused = |what: &str| {
        let (exit, _, told) = fixture.run(&["serve", "--strict", "--config", "targe.toml"]);
        assert!(exit == 1 && told.contains(what), "{exit}: {told}");
    };
    fs::create_dir(fixture.path("disks")).unwrap();
    config("2M");
    assert_eq!(fixture.serve(&["--config", "targe.toml"]).stop().0, 0);
    let disk = fixture.path("disks/a.img");
    cut(&disk, 1 << 20);
    refused("has 1048576 bytes, and 2097152 were served when targe ran last");
    assert_eq!(fs::metadata(&disk).unwrap().len(), 1 << 20);
    // The operator confirms the size; from there the file may grow.
    config("1M");
    assert_eq!(fixture.serve(&["--config", "targe.toml"]).stop().0, 0);
    config("3M");
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    config("4M");
    assert_eq!(daemon.reload()["applied"], true);
    assert_eq!(daemon.stop().0, 0);
    cut(&disk, 3 << 20);
    refused("has 3145728 bytes, and 4194304 were served");
    // The file system is not mounted: its mount point exists, and is empty.
    fs::rename(fixture.path("disks"), fixture.path("unmounted")).unwrap();
    fs::create_dir(fixture.path("disks")).unwrap();
    refused("is its file system mounted?");
    // Without --strict the daemon serves what is there, and the disk when it comes.
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let not_ready = || daemon.ask("luns")["luns"][0]["not_ready"].as_str().map(str::to_owned);
    assert!(not_ready().is_some_and(|why| why.contains("is its file system mounted?")), "{:?}", not_ready());
    assert!(!disk.exists());
    fs::remove_dir(fixture.path("disks")).unwrap();
    fs::rename(fixture.path("unmounted"), fixture.path("disks")).unwrap();
    // The file is shorter than it was.
    let wait_until = |what: &dyn Fn(Option<String>) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !what(not_ready()) {
            assert!(Instant::now() < deadline, "{:?}", not_ready());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    wait_until(&|why| why.is_some_and(|why| why.contains("has 3145728 bytes")));
    fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(4 << 20).unwrap();
    wait_until(&|why| why.is_none());
    assert_eq!(daemon.stop().0, 0);
    // A file that was served is not created again without the operator's word, who removes the record of it.
    fs::remove_file(&disk).unwrap();
    refused("is missing, and 4194304 bytes of it were served before");
    assert!(!disk.exists());
    let records: Vec<_> = fs::read_dir(fixture.path("state/targe/units"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "size"))
        .collect();
    assert_eq!(records.len(), 1);
    fs::remove_file(&records[0]).unwrap();
    assert_eq!(fixture.serve(&["--config", "targe.toml"]).stop().0, 0);
    assert_eq!(fs::metadata(&disk).unwrap().len(), 4 << 20);
}
