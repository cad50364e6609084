//! `targe attach --ublk`: a block device, served until no process uses it any more.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ::attach::device_key::{DeviceKey, DeviceStack};
use ::attach::ublk::{Device, DeviceUse, Started};
use daemon::config::show_size;
use initiator::{Client, Disk, Url, block_on};
use iscsi::name::Isid;
use store::shared::SharedStore;

use super::nexuses::Nexuses;
use super::{Shutdown, Wakeup, event_logger};
use crate::{Failure, connect, print, service};

/// How often the command checks whether the device is still in use, once its end is requested.
const ASK_AGAIN: Duration = Duration::from_millis(200);
/// Users that close the device within this time are not reported: udev opens every new device.
const PASSING: Duration = Duration::from_secs(1);

/// Returns the name that identifies a device before and after its server's death: the URLs of its disks,
/// without secrets and options. However a URL writes the name of its target, it is the same disk (RFC 7143
/// §4.2.7.2).
pub(super) fn name(urls: &[Url], stripe: Option<u64>) -> String {
    let url = |url: &Url| format!("{}/{}/{}", url.endpoint, url.target.as_str(), url.lun);
    let urls: Vec<String> = urls.iter().map(url).collect();
    format!("{} {}", stripe.unwrap_or(0), urls.join(" "))
}

/// Checks, before anything else is done, whether there can be a device, and says if one waits for a server.
pub(super) fn ready(name: &str) -> Result<(), Failure> {
    let waiting =
        ::attach::ublk::find(name.as_bytes()).map_err(|why| Failure::Failed(connect::error_chain(&why)))?;
    if waiting.is_some() {
        eprintln!("targe: a device of this disk waits for a server; this process takes it over");
    }
    Ok(())
}

/// Deletes the device that a dead process left under this name.
pub(super) fn delete(name: &str) -> Result<(), Failure> {
    let deleted = ::attach::ublk::delete_left(name.as_bytes())
        .map_err(|why| Failure::Failed(connect::error_chain(&why)))?;
    match deleted {
        Some(path) => eprintln!("targe: {} is deleted; requests that waited in it failed", path.display()),
        None => eprintln!("targe: no device of this disk waits for a server"),
    }
    Ok(())
}

/// Logs in with the initiator port of the device's server. The session of a dead server ends, with all that
/// it left at the target.
pub(super) fn disks(
    client: &Client,
    urls: &[Url],
    name: &str,
    nexuses: &mut Nexuses,
) -> Result<Vec<Disk>, Failure> {
    let open = |(member, url)| nexuses.open(client, url, member_isid(name, member, url));
    urls.iter().enumerate().map(open).collect()
}

/// Returns the ISID of each URL. Every disk of a device has a session of its own.
pub(super) fn isids(urls: &[Url], name: &str) -> Vec<Option<Isid>> {
    urls.iter().enumerate().map(|(member, url)| Some(member_isid(name, member, url))).collect()
}

/// Returns the ISID of the device's server for a disk: the one in the URL, or else the same for every server
/// of the device.
fn member_isid(name: &str, member: usize, url: &Url) -> Isid {
    super::url_isid(url).unwrap_or_else(|| super::server_isid(name.as_bytes(), member))
}

/// Returns what the local disk shows. `volume_name` names the LUKS2 volume on the disks, if they are
/// decrypted.
pub(super) fn stack(urls: &[Url], disks: &[Disk], volume_name: Option<&str>) -> Result<DeviceStack, Failure> {
    let initiator = |url: &Url| {
        let name = url.endpoint.initiator_name();
        name.map(|name| name.to_string()).map_err(|why| Failure::Failed(connect::error_chain(&why)))
    };
    let initiators = urls.iter().map(initiator).collect::<Result<Vec<_>, Failure>>()?.join(" ");
    Ok(DeviceStack { disks: identities(disks)?, initiators, decryption: volume_name.map(str::to_owned) })
}

/// Serves the device.
pub(super) fn serve(
    whole: Arc<dyn SharedStore>,
    key: DeviceKey,
    urls: &str,
    (tell, end): (Sender<Wakeup>, &Shutdown),
) -> Result<(), Failure> {
    let size = show_size(whole.capabilities().len);
    let ended = Box::new(move || {
        // The main thread may have dropped the receiver already.
        let _ = tell.send(Wakeup::Unused);
    });
    let device = Device::start(whole, key, event_logger(), ended)
        .map_err(|why| Failure::Failed(connect::error_chain(&why)))?;
    let path = device.path();
    match device.started() {
        Started::Anew => eprintln!("{urls}, {size}, is a block device now; Ctrl-C detaches it"),
        Started::TakenOver => eprintln!("{urls}, {size}, is the block device it was; Ctrl-C detaches it"),
    }
    print(&format!("{}\n", path.display()));
    service::ready(&format!("{urls} is the block device {}", path.display()));
    let how = wait_for_the_end(&device, end);
    end.last();
    let ended = match how {
        DeviceUse::Free => device.stop(),
        DeviceUse::InUse => device.cut_off(),
    };
    ended.map_err(|why| Failure::Failed(connect::error_chain(&why)))
}

/// Waits for a request to end. Returns once no process uses the device any more, or once a second signal ends
/// the wait for that.
fn wait_for_the_end(device: &Device, end: &Shutdown) -> DeviceUse {
    if !matches!(end.occasions.recv(), Ok(Wakeup::Stop)) {
        return DeviceUse::Free;
    }
    end.stop_requested();
    let path = device.path();
    let asked = Instant::now();
    let mut told = false;
    loop {
        let why = match device.check_use() {
            Ok(DeviceUse::Free) => return DeviceUse::Free,
            Ok(DeviceUse::InUse) => "a process still uses it (mounted, mapped or open)".to_owned(),
            Err(error) => format!("cannot determine whether a process uses it: {error}"),
        };
        if !told && asked.elapsed() > PASSING {
            told = true;
            eprintln!(
                "targe: {}: {why}; it is served until the last user closes it, another signal disconnects all users",
                path.display()
            );
        }
        match end.occasions.recv_timeout(ASK_AGAIN) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Wakeup::Stop) => {
                eprintln!("targe: {}: processes that still use it are disconnected", path.display());
                return DeviceUse::InUse;
            }
            Ok(Wakeup::Unused) | Err(RecvTimeoutError::Disconnected) => return DeviceUse::Free,
        }
    }
}

/// Returns the identities that the disks report.
fn identities(disks: &[Disk]) -> Result<String, Failure> {
    let ask = |disk: &Disk| {
        let identity =
            block_on(disk.unit().identity()).map_err(|why| Failure::Failed(connect::error_chain(&why)))?;
        Ok(identity.map(|identity| identity.to_string()).unwrap_or_default())
    };
    Ok(disks.iter().map(ask).collect::<Result<Vec<_>, Failure>>()?.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_known_by_the_way_to_its_disks() {
        let name = |urls: &[&str], stripe| {
            let urls: Vec<Url> = urls.iter().map(|url| Url::parse(url).unwrap()).collect();
            name(&urls, stripe)
        };
        let (one, two) =
            ("iscsi://host/iqn.2026-11.org.targe:rig/0", "iscsi://host/iqn.2026-11.org.targe:rig/1");
        let plain = name(&[one], None);
        assert_eq!(plain, name(&["iscsi://host:3260/iqn.2026-11.org.targe:rig/0?timeout=7"], None));
        assert_eq!(plain, name(&["iscsi://host/iqn.2026-11.org.targe:Rig/0"], None), "it is the same target");
        let others = [
            name(&[two], None),
            name(&[one, two], Some(1 << 16)),
            name(&[two, one], Some(1 << 16)),
            name(&[one, two], Some(1 << 17)),
        ];
        for (number, other) in others.iter().enumerate() {
            assert!(*other != plain && !others[..number].contains(other), "{other}");
        }
        let isid = |member, text| member_isid(&plain, member, &Url::parse(text).unwrap());
        assert_eq!(isid(0, one), isid(0, two), "the name of the device decides");
        assert_ne!(isid(0, one), isid(1, one));
        let chosen = format!("{one}?isid=800000000007");
        assert_eq!(isid(0, &chosen), Isid([0x80, 0, 0, 0, 0, 7]));
        assert!(!name(&["iscsi://me%secret@host/iqn.2026-11.org.targe:rig/0"], None).contains("secret"));
    }
}
