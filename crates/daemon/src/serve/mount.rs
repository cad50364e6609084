//! The mounts of the host, by paths that nobody looks at: a file system that hangs answers nothing, and the
//! system still knows where it is mounted.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A file system and the place where it is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The number of the mount. Later mounts can get it again.
    number: u64,
    /// The device number of the file system.
    device: String,
    place: PathBuf,
}

impl Mount {
    /// Returns the mount that an absolute path leads to, if none of its components is a link.
    pub(super) fn of(path: &Path) -> Option<Self> {
        Self::among(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, path)
    }

    /// Finds the mount of a path in the text of `mountinfo`, which `proc_pid_mountinfo(5)` describes. Of two
    /// mounts at one place the later one hides the other.
    fn among(mounts: &str, path: &Path) -> Option<Self> {
        let mounts = mounts.lines().filter_map(Self::parse);
        mounts
            .filter(|mount| path.starts_with(&mount.place))
            .max_by_key(|mount| mount.place.as_os_str().len())
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let number = fields.next()?.parse().ok()?;
        let device = fields.nth(1)?.to_owned();
        Some(Self { number, device, place: unescaped(fields.nth(1)?) })
    }
}

/// Returns a path in which the kernel has written some bytes as a backslash and three octal digits.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_on_the_last_of_the_innermost_mounts() {
        let mounts = "22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      30 22 0:45 / /srv rw shared:9 - nfs server:/a rw\n\
                      31 22 0:46 /sub /srv\\040b/c\\134d rw - nfs server:/b rw\n\
                      32 30 0:47 / /srv rw - nfs server:/c rw\nnonsense\n";
        let number = |path: &str| Mount::among(mounts, Path::new(path)).map(|mount| mount.number);
        assert_eq!(number("/etc/disk"), Some(22));
        assert_eq!(number("/srv/disk"), Some(32));
        assert_eq!(number("/srvx/disk"), Some(22));
        assert_eq!(number("/srv b/c\\d/disk"), Some(31));
        assert_eq!(number("relative"), None);
        let expected = Mount { number: 32, device: "0:47".to_owned(), place: PathBuf::from("/srv") };
        assert_eq!(Mount::among(mounts, Path::new("/srv/disk")), Some(expected));
        assert_eq!(unescaped("\\"), PathBuf::from("\\"));
        assert_eq!(unescaped("\\999"), PathBuf::from("\\999"));
        assert!(Mount::of(Path::new("/proc/self")).is_some());
    }
}
