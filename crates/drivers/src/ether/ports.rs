//! The Ethernet ports of one reactor while they are in use.

mod send;

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use base::buffer::Pool;
use base::ether::{EtherPort, FrameBatch, FrameMachine, PortState, ReceivedFrame};
use base::time::Instant;

use super::batch::{RxBatch, RxFrame, TxBatch};
use super::ring::Ring;
use super::{MTU_MAX, PortSocket, entropy, links, socket};
use crate::clock::Clock;
use crate::engine::FrameEngine;
use crate::files::Errno;
use crate::stats::Stats;

/// How many times one port receives, and sends, in one turn before other ports get their turn.
const RECEIVES_PER_TURN: usize = 8;
const BATCHES_PER_TURN: usize = 8;

/// After this many frames in a row that arrived alone, the kernel is asked for further frames only
/// occasionally.
const ALONE: u8 = 16;

/// How long a port pauses sending when the socket buffer is full, or the queue of the link or the receiver
/// is. The pause doubles each time that the link or the receiver refuses the same frame again, so that a slow
/// link has the time to send one.
const REST: Duration = Duration::from_micros(100);

/// How often the number of lost frames is queried, at most: often enough to notice before many more are lost.
/// A query costs about as much as sending a frame.
const COUNT_EVERY: Duration = Duration::from_millis(20);

/// How often interfaces are checked where the kernel does not report changes.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How many blocks of entropy a state machine is given in one turn.
const BLOCKS_PER_TURN: usize = 16;

/// The number under which the engine watches the socket that reports interface changes. Ports count from
/// zero.
const LINKS: u32 = u32::MAX;

pub(crate) struct Ports {
    ports: Vec<Option<Port>>,
    open: usize,
    links: Option<Rc<OwnedFd>>,
    /// When to check the interfaces, if the kernel does not report changes.
    look_at: Option<Instant>,
    /// An interface may have changed.
    changed: bool,
    /// Ports that may have frames to receive.
    readable: Vec<u32>,
    /// The frames received through the engine since they were last counted, in frames and bytes.
    came: (usize, usize),
    intake: RxBatch,
    outtake: TxBatch,
    clock: Clock,
    pool: Pool,
}

struct Port {
    port: EtherPort,
    socket: Rc<PortSocket>,
    /// The ring that receives frames, unless the queue of the socket does.
    ring: Option<Ring>,
    /// The engine reports when there is something to receive, and does not receive it itself.
    told: bool,
    /// Frames were taken from the ring since the engine last reported.
    took: bool,
    /// The index of the interface that the socket is bound to.
    bound: Option<i32>,
    /// The state that the state machine was told, if the port is up.
    state: Option<PortState>,
    /// How many times in a row no further frame was found after one that the engine received; and after how
    /// many such frames no further one was looked for.
    alone: u8,
    trusted: u8,
    /// The state machine has something to send.
    wants: bool,
    /// The batch is one frame. It is sent with the next wait unless more frames join it.
    held: bool,
    /// The engine had the batch and could not send it.
    refused: bool,
    /// The batch that is being sent, and how many of its frames are finished.
    batch: FrameBatch,
    done: usize,
    /// How many more batches the port may send in this turn.
    budget: usize,
    rest_until: Option<Instant>,
    /// How many times in a row the first frame of the batch was refused.
    refusals: u8,
    count_at: Instant,
}

impl Ports {
    pub(crate) fn new(clock: Clock, pool: Pool) -> Self {
        Self {
            ports: Vec::new(),
            open: 0,
            links: None,
            look_at: None,
            changed: false,
            readable: Vec::new(),
            came: (0, 0),
            intake: RxBatch::new(),
            outtake: TxBatch::new(),
            clock,
            pool,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.open == 0
    }

    /// Returns the present time if a port is open, which makes the query worth its cost, else `then`.
    pub(crate) fn now_or(&self, then: Instant) -> Instant {
        if self.is_empty() { then } else { self.clock.now() }
    }

    /// Adds a port. The state machine is informed with the next [`Self::refresh_interfaces`].
    pub(crate) fn add(
        &mut self,
        engine: &mut dyn FrameEngine,
        port: EtherPort,
        mut socket: PortSocket,
    ) -> std::io::Result<()> {
        if self.links.is_none() && self.look_at.is_none() {
            socket::sleep_exactly();
            match links::watch().map(Rc::new) {
                Ok(socket) => {
                    engine.watch(LINKS, socket.clone())?;
                    self.links = Some(socket);
                }
                Err(_) => self.look_at = Some(self.clock.now()),
            }
        }
        let number = u32::try_from(self.ports.len()).unwrap_or(LINKS);
        let ring = socket.ring.take();
        let (socket, told) = (Rc::new(socket), ring.is_some());
        engine.watch_frames(number, socket.clone(), told)?;
        self.ports.push(Some(Port {
            port,
            socket,
            ring,
            told,
            took: false,
            bound: None,
            state: None,
            alone: 0,
            trusted: 0,
            wants: false,
            held: false,
            refused: false,
            batch: FrameBatch::new(),
            done: 0,
            budget: 0,
            rest_until: None,
            refusals: 0,
            count_at: Instant::ORIGIN,
        }));
        self.open += 1;
        self.changed = true;
        Ok(())
    }

    /// Closes a port.
    pub(crate) fn close(
        &mut self,
        engine: &mut dyn FrameEngine,
        machine: &mut dyn FrameMachine,
        now: Instant,
        port: EtherPort,
    ) {
        for (number, place) in (0..).zip(&mut self.ports) {
            if let Some(gone) = place.take_if(|it| it.port == port) {
                engine.unwatch_frames(number);
                self.open -= 1;
                if gone.state.is_some() {
                    machine.port_down(now, port);
                }
            }
        }
    }

    /// Records that a socket is readable.
    pub(crate) fn note(&mut self, number: u32) {
        if number != LINKS {
            if !self.readable.contains(&number) {
                self.readable.push(number);
            }
        } else if let Some(links) = &self.links {
            links::take(links);
            self.changed = true;
        }
    }

    /// Discards the frames that have arrived on a readable socket, as many as a port receives in one turn.
    pub(crate) fn discard_received(&mut self, number: u32) {
        let Some(Some(port)) = self.ports.get_mut(crate::slab::index(number)) else {
            return self.note(number);
        };
        let socket = &port.socket.socket;
        if let Some(ring) = &mut port.ring {
            let (frames, _) = ring.receive(&self.clock, |_, _| {});
            // An error keeps the socket readable until it is taken.
            self.changed |= frames == 0 && socket::take_error(socket).is_some();
            return;
        }
        for _ in 0..RECEIVES_PER_TURN {
            match self.intake.receive(socket, |_| {}) {
                Ok((_, true)) => {}
                Ok((_, false)) => break,
                Err(_) => {
                    self.changed = true;
                    break;
                }
            }
        }
    }

    /// Handles a frame that the engine received.
    pub(crate) fn frame(
        &mut self,
        machine: &mut dyn FrameMachine,
        now: Instant,
        number: u32,
        taken: RxFrame<'_>,
    ) {
        let Some(Some(port)) = self.ports.get_mut(crate::slab::index(number)) else { return };
        self.came = (self.came.0 + 1, self.came.1 + taken.bytes.len());
        if port.alone < ALONE || port.trusted >= ALONE {
            port.trusted = 0;
            self.readable.push(number);
        } else {
            port.trusted += 1;
        }
        port.hand_over(machine, now, taken);
    }

    /// Records that a port cannot receive.
    pub(crate) const fn failed(&mut self) {
        // The interface went down or vanished: the error is reported once.
        self.changed = true;
    }

    /// Returns whether a ring holds frames. Frames in socket queues cannot be seen without a system call.
    pub(crate) fn has_frames(&self) -> bool {
        self.ports.iter().flatten().any(|port| port.ring.as_ref().is_some_and(Ring::has_more))
    }

    /// Receives the frames that have arrived. Returns whether there were any.
    pub(crate) fn receive_all(&mut self, stats: &mut Stats, machine: &mut dyn FrameMachine) -> bool {
        let (frames, bytes) = std::mem::take(&mut self.came);
        Stats::bump(&mut stats.frames_in, frames);
        Stats::bump(&mut stats.bytes_in, bytes);
        let mut any = false;
        for port in self.ports.iter_mut().flatten() {
            any |= port.empty_ring(stats, machine, &self.clock);
        }
        let mut readable = std::mem::take(&mut self.readable);
        for number in readable.drain(..) {
            any |= self.receive(stats, machine, number);
        }
        self.readable = readable;
        any
    }

    fn receive(&mut self, stats: &mut Stats, machine: &mut dyn FrameMachine, number: u32) -> bool {
        let Some(Some(port)) = self.ports.get_mut(crate::slab::index(number)) else { return false };
        if port.ring.is_some() {
            // The ring has just been emptied. If it held no frame, the socket may have an error, which keeps
            // it readable until the error is taken.
            let took = std::mem::take(&mut port.took);
            self.changed |= !took && socket::take_error(&port.socket.socket).is_some();
            return false;
        }
        let mut any = false;
        for _ in 0..RECEIVES_PER_TURN {
            let now = self.clock.now();
            let result = self.intake.receive(&port.socket.socket, |taken| {
                Stats::bump(&mut stats.bytes_in, taken.bytes.len());
                port.hand_over(machine, now, taken);
            });
            match result {
                Ok((count, more)) => {
                    any |= count > 0;
                    Stats::bump(&mut stats.frames_in, count);
                    if !more {
                        break;
                    }
                }
                Err(_) => {
                    self.changed = true;
                    break;
                }
            }
        }
        port.alone = if any { 0 } else { port.alone.saturating_add(1) };
        any
    }

    /// Informs the state machine of changes of the interfaces, and gives it entropy. Returns whether an
    /// interface may have changed.
    pub(crate) fn refresh_interfaces(
        &mut self,
        engine: &mut dyn FrameEngine,
        machine: &mut dyn FrameMachine,
        now: Instant,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.changed = true;
            self.look_at = Some(now.after(LOOK_EVERY));
        }
        let changed = std::mem::take(&mut self.changed);
        for (number, place) in (0..).zip(&mut self.ports) {
            let Some(port) = place else { continue };
            if changed {
                port.refresh_interface(engine.stats(), machine, &self.clock, &self.pool);
                if let Some(state) = port.state {
                    self.intake.fit(state.mtu);
                    if !port.told {
                        engine.fit_frames(number, state.mtu);
                    }
                }
            }
            if port.count_at <= now {
                port.count_at = now.after(COUNT_EVERY);
                let dropped = socket::take_drops(&port.socket.socket);
                Stats::bump(&mut engine.stats().frames_dropped, crate::slab::index(dropped));
                if dropped > 0 && port.state.is_some() {
                    machine.frames_overrun(now, port.port, dropped);
                }
            }
        }
        for _ in 0..machine.entropy_wanted().min(BLOCKS_PER_TURN) {
            let Ok(block) = entropy() else { break };
            machine.add_entropy(block);
        }
        changed
    }

    /// Gives every port its share of a new turn, and ends the pauses that are over.
    pub(crate) fn next_turn(&mut self, now: Instant) {
        for port in self.ports.iter_mut().flatten() {
            port.budget = BATCHES_PER_TURN;
            if port.rest_until.is_some_and(|at| at <= now) {
                port.rest_until = None;
            }
        }
    }

    /// Returns whether a port waits for the next turn.
    pub(crate) fn is_hungry(&self) -> bool {
        let hungry = |port: &Port| port.has_more() && port.rest_until.is_none();
        self.changed || self.ports.iter().flatten().any(hungry)
    }

    /// Returns the time at which [`Self::next_turn`] or [`Self::refresh_interfaces`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let rests = self.ports.iter().flatten().filter_map(|port| port.rest_until);
        rests.chain(self.look_at).min()
    }

    /// Sends what the state machine has to send, except a frame that is alone: [`Self::flush`] sends it, if
    /// the engine can send single frames. Returns whether there was anything to send.
    pub(crate) fn send_all(&mut self, engine: &mut dyn FrameEngine, machine: &mut dyn FrameMachine) -> bool {
        if self.is_empty() {
            return false;
        }
        let holds = engine.sends_frames();
        let stats = engine.stats();
        while let Some(name) = machine.poll_port() {
            match self.ports.iter_mut().flatten().find(|port| port.port == name && port.state.is_some()) {
                Some(port) => port.wants = true,
                None => self.discard(stats, machine, name),
            }
        }
        let mut any = false;
        for port in self.ports.iter_mut().flatten() {
            while port.has_more() && port.budget > 0 && port.rest_until.is_none() {
                any = true;
                port.budget -= 1;
                port.held = false;
                let is_fresh = port.done == 0 && !port.refused;
                if is_fresh && port.wants && !port.batch.is_full() {
                    let before = port.batch.len();
                    machine.transmit_frames(self.clock.now(), port.port, &mut port.batch);
                    port.wants = port.batch.len() > before;
                }
                if holds && is_fresh && port.batch.len() == 1 {
                    // When it is asked once more, the state machine may have other frames.
                    port.held = !port.wants;
                    continue;
                }
                self.changed |= port.send(&mut self.outtake, stats, machine, (&self.clock, &self.pool));
            }
        }
        any
    }

    /// Gives frames that are alone to the engine, which sends them with the next wait. Nothing may be sent
    /// between this call and the wait, since it would overtake them.
    pub(crate) fn flush(&mut self, engine: &mut dyn FrameEngine, machine: &mut dyn FrameMachine) {
        for (number, place) in (0..).zip(&mut self.ports) {
            let Some(port) = place.as_mut().filter(|port| port.held) else { continue };
            port.held = false;
            let from = port.origin();
            if let Err(batch) = engine.send_frame(number, from, std::mem::take(&mut port.batch)) {
                port.batch = batch;
                self.changed |=
                    port.send(&mut self.outtake, engine.stats(), machine, (&self.clock, &self.pool));
            }
        }
    }

    /// Has the engine send the frames that are still held, since the reactor will not wait again.
    pub(crate) fn part(&mut self, engine: &mut dyn FrameEngine) {
        for (number, place) in (0..).zip(&mut self.ports) {
            if let Some(port) = place.as_mut().filter(|port| port.held) {
                // The frame is lost if an earlier one has not been sent yet.
                let _ = engine.send_frame(number, port.origin(), std::mem::take(&mut port.batch));
            }
        }
    }

    /// Handles the result of a frame that the engine sent.
    pub(crate) fn frame_sent(
        &mut self,
        stats: &mut Stats,
        number: u32,
        mut batch: FrameBatch,
        result: Result<(), Errno>,
    ) {
        let port = self.ports.get_mut(crate::slab::index(number)).and_then(Option::as_mut);
        match (port.filter(|port| port.batch.is_empty()), result) {
            (port, Ok(())) => {
                let sent = batch.frames().map(|(_, len, _)| len).sum();
                Stats::bump(&mut stats.frames_out, batch.len());
                Stats::bump(&mut stats.bytes_out, sent);
                batch.clear(&self.pool);
                if let Some(port) = port {
                    port.batch = batch;
                }
            }
            // The same send by the port itself will find out what to do about the error.
            (Some(port), Err(_)) if port.state.is_some() => {
                (port.batch, port.refused) = (batch, true);
            }
            (_, Err(_)) => {
                Stats::bump(&mut stats.frames_unsent, batch.len());
                batch.clear(&self.pool);
            }
        }
    }

    /// Discards the frames that the state machine has for a port that is down, so that it stops announcing
    /// them.
    fn discard(&mut self, stats: &mut Stats, machine: &mut dyn FrameMachine, name: EtherPort) {
        let mut nowhere = FrameBatch::new();
        for _ in 0..BATCHES_PER_TURN {
            machine.transmit_frames(self.clock.now(), name, &mut nowhere);
            if nowhere.is_empty() {
                break;
            }
            Stats::bump(&mut stats.frames_unsent, nowhere.len());
            nowhere.clear(&self.pool);
        }
    }
}

impl Port {
    const fn has_more(&self) -> bool {
        self.state.is_some() && (self.wants || (self.done < self.batch.len() && !self.held))
    }

    /// Returns the interface index and the EtherType that frames are sent with.
    fn origin(&self) -> (i32, u16) {
        (self.bound.unwrap_or(0), self.socket.config.ether_type)
    }

    /// Passes a frame to the state machine.
    fn hand_over(&self, machine: &mut dyn FrameMachine, now: Instant, taken: RxFrame<'_>) {
        // The filter has checked the packet type already, but kernels differ in how they treat VLAN tags.
        if self.state.is_some() && taken.kind <= libc::PACKET_MULTICAST {
            let group = taken.kind != libc::PACKET_HOST;
            let (source, age) = (taken.source, taken.age);
            machine.frame_received(
                now,
                ReceivedFrame { port: self.port, source, group, age, payload: taken.bytes },
            );
        }
    }

    /// Passes the frames in the ring to the state machine. Returns whether there were any.
    fn empty_ring(&mut self, stats: &mut Stats, machine: &mut dyn FrameMachine, clock: &Clock) -> bool {
        let Some(mut ring) = self.ring.take() else { return false };
        let (frames, bytes) = ring.receive(clock, |now, taken| self.hand_over(machine, now, taken));
        self.ring = Some(ring);
        Stats::bump(&mut stats.frames_in, frames);
        Stats::bump(&mut stats.bytes_in, bytes);
        self.took |= frames > 0;
        frames > 0
    }

    /// Replaces the ring by one with longer slots if the present slots are too short. Frames beyond the share
    /// of one turn, and frames that arrive meanwhile, are lost.
    fn fit_ring(&mut self, stats: &mut Stats, machine: &mut dyn FrameMachine, clock: &Clock, mtu: usize) {
        let fits = |ring: &Ring| ring.fits(mtu.min(MTU_MAX));
        if self.ring.as_ref().is_none_or(fits) {
            return;
        }
        self.empty_ring(stats, machine, clock);
        let socket = &self.socket.socket;
        if let Some(Ok(())) = self.ring.take().map(|ring| ring.take_down(socket)) {
            self.ring = self.socket.make_ring(mtu);
        }
    }

    /// Drops the batch.
    fn forget(&mut self, pool: &Pool) {
        self.batch.clear(pool);
        (self.done, self.held, self.refused) = (0, false, false);
    }

    /// Queries the state of the interface, and informs the state machine if it changed.
    fn refresh_interface(
        &mut self,
        stats: &mut Stats,
        machine: &mut dyn FrameMachine,
        clock: &Clock,
        pool: &Pool,
    ) {
        let now = clock.now();
        let interface = self.socket.look();
        if let Some(mtu) = interface.map(|it| it.mtu) {
            self.fit_ring(stats, machine, clock, mtu);
        }
        let index = interface.as_ref().map(|it| it.index);
        if let Some(index) = index.filter(|index| self.bound != Some(*index)) {
            // To the kernel, an interface that came back is another one. Binding to it needs no privilege.
            let bound = socket::bind(&self.socket.socket, index, self.socket.config.ether_type);
            self.bound = bound.is_ok().then_some(index);
        } else if index.is_none() {
            self.bound = None;
        }
        let state = interface
            .filter(|it| it.up && self.bound.is_some())
            .map(|it| self.socket.state_of(&it, self.ring.as_ref()));
        if state == self.state {
            return;
        }
        match &state {
            Some(known) => match entropy() {
                Ok(entropy) => machine.port_up(now, self.port, known, entropy),
                // Without entropy no session can be established; the query is repeated with the next change.
                Err(_) => return,
            },
            None => {
                self.forget(pool);
                self.wants = false;
                machine.port_down(now, self.port);
            }
        }
        self.state = state;
    }
}
