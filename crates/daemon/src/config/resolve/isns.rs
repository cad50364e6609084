//! Resolves the name servers.

use super::super::raw;
use super::super::resolved::{Announced, Isns, Portal};
use super::super::source_span::ConfigReport;
use super::portals::announced;

/// The most name servers.
const SERVERS_MAX: usize = 8;

pub(super) fn resolve(written: raw::Isns, portals: &[Portal], report: &mut ConfigReport) -> Isns {
    let mut servers: Vec<Announced> = Vec::new();
    for at in &written.servers {
        match announced(&at.value, isns::PORT) {
            None => {
                let message = format!("\"{}\" is not HOST, HOST:PORT or [IPV6]:PORT", at.value);
                report.error(&at.span, message);
            }
            Some(server) if servers.contains(&server) => {
                report.error(&at.span, format!("name server \"{}\" is given twice", at.value));
            }
            Some(server) => servers.push(server),
        }
    }
    if servers.len() > SERVERS_MAX {
        report.error(&written.span, format!("isns has more than {SERVERS_MAX} servers"));
    }
    if portals.iter().all(|portal| portal.tls.is_some()) {
        let message = "isns has nothing to register: there is no portal without TLS".to_owned();
        report.error(&written.span, message);
    }
    Isns {
        servers,
        entity: written.entity.map(|at| at.value),
        event_port: written.event_port.map(|at| at.value),
    }
}
