//! Drives for discs: what a reload does to the disc that is in a drive.

use std::time::{Duration, Instant};

use crate::NAME;
use crate::fixture::{Daemon, Fixture, PATIENCE};
use crate::initiator::Initiator;

const SECTOR: usize = 2048;
const SYNCHRONIZE: [u8; 16] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Makes the image of a blank disc.
fn create(fixture: &Fixture, image: &str, medium: &str) {
    let made = fixture.run(&["disc", "create", image, "--medium", medium, "--capacity", "1M"]);
    assert_eq!(made.0, 0, "{made:?}");
}

/// Writes a configuration of one drive.
fn configure(fixture: &Fixture, image: &str) {
    let text = format!(
        "[[portal]]\nlisten = \"127.0.0.1:0\"\n[[target]]\nname = \"{NAME}a\"\n[[target.lun]]\ntype = \"disc\"\n\
         path = \"{image}\"\n"
    );
    fixture.write("targe.toml", &text);
}

/// Starts a daemon whose drive holds a disc, and logs in to it.
fn serve(fixture: &Fixture, image: &str) -> (Daemon, Initiator) {
    configure(fixture, image);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    let initiator = Initiator::log_in(daemon.address, &format!("{NAME}a"));
    (daemon, initiator)
}

fn reload(fixture: &Fixture, daemon: &Daemon, image: &str) {
    configure(fixture, image);
    let told = daemon.reload();
    assert_eq!(told["applied"], true, "{told}");
}

/// READ(10) or WRITE(10) of one sector.
fn cdb(opcode: u8, lba: u8) -> [u8; 16] {
    [opcode, 0, 0, 0, 0, lba, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
}

fn write(initiator: &mut Initiator, lba: u8, byte: u8) -> Result<Vec<u8>, [u8; 3]> {
    initiator.command(cdb(0x2a, lba), &[byte; SECTOR], 0)
}

/// Prevents the removal of the disc, or allows it.
fn prevent(initiator: &mut Initiator, is_prevented: bool) {
    let mut cdb = [0; 16];
    (cdb[0], cdb[4]) = (0x1e, u8::from(is_prevented));
    assert_eq!(initiator.command(cdb, &[], 0), Ok(vec![]));
}

fn is_read_only(daemon: &Daemon) -> bool {
    daemon.ask("luns")["luns"][0]["read_only"].as_bool().unwrap()
}

fn read(initiator: &mut Initiator, lba: u8) -> Result<Vec<u8>, [u8; 3]> {
    initiator.command(cdb(0x28, lba), &[], 2048)
}

/// Formats the BD-RE in the drive.
fn format(initiator: &mut Initiator) {
    let list = [0, 0x02, 0, 8, 0, 0, 2, 0, 0x31 << 2, 0, 0, 0];
    let cdb = [0x04, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(initiator.command(cdb, &list, 0), Ok(vec![]));
}

/// Returns how many sectors the first track of a disc has.
fn written(fixture: &Fixture, image: &str) -> Option<u64> {
    let told = fixture.run(&["disc", "ls", "--json", image]);
    let listing: serde_json::Value = serde_json::from_str(&told.1).unwrap();
    listing["tracks"][0]["sectors"].as_u64()
}

/// Waits until the log says that a disc is in the drive.
fn expect_in_drive(fixture: &Fixture, image: &str) {
    fixture.await_log(&format!("{image} is in the drive"));
}

/// Waits until a host finds the disc withheld.
fn expect_withheld(initiator: &mut Initiator) {
    let deadline = Instant::now() + PATIENCE;
    while initiator.command([0; 16], &[], 0) != Err([2, 4, 3]) {
        assert!(Instant::now() < deadline, "the disc is ready");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_writable_disc_that_was_truncated_is_served_again_by_a_reload() {
    let fixture = Fixture::new();
    create(&fixture, "disc.iso", "bd-re");
    let (daemon, mut initiator) = serve(&fixture, "disc.iso");
    format(&mut initiator);
    assert_eq!(write(&mut initiator, 200, 5), Ok(vec![]));
    assert_eq!(initiator.command(SYNCHRONIZE, &[], 0), Ok(vec![]));
    let path = fixture.path("disc.iso");
    let image = std::fs::read(&path).unwrap();
    for is_restored in [true, false, true] {
        // In place: the file stays the same one.
        std::fs::write(&path, &image[..64 * SECTOR]).unwrap();
        assert!(read(&mut initiator, 200).is_err());
        expect_withheld(&mut initiator);
        if is_restored {
            std::fs::write(&path, &image).unwrap();
        }
        reload(&fixture, &daemon, "disc.iso");
        assert_eq!(read(&mut initiator, 200).is_ok(), is_restored);
        assert_eq!(write(&mut initiator, 200, 6).is_ok(), is_restored);
        assert!(!is_read_only(&daemon));
        if !is_restored {
            fixture.await_log("disc.iso is not the image of a writable disc any more");
            assert_eq!(read(&mut initiator, 63), Err([2, 4, 3]), "it stays withheld");
            std::fs::write(&path, &image).unwrap();
            reload(&fixture, &daemon, "disc.iso");
        }
    }
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn the_disc_in_a_drive_is_not_opened_again_by_another_path_while_hosts_write_it() {
    let fixture = Fixture::new();
    create(&fixture, "disc.iso", "bd-r");
    let (daemon, mut initiator) = serve(&fixture, "disc.iso");
    std::fs::hard_link(fixture.path("disc.iso"), fixture.path("link.iso")).unwrap();
    std::os::unix::fs::symlink("disc.iso", fixture.path("symlink.iso")).unwrap();
    for (lba, alias) in [(0, "link.iso"), (1, "symlink.iso")] {
        assert_eq!(write(&mut initiator, lba, 1), Ok(vec![]));
        configure(&fixture, alias);
        let told = daemon.reload();
        assert_eq!(told["applied"], false, "{told}");
        assert!(told.to_string().contains("which is in the drive and which hosts can write"), "{told}");
    }
    assert_eq!(write(&mut initiator, 2, 1), Ok(vec![]));
    assert_eq!(initiator.command(SYNCHRONIZE, &[], 0), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
    assert_eq!(written(&fixture, "disc.iso"), Some(3));
}

#[test]
fn a_disc_that_left_its_drive_is_put_in_again_at_once() {
    let fixture = Fixture::new();
    create(&fixture, "disc.iso", "bd-re");
    create(&fixture, "other.iso", "bd-re");
    let (daemon, mut initiator) = serve(&fixture, "disc.iso");
    format(&mut initiator);
    for byte in 0..8 {
        assert_eq!(write(&mut initiator, 9, byte), Ok(vec![]));
        assert_eq!(initiator.command(SYNCHRONIZE, &[], 0), Ok(vec![]));
        for path in [["missing.iso", "other.iso"][usize::from(byte % 2)], "disc.iso"] {
            reload(&fixture, &daemon, path);
        }
        assert_eq!(read(&mut initiator, 9), Ok(vec![byte; SECTOR]));
    }
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn nothing_is_written_to_a_writable_disc_whose_path_leads_to_another_file() {
    let fixture = Fixture::new();
    for image in ["disc.iso", "other.iso"] {
        create(&fixture, image, "bd-re");
    }
    let (daemon, mut initiator) = serve(&fixture, "disc.iso");
    format(&mut initiator);
    assert_eq!(write(&mut initiator, 9, 1), Ok(vec![]));
    assert_eq!(initiator.command(SYNCHRONIZE, &[], 0), Ok(vec![]));
    prevent(&mut initiator, true);
    let [disc, other, former] = ["disc.iso", "other.iso", "former.iso"].map(|name| fixture.path(name));
    std::fs::hard_link(&disc, &former).unwrap();
    std::fs::rename(&other, &disc).unwrap();
    expect_withheld(&mut initiator);
    let images = [&former, &disc].map(|path| std::fs::read(path).unwrap());
    assert_eq!(write(&mut initiator, 9, 2), Err([2, 4, 3]));
    assert_eq!(initiator.command(SYNCHRONIZE, &[], 0), Err([2, 4, 3]));
    assert!(images == [&former, &disc].map(|path| std::fs::read(path).unwrap()));
    let told = "disc.iso is not the file or device that is served: nothing is read or written";
    fixture.await_log(told);
    // It is the same disc again, and then another one although a host prevents the removal.
    std::fs::rename(&disc, &other).unwrap();
    std::fs::rename(&former, &disc).unwrap();
    reload(&fixture, &daemon, "disc.iso");
    assert_eq!(read(&mut initiator, 9), Ok(vec![1; SECTOR]));
    prevent(&mut initiator, true);
    std::fs::rename(&other, &disc).unwrap();
    expect_withheld(&mut initiator);
    reload(&fixture, &daemon, "disc.iso");
    format(&mut initiator);
    assert_eq!(read(&mut initiator, 9), Ok(vec![0; SECTOR]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_disc_that_only_has_to_be_saved_is_saved_and_replaced() {
    let fixture = Fixture::new();
    create(&fixture, "first.iso", "bd-r");
    create(&fixture, "second.iso", "bd-r");
    let (daemon, mut initiator) = serve(&fixture, "first.iso");
    assert_eq!(write(&mut initiator, 0, 1), Ok(vec![]));
    reload(&fixture, &daemon, "second.iso");
    expect_in_drive(&fixture, "second.iso");
    fixture.await_log("is saved, and is replaced then");
    assert_eq!((written(&fixture, "first.iso"), written(&fixture, "second.iso")), (Some(1), None));
    assert!(read(&mut initiator, 0).is_err(), "the second disc is blank");
    assert_eq!(write(&mut initiator, 0, 2), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
}

#[test]
fn a_disc_that_a_host_burns_stays_writable_when_a_reload_names_a_read_only_one() {
    let fixture = Fixture::new();
    create(&fixture, "blank.iso", "bd-r");
    std::fs::write(fixture.path("rom.iso"), [7; 2 * SECTOR]).unwrap();
    let (daemon, mut initiator) = serve(&fixture, "blank.iso");
    prevent(&mut initiator, true);
    assert_eq!(write(&mut initiator, 0, 1), Ok(vec![]));
    reload(&fixture, &daemon, "rom.iso");
    fixture.await_log("blank.iso stays in the drive");
    assert_eq!(write(&mut initiator, 1, 2), Ok(vec![]));
    assert_eq!(initiator.command(SYNCHRONIZE, &[], 0), Ok(vec![]));
    assert!(!is_read_only(&daemon));
    prevent(&mut initiator, false);
    for _ in 0..2 {
        reload(&fixture, &daemon, "rom.iso");
        assert_eq!(write(&mut initiator, 2, 3), Err([7, 0x27, 0]));
        assert!(is_read_only(&daemon));
    }
    assert_eq!(daemon.stop().0, 0);
}
