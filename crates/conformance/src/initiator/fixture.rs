//! The fixture of the cases that test an initiator: a scripted target. It listens, starts the initiator,
//! serves it as an ordinary target does, and gives a case the events that it asks for.

use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{Itt, Opcode, PduHeader};

use crate::transcript::Record;
use crate::verdict::{Outcome, Stop};
use crate::wire::{Pdu, PduStream, Received};

use super::conn::{Conn, Session};
use super::disk::{Disk, is_read, is_write};
use super::policy::Policy;

/// How to start and to test the initiator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// The shell command that starts the initiator, once for each case. `{url}`, `{portal}`, `{iqn}` and
    /// `{id}` (of the case) are substituted. Without it, the user starts the initiator by hand.
    pub exec: Option<String>,
    /// The shell command that makes the initiator discover targets.
    pub discover: Option<String>,
    /// The longest that one case may take.
    pub limit: Duration,
    /// How long to wait for actions that the initiator takes by itself.
    pub patience: Duration,
}

/// The name of the scripted target.
pub const TARGET: &str = "iqn.2026-11.example.targe:scripted";

/// An event on a connection.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) conn: usize,
    pub(super) at: Instant,
    pub(super) what: EventKind,
}

#[derive(Clone, Debug)]
pub(crate) enum EventKind {
    Opened,
    Closed,
    Received(Pdu),
}

/// A command that a case handles itself.
#[derive(Clone, Debug)]
pub(super) struct ReceivedCommand {
    pub(super) conn: usize,
    pub(super) command: ScsiCommand,
    pub(super) pdu: Pdu,
}

impl Event {
    /// Returns the PDU, if it is of this kind.
    pub(super) fn is(&self, opcode: Opcode) -> Option<&Pdu> {
        match &self.what {
            EventKind::Received(pdu) if pdu.opcode() == opcode => Some(pdu),
            _ => None,
        }
    }

    /// Returns the command, if the event is a SCSI Command PDU.
    pub(super) fn command(&self) -> Option<ScsiCommand> {
        ScsiCommand::decode(&self.is(Opcode::SCSI_COMMAND)?.bhs).ok()
    }

    #[cfg(test)]
    pub(crate) fn is_command(&self) -> bool {
        self.command().is_some()
    }

    pub(super) fn reads(&self) -> Option<ScsiCommand> {
        self.command().filter(|command| command.cdb.first().is_some_and(|code| is_read(*code)))
    }

    pub(super) fn writes(&self) -> Option<ScsiCommand> {
        self.command().filter(|command| command.cdb.first().is_some_and(|code| is_write(*code)))
    }

    pub(super) fn moves(&self) -> Option<ScsiCommand> {
        self.reads().or_else(|| self.writes())
    }
}

/// The scripted target of one case.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(super) options: Rc<Options>,
    pub(super) id: &'static str,
    pub(crate) record: Record,
    pub(super) deadline: Instant,
    listener: Rc<TcpListener>,
    initiator: Option<Child>,
    turn: usize,
    pub(super) conns: Vec<Conn>,
    pub(super) sessions: Vec<Session>,
    pub(super) disk: Disk,
    pub(super) policy: Policy,
    /// All events, in order.
    pub(super) history: Vec<Event>,
    /// The length of the command window: how many commands from ExpCmdSN on the target allows; 0 closes the
    /// window.
    pub(super) window: u32,
    /// A write for which the case sends the R2Ts itself.
    pub(super) held: Option<Itt>,
}

impl Fixture {
    pub(crate) fn new(options: &Rc<Options>, listener: &Rc<TcpListener>, id: &'static str) -> Self {
        Self {
            options: Rc::clone(options),
            id,
            record: Record::new(),
            deadline: Instant::now() + options.limit,
            listener: Rc::clone(listener),
            initiator: None,
            turn: 0,
            conns: Vec::new(),
            sessions: Vec::new(),
            disk: Disk::default(),
            policy: Policy::new(&[]),
            history: Vec::new(),
            window: 32,
            held: None,
        }
    }

    /// Negotiates for these keys, and starts the initiator.
    pub(super) fn start(&mut self, keys: &[(&str, &str)]) -> Outcome {
        self.policy = Policy::new(keys);
        let command = self.options.exec.clone();
        self.launch(command.as_deref(), "start the initiator")
    }

    /// Like [`Fixture::start`], for discovery.
    pub(super) fn start_discovery(&mut self) -> Outcome {
        let command = self.options.discover.clone();
        need!(
            command.is_some() || self.options.exec.is_none(),
            "no command for discovery was given (--discover)"
        );
        self.launch(command.as_deref(), "let the initiator discover targets")
    }

    fn launch(&mut self, command: Option<&str>, by_hand: &str) -> Outcome {
        let Some(command) = command else {
            eprintln!("{}: {by_hand} on {} now", self.id, self.options.listen);
            return Ok(());
        };
        let portal = self.options.listen.to_string();
        let url = format!("iscsi://{portal}/{TARGET}/0");
        let command = [("{url}", url.as_str()), ("{portal}", &portal), ("{iqn}", TARGET), ("{id}", self.id)]
            .iter()
            .fold(command.to_owned(), |command, (name, value)| command.replace(name, value));
        self.record.event(&format!("runs: {command}"));
        let mut child = Command::new("sh");
        std::os::unix::process::CommandExt::process_group(&mut child, 0);
        let spawned = child
            .arg("-c")
            .arg(&command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match spawned {
            Ok(child) => self.initiator = Some(child),
            Err(error) => fail!("{command}: {error}"),
        }
        Ok(())
    }

    /// Returns whether the initiator's command has ended; always false if the user started it.
    pub(super) fn has_ended(&mut self) -> bool {
        self.initiator.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    /// Returns whether the initiator's command ended with success, if it has ended.
    pub(super) fn exit(&mut self) -> Option<bool> {
        let status = self.initiator.as_mut()?.try_wait().ok()??;
        self.record.event(&format!("the initiator's command ends: {status}"));
        Some(status.success())
    }

    /// Terminates the initiator and every process that it started.
    pub(super) fn stop(&mut self) {
        for conn in &mut self.conns {
            if !conn.gone {
                conn.line.drop_connection();
            }
        }
        let Some(mut child) = self.initiator.take() else { return };
        for signal in ["-TERM", "-KILL"] {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
            for _ in 0..20 {
                if matches!(child.try_wait(), Ok(Some(_))) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let _ = child.wait();
    }

    /// Waits for the next event; returns `None` when the time is up.
    pub(crate) fn step(&mut self, until: Instant) -> Outcome<Option<Event>> {
        loop {
            if let Some(event) = self.poll_sockets()? {
                self.history.push(event.clone());
                return Ok(Some(event));
            }
            let now = Instant::now();
            require!(now < self.deadline, "the time limit of the case has passed");
            if now >= until {
                return Ok(None);
            }
            if self.conns.iter().all(|conn| conn.gone) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn poll_sockets(&mut self) -> Outcome<Option<Event>> {
        if let Ok((stream, _)) = self.listener.accept() {
            let _ = stream.set_nonblocking(false);
            let number = self.conns.len();
            let line = PduStream::over(stream, number + 1, &self.record, self.deadline)?;
            self.record.event(&format!("#{} the initiator connects", number + 1));
            self.conns.push(Conn::new(line));
            return Ok(Some(Event { conn: number, at: Instant::now(), what: EventKind::Opened }));
        }
        // Poll the connections in turn, so that a busy one does not starve the others.
        self.turn = self.turn.wrapping_add(1);
        let count = self.conns.len();
        for index in (0..count).map(|step| (self.turn + step) % count) {
            let Some(conn) = self.conns.get_mut(index).filter(|conn| !conn.gone) else { continue };
            let what = match conn.line.receive(Duration::ZERO)? {
                Received::Pdu(pdu) => EventKind::Received(pdu),
                Received::Nothing => continue,
                Received::Closed => {
                    conn.gone = true;
                    EventKind::Closed
                }
            };
            return Ok(Some(Event { conn: index, at: Instant::now(), what }));
        }
        Ok(None)
    }

    /// Serves the initiator until an event matches `wanted`. Returns that event without handling it.
    pub(super) fn serve_until(
        &mut self,
        wait: Duration,
        mut wanted: impl FnMut(&Event) -> bool,
    ) -> Outcome<Option<Event>> {
        let until = Instant::now() + wait;
        while let Some(event) = self.step(until)? {
            if wanted(&event) {
                return Ok(Some(event));
            }
            self.serve(&event)?;
            if self.is_over() {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Serves until the initiator has ended and all connections are closed, or the time is up.
    pub(super) fn serve_out(&mut self, wait: Duration) -> Outcome {
        self.serve_until(wait, |_| false)?;
        Ok(())
    }

    fn is_over(&mut self) -> bool {
        !self.conns.is_empty() && self.conns.iter().all(|conn| conn.gone) && self.has_ended()
    }

    /// Serves until a command matches `wanted`, and counts its CmdSN as received; skips the case if none
    /// does.
    pub(super) fn command(
        &mut self,
        what: &str,
        wanted: impl Fn(&Event) -> Option<ScsiCommand>,
    ) -> Outcome<ReceivedCommand> {
        let got = self.unnumbered(what, wanted)?;
        self.number(got.conn, &got.pdu);
        Ok(got)
    }

    /// Like [`Fixture::command`], but does not count the CmdSN as received.
    pub(super) fn unnumbered(
        &mut self,
        what: &str,
        wanted: impl Fn(&Event) -> Option<ScsiCommand>,
    ) -> Outcome<ReceivedCommand> {
        let event = self.serve_until(self.start_wait(), |event| wanted(event).is_some())?;
        if let Some(Event { conn, what: EventKind::Received(pdu), .. }) = &event
            && let Some(command) = event.as_ref().and_then(&wanted)
        {
            return Ok(ReceivedCommand { conn: *conn, command, pdu: pdu.clone() });
        }
        Err(Stop::Skip(format!("the initiator sent no {what}")))
    }

    /// Waits for a PDU of this kind; skips the case if none arrives.
    pub(super) fn request(&mut self, opcode: Opcode, wait: Duration, what: &str) -> Outcome<(usize, Pdu)> {
        let event = self.serve_until(wait, |event| event.is(opcode).is_some())?;
        match event {
            Some(Event { conn, what: EventKind::Received(pdu), .. }) => Ok((conn, pdu)),
            _ => Err(Stop::Skip(format!("the initiator sent no {what}"))),
        }
    }

    /// Returns how long an initiator may take from its start to its first reads and writes.
    pub(super) fn start_wait(&self) -> Duration {
        self.options.patience.max(Duration::from_secs(5))
    }

    /// Returns the PDUs received on connection `conn`, with the times.
    pub(super) fn came(&self, conn: usize) -> impl Iterator<Item = (&Pdu, Instant)> {
        self.history.iter().filter(move |event| event.conn == conn).filter_map(|event| match &event.what {
            EventKind::Received(pdu) => Some((pdu, event.at)),
            _ => None,
        })
    }

    /// Returns all Data-Out PDUs of a task.
    pub(super) fn data_out(&self, itt: Itt) -> Vec<Pdu> {
        let all = self.history.iter().filter_map(|event| event.is(Opcode::DATA_OUT));
        all.filter(|pdu| pdu.itt() == itt).cloned().collect()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.stop();
    }
}
