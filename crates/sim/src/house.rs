//! The logical units that initiators find, whatever the transport.

use std::rc::Rc;

use base::buffer::Pool;
use base::units::BlockSize;
use device::contract::{Claims, Identity, RelativePort, TargetPort, UnitConfig};
use device::unit::LogicalUnit;

use crate::media::Medium;

/// The name of the target.
pub const TARGET: &str = "iqn.2026-11.org.targe:simulated";

/// Returns the NAA designator of a unit.
pub fn naa(unit: u16) -> Vec<u8> {
    [&[0x60, 0x12, 0x34, 0x56][..], &[0; 10], &unit.to_be_bytes()].concat()
}

/// Returns what is fixed about a unit.
pub fn unit_config(unit: u16, block_size: BlockSize) -> UnitConfig {
    UnitConfig {
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
        claims: Claims::default(),
        tasks: device::contract::TaskRules::default(),
        task_set_max: 64,
        io_timeout: None,
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

/// Makes a unit on a medium, with the reservations that were saved.
pub fn unit(
    number: u16,
    block_size: BlockSize,
    medium: &Medium,
    saved: Option<&[u8]>,
    pool: &Pool,
) -> LogicalUnit {
    let mut unit =
        LogicalUnit::new(unit_config(number, block_size), medium.plug(), saved, pool.clone()).unwrap();
    unit.seed(&[u8::try_from(number & 0x7f).unwrap(); 32]);
    unit
}
