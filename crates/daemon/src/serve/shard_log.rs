//! The log lines of a shard's events.

use base::ether::PortState;
use base::time::Duration;
use device::slow_command::SlowCommand;
use hyperscsi::login::target::HandshakeRefusal as Refused;
use iscsi::name::IscsiName;
use iscsi::target::contract::{FailedLogin, SessionEnd};
use iscsi::target::initiator_notes::{InitiatorNote, NoteKind};
use security::Level;
use shard::admin::ShardEvent;
use shard::config::TargetPortName;

use super::admin_api::protection_by;
use super::reactor_shard::ReactorShard;

/// An interface with fewer receive slots than this gives a peer a window that a fast link fills at once.
const FEW_SLOTS: usize = 32;

impl ReactorShard {
    /// Logs the events of the shard.
    pub(super) fn log_notices(&mut self) {
        while let Some(notice) = self.shard.poll_event() {
            match notice {
                ShardEvent::SessionUp { initiator, target, peer, user, portal, protection, hidden_luns } => {
                    let from = peer.map_or(String::new(), |peer| format!(" from {peer}"));
                    let user = user.map_or(String::new(), |user| format!(" as {user:?}"));
                    let level = match protection_by(protection, Some(portal), &self.runtime) {
                        Some(by) => format!(" ({}: {by})", protection.level()),
                        None => String::new(),
                    };
                    let hidden = hidden(hidden_luns, protection.level());
                    crate::info!(
                        { initiator: &initiator, target: &target },
                        "session of {initiator}{user}{from} with {target} is up{level}{hidden}"
                    );
                }
                ShardEvent::LunsHidden { initiator, target, level, hidden_luns } => {
                    let with = target.as_ref().map_or(String::new(), |target| format!(" with {target}"));
                    match hidden_luns {
                        0 => crate::info!(
                            { initiator: &initiator, target: target.as_ref() },
                            "session of {initiator}{with} sees all its LUNs again"
                        ),
                        some => crate::warning!(
                            { initiator: &initiator, target: target.as_ref() },
                            "the configuration changed for the session of {initiator}{with}{}",
                            hidden(some, level)
                        ),
                    }
                }
                ShardEvent::SessionDown { initiator, target, peer, why } => {
                    let from = peer.map_or(String::new(), |peer| format!(" from {peer}"));
                    let with = target.as_ref().map_or(String::new(), |target| format!(" with {target}"));
                    if matches!(
                        why,
                        SessionEnd::LoggedOut
                            | SessionEnd::LogoutCaused
                            | SessionEnd::LastConnectionClosed
                            | SessionEnd::Reinstated
                            | SessionEnd::HalfClosed
                            | SessionEnd::Closed
                    ) {
                        crate::info!(
                            { initiator: &initiator, target: target.as_ref() },
                            "session of {initiator}{from}{with} is over: {why}"
                        );
                    } else {
                        crate::warning!(
                            { initiator: &initiator, target: target.as_ref() },
                            "session of {initiator}{from}{with} is over: {why}"
                        );
                    }
                }
                ShardEvent::LunWithheld { initiator, target, lun, claims } => {
                    let of = target.as_ref().map_or(String::new(), |target| format!(" of {target}"));
                    crate::warning!(
                        { initiator: &initiator, target: target.as_ref(), lun: lun },
                        "LUN {lun}{of} is not the disk that {initiator} opened: it is withheld from this initiator \
                         until the initiator has logged out of {} and in again, or until the LUN is that disk again",
                        ports_text(&claims)
                    );
                }
                ShardEvent::AllLunsWithheld { initiator, target } => {
                    let of = target.as_ref().map_or(String::new(), |target| format!(" of {target}"));
                    crate::warning!(
                        { initiator: &initiator, target: target.as_ref() },
                        "LUNs{of} without a recorded disk are withheld from {initiator} until it has logged out and in \
                         again: its record could not be read, or has two disks under one LUN"
                    );
                }
                ShardEvent::LoginRefused(FailedLogin { peer, claims, why }) => {
                    let initiator = claims.initiator.as_ref().map(IscsiName::as_str);
                    let of = initiator.map_or(String::new(), |name| format!(" of {name}"));
                    // A string from a peer can hold any characters, so it is quoted.
                    let user = claims.user.map_or(String::new(), |user| format!(" as {user:?}"));
                    let target = claims.target.as_ref();
                    let to = target.map_or(String::new(), |target| match target.parse::<IscsiName>() {
                        Ok(name) => format!(" with {name}"),
                        Err(_) => format!(" with {target:?}"),
                    });
                    crate::warning!(
                        { initiator: initiator, target: target.map(|target| &**target) },
                        "login{of}{user} from {peer}{to} is refused: {why}"
                    );
                }
                ShardEvent::Slow { initiator, target, lun, command } => {
                    log_slow_command(initiator.as_deref(), target.as_deref(), lun, &command);
                }
                ShardEvent::Initiator(note) => log_initiator_note(&note),
                notice => self.log_hyperscsi_notice(notice),
            }
        }
    }

    fn log_hyperscsi_notice(&self, notice: ShardEvent) {
        match notice {
            ShardEvent::HyperScsiSessionUp {
                initiator,
                target,
                group,
                peer,
                port,
                authenticated,
                hidden_luns,
            } => {
                let on = self.interface(port);
                let least =
                    self.runtime.config.hyperscsi.as_ref().map(|frames| frames.min_protection(&group));
                let protection = match (authenticated, least.unwrap_or_default()) {
                    (false, _) => "no password, no protection".to_owned(),
                    (true, least) => format!("password, protection at least {least}"),
                };
                let hidden = match hidden_luns {
                    0 => String::new(),
                    some => format!("; {some} LUNs require more protection, so that it does not see them"),
                };
                crate::info!(
                    { initiator: &initiator, target: &target },
                    "session of {initiator} from {peer} on {on} in group {group:?} ({protection}) with {target} is up{hidden}"
                );
            }
            ShardEvent::HyperScsiSessionDown { initiator, target, why } => {
                use hyperscsi::target::contract::SessionEnd;
                let with = target.as_ref().map_or(String::new(), |target| format!(" with {target}"));
                if matches!(
                    why,
                    SessionEnd::LoggedOut
                        | SessionEnd::GivenUp
                        | SessionEnd::Reinstated
                        | SessionEnd::Closed
                        | SessionEnd::ShutDown
                ) {
                    crate::info!(
                        { initiator: &initiator, target: target.as_ref() },
                        "session of {initiator}{with} is over: {why}"
                    );
                } else {
                    crate::warning!(
                        { initiator: &initiator, target: target.as_ref() },
                        "session of {initiator}{with} is over: {why}"
                    );
                }
            }
            ShardEvent::HandshakeRefused(Refused { port, peer, initiator, group, why }) => {
                let on = self.interface(port);
                let (initiator, group): (&str, &str) = (&initiator, &group);
                crate::warning!(
                    { initiator: initiator },
                    "login of {initiator} from {peer} on {on} in group {group:?} is refused: {why}"
                );
            }
            ShardEvent::Path { initiator, port, peer, change } => {
                let on = self.interface(port);
                if change.is_good() {
                    crate::info!(
                        { initiator: &initiator },
                        "session of {initiator} from {peer} on {on}: {change}"
                    );
                } else {
                    crate::warning!(
                        { initiator: &initiator },
                        "session of {initiator} from {peer} on {on}: {change}"
                    );
                }
            }
            // Every reactor has every interface; only the first reactor logs.
            ShardEvent::PortUp { port, state } if self.index == 0 => {
                let PortState { mac, mtu, receive_slots } = state;
                let on = self.interface(port);
                crate::info!("interface {on} is up: {mac}, MTU {mtu}, buffer for {receive_slots} frames");
                if receive_slots < FEW_SLOTS {
                    crate::warning!(
                        "the receive buffer of interface {on} holds only {receive_slots} frames, which makes \
                         transfers slow: raise net.core.rmem_max, or grant CAP_NET_ADMIN"
                    );
                }
            }
            ShardEvent::PortDown { port } if self.index == 0 => {
                crate::warning!("interface {} is down", self.interface(port));
            }
            _ => {}
        }
    }
}

/// Returns how many LUNs a session of a level does not see, for the end of a log line.
fn hidden(luns: usize, level: Level) -> String {
    match luns {
        0 => String::new(),
        1 => format!("; 1 LUN requires more protection than \"{level}\", so that it does not see the LUN"),
        some => {
            format!("; {some} LUNs require more protection than \"{level}\", so that it does not see them")
        }
    }
}

/// Logs a slow command, and where its time went.
fn log_slow_command(initiator: Option<&str>, target: Option<&str>, lun: Option<u16>, slow: &SlowCommand) {
    let SlowCommand { opcode, name, bytes, took, queued, medium, network, unreported, .. } = slow;
    let place = lun.map_or("a LUN".to_owned(), |lun| format!("LUN {lun}"));
    let of = target.map_or(String::new(), |target| format!(" of {target}"));
    let from = initiator.map_or(String::new(), |initiator| format!(" from {initiator}"));
    let more = match unreported {
        0 => String::new(),
        more => format!("; {more} more commands were slow since the last such line"),
    };
    let ms = |span: &Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    crate::warning!(
        {
            initiator: initiator,
            target: target,
            lun: lun,
            took_ms: ms(took),
            queue_ms: ms(queued),
            medium_ms: ms(medium),
            network_ms: ms(network),
        },
        "slow command on {place}{of}{from}: {name} ({opcode:02x}h, {bytes} bytes) took {} ms: queue {} ms, medium {} ms, \
         data of the initiator {} ms{more}",
        ms(took),
        ms(queued),
        ms(medium),
        ms(network)
    );
}

/// Logs what an operator should know of an initiator that is served.
fn log_initiator_note(note: &InitiatorNote) {
    let InitiatorNote { initiator, target, peer, kind: matter } = note;
    let with = target.as_ref().map_or(String::new(), |target| format!(" with {target}"));
    match matter {
        NoteKind::Deviation(departure) => {
            crate::info!(
                "{initiator} from {peer}{with} departs from the standard, which is harmless: {departure}"
            );
        }
        NoteKind::SharedName { isid, other, times } => crate::warning!(
            "two hosts use the name {initiator}: {other} and {} log in with ISID {isid}{with} and end each other's \
             session ({times} times since this was logged last); give each host an InitiatorName of its own",
            peer.ip()
        ),
    }
}

/// Returns the names of target ports for a message.
fn ports_text(ports: &[TargetPortName]) -> String {
    let names = ports.iter().map(|port| match port {
        TargetPortName::PortalGroup(tag) => format!("portal group {}", tag.0),
        TargetPortName::Group(group) => format!("HyperSCSI group {:?}", &**group),
    });
    let names: Vec<String> = names.collect();
    if names.is_empty() { "the target".to_owned() } else { names.join(" and ") }
}
