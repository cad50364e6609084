//! The answers to what a server sends on its own, to the address that a registration named: Entity Status
//! Inquiries (RFC 4171 §5.6.5.13) and State Change Notifications (§5.6.5.8).

use alloc::vec::Vec;

use crate::message::{AttributeWriter, Message, MessageError, Status, function, tag};
use crate::registration::{Portal, Registration};

/// The answer to a request of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The bytes to send.
    pub bytes: Vec<u8>,
    /// Whether what is registered may have changed.
    pub is_change: bool,
}

/// Answers a request of a server.
///
/// # Errors
/// [`MessageError`]: the connection is to be closed.
pub fn answer(request: &Message, registered: Option<&Registration>) -> Result<Answer, MessageError> {
    match request.function {
        function::INQUIRY => inquiry(request, registered),
        function::CHANGE => {
            // A response has the names that were reported (§5.7.5.8), which the server needs no more.
            for attribute in request.attributes() {
                attribute?;
            }
            Ok(Answer { bytes: crate::message::response(request, Status::SUCCESS, &[]), is_change: true })
        }
        _ => Ok(Answer {
            bytes: crate::message::response(request, Status::NOT_SUPPORTED, &[]),
            is_change: false,
        }),
    }
}

/// Answers an inquiry. Its attributes come back (§5.7.5.13); the status says whether they are those of our
/// entity and a portal of it.
fn inquiry(request: &Message, registered: Option<&Registration>) -> Result<Answer, MessageError> {
    let (mut entity, mut address, mut port) = (None, None, None);
    let mut echo = AttributeWriter::default();
    for attribute in request.attributes() {
        let attribute = attribute?;
        match attribute.tag {
            tag::ENTITY => entity = attribute.text(),
            tag::PORTAL_ADDRESS => address = attribute.address(),
            tag::PORTAL_PORT => port = attribute.number().and_then(|port| u16::try_from(port).ok()),
            tag::TIMESTAMP => {}
            // A response has no others.
            _ => continue,
        }
        echo.raw(attribute.tag, attribute.value);
    }
    let asked = address.zip(port).map(|(address, port)| Portal { address, port });
    let known = registered.zip(entity).zip(asked).is_some_and(|((ours, entity), asked)| {
        ours.entity.eq_ignore_ascii_case(entity) && ours.portals.contains(&asked)
    });
    let status = if known { Status::SUCCESS } else { Status::NO_SUCH_ENTRY };
    Ok(Answer { bytes: crate::message::response(request, status, echo.bytes()), is_change: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::Target;
    use alloc::string::ToString;
    use alloc::vec;
    use core::net::IpAddr;

    fn registered() -> Registration {
        Registration {
            entity: "iqn.2026-01.com.example:one".to_string(),
            portals: vec![Portal { address: IpAddr::from([192, 0, 2, 7]), port: 3260 }],
            targets: vec![Target {
                name: "iqn.2026-01.com.example:one".to_string(),
                alias: None,
                tags: vec![Some(1)],
            }],
        }
    }

    fn asked(entity: &str, last: u8, port: u32) -> Message {
        let mut attributes = AttributeWriter::default();
        attributes.raw(tag::TIMESTAMP, &[0, 0, 0, 0, 1, 2, 3, 4]);
        attributes.text(tag::ENTITY, entity);
        attributes.address(tag::PORTAL_ADDRESS, IpAddr::from([192, 0, 2, last]));
        attributes.number(tag::PORTAL_PORT, port);
        Message { function: function::INQUIRY, transaction: 9, payload: attributes.bytes().to_vec() }
    }

    fn status_of(request: &Message) -> (Status, Vec<u8>) {
        let registered = registered();
        let mut bytes = answer(request, Some(&registered)).unwrap().bytes;
        let response = Message::take(&mut bytes).unwrap().unwrap();
        assert_eq!((response.function, response.transaction), (function::INQUIRY | function::RESPONSE, 9));
        let (status, _) = response.status().unwrap();
        (status, response.payload[4..].to_vec())
    }

    #[test]
    fn an_inquiry_for_our_portal_comes_back() {
        let request = asked("IQN.2026-01.com.example:one", 7, 3260);
        assert_eq!(status_of(&request), (Status::SUCCESS, request.payload.clone()));
    }

    #[test]
    fn an_inquiry_for_something_else_has_no_such_entry() {
        for request in [
            asked("other", 7, 3260),
            asked("iqn.2026-01.com.example:one", 8, 3260),
            asked("iqn.2026-01.com.example:one", 7, 3261),
        ] {
            assert_eq!(status_of(&request).0, Status::NO_SUCH_ENTRY);
        }
    }

    #[test]
    fn a_notification_is_answered_and_told() {
        let request = Message { function: function::CHANGE, transaction: 1, payload: vec![] };
        assert!(answer(&request, None).unwrap().is_change);
        let broken = Message { function: function::CHANGE, transaction: 1, payload: vec![1, 2, 3, 4] };
        assert_eq!(answer(&broken, None), Err(MessageError::Attribute));
    }

    #[test]
    fn another_request_is_not_supported() {
        let request = Message { function: 0x0009, transaction: 1, payload: vec![] };
        let mut bytes = answer(&request, None).unwrap().bytes;
        let response = Message::take(&mut bytes).unwrap().unwrap();
        assert_eq!(response.status().unwrap().0, Status::NOT_SUPPORTED);
    }
}
