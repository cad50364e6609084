//! The keys of the HyperSCSI tables.

use super::Absent::{Required, Told};
use super::Kind::{Choice, Path, Tables, Text, Texts};
use super::{LABEL_LEN_MAX, Section, key};

/// The protection levels, lowest first.
pub(crate) const LEVELS: &[&str] = &["none", "integrity", "encrypt"];

pub(crate) static HYPERSCSI: Section = Section {
    noun: "hyperscsi",
    doc: "SCSI directly on Ethernet, for hosts that know the name of a group. It needs the capability CAP_NET_RAW.",
    keys: &[
        key(
            "interfaces",
            Texts { what: "names of interfaces" },
            Required,
            "The Ethernet interfaces. An interface that goes down or disappears is used again when it returns.",
        ),
        key("group", Tables(&HYPERSCSI_GROUP), Required, "The groups."),
    ],
};

pub(crate) static HYPERSCSI_GROUP: Section = Section {
    noun: "group",
    doc: "A HyperSCSI group: the hosts that know its name, and its password. A target's `groups` exports the \
          target to it.",
    keys: &[
        key("name", Text { len_max: LABEL_LEN_MAX }, Required, "Its name. It is sent unencrypted."),
        key(
            "password_file",
            Path,
            Told("no password: every host that knows the name may log in, and nothing is protected"),
            "A file that holds its password; one newline at its end is ignored. Or a file of password records, as \
             [`targe passwd`](security.md#password-records) makes it, with the group's name as a user. Its \
             [mode](#files-with-secrets) must keep others out.",
        ),
        key(
            "protection",
            Choice(LEVELS),
            Told("`integrity` with a password, else `none`"),
            "The least protection of the commands of its members: `none` (a CRC32C), `integrity` (against \
             modification) or `encrypt` (also against reading). A LUN can require more.",
        ),
        key(
            "interfaces",
            Texts { what: "names of interfaces" },
            Told("every interface"),
            "The interfaces on which it is served.",
        ),
    ],
};
