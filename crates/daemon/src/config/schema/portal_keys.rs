//! The keys of `[[portal]]`.

use super::Absent::{Required, Told, Value};
use super::Kind::{Count, Path, Switch, Text};
use super::{LABEL_LEN_MAX, Section, key};

pub(crate) static PORTAL: Section = Section {
    noun: "portal",
    doc: "An address to listen on.",
    keys: &[
        key(
            "listen",
            Text { len_max: 64 },
            Required,
            "Address and port: `127.0.0.1:3260`, `[::1]:3260`, `0.0.0.0:3260`. Without a port, 3260. An IPv6 \
             address with a port needs brackets. `fd00::10:20` without brackets is rejected, since its end \
             could be a port; write `[fd00::10:20]` or `[fd00::10]:20`. A link-local address needs its interface: `[fe80::a%eth0]:3260`.",
        ),
        key(
            "announce",
            Text { len_max: 300 },
            Told("the address that the initiator connected to"),
            "The address that SendTargets names instead, as `HOST`, `HOST:PORT` or `[IPV6]:PORT`: for a daemon behind \
             a forwarded port. SendTargets leaves out the zone of an address.",
        ),
        key(
            "name",
            Text { len_max: LABEL_LEN_MAX },
            Told("no name"),
            "A name for use in a target's `portals`.",
        ),
        key(
            "tag",
            Count { min: 1, max: 65_535 },
            Value("1"),
            "The portal group tag. All connections of a session must use portals with the same tag. With \
             `[hyperscsi]`, at most 32767: larger tags are reserved for the target ports of HyperSCSI groups. Hosts \
             store the tag (open-iscsi, Windows): if it changes, their sessions go on, and cannot log in again before the \
             hosts have discovered the target again. Log them out first. `targe apply` names them, and refuses the \
             change without `--force`.",
        ),
        key(
            "tls_certificate",
            Path,
            Told("no TLS"),
            "The file of the portal's certificate and those of its issuers, in PEM form. With it, the portal \
             accepts TLS 1.3 connections only: at most 1024. While half of them are taken, an address with 256 \
             and an IPv6 network of 64 bits with 768 get no more.",
        ),
        key(
            "tls_key",
            Path,
            Told("none"),
            "The file of the certificate's private key, in PEM form. Its [mode](#files-with-secrets) must keep others \
             out. Required with `tls_certificate`.",
        ),
        key(
            "tls_client_authority",
            Path,
            Told("initiators need no certificate"),
            "The file of the authorities in PEM form one of which must have signed the certificate of an initiator.",
        ),
        key(
            "tls_client_names",
            Switch,
            Value("false"),
            "Whether the certificate of an initiator must contain its name, as a URI in its subject alternative \
             names: `subjectAltName = URI:iqn.1994-05.com.redhat:host1`. Otherwise a host with any certificate can \
             claim any name. Needs `tls_client_authority`.",
        ),
    ],
};
