//! Listening addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::path::PathBuf;

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};
use tls::ServerSettings;

use super::super::Environment;
use super::super::names::check_label;
use super::super::raw;
use super::super::resolved::{Announced, Auth, Portal, Target};
use super::super::secret;
use super::super::source_span::{ConfigReport, Located, SourceSpan, did_you_mean};
use super::{at_line, read_file};

/// The TCP port that IANA assigned to iSCSI (RFC 7143 §15).
pub(crate) const PORT: u16 = 3260;

pub(super) struct Portals {
    pub(super) list: Vec<Portal>,
    names: BTreeMap<String, usize>,
}

pub(super) fn resolve(
    written: &[raw::Portal],
    others: bool,
    environment: &Environment,
    report: &mut ConfigReport,
) -> Portals {
    let mut portals = Portals { list: Vec::new(), names: BTreeMap::new() };
    let mut listening: Vec<(SocketAddr, SourceSpan)> = Vec::new();
    for portal in written {
        let listen = portal.listen.as_ref().and_then(|at| listen_address(at, &mut listening, report));
        let listen = listen.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT));
        if let Some(name) = &portal.name {
            if let Err(why) = check_label(&name.value) {
                report.error(&name.span, why);
            }
            if portals.names.insert(name.value.clone(), portals.list.len()).is_some() {
                report.error(&name.span, format!("portal \"{}\" is given twice", name.value));
            }
        }
        portals.list.push(Portal {
            listen,
            announce: portal.announce.as_ref().and_then(|at| {
                let announced = announced(&at.value, listen.port());
                if announced.is_none() {
                    let message = format!("\"{}\" is not HOST, HOST:PORT or [IPV6]:PORT", at.value);
                    report.error(&at.span, message);
                }
                announced
            }),
            name: portal.name.as_ref().map(|at| at.value.clone()),
            tag: portal.tag.as_ref().map_or(1, |at| at.value),
            tls: portal.tls(environment, report),
        });
    }
    // A configuration that serves HyperSCSI only opens no TCP port.
    if written.is_empty() && !others {
        portals.list.push(Portal {
            listen: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT),
            announce: None,
            name: None,
            tag: 1,
            tls: None,
        });
    }
    portals
}

impl raw::Portal {
    /// Reads the TLS settings.
    fn tls(&self, environment: &Environment, report: &mut ConfigReport) -> Option<ServerSettings> {
        let asks_names = self.tls_client_names.as_ref().filter(|at| at.value);
        if let (Some(at), None) = (asks_names, &self.tls_client_authority) {
            report.error(
                &at.span,
                "\"tls_client_names\" needs a \"tls_client_authority\": initiators have no certificate without one",
            );
        }
        let settings = tls("portal", self.tls_files(), environment, report)?;
        let names = &environment.certified_names;
        Some(if asks_names.is_some() { settings.with_client_names(names) } else { settings })
    }

    const fn tls_files(&self) -> TlsFiles<'_> {
        TlsFiles {
            certificate: self.tls_certificate.as_ref(),
            key: self.tls_key.as_ref(),
            client_authority: self.tls_client_authority.as_ref(),
        }
    }
}

impl Portals {
    /// Warns of a portal on all addresses of this host through which a target can be reached without a
    /// password and without a certificate.
    pub(super) fn warn_of_open_access(
        &self,
        written: &[raw::Portal],
        targets: &[Target],
        report: &mut ConfigReport,
    ) {
        let is_open = |target: &&Target| {
            let of_entries = target.acl.iter().flatten().any(|entry| entry.auth == Auth::None);
            if target.acl.is_some() { of_entries } else { target.auth == Auth::None }
        };
        for (at, (portal, from)) in self.list.iter().zip(written).enumerate() {
            let open = targets.iter().filter(|target| target.portals.contains(&at)).find(is_open);
            let is_exposed = portal.listen.ip().is_unspecified() && from.tls_client_authority.is_none();
            if let (true, Some(target), Some(span)) = (is_exposed, open, &from.listen) {
                report.warn(
                    &span.span,
                    format!(
                        "every host that can connect to this one can access target {} without a password ({} \
                         is every address, and an initiator name is not authentication)",
                        target.name,
                        portal.listen.ip()
                    ),
                );
            }
        }
    }

    /// Returns the portals of a target as indices into the list.
    pub(super) fn of_target(
        &self,
        chosen: Option<Vec<Located<String>>>,
        report: &mut ConfigReport,
    ) -> Vec<usize> {
        let Some(chosen) = chosen else { return (0..self.list.len()).collect() };
        let mut indexes = Vec::new();
        for name in chosen {
            match self.names.get(&name.value) {
                Some(index) => indexes.push(*index),
                None => {
                    let hint = did_you_mean(&name.value, self.names.keys().map(String::as_str));
                    report.error(&name.span, format!("no portal is named \"{}\"{hint}", name.value));
                }
            }
        }
        indexes.sort_unstable();
        indexes.dedup();
        indexes
    }
}

/// The files of a server's TLS settings, as written.
pub(super) struct TlsFiles<'r> {
    pub(super) certificate: Option<&'r Located<PathBuf>>,
    pub(super) key: Option<&'r Located<PathBuf>>,
    pub(super) client_authority: Option<&'r Located<PathBuf>>,
}

/// Reads the certificate and the key of a server; `noun` names it in messages.
pub(super) fn tls(
    noun: &str,
    files: TlsFiles<'_>,
    environment: &Environment,
    report: &mut ConfigReport,
) -> Option<ServerSettings> {
    let (certificate, key) = match (files.certificate, files.key) {
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(alone), None) => {
            report.error(&alone.span, format!("{noun} has a \"tls_certificate\" and no \"tls_key\""));
            return None;
        }
        (None, Some(alone)) => {
            report.error(&alone.span, format!("{noun} has a \"tls_key\" and no \"tls_certificate\""));
            return None;
        }
        (None, None) => {
            if let Some(alone) = files.client_authority {
                let message = format!("{noun} has a \"tls_client_authority\" and no \"tls_certificate\"");
                report.error(&alone.span, message);
            }
            return None;
        }
    };
    let path = |at: &Located<PathBuf>| environment.absolute(&at.value);
    let (its_key, authority) = (path(key), files.client_authority.map(path));
    let settings = read_file(certificate, environment, report, |path| {
        // Each file can be on a file system of its own: the one that does not answer is named.
        for file in [Some(path), Some(&*its_key), authority.as_deref()].into_iter().flatten() {
            secret::expect_answer(file)?;
        }
        let (of, its_key, authority) = (path.to_owned(), its_key.clone(), authority.clone());
        secret::unless_silent(path, move || {
            let settings = ServerSettings::read(&of, &its_key, authority.as_deref());
            settings.map_err(|why| why.to_string().into())
        })
    })?;
    if let Err(why) = environment.expect_open_to_service(&its_key) {
        report.error(&key.span, why);
    }
    Some(settings)
}

fn listen_address(
    at: &Located<String>,
    listening: &mut Vec<(SocketAddr, SourceSpan)>,
    report: &mut ConfigReport,
) -> Option<SocketAddr> {
    let Some(listen) = parse_listen(&at.value, PORT) else {
        if let Some((_, zone, _)) = split_zone(&at.value) {
            report.error(
                &at.span,
                format!("\"{}\" names the interface \"{zone}\", which is not there", at.value),
            );
            return None;
        }
        let hint = match unbracketed(&at.value) {
            Some((ip, port)) => format!("; write [{ip}]:{port} for a port, [{}] for none", at.value),
            None => " (such as 127.0.0.1:3260 or [::1]:3260)".to_owned(),
        };
        report.error(&at.span, format!("\"{}\" is not an address to listen on{hint}", at.value));
        return None;
    };
    if let SocketAddr::V6(address) = listen
        && address.ip().is_unicast_link_local()
        && address.scope_id() == 0
    {
        let message = format!(
            "\"{}\" is on every link: name the interface, as in [{}%eth0]:{}",
            at.value,
            address.ip(),
            address.port()
        );
        report.error(&at.span, message);
        return None;
    }
    let clash = listening.iter().find(|(other, _)| {
        let same_family = other.is_ipv4() == listen.is_ipv4();
        let same_address = other.ip() == listen.ip() && zone(other) == zone(&listen)
            || other.ip().is_unspecified()
            || listen.ip().is_unspecified();
        listen.port() != 0 && same_family && same_address && other.port() == listen.port()
    });
    match clash {
        Some((other, first)) if *other == listen => {
            report.error(&at.span, format!("portal {listen} is given twice{}", at_line(first)));
        }
        Some((other, _)) => {
            report.error(&at.span, format!("portal {listen} clashes with portal {other}"));
        }
        None => {}
    }
    listening.push((listen, at.span.clone()));
    Some(listen)
}

fn zone(address: &SocketAddr) -> u32 {
    if let SocketAddr::V6(address) = address { address.scope_id() } else { 0 }
}

/// Parses an IP address with or without a port. The zone of an IPv6 address (RFC 4007 §11) is an interface's
/// name or number.
pub(super) fn parse_listen(text: &str, port: u16) -> Option<SocketAddr> {
    if let Some((ip, zone, rest)) = split_zone(text) {
        let index = zone.parse().ok().or_else(|| interface_index(zone))?;
        let port = if rest.is_empty() { port } else { rest.strip_prefix(':')?.parse().ok()? };
        return Some(SocketAddr::V6(SocketAddrV6::new(ip, port, 0, index)));
    }
    if unbracketed(text).is_some() {
        return None;
    }
    let bare = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    text.parse().ok().or_else(|| bare().map(|ip| SocketAddr::new(ip, port)))
}

/// Splits an IPv6 address with a zone, with brackets or without: the address, its zone, and what follows the
/// brackets.
fn split_zone(text: &str) -> Option<(Ipv6Addr, &str, &str)> {
    let (ip, rest) = text.split_once('%')?;
    let (zone, rest) = match ip.strip_prefix('[') {
        Some(_) => rest.split_once(']')?,
        None => (rest, ""),
    };
    Some((ip.trim_start_matches('[').parse().ok()?, zone, rest))
}

fn interface_index(name: &str) -> Option<u32> {
    // Sysfs has the interfaces of the network namespace that it was mounted in.
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    name_to_index(&socket, name).ok()
}

/// Returns the address and the port of an IPv6 address without brackets whose last group may be meant as a
/// port.
fn unbracketed(text: &str) -> Option<(Ipv6Addr, u16)> {
    let (ip, port) = text.rsplit_once(':')?;
    let whole: Result<Ipv6Addr, _> = text.parse();
    whole.is_ok().then_some(())?;
    Some((ip.parse().ok()?, port.parse().ok()?))
}

/// Parses a host name or an IP address, with or without a port. An IPv6 address keeps its zone.
pub(super) fn announced(text: &str, port: u16) -> Option<Announced> {
    if let Some((ip, zone, rest)) = split_zone(text) {
        let is_zone = !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        let port = if rest.is_empty() { port } else { rest.strip_prefix(':')?.parse().ok()? };
        return is_zone.then(|| Announced { host: format!("[{ip}%{zone}]"), port });
    }
    if unbracketed(text).is_some() {
        return None;
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        let host = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        return Some(Announced { host, port: address.port() });
    }
    if let Ok(IpAddr::V6(ip)) = text.trim_start_matches('[').trim_end_matches(']').parse() {
        return Some(Announced { host: format!("[{ip}]"), port });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, digits)) => (host, digits.parse().ok()?),
        None => (text, port),
    };
    let label_ok = |label: &str| {
        !label.is_empty() && label.len() <= 63 && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    (host.len() <= 253 && host.split('.').all(label_ok)).then(|| Announced { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announced_addresses_keep_their_brackets_and_take_the_port_that_is_missing() {
        for (text, expected) in [
            ("san.example.net", Some("san.example.net:3261")),
            ("san.example.net:3260", Some("san.example.net:3260")),
            ("192.0.2.1", Some("192.0.2.1:3261")),
            ("192.0.2.1:99", Some("192.0.2.1:99")),
            ("2001:db8::1", Some("[2001:db8::1]:3261")),
            ("[2001:db8::1]", Some("[2001:db8::1]:3261")),
            ("[2001:db8::1]:99", Some("[2001:db8::1]:99")),
            ("[fe80::a%eth0]:99", Some("[fe80::a%eth0]:99")),
            ("fe80::a%2", Some("[fe80::a%2]:3261")),
            ("fe80::a%", None),
            ("[fe80::a%e/0]", None),
            ("san%eth0", None),
            ("2001:db8::1:3260", None),
            ("san example", None),
            ("san:port", None),
            ("san:99999", None),
            ("a..b", None),
            ("", None),
        ] {
            assert_eq!(announced(text, 3261).map(|a| a.to_string()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_portal_without_a_port_is_on_3260() {
        for (text, expected) in [
            ("127.0.0.1", Some("127.0.0.1:3260")),
            ("[fe80::a%lo]:99", Some("[fe80::a%1]:99")),
            ("[fe80::a%7]", Some("[fe80::a%7]:3260")),
            ("fe80::a%lo", Some("[fe80::a%1]:3260")),
            ("[fe80::a%no-such-interface]", None),
            ("[fe80::a%../lo]", None),
            ("[fe80::a%lo", None),
            ("[fe80::a%lo]99", None),
            ("::1", Some("[::1]:3260")),
            ("[::]", Some("[::]:3260")),
            ("[::]:1", Some("[::]:1")),
            ("::1:3260", None),
            ("2001:db8::1:3260", None),
            ("[2001:db8::1:3260]", Some("[2001:db8::1:3260]:3260")),
            ("2001:db8::1", Some("[2001:db8::1]:3260")),
            ("1:2:3:4:5:6:7:8", Some("[1:2:3:4:5:6:7:8]:3260")),
            ("localhost:3260", None),
            ("127.0.0.1:", None),
            ("127.0.0.1:70000", None),
        ] {
            assert_eq!(parse_listen(text, PORT).map(|a| a.to_string()).as_deref(), expected, "{text}");
        }
    }
}
