//! Frozen reactors: no connection is accepted and no HyperSCSI handshake begins, the sessions become idle,
//! then the drivers stop using the connections.

use crate::mailbox::{RecvTimeoutError, channel};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use base::state_machine::{ConnId, PortalId};
use drivers::message_queue::Handle;
use rustix::io::Errno;
use rustix::net::Shutdown;
use tls::{MovingRelay, PausedRelays, PortalPauser};

use crate::serve::media::handed_over::Obstacle;
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactor_shard::handover::ExportedReactor;
use crate::serve::reactors::{REACTOR_REPLY_TIMEOUT, ReactorThread};
use crate::serve::router::Pauser;
use crate::serve::tls_portals::TlsPortals;

/// How often the reactors are asked whether their sessions are idle.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How long logins, discoveries, handshakes and flushes may take to end before the sessions are frozen.
/// Meanwhile the sessions are served, new connections wait in the kernel, and initiators repeat their first
/// frame.
const LOGINS_MAX: Duration = Duration::from_secs(1);

/// How long the sessions may take to become idle.
const IDLE_MAX: Duration = Duration::from_millis(380);

/// How long the sessions may stay frozen until another process is ready to serve them, so that no initiator
/// waits for half a second.
const FROZEN_MAX: Duration = Duration::from_millis(460);

/// What accepts connections for the reactors.
pub(super) struct Acceptors {
    pub(super) router: Option<Pauser>,
    pub(super) tls: Vec<PortalPauser>,
}

impl Acceptors {
    fn pause(&self, is_paused: bool) {
        if let Some(router) = &self.router {
            router.pause(is_paused);
        }
        self.tls.iter().for_each(|portal| portal.pause(is_paused));
    }
}

/// The reactors while they accept no connections and begin no handshakes. Dropping this makes them do so
/// again.
pub(super) struct Unaccepting {
    reactors: Vec<Handle<ReactorShard>>,
    acceptors: Acceptors,
    is_left: bool,
}

impl Unaccepting {
    /// Makes the reactors and `acceptors` stop accepting connections, and beginning handshakes.
    pub(super) fn begin(reactors: &[ReactorThread], acceptors: Acceptors) -> Self {
        let reactors = reactors.iter().map(|running| running.handle.clone()).collect();
        let begun = Self { reactors, acceptors, is_left: false };
        begun.accept(false);
        for handle in &begun.reactors {
            let _ = handle.post(|member: &mut ReactorShard, _| member.flush_exports());
        }
        begun
    }

    fn accept(&self, accepts: bool) {
        self.acceptors.pause(!accepts);
        for handle in &self.reactors {
            // The end of a reactor is an event of its own.
            let _ = handle.accept(accepts);
            let _ = handle.post(move |member: &mut ReactorShard, _| member.pause_handshakes(!accepts));
        }
    }

    /// Waits until every connection belongs to a session that can move, no handshake is under way, and NBD
    /// servers have flushed what hosts wrote before, for [`LOGINS_MAX`] at most: a peer that does not finish
    /// its login delays an upgrade, and cannot prevent it, see [`Frozen::park`].
    ///
    /// # Errors
    /// A reactor does not answer.
    pub(super) fn wait_for_logins(&self) -> Result<(), String> {
        let deadline = Instant::now() + LOGINS_MAX;
        // A connection that the kernel had accepted may be reported a little later.
        let mut was_none = false;
        while Instant::now() < deadline {
            let is_none = self.unmovable()? == 0;
            if is_none && was_none {
                break;
            }
            was_none = is_none;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn unmovable(&self) -> Result<usize, String> {
        let until = Instant::now() + REACTOR_REPLY_TIMEOUT;
        // A TLS portal passes a connection on before it counts the handshake as ended.
        let handshakes: usize = self.acceptors.tls.iter().map(PortalPauser::handshakes).sum();
        // What the router has passed on reaches a reactor before the question does.
        let pending = self.acceptors.router.as_ref().map(Pauser::count_pending);
        let pending = pending.map_or(Ok(0), |answer| answer.recv_timeout(REACTOR_REPLY_TIMEOUT));
        let counts = ask_handles(&self.reactors, until, |member, _| member.unmovable())?;
        let pending = pending.map_err(|_| "the router does not answer")?;
        Ok(handshakes + pending + counts.iter().sum::<usize>())
    }
}

impl Drop for Unaccepting {
    fn drop(&mut self) {
        if !self.is_left {
            self.accept(true);
        }
    }
}

/// The reactors, with closed command windows. Dropping this makes them serve again.
pub(super) struct Frozen {
    unaccepting: Unaccepting,
    /// The relays of TLS connections, while they pause.
    relays: Vec<PausedRelays>,
    began: Instant,
}

impl Frozen {
    /// Freezes the sessions of every reactor.
    pub(super) fn begin(unaccepting: Unaccepting) -> Self {
        let began = Instant::now();
        for handle in &unaccepting.reactors {
            // The end of a reactor is an event of its own.
            let _ = handle.post(|member: &mut ReactorShard, now| member.freeze(now));
        }
        Self { unaccepting, relays: Vec::new(), began }
    }

    /// Returns when the command windows stopped.
    pub(super) const fn began(&self) -> Instant {
        self.began
    }

    /// Returns when the sessions must be served again.
    pub(super) fn deadline(&self) -> Instant {
        self.began + FROZEN_MAX
    }

    /// Asks every reactor, all at the same time.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl Fn(&mut ReactorShard, base::time::Instant) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, String> {
        ask_handles(&self.unaccepting.reactors, self.deadline(), question)
    }

    /// Waits until no session has anything under way.
    ///
    /// # Errors
    /// What was under way at the end of [`IDLE_MAX`].
    pub(super) fn wait_until_idle(&self) -> Result<(), Obstacle> {
        let deadline = self.began + IDLE_MAX;
        loop {
            let answers = self.ask(|member, now| {
                member.prepare_handover(now);
                member.busy()
            })?;
            let Some(why) = answers.into_iter().flatten().next() else { return Ok(()) };
            if Instant::now() >= deadline || !why.can_end {
                return Err(why);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Closes the connections that cannot move, parks every reactor, and returns what they hold. Reactors
    /// accept no connections since [`LOGINS_MAX`] before the sessions were frozen, so only logins and
    /// discoveries that take longer end, and they would end with this process anyway. A reactor cannot park
    /// while the peer of an open connection does not read what is sent to it.
    ///
    /// # Errors
    /// What is under way, or was at the deadline.
    pub(super) fn park(&self) -> Result<Vec<ExportedReactor>, Obstacle> {
        let deadline = self.deadline();
        let answers = self.unaccepting.reactors.iter().map(|handle| {
            let (answer, exported) = channel();
            // The end of a reactor is an event of its own.
            let _ = handle.post(|member: &mut ReactorShard, now| member.end_unmovable(now));
            let park = move |member: &mut ReactorShard, now| drop(answer.send(member.export(now)));
            let _ = handle.park(park);
            exported
        });
        let answers: Vec<_> = answers.collect();
        let wait = |exported: crate::mailbox::Receiver<Result<ExportedReactor, Obstacle>>| match exported
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(exported) => exported,
            Err(RecvTimeoutError::Timeout) => {
                Err("what is sent to an initiator, or I/O of a medium, does not end in time".into())
            }
            Err(RecvTimeoutError::Disconnected) => Err("targe is stopping".into()),
        };
        answers.into_iter().map(wait).collect()
    }

    /// Returns other descriptors of the sockets of connections of the reactor at this index.
    pub(super) fn sockets(&self, reactor: usize, conns: Vec<ConnId>) -> Result<Vec<OwnedFd>, Obstacle> {
        let (answer, sockets) = channel();
        let handle = self.unaccepting.reactors.get(reactor).ok_or("a reactor is missing")?;
        let stopping = |_| "targe is stopping".to_owned();
        handle.sockets(conns, move |sockets| drop(answer.send(sockets))).map_err(stopping)?;
        let left = self.deadline().saturating_duration_since(Instant::now());
        let sockets =
            sockets.recv_timeout(left.max(POLL_INTERVAL)).map_err(|_| "a reactor does not answer")?;
        sockets.map_err(|error| Obstacle {
            sentence: format!("cannot pass a connection on: {}", crate::os_error(&error)),
            can_end: !is_lack_of_descriptors(&error),
        })
    }

    /// Makes the relays of TLS connections pause, and returns them. The reactors must be parked.
    ///
    /// # Errors
    /// A relay does not pause in time, or no descriptor is left.
    pub(super) fn pause_relays(
        &mut self,
        portals: &TlsPortals,
    ) -> Result<Vec<(PortalId, MovingRelay)>, Obstacle> {
        let (ids, paused): (Vec<PortalId>, Vec<PausedRelays>) = portals.pause_relays().unzip();
        self.relays = paused;
        let mut relays = Vec::new();
        for (id, paused) in ids.into_iter().zip(&self.relays) {
            let moving = paused.wait(self.deadline()).map_err(|error| Obstacle {
                sentence: format!("cannot pass a TLS connection on: {}", crate::os_error(&error)),
                can_end: !is_lack_of_descriptors(&error),
            })?;
            relays.extend(moving.into_iter().map(|moving| (id, moving)));
        }
        Ok(relays)
    }

    /// Leaves the reactors as they are, because another process has their sessions. That one waits for the
    /// end of the connections to devices of other processes, which may accept one only.
    pub(super) fn leave(mut self) {
        self.unaccepting.is_left = true;
        std::mem::take(&mut self.relays).into_iter().for_each(PausedRelays::leave);
        for handle in &self.unaccepting.reactors {
            let own = handle.clone();
            // The end of a reactor is of no interest any more.
            let _ = handle.post(move |member: &mut ReactorShard, _| {
                let _ = own.sockets(member.leave_processes(), |sockets| {
                    for socket in sockets.unwrap_or_default() {
                        // It fails if the connection has ended, which is what is wanted. Without a
                        // descriptor for that, it ends with this process.
                        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
                    }
                });
            });
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if self.unaccepting.is_left {
            return;
        }
        for handle in &self.unaccepting.reactors {
            let _ = handle.post(|member: &mut ReactorShard, now| member.thaw(now));
            let _ = handle.unpark();
        }
    }
}

/// Returns whether this process or the system has too many open descriptors.
fn is_lack_of_descriptors(error: &std::io::Error) -> bool {
    let lack = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| lack.contains(&code))
}

/// Asks every reactor, all at the same time.
pub(super) fn ask<T: Send + 'static>(
    reactors: &[ReactorThread],
    question: impl Fn(&mut ReactorShard, base::time::Instant) -> T + Clone + Send + 'static,
) -> Result<Vec<T>, String> {
    let handles: Vec<_> = reactors.iter().map(|running| running.handle.clone()).collect();
    ask_handles(&handles, Instant::now() + REACTOR_REPLY_TIMEOUT, question)
}

fn ask_handles<T: Send + 'static>(
    reactors: &[Handle<ReactorShard>],
    deadline: Instant,
    question: impl Fn(&mut ReactorShard, base::time::Instant) -> T + Clone + Send + 'static,
) -> Result<Vec<T>, String> {
    let asked = reactors.iter().map(|handle| {
        let ((answer, answers), question) = (channel(), question.clone());
        let post = move |member: &mut ReactorShard, now| drop(answer.send(question(member, now)));
        handle.post(post).map_err(|_| "targe is stopping".to_owned()).map(|()| answers)
    });
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    let answer = |answers: crate::mailbox::Receiver<T>| {
        let left = deadline.saturating_duration_since(Instant::now());
        answers.recv_timeout(left).map_err(|_| "a reactor does not answer".to_owned())
    };
    asked.into_iter().map(answer).collect()
}
