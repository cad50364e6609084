//! What a name server can send: responses to a client in every state, inquiries, notifications.
//!
//! Each operation is a response that fits the last request, raw bytes as a message of the server, a failure,
//! or a change of what is to be registered.
#![no_main]

use std::net::IpAddr;

use base::time::Instant;
use ground::Operations;
use isns::client::{Client, ClientError};
use isns::inquiry;
use isns::message::Message;
use isns::registration::{PAYLOAD_LEN_MAX, Portal, Registration, Target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut now = Instant::ORIGIN;
    let mut client = Client::new(now);
    let mut asked: Option<Message> = None;
    for (which, bytes) in Operations::of(input) {
        now = Instant(now.0 + (u64::from(which) << 28));
        match which >> 5 {
            0 => {
                let events = (which & 1 == 0).then_some(portal(7));
                client.begin((which & 2 == 0).then(|| (registration(which >> 2 & 3), events)));
                asked = next(&mut client, now);
            }
            1..=3 => {
                let Some(request) = asked.take() else { continue };
                let payload = bytes[..bytes.len() / 4 * 4].to_vec();
                let function = request.function | if which & 31 == 31 { 0 } else { 0x8000 };
                let response = Message { function, transaction: request.transaction, payload };
                match client.handle_response(&response) {
                    Ok(()) => asked = next(&mut client, now),
                    Err(why) => client.fail(now, why),
                }
            }
            4 => client.fail(now, ClientError::Connection("cut".to_owned())),
            5 => client.hurry(now),
            6 => client.handle_change(),
            _ => {
                let mut received = bytes.to_vec();
                while let Ok(Some(request)) = Message::take(&mut received) {
                    let Ok(answer) = inquiry::answer(&request, client.registered()) else { break };
                    assert!(answer.bytes.len() <= request.payload.len() + 16);
                }
            }
        }
        if client.registered().is_some() {
            assert!(client.registrations() > 0 || client.next_burst_at().is_some());
        }
    }
});

/// Takes the next request, as a server receives it.
fn next(client: &mut Client, now: Instant) -> Option<Message> {
    let mut bytes = client.next_request(now)?;
    assert!(bytes.len() <= PAYLOAD_LEN_MAX + 12);
    let message = Message::take(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty() && message.attributes().all(|attribute| attribute.is_ok()));
    Some(message)
}

fn portal(last: u8) -> Portal {
    Portal { address: IpAddr::from([192, 0, 2, last]), port: 3260 }
}

fn registration(which: u8) -> Registration {
    let name = |at: u8| format!("iqn.2026-01.com.example:{at}");
    Registration {
        entity: name(which >> 1),
        portals: vec![portal(7), portal(8)],
        targets: (which..4).map(|at| Target { name: name(at), alias: None, tags: vec![Some(1), None] }).collect(),
    }
}
