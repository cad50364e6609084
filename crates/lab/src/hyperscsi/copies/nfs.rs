//! NFS without the kernel: the server NFS-Ganesha, and `nfs-cp` of libnfs as its client.
//!
//! It is version 3, since `nfs-cp` of Debian 12 cannot write by version 4. The server needs a port mapper
//! (rpcbind) for that, which gets a `/run` of its own. `nfs-cp` copies one file, by reads or writes of up to
//! 1 MiB that follow each other, and commits it when it closes it.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::disks::FileSystem;
use super::program;
use crate::bed::{Bed, LinkPlan, TARGET_ADDRESS, to_f64};
use crate::client_load::seconds;
use crate::experiment::LabError;
use crate::hyperscsi::plan::FileSet;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, TargetProcess};
use crate::targets::{disk_directory, find_program, search_path};

const SERVER: &str = "ganesha.nfsd";
const PORT_MAPPER: &str = "rpcbind";
const CLIENT: &str = "nfs-cp";
const PORT: u16 = 2049;

/// How long the server may take to serve.
const SERVES_WITHIN: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The shortest file that is copied: `nfs-cp` is a process, a connection and a mount for each.
const FILE_LEN_MIN: u32 = 1 << 20;

/// Returns whether files of a set are long enough.
pub(super) const fn takes(files: FileSet) -> bool {
    files.len >= FILE_LEN_MIN
}

/// Returns why there can be no NFS here.
pub(super) fn absence() -> Option<String> {
    let missing: Vec<&str> =
        [SERVER, PORT_MAPPER, CLIENT].into_iter().filter(|program| find_program(program).is_none()).collect();
    (!missing.is_empty()).then(|| format!("not installed: {}", missing.join(", ")))
}

/// Serves a file system from the target's host, and waits until the initiator's host can write to it.
pub(super) fn serve(bed: &Bed, exported: &FileSystem, stop: &AtomicBool) -> Result<TargetProcess, LabError> {
    let system = |why| LabError::System { what: "write the configuration of an NFS server".to_owned(), why };
    let directory = PrivateDirectory::create_in(&disk_directory().0).map_err(system)?;
    let configuration = directory.path().join("ganesha.conf");
    std::fs::write(&configuration, configuration_of(exported.directory(), directory.path()))
        .map_err(system)?;
    let supervised = Supervised {
        serve: SERVE.to_owned(),
        teardown: TEARDOWN.to_owned(),
        variables: vec![
            ("PATH".to_owned(), search_path()),
            ("EXPORT".to_owned(), exported.directory().display().to_string()),
        ],
    };
    let mut process =
        exported.run("start a thread", |_| Ok(supervised.start(Some(bed.target()), directory)))??;
    let deadline = Instant::now() + SERVES_WITHIN;
    let is_listening = || {
        let address = SocketAddr::new(TARGET_ADDRESS.into(), PORT);
        bed.initiator().run(|| TcpStream::connect_timeout(&address, POLL_INTERVAL * 10).is_ok())
    };
    let mut why = "it does not listen".to_owned();
    loop {
        if is_listening()? {
            let (empty, ready) = (Path::new("/dev/null"), url(exported.directory(), "ready"));
            let left = deadline.saturating_duration_since(Instant::now());
            match bed.initiator().run(|| copy(empty, &ready, left, stop))? {
                Ok(()) => return Ok(process),
                Err(refused) => why = refused.to_string(),
            }
        }
        if let Some(end) = process.end() {
            return Err(LabError::Target(format!("{SERVER}: {end}")));
        }
        if stop.load(Ordering::Relaxed) || Instant::now() >= deadline {
            return Err(LabError::Target(format!(
                "{SERVER} does not serve: {why}; {}",
                process.messages_now()
            )));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Copies a file between the initiator's host, which is that of the calling thread, and the server.
///
/// # Errors
/// [`LabError::Target`], also if the copy takes longer than `within`.
pub(super) fn copy(from: &Path, to: &Path, within: Duration, stop: &AtomicBool) -> Result<(), LabError> {
    program::run(CLIENT, [from.as_os_str(), to.as_os_str()], within, stop)
}

/// Returns how long the copy of a file over a link may take: ten times as long as the link needs for its
/// bytes, and half a minute for a server that waits for its disk.
pub(super) fn copied_within(len: u32, link: LinkPlan) -> Duration {
    let rate_bits = link.rate_bits.unwrap_or(UNSHAPED_RATE);
    STALL_MAX + seconds(10.0 * f64::from(len) * 8.0 / to_f64(rate_bits))
}

const STALL_MAX: Duration = Duration::from_secs(30);
/// The rate in bits per second that every machine reaches without a limit.
const UNSHAPED_RATE: u64 = 100_000_000;

/// Returns the name of a file of the export for [`copy`]. A client whose server is gone ends, instead of
/// connecting again and again: this process may be gone too.
pub(super) fn url(export: &Path, file: &str) -> std::path::PathBuf {
    format!("nfs://{TARGET_ADDRESS}{}/{file}?version=3&autoreconnect=0", export.display()).into()
}

/// Version 4 is off, and with it what waits for clients of before.
fn configuration_of(export: &Path, directory: &Path) -> String {
    format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {PORT}; Enable_NLM = false; Enable_RQUOTA = false; \
         Enable_UDP = false; }}\nNFSV4 {{ Graceless = true; RecoveryRoot = {directory:?}; }}\nEXPORT {{ Export_Id \
         = 1; Path = {export:?}; Pseudo = \"/lab\"; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; \
         Protocols = 3; Transports = TCP; FSAL {{ Name = VFS; }} }}\n"
    )
}

/// The port mapper is looked for in /run, which is common to all network namespaces.
const SERVE: &str = r#"
mount -t tmpfs tmpfs /run
rpcbind -f &
echo $! > rpcbind.pid
tries=0
while [ ! -S /run/rpcbind.sock ]; do tries=$((tries + 1)); [ $tries -le 200 ]; sleep 0.02; done
exec ganesha.nfsd -F -L STDERR -N NIV_MAJ -p "$DIR/pid" -f "$DIR/ganesha.conf"
"#;

const TEARDOWN: &str = r#"
kill $(cat "$DIR/rpcbind.pid") 2>/dev/null
umount -l "$EXPORT" /run 2>/dev/null
"#;
