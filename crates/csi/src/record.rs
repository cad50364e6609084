//! What the controller knows of volumes, snapshots and groups of snapshots: one JSON file for each, replaced
//! as a whole.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{CsiError, CsiResult};

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
    /// The name that it gives for CHAP.
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
    for entry in fs::read_dir(folder).map_err(|error| failed(&error))? {
        let path = entry.map_err(|error| failed(&error))?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            // A file that was never put in place.
            fs::remove_file(&path).map_err(|error| CsiError::io("remove", &path, &error))?;
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
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
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
    if path.exists() { read(&path).map(Some) } else { Ok(None) }
}

/// Returns whether there is a record of an ID, readable or not.
pub fn exists(folder: &Path, id: &str) -> bool {
    path(folder, id).exists()
}

fn read<T: Record>(path: &Path) -> CsiResult<T> {
    let failed = |error: &io::Error| CsiError::io("read", path, error);
    let bytes = fs::metadata(path).map_err(|error| failed(&error))?.len();
    if bytes > FILE_LEN_MAX {
        return Err(CsiError::internal(format!("{} is too long for a record", path.display())));
    }
    let text = fs::read(path).map_err(|error| failed(&error))?;
    let wrong = |error: String| CsiError::internal(format!("{} is no record: {error}", path.display()));
    let head: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if head.get("version").and_then(serde_json::Value::as_u64) != Some(u64::from(VERSION)) {
        return Err(wrong("it is of another version of targe".to_owned()));
    }
    let whole: Versioned<T> = serde_json::from_value(head).map_err(|error| wrong(error.to_string()))?;
    Ok(whole.record)
}

/// Writes a record durably, in the place of the former one.
///
/// # Errors
/// A file system that refuses it; the former record stays then.
pub fn write<T: Record>(folder: &Path, record: &T) -> CsiResult<()> {
    let whole = Versioned { version: VERSION, record: record.clone() };
    let text = serde_json::to_vec(&whole).map_err(|error| CsiError::internal(error.to_string()))?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_LEN_MAX {
        return Err(CsiError::exhausted("the record would be longer than 1 MiB"));
    }
    replace_file(&path(folder, record.id()), &text)
}

/// Writes a file durably, in the place of the former one. Only its owner can read it.
///
/// # Errors
/// A file system that refuses it; the former file stays then.
pub fn replace_file(path: &Path, content: &[u8]) -> CsiResult<()> {
    replace_file_with(path, content, |_| Ok(()))
}

/// Writes a file durably, in the place of the former one. `prepare` changes its attributes before it appears.
///
/// # Errors
/// A file system that refuses it; the former file stays then.
pub fn replace_file_with(
    path: &Path,
    content: &[u8],
    prepare: impl FnOnce(&File) -> io::Result<()>,
) -> CsiResult<()> {
    let new = path.with_extension("new");
    let written = write_new(&new, content, prepare).and_then(|()| fs::rename(&new, path));
    written.map_err(|error| {
        // Otherwise the next start removes it.
        let _ = fs::remove_file(&new);
        CsiError::io("write", path, &error)
    })?;
    sync_folder(path)
}

fn write_new(path: &Path, content: &[u8], prepare: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    prepare(&file)?;
    file.sync_all()
}

/// Removes a record durably.
///
/// # Errors
/// A file system that refuses it.
pub fn remove(folder: &Path, id: &str) -> CsiResult<()> {
    let path = path(folder, id);
    match fs::remove_file(&path) {
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
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| CsiError::io("synchronize", folder, &error))
}

fn path(folder: &Path, id: &str) -> PathBuf {
    folder.join(format!("{id}.json"))
}
