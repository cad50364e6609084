//! SANITIZE that was under way when its disk was removed or the daemon stopped, and the medium that is served
//! next.

use std::fs;
use std::time::Duration;

use crate::NAME;
use crate::fixture::Fixture;
use crate::initiator::Initiator;

/// NOT READY, SANITIZE IN PROGRESS.
const IN_PROGRESS: [u8; 3] = [2, 0x04, 0x1b];
const LEN: usize = 64 << 20;
/// The value of each byte of the backup.
const BACKUP: u8 = 0x11;

/// Writes a configuration of a disk in memory and, if it is `with` one, a disk in a file.
fn configure(fixture: &Fixture, with: bool) {
    let file = if with { ", { type = \"file\", path = \"a.img\" }" } else { "" };
    fixture.write(
        "targe.toml",
        &format!(
            "portal = [{{ listen = \"127.0.0.1:0\" }}]\n[[target]]\nname = \"{NAME}a\"\n\
             lun = [{{ type = \"null\", size = \"1M\" }}{file}]\n"
        ),
    );
}

/// Sends TEST UNIT READY to the disk in the file, and returns its error.
fn ready(initiator: &mut Initiator) -> Result<Vec<u8>, [u8; 3]> {
    initiator.lun = 1;
    initiator.command([0; 16], &[], 0)
}

/// Sends SANITIZE (OVERWRITE, IMMED) to the disk in the file. Thirty-one passes take longer than a test.
fn sanitize(initiator: &mut Initiator) {
    initiator.lun = 1;
    let mut cdb = [0; 16];
    (cdb[0], cdb[1], cdb[8]) = (0x48, 0x81, 5);
    assert_eq!(initiator.command(cdb, &[31, 0, 0, 1, 0xaa], 0), Ok(vec![]));
    assert_eq!(ready(initiator), Err(IN_PROGRESS));
}

/// Puts a backup in the place of the disk, which is kept as `erased.img`.
fn restore_backup(fixture: &Fixture) {
    fs::write(fixture.path("backup.img"), vec![BACKUP; LEN]).unwrap();
    fs::rename(fixture.path("a.img"), fixture.path("erased.img")).unwrap();
    fs::rename(fixture.path("backup.img"), fixture.path("a.img")).unwrap();
}

fn expect_backup(fixture: &Fixture) {
    assert!(
        fs::read(fixture.path("a.img")).unwrap().iter().all(|byte| *byte == BACKUP),
        "the backup is erased"
    );
}

/// Removes the saved files of disks with this extension, and returns how many there were.
fn remove_saved(fixture: &Fixture, extension: &str) -> usize {
    let saved = fs::read_dir(fixture.path("state/targe/units")).unwrap().map(|entry| entry.unwrap().path());
    let saved = saved.filter(|path| path.extension().is_some_and(|found| found == extension));
    saved.inspect(|path| fs::remove_file(path).unwrap()).count()
}

#[test]
fn a_sanitize_operation_does_not_go_on_in_a_file_that_was_put_in_the_place_of_its_medium() {
    let fixture = Fixture::new();
    fs::write(fixture.path("a.img"), vec![0; LEN]).unwrap();
    configure(&fixture, true);
    let args = ["--config", "targe.toml"];
    let daemon = fixture.serve(&args);
    sanitize(&mut Initiator::log_in(daemon.address, &format!("{NAME}a")));
    configure(&fixture, false);
    assert_eq!(daemon.reload()["applied"], true);
    restore_backup(&fixture);
    configure(&fixture, true);
    let told = daemon.reload();
    std::thread::sleep(Duration::from_secs(1));
    expect_backup(&fixture);
    assert_eq!(told["applied"], false, "{told}");
    let warned = format!("is under way; when file:{} is served", fixture.path("a.img").display());
    fixture.await_log(&warned);
    let why = told["message"].as_str().unwrap();
    assert!(why.contains("on another medium") && why.contains(".state to serve this one as it is"), "{told}");
    assert_eq!(daemon.stop().0, 0);
    // A start is no confirmation either.
    let (exit, _, why) = fixture.run(&["serve", "--config", "targe.toml", "--strict"]);
    assert!(exit == 1 && why.contains("on another medium"), "{exit}: {why}");
    let daemon = fixture.serve(&args);
    fixture.await_log("its LUN is not ready, and is tried again");
    assert_eq!(daemon.stop().0, 0);
    expect_backup(&fixture);
    // The operation goes on in its own medium, and the log tells it.
    fs::rename(fixture.path("a.img"), fixture.path("backup.img")).unwrap();
    fs::rename(fixture.path("erased.img"), fixture.path("a.img")).unwrap();
    let daemon = fixture.serve(&args);
    assert_eq!(ready(&mut Initiator::log_in(daemon.address, &format!("{NAME}a"))), Err(IN_PROGRESS));
    fixture.await_log("SANITIZE or FORMAT UNIT was under way, and erases file:");
    assert_eq!(daemon.stop().0, 0);
    // The operator wants the backup instead.
    fs::rename(fixture.path("backup.img"), fixture.path("a.img")).unwrap();
    assert_eq!(remove_saved(&fixture, "state"), 1);
    let daemon = fixture.serve(&args);
    assert_eq!(ready(&mut Initiator::log_in(daemon.address, &format!("{NAME}a"))), Ok(vec![]));
    assert_eq!(daemon.stop().0, 0);
    expect_backup(&fixture);
}

/// A state that an earlier release saved tells nothing of the medium.
#[test]
fn a_sanitize_operation_without_a_recorded_medium_goes_on() {
    let fixture = Fixture::new();
    fs::write(fixture.path("a.img"), vec![0; LEN]).unwrap();
    configure(&fixture, true);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    sanitize(&mut Initiator::log_in(daemon.address, &format!("{NAME}a")));
    daemon.kill();
    assert_eq!(remove_saved(&fixture, "sanitize"), 1);
    let daemon = fixture.serve(&["--config", "targe.toml"]);
    assert_eq!(ready(&mut Initiator::log_in(daemon.address, &format!("{NAME}a"))), Err(IN_PROGRESS));
    assert_eq!(daemon.stop().0, 0);
}
