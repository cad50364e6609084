//! The path of the program that runs.

use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the kernel shows the program of this process.
const RUNNING: &str = "/proc/self/exe";

/// Returns the absolute path by which this program was called, because a symbolic link in it can lead to
/// another release later; without such a path, the path of the file.
///
/// # Errors
/// The system does not tell the path.
pub(super) fn path() -> io::Result<PathBuf> {
    let called = std::env::args_os().next().unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    find(Path::new(&called), &path, Path::new(RUNNING)).map_or_else(std::env::current_exe, Ok)
}

/// Returns the absolute path by which `called` leads to the file `running`, as a shell finds programs.
fn find(called: &Path, path: &OsStr, running: &Path) -> Option<PathBuf> {
    let number = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    let running = number(running)?;
    let candidates: Vec<PathBuf> = if called.components().count() > 1 {
        vec![called.to_path_buf()]
    } else {
        std::env::split_paths(path).map(|directory| directory.join(called)).collect()
    };
    let found = candidates.into_iter().find(|candidate| number(candidate) == Some(running))?;
    std::path::absolute(found).ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_link_to_the_program_is_kept_and_another_program_is_not_taken_for_it() {
        let scratch = Scratch::new();
        let folder = scratch.path();
        for release in ["1", "2"] {
            std::fs::create_dir(folder.join(release)).unwrap();
            std::fs::write(folder.join(release).join("targe"), release).unwrap();
        }
        symlink(folder.join("1"), folder.join("current")).unwrap();
        let running = folder.join("1").join("targe");
        let called = folder.join("current").join("targe");
        let path = OsStr::new("");
        assert_eq!(find(&called, path, &running).as_ref(), Some(&called));
        assert_eq!(find(&folder.join("2").join("targe"), path, &running), None);
        assert_eq!(find(&folder.join("3").join("targe"), path, &running), None);
        // Without a folder it is searched in those of PATH.
        let path = std::env::join_paths([folder.join("2"), folder.join("current")]).unwrap();
        assert_eq!(find(Path::new("targe"), &path, &running), Some(called));
    }
}
