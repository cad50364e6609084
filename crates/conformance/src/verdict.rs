//! The verdict of a case, and the macros by which a case ends with one.

/// The verdict of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The peer did what the clause demands.
    Pass,
    /// The peer broke the clause.
    Fail,
    /// The case could not be judged; the reason says why.
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

/// Why a case ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The peer broke the rule.
    Fail(String),
    /// The case cannot be run against this peer.
    Skip(String),
}

/// The result of a step of a case.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Ends the case with a failure: the peer broke the rule.
macro_rules! fail {
    ($($text:tt)*) => { return Err($crate::verdict::Stop::Fail(format!($($text)*))) };
}

/// Ends the case with a failure unless the peer kept this rule.
macro_rules! require {
    ($held:expr, $($text:tt)*) => { if !$held { fail!($($text)*) } };
}

/// Skips the case unless it can be run against this peer.
macro_rules! need {
    ($held:expr, $($text:tt)*) => {
        if !$held { return Err($crate::verdict::Stop::Skip(format!($($text)*))) }
    };
}
