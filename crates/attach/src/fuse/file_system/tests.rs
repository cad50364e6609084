use base::buffer::Bytes;
use store::Store;
use store::ram::Ram;

use super::*;

const LEN: u64 = 1 << 20;

fn profile() -> Capabilities {
    Ram::new(LEN).capabilities()
}

fn ask(opcode: Opcode, node: u64, body: impl IntoBytes + Immutable) -> Step {
    ask_of(&profile(), opcode, node, body.as_bytes())
}

fn ask_of(profile: &Capabilities, opcode: Opcode, node: u64, body: &[u8]) -> Step {
    let header = InHeader { opcode: opcode.0, node, ..InHeader::default() };
    FileSystem::new(1, 2, 3).request(&header, body, DataList::new(), profile)
}

fn errno(step: Step) -> i32 {
    let Step::Reply(reply) = step else { panic!("no reply: {step:?}") };
    reply.errno
}

fn body<T: FromBytes>(step: Step) -> T {
    let Step::Reply(reply) = step else { panic!("no reply: {step:?}") };
    assert_eq!(reply.errno, 0);
    T::read_from_bytes(&reply.body).unwrap()
}

fn asks(step: Step) -> OpAction {
    let Step::Ask(action, _) = step else { panic!("asks nothing: {step:?}") };
    action
}

#[test]
fn agrees_with_newer_kernels_and_refuses_old_ones() {
    let init = |major, minor| {
        let flags = u32::MAX;
        ask(Opcode::INIT, 0, InitIn { major, minor, max_readahead: 9, flags })
    };
    let agreed: InitOut = body(init(7, 45));
    assert_eq!((agreed.major, agreed.max_readahead), (MAJOR, 9));
    assert_eq!(usize::from(agreed.max_pages) * 4096, TRANSFER_LEN_MAX);
    assert_eq!(agreed.flags & init::ASYNC_DIO, init::ASYNC_DIO);
    assert_ne!(agreed.flags, u32::MAX, "only what we know");
    assert_eq!(body::<InitOut>(init(8, 0)).major, MAJOR);
    assert_eq!(errno(init(7, MINOR_MIN - 1)), libc::EPROTO);
    assert_eq!(errno(ask(Opcode::INIT, 0, 7_u32)), libc::EPROTO, "cut short");
}

#[test]
fn shared_mappings_are_permitted_where_the_kernel_has_them() {
    let agreed = |flags: u32, more: &[u32]| {
        let asked = InitIn { major: 7, minor: 45, max_readahead: 9, flags };
        let words = more.iter().flat_map(|word| word.to_ne_bytes());
        let bytes: Vec<u8> = asked.as_bytes().iter().copied().chain(words).collect();
        let agreed: InitOut = body(ask_of(&profile(), Opcode::INIT, 0, &bytes));
        (agreed.flags & init::INIT_EXT, agreed.flags2)
    };
    assert_eq!(agreed(u32::MAX, &[u32::MAX, 0]), (init::INIT_EXT, init::DIRECT_IO_ALLOW_MMAP));
    assert_eq!(agreed(u32::MAX, &[0]), (init::INIT_EXT, 0));
    assert_eq!(agreed(u32::MAX, &[]), (init::INIT_EXT, 0), "an older kernel");
    assert_eq!(agreed(!init::INIT_EXT, &[u32::MAX]), (0, 0));
}

#[test]
fn there_is_one_file() {
    let entry: EntryOut = body(ask(Opcode::LOOKUP, ROOT, *b"disk\0"));
    assert_eq!((entry.node, entry.attr.size, entry.attr.mode), (FILE, LEN, libc::S_IFREG | 0o600));
    assert_eq!((entry.attr.uid, entry.attr.gid, entry.attr.times), (1, 2, [3; 3]));
    for name in [&b"disc\0"[..], b"dis", b"disk2\0", b"\0", b""] {
        assert_eq!(errno(ask_of(&profile(), Opcode::LOOKUP, ROOT, name)), libc::ENOENT);
    }
    assert_eq!(errno(ask(Opcode::LOOKUP, FILE, *b"disk\0")), libc::ENOENT);
    let root: AttrOut = body(ask(Opcode::GETATTR, ROOT, [0_u64; 2]));
    assert_eq!(root.attr.mode & libc::S_IFMT, libc::S_IFDIR);
    assert_eq!(errno(ask(Opcode::GETATTR, 77, [0_u64; 2])), libc::ENOENT);
    for opcode in [Opcode::CREATE, Opcode::UNLINK, Opcode::RENAME2, Opcode::MKDIR] {
        assert_eq!(errno(ask(opcode, ROOT, [0_u64; 4])), libc::EPERM);
    }
    assert_eq!(errno(ask(Opcode(4000), ROOT, [0_u64; 4])), libc::ENOSYS);
}

#[test]
fn the_directory_is_listed_in_pieces_of_any_size() {
    let list = |at, len| {
        let step = ask(Opcode::READDIR, ROOT, TransferIn { at, len, ..TransferIn::default() });
        let Step::Reply(reply) = step else { panic!("no reply") };
        let (mut rest, mut names) = (&reply.body[..], Vec::new());
        while let Ok((entry, tail)) = Dirent::read_from_prefix(rest) {
            names.push(String::from_utf8(tail[..entry.name_len as usize].to_vec()).unwrap());
            rest = &rest[(24 + entry.name_len as usize).next_multiple_of(8)..];
        }
        names
    };
    assert_eq!(list(0, 4096), [".", "..", "disk"]);
    assert_eq!(list(2, 4096), ["disk"]);
    assert_eq!(list(3, 4096), [""; 0]);
    assert_eq!(list(0, 70), [".", ".."]);
    assert_eq!(list(u64::MAX, 4096), [""; 0]);
}

#[test]
fn the_size_is_the_disks() {
    let set = |valid, size| ask(Opcode::SETATTR, FILE, SetattrIn { valid, size, ..SetattrIn::default() });
    assert_eq!(body::<AttrOut>(set(FATTR_SIZE | FATTR_FH, LEN)).attr.size, LEN);
    assert_eq!(body::<AttrOut>(set(FATTR_SIZE, 0)).attr.size, LEN, "opened for truncation");
    assert_eq!(errno(set(FATTR_SIZE | FATTR_FH, 0)), libc::EPERM);
    assert_eq!(errno(set(FATTR_SIZE, LEN + 1)), libc::EPERM);
    assert_eq!(errno(set(FATTR_MODE, 0)), libc::EPERM);
    assert_eq!(errno(set(1 << 5, 0)), 0, "times are nobody's concern");
}

#[test]
fn a_read_only_disk_is_opened_for_reading_only() {
    let read_only = Capabilities { read_only: true, ..profile() };
    let open = |flags: i32| {
        let flags = flags.unsigned_abs();
        ask_of(&read_only, Opcode::OPEN, FILE, OpenIn { flags, open_flags: 0 }.as_bytes())
    };
    assert!(matches!(open(libc::O_RDONLY), Step::Open));
    let opened: OpenOut = body(Step::Reply(opened(7)));
    assert_eq!((opened.fh, opened.open_flags), (7, FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES));
    assert!(matches!(ask(Opcode::FSYNC, FILE, [7_u64, 0]), Step::Flush(7)));
    assert!(matches!(ask(Opcode::RELEASE, FILE, [7_u64, 0, 0]), Step::Close(7)));
    assert_eq!(errno(open(libc::O_RDWR)), libc::EROFS);
    assert_eq!(errno(open(libc::O_WRONLY)), libc::EROFS);
    let punch = FallocateIn { mode: 3, len: 1, ..FallocateIn::default() };
    assert_eq!(errno(ask_of(&read_only, Opcode::FALLOCATE, FILE, punch.as_bytes())), libc::EROFS);
}

#[test]
fn reads_stop_at_the_end() {
    for (at, len, expected) in
        [(0, 10, (0, 10)), (LEN - 5, 10, (LEN - 5, 5)), (LEN, 1, (LEN, 0)), (u64::MAX, 9, (LEN, 0))]
    {
        let step = ask(Opcode::READ, FILE, TransferIn { at, len, ..TransferIn::default() });
        assert_eq!(asks(step).range(), expected);
    }
    assert_eq!(errno(ask(Opcode::READ, ROOT, TransferIn::default())), libc::EBADF);
}

#[test]
fn writes_stop_at_the_end_and_are_stable_when_asked_to_be() {
    let write = |at, sent: usize, len, file_flags: i32| {
        let header = InHeader { opcode: Opcode::WRITE.0, node: FILE, ..InHeader::default() };
        let file_flags = file_flags.unsigned_abs();
        let body = TransferIn { at, len, file_flags, ..TransferIn::default() };
        let payload = Bytes::copied_from(&vec![1; sent]).into();
        FileSystem::new(1, 2, 3).request(&header, body.as_bytes(), payload, &profile())
    };
    assert_eq!(asks(write(100, 10, 10, 0)).range(), (100, 10));
    let Step::Ask(action, question) = write(LEN - 4, 10, 10, libc::O_DSYNC) else { panic!() };
    assert_eq!(action.range(), (LEN - 4, 4));
    assert!(matches!(action, OpAction::Write { durability: Durability::Stable, .. }));
    let told: WriteOut = body(answer(question, Ok(OpOutput::Done(DataList::new()))));
    assert_eq!(told.len, 4);
    assert_eq!(errno(write(LEN, 1, 1, 0)), libc::ENOSPC);
    assert_eq!(errno(write(u64::MAX, 1, 1, 0)), libc::ENOSPC);
    assert_eq!(errno(write(0, 9, 10, 0)), libc::EPROTO, "less than announced");
}

#[test]
fn holes_are_punched_and_ranges_zeroed() {
    let allocate = |thin, mode, at, len| {
        let profile = Capabilities { thin, ..profile() };
        let asked = FallocateIn { mode, at, len, ..FallocateIn::default() };
        ask_of(&profile, Opcode::FALLOCATE, FILE, asked.as_bytes())
    };
    let (keep, punch, zero) = (1, 2, 16);
    let action = asks(allocate(true, keep | punch, 5, 9));
    assert!(matches!(action, OpAction::WriteZeroes { at: 5, len: 9, may_deallocate: true, .. }));
    let action = asks(allocate(true, zero, 5, 9));
    assert!(matches!(action, OpAction::WriteZeroes { at: 5, len: 9, may_deallocate: false, .. }));
    assert_eq!(asks(allocate(true, keep | punch, LEN - 1, 9)).range(), (LEN - 1, 1));
    assert_eq!(asks(allocate(true, keep | punch, LEN + 7, 9)).range(), (LEN, 0));
    assert_eq!(errno(allocate(true, zero, LEN - 1, 9)), libc::ENOSPC);
    assert_eq!(errno(allocate(true, keep | punch, u64::MAX, 9)), libc::EFBIG);
    assert_eq!(errno(allocate(true, 0, 0, 9)), libc::EOPNOTSUPP);
    assert_eq!(errno(allocate(false, 0, 0, 9)), 0);
    assert_eq!(errno(allocate(true, 8, 0, 9)), libc::EOPNOTSUPP, "collapse");
}

#[test]
fn data_and_holes_are_sought_through_many_extents() {
    let seek = |whence: i32, at| {
        let whence = whence.unsigned_abs();
        ask(Opcode::LSEEK, FILE, LseekIn { at, whence, ..LseekIn::default() })
    };
    let extents = |list: &[(u64, u64, ExtentState)]| {
        let list = list.iter().map(|(at, len, state)| Extent { at: *at, len: *len, state: *state });
        Ok(OpOutput::MapStatus(list.collect()))
    };
    use ExtentState::{Anchored, Hole, Mapped};
    let Step::Ask(_, question) = seek(libc::SEEK_DATA, 100) else { panic!() };
    let more = answer(question, extents(&[(100, 50, Hole), (150, 50, Anchored)]));
    let Step::Ask(OpAction::MapStatus { at: 200, len, .. }, question) = more else { panic!("{more:?}") };
    assert_eq!(len, LEN - 200);
    assert_eq!(body::<u64>(answer(question, extents(&[(200, 9, Mapped)]))), 200);
    let Step::Ask(_, question) = seek(libc::SEEK_DATA, 100) else { panic!() };
    assert_eq!(errno(answer(question, extents(&[(100, LEN - 100, Hole)]))), libc::ENXIO);
    let Step::Ask(_, question) = seek(libc::SEEK_HOLE, 100) else { panic!() };
    assert_eq!(body::<u64>(answer(question, extents(&[(100, LEN - 100, Mapped)]))), LEN);
    let Step::Ask(_, question) = seek(libc::SEEK_HOLE, 100) else { panic!() };
    assert_eq!(body::<u64>(answer(question, Err(Fault::Unsupported.into()))), LEN);
    assert_eq!(errno(seek(libc::SEEK_DATA, LEN)), libc::ENXIO);
    assert_eq!(errno(seek(libc::SEEK_SET, 0)), libc::EINVAL);
}

#[test]
fn failures_of_the_medium_are_told() {
    for (fault, number) in [
        (Fault::Medium, libc::EIO),
        (Fault::NoSpace, libc::ENOSPC),
        (Fault::Unsupported, libc::EOPNOTSUPP),
        (Fault::ReadOnly, libc::EROFS),
    ] {
        let failure: Failure = fault.into();
        assert_eq!(errno(answer(Question::Plain, Err(failure))), number);
        assert_eq!(errno(answer(Question::Read, Err(failure))), number);
    }
    assert_eq!(errno(answer(Question::Read, Ok(OpOutput::MapStatus(Vec::new())))), libc::EIO);
}
