//! The logical units that initiators access, with every transport.

use std::rc::Rc;

use base::buffer::Pool;
use base::units::BlockSize;
use device::contract::{Identity, InquiryOverrides, RelativePort, TargetPort, UnitConfig};
use device::unit::LogicalUnit;

use crate::media::Medium;
use crate::scenario::Scenario;

/// The name of the target.
pub const TARGET: &str = "iqn.2026-11.org.targe:simulated";

/// Returns the name of an initiator.
pub fn initiator(number: usize) -> String {
    format!("iqn.2026-11.org.example:host{number}")
}

/// Returns the NAA designator of a unit.
pub fn naa(unit: u16) -> Vec<u8> {
    [&[0x60, 0x12, 0x34, 0x56][..], &[0; 10], &unit.to_be_bytes()].concat()
}

/// Returns the fixed configuration of a unit.
pub fn unit_config(unit: u16, block_size: BlockSize, task_set_max: u16) -> UnitConfig {
    UnitConfig {
        device: device::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"TARGE   ",
            product: *b"VIRTUAL DISK    ",
            revision: *b"0001",
            serial: format!("simulated{unit}"),
            naa: naa(unit),
        },
        block_size,
        physical_exponent: 0,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: true,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: device::contract::TaskRules::default(),
        task_set_max,
        io_timeout: None,
        limit: device::rate_limit::RateLimit::NONE,
        transfer_blocks_max: 32768,
        ports: Rc::new([TargetPort {
            relative: RelativePort(1),
            group: 1,
            port_name: format!("{TARGET},t,0x0001"),
            device_name: TARGET.into(),
            protocol: 5,
        }]),
    }
}

/// Makes a unit on a medium, with the persistent state that was saved.
pub fn unit(
    number: u16,
    scenario: &Scenario,
    medium: &Medium,
    saved: Option<&[u8]>,
    pool: &Pool,
) -> LogicalUnit {
    let config = unit_config(number, scenario.block_size, scenario.task_set_max);
    let mut unit = LogicalUnit::new(config, medium.plug(), saved, pool.clone()).unwrap();
    unit.seed(&[u8::try_from(number & 0x7f).unwrap(); 32]);
    unit
}
