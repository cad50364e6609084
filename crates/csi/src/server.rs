//! The services on a Unix socket.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::controller::ControllerService;
use crate::error::{CsiError, CsiResult};
use crate::group_controller::GroupControllerService;
use crate::identity::IdentityService;
use crate::node::service::NodeService;
use crate::node::{self, Node};
use crate::proto::controller_server::ControllerServer;
use crate::proto::group_controller_server::GroupControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;
use crate::topology::Topology;
use crate::volumes::Volumes;

/// The most calls that work at a time: each waits on a thread of its own.
const CALLS_MAX: usize = 64;
/// How long calls that work may take after the end was requested.
const END_MAX: Duration = Duration::from_secs(20);
/// The longest name of a driver.
const NAME_LEN_MAX: usize = 63;

/// A driver, with one role or both.
pub struct Driver {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: &'static str,
    /// The socket, as `unix:///PATH` or `PATH`.
    pub endpoint: String,
    /// Where its volumes can be reached from.
    pub topology: Topology,
    /// The volumes, if it is a controller.
    pub controller: Option<Volumes>,
    /// The node, if it is one.
    pub node: Option<Node>,
    /// Called with a sentence once the driver can be asked.
    pub ready: fn(&str),
}

impl Driver {
    /// Serves until a signal requests the end.
    ///
    /// # Errors
    /// The socket cannot be had, or the settings make no sense.
    pub fn run(self) -> CsiResult<()> {
        check_name(&self.name)?;
        let path = socket_path(&self.endpoint)?;
        let failed = |error: io::Error| CsiError::io("serve", &path, &error);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(CALLS_MAX).build().map_err(failed)?;
        let served = runtime.block_on(self.serve(&path)).map_err(failed);
        runtime.shutdown_timeout(END_MAX);
        let _ = fs::remove_file(&path);
        served
    }

    async fn serve(self, path: &Path) -> io::Result<()> {
        let listener = listen(path)?;
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let volumes = self.controller.map(Arc::new);
        let identity = IdentityService {
            name: self.name.clone(),
            version: self.version,
            volumes: volumes.clone(),
            has_topology: !self.topology.0.is_empty(),
        };
        let topology = self.topology;
        let groups = volumes.clone().filter(|volumes| volumes.can_copy());
        let groups = groups.map(|volumes| GroupControllerServer::new(GroupControllerService { volumes }));
        let controller =
            volumes.map(|volumes| ControllerServer::new(ControllerService::new(volumes, topology.clone())));
        let node = self.node.map(Arc::new);
        if let Some(node) = &node {
            node::keep(Arc::downgrade(node));
        }
        let node = node.map(|node| NodeServer::new(NodeService::new(node, topology)));
        let end = async move {
            std::future::poll_fn(|context| {
                let ended =
                    [&mut terminate, &mut interrupt].map(|signal| signal.poll_recv(context).is_ready());
                if ended.contains(&true) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        };
        let serves = format!("{} serves CSI on {}", self.name, path.display());
        eprintln!("targe: {serves}");
        (self.ready)(&serves);
        Server::builder()
            .concurrency_limit_per_connection(CALLS_MAX)
            .add_service(IdentityServer::new(identity))
            .add_optional_service(controller)
            .add_optional_service(groups)
            .add_optional_service(node)
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), end)
            .await
            .map_err(io::Error::other)
    }
}

/// Listens on a socket; one that a dead process left is replaced. Only its owner can use it.
fn listen(path: &Path) -> io::Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(_) if StdStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens on it"));
        }
        Ok(metadata) if std::os::unix::fs::FileTypeExt::is_socket(&metadata.file_type()) => {
            fs::remove_file(path)?;
        }
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn socket_path(endpoint: &str) -> CsiResult<PathBuf> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    if path.is_empty() || path.contains("://") {
        return Err(CsiError::invalid(format!("endpoint \"{endpoint}\" is not unix:///PATH")));
    }
    Ok(PathBuf::from(path))
}

fn check_name(name: &str) -> CsiResult<()> {
    let ends_well = |text: &str| {
        text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.ends_with(|last: char| last.is_ascii_alphanumeric())
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
    if name.len() > NAME_LEN_MAX || !ends_well(name) || !name.bytes().all(is_plain) {
        return Err(CsiError::invalid(format!(
            "\"{name}\" is not the name of a driver, such as csi.example.org"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        for endpoint in ["unix:///run/csi.sock", "unix:/run/csi.sock", "/run/csi.sock"] {
            assert_eq!(socket_path(endpoint).unwrap(), Path::new("/run/csi.sock"));
        }
        for endpoint in ["", "unix://", "tcp://127.0.0.1:1"] {
            assert!(socket_path(endpoint).is_err(), "{endpoint}");
        }
    }

    #[test]
    fn names_are_domains() {
        for name in ["csi.targe.example", "a1", &"a".repeat(63)] {
            check_name(name).unwrap();
        }
        for name in ["", "1a", "a.", "a_b", "ä", &"a".repeat(64)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
