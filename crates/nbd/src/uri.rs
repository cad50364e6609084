//! Addresses of exports, as the NBD project's
//! [uri.md](https://github.com/NetworkBlockDevice/nbd/blob/master/doc/uri.md) specifies them:
//! `nbd://HOST[:PORT]/EXPORT` and `nbd+unix:///EXPORT?socket=PATH`.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// The port that IANA registered.
const PORT: u16 = 10_809;

/// The longest name of an export (doc/proto.md: 4096 bytes).
const NAME_LEN_MAX: usize = 4096;

/// The address of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// Where the server listens.
    pub server: ServerAddress,
    /// The name of the export. The empty name selects the default export of the server.
    pub export: String,
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A host name or an IP address, without brackets, and a TCP port.
    Tcp(String, u16),
    /// The absolute path of a Unix socket.
    Unix(String),
}

impl NbdUri {
    /// Parses an address.
    ///
    /// # Errors
    /// A fragment that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err("an NBD URI begins with nbd:// or nbd+unix://".to_owned());
        };
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        if rest.contains('#') || query.is_some_and(|query| query.contains('#')) {
            return Err("an NBD URI has no fragment (#)".to_owned());
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decoded(path)?;
        if export.len() > NAME_LEN_MAX {
            return Err(format!("the name of an export has at most {NAME_LEN_MAX} bytes"));
        }
        let server = match scheme {
            "nbd" => tcp(authority, query)?,
            "nbd+unix" => unix(authority, query)?,
            "nbds" | "nbds+unix" => {
                return Err(
                    "TLS to an NBD server is not supported; use a Unix socket, or a tunnel that encrypts"
                        .to_owned(),
                );
            }
            _ => return Err(format!("\"{scheme}\" is no scheme of NBD; use nbd:// or nbd+unix://")),
        };
        Ok(Self { server, export })
    }
}

fn tcp(authority: &str, query: Option<&str>) -> Result<ServerAddress, String> {
    if query.is_some() {
        return Err("nbd:// takes no parameters".to_owned());
    }
    if authority.contains('@') {
        return Err("NBD has no users".to_owned());
    }
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("the IPv6 address lacks its closing ]")?;
            (
                host,
                if port.is_empty() { None } else { Some(port.strip_prefix(':').ok_or("no port after ]")?) },
            )
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err("nbd:// needs a host".to_owned());
    }
    let port = match port.filter(|port| !port.is_empty()) {
        None => PORT,
        Some(port) => port.parse().map_err(|_| format!("\"{port}\" is no port"))?,
    };
    // RFC 6874 writes the percent sign of a zone as %25.
    let host = match host.split_once("%25") {
        Some((address, zone)) if address.contains(':') && !zone.is_empty() => format!("{address}%{zone}"),
        _ => host.to_owned(),
    };
    Ok(ServerAddress::Tcp(host, port))
}

fn unix(authority: &str, query: Option<&str>) -> Result<ServerAddress, String> {
    if !authority.is_empty() {
        return Err("nbd+unix:// takes no host: nbd+unix:///EXPORT?socket=/PATH".to_owned());
    }
    let path = query.and_then(|query| query.strip_prefix("socket=")).filter(|path| !path.contains('&'));
    let Some(path) = path else {
        return Err("nbd+unix:// needs the parameter ?socket=/PATH, and no other".to_owned());
    };
    let path = decoded(path)?;
    if !path.starts_with('/') {
        return Err("the path of the socket must be absolute".to_owned());
    }
    Ok(ServerAddress::Unix(path))
}

/// Decodes `%xx`. Every byte but NUL may be encoded, as long as the whole is UTF-8.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or("% must be followed by two hexadecimal digits")?);
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    if bytes.contains(&0) {
        return Err("a NUL byte cannot be part of a name".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "the name is not UTF-8".to_owned())
}

/// Formats the address in one way, whatever way it was written.
impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            ServerAddress::Tcp(host, port) => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "nbd://{open}{host}{close}")?;
                if *port != PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/{}", Encoded(&self.export))
            }
            ServerAddress::Unix(path) => {
                write!(f, "nbd+unix:///{}?socket={}", Encoded(&self.export), Encoded(path))
            }
        }
    }
}

/// A name with the characters encoded that would end it or mean something else.
struct Encoded<'a>(&'a str);

impl fmt::Display for Encoded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() || matches!(c, '%' | '?' | '#' | '&' | ' ' | ',') {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    write!(f, "%{byte:02x}")?;
                }
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_understood_and_written_in_one_way() {
        let tcp = |host: &str, port| ServerAddress::Tcp(host.into(), port);
        let unix = |path: &str| ServerAddress::Unix(path.into());
        let table = [
            ("nbd://host", tcp("host", 10_809), "", "nbd://host/"),
            ("nbd://[fe80::a%eth0]/", tcp("fe80::a%eth0", 10_809), "", "nbd://[fe80::a%eth0]/"),
            ("nbd://[fe80::a%25eth0]:1/", tcp("fe80::a%eth0", 1), "", "nbd://[fe80::a%eth0]:1/"),
            ("nbd://host:10809/", tcp("host", 10_809), "", "nbd://host/"),
            ("nbd://10.0.0.1:99/a/b", tcp("10.0.0.1", 99), "a/b", "nbd://10.0.0.1:99/a/b"),
            ("nbd://[::1]/x%20y", tcp("::1", 10_809), "x y", "nbd://[::1]/x%20y"),
            ("nbd://[::1]:99/%c3%a4", tcp("::1", 99), "ä", "nbd://[::1]:99/ä"),
            ("nbd+unix://?socket=/run/x", unix("/run/x"), "", "nbd+unix:///?socket=/run/x"),
            ("nbd+unix:///a?socket=/tmp/b%3fc", unix("/tmp/b?c"), "a", "nbd+unix:///a?socket=/tmp/b%3fc"),
        ];
        for (text, server, export, shown) in table {
            let uri = NbdUri::parse(text).unwrap();
            assert_eq!(uri, NbdUri { server, export: export.into() }, "{text}");
            assert_eq!(format!("{uri}"), shown);
            assert_eq!(NbdUri::parse(shown), Ok(uri));
        }
    }

    #[test]
    fn mistakes_are_named() {
        let long = format!("nbd://host/{}", "x".repeat(NAME_LEN_MAX + 1));
        let table = [
            ("host", "begins with nbd://"),
            ("http://host/", "\"http\" is no scheme"),
            ("nbds://host/", "TLS"),
            ("nbd:///x", "needs a host"),
            ("nbd://a@host/", "no users"),
            ("nbd://host:70000/", "is no port"),
            ("nbd://[::1/", "closing ]"),
            ("nbd://host/?socket=/x", "takes no parameters"),
            ("nbd+unix:///x", "?socket=/PATH"),
            ("nbd+unix:///x?socket=/a&tls=1", "and no other"),
            ("nbd+unix:///x?socket=a", "absolute"),
            ("nbd+unix://host/x?socket=/a", "takes no host"),
            ("nbd://host/%zz", "two hexadecimal digits"),
            ("nbd://host/%4", "two hexadecimal digits"),
            ("nbd://host/%00", "NUL"),
            ("nbd://host/%ff", "UTF-8"),
            ("nbd://host/x#y", "fragment"),
            (&long, "at most 4096"),
        ];
        for (text, why) in table {
            let said = NbdUri::parse(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
