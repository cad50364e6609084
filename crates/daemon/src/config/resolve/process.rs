//! The environment of a running process: its directories and its host.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Environment, StateSource};

impl Environment {
    /// Reads the directories and the host from the environment of this process.
    ///
    /// # Errors
    /// The working directory cannot be determined.
    pub fn from_process() -> std::io::Result<Self> {
        Ok(Self {
            directory: env::current_dir()?,
            state_dir: state_dir(),
            state_source: StateSource::Directory,
            admin_socket: absolute("XDG_RUNTIME_DIR").map(|dir| dir.join("targe/admin.sock")),
            host: host(),
            file_access: None,
            name_is_ours: false,
            served_libraries: BTreeMap::new(),
            examines_media: true,
            is_of_service: false,
            service_user: None,
            silent: BTreeSet::new(),
            certified_names: std::sync::Arc::default(),
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
        let mut seen = BTreeSet::new();
        sockets.retain(|socket| seen.insert(socket.canonicalize().unwrap_or_else(|_| socket.clone())));
        sockets
    }

    /// Returns the environment of a command that reads the configuration file of a daemon without asking the
    /// daemon. Which state directory that daemon uses is known if it is configured, and for the file of the
    /// system's service.
    pub fn without_daemon(self, file: &Path) -> Self {
        match self.of_system_service(file) {
            Some(state_dir) => Self { state_dir, state_source: StateSource::Directory, ..self },
            None => Self { state_source: StateSource::ConfiguredDirectory, ..self },
        }
    }

    /// Returns the state directory of the system's service if a file is its configuration.
    fn of_system_service(&self, file: &Path) -> Option<PathBuf> {
        let root = absolute("TARGE_ROOT").unwrap_or_else(|| PathBuf::from("/"));
        self.absolute(file).starts_with(root.join("etc/targe")).then(|| root.join("var/lib/targe"))
    }

    /// Returns the same environment with the user of the service, if what the service can do is checked and
    /// this process is root's, which can open every file. That user is the owner of the state directory: of
    /// the one that is configured, or of the system's if `file` is the configuration of the system's service.
    pub(super) fn for_service(&self, state_dir: Option<&Path>, file: Option<&Path>) -> Self {
        if !self.is_of_service || !rustix::process::geteuid().is_root() {
            return self.clone();
        }
        let system = file.and_then(|file| self.of_system_service(file));
        let directory = state_dir.or(system.as_deref());
        let owner = directory.and_then(|directory| std::fs::metadata(directory).ok()).map(|meta| meta.uid());
        Self { service_user: owner.filter(|owner| *owner != 0), ..self.clone() }
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
            state_source: StateSource::Directory,
            admin_socket: None,
            host: String::new(),
            file_access: None,
            name_is_ours: false,
            served_libraries: BTreeMap::new(),
            examines_media: true,
            is_of_service: false,
            service_user: None,
            silent: BTreeSet::new(),
            certified_names: std::sync::Arc::default(),
        };
        let of_home = absolute("HOME").map(|home| Environment::socket_in(&home.join(".local/state/targe")));
        let sockets = environment.sockets_below(root);
        assert!(sockets.contains(&root.join("run/targe/admin.sock")), "{sockets:?}");
        let elsewhere = |socket: &&PathBuf| !socket.starts_with(root) && Some(*socket) != of_home.as_ref();
        assert_eq!(sockets.iter().find(elsewhere), None);
    }
}
