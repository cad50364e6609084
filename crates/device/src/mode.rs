//! Mode pages (SPC-5 §7.5): MODE SENSE encodes [`Settings`], MODE SELECT decodes new ones. Here are the
//! pages that device types share; each device type lists its pages in a [`ModeLayout`].
//!
//! A page is a row of that table: which bits stand for which setting, and which of them can be changed. MODE
//! SELECT checks its whole parameter list before it changes anything. A reset and the next start restore the
//! values that it saved (SP).

use alloc::vec;
use alloc::vec::Vec;

use base::bytes::Reader;
use cartridge::library::Counts;
use scsi::mode::{
    self, BlockDescriptor, Header, HeaderFormat, Page, PageControl, Parameters, device_specific, page,
};
use scsi::sense::{Asc, Sense};

use crate::medium_partition::{self, Partitioning};
use crate::settings::{AttentionInterlock, Settings, StreamSettings};
use crate::write_parameters::WriteParameters;

/// The parameters of a MODE SENSE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SenseRequest {
    /// The form of the header: that of MODE SENSE(6) or MODE SENSE(10).
    pub(crate) form: HeaderFormat,
    /// PC: which values.
    pub(crate) values: PageControl,
    /// PAGE CODE.
    pub(crate) code: u8,
    /// SUBPAGE CODE.
    pub(crate) subpage: u8,
    /// Whether a block descriptor is requested (DBD clear).
    pub(crate) descriptor: bool,
    /// Whether the descriptor may be a long one (LLBAA).
    pub(crate) long: bool,
}

/// The properties of the medium in the header and in the block descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MediumParameters {
    /// Whether the requesting nexus cannot write, for whatever reason (WP).
    pub(crate) write_protected: bool,
    /// The number and length of its blocks.
    pub(crate) descriptor: BlockDescriptor,
    /// Whether a nexus prevents the removal of the medium.
    pub(crate) locked: bool,
    /// What a tape drive reports of its cartridge.
    pub(crate) tape: TapeParameters,
    /// The elements of a medium changer.
    pub(crate) elements: Counts,
    /// How many threshold sets are left when the storage of a thin unit counts as short, if that is known.
    pub(crate) threshold_sets: Option<u32>,
    /// The mode parameters of the unit's device type.
    pub(crate) layout: &'static ModeLayout,
}

/// What the mode parameters of a tape drive report of its cartridge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapeParameters {
    /// Whether the cartridge is WORM.
    pub(crate) is_worm: bool,
    /// MEDIUM TYPE.
    pub(crate) medium_type: u8,
    /// DENSITY CODE.
    pub(crate) density: u8,
    /// The partition that the position is in.
    pub(crate) partition: u8,
    /// The sizes of the partitions in 10^9 bytes; 0 for those that do not exist.
    pub(crate) partitions: [u16; 4],
    /// How many partitions the cartridge can have.
    pub(crate) partitions_max: u8,
    /// The capacity of the cartridge in bytes.
    pub(crate) capacity: u64,
    /// What MODE SELECT has set instead.
    pub(crate) partitioning: Option<Partitioning>,
    /// Whether there is a cartridge.
    pub(crate) is_loaded: bool,
    /// Whether the position is at the beginning of a partition.
    pub(crate) is_at_beginning: bool,
}

impl TapeParameters {
    /// Those of a unit without a cartridge.
    pub(crate) const EMPTY: Self = Self {
        is_worm: false,
        medium_type: 0,
        density: 0,
        partition: 0,
        partitions: [0; 4],
        partitions_max: 1,
        capacity: 0,
        partitioning: None,
        is_loaded: false,
        is_at_beginning: false,
    };
}

/// The mode parameters of a device type.
#[derive(Debug)]
pub(crate) struct ModeLayout {
    /// Whether the header and the block descriptor are those of a tape drive.
    pub(crate) is_tape: bool,
    /// The bits of DEVICE-SPECIFIC PARAMETER that are always set.
    pub(crate) device_specific: u8,
    /// The bits of DEVICE-SPECIFIC PARAMETER that are set if the requesting nexus cannot write.
    pub(crate) write_protected: u8,
    /// Whether MODE SENSE returns a block descriptor.
    pub(crate) has_block_descriptor: bool,
    /// The pages, in the order in which they are returned.
    pub(crate) pages: &'static [PageRow],
}

/// The sets of values that MODE SENSE can request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModeValues<'a> {
    pub(crate) current: &'a Settings,
    pub(crate) defaults: &'a Settings,
    /// The saved settings, or the settings that apply as long as nothing was saved.
    pub(crate) saved: &'a Settings,
}

/// Answers MODE SENSE.
///
/// # Errors
/// The sense data for a page that is not supported.
pub(crate) fn sense(
    request: SenseRequest,
    ModeValues { current, defaults, saved }: ModeValues<'_>,
    medium: MediumParameters,
) -> Result<Vec<u8>, Sense> {
    let layout = medium.layout;
    let mut pages = Vec::new();
    let asked = layout.pages.iter().filter(|row| row.is_asked(request.code, request.subpage));
    for row in asked.filter(|row| row.is_present(&medium)) {
        let body = match request.values {
            PageControl::Changeable => row.changeable(),
            PageControl::Default => row.values(defaults, medium),
            PageControl::Current => row.current(current, medium),
            PageControl::Saved => row.values(saved, medium),
        };
        let saveable = !row.bits.is_empty() && !row.is_unsaved();
        Page { code: row.code, subpage: row.subpage, saveable, body: &body }.encode(&mut pages);
    }
    // A tape drive has no page 00h, but hosts request it to get the header and the block descriptor alone.
    let is_header_only = layout.is_tape && request.code == 0 && request.subpage == 0;
    if pages.is_empty() && !is_header_only {
        let code_known = layout.pages.iter().any(|row| row.code == request.code) || request.code == page::ALL;
        return Err(if code_known { Sense::invalid_cdb(3, None) } else { Sense::invalid_cdb(2, Some(5)) });
    }
    let write_protect = if medium.write_protected { layout.write_protected } else { 0 };
    let descriptor = request.descriptor && layout.has_block_descriptor;
    let settings = match request.values {
        PageControl::Default => defaults,
        PageControl::Saved => saved,
        PageControl::Current | PageControl::Changeable => current,
    };
    let buffered = if layout.is_tape && settings.stream.is_buffered { BUFFERED } else { 0 };
    let header = Header {
        medium_type: medium.tape.medium_type,
        device_specific: write_protect | layout.device_specific | buffered,
        long: request.long && descriptor && !layout.is_tape,
    };
    let block = if layout.is_tape { tape_descriptor(settings, medium.tape) } else { medium.descriptor };
    Ok(mode::encode(request.form, header, descriptor.then_some(block), &pages))
}

/// BUFFERED MODE 1h: writes are acknowledged when they are in the buffer.
const BUFFERED: u8 = 0x10;

/// Returns the block descriptor of a tape drive: DENSITY CODE, no NUMBER OF BLOCKS, and BLOCK LENGTH.
fn tape_descriptor(settings: &Settings, tape: TapeParameters) -> BlockDescriptor {
    BlockDescriptor { blocks: u64::from(tape.density) << 24, block_len: settings.nexus.block_len }
}

/// Checks the parameter list of a MODE SELECT and returns the settings that it requests.
///
/// # Errors
/// The sense data for the first error in the list.
pub(crate) fn select(
    form: HeaderFormat,
    bytes: &[u8],
    settings: &Settings,
    medium: MediumParameters,
) -> Result<Settings, Sense> {
    if bytes.is_empty() {
        return Ok(settings.clone());
    }
    let list = Parameters::parse(form, bytes).map_err(|_| length_error())?;
    if list.header.medium_type != 0 && list.header.medium_type != medium.tape.medium_type {
        return Err(wrong_at(medium_type_at(form), None));
    }
    let mut new = settings.clone();
    if medium.layout.is_tape {
        select_tape(form, &list, medium.tape, &mut new)?;
    } else {
        check_descriptors(form, &list, medium.descriptor)?;
    }
    let mut pages = Reader::new(list.pages);
    while !pages.is_empty() {
        let at = bytes.len() - pages.remaining();
        let sent = Page::take(&mut pages).map_err(|_| length_error())?;
        let find =
            |row: &&PageRow| (row.code, row.subpage) == (sent.code, sent.subpage) && row.is_present(&medium);
        let row = medium.layout.pages.iter().find(find);
        let row = row.ok_or_else(|| wrong_at(at, Some(5)))?;
        let at_body = at + sent.header_len();
        let mut body = Vec::from(sent.body);
        if row.code == page::MEDIUM_PARTITION && medium_partition::is_shorter_page(body.len()) {
            // Linux sends the sizes of two partitions only.
            body.resize(row.len, 0);
        }
        if body.len() != row.len {
            return Err(wrong_at(at_body - 1, None));
        }
        let fixed = row.current(settings, medium).into_iter().zip(row.changeable());
        for (offset, (sent, (current, changeable))) in body.iter().zip(fixed).enumerate() {
            let wrong = (sent ^ current) & !changeable;
            if wrong != 0 {
                return Err(wrong_at(at_body + offset, u8::try_from(wrong.ilog2()).ok()));
            }
        }
        row.apply(&mut new, &body);
        // Append-only mode begins at the beginning of a partition, and ends when the cartridge is unloaded.
        let may_change = !medium.tape.is_loaded || (new.stream.is_append_only && medium.tape.is_at_beginning);
        if new.stream.is_append_only != settings.stream.is_append_only && !may_change {
            return Err(wrong_at(at_body + 1, Some(4)));
        }
        if row.code == page::MEDIUM_PARTITION {
            let TapeParameters { capacity, partitions_max, .. } = medium.tape;
            let sent = Partitioning::of_body(&body, capacity, partitions_max);
            new.stream.partitioning = sent.map_err(|at| wrong_at(at_body + at, None))?;
        }
        if new.queue_error.is_reserved() {
            return Err(wrong_at(at_body + QERR_AT, Some(2)));
        }
        if !new.nexus.protection.is_possible() {
            return Err(wrong_at(at_body, None));
        }
        if !new.write_parameters.is_possible() {
            return Err(wrong_at(at_body, Some(3)));
        }
    }
    Ok(new)
}

/// The byte of the control page's body that holds QERR.
const QERR_AT: usize = 1;

const fn medium_type_at(form: HeaderFormat) -> usize {
    match form {
        HeaderFormat::Six => 1,
        HeaderFormat::Ten => 2,
    }
}

/// Checks the block descriptors. An initiator may send back the block descriptor that it received; it cannot
/// change the size of a disk with it.
fn check_descriptors(form: HeaderFormat, list: &Parameters<'_>, have: BlockDescriptor) -> Result<(), Sense> {
    let len = list.descriptors.len();
    let one = if list.header.long { BlockDescriptor::LONG_LEN } else { BlockDescriptor::SHORT_LEN };
    if len == 0 {
        return Ok(());
    }
    if len != one {
        return Err(wrong_at(form.header_len() - 1, None));
    }
    let sent = BlockDescriptor::take(list.header.long, &mut Reader::new(list.descriptors))
        .map_err(|_| length_error())?;
    let all = if list.header.long { u64::MAX } else { u64::from(u32::MAX) };
    if sent.blocks != 0 && sent.blocks != all && sent.blocks != have.blocks {
        return Err(wrong_at(form.header_len(), None));
    }
    if sent.block_len != have.block_len {
        let at = form.header_len() + if list.header.long { 12 } else { 5 };
        return Err(wrong_at(at, None));
    }
    Ok(())
}

/// Applies the header and the block descriptor of a tape drive.
fn select_tape(
    form: HeaderFormat,
    list: &Parameters<'_>,
    tape: TapeParameters,
    new: &mut Settings,
) -> Result<(), Sense> {
    /// DENSITY CODE of a list that does not change it.
    const NO_CHANGE: u64 = 0x7f;
    let device_specific = list.header.device_specific;
    new.stream.is_buffered = match device_specific & device_specific::BUFFERED_MODE {
        0 => false,
        BUFFERED => true,
        _ => return Err(wrong_at(medium_type_at(form) + 1, Some(6))),
    };
    // SPEED: there is only the default.
    if device_specific & 0x0f != 0 {
        return Err(wrong_at(medium_type_at(form) + 1, Some(3)));
    }
    match list.descriptors.len() {
        0 => return Ok(()),
        BlockDescriptor::SHORT_LEN if !list.header.long => {}
        _ => return Err(wrong_at(form.header_len() - 1, None)),
    }
    let sent =
        BlockDescriptor::take(false, &mut Reader::new(list.descriptors)).map_err(|_| length_error())?;
    let density = sent.blocks >> 24;
    if density != 0 && density != NO_CHANGE && density != u64::from(tape.density) {
        return Err(wrong_at(form.header_len(), None));
    }
    if sent.block_len > StreamSettings::BLOCK_LEN_MAX {
        return Err(wrong_at(form.header_len() + 5, None));
    }
    new.nexus.block_len = sent.block_len;
    Ok(())
}

/// Returns INVALID FIELD IN PARAMETER LIST, pointing at a byte and optionally a bit.
fn wrong_at(byte: usize, bit: Option<u8>) -> Sense {
    Sense::invalid_parameter(u16::try_from(byte).unwrap_or(u16::MAX), bit)
}

const fn length_error() -> Sense {
    Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)
}

/// A page: its codes, its fixed bytes and its settings.
#[derive(Debug)]
pub(crate) struct PageRow {
    pub(crate) code: u8,
    pub(crate) subpage: u8,
    /// The length of the body: the bytes after the page's header.
    pub(crate) len: usize,
    /// Bytes of the body that do not depend on the settings.
    pub(crate) fixed: &'static [(usize, u8)],
    /// Bits that report the state of the medium, among the current values only.
    pub(crate) states: &'static [State],
    /// Returns bytes that report the properties of the medium, among all values but the changeable ones.
    pub(crate) medium: fn(&MediumParameters) -> Vec<(usize, u8)>,
    /// The bits that stand for settings.
    pub(crate) bits: &'static [Bit],
}

/// A state of the medium as a bit of a page.
#[derive(Debug)]
pub(crate) struct State {
    /// The index of the byte in the body.
    pub(crate) byte: usize,
    pub(crate) mask: u8,
    pub(crate) get: fn(&MediumParameters) -> bool,
}

/// A setting as a bit of a page.
#[derive(Debug)]
pub(crate) struct Bit {
    /// The index of the byte in the body.
    pub(crate) byte: usize,
    pub(crate) mask: u8,
    pub(crate) get: fn(&Settings) -> bool,
    pub(crate) set: Set,
}

/// Whether MODE SELECT can change a bit. It can change no other bits.
#[derive(Debug)]
pub(crate) enum Set {
    To(fn(&mut Settings, bool)),
    /// Only the configuration can change it.
    Never,
}

impl PageRow {
    /// Returns whether a request for this page code and subpage code includes the page.
    const fn is_asked(&self, code: u8, subpage: u8) -> bool {
        let by_code = code == page::ALL || code == self.code;
        // Page code 3Fh is combined with the subpage codes 00h and FFh only (SPC-5 §6.14).
        let by_subpage = subpage == page::ALL_SUBPAGES || subpage == self.subpage;
        by_code && by_subpage && (code != page::ALL || subpage == 0 || subpage == page::ALL_SUBPAGES)
    }

    /// Returns whether the unit has the page: that of thresholds belongs to units that have one.
    fn is_present(&self, medium: &MediumParameters) -> bool {
        let is_of_thresholds =
            (self.code, self.subpage) == (page::INFORMATIONAL_EXCEPTIONS, page::LOGICAL_BLOCK_PROVISIONING);
        !is_of_thresholds || medium.threshold_sets.is_some()
    }

    /// Returns whether the page holds settings that are not saved: those of a tape drive.
    const fn is_unsaved(&self) -> bool {
        matches!(
            (self.code, self.subpage),
            (page::DATA_COMPRESSION | page::DEVICE_CONFIGURATION | page::MEDIUM_PARTITION, _)
                | (page::CONTROL, page::CONTROL_DATA_PROTECTION)
        )
    }

    fn values(&self, settings: &Settings, medium: MediumParameters) -> Vec<u8> {
        if self.code == page::WRITE_PARAMETERS {
            return Vec::from(settings.write_parameters.bytes().as_slice());
        }
        let bits = self.bits.iter().filter(|bit| (bit.get)(settings)).map(|bit| (bit.byte, bit.mask));
        self.body(self.fixed.iter().copied().chain(bits).chain((self.medium)(&medium)))
    }

    fn current(&self, settings: &Settings, medium: MediumParameters) -> Vec<u8> {
        let mut body = self.values(settings, medium);
        for state in self.states.iter().filter(|state| (state.get)(&medium)) {
            if let Some(byte) = body.get_mut(state.byte) {
                *byte |= state.mask;
            }
        }
        body
    }

    fn changeable(&self) -> Vec<u8> {
        if self.code == page::MEDIUM_PARTITION {
            return Vec::from(medium_partition::CHANGEABLE);
        }
        if self.code == page::WRITE_PARAMETERS {
            return Vec::from(WriteParameters::CHANGEABLE.bytes().as_slice());
        }
        let changeable = self.bits.iter().filter(|bit| matches!(bit.set, Set::To(_)));
        self.body(changeable.map(|bit| (bit.byte, bit.mask)))
    }

    fn body(&self, ones: impl Iterator<Item = (usize, u8)>) -> Vec<u8> {
        let mut body = vec![0; self.len];
        for (at, value) in ones {
            if let Some(byte) = body.get_mut(at) {
                *byte |= value;
            }
        }
        body
    }

    fn apply(&self, settings: &mut Settings, body: &[u8]) {
        if self.code == page::WRITE_PARAMETERS {
            settings.write_parameters.apply(body);
        }
        for bit in self.bits {
            let Set::To(set) = bit.set else { continue };
            set(settings, body.get(bit.byte).is_some_and(|byte| byte & bit.mask != 0));
        }
    }
}

/// For pages that report no property of the medium.
pub(crate) const fn no_medium(_: &MediumParameters) -> Vec<(usize, u8)> {
    Vec::new()
}

/// The read-write error recovery page: the unit has no choice of recovery.
pub(crate) const READ_WRITE_ERROR_RECOVERY: PageRow = PageRow {
    code: page::READ_WRITE_ERROR_RECOVERY,
    subpage: 0,
    len: 10,
    fixed: &[],
    states: &[],
    medium: no_medium,
    bits: &[],
};

/// The control page.
pub(crate) const CONTROL: PageRow = PageRow {
    code: page::CONTROL,
    subpage: 0,
    len: 10,
    // GLTSD: log parameters are not saved implicitly. QUEUE ALGORITHM MODIFIER 1h: SIMPLE tasks are
    // reordered freely. EXTENDED SELF-TEST COMPLETION TIME: one second.
    fixed: &[(0, 0x02), (1, 0x10), (9, 1)],
    states: &[],
    medium: no_medium,
    bits: &[
        // TST 001b.
        Bit { byte: 0, mask: 0x20, get: |settings| settings.nexus_task_sets, set: Set::Never },
        Bit {
            byte: 0,
            mask: 0x04,
            get: |settings| settings.descriptor_sense,
            set: Set::To(|settings, on| settings.descriptor_sense = on),
        },
        Bit {
            byte: QERR_AT,
            mask: 0x02,
            get: |settings| settings.queue_error.aborts,
            set: Set::To(|settings, on| settings.queue_error.aborts = on),
        },
        Bit {
            byte: QERR_AT,
            mask: 0x04,
            get: |settings| settings.queue_error.only_own,
            set: Set::To(|settings, on| settings.queue_error.only_own = on),
        },
        Bit {
            byte: 2,
            mask: 0x20,
            get: |settings| settings.attention_interlock == AttentionInterlock::Kept,
            set: Set::To(|settings, on| {
                settings.attention_interlock =
                    if on { AttentionInterlock::Kept } else { AttentionInterlock::ClearedWhenReported };
            }),
        },
        Bit {
            byte: 2,
            mask: 0x08,
            get: |settings| settings.software_write_protect,
            set: Set::To(|settings, on| settings.software_write_protect = on),
        },
        Bit {
            byte: 3,
            mask: 0x40,
            get: |settings| settings.task_aborted_status,
            set: Set::To(|settings, on| settings.task_aborted_status = on),
        },
    ],
};

/// The control extension page. MAXIMUM SENSE DATA LENGTH zero: no limit.
pub(crate) const CONTROL_EXTENSION: PageRow = PageRow {
    code: page::CONTROL,
    subpage: page::CONTROL_EXTENSION,
    len: 28,
    fixed: &[],
    states: &[],
    medium: no_medium,
    bits: &[],
};

/// The power condition page: the unit has no timers.
pub(crate) const POWER_CONDITION: PageRow = PageRow {
    code: page::POWER_CONDITION,
    subpage: 0,
    len: 38,
    fixed: &[],
    states: &[],
    medium: no_medium,
    bits: &[],
};

/// The informational exceptions page. MRIE 6h: report on request only. The unit has no failure prediction.
pub(crate) const INFORMATIONAL_EXCEPTIONS: PageRow = PageRow {
    code: page::INFORMATIONAL_EXCEPTIONS,
    subpage: 0,
    len: 10,
    fixed: &[(1, 0x06)],
    states: &[],
    medium: no_medium,
    bits: &[],
};

#[cfg(test)]
mod tests;
