//! The keys of the HyperSCSI tables.

use super::Absent::{Required, Told};
use super::Kind::{Choice, Path, Tables, Text, Texts};
use super::{LABEL_LEN_MAX, Section, key};

/// The protection levels, lowest first.
pub(crate) const LEVELS: &[&str] = &["none", "integrity", "encrypt"];

pub(crate) static HYPERSCSI: Section = Section {
    noun: "hyperscsi",
    doc: "SCSI straight on Ethernet, for who knows the name of a group. It needs the capability CAP_NET_RAW.",
    keys: &[
        key(
            "interfaces",
            Texts { what: "names of interfaces" },
            Required,
            "The Ethernet interfaces. One that goes down, or vanishes, is served again when it comes back.",
        ),
        key("group", Tables(&HYPERSCSI_GROUP), Required, "The groups."),
    ],
};

pub(crate) static HYPERSCSI_GROUP: Section = Section {
    noun: "group",
    doc: "A HyperSCSI group: those who know its name, and its password. A target's `groups` exports the target to it.",
    keys: &[
        key("name", Text { len_max: LABEL_LEN_MAX }, Required, "Its name. It can be read on the wire."),
        key(
            "password_file",
            Path,
            Told("no password: every host that knows the name may log in, and nothing is protected"),
            "A file that holds its password; one newline at its end does not count. It must not be readable by group or \
             others.",
        ),
        key(
            "protection",
            Choice(LEVELS),
            Told("`integrity` with a password, else `none`"),
            "The least protection of whatever its members do: `none` (a CRC32C), `integrity` (nobody can change anything) or \
             `encrypt` (nor read it). A LUN can want more.",
        ),
        key(
            "interfaces",
            Texts { what: "names of interfaces" },
            Told("every interface"),
            "The interfaces on which it is served.",
        ),
    ],
};
