//! Exports of NBD servers, and block devices over vhost-user, on their reactor. Each is a client whose
//! connection the reactor drives like those of initiators. The logical unit and the daemon share it. It
//! counts and logs failures, and refuses all operations while it is withheld.
//!
//! The requests of a client go to an NBD server over the connection. Those to a device over vhost-user go
//! through a queue in shared memory: the connection only tells that the other process lives.

mod address;
mod handover;
mod log;
mod loss;
mod opened;
mod served;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ::nbd::client::{Client, ClientAction, ClientConfig};
use ::nbd::handshake::ExportInfo;
use ::nbd::wire::transmission;
use backends::vhost_user::BlkLink;
use base::buffer::Pool;
use base::state_machine::{Action, ConnId, PortalId, RxBuffer};
use base::time::Instant;
use base::transmit::Transmit;
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op};
use target::units::UnitId;

use crate::config::{Medium, Unit};
use crate::serve::media::export_queue::ExportQueue;
use crate::serve::media::log_throttle::LogThrottle;
pub(in crate::serve) use address::{ExportAddress, ExportConnection, NbdLinks};
use loss::ExportLoss;
pub(in crate::serve) use opened::ConnectedExport;

/// How long an attempt to connect and to negotiate may take.
pub(in crate::serve) const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// An export that is open, which can be moved to the reactor that will serve it.
#[derive(Debug)]
pub(in crate::serve) struct OpenExport {
    info: ExportInfo,
    /// The connection; `None` if the reactor is to connect when it serves.
    connection: Option<ExportConnection>,
    address: ExportAddress,
    config: ClientConfig,
}

impl OpenExport {
    /// Checks that a unit can be made of an export.
    ///
    /// # Errors
    /// A sentence that says why not.
    fn new(
        unit: &Unit,
        address: ExportAddress,
        info: ExportInfo,
        connection: Option<ExportConnection>,
    ) -> Result<Self, String> {
        let block_len = unit.block_size.bytes();
        if info.has(transmission::READ_ONLY) && !unit.read_only {
            return Err(format!("{address} is read-only; give \"ro\" to serve it"));
        }
        if info.block_len > block_len {
            let hint = if info.block_len <= 4096 { "; give bs = \"4096\"" } else { ", which no LUN has" };
            return Err(format!(
                "{address} must be read and written in blocks of {} bytes{hint}",
                info.block_len
            ));
        }
        if info.len < u64::from(block_len) {
            return Err(format!("{address} has {} bytes, less than one block", info.len));
        }
        let (write_cache, read_only) = (unit.write_cache, unit.read_only);
        let config = ClientConfig { patience: patience(unit), write_cache, read_only, block_len };
        Ok(Self { info, connection, address, config })
    }
}

fn patience(unit: &Unit) -> Option<Duration> {
    match unit.medium {
        Medium::Nbd { patience, .. } | Medium::VhostUserBlk { patience, .. } => patience,
        _ => None,
    }
}

/// Every export of a reactor.
pub(in crate::serve) struct NbdExports {
    links: NbdLinks,
    queue: ExportQueue,
    exports: BTreeMap<u32, NbdExport>,
    numbers: BTreeMap<UnitId, u32>,
    connections: BTreeMap<ConnId, u32>,
}

impl NbdExports {
    pub(in crate::serve) fn new(links: NbdLinks) -> Self {
        Self {
            links,
            queue: ExportQueue::default(),
            exports: BTreeMap::new(),
            numbers: BTreeMap::new(),
            connections: BTreeMap::new(),
        }
    }

    /// Returns the queue that all exports of the reactor share.
    pub(in crate::serve) const fn queue(&self) -> &ExportQueue {
        &self.queue
    }

    /// Sets the time for operations that are submitted from now on.
    pub(in crate::serve) fn set_time(&self, now: Instant) {
        self.queue.set_time(now);
    }

    /// Serves an export, which begins to use its connection or connects.
    pub(in crate::serve) fn add(&mut self, export: &NbdExport) {
        let mut inner = export.0.borrow_mut();
        let (number, unit, connection) = (inner.number, inner.unit, inner.opened.take());
        drop(inner);
        self.exports.insert(number, export.clone());
        self.numbers.insert(unit, number);
        match connection {
            Some(connection) => {
                export.change(match connection.is_taken_over {
                    true => Client::trust_earlier_client,
                    false => Client::flush_earlier_changes,
                });
                (self.links.adopt)(number, connection);
            }
            // The other process, which served the device, has flushed.
            None => export.change(|client| {
                client.trust_earlier_client();
                client.connect();
            }),
        }
    }

    /// Returns whether an export is that of its unit now. A unit that was removed and added again has
    /// another.
    pub(in crate::serve) fn is_current(&self, export: &NbdExport) -> bool {
        let inner = export.0.borrow();
        self.numbers.get(&inner.unit) == Some(&inner.number)
    }

    /// Returns the export of a number.
    pub(in crate::serve) fn find(&self, number: u32) -> Option<NbdExport> {
        self.exports.get(&number).cloned()
    }

    /// Returns the export that a connection belongs to. Nothing is looked up where there is no export.
    pub(in crate::serve) fn of_connection(&self, conn: ConnId) -> Option<NbdExport> {
        if self.connections.is_empty() {
            return None;
        }
        self.find(*self.connections.get(&conn)?)
    }

    /// Handles a new connection, if its portal is that of an export. Returns the export.
    pub(in crate::serve) fn connected(
        &mut self,
        now: Instant,
        conn: ConnId,
        portal: PortalId,
    ) -> Option<NbdExport> {
        let export = self.find(portal.0)?;
        self.connections.insert(conn, portal.0);
        let mut inner = export.0.borrow_mut();
        inner.connection = Some(conn);
        if let Some((info, queue)) = inner.negotiated.take() {
            (inner.queue, inner.is_broken) = (queue, false);
            inner.client.connected(now, info);
        }
        inner.list();
        drop(inner);
        Some(export)
    }

    /// Handles the end of a connection. Returns the export that it belonged to.
    pub(in crate::serve) fn disconnected(&mut self, now: Instant, conn: ConnId) -> Option<NbdExport> {
        let number = self.connections.remove(&conn)?;
        let export = self.find(number)?;
        let mut inner = export.0.borrow_mut();
        if inner.is_device() {
            // The process that was left could go on to signal.
            (self.links.unwatch)(number);
        }
        if inner.connection == Some(conn) {
            (inner.connection, inner.queue) = (None, None);
            inner.client.disconnected(now);
            inner.list();
        }
        drop(inner);
        Some(export)
    }

    /// Handles a signal of the process behind the export of a number. Returns the export.
    pub(in crate::serve) fn signalled(&self, now: Instant, number: u32) -> Option<NbdExport> {
        let export = self.find(number)?;
        export.collect(now);
        Some(export)
    }

    /// Closes the export of a unit that is removed: flushes, and takes leave of the server.
    pub(in crate::serve) fn close(&mut self, unit: UnitId) {
        if let Some(export) = self.numbers.remove(&unit).and_then(|number| self.find(number)) {
            export.change(Client::close);
            self.forget_closed(&export);
        }
    }

    /// Closes every export.
    pub(in crate::serve) fn close_all(&mut self) {
        for unit in std::mem::take(&mut self.numbers).into_keys().collect::<Vec<_>>() {
            self.close(unit);
        }
        let left: Vec<NbdExport> = self.exports.values().cloned().collect();
        for export in left {
            export.change(Client::close);
            self.forget_closed(&export);
        }
    }

    /// Forgets an export that is closed, and logs if writes may be missing on its server.
    pub(in crate::serve) fn forget_closed(&mut self, export: &NbdExport) {
        let inner = export.0.borrow();
        let is_over = inner.client.is_closed() && inner.connection.is_none();
        if is_over && self.exports.remove(&inner.number).is_some() {
            if inner.is_device() {
                (self.links.unwatch)(inner.number);
            }
            drop(inner);
            self.leave_behind(export);
        }
    }

    /// Returns what is due next for an export.
    pub(in crate::serve) fn poll_due(&mut self) -> Option<Due> {
        loop {
            let number = self.queue.next()?;
            let Some(export) = self.exports.get(&number) else { continue };
            let mut inner = export.0.borrow_mut();
            inner.is_listed = false;
            if let (true, Some(conn)) = (inner.is_broken, inner.connection) {
                return Some(Due::Action(Action::Abort(conn)));
            }
            let Some(action) = inner.client.poll_action() else {
                if inner.client.has_completions() {
                    return Some(Due::Ended(inner.exports.now(), export.clone()));
                }
                continue;
            };
            inner.list();
            match (action, inner.connection) {
                (ClientAction::Connect, _) => (self.links.connect)(number, inner.address.clone()),
                (ClientAction::Transmit, Some(_)) if inner.is_device() => inner.submit_to_queue(),
                (ClientAction::Transmit, Some(conn)) => return Some(Due::Action(Action::Transmit(conn))),
                (ClientAction::Close, Some(conn)) => return Some(Due::Action(Action::Close(conn))),
                (ClientAction::Abort, Some(conn)) => return Some(Due::Action(Action::Abort(conn))),
                (_, None) => {}
            }
        }
    }

    /// Returns the time of the next deadline of an export.
    pub(in crate::serve) fn poll_timeout(&self) -> Option<Instant> {
        self.exports.values().filter_map(|export| export.0.borrow().client.poll_timeout()).min()
    }

    /// Handles the deadlines that have passed. Returns the exports that had one.
    pub(in crate::serve) fn handle_timeout(&mut self, now: Instant) -> Vec<NbdExport> {
        let is_late = |export: &&NbdExport| {
            export.0.borrow().client.poll_timeout().is_some_and(|deadline| deadline <= now)
        };
        let late: Vec<NbdExport> = self.exports.values().filter(is_late).cloned().collect();
        for export in &late {
            export.change(|client| client.handle_timeout(now));
        }
        late
    }
}

impl Drop for NbdExports {
    /// Records what the servers did not flush before the reactor ended.
    fn drop(&mut self) {
        for export in std::mem::take(&mut self.exports).into_values() {
            self.leave_behind(&export);
        }
    }
}

/// What is due for an export.
#[derive(Debug)]
pub(in crate::serve) enum Due {
    Action(Action),
    /// Operations ended at this time without an answer of the server: a flush that fails because of what
    /// happened before.
    Ended(Instant, NbdExport),
}

/// An export of a server. Clones share one client.
#[derive(Clone, Debug)]
pub(in crate::serve) struct NbdExport(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    client: Client,
    address: ExportAddress,
    number: u32,
    unit: UnitId,
    label: String,
    patience: Option<Duration>,
    exports: ExportQueue,
    /// The export is in the queue.
    is_listed: bool,
    /// The connection that it was opened with, until the reactor has it.
    opened: Option<ExportConnection>,
    connection: Option<ConnId>,
    /// What was negotiated for the connection that the reactor is given next.
    negotiated: Option<(ExportInfo, Option<Box<BlkLink>>)>,
    /// The queue of the connection, to a device over vhost-user.
    queue: Option<Box<BlkLink>>,
    /// The device broke the protocol; its connection is to be ended.
    is_broken: bool,
    withheld: Option<String>,
    /// Completions of operations that were refused.
    refused: VecDeque<Completion>,
    errors: u64,
    /// Why the last attempt to connect failed.
    last_failure: Option<String>,
    throttle: LogThrottle,
    loss: ExportLoss,
}

/// What the owner of an export must tell the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::serve) enum ExportEvent {
    /// The size has changed.
    Resized,
    /// The export is withheld until a reload accepts it.
    Withheld,
    /// Acknowledged writes are lost.
    LostChanges,
}

impl NbdExport {
    /// Makes an export of what was opened. It does nothing before it is added to the exports of the reactor.
    fn new(export: OpenExport, (exports, unit): (&ExportQueue, UnitId), label: &str, pool: &Pool) -> Self {
        let OpenExport { info, connection, address, config } = export;
        let number = PortalId::OWN_BIT | exports.take_number();
        let client = Client::new(config, info, pool.clone());
        Self(Rc::new(RefCell::new(Inner {
            client,
            address,
            number,
            unit,
            label: label.to_owned(),
            patience: config.patience,
            exports: exports.clone(),
            is_listed: false,
            opened: connection,
            connection: None,
            negotiated: None,
            queue: None,
            is_broken: false,
            withheld: None,
            refused: VecDeque::new(),
            errors: 0,
            last_failure: None,
            throttle: LogThrottle::default(),
            loss: ExportLoss::default(),
        })))
    }

    /// Returns the unit whose medium the export is.
    pub(in crate::serve) fn unit(&self) -> UnitId {
        self.0.borrow().unit
    }

    /// Applies the settings of a unit after a reload, except that it does not enable the write cache.
    fn apply(&self, unit: &Unit) {
        let mut inner = self.0.borrow_mut();
        unit.label.clone_into(&mut inner.label);
        inner.patience = patience(unit);
        inner.client.set_patience(patience(unit));
        if !unit.write_cache {
            inner.client.set_write_cache(false);
        }
        inner.list();
    }

    /// Accepts the export as it is, if it is withheld. Returns whether it was.
    fn accept(&self) -> bool {
        let was_withheld = self.0.borrow_mut().withheld.take().is_some();
        if was_withheld {
            self.change(Client::accept_export);
        }
        was_withheld
    }

    /// Records what was negotiated for the connection that the reactor is given next.
    pub(in crate::serve) fn negotiated(&self, info: ExportInfo, queue: Option<Box<BlkLink>>) {
        self.0.borrow_mut().negotiated = Some((info, queue));
    }

    /// Returns whether the reactor refused the connection that it was given last.
    pub(in crate::serve) fn take_unadmitted(&self) -> bool {
        self.0.borrow_mut().negotiated.take().is_some()
    }

    /// Handles a failed attempt to connect.
    pub(in crate::serve) fn connect_failed(&self, now: Instant, why: String) {
        crate::debug!("{why}");
        self.0.borrow_mut().last_failure = Some(why);
        self.change(|client| client.connect_failed(now));
    }

    /// Handles received bytes.
    pub(in crate::serve) fn received(&self, now: Instant, bytes: &[u8]) {
        let mut inner = self.0.borrow_mut();
        if inner.is_device() {
            inner.broken(&"the process sent a message that nobody asked for");
        } else {
            inner.client.received(now, bytes);
        }
        inner.list();
    }

    /// Collects what a device over vhost-user has ended.
    fn collect(&self, now: Instant) {
        let mut inner = self.0.borrow_mut();
        let Inner { queue: Some(queue), client, .. } = &mut *inner else { return };
        if let Err(error) = queue.collect(now, client) {
            inner.broken(&error);
        }
        inner.list();
    }

    /// Returns the buffer that the next bytes belong into.
    pub(in crate::serve) fn take_rx_buffer(&self) -> Option<RxBuffer> {
        self.0.borrow_mut().client.take_rx_buffer()
    }

    /// Takes back a buffer.
    pub(in crate::serve) fn return_rx_buffer(&self, now: Instant, rx_buffer: RxBuffer) {
        self.change(|client| client.return_rx_buffer(now, rx_buffer));
    }

    /// Appends what is to be sent.
    pub(in crate::serve) fn transmit(&self, now: Instant, out: &mut Transmit) {
        let mut inner = self.0.borrow_mut();
        inner.client.transmit(now, out);
        if inner.client.has_completions() {
            inner.list();
        }
    }

    /// Returns whether [`Store::poll`] has something to return.
    pub(in crate::serve) fn has_completions(&self) -> bool {
        let inner = self.0.borrow();
        inner.client.has_completions() || !inner.refused.is_empty()
    }

    /// Logs the next notice of the client. Returns what the unit must be told.
    pub(in crate::serve) fn poll_event(&self) -> Option<ExportEvent> {
        loop {
            let mut inner = self.0.borrow_mut();
            let notice = inner.client.poll_notice()?;
            if let Some(event) = inner.log(notice) {
                return Some(event);
            }
        }
    }

    fn change(&self, change: impl FnOnce(&mut Client)) {
        let mut inner = self.0.borrow_mut();
        change(&mut inner.client);
        inner.list();
    }
}

impl Inner {
    /// Returns whether requests go through a queue in shared memory.
    const fn is_device(&self) -> bool {
        self.address.is_device()
    }

    /// Puts the next requests into the queue.
    fn submit_to_queue(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        self.client.transmit(self.exports.now(), &mut **queue);
        if let Err(error) = queue.kick() {
            self.broken(&error);
            self.list();
        }
    }

    /// Handles that a device broke the protocol: nothing that it says counts any more.
    fn broken(&mut self, error: &dyn std::fmt::Display) {
        (self.queue, self.is_broken) = (None, true);
        self.errors = self.errors.saturating_add(1);
        if let Some(more) = self.throttle.may_log() {
            crate::error!("{}: {}: {error}; its connection is ended{more}", self.label, self.address);
        }
    }

    /// Lists the export among those that may have an action.
    fn list(&mut self) {
        if !std::mem::replace(&mut self.is_listed, true) {
            self.exports.push(self.number);
        }
    }
}

impl Store for NbdExport {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().client.capabilities()
    }

    fn is_away(&self) -> bool {
        self.0.borrow().client.is_away()
    }

    fn keeps_changes(&self) -> bool {
        self.0.borrow().client.keeps_changes()
    }

    fn submit(&mut self, op: Op) {
        let mut inner = self.0.borrow_mut();
        if inner.withheld.is_some() {
            inner.refused.push_back(Completion { id: op.id, result: Err(Fault::NotSubmitted.into()) });
            return;
        }
        let now = inner.exports.now();
        inner.client.submit(now, op);
        inner.list();
    }

    fn poll(&mut self) -> Option<Completion> {
        let mut inner = self.0.borrow_mut();
        if let Some(refused) = inner.refused.pop_front() {
            return Some(refused);
        }
        let completion = inner.client.poll()?;
        if let Err(failure) = &completion.result {
            inner.failed(*failure);
        }
        Some(completion)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use ::nbd::wire::{Cmd, Errno, Head, Request};
    use base::buffer::Bytes;
    use store::api::{Durability, OpAction, OpId};

    use super::*;
    use std::cell::Cell;

    use crate::serve::media::handed_over::MovingExport;
    use crate::serve::media::served::ServedMedium as _;

    pub(super) fn open() -> OpenExport {
        let info = ExportInfo {
            len: 1 << 20,
            flags: transmission::HAS_FLAGS | transmission::SEND_FLUSH,
            block_len: 1,
            preferred_block_len: 4096,
            payload_len_max: 1 << 20,
            change_len_max: 1 << 31,
            structured: true,
            allocation_id: None,
        };
        let socket = UnixStream::pair().unwrap().0.into();
        let address = ExportAddress::VhostUser("/run/disk.sock".into());
        let config = ClientConfig { patience: None, write_cache: true, read_only: false, block_len: 512 };
        let connection = Some(ExportConnection { socket, info, queue: None, is_taken_over: false });
        OpenExport { info, connection, address, config }
    }

    pub(super) fn exports() -> NbdExports {
        NbdExports::new(NbdLinks {
            connect: Box::new(|_, _| {}),
            adopt: Box::new(|_, _| {}),
            unwatch: Box::new(|_| {}),
            lost: Box::new(|_| {}),
        })
    }

    fn add(exports: &mut NbdExports, open: OpenExport, pool: &Pool) -> NbdExport {
        let export = NbdExport::new(open, (exports.queue(), UnitId(3)), "disk", pool);
        exports.add(&export);
        export
    }

    /// Sends what is due, and returns the only request.
    fn sent(exports: &mut NbdExports, export: &NbdExport, pool: &Pool) -> Option<Request> {
        let mut bytes = Vec::new();
        while let Some(Due::Action(Action::Transmit(_))) = exports.poll_due() {
            let mut out = Transmit::new();
            export.transmit(Instant::ORIGIN, &mut out);
            bytes.extend(out.pieces().flatten());
            out.clear(pool);
        }
        Request::parse(&bytes).map(Result::unwrap)
    }

    /// Adds an export of an NBD server, which has acknowledged one write and has not flushed it.
    pub(super) fn add_unflushed(exports: &mut NbdExports, pool: &Pool) -> NbdExport {
        let address = ExportAddress::Nbd(::nbd::uri::NbdUri::parse("nbd://localhost/").unwrap());
        let mut export = add(exports, OpenExport { address, ..open() }, pool);
        export.negotiated(open().info, None);
        let number = export.0.borrow().number;
        exports.connected(Instant::ORIGIN, ConnId(7), PortalId(number));
        let request = sent(exports, &export, pool).unwrap();
        assert_eq!(request.command, Cmd::FLUSH, "an earlier process may have left changes");
        export.received(Instant::ORIGIN, Head::simple(request.cookie, None).bytes());
        let data = Bytes::copied_from(&[1; 512]).into();
        let write = OpAction::Write { at: 0, data, durability: Durability::Cached };
        export.submit(Op { id: OpId(1), action: write });
        let request = sent(exports, &export, pool).unwrap();
        export.received(Instant::ORIGIN, Head::simple(request.cookie, None).bytes());
        assert!(export.poll().is_some());
        export
    }

    #[test]
    fn a_flush_that_fails_without_a_request_is_told_to_the_unit() {
        let (mut exports, pool) = (exports(), Pool::new(1 << 20));
        let mut export = add_unflushed(&mut exports, &pool);
        export.change(|client| client.set_write_cache(false));
        let request = sent(&mut exports, &export, &pool).unwrap();
        assert_eq!(request.command, Cmd::FLUSH);
        export.received(Instant::ORIGIN, Head::simple(request.cookie, Some(Errno::IO)).bytes());
        assert!(sent(&mut exports, &export, &pool).is_none());
        export.submit(Op { id: OpId(2), action: OpAction::Flush });
        let Some(Due::Action(Action::Transmit(_))) = exports.poll_due() else { panic!("nothing is sent") };
        assert!(exports.poll_due().is_none());
        export.transmit(Instant::ORIGIN, &mut Transmit::new());
        let due = exports.poll_due();
        assert!(matches!(&due, Some(Due::Ended(_, ended)) if ended.unit() == UnitId(3)), "{due:?}");
        assert!(export.poll().is_some_and(|ended| ended.result.is_err()));
    }

    #[test]
    fn a_device_that_another_process_served_is_connected_to_when_the_reactor_serves() {
        let (attempts, pool) = (Rc::new(Cell::new(0)), Pool::new(1 << 20));
        let counted = Rc::clone(&attempts);
        let connect = Box::new(move |_, _| counted.set(counted.get() + 1));
        let links = NbdLinks {
            connect,
            adopt: Box::new(|_, _| panic!()),
            unwatch: Box::new(|_| {}),
            lost: Box::new(|_| {}),
        };
        let mut exports = NbdExports::new(links);
        let export = add(&mut exports, OpenExport { connection: None, ..open() }, &pool);
        assert_eq!(attempts.get(), 0, "the other process uses it");
        assert!(exports.poll_due().is_none());
        assert_eq!(attempts.get(), 1);
        assert!(export.busy().unwrap().sentence.contains("is being connected to") && export.away().is_none());
        let MovingExport { unit, info, conn } = export.moving("3");
        assert_eq!((unit.as_str(), info, conn), ("3", open().info, None));
        assert!(!export.is_away() && export.health().withheld.is_none(), "nothing is known of it yet");
        export.connect_failed(Instant::ORIGIN, "nobody is there".to_owned());
        assert!(export.busy().is_none() && export.away().unwrap().contains("does not answer"));
        // The unit can be removed while operations wait for the server.
        assert_eq!(exports.away(), export.away());
        assert!(export.is_away() && export.health().withheld.unwrap().contains("does not answer"));
    }

    #[test]
    fn an_export_that_is_closing_is_not_that_of_its_unit_any_more() {
        let mut exports = exports();
        let pool = Pool::new(1 << 20);
        let first = add(&mut exports, open(), &pool);
        assert!(exports.is_current(&first));
        exports.close(UnitId(3));
        assert!(!exports.is_current(&first));
        let second = add(&mut exports, open(), &pool);
        assert!(exports.is_current(&second) && !exports.is_current(&first));
    }
}
