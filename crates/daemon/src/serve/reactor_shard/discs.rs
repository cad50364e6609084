//! Puts discs into drives.

use std::path::PathBuf;

use base::state_machine::MediumId;
use base::time::Instant;

use super::ReactorShard;
use crate::serve::discs::NewDisc;

impl ReactorShard {
    /// Puts discs into drives. A disc that an initiator holds stays, and the initiator is asked to release
    /// it; the next reload tries again.
    pub(in crate::serve) fn change_discs(&mut self, now: Instant, discs: Vec<NewDisc>) {
        let reports = self.shard.units();
        for NewDisc { id, image } in discs {
            let (Some(drive), Some(unit)) = (self.drives.get(&id).cloned(), self.runtime.unit(id)) else {
                continue;
            };
            let label = unit.label.clone();
            let is_held = reports.iter().any(|report| report.unit == id && report.removal_prevented);
            if let Some(disc) = drive.disc().filter(|disc| is_held && disc.withheld().is_none()) {
                crate::error!(
                    "{label}: {} stays in the drive, because an initiator prevents its removal; unmount or \
                     eject it there, and reload the configuration again",
                    disc.info().path.display()
                );
                self.shard.removal_requested(now, id);
                continue;
            }
            if drive.is_busy() && image.as_ref().is_some_and(|image| image.is_of(&drive)) {
                // They could end after hosts have changed the same bytes again.
                crate::error!(
                    "{label}: its disc is not served again, because operations that began before are under \
                     way on the same file; reload the configuration again"
                );
                continue;
            }
            let disc = image.map(|image| image.place(&self.files, MediumId(id.0), &label));
            match &disc {
                Some(disc) => crate::info!("{label}: {} is in the drive", disc.info().path.display()),
                None => crate::info!("{label}: the drive is empty"),
            }
            let left = drive.disc().map_or(PathBuf::new(), |disc| disc.info().path.clone());
            drive.put(disc.clone(), move |is_durable| {
                if !is_durable {
                    let left = left.display();
                    crate::error!("{label}: what hosts wrote last may be missing on the disc {left}, which left the drive");
                }
            });
            self.disks.remove(&id);
            if let Some(disc) = disc {
                self.watch(id, disc);
            }
            self.shard.medium_replaced(now, id);
        }
    }
}
