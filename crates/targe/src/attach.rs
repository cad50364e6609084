//! `targe attach`: LUNs as a local disk, until a signal detaches it.

mod device;
mod nexus_record;
mod nexuses;

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::attach::device_key::{DeviceKey, initiator_id};
use ::attach::events::{AttachEvent, EventHandler};
use ::attach::fuse::{Detached, Mount};
use ::attach::nbd::{Export, Server};
use ::attach::stripe::Stripe;
use clap::Args;
use daemon::config::show_size;
use initiator::endpoint::Scheme;
use initiator::{Client, Disk, Event, PathError, Url};
use iscsi::name::Isid;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use store::api::Capabilities;
use store::shared::SharedStore;

use self::nexuses::Nexuses;
use crate::cli::{URL_HELP, size};
use crate::luks::Opened;
use crate::signals::{self, StallWatch};
use crate::{Failure, connect, luks, print, service};

/// Signals that arrive within this time count as one request: `timeout` and some supervisors signal a process
/// and then its group.
const ONE_REQUEST: Duration = Duration::from_millis(250);
/// The interval at which failures of the disk are logged again; a dead disk fails thousands of requests a
/// second.
const TELL_AGAIN: Duration = Duration::from_secs(5);
/// The exit code of an end that was not clean.
const EXIT_FAILED: i32 = 1;
/// For how long after a signal the command closes sessions whose requests make no progress.
const ASKED_SPAN: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    #[arg(required = true, help = URL_HELP)]
    url: Vec<String>,
    #[command(flatten)]
    way: Way,
    /// Stripe several LUNs, in the order given, by chunks of this many bytes (RAID 0)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    stripe: Option<u64>,
    /// Decrypt the LUKS2 image on the LUN with the secret in this file; the target never sees plain data
    #[arg(long, value_name = "KEY_FILE")]
    luks: Option<PathBuf>,
    /// Attach nothing: delete the block device that a dead process left for these LUNs. Requests that wait in
    /// it fail
    #[arg(long, conflicts_with_all = ["nbd", "fuse"])]
    delete: bool,
}

/// How the disk appears.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Way {
    /// Serve NBD clients on this Unix socket
    #[arg(long, value_name = "SOCKET")]
    nbd: Option<PathBuf>,
    /// Mount a file named disk on this directory, for losetup and whatever else takes a file
    #[arg(long, value_name = "DIR")]
    fuse: Option<PathBuf>,
    /// Make a block device /dev/ublkbN, where the kernel has ublk (module ublk_drv, Linux 6.5)
    #[arg(long)]
    ublk: bool,
}

/// Why the main thread wakes up.
enum Wakeup {
    /// A signal requests the end.
    Stop,
    /// No process uses the disk any more.
    Unused,
}

pub(crate) fn run(args: &AttachArgs) -> Result<(), Failure> {
    let urls = args.url.iter().map(|url| connect::url(url)).collect::<Result<Vec<_>, _>>()?;
    if urls.len() > 1 && args.stripe.is_none() {
        return Err(Failure::Misused("several LUNs need --stripe SIZE, such as --stripe 128K".into()));
    }
    for (number, url) in urls.iter().enumerate() {
        if urls.iter().take(number).any(|other| other == url) {
            return Err(Failure::Misused(format!("{url} is given twice")));
        }
    }
    let device_name = device::name(&urls, args.stripe);
    if args.delete {
        return device::delete(&device_name);
    }
    let device = args.way.ublk.then_some(&device_name);
    let server = server_name(&args.way)?;
    let isids = match device {
        Some(device) => device::isids(&urls, device),
        None => lun_isids(&urls, &server),
    };
    nexuses::refuse_equal(&urls, &isids)?;
    device.map_or(Ok(()), |device| device::ready(device))?;
    // The flag must be set before threads start, because they inherit it.
    let free_of_own_pages = ::attach::io_flusher::set_io_flusher();
    let client = connect::client()?;
    let place = args.way.nbd.as_deref().or(args.way.fuse.as_deref());
    let mut nexuses = match place {
        Some(place) => Nexuses::of_place(&lasting_path(place)),
        None => Nexuses::of_device(&device_name),
    };
    let disks = match device {
        Some(device) => device::disks(&client, &urls, device, &mut nexuses)?,
        None => disks(&client, &urls, &server, &mut nexuses)?,
    };
    for (url, disk) in urls.iter().zip(&disks) {
        tell_of_session(url, disk);
    }
    let name = urls.iter().map(Url::to_string).collect::<Vec<_>>().join(" ");
    let Opened { medium: whole, volume_name } =
        luks::opened(joined(&disks, args.stripe)?, args.luks.as_deref(), &name)?;
    let stack = device::stack(&urls, &disks, volume_name.as_deref())?;
    let key = DeviceKey::new(device_name.as_bytes(), &stack);
    if !free_of_own_pages && args.way.nbd.is_none() {
        eprintln!(
            "targe: without CAP_SYS_RESOURCE, a host that is short of memory may hang on a file system on this disk"
        );
    }
    let (tell, occasions) = channel();
    // A file or a device that is in use is not detached by the first signal.
    let signals_obeyed = if args.way.nbd.is_some() { 1 } else { 2 };
    let is_last = Arc::new(AtomicBool::new(false));
    watch_signals(tell.clone(), signals_obeyed, Arc::clone(&is_last))
        .map_err(|error| Failure::Failed(format!("cannot install signal handlers: {error}")))?;
    nexuses.record();
    let still = StallWatch::of(disks.iter().map(|disk| disk.session().clone()).collect());
    let end = Shutdown { occasions, tell: tell.clone(), still, is_last };
    let served = match (&args.way.nbd, &args.way.fuse, device) {
        (Some(socket), _, _) => {
            let export = Export { name: String::new(), description: name, key: Some(key) };
            serve_nbd(socket, whole, export, &end)
        }
        (_, Some(dir), _) => serve_file(dir, whole, &name, tell, &end),
        (_, _, Some(_)) => device::serve(whole, key, &name, (tell, &end)),
        _ => Err(Failure::Misused("choose one of --nbd SOCKET, --fuse DIR or --ublk".into())),
    };
    for disk in &disks {
        // If the logout does not reach the target, it detects the loss itself; no command is under way any
        // more.
        signals::log_out_briefly(disk.session());
    }
    nexuses.forget_logged_out();
    served
}

/// The request to end, and the watch that keeps an unresponsive target from delaying the end.
struct Shutdown {
    occasions: Receiver<Wakeup>,
    tell: Sender<Wakeup>,
    still: StallWatch,
    /// Whether no process uses the disk any more, so that the next signal ends the command at once.
    is_last: Arc<AtomicBool>,
}

impl Shutdown {
    /// Handles a signal that requests the end. The command may have to wait for processes that still use the
    /// disk, but not for a target that does not answer: if requests make no progress now, their session is
    /// closed, as by a second signal.
    fn stop_requested(&self) {
        let tell = self.tell.clone();
        // The main thread may have dropped the receiver already.
        self.still.watch(Some(ASKED_SPAN), move || drop(tell.send(Wakeup::Stop)));
    }

    /// Records that no process uses the disk any more. Only a flush and a logout remain; sessions whose
    /// target does not answer are closed.
    fn last(&self) {
        service::stopping("Detaching the disk");
        self.is_last.store(true, Ordering::SeqCst);
        self.still.watch(None, || ());
    }
}

/// Returns the name of the server of a socket or mount, by which the next server at the same place is known
/// as its successor. Refuses a place that a process serves: the login of a successor would end its session.
fn server_name(way: &Way) -> Result<Vec<u8>, Failure> {
    let failed = |why: &dyn std::error::Error| Failure::Failed(connect::error_chain(why));
    let (kind, path) = match (&way.nbd, &way.fuse) {
        (Some(socket), _) => {
            ::attach::nbd::refuse_served(socket).map_err(|why| failed(&why))?;
            ("nbd", lasting_path(socket))
        }
        (_, Some(dir)) => {
            ::attach::fuse::refuse_served(dir).map_err(|why| failed(&why))?;
            ("fuse", lasting_path(dir))
        }
        _ => return Ok(Vec::new()),
    };
    Ok([kind.as_bytes(), b"\0", path.as_os_str().as_bytes()].concat())
}

/// Returns the path of a socket or mount from the root, with no link among its directories. The last part is
/// not examined: it may be a dead mount, or not there.
fn lasting_path(path: &Path) -> PathBuf {
    let plain = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parent = plain.parent().and_then(|parent| parent.canonicalize().ok());
    parent.zip(plain.file_name()).map(|(parent, name)| parent.join(name)).unwrap_or(plain)
}

/// Returns the ISID of the server of this name for a disk. The next server logs in with the same one, and the
/// target ends the session of the dead server with all that is under way in it (RFC 7143 §6.3.5).
fn server_isid(name: &[u8], member: usize) -> Isid {
    isid_of(initiator_id(name, member))
}

fn isid_of([a, b, c, d, e]: [u8; 5]) -> Isid {
    Isid::random([a, b, c], u16::from_be_bytes([d, e]))
}

/// Returns the ISID of the server of a socket or mount for the LUN of a URL: the one in the URL, or else the
/// same for every server of the LUN at this place, whatever portal and stripe it uses.
fn lun_isid(server: &[u8], url: &Url) -> Isid {
    let name = || [server, format!("\0{}/{}", url.target, url.lun).as_bytes()].concat();
    url_isid(url).unwrap_or_else(|| server_isid(&name(), 0))
}

/// Returns the ISID that the user chose.
fn url_isid(url: &Url) -> Option<Isid> {
    url.endpoint.options.isid.map(Isid)
}

/// Returns the earlier URL whose session carries this LUN too. The LUNs of one HyperSCSI target share a
/// session, whose paths carry all of them. Each iSCSI LUN has a session of its own, and with it a connection.
fn sharer(urls: &[Url], member: usize) -> Option<usize> {
    let url = urls.get(member).filter(|url| url.endpoint.transport.scheme() == Scheme::HyperScsi)?;
    let same = |other: &Url| other.endpoint == url.endpoint && other.target == url.target;
    urls.iter().take(member).position(same)
}

/// Returns the ISID of each URL that gets a session of its own at a socket or mount.
fn lun_isids(urls: &[Url], server: &[u8]) -> Vec<Option<Isid>> {
    let own = |(member, url)| sharer(urls, member).is_none().then(|| lun_isid(server, url));
    urls.iter().enumerate().map(own).collect()
}

/// Opens the LUNs as disks, for the server of this name.
fn disks(client: &Client, urls: &[Url], server: &[u8], nexuses: &mut Nexuses) -> Result<Vec<Disk>, Failure> {
    let mut disks: Vec<Disk> = Vec::with_capacity(urls.len());
    for (member, url) in urls.iter().enumerate() {
        let earlier = sharer(urls, member).and_then(|earlier| disks.get(earlier));
        let shared = earlier.map(|disk| disk.session().clone());
        disks.push(match shared {
            Some(session) => connect::disk_of(session, url)?,
            None => nexuses.open(client, url, lun_isid(server, url))?,
        });
    }
    Ok(disks)
}

/// Joins all disks into one.
fn joined(disks: &[Disk], stripe: Option<u64>) -> Result<Arc<dyn SharedStore>, Failure> {
    let shared = |disk: &Disk| Arc::new(disk.clone()) as Arc<dyn SharedStore>;
    match (disks, stripe) {
        ([disk], None) => Ok(shared(disk)),
        (_, stripe) => {
            let chunk = stripe.unwrap_or(::attach::stripe::CHUNK_DEFAULT);
            let whole = Stripe::new(disks.iter().map(shared).collect(), chunk)
                .map_err(|why| Failure::Misused(format!("--stripe: {why}")))?;
            Ok(Arc::new(whole))
        }
    }
}

/// The sector size of a device of the kernel over a disk: the disk's logical block length, from which
/// partition tables count, within what the kernel takes.
fn sector_size(logical_block_len: u32) -> u32 {
    logical_block_len.clamp(512, 4096)
}

fn serve_nbd(
    socket: &Path,
    disk: Arc<dyn SharedStore>,
    export: Export,
    end: &Shutdown,
) -> Result<(), Failure> {
    let Capabilities { len, logical_block_len, .. } = disk.capabilities();
    let (size, name) = (show_size(len), export.description.clone());
    let server = Server::start(socket, disk, export, event_logger())
        .map_err(|error| Failure::Failed(connect::error_chain(&error)))?;
    let uri = nbd_uri(&std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned()));
    eprintln!("{name}, {size}, is an NBD disk now; Ctrl-C detaches it");
    eprintln!("  nbdinfo '{uri}'\n  qemu-img info '{uri}'");
    eprintln!(
        "  sudo nbd-client -unix {} /dev/nbd0 -block-size {}",
        socket.display(),
        sector_size(logical_block_len)
    );
    print(&format!("{uri}\n"));
    service::ready(&format!("{name} is the NBD disk {}", socket.display()));
    // If the sender was dropped, there is nothing to wait for.
    let _ = end.occasions.recv();
    end.last();
    server.stop().map_err(not_durable)
}

fn serve_file(
    dir: &Path,
    disk: Arc<dyn SharedStore>,
    name: &str,
    tell: Sender<Wakeup>,
    end: &Shutdown,
) -> Result<(), Failure> {
    let Capabilities { len, logical_block_len, .. } = disk.capabilities();
    let size = show_size(len);
    let ended = Box::new(move || {
        // The main thread may have dropped the receiver already.
        let _ = tell.send(Wakeup::Unused);
    });
    let mount = Mount::start(dir, disk, "targe", event_logger(), ended)
        .map_err(|error| Failure::Failed(connect::error_chain(&error)))?;
    let file = mount.file();
    eprintln!("{name}, {size}, is a file now; Ctrl-C detaches it");
    let sectors = sector_size(logical_block_len);
    eprintln!("  sudo losetup --find --show --direct-io=on --sector-size {sectors} {}", file.display());
    print(&format!("{}\n", file.display()));
    service::ready(&format!("{name} is the file {}", file.display()));
    let mut detached = false;
    while let Ok(Wakeup::Stop) = end.occasions.recv() {
        end.stop_requested();
        if detached {
            eprintln!("targe: processes that still use the file are disconnected");
            mount.abort();
            break;
        }
        match mount.detach() {
            Ok(Detached::Now) => break,
            Ok(Detached::OnceClosed) => {
                detached = true;
                eprintln!(
                    "targe: a process still uses {}: the file is served until that process closes it (losetup \
                     --detach); another signal disconnects it",
                    file.display()
                );
            }
            Err(error) => {
                eprintln!(
                    "targe: cannot unmount {}: {error}; another signal ends targe anyway",
                    dir.display()
                );
                detached = true;
            }
        }
    }
    end.last();
    mount.wait().map_err(not_durable)
}

fn not_durable(failure: store::api::Failure) -> Failure {
    Failure::Failed(format!("the last writes may be lost: flush: {}", failure.fault))
}

/// Returns the URI of a socket, as QEMU and libnbd accept it.
fn nbd_uri(socket: &Path) -> String {
    let mut uri = "nbd+unix:///?socket=".to_owned();
    for byte in socket.as_os_str().as_bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"/-._~".contains(byte);
        // Writing to a string does not fail.
        let _ = if plain { write!(uri, "{}", char::from(*byte)) } else { write!(uri, "%{byte:02X}") };
    }
    uri
}

/// Logs to stderr when the session with the target is lost and when it is restored.
fn tell_of_session(url: &Url, disk: &Disk) {
    let url = url.to_string();
    let mut waiting = false;
    // When a path is given up, only its loss is worth logging; when a path comes up for the first time,
    // nothing is.
    let mut lost = std::collections::BTreeSet::new();
    let mut last_loss: Option<String> = None;
    disk.session().watch(move |news| {
        match news {
            Event::Recovering => {
                waiting = true;
                let why = last_loss.take().map_or_else(String::new, |why| format!(": {why}"));
                eprintln!("targe: {url}: no path to the target{why}; requests wait");
            }
            Event::Up(_) if waiting => {
                waiting = false;
                eprintln!("targe: {url}: reconnected");
            }
            Event::PathDown { path, why: PathError::Silent, .. } => {
                eprintln!("targe: {url}: path {path} carries no frames");
                lost.insert(path.clone());
                last_loss = Some(PathError::Silent.to_string());
            }
            Event::PathDown { why, .. } => last_loss = Some(why.to_string()),
            Event::PathUp { path, .. } if lost.remove(path) => {
                eprintln!("targe: {url}: {path} carries data again");
            }
            Event::DeferredError { sense, .. } => {
                eprintln!("targe: {url}: an acknowledged write was lost: {sense}; the next flush fails");
            }
            Event::OtherDevice { what, .. } => {
                eprintln!("targe: {url}: {what}; requests fail from now on");
            }
            Event::DeviceUnconfirmed { what, .. } => {
                eprintln!("targe: {url}: {what}; requests fail until then");
            }
            Event::DeviceConfirmed { .. } => eprintln!("targe: {url}: the device is back"),
            // Otherwise this command closed the session itself.
            Event::Down(why) if why.is_given_up() => {
                eprintln!(
                    "targe: {url}: the session has ended: {}; requests fail from now on",
                    connect::error_chain(why)
                );
            }
            _ => {}
        }
        true
    });
}

/// Returns a handler that logs events to stderr, and limits the rate at which it logs failures of the disk.
fn event_logger() -> EventHandler {
    let told: Mutex<Option<(Instant, u64)>> = Mutex::default();
    Arc::new(move |notice| match notice {
        AttachEvent::Failed { what, at, len, failure } => {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            let (since, untold) = told.unwrap_or((Instant::now(), 0));
            if told.is_some() && since.elapsed() < TELL_AGAIN {
                *told = Some((since, untold + 1));
                return;
            }
            *told = Some((Instant::now(), 0));
            let others = if untold > 0 { format!(" (and {untold} more before)") } else { String::new() };
            eprintln!("targe: {what} of {len} bytes at {at}: {}{others}", failure.fault);
        }
        AttachEvent::Misbehaved(why) => eprintln!("targe: the connection of a client was closed: {why}"),
        AttachEvent::TooManyClients => eprintln!("targe: a client was refused: there are too many"),
        AttachEvent::Refused { errno } => {
            let why = std::io::Error::from_raw_os_error(errno);
            eprintln!("targe: the queue of the block device is one request shorter from now on: {why}");
        }
    })
}

/// Makes signals that request the end wake the main thread: the first `times` signals, and only until no
/// process uses the disk. The next signal ends the process at once.
fn watch_signals(tell: Sender<Wakeup>, times: u32, is_last: Arc<AtomicBool>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    let watch = move || {
        let mut last: Option<Instant> = None;
        let mut count = 0;
        for _ in &mut signals {
            if last.is_some_and(|last| last.elapsed() < ONE_REQUEST) {
                continue;
            }
            last = Some(Instant::now());
            count += 1;
            if count > times || is_last.load(Ordering::SeqCst) || tell.send(Wakeup::Stop).is_err() {
                std::process::exit(EXIT_FAILED);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: AttachArgs,
    }

    #[test]
    fn only_block_devices_are_deleted() {
        use clap::Parser;
        let url = "iscsi://host/iqn.2026-11.org.targe:rig/0";
        let line = |words: &[&str]| Line::try_parse_from(["targe", url].iter().chain(words));
        assert!(line(&["--ublk", "--delete"]).unwrap().args.delete);
        assert!(!line(&["--ublk"]).unwrap().args.delete);
        line(&["--nbd", "/run/a", "--delete"]).unwrap_err();
        line(&["--delete"]).unwrap_err();
    }

    #[test]
    fn paths_in_addresses_are_escaped() {
        for (path, uri) in [
            ("/run/disk-1.sock", "nbd+unix:///?socket=/run/disk-1.sock"),
            ("/a b&c?", "nbd+unix:///?socket=/a%20b%26c%3F"),
        ] {
            assert_eq!(nbd_uri(Path::new(path)), uri);
        }
    }

    #[test]
    fn a_server_is_known_by_its_place_and_its_lun() {
        let isid = |place: &str, url: &str| lun_isid(place.as_bytes(), &Url::parse(url).unwrap());
        let (host, other) = (
            "iscsi://host/iqn.2026-11.org.targe:rig",
            "iscsi://me%secret@other:3261/iqn.2026-11.org.targe:rig",
        );
        let one = isid("nbd\0/run/a", &format!("{host}/0"));
        assert_eq!(one, isid("nbd\0/run/a", &format!("{other}/0?timeout=7")));
        for (place, url) in [
            ("nbd\0/run/b", format!("{host}/0")),
            ("fuse\0/run/a", format!("{host}/0")),
            ("nbd\0/run/a", format!("{host}/1")),
            ("nbd\0/run/a", format!("{host}:2/0")),
            ("nbd\0/run/a", format!("{host}/0?isid=800000000007")),
        ] {
            assert_ne!(one, isid(place, &url), "{place} {url}");
        }
    }

    #[test]
    fn urls_that_end_each_others_sessions_are_refused() {
        let refused = |urls: &[&str], is_device| {
            let urls: Vec<Url> = urls.iter().map(|url| Url::parse(url).unwrap()).collect();
            let isids =
                if is_device { device::isids(&urls, "disk") } else { lun_isids(&urls, b"nbd\0/run/a") };
            match nexuses::refuse_equal(&urls, &isids) {
                Err(Failure::Misused(why)) => {
                    assert!(urls.iter().all(|url| why.contains(&url.to_string())), "{why}");
                    true
                }
                Err(other) => panic!("{other:?}"),
                Ok(()) => false,
            }
        };
        let one = "iscsi://host/iqn.2026-11.org.targe:rig/0?isid=800000000007";
        let other = |query| format!("iscsi://host/iqn.2026-11.org.targe:rig/1{query}");
        for is_device in [false, true] {
            assert!(refused(&[one, &other("?isid=800000000007")], is_device));
            assert!(!refused(&[one, &other("?isid=800000000008")], is_device));
            assert!(!refused(&[one, &other("")], is_device));
            let elsewhere = "iscsi://host/iqn.2026-11.org.targe:other/0?isid=800000000007";
            assert!(!refused(&[one, elsewhere], is_device));
            let named = "?isid=800000000007&initiator=iqn.2026-11.org.targe:second";
            assert!(!refused(&[one, &other(named)], is_device));
        }
        // One LUN by two ways: its ISID at a socket does not depend on the way.
        let ways = ["iscsi://a/iqn.2026-11.org.targe:rig/0", "iscsi://b/iqn.2026-11.org.targe:rig/0"];
        assert!(refused(&ways, false) && !refused(&ways, true));
        // The LUNs of one HyperSCSI target share a session, but not those of a block device.
        let paths = ["0", "1"]
            .map(|lun| format!("hyperscsi://group@eth0/iqn.2026-11.org.targe:rig/{lun}?isid=800000000007"));
        let paths = [&*paths[0], &*paths[1]];
        assert!(!refused(&paths, false) && refused(&paths, true));
    }

    #[test]
    fn a_place_keeps_its_name_whichever_way_leads_to_it() {
        let folder = std::env::temp_dir().join(format!("targe-attach-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("a")).unwrap();
        let link = folder.join("link");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("a", &link).unwrap();
        let [direct, by_link] =
            [folder.join("a/socket"), link.join("socket")].map(|path| lasting_path(&path));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(direct, by_link);
    }
}
