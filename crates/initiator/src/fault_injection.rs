//! Bugs planted on purpose, to see whether the tests of retries find them. Only a test build can have them.

/// A bug in what becomes of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "only tests plant, and some bugs stand in code of tests alone")
)]
pub(crate) enum Bug {
    /// What a reset may have ended is tried again before the target has said that it is gone.
    RetryUnended,
    /// What may have been carried out is carried out again, repeatable or not.
    RepeatAll,
    /// Commands may go without an answer for ever.
    ForgetLimit,
    /// The end of a command that was tried again is told twice.
    EndTwice,
    /// A command that we ended is not told of.
    ForgetEnd,
    /// The data of an attempt that failed is given for that of the one that succeeded.
    KeepData,
    /// An attention that ends commands is passed over.
    IgnoreAttention,
    /// A question to a silent unit may go without an answer for ever.
    KeepLook,
}

#[cfg(test)]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    static KEPT: std::cell::RefCell<Option<base::buffer::Bytes>> = const { std::cell::RefCell::new(None) };
}

/// Plants a bug for this thread in place of the one before, or none.
#[cfg(test)]
pub(crate) fn inject(flaw: Option<Bug>) {
    PLANTED.set(flaw);
    KEPT.take();
}

/// Returns whether this bug is planted.
#[cfg(test)]
pub(crate) fn is_injected(flaw: Bug) -> bool {
    PLANTED.get() == Some(flaw)
}

/// Returns whether this bug is planted: never.
#[cfg(not(test))]
pub(crate) const fn is_injected(_: Bug) -> bool {
    false
}

/// Lets data of an attempt that failed stand for that of the next, if that is planted.
#[cfg(test)]
pub(crate) fn spoil(data: &mut Option<base::buffer::Bytes>, good: bool) {
    if !is_injected(Bug::KeepData) || data.is_none() {
        return;
    }
    if good {
        let mut spoilt = data.as_deref().unwrap_or_default().to_vec();
        for (to, from) in spoilt.iter_mut().zip(KEPT.take().as_deref().unwrap_or_default()) {
            *to = *from;
        }
        *data = Some(base::buffer::Bytes::copied_from(&spoilt));
    } else {
        KEPT.set(data.clone());
    }
}
