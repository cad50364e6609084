//! Bugs that tests inject to see whether the tests of retries detect them. Only test builds have them.

/// A bug in the handling of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "only tests plant, and some bugs stand in code of tests alone")
)]
pub(crate) enum Bug {
    /// A command that a reset may have ended is retried before the target has confirmed that the task no
    /// longer exists.
    RetryUnended,
    /// A command that may have been executed is executed again, whether it is repeatable or not.
    RepeatAll,
    /// Commands have no timeout.
    ForgetLimit,
    /// The end of a command that was retried is reported twice.
    EndTwice,
    /// The end of a command that we aborted is not reported.
    ForgetEnd,
    /// The data of a failed attempt is returned in place of the data of the successful one.
    KeepData,
    /// A unit attention that ends commands is ignored.
    IgnoreAttention,
    /// The check of a silent unit has no timeout.
    KeepLook,
}

#[cfg(test)]
std::thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
    static KEPT: std::cell::RefCell<Option<base::buffer::Bytes>> = const { std::cell::RefCell::new(None) };
}

/// Injects a bug for this thread in place of the previous one, or none.
#[cfg(test)]
pub(crate) fn inject(flaw: Option<Bug>) {
    PLANTED.set(flaw);
    KEPT.take();
}

/// Returns whether this bug is injected.
#[cfg(test)]
pub(crate) fn is_injected(flaw: Bug) -> bool {
    PLANTED.get() == Some(flaw)
}

/// Returns `false`: no bug can be injected.
#[cfg(not(test))]
pub(crate) const fn is_injected(_: Bug) -> bool {
    false
}

/// Replaces the data of a successful attempt by the data of a failed one, if that bug is injected.
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
