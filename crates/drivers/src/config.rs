//! How a reactor is set up.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it, epoll otherwise.
    #[default]
    Auto,
    /// io_uring; starting fails without it.
    Uring,
    /// epoll.
    Epoll,
}

/// Whether to look for something to do before sleep. epoll cannot tell without a system call, and just sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinMode {
    /// While it is seen to make more of what is done, and nobody else wants the processor.
    #[default]
    Adaptive,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Which engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring.
    Uring,
    /// epoll.
    Epoll,
}

/// What a running reactor can be told to do otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// [`Config::connections_max`]. Those that are open stay.
    pub connections_max: usize,
    /// [`Config::connections_per_peer_max`], likewise.
    pub connections_per_peer_max: usize,
    /// [`Config::stall`]. Counts for connections that are open, too.
    pub stall: Option<Duration>,
}

/// A reactor's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which engine to use.
    pub engine: EngineChoice,
    /// Whether to spin instead of sleeping: lower latency for a whole core.
    pub busy_poll: bool,
    /// Whether to look for a while for something to do before it sleeps, if it does not spin.
    pub spin_mode: SpinMode,
    /// At most this many connections are open; more are reset right after they were accepted.
    pub connections_max: usize,
    /// At most this many connections come from one address.
    pub connections_per_peer_max: usize,
    /// How long a connection that is being closed may take to accept our last bytes.
    pub linger: Duration,
    /// How long a peer may take nothing of what is sent to it before its connection is ended; it happens at most half
    /// as much later. `None` waits for ever.
    pub stall: Option<Duration>,
    /// How many bytes may be on their way into sockets, over all connections. Beyond it a connection has one small batch
    /// on its way, and no second one waiting behind.
    pub unsent_bytes_max: usize,
    /// How many bytes of unused buffers the pool keeps.
    pub pool_bytes_max: usize,
    /// How many threads run the file operations that would block.
    pub file_threads_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            busy_poll: false,
            spin_mode: SpinMode::Adaptive,
            connections_max: 8192,
            connections_per_peer_max: 4096,
            linger: Duration::from_secs(5),
            stall: Some(Duration::from_secs(30)),
            unsent_bytes_max: 64 << 20,
            pool_bytes_max: 64 << 20,
            file_threads_max: 4,
        }
    }
}

/// A word that names no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown reactor `{0}`, expected auto, uring or epoll")]
pub struct UnknownEngine(pub String);

impl FromStr for EngineChoice {
    type Err = UnknownEngine;

    fn from_str(word: &str) -> Result<Self, UnknownEngine> {
        match word {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "epoll" => Ok(Self::Epoll),
            _ => Err(UnknownEngine(word.to_owned())),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_words_of_the_command_line() {
        let table =
            [("auto", EngineChoice::Auto), ("uring", EngineChoice::Uring), ("epoll", EngineChoice::Epoll)];
        for (word, choice) in table {
            assert_eq!(word.parse(), Ok(choice));
        }
        let said = "kqueue".parse::<EngineChoice>().unwrap_err().to_string();
        assert_eq!(said, "unknown reactor `kqueue`, expected auto, uring or epoll");
    }
}
