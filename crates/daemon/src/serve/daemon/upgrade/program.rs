//! Which programs may take over: the process that does gets the keys of all sessions.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::admin::change::Peer;
use crate::os_error;

/// Checks that another process can go on when this one ends.
pub(super) fn check_process_id(id: u32) -> Result<(), String> {
    if id == 1 {
        return Err("targe is process 1 of a container, and the container would end with it; restart the \
                    container with the new image instead"
            .to_owned());
    }
    Ok(())
}

/// Returns the program without symbolic links, if the client may let it take over. A process of the daemon's
/// user cannot read the daemon's memory, so that only root may name a program that others can change.
pub(super) fn resolve(binary: &Path, peer: &Peer) -> Result<PathBuf, String> {
    if !binary.is_absolute() {
        return Err(format!("{} is not an absolute path", binary.display()));
    }
    if matches!(peer, Peer::Process(process) if process.uid == 0) {
        return Ok(binary.to_path_buf());
    }
    let failed = |error: io::Error| format!("cannot start {}: {}", binary.display(), os_error(&error));
    let resolved = binary.canonicalize().map_err(failed)?;
    // Nobody but root can replace what the path leads to, from the first directory on.
    for part in resolved.ancestors() {
        let facts = part.metadata().map_err(failed)?;
        if let Some(flaw) = flaw(facts.uid(), facts.mode()) {
            return Err(format!(
                "{} {flaw}, and the program gets the keys of all sessions: run targe upgrade as root, or install \
                 the program where only root can write",
                part.display()
            ));
        }
    }
    Ok(resolved)
}

/// Returns why somebody other than root can change a file or a directory.
fn flaw(uid: u32, mode: u32) -> Option<String> {
    match (uid, mode & 0o022) {
        (0, 0) => None,
        (0, 0o020) => Some("can be written by its group".to_owned()),
        (0, _) => Some("can be written by every user".to_owned()),
        _ => Some(format!("belongs to user {uid}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn peer(uid: u32) -> Peer {
        Peer::process(uid, None)
    }

    #[test]
    fn process_1_of_a_container_is_not_replaced() {
        assert!(check_process_id(1).unwrap_err().starts_with("targe is process 1 of a container"));
        assert_eq!(check_process_id(2), Ok(()));
    }

    #[test]
    fn only_root_may_name_a_program_that_others_can_change() {
        let scratch = Scratch::new();
        let own = scratch.path().join("targe");
        std::fs::write(&own, "").unwrap();
        assert_eq!(resolve(&own, &peer(0)), Ok(own.clone()));
        // The scratch directory is one of a directory in which every user can make files.
        let why = resolve(&own, &peer(1000)).unwrap_err();
        assert!(why.contains("the program gets the keys of all sessions"), "{why}");
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
        let installed = Path::new("/bin/sh").canonicalize().unwrap();
        assert_eq!(resolve(&link, &peer(1000)), Ok(installed), "the link itself is not used again");
        let token = Peer::Token { name: "admin".to_owned(), address: [127, 0, 0, 1].into() };
        assert!(resolve(&own, &token).is_err());
        assert_eq!(
            resolve(Path::new("bin/targe"), &peer(0)).unwrap_err(),
            "bin/targe is not an absolute path"
        );
    }

    #[test]
    fn a_file_that_others_can_change_is_named_with_the_reason() {
        assert_eq!(flaw(0, 0o100_755), None);
        assert_eq!(flaw(0, 0o100_775).as_deref(), Some("can be written by its group"));
        assert_eq!(flaw(0, 0o041_777).as_deref(), Some("can be written by every user"));
        assert_eq!(flaw(1000, 0o100_755).as_deref(), Some("belongs to user 1000"));
    }
}
