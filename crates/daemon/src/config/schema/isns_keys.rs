//! The keys of `[isns]`.

use super::Absent::{Required, Told};
use super::Kind::{Count, Text, Texts};
use super::{NAME_LEN_MAX, Section, key};

pub(crate) static ISNS: Section = Section {
    noun: "isns",
    doc: "Name servers (iSNS, RFC 4171) where the targets and portals are registered, so that initiators find \
          them. [serve.md](serve.md#name-servers) says what is registered.",
    keys: &[
        key(
            "servers",
            Texts { what: "name servers" },
            Required,
            "The servers, as `HOST`, `HOST:PORT` or `[IPV6]:PORT`, a link-local address with its zone \
             (`[fe80::a%eth0]`); at most 8. Without a port, 3205. Each gets the same registration.",
        ),
        key(
            "entity",
            Text { len_max: NAME_LEN_MAX },
            Told("the name of the first target"),
            "The Entity Identifier (EID) of this targe. No other host may register the same one with these servers.",
        ),
        key(
            "event_port",
            Count { min: 1, max: 65_535 },
            Told("any free port"),
            "The TCP port where the servers ask whether targe is alive, and tell of changes. It is opened on the \
             address that reaches the server. With several servers that are reached from one address, leave it out.",
        ),
    ],
};
