//! Third-party copies against a unit that may copy to itself: each operation is a parameter list for the
//! command that its first byte chooses. Every command is answered, and what parses says the same when it is
//! written again.
#![no_main]

use base::buffer::{Bytes, Pool};
use base::time::Instant;
use base::units::BlockSize;
use device::contract::{
    Access, Command, Identity, InquiryOverrides, Nexus, NexusId, RelativePort, TaskKey, ThirdPartyCaller,
    ThirdPartyUnit, UnitConfig, UnitEvent,
};
use device::unit::LogicalUnit;
use ground::Operations;
use libfuzzer_sys::fuzz_target;
use scsi::cdb::Cdb;
use scsi::copy::list::{CopyList, CscdFields, Limits};
use scsi::copy::rod::{PopulateToken, WriteUsingToken};
use scsi::lun::Lun;
use scsi::status::TaskAttribute;
use store::ram::Ram;

const NEXUS: NexusId = NexusId(1);
const BLOCKS: u64 = 4096;

fuzz_target!(|input: &[u8]| {
    let mut unit = unit();
    // The first command hears a unit attention.
    run(&mut unit, 0, [0; 16], &[]);
    for (at, (which, list)) in Operations::of(input).enumerate() {
        reads_what_it_writes(which, list);
        let (opcode, action) = if which & 0x20 == 0 { (0x83, which & 0x1f) } else { (0x84, which & 0x1f) };
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        let len = u32::try_from(if opcode == 0x83 { list.len() } else { 4096 }).unwrap();
        cdb[10..14].copy_from_slice(&len.to_be_bytes());
        let key = u64::try_from(at).unwrap() + 1;
        run(&mut unit, key, cdb, if opcode == 0x83 { list } else { &[] });
    }
    assert_eq!(unit.stats().tasks, 0, "a task is left over");
});

/// Runs a command to its end.
fn run(unit: &mut LogicalUnit, key: u64, cdb: [u8; 16], out: &[u8]) {
    let command = Command {
        nexus: NEXUS,
        key: TaskKey(key),
        level: security::Level::None,
        attribute: TaskAttribute::Simple,
        priority: 0,
        cdb: Cdb::from_16(cdb),
        data_in_len: if out.is_empty() { 4096 } else { 0 },
        data_out_len: u32::try_from(out.len()).unwrap(),
    };
    let now = Instant::ORIGIN;
    unit.execute(now, command);
    let mut answered = false;
    while let Some(event) = unit.poll() {
        match event {
            UnitEvent::FetchDataOut { key, offset, len } => {
                let start = usize::try_from(offset).unwrap();
                let part = &out[start..start + usize::try_from(len).unwrap()];
                unit.data_out(now, key, offset, Ok(Bytes::copied_from(part).into()));
            }
            UnitEvent::ThirdPartyCall(call) => {
                let here = matches!(&call.unit, ThirdPartyUnit::Designator { code_set, kind, designator }
                    if unit.is_designated_by(*code_set, *kind, designator));
                if here {
                    let caller = ThirdPartyCaller { unit: 0, call: call.call };
                    unit.execute_third_party(now, caller, NEXUS, call.request);
                } else {
                    unit.third_party_reply(
                        now,
                        call.call,
                        Err(device::contract::ThirdPartyError::NotReachable),
                    );
                }
            }
            UnitEvent::ThirdPartyReply { caller, result } => unit.third_party_reply(now, caller.call, result),
            UnitEvent::CommandComplete { key: ended, .. } => answered |= ended == TaskKey(key),
            _ => {}
        }
    }
    assert!(answered, "a command is never answered");
}

fn unit() -> LogicalUnit {
    let config = UnitConfig {
        device: device::contract::DeviceKind::Disk,
        identity: Identity {
            vendor: *b"TARGE   ",
            product: *b"DISK            ",
            revision: *b"0001",
            serial: "SERIAL".into(),
            naa: vec![0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
        },
        block_size: BlockSize::B512,
        physical_exponent: 3,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: true,
        limit: device::rate_limit::RateLimit::NONE,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: device::contract::TaskRules::default(),
        task_set_max: 64,
        io_timeout: None,
        transfer_blocks_max: 16384,
        ports: [].into(),
    };
    let mut unit =
        LogicalUnit::new(config, Box::new(Ram::new(BLOCKS * 512)), None, Pool::new(1 << 20)).unwrap();
    unit.seed(&[7; 32]);
    unit.nexus_established(
        Instant::ORIGIN,
        Nexus {
            id: NEXUS,
            initiator_port: [0; 8].as_slice().into(),
            initiator_name: "iqn.2026-11.com.example:initiator".into(),
            target_port: RelativePort(1),
            access: Access::ReadWrite,
            rfc_7144_functions: true,
            luns: [Lun(0)].as_slice().into(),
            limiter: None,
        },
    );
    unit
}

fn reads_what_it_writes(which: u8, list: &[u8]) {
    let limits = Limits {
        cscds_max: 8,
        segments_max: 64,
        descriptors_len_max: 2304,
        inline_len_max: 64,
        cscd_fields: CscdFields::Spc4,
    };
    match which & 0x3f {
        0x00 => {
            if let Ok(first) = CopyList::parse_lid1(list, &limits) {
                assert_eq!(CopyList::parse_lid1(&first.to_bytes(), &limits), Ok(first));
            }
        }
        0x01 => {
            if let Ok(first) = CopyList::parse_lid4(list, &limits) {
                assert_eq!(CopyList::parse_lid4(&first.to_bytes(), &limits), Ok(first));
            }
        }
        0x10 => {
            if let Ok(first) = PopulateToken::parse(list, 64) {
                assert_eq!(PopulateToken::parse(&first.to_bytes(), 64), Ok(first));
            }
        }
        0x11 => {
            if let Ok(first) = WriteUsingToken::parse(list, 64) {
                assert_eq!(WriteUsingToken::parse(&first.to_bytes(), 64), Ok(first));
            }
        }
        _ => {}
    }
}
