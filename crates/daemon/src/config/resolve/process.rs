//! The surroundings of a running process: its directories and its host.

use std::env;
use std::path::PathBuf;

use super::Surroundings;

impl Surroundings {
    /// Reads them from the environment.
    ///
    /// # Errors
    /// The working directory cannot be told.
    pub fn of_process() -> std::io::Result<Self> {
        Ok(Self {
            directory: env::current_dir()?,
            state_dir: state_dir(),
            admin_socket: absolute("XDG_RUNTIME_DIR").map(|dir| dir.join("targe/admin.sock")),
            host: host(),
            file_mode: None,
            name_is_ours: false,
        })
    }

    /// Returns the admin socket that a daemon with the default configuration listens on.
    pub fn default_socket(&self) -> PathBuf {
        self.admin_socket.clone().unwrap_or_else(|| Self::socket_in(&self.state_dir))
    }

    /// Returns the admin socket that goes with a state directory.
    pub(super) fn socket_in(state_dir: &std::path::Path) -> PathBuf {
        state_dir.join("admin/admin.sock")
    }
}

/// Returns the state directory of the XDG Base Directory Specification; for a user without a home, the system's.
fn state_dir() -> PathBuf {
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| PathBuf::from("/var/lib"))
        .join("targe")
}

/// Returns a directory from the environment. The specification has relative ones ignored.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns what distinguishes this host: its machine id, else its name.
pub(crate) fn host() -> String {
    ["/etc/machine-id", "/proc/sys/kernel/hostname"]
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.trim().to_owned())
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}
