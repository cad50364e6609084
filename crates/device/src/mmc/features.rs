//! GET CONFIGURATION (MMC-6): the features of the drive, and which are current with the disc that is loaded.

use alloc::vec::Vec;

use scsi::sense::Sense;

use super::data;
use super::profile::{self, Disc};
use crate::contract::DiscProfile;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::disc_record::WritableKind;
use crate::task::TaskInfo;

/// REQUEST TYPE (RT).
mod request {
    pub(super) const ALL: u8 = 0b00;
    pub(super) const CURRENT: u8 = 0b01;
    pub(super) const ONE: u8 = 0b10;
}

/// A feature (MMC-6).
struct Feature {
    code: u16,
    version: u8,
    /// Whether it is current whatever disc is loaded.
    persistent: bool,
    /// Returns whether it is current with a disc of this kind, or without one.
    current: fn(Option<Disc>) -> bool,
    /// Returns the bytes after its header.
    body: fn(&DeviceServer, Option<Disc>) -> Vec<u8>,
}

/// For features that are always current.
const fn always(_: Option<Disc>) -> bool {
    true
}

const fn empty(_: &DeviceServer, _: Option<Disc>) -> Vec<u8> {
    Vec::new()
}

/// For features of a CD, a DVD or a BD.
fn is_of(disc: Option<Disc>, family: DiscProfile) -> bool {
    disc.is_some_and(|disc| disc.family() == family)
}

/// Every feature, ascending.
const FEATURES: &[Feature] = &[
    // Profile list.
    Feature { code: 0x0000, version: 0, persistent: true, current: always, body: profile_list },
    // Core: a physical interface of the SCSI family; device busy events are supported.
    Feature {
        code: 0x0001,
        version: 2,
        persistent: true,
        current: always,
        body: |_, _| Vec::from([0, 0, 0, 1, 0x01, 0, 0, 0]),
    },
    // Morphing: no operational change events; events are polled.
    Feature {
        code: 0x0002,
        version: 1,
        persistent: true,
        current: always,
        body: |_, _| Vec::from([0, 0, 0, 0]),
    },
    // Removable medium: a tray, which loads, ejects and locks.
    Feature {
        code: 0x0003,
        version: 1,
        persistent: true,
        current: always,
        body: |_, _| Vec::from([0x39, 0, 0, 0]),
    },
    // Random readable: the block length, the blocking, and that mode page 01h exists.
    Feature {
        code: 0x0010,
        version: 0,
        persistent: false,
        current: |disc| disc.is_some(),
        body: |_, disc| {
            let [high, low] = disc.map_or(1, Disc::blocking).to_be_bytes();
            Vec::from([0, 0, 0x08, 0, high, low, 0x01, 0])
        },
    },
    // CD read: no C2 error pointers, no CD-TEXT, no digital audio.
    Feature {
        code: 0x001e,
        version: 2,
        persistent: false,
        current: |disc| is_of(disc, DiscProfile::Cd),
        body: |_, _| Vec::from([0, 0, 0, 0]),
    },
    // DVD read.
    Feature {
        code: 0x001f,
        version: 0,
        persistent: false,
        current: |disc| is_of(disc, DiscProfile::Dvd),
        body: empty,
    },
    // Random writable: the last address, the block length, the blocking, and that mode page 01h exists.
    Feature {
        code: 0x0020,
        version: 1,
        persistent: false,
        current: |disc| disc.is_some_and(Disc::is_rewritable),
        body: random_writable,
    },
    // Incremental streaming writable: data blocks of mode 1 (type 8), without underrun, one link size.
    Feature {
        code: 0x0021,
        version: 3,
        persistent: false,
        current: |disc| disc.is_some_and(Disc::is_sequential),
        body: |_, _| Vec::from([0x01, 0, 0x01, 1, 16, 0, 0, 0]),
    },
    // Formattable: BD-RE without spare areas.
    Feature {
        code: 0x0023,
        version: 1,
        persistent: false,
        current: |disc| {
            disc.is_some_and(Disc::is_rewritable) || disc == Some(Disc::Writable(WritableKind::BdR))
        },
        body: |_, _| Vec::from([0x08, 0, 0, 0, 0, 0, 0, 0]),
    },
    // DVD+RW: written, and closed in no special way.
    Feature {
        code: 0x002a,
        version: 0,
        persistent: false,
        current: |disc| disc == Some(Disc::Writable(WritableKind::DvdPlusRw)),
        body: |_, _| Vec::from([0x01, 0, 0, 0]),
    },
    // DVD-R write: without underrun, no test write.
    Feature {
        code: 0x002f,
        version: 2,
        persistent: false,
        current: |disc| disc == Some(Disc::Writable(WritableKind::DvdR)),
        body: |_, _| Vec::from([0x40, 0, 0, 0]),
    },
    // BD read: class 0 of BD-RE and of BD-R, and version 1 of class 0 of BD-ROM.
    Feature {
        code: 0x0040,
        version: 0,
        persistent: false,
        current: |disc| is_of(disc, DiscProfile::Bd),
        body: |_, _| {
            let mut body = Vec::from([0, 0, 0, 0, 0, 0x02]);
            body.resize(12, 0);
            for _ in ["BD-R", "BD-ROM"] {
                body.extend_from_slice(&[0, 0x02, 0, 0, 0, 0, 0, 0]);
            }
            body
        },
    },
    // BD write: version 1 of class 0 of BD-RE and of BD-R.
    Feature {
        code: 0x0041,
        version: 0,
        persistent: false,
        current: |disc| matches!(disc, Some(Disc::Writable(WritableKind::BdRe | WritableKind::BdR))),
        body: |_, _| {
            let mut body = Vec::from([0, 0, 0, 0, 0, 0x02]);
            body.resize(12, 0);
            body.extend_from_slice(&[0, 0x02, 0, 0, 0, 0, 0, 0]);
            body
        },
    },
    // Power management.
    Feature { code: 0x0100, version: 0, persistent: true, current: always, body: empty },
    // Timeout: group 3 timeouts are not supported.
    Feature {
        code: 0x0105,
        version: 1,
        persistent: true,
        current: always,
        body: |_, _| Vec::from([0, 0, 0, 0]),
    },
    // Real time streaming: SET CD SPEED, mode page 2Ah, and write speed descriptors. READ BUFFER CAPACITY has
    // no blocks.
    Feature {
        code: 0x0107,
        version: 4,
        persistent: false,
        current: |disc| disc.is_some(),
        body: |_, _| Vec::from([0x0e, 0, 0, 0]),
    },
    // Drive serial number.
    Feature { code: 0x0108, version: 0, persistent: true, current: always, body: serial_number },
];

fn random_writable(server: &DeviceServer, disc: Option<Disc>) -> Vec<u8> {
    let last = super::lead_out(server).saturating_sub(1);
    let [high, low] = disc.map_or(1, Disc::blocking).to_be_bytes();
    let mut body = Vec::from(last.to_be_bytes());
    body.extend_from_slice(&[0, 0, 0x08, 0, high, low, 0x01, 0]);
    body
}

fn profile_list(_: &DeviceServer, disc: Option<Disc>) -> Vec<u8> {
    let descriptor = |kind: Disc| {
        let [high, low] = kind.number().to_be_bytes();
        [high, low, u8::from(disc == Some(kind)), 0]
    };
    profile::ALL.iter().flat_map(|kind| descriptor(*kind)).collect()
}

/// Returns the unit serial number, padded with spaces to a multiple of four bytes.
fn serial_number(server: &DeviceServer, _: Option<Disc>) -> Vec<u8> {
    let mut serial = Vec::from(server.info.config.identity.serial.as_bytes());
    serial.resize(serial.len().next_multiple_of(4), b' ');
    serial
}

impl Feature {
    fn encode(&self, server: &DeviceServer, disc: Option<Disc>, out: &mut Vec<u8>) {
        let body = (self.body)(server, disc);
        let flags = u8::from(self.persistent) << 1 | u8::from((self.current)(disc));
        out.extend_from_slice(&self.code.to_be_bytes());
        out.extend_from_slice(&[self.version << 2 | flags, u8::try_from(body.len()).unwrap_or(u8::MAX)]);
        out.extend_from_slice(&body);
    }
}

pub(super) fn get_configuration(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (kind, first) = (cdb.u8(1) & 3, cdb.u16(2));
    let disc = profile::current(server);
    let is_asked = |feature: &&Feature| match kind {
        request::ALL => feature.code >= first,
        request::CURRENT => feature.code >= first && (feature.current)(disc),
        _ => feature.code == first,
    };
    if kind > request::ONE {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(1)));
    }
    let mut features = Vec::new();
    for feature in FEATURES.iter().filter(is_asked) {
        feature.encode(server, disc, &mut features);
    }
    // DATA LENGTH counts the bytes after itself: the rest of the header, and the features.
    let len = u32::try_from(features.len().saturating_add(4)).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(len.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&disc.map_or(0, Disc::number).to_be_bytes());
    bytes.extend_from_slice(&features);
    data(bytes, u32::from(cdb.u16(7)))
}
