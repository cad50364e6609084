//! What the controller knows of volumes, snapshots and groups of snapshots: one JSON file for each, replaced
//! as a whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{CsiError, CsiResult};
use crate::link_free;
use crate::protection::Protection;
use crate::spares::Spares;

/// The version of the files.
const VERSION: u32 = 1;
/// The longest file: 128 publications, each with a name of 223 bytes, and the strings of a request, which are
/// at most 4 KiB each.
const FILE_LEN_MAX: u64 = 1 << 20;

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// Its ID.
    pub id: String,
    /// The name that the caller of CreateVolume gave.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The source that it is a copy of.
    pub source: Option<Source>,
    /// The parameters of its creation.
    pub parameters: BTreeMap<String, String>,
    /// Its limits: keys of a LUN, which can be modified.
    pub limits: BTreeMap<String, String>,
    /// The least protection of its data on the network. Older records do not have it, and earlier versions
    /// refuse a record with it: they would serve the volume without.
    #[serde(default, skip_serializing_if = "Protection::is_none")]
    pub protection: Protection,
    /// The nodes that may use it, by the names of their initiators.
    pub publications: BTreeMap<String, Publication>,
}

/// The source of a copy, by ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A volume.
    Volume(String),
    /// A snapshot.
    Snapshot(String),
}

/// How a node may use a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Publication {
    /// Whether it may only read.
    pub read_only: bool,
    /// The access mode, as a number of CSI.
    pub mode: i32,
    /// Whether it uses it as a block device, and not as a file system.
    pub block: bool,
    /// The name that it gives when it logs in.
    pub user: String,
    /// Random text, by which the node tells it from an earlier publication. Empty in older records.
    #[serde(default)]
    pub token: String,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Its ID.
    pub id: String,
    /// The name that the caller of CreateSnapshot gave. Empty for a snapshot of a group.
    pub name: String,
    /// The ID of the volume.
    pub volume: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was made, in seconds since 1970.
    pub created_s: i64,
    /// The ID of the group that it belongs to. Earlier versions refuse a record with this field: they would
    /// remove the snapshot alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// Snapshots of several volumes at one point in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its ID.
    pub id: String,
    /// The name that the caller of CreateVolumeGroupSnapshot gave.
    pub name: String,
    /// The IDs of its snapshots.
    pub snapshots: Vec<String>,
    /// When it was made, in seconds since 1970.
    pub created_s: i64,
}

/// What has a file.
pub trait Record: Clone + Serialize + DeserializeOwned {
    /// Returns the ID, which names the file.
    fn id(&self) -> &str;
}

impl Record for Volume {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Record for Snapshot {
    fn id(&self) -> &str {
        &self.id
    }
}

impl Record for Group {
    fn id(&self) -> &str {
        &self.id
    }
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    version: u32,
    record: T,
}

/// Reads every record in a folder.
///
/// # Errors
/// A file that cannot be read or has mistakes: what belongs to it must not be taken for unused.
pub fn read_all<T: Record>(folder: &Path) -> CsiResult<BTreeMap<String, T>> {
    let failed = |error: &io::Error| CsiError::io("read", folder, error);
    let mut records = BTreeMap::new();
    for name in link_free::names(folder).map_err(|error| failed(&error))? {
        let path = folder.join(name);
        if path.extension().is_none_or(|extension| extension != "json") {
            // A file that was never put in place.
            link_free::remove(&path).map_err(|error| CsiError::io("remove", &path, &error))?;
            continue;
        }
        let record: T = read(&path)?;
        if path.file_stem().is_none_or(|stem| stem != record.id()) {
            return Err(CsiError::internal(format!("{} has the record of another ID", path.display())));
        }
        records.insert(record.id().to_owned(), record);
    }
    Ok(records)
}

/// Returns the IDs that have records in a folder, while others may be written.
///
/// # Errors
/// The folder cannot be read.
pub fn ids(folder: &Path) -> CsiResult<Vec<String>> {
    let failed = |error: io::Error| CsiError::io("read", folder, &error);
    let mut ids = Vec::new();
    for name in link_free::names(folder).map_err(failed)? {
        ids.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_owned));
    }
    Ok(ids)
}

/// Reads the record of an ID, if there is one.
///
/// # Errors
/// A file that cannot be read or has mistakes.
pub fn read_one<T: Record>(folder: &Path, id: &str) -> CsiResult<Option<T>> {
    let path = path(folder, id);
    if link_free::exists(&path) { read(&path).map(Some) } else { Ok(None) }
}

/// Returns whether there is a record of an ID, readable or not.
pub fn exists(folder: &Path, id: &str) -> bool {
    link_free::exists(&path(folder, id))
}

fn read<T: Record>(path: &Path) -> CsiResult<T> {
    let failed = |error: &io::Error| CsiError::io("read", path, error);
    let file = link_free::open(path, OFlags::RDONLY).map_err(|error| failed(&error))?;
    let bytes = file.metadata().map_err(|error| failed(&error))?.len();
    if bytes > FILE_LEN_MAX {
        return Err(CsiError::internal(format!("{} is too long for a record", path.display())));
    }
    let mut text = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut text).map_err(|error| failed(&error))?;
    let wrong = |error: String| CsiError::internal(format!("{} is no record: {error}", path.display()));
    let head: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if head.get("version").and_then(serde_json::Value::as_u64) != Some(u64::from(VERSION)) {
        return Err(wrong("it is of another version of targe".to_owned()));
    }
    let whole: Versioned<T> = serde_json::from_value(head).map_err(|error| wrong(error.to_string()))?;
    Ok(whole.record)
}

/// Writes a record durably, in the place of the former one. This needs new storage.
///
/// # Errors
/// A file system that refuses it; the former record stays then.
pub fn write<T: Record>(folder: &Path, record: &T) -> CsiResult<()> {
    replace_file(&path(folder, record.id()), &encode(record)?)
}

/// Writes a record like [`write`], with the storage of a spare file if the file system is full.
///
/// # Errors
/// As of [`write`].
pub(crate) fn replace<T: Record>(spares: &Spares, folder: &Path, record: &T) -> CsiResult<()> {
    let path = path(folder, record.id());
    NextFile::write(&path, &encode(record)?, |_| Ok(()), Some(spares))?.put_in_place()
}

fn encode<T: Record>(record: &T) -> CsiResult<Vec<u8>> {
    let whole = Versioned { version: VERSION, record: record.clone() };
    let text = serde_json::to_vec(&whole).map_err(|error| CsiError::internal(error.to_string()))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_LEN_MAX {
        return Err(CsiError::exhausted("the record would be longer than 1 MiB"));
    }
    Ok(text)
}

/// Writes a file durably, in the place of the former one. Only its owner can read it. This needs new storage.
///
/// # Errors
/// A file system that refuses it; the former file stays then.
pub fn replace_file(path: &Path, content: &[u8]) -> CsiResult<()> {
    NextFile::write(path, content, |_| Ok(()), None)?.put_in_place()
}

/// The next contents of a file, which are durable under a temporary name. Dropping this removes what has the
/// temporary name.
pub(crate) struct NextFile<'s> {
    path: PathBuf,
    next: PathBuf,
    spares: Option<&'s Spares>,
}

impl<'s> NextFile<'s> {
    /// Writes the next contents of the file at `path`, which only its owner can read. `prepare` changes the
    /// attributes before the file can appear. Spare files give the storage if the file system is full.
    ///
    /// # Errors
    /// A file system that refuses it; the former file stays then.
    pub(crate) fn write(
        path: &Path,
        content: &[u8],
        prepare: impl Fn(&File) -> io::Result<()>,
        spares: Option<&'s Spares>,
    ) -> CsiResult<Self> {
        let this = Self { path: path.to_owned(), next: path.with_extension("new"), spares };
        let fill = |file: &mut File| {
            file.write_all(content)?;
            prepare(file)?;
            file.sync_all()
        };
        let written = match spares {
            Some(spares) => spares.make(&this.next, content.len(), fill),
            None => link_free::create_anew(&this.next).and_then(|mut file| fill(&mut file)),
        };
        written.map_err(|error| CsiError::io("write", path, &error))?;
        Ok(this)
    }

    /// Puts the file in the place of the former one, durably. This needs no storage. The storage of the
    /// former file becomes that of a spare file, if one is missing.
    ///
    /// # Errors
    /// A file system that refuses it; one of the two files is in place then.
    pub(crate) fn put_in_place(self) -> CsiResult<()> {
        let is_short = self.spares.is_some_and(Spares::is_short);
        if !is_short || link_free::exchange(&self.next, &self.path).is_err() {
            let rename = || link_free::rename(&self.next, &self.path);
            let renamed = self.spares.map_or_else(rename, |spares| spares.with_room(rename));
            renamed.map_err(|error| CsiError::io("write", &self.path, &error))?;
        }
        sync_folder(&self.path).inspect_err(|_| {
            // After a loss of power this can be the file, so its contents stay.
            let _ = link_free::remove(&self.next);
        })
    }
}

impl Drop for NextFile<'_> {
    fn drop(&mut self) {
        match self.spares {
            Some(spares) => spares.recycle(&self.next),
            // Otherwise the next start removes it.
            None => drop(link_free::remove(&self.next)),
        }
    }
}

/// Removes a record durably.
///
/// # Errors
/// A file system that refuses it.
pub fn remove(folder: &Path, id: &str) -> CsiResult<()> {
    let path = path(folder, id);
    match link_free::remove(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CsiError::io("remove", &path, &error)),
        _ => sync_folder(&path),
    }
}

/// Makes the name of a file durable.
///
/// # Errors
/// A file system that refuses it.
pub fn sync_folder(path: &Path) -> CsiResult<()> {
    let folder = path.parent().unwrap_or(path);
    link_free::sync_folder(folder).map_err(|error| CsiError::io("synchronize", folder, &error))
}

fn path(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}
