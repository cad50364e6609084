//! Reads secrets from files that others cannot read.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iscsi::chap::{MAX_SECRET, MIN_SECRET, Secret};
use rustix::fs::OFlags;
use security::opaque::Password;
use security::password_file::PasswordFile;
use security::secret_access::FileAccess;
use security::secret_text::secret_in;
use zeroize::Zeroizing;

use super::http_tokens::HttpTokens;
use super::resolved::{GroupPassword, GroupSecret};
use crate::answers::{self, ANSWER_MAX};

/// Why a secret, or another file that a configuration names, cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretError {
    /// Its file system does not answer.
    Silent(PathBuf),
    /// A fragment that describes the mistake.
    Wrong(String),
}

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(path) => write!(f, "{} does not answer", path.display()),
            Self::Wrong(why) => f.write_str(why),
        }
    }
}

impl From<String> for SecretError {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

/// Reads a CHAP secret. One newline at the end of the file is not part of it.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn from_file(path: &Path) -> Result<Secret, SecretError> {
    let name = path.display();
    // A text of UTF-16 is read whole, so that it is not taken for a secret that is too long.
    let bytes = read_answering(path, 2 * MAX_SECRET + 8)?;
    let secret = secret_in(&bytes).map_err(|why| format!("secret file {name} {why}"))?;
    let secret = secret.get(..MAX_SECRET + 3).unwrap_or(secret);
    check(secret).map_err(|why| format!("{why} (in {name})").into())
}

/// Checks the length of a secret.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn check(bytes: &[u8]) -> Result<Secret, String> {
    Secret::new(bytes)
        .map_err(|_| format!("a CHAP secret has {MIN_SECRET} to {MAX_SECRET} bytes, not {}", bytes.len()))
}

/// Reads what is known of the password of a HyperSCSI group: the record of the user with its name, or the
/// password itself. One newline at the end of the file is not part of a password.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn group_secret(path: &Path, group: &str) -> Result<GroupSecret, SecretError> {
    let name = path.display();
    let mut bytes = read_answering(path, PasswordFile::LEN_MAX + 1)?;
    if PasswordFile::has_head(&bytes) {
        let file = PasswordFile::parse(&bytes).map_err(|why| format!("{name}: {why}"))?;
        let found = file.find(group).cloned();
        return found.map(GroupSecret::Record).ok_or_else(|| {
            format!("{name} has no user \"{group}\"; run: targe passwd {name} --user \"{group}\"").into()
        });
    }
    let len = secret_in(&bytes).map_err(|why| format!("secret file {name} {why}"))?.len();
    bytes.truncate(len);
    Password::new(&bytes).map_err(|why| format!("{why} (in {name})"))?;
    Ok(GroupSecret::Password(GroupPassword(bytes)))
}

/// Reads the password records of users.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn password_records(path: &Path) -> Result<PasswordFile, SecretError> {
    let text = read_answering(path, PasswordFile::LEN_MAX + 1)?;
    PasswordFile::parse(&text).map_err(|why| format!("{}: {why}", path.display()).into())
}

/// Reads the tokens of the HTTP server.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn http_tokens(path: &Path) -> Result<HttpTokens, SecretError> {
    let text = read_answering(path, HttpTokens::FILE_LEN_MAX + 1)?;
    HttpTokens::parse(&text).map_err(|why| {
        let name = path.display();
        format!("token file {name}: {why}; run: head -c 24 /dev/urandom | base64 > {name}").into()
    })
}

/// Reads the secret that wraps the keys of encrypted media: all bytes of the file, a newline at its end
/// included.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn key_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let bytes = read_guarded(path, KEY_FILE_LEN_MAX + 1)?;
    if (KEY_FILE_LEN_MIN..=KEY_FILE_LEN_MAX).contains(&bytes.len()) {
        return Ok(bytes);
    }
    let name = path.display();
    Err(format!(
        "secret file {name} has {} bytes where {KEY_FILE_LEN_MIN} to {KEY_FILE_LEN_MAX} random ones are needed; run: \
         head -c 32 /dev/urandom > {name}",
        if bytes.len() > KEY_FILE_LEN_MAX { "too many".to_owned() } else { bytes.len().to_string() }
    ))
}

/// Returns whether there is no file with a secret at a path.
pub(crate) fn is_missing(path: &Path) -> bool {
    path.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The least length in bytes: that of the key that is derived from the secret. The derivation is fast, so it
/// would not slow down guessing a shorter secret.
const KEY_FILE_LEN_MIN: usize = 32;
/// The greatest length in bytes. A longer secret adds no security.
const KEY_FILE_LEN_MAX: usize = 4096;

/// Returns who has access to a file.
pub(crate) fn access_of(meta: &Metadata) -> FileAccess {
    FileAccess { owner: meta.uid(), group: meta.gid(), mode: meta.mode() & 0o777 }
}

/// Reads up to `len_max` bytes of a file that is confidential, unless its file system hangs.
fn read_answering(path: &Path, len_max: usize) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let of = path.to_owned();
    unless_silent(path, move || Ok(read_guarded(&of, len_max)?))
}

/// Reads what a configuration names, unless the file system of this path hangs.
pub(crate) fn unless_silent<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce() -> Result<T, SecretError> + Send + 'static,
) -> Result<T, SecretError> {
    answers::of_one(read, ANSWER_MAX).unwrap_or_else(|| Err(SecretError::Silent(path.to_owned())))
}

/// Checks that the file system of a file answers. What is wrong with the file shows when it is read.
pub(crate) fn expect_answer(path: &Path) -> Result<(), SecretError> {
    let of = path.to_owned();
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    unless_silent(path, move || {
        if let Ok(mut file) = File::options().read(true).custom_flags(flags).open(of) {
            let _ = file.read(&mut [0]);
        }
        Ok(())
    })
}

/// Reads up to `len_max` bytes of a file that is confidential.
fn read_guarded(path: &Path, len_max: usize) -> Result<Zeroizing<Vec<u8>>, String> {
    let name = path.display();
    let cannot =
        |error: std::io::Error| format!("cannot read secret file {name}: {}", crate::os_error(&error));
    // Opening a pipe would wait for its writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = File::options().read(true).custom_flags(flags).open(path).map_err(cannot)?;
    // The open file is checked, not the path, so that the file that is checked is the file that is read.
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(format!("secret file {name} is not a regular file"));
    }
    let access = access_of(&meta);
    let user = rustix::process::geteuid().as_raw();
    if !access.is_confidential(user) {
        let (mode, remedy) = (access.mode, access.remedy(user));
        return Err(format!(
            "secret file {name} can be read by others (mode {mode:03o}); run: chmod {remedy:03o} {name}"
        ));
    }
    // The whole capacity is allocated at once, because a growing buffer would leave copies of the secret in
    // memory. All of it is erased at the end.
    let limit = meta.len().saturating_add(1).min(u64::try_from(len_max).unwrap_or(0));
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(limit).unwrap_or(len_max)));
    file.by_ref().take(limit).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}
