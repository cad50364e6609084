//! A tape drive in a document that one process hands over to the next. The next one does not load the
//! cartridge again.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Write as _};

use cartridge::Cartridge;
use cartridge::handover::{LoadedState, PartitionState};
use cartridge::label::Checkpoint;
use security::aead::KEY_LEN;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use zeroize::Zeroizing;

use super::encryption::{
    ClearKey, DecryptionMode, EncryptionMode, EncryptionParameters, ExternalCheck, NexusEncryption, Scope,
    TapeEncryption,
};
use super::encryption_key::{Key, KeyAssociated};
use super::{DeferredErrors, DriveState, Overwrite, TapeDrive, TransferCounts};
use crate::contract::NexusId;
use crate::document::hex::HexBytes;
use crate::document::sense::SenseState;
use crate::document::{IndexOf, NexusOf, RestoreError, indices_are_unique};
use crate::handover::UnitBusy;
use crate::pr::handover::NexusNameState;

/// The longest key-associated data that a state may have, in bytes: far more than SET DATA ENCRYPTION takes.
const ASSOCIATED_LEN_MAX: usize = 4096;

/// A tape drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TapeDriveState {
    cartridge: CartridgeState,
    deferred: DeferredState,
    lost_positions: Vec<u32>,
    demounts: u32,
    written: u64,
    read: u64,
    written_to_medium: u64,
    read_from_medium: u64,
    encryption: EncryptionState,
    overwrite: OverwriteState,
}

/// What is in the drive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum CartridgeState {
    Loaded(LoadedCartridge),
    Unloaded,
    Empty,
    Unusable(SenseState),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadedCartridge {
    label: HexBytes,
    is_label_changed: bool,
    first_copy: u8,
    is_writable: bool,
    partition: u8,
    position: [u64; 3],
    epoch: u32,
    partitions: Vec<PartState>,
    is_end_skipped: bool,
    damaged_headers: Vec<(u8, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartState {
    capacity: u64,
    end: u64,
    objects: u64,
    filemarks: u64,
    epoch: u32,
    first_encrypted: u64,
    durable: [u64; 2],
    is_unreadable: bool,
    unreadable_at: Option<u64>,
}

/// The errors that no host has been told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeferredState {
    of_nexuses: Vec<(u32, SenseState)>,
    of_lost: Option<SenseState>,
    of_unload: Option<SenseState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum OverwriteState {
    Disabled,
    AtPosition { partition: u8, object: u64 },
    Format,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EncryptionState {
    shared: Option<ParametersState>,
    nexuses: Vec<NexusEncryptionState>,
    counter: u32,
    counter_of_none: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusEncryptionState {
    nexus: u32,
    scope: ScopeState,
    locked_to: Option<u32>,
    is_registered: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
enum ScopeState {
    Public,
    Local(ParametersState),
    AllNexuses,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ParametersState {
    encryption: u8,
    decryption: u8,
    key: Option<KeyState>,
    kad_format: u8,
    unauthenticated: HexBytes,
    authenticated: HexBytes,
    external_check: u8,
    allows_raw_reads: bool,
    clear_on_demount: bool,
    clear_on_preempt: bool,
    clear_on_reservation_loss: bool,
    /// The nexus that set them; `None` if it is gone.
    owner: Option<u32>,
    owner_name: NexusNameState,
    counter: u32,
}

/// A key, as hexadecimal digits. Dropping it erases it.
#[derive(Clone, PartialEq, Eq)]
struct KeyState(Zeroizing<[u8; KEY_LEN]>);

impl TapeDrive {
    /// Returns what keeps the drive from being handed over, apart from tasks.
    pub(crate) fn busy(&self) -> Option<UnitBusy> {
        if self.cartridge.has_lost_writes() {
            return Some(UnitBusy::LostWrites);
        }
        if !self.is_free()
            || self.is_ejecting
            || self.state == DriveState::Loading
            || self.cartridge.is_busy()
        {
            return Some(UnitBusy::Medium);
        }
        if self.is_unsynchronized() {
            return Some(UnitBusy::Unsynchronized);
        }
        (self.is_loaded() && !self.cartridge.is_movable()).then_some(UnitBusy::Medium)
    }

    /// Returns whether records that were acknowledged may not be durable.
    pub(crate) fn is_unsynchronized(&self) -> bool {
        self.is_loaded() && (self.is_unsynced || self.cartridge.is_unsynchronized())
    }

    /// Returns the drive in a document. It is not busy.
    pub(crate) fn export(&self, index_of: IndexOf<'_>) -> TapeDriveState {
        // Every field is named here, so that a new one is not forgotten.
        let Self {
            cartridge,
            state,
            running: _,
            turn: _,
            is_turn_outdated: _,
            is_turn_over: _,
            is_write_aborted: _,
            loss_heard: _,
            waiting: _,
            outcome: _,
            immediate: _,
            deferred,
            lost_positions,
            repositioning: _,
            operations: _,
            tag_next: _,
            is_reading: _,
            is_unsynced: _,
            is_close_failed: _,
            sync_wanted: _,
            is_ejecting: _,
            eject_failure: _,
            is_new: _,
            demounts,
            counts: TransferCounts { written, written_to_medium, read_from_medium, read },
            encryption,
            overwrite,
        } = self;
        TapeDriveState {
            cartridge: match state {
                DriveState::Loaded => cartridge
                    .export()
                    .map_or(CartridgeState::Unloaded, |loaded| CartridgeState::Loaded(loaded.into())),
                DriveState::Unloaded | DriveState::Loading => CartridgeState::Unloaded,
                DriveState::Empty => CartridgeState::Empty,
                DriveState::Unusable(sense) => CartridgeState::Unusable(SenseState::of(sense)),
            },
            deferred: deferred.export(index_of),
            lost_positions: lost_positions.iter().filter_map(|nexus| index_of(*nexus)).collect(),
            demounts: *demounts,
            written: *written,
            read: *read,
            written_to_medium: *written_to_medium,
            read_from_medium: *read_from_medium,
            encryption: encryption.export(index_of),
            overwrite: match *overwrite {
                Overwrite::Disabled => OverwriteState::Disabled,
                Overwrite::AtPosition { partition, object } => {
                    OverwriteState::AtPosition { partition, object }
                }
                Overwrite::Format => OverwriteState::Format,
            },
        }
    }

    /// Returns the drive of a document, with or without a cartridge in its store.
    ///
    /// # Errors
    /// [`RestoreError`] for a state that no drive has, or that of a drive with or without a cartridge.
    pub(crate) fn restored(
        state: &TapeDriveState,
        has_cartridge: bool,
        nexus_of: NexusOf<'_>,
    ) -> Result<Self, RestoreError> {
        if has_cartridge == matches!(state.cartridge, CartridgeState::Empty) {
            return Err(RestoreError::Cartridge);
        }
        let (cartridge, drive_state) = match &state.cartridge {
            CartridgeState::Loaded(loaded) => {
                let cartridge = Cartridge::restore(&loaded.into()).ok_or(RestoreError::Cartridge)?;
                (cartridge, DriveState::Loaded)
            }
            CartridgeState::Unloaded => (Cartridge::new(), DriveState::Unloaded),
            CartridgeState::Empty => (Cartridge::new(), DriveState::Empty),
            CartridgeState::Unusable(sense) => (Cartridge::new(), DriveState::Unusable(sense.restore())),
        };
        if !indices_are_unique(state.lost_positions.iter().copied()) {
            return Err(RestoreError::NexusTwice);
        }
        Ok(Self {
            cartridge,
            state: drive_state,
            deferred: DeferredErrors::restored(&state.deferred, nexus_of)?,
            lost_positions: state.lost_positions.iter().filter_map(|index| nexus_of(*index)).collect(),
            demounts: state.demounts,
            counts: TransferCounts {
                written: state.written,
                written_to_medium: state.written_to_medium,
                read_from_medium: state.read_from_medium,
                read: state.read,
            },
            encryption: TapeEncryption::restored(&state.encryption, nexus_of)?,
            overwrite: match state.overwrite {
                OverwriteState::Disabled => Overwrite::Disabled,
                OverwriteState::AtPosition { partition, object } => {
                    Overwrite::AtPosition { partition, object }
                }
                OverwriteState::Format => Overwrite::Format,
            },
            ..Self::new()
        })
    }
}

impl From<LoadedState> for LoadedCartridge {
    fn from(state: LoadedState) -> Self {
        let LoadedState {
            label,
            is_label_changed,
            first_copy,
            is_writable,
            partition,
            position,
            epoch,
            partitions,
            is_end_skipped,
            damaged_headers,
        } = state;
        let part = |PartitionState { now, durable, unreadable }| {
            let Checkpoint { capacity, end, objects, filemarks, epoch, first_encrypted } = now;
            PartState {
                capacity,
                end,
                objects,
                filemarks,
                epoch,
                first_encrypted,
                durable,
                is_unreadable: unreadable.is_some(),
                unreadable_at: unreadable.flatten(),
            }
        };
        Self {
            label: HexBytes(label),
            is_label_changed,
            first_copy,
            is_writable,
            partition,
            position,
            epoch,
            partitions: partitions.into_iter().map(part).collect(),
            is_end_skipped,
            damaged_headers,
        }
    }
}

impl From<&LoadedCartridge> for LoadedState {
    fn from(state: &LoadedCartridge) -> Self {
        let part = |part: &PartState| {
            let PartState { capacity, end, objects, filemarks, epoch, first_encrypted, .. } = *part;
            PartitionState {
                now: Checkpoint { capacity, end, objects, filemarks, epoch, first_encrypted },
                durable: part.durable,
                unreadable: part.is_unreadable.then_some(part.unreadable_at),
            }
        };
        Self {
            label: state.label.0.clone(),
            is_label_changed: state.is_label_changed,
            first_copy: state.first_copy,
            is_writable: state.is_writable,
            partition: state.partition,
            position: state.position,
            epoch: state.epoch,
            partitions: state.partitions.iter().map(part).collect(),
            is_end_skipped: state.is_end_skipped,
            damaged_headers: state.damaged_headers.clone(),
        }
    }
}

impl DeferredErrors {
    fn export(&self, index_of: IndexOf<'_>) -> DeferredState {
        let Self { of_nexuses, of_lost, of_unload } = self;
        // A nexus that is not handed over counts as lost.
        let lost = of_nexuses.iter().find(|(nexus, _)| index_of(**nexus).is_none()).map(|(_, sense)| sense);
        let present =
            of_nexuses.iter().filter_map(|(nexus, sense)| Some((index_of(*nexus)?, SenseState::of(sense))));
        DeferredState {
            of_nexuses: present.collect(),
            of_lost: of_lost.as_ref().or(lost).map(SenseState::of),
            of_unload: of_unload.as_ref().map(SenseState::of),
        }
    }

    fn restored(state: &DeferredState, nexus_of: NexusOf<'_>) -> Result<Self, RestoreError> {
        let DeferredState { of_nexuses, of_lost, of_unload } = state;
        if !indices_are_unique(of_nexuses.iter().map(|(nexus, _)| *nexus)) {
            return Err(RestoreError::NexusTwice);
        }
        let mut errors = Self {
            of_lost: of_lost.as_ref().map(SenseState::restore),
            of_unload: of_unload.as_ref().map(SenseState::restore),
            ..Self::default()
        };
        for (index, sense) in of_nexuses {
            match nexus_of(*index) {
                Some(nexus) => errors.record(nexus, sense.restore()),
                None => drop(errors.of_lost.get_or_insert(sense.restore())),
            }
        }
        Ok(errors)
    }
}

impl TapeEncryption {
    fn export(&self, index_of: IndexOf<'_>) -> EncryptionState {
        let Self { shared, nexuses, counter, counter_of_none, random: _ } = self;
        let nexus = |(id, state): (&NexusId, &NexusEncryption)| {
            let NexusEncryption { scope, locked_to, is_registered } = state;
            Some(NexusEncryptionState {
                nexus: index_of(*id)?,
                scope: match scope {
                    Scope::Public => ScopeState::Public,
                    Scope::Local(own) => ScopeState::Local(own.export(index_of)),
                    Scope::AllNexuses => ScopeState::AllNexuses,
                },
                locked_to: *locked_to,
                is_registered: *is_registered,
            })
        };
        EncryptionState {
            shared: shared.as_ref().map(|shared| shared.export(index_of)),
            nexuses: nexuses.iter().filter_map(nexus).collect(),
            counter: *counter,
            counter_of_none: *counter_of_none,
        }
    }

    /// Returns the parameters of a document. It has no seed.
    fn restored(state: &EncryptionState, nexus_of: NexusOf<'_>) -> Result<Self, RestoreError> {
        let EncryptionState { shared, nexuses, counter, counter_of_none } = state;
        if !indices_are_unique(nexuses.iter().map(|state| state.nexus)) {
            return Err(RestoreError::NexusTwice);
        }
        let parameters = |state: &ParametersState| state.restore(nexus_of).map(Rc::new);
        let mut encryption = Self::new();
        encryption.shared = shared.as_ref().map(parameters).transpose()?;
        (encryption.counter, encryption.counter_of_none) = (*counter, *counter_of_none);
        for NexusEncryptionState { nexus, scope, locked_to, is_registered } in nexuses {
            let scope = match scope {
                ScopeState::Public => Scope::Public,
                ScopeState::Local(own) => Scope::Local(parameters(own)?),
                ScopeState::AllNexuses => Scope::AllNexuses,
            };
            if let Some(id) = nexus_of(*nexus) {
                let state = NexusEncryption { scope, locked_to: *locked_to, is_registered: *is_registered };
                encryption.nexuses.insert(id, state);
            }
        }
        Ok(encryption)
    }
}

impl EncryptionParameters {
    fn export(&self, index_of: IndexOf<'_>) -> ParametersState {
        let Self {
            encryption,
            decryption,
            key,
            associated: KeyAssociated { format, unauthenticated, authenticated },
            external_check,
            allows_raw_reads,
            clear: ClearKey { on_demount, on_preempt, on_reservation_loss },
            owner,
            owner_name,
            counter,
        } = self;
        ParametersState {
            encryption: *encryption as u8,
            decryption: *decryption as u8,
            key: key.as_ref().map(|key| KeyState(Zeroizing::new(*key.cipher.key_bytes()))),
            kad_format: *format,
            unauthenticated: HexBytes::of(unauthenticated),
            authenticated: HexBytes::of(authenticated),
            external_check: *external_check as u8,
            allows_raw_reads: *allows_raw_reads,
            clear_on_demount: *on_demount,
            clear_on_preempt: *on_preempt,
            clear_on_reservation_loss: *on_reservation_loss,
            owner: index_of(*owner),
            owner_name: NexusNameState::of(owner_name),
            counter: *counter,
        }
    }
}

impl ParametersState {
    fn restore(&self, nexus_of: NexusOf<'_>) -> Result<EncryptionParameters, RestoreError> {
        let encryption = match self.encryption {
            0 => EncryptionMode::Disable,
            1 => EncryptionMode::External,
            2 => EncryptionMode::Encrypt,
            _ => return Err(RestoreError::Encryption),
        };
        let decryption = match self.decryption {
            0 => DecryptionMode::Disable,
            1 => DecryptionMode::Raw,
            2 => DecryptionMode::Decrypt,
            3 => DecryptionMode::Mixed,
            _ => return Err(RestoreError::Encryption),
        };
        let external_check = match self.external_check {
            0 => ExternalCheck::Default,
            1 => ExternalCheck::None,
            2 => ExternalCheck::RefuseExternal,
            3 => ExternalCheck::RefuseEncrypted,
            _ => return Err(RestoreError::Encryption),
        };
        if self.unauthenticated.0.len().max(self.authenticated.0.len()) > ASSOCIATED_LEN_MAX {
            return Err(RestoreError::Encryption);
        }
        Ok(EncryptionParameters {
            encryption,
            decryption,
            key: self.key.as_ref().map(|key| Key::new(&key.0)),
            associated: KeyAssociated {
                format: self.kad_format,
                unauthenticated: self.unauthenticated.0.clone(),
                authenticated: self.authenticated.0.clone(),
            },
            external_check,
            allows_raw_reads: self.allows_raw_reads,
            clear: ClearKey {
                on_demount: self.clear_on_demount,
                on_preempt: self.clear_on_preempt,
                on_reservation_loss: self.clear_on_reservation_loss,
            },
            owner: self.owner.and_then(nexus_of).unwrap_or(NexusId::OWN),
            owner_name: self.owner_name.restore()?,
            counter: self.counter,
        })
    }
}

impl fmt::Debug for KeyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyState(…)")
    }
}

impl Serialize for KeyState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Zeroizing::new(String::with_capacity(2 * KEY_LEN));
        for byte in self.0.iter() {
            // Writing to a string cannot fail.
            let _ = write!(*text, "{byte:02x}");
        }
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for KeyState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;

        impl de::Visitor<'_> for Digits {
            type Value = KeyState;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} hexadecimal digits", 2 * KEY_LEN)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<KeyState, E> {
                // The text itself is a secret, so the error does not show it.
                decode(text).ok_or_else(|| E::invalid_length(text.len(), &self))
            }
        }

        deserializer.deserialize_str(Digits)
    }
}

fn decode(text: &str) -> Option<KeyState> {
    let (digits, rest) = text.as_bytes().as_chunks::<2>();
    if digits.len() != KEY_LEN || !rest.is_empty() {
        return None;
    }
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let mut bytes = Zeroizing::new([0; KEY_LEN]);
    for (byte, [high, low]) in bytes.iter_mut().zip(digits) {
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(KeyState(bytes))
}
