//! Exports of NBD servers and block devices over vhost-user: their connections, and what their units are
//! told.

use std::net::{Ipv4Addr, SocketAddr};

use base::state_machine::{ConnId, MediumId, PortalId, StreamMachine as _};
use base::time::Instant;
use drivers::message_queue::{Adoption, Handle};

use super::ReactorShard;
use crate::mailbox::Sender;
use crate::os_error;
use crate::serve::daemon_event::DaemonEvent;
use crate::serve::media::nbd::{
    ATTEMPT_MAX, ExportAddress, ExportConnection, ExportEvent, NbdExport, NbdLinks,
};

/// The addresses of a connection to a server. The reactor needs none, since no limit of peers applies to it.
const NO_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Returns what the exports of the reactor with this handle need.
pub(super) fn links(own: &Handle<ReactorShard>, events: &Sender<DaemonEvent>) -> NbdLinks {
    let events = events.clone();
    let (connecting, adopting, unwatching) = (own.clone(), own.clone(), own.clone());
    NbdLinks {
        connect: Box::new(move |number, address| connect(&connecting, number, address)),
        unwatch: Box::new(move |number| _ = unwatching.unwatch(MediumId(number))),
        // The main thread ends after the reactors.
        lost: Box::new(move |sentence| _ = events.send(DaemonEvent::ExportLost(sentence))),
        adopt: Box::new(move |number, connection| deliver(&adopting, number, connection)),
    }
}

/// Connects to a server on a thread of its own, since resolving names, connecting and negotiating block.
fn connect(own: &Handle<ReactorShard>, number: u32, address: ExportAddress) {
    let (reactor, refused) = (own.clone(), own.clone());
    let attempt = move || match address.open(ATTEMPT_MAX) {
        Ok(connection) => deliver(&reactor, number, connection),
        Err(error) => fail(&reactor, number, error.why),
    };
    if let Err(error) = std::thread::Builder::new().name("nbd".to_owned()).spawn(attempt) {
        fail(&refused, number, format!("cannot start a thread: {}", os_error(&error)));
    }
}

// A reactor that has stopped serves no export, so errors of its handle are ignored below.

fn deliver(own: &Handle<ReactorShard>, number: u32, connection: ExportConnection) {
    let ExportConnection { socket, info, queue, is_taken_over } = connection;
    let (queue, call) = queue.unzip();
    let _ = own.post(move |member: &mut ReactorShard, _| {
        if let Some(export) = member.nbd.find(number) {
            export.negotiated(info, queue);
        }
    });
    if let Some(call) = call {
        let _ = own.watch(MediumId(number), call);
    }
    let (portal, bytes) = (PortalId(number), Vec::new());
    let adoption = Adoption { socket, portal, local: NO_ADDRESS, peer: NO_ADDRESS, bytes };
    let admitted = move |member: &mut ReactorShard, now: Instant| {
        if let Some(export) = member.nbd.find(number).filter(NbdExport::take_unadmitted) {
            export.connect_failed(now, "the reactor has no room for another connection".to_owned());
            member.export_changed(now, &export);
        }
    };
    if is_taken_over {
        // The reactor is parked: it neither sends nor receives until the other process has given it up.
        let _ = own.take_over(vec![adoption], move |member, now, _| admitted(member, now));
    } else {
        let _ = own.adopt(adoption);
        let _ = own.post(admitted);
    }
}

fn fail(own: &Handle<ReactorShard>, number: u32, why: String) {
    let _ = own.post(move |member: &mut ReactorShard, now| {
        if let Some(export) = member.nbd.find(number) {
            export.connect_failed(now, why);
            member.export_changed(now, &export);
        }
    });
}

impl ReactorShard {
    /// Handles a new connection, if it is that of an export. Returns whether it is.
    pub(super) fn export_connected(&mut self, now: Instant, conn: ConnId, portal: PortalId) -> bool {
        self.nbd.set_time(now);
        let Some(export) = self.nbd.connected(now, conn, portal) else { return false };
        self.export_changed(now, &export);
        true
    }

    /// Tells the unit of an export what has changed.
    pub(super) fn export_changed(&mut self, now: Instant, export: &NbdExport) {
        let unit = export.unit();
        while let Some(event) = export.poll_event() {
            if event == ExportEvent::LostChanges {
                export.record_loss();
            }
            if !self.nbd.is_current(export) {
                continue;
            }
            match event {
                ExportEvent::Resized => {
                    let label = self.runtime.unit(unit).map_or("a disk", |unit| unit.label.as_str());
                    crate::info!("the size of {label} has changed");
                    self.shard.capacity_changed(now, unit);
                }
                ExportEvent::LostChanges => self.shard.record_lost_writes(now, unit),
                ExportEvent::Withheld => self.shard.withhold_medium(now, unit, true),
            }
        }
        if export.has_completions() {
            self.shard.medium_ready(now, MediumId(unit.0));
        }
        self.nbd.forget_closed(export);
    }

    /// Flushes the exports, and takes leave of their servers.
    pub(in crate::serve) fn close_exports(&mut self) {
        self.nbd.close_all();
    }
}
