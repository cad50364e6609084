//! MODE SENSE and MODE SELECT.

use alloc::boxed::Box;

use scsi::mode::{BlockDescriptor, Form, Values};
use scsi::opcode;
use scsi::sense::{Asc, Sense};

use super::reservation::answer_saved;
use super::{data_or, whole};
use crate::flush::FlushThen;
use crate::mode::{self, Lists, MediumFacts, SenseRequest};
use crate::server::Core;
use crate::task::TaskInfo;
use crate::verdict::Verdict;

pub(super) fn sense(core: &mut Core, task: &TaskInfo) -> Verdict {
    let cdb = &task.cdb;
    let form = form(task);
    let request = SenseRequest {
        form,
        values: Values::from_code(cdb.u8(2) >> 6),
        code: cdb.u8(2) & 0x3f,
        subpage: cdb.u8(3),
        descriptor: cdb.u8(1) & 0x08 == 0,
        long: cdb.u8(1) & 0x10 != 0,
    };
    let allocation = match form {
        Form::Six => u32::from(cdb.u8(4)),
        Form::Ten => u32::from(cdb.u16(7)),
    };
    let medium = medium_facts(core, task);
    let (defaults, saved) = (core.default_settings(), core.lasting_settings());
    let lists = Lists { current: &core.settings, defaults: &defaults, saved: &saved };
    data_or(mode::sense(request, lists, medium), allocation)
}

pub(super) fn select(_: &mut Core, task: &TaskInfo) -> Verdict {
    let len = list_len(task);
    // Pages of a vendor's own format are all that is left without PF.
    if len > 0 && task.cdb.u8(1) & 0x10 == 0 {
        return Verdict::Check(Sense::invalid_cdb(1, Some(4)));
    }
    Verdict::Parameters { len, then: selected }
}

fn selected(core: &mut Core, task: &TaskInfo, list: &[u8]) -> Verdict {
    let list = match whole(list, list_len(task)) {
        Ok(list) => list,
        Err(verdict) => return verdict,
    };
    let new = match mode::select(form(task), list, &core.settings, medium_facts(core, task)) {
        Ok(new) => new,
        Err(sense) => return Verdict::Check(sense),
    };
    let saves = task.cdb.u8(1) & 0x01 != 0 && !list.is_empty();
    let cache_goes = core.settings.write_cache && !new.write_cache;
    if new != core.settings {
        core.settings = new;
        core.nexuses.attend_all(Asc::MODE_PARAMETERS_CHANGED, Some(task.nexus));
    }
    if !saves {
        return end(cache_goes);
    }
    let before = core.spc.saved_settings.replace(core.settings.clone());
    let then = move |core: &mut Core, task: &TaskInfo, saved| match answer_saved(core, task, saved) {
        Verdict::Good => end(cache_goes),
        failed => {
            core.spc.saved_settings = before;
            failed
        }
    };
    Verdict::Save { state: core.spc.to_save(), then: Box::new(then) }
}

/// Ends a MODE SELECT whose settings are in force.
fn end(cache_goes: bool) -> Verdict {
    if cache_goes {
        // From now on each write is durable when it is acknowledged; those before become so here.
        Verdict::Run(Box::new(FlushThen { then: |_, _| Verdict::Good }))
    } else {
        Verdict::Good
    }
}

const fn form(task: &TaskInfo) -> Form {
    match task.cdb.opcode() {
        opcode::MODE_SENSE_6 | opcode::MODE_SELECT_6 => Form::Six,
        _ => Form::Ten,
    }
}

fn list_len(task: &TaskInfo) -> u32 {
    match form(task) {
        Form::Six => u32::from(task.cdb.u8(4)),
        Form::Ten => u32::from(task.cdb.u16(7)),
    }
}

fn medium_facts(core: &Core, task: &TaskInfo) -> MediumFacts {
    let blocks = if core.spc.removal.is_present() { core.facts.capacity().0 } else { 0 };
    MediumFacts {
        write_protected: core.write_protection(task.nexus).is_some(),
        descriptor: BlockDescriptor { blocks, block_len: core.facts.block_size().bytes() },
    }
}
