//! Live upgrade: another process takes over the listening sockets, the connections and the sessions of this
//! one, and no session ends.
//!
//! Only sessions that have nothing under way move, so their state is small: no tasks, no data, no half PDUs.
//! The steps, with the process that serves on the left:
//!
//! | serves now (`daemon::upgrade`) | takes over ([`successor`]) |
//! |---|---|
//! | starts the program | says its release and which formats it reads ([`messages::Hello`]) |
//! | gives the sockets and media ([`messages::Welcome`]) | reads the configuration, opens everything, says so ([`messages::Answer::Prepared`]) |
//! | freezes the sessions until none has anything under way, and parks its reactors | |
//! | pauses the relays of TLS connections, and sends the [`document`], the connections, also those to NBD servers, the cartridges in drives, and the locks of devices | resumes the sessions in parked reactors, says so ([`messages::Answer::Ready`]) |
//! | commits: it does not touch anything any more | serves, says so ([`messages::Answer::Serving`]), and connects to the devices of other processes |
//! | ends its relays and its connections to devices of other processes, tells the client, and ends | |
//!
//! Until it commits, the process that serves can go on: it ends the other process, unparks its reactors and
//! opens the command windows again. The other process does nothing with a connection before that, and leaves
//! the files of the state directory as they are.

pub(super) mod channel;
pub(super) mod document;
pub(super) mod messages;
pub(super) mod relays;
pub(super) mod successor;

use std::time::Duration;

pub(super) use successor::Succession;

/// The environment variable that tells a process the number of the descriptor by which it takes over.
pub(super) const VARIABLE: &str = "TARGE_UPGRADE_FD";

/// How long the process that takes over may need until it has opened everything: a large configuration, and
/// files on a slow disk.
pub(super) const PREPARE_MAX: Duration = Duration::from_secs(120);

/// How long one process may take to receive a message of the other, which waits for it.
pub(super) const MESSAGE_MAX: Duration = Duration::from_secs(5);
