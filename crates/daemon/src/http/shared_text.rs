//! Response bodies that many clients share, and whose memory is bounded however slowly the clients read.
//!
//! A client that reads slowly keeps the text that it was given. If the texts of several moments became too
//! much memory, the oldest one is withdrawn: its readers get the end of their connection instead of the rest.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// The most bytes of all texts that clients still read, besides the newest one: a hundred scrapes of a few
/// LUNs, and some of a thousand.
const TEXTS_LEN_MAX: usize = 16 << 20;

/// How many bytes a connection copies of a text at a time.
const PIECE_LEN: usize = 64 << 10;

/// A text that was withdrawn before its reader had all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client reads too slowly")]
pub struct Withdrawn;

/// A text, until it is withdrawn.
#[derive(Debug)]
pub struct SharedText {
    len: usize,
    text: Mutex<Option<Vec<u8>>>,
}

impl SharedText {
    fn text(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a body with the text.
    pub fn body(self: Arc<Self>) -> Body {
        Body::new(TextBody { text: self, at: 0 })
    }
}

/// The texts that clients still read.
#[derive(Debug, Default)]
pub struct SharedTexts {
    /// The oldest first.
    read: Mutex<VecDeque<Weak<SharedText>>>,
}

impl SharedTexts {
    /// Adds a text. Older ones are withdrawn if all together are too long.
    pub fn add(&self, text: Vec<u8>) -> Arc<SharedText> {
        let added = Arc::new(SharedText { len: text.len(), text: Mutex::new(Some(text)) });
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.retain(|one| one.strong_count() > 0);
        let mut len: usize = read.iter().filter_map(Weak::upgrade).map(|one| one.len).sum();
        while len > TEXTS_LEN_MAX
            && let Some(oldest) = read.pop_front()
        {
            if let Some(oldest) = oldest.upgrade() {
                len = len.saturating_sub(oldest.len);
                drop(oldest.text().take());
            }
        }
        read.push_back(Arc::downgrade(&added));
        added
    }
}

/// The text of one path, or why there is none, which requests that arrive while it is made share.
#[derive(Debug)]
pub struct SharedResponse<E>(tokio::sync::Mutex<Option<Made<E>>>);

#[derive(Debug)]
struct Made<E> {
    begun: Instant,
    text: Result<Weak<SharedText>, E>,
}

impl<E> Default for SharedResponse<E> {
    fn default() -> Self {
        Self(tokio::sync::Mutex::new(None))
    }
}

impl<E: Clone> SharedResponse<E> {
    /// Returns a text that was begun no earlier than this call: one that another request waited for as well,
    /// or the one that `make` makes.
    ///
    /// # Errors
    /// That of the text.
    pub async fn get(
        &self,
        texts: &SharedTexts,
        make: impl Future<Output = Result<Vec<u8>, E>>,
    ) -> Result<Arc<SharedText>, E> {
        let asked = Instant::now();
        let mut last = self.0.lock().await;
        match last.as_ref().filter(|made| made.begun >= asked).map(|made| &made.text) {
            Some(Err(why)) => return Err(why.clone()),
            Some(Ok(text)) => {
                if let Some(text) = text.upgrade() {
                    return Ok(text);
                }
            }
            None => {}
        }
        let begun = Instant::now();
        let text = make.await.map(|text| texts.add(text));
        *last = Some(Made { begun, text: text.as_ref().map(Arc::downgrade).map_err(E::clone) });
        text
    }
}

/// A response body that copies a piece of the text when the client has room for it.
struct TextBody {
    text: Arc<SharedText>,
    at: usize,
}

impl HttpBody for TextBody {
    type Data = Bytes;
    type Error = Withdrawn;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Withdrawn>>> {
        let end = self.text.len.min(self.at + PIECE_LEN);
        if self.at == end {
            return Poll::Ready(None);
        }
        let piece =
            self.text.text().as_ref().and_then(|text| text.get(self.at..end)).map(Bytes::copy_from_slice);
        self.at = end;
        Poll::Ready(Some(piece.map(Frame::data).ok_or(Withdrawn)))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.text.len
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(u64::try_from(self.text.len - self.at).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;

    fn frame(body: &mut TextBody) -> Option<Result<Bytes, Withdrawn>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match Pin::new(body).poll_frame(&mut context) {
            Poll::Ready(frame) => frame.map(|frame| frame.map(|frame| frame.into_data().unwrap())),
            Poll::Pending => panic!("the text is there"),
        }
    }

    #[test]
    fn a_text_is_read_in_pieces() {
        let text: Vec<u8> = (0..=250).cycle().take(2 * PIECE_LEN + 7).collect();
        let mut body = TextBody { text: SharedTexts::default().add(text.clone()), at: 0 };
        let mut read = Vec::new();
        while let Some(piece) = frame(&mut body) {
            read.extend_from_slice(&piece.unwrap());
            assert_eq!(body.size_hint().exact(), Some(u64::try_from(text.len() - read.len()).unwrap()));
        }
        assert_eq!((read, body.is_end_stream()), (text, true));
    }

    #[test]
    fn slow_readers_of_many_texts_hold_no_more_than_the_bound_and_the_newest_text() {
        let texts = SharedTexts::default();
        let len = TEXTS_LEN_MAX / 4;
        let mut readers: Vec<TextBody> =
            (0..64).map(|_| TextBody { text: texts.add(vec![7; len]), at: 0 }).collect();
        let held: usize = readers.iter().filter_map(|one| one.text.text().as_ref().map(Vec::len)).sum();
        assert!(held <= TEXTS_LEN_MAX + len, "{held}");
        assert_eq!(frame(&mut readers[0]), Some(Err(Withdrawn)));
        assert!(frame(&mut readers[63]).unwrap().is_ok());
        // A text that is longer than the bound alone is served all the same.
        let mut long = TextBody { text: texts.add(vec![7; 2 * TEXTS_LEN_MAX]), at: 0 };
        assert!(frame(&mut long).unwrap().is_ok());
        drop(readers);
        assert_eq!(texts.read.lock().unwrap().iter().filter(|one| one.strong_count() > 0).count(), 1);
    }

    #[test]
    fn requests_that_wait_for_a_text_share_it_and_later_ones_get_another() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let shared = Arc::new((SharedTexts::default(), SharedResponse::default(), AtomicU8::new(0)));
            let get = || {
                let shared = Arc::clone(&shared);
                async move {
                    let (texts, response, made) = &*shared;
                    let make = async {
                        tokio::task::yield_now().await;
                        Ok::<_, Withdrawn>(vec![made.fetch_add(1, Ordering::Relaxed)])
                    };
                    response.get(texts, make).await.unwrap()
                }
            };
            let (first, second, third) = (tokio::spawn(get()), tokio::spawn(get()), tokio::spawn(get()));
            let (first, second, third) = (first.await.unwrap(), second.await.unwrap(), third.await.unwrap());
            // The first one had begun before the others asked.
            assert!(Arc::ptr_eq(&second, &third));
            let fourth = get().await;
            assert_eq!((first.text().clone(), fourth.text().clone()), (Some(vec![0]), Some(vec![2])));
            let (texts, response, _) = &*shared;
            let failed = response.get(texts, async { Err::<Vec<u8>, _>(Withdrawn) }).await;
            assert_eq!(failed.unwrap_err(), Withdrawn);
            assert!(matches!(response.0.lock().await.as_ref().unwrap().text, Err(Withdrawn)));
        });
    }
}
