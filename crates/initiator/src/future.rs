//! Futures of responses. They need no runtime, and threads can wait for them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// The thread that was to respond has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the initiator was stopped")]
pub struct Stopped;

/// A response that has not arrived yet. Any executor can poll this future; [`Self::wait`] blocks instead.
/// Dropping it drops the response and does not cancel the request.
#[must_use = "an unused result hides errors"]
pub struct ResponseFuture<T, E> {
    slot: Arc<Slot<Result<T, E>>>,
}

/// The other end, which completes the future.
pub(crate) struct Completer<T, E: From<Stopped>> {
    slot: Arc<Slot<Result<T, E>>>,
    told: bool,
}

struct Slot<T> {
    state: Mutex<State<T>>,
    told: Condvar,
}

struct State<T> {
    answer: Option<T>,
    waker: Option<Waker>,
}

/// Runs a future to its end on this thread, which sleeps meanwhile. For callers without an executor. Must not
/// be called from a callback of the client.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Creates a future and its completer.
pub(crate) fn response_channel<T, E: From<Stopped>>() -> (Completer<T, E>, ResponseFuture<T, E>) {
    let state = Mutex::new(State { answer: None, waker: None });
    let slot = Arc::new(Slot { state, told: Condvar::new() });
    (Completer { slot: Arc::clone(&slot), told: false }, ResponseFuture { slot })
}

impl<T, E> ResponseFuture<T, E> {
    /// Blocks until the response has arrived. Must not be called from a callback of the client, whose thread
    /// would wait for itself.
    ///
    /// # Errors
    /// Returns the error of the request.
    pub fn wait(self) -> Result<T, E> {
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = state.answer.take() {
                return answer;
            }
            state = self.slot.told.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T, E> Future for ResponseFuture<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T, E: From<Stopped>> Completer<T, E> {
    /// Completes the future.
    pub(crate) fn complete(mut self, answer: Result<T, E>) {
        self.told = true;
        self.put(answer);
    }

    fn put(&self, answer: Result<T, E>) {
        let mut state = self.slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.answer = Some(answer);
        let waker = state.waker.take();
        drop(state);
        self.slot.told.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T, E: From<Stopped>> Drop for Completer<T, E> {
    fn drop(&mut self) {
        if !self.told {
            self.put(Err(Stopped.into()));
        }
    }
}

impl<T, E> fmt::Debug for ResponseFuture<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn wakes_whoever_polled_and_gives_the_answer_once() {
        let (completer, answer) = response_channel::<u8, Stopped>();
        let mut answer = Box::pin(answer);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert!(answer.as_mut().poll(&mut context).is_pending());
        std::thread::spawn(move || completer.complete(Ok(7))).join().unwrap();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert_eq!(answer.as_mut().poll(&mut context), Poll::Ready(Ok(7)));
    }

    #[test]
    fn a_teller_that_goes_without_a_word_is_an_error() {
        let (completer, answer) = response_channel::<u8, Stopped>();
        std::thread::spawn(move || drop(completer));
        assert_eq!(answer.wait(), Err(Stopped));
    }

    #[test]
    fn a_thread_can_sleep_until_a_future_is_done() {
        let (first, one) = response_channel::<u8, Stopped>();
        let (second, two) = response_channel::<u8, Stopped>();
        std::thread::spawn(move || {
            second.complete(Ok(2));
            first.complete(Ok(1));
        });
        assert_eq!(block_on(async { Ok::<_, Stopped>(one.await? + two.await?) }), Ok(3));
    }
}
