//! Executes the operations of a medium as commands of a unit.

use std::sync::Arc;

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::to_u64;
use base::units::{BlockSize, Lba};
use scsi::block::{self, LbaStatus, Provisioning};
use scsi::sense::{Asc, SenseKey};
use store::api::{Durability, Extent, ExtentState, Failure, Fault, OpAction, OpOutput};
use transport::initiator::Residual;

use super::flush::{Done, flush_if};
use super::{Geometry, Inner, chain, lba};
use crate::command::{Command, CommandError, Reply};
use crate::error::Error;
use crate::unit::is_illegal;

/// The most extents that one GET LBA STATUS requests.
const EXTENTS_PER_COMMAND: usize = 255;

/// The most extents that one operation returns, even if it requests more.
const EXTENTS_MAX: usize = 1 << 16;

/// Starts an operation.
pub(super) fn start(inner: &Arc<Inner>, action: OpAction, done: Done) {
    let geometry = inner.geometry();
    let begun = match action {
        OpAction::Read { at, len } => read(inner, &geometry, (at, len), done),
        OpAction::Write { at, data, durability } => write(inner, &geometry, (at, data, durability), done),
        // Only the owner of a unit sanitizes it, not a user who accesses it as a disk.
        OpAction::CryptoErase => Err((Error::Unsupported("CRYPTOGRAPHIC ERASE"), done)),
        OpAction::Command(_) | OpAction::Reset => {
            Err((Error::Unsupported("a command of a device that is no disk"), done))
        }
        OpAction::Flush => {
            flush_if(inner, geometry.write_cache, DataList::new(), done);
            Ok(())
        }
        OpAction::Deallocate { at, len } => deallocate(inner, &geometry, (at, len), done),
        OpAction::WriteZeroes { at, len, may_deallocate, durability } => {
            write_zeroes(inner, &geometry, (at, len), may_deallocate, durability, done)
        }
        OpAction::MapStatus { at, len, count_max } => extents(inner, &geometry, (at, len), count_max, done),
    };
    if let Err((why, done)) = begun {
        done(Err(why));
    }
}

type Begun = Result<(), (Error, Done)>;

fn read(inner: &Arc<Inner>, geometry: &Geometry, (at, len): (u64, usize), done: Done) -> Begun {
    let (first, blocks) = match geometry.blocks(at, len) {
        Ok(range) => range,
        Err(why) => return Err((why, done)),
    };
    if blocks == 0 {
        done(Ok(OpOutput::Data(DataList::new())));
        return Ok(());
    }
    let (size, max) = (geometry.block_size(), geometry.transfer_max);
    if blocks <= u64::from(max) {
        let command = geometry.read(inner.lun, first, u32::try_from(blocks).unwrap_or(max));
        let wanted = len;
        let done = move |result: Result<Reply, CommandError>| {
            let data = result.and_then(|reply| whole(reply, wanted)).map(DataList::from);
            done(data.map(OpOutput::Data).map_err(Error::Command));
        };
        inner.session.submit(command, done);
        return Ok(());
    }
    let runs = Runs { next: first.0, left: blocks, max };
    let count = usize::try_from(blocks.div_ceil(u64::from(max))).unwrap_or(0);
    let parts = Arc::new(std::sync::Mutex::new(vec![None::<Bytes>; count]));
    let filled = Arc::clone(&parts);
    let (lun, shape) = (inner.lun, geometry.clone());
    let mut runs_left = runs;
    let next = move || runs_left.next().map(|(at, blocks)| shape.read(lun, lba(at), blocks));
    let mut runs_again = runs.lengths(size);
    let mut lengths = Vec::new();
    let take = move |index: usize, reply: Reply| {
        while lengths.len() <= index {
            lengths.extend(Some(runs_again.next().unwrap_or(0)));
        }
        let data = whole(reply, lengths.get(index).copied().unwrap_or(0))?;
        let mut parts = filled.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(place) = parts.get_mut(index) {
            *place = Some(data);
        }
        Ok(())
    };
    let end = move |result: Result<(), CommandError>| {
        let mut list = DataList::new();
        let mut parts = parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        parts.drain(..).flatten().for_each(|part| list.push(part));
        drop(parts);
        done(result.map(|()| OpOutput::Data(list)).map_err(Error::Command));
    };
    chain::run(inner.session.clone(), Box::new(next), Box::new(take), Box::new(end));
    Ok(())
}

fn write(
    inner: &Arc<Inner>,
    geometry: &Geometry,
    (at, data, durability): (u64, DataList, Durability),
    done: Done,
) -> Begun {
    let (first, blocks) = match geometry.blocks(at, data.len()) {
        Ok(range) => range,
        Err(why) => return Err((why, done)),
    };
    let stable = durability == Durability::Stable;
    let fua = stable && geometry.write_cache && geometry.force_unit_access;
    if blocks == 0 {
        flush_if(inner, stable && geometry.write_cache, data, done);
        return Ok(());
    }
    let owner = Arc::clone(inner);
    let (given_back, len) = (data.clone(), data.len());
    let finish = move |result: Result<(), CommandError>| match result {
        // The cache may have been switched on since the command was made.
        Ok(()) => flush_if(&owner, stable && !fua && owner.geometry().write_cache, given_back, done),
        Err(why) => done(Err(Error::Command(why))),
    };
    if blocks <= u64::from(geometry.transfer_max) {
        let count = u32::try_from(blocks).unwrap_or(u32::MAX);
        let command = geometry.write(inner.lun, (first, count), data, fua);
        inner.session.submit(command, move |result| finish(result.and_then(|reply| taken(&reply, len))));
        return Ok(());
    }
    let mut runs = Runs { next: first.0, left: blocks, max: geometry.transfer_max };
    let check = check_taken(runs, geometry.block_size());
    let (lun, shape) = (inner.lun, geometry.clone());
    let next = move || {
        let (run, count) = runs.next()?;
        let bytes = |blocks: u64| usize::try_from(blocks << shape.block_size().shift()).unwrap_or(usize::MAX);
        let from = run - first.0;
        let part = data.slice(bytes(from), bytes(from + u64::from(count)));
        Some(shape.write(lun, (lba(run), count), part, fua))
    };
    chain::run(inner.session.clone(), Box::new(next), Box::new(check), Box::new(finish));
    Ok(())
}

fn deallocate(inner: &Arc<Inner>, geometry: &Geometry, (at, len): (u64, u64), done: Done) -> Begun {
    let (first, blocks) = match geometry.blocks_of(at, len) {
        Ok(range) => range,
        Err(why) => return Err((why, done)),
    };
    let max = if geometry.unmap_max != 0 { geometry.unmap_max } else { geometry.write_same_max };
    let by_unmap = geometry.unmap_max != 0;
    if !by_unmap && !geometry.write_same_unmaps {
        return Err((Error::Unsupported("deallocating storage"), done));
    }
    let mut runs = Runs { next: first.0, left: blocks, max };
    let (lun, zeros) = (inner.lun, zero_block(geometry.block_size()));
    let next = move || {
        let (run, count) = runs.next()?;
        let command = if by_unmap {
            let (cdb, list) = block::unmap(lba(run), count);
            Command::new(lun, cdb).writing(Bytes::copied_from(&list))
        } else {
            let cdb = block::write_same_16(lba(run), count, true);
            Command::new(lun, cdb).writing(zeros.clone())
        };
        Some(command.repeatable())
    };
    let end = move |result: Result<(), CommandError>| {
        done(result.map(|()| OpOutput::Done(DataList::new())).map_err(Error::Command));
    };
    chain::run(inner.session.clone(), Box::new(next), Box::new(unchecked), Box::new(end));
    Ok(())
}

fn write_zeroes(
    inner: &Arc<Inner>,
    geometry: &Geometry,
    (at, len): (u64, u64),
    may_deallocate: bool,
    durability: Durability,
    done: Done,
) -> Begun {
    let (first, blocks) = match geometry.blocks_of(at, len) {
        Ok(range) => range,
        Err(why) => return Err((why, done)),
    };
    let unmap = may_deallocate && geometry.zeroes_by_unmapping();
    let stable = durability == Durability::Stable;
    let mut runs = Runs { next: first.0, left: blocks, max: geometry.write_same_max };
    let (lun, zeros) = (inner.lun, zero_block(geometry.block_size()));
    let next = move || {
        let (run, count) = runs.next()?;
        let cdb = block::write_same_16(lba(run), count, unmap);
        Some(Command::new(lun, cdb).writing(zeros.clone()).repeatable())
    };
    let owner = Arc::clone(inner);
    let end = move |result: Result<(), CommandError>| match result {
        Ok(()) => flush_if(&owner, stable && owner.geometry().write_cache, DataList::new(), done),
        // On units without WRITE SAME, the zeros are written with plain writes.
        Err(error) if is_illegal(&error) => plain_zeroes(&owner, (first, blocks), stable, done),
        Err(error) => done(Err(Error::Command(error))),
    };
    chain::run(inner.session.clone(), Box::new(next), Box::new(unchecked), Box::new(end));
    Ok(())
}

fn plain_zeroes(inner: &Arc<Inner>, (first, blocks): (Lba, u64), stable: bool, done: Done) {
    let geometry = inner.geometry();
    let mut runs = Runs { next: first.0, left: blocks, max: geometry.transfer_max };
    let check = check_taken(runs, geometry.block_size());
    let most = blocks.min(geometry.transfer_max.into()) << geometry.block_size().shift();
    let zeros = zeros(usize::try_from(most).unwrap_or(0));
    let lun = inner.lun;
    let next = move || {
        let (run, count) = runs.next()?;
        let len = usize::try_from(u64::from(count) << geometry.block_size().shift()).unwrap_or(0);
        let data = zeros.slice(0, len).into();
        Some(geometry.write(lun, (lba(run), count), data, false))
    };
    let owner = Arc::clone(inner);
    let end = move |result: Result<(), CommandError>| match result {
        Ok(()) => flush_if(&owner, stable && owner.geometry().write_cache, DataList::new(), done),
        Err(error) => done(Err(Error::Command(error))),
    };
    chain::run(inner.session.clone(), Box::new(next), Box::new(check), Box::new(end));
}

fn extents(
    inner: &Arc<Inner>,
    geometry: &Geometry,
    (at, len): (u64, u64),
    count_max: usize,
    done: Done,
) -> Begun {
    let (first, blocks) = match geometry.blocks_of(at, len) {
        Ok(range) => range,
        Err(why) => return Err((why, done)),
    };
    let survey = Survey {
        inner: Arc::clone(inner),
        next: first.0,
        end: first.0 + blocks,
        shift: geometry.block_size().shift(),
        reads_zero: geometry.reads_zero,
        count_max: count_max.clamp(1, EXTENTS_MAX),
        found: Vec::new(),
    };
    if geometry.profile().thin && geometry.long_commands {
        survey.go_on(done);
    } else {
        survey.conclude(done);
    }
    Ok(())
}

/// The extents of a range, as far as they are known.
struct Survey {
    inner: Arc<Inner>,
    /// The first block whose state is unknown.
    next: u64,
    end: u64,
    shift: u32,
    reads_zero: bool,
    count_max: usize,
    found: Vec<Extent>,
}

impl Survey {
    fn go_on(self, done: Done) {
        if self.next >= self.end || self.found.len() >= self.count_max {
            return done(Ok(OpOutput::MapStatus(self.found)));
        }
        let wanted = (self.count_max - self.found.len()).min(EXTENTS_PER_COMMAND);
        let len = u32::try_from(8 + 16 * wanted).unwrap_or(24);
        let cdb = block::get_lba_status(lba(self.next), len);
        let command = Command::new(self.inner.lun, cdb).reading(len).repeatable();
        let session = self.inner.session.clone();
        let done = move |result: Result<Reply, CommandError>| match result {
            Ok(reply) => self.learn(&reply, done),
            // The unit does not report the state, so all blocks may be mapped.
            Err(error) if is_illegal(&error) => self.conclude(done),
            Err(error) => done(Err(Error::Command(error))),
        };
        session.submit(command, done);
    }

    fn learn(mut self, reply: &Reply, done: Done) {
        let before = self.next;
        for status in LbaStatus::list(reply.bytes()).unwrap_or_default() {
            let end = status.lba.0.saturating_add(status.blocks.into()).min(self.end);
            // A descriptor that leaves a gap, or goes back, is not trusted, and neither are those that follow
            // it.
            if status.lba.0 > self.next || end <= self.next {
                break;
            }
            let state = match status.state {
                Provisioning::DEALLOCATED if self.reads_zero => ExtentState::Hole,
                Provisioning::ANCHORED if self.reads_zero => ExtentState::Anchored,
                _ => ExtentState::Mapped,
            };
            if !self.add(end, state) {
                return done(Ok(OpOutput::MapStatus(self.found)));
            }
        }
        if self.next == before { self.conclude(done) } else { self.go_on(done) }
    }

    /// Adds the blocks up to `end`. Returns whether the list had space for them.
    fn add(&mut self, end: u64, state: ExtentState) -> bool {
        let (at, len) = (self.next << self.shift, (end - self.next) << self.shift);
        let full = self.found.len() >= self.count_max;
        match self.found.last_mut() {
            Some(last) if last.state == state => last.len += len,
            _ if full => return false,
            _ => self.found.push(Extent { at, len, state }),
        }
        self.next = end;
        true
    }

    /// Reports the remaining blocks as mapped, which is always allowed.
    fn conclude(mut self, done: Done) {
        if self.next < self.end {
            self.add(self.end, ExtentState::Mapped);
        }
        done(Ok(OpOutput::MapStatus(self.found)));
    }
}

/// A range of blocks, divided into runs.
#[derive(Clone, Copy)]
struct Runs {
    next: u64,
    left: u64,
    max: u32,
}

impl Runs {
    /// Returns the lengths of the runs in bytes.
    fn lengths(mut self, size: BlockSize) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let (_, blocks) = self.next()?;
            usize::try_from(u64::from(blocks) << size.shift()).ok()
        })
    }

    fn next(&mut self) -> Option<(u64, u32)> {
        let count = self.left.min(u64::from(self.max.max(1)));
        if count == 0 {
            return None;
        }
        let at = self.next;
        self.next += count;
        self.left -= count;
        Some((at, u32::try_from(count).ok()?))
    }
}

/// Returns the data of a read, if it is complete.
fn whole(reply: Reply, wanted: usize) -> Result<Bytes, CommandError> {
    if let Residual::Overflow(_) = reply.residual {
        return Err(CommandError::Nonsense("its blocks are longer than those that were read"));
    }
    match reply.data {
        Some(data) if data.len() == wanted => Ok(data),
        data => Err(CommandError::Short { came: data.map_or(0, |data| data.len()), wanted }),
    }
}

/// Checks that the target took all data of a write that ended well. The part that it did not take is not
/// written (SAM-5 §5.4: the residual count).
pub(super) fn taken(reply: &Reply, wanted: usize) -> Result<(), CommandError> {
    match reply.residual {
        Residual::None => Ok(()),
        Residual::Underflow(by) => {
            let taken = wanted.saturating_sub(usize::try_from(by).unwrap_or(usize::MAX));
            Err(CommandError::Untaken { taken, wanted })
        }
        Residual::Overflow(_) => {
            Err(CommandError::Nonsense("its blocks are longer than those that were written"))
        }
    }
}

/// Accepts a WRITE SAME or an UNMAP that ended well whatever its residual count is, as Linux does: these have
/// no data that can be taken in part, and tgt tells a residual count for each UNMAP.
#[expect(clippy::unnecessary_wraps, reason = "the type of a chain's check")]
fn unchecked(_: usize, _: Reply) -> Result<(), CommandError> {
    Ok(())
}

/// Returns the check that each write of a chain took all of its data.
fn check_taken(runs: Runs, size: BlockSize) -> impl FnMut(usize, Reply) -> Result<(), CommandError> {
    move |index, reply| {
        let blocks = runs.left.saturating_sub(to_u64(index) * u64::from(runs.max)).min(runs.max.into());
        taken(&reply, usize::try_from(blocks << size.shift()).unwrap_or(usize::MAX))
    }
}

fn zero_block(size: BlockSize) -> Bytes {
    zeros(usize::try_from(size.bytes()).unwrap_or(512))
}

fn zeros(len: usize) -> Bytes {
    let mut buf = Buf::with_capacity(len);
    buf.append_zeros(len);
    buf.freeze()
}

/// Returns the failure of a medium that corresponds to an error.
pub(crate) fn fault_of(error: &Error, block_size: BlockSize) -> Failure {
    let command = match error {
        Error::Command(command) => command,
        Error::OutOfRange { .. } => return Fault::OutOfRange.into(),
        Error::Unsupported(_) => return Fault::Unsupported.into(),
        // An operation has no other errors.
        _ => return Fault::Bug.into(),
    };
    let Some(sense) = command.sense() else {
        return match command {
            CommandError::Refused(_)
            | CommandError::Down(_)
            | CommandError::Lost(_)
            | CommandError::OtherDevice(_)
            | CommandError::UnconfirmedDevice(_)
            | CommandError::Silence
            | CommandError::Stopped => Fault::Gone,
            CommandError::ReservationConflict => Fault::Reserved,
            CommandError::Busy => Fault::Busy,
            CommandError::Aborted | CommandError::Cleared(_) => Fault::Aborted,
            CommandError::TargetFailure | CommandError::Nonsense(_) | CommandError::Status(_) => {
                Fault::Hardware
            }
            CommandError::Sense(_)
            | CommandError::NoSense
            | CommandError::Rejected(_)
            | CommandError::Short { .. }
            | CommandError::Untaken { .. }
            | CommandError::NoText => Fault::Medium,
        }
        .into();
    };
    let at = sense.information.and_then(|number| block_size.offset_of(Lba(number))).map(|at| at.0);
    let fault = match (sense.key, sense.asc) {
        (_, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT) => Fault::NoSpace,
        (_, Asc::LOGICAL_UNIT_ACCESS_NOT_AUTHORIZED | Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS) => {
            Fault::Forbidden
        }
        (SenseKey::DATA_PROTECT, _) => Fault::ReadOnly,
        (_, Asc::LBA_OUT_OF_RANGE) => Fault::OutOfRange,
        (
            _,
            Asc::LOGICAL_UNIT_NOT_SUPPORTED
            | Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION
            | Asc::MEDIUM_NOT_PRESENT
            | Asc::DEVICE_IDENTIFIER_CHANGED,
        ) => Fault::Gone,
        (SenseKey::ILLEGAL_REQUEST, _) => Fault::Unsupported,
        (SenseKey::NOT_READY, _) => Fault::Busy,
        (SenseKey::ABORTED_COMMAND, _) => Fault::Aborted,
        (SenseKey::HARDWARE_ERROR, _) => Fault::Hardware,
        (SenseKey::MEDIUM_ERROR, _) => return Failure { fault: Fault::Medium, at },
        _ => Fault::Medium,
    };
    fault.into()
}

#[cfg(test)]
mod tests;
