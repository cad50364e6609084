//! The keys of `[http]`.

use super::Absent::{Required, Told};
use super::Kind::{Path, Text, Texts};
use super::{Section, key};

pub(crate) static HTTP: Section = Section {
    noun: "http",
    doc: "The HTTP server, which serves a status page, a JSON API, `/metrics`, `/healthz` and `/readyz`; see \
          [serve.md](serve.md#the-http-server). A change of `listen` takes effect at the next start.",
    keys: &[
        key(
            "listen",
            Text { len_max: 64 },
            Required,
            "Address and port: `127.0.0.1:9260`, `[::1]:9260`. Without a port, 9260. An address that other hosts \
             reach needs a `token_file` or a `tls_client_authority`.",
        ),
        key(
            "token_file",
            Path,
            Told("no token"),
            "A file with the tokens of which a client must send one as `Authorization: Bearer TOKEN`. Each line is \
             `NAME ROLE TOKEN`: a name for the audit log, `read` or `admin`, and 16 to 512 printable characters. \
             Only `admin` may change something. A file with nothing but one token gives it the role `read`. Its \
             [mode](#files-with-secrets) must keep others out.",
        ),
        key(
            "hosts",
            Texts { what: "host names" },
            Told("only `localhost`"),
            "The names by which clients call this host. A request whose `Host` is neither one of them nor an IP \
             address is rejected, so that no web page can send a visitor's browser here (DNS rebinding).",
        ),
        key(
            "tls_certificate",
            Path,
            Told("no TLS"),
            "The file of the server's certificate and those of its issuers, in PEM form. With it, the server accepts \
             TLS 1.3 connections only.",
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
            Told("clients need no certificate"),
            "The file of the authorities in PEM form one of which must have signed the certificate of a client.",
        ),
    ],
};
