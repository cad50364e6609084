//! What a case comes to, and how a case says so.

/// What a case came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The peer did what the clause says.
    Pass,
    /// It did not.
    Fail,
    /// It could not be found out; the reason says what stood in the way.
    Skip,
}

impl Verdict {
    /// Returns the word that reports and JSON use.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// Why a case ended before its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The peer broke the rule.
    Fail(String),
    /// The case cannot be tried on this peer.
    Skip(String),
}

/// What a step of a case comes to.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Ends the case: the peer broke the rule.
macro_rules! fail {
    ($($text:tt)*) => { return Err($crate::verdict::Stop::Fail(format!($($text)*))) };
}

/// Ends the case unless the peer kept this rule.
macro_rules! require {
    ($held:expr, $($text:tt)*) => { if !$held { fail!($($text)*) } };
}

/// Ends the case unless it can be tried on this peer.
macro_rules! need {
    ($held:expr, $($text:tt)*) => {
        if !$held { return Err($crate::verdict::Stop::Skip(format!($($text)*))) }
    };
}
