//! The fixture of the cases that test a target: how to reach and log in to the target, and what a case may
//! do.

use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use iscsi::chap::Credentials;

use crate::entropy;
use crate::transcript::Record;
use crate::verdict::Outcome;

use super::changes::Changes;
use super::conn::Conn;
use super::kind::UnitKind;
use super::login::{Auth, LoginPlan};

/// How to reach and to test the target.
#[derive(Clone, Debug)]
pub struct Options {
    /// The portals of the target. Cases use the first, except those that need two.
    pub portals: Vec<SocketAddr>,
    /// The iSCSI name of the target; without one, the first that a discovery session lists.
    pub target: Option<String>,
    /// The number of the logical unit; without one, the first disk, or else the first unit of another type
    /// that there are cases for.
    pub lun: Option<u16>,
    /// The iSCSI name that we log in with.
    pub initiator: String,
    /// Our CHAP credentials, if the target demands authentication.
    pub user: Option<Credentials>,
    /// The target's CHAP credentials, if the target is to authenticate itself (mutual CHAP).
    pub mutual: Option<Credentials>,
    /// Whether cases may overwrite the first blocks of a disk or the cartridge of a tape drive, move the
    /// cartridges of a changer and eject a disc.
    pub write: bool,
    /// The longest that one case may take.
    pub limit: Duration,
    /// How long to wait for an answer before it counts as missing.
    pub patience: Duration,
    /// A shell command that restarts the target after it has become unreachable. The result of the case in
    /// which that happened shows the first line that the command prints. Without it, the remaining cases are
    /// skipped.
    pub revive: Option<String>,
}

/// The default of the iSCSI name that we log in with.
pub const INITIATOR: &str = "iqn.2026-11.example.targe:conform";

/// The unit that the cases use, found before the first case runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The LUN as the PDU header carries it.
    pub(crate) lun: u64,
    pub(crate) kind: UnitKind,
    /// The logical block length of a disk, in bytes.
    pub(crate) block: u32,
    /// The number of blocks of a disk, as far as READ CAPACITY(10) can report it.
    pub(crate) blocks: u32,
}

/// The target, as one case sees it.
#[derive(Debug)]
pub(crate) struct Fixture {
    pub(crate) options: Rc<Options>,
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) record: Record,
    pub(crate) deadline: Instant,
    /// The credentials that we use. CHAP cases put wrong ones here.
    pub(crate) auth: Auth,
    /// What must be undone when the case has ended.
    pub(super) changes: Changes,
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
            changes: Changes::default(),
            connections: 0,
        }
    }

    /// Counts a connection of the case, and returns its number, beginning with 1.
    pub(crate) fn next_number(&mut self) -> usize {
        self.connections += 1;
        self.connections
    }

    /// Returns the portal for connection `index`; the connections use the portals in turn.
    pub(crate) fn portal(&self, index: usize) -> Outcome<SocketAddr> {
        let portals = &self.options.portals;
        match portals.get(index % portals.len().max(1)) {
            Some(portal) => Ok(*portal),
            None => fail!("no portal was named"),
        }
    }

    /// Returns whether the first portal accepts connections.
    pub(crate) fn is_reachable(&self) -> bool {
        let portal = self.options.portals.first();
        portal.is_some_and(|portal| TcpStream::connect_timeout(portal, self.options.patience).is_ok())
    }

    /// Logs in with the keys of [`LoginPlan::normal`], changed by `keys`, and sends the commands that an
    /// initiator sends when it starts ([`Conn::warm_up`]).
    pub(crate) fn start(&mut self, keys: &[(&str, &str)]) -> Outcome<Conn> {
        let mut conn = self.login(&LoginPlan::normal(self).with(keys))?;
        conn.warm_up()?;
        Ok(conn)
    }

    /// Logs in to a discovery session.
    pub(crate) fn discover(&mut self) -> Outcome<Conn> {
        self.login(&LoginPlan::discovery(self))
    }

    /// Returns an initiator session identifier that no session of this run has used (§11.12.5, type
    /// "random").
    pub(crate) fn isid() -> [u8; 6] {
        let [a, b, c, d, e, ..] = entropy::fresh().to_be_bytes();
        [0x80, a, b, c, d, e]
    }
}
