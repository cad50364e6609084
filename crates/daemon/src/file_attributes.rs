//! The extended attributes of a file that is replaced as a whole: its access list, the labels of security
//! modules, and what other programs keep there.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;

use rustix::fs::{XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

/// The POSIX access list of a file.
pub(crate) const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// Attributes that vouch for the contents or the inode of one file, so that they are wrong for another one.
const OF_ONE_FILE: [&CStr; 2] = [c"security.ima", c"security.evm"];

/// The longest value of an extended attribute (`XATTR_SIZE_MAX` of Linux), and the longest list of their
/// names (`XATTR_LIST_MAX`).
const LEN_MAX: usize = 64 << 10;

/// Gives a new file the extended attributes of the file that it replaces. A file without an access list gets
/// none from its directory's default list.
///
/// # Errors
/// The error of the system, with the name of the attribute that cannot be kept.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<()> {
    let mut kept = names(from)?;
    // Not every file system lists it.
    kept.insert(ACCESS_LIST.to_owned());
    for name in kept.iter().filter(|name| !OF_ONE_FILE.contains(&name.as_c_str())) {
        copy_one(name, from, to).map_err(|errno| {
            let why = crate::os_error(&errno.into());
            io::Error::other(format!("cannot keep its attribute {}: {why}", name.to_string_lossy()))
        })?;
    }
    Ok(())
}

fn copy_one(name: &CStr, from: &File, to: &File) -> Result<(), Errno> {
    match value(from, name)? {
        // The kernel gives a new file a label of its own. Setting the same one again can be forbidden.
        Some(wanted) if value(to, name)?.as_ref() == Some(&wanted) => Ok(()),
        Some(wanted) => fsetxattr(to, name, &wanted, XattrFlags::empty()),
        None => match fremovexattr(to, name) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            done => done,
        },
    }
}

fn names(file: &File) -> io::Result<BTreeSet<CString>> {
    let mut list = vec![0; LEN_MAX];
    let len = match flistxattr(file, list.as_mut_slice()) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        done => done?,
    };
    let names = list.get(..len).unwrap_or_default().split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}

/// Returns the value of an attribute, if the file has it.
fn value(file: &File, name: &CStr) -> Result<Option<Vec<u8>>, Errno> {
    let mut value = vec![0; LEN_MAX];
    match fgetxattr(file, name, value.as_mut_slice()) {
        Ok(len) => {
            value.truncate(len);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}
