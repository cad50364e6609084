//! The I_T nexuses of a local disk, from the login as successor of a dead server to the logout.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use initiator::{Client, Disk, Event, SessionUp, Url};
use iscsi::name::Isid;

use super::nexus_record::{Nexus, NexusRecord, isid_digits};
use crate::{Failure, connect};

/// The folder of the records of block devices, which have no place of their own in the file system.
const RECORDS: &str = "/var/lib/targe-attach";

/// The nexuses that the disks of a command use, and the record of those that were not logged out.
pub(super) struct Nexuses {
    record: NexusRecord,
    open: Vec<OpenNexus>,
}

/// A nexus whose target stated its portal group.
struct OpenNexus {
    nexus: Nexus,
    tag: u16,
    /// Whether the session was logged out while it had a connection, so that the target has ended all tasks.
    is_logged_out: Arc<AtomicBool>,
}

/// Refuses URLs that would log in to one target with one initiator name and one ISID, in a session each:
/// each login would end the session of the other URL (session reinstatement, RFC 7143 §6.3.5), for ever.
/// `isids` contains the ISID of every URL that gets a session of its own.
pub(super) fn refuse_equal(urls: &[Url], isids: &[Option<Isid>]) -> Result<(), Failure> {
    let mut known: Vec<(&Url, Nexus)> = Vec::new();
    for (url, isid) in urls.iter().zip(isids) {
        let Some(isid) = isid else { continue };
        let nexus = nexus(url, *isid)?;
        if let Some((other, _)) = known.iter().find(|(_, other)| *other == nexus) {
            let digits = isid_digits(nexus.isid);
            return Err(Failure::Misused(format!(
                "{other} and {url} would log in to one target with one initiator name and one ISID ({digits}), so that                  each session ends the other: give each URL another isid=, or none"
            )));
        }
        known.push((url, nexus));
    }
    Ok(())
}

/// Returns the nexus of a URL, apart from the portal group.
fn nexus(url: &Url, isid: Isid) -> Result<Nexus, Failure> {
    let initiator = url.endpoint.initiator_name();
    let initiator = initiator.map_err(|why| Failure::Failed(connect::error_chain(&why)))?.to_string();
    Ok(Nexus { initiator, isid: isid.0, target: url.target.to_string() })
}

impl Nexuses {
    /// Returns the nexuses of a disk at a socket or a directory; the record is next to it.
    pub(super) fn of_place(place: &Path) -> Self {
        let mut path = place.as_os_str().to_owned();
        path.push(".session");
        Self::recorded_at(path.into())
    }

    /// Returns the nexuses of the block device of this name.
    pub(super) fn of_device(name: &str) -> Self {
        let [a, b, c, d, e] = ::attach::device_key::initiator_id(name.as_bytes(), 0);
        let digits = format!("{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}");
        Self::recorded_at(Path::new(RECORDS).join(format!("ublk-{digits}.session")))
    }

    fn recorded_at(path: PathBuf) -> Self {
        Self { record: NexusRecord::at(path), open: Vec::new() }
    }

    /// Logs in with an ISID and opens the LUN as a disk. If a server with the same nexus was killed, only the
    /// portal group of its session will do: the target ends that session before it accepts the login.
    pub(super) fn open(&mut self, client: &Client, url: &Url, isid: Isid) -> Result<Disk, Failure> {
        let nexus = nexus(url, isid)?;
        let path = self.record.path().display();
        let former = self.former_group(&nexus)?;
        let disk = connect::disk_as(client, url, isid, former).map_err(|why| match former {
            Some(tag) if why.is_other_portal_group() => Failure::Failed(format!(
                "{url}: the last targe attach here did not log out of its session in portal group {tag}, and no portal \
                 of that group is reached: the target would keep that session, and its delayed writes could overwrite \
                 newer data. Nothing was written. Attach through a portal of group {tag}; or, once the target has \
                 ended that session, remove {path}"
            )),
            _ => connect::failure(&why),
        })?;
        if let SessionUp::Iscsi(up) = disk.session().up()
            && let Some(tag) = up.portal_group
        {
            let is_logged_out = watch_logout(&disk);
            self.open.push(OpenNexus { nexus, tag: tag.0, is_logged_out });
        }
        Ok(disk)
    }

    /// Returns the portal group of the session that the last server of a nexus did not log out.
    fn former_group(&self, nexus: &Nexus) -> Result<Option<u16>, Failure> {
        let path = self.record.path().display();
        let group = self.record.portal_group(nexus);
        group.map_err(|why| Failure::Failed(format!("{path}: cannot be read: {why}")))
    }

    /// Records the portal groups, before anything is written to the disks.
    pub(super) fn record(&self) {
        if self.open.is_empty() {
            return;
        }
        let known: Vec<_> = self.open.iter().map(|open| (open.nexus.clone(), open.tag)).collect();
        if let Err(why) = self.make_folder().and_then(|()| self.record.keep(&known)) {
            eprintln!(
                "targe: {}: cannot record the portal group: {why}; if this process is killed, attach again through a \
                 portal of the same group",
                self.record.path().display()
            );
        }
    }

    /// Removes the nexuses from the record whose sessions were logged out.
    pub(super) fn forget_logged_out(&self) {
        let gone = self.open.iter().filter(|open| open.is_logged_out.load(Ordering::SeqCst));
        let gone: Vec<_> = gone.map(|open| open.nexus.clone()).collect();
        if let Err(why) = self.record.forget(&gone) {
            eprintln!("targe: {}: cannot be removed: {why}", self.record.path().display());
        }
    }

    /// Makes the folder of the records of block devices.
    fn make_folder(&self) -> std::io::Result<()> {
        if !self.record.path().starts_with(RECORDS) {
            return Ok(());
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(RECORDS)
    }
}

/// Watches whether a session is logged out. A logout without a connection ends the session only here.
fn watch_logout(disk: &Disk) -> Arc<AtomicBool> {
    let is_logged_out = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&is_logged_out);
    let mut is_up = true;
    disk.session().watch(move |news| {
        match news {
            Event::Up(_) => is_up = true,
            Event::Recovering => is_up = false,
            Event::Down(why) => theirs.store(is_up && why.is_logged_out(), Ordering::SeqCst),
            _ => {}
        }
        true
    });
    is_logged_out
}
