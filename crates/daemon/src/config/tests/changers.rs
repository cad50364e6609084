//! Tests of tape libraries.

use std::collections::BTreeSet;

use super::*;

/// The file of a library with two drives.
const LIBRARY: &str = "targe-library 1\nserial LIB00001\nprofile lto8\ndrives 2\nslots 4\nmail-slots 0\n\
                       crc32c ea029480\n";

/// Makes the folder of a library.
fn library(scratch: &Scratch, name: &str) {
    fs::create_dir(scratch.path().join(name)).unwrap();
    scratch.file(&format!("{name}/library"), LIBRARY, 0o600);
}

/// Returns a configuration with one target.
fn with_luns(shared: &str, luns: &str) -> String {
    format!(
        "portal = [{{ listen = \"127.0.0.1\" }}]\n{shared}\n[[target]]\nname = \"iqn.2001-04.com.example:a\"\n\
         lun = [{luns}]\n"
    )
}

fn numbers(config: &Config) -> Vec<(u16, String)> {
    let name = |medium: &Medium| match medium {
        Medium::Changer { .. } => "changer".to_owned(),
        Medium::LibraryDrive { number, .. } => format!("drive {number}"),
        other => other.to_string(),
    };
    config.targets[0].luns.iter().map(|lun| (lun.lun, name(&config.units[lun.unit.0].medium))).collect()
}

#[test]
fn the_drives_of_a_library_are_luns_after_the_changer() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    let cases: &[(&str, &[(u16, &str)])] = &[
        ("{ type = \"changer\", path = \"lib\" }", &[(0, "changer"), (1, "drive 1"), (2, "drive 2")]),
        (
            "{ type = \"ram\", size = \"1M\", lun = 2 }, { type = \"changer\", path = \"lib\", lun = 1 }, \
             { type = \"null\", size = \"1M\" }, { type = \"null\", size = \"2M\" }",
            &[(0, "null:1M"), (1, "changer"), (2, "ram:1M"), (3, "drive 1"), (4, "drive 2"), (5, "null:2M")],
        ),
        (
            "{ type = \"changer\", path = \"lib\", drive_lun = 10 }, { type = \"ram\", size = \"1M\" }",
            &[(0, "changer"), (1, "ram:1M"), (10, "drive 1"), (11, "drive 2")],
        ),
    ];
    for (luns, expected) in cases {
        let found = numbers(&scratch.config(&with_luns("", luns)));
        let found: Vec<(u16, &str)> = found.iter().map(|(number, name)| (*number, name.as_str())).collect();
        assert_eq!(found, *expected, "{luns}");
    }
}

#[test]
fn drives_have_names_of_their_own() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    let keys = "type = \"changer\", path = \"lib\", drive_vendor = \"IBM\", drive_product = \"ULT3580-TD8\"";
    let config = scratch.config(&with_luns("", &format!("{{ {keys} }}")));
    let names: Vec<[&str; 3]> = config
        .units
        .iter()
        .map(|unit| {
            [&unit.identity.vendor, &unit.identity.product, &unit.identity.serial].map(String::as_str)
        })
        .collect();
    let expected = [
        ["TARGE", "Virtual Library", "LIB00001"],
        ["IBM", "ULT3580-TD8", "LIB0000101"],
        ["IBM", "ULT3580-TD8", "LIB0000102"],
    ];
    assert_eq!(
        names.iter().map(|[_, rest @ ..]| rest).collect::<Vec<_>>(),
        expected.iter().map(|[_, rest @ ..]| rest).collect::<Vec<_>>()
    );
    assert_eq!(names[1][0], "IBM");
    // The revision of a drive is that of the drive that it is named after, and not that of the library.
    let revisions: Vec<&str> = config.units.iter().map(|unit| unit.identity.revision.as_str()).collect();
    // That of the library is the same in every release.
    assert_eq!(revisions, ["0.1", "HB82", "HB82"]);
    let naas: BTreeSet<Naa> = config.units.iter().map(|unit| unit.identity.naa).collect();
    assert_eq!(naas.len(), 3);
    assert!(config.units.iter().all(|unit| unit.removable && !unit.read_only && !unit.thin));
    assert_eq!(config.units.iter().map(|unit| unit.write_cache).collect::<Vec<_>>(), [false, true, true]);
    let own = scratch
        .config(&with_luns("", &format!("{{ {keys}, revision = \"2.0\", drive_revision = \"K4K1\" }}")));
    assert_eq!(
        own.units.iter().map(|unit| unit.identity.revision.as_str()).collect::<Vec<_>>(),
        ["2.0", "K4K1", "K4K1"]
    );
    // Another start, the same names.
    let again = scratch.config(&with_luns("", &format!("{{ {keys} }}")));
    assert!(Config::diff(&config, &again).is_empty());
}

#[test]
fn a_shared_library_brings_its_drives() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    let shared = "[[lun]]\nname = \"lib\"\ntype = \"changer\"\npath = \"lib\"";
    let config = scratch.config(&with_luns(shared, "{ share = \"lib\", lun = 4, drive_lun = 8 }"));
    let expected = [(4, "changer"), (8, "drive 1"), (9, "drive 2")].map(|(lun, name)| (lun, name.to_owned()));
    assert_eq!(numbers(&config), expected);
    assert_eq!(config.units[2].label, "lib drive 2");
}

#[test]
fn what_no_target_exports_is_not_served() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    let shared = "[[lun]]\nname = \"lib\"\ntype = \"changer\"\npath = \"lib\"\n\
                  [[lun]]\nname = \"x\"\ntype = \"ram\"\nsize = \"1M\"";
    let lun = "{ share = \"x\", lun = 4 }, { type = \"ram\", size = \"2M\", lun = 5 }";
    let acl =
        "\n[[target.acl]]\ninitiators = [\"iqn.2001-04.com.example:host\"]\nluns = [{ lun = 4, as = 0 }]";
    let loaded = scratch.load(&(with_luns(shared, lun) + acl)).unwrap();
    assert!(loaded.report.to_string().contains("no target exports lun \"lib\""));
    let config = loaded.config;
    let labels: Vec<&str> = config.units.iter().map(|unit| &*unit.label).collect();
    assert_eq!(labels.len(), 2, "{labels:?}");
    let of = |lun: &MappedLun| (lun.lun, labels[lun.unit.0]);
    let target = &config.targets[0];
    assert_eq!(
        target.luns.iter().map(of).collect::<Vec<_>>(),
        [(4, "x"), (5, "iqn.2001-04.com.example:a/5")]
    );
    assert_eq!(target.acl.as_ref().unwrap()[0].luns.iter().map(of).collect::<Vec<_>>(), [(0, "x")]);
}

#[test]
fn numbers_that_drives_cannot_have_are_mistakes() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    for (luns, expected) in [
        (
            "{ type = \"changer\", path = \"lib\", drive_lun = 0 }",
            "drive 1 of the library would be LUN 0, which is another LUN",
        ),
        (
            "{ type = \"ram\", size = \"1M\", lun = 6 }, { type = \"changer\", path = \"lib\", drive_lun = 5 }",
            "drive 2 of the library would be LUN 6, which is another LUN",
        ),
        (
            "{ type = \"changer\", path = \"lib\", lun = 16382 }",
            "the target has no free number for drive 2 of the library",
        ),
        (
            "{ type = \"changer\", path = \"lib\" }, { type = \"tape\", path = \"lib\" }",
            "is already the medium of",
        ),
    ] {
        let told = scratch.told(&scratch.load(&with_luns("", luns)).unwrap_err());
        assert!(told.contains(expected), "{luns}: {told}");
    }
    scratch.file("lib/library", LIBRARY.replace("drives 2", "drives 3"), 0o600);
    let told =
        scratch.told(&scratch.load(&with_luns("", "{ type = \"changer\", path = \"lib\" }")).unwrap_err());
    assert!(told.contains("lib/library is damaged: its checksum is wrong"), "{told}");
}

#[test]
fn a_library_that_cannot_be_read_gives_no_number_to_others() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    scratch.file("lib/library", LIBRARY.replace("drives 2", "drives 3"), 0o600);
    let changer = "{ type = \"changer\", path = \"lib\" }";
    let depends =
        "the number of this LUN depends on the drives of a library that cannot be read; set its \"lun\"";
    for (luns, is_unknown) in [
        (format!("{changer}, {{ type = \"ram\", size = \"1M\" }}"), true),
        (format!("{changer}, {{ type = \"ram\", size = \"1M\", lun = 3 }}"), false),
        (format!("{{ type = \"ram\", size = \"1M\" }}, {changer}"), false),
        // The lowest free number is below that of the first drive.
        (
            "{ type = \"changer\", path = \"lib\", lun = 5 }, { type = \"ram\", size = \"1M\" }".to_owned(),
            false,
        ),
    ] {
        let report = scratch.load(&with_luns("", &luns)).unwrap_err();
        assert_eq!(scratch.told(&report).contains(depends), is_unknown, "{luns}");
        // Without the mistake, the configuration can be used for changes that open no medium.
        assert_eq!(report.has_only_media_errors(), !is_unknown, "{luns}");
    }
}

#[test]
fn a_library_that_cannot_be_read_gives_no_number_to_the_drives_of_another_one() {
    let scratch = Scratch::new();
    library(&scratch, "lib");
    library(&scratch, "other");
    scratch.file("lib/library", LIBRARY.replace("drives 2", "drives 3"), 0o600);
    let damaged = "{ type = \"changer\", path = \"lib\" }";
    let depends =
        "the numbers of the drives of this library depend on the drives of a library that cannot be read";
    for (luns, is_unknown) in [
        (format!("{damaged}, {{ type = \"changer\", path = \"other\", lun = 100 }}"), true),
        (format!("{damaged}, {{ type = \"changer\", path = \"other\", lun = 100, drive_lun = 101 }}"), false),
        (format!("{{ type = \"changer\", path = \"other\" }}, {damaged}"), false),
    ] {
        let report = scratch.load(&with_luns("", &luns)).unwrap_err();
        assert_eq!(scratch.told(&report).contains(depends), is_unknown, "{luns}");
        assert_eq!(report.has_only_media_errors(), !is_unknown, "{luns}: {}", scratch.told(&report));
    }
}
