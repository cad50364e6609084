//! Statistics of paths.

use base::time::Duration;

/// Statistics of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Frames sent.
    pub frames_sent: u64,
    /// Bytes in them, Ethernet headers not counted.
    pub bytes_sent: u64,
    /// Frames that were received and accepted.
    pub frames_received: u64,
    /// Frames given up as lost.
    pub frames_lost: u64,
    /// Frames given up as lost that arrived after all: spurious losses.
    pub frames_late: u64,
    /// Acknowledgements sent in frames of their own.
    pub acks_sent: u64,
    /// Probe timeouts.
    pub timeouts: u64,
    /// Frames that our port lost because its receive ring was full, of all sessions.
    pub frames_overrun: u64,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The congestion window, in bytes.
    pub window: u64,
    /// Bytes under way.
    pub under_way: u64,
    /// The credit window that we grant, in frames, in the space that grants more.
    pub granted: u64,
    /// The longest frame that the path carries, in bytes.
    pub mtu: usize,
    /// The longest frame that our port takes at present, in bytes.
    pub port_mtu: usize,
    /// The longest frame that the peer's port takes, in bytes, as the peer reports.
    pub peer_mtu: usize,
}

/// Statistics of several paths, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTotals {
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames that were received and accepted.
    pub frames_received: u64,
    /// Frames given up as lost: their content was sent again.
    pub frames_lost: u64,
    /// Frames given up as lost that arrived after all: spurious losses.
    pub frames_late: u64,
    /// Probe timeouts: after too long a silence, data was sent again to learn whether the peer still answers.
    pub timeouts: u64,
    /// Frames that our ports lost because their receive rings were full, of all sessions.
    pub frames_overrun: u64,
}

impl PathTotals {
    /// Adds the statistics of a path.
    pub const fn add(&mut self, path: &PathStats) {
        self.join(&Self {
            frames_sent: path.frames_sent,
            frames_received: path.frames_received,
            frames_lost: path.frames_lost,
            frames_late: path.frames_late,
            timeouts: path.timeouts,
            frames_overrun: path.frames_overrun,
        });
    }

    /// Adds the statistics of other paths.
    pub const fn join(&mut self, others: &Self) {
        self.frames_sent += others.frames_sent;
        self.frames_received += others.frames_received;
        self.frames_lost += others.frames_lost;
        self.frames_late += others.frames_late;
        self.timeouts += others.timeouts;
        self.frames_overrun += others.frames_overrun;
    }
}
