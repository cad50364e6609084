//! The memory of a LUN. The logical unit and the reactor share it, and it can move to another process: its
//! chunks to an anonymous file, whose descriptor the other process gets.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;

use base::int_cast::to_u64;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use store::Store;
use store::api::{Capabilities, Completion, Fault, Op, Space};
use store::ram::{CHUNK, ChunkRun, ChunkStorage, Ram};

use crate::config::Unit;
use crate::serve::media::MediaError;
use crate::serve::media::handed_over::{MovedMemory, MovingMedium, MovingMemory, SessionMedia, TakenChunks};
use crate::serve::media::opened::{OpenedMedium, Place, nothing};
use crate::serve::media::served::ServedMedium;

/// The file of chunks that are not in the memory of this process.
#[derive(Clone, Debug)]
struct ChunkFile(Arc<File>);

impl ChunkStorage for ChunkFile {
    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Fault> {
        self.0.read_exact_at(buf, at).map_err(|error| {
            crate::error!("cannot read the memory of a LUN: {}", crate::os_error(&error));
            Fault::Medium
        })
    }

    fn discard(&mut self, at: u64, len: u64) {
        // A failure costs memory until the file is closed.
        let _ = fallocate(&*self.0, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
    }
}

/// The memory of a LUN before it is on its reactor.
#[derive(Debug)]
pub(in crate::serve) struct OpenMemory {
    ram: Ram,
    file: Option<ChunkFile>,
}

impl OpenMemory {
    /// Makes memory of `len` bytes, all zeros.
    pub(in crate::serve) fn new(len: u64) -> Self {
        Self { ram: Ram::new(len), file: None }
    }

    /// Takes memory of `len` bytes over from another process. `None` if it does not have this length.
    pub(in crate::serve) fn take(len: u64, moved: MovedMemory) -> Option<Self> {
        let MovedMemory { len: has, chunks, file } = moved;
        let file = ChunkFile(Arc::new(file));
        let runs: Vec<ChunkRun> = chunks.iter().map(|&(first, count)| ChunkRun { first, count }).collect();
        let ram = Ram::from_storage(len, Box::new(file.clone()), &runs).filter(|_| has == len)?;
        Some(Self { ram, file: Some(file) })
    }
}

/// The memory of a LUN that is to be served.
#[derive(Debug)]
pub(in crate::serve) enum LunMemory {
    /// It is here.
    Open(OpenMemory),
    /// Memory of this length, in bytes, that comes with the sessions of another process.
    Awaited(u64),
}

impl OpenedMedium for LunMemory {
    fn receive(&mut self, unit: &Unit, media: &mut SessionMedia) -> Result<(), MediaError> {
        let Self::Awaited(len) = *self else { return Ok(()) };
        let failed = |why: &str| MediaError::new(unit, why.to_owned());
        let moved = media.memories.remove(&unit.identity.naa.to_string());
        let moved = moved.ok_or_else(|| failed("its memory is missing"))?;
        *self = Self::Open(OpenMemory::take(len, moved).ok_or_else(|| failed("its memory does not fit"))?);
        Ok(())
    }

    fn place(self: Box<Self>, _place: Place<'_>) -> Box<dyn ServedMedium> {
        match *self {
            Self::Open(memory) => Box::new(Memory::new(memory)),
            Self::Awaited(_) => nothing(),
        }
    }
}

/// The memory of a LUN. Clones share it.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Memory(Rc<RefCell<OpenMemory>>);

impl Memory {
    pub(in crate::serve) fn new(open: OpenMemory) -> Self {
        Self(Rc::new(RefCell::new(open)))
    }

    /// Begins to move the chunks to a file.
    ///
    /// # Errors
    /// The error of the system.
    pub(in crate::serve) fn begin_move(&self) -> io::Result<()> {
        let OpenMemory { ram, file } = &mut *self.0.borrow_mut();
        let file = match file {
            Some(file) => file,
            None => {
                let made = memfd_create("targe-lun", MemfdFlags::CLOEXEC)?;
                file.insert(ChunkFile(Arc::new(File::from(made))))
            }
        };
        ram.begin_move(Box::new(file.clone()));
        Ok(())
    }

    /// Returns how many bytes are still to be copied.
    pub(in crate::serve) fn len_to_move(&self) -> u64 {
        self.0.borrow().ram.len_to_move()
    }

    /// Returns the next chunks that are to be copied, of about `len_max` bytes; `None` at the end of the
    /// medium.
    pub(in crate::serve) fn next_to_move(&self, len_max: u64) -> Option<TakenChunks> {
        let OpenMemory { ram, file } = &mut *self.0.borrow_mut();
        let file = Arc::clone(&file.as_ref()?.0);
        let chunks = ram.next_to_move(usize::try_from(len_max / to_u64(CHUNK)).unwrap_or(usize::MAX).max(1));
        Some(TakenChunks { file, chunks }).filter(|taken| !taken.chunks.is_empty())
    }

    /// Takes chunks back that are copied.
    pub(in crate::serve) fn moved(&self, taken: TakenChunks) {
        self.0.borrow_mut().ram.moved(taken.chunks);
    }

    /// Returns the memory and what is still to be copied of it. Nothing may use it before it has moved, or
    /// is to stay.
    ///
    /// # Errors
    /// The error of the system.
    fn move_out(&self) -> io::Result<Option<MovingMemory>> {
        let OpenMemory { ram, file } = &mut *self.0.borrow_mut();
        let Some(ChunkFile(file)) = file else { return Ok(None) };
        let rest = TakenChunks { file: Arc::clone(file), chunks: ram.rest_to_move() };
        let chunks =
            ram.allocated_runs().into_iter().map(|ChunkRun { first, count }| (first, count)).collect();
        let len = ram.capabilities().len;
        Ok(Some(MovingMemory { len, chunks, file: file.try_clone()?, rest }))
    }

    /// Ends the move: the memory stays in this process.
    pub(in crate::serve) fn end_move(&self) {
        let OpenMemory { ram, file } = &mut *self.0.borrow_mut();
        ram.end_move();
        if !ram.has_storage() {
            *file = None;
        }
    }
}

impl ServedMedium for Memory {
    fn store(&self) -> Box<dyn Store> {
        Box::new(self.clone())
    }

    fn export(&self, unit: &str) -> Result<Option<MovingMedium>, String> {
        let moving = self.move_out();
        let moving = moving.map_err(|error| format!("cannot pass memory on: {}", crate::os_error(&error)))?;
        Ok(moving.map(|memory| MovingMedium::Memory(unit.to_owned(), memory)))
    }
}

impl Store for Memory {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().ram.capabilities()
    }

    fn space(&self) -> Option<Space> {
        self.0.borrow().ram.space()
    }

    fn submit(&mut self, op: Op) {
        let OpenMemory { ram, file } = &mut *self.0.borrow_mut();
        ram.submit(op);
        // The last chunk has returned to memory.
        if file.is_some() && !ram.has_storage() {
            *file = None;
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().ram.poll()
    }
}
