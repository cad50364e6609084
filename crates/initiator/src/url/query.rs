//! Parses the query of a URL: protocol keys and options for failures. Each value is checked when it is
//! parsed.

use std::time::Duration;

use hyperscsi::pdu::parameters::Repair;
use iscsi::aead::AeadDigest;
use iscsi::chap::{Algorithm, Algorithms, Secret};
use iscsi::name::IscsiName;
use iscsi::negotiate::{DigestPolicy, KeyPolicy};
use security::Level;

use super::{Scheme, unescaped};

/// The most connections of a session.
const CONNECTIONS_MAX: u32 = 16;

/// The longest duration that can be set, in seconds: a day.
const SECONDS_MAX: u32 = 86_400;

/// The longest burst or data segment, in bytes: 24 bits of length.
const LENGTH_MAX: u32 = (1 << 24) - 1;

/// The options in the query of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// The iSCSI keys that we offer to the target.
    pub keys: KeyPolicy,
    /// The number of connections of the session: 1 to 16.
    pub connections: u16,
    /// The least protection that the session may have, if it is set.
    pub protection: Option<Protection>,
    /// Our own name.
    pub initiator: Option<IscsiName>,
    /// The ISID, which distinguishes the session from our other sessions with the target; random if it is not
    /// set.
    pub isid: Option<[u8; 6]>,
    /// The path of the file with our password.
    pub password_file: Option<String>,
    /// The CHAP name that the target must authenticate as.
    pub target_user: Option<String>,
    /// The target's password, if the URL contains it.
    pub target_password: Option<Secret>,
    /// The path of the file with the target's password.
    pub target_password_file: Option<String>,
    /// iSCSI: how both sides authenticate themselves, if the URL has a user.
    pub auth: AuthMethod,
    /// The CHAP algorithms that we offer.
    pub chap: Option<Algorithms>,
    /// How long I/O may wait for a connection to the target before it fails.
    pub patience: Option<Duration>,
    /// How long connecting and logging in may take.
    pub connect_timeout: Option<Duration>,
    /// The command timeout: how long a command may go without a response before it is aborted; zero for no
    /// timeout.
    pub command_timeout: Option<Duration>,
    /// iSCSI: TLS around the connections, if they are to have it.
    pub tls: Option<TlsOptions>,
    /// HyperSCSI: the length of the longest frames, in bytes.
    pub mtu: Option<u16>,
    /// HyperSCSI: which frames are retransmitted after a loss.
    pub retransmission: Repair,
    /// HyperSCSI: our other interfaces.
    pub paths: Vec<String>,
}

/// TLS around the connections of a session. All files are in PEM form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// The path of the file with the authorities that sign the certificates of targets; those that the system
    /// trusts if it is not set.
    pub authority: Option<String>,
    /// The path of the file with our certificate.
    pub certificate: Option<String>,
    /// The path of the file with our private key.
    pub key: Option<String>,
    /// The name in the target's certificate, where it is not the host of the portal.
    pub name: Option<String>,
}

/// How both sides of an iSCSI session authenticate themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuthMethod {
    /// CHAP.
    #[default]
    Chap,
    /// The password login, which proves the password to both sides and gives the session keys
    /// (docs/iscsi-aead.md).
    Opaque,
}

/// The least protection that a session may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// None: with iSCSI, damage may go undetected if the target negotiates no digests.
    #[default]
    None,
    /// iSCSI: both digests; with the password login, every PDU is authenticated. HyperSCSI: every frame is
    /// authenticated.
    Integrity,
    /// Every PDU or frame is also encrypted. iSCSI needs the password login for it.
    Encrypt,
}

/// An error in an option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOption {
    /// The option is not `key=value`.
    #[error("\"{0}\" in the query is not key=value")]
    NoPair(String),
    /// The option is unknown.
    #[error("a URL has no option \"{0}\"; {known}", known = known(.0))]
    Unknown(String),
    /// The option occurs twice.
    #[error("the URL has option {0} twice")]
    Twice(&'static str),
    /// The value is not valid.
    #[error("{key}={value}: the value must be {wanted}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// The valid values.
        wanted: &'static str,
    },
    /// Encryption is requested without the login that gives an iSCSI session keys.
    #[error("protection=encrypt needs auth=opaque in iscsi:// URLs")]
    NoEncryption,
    /// The option belongs to another authentication method.
    #[error("option {0} is for CHAP and contradicts auth=opaque")]
    NotWithOpaque(&'static str),
    /// The option belongs to the other protocol.
    #[error("option {0} is for {1}:// URLs")]
    OtherProtocol(&'static str, Scheme),
    /// There is a certificate without a key, or a key without a certificate.
    #[error("tls_certificate and tls_key need each other")]
    TlsPair,
    /// Two options contradict each other.
    #[error("protection=integrity needs both digests; {0} disables one")]
    ProtectionAgainst(&'static str),
}

/// A key of the query: its name, its values in words, and the option that it sets.
pub struct OptionKey {
    /// Its name.
    pub name: &'static str,
    /// Its values, in words.
    pub takes: &'static str,
    /// Its meaning, as in the manual.
    pub meaning: &'static str,
    /// The protocol that it belongs to; `None` for both.
    pub of: Option<Scheme>,
    set: fn(&mut Options, &str) -> Option<()>,
}

impl std::fmt::Debug for OptionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}={}", self.name, self.takes)
    }
}

/// Every key of the query.
pub static KEYS: [OptionKey; 34] = [
    iscsi("header_digest", DIGESTS, "HeaderDigest", |options, value| {
        options.keys.header_digest = digest(value)?;
        Some(())
    }),
    iscsi("data_digest", DIGESTS, "DataDigest", |options, value| {
        options.keys.data_digest = digest(value)?;
        Some(())
    }),
    iscsi("erl", "0, 1 or 2", "the highest ErrorRecoveryLevel", |options, value| {
        options.keys.error_recovery_level = u8::try_from(number(value, 0, 2)?).ok()?;
        Some(())
    }),
    iscsi("connections", "1 to 16", "connections of the session", |options, value| {
        options.connections = short(value, 1, CONNECTIONS_MAX)?;
        Some(())
    }),
    both(
        "protection",
        "none, integrity or encrypt",
        "the least protection the session may have",
        |options, value| {
            options.protection = Some(match value {
                "none" => Protection::None,
                "integrity" => Protection::Integrity,
                "encrypt" => Protection::Encrypt,
                _ => return None,
            });
            Some(())
        },
    ),
    both("initiator", "an iSCSI name", "the initiator name", |options, value| {
        options.initiator = Some(IscsiName::parse(value.as_bytes()).ok()?);
        Some(())
    }),
    both("isid", ISIDS, "the ISID", |options, value| {
        let digits = value
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).ok()?, 16).ok());
        let plain = value.bytes().all(|byte| byte.is_ascii_hexdigit());
        let bytes = digits.collect::<Option<Vec<u8>>>().filter(|_| plain)?;
        options.isid = Some(bytes.try_into().ok()?);
        Some(())
    }),
    iscsi(
        "auth",
        "chap or opaque",
        "how both sides authenticate themselves; opaque gives the session keys",
        |options, value| {
            options.auth = match value {
                "chap" => AuthMethod::Chap,
                "opaque" => AuthMethod::Opaque,
                _ => return None,
            };
            Some(())
        },
    ),
    both("password_file", "a path", "the file with the initiator's password", |options, value| {
        options.password_file = Some(filled(value)?);
        Some(())
    }),
    iscsi(
        "target_user",
        "a name",
        "the CHAP name as which the target must authenticate itself",
        |options, value| {
            options.target_user = Some(filled(value).filter(|name| name.len() <= 255)?);
            Some(())
        },
    ),
    iscsi("target_password", "1 to 255 bytes", "the target's CHAP password", |options, value| {
        options.target_password = Some(Secret::of_any_strength(value.as_bytes()).ok()?);
        Some(())
    }),
    iscsi("target_password_file", "a path", "the file with the target's CHAP password", |options, value| {
        options.target_password_file = Some(filled(value)?);
        Some(())
    }),
    iscsi(
        "chap",
        "a list of md5, sha1, sha256 and sha3-256",
        "the CHAP algorithms that the initiator offers",
        |options, value| {
            options.chap = Some(algorithms(value)?);
            Some(())
        },
    ),
    both("timeout", "0 to 86400 seconds", "how long I/O waits for a lost target", |options, value| {
        options.patience = Some(Duration::from_secs(number(value, 0, SECONDS_MAX)?.into()));
        Some(())
    }),
    both("connect_timeout", "1 to 86400 seconds", "how long connecting may take", |options, value| {
        options.connect_timeout = Some(Duration::from_secs(number(value, 1, SECONDS_MAX)?.into()));
        Some(())
    }),
    both(
        "command_timeout",
        "0 to 86400 seconds",
        "how long a command may remain without a response; 0: no limit",
        |options, value| {
            options.command_timeout = Some(Duration::from_secs(number(value, 0, SECONDS_MAX)?.into()));
            Some(())
        },
    ),
    iscsi("immediate_data", "yes or no", "ImmediateData", |options, value| {
        options.keys.immediate_data = flag(value)?;
        Some(())
    }),
    iscsi("initial_r2t", "yes or no", "InitialR2T", |options, value| {
        options.keys.initial_r2t = flag(value)?;
        Some(())
    }),
    iscsi("first_burst_length", LENGTHS, "FirstBurstLength", |options, value| {
        options.keys.first_burst_length = number(value, 512, LENGTH_MAX)?;
        Some(())
    }),
    iscsi("max_burst_length", LENGTHS, "MaxBurstLength", |options, value| {
        options.keys.max_burst_length = number(value, 512, LENGTH_MAX)?;
        Some(())
    }),
    iscsi("max_recv_data_segment_length", LENGTHS, "MaxRecvDataSegmentLength", |options, value| {
        options.keys.max_recv_data_segment_length = number(value, 512, LENGTH_MAX)?;
        Some(())
    }),
    iscsi("max_outstanding_r2t", "1 to 65535", "MaxOutstandingR2T", |options, value| {
        options.keys.max_outstanding_r2t = short(value, 1, 65535)?;
        Some(())
    }),
    iscsi("time2wait", "0 to 3600 seconds", "DefaultTime2Wait", |options, value| {
        options.keys.default_time2wait = short(value, 0, 3600)?;
        Some(())
    }),
    iscsi("time2retain", "0 to 3600 seconds", "DefaultTime2Retain", |options, value| {
        options.keys.default_time2retain = short(value, 0, 3600)?;
        Some(())
    }),
    iscsi("data_pdu_in_order", "yes or no", "DataPDUInOrder", |options, value| {
        options.keys.data_pdu_in_order = flag(value)?;
        Some(())
    }),
    iscsi("data_sequence_in_order", "yes or no", "DataSequenceInOrder", |options, value| {
        options.keys.data_sequence_in_order = flag(value)?;
        Some(())
    }),
    iscsi(
        "tls",
        "yes",
        "TLS 1.3 around the connections; the other tls keys switch it on too",
        |options, value| {
            tls(options);
            (value == "yes").then_some(())
        },
    ),
    iscsi(
        "tls_ca",
        "a path",
        "the file with the authorities that sign the target's certificate",
        |options, value| {
            tls(options).authority = Some(filled(value)?);
            Some(())
        },
    ),
    iscsi("tls_certificate", "a path", "the file with the initiator's certificate", |options, value| {
        tls(options).certificate = Some(filled(value)?);
        Some(())
    }),
    iscsi("tls_key", "a path", "the file with the initiator's private key", |options, value| {
        tls(options).key = Some(filled(value)?);
        Some(())
    }),
    iscsi(
        "tls_name",
        "a host name or an address",
        "the name in the target's certificate",
        |options, value| {
            tls(options).name = Some(filled(value)?);
            Some(())
        },
    ),
    hyperscsi(
        "mtu",
        "1500 to 65535",
        "the longest frames that the initiator sends and receives, in bytes",
        |options, value| {
            options.mtu = Some(short(value, 1500, 65535)?);
            Some(())
        },
    ),
    hyperscsi(
        "retransmission",
        "selective or window",
        "whether lost frames alone are retransmitted, or all from the first lost one on",
        |options, value| {
            options.retransmission = match value {
                "selective" => Repair::Selective,
                "window" => Repair::Window,
                _ => return None,
            };
            Some(())
        },
    ),
    hyperscsi("paths", "a list of interfaces", "further local interfaces to the target", |options, value| {
        options.paths = filled(value)?.split(',').map(ToOwned::to_owned).collect();
        Some(())
    }),
];

pub(super) const DIGESTS: &str = "crc32c, none, or both in order of preference, as in none,crc32c";
pub(super) const ISIDS: &str = "12 hexadecimal digits";
pub(super) const LENGTHS: &str = "512 to 16777215 bytes";

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: KeyPolicy { max_connections: 1, ..KeyPolicy::default() },
            connections: 1,
            protection: None,
            initiator: None,
            isid: None,
            password_file: None,
            target_user: None,
            target_password: None,
            target_password_file: None,
            auth: AuthMethod::default(),
            chap: None,
            patience: None,
            connect_timeout: None,
            command_timeout: None,
            tls: None,
            mtu: None,
            retransmission: Repair::Selective,
            paths: Vec::new(),
        }
    }
}

impl Options {
    pub(super) fn parse(scheme: Scheme, query: Option<&str>) -> Result<Self, BadOption> {
        let mut options = Self::default();
        let mut seen: Vec<&'static str> = Vec::new();
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for pair in pairs {
            let (name, value) = pair.split_once('=').ok_or_else(|| BadOption::NoPair(pair.to_owned()))?;
            let key = KEYS.iter().find(|key| key.name == name);
            let key = key.ok_or_else(|| BadOption::Unknown(name.to_owned()))?;
            if seen.contains(&key.name) {
                return Err(BadOption::Twice(key.name));
            }
            seen.push(key.name);
            if let Some(other) = key.of.filter(|of| *of != scheme) {
                return Err(BadOption::OtherProtocol(key.name, other));
            }
            options.set(key, value)?;
        }
        if scheme == Scheme::HyperScsi {
            return Ok(options);
        }
        options.check_auth()?;
        if options.tls.as_ref().is_some_and(|tls| tls.certificate.is_some() != tls.key.is_some()) {
            return Err(BadOption::TlsPair);
        }
        options.keys.max_connections = options.connections;
        options.protect()?;
        Ok(options)
    }

    fn set(&mut self, key: &OptionKey, value: &str) -> Result<(), BadOption> {
        let decoded = unescaped(value, false).and_then(|bytes| String::from_utf8(bytes).ok());
        decoded.and_then(|decoded| (key.set)(self, &decoded)).ok_or_else(|| {
            // The error does not repeat a secret.
            let shown = if key.name.ends_with("password") { "…" } else { value };
            BadOption::Value { key: key.name, value: shown.to_owned(), wanted: key.takes }
        })
    }

    fn check_auth(&self) -> Result<(), BadOption> {
        if self.auth == AuthMethod::Chap {
            let encrypts = self.protection == Some(Protection::Encrypt);
            return if encrypts { Err(BadOption::NoEncryption) } else { Ok(()) };
        }
        let of_chap = [
            (self.target_user.is_some(), "target_user"),
            (self.target_password.is_some(), "target_password"),
            (self.target_password_file.is_some(), "target_password_file"),
            (self.chap.is_some(), "chap"),
        ];
        match of_chap.into_iter().find(|(is_set, _)| *is_set) {
            Some((_, key)) => Err(BadOption::NotWithOpaque(key)),
            None => Ok(()),
        }
    }

    /// Requires the digests that the protection needs.
    fn protect(&mut self) -> Result<(), BadOption> {
        if self.auth == AuthMethod::Opaque {
            match self.protection.unwrap_or_default() {
                Protection::None => {}
                Protection::Integrity => {
                    self.keys.min_protection = Level::Integrity;
                    self.keys.aead_digests = &AeadDigest::INTEGRITY_FIRST;
                }
                Protection::Encrypt => self.keys.min_protection = Level::Encrypt,
            }
            return Ok(());
        }
        if self.protection == Some(Protection::Integrity) {
            let digests = [
                (&mut self.keys.header_digest, "header_digest=none"),
                (&mut self.keys.data_digest, "data_digest=none"),
            ];
            for (digest, against) in digests {
                if *digest == DigestPolicy::RequireNone {
                    return Err(BadOption::ProtectionAgainst(against));
                }
                *digest = DigestPolicy::RequireCrc32c;
            }
        }
        Ok(())
    }
}

type Set = fn(&mut Options, &str) -> Option<()>;

const fn both(name: &'static str, takes: &'static str, meaning: &'static str, set: Set) -> OptionKey {
    OptionKey { name, takes, meaning, of: None, set }
}

const fn iscsi(name: &'static str, takes: &'static str, meaning: &'static str, set: Set) -> OptionKey {
    OptionKey { name, takes, meaning, of: Some(Scheme::Iscsi), set }
}

const fn hyperscsi(name: &'static str, takes: &'static str, meaning: &'static str, set: Set) -> OptionKey {
    OptionKey { name, takes, meaning, of: Some(Scheme::HyperScsi), set }
}

fn known(wrong: &str) -> String {
    let near = KEYS.iter().find(|key| {
        let squeezed = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
        squeezed(key.name) == squeezed(wrong) || (wrong.len() > 3 && key.name.starts_with(wrong))
    });
    match near {
        Some(key) => format!("did you mean {}?", key.name),
        None => format!("known are {}", KEYS.each_ref().map(|key| key.name).join(", ")),
    }
}

fn digest(value: &str) -> Option<DigestPolicy> {
    Some(match value.to_ascii_lowercase().as_str() {
        "crc32c" => DigestPolicy::RequireCrc32c,
        "none" => DigestPolicy::RequireNone,
        "crc32c,none" => DigestPolicy::PreferCrc32c,
        "none,crc32c" => DigestPolicy::PreferNone,
        _ => return None,
    })
}

fn algorithms(value: &str) -> Option<Algorithms> {
    value.split(',').try_fold(Algorithms::NONE, |all, name| {
        let algorithm = match name.to_ascii_lowercase().as_str() {
            "md5" => Algorithm::Md5,
            "sha1" => Algorithm::Sha1,
            "sha256" | "sha-256" => Algorithm::Sha256,
            "sha3-256" => Algorithm::Sha3,
            _ => return None,
        };
        Some(all.with(algorithm))
    })
}

fn tls(options: &mut Options) -> &mut TlsOptions {
    options.tls.get_or_insert_default()
}

fn flag(value: &str) -> Option<bool> {
    match value {
        "yes" => Some(true),
        "no" => Some(false),
        _ => None,
    }
}

fn number(value: &str, min: u32, max: u32) -> Option<u32> {
    let only_digits = value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|number| only_digits && (min..=max).contains(number))
}

fn short(value: &str, min: u32, max: u32) -> Option<u16> {
    number(value, min, max).and_then(|number| u16::try_from(number).ok())
}

fn filled(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}
