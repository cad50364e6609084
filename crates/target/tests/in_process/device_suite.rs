//! The device suite, through the in-process transport: the files of tests of `device` that drive logical
//! units, compiled a second time. Here their fixture, `testing`, finds [`crate::contract`] and
//! [`crate::unit`] in place of the modules of `device`.
//!
//! [`BESIDE_THE_UNIT`] lists the files that are not here, with the reasons. Modules of `device` whose tests
//! drive no unit, such as `pr`, `mode` and `inquiry`, have nothing that could pass through a transport.

mod copy;
mod mmc;
mod sbc;
mod spc;
mod unit;

/// The files of the device suite that run in `device` only, and why.
const BESIDE_THE_UNIT: &[(&str, &str)] = &[
    ("copy/tests/units.rs", "it routes calls between units, which a target does here"),
    ("mmc/tests/table.rs", "it reads the table of commands"),
    ("sbc/tests/table.rs", "it reads the table of commands"),
    ("spc/tests/planted.rs", "it plants bugs, for which `device` has a feature"),
    ("spc/tests/robustness.rs", "it makes CDBs of the table of commands"),
    ("spc/tests/tables.rs", "it reads the table of commands, and sets the clock of a unit"),
    ("unit/tests/inside.rs", "the traits of `transport` do not carry what it tests"),
    ("unit/tests/limits.rs", "it lets time pass, and limits a nexus of a unit, which a target does here"),
    ("unit/tests/peers.rs", "it is the copy manager of another unit, and a target has that of a unit"),
];

#[test]
fn every_file_of_the_suite_is_here_or_has_a_reason_not_to_be() {
    let here = [
        ("copy", include_str!("device_suite/copy.rs")),
        ("mmc", include_str!("device_suite/mmc.rs")),
        ("sbc", include_str!("device_suite/sbc.rs")),
        ("spc", include_str!("device_suite/spc.rs")),
        ("unit", include_str!("device_suite/unit.rs")),
    ];
    let mut left_out = vec![];
    for (module, list) in here {
        let folder = format!("{}/../device/src/{module}/tests", env!("CARGO_MANIFEST_DIR"));
        for file in std::fs::read_dir(&folder).unwrap() {
            let name = format!("{module}/tests/{}", file.unwrap().file_name().to_str().unwrap());
            if name.ends_with(".rs") && !list.contains(&format!("/{name}\"")) {
                left_out.push(name);
            }
        }
    }
    left_out.sort_unstable();
    assert_eq!(left_out, BESIDE_THE_UNIT.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}
