//! The configuration of the target, and the session plans of initiators.

use std::sync::Arc;

use device::contract::RelativePort;
use hyperscsi::aead::KeyLimits;
use hyperscsi::initiator::contract::{SessionLimits, SessionPlan};
use hyperscsi::login::directory::GroupAccess;
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::target::engine::EngineLimits;
use iscsi::login::directory::TargetId;
use iscsi::negotiate::KeyPolicy;
use security::Level;
use security::opaque::StretchCost;
use security::opaque::{Password, PasswordRecord};
use shard::config::{
    AuthConfig, DiscoveryConfig, GroupConfig, HyperScsiConfig, LunEntry, ShardConfig, TargetConfig,
};
use transport::initiator::Retry as FrameRetry;

use crate::scenario::HyperPlan;
use crate::transport::disks::Disks;
use crate::units;

const GROUP: &str = "simulated";
const PASSWORD: &[u8] = b"open sesame";
/// The least cost that Argon2 accepts: the simulator does not test password guessing.
const CHEAP: StretchCost = StretchCost { memory_kib: 64, passes: 1, lanes: 1 };

/// Makes the group's record of its password, if it has a password.
pub(super) fn access(plan: &HyperPlan) -> GroupAccess {
    if !plan.has_password {
        return GroupAccess::Open;
    }
    let record = PasswordRecord::make(&Password::new(PASSWORD).unwrap(), GROUP, CHEAP, [9; 32]).unwrap();
    GroupAccess::Password(Arc::new(record))
}

/// Makes the configuration of a shard with one target.
pub(super) fn config(disks: &Disks, plan: &HyperPlan, access: GroupAccess) -> ShardConfig {
    let mut config = ShardConfig {
        portals: vec![],
        targets: vec![TargetConfig {
            id: TargetId(0),
            name: units::TARGET.parse().unwrap(),
            alias: None,
            ports: vec![],
            luns: vec![],
            initiators: vec![],
            auth: AuthConfig::default(),
            keys: KeyPolicy::default(),
            sessions_max: 64,
            groups: vec![(GroupName::new(GROUP).unwrap(), RelativePort(1))],
            exchanges: plan.exchanges,
            session_limits: None,
        }],
        discovery: DiscoveryConfig {
            enabled: false,
            auth: AuthConfig::default(),
            keys: KeyPolicy::default(),
        },
        frames: HyperScsiConfig {
            instance: [5; 16],
            steering: 0x40,
            groups: vec![GroupConfig {
                name: GroupName::new(GROUP).unwrap(),
                access,
                min_level: Level::None,
                ports: None,
            }],
        },
    };
    disks.configure(&mut config, |disk, row| LunEntry {
        min_level: plan.min_protection[usize::from(disk % 2)],
        ..row
    });
    config
}

/// Makes the limits and parameters of the target.
pub(super) fn limits(plan: &HyperPlan) -> EngineLimits {
    let room = plan.room_bytes;
    EngineLimits {
        data_out_bytes_max: room,
        data_in_bytes_max: room,
        unsent_bytes_max: room / 2,
        parameters: parameters(plan),
        key_limits: key_limits(plan.key_frames[0]),
        ..EngineLimits::default()
    }
}

fn key_limits(frames: Option<u64>) -> KeyLimits {
    let usual = KeyLimits::default();
    KeyLimits { frames: frames.unwrap_or(usual.frames), ..usual }
}

/// Makes the session plan of a stranger, which must not get in: it is wrong in one of several ways.
pub(super) fn stranger(plan: &HyperPlan, number: usize) -> SessionPlan {
    let somebody = session(plan, 0);
    let password = |text: &[u8]| Some(Password::new(text).unwrap());
    let other_group = GroupName::new("another").unwrap();
    let retry = FrameRetry::NONE;
    match (plan.has_password, number % 3) {
        // This stranger knows the names of a member, but not the password.
        (true, 0) => SessionPlan { password: password(b"open barley"), retry, ..somebody },
        (true, 1) => SessionPlan { password: None, level: Level::None, retry, ..somebody },
        (false, 0) => SessionPlan { password: password(b"open sesame"), retry, ..somebody },
        (false, 1) => {
            SessionPlan { target: Name::new("iqn.2026-11.org.example:other").unwrap(), retry, ..somebody }
        }
        (_, _) => SessionPlan { group: other_group, retry, ..somebody },
    }
}

/// Makes the session plan of an initiator.
pub(super) fn session(plan: &HyperPlan, number: usize) -> SessionPlan {
    let name = units::initiator(number);
    let number = u8::try_from(number).unwrap() + 1;
    let password = plan.has_password.then(|| Password::new(PASSWORD).unwrap());
    let wanted = SessionPlan::new(
        Name::new(&name).unwrap(),
        [0x80, 0, 0, 0, 0, number],
        GroupName::new(GROUP).unwrap(),
        password,
        Name::new(units::TARGET).unwrap(),
    );
    SessionPlan {
        level: plan.level,
        parameters: parameters(plan),
        retry: plan.retry,
        limits: SessionLimits {
            login_within: plan.login_within,
            tasks_max: plan.tasks_max,
            key_limits: key_limits(plan.key_frames[1]),
            ..SessionLimits::default()
        },
        ..wanted
    }
}

const fn parameters(plan: &HyperPlan) -> Parameters {
    Parameters {
        exchanges: plan.exchanges,
        first_burst: plan.first_burst,
        burst_max: plan.burst_max,
        repair: plan.repair,
        lost_after_ms: plan.lost_after_ms,
        ..Parameters::DEFAULT
    }
}
