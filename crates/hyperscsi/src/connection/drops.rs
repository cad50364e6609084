//! The reasons for which frames are dropped, and a counter for each.

/// Why a frame was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropReason {
    /// It names an unknown path, or was sent from another address than the path's.
    #[error("the frame belongs to no path of the session")]
    NoPath,
    /// It belongs to another session, or to none.
    #[error("the frame belongs to another session")]
    NotOurs,
    /// It is protected in a session without keys, or the other way round.
    #[error("the frame is not protected as the session requires")]
    Protection,
    /// Its CRC or authentication tag is wrong.
    #[error("the frame is damaged")]
    Damaged,
    /// It was received before, or is too old for the replay guard to know.
    #[error("the frame was received before")]
    Replayed,
    /// Its packet number is far beyond the credit.
    #[error("the packet number is beyond the credit")]
    BeyondCredit,
    /// Its payload is malformed.
    #[error("the payload is malformed")]
    Malformed,
    /// It acknowledges a packet number that was never sent.
    #[error("the acknowledgement names a packet that was never sent")]
    FalseAck,
}

/// How many frames were dropped for each reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// [`DropReason::NoPath`] and [`DropReason::NotOurs`]
    pub foreign: u64,
    /// [`DropReason::Protection`]
    pub protection: u64,
    /// [`DropReason::Damaged`]
    pub damaged: u64,
    /// [`DropReason::Replayed`]
    pub replayed: u64,
    /// [`DropReason::BeyondCredit`]
    pub beyond_credit: u64,
    /// [`DropReason::Malformed`]
    pub malformed: u64,
    /// [`DropReason::FalseAck`]
    pub false_acks: u64,
}

impl DropCounts {
    /// Counts one more dropped frame.
    pub(crate) const fn count(&mut self, why: DropReason) {
        let counter = match why {
            DropReason::NoPath | DropReason::NotOurs => &mut self.foreign,
            DropReason::Protection => &mut self.protection,
            DropReason::Damaged => &mut self.damaged,
            DropReason::Replayed => &mut self.replayed,
            DropReason::BeyondCredit => &mut self.beyond_credit,
            DropReason::Malformed => &mut self.malformed,
            DropReason::FalseAck => &mut self.false_acks,
        };
        *counter += 1;
    }
}
