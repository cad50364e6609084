//! A medium that stores nothing: it discards writes, and reads return zeros. For measuring everything but the
//! medium.

use alloc::collections::VecDeque;
use alloc::vec;

use base::buffer::{Buf, Bytes, DataList};

use crate::api::{
    Capabilities, Completion, Extent, ExtentState, Failure, Fault, Op, OpAction, OpOutput, Store,
};

/// The length in bytes of the zeros that every read shares.
const ZEROS: usize = 1 << 20;

/// The longest read or write in bytes.
const IO_LEN_MAX: usize = 64 << 20;

/// A medium that stores nothing.
#[derive(Debug)]
pub struct Null {
    len: u64,
    zeros: Bytes,
    completions: VecDeque<Completion>,
}

impl Null {
    /// Makes a medium of `len` bytes, all zeros.
    pub fn new(len: u64) -> Self {
        let mut buf = Buf::with_capacity(ZEROS);
        buf.append_zeros(ZEROS);
        Self { len, zeros: buf.freeze(), completions: VecDeque::new() }
    }

    fn perform(&self, action: OpAction) -> Result<OpOutput, Failure> {
        let wide = |len: usize| u64::try_from(len).unwrap_or(u64::MAX);
        match action {
            OpAction::Read { at, len } => {
                self.check(at, wide(len))?;
                Ok(OpOutput::Data(self.read(len)))
            }
            OpAction::Write { at, data, .. } => {
                self.check(at, wide(data.len()))?;
                Ok(OpOutput::Done(data))
            }
            OpAction::CryptoErase | OpAction::Command(_) | OpAction::Reset => Err(Fault::Unsupported.into()),
            OpAction::Flush => Ok(OpOutput::Done(DataList::new())),
            OpAction::Deallocate { at, len } | OpAction::WriteZeroes { at, len, .. } => {
                self.check(at, len)?;
                Ok(OpOutput::Done(DataList::new()))
            }
            OpAction::MapStatus { at, len, count_max } => {
                self.check(at, len)?;
                let hole = Extent { at, len, state: ExtentState::Hole };
                Ok(OpOutput::MapStatus(if len == 0 || count_max == 0 { vec![] } else { vec![hole] }))
            }
        }
    }

    fn check(&self, at: u64, len: u64) -> Result<(), Failure> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Failure { fault: Fault::OutOfRange, at: Some(at) }),
        }
    }

    fn read(&self, len: usize) -> DataList {
        let mut list = DataList::new();
        while list.len() < len {
            list.push(self.zeros.slice(0, len - list.len()));
        }
        list
    }
}

impl Store for Null {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            len: self.len,
            logical_block_len: 1,
            preferred_block_len: 4096,
            io_len_max: IO_LEN_MAX,
            atomic_len_max: IO_LEN_MAX,
            read_only: false,
            volatile_cache: false,
            thin: true,
            deallocated_reads_zero: true,
            zeroes_by_deallocating: true,
            deallocated_is_gone: true,
            rotational: false,
            crypto_erase: false,
        }
    }

    fn submit(&mut self, op: Op) {
        let result = self.perform(op.action);
        self.completions.push_back(Completion { id: op.id, result });
    }

    fn poll(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Durability, OpId};

    fn run(null: &mut Null, action: OpAction) -> Result<OpOutput, Failure> {
        null.submit(Op { id: OpId(1), action });
        null.poll().expect("answers at once").result
    }

    #[test]
    fn reads_zeros_whatever_was_written() {
        let mut null = Null::new(1 << 40);
        let data = Bytes::copied_from(b"gone").into();
        assert!(run(&mut null, OpAction::Write { at: 0, data, durability: Durability::Stable }).is_ok());
        let Ok(OpOutput::Data(list)) = run(&mut null, OpAction::Read { at: 0, len: 3 * ZEROS + 1 }) else {
            panic!()
        };
        assert_eq!(list.len(), 3 * ZEROS + 1);
        assert!(list.parts().iter().all(|part| part.iter().all(|b| *b == 0)));
    }

    #[test]
    fn has_an_end() {
        let mut null = Null::new(10);
        for action in [OpAction::Read { at: 10, len: 1 }, OpAction::Deallocate { at: u64::MAX, len: 2 }] {
            assert!(matches!(run(&mut null, action), Err(Failure { fault: Fault::OutOfRange, .. })));
        }
    }
}
