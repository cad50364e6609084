//! What a target registers: one Network Entity with its Portals, Storage Nodes and Portal Groups (RFC 4171
//! §3.1), and the messages that say so.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::IpAddr;

use crate::message::{AttributeWriter, function, tag};

/// The most bytes of payload of a request. The name server of Linux takes messages of up to 8192 bytes.
pub const PAYLOAD_LEN_MAX: usize = 7 << 10;

/// The Entity Protocol iSCSI, §6.2.2.
const ISCSI: u32 = 2;

/// The iSCSI Node Type of a target, §6.4.2.
const TARGET: u32 = 1;

/// The notifications that a target asks for, §6.4.4: the server removed it, or another target that it may
/// see.
const CHANGES: u32 = 0x50;

/// A Network Entity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The Entity Identifier, which no other entity of the server has: up to 255 bytes.
    pub entity: String,
    /// The addresses; no two are the same.
    pub portals: Vec<Portal>,
    /// The targets; at least one. The first one is the source of every message about all of them.
    pub targets: Vec<Target>,
}

/// A Portal: an address and TCP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Portal {
    /// The address.
    pub address: IpAddr,
    /// The TCP port.
    pub port: u16,
}

/// A Storage Node that is a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its iSCSI name.
    pub name: String,
    /// Its alias.
    pub alias: Option<String>,
    /// For each Portal of the entity its Portal Group Tag, or `None` if the target cannot be reached there.
    pub tags: Vec<Option<u16>>,
}

/// A request that is not sent yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) function: u16,
    pub(crate) replace: bool,
    pub(crate) payload: Vec<u8>,
}

impl Registration {
    /// The name that identifies the sender of a message, which must be that of a registered Storage Node
    /// (§5.6.1).
    pub(crate) fn source(&self) -> &str {
        self.targets.first().map_or("", |target| &target.name)
    }

    /// Makes the requests that replace whatever the server has under this Entity Identifier (§5.6.5.1).
    /// `events` is where the server may send inquiries and notifications.
    pub(crate) fn register(
        &self,
        period_s: u32,
        inquiry_interval_s: u32,
        events: Option<Portal>,
    ) -> Vec<Request> {
        let mut key = AttributeWriter::default();
        key.text(tag::NODE, self.source());
        key.text(tag::ENTITY, &self.entity);
        key.empty(tag::DELIMITER);
        let mut first = key.clone();
        first.text(tag::ENTITY, &self.entity);
        first.number(tag::ENTITY_PROTOCOL, ISCSI);
        first.number(tag::REGISTRATION_PERIOD, period_s);
        let mut payloads = Vec::new();
        let mut payload = first;
        for object in self.objects(inquiry_interval_s, events) {
            if payload.bytes().len() + object.bytes().len() > PAYLOAD_LEN_MAX {
                payloads.push(core::mem::replace(&mut payload, key.clone()));
            }
            payload.append(object.bytes());
        }
        payloads.push(payload);
        let request = |(index, payload): (usize, AttributeWriter)| Request {
            function: function::REGISTER,
            // A further message adds to the entity that the first one made.
            replace: index == 0,
            payload: payload.bytes().to_vec(),
        };
        payloads.into_iter().enumerate().map(request).collect()
    }

    /// Writes every object of the entity: first the Portals, then each Storage Node with its Portal Groups.
    fn objects(
        &self,
        inquiry_interval_s: u32,
        events: Option<Portal>,
    ) -> impl Iterator<Item = AttributeWriter> + '_ {
        let portals = self.portals.iter().map(move |portal| {
            let mut object = AttributeWriter::default();
            object.address(tag::PORTAL_ADDRESS, portal.address);
            object.number(tag::PORTAL_PORT, u32::from(portal.port));
            if let Some(events) = events.filter(|events| events.address == portal.address) {
                object.number(tag::INQUIRY_INTERVAL, inquiry_interval_s);
                object.number(tag::INQUIRY_PORT, u32::from(events.port));
                object.number(tag::CHANGE_PORT, u32::from(events.port));
            }
            object
        });
        portals.chain(self.targets.iter().flat_map(|target| {
            let mut node = AttributeWriter::default();
            node.text(tag::NODE, &target.name);
            node.number(tag::NODE_TYPE, TARGET);
            if let Some(alias) = &target.alias {
                node.text(tag::ALIAS, alias);
            }
            let groups = self.portals.iter().zip(&target.tags).map(|(portal, group)| {
                let mut object = AttributeWriter::default();
                object.text(tag::GROUP_NODE, &target.name);
                object.address(tag::GROUP_ADDRESS, portal.address);
                object.number(tag::GROUP_PORT, u32::from(portal.port));
                match group {
                    Some(group) => object.number(tag::GROUP_TAG, u32::from(*group)),
                    // §3.4: without a tag, the node cannot be reached through the portal.
                    None => object.empty(tag::GROUP_TAG),
                }
                object
            });
            core::iter::once(node).chain(groups)
        }))
    }

    /// Makes the request that removes the entity with everything in it (§5.6.5.4).
    pub(crate) fn deregister(&self) -> Request {
        let mut payload = AttributeWriter::default();
        payload.text(tag::NODE, self.source());
        payload.empty(tag::DELIMITER);
        payload.text(tag::ENTITY, &self.entity);
        Request { function: function::DEREGISTER, replace: false, payload: payload.bytes().to_vec() }
    }

    /// Makes the requests that register each target for notifications of changes (§5.6.5.5), each as its own
    /// source. A server refuses one whose source it does not know, so they also show which targets are
    /// registered, whatever discovery domains there are. Each message restarts the registration period.
    pub(crate) fn checks(&self) -> impl Iterator<Item = Request> + '_ {
        self.targets.iter().map(|target| {
            let mut payload = AttributeWriter::default();
            payload.text(tag::NODE, &target.name);
            payload.text(tag::NODE, &target.name);
            payload.empty(tag::DELIMITER);
            payload.number(tag::CHANGE_BITMAP, CHANGES);
            let payload = payload.bytes().to_vec();
            Request { function: function::REGISTER_FOR_CHANGES, replace: false, payload }
        })
    }
}
