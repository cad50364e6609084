//! Where requests go, and where replies come from, if that is not a stream of bytes.

use base::buffer::{Buf, DataList};
use base::time::Instant;
use base::transmit::Transmit;

use super::{Client, Link};
use crate::wire::{Errno, Request};

/// What takes the requests of a client: the next bytes of a connection, or an owner that carries each request
/// in another protocol.
pub trait RequestSink {
    /// Returns whether no more requests fit now.
    fn is_full(&self) -> bool;

    /// Takes a request, and the data of a write.
    fn put(&mut self, request: Request, data: Option<DataList>);
}

impl RequestSink for Transmit {
    fn is_full(&self) -> bool {
        Self::is_full(self)
    }

    fn put(&mut self, request: Request, data: Option<DataList>) {
        Self::put(self, &request.encode());
        if let Some(data) = data {
            self.put_shared_list(data);
        }
    }
}

impl Client {
    /// Handles the reply to one request, which another protocol carried. `fill` appends the data of a read to
    /// the buffer: exactly as many bytes as the request asked for.
    pub fn replied(
        &mut self,
        now: Instant,
        cookie: u64,
        result: Result<(), Errno>,
        fill: impl FnOnce(&mut Buf),
    ) {
        if self.link == Link::Up {
            let result = self.replies.replied(cookie, result, fill);
            self.handle_replies(now, result);
        }
    }
}
