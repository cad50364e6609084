//! SECURITY PROTOCOL OUT with the page Set Data Encryption (SSC-4).

use alloc::vec::Vec;

use base::buffer::DataList;
use base::bytes::{Reader, UnexpectedEof};
use base::int_cast::to_u32;
use cartridge::command;
use cartridge::error::Error;
use scsi::sense::{Asc, Sense};
use security::aead::KEY_LEN;

use super::security_protocol::{PLAIN_KEY, SET_DATA_ENCRYPTION, descriptor, protocol, transfer_len};
use super::turn::{TapeCommand, in_turn};
use crate::contract::NexusId;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{JobStep, Outcome};
use crate::pr::{NexusName, PersistentReservations, PrRole};
use crate::tape_drive::encrypted_record::{ALGORITHM, AUTHENTICATED_LEN_MAX, UNAUTHENTICATED_LEN_MAX};
use crate::tape_drive::encryption::{
    ClearKey, DecryptionMode, EncryptionMode, EncryptionParameters, ExternalCheck, NewScope,
};
use crate::tape_drive::encryption_key::{Key, KeyAssociated};
use crate::task::TaskInfo;

/// The longest parameter list: a page with a key and with all key-associated data has 104 bytes. Hosts can
/// pad it.
const LIST_LEN_MAX: u32 = 8192;
/// The length of the page up to the key.
const FIXED_LEN: usize = 20;

pub(super) fn security_protocol_out(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if task.cdb.u8(1) != protocol::TAPE_ENCRYPTION {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, None));
    }
    if task.cdb.u16(2) != SET_DATA_ENCRYPTION {
        return Outcome::CheckCondition(Sense::invalid_cdb(2, None));
    }
    let len = u32::try_from(transfer_len(task)).unwrap_or(u32::MAX);
    if len > LIST_LEN_MAX {
        return Outcome::CheckCondition(Sense::invalid_cdb(6, None));
    }
    if task.data_in_len > 0 || task.data_out_len < len {
        return Outcome::CheckCondition(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
    }
    task.transferable.set(u64::from(len));
    if let Some(drive) = &mut server.tape {
        drive.encryption.register(task.nexus);
    }
    if len == 0 {
        return Outcome::Good;
    }
    // Commands before this one write and read with the parameters that they found.
    in_turn(SetEncryption { len, list: None, is_requested: false })
}

/// Sets parameters, when the list has arrived and the commands before have ended.
struct SetEncryption {
    len: u32,
    list: Option<SecretList>,
    is_requested: bool,
}

/// A parameter list with a key, which is erased in the buffers that it came in. A buffer that somebody else
/// holds too stays as it is.
struct SecretList(DataList);

impl Drop for SecretList {
    fn drop(&mut self) {
        core::mem::take(&mut self.0).into_parts().for_each(|mut part| part.erase());
    }
}

impl SetEncryption {
    fn apply(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(list) = self.list.take() else { return JobStep::Wait };
        let mut bytes = alloc::vec![0; list.0.len()];
        list.0.copy_to(0, &mut bytes);
        let outcome = match set(server, task.nexus, &bytes) {
            Ok(()) => Outcome::Good,
            Err(sense) => Outcome::CheckCondition(sense),
        };
        bytes.fill(0);
        core::hint::black_box(&bytes);
        JobStep::Done(outcome)
    }
}

impl TapeCommand for SetEncryption {
    const NEEDS_CARTRIDGE: bool = false;

    fn first_data_len(&self) -> u32 {
        self.len
    }

    fn request_data(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        if !core::mem::replace(&mut self.is_requested, true) {
            server.fetch_data_out(task, 0, self.len);
        }
    }

    fn keep_data(&mut self, data: DataList) {
        self.list = Some(SecretList(data));
    }

    fn start(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.request_data(server, task);
        self.apply(server, task)
    }

    fn data_arrived(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.apply(server, task)
    }

    fn ended(&mut self, _: &mut DeviceServer, _: &TaskInfo, _: Result<command::Outcome, Error>) -> JobStep {
        JobStep::unexpected_input()
    }
}

fn set(server: &mut DeviceServer, nexus: NexusId, list: &[u8]) -> Result<(), Sense> {
    let is_loaded = server.tape.as_ref().is_some_and(|drive| drive.is_loaded());
    let owner_name = server.nexuses.find(nexus).map(|state| NexusName::of(&state.nexus));
    let Some(owner_name) = owner_name else { return Err(wrong_at(4, None)) };
    let request = Request::parse(list)?;
    if request.clear.on_demount && !is_loaded {
        return Err(wrong_at(5, Some(2)));
    }
    if request.clear.on_demount
        && let Some(changed) = server.tape_changed()
    {
        // The key was to be forgotten with a cartridge that is gone.
        return Err(changed);
    }
    let holds = server.holds_reservation(nexus, &owner_name);
    if request.clear.on_preempt && !holds {
        return Err(wrong_at(5, Some(1)));
    }
    if request.clear.on_reservation_loss && !holds {
        return Err(wrong_at(5, Some(0)));
    }
    let (scope, is_locked) = (request.scope, request.is_locked);
    let parameters = EncryptionParameters {
        encryption: request.encryption,
        decryption: request.decryption,
        key: request.key,
        associated: request.associated,
        external_check: request.external_check,
        allows_raw_reads: request.allows_raw_reads,
        clear: request.clear,
        owner: nexus,
        owner_name,
        counter: 0,
    };
    let new = match scope {
        0 => NewScope::Public,
        1 => NewScope::Local(parameters),
        _ => NewScope::AllNexuses(parameters),
    };
    let Some(drive) = &mut server.tape else { return Ok(()) };
    let affected = drive.encryption.set(nexus, new, is_locked);
    server.tell_encryption_changed(&affected);
    Ok(())
}

/// The fields of the page.
struct Request {
    scope: u8,
    is_locked: bool,
    external_check: ExternalCheck,
    allows_raw_reads: bool,
    clear: ClearKey,
    encryption: EncryptionMode,
    decryption: DecryptionMode,
    key: Option<Key>,
    associated: KeyAssociated,
}

impl Request {
    fn parse(list: &[u8]) -> Result<Self, Sense> {
        let mut from = Reader::new(list);
        let (code, len) = (from.u16().map_err(too_short)?, from.u16().map_err(too_short)?);
        if code != SET_DATA_ENCRYPTION {
            return Err(wrong_at(0, None));
        }
        // Behind the page can be padding: hosts send whole units of 512 bytes.
        let page = from.take(usize::from(len)).map_err(too_short)?;
        let mut from = Reader::new(page);
        let (control, flags) = (from.u8().map_err(too_short)?, from.u8().map_err(too_short)?);
        let [encryption, decryption, algorithm, key_format, kad_format] =
            from.array::<5>().map_err(too_short)?;
        let _reserved = from.array::<7>().map_err(too_short)?;
        let key_len = from.u16().map_err(too_short)?;
        let key = from.take(usize::from(key_len)).map_err(too_short)?;
        let scope = control >> 5;
        if scope > 2 {
            return Err(wrong_at(4, Some(7)));
        }
        let is_locked = control & 0x01 != 0;
        if scope == 0 {
            // Nothing else counts.
            return Ok(Self { scope, is_locked, ..Self::off() });
        }
        let encryption = match encryption {
            0 => EncryptionMode::Disable,
            1 => EncryptionMode::External,
            2 => EncryptionMode::Encrypt,
            _ => return Err(wrong_at(6, None)),
        };
        let decryption = match decryption {
            0 => DecryptionMode::Disable,
            1 => DecryptionMode::Raw,
            2 => DecryptionMode::Decrypt,
            3 => DecryptionMode::Mixed,
            _ => return Err(wrong_at(7, None)),
        };
        let mut request = Self { scope, is_locked, encryption, decryption, ..Self::off() };
        if (encryption, decryption) == (EncryptionMode::Disable, DecryptionMode::Disable) {
            return Ok(request);
        }
        request.read_flags(flags)?;
        if algorithm != ALGORITHM {
            return Err(wrong_at(8, None));
        }
        let needs_key = encryption == EncryptionMode::Encrypt
            || matches!(decryption, DecryptionMode::Decrypt | DecryptionMode::Mixed);
        if needs_key {
            if key_format != PLAIN_KEY {
                return Err(wrong_at(9, None));
            }
            let key: &[u8; KEY_LEN] = key.try_into().map_err(|_| wrong_at(18, None))?;
            request.key = Some(Key::new(key));
        }
        request.associated = associated(&mut from, kad_format, FIXED_LEN + key.len())?;
        Ok(request)
    }

    /// Returns what the page says when it turns encryption off.
    fn off() -> Self {
        Self {
            scope: 0,
            is_locked: false,
            external_check: ExternalCheck::Default,
            allows_raw_reads: false,
            clear: ClearKey::default(),
            encryption: EncryptionMode::Disable,
            decryption: DecryptionMode::Disable,
            key: None,
            associated: KeyAssociated::default(),
        }
    }

    fn read_flags(&mut self, flags: u8) -> Result<(), Sense> {
        self.external_check = match flags >> 6 {
            0 => ExternalCheck::Default,
            1 => ExternalCheck::None,
            2 => ExternalCheck::RefuseExternal,
            _ => ExternalCheck::RefuseEncrypted,
        };
        self.allows_raw_reads = match flags >> 4 & 0x03 {
            0 | 3 => false,
            2 => true,
            _ => return Err(wrong_at(5, Some(5))),
        };
        if flags & 0x08 != 0 {
            // SDK: there are no supplemental keys.
            return Err(wrong_at(5, Some(3)));
        }
        self.clear = ClearKey {
            on_demount: flags & 0x04 != 0,
            on_preempt: flags & 0x02 != 0,
            on_reservation_loss: flags & 0x01 != 0,
        };
        Ok(())
    }
}

/// Reads the descriptors of key-associated data, which begin at `at` of the page: ascending by type.
fn associated(from: &mut Reader<'_>, format: u8, at: usize) -> Result<KeyAssociated, Sense> {
    /// The formats are: none, binary, and ASCII.
    const FORMAT_MAX: u8 = 2;
    if format > FORMAT_MAX {
        return Err(wrong_at(10, None));
    }
    let mut associated = KeyAssociated { format, ..KeyAssociated::default() };
    let end = at + from.remaining();
    let mut before = None;
    while !from.is_empty() {
        let at = end - from.remaining();
        let (kind, _) = (from.u8().map_err(too_short)?, from.u8().map_err(too_short)?);
        let len = from.u16().map_err(too_short)?;
        let (value, len_max) = match kind {
            descriptor::UNAUTHENTICATED => (&mut associated.unauthenticated, UNAUTHENTICATED_LEN_MAX),
            descriptor::AUTHENTICATED => (&mut associated.authenticated, AUTHENTICATED_LEN_MAX),
            // The drive makes nonces itself, and no key manager supplies metadata.
            _ => return Err(wrong_at(at, None)),
        };
        if before.is_some_and(|before| before >= kind) {
            return Err(wrong_at(at, None));
        }
        before = Some(kind);
        if len > len_max {
            return Err(wrong_at(at + 2, None));
        }
        *value = Vec::from(from.take(usize::from(len)).map_err(too_short)?);
    }
    Ok(associated)
}

/// Returns INVALID FIELD IN PARAMETER LIST, pointing at a byte and optionally a bit.
fn wrong_at(byte: usize, bit: Option<u8>) -> Sense {
    Sense::invalid_parameter(u16::try_from(to_u32(byte)).unwrap_or(u16::MAX), bit)
}

fn too_short(_: UnexpectedEof) -> Sense {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)
}

impl DeviceServer {
    /// Returns whether a nexus holds a reservation of the unit.
    fn holds_reservation(&self, nexus: NexusId, name: &NexusName) -> bool {
        self.spc.spc2_reservation.holder() == Some(nexus) || self.spc.pr.role_of(name) == PrRole::Holder
    }

    /// Tells nexuses that others have changed the parameters that they write and read with.
    fn tell_encryption_changed(&mut self, nexuses: &[NexusId]) {
        for nexus in nexuses {
            self.nexuses.establish_ua(*nexus, Asc::DATA_ENCRYPTION_PARAMETERS_CHANGED);
        }
    }

    /// Forgets what is bound to the cartridge in the drive, because it is unloaded: keys, how it was to be
    /// divided, and append-only mode.
    pub(crate) fn demounted(&mut self, by: Option<NexusId>) {
        self.settings.stream.partitioning = None;
        self.settings.stream.is_append_only = false;
        let Some(drive) = &mut self.tape else { return };
        drive.demounts = drive.demounts.wrapping_add(1);
        let affected = drive.encryption.clear(by, |set| set.clear.on_demount);
        self.tell_encryption_changed(&affected);
    }

    /// Forgets the keys that are bound to a reservation which their nexus holds no longer. Call it after each
    /// change of reservations; `preempted` are the reservations before one was preempted.
    pub(crate) fn forget_keys_of_reservations(
        &mut self,
        by: Option<NexusId>,
        preempted: Option<&PersistentReservations>,
    ) {
        if self.tape.is_none() {
            return;
        }
        let (spc2_holder, pr) = (self.spc.spc2_reservation.holder(), &self.spc.pr);
        let is_over = |set: &EncryptionParameters| {
            // A nexus that had released its reservation is not preempted.
            let was_holder = preempted.is_some_and(|pr| pr.role_of(&set.owner_name) == PrRole::Holder);
            let is_bound = set.clear.on_reservation_loss || (set.clear.on_preempt && was_holder);
            is_bound && spc2_holder != Some(set.owner) && pr.role_of(&set.owner_name) != PrRole::Holder
        };
        let Some(drive) = &mut self.tape else { return };
        let affected = drive.encryption.clear(by, is_over);
        self.tell_encryption_changed(&affected);
    }

    /// Forgets every key after a hard reset.
    pub(crate) fn forget_keys(&mut self) {
        if let Some(drive) = &mut self.tape {
            // A reset is told anyway.
            let _ = drive.encryption.clear(None, |_| true);
        }
    }
}
