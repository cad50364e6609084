//! The settings of a reactor.

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

/// Whether an idle reactor busy-polls before it sleeps. The epoll engine cannot check for work without a
/// system call, so with it the reactor always sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinMode {
    /// The reactor polls while measurements show that polling moves more bytes, and while no other thread
    /// needs the processor.
    #[default]
    Adaptive,
    /// The reactor always polls before it sleeps.
    Always,
    /// The reactor never polls.
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

/// The limits that can be changed while a reactor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// [`Config::connections_max`]. Connections that are already open stay open.
    pub connections_max: usize,
    /// [`Config::connections_per_peer_max`]. Connections that are already open stay open.
    pub connections_per_peer_max: usize,
    /// [`Config::stall`]. It applies to connections that are already open, too.
    pub stall: Option<Duration>,
}

/// A reactor's settings.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which engine to use.
    pub engine: EngineChoice,
    /// Whether the reactor polls all the time instead of sleeping (busy polling): lower latency, at the price
    /// of a whole core.
    pub busy_poll: bool,
    /// Whether the reactor polls for a short time before it sleeps, if `busy_poll` is off.
    pub spin_mode: SpinMode,
    /// At most this many connections are open; further ones are reset right after they are accepted.
    pub connections_max: usize,
    /// At most this many connections may be open from one peer address.
    pub connections_per_peer_max: usize,
    /// How long a connection that is being closed may take to send the pending bytes.
    pub linger: Duration,
    /// How long a peer may accept nothing of the data sent to it before its connection is ended. The end can
    /// come later by at most half of this time. `None`: no limit.
    pub stall: Option<Duration>,
    /// How long the host of a connection that the owner made itself may answer nothing that TCP sends again
    /// and again before the connection is ended. The end can come later by half of this time, and by the time
    /// in which TCP sends three times.
    pub host_silence_max: Duration,
    /// How many bytes may be in flight into sockets, over all connections. Above this limit a connection has
    /// one small batch in flight, and no second batch waiting behind it.
    pub unsent_bytes_max: usize,
    /// How many bytes of unused buffers the pool keeps.
    pub pool_bytes_max: usize,
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
            host_silence_max: Duration::from_secs(20),
            unsent_bytes_max: 64 << 20,
            pool_bytes_max: 64 << 20,
        }
    }
}

/// A word that is not the name of an engine.
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
