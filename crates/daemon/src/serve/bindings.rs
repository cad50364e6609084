//! Nexus bindings over a restart. A host that is logged in while the daemon restarts logs in again by itself,
//! and does not check whether its LUNs still lead to the disks that it has mounted.
//!
//! The state directory keeps the bindings in the file `bindings`: text, one I_T nexus a line, and then a
//! checksum of the lines before it. A line has the target, the initiator port as a hexadecimal TransportID,
//! the HyperSCSI group (`-` for iSCSI), and for each LUN its disk: the world-wide name, the block length, and
//! whether it is encrypted.
//!
//! ```text
//! targe bindings 1
//! iqn.2001-04.com.example:a 4500002869716e2e - 0=3ba6cb8b7e9c9562/512 1=3f40b72c8b520c6c/4096/encrypted
//! sum 5d41402abc4b2a76b9719d911017c592
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::mpsc::channel;
use std::time::Duration;

use target::bindings::NexusBindings;
use target::nexus::TargetNumber;

use super::disk_ids::{DiskIds, DiskName};
use super::reactor_shard::ReactorShard;
use super::reactors::{REACTOR_REPLY_TIMEOUT, ReactorThread};
use super::runtime_config::{IdAllocator, RuntimeConfig};
use super::state::{StateDir, StateError};
use super::target_ports::{Damaged, checksum};
use crate::config::parse_naa;

const HEAD: &str = "targe bindings 1";

/// How long a change waits to be stored, so that one write stores the changes of many logins.
pub(super) const STORE_DELAY: Duration = Duration::from_millis(500);

/// How long the daemon waits after it could not store bindings.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(60);

/// The bindings of an I_T nexus, with names that survive a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SavedNexus {
    target: String,
    initiator_port: Box<[u8]>,
    group: Option<Box<str>>,
    luns: Vec<(u16, DiskName)>,
}

/// Nexus bindings to restore, by reactor.
pub(super) type ClaimedBindings = BTreeMap<usize, Vec<NexusBindings>>;

/// The stored bindings.
#[derive(Debug, Default)]
pub(super) struct BindingStore {
    /// The bindings of targets that no reactor has served since the start.
    unclaimed: Vec<SavedNexus>,
    /// The contents of the file.
    stored: String,
}

impl BindingStore {
    /// Reads the bindings.
    ///
    /// # Errors
    /// [`StateError`]. Without its bindings, a host could reach another disk than the one that it has
    /// mounted.
    pub(super) fn load(state: &StateDir) -> Result<Self, StateError> {
        let stored = state.load_bindings()?.unwrap_or_default();
        let unclaimed = if stored.is_empty() { Ok(Vec::new()) } else { decode(&stored) };
        let unclaimed = unclaimed.map_err(|Damaged| state.damaged_bindings())?;
        Ok(Self { unclaimed, stored })
    }

    /// Takes the bindings of the targets that are served now, by reactor.
    pub(super) fn claim(
        &mut self,
        runtime: &RuntimeConfig,
        ids: &IdAllocator,
        disks: &mut DiskIds,
    ) -> ClaimedBindings {
        let owners: BTreeMap<String, usize> =
            runtime.owners().into_iter().map(|(name, reactor)| (name.to_string(), reactor)).collect();
        let mut claimed = ClaimedBindings::new();
        self.unclaimed.retain(|saved| {
            let Some((reactor, target)) = owners.get(&saved.target).zip(ids.target_number(&saved.target))
            else {
                return true;
            };
            let luns = saved.luns.iter().map(|(number, disk)| (*number, disks.restore(*disk)));
            claimed.entry(*reactor).or_default().push(NexusBindings {
                target: TargetNumber(target),
                initiator_port: saved.initiator_port.clone(),
                realm: saved.group.clone(),
                luns: luns.collect(),
            });
            false
        });
        claimed
    }

    /// Stores the bindings of all reactors, if they differ from the stored ones. Returns whether they are
    /// stored now.
    pub(super) fn store(
        &mut self,
        reactors: &[ReactorThread],
        ids: &IdAllocator,
        disks: &DiskIds,
        state: &StateDir,
    ) -> bool {
        let Some(all) = collect(reactors) else { return false };
        let named = all.into_iter().filter_map(|nexus| {
            let luns = nexus.luns.iter().filter_map(|(number, disk)| Some((*number, disks.find(*disk)?)));
            Some(SavedNexus {
                target: ids.target_name(nexus.target.0)?,
                initiator_port: nexus.initiator_port,
                group: nexus.realm,
                luns: luns.collect(),
            })
        });
        let all: Vec<SavedNexus> = self.unclaimed.iter().cloned().chain(named).collect();
        let text = encode(&all);
        if text == self.stored {
            return true;
        }
        if let Err(error) = state.save_bindings(&text) {
            crate::warning!(
                "{error}; after a restart, hosts may reach other disks by LUNs that they have used"
            );
            return false;
        }
        self.stored = text;
        true
    }
}

/// Returns the bindings of all reactors; `None` if one does not answer.
fn collect(reactors: &[ReactorThread]) -> Option<Vec<NexusBindings>> {
    let ask = |running: &ReactorThread| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut ReactorShard, _| {
            let _ = sender.send(member.bindings());
        });
        posted.ok().and_then(|()| receiver.recv_timeout(REACTOR_REPLY_TIMEOUT).ok())
    };
    let answers = reactors.iter().map(ask).collect::<Option<Vec<_>>>()?;
    Some(answers.into_iter().flatten().collect())
}

/// Formats bindings as the file stores them.
fn encode(all: &[SavedNexus]) -> String {
    let mut text = format!("{HEAD}\n");
    for nexus in all {
        let port: String = nexus.initiator_port.iter().map(|byte| format!("{byte:02x}")).collect();
        // Writing to a string cannot fail.
        let _ = write!(text, "{} {port} {}", nexus.target, nexus.group.as_deref().unwrap_or("-"));
        for (number, DiskName { naa, block_bytes, encrypted }) in &nexus.luns {
            let _ = write!(text, " {number}={naa}/{block_bytes}");
            text += if *encrypted { "/encrypted" } else { "" };
        }
        text.push('\n');
    }
    let sum = checksum(&text);
    text + &sum
}

/// Parses the output of [`encode`].
fn decode(text: &str) -> Result<Vec<SavedNexus>, Damaged> {
    let (body, last) = text.split_at(text.rfind("sum ").ok_or(Damaged)?);
    let mut lines = body.lines();
    if lines.next() != Some(HEAD) || checksum(body) != last {
        return Err(Damaged);
    }
    lines.map(decode_line).collect::<Option<_>>().ok_or(Damaged)
}

fn decode_line(line: &str) -> Option<SavedNexus> {
    let mut words = line.split(' ');
    let (target, port, group) = (words.next()?, words.next()?, words.next()?);
    let pairs = (0..port.len()).step_by(2);
    let initiator_port =
        pairs.map(|at| u8::from_str_radix(port.get(at..at + 2)?, 16).ok()).collect::<Option<Vec<u8>>>()?;
    let lun = |word: &str| {
        let (number, disk) = word.split_once('=')?;
        let mut parts = disk.split('/');
        let (naa, block) = (parse_naa(parts.next()?).ok()?, parts.next()?);
        let encrypted = parts.next() == Some("encrypted");
        Some((number.parse().ok()?, DiskName { naa, block_bytes: block.parse().ok()?, encrypted }))
    };
    Some(SavedNexus {
        target: target.to_owned(),
        initiator_port: initiator_port.into(),
        group: Some(group).filter(|group| *group != "-").map(Into::into),
        luns: words.map(lun).collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Naa;

    fn some() -> Vec<SavedNexus> {
        let disk = |last, block_bytes, encrypted| DiskName {
            naa: Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, last]),
            block_bytes,
            encrypted,
        };
        let long = DiskName { naa: Naa::Long([0x6a; 16]), block_bytes: 512, encrypted: false };
        vec![
            SavedNexus {
                target: "iqn.2001-04.com.example:a".to_owned(),
                initiator_port: Box::new([0x45, 0, 1]),
                group: None,
                luns: vec![(0, disk(1, 512, false)), (16_383, disk(2, 4096, true))],
            },
            SavedNexus {
                target: "iqn.2001-04.com.example:b".to_owned(),
                initiator_port: Box::new([0x45]),
                group: Some("backup".into()),
                luns: vec![(3, long)],
            },
        ]
    }

    #[test]
    fn what_is_written_is_read_again() {
        for all in [Vec::new(), some()] {
            assert_eq!(decode(&encode(&all)), Ok(all));
        }
    }

    #[test]
    fn a_damaged_file_is_noticed() {
        let text = encode(&some());
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let damaged = String::from_utf8(bytes).unwrap();
            assert_eq!(decode(&damaged), Err(Damaged), "byte {at}");
            assert_eq!(decode(&text[..at]), Err(Damaged), "cut at {at}");
        }
    }
}
