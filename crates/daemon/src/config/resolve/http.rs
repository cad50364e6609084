//! The HTTP server.

use super::super::Environment;
use super::super::raw;
use super::super::resolved::Http;
use super::super::secret;
use super::super::source_span::{ConfigReport, SourceSpan};
use super::portals::{TlsFiles, parse_listen, tls};
use super::read_file;

/// The port that the HTTP server listens on if `listen` names none.
const PORT: u16 = 9260;

pub(super) fn resolve(
    written: raw::Http,
    environment: &Environment,
    report: &mut ConfigReport,
) -> Option<Http> {
    let tokens = written.token_file.as_ref();
    let tokens = tokens.and_then(|at| read_file(at, environment, report, secret::http_tokens));
    let files = TlsFiles {
        certificate: written.tls_certificate.as_ref(),
        key: written.tls_key.as_ref(),
        client_authority: written.tls_client_authority.as_ref(),
    };
    let tls = tls("http", files, environment, report);
    let mut hosts = Vec::new();
    for host in &written.hosts {
        let name = host.value.to_ascii_lowercase();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if name.is_empty() || !name.chars().all(is_name) {
            report.error(&host.span, format!("\"{}\" is not a host name", host.value));
        }
        hosts.push(name);
    }
    let at = written.listen?;
    let Some(listen) = parse_listen(&at.value, PORT) else {
        let message = format!(
            "\"{}\" is not an address to listen on (such as 127.0.0.1:{PORT} or [::1]:{PORT})",
            at.value
        );
        report.error(&at.span, message);
        return None;
    };
    if !listen.ip().is_loopback() {
        let knows_clients = written.tls_client_authority.is_some();
        // A certificate that cannot be used is an error of its own.
        let wants_tls = written.tls_certificate.is_some();
        check_exposed(&at.span, written.token_file.is_some(), knows_clients, wants_tls, report);
    }
    Some(Http { listen, tokens, hosts, tls })
}

/// Checks a server that other hosts reach.
fn check_exposed(
    at: &SourceSpan,
    has_token: bool,
    knows_clients: bool,
    wants_tls: bool,
    report: &mut ConfigReport,
) {
    if !has_token && !knows_clients {
        let message = "other hosts can connect to this address: set \"token_file\" or \"tls_client_authority\", or listen on \
                       127.0.0.1 or [::1]";
        report.error(at, message);
    } else if !wants_tls {
        report.warn(at, "the token crosses the network unencrypted, because there is no \"tls_certificate\"");
    }
}
