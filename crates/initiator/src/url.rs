//! Parses the URLs of logical units as libiscsi writes them:
//! `iscsi://[user[%password]@]host[:port]/iqn/lun[?key=value&…]`, and
//! `hyperscsi://[group[%password]@]interface/iqn/lun[?key=value&…]` for HyperSCSI.
//!
//! An [`Endpoint`] is a portal or a network with our login there, which is all that discovery needs; a
//! [`Url`] adds a target and a LUN. Nothing here reads a file or the environment: [`Login::auth`] takes a
//! [`Secrets`] for that.

mod query;

use std::fmt;
use std::net::Ipv6Addr;

use hyperscsi::pdu::name::GroupName;
use iscsi::chap::{Algorithms, Credentials, Secret};
use iscsi::login::directory::{DEFAULT_PORT, TargetAddress};
use iscsi::login::initiator::AuthPlan;
use iscsi::name::IscsiName;
use scsi::lun::Lun;
use security::opaque::Password;
use security::secret_access::FileAccess;
use security::secret_text::{NotASecret, secret_in};

pub use query::{AuthMethod, BadOption, KEYS, OptionKey, Options, Protection, TlsOptions};

/// The URL of a logical unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The portal or network of the target, and our login there.
    pub endpoint: Endpoint,
    /// The target.
    pub target: IscsiName,
    /// The number of the LUN, at most [`Lun::MAX_NUMBER`].
    pub lun: u16,
}

/// A portal or a network, and our login there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The transport to the targets.
    pub transport: Transport,
    /// Our name and secret.
    pub login: Login,
    /// The options in the query.
    pub options: Options,
}

/// The transport to targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// iSCSI: the portal.
    Iscsi(TargetAddress),
    /// HyperSCSI: our interfaces to the networks of the targets.
    HyperScsi(Vec<String>),
}

impl Transport {
    /// Returns the protocol.
    pub const fn scheme(&self) -> Scheme {
        match self {
            Self::Iscsi(_) => Scheme::Iscsi,
            Self::HyperScsi(_) => Scheme::HyperScsi,
        }
    }
}

/// A protocol, as the scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `iscsi://`
    Iscsi,
    /// `hyperscsi://`
    HyperScsi,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iscsi => "iscsi",
            Self::HyperScsi => "hyperscsi",
        })
    }
}

/// Our name and secret, as in the URL.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    /// Our name for CHAP or the password login, without which neither is used; or the HyperSCSI group.
    pub user: Option<String>,
    /// Our secret or that of the group, if the URL contains it.
    pub password: Option<Password>,
}

/// An error in a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadUrl {
    /// The scheme is unknown.
    #[error(
        "a URL starts with iscsi://, as in iscsi://HOST[:PORT]/IQN/LUN, or with hyperscsi://, as in \
         hyperscsi://GROUP@INTERFACE/IQN/LUN"
    )]
    Scheme,
    /// The URL has no group.
    #[error("the URL has no group; it must begin with hyperscsi://GROUP@INTERFACE")]
    NoGroup,
    /// The group is not valid.
    #[error("\"{0}\" is not a group name, which has 1 to 64 bytes without control characters")]
    Group(String),
    /// The interface is not valid.
    #[error("\"{0}\" is not an interface name, which has 1 to 15 bytes without slashes and spaces")]
    Interface(String),
    /// The URL has no host.
    #[error("the URL has no host")]
    NoHost,
    /// The host is not valid.
    #[error("\"{0}\" is not a host; write an IPv6 address in brackets, as in [::1]:3260")]
    Host(String),
    /// The port is not valid.
    #[error("\"{0}\" is not a port, which is a number from 1 to 65535")]
    Port(String),
    /// The URL has no target.
    #[error("the URL has no target; write /IQN/LUN after the host")]
    NoTarget,
    /// The target is not valid.
    #[error("\"{0}\" is not a target name: {1}")]
    Target(String, iscsi::name::BadName),
    /// The URL has no LUN.
    #[error("the URL has no LUN; write /LUN after the target, such as /0")]
    NoLun,
    /// The LUN is not valid.
    #[error("\"{0}\" is not a LUN, which is a number from 0 to 16383")]
    Lun(String),
    /// There is more text behind the LUN.
    #[error("\"{0}\" follows the LUN, where only ? and a query may follow")]
    Trailing(String),
    /// The text has a path where only a portal is allowed.
    #[error("write only HOST[:PORT] here, without \"/{0}\"")]
    NotAnEndpoint(String),
    /// A percent sign is not followed by two hex digits.
    #[error("\"{0}\": a percent sign must be followed by two hex digits; write %25 for a percent sign")]
    Percent(String),
    /// The user name is not usable.
    #[error("the user name is empty or longer than 255 bytes")]
    User,
    /// The password is not usable.
    #[error("the password is empty or longer than 255 bytes")]
    Password,
    /// The query has an error.
    #[error(transparent)]
    Option(#[from] BadOption),
}

/// Why the secrets of a URL are not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// There is a user without a password.
    #[error("user \"{0}\" has no password; set it with password_file=PATH or in {PASSWORD_VARIABLE}")]
    Missing(String),
    /// There is a target user without a password.
    #[error(
        "the target's user \"{0}\" has no password; set it with target_password_file=PATH or in \
         {TARGET_PASSWORD_VARIABLE}"
    )]
    TargetMissing(String),
    /// The target is to authenticate itself (mutual CHAP), but the URL has no user of ours.
    #[error(
        "the target can authenticate itself (target_user) only if the initiator does so too; the URL has no user"
    )]
    NoUser,
    /// The password login has no user.
    #[error("auth=opaque needs a user; write iscsi://USER@HOST/…")]
    NobodyForOpaque,
    /// There is a password without a user.
    #[error("the URL has a password (password_file) but no user; write iscsi://USER@HOST/…")]
    PasswordOfNobody,
    /// The file cannot be read.
    #[error("cannot read the password file {path}")]
    File {
        /// The path.
        path: String,
        /// The error.
        source: std::io::Error,
    },
    /// The bytes hold what some program has added to the secret.
    #[error("the password in {place} {why}")]
    Text {
        /// The file or the variable.
        place: String,
        /// What is wrong with them.
        why: NotASecret,
    },
    /// The bytes are not usable as a secret.
    #[error("the password in {0} is empty or longer than 255 bytes")]
    Unusable(String),
}

/// The environment variable that holds our password.
pub const PASSWORD_VARIABLE: &str = "TARGE_PASSWORD";
/// The environment variable that holds the target's password.
pub const TARGET_PASSWORD_VARIABLE: &str = "TARGE_TARGET_PASSWORD";

/// The source of secrets that the URL does not contain.
pub trait Secrets {
    /// Reads a file, whole.
    ///
    /// # Errors
    /// Returns the error of the system.
    fn file(&self, path: &str) -> std::io::Result<Vec<u8>>;

    /// Reads an environment variable.
    fn variable(&self, name: &str) -> Option<Vec<u8>>;
}

/// The files and the environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct EnvSecrets;

impl Secrets for EnvSecrets {
    fn file(&self, path: &str) -> std::io::Result<Vec<u8>> {
        use std::io::Read;
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::File::open(path)?;
        // The checks use the open file and not the path, so that the file that was checked is the file that
        // is read. A pipe has no checks: its writer is responsible for it.
        let facts = file.metadata()?;
        let (owner, group) = (facts.uid(), facts.gid());
        let access = FileAccess { owner, group, mode: facts.mode() & 0o777 };
        let user = rustix::process::geteuid().as_raw();
        if facts.is_file() && !access.is_confidential(user) {
            let (mode, remedy) = (access.mode, access.remedy(user));
            let why = format!("it can be read by others (mode {mode:03o}); run: chmod {remedy:03o} {path}");
            return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why));
        }
        // The limit bounds the read if the path leads to an endless file by mistake.
        let mut bytes = Vec::new();
        file.take(4096).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn variable(&self, name: &str) -> Option<Vec<u8>> {
        use std::os::unix::ffi::OsStringExt;
        std::env::var_os(name).map(OsStringExt::into_vec)
    }
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// Returns the first error in the URL.
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let Parts { scheme, authority, path, query } = split(text)?;
        let place = Endpoint::assemble(scheme, authority, query)?;
        let path = path.ok_or(BadUrl::NoTarget)?;
        let (target, rest) = match path.split_once('/') {
            Some((target, rest)) => (target, Some(rest)),
            None => (path, None),
        };
        if target.is_empty() {
            return Err(BadUrl::NoTarget);
        }
        let name = decoded(target)?;
        let target = IscsiName::parse(name.as_bytes()).map_err(|why| BadUrl::Target(name, why))?;
        let lun = rest.filter(|lun| !lun.is_empty()).ok_or(BadUrl::NoLun)?;
        let (lun, trailing) = lun.split_once('/').unwrap_or((lun, ""));
        if !trailing.is_empty() {
            return Err(BadUrl::Trailing(trailing.to_owned()));
        }
        let number = digits(lun).filter(|number| *number <= Lun::MAX_NUMBER);
        Ok(Self { endpoint: place, target, lun: number.ok_or_else(|| BadUrl::Lun(lun.to_owned()))? })
    }
}

impl Endpoint {
    /// Parses the endpoint of a discovery: `HOST[:PORT]`, or a URL without a target.
    ///
    /// # Errors
    /// Returns the first error in the text.
    pub fn parse(text: &str) -> Result<Self, BadUrl> {
        let whole = if text.contains("://") { text.to_owned() } else { format!("iscsi://{text}") };
        let Parts { scheme, authority, path, query } = split(&whole)?;
        match path.filter(|path| !path.is_empty()) {
            Some(path) => Err(BadUrl::NotAnEndpoint(path.to_owned())),
            None => Self::assemble(scheme, authority, query),
        }
    }

    fn assemble(scheme: Scheme, authority: &str, query: Option<&str>) -> Result<Self, BadUrl> {
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Login::parse(login)?, host),
            None => (Login::default(), authority),
        };
        let options = Options::parse(scheme, query)?;
        let way = match scheme {
            Scheme::Iscsi => Transport::Iscsi(portal(host)?),
            Scheme::HyperScsi => {
                let group = login.user.as_deref().ok_or(BadUrl::NoGroup)?;
                GroupName::new(group).ok_or_else(|| BadUrl::Group(group.to_owned()))?;
                let mut interfaces = vec![interface(host)?];
                for name in &options.paths {
                    let name = interface(name)?;
                    if !interfaces.contains(&name) {
                        interfaces.push(name);
                    }
                }
                Transport::HyperScsi(interfaces)
            }
        };
        Ok(Self { transport: way, login, options })
    }
}

impl Login {
    /// Parses `user[%password]`. As in libiscsi, the first percent sign separates the two. In the password,
    /// `%XX` stands for a byte and any other percent sign for itself.
    fn parse(text: &str) -> Result<Self, BadUrl> {
        let (user, password) = match text.split_once('%') {
            Some((user, password)) => (user, Some(password)),
            None => (text, None),
        };
        if user.is_empty() || user.len() > 255 {
            return Err(BadUrl::User);
        }
        let password = password.map(|password| {
            Password::new(&unescaped(password, true).unwrap_or_default()).map_err(|_| BadUrl::Password)
        });
        Ok(Self { user: Some(user.to_owned()), password: password.transpose()? })
    }

    /// Collects the secrets for the login.
    ///
    /// # Errors
    /// Returns which secret is missing, and where it can be given.
    pub(crate) fn auth(&self, options: &Options, secrets: &dyn Secrets) -> Result<AuthPlan, SecretError> {
        if options.auth == AuthMethod::Opaque {
            let user = self.user.clone().ok_or(SecretError::NobodyForOpaque)?;
            let password = self.own_password(options, secrets)?;
            let password = password.ok_or_else(|| SecretError::Missing(user.clone()))?;
            return Ok(AuthPlan::Opaque { user, password });
        }
        let Some(user) = &self.user else {
            return match (&options.target_user, &options.password_file) {
                (Some(_), _) => Err(SecretError::NoUser),
                (None, Some(_)) => Err(SecretError::PasswordOfNobody),
                (None, None) => Ok(AuthPlan::None),
            };
        };
        let own = match (&options.password_file, &self.password) {
            (Some(path), _) => secret_in_file(path, secrets)?,
            (None, Some(password)) => chap_secret(password, "the URL")?,
            (None, None) => secret_in_variable(PASSWORD_VARIABLE, secrets)?
                .ok_or_else(|| SecretError::Missing(user.clone()))?,
        };
        let peer = match &options.target_user {
            None => None,
            Some(name) => {
                let secret = match (&options.target_password_file, &options.target_password) {
                    (Some(path), _) => secret_in_file(path, secrets)?,
                    (None, Some(password)) => password.clone(),
                    (None, None) => secret_in_variable(TARGET_PASSWORD_VARIABLE, secrets)?
                        .ok_or_else(|| SecretError::TargetMissing(name.clone()))?,
                };
                Some(Credentials { name: name.clone(), secret })
            }
        };
        Ok(AuthPlan::Chap {
            algorithms: options.chap.unwrap_or(Algorithms::ALL),
            own: Credentials { name: user.clone(), secret: own },
            or_none: peer.is_none(),
            peer,
        })
    }
}

impl Login {
    /// Returns the password of the user or of the group, if there is one: HyperSCSI has groups without a
    /// password.
    ///
    /// # Errors
    /// Returns an error if a password is given, but cannot be read.
    pub(crate) fn own_password(
        &self,
        options: &Options,
        secrets: &dyn Secrets,
    ) -> Result<Option<Password>, SecretError> {
        match (&options.password_file, &self.password) {
            (Some(path), _) => password_in_file(path, secrets).map(Some),
            (None, Some(password)) => Ok(Some(password.clone())),
            (None, None) => password_in_variable(PASSWORD_VARIABLE, secrets),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Login({:?})", self.user)
    }
}

/// Writes the portal or the first interface, and the user or the group, but no secret.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.transport.scheme())?;
        if let Some(user) = &self.login.user {
            write!(f, "{user}@")?;
        }
        match &self.transport {
            Transport::Iscsi(portal) => write!(f, "{portal}"),
            Transport::HyperScsi(interfaces) => f.write_str(interfaces.first().map_or("", String::as_str)),
        }
    }
}

/// Writes a URL that a user can paste, without secrets and options.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.endpoint, self.target.spelling(), self.lun)
    }
}

impl TryFrom<&str> for Url {
    type Error = BadUrl;

    fn try_from(text: &str) -> Result<Self, BadUrl> {
        Self::parse(text)
    }
}

impl TryFrom<&String> for Url {
    type Error = BadUrl;

    fn try_from(text: &String) -> Result<Self, BadUrl> {
        Self::parse(text)
    }
}

impl TryFrom<String> for Url {
    type Error = BadUrl;

    fn try_from(text: String) -> Result<Self, BadUrl> {
        Self::parse(&text)
    }
}

impl From<&Self> for Url {
    fn from(url: &Self) -> Self {
        url.clone()
    }
}

impl std::str::FromStr for Url {
    type Err = BadUrl;

    fn from_str(text: &str) -> Result<Self, BadUrl> {
        Self::parse(text)
    }
}

/// The parts of a URL: the path without its first slash.
struct Parts<'a> {
    scheme: Scheme,
    authority: &'a str,
    path: Option<&'a str>,
    query: Option<&'a str>,
}

fn split(text: &str) -> Result<Parts<'_>, BadUrl> {
    let (scheme, rest) = match (text.strip_prefix("iscsi://"), text.strip_prefix("hyperscsi://")) {
        (Some(rest), _) => (Scheme::Iscsi, rest),
        (_, Some(rest)) => (Scheme::HyperScsi, rest),
        _ => return Err(BadUrl::Scheme),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    // A password may contain slashes: the authority ends at the first slash behind the last @.
    let from = rest.rfind('@').map_or(0, |at| at + 1);
    let slash = rest.get(from..).and_then(|host| host.find('/')).map(|at| from + at);
    match slash.and_then(|at| Some((rest.get(..at)?, rest.get(at + 1..)?))) {
        Some((authority, path)) => Ok(Parts { scheme, authority, path: Some(path), query }),
        None => Ok(Parts { scheme, authority: rest, path: None, query }),
    }
}

/// Parses the name of a network interface, with the rules of the kernel.
fn interface(text: &str) -> Result<String, BadUrl> {
    let legal = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    let fits = (1..=15).contains(&text.len()) && text.chars().all(legal);
    fits.then(|| text.to_owned()).ok_or_else(|| BadUrl::Interface(text.to_owned()))
}

fn portal(text: &str) -> Result<TargetAddress, BadUrl> {
    let wrong = || BadUrl::Host(text.to_owned());
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, behind) = rest.split_once(']').ok_or_else(wrong)?;
            let port = match behind {
                "" => None,
                _ => Some(behind.strip_prefix(':').ok_or_else(wrong)?),
            };
            (format!("[{address}]"), port)
        }
        None => match text.split_once(':') {
            Some((host, port)) if !port.contains(':') => (host.to_owned(), Some(port)),
            Some(_) => return Err(wrong()),
            None => (text.to_owned(), None),
        },
    };
    if host.is_empty() {
        return Err(BadUrl::NoHost);
    }
    let number = match port {
        None => DEFAULT_PORT,
        Some(port) => digits(port).filter(|port| *port != 0).ok_or_else(|| BadUrl::Port(port.to_owned()))?,
    };
    if let Some((ip, zone)) = host.split_once('%') {
        let address = ip.strip_prefix('[').and_then(|ip| ip.parse::<Ipv6Addr>().ok()).ok_or_else(wrong)?;
        // RFC 6874 writes the percent sign as %25.
        let zone = zone.strip_suffix(']').ok_or_else(wrong)?;
        let zone = zone.strip_prefix("25").filter(|zone| !zone.is_empty()).unwrap_or(zone);
        let is_zone = !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic());
        // The system's resolver knows zones.
        let name = is_zone.then(|| format!("{address}%{zone}")).ok_or_else(wrong)?;
        return Ok(TargetAddress::Host { name, port: number });
    }
    let (address, _) = TargetAddress::parse(format!("{host}:{number}").as_bytes()).ok_or_else(wrong)?;
    Ok(address)
}

/// Parses a decimal number without sign or space.
fn digits(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Replaces `%XX`. Other percent signs are kept if `lenient`; otherwise the result is `None`.
fn unescaped(text: &str, lenient: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let escaped = match (first, more) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match escaped {
            Some(byte) => {
                out.push(byte);
                rest = more.get(2..).unwrap_or_default();
            }
            None if *first == b'%' && !lenient => return None,
            None => {
                out.push(*first);
                rest = more;
            }
        }
    }
    Some(out)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

/// Replaces `%XX` in text whose result must be text too.
fn decoded(text: &str) -> Result<String, BadUrl> {
    let bytes = unescaped(text, false).ok_or_else(|| BadUrl::Percent(text.to_owned()))?;
    String::from_utf8(bytes).map_err(|_| BadUrl::Percent(text.to_owned()))
}

fn secret_in_file(path: &str, secrets: &dyn Secrets) -> Result<Secret, SecretError> {
    chap_secret(&password_in_file(path, secrets)?, path)
}

fn secret_in_variable(name: &str, secrets: &dyn Secrets) -> Result<Option<Secret>, SecretError> {
    password_in_variable(name, secrets)?.map(|password| chap_secret(&password, name)).transpose()
}

fn chap_secret(password: &Password, place: &str) -> Result<Secret, SecretError> {
    Secret::of_any_strength(password.secret_bytes()).map_err(|_| SecretError::Unusable(place.to_owned()))
}

fn password_in_file(path: &str, secrets: &dyn Secrets) -> Result<Password, SecretError> {
    let bytes = secrets.file(path).map_err(|source| SecretError::File { path: path.to_owned(), source })?;
    password(&bytes, path)
}

fn password_in_variable(name: &str, secrets: &dyn Secrets) -> Result<Option<Password>, SecretError> {
    secrets.variable(name).map(|bytes| password(&bytes, name)).transpose()
}

/// Returns a password as it was read, without the line break at its end.
fn password(bytes: &[u8], place: &str) -> Result<Password, SecretError> {
    let line = secret_in(bytes).map_err(|why| SecretError::Text { place: place.to_owned(), why })?;
    Password::new(line).map_err(|_| SecretError::Unusable(place.to_owned()))
}

#[cfg(test)]
mod tests;
