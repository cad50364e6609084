//! What keeps a daemon from being replaced without ending sessions, as far as that shows in its
//! configuration.

use crate::config::{Config, Medium};
use crate::serve::upgrade::document::{
    FORMAT, FORMAT_WITHOUT_DRIVES, FORMAT_WITHOUT_EXPORTS, FORMAT_WITHOUT_TLS,
};

/// Returns the first LUN whose medium cannot move to another process, and why, as a sentence.
pub(super) fn unmovable_medium(config: &Config) -> Option<String> {
    config.units.iter().find_map(|unit| {
        let why = match &unit.medium {
            Medium::File { .. }
            | Medium::Block { .. }
            | Medium::Null { .. }
            | Medium::Disc { .. }
            | Medium::Tape { .. }
            | Medium::Changer { .. }
            | Medium::LibraryDrive { .. }
            | Medium::Nbd { .. }
            | Medium::Sg { .. }
            | Medium::VhostUserBlk { .. }
            | Medium::VhostUserScsi { .. } => return None,
            Medium::Ram { .. } if unit.encrypt.is_some() => "its key is in the memory of this process only",
            Medium::Ram { .. } => return None,
        };
        Some(format!("{}: {why}", unit.label))
    })
}

/// Returns the format of the document that a daemon with this configuration and without sessions inside TLS
/// writes in an upgrade: the oldest one with room for all of its state, so that older releases can take over
/// as far as they know what moves.
pub(super) fn format_of(config: &Config) -> u32 {
    let of_unit = |medium: &Medium| match medium {
        Medium::Nbd { .. }
        | Medium::Sg { .. }
        | Medium::VhostUserBlk { .. }
        | Medium::VhostUserScsi { .. } => FORMAT_WITHOUT_TLS,
        // There can be another medium in a drive than the configured one.
        Medium::Disc { .. } | Medium::Tape { .. } | Medium::Changer { .. } | Medium::LibraryDrive { .. } => {
            FORMAT_WITHOUT_EXPORTS
        }
        Medium::Ram { .. } => FORMAT,
        Medium::File { .. } | Medium::Block { .. } | Medium::Null { .. } => FORMAT_WITHOUT_DRIVES,
    };
    config.units.iter().map(|unit| of_unit(&unit.medium)).max().unwrap_or(FORMAT_WITHOUT_DRIVES)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::config::{Environment, Flags};
    use crate::scratch::Scratch;

    fn config(specs: &[&str]) -> Config {
        let scratch = Scratch::new();
        let _device = UnixListener::bind(scratch.path().join("disk.sock")).unwrap();
        let secret =
            OpenOptions::new().create_new(true).write(true).mode(0o600).open(scratch.path().join("key"));
        secret.unwrap().write_all(&[b'k'; 32]).unwrap();
        let environment = Environment::for_tests(scratch.path());
        let luns = specs.iter().map(|spec| (*spec).to_owned()).collect();
        let flags = Flags { luns, ..Flags::default() };
        Config::load(&flags, &environment).unwrap().config
    }

    fn obstacle(spec: &str) -> Option<String> {
        unmovable_medium(&config(&[spec]))
    }

    #[test]
    fn only_media_that_another_process_can_open_move() {
        assert_eq!(obstacle("null:1G"), None);
        assert_eq!(obstacle("file:disk.img,size=1M"), None);
        assert_eq!(obstacle("disc:disc.iso"), None);
        assert_eq!(obstacle("nbd:nbd://localhost/disk"), None);
        assert_eq!(obstacle("vhost-user-blk:disk.sock"), None);
        assert_eq!(obstacle("vhost-user-scsi:disk.sock"), None);
        assert_eq!(obstacle("ram:1M"), None);
        assert!(obstacle("ram:1M,encrypt=key").unwrap().contains("its key is in the memory"));
    }

    #[test]
    fn a_daemon_without_drives_and_exports_writes_what_earlier_releases_read() {
        let (null, disc, nbd) = ("null:1G", "disc:disc.iso", "nbd:nbd://localhost/disk");
        let (block, scsi) = ("vhost-user-blk:disk.sock", "vhost-user-scsi:disk.sock");
        for (specs, format) in [
            (&[null][..], 1),
            (&[null, disc], 2),
            (&[nbd, null], 3),
            (&[nbd, disc], 3),
            (&[block], 3),
            (&[scsi], 3),
            (&["ram:1M", null], 5),
        ] {
            assert_eq!(format_of(&config(specs)), format, "{specs:?}");
        }
    }
}
