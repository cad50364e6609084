//! A client with a server that a test plays.

use super::*;
use crate::message::AttributeWriter;
use crate::registration::{PAYLOAD_LEN_MAX, Target};
use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use core::net::IpAddr;

const NOW: Instant = Instant(1_000_000_000);

fn registration(targets: core::ops::Range<usize>) -> Registration {
    let name = |index: usize| format!("iqn.2026-01.com.example:{index}");
    let portals = [7, 8].map(|last| Portal { address: IpAddr::from([192, 0, 2, last]), port: 3260 });
    Registration {
        entity: "entity".to_string(),
        portals: portals.to_vec(),
        targets: targets
            .map(|index| Target { name: name(index), alias: None, tags: vec![Some(1), None] })
            .collect(),
    }
}

fn events() -> Option<Portal> {
    Some(Portal { address: IpAddr::from([192, 0, 2, 7]), port: 4000 })
}

fn parse(mut bytes: Vec<u8>) -> Message {
    let message = Message::take(&mut bytes).unwrap().unwrap();
    assert!(bytes.is_empty());
    message
}

fn respond(request: &Message, status: Status, attributes: &[u8]) -> Message {
    parse(message::response(request, status, attributes))
}

fn wanted(targets: core::ops::Range<usize>) -> Option<Wanted> {
    Some((registration(targets), events()))
}

/// Runs a burst in which the server answers every request with the status that `decide` says. Returns the
/// functions of the requests.
fn burst(
    client: &mut Client,
    wanted: Option<Wanted>,
    decide: impl Fn(&Message) -> Status,
) -> Result<Vec<u16>, ClientError> {
    let mut seen = vec![];
    client.begin(wanted);
    while let Some(bytes) = client.next_request(NOW) {
        let request = parse(bytes);
        seen.push(request.function);
        client.handle_response(&respond(&request, decide(&request), &[]))?;
    }
    Ok(seen)
}

fn registered(targets: core::ops::Range<usize>) -> Client {
    let mut client = Client::new(NOW);
    burst(&mut client, wanted(targets.clone()), |_| Status::SUCCESS).unwrap();
    burst(&mut client, wanted(targets), |_| Status::SUCCESS).unwrap();
    assert_eq!(client.state(), &State::Registered);
    client
}

#[test]
fn registers_then_asks_for_notifications_then_checks() {
    let mut client = Client::new(NOW);
    assert_eq!((client.next_burst_at(), client.state()), (Some(NOW), &State::Starting));
    assert_eq!(burst(&mut client, wanted(0..2), |_| Status::SUCCESS), Ok(vec![function::REGISTER]));
    assert_eq!((client.next_burst_at(), client.state()), (Some(NOW), &State::Registered));
    let checks = vec![function::REGISTER_FOR_CHANGES; 2];
    assert_eq!(burst(&mut client, wanted(0..2), |_| Status::SUCCESS), Ok(checks.clone()));
    assert_eq!(client.next_burst_at(), Some(NOW.after(CHECK_MAX)));
    assert_eq!(
        burst(&mut client, wanted(0..2), |_| Status(17)),
        Ok(checks),
        "a server without notifications"
    );
    assert_eq!(client.state(), &State::Registered);
}

#[test]
fn the_first_message_has_every_object() {
    let mut client = Client::new(NOW);
    client.begin(wanted(0..1));
    let bytes = client.next_request(NOW).unwrap();
    assert_eq!(bytes[6] & 0x10, 0x10, "the flag that replaces");
    let request = parse(bytes);
    let tags: Vec<u32> = request.attributes().map(|attribute| attribute.unwrap().tag).collect();
    let key = [tag::NODE, tag::ENTITY, tag::DELIMITER];
    let entity = [tag::ENTITY, tag::ENTITY_PROTOCOL, tag::REGISTRATION_PERIOD];
    let reachable = [tag::PORTAL_ADDRESS, tag::PORTAL_PORT];
    let ports = [tag::INQUIRY_INTERVAL, tag::INQUIRY_PORT, tag::CHANGE_PORT];
    let group = [tag::GROUP_NODE, tag::GROUP_ADDRESS, tag::GROUP_PORT, tag::GROUP_TAG];
    let node = [tag::NODE, tag::NODE_TYPE];
    let expected = [&key[..], &entity, &reachable, &ports, &reachable, &node, &group, &group].concat();
    assert_eq!(tags, expected);
    let group_tags: Vec<_> =
        request.attributes().map(Result::unwrap).filter(|one| one.tag == tag::GROUP_TAG).collect();
    assert_eq!((group_tags[0].number(), group_tags[1].value), (Some(1), &[][..]));
}

#[test]
fn many_targets_take_several_messages_that_a_server_accepts() {
    let mut client = Client::new(NOW);
    client.begin(wanted(0..1000));
    let (mut names, mut count) = (vec![], 0);
    while let Some(bytes) = client.next_request(NOW) {
        assert!(bytes.len() <= PAYLOAD_LEN_MAX + 12, "{}", bytes.len());
        assert_eq!(bytes[6] & 0x10 != 0, count == 0, "only the first message replaces");
        let request = parse(bytes);
        let attributes: Vec<_> = request.attributes().map(Result::unwrap).collect();
        assert_eq!(attributes[0].text(), Some("iqn.2026-01.com.example:0"), "the source");
        assert_eq!(attributes[1].text(), Some("entity"), "the key");
        let nodes = attributes.iter().skip(1).filter(|one| one.tag == tag::NODE);
        names.extend(nodes.map(|node| node.text().unwrap().to_string()));
        client.handle_response(&respond(&request, Status::SUCCESS, &[])).unwrap();
        count += 1;
    }
    let expected: Vec<_> = registration(0..1000).targets.into_iter().map(|target| target.name).collect();
    assert_eq!(names, expected);
}

#[test]
fn a_target_that_the_server_forgot_is_registered_again() {
    let mut client = registered(0..3);
    let forgotten = |request: &Message| {
        let name = request.attributes().next().unwrap().unwrap();
        if name.text() == Some("iqn.2026-01.com.example:1") {
            Status::SOURCE_UNKNOWN
        } else {
            Status::SUCCESS
        }
    };
    burst(&mut client, wanted(0..3), forgotten).unwrap();
    // A server that forgets every registration at once does not keep the client busy.
    assert_eq!(client.next_burst_at(), Some(NOW.after(CHECK_MIN)));
    assert_eq!(burst(&mut client, wanted(0..3), |_| Status::SUCCESS), Ok(vec![function::REGISTER]));
    assert_eq!(client.registrations(), 2);
}

#[test]
fn a_target_that_the_server_does_not_notify_any_more_is_registered_again() {
    let mut client = Client::new(NOW);
    let refuses = |known: usize| {
        move |request: &Message| {
            let name = request.attributes().next().unwrap().unwrap().text().unwrap().to_string();
            let at: usize = name.rsplit(':').next().unwrap().parse().unwrap();
            if request.function == function::REGISTER || at < known { Status::SUCCESS } else { Status(17) }
        }
    };
    burst(&mut client, wanted(0..3), refuses(2)).unwrap();
    for _ in 0..3 {
        let checks = vec![function::REGISTER_FOR_CHANGES; 3];
        assert_eq!(burst(&mut client, wanted(0..3), refuses(2)), Ok(checks), "as it always was");
    }
    burst(&mut client, wanted(0..3), refuses(1)).unwrap();
    assert_eq!(client.next_burst_at(), Some(NOW.after(CHECK_MIN)));
    let registers = Ok(vec![function::REGISTER]);
    assert_eq!(burst(&mut client, wanted(0..3), refuses(1)), registers);
    burst(&mut client, wanted(0..3), refuses(1)).unwrap();
    assert_eq!(client.next_burst_at(), Some(NOW.after(CHECK_MAX)), "the new registration counts");
}

#[test]
fn a_change_is_registered_by_a_node_that_the_server_knows() {
    let mut client = registered(0..2);
    client.hurry(NOW);
    assert_eq!(client.next_burst_at(), Some(NOW));
    let checks = vec![function::REGISTER_FOR_CHANGES; 2];
    assert_eq!(burst(&mut client, wanted(0..2), |_| Status::SUCCESS), Ok(checks), "nothing changed");
    let elsewhere = Some((registration(0..2), None));
    assert_eq!(burst(&mut client, elsewhere, |_| Status::SUCCESS), Ok(vec![function::REGISTER]));
    // The former source stays, though it is not the first one any more.
    let mut more = registration(0..3);
    more.targets.reverse();
    let registers = Ok(vec![function::REGISTER]);
    assert_eq!(burst(&mut client, Some((more, events())), |_| Status::SUCCESS), registers);
    // The former source, number 2, goes.
    let expected = vec![function::DEREGISTER, function::REGISTER];
    assert_eq!(burst(&mut client, wanted(0..2), |_| Status::SUCCESS), Ok(expected.clone()));
    let mut renamed = registration(0..2);
    renamed.entity = "other".to_string();
    assert_eq!(burst(&mut client, Some((renamed, events())), |_| Status::SUCCESS), Ok(expected));
}

#[test]
fn a_client_that_leaves_deregisters_once() {
    let mut client = registered(0..2);
    assert_eq!(burst(&mut client, None, |_| Status::SUCCESS), Ok(vec![function::DEREGISTER]));
    assert_eq!((client.next_burst_at(), client.registered()), (None, None));
    let mut client = registered(0..2);
    let refused = burst(&mut client, None, |_| Status(8)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the server refused to remove the registration: Source Unauthorized (status 8)"
    );
    // Nothing was registered yet.
    let mut client = Client::new(NOW);
    assert_eq!(burst(&mut client, None, |_| Status::SUCCESS), Ok(vec![]));
    assert_eq!(client.next_burst_at(), None);
}

#[test]
fn failures_are_tried_again_ever_later() {
    let mut client = registered(0..1);
    let mut waits = vec![];
    for _ in 0..9 {
        client.fail(NOW, ClientError::Connection("refused".to_string()));
        waits.push(client.next_burst_at().unwrap().since(NOW).as_secs());
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert!(matches!(client.state(), State::Failed(_)));
    // Everything is registered again, since the server may have lost it.
    assert_eq!(burst(&mut client, wanted(0..1), |_| Status::SUCCESS), Ok(vec![function::REGISTER]));
    client.fail(NOW, ClientError::Connection("refused".to_string()));
    assert_eq!(client.next_burst_at(), Some(NOW.after(RETRY_MIN)), "the failures begin anew");
}

#[test]
fn the_period_of_the_server_says_when_to_check() {
    for (period, seconds) in [(0, 60), (1, 5), (30, 15), (120, 60), (u32::MAX, 60)] {
        let mut client = Client::new(NOW);
        client.begin(wanted(0..1));
        let request = parse(client.next_request(NOW).unwrap());
        let mut attributes = AttributeWriter::default();
        attributes.text(tag::ENTITY, "ENTITY");
        attributes.number(tag::REGISTRATION_PERIOD, period);
        client.handle_response(&respond(&request, Status::SUCCESS, attributes.bytes())).unwrap();
        assert_eq!(client.next_request(NOW), None);
        burst(&mut client, wanted(0..1), |_| Status::SUCCESS).unwrap();
        assert_eq!(client.next_burst_at(), Some(NOW.after(Duration::from_secs(seconds))), "period {period}");
    }
}

/// CVE-2010-2221.
#[test]
fn a_server_that_lies_is_refused() {
    type Lie = fn(&Message) -> Message;
    let answers: [(&str, Lie); 5] = [
        ("answered function", |request| {
            let mut other = request.clone();
            other.transaction ^= 1;
            respond(&other, Status::SUCCESS, &[])
        }),
        ("answered function", |request| {
            let other = Message { function: function::DEREGISTER, ..request.clone() };
            respond(&other, Status::SUCCESS, &[])
        }),
        ("refused the registration: Source Unauthorized (status 8)", |request| {
            respond(request, Status(8), &[])
        }),
        ("registered the entity \"other\" instead", |request| {
            let mut attributes = AttributeWriter::default();
            attributes.text(tag::ENTITY, "other");
            respond(request, Status::SUCCESS, attributes.bytes())
        }),
        ("nonsense: an attribute has a wrong length", |request| {
            let mut response = respond(request, Status::SUCCESS, &[]);
            response.payload.extend([0, 0, 0, 1]);
            response
        }),
    ];
    for (expected, answer) in answers {
        let mut client = Client::new(NOW);
        client.begin(wanted(0..1));
        let request = parse(client.next_request(NOW).unwrap());
        let error = client.handle_response(&answer(&request)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let mut client = Client::new(NOW);
    let unasked = Message { function: function::REGISTER, transaction: 0, payload: vec![0; 4] };
    assert!(client.handle_response(&unasked).is_err());
}

/// CVE-2010-0743: notifications that cost more than they say.
#[test]
fn notifications_cause_a_check_but_not_a_flood() {
    let mut client = registered(0..1);
    client.handle_change();
    client.handle_change();
    assert_eq!(client.next_burst_at(), Some(NOW.after(CHECK_MIN)));
}
