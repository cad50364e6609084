//! What goes wrong around a daemon: disks that are full or broken, files that are not as they should be.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

use crate::NAME;
use crate::house::House;
use crate::initiator::Initiator;

const BLOCK: usize = 512;

/// SBC-4 §5.43, §5.18: WRITE (10), READ (10) of `count` blocks.
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
    let house = House::new();
    fs::File::create(house.path("a.img")).unwrap().set_len(8 << 20).unwrap();
    let target = format!("{NAME}a");
    for reactor in ["auto", "epoll"] {
        let args =
            ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img", "--reactor", reactor];
        // In units of 512 bytes: a mebibyte.
        let daemon = house.serve_behind(&["sh"], "ulimit -f 2048", &args);
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
    let house = House::new();
    let shell: &[&str] = &["unshare", "--mount", "sh"];
    if !std::process::Command::new("unshare")
        .args(["--mount", "true"])
        .status()
        .is_ok_and(|done| done.success())
    {
        eprintln!("skipped: no right to mount a small file system in a name space of its own");
        return;
    }
    fs::create_dir(house.path("small")).unwrap();
    let target = format!("{NAME}a");
    let args = ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:small/a.img,size=8M"];
    let daemon = house.serve_behind(shell, "mount -t tmpfs -o size=2m tmpfs small", &args);
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
    // What is there is read, and can be written again in place.
    for at in 0..written {
        assert_eq!(initiator.command(read(at * 64, 64), &[], 1 << 15), Ok(data.clone()));
    }
    assert_eq!(initiator.command(write(0, 64), &data, 0), Ok(vec![]));
    let full = initiator.failure(write(9000, 64), &data, 0);
    assert_eq!(code(&full), NO_SPACE);
    assert!((9000..9064).contains(&information(&full).unwrap()), "{full:02x?}");
    // UNMAP of the first half gives room again (SBC-4 §5.38).
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    list.extend((written / 2 * 64).to_be_bytes());
    list.extend([0; 4]);
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(initiator.command(unmap, &list, 0), Ok(vec![]));
    assert_eq!(initiator.command(write(9000, 64), &data, 0), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_file_that_somebody_cuts_shorter_is_no_disk_from_there_on() {
    let house = House::new();
    let target = format!("{NAME}a");
    let data = vec![0x5a; 8 * BLOCK];
    for reactor in ["auto", "epoll"] {
        let args =
            ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img,size=2M", "--reactor"];
        let daemon = house.serve(&[&args[..], &[reactor]].concat());
        let mut initiator = Initiator::log_in(daemon.address, &target);
        assert_eq!(initiator.command(write(0, 8), &data, 0), Ok(vec![]));
        fs::OpenOptions::new().write(true).open(house.path("a.img")).unwrap().set_len(1 << 20).unwrap();
        assert_eq!(initiator.command(read(0, 8), &[], 4096), Ok(data.clone()));
        let sense = initiator.failure(read(2044, 8), &[], 4096);
        // NOT READY, LOGICAL UNIT DOES NOT RESPOND TO SELECTION: nothing is made up for what is not there.
        assert_eq!(code(&sense), [2, 5, 0], "{sense:02x?}");
        assert!(initiator.ping());
        assert_eq!(daemon.stop().0, 0);
    }
}

#[test]
fn secrets_that_others_can_read_stop_the_start_and_change_nothing_at_a_reload() {
    let house = House::new();
    let auth = "[target.auth]\nuser = \"u\"\nsecret_file = \"secret\"\n";
    let text = crate::ram_targets(&["a"]);
    let guarded = text.replace("[[target.lun]]", &format!("{auth}[[target.lun]]"));
    house.write("targe.toml", &guarded);
    house.write("secret", "a long enough secret");
    fs::set_permissions(house.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    let (exit, _, told) = house.run(&["serve", "--config", "targe.toml"]);
    assert_eq!(exit, 2);
    assert!(told.contains("can be read by others (mode 644); run: chmod 600"), "{told}");
    assert!(!told.contains("a long enough secret"));

    house.write("targe.toml", &text);
    let daemon = house.serve(&["--config", "targe.toml"]);
    let mut kept = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    house.write("targe.toml", &guarded);
    let refused = daemon.reload();
    assert_eq!(refused["applied"], false);
    assert!(kept.ping());
    drop(Initiator::log_in(daemon.address, &format!("{NAME}a")));
    fs::set_permissions(house.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(daemon.reload()["applied"], true);
    assert_eq!(Initiator::try_log_in(daemon.address, &format!("{NAME}a")).err(), Some([2, 1]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn places_that_cannot_be_used_are_named() {
    let house = House::new();
    house.write("file", "");
    fs::create_dir(house.path("open")).unwrap();
    fs::set_permissions(house.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(house.path("socket")).unwrap();
    fs::set_permissions(house.path("socket"), fs::Permissions::from_mode(0o700)).unwrap();
    house.write("socket/admin.sock", "");
    house.write("targe.toml", &crate::ram_targets(&["a"]));
    let serve = ["serve", "--config", "targe.toml"];
    for (line, told) in [
        ("state_dir = \"file\"", "file"),
        ("state_dir = \"file/below\"", "file/below"),
        ("admin_socket = \"open/admin.sock\"", "open"),
        ("admin_socket = \"file/admin.sock\"", "file"),
        ("admin_socket = \"socket/admin.sock\"", "something else than a socket stands there"),
    ] {
        house.write("targe.toml", &format!("{line}\n{}", crate::ram_targets(&["a"])));
        let (exit, stdout, stderr) = house.run(&serve);
        assert_eq!((exit, stdout.as_str()), (1, ""), "{line}: {stderr}");
        assert!(stderr.contains(told) && stderr.starts_with("targe: "), "{line}: {stderr}");
    }
    fs::create_dir(house.path("foreign")).unwrap();
    fs::set_permissions(house.path("foreign"), fs::Permissions::from_mode(0o700)).unwrap();
    if chown(house.path("foreign"), Some(65534), None).is_err() {
        eprintln!("skipped: only root can give a directory to somebody else");
        return;
    }
    let socket = "admin_socket = \"foreign/admin.sock\"\n";
    house.write("targe.toml", &(socket.to_owned() + &crate::ram_targets(&["a"])));
    let (exit, _, stderr) = house.run(&serve);
    assert_eq!(exit, 1, "{stderr}");
    assert!(stderr.contains("foreign"), "{stderr}");
}

#[test]
fn a_reservation_that_cannot_be_saved_is_not_acknowledged() {
    let house = House::new();
    let target = format!("{NAME}a");
    let args = ["--listen", "127.0.0.1:0", "--target", &target, "--lun", "file:a.img,size=1M"];
    let daemon = house.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &target);
    let units = house.path("state/targe/units");
    fs::rename(&units, house.path("elsewhere")).unwrap();
    fs::write(&units, "in the way").unwrap();
    let refused = initiator.register(0xabcd);
    assert!(refused.is_err(), "it cannot be durable: {refused:?}");
    assert!(initiator.ping());
    fs::remove_file(&units).unwrap();
    fs::rename(house.path("elsewhere"), &units).unwrap();
    assert_eq!(daemon.stop().0, 0);
    let daemon = house.serve(&args);
    let mut initiator = Initiator::log_in(daemon.address, &target);
    assert_eq!(initiator.read_keys(), Ok(vec![]), "what was refused has not happened");
    assert_eq!(initiator.register(0xabcd), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
}
