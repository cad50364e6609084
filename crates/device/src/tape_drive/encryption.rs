//! The data encryption parameters of a tape drive (SSC-4): with which key each nexus writes and
//! reads. Keys are in memory only.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};
use security::random::{HmacDrbg, mac};

use super::encrypted_record::EncryptedInfo;
use super::encryption_key::{Key, KeyAssociated};
use crate::contract::NexusId;
use crate::pr::NexusName;

/// ENCRYPTION MODE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EncryptionMode {
    #[default]
    Disable = 0,
    External = 1,
    Encrypt = 2,
}

/// DECRYPTION MODE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DecryptionMode {
    #[default]
    Disable = 0,
    Raw = 1,
    Decrypt = 2,
    Mixed = 3,
}

/// CEEM: which records a drive refuses to decrypt by how they were written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ExternalCheck {
    #[default]
    Default = 0,
    None = 1,
    /// Those that were written in EXTERNAL mode.
    RefuseExternal = 2,
    /// Those that were written in ENCRYPT mode.
    RefuseEncrypted = 3,
}

/// When a drive forgets a key by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClearKey {
    /// CKOD: when the cartridge is unloaded.
    pub(crate) on_demount: bool,
    /// CKORP: when the reservation of the nexus that set it is preempted.
    pub(crate) on_preempt: bool,
    /// CKORL: when that reservation is lost.
    pub(crate) on_reservation_loss: bool,
}

/// A set of data encryption parameters.
#[derive(Debug)]
pub(crate) struct EncryptionParameters {
    pub(crate) encryption: EncryptionMode,
    pub(crate) decryption: DecryptionMode,
    pub(crate) key: Option<Key>,
    pub(crate) associated: KeyAssociated,
    pub(crate) external_check: ExternalCheck,
    pub(crate) allows_raw_reads: bool,
    pub(crate) clear: ClearKey,
    /// The nexus that set them.
    pub(crate) owner: NexusId,
    pub(crate) owner_name: NexusName,
    /// KEY INSTANCE COUNTER.
    pub(crate) counter: u32,
}

impl EncryptionParameters {
    /// Returns whether they decrypt a record.
    pub(crate) fn can_decrypt(&self, info: &EncryptedInfo) -> bool {
        let is_decrypting = matches!(self.decryption, DecryptionMode::Decrypt | DecryptionMode::Mixed);
        is_decrypting && !self.refuses(info) && self.key.as_ref().is_some_and(|key| info.is_key(key))
    }

    /// Returns whether CEEM excludes a record.
    pub(crate) fn refuses(&self, info: &EncryptedInfo) -> bool {
        match self.external_check {
            ExternalCheck::Default | ExternalCheck::None => false,
            ExternalCheck::RefuseExternal => info.is_external,
            ExternalCheck::RefuseEncrypted => !info.is_external,
        }
    }
}

/// SCOPE: whose parameters a nexus uses.
#[derive(Clone, Debug, Default)]
pub(crate) enum Scope {
    /// Those that are shared.
    #[default]
    Public,
    /// Its own.
    Local(Rc<EncryptionParameters>),
    /// Those that are shared, which it has set.
    AllNexuses,
}

#[derive(Debug, Default)]
pub(super) struct NexusEncryption {
    pub(super) scope: Scope,
    /// LOCK: the key instance counter that the parameters must have when the nexus writes.
    pub(super) locked_to: Option<u32>,
    /// Whether the nexus has used the security protocol, so that changes by others concern it.
    pub(super) is_registered: bool,
}

/// What a nexus sets.
pub(crate) enum NewScope {
    Public,
    Local(EncryptionParameters),
    AllNexuses(EncryptionParameters),
}

/// The state of tape encryption.
#[derive(Debug)]
pub(crate) struct TapeEncryption {
    pub(super) shared: Option<Rc<EncryptionParameters>>,
    pub(super) nexuses: BTreeMap<NexusId, NexusEncryption>,
    /// The last key instance counter that was given.
    pub(super) counter: u32,
    /// The one of a nexus that uses no parameters. It changes when those that are shared are forgotten.
    pub(super) counter_of_none: u32,
    /// The source of nonces and random numbers.
    pub(crate) random: HmacDrbg,
}

impl TapeEncryption {
    pub(crate) fn new() -> Self {
        Self {
            shared: None,
            nexuses: BTreeMap::new(),
            counter: 0,
            counter_of_none: 0,
            random: HmacDrbg::empty(),
        }
    }

    /// Seeds nonces with bytes of the operating system's generator. They have nothing in common with other
    /// output that is made of the same bytes.
    pub(crate) fn seed(&mut self, entropy: &[u8; 32]) {
        let derived = mac(&[0; 64], &[b"tape encryption", entropy]);
        if let Some(seed) = derived.first_chunk() {
            self.random.reseed(*seed);
        }
    }

    /// Records that a nexus uses the security protocol of tape encryption.
    pub(crate) fn register(&mut self, nexus: NexusId) {
        self.nexuses.entry(nexus).or_default().is_registered = true;
    }

    /// Returns the parameters that a nexus writes and reads with.
    pub(crate) fn parameters(&self, nexus: NexusId) -> Option<Rc<EncryptionParameters>> {
        match self.nexuses.get(&nexus).map(|state| &state.scope) {
            Some(Scope::Local(own)) => Some(Rc::clone(own)),
            _ => self.shared.clone(),
        }
    }

    /// Returns I_T NEXUS SCOPE, and KEY SCOPE: that of the parameters in use.
    pub(crate) fn scopes(&self, nexus: NexusId) -> (u8, u8) {
        let scope = self.nexuses.get(&nexus).map_or(0, |state| match state.scope {
            Scope::Public => 0,
            Scope::Local(_) => 1,
            Scope::AllNexuses => 2,
        });
        (scope, if scope == 1 { 1 } else { u8::from(self.shared.is_some()) << 1 })
    }

    /// Returns the counter of the parameters that a nexus uses.
    pub(crate) fn counter(&self, nexus: NexusId) -> u32 {
        self.parameters(nexus).map_or(self.counter_of_none, |parameters| parameters.counter)
    }

    /// Checks that the parameters of a nexus that has locked them are still the same.
    ///
    /// # Errors
    /// The sense data of its write.
    pub(crate) fn check_lock(&self, nexus: NexusId) -> Result<(), Sense> {
        let locked = self.nexuses.get(&nexus).and_then(|state| state.locked_to);
        match locked {
            Some(counter) if counter != self.counter(nexus) => {
                Err(Sense::new(SenseKey::DATA_PROTECT, Asc::DATA_ENCRYPTION_KEY_INSTANCE_COUNTER_HAS_CHANGED))
            }
            _ => Ok(()),
        }
    }

    /// Sets the parameters of a nexus. Returns the others whose parameters have changed by that.
    pub(crate) fn set(&mut self, nexus: NexusId, new: NewScope, is_locked: bool) -> Vec<NexusId> {
        let mut affected = Vec::new();
        let scope = match new {
            NewScope::Public => Scope::Public,
            NewScope::Local(parameters) => Scope::Local(self.counted(parameters)),
            NewScope::AllNexuses(parameters) => {
                self.shared = Some(self.counted(parameters));
                affected = self.sharing(Some(nexus));
                for state in self.nexuses.values_mut() {
                    if let Scope::AllNexuses = state.scope {
                        state.scope = Scope::Public;
                    }
                }
                Scope::AllNexuses
            }
        };
        let state = self.nexuses.entry(nexus).or_default();
        state.scope = scope;
        state.locked_to = None;
        if is_locked {
            let counter = self.counter(nexus);
            self.nexuses.entry(nexus).or_default().locked_to = Some(counter);
        }
        affected
    }

    fn counted(&mut self, parameters: EncryptionParameters) -> Rc<EncryptionParameters> {
        Rc::new(EncryptionParameters { counter: self.next_counter(), ..parameters })
    }

    const fn next_counter(&mut self) -> u32 {
        self.counter = self.counter.wrapping_add(1);
        self.counter
    }

    /// Returns the nexuses that use the shared parameters and are to be told of a change.
    fn sharing(&self, except: Option<NexusId>) -> Vec<NexusId> {
        let is_concerned = |(id, state): &(&NexusId, &NexusEncryption)| {
            state.is_registered && !matches!(state.scope, Scope::Local(_)) && Some(**id) != except
        };
        self.nexuses.iter().filter(is_concerned).map(|(id, _)| *id).collect()
    }

    /// Forgets every set of parameters that `is_over` selects. Returns the nexuses that used them, except the
    /// one that has caused this.
    pub(crate) fn clear(
        &mut self,
        by: Option<NexusId>,
        is_over: impl Fn(&EncryptionParameters) -> bool,
    ) -> Vec<NexusId> {
        let mut affected = Vec::new();
        for (id, state) in &mut self.nexuses {
            if let Scope::Local(own) = &state.scope
                && is_over(own)
            {
                state.scope = Scope::Public;
                if state.is_registered && Some(*id) != by {
                    affected.push(*id);
                }
            }
        }
        if self.shared.as_ref().is_some_and(|shared| is_over(shared)) {
            self.shared = None;
            self.counter_of_none = self.next_counter();
            affected.extend(self.sharing(by));
        }
        affected.sort_unstable();
        affected.dedup();
        affected
    }

    /// Forgets what belongs to a nexus that is lost.
    pub(crate) fn nexus_lost(&mut self, nexus: NexusId) {
        self.nexuses.remove(&nexus);
    }
}
