//! Reads secrets from files that only their owner can read.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use iscsi::chap::{MAX_SECRET, MIN_SECRET, Secret};
use security::opaque::Password;
use security::password_file::PasswordFile;
use zeroize::Zeroizing;

use super::http_tokens::HttpTokens;
use super::resolved::{GroupPassword, GroupSecret};

/// Reads a CHAP secret. One newline at the end of the file is not part of it.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn from_file(path: &Path) -> Result<Secret, String> {
    let name = path.display();
    let mut bytes = read_guarded(path, MAX_SECRET + 3)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    check(&bytes).map_err(|why| format!("{why} (in {name})"))
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
pub(crate) fn group_secret(path: &Path, group: &str) -> Result<GroupSecret, String> {
    let name = path.display();
    let mut bytes = read_guarded(path, PasswordFile::LEN_MAX + 1)?;
    if PasswordFile::has_head(&bytes) {
        let file = PasswordFile::parse(&bytes).map_err(|why| format!("{name}: {why}"))?;
        let found = file.find(group).cloned();
        return found.map(GroupSecret::Record).ok_or_else(|| {
            format!("{name} has no user \"{group}\"; run: targe passwd {name} --user \"{group}\"")
        });
    }
    // A longer text is not shortened to a password.
    bytes.truncate(Password::LEN_MAX + 3);
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    Password::new(&bytes).map_err(|why| format!("{why} (in {name})"))?;
    Ok(GroupSecret::Password(GroupPassword(bytes)))
}

/// Reads the password records of users.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn password_records(path: &Path) -> Result<PasswordFile, String> {
    let text = read_guarded(path, PasswordFile::LEN_MAX + 1)?;
    PasswordFile::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// Reads the tokens of the HTTP server.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn http_tokens(path: &Path) -> Result<HttpTokens, String> {
    let text = read_guarded(path, HttpTokens::FILE_LEN_MAX + 1)?;
    HttpTokens::parse(&text).map_err(|why| {
        let name = path.display();
        format!("token file {name}: {why}; run: head -c 24 /dev/urandom | base64 > {name}")
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

/// The least length in bytes: that of the key that is derived from the secret. The derivation is fast, so it
/// would not slow down guessing a shorter secret.
const KEY_FILE_LEN_MIN: usize = 32;
/// The greatest length in bytes. A longer secret adds no security.
const KEY_FILE_LEN_MAX: usize = 4096;

/// Reads up to `len_max` bytes of a file that only its owner can read.
fn read_guarded(path: &Path, len_max: usize) -> Result<Zeroizing<Vec<u8>>, String> {
    let name = path.display();
    let cannot =
        |error: std::io::Error| format!("cannot read secret file {name}: {}", crate::os_error(&error));
    let mut file = File::open(path).map_err(cannot)?;
    // The open file is checked, not the path, so that the file that is checked is the file that is read.
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(format!("secret file {name} is not a regular file"));
    }
    if meta.mode() & 0o077 != 0 {
        let mode = meta.mode() & 0o777;
        return Err(format!(
            "secret file {name} can be read by others (mode {mode:03o}); run: chmod 600 {name}"
        ));
    }
    // The whole capacity is allocated at once, because a growing buffer would leave copies of the secret in
    // memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(len_max));
    let limit = u64::try_from(len_max).unwrap_or(0);
    file.by_ref().take(limit).read_to_end(&mut bytes).map_err(cannot)?;
    Ok(bytes)
}
