//! The nexuses that reach this unit, and a record of lost ones.

pub(crate) mod handover;

use alloc::rc::Rc;
use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use crate::contract::{Nexus, NexusId, RelativePort};
use crate::medium_removal::MediaEvent;
use crate::settings::NexusSettings;
use crate::tape_drive::{Alert, TapeAlerts};
use crate::unit_attention::UnitAttentions;

/// How many lost nexuses are recorded, so that one that returns receives I_T NEXUS LOSS OCCURRED and the unit
/// attentions that it missed. The nexus lost longest ago is forgotten first; when it returns, it receives the
/// unit attention for power on or reset, which requires as much of its host.
const MAX_LOST: usize = 1024;

/// A nexus with the state that the unit keeps for it.
#[derive(Debug)]
pub(crate) struct NexusState {
    /// The description of the nexus.
    pub(crate) nexus: Nexus,
    /// The unit attentions that are pending for it.
    pub(crate) attentions: UnitAttentions,
    /// The last media event that the nexus has not polled.
    pub(crate) media_event: MediaEvent,
    /// The TapeAlert flags that it has not read.
    tape_alerts: TapeAlerts,
    /// Its settings of a tape drive. The host that returns after a loss sets them anew.
    settings: NexusSettings,
}

/// Every nexus, by number.
#[derive(Debug, Default)]
pub(crate) struct Nexuses {
    /// Sorted by number.
    present: Vec<NexusState>,
    /// Oldest loss first.
    lost: Vec<Lost>,
    /// The TapeAlert flags that no nexus has read.
    unread_alerts: TapeAlerts,
}

#[derive(Debug)]
struct Lost {
    initiator_port: Rc<[u8]>,
    target_port: RelativePort,
    attentions: UnitAttentions,
}

impl Lost {
    fn is(&self, initiator_port: &[u8], target_port: RelativePort) -> bool {
        *self.initiator_port == *initiator_port && self.target_port == target_port
    }
}

impl Nexuses {
    /// Adds a nexus, or replaces its description. A new nexus has a unit attention pending.
    pub(crate) fn establish(&mut self, nexus: Nexus) {
        match self.position(nexus.id) {
            Ok(at) => {
                if let Some(state) = self.present.get_mut(at) {
                    state.nexus = nexus;
                }
            }
            Err(at) => {
                let attentions = self.remembered(&nexus);
                let media_event = MediaEvent::NoChange;
                let tape_alerts = self.unread_alerts;
                let settings = NexusSettings::DEFAULT;
                let state = NexusState { nexus, attentions, media_event, tape_alerts, settings };
                self.present.insert(at, state);
            }
        }
    }

    /// Removes a nexus, and records the unit attentions that it must receive if it returns.
    pub(crate) fn lose(&mut self, id: NexusId) -> Option<Nexus> {
        let at = self.position(id).ok()?;
        let NexusState { nexus, attentions, .. } = self.present.remove(at);
        if self.lost.len() >= MAX_LOST {
            self.lost.remove(0);
        }
        self.lost.push(Lost {
            initiator_port: Rc::clone(&nexus.initiator_port),
            target_port: nexus.target_port,
            attentions,
        });
        Some(nexus)
    }

    /// Returns a nexus.
    pub(crate) fn find(&self, id: NexusId) -> Option<&NexusState> {
        self.present.get(self.position(id).ok()?)
    }

    /// Returns a nexus for modification.
    pub(crate) fn find_mut(&mut self, id: NexusId) -> Option<&mut NexusState> {
        let at = self.position(id).ok()?;
        self.present.get_mut(at)
    }

    /// Returns all nexuses, by number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &NexusState> {
        self.present.iter()
    }

    /// Records a media event for every nexus. Only the last one matters, because a poll reports the present
    /// state; a request to eject does not replace the news of a disc.
    pub(crate) fn record_media_event(&mut self, event: MediaEvent) {
        for state in &mut self.present {
            if event != MediaEvent::EjectRequest || state.media_event == MediaEvent::NoChange {
                state.media_event = event;
            }
        }
    }

    /// Sets a TapeAlert flag for every nexus, and for one that comes before any has read it.
    pub(crate) fn raise_alert(&mut self, alert: Alert) {
        self.unread_alerts.raise(alert);
        self.present.iter_mut().for_each(|state| state.tape_alerts.raise(alert));
    }

    /// Returns the TapeAlert flags that a nexus has not read.
    pub(crate) fn tape_alerts(&self, id: NexusId) -> TapeAlerts {
        self.find(id).map_or(self.unread_alerts, |state| state.tape_alerts)
    }

    /// Records that a nexus has read its TapeAlert flags.
    pub(crate) fn tape_alerts_read(&mut self, id: NexusId) {
        self.unread_alerts = TapeAlerts::default();
        if let Some(state) = self.find_mut(id) {
            state.tape_alerts = TapeAlerts::default();
        }
    }

    /// Returns the settings of a nexus.
    pub(crate) fn settings(&self, id: NexusId) -> NexusSettings {
        self.find(id).map_or(NexusSettings::DEFAULT, |state| state.settings)
    }

    /// Replaces the settings of a nexus.
    pub(crate) fn set_settings(&mut self, id: NexusId, settings: NexusSettings) {
        if let Some(state) = self.find_mut(id) {
            state.settings = settings;
        }
    }

    /// Gives every nexus the default settings.
    pub(crate) fn reset_settings(&mut self) {
        self.present.iter_mut().for_each(|state| state.settings = NexusSettings::DEFAULT);
    }

    /// Clears the TapeAlert flags of every nexus: the cartridge that they are about is gone.
    pub(crate) fn clear_alerts(&mut self) {
        self.unread_alerts = TapeAlerts::default();
        self.present.iter_mut().for_each(|state| state.tape_alerts = TapeAlerts::default());
    }

    /// Establishes a unit attention for one nexus.
    pub(crate) fn establish_ua(&mut self, id: NexusId, asc: Asc) {
        if let Some(state) = self.find_mut(id) {
            state.attentions.establish(asc);
        }
    }

    /// Establishes a unit attention for every nexus except `except`, and for lost nexuses that may return.
    pub(crate) fn establish_ua_all(&mut self, asc: Asc, except: Option<NexusId>) {
        for state in self.present.iter_mut().filter(|state| Some(state.nexus.id) != except) {
            state.attentions.establish(asc);
        }
        for lost in &mut self.lost {
            lost.attentions.establish(asc);
        }
    }

    /// Establishes a unit attention that a device reported to one nexus, or to none, for every other nexus.
    pub(crate) fn establish_ua_of_device(&mut self, sense: Sense, told: Option<NexusId>) {
        for state in self.present.iter_mut().filter(|state| Some(state.nexus.id) != told) {
            state.attentions.establish_with(sense);
        }
        for lost in &mut self.lost {
            lost.attentions.establish_with(sense);
        }
    }

    /// Establishes a unit attention for a nexus named by its ports, whether it is present or lost.
    pub(crate) fn establish_ua_at_ports(
        &mut self,
        initiator_port: &[u8],
        target_port: RelativePort,
        asc: Asc,
    ) {
        let here = |state: &&mut NexusState| {
            *state.nexus.initiator_port == *initiator_port && state.nexus.target_port == target_port
        };
        if let Some(state) = self.present.iter_mut().find(here) {
            state.attentions.establish(asc);
        } else if let Some(lost) = self.lost.iter_mut().find(|lost| lost.is(initiator_port, target_port)) {
            lost.attentions.establish(asc);
        }
    }

    fn remembered(&mut self, nexus: &Nexus) -> UnitAttentions {
        let known = self.lost.iter().position(|lost| lost.is(&nexus.initiator_port, nexus.target_port));
        let mut attentions = match known {
            Some(at) => self.lost.remove(at).attentions,
            None => UnitAttentions::default(),
        };
        attentions.establish(match known {
            Some(_) => Asc::I_T_NEXUS_LOSS_OCCURRED,
            // The general code: initiators in use (iscsi-ls) retry after this code and no other.
            None => Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET,
        });
        attentions
    }

    fn position(&self, id: NexusId) -> Result<usize, usize> {
        self.present.binary_search_by_key(&id, |state| state.nexus.id)
    }
}
