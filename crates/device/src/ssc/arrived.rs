//! The Data-Out of WRITE that has arrived and is not written.

use alloc::collections::VecDeque;

use base::buffer::{Bytes, DataList};

/// Bytes in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Arrived {
    parts: VecDeque<Bytes>,
    len: usize,
}

impl Arrived {
    /// Returns how many bytes there are.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds bytes at the end.
    pub(super) fn push(&mut self, part: Bytes) {
        self.len = self.len.saturating_add(part.len());
        self.parts.push_back(part);
    }

    /// Removes and returns the first `len` bytes, or all if there are fewer. The cost does not depend on how
    /// many bytes are left.
    pub(super) fn take(&mut self, len: usize) -> DataList {
        let mut taken = DataList::new();
        while taken.len() < len
            && let Some(part) = self.parts.pop_front()
        {
            let wanted = len - taken.len();
            if part.len() > wanted {
                self.parts.push_front(part.slice(wanted, part.len()));
            }
            taken.push(part.slice(0, wanted));
        }
        self.len = self.len.saturating_sub(taken.len());
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_across_parts_in_order() {
        let mut arrived = Arrived::default();
        arrived.push(Bytes::copied_from(b"abcde"));
        arrived.push(Bytes::copied_from(b"fg"));
        let mut taken = |len| -> alloc::vec::Vec<u8> {
            arrived.take(len).into_parts().flat_map(|part| part.to_vec()).collect()
        };
        assert_eq!(taken(2), b"ab");
        assert_eq!(taken(4), b"cdef");
        assert_eq!(taken(4), b"g");
        assert_eq!(taken(1), b"");
        assert_eq!(arrived.len(), 0);
    }
}
