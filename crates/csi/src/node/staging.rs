//! Attaches a volume to this host, and mounts its file system: made if the volume is blank, checked before it
//! is mounted, enlarged to its device.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::condition::Condition;
use super::context::PublishContext;
use super::{AttachMethod, Node, Staged, file_system, in_use, mounts, unfinished};
use crate::capability::{Capability, MountCapability};
use crate::error::{CsiError, CsiResult};
use crate::protection::Protection;
use crate::record;

/// Whether a mount of the file system was there before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mounted {
    /// It was mounted by this call, after a check.
    Now,
    /// It was mounted before, and nothing is known against it.
    Before,
    /// It was mounted before, is in use, and has errors.
    Faulty,
}

impl Node {
    /// Attaches a volume to this host, and mounts its file system if it is used as one.
    pub(crate) fn stage(
        &self,
        id: &str,
        staging_path: &Path,
        capability: &Capability,
        published: &BTreeMap<String, String>,
        secrets: &BTreeMap<String, String>,
    ) -> CsiResult<()> {
        if !crate::pool::is_id(id) {
            return Err(CsiError::not_found(format!("there is no volume {id}")));
        }
        let _busy = self.claim(id)?;
        let context = PublishContext::read(published, secrets)?;
        let wanted = Staged {
            id: id.to_owned(),
            method: self.method(id, context.protection)?,
            portal: context.portal,
            target: context.target,
            naa: context.naa,
            user: context.user,
            staging_path: staging_path.to_owned(),
            block: capability.mount.is_none(),
            read_only: capability.is_read_only() || capability.mounts_read_only() || context.read_only,
            formatting: false,
            publication: context.publication,
            protection: context.protection,
        };
        let mut staged = self.record(wanted)?;
        let device = self.settings.attach(&staged, &context.secret)?;
        self.forget_loss(&staged.id);
        let Some(mount) = &capability.mount else { return Ok(()) };
        self.make_file_system(&device, mount.file_system.as_deref(), &mut staged)?;
        let kind = file_system::probe(&device)?.unwrap_or_default();
        let mounted = mount_file_system(&staged, &device, &kind, mount)?;
        // A call that ended here before has mounted it only.
        if !staged.read_only && mounted != Mounted::Faulty {
            file_system::grow(&device, staging_path, &kind)?;
        }
        Ok(())
    }

    /// Returns how a volume is attached.
    fn method(&self, id: &str, protection: Protection) -> CsiResult<AttachMethod> {
        if !protection.needs_keys() {
            return Ok(self.settings.method);
        }
        self.settings.protected_method.ok_or_else(|| {
            CsiError::precondition(format!(
                "volume {id} has the protection \"{}\" on the network, which the kernel's initiator does not have: \
                 let this node attach it by targe (--attach ublk or loop, or auto where one of them is possible), or \
                 make volumes with the parameter protection: none",
                protection.name()
            ))
        })
    }

    /// Makes a file system on a blank device, or one whose file system was not completed.
    fn make_file_system(&self, device: &Path, wanted: Option<&str>, staged: &mut Staged) -> CsiResult<()> {
        // The record knows it on this node, since its last start; the mark on the volume, everywhere.
        let unfinished = staged.formatting || unfinished::is_marked(device, &staged.id)?;
        let found = if unfinished { None } else { file_system::probe(device)? };
        match (found, wanted) {
            (Some(found), Some(wanted)) if found != wanted => Err(CsiError::precondition(format!(
                "volume {} has a file system {found}, and {wanted} is wanted",
                staged.id
            ))),
            (Some(_), _) => Ok(()),
            (None, _) if staged.read_only => Err(CsiError::precondition(format!(
                "volume {} has no file system, and may only be read",
                staged.id
            ))),
            (None, wanted) => {
                if !unfinished && !file_system::is_blank(device)? {
                    return Err(CsiError::precondition(format!(
                        "volume {} holds data that is no known file system; it is left alone",
                        staged.id
                    )));
                }
                staged.formatting = true;
                record::write(&self.records_dir(), staged)?;
                make_marked(device, wanted.unwrap_or("ext4"), &staged.id)?;
                staged.formatting = false;
                record::write(&self.records_dir(), staged)
            }
        }
    }
}

/// Makes a file system on a device that is marked until it is complete.
fn make_marked(device: &Path, kind: &str, id: &str) -> CsiResult<()> {
    if kind == "xfs" {
        return file_system::make(device, kind, None);
    }
    let len = unfinished::set_mark(device, id)?;
    file_system::make(device, kind, Some(len))?;
    unfinished::clear_mark(device)
}

/// Mounts the file system of a volume at its staging path, unless it is there.
fn mount_file_system(
    staged: &Staged,
    device: &Path,
    kind: &str,
    wanted: &MountCapability,
) -> CsiResult<Mounted> {
    let path = &staged.staging_path;
    let number = mounts::number_of(device)?;
    while let Some(found) = mounts::at(path)? {
        if found.device == Some(number) {
            let condition = Condition::of(staged, device, path)?;
            let Some(what) = condition.needs_mount(staged.read_only) else {
                return Ok(Mounted::Before);
            };
            if in_use::check_unpublished(staged, Some(device)).is_err() {
                eprintln!("targe: volume {}: {what}; it is in use, and stays mounted", staged.id);
                return Ok(Mounted::Faulty);
            }
            eprintln!("targe: volume {}: {what}; it is mounted again", staged.id);
            mounts::unmount(path, false)?;
        } else {
            // The mount belongs to a device that has gone.
            mounts::unmount(path, true)?;
        }
    }
    fs::create_dir_all(path).map_err(|error| CsiError::io("make", path, &error))?;
    if staged.read_only {
        file_system::mount_read_only(device, path, kind, &wanted.options)?;
        return Ok(Mounted::Now);
    }
    // A file system that is mounted elsewhere cannot be checked.
    if !mounts::is_in_use(device) {
        file_system::preen(device, kind)?;
    }
    mounts::mount(device, path, kind, &file_system::options(kind, false, &wanted.options))?;
    Ok(Mounted::Now)
}
