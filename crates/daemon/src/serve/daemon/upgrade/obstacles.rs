//! What keeps a daemon from being replaced without ending sessions, as far as that shows in its
//! configuration.

use crate::config::{Config, Medium};

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
            | Medium::LibraryDrive { .. } => return None,
            Medium::Ram { .. } => "its data is in the memory of this process",
            Medium::Nbd { .. } => "its connection to the NBD server cannot move to another process",
            Medium::Sg { .. } => "a device that commands are passed to cannot move to another process",
            Medium::VhostUserBlk { .. } | Medium::VhostUserScsi { .. } => {
                "a device over vhost-user cannot move to another process: its other end knows the memory of this one"
            }
        };
        Some(format!("{}: {why}", unit.label))
    })
}

/// Returns whether a LUN is a drive, in which there can be another medium than the configured one.
pub(super) fn has_drives(config: &Config) -> bool {
    config.units.iter().any(|unit| match unit.medium {
        Medium::Disc { .. } | Medium::Tape { .. } | Medium::Changer { .. } | Medium::LibraryDrive { .. } => {
            true
        }
        Medium::File { .. }
        | Medium::Block { .. }
        | Medium::Null { .. }
        | Medium::Ram { .. }
        | Medium::Nbd { .. }
        | Medium::Sg { .. }
        | Medium::VhostUserBlk { .. }
        | Medium::VhostUserScsi { .. } => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Flags};
    use crate::scratch::Scratch;

    fn config(spec: &str) -> Config {
        let scratch = Scratch::new();
        let environment = Environment::for_tests(scratch.path());
        let flags = Flags { luns: vec![spec.to_owned()], ..Flags::default() };
        Config::load(&flags, &environment).unwrap().config
    }

    fn obstacle(spec: &str) -> Option<String> {
        unmovable_medium(&config(spec))
    }

    #[test]
    fn only_media_that_another_process_can_open_move() {
        assert_eq!(obstacle("null:1G"), None);
        assert_eq!(obstacle("file:disk.img,size=1M"), None);
        assert_eq!(obstacle("disc:disc.iso"), None);
        assert!(obstacle("ram:1M").unwrap().contains("memory of this process"));
    }

    #[test]
    fn a_daemon_without_drives_writes_what_earlier_releases_read() {
        assert!(has_drives(&config("disc:disc.iso")));
        assert!(!has_drives(&config("null:1G")));
    }
}
