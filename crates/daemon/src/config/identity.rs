//! Serial numbers and world-wide names of units. They are stable, because they are derived from what the
//! operator wrote.

use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::resolved::Naa;

/// The first line of the identity file.
const HEAD: &str = "targe identity 1";
/// What stands for a salt where the names were derived without one, by a release that had none.
const NO_SALT: &str = "-";
/// The hexadecimal digits of a salt.
const SALT_DIGITS: usize = 32;

/// What a state directory adds to the names that are derived for its disks, so that two hosts with one
/// configuration file do not give one name to two disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateIdentity {
    /// The salt of the names: [`SALT_DIGITS`] digits, or none.
    pub(crate) salt: Option<String>,
    /// A hash of the host's machine id when the directory was used last.
    pub(crate) machine: String,
}

impl StateIdentity {
    /// Returns the path of the identity file of a state directory.
    pub(crate) fn file(state_dir: &Path) -> PathBuf {
        state_dir.join("identity")
    }

    /// Reads the identity file of a state directory; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(crate) fn read(state_dir: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read_to_string(Self::file(state_dir)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        Self::parse(&text)
            .map(Some)
            .ok_or_else(|| {
                let why = "it is damaged, and the names of the disks derive from it: restore it from a backup, or give \
                           every LUN the naa that its hosts know and remove it";
                io::Error::new(io::ErrorKind::InvalidData, why)
            })
    }

    /// Returns whether no daemon has served disks with a state directory. Its lock, its admin socket and the
    /// default disk can be there before.
    pub(crate) fn is_unused(state_dir: &Path) -> bool {
        let units = std::fs::read_dir(state_dir.join("units"));
        !units.is_ok_and(|mut units| units.next().is_some())
            && ["ports", "bindings", "audit.log", "guesses"].iter().all(|name| !state_dir.join(name).exists())
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let (head, salt) = (lines.next()?, lines.next()?.strip_prefix("salt ")?);
        let machine = lines.next()?.strip_prefix("machine ")?.to_owned();
        let is_salt =
            |text: &str| text.len() == SALT_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let salt = match salt {
            NO_SALT => None,
            salt if is_salt(salt) => Some(salt.to_owned()),
            _ => return None,
        };
        (head == HEAD && lines.next().is_none() && text.ends_with('\n')).then_some(Self { salt, machine })
    }

    /// Returns the contents of the identity file.
    pub(crate) fn to_text(&self) -> String {
        let salt = self.salt.as_deref().unwrap_or(NO_SALT);
        format!("{HEAD}\nsalt {salt}\nmachine {}\n", self.machine)
    }
}

/// Returns a hash of the identifier of a host, which is confidential (machine-id(5)).
pub(crate) fn machine_hash(host: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(b"targe machine 1\0");
    hash.update(host.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Derives the world-wide name of a unit: NAA 3h, locally assigned (SPC-4 §7.8.6.6.3), with 60 bits of a
/// hash. `scope` is the target's name, followed by the host if the name is the default one and by the salt of
/// the state directory if it has one, and `medium` identifies the unit within the target.
///
/// The same arguments give the same name in every release, because initiators recognise their disks by it.
pub(crate) fn derived_naa(scope: &str, medium: &str) -> Naa {
    let mut hash = Sha256::new();
    hash.update(b"targe unit 1\0");
    hash.update(scope.as_bytes());
    hash.update([0]);
    hash.update(medium.as_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let [first, rest @ ..] = digest.first_chunk::<8>().copied().unwrap_or_default();
    let mut name = [0x30 | (first & 0x0f), 0, 0, 0, 0, 0, 0, 0];
    if let Some(tail) = name.get_mut(1..) {
        tail.copy_from_slice(&rest);
    }
    Naa::Short(name)
}

/// Derives the instance identifier by which HyperSCSI initiators recognise a server, from its host and its
/// state directory. It stays the same after a restart, and differs for a second server on the host.
pub(crate) fn instance(state_dir: &Path) -> [u8; 16] {
    let mut hash = Sha256::new();
    hash.update(b"targe server 1\0");
    hash.update(super::resolve::host().as_bytes());
    hash.update([0]);
    hash.update(state_dir.as_os_str().as_encoded_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().copied().unwrap_or_default()
}

/// Parses a world-wide name.
///
/// # Errors
/// A fragment that describes the mistake.
pub(crate) fn parse_naa(text: &str) -> Result<Naa, String> {
    let digits = text.strip_prefix("naa.").or(text.strip_prefix("0x")).unwrap_or(text);
    let wrong = || format!("\"{text}\" is not an NAA name: it has 16 or 32 hexadecimal digits");
    let nibbles = digits
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<Vec<u8>>>()
        .ok_or_else(wrong)?;
    let bytes: Vec<u8> =
        nibbles.chunks(2).map(|pair| pair.iter().fold(0, |byte, nibble| byte << 4 | nibble)).collect();
    let kind = nibbles.first().copied().unwrap_or(0);
    if let (16, Ok(bytes), 2 | 3 | 5) = (nibbles.len(), <[u8; 8]>::try_from(bytes.as_slice()), kind) {
        return Ok(Naa::Short(bytes));
    }
    if let (32, Ok(bytes), 6) = (nibbles.len(), <[u8; 16]>::try_from(bytes.as_slice()), kind) {
        return Ok(Naa::Long(bytes));
    }
    match nibbles.len() {
        16 => Err(format!("\"{text}\" is not an NAA name: one of 16 digits begins with 2, 3 or 5")),
        32 => Err(format!("\"{text}\" is not an NAA name: one of 32 digits begins with 6")),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Initiators recognise their disks by these names: a change of this table changes the name of every
    /// disk.
    #[test]
    fn derived_names_never_change() {
        for (scope, medium, name) in [
            ("iqn.2001-04.com.example:a", "file:/srv/a.img", "3ba6cb8b7e9c9562"),
            ("iqn.2001-04.com.example:a", "ram:0", "3f40b72c8b520c6c"),
            ("iqn.2001-04.com.example:b", "ram:0", "3759ae1c714625e4"),
        ] {
            assert_eq!(derived_naa(scope, medium).to_string(), name);
        }
    }

    #[test]
    fn an_identity_file_reads_as_it_was_written_and_damage_is_noticed() {
        let machine = machine_hash("a host");
        for salt in [None, Some("00112233445566778899aabbccddeeff".to_owned())] {
            let identity = StateIdentity { salt, machine: machine.clone() };
            let text = identity.to_text();
            assert_eq!(StateIdentity::parse(&text), Some(identity));
            for cut in 0..text.len() {
                assert_eq!(StateIdentity::parse(&text[..cut]), None, "{:?}", &text[..cut]);
            }
        }
        assert_eq!(StateIdentity::parse("targe identity 1\nsalt 12\nmachine x\n"), None);
        assert_eq!(StateIdentity::parse("targe identity 2\nsalt -\nmachine x\n"), None);
    }

    #[test]
    fn takes_names_of_known_types_only() {
        for (text, ok) in [
            ("3000000000000001", true),
            ("0x5000C50000000001", true),
            ("naa.2000000000000001", true),
            ("60000000000000010000000000000001", true),
            ("6000000000000001", false),
            ("1000000000000001", false),
            ("30000000000000010000000000000001", false),
            ("300000000000000", false),
            ("300000000000000g", false),
            ("", false),
        ] {
            assert_eq!(parse_naa(text).is_ok(), ok, "{text}");
        }
        assert_eq!(parse_naa("0x5000C50000000001").unwrap().to_string(), "5000c50000000001");
    }
}
