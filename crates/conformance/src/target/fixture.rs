//! What the cases on a target work with: where it is, who we are, and what the case may do.

use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::chap::Credentials;

use crate::entropy;
use crate::transcript::Record;
use crate::verdict::Outcome;

use super::conn::Conn;
use super::login::{Auth, LoginPlan};

/// How to reach and to treat the target.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its portals. The first is used unless a case needs two.
    pub portals: Vec<SocketAddr>,
    /// Its name; without one, the first that a discovery session shows.
    pub target: Option<String>,
    /// The logical unit; without one, the first disk.
    pub lun: Option<u16>,
    /// The name that we log in with.
    pub initiator: String,
    /// Who we are for CHAP, if the target wants it.
    pub user: Option<Credentials>,
    /// Who the target is for CHAP, if it shall prove that.
    pub mutual: Option<Credentials>,
    /// Whether cases may overwrite the first blocks of the unit.
    pub write: bool,
    /// The longest that one case may take.
    pub limit: Duration,
    /// How long to wait for an answer before it counts as missing.
    pub patience: Duration,
    /// What brings the target back, should it be gone: a command for the shell. The first line that it prints is told
    /// with the case in which that happened. Without one, the cases that are left are skipped.
    pub revive: Option<String>,
}

/// The name that we log in with unless told otherwise.
pub const INITIATOR: &str = "iqn.2026-11.example.targe:conform";

/// The unit that the cases use, found before the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// As the header carries it.
    pub(crate) lun: u64,
    /// The length of a block, in bytes.
    pub(crate) block: u32,
    /// How many blocks there are, as far as READ CAPACITY(10) tells.
    pub(crate) blocks: u32,
}

/// One case's view of the target.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) options: Rc<Options>,
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) record: Record,
    pub(crate) deadline: Instant,
    /// Who the target shall take us for. Cases on CHAP lie here.
    pub(crate) auth: Auth,
    connections: usize,
}

impl Fixture {
    pub(crate) fn new(options: &Rc<Options>, name: &str, unit: Unit) -> Self {
        Self {
            options: Rc::clone(options),
            name: name.to_owned(),
            unit,
            record: Record::new(),
            deadline: Instant::now() + options.limit,
            auth: Auth { user: options.user.clone(), mutual: options.mutual.clone() },
            connections: 0,
        }
    }

    /// Returns how many connections the case has opened, and counts one more.
    pub(crate) fn next_number(&mut self) -> usize {
        self.connections += 1;
        self.connections
    }

    /// Returns the portal for connection `index`: the portals in turn.
    pub(crate) fn portal(&self, index: usize) -> Outcome<SocketAddr> {
        let portals = &self.options.portals;
        match portals.get(index % portals.len().max(1)) {
            Some(portal) => Ok(*portal),
            None => fail!("no portal was named"),
        }
    }

    /// Returns whether the first portal takes connections.
    pub(crate) fn is_reachable(&self) -> bool {
        let portal = self.options.portals.first();
        portal.is_some_and(|portal| TcpStream::connect_timeout(portal, self.options.patience).is_ok())
    }

    /// Logs in with these keys changed from what [`LoginPlan::normal`] offers, and asks the unit for its state as any
    /// initiator does when it starts.
    pub(crate) fn start(&mut self, keys: &[(&str, &str)]) -> Outcome<Conn> {
        let mut conn = self.login(&LoginPlan::normal(self).with(keys))?;
        conn.warm_up()?;
        Ok(conn)
    }

    /// Logs in for discovery.
    pub(crate) fn discover(&mut self) -> Outcome<Conn> {
        self.login(&LoginPlan::discovery(self))
    }

    /// Returns an initiator session identifier that no session of this run has used (§11.12.5, type "random").
    pub(crate) fn isid() -> [u8; 6] {
        let [a, b, c, d, e, ..] = entropy::fresh().to_be_bytes();
        [0x80, a, b, c, d, e]
    }
}
