//! A table whose numbered slots are reused.

/// A table of values. A value keeps its number while it is in the table.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// Puts `value` into a free slot and returns its number.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            if let Some(place) = self.places.get_mut(index(number)) {
                *place = Some(value);
            }
            return number;
        }
        // Descriptors and buffers run out long before 2^32 slots are in use.
        let number = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.places.push(Some(value));
        number
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.places.get_mut(index(number))?.take()?;
        self.free.push(number);
        Some(value)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.places.get_mut(index(number))?.as_mut()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the numbers in use.
    pub(crate) fn numbers(&self) -> Vec<u32> {
        let numbered = (0..).zip(&self.places);
        numbered.filter(|(_, place)| place.is_some()).map(|(number, _)| number).collect()
    }
}

/// Puts a value into a numbered slot of a table whose numbers the caller assigns.
pub(crate) fn put_at<T>(table: &mut Vec<Option<T>>, number: u32, value: T) {
    let at = index(number);
    if table.len() <= at {
        table.resize_with(at + 1, || None);
    }
    if let Some(place) = table.get_mut(at) {
        *place = Some(value);
    }
}

/// Returns the index that a number stands for. `usize` has at least 32 bits wherever io_uring or epoll exist.
pub(crate) const fn index(number: u32) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_number_is_used_again_and_others_keep_theirs() {
        let mut slab = Slab::new();
        assert_eq!([slab.insert('a'), slab.insert('b'), slab.insert('c')], [0, 1, 2]);
        assert_eq!(slab.remove(1), Some('b'));
        assert_eq!(slab.remove(1), None);
        assert_eq!(slab.numbers(), [0, 2]);
        assert_eq!(slab.insert('d'), 1);
        assert_eq!((slab.len(), slab.get_mut(1).copied()), (3, Some('d')));
        assert_eq!(slab.get_mut(7), None);
    }
}
