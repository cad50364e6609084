//! Numbers and structures of the kernel's FUSE interface, version 7, in the host's byte order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The version of the interface that the structures here belong to.
pub(super) const MAJOR: u32 = 7;
pub(super) const MINOR: u32 = 38;
/// The oldest kernel interface that has all that this module needs (7.31, Linux 5.4).
pub(super) const MINOR_MIN: u32 = 31;

/// An opcode, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub(super) struct Opcode(pub(super) u32);

impl Opcode {
    pub(super) const LOOKUP: Self = Self(1);
    pub(super) const FORGET: Self = Self(2);
    pub(super) const GETATTR: Self = Self(3);
    pub(super) const SETATTR: Self = Self(4);
    pub(super) const OPEN: Self = Self(14);
    pub(super) const READ: Self = Self(15);
    pub(super) const WRITE: Self = Self(16);
    pub(super) const STATFS: Self = Self(17);
    pub(super) const RELEASE: Self = Self(18);
    pub(super) const FSYNC: Self = Self(20);
    pub(super) const INIT: Self = Self(26);
    pub(super) const OPENDIR: Self = Self(27);
    pub(super) const READDIR: Self = Self(28);
    pub(super) const RELEASEDIR: Self = Self(29);
    pub(super) const FSYNCDIR: Self = Self(30);
    pub(super) const INTERRUPT: Self = Self(36);
    pub(super) const DESTROY: Self = Self(38);
    pub(super) const BATCH_FORGET: Self = Self(42);
    pub(super) const FALLOCATE: Self = Self(43);
    pub(super) const LSEEK: Self = Self(46);
    pub(super) const MKNOD: Self = Self(8);
    pub(super) const MKDIR: Self = Self(9);
    pub(super) const UNLINK: Self = Self(10);
    pub(super) const RMDIR: Self = Self(11);
    pub(super) const SYMLINK: Self = Self(6);
    pub(super) const RENAME: Self = Self(12);
    pub(super) const LINK: Self = Self(13);
    pub(super) const CREATE: Self = Self(35);
    pub(super) const RENAME2: Self = Self(45);
}

/// The flags that this module requests at the start.
pub(super) mod init {
    pub(in super::super) const ASYNC_READ: u32 = 1 << 0;
    pub(in super::super) const BIG_WRITES: u32 = 1 << 5;
    pub(in super::super) const ASYNC_DIO: u32 = 1 << 15;
    pub(in super::super) const PARALLEL_DIROPS: u32 = 1 << 18;
    pub(in super::super) const MAX_PAGES: u32 = 1 << 22;
    /// The second word of flags counts.
    pub(in super::super) const INIT_EXT: u32 = 1 << 30;
    /// Of the second word: files that the kernel does not cache can be mapped and shared (Linux 6.6).
    pub(in super::super) const DIRECT_IO_ALLOW_MMAP: u32 = 1 << 4;
}

/// Flags of an open file.
pub(super) const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub(super) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// The attributes that a request sets.
pub(super) const FATTR_MODE: u32 = 1 << 0;
pub(super) const FATTR_UID: u32 = 1 << 1;
pub(super) const FATTR_GID: u32 = 1 << 2;
pub(super) const FATTR_SIZE: u32 = 1 << 3;
pub(super) const FATTR_FH: u32 = 1 << 6;

/// The header of every request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InHeader {
    pub(super) len: u32,
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
    pub(super) extensions_len: u16,
    pub(super) padding: u16,
}

/// The header of every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OutHeader {
    pub(super) len: u32,
    /// Zero, or a negative error number.
    pub(super) error: i32,
    pub(super) unique: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Attr {
    pub(super) ino: u64,
    pub(super) size: u64,
    pub(super) blocks: u64,
    /// The seconds of access, modification and change.
    pub(super) times: [u64; 3],
    pub(super) times_ns: [u32; 3],
    pub(super) mode: u32,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) block_len: u32,
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct EntryOut {
    pub(super) node: u64,
    pub(super) generation: u64,
    pub(super) entry_valid_s: u64,
    pub(super) attr_valid_s: u64,
    pub(super) entry_valid_ns: u32,
    pub(super) attr_valid_ns: u32,
    pub(super) attr: Attr,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct AttrOut {
    pub(super) attr_valid_s: u64,
    pub(super) attr_valid_ns: u32,
    pub(super) padding: u32,
    pub(super) attr: Attr,
}

/// The start of a request that sets attributes; the state machine refuses or ignores the rest.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct SetattrIn {
    pub(super) valid: u32,
    pub(super) padding: u32,
    pub(super) fh: u64,
    pub(super) size: u64,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OpenIn {
    pub(super) flags: u32,
    pub(super) open_flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct OpenOut {
    pub(super) fh: u64,
    pub(super) open_flags: u32,
    pub(super) padding: u32,
}

/// The fixed part of a request that names an open file: FSYNC and RELEASE.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct HandleIn {
    pub(super) fh: u64,
}

/// The fixed part of a read, a write (its payload follows) or a read of a directory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct TransferIn {
    pub(super) fh: u64,
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) transfer_flags: u32,
    pub(super) lock_owner: u64,
    /// The flags that the file was opened with.
    pub(super) file_flags: u32,
    pub(super) padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct WriteOut {
    pub(super) len: u32,
    pub(super) padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct StatfsOut {
    pub(super) blocks: u64,
    pub(super) blocks_free: u64,
    pub(super) blocks_available: u64,
    pub(super) files: u64,
    pub(super) files_free: u64,
    pub(super) block_len: u32,
    pub(super) name_len: u32,
    pub(super) fragment_len: u32,
    pub(super) padding: u32,
    pub(super) spare: [u32; 6],
}

/// The start of the kernel's first request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InitIn {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) max_readahead: u32,
    pub(super) flags: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct InitOut {
    pub(super) major: u32,
    pub(super) minor: u32,
    pub(super) max_readahead: u32,
    pub(super) flags: u32,
    pub(super) max_background: u16,
    pub(super) congestion_threshold: u16,
    pub(super) max_write: u32,
    pub(super) time_granularity_ns: u32,
    pub(super) max_pages: u16,
    pub(super) map_alignment: u16,
    pub(super) flags2: u32,
    pub(super) unused: [u32; 7],
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct FallocateIn {
    pub(super) fh: u64,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) mode: u32,
    pub(super) padding: u32,
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct LseekIn {
    pub(super) fh: u64,
    pub(super) at: u64,
    pub(super) whence: u32,
    pub(super) padding: u32,
}

/// The header of each name in a directory.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Dirent {
    pub(super) ino: u64,
    pub(super) next: u64,
    pub(super) name_len: u32,
    pub(super) kind: u32,
}

const _: () = {
    assert!(size_of::<InHeader>() == 40);
    assert!(size_of::<OutHeader>() == 16);
    assert!(size_of::<Attr>() == 88);
    assert!(size_of::<EntryOut>() == 128);
    assert!(size_of::<AttrOut>() == 104);
    assert!(size_of::<TransferIn>() == 40);
    assert!(size_of::<StatfsOut>() == 80);
    assert!(size_of::<InitOut>() == 64);
    assert!(size_of::<FallocateIn>() == 32);
    assert!(size_of::<LseekIn>() == 24);
    assert!(size_of::<Dirent>() == 24);
};
