//! Access of nodes to volumes. A volume has a target only while a node may use it; the target admits exactly
//! the initiators of these nodes, each with a secret of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use crate::capability::{Capability, is_single_node};
use crate::error::{CsiError, CsiResult};
use crate::proto::volume_capability::access_mode::Mode;
use crate::record::{Publication, Volume};
use crate::target_admin::{Access, Login, Strength, VolumeTarget};
use crate::volumes::{Volumes, random_hex};

/// The keys of secrets, as Kubernetes names those of its own iSCSI volumes.
pub const SECRET_USER: &str = "node.session.auth.username";
/// The key of the password.
pub const SECRET_PASSWORD: &str = "node.session.auth.password";
/// The most nodes that one volume is published to.
const NODES_MAX: usize = 128;
/// The lengths of CHAP secrets, as the daemon takes them, and of names.
const SECRET_LEN_MIN: usize = 12;
const SECRET_LEN_MAX: usize = 255;
/// The longest iSCSI name.
const ISCSI_NAME_LEN_MAX: usize = 223;

/// The keys of a publish context, which the controller hands to the node.
pub mod context {
    /// The portals, separated by commas.
    pub const PORTALS: &str = "portals";
    /// The name of the target.
    pub const TARGET: &str = "target";
    /// The world-wide name of the LUN.
    pub const NAA: &str = "naa";
    /// The CHAP name.
    pub const USER: &str = "chap_user";
    /// The CHAP secret, unless the node gets it from a Secret.
    pub const SECRET: &str = "chap_secret";
    /// What differs between one publication and the next.
    pub const TOKEN: &str = "publication";
    /// Whether the node may only read: `true` or `false`.
    pub const READ_ONLY: &str = "read_only";
    /// The protection of the data on the network.
    pub const PROTECTION: &str = "protection";
}

impl Volumes {
    /// Admits a node to a volume. Returns what the node needs to attach it.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn publish(
        &self,
        id: &str,
        node: &str,
        capability: &Capability,
        read_only: bool,
        secrets: &BTreeMap<String, String>,
    ) -> CsiResult<BTreeMap<String, String>> {
        let given = given_secret(secrets)?;
        let _busy = self.claim(id)?;
        let mut volume = self.volume(id)?;
        let node = initiator_name(node).ok_or_else(|| {
            CsiError::not_found(format!("node {node} has never registered an initiator name"))
        })?;
        let user = given.as_ref().map_or(&volume.id, |(user, _)| user).clone();
        let token = match volume.publications.get(&node) {
            Some(known) => known.token.clone(),
            None => random_hex()?,
        };
        let wanted = Publication {
            token,
            read_only: read_only || capability.is_read_only(),
            mode: capability.mode.into(),
            block: capability.mount.is_none(),
            user,
        };
        match volume.publications.get(&node) {
            Some(known) if is_compatible(known, &wanted) => {}
            Some(_) => {
                let message = format!("volume {id} is published to {node} in another way");
                return Err(CsiError::exists(message));
            }
            None => check_others(&volume, &wanted)?,
        }
        // A slow program, password hash or disk delays the publication of this volume alone.
        let _counted = self.count(&node, id)?;
        if volume.publications.is_empty() && wanted.read_only && !wanted.block {
            self.replay_journal(id);
        }
        let path = self.pool.secret(id, &node);
        let secret = match &given {
            Some((_, secret)) => secret.clone(),
            // A repeated call has the same answer.
            None => match self.pool.read_secret(&path) {
                Some(secret) if volume.publications.get(&node) == Some(&wanted) => secret,
                _ => random_hex()?,
            },
        };
        if volume.protection.needs_keys() {
            let strength = if given.is_some() { Strength::Chosen } else { Strength::Random };
            let make = || Ok(self.admin.password_records(&wanted.user, &secret, strength)?);
            let password_file = self.pool.password_file(id, &node, &wanted.user);
            self.pool.write_password(&path, &secret, &password_file, make)?;
        } else {
            self.pool.write_secret(&path, &secret)?;
        }
        if volume.publications.insert(node, wanted.clone()) != Some(wanted.clone()) {
            self.save(volume.clone())?;
        }
        self.serve(&volume)?;
        let mut told = BTreeMap::from([
            (context::PORTALS.to_owned(), self.settings.portals.join(",")),
            (context::TARGET.to_owned(), self.target_name(id)),
            (context::NAA.to_owned(), naa(id)),
            (context::USER.to_owned(), wanted.user),
            (context::TOKEN.to_owned(), wanted.token),
            (context::READ_ONLY.to_owned(), wanted.read_only.to_string()),
            (context::PROTECTION.to_owned(), volume.protection.name().to_owned()),
        ]);
        if given.is_none() {
            told.insert(context::SECRET.to_owned(), secret);
        }
        Ok(told)
    }

    /// Replays the journal of a volume that no node has, before the first one gets it to read. No node could:
    /// the copy of a volume in use is as after a crash.
    fn replay_journal(&self, id: &str) {
        if let Err(error) = crate::ext::replay_journal(&self.pool.image(id)) {
            // The node finds that the journal is not replayed, and refuses the volume with that reason.
            eprintln!("targe: volume {id}: {error}");
        }
    }

    /// Counts a volume as one of a node, if the node may have it. It counts until the result is dropped, and
    /// from then on if its publication is recorded.
    fn count(&self, node: &str, id: &str) -> CsiResult<Counted<'_>> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(max) = self.settings.max_volumes {
            let records = self.records();
            let recorded = records.volumes.values().filter(|volume| volume.publications.contains_key(node));
            let begun = counted.iter().filter(|(of, _)| of == node).map(|(_, volume)| volume);
            let has: BTreeSet<&String> = recorded.map(|volume| &volume.id).chain(begun).collect();
            let is_known = has.iter().any(|known| *known == id);
            if !is_known && has.len() >= usize::try_from(max.get()).unwrap_or(usize::MAX) {
                let has = has.len();
                return Err(CsiError::exhausted(format!(
                    "node {node} has {has} volumes, and may have {max}"
                )));
            }
        }
        let entry = (node.to_owned(), id.to_owned());
        counted.insert(entry.clone());
        Ok(Counted { all: &self.counted, entry })
    }

    /// Refuses a node from now on, and ends its sessions. `None` means every node. Nothing happens if it has
    /// no access.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn unpublish(&self, id: &str, node: Option<&str>) -> CsiResult<()> {
        let _busy = self.claim(id)?;
        let Ok(mut volume) = self.volume(id) else { return Ok(()) };
        let node = node.map(|node| initiator_name(node).unwrap_or_default());
        let leaving = |known: &String| node.as_ref().is_none_or(|node| node == known);
        let before = volume.publications.len();
        let gone = volume.publications.iter().filter(|(node, _)| leaving(node));
        let gone: Vec<PathBuf> = gone
            .flat_map(|(node, known)| {
                [self.pool.secret(id, node), self.pool.password_file(id, node, &known.user)]
            })
            .collect();
        volume.publications.retain(|node, _| !leaving(node));
        if before == volume.publications.len() {
            return Ok(());
        }
        if volume.publications.is_empty() {
            self.admin.remove(&self.target_name(id))?;
        } else {
            self.serve(&volume)?;
        }
        crate::kill_point::kill_point()?;
        self.save(volume)?;
        for path in gone {
            // Otherwise the next start removes it.
            self.pool.remove_secret(&path);
        }
        Ok(())
    }

    /// Has the daemon serve a volume to its nodes.
    pub(crate) fn serve(&self, volume: &Volume) -> CsiResult<()> {
        // The daemon would make a file that is missing, and zeros would take the place of the data.
        let len = self.pool.len(&volume.id)?;
        let access = volume.publications.iter().map(|(node, publication)| Access {
            initiator: node.clone(),
            read_only: publication.read_only,
            login: if volume.protection.needs_keys() {
                Login::Password {
                    password_file: self.pool.password_file(&volume.id, node, &publication.user),
                }
            } else {
                Login::Chap {
                    user: publication.user.clone(),
                    secret_file: self.pool.secret(&volume.id, node),
                }
            },
        });
        let target = VolumeTarget {
            name: self.target_name(&volume.id),
            file: self.pool.image(&volume.id),
            bytes: volume.bytes.max(len),
            naa: naa(&volume.id),
            serial: volume.id.chars().skip(2).collect(),
            settings: volume.limits.clone().into_iter().collect(),
            protection: volume.protection,
            access: access.collect(),
        };
        self.admin.serve(&target)?;
        crate::kill_point::kill_point()
    }
}

/// A volume that counts as one of a node while it is published. The call has claimed the volume, so that no
/// other call counts it.
struct Counted<'v> {
    all: &'v Mutex<BTreeSet<(String, String)>>,
    entry: (String, String),
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.entry);
    }
}

/// Returns the world-wide name of a volume: 3h, locally assigned, and 60 bits of its ID.
pub(crate) fn naa(id: &str) -> String {
    let digits: String = id.chars().skip(2).take(15).collect();
    format!("3{digits}")
}

/// Returns the initiator name that a node's ID is, in lower case; `None` if it is none.
pub fn initiator_name(node: &str) -> Option<String> {
    let name = node.to_ascii_lowercase();
    let has_type = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte);
    (has_type && name.len() <= ISCSI_NAME_LEN_MAX && name.bytes().all(is_plain)).then_some(name)
}

/// Returns the CHAP name and secret that the caller wants, if it brings them.
fn given_secret(secrets: &BTreeMap<String, String>) -> CsiResult<Option<(String, String)>> {
    match (secrets.get(SECRET_USER), secrets.get(SECRET_PASSWORD)) {
        (None, None) => Ok(None),
        (Some(user), Some(secret)) => {
            if !is_user(user) {
                let message = format!(
                    "the secret's {SECRET_USER} is not a name of letters, digits, -, _ and . that begins with no -"
                );
                return Err(CsiError::invalid(message));
            }
            Ok(Some((user.clone(), password(secret)?.to_owned())))
        }
        _ => Err(CsiError::invalid(format!("a secret needs both {SECRET_USER} and {SECRET_PASSWORD}"))),
    }
}

/// Returns whether a text can be a CHAP name here. A program that it is an argument of takes it for no
/// option.
pub(crate) fn is_user(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=SECRET_LEN_MAX).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(is_plain)
}

/// Returns the password in a Secret. A Secret that is made of a file often has a newline at the end, which is
/// not part of the password: the daemon does not count it either.
pub(crate) fn password(text: &str) -> CsiResult<&str> {
    let password = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
    if !(SECRET_LEN_MIN..=SECRET_LEN_MAX).contains(&password.len()) {
        return Err(CsiError::invalid(format!(
            "the secret's {SECRET_PASSWORD} has not {SECRET_LEN_MIN} to {SECRET_LEN_MAX} bytes"
        )));
    }
    if password.chars().any(char::is_control) {
        return Err(CsiError::invalid(format!("the secret's {SECRET_PASSWORD} has control characters")));
    }
    Ok(password)
}

/// Returns whether a node that has access in one way can have it in another: only the CHAP name may differ.
fn is_compatible(known: &Publication, wanted: &Publication) -> bool {
    Publication { user: wanted.user.clone(), ..known.clone() } == *wanted
}

/// Refuses a node while others have the volume that it cannot share it with.
fn check_others(volume: &Volume, wanted: &Publication) -> CsiResult<()> {
    let mode = |publication: &Publication| Mode::try_from(publication.mode).unwrap_or(Mode::Unknown);
    if volume.publications.len() >= NODES_MAX {
        return Err(CsiError::exhausted(format!("volume {} is published to {NODES_MAX} nodes", volume.id)));
    }
    for (node, other) in &volume.publications {
        // The mode of a node that writes applies to the others, too.
        let is_single_writer = [wanted, other].map(mode).contains(&Mode::MultiNodeSingleWriter);
        let two_writers = is_single_writer && !wanted.read_only && !other.read_only;
        if is_single_node(mode(wanted)) || is_single_node(mode(other)) || two_writers {
            let message = format!("volume {} is published to {node} already", volume.id);
            return Err(CsiError::precondition(message));
        }
        if other.block != wanted.block && !(other.read_only && wanted.read_only) {
            let message = format!("volume {} is published to {node} as another type of volume", volume.id);
            return Err(CsiError::precondition(message));
        }
    }
    Ok(())
}
