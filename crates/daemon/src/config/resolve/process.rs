//! The environment of a running process: its directories and its host.

use std::env;
use std::path::{Path, PathBuf};

use super::Environment;

impl Environment {
    /// Reads the directories and the host from the environment of this process.
    ///
    /// # Errors
    /// The working directory cannot be determined.
    pub fn from_process() -> std::io::Result<Self> {
        Ok(Self {
            directory: env::current_dir()?,
            state_dir: state_dir(),
            admin_socket: absolute("XDG_RUNTIME_DIR").map(|dir| dir.join("targe/admin.sock")),
            host: host(),
            file_mode: None,
            name_is_ours: false,
        })
    }

    /// Returns the admin socket of a daemon that is started in this environment with the default
    /// configuration.
    pub fn default_socket(&self) -> PathBuf {
        self.admin_socket.clone().unwrap_or_else(|| Self::socket_in(&self.state_dir))
    }

    /// Returns every admin socket that a daemon with a default configuration may listen on, whatever
    /// environment it was started in; the socket of this process's environment is first. For root the list
    /// has the sockets of all users. `TARGE_ROOT` names another directory in place of `/`, so that a test
    /// finds no other daemon on the host.
    pub fn sockets(&self) -> Vec<PathBuf> {
        self.sockets_below(&absolute("TARGE_ROOT").unwrap_or_else(|| PathBuf::from("/")))
    }

    /// Returns the same list, with the system's directories below `root`.
    fn sockets_below(&self, root: &Path) -> Vec<PathBuf> {
        let user = rustix::process::geteuid().as_raw();
        let mut sockets = vec![self.default_socket(), Self::socket_in(&self.state_dir)];
        let run = |directory: PathBuf| directory.join("targe/admin.sock");
        let users = root.join("run/user");
        sockets.push(run(users.join(user.to_string())));
        sockets.extend(absolute("HOME").map(|home| Self::socket_in(&home.join(".local/state/targe"))));
        sockets.extend(["run", "var/run"].map(|directory| run(root.join(directory))));
        sockets.push(Self::socket_in(&root.join("var/lib/targe")));
        if user == 0
            && let Ok(users) = std::fs::read_dir(users)
        {
            sockets.extend(users.flatten().map(|entry| run(entry.path())));
        }
        // /var/run is the same directory as /run on nearly every system.
        let mut seen = std::collections::BTreeSet::new();
        sockets.retain(|socket| seen.insert(socket.canonicalize().unwrap_or_else(|_| socket.clone())));
        sockets
    }

    /// Returns the default admin socket for a state directory.
    pub(super) fn socket_in(state_dir: &Path) -> PathBuf {
        state_dir.join("admin/admin.sock")
    }
}

/// Returns the state directory of the XDG Base Directory Specification. A user without a home directory gets
/// the system's state directory.
fn state_dir() -> PathBuf {
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(|| PathBuf::from("/var/lib"))
        .join("targe")
}

/// Returns a directory from the environment. A relative path is ignored, as the specification requires.
fn absolute(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Returns a string that distinguishes this host: its machine id, else its host name.
pub(crate) fn host() -> String {
    ["/etc/machine-id", "/proc/sys/kernel/hostname"]
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok())
        .map(|text| text.trim().to_owned())
        .find(|text| !text.is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_places_of_the_system_are_below_the_root_that_is_given() {
        let scratch = Scratch::new();
        let root = scratch.path();
        std::fs::create_dir_all(root.join("run/user/5")).unwrap();
        let environment = Environment {
            directory: root.to_path_buf(),
            state_dir: root.join("state"),
            admin_socket: None,
            host: String::new(),
            file_mode: None,
            name_is_ours: false,
        };
        let of_home = absolute("HOME").map(|home| Environment::socket_in(&home.join(".local/state/targe")));
        let sockets = environment.sockets_below(root);
        assert!(sockets.contains(&root.join("run/targe/admin.sock")), "{sockets:?}");
        let elsewhere = |socket: &&PathBuf| !socket.starts_with(root) && Some(*socket) != of_home.as_ref();
        assert_eq!(sockets.iter().find(elsewhere), None);
    }
}
