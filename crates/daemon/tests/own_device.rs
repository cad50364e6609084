//! The example of a device server of one's own, used by two initiators over iSCSI.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

#[allow(dead_code, reason = "the test calls what `main` calls")]
#[path = "../examples/own_device.rs"]
mod own_device;

use std::net::TcpListener;

use initiator::{Cdb, Client, Command, Lun, Session, block_on};

fn command(bytes: &[u8]) -> Command {
    Command::new(Lun(0), Cdb::from_bytes(bytes).unwrap())
}

fn log_in(url: &str) -> Session {
    block_on(Client::new().unwrap().log_in(url)).unwrap()
}

#[test]
fn a_device_of_ones_own_serves_two_initiators() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/{}/0", listener.local_addr().unwrap(), own_device::NAME);
    std::thread::spawn(|| own_device::serve(listener).unwrap());
    let [one, other] = [log_in(&url), log_in(&url)];
    let run = |session: &Session, command| session.run(command).wait();
    let inquiry = run(&one, command(&[0x12, 0, 0, 0, 36, 0]).reading(36)).unwrap();
    assert_eq!((inquiry.bytes()[0], &inquiry.bytes()[16..26]), (0x03, &b"OWN DEVICE"[..]));
    // What one sends, the other receives.
    let hello = base::buffer::Bytes::copied_from(b"hello");
    run(&one, command(&[0x0a, 0, 0, 0, 5, 0]).writing(hello)).unwrap();
    let receive = || command(&[0x08, 0, 0, 0, 64, 0]).reading(64);
    assert_eq!(run(&other, receive()).unwrap().bytes(), b"hello");
    // Reservations are those of the unit: the device knows of none.
    run(&one, command(&[0x16, 0, 0, 0, 0, 0])).unwrap();
    assert!(run(&other, receive()).is_err());
    run(&one, command(&[0x17, 0, 0, 0, 0, 0])).unwrap();
    assert_eq!(run(&other, receive()).unwrap().bytes(), b"hello");
    // The device refuses what it does not know.
    assert!(run(&one, command(&[0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0])).is_err());
}
