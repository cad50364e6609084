//! The listening sockets of a daemon that starts: its own, those of the service manager, and those of a
//! process that it takes over from.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};

use base::state_machine::PortalId;

use super::{PortalListener, log_listening};
use crate::admin::server::BoundSocket;
use crate::config::{Config, Portal};
use crate::serve::activation::InheritedSockets;
use crate::serve::portals::PortalError;
use crate::serve::upgrade::Succession;
use crate::serve::{ServeError, http_api};

/// The listening sockets.
pub(super) struct Sockets {
    pub(super) inherited: InheritedSockets,
    pub(super) admin: BoundSocket,
    pub(super) http: Option<TcpListener>,
    /// Those of the portals that the process that serves gave, by the index in the configuration.
    portals: BTreeMap<usize, TcpListener>,
}

/// The portals that listen.
#[derive(Debug, Default)]
pub(super) struct Listening {
    pub(super) clear: Vec<PortalListener>,
    /// Those that accept TLS connections only.
    pub(super) tls: Vec<PortalListener>,
    /// The actual address of each.
    pub(super) addresses: Vec<SocketAddr>,
    /// Another descriptor of each socket.
    pub(super) portal_sockets: BTreeMap<PortalId, TcpListener>,
}

impl Sockets {
    /// Opens the sockets of a configuration, or takes them from the process that serves.
    pub(super) fn of(config: &Config, succession: Option<&mut Succession>) -> Result<Self, ServeError> {
        let Some(succession) = succession else {
            let inherited = InheritedSockets::from_process()?;
            inherited.check(&config.portals)?;
            let admin = BoundSocket::bind(&config.admin_socket, config.admin_readers)?;
            let http = http_api::listen(config.http.as_ref())?;
            return Ok(Self { inherited, admin, http, portals: BTreeMap::new() });
        };
        let inherited = InheritedSockets::handed_over(std::mem::take(&mut succession.activated))?;
        let admin = succession.admin.take();
        let admin = admin.ok_or_else(|| ServeError::Failed("the admin socket is missing".to_owned()))?;
        let configured: Vec<SocketAddr> = config.portals.iter().map(|portal| portal.listen).collect();
        Ok(Self {
            inherited,
            admin: BoundSocket::take_over(&config.admin_socket, admin, config.admin_readers),
            http: succession.http.take(),
            portals: succession.listeners(&configured),
        })
    }

    /// Opens the portals of a configuration, which have these numbers.
    pub(super) fn listen(&mut self, config: &Config, ids: Vec<PortalId>) -> Result<Listening, PortalError> {
        let mut listening = Listening::default();
        for (at, (portal, id)) in config.portals.iter().zip(ids).enumerate() {
            let (listener, address) = self.portal(at, portal)?;
            log_listening(address, portal);
            let failed = |source| PortalError::new(portal.listen, source);
            listening.portal_sockets.insert(id, listener.try_clone().map_err(failed)?);
            let list = if portal.tls.is_some() { &mut listening.tls } else { &mut listening.clear };
            list.push((listener, id));
            listening.addresses.push(address);
        }
        Ok(listening)
    }

    /// Returns the listener of the portal at this index of the configuration, and its actual address.
    fn portal(&mut self, at: usize, portal: &Portal) -> Result<(TcpListener, SocketAddr), PortalError> {
        let Some(listener) = self.portals.remove(&at) else { return self.inherited.open(portal.listen) };
        let address = listener.local_addr();
        let address = address.map_err(|source| PortalError::new(portal.listen, source))?;
        Ok((listener, address))
    }
}
