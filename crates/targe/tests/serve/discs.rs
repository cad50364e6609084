//! Drives for discs: what a reload does to the disc that is in a drive.

use crate::NAME;
use crate::fixture::{Daemon, Fixture};
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

#[test]
fn a_disc_that_a_host_burns_stays_writable_when_a_reload_names_a_read_only_one() {
    let fixture = Fixture::new();
    create(&fixture, "blank.iso", "bd-r");
    std::fs::write(fixture.path("rom.iso"), [7; 2 * SECTOR]).unwrap();
    let (daemon, mut initiator) = serve(&fixture, "blank.iso");
    prevent(&mut initiator, true);
    assert_eq!(write(&mut initiator, 0, 1), Ok(vec![]));
    reload(&fixture, &daemon, "rom.iso");
    assert!(fixture.log().contains("blank.iso stays in the drive"), "{}", fixture.log());
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
