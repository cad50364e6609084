//! What keeps a daemon from being replaced without ending sessions, as far as that shows in its
//! configuration.

use crate::config::{Config, Medium};

/// Returns the first LUN whose medium cannot move to another process, and why, as a sentence.
pub(super) fn unmovable_medium(config: &Config) -> Option<String> {
    config.units.iter().find_map(|unit| {
        let is_keyed_memory = matches!(unit.medium, Medium::Ram { .. }) && unit.encrypt.is_some();
        is_keyed_memory.then(|| format!("{}: its key is in the memory of this process only", unit.label))
    })
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
}
