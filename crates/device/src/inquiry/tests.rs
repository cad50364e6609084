use alloc::borrow::ToOwned;
use alloc::rc::Rc;
use alloc::vec;

use base::units::BlockSize;
use scsi::vpd::{CodeSet, DesignatorType};

use super::*;
use crate::contract::{Identity, InquiryOverrides};

const IQN: &str = "iqn.2026-01.org.example:disk0";

fn config() -> UnitConfig {
    let port = |number: u16| TargetPort {
        relative: RelativePort(number),
        group: 1,
        port_name: format!("{IQN},t,0x{number:04x}"),
        device_name: IQN.to_owned(),
        protocol: 5,
    };
    UnitConfig {
        device: crate::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"targe   ",
            product: *b"disk            ",
            revision: *b"0001",
            serial: "0123456789abcdef".to_owned(),
            naa: vec![0x60, 0x01, 0x40, 0x5a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
        },
        block_size: BlockSize::B512,
        physical_exponent: 3,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: true,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: crate::contract::TaskRules::default(),
        task_set_max: 128,
        io_timeout: None,
        limit: Default::default(),
        transfer_blocks_max: 0x8000,
        ports: Rc::from([port(1), port(2)]),
    }
}

fn portrait(config: &UnitConfig) -> InquiryData<'_> {
    InquiryData {
        config,
        device_type: DeviceType::DIRECT_ACCESS_BLOCK,
        port: RelativePort(2),
        third_party_copy: false,
        third_party_copy_page: None,
        volatile_cache: true,
        vital_pages: vec![(0xb0, vec![0, 8, 0, 0]), (0xb2, vec![0, 0x80, 2, 0])],
        versions: (crate::sbc::COMMAND_SET.versions)(config.overrides.level),
    }
}

#[test]
fn standard_data_has_the_bytes_of_the_standard() {
    let config = config();
    let data = portrait(&config).standard();
    assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0x10, 0x10, 2]);
    assert_eq!(&data[8..36], b"targe   disk            0001");
    let versions = [0x00, 0xa0, 0x09, 0x60, 0x04, 0x60, 0x04, 0xc0, 0x05, 0xc0, 0x06, 0x00, 0, 0, 0, 0];
    assert_eq!(data[58..74], versions);
}

#[test]
fn standard_data_follows_the_configuration() {
    let mut config = config();
    config.removable = true;
    config.ports = Rc::from([TargetPort { protocol: 0xf, ..config.ports[0].clone() }]);
    let portrait = InquiryData { third_party_copy: true, ..portrait(&config) };
    let data = StandardInquiry::parse(&portrait.standard()).unwrap();
    assert!(data.removable && data.third_party_copy && !data.multi_port);
    assert!(!data.versions.contains(&version_descriptor::ISCSI));
}

#[test]
fn every_page_that_is_listed_exists_and_no_other() {
    let config = config();
    for portrait in [
        portrait(&config),
        InquiryData { vital_pages: vec![], ..portrait(&config) },
        InquiryData { third_party_copy_page: Some(vec![1]), ..portrait(&config) },
    ] {
        let list = portrait.page(0).unwrap();
        let listed = &list[4..];
        assert!(listed.is_sorted_by(|a, b| a < b));
        assert_eq!(usize::from(list[3]), listed.len());
        for code in 0..=255 {
            let page = portrait.page(code);
            assert_eq!(page.is_some(), listed.contains(&code), "{code:02x}");
            if let Some(page) = page {
                assert_eq!(page[1], code);
                assert_eq!(usize::from(u16::from_be_bytes([page[2], page[3]])), page.len() - 4);
            }
        }
    }
}

#[test]
fn the_serial_number_page_is_the_serial_number() {
    assert_eq!(portrait(&config()).page(0x80).unwrap(), b"\0\x80\0\x100123456789abcdef");
}

#[test]
fn device_identification_names_unit_port_and_device() {
    let page = portrait(&config()).page(0x83).unwrap();
    let list = Designator::list(&page[4..]);
    let told: Vec<_> =
        list.iter().map(|one| (one.association, one.protocol, one.code_set, one.kind)).collect();
    let (unit, port, device) =
        (Association::LOGICAL_UNIT, Association::TARGET_PORT, Association::TARGET_DEVICE);
    assert_eq!(
        told,
        [
            (unit, None, CodeSet::BINARY, DesignatorType::NAA),
            (unit, None, CodeSet::ASCII, DesignatorType::T10_VENDOR),
            (unit, None, CodeSet::UTF_8, DesignatorType::SCSI_NAME),
            (port, Some(5), CodeSet::BINARY, DesignatorType::RELATIVE_TARGET_PORT),
            (port, Some(5), CodeSet::BINARY, DesignatorType::TARGET_PORT_GROUP),
            (port, Some(5), CodeSet::UTF_8, DesignatorType::SCSI_NAME),
            (device, Some(5), CodeSet::UTF_8, DesignatorType::SCSI_NAME),
        ]
    );
    assert_eq!(list[0].bytes, config().identity.naa);
    assert_eq!(list[1].bytes, b"targe   disk            0123456789abcdef");
    assert_eq!(list[2].bytes, b"naa.6001405ABCDEF0010203040506070809\0\0\0\0");
    assert_eq!(list[3].bytes, [0, 0, 0, 2]);
    assert_eq!(list[4].bytes, [0, 0, 0, 1]);
    assert_eq!(list[5].bytes, b"iqn.2026-01.org.example:disk0,t,0x0002\0\0");
    assert_eq!(list[6].bytes, b"iqn.2026-01.org.example:disk0\0\0\0");
}

#[test]
fn an_unknown_port_is_not_named() {
    let config = config();
    let page = InquiryData { port: RelativePort(9), ..portrait(&config) }.page(0x83).unwrap();
    assert_eq!(Designator::list(&page[4..]).len(), 3);
}

#[test]
fn scsi_ports_lists_each_port_with_its_name() {
    let page = portrait(&config()).page(0x88).unwrap();
    let one = 12 + 4 + 40;
    assert_eq!(page.len(), 4 + 2 * one);
    assert_eq!(page[4..16], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 44]);
    assert_eq!(page[16..20], [0x53, 0x98, 0, 40]);
    assert_eq!(page[4 + one..16 + one], [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 44]);
}

#[test]
fn the_fixed_pages_have_the_bytes_of_the_standard() {
    let config = config();
    let portrait = portrait(&config);
    assert_eq!(portrait.page(0x87).unwrap(), [0, 0x87, 0, 4, 0x3f, 0xff, 0, 0]);
    let extended = portrait.page(0x86).unwrap();
    assert_eq!(extended[..13], [0, 0x86, 0, 0x3c, 0, 7, 1, 0, 0, 0, 0, 1, 0]);
    assert_eq!(usize::from(extended[13]), Sense::MAX_LEN);
    assert_eq!(portrait.page(0xb0).unwrap(), [0, 0xb0, 0, 4, 0, 8, 0, 0]);
    assert_eq!(portrait.page(0xb2).unwrap(), [0, 0xb2, 0, 4, 0, 0x80, 2, 0]);
}
