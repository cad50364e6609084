//! Tests of drives for discs.

use base::units::BlockSize;
use device::contract::DiscProfile;

use super::*;

/// Returns a configuration with one LUN.
fn with_lun(keys: &str) -> String {
    format!(
        "portal = [{{ listen = \"127.0.0.1\" }}]\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
         lun = [{{ {keys} }}]\n"
    )
}

#[test]
fn a_drive_is_removable_and_keeps_its_name_with_another_disc() {
    let scratch = Scratch::new();
    scratch.file("a.iso", [0; 4096], 0o600);
    scratch.file("b.iso", [0; 2048], 0o600);
    let drive = |keys: &str| scratch.config(&with_lun(keys));
    let first = drive("type = \"disc\", path = \"a.iso\"");
    let unit = &first.units[0];
    assert_eq!(unit.medium, Medium::Disc { path: scratch.path().join("a.iso"), profile: None });
    assert_eq!((unit.block_size, unit.physical_block_size), (BlockSize::B2048, BlockSize::B2048));
    assert_eq!((unit.removable, unit.thin), (true, false));
    assert_eq!(unit.identity.product, "Virtual Disc");
    let second = drive("type = \"disc\", path = \"b.iso\", profile = \"dvd\"");
    assert_eq!(
        second.units[0].medium,
        Medium::Disc { path: scratch.path().join("b.iso"), profile: Some(DiscProfile::Dvd) }
    );
    assert_eq!(second.units[0].key(), unit.key());
    assert_eq!(
        Config::diff(&first, &second).to_string(),
        "target iqn.2001-04.com.example:a changed: LUN 0 changed"
    );
}

/// The disc that is named may have to wait until a host has burned the one in the drive, or may be replaced.
#[test]
fn a_read_only_disc_makes_no_drive_read_only() {
    let scratch = Scratch::new();
    scratch.file("rom.iso", [0; 4096], 0o600);
    crate::disc_image::create(&scratch.path().join("blank.iso"), "bd-r", Some(1 << 20)).unwrap();
    let unit = |keys: &str| scratch.config(&with_lun(keys)).units.remove(0);
    for image in ["rom.iso", "blank.iso"] {
        let unit = unit(&format!("type = \"disc\", path = \"{image}\""));
        assert_eq!((unit.read_only, unit.write_cache), (false, true), "{image}");
    }
    assert!(unit("type = \"disc\", path = \"blank.iso\", ro = true").read_only);
}

#[test]
fn an_image_is_measured_and_a_missing_one_is_an_empty_drive() {
    let scratch = Scratch::new();
    let length = |len: u64| fs::File::create(scratch.path().join("disc.iso")).unwrap().set_len(len).unwrap();
    let load = |profile: &str| {
        let loaded = scratch.load(&with_lun(&format!("type = \"disc\", path = \"disc.iso\"{profile}")));
        scratch.told(&loaded.map_or_else(|report| report, |loaded| loaded.report))
    };
    let at = |told: &str| format!("DIR/targe.toml:4:32: {told}");
    check(&load(""), &at("warning: DIR/disc.iso does not exist, so the drive is empty"));
    length(2047);
    check(&load(""), &at("DIR/disc.iso is shorter than one sector of 2048 bytes"));
    length(4097);
    check(&load(""), &at("warning: DIR/disc.iso ends with a part of a sector, which is not served"));
    length(449_849 * 2048);
    check(&load(", profile = \"cd\""), "");
    length(449_850 * 2048);
    check(&load(""), "");
    check(
        &load(", profile = \"cd\""),
        &at("DIR/disc.iso has 449850 sectors, and a disc of this kind has at most 449849"),
    );
}
