//! Compares data from the initiator with data on the medium.

use base::buffer::DataList;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::fault_injection::{self, Bug};

/// Returns the offset of the first difference between two runs of bytes of one length.
pub(super) fn first_difference(left: &DataList, right: &DataList) -> Option<usize> {
    let (mut lefts, mut rights) = (left.parts().iter(), right.parts().iter());
    let (mut a, mut b): (&[u8], &[u8]) = (&[], &[]);
    let mut at = 0;
    loop {
        if a.is_empty() {
            a = lefts.next()?;
            continue;
        }
        if b.is_empty() {
            b = rights.next()?;
            continue;
        }
        let len = a.len().min(b.len());
        let ((head_a, rest_a), (head_b, rest_b)) = (a.split_at(len), b.split_at(len));
        if head_a != head_b {
            let within = head_a.iter().zip(head_b).position(|(x, y)| x != y)?;
            return Some(at + within);
        }
        at += len;
        (a, b) = (rest_a, rest_b);
    }
}

/// Returns MISCOMPARE, with the offset of the first byte that differs as INFORMATION (SBC-4 §5.3).
pub(super) fn miscompare(at: usize) -> Sense {
    let at = u64::try_from(at).unwrap_or(u64::MAX);
    let at = if fault_injection::is_injected(Bug::MiscompareElsewhere) { at + 1 } else { at };
    Sense::new(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY).with_information(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::buffer::Bytes;

    fn list(parts: &[&[u8]]) -> DataList {
        let mut list = DataList::new();
        parts.iter().for_each(|part| list.push(Bytes::copied_from(part)));
        list
    }

    #[test]
    fn finds_the_first_difference_across_parts() {
        let whole = list(&[b"abcdefgh"]);
        for (other, at) in [
            (list(&[b"abcdefgh"]), None),
            (list(&[b"a", b"bcd", b"", b"efgh"]), None),
            (list(&[b"Xbcdefgh"]), Some(0)),
            (list(&[b"abc", b"defgX"]), Some(7)),
            (list(&[b"abc", b"dXfgX"]), Some(4)),
        ] {
            assert_eq!(first_difference(&whole, &other), at);
            assert_eq!(first_difference(&other, &whole), at);
        }
    }
}
