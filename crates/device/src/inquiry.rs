//! INQUIRY (SPC-5 §6.7, SPC-4 §7.8): the identity and the capabilities that a logical unit reports. All of it
//! is derived from the unit's configuration, from the limits that its commands obey, and from the table of
//! its commands, so that no page reports a capability that the commands do not have.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use scsi::inquiry::{
    DeviceType, Qualifier, StandardInquiry, VERSION_SPC_3, VERSION_SPC_4, VERSION_SPC_5, version_descriptor,
};
use scsi::mode::page as page_code;
use scsi::sense::Sense;
use scsi::transport_id::PROTOCOL_ISCSI;
use scsi::vpd::{Association, Designator, ExtendedInquiry, Page, page};

use crate::contract::{Identity, RelativePort, SpcLevel, TargetPort, UnitConfig};

/// Vital product data pages, ascending by code, each with its body.
pub(crate) type VitalPages = Vec<(u8, Vec<u8>)>;

/// The INQUIRY data of a unit, as one nexus sees it.
#[derive(Debug)]
pub(crate) struct InquiryData<'a> {
    /// The configuration: names, ports, removability.
    pub(crate) config: &'a UnitConfig,
    /// The peripheral device type.
    pub(crate) device_type: DeviceType,
    /// The target port that received the command.
    pub(crate) port: RelativePort,
    /// Whether the unit supports third-party copies.
    pub(crate) third_party_copy: bool,
    /// The body of VPD page 8Fh, if there is one.
    pub(crate) third_party_copy_page: Option<Vec<u8>>,
    /// Whether writes may be acknowledged before they are durable.
    pub(crate) volatile_cache: bool,
    /// The VPD pages of the device type.
    pub(crate) vital_pages: VitalPages,
    /// The version descriptors after those of the architecture and the transport.
    pub(crate) versions: &'static [u16],
}

/// TPGS 01b: only the target changes asymmetric access states.
const TPGS_IMPLICIT: u8 = 1;

/// How long an extended self-test takes, in minutes: the test reads a few blocks.
const EXTENDED_SELF_TEST_MINUTES: u16 = 1;

impl InquiryData<'_> {
    /// Returns the standard INQUIRY data.
    pub(crate) fn standard(&self) -> [u8; StandardInquiry::LEN] {
        let config = self.config;
        StandardInquiry {
            qualifier: Qualifier::CONNECTED,
            device_type: self.device_type,
            removable: config.removable,
            version: self.version(),
            hierarchical: true,
            target_port_groups: TPGS_IMPLICIT,
            third_party_copy: self.third_party_copy,
            protect: false,
            multi_port: config.ports.len() > 1,
            command_queuing: true,
            vendor: config.identity.vendor,
            product: config.identity.product,
            revision: config.identity.revision,
            versions: self.versions(),
        }
        .encode()
    }

    /// Returns the vital product data page `code`, or `None` if the unit has no such page.
    pub(crate) fn page(&self, code: u8) -> Option<Vec<u8>> {
        let body = match code {
            page::SUPPORTED_PAGES => self.pages(),
            page::UNIT_SERIAL_NUMBER => Vec::from(self.config.identity.serial.as_bytes()),
            page::DEVICE_IDENTIFICATION => self.designators(),
            page::EXTENDED_INQUIRY => ExtendedInquiry {
                task_attributes: true,
                volatile_cache: self.volatile_cache,
                extended_self_test_minutes: EXTENDED_SELF_TEST_MINUTES,
                sense_len_max: u8::try_from(Sense::MAX_LEN).unwrap_or(u8::MAX),
            }
            .encode()
            .to_vec(),
            page::MODE_PAGE_POLICY => self.mode_page_policy(),
            page::SCSI_PORTS => self.ports(),
            page::THIRD_PARTY_COPY => self.third_party_copy_page.clone()?,
            _ => self.vital_pages.iter().find(|(own, _)| *own == code)?.1.clone(),
        };
        Some(Page { peripheral: self.device_type.0, code, body: &body }.encode())
    }

    /// Returns the body of the mode page policy page: the pages that each nexus has of its own, then that all
    /// others are shared.
    fn mode_page_policy(&self) -> Vec<u8> {
        let own = (self.device_type == DeviceType::SEQUENTIAL_ACCESS).then_some(PROTECTION_PER_NEXUS);
        own.into_iter().chain([OTHER_PAGES_SHARED]).flatten().collect()
    }

    /// Returns the codes of the supported pages, ascending.
    fn pages(&self) -> Vec<u8> {
        let mut pages = Vec::from([
            page::SUPPORTED_PAGES,
            page::UNIT_SERIAL_NUMBER,
            page::DEVICE_IDENTIFICATION,
            page::EXTENDED_INQUIRY,
            page::MODE_PAGE_POLICY,
            page::SCSI_PORTS,
        ]);
        pages.extend(self.third_party_copy_page.as_ref().map(|_| page::THIRD_PARTY_COPY));
        pages.extend(self.vital_pages.iter().map(|(code, _)| *code));
        pages
    }

    const fn version(&self) -> u8 {
        match self.config.overrides.level {
            SpcLevel::Spc3 => VERSION_SPC_3,
            SpcLevel::Spc4 => VERSION_SPC_4,
            SpcLevel::Spc5 => VERSION_SPC_5,
        }
    }

    fn versions(&self) -> [u16; 8] {
        let iscsi = self.config.ports.iter().any(|port| port.protocol == PROTOCOL_ISCSI);
        let mut versions = [0; 8];
        let architecture = match self.config.overrides.level {
            SpcLevel::Spc3 => version_descriptor::SAM_3,
            SpcLevel::Spc4 | SpcLevel::Spc5 => version_descriptor::SAM_5,
        };
        let claimed = [architecture]
            .into_iter()
            .chain(iscsi.then_some(version_descriptor::ISCSI))
            .chain(self.versions.iter().copied());
        for (to, from) in versions.iter_mut().zip(claimed) {
            *to = from;
        }
        versions
    }

    /// Returns the body of the device identification page: designators of the unit, then of the port that
    /// received the command, then of the device.
    fn designators(&self) -> Vec<u8> {
        let mut designators = Vec::from(unit_designators(&self.config.identity));
        if let Some(port) = self.config.ports.iter().find(|port| port.relative == self.port) {
            let protocol = port.protocol;
            designators.extend([
                Designator::relative_target_port(protocol, port.relative.0),
                Designator::target_port_group(protocol, port.group),
                port_name(port),
                Designator::scsi_name(Association::TARGET_DEVICE, Some(protocol), &port.device_name),
            ]);
        }
        let mut body = Vec::new();
        for designator in &designators {
            designator.encode(&mut body);
        }
        body
    }

    /// Returns the body of the SCSI ports page: each target port by its relative identifier and its name.
    fn ports(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for port in self.config.ports.iter() {
            let mut names = Vec::new();
            port_name(port).encode(&mut names);
            body.extend_from_slice(&[0, 0]);
            body.extend_from_slice(&port.relative.0.to_be_bytes());
            // No initiator port TransportID; reserved bytes around its length.
            body.extend_from_slice(&[0; 6]);
            body.extend_from_slice(&u16::try_from(names.len()).unwrap_or(u16::MAX).to_be_bytes());
            body.extend_from_slice(&names);
        }
        body
    }
}

/// A mode page policy descriptor: every page and subpage without a descriptor is shared by all nexuses.
const OTHER_PAGES_SHARED: [u8; 4] = [0x3f, 0xff, 0, 0];
/// Each nexus has a control data protection page of its own (policy 11b).
const PROTECTION_PER_NEXUS: [u8; 4] = [page_code::CONTROL, page_code::CONTROL_DATA_PROTECTION, 3, 0];

fn port_name(port: &TargetPort) -> Designator {
    Designator::scsi_name(Association::TARGET_PORT, Some(port.protocol), &port.port_name)
}

/// Returns the designators of the unit itself, which third-party copies name it by.
pub(crate) fn unit_designators(identity: &Identity) -> [Designator; 3] {
    let mut named = Vec::from(identity.product);
    named.extend_from_slice(identity.serial.as_bytes());
    [
        Designator::naa(&identity.naa),
        Designator::t10_vendor(identity.vendor, &named),
        Designator::scsi_name(Association::LOGICAL_UNIT, None, &naa_name(&identity.naa)),
    ]
}

/// Returns the SCSI name string of an NAA identifier: `naa.` and its hexadecimal digits.
fn naa_name(naa: &[u8]) -> String {
    naa.iter().fold(String::from("naa."), |name, byte| name + &format!("{byte:02X}"))
}

#[cfg(test)]
mod tests;
