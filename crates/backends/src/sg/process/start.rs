//! Connects to the process of a SCSI device and starts the queues.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use base::int_cast::{to_u64, to_usize};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use virtio::blk::ConfigError;
use virtio::ring::SIZE;
use virtio::scsi::{self, QUEUES, ScsiQueue, queue_at};

use super::ATTEMPT_MAX;
use crate::vhost_user::{Kick, Step, VhostUserError, call, connect, negotiate, share, start_queue, within};

/// A connection to the process.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: UnixStream,
    pub(super) call: OwnedFd,
    pub(super) kick: Kick,
    /// Those of the control queue and the event queue. The device never gets one, nor an end of the pipe.
    _idle: [Kick; QUEUES - 1],
}

/// The in-flight region: a file of the process, which only it reads and writes.
pub(super) type Region = (VhostUserInflight, File);

/// A queue that is new, and its in-flight region, if the process has one.
pub(super) type Fresh = (ScsiQueue, Option<Region>);

/// Connects to a process. It goes on with a queue and its region, or begins with a fresh queue.
pub(super) fn open_link(
    path: &Path,
    resumed: Option<(&ScsiQueue, &Region)>,
) -> Result<(Link, Option<Fresh>), VhostUserError> {
    let socket = connect(path, ATTEMPT_MAX)?;
    let (result, is_late) = within(&socket, ATTEMPT_MAX, || {
        start(Frontend::from_stream(socket.try_clone()?, to_u64(QUEUES)), resumed)
    });
    let (call, kick, idle, fresh) = result.map_err(|step| step.at(path, ATTEMPT_MAX, is_late))?;
    Ok((Link { socket, call, kick, _idle: idle }, fresh))
}

fn start(
    mut front: Frontend,
    resumed: Option<(&ScsiQueue, &Region)>,
) -> Result<(OwnedFd, Kick, [Kick; QUEUES - 1], Option<Fresh>), Step> {
    let (_, agreed) = negotiate(&front, scsi::FEATURES)?;
    let has_region = agreed.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD);
    if resumed.is_some() && !has_region {
        return Err(Step::Missing("VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD any more"));
    }
    let mut fresh = None;
    if resumed.is_none() {
        let len = if agreed.contains(VhostUserProtocolFeatures::CONFIG) {
            let place = vec![0; to_usize(scsi::CONFIG_LEN)];
            let (_, config) = front.get_config(0, scsi::CONFIG_LEN, VhostUserConfigFlags::empty(), &place)?;
            scsi::data_len_max(&config).ok_or(Step::Config(ConfigError::NoQueues))?
        } else {
            scsi::DATA_LEN_MAX
        };
        let queues = u16::try_from(QUEUES).unwrap_or(u16::MAX);
        let wanted = VhostUserInflight::new(0, 0, queues, SIZE);
        let region = if has_region { Some(front.get_inflight_fd(&wanted)?) } else { None };
        fresh = Some((ScsiQueue::new(len)?, region));
    }
    let (queue, region) = match (resumed, &fresh) {
        (Some((queue, region)), _) => (queue, Some(region)),
        (None, Some((queue, region))) => (queue, region.as_ref()),
        (None, None) => return Err(Step::Missing("a queue")),
    };
    if let Some((inflight, file)) = region {
        front.set_inflight_fd(inflight, file.as_raw_fd())?;
    }
    share(&front, queue.memory())?;
    let call = call()?;
    // The control queue stays empty.
    let [control, events, commands] = [(0, 0), (1, queue.event_index()), (2, queue.used_index())]
        .map(|(number, index)| start_queue(&mut front, number, &call, (queue_at(number), index)));
    let (kick, idle) = (commands?, [control?, events?]);
    // A process that goes on with what was under way may look at the queue only after a notice.
    kick.notify();
    Ok((call, kick, idle, fresh))
}
