//! What paths did so far.

use base::time::Duration;

/// What a path did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Frames sent.
    pub frames_sent: u64,
    /// Bytes in them, Ethernet headers not counted.
    pub bytes_sent: u64,
    /// Frames that came and were taken.
    pub frames_received: u64,
    /// Frames given up.
    pub frames_lost: u64,
    /// Of those, frames that arrived after all.
    pub frames_late: u64,
    /// Acknowledgements sent in frames of their own.
    pub acks_sent: u64,
    /// Times nothing was heard for too long.
    pub timeouts: u64,
    /// Frames that our port lost for want of room, whosever they were.
    pub frames_overrun: u64,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The congestion window, in bytes.
    pub window: u64,
    /// How many bytes are under way.
    pub under_way: u64,
    /// The window that we grant, in frames, in the space that grants more.
    pub granted: u64,
    /// The longest frame.
    pub mtu: usize,
    /// The longest frame that our port takes at present.
    pub port_mtu: usize,
    /// The longest frame that the peer says that its port takes.
    pub peer_mtu: usize,
}

/// What paths did so far, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTotals {
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames that came and were taken.
    pub frames_received: u64,
    /// Frames given up as lost: what they carried was sent again.
    pub frames_lost: u64,
    /// Of those, frames that arrived after all.
    pub frames_late: u64,
    /// Times nothing was heard for too long, so that something was sent again to see whether anybody is there.
    pub timeouts: u64,
    /// Frames that our ports lost for want of room, whosever they were.
    pub frames_overrun: u64,
}

impl PathTotals {
    /// Adds what a path did.
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

    /// Adds what other paths did.
    pub const fn join(&mut self, others: &Self) {
        self.frames_sent += others.frames_sent;
        self.frames_received += others.frames_received;
        self.frames_lost += others.frames_lost;
        self.frames_late += others.frames_late;
        self.timeouts += others.timeouts;
        self.frames_overrun += others.frames_overrun;
    }
}
