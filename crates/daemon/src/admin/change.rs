//! What the server keeps of one client: who it is, and the change that it has prepared.

use crate::mailbox::{Receiver, Sender};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZero;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::api::{ErrorKind, Failure};

/// Who sends requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process, over the admin socket.
    Process(PeerProcess),
    /// The owner of a token, over HTTP.
    Token {
        /// The name of the token.
        name: String,
        /// The address of the client.
        address: IpAddr,
    },
}

/// The process at the other end of the socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    /// Its user.
    pub uid: u32,
    /// Its process ID, unless it is in another PID namespace, as in another container.
    pub pid: Option<NonZero<i32>>,
    /// The user who logged in and started it, by way of `sudo` for example, if the kernel knows that.
    pub login_uid: Option<u32>,
    /// The name of its program.
    pub program: Option<String>,
}

impl Peer {
    /// Describes a process that has connected.
    pub fn process(uid: u32, pid: Option<NonZero<i32>>) -> Self {
        let told = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/{}/{name}", pid?)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        // The kernel reports -1 for a process that no login started.
        let login_uid = told("loginuid").and_then(|text| text.parse().ok()).filter(|uid| *uid != u32::MAX);
        Self::Process(PeerProcess { uid, pid, login_uid, program: told("comm") })
    }
}

/// What the client decided about the change that it has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The configuration file is replaced, and the change is to be applied.
    Commit,
    /// The change is to be dropped.
    Abandon,
}

/// A change that the daemon has prepared. Dropping it without a verdict makes the daemon look at the file.
#[derive(Debug)]
pub struct PreparedChange {
    /// Takes the verdict.
    pub verdict: Sender<Verdict>,
    /// Returns the result.
    pub outcome: Receiver<Result<Value, Failure>>,
}

/// What writes to a client after its request was answered. The connection is closed when it returns.
pub struct Continuation(pub Box<dyn FnOnce(&UnixStream) + Send>);

impl fmt::Debug for Continuation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Continuation")
    }
}

/// A client, for the handler of its requests.
#[derive(Debug)]
pub struct Client {
    /// Who requests the change.
    pub peer: Peer,
    /// The change that it has prepared.
    pub prepared: Option<PreparedChange>,
    /// What takes over the connection once the present request is answered.
    pub continuation: Option<Continuation>,
}

impl Client {
    /// Returns a client that has prepared nothing.
    pub const fn new(peer: Peer) -> Self {
        Self { peer, prepared: None, continuation: None }
    }

    /// Decides about the prepared change; returns the result.
    ///
    /// # Errors
    /// The failure that is sent to the client.
    pub fn decide(&mut self, verdict: Verdict) -> Result<Value, Failure> {
        let failed = |kind, message: &str| Failure { kind, message: message.to_owned() };
        let Some(PreparedChange { verdict: sender, outcome }) = self.prepared.take() else {
            return Err(failed(ErrorKind::Refused, "no change is prepared on this connection"));
        };
        // If the daemon has decided already, because the client took too long, the outcome says so.
        let _ = sender.send(verdict);
        outcome.recv().unwrap_or_else(|_| Err(failed(ErrorKind::Unavailable, "targe is stopping")))
    }
}
