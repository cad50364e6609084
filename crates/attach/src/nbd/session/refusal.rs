//! The requests that a session refuses without an operation on the medium.

use ::nbd::wire::{Cmd, Errno, FLAG_DF, FLAG_FAST_ZERO, FLAG_FUA, FLAG_NO_HOLE, FLAG_REQ_ONE, Request};
use base::int_cast::to_u64;

use super::{PAYLOAD_LEN_MAX, Session};

impl Session {
    /// Returns why a request is refused without an operation on the medium.
    pub(super) fn refusal(&self, request: &Request) -> Option<Errno> {
        if self.shutting_down {
            return Some(Errno::SHUTDOWN);
        }
        let (allowed, changes) = match request.command {
            Cmd::READ if self.negotiation.structured => (FLAG_FUA | FLAG_DF, false),
            Cmd::READ | Cmd::FLUSH | Cmd::CACHE => (FLAG_FUA, false),
            Cmd::WRITE | Cmd::TRIM => (FLAG_FUA, true),
            Cmd::WRITE_ZEROES => (FLAG_FUA | FLAG_NO_HOLE | FLAG_FAST_ZERO, true),
            Cmd::BLOCK_STATUS if self.negotiation.block_status => (FLAG_FUA | FLAG_REQ_ONE, false),
            _ => return Some(Errno::INVAL),
        };
        if request.flags & !allowed != 0 {
            return Some(Errno::INVAL);
        }
        if changes && self.profile.read_only {
            return Some(Errno::PERM);
        }
        let len = u64::from(request.len);
        if request.command == Cmd::FLUSH {
            return (request.at != 0 || len != 0).then_some(Errno::INVAL);
        }
        if request.at.checked_add(len).is_none_or(|end| end > self.profile.len) {
            let grows = matches!(request.command, Cmd::WRITE | Cmd::WRITE_ZEROES);
            return Some(if grows { Errno::NOSPC } else { Errno::INVAL });
        }
        match request.command {
            Cmd::READ | Cmd::WRITE if len > to_u64(PAYLOAD_LEN_MAX) => Some(Errno::INVAL),
            Cmd::CACHE if len > to_u64(PAYLOAD_LEN_MAX) => Some(Errno::OVERFLOW),
            Cmd::BLOCK_STATUS if len == 0 => Some(Errno::INVAL),
            Cmd::WRITE_ZEROES if request.flags & FLAG_FAST_ZERO != 0 && !self.zeroes_fast(request) => {
                Some(Errno::NOTSUP)
            }
            _ => None,
        }
    }

    /// Returns whether zeroing is known to be faster than writing, because it deallocates whole blocks.
    fn zeroes_fast(&self, request: &Request) -> bool {
        let granule = u64::from(self.profile.logical_block_len.max(1));
        let whole = request.at.is_multiple_of(granule) && u64::from(request.len).is_multiple_of(granule);
        let holes = request.flags & FLAG_NO_HOLE == 0;
        whole && holes && self.profile.zeroes_by_deallocating
    }
}
