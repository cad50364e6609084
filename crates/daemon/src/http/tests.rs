//! Tests of the HTTP server, over TCP.

use crate::mailbox::channel;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::routing::{get, post};
use axum::{Extension, Router};
use tls::{ClientSettings, ServerSettings};
use tokio::sync::oneshot;

use super::access::{Access, Caller, Purpose};
use super::server::{CONNECTIONS_MAX, Routes, Server};
use crate::config::{Http, HttpTokens};
use crate::scratch::Scratch;

const TOKEN: &str = "0123456789abcdef";

/// How long a client waits for an answer that must come.
const PATIENCE: Duration = Duration::from_secs(60);

fn server(token: Option<&str>, hosts: &[&str]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, Access::new(&http(token, hosts)), None, routes()).unwrap()
}

fn http(tokens: Option<&str>, hosts: &[&str]) -> Http {
    Http {
        listen: "127.0.0.1:0".parse().unwrap(),
        tokens: tokens.map(|tokens| HttpTokens::parse(tokens.as_bytes()).unwrap()),
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        tls: None,
    }
}

fn routes() -> Routes {
    let router =
        Router::new().route("/", get(async || "here\n")).route("/part", get(async || "part\n")).route(
            "/change",
            post(async |Extension(caller): Extension<Caller>| caller.token.unwrap_or_default()),
        );
    let purpose = |path: &str| match path {
        "/part" => Purpose::Public,
        "/change" => Purpose::Change,
        _ => Purpose::Read,
    };
    Routes { router, purpose }
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends the head of a request, and returns the status of the response; 0 if there is none.
fn status(address: SocketAddr, head: &str) -> u16 {
    let mut socket = connect(address);
    // A server that has rejected the head may have closed the connection already.
    let _ = socket.write_all(head.replace('\n', "\r\n").as_bytes());
    let mut response = Vec::new();
    let _ = socket.read_to_end(&mut response);
    let text = String::from_utf8_lossy(&response).into_owned();
    text.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}

fn get_with(address: SocketAddr, fields: &str) -> u16 {
    status(address, &format!("GET / HTTP/1.1\n{fields}Connection: close\n\n"))
}

#[test]
fn a_request_must_name_this_host_once() {
    let server = server(None, &["san.example.net"]);
    for (fields, expected) in [
        ("Host: 127.0.0.1:9260\n", 200),
        ("Host: localhost\n", 200),
        ("Host: LOCALHOST:1\n", 200),
        ("Host: [::1]:9260\n", 200),
        ("Host: [::1]\n", 200),
        ("Host: San.Example.net:9260\n", 200),
        ("Host: san.example.net.\n", 200),
        ("Host: evil.example\n", 421),
        ("Host: localhost.evil.example\n", 421),
        ("Host: 127.0.0.1.evil.example\n", 421),
        ("Host: [::1].evil.example\n", 421),
        ("Host: localhost:evil\n", 421),
        ("Host: \n", 421),
        ("", 421),
        ("Host: localhost\nHost: evil.example\n", 421),
    ] {
        assert_eq!(get_with(server.address(), fields), expected, "{fields:?}");
    }
    let absolute = "GET http://evil.example/ HTTP/1.1\nHost: localhost\nConnection: close\n\n";
    assert_eq!(status(server.address(), absolute), 421);
}

#[test]
fn a_token_is_required_and_compared_as_a_whole() {
    let server = server(Some(TOKEN), &[]);
    let with = |field: &str| get_with(server.address(), &format!("Host: localhost\n{field}"));
    assert_eq!(with(&format!("Authorization: Bearer {TOKEN}\n")), 200);
    assert_eq!(with(&format!("authorization: bearer {TOKEN}\n")), 200);
    for wrong in [
        String::new(),
        "Authorization: Bearer \n".to_owned(),
        "Authorization: Bearer 0123456789abcde\n".to_owned(),
        format!("Authorization: Bearer {TOKEN}0\n"),
        format!("Authorization: Basic {TOKEN}\n"),
        format!("Authorization: Bearer {TOKEN}\nAuthorization: Bearer {TOKEN}\n"),
    ] {
        assert_eq!(with(&wrong), 401, "{wrong:?}");
    }
    server.change(&http(Some("another-token-of-mine"), &[]));
    assert_eq!(with(&format!("Authorization: Bearer {TOKEN}\n")), 401);
    assert_eq!(with("Authorization: Bearer another-token-of-mine\n"), 200);
}

const ADMIN: &str = "fedcba9876543210";

/// Posts a change with these fields, and returns the status.
fn post_with(address: SocketAddr, fields: &str) -> u16 {
    let json = "Content-Type: application/json\nContent-Length: 2\nConnection: close\n";
    status(address, &format!("POST /change HTTP/1.1\nHost: san.example:80\n{json}{fields}\n{{}}"))
}

fn roles() -> String {
    format!("prometheus read {TOKEN}\nanna admin {ADMIN}\n")
}

#[test]
fn a_change_needs_a_token_whose_role_allows_it() {
    let server = server(Some(&roles()), &["san.example"]);
    let address = server.address();
    assert_eq!(post_with(address, &format!("Authorization: Bearer {ADMIN}\n")), 200);
    assert_eq!(post_with(address, &format!("Authorization: Bearer {TOKEN}\n")), 403);
    assert_eq!(post_with(address, ""), 401);
    assert_eq!(get_with(address, &format!("Host: localhost\nAuthorization: Bearer {TOKEN}\n")), 200);
    let bare =
        |head: &str| status(address, &format!("{head} HTTP/1.1\nHost: localhost\nConnection: close\n\n"));
    assert_eq!(
        (bare("GET /"), bare("GET /part"), bare("GET /change"), bare("OPTIONS /change")),
        (401, 200, 405, 405)
    );
    // No role allows changes: neither without tokens, nor with a token for reading only.
    for tokens in [None, Some(TOKEN)] {
        let server = self::server(tokens, &["san.example"]);
        assert_eq!(
            post_with(server.address(), &format!("Authorization: Bearer {TOKEN}\n")),
            403,
            "{tokens:?}"
        );
    }
}

#[test]
fn a_page_of_another_site_cannot_change_anything() {
    let server = server(Some(&roles()), &["san.example"]);
    let with =
        |fields: &str| post_with(server.address(), &format!("Authorization: Bearer {ADMIN}\n{fields}"));
    for ours in ["Origin: http://san.example:80\n", "Sec-Fetch-Site: same-origin\n", "Sec-Fetch-Site: none\n"]
    {
        assert_eq!(with(ours), 200, "{ours}");
    }
    for foreign in [
        "Origin: null\n",
        "Origin: http://evil.example\n",
        "Origin: https://san.example:80\n",
        "Origin: http://san.example\n",
        "Origin: http://san.example:80\nOrigin: http://evil.example\n",
        "Sec-Fetch-Site: cross-site\n",
        "Sec-Fetch-Site: same-site\n",
    ] {
        assert_eq!(with(foreign), 403, "{foreign}");
    }
    // What a form can send without asking this server first.
    let form = format!(
        "POST /change HTTP/1.1\nHost: localhost\nAuthorization: Bearer {ADMIN}\nContent-Type: text/plain\n\
         Content-Length: 2\nConnection: close\n\n{{}}"
    );
    assert_eq!(status(server.address(), &form), 415);
}

#[test]
fn only_reading_is_served() {
    let server = server(None, &[]);
    let request = |line: &str, fields: &str| {
        status(server.address(), &format!("{line} HTTP/1.1\nHost: localhost\nConnection: close\n{fields}\n"))
    };
    assert_eq!(request("HEAD /", ""), 200);
    assert_eq!(request("GET /other", ""), 404);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW"] {
        assert_eq!(request(&format!("{method} /"), ""), 405, "{method}");
    }
    assert_eq!(request("GET /", "Content-Length: 5\n"), 413);
    assert_eq!(request("GET /", "Transfer-Encoding: chunked\n"), 413);
}

#[test]
fn a_head_is_bounded_and_nonsense_is_refused() {
    let server = server(None, &[]);
    let long = "a".repeat(64 << 10);
    assert_eq!(get_with(server.address(), &format!("Host: localhost\nX: {long}\n")), 431);
    assert_eq!(get_with(server.address(), &format!("Host: localhost\n{}", "X: y\n".repeat(100))), 431);
    assert!([400, 414, 431].contains(&status(server.address(), &format!("GET /{long} HTTP/1.1\n\n"))));
    assert_eq!(status(server.address(), "\u{1}\u{2}\n\n"), 400);
    assert_eq!(get_with(server.address(), "Host: localhost\n"), 200);
}

#[test]
fn a_client_that_asks_is_served_although_others_hold_every_connection() {
    let server = server(None, &[]);
    let idle: Vec<TcpStream> = (0..3 * CONNECTIONS_MAX)
        .map(|at| {
            let mut socket = connect(server.address());
            // Half of them begin a request that they never finish.
            let _ = socket.write_all(if at % 2 == 0 { b"GET / HT" } else { b"" });
            socket
        })
        .collect();
    assert_eq!(get_with(server.address(), "Host: localhost\n"), 200);
    // The first ones are closed, not those that came last.
    let mut byte = [0];
    assert_eq!(idle.first().map(|mut socket| socket.read(&mut byte).unwrap_or(0)), Some(0));
}

#[test]
fn a_request_that_arrived_is_served_although_many_connections_arrived_after_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (stalled, begun) = channel();
    let stall = async move || {
        // The only thread of the server does nothing else meanwhile, as on a busy host.
        let _ = stalled.send(());
        std::thread::sleep(Duration::from_secs(1));
        "late\n"
    };
    let Routes { router, purpose } = routes();
    let routes = Routes { router: router.route("/stall", get(stall)), purpose };
    let server = Server::start(listener, Access::new(&http(None, &[])), None, routes).unwrap();
    let mut slow = connect(server.address());
    slow.write_all(b"GET /stall HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    begun.recv().unwrap();
    let mut asking = connect(server.address());
    asking.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let _idle: Vec<TcpStream> = (0..CONNECTIONS_MAX + 8).map(|_| connect(server.address())).collect();
    let mut line = [0; 12];
    asking.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"HTTP/1.1 200");
}

#[test]
fn a_client_with_the_token_is_served_although_others_hold_every_connection_with_wrong_ones() {
    let server = server(Some(TOKEN), &[]);
    // Each answer waits, so that these are busy for longer than the test takes.
    let guess = "GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n".repeat(100);
    let mut guessing: Vec<TcpStream> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut socket = connect(server.address());
            socket.write_all(guess.as_bytes()).unwrap();
            socket
        })
        .collect();
    // Once the last one has an answer, the server has read a request of every connection.
    let mut line = [0; 12];
    guessing.last_mut().unwrap().read_exact(&mut line).unwrap();
    assert_eq!(&line, b"HTTP/1.1 401");
    let head = format!("Host: localhost\nAuthorization: Bearer {TOKEN}\n");
    assert_eq!(get_with(server.address(), &head), 200);
}

#[test]
fn a_client_with_the_token_keeps_its_connection_although_others_load_the_page() {
    let server = server(Some(TOKEN), &[]);
    let ask = |mut client: &TcpStream, path: &str, end: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
        client.write_all(head.as_bytes()).unwrap();
        let mut text = String::new();
        while !text.ends_with(end) {
            let mut bytes = [0; 1024];
            let len = client.read(&mut bytes).unwrap();
            assert!(len > 0, "{path}: the connection was closed after {text:?}");
            text.push_str(std::str::from_utf8(&bytes[..len]).unwrap());
        }
    };
    let client = connect(server.address());
    ask(&client, "/", "here\n");
    let load = || {
        let stranger = connect(server.address());
        ask(&stranger, "/part", "part\n");
        stranger
    };
    let _strangers: Vec<TcpStream> = (0..CONNECTIONS_MAX + 2).map(|_| load()).collect();
    ask(&client, "/", "here\n");
}

#[test]
fn the_thread_ends_with_the_server_although_clients_are_connected() {
    let server = server(None, &[]);
    let mut socket = connect(server.address());
    drop(server);
    let mut byte = [0];
    assert_eq!(socket.read(&mut byte).unwrap_or(0), 0);
}

/// The certificates of the tests of TLS, whose keys no other user may read.
struct Certificates(Scratch);

impl Certificates {
    fn new() -> Self {
        let (scratch, source) =
            (Scratch::new(), Path::new(env!("CARGO_MANIFEST_DIR")).join("../tls/src/testdata"));
        for name in ["authority.crt", "target.crt", "target.key", "initiator.crt", "initiator.key"] {
            let copy = scratch.path().join(name);
            std::fs::copy(source.join(name), &copy).unwrap();
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        Self(scratch)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn server(&self, client_authority: Option<&str>) -> ServerSettings {
        let authority = client_authority.map(|name| self.path(name));
        ServerSettings::read(&self.path("target.crt"), &self.path("target.key"), authority.as_deref())
            .unwrap()
    }

    fn connect(&self, address: SocketAddr, has_certificate: bool) -> UnixStream {
        let (certificate, key) = (self.path("initiator.crt"), self.path("initiator.key"));
        let identity = has_certificate.then_some((certificate.as_path(), key.as_path()));
        let settings = ClientSettings::read(Some(&self.path("authority.crt")), identity).unwrap();
        let (socket, _) = tls::connect(address, "127.0.0.1", &settings, PATIENCE, drop).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }
}

fn ask_tls(mut socket: &UnixStream, path: &str, fields: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
    // A connection that is closed takes no request.
    let _ = socket.write_all(head.as_bytes());
}

/// Returns all that comes until the text ends with `end`, or the connection is closed.
fn read_until(mut socket: &UnixStream, end: &str) -> String {
    let mut got = Vec::new();
    let mut byte = [0];
    while !got.ends_with(end.as_bytes()) && socket.read(&mut byte).is_ok_and(|len| len > 0) {
        got.extend(byte);
    }
    String::from_utf8(got).unwrap()
}

const BEARER: &str = "Authorization: Bearer 0123456789abcdef\r\n";

#[test]
fn connections_of_other_tls_settings_are_closed_when_certificates_replace_tokens() {
    let files = Certificates::new();
    let before = Http { tls: Some(files.server(None)), ..http(Some(TOKEN), &[]) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, Access::new(&before), before.tls.clone(), routes()).unwrap();
    let (asked, silent) = (files.connect(server.address(), false), files.connect(server.address(), false));
    ask_tls(&asked, "/", BEARER);
    assert!(read_until(&asked, "here\n").starts_with("HTTP/1.1 200"));
    // Equal settings, although they were read again, close nothing.
    server.change(&Http { tls: Some(files.server(None)), ..before });
    ask_tls(&asked, "/", "");
    assert!(read_until(&asked, "token: Authorization: Bearer TOKEN\n").starts_with("HTTP/1.1 401"));

    server.change(&Http { tls: Some(files.server(Some("authority.crt"))), ..http(None, &[]) });
    for socket in [&asked, &silent] {
        ask_tls(socket, "/", "");
        assert_eq!(read_until(socket, "here\n"), "");
    }
    let certified = files.connect(server.address(), true);
    ask_tls(&certified, "/", "");
    assert!(read_until(&certified, "here\n").starts_with("HTTP/1.1 200"));
}

#[test]
fn a_request_that_is_being_answered_gets_its_response_when_tls_settings_change() {
    let files = Certificates::new();
    let before = Http { tls: Some(files.server(None)), ..http(Some(TOKEN), &[]) };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (begun, has_begun) = channel();
    let (finish, finished) = oneshot::channel::<()>();
    let finished = Arc::new(Mutex::new(Some(finished)));
    let answer = async move || {
        begun.send(()).unwrap();
        let finished = finished.lock().unwrap().take();
        finished.unwrap().await.unwrap();
        "done\n"
    };
    let slow = Routes { router: routes().router.route("/slow", get(answer)), ..routes() };
    let server = Server::start(listener, Access::new(&before), before.tls.clone(), slow).unwrap();
    let socket = files.connect(server.address(), false);
    ask_tls(&socket, "/slow", BEARER);
    ask_tls(&socket, "/", "");
    has_begun.recv_timeout(PATIENCE).unwrap();
    server.change(&Http { tls: Some(files.server(Some("authority.crt"))), ..http(None, &[]) });
    finish.send(()).unwrap();
    let got = read_until(&socket, "here\n");
    assert!(got.starts_with("HTTP/1.1 200") && got.ends_with("done\n"), "{got}");
    assert!(got.contains("connection: close\r\n"), "{got}");
}
