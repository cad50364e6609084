//! What a unit keeps for its nexuses, in a document that one process hands over to the next.

use alloc::rc::Rc;
use alloc::vec::Vec;

use scsi::sense::Asc;
use serde::{Deserialize, Serialize};

use super::{Lost, MAX_LOST, NexusState, Nexuses};
use crate::contract::{Access, NexusId};
use crate::document::sense::SenseState;
use crate::document::{IndexOf, NexusOf, RestoreError, indices_are_unique};
use crate::medium_removal::MediaEvent;
use crate::pr::NexusName;
use crate::pr::handover::NexusNameState;
use crate::settings::NexusSettings;
use crate::settings::handover::NexusSettingsState;
use crate::tape_drive::TapeAlerts;
use crate::unit_attention::{MAX_PENDING, UnitAttentions};

/// The nexuses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NexusesState {
    present: Vec<PresentState>,
    /// Oldest loss first.
    lost: Vec<LostState>,
    unread_alerts: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PresentState {
    nexus: u32,
    name: NexusNameState,
    is_read_only: bool,
    attentions: Vec<SenseState>,
    media_event: MediaEventState,
    tape_alerts: u64,
    /// The settings of the nexus, if they are others than those of the unit's settings.
    settings: Option<NexusSettingsState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LostState {
    name: NexusNameState,
    attentions: Vec<SenseState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum MediaEventState {
    NoChange,
    EjectRequest,
    NewMedia,
    MediaRemoval,
}

/// The nexuses of a document, checked, before they replace those of a unit.
pub(crate) struct RestoredNexuses {
    present: Vec<(Option<NexusId>, PresentNexus)>,
    lost: Vec<Lost>,
    unread_alerts: TapeAlerts,
}

struct PresentNexus {
    name: NexusName,
    is_read_only: bool,
    attentions: UnitAttentions,
    media_event: MediaEvent,
    tape_alerts: TapeAlerts,
    settings: NexusSettings,
}

impl Nexuses {
    /// Returns everything in a document. Nexuses without an index count as lost.
    pub(crate) fn export(&self, index_of: IndexOf<'_>) -> NexusesState {
        let Self { present, lost, unread_alerts } = self;
        let mut state =
            NexusesState { present: Vec::new(), lost: Vec::new(), unread_alerts: unread_alerts.bits() };
        for Lost { initiator_port, target_port, attentions } in lost {
            let (initiator_port, target_port) = (Rc::clone(initiator_port), *target_port);
            let name = NexusNameState::of(&NexusName { initiator_port, target_port });
            state.lost.push(LostState { name, attentions: export_attentions(attentions) });
        }
        for NexusState { nexus, attentions, media_event, tape_alerts, settings } in present {
            let name = NexusNameState::of(&NexusName::of(nexus));
            let attentions = export_attentions(attentions);
            let Some(index) = index_of(nexus.id) else {
                state.lost.push(LostState { name, attentions });
                continue;
            };
            state.present.push(PresentState {
                nexus: index,
                name,
                is_read_only: nexus.access == Access::ReadOnly,
                attentions,
                media_event: match media_event {
                    MediaEvent::NoChange => MediaEventState::NoChange,
                    MediaEvent::EjectRequest => MediaEventState::EjectRequest,
                    MediaEvent::NewMedia => MediaEventState::NewMedia,
                    MediaEvent::MediaRemoval => MediaEventState::MediaRemoval,
                },
                tape_alerts: tape_alerts.bits(),
                settings: (*settings != NexusSettings::DEFAULT).then(|| settings.export()),
            });
        }
        state.present.sort_by_key(|present| present.nexus);
        let surplus = state.lost.len().saturating_sub(MAX_LOST);
        state.lost.drain(..surplus);
        state
    }

    /// Replaces what the unit keeps for its nexuses, which were established before. A nexus that the document
    /// does not name keeps its own.
    pub(crate) fn adopt(&mut self, restored: RestoredNexuses) {
        self.lost = restored.lost;
        self.unread_alerts = restored.unread_alerts;
        for (id, state) in restored.present {
            match id.and_then(|id| self.find_mut(id)) {
                Some(present) => state.adopt_into(present),
                None => self.remember(state.name, state.attentions),
            }
        }
    }

    /// Records a nexus that has seen the unit and does not any more.
    fn remember(&mut self, name: NexusName, attentions: UnitAttentions) {
        if self.lost.len() >= MAX_LOST {
            self.lost.remove(0);
        }
        let NexusName { initiator_port, target_port } = name;
        self.lost.push(Lost { initiator_port, target_port, attentions });
    }
}

impl PresentNexus {
    /// Replaces the state of the nexus, which learns of changes of its own access.
    fn adopt_into(self, present: &mut NexusState) {
        let NexusState { nexus, attentions, media_event, tape_alerts, settings } = present;
        *attentions = self.attentions;
        *media_event = self.media_event;
        *tape_alerts = self.tape_alerts;
        *settings = self.settings;
        if (nexus.access == Access::ReadOnly) != self.is_read_only {
            attentions.establish(Asc::MODE_PARAMETERS_CHANGED);
        }
    }
}

impl RestoredNexuses {
    /// Checks the nexuses of a document. Those that it gives no settings get `default`.
    ///
    /// # Errors
    /// [`RestoreError`] for a nexus that is there twice, for ports that are none, for settings that a nexus
    /// cannot have, and for too much of anything.
    pub(crate) fn of(
        state: &NexusesState,
        default: NexusSettings,
        nexus_of: NexusOf<'_>,
    ) -> Result<Self, RestoreError> {
        let NexusesState { present, lost, unread_alerts } = state;
        if lost.len() > MAX_LOST {
            return Err(RestoreError::TooMany("lost nexuses"));
        }
        if !indices_are_unique(present.iter().map(|state| state.nexus)) {
            return Err(RestoreError::NexusTwice);
        }
        let lost = lost.iter().map(|LostState { name, attentions }| {
            let NexusName { initiator_port, target_port } = name.restore()?;
            Ok(Lost { initiator_port, target_port, attentions: restore_attentions(attentions)? })
        });
        let present = present.iter().map(|state| {
            let PresentState { nexus, name, is_read_only, attentions, media_event, tape_alerts, settings } =
                state;
            let restored = PresentNexus {
                name: name.restore()?,
                is_read_only: *is_read_only,
                attentions: restore_attentions(attentions)?,
                media_event: match media_event {
                    MediaEventState::NoChange => MediaEvent::NoChange,
                    MediaEventState::EjectRequest => MediaEvent::EjectRequest,
                    MediaEventState::NewMedia => MediaEvent::NewMedia,
                    MediaEventState::MediaRemoval => MediaEvent::MediaRemoval,
                },
                tape_alerts: TapeAlerts::of_bits(*tape_alerts),
                settings: settings.map_or(Ok(default), NexusSettings::restore)?,
            };
            Ok((nexus_of(*nexus), restored))
        });
        Ok(Self {
            present: present.collect::<Result<_, _>>()?,
            lost: lost.collect::<Result<_, _>>()?,
            unread_alerts: TapeAlerts::of_bits(*unread_alerts),
        })
    }
}

fn export_attentions(attentions: &UnitAttentions) -> Vec<SenseState> {
    attentions.pending().iter().map(SenseState::of).collect()
}

fn restore_attentions(attentions: &[SenseState]) -> Result<UnitAttentions, RestoreError> {
    if attentions.len() > MAX_PENDING {
        return Err(RestoreError::TooMany("unit attentions"));
    }
    Ok(UnitAttentions::of_pending(attentions.iter().map(SenseState::restore).collect()))
}
