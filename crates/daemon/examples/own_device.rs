//! A device server of one's own, served over iSCSI: a processor device (type 03h) that keeps the last message
//! of any initiator. SEND(6) stores bytes, RECEIVE(6) returns them; nothing is written to a file.
//!
//! ```text
//! cargo run --package targe-daemon --example own_device -- 127.0.0.1:3260
//! ```
//!
//! The device is a [`Store`] with [`Store::device`]: it executes [`DeviceCommand`]s one after the other and
//! knows no initiator. Task sets, task management, unit attentions, reservations and REPORT LUNS are those of
//! the logical unit around it, as `docs/devices.md` says of devices that commands are passed to.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::rc::Rc;

use base::buffer::{Bytes, DataList};
use base::state_machine::PortalId;
use base::units::BlockSize;
use device::contract::{
    Access, DeviceKind, Identity, InquiryOverrides, RelativePort, TargetPort, TaskRules, UnitConfig,
};
use device::rate_limit::RateLimit;
use device::unit::LogicalUnit;
use drivers::config::Config;
use drivers::reactor::Reactor;
use iscsi::login::directory::{AuthPolicy, TargetId};
use iscsi::name::PortalGroupTag;
use iscsi::negotiate::KeyPolicy;
use iscsi::target::engine::Limits;
use shard::config::{DiscoveryConfig, HyperScsiConfig, LunEntry, Portal, ShardConfig, TargetConfig};
use shard::shard::Shard;
use store::Store;
use store::api::{
    Capabilities, Completion, DeviceCommand, DeviceInfo, DeviceResponse, Op, OpAction, OpOutput, Transfer,
};
use store::null::Null;
use target::units::UnitId;

/// The name of the target.
pub(crate) const NAME: &str = "iqn.2026-11.org.example:own-device";

/// The processor device: its message, and the answers that the unit has not collected yet.
#[derive(Default)]
struct Processor {
    message: Vec<u8>,
    completions: VecDeque<Completion>,
}

impl Processor {
    /// Executes a command; returns its status, sense data and data.
    fn execute(&mut self, command: &DeviceCommand) -> (u8, Vec<u8>, Vec<u8>) {
        const GOOD: u8 = 0;
        const CHECK_CONDITION: u8 = 2;
        match (command.bytes.first(), &command.transfer) {
            (Some(0x00), _) => (GOOD, Vec::new(), Vec::new()),
            (Some(0x08), _) => (GOOD, Vec::new(), self.message.clone()),
            (Some(0x0a), Transfer::Out(data)) => {
                self.message = data.parts().iter().flat_map(|part| part.to_vec()).collect();
                (GOOD, Vec::new(), Vec::new())
            }
            (Some(0x12), _) => {
                let names = *b"EXAMPLE OWN DEVICE      0001";
                let head = [0x03, 0, 6, 2, 31, 0, 0, 0];
                (GOOD, Vec::new(), [&head[..], &names].concat())
            }
            // ILLEGAL REQUEST, INVALID COMMAND OPERATION CODE.
            _ => {
                let sense = vec![0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];
                (CHECK_CONDITION, sense, Vec::new())
            }
        }
    }
}

impl Store for Processor {
    fn capabilities(&self) -> Capabilities {
        Null::new(0).capabilities()
    }

    fn device(&self) -> Option<DeviceInfo> {
        Some(DeviceInfo { kind: 0x03, block_len: None, transfer_max: 1 << 20 })
    }

    fn submit(&mut self, op: Op) {
        let output = match op.action {
            OpAction::Command(command) => {
                let (status, sense, mut data) = self.execute(&command);
                let (data, transferred) = match command.transfer {
                    Transfer::Out(sent) => {
                        let len = sent.len();
                        (sent, len)
                    }
                    Transfer::In(len) => {
                        data.truncate(len);
                        (DataList::from(Bytes::copied_from(&data)), data.len())
                    }
                    Transfer::Nothing => (DataList::new(), 0),
                };
                OpOutput::Response(Box::new(DeviceResponse { status, sense, data, transferred }))
            }
            // A reset has nothing to end: every command was answered at once.
            _ => OpOutput::Done(DataList::new()),
        };
        self.completions.push_back(Completion { id: op.id, result: Ok(output) });
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
}

/// Serves the device as LUN 0 to every initiator that connects, without end.
pub(crate) fn serve(listener: TcpListener) -> Result<(), Box<dyn std::error::Error>> {
    let address = listener.local_addr()?;
    let mut reactor = Reactor::new(&Config::default())?;
    let portal = PortalId(0);
    reactor.listen(listener, portal)?;
    let mut shard = Shard::new(shard_config(portal, address)?, Limits::default(), reactor.pool().clone());
    let unit = LogicalUnit::new(unit_config(), Box::new(Processor::default()), None, reactor.pool().clone())?;
    shard.add_unit(reactor.now(), UnitId(0), unit);
    Ok(reactor.run(&mut shard)?)
}

fn shard_config(
    portal: PortalId,
    address: std::net::SocketAddr,
) -> Result<ShardConfig, Box<dyn std::error::Error>> {
    let open = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let target = TargetConfig {
        id: TargetId(0),
        name: NAME.parse()?,
        alias: None,
        ports: vec![(portal, RelativePort(1))],
        luns: vec![LunEntry::new(0, UnitId(0), Access::ReadWrite)],
        initiators: Vec::new(),
        auth: open.clone().into(),
        keys: KeyPolicy::default(),
        sessions_max: 64,
        groups: Vec::new(),
        exchanges: 128,
        session_limits: None,
    };
    let group = PortalGroupTag(1);
    Ok(ShardConfig {
        portals: vec![Portal {
            id: portal,
            group,
            bound: Some(address),
            announced: None,
            tls: false,
            certificates: None,
        }],
        targets: vec![target],
        discovery: DiscoveryConfig { enabled: true, auth: open.into(), keys: KeyPolicy::default() },
        frames: HyperScsiConfig::default(),
    })
}

fn unit_config() -> UnitConfig {
    UnitConfig {
        device: DeviceKind::PassThrough { dangerous_commands: false },
        // What the device says of itself comes first; these are for what it does not say.
        identity: Identity {
            vendor: *b"EXAMPLE ",
            product: *b"OWN DEVICE      ",
            revision: *b"0001",
            serial: "own-device-1".into(),
            naa: vec![0x30, 0, 0, 0, 0, 0, 0, 1],
        },
        block_size: BlockSize::B512,
        physical_exponent: 0,
        read_only: false,
        removable: false,
        long_cdbs: false,
        atomic_blocks: 1,
        thin: false,
        write_cache: true,
        overrides: InquiryOverrides::default(),
        tasks: TaskRules::default(),
        task_set_max: 64,
        io_timeout: None,
        limit: RateLimit::NONE,
        transfer_blocks_max: 2048,
        ports: Rc::new([TargetPort {
            relative: RelativePort(1),
            group: 1,
            port_name: format!("{NAME},t,0x0001"),
            device_name: NAME.into(),
            protocol: 5,
        }]),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).ok_or("usage: own_device ADDRESS:PORT")?;
    println!("iscsi://{address}/{NAME}/0");
    serve(drivers::listener::open(address.parse()?)?)
}
