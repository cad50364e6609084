//! Channels between the threads of the control plane, with the interface of `std::sync::mpsc`.
//!
//! The compiler makes a copy of the channels of the standard library for each type of message, which was a
//! tenth of this crate's machine code. These channels carry boxed messages of any type through one copy. A
//! message costs an allocation, so they are not for the data path.

use std::any::Any;
use std::marker::PhantomData;
use std::sync::mpsc;
use std::time::Duration;

pub(crate) use std::sync::mpsc::{RecvError, RecvTimeoutError, TryRecvError};

/// A message of any type.
type Message = Box<dyn Any + Send>;

/// The receiver is gone. It gives the message back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendError<T>(pub T);

/// The sending half.
#[derive(Debug)]
pub struct Sender<T> {
    sender: mpsc::Sender<Message>,
    of: PhantomData<fn(T)>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver<T> {
    receiver: mpsc::Receiver<Message>,
    of: PhantomData<fn() -> T>,
}

/// Returns the two halves of a channel without a bound.
pub(crate) fn channel<T: Send + 'static>() -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel();
    (Sender { sender, of: PhantomData }, Receiver { receiver, of: PhantomData })
}

impl<T: Send + 'static> Sender<T> {
    /// Sends a message.
    ///
    /// # Errors
    /// The receiver is gone.
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.sender.send(Box::new(message)).map_err(|unsent| SendError(opened(unsent.0)))
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), of: PhantomData }
    }
}

impl<T: Send + 'static> Receiver<T> {
    /// Waits for a message.
    ///
    /// # Errors
    /// Every sender is gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receiver.recv().map(opened)
    }

    /// Waits for a message, at most so long.
    ///
    /// # Errors
    /// Every sender is gone, or no message came.
    pub fn recv_timeout(&self, within: Duration) -> Result<T, RecvTimeoutError> {
        self.receiver.recv_timeout(within).map(opened)
    }

    /// Returns a message that is there already.
    ///
    /// # Errors
    /// Every sender is gone, or there is no message.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.receiver.try_recv().map(opened)
    }

    /// Returns the messages until every sender is gone.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.receiver.iter().map(opened)
    }

    /// Returns the messages that are there already.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        self.receiver.try_iter().map(opened)
    }
}

impl<T: Send + 'static> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = std::iter::Map<mpsc::IntoIter<Message>, fn(Message) -> T>;

    fn into_iter(self) -> Self::IntoIter {
        self.receiver.into_iter().map(opened)
    }
}

/// Returns the message in its box. The two halves of a channel agree on its type, because only `channel`
/// makes them.
#[allow(clippy::expect_used, reason = "both halves have the type that `channel` was called with")]
fn opened<T: 'static>(message: Message) -> T {
    *message.downcast().expect("a message of the channel's type")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_messages_in_their_order_and_reports_who_is_gone() {
        let (sender, receiver) = channel();
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
        for number in 0..5 {
            sender.clone().send(number).unwrap();
        }
        assert_eq!(receiver.recv(), Ok(0));
        assert_eq!(receiver.recv_timeout(Duration::ZERO), Ok(1));
        assert_eq!(receiver.try_iter().collect::<Vec<i32>>(), [2, 3, 4]);
        drop(sender);
        assert_eq!(receiver.recv(), Err(RecvError));
        assert_eq!(receiver.iter().count(), 0);
        let (sender, receiver) = channel();
        drop(receiver);
        assert_eq!(sender.send("unsent".to_owned()), Err(SendError("unsent".to_owned())));
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        drop(sender);
        assert_eq!(receiver.into_iter().collect::<Vec<i32>>(), [1]);
    }
}
