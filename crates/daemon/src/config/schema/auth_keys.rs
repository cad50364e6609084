//! The keys of the `auth` tables.

use super::Absent::{Told, Value};
use super::Kind::{Choice, Choices, Path, Text};
use super::{NAME_LEN_MAX, Section, key};

/// The CHAP algorithms, strongest first.
const CHAP_ALGORITHMS: &[&str] = &["SHA3-256", "SHA-256", "SHA1", "MD5"];

pub(crate) static AUTH: Section = Section {
    noun: "auth",
    doc: "What initiators must prove. CHAP (RFC 7143 §12.1): the initiator proves that it knows a secret, and with the \
          mutual keys the target does as well. Secrets are 12 to 255 bytes. The password login \
          ([iscsi-aead.md](iscsi-aead.md)): both ends prove that they know a user's password, and the target keeps \
          only records of passwords. With the keys of both, either admits an initiator.",
    keys: &[
        key(
            "method",
            Choice(&["chap", "none"]),
            Value("chap"),
            "`none` admits the initiators of an access list entry without a proof where their target requires one.",
        ),
        key(
            "user",
            Text { len_max: NAME_LEN_MAX },
            Told("required for CHAP"),
            "The name the initiator gives (`CHAP_N`).",
        ),
        key(
            "secret_file",
            Path,
            Told("required for CHAP, unless `secret` is given"),
            "A file that holds the initiator's secret; one newline at its end is ignored. A byte order mark, UTF-16 \
             and several newlines at the end are refused. Its [mode](#files-with-secrets) must keep others out.",
        ),
        key(
            "secret",
            Text { len_max: 255 },
            Told("none"),
            "The secret itself. Rejected if [others](#files-with-secrets) can read the configuration file; prefer `secret_file`.",
        ),
        key(
            "mutual_user",
            Text { len_max: NAME_LEN_MAX },
            Told("the target does not authenticate itself"),
            "The name the target gives when the initiator asks it to authenticate itself.",
        ),
        key(
            "mutual_secret_file",
            Path,
            Told("none"),
            "A file that holds the target's secret, which must differ from the initiator's.",
        ),
        key("mutual_secret", Text { len_max: 255 }, Told("none"), "Likewise, the target's secret."),
        key(
            "password_file",
            Path,
            Told("no password login"),
            "A file of password records, as [`targe passwd`](security.md#password-records) makes it: each user in it may log in with \
             the password login. Its [mode](#files-with-secrets) must keep others out.",
        ),
        key(
            "algorithms",
            Choices(CHAP_ALGORITHMS),
            Value("SHA3-256 SHA-256 SHA1 MD5"),
            "The accepted algorithms. The first one in the initiator's list that is accepted is used.",
        ),
    ],
};
