//! Tests of the HTTP server, over TCP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::routing::get;

use super::access::Access;
use super::server::{CONNECTIONS_MAX, Server};
use crate::config::{Http, HttpToken};

const TOKEN: &str = "0123456789abcdef";

/// How long a client waits for an answer that must come.
const PATIENCE: Duration = Duration::from_secs(60);

fn server(token: Option<&str>, hosts: &[&str]) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, Access::new(&http(token, hosts)), None, routes()).unwrap()
}

fn http(token: Option<&str>, hosts: &[&str]) -> Http {
    Http {
        listen: "127.0.0.1:0".parse().unwrap(),
        token: token.map(|token| HttpToken::new(token.as_bytes())),
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        tls: None,
    }
}

fn routes() -> Router {
    Router::new().route("/", get(async || "here\n"))
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
    server.change(Access::new(&http(Some("another token of mine"), &[])), None);
    assert_eq!(with(&format!("Authorization: Bearer {TOKEN}\n")), 401);
    assert_eq!(with("Authorization: Bearer another token of mine\n"), 200);
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
fn the_thread_ends_with_the_server_although_clients_are_connected() {
    let server = server(None, &[]);
    let mut socket = connect(server.address());
    drop(server);
    let mut byte = [0];
    assert_eq!(socket.read(&mut byte).unwrap_or(0), 0);
}
