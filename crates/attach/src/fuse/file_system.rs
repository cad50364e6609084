//! The state machine of the file system: maps each request of the kernel to operations on the medium. It owns
//! no file and no medium.

use base::buffer::DataList;
use store::api::{Capabilities, Durability, Extent, ExtentState, Failure, Fault, OpAction, OpOutput};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::wire::{
    Attr, AttrOut, Dirent, EntryOut, FATTR_FH, FATTR_GID, FATTR_MODE, FATTR_SIZE, FATTR_UID, FOPEN_DIRECT_IO,
    FOPEN_PARALLEL_DIRECT_WRITES, FallocateIn, HandleIn, InHeader, InitIn, InitOut, LseekIn, MAJOR, MINOR,
    MINOR_MIN, Opcode, OpenIn, OpenOut, SetattrIn, StatfsOut, TransferIn, WriteOut, init,
};
use crate::errno;
use base::int_cast::{to_u32, to_u64, to_usize};

/// The name of the file.
pub(super) const FILE_NAME: &str = "disk";
/// The longest read or write, in bytes; the kernel cuts longer ones.
pub(super) const TRANSFER_LEN_MAX: usize = 1 << 20;
/// The same in pages.
const TRANSFER_PAGES_MAX: u16 = 256;
/// The length of transfers that is recommended to programs.
const BLOCK_LEN: u32 = 128 << 10;
/// The most asynchronous requests that the kernel sends before it receives an answer.
const BACKGROUND_MAX: u16 = 128;
/// The most extents that one query returns in a search for data or a hole.
const EXTENTS_MAX: usize = 64;

const ROOT: u64 = 1;
const FILE: u64 = 2;

/// The file system.
#[derive(Debug)]
pub(super) struct FileSystem {
    uid: u32,
    gid: u32,
    /// The time of the mount, in seconds. The file shows it as its times, because no others are known.
    since_s: u64,
}

/// The next step after a request, or after the result of the medium.
#[derive(Debug)]
pub(super) enum Step {
    /// Answer the request.
    Reply(Reply),
    /// Submit the operation to the medium, and pass the result to [`answer`].
    Ask(OpAction, Question),
    /// Open the file under a number, and answer with [`opened`].
    Open,
    /// Flush the medium for the open file with this number, and pass the result to [`answer`].
    Flush(u64),
    /// Close the open file with this number, and answer with success.
    Close(u64),
    /// Send no answer.
    Silent,
}

/// The answer to a request.
#[derive(Debug, Default)]
pub(super) struct Reply {
    /// An error number, or zero.
    pub(super) errno: i32,
    /// The fixed part of the answer.
    pub(super) body: Vec<u8>,
    /// Data that was read from the medium.
    pub(super) data: DataList,
}

/// Why an operation was submitted to the medium.
#[derive(Debug)]
pub(super) enum Question {
    /// For the data, which are the answer.
    Read,
    /// To write this many bytes.
    Write(u32),
    /// For its success or failure, which is the answer.
    Plain,
    /// To find the start of the next data (or the next hole) before `end`.
    Seek { data: bool, end: u64 },
}

impl Reply {
    pub(super) fn error(errno: i32) -> Self {
        Self { errno, ..Self::default() }
    }

    fn of(body: impl IntoBytes + Immutable) -> Self {
        Self { body: body.as_bytes().to_vec(), ..Self::default() }
    }
}

fn refuse(errno: i32) -> Step {
    Step::Reply(Reply::error(errno))
}

fn reply(body: impl IntoBytes + Immutable) -> Step {
    Step::Reply(Reply::of(body))
}

fn done() -> Step {
    Step::Reply(Reply::default())
}

impl FileSystem {
    pub(super) const fn new(uid: u32, gid: u32, since_s: u64) -> Self {
        Self { uid, gid, since_s }
    }

    /// Handles a request: its header, its fixed part, and the payload if it is a write.
    pub(super) fn request(
        &self,
        header: &InHeader,
        body: &[u8],
        payload: DataList,
        profile: &Capabilities,
    ) -> Step {
        let node = header.node;
        match Opcode(header.opcode) {
            Opcode::INIT => with(body, |asked| Self::init(asked, second_flags(body))),
            Opcode::FORGET | Opcode::BATCH_FORGET | Opcode::INTERRUPT => Step::Silent,
            Opcode::LOOKUP => self.lookup(node, body, profile),
            Opcode::GETATTR => self.attributes(node, profile),
            Opcode::SETATTR => with(body, |asked| self.set_attributes(node, asked, profile)),
            Opcode::STATFS => statfs(profile),
            Opcode::OPEN => with(body, |asked| open(node, asked, profile)),
            Opcode::OPENDIR => reply(OpenOut::default()),
            Opcode::READDIR => with(body, read_directory),
            Opcode::RELEASE => with(body, |asked: &HandleIn| Step::Close(asked.fh)),
            Opcode::RELEASEDIR | Opcode::FSYNCDIR | Opcode::DESTROY => done(),
            Opcode::READ if node == FILE => with(body, |asked| read(asked, profile)),
            Opcode::WRITE if node == FILE => with(body, |asked| write(asked, payload, profile)),
            Opcode::READ | Opcode::WRITE => refuse(libc::EBADF),
            Opcode::FSYNC => with(body, |asked: &HandleIn| Step::Flush(asked.fh)),
            Opcode::FALLOCATE => with(body, |asked| fallocate(asked, profile)),
            Opcode::LSEEK => with(body, |asked| seek(asked, profile)),
            Opcode::CREATE
            | Opcode::MKNOD
            | Opcode::MKDIR
            | Opcode::SYMLINK
            | Opcode::LINK
            | Opcode::UNLINK
            | Opcode::RMDIR
            | Opcode::RENAME
            | Opcode::RENAME2 => refuse(libc::EPERM),
            // The kernel works without this request, and does not send it again.
            _ => refuse(libc::ENOSYS),
        }
    }

    fn init(asked: &InitIn, flags2: u32) -> Step {
        // A kernel with a newer major version asks again with this one.
        if asked.major > MAJOR {
            return reply(InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() });
        }
        if asked.major < MAJOR || asked.minor < MINOR_MIN {
            return refuse(libc::EPROTO);
        }
        let wanted = init::ASYNC_READ
            | init::BIG_WRITES
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::INIT_EXT;
        let flags = asked.flags & wanted;
        let flags2 = if flags & init::INIT_EXT == 0 { 0 } else { flags2 & init::DIRECT_IO_ALLOW_MMAP };
        reply(InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: asked.max_readahead,
            flags,
            flags2,
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: to_u32(to_u64(TRANSFER_LEN_MAX)),
            time_granularity_ns: 1,
            max_pages: TRANSFER_PAGES_MAX,
            ..InitOut::default()
        })
    }

    fn lookup(&self, node: u64, name: &[u8], profile: &Capabilities) -> Step {
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if node != ROOT || name != FILE_NAME.as_bytes() {
            return refuse(libc::ENOENT);
        }
        reply(EntryOut { node: FILE, attr: self.attr(FILE, profile), ..EntryOut::default() })
    }

    fn attributes(&self, node: u64, profile: &Capabilities) -> Step {
        match node {
            // The attributes are valid for no time at all, because the disk may grow.
            ROOT | FILE => reply(AttrOut { attr: self.attr(node, profile), ..AttrOut::default() }),
            _ => refuse(libc::ENOENT),
        }
    }

    /// Accepts the attributes that leave the disk as it is. The file has the size of the disk. Opening it for
    /// truncation changes nothing, as with a block device. The kernel sends the same for truncate(2) to zero,
    /// unless it empties its cache at such an open, and with it what was written to a mapping and not sent.
    fn set_attributes(&self, node: u64, asked: &SetattrIn, profile: &Capabilities) -> Step {
        if asked.valid & (FATTR_MODE | FATTR_UID | FATTR_GID) != 0 {
            return refuse(libc::EPERM);
        }
        let by_open = asked.size == 0 && asked.valid & FATTR_FH == 0;
        if asked.valid & FATTR_SIZE != 0 && asked.size != profile.len && !by_open {
            return refuse(libc::EPERM);
        }
        self.attributes(node, profile)
    }

    fn attr(&self, node: u64, profile: &Capabilities) -> Attr {
        let common = Attr {
            ino: node,
            times: [self.since_s; 3],
            uid: self.uid,
            gid: self.gid,
            // Programs choose their buffer length by this value. Nothing is cached, so short reads are slow.
            block_len: BLOCK_LEN.max(profile.preferred_block_len),
            ..Attr::default()
        };
        if node == ROOT {
            return Attr { mode: libc::S_IFDIR | 0o500, nlink: 2, ..common };
        }
        let mode = libc::S_IFREG | if profile.read_only { 0o400 } else { 0o600 };
        Attr { mode, nlink: 1, size: profile.len, blocks: profile.len / 512, ..common }
    }
}

/// Handles the medium's result of an operation.
pub(super) fn answer(question: Question, result: Result<OpOutput, Failure>) -> Step {
    match (question, result) {
        (Question::Read, Ok(OpOutput::Data(data))) => Step::Reply(Reply { data, ..Reply::default() }),
        (Question::Write(len), Ok(OpOutput::Done(_))) => reply(WriteOut { len, padding: 0 }),
        (Question::Plain, Ok(_)) => done(),
        (Question::Seek { data, end }, Ok(OpOutput::MapStatus(extents))) => found(data, end, &extents),
        // A medium that reports no map status counts as all data.
        (Question::Seek { data: false, end }, Err(Failure { fault: Fault::Unsupported, .. })) => reply(end),
        (_, Err(failure)) => refuse(errno::of_fault(failure.fault)),
        // The result is of another kind than the operation.
        (_, Ok(_)) => refuse(libc::EIO),
    }
}

/// Returns the second word of flags, which follows the fixed part of the first request from Linux 5.17 on.
fn second_flags(body: &[u8]) -> u32 {
    let at = size_of::<InitIn>();
    body.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |flags| u32::from_ne_bytes(*flags))
}

/// Reads the fixed part of a request. A shorter one comes from an unknown kernel, and is refused.
fn with<T: FromBytes + KnownLayout + Immutable>(body: &[u8], then: impl FnOnce(&T) -> Step) -> Step {
    match T::read_from_prefix(body) {
        Ok((asked, _)) => then(&asked),
        Err(_) => refuse(libc::EPROTO),
    }
}

fn open(node: u64, asked: &OpenIn, profile: &Capabilities) -> Step {
    let access = asked.flags & libc::O_ACCMODE.unsigned_abs();
    if node != FILE {
        return refuse(libc::EISDIR);
    }
    if profile.read_only && access != libc::O_RDONLY.unsigned_abs() {
        return refuse(libc::EROFS);
    }
    Step::Open
}

/// Returns the answer to a request to open the file, which has this number now.
pub(super) fn opened(fh: u64) -> Reply {
    let open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
    Reply::of(OpenOut { fh, open_flags, ..OpenOut::default() })
}

/// Reads, at most up to the end, as from a file.
fn read(asked: &TransferIn, profile: &Capabilities) -> Step {
    let len = u64::from(asked.len).min(profile.len.saturating_sub(asked.at));
    Step::Ask(OpAction::Read { at: asked.at.min(profile.len), len: to_usize(len) }, Question::Read)
}

/// Writes, at most up to the end, as to a device.
fn write(asked: &TransferIn, payload: DataList, profile: &Capabilities) -> Step {
    if to_u64(payload.len()) != u64::from(asked.len) {
        return refuse(libc::EPROTO);
    }
    let len = u64::from(asked.len).min(profile.len.saturating_sub(asked.at));
    if len == 0 && asked.len > 0 {
        return refuse(libc::ENOSPC);
    }
    let synchronous = asked.file_flags & (libc::O_SYNC | libc::O_DSYNC).unsigned_abs() != 0;
    let durability = if synchronous { Durability::Stable } else { Durability::Cached };
    let data = payload.slice(0, to_usize(len));
    Step::Ask(OpAction::Write { at: asked.at, data, durability }, Question::Write(to_u32(len)))
}

fn fallocate(asked: &FallocateIn, profile: &Capabilities) -> Step {
    let mode = asked.mode.cast_signed();
    let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    let Some(end) = asked.at.checked_add(asked.len) else { return refuse(libc::EFBIG) };
    if profile.read_only {
        return refuse(libc::EROFS);
    }
    if end > profile.len && !keeps_size {
        return refuse(libc::ENOSPC);
    }
    let at = asked.at.min(profile.len);
    let len = end.min(profile.len) - at;
    let may_deallocate = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => true,
        libc::FALLOC_FL_ZERO_RANGE => false,
        // A disk that is not thin provisioned has all its storage already.
        0 if !profile.thin => return done(),
        _ => return refuse(libc::EOPNOTSUPP),
    };
    // A range that is discarded through a file must read as zeros, so Deallocate, a mere hint, is not enough.
    let durability = Durability::Cached;
    Step::Ask(OpAction::WriteZeroes { at, len, may_deallocate, durability }, Question::Plain)
}

fn seek(asked: &LseekIn, profile: &Capabilities) -> Step {
    let data = match asked.whence.cast_signed() {
        libc::SEEK_DATA => true,
        libc::SEEK_HOLE => false,
        _ => return refuse(libc::EINVAL),
    };
    if asked.at >= profile.len {
        return refuse(libc::ENXIO);
    }
    query_extents(asked.at, data, profile.len)
}

/// Queries the extents from `at` on.
fn query_extents(at: u64, data: bool, end: u64) -> Step {
    let action = OpAction::MapStatus { at, len: end - at, count_max: EXTENTS_MAX };
    Step::Ask(action, Question::Seek { data, end })
}

/// Answers a seek from the extents, or queries those that follow.
fn found(data: bool, end: u64, extents: &[Extent]) -> Step {
    let hit = extents.iter().find(|extent| (extent.state == ExtentState::Mapped) == data);
    if let Some(extent) = hit {
        return reply(extent.at);
    }
    match extents.last().map(|extent| extent.at.saturating_add(extent.len)) {
        Some(next) if next < end => query_extents(next, data, end),
        Some(_) if data => refuse(libc::ENXIO),
        Some(_) => reply(end),
        None => refuse(libc::EIO),
    }
}

fn statfs(profile: &Capabilities) -> Step {
    let block_len = 4096;
    reply(StatfsOut {
        blocks: profile.len / u64::from(block_len),
        files: 1,
        block_len,
        name_len: 255,
        fragment_len: block_len,
        ..StatfsOut::default()
    })
}

/// Lists the entries from number `asked.at` on, as many as fit.
fn read_directory(asked: &TransferIn) -> Step {
    let entries: [(u64, u32, &str); 3] =
        [(ROOT, libc::S_IFDIR, "."), (ROOT, libc::S_IFDIR, ".."), (FILE, libc::S_IFREG, FILE_NAME)];
    let mut body = Vec::new();
    for (index, (ino, mode, name)) in (0_u64..).zip(entries).skip(to_usize(asked.at)) {
        let name_len = to_u32(to_u64(name.len()));
        let entry = Dirent { ino, next: index + 1, name_len, kind: mode >> 12 };
        let len = (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if body.len() + len > to_usize(asked.len) {
            break;
        }
        let end = body.len() + len;
        body.extend_from_slice(entry.as_bytes());
        body.extend_from_slice(name.as_bytes());
        body.resize(end, 0);
    }
    Step::Reply(Reply { body, ..Reply::default() })
}

#[cfg(test)]
mod tests;
