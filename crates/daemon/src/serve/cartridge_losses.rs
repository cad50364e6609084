//! Cartridges that do not hold everything that hosts wrote when the daemon ends.

use target::units::UnitId;

use super::daemon_event::DaemonEvent;
use super::media;
use super::runtime_config::RuntimeConfig;
use crate::config::{Unit, UnitIndex};

/// Returns a sentence for each cartridge whose unit was not closed with everything that hosts wrote: it could
/// not be written, or the reactor of the unit did not end in time.
pub(super) fn of(runtime: &RuntimeConfig, events: impl Iterator<Item = DaemonEvent>) -> Vec<String> {
    let closed = |event| match event {
        DaemonEvent::UnitClosed(id) => Some(id),
        _ => None,
    };
    let closed: Vec<UnitId> = events.filter_map(closed).collect();
    let units = (0..).map(UnitIndex).zip(&runtime.config.units);
    let units = units.map(|(index, unit)| (runtime.number(index), unit));
    among(units, &closed)
}

fn among<'u>(units: impl Iterator<Item = (Option<UnitId>, &'u Unit)>, closed: &[UnitId]) -> Vec<String> {
    units
        .filter(|(id, unit)| media::holds_hosts_writes(unit) && !id.is_some_and(|id| closed.contains(&id)))
        .map(|(_, unit)| {
            let path = unit.medium.path().map(|path| path.display().to_string()).unwrap_or_default();
            format!("{}: what hosts wrote last may be missing on the cartridge {path}", unit.label)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use base::units::BlockSize;
    use device::contract::InquiryOverrides;

    use super::*;
    use crate::config::{Identity, Medium, Naa};

    fn tape(name: &str, read_only: bool) -> Unit {
        Unit {
            label: name.to_owned(),
            medium: Medium::Tape { path: PathBuf::from("/srv").join(name) },
            block_size: BlockSize::B512,
            physical_block_size: BlockSize::B512,
            read_only,
            thin: false,
            write_cache: true,
            io_timeout: None,
            limit: device::rate_limit::RateLimit::NONE,
            tasks: device::contract::TaskRules::default(),
            encrypt: None,
            atomic_block_size: None,
            removable: true,
            long_cdbs: false,
            claims: InquiryOverrides::default(),
            identity: Identity {
                serial: String::new(),
                naa: Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 1]),
                vendor: String::new(),
                product: String::new(),
                revision: String::new(),
            },
        }
    }

    #[test]
    fn a_cartridge_whose_unit_was_not_closed_is_named() {
        let units = [tape("A1", false), tape("A2", false), tape("A3", true)];
        let numbered = || (1..).map(|number| Some(UnitId(number))).zip(&units);
        assert_eq!(among(numbered(), &[UnitId(1), UnitId(2)]), [""; 0]);
        let lost = "A2: what hosts wrote last may be missing on the cartridge /srv/A2";
        assert_eq!(among(numbered(), &[UnitId(1)]), [lost]);
    }
}
