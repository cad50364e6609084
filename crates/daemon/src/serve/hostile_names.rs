//! Names for the tests of text files in the state directory: whatever separates, quotes or ends something.

use base::rng::Rng;

const PARTS: [&str; 22] = [
    " ",
    "-",
    "*",
    "%",
    "%20",
    "=",
    "/",
    ",",
    ":",
    ";",
    "\"",
    "'",
    "\\",
    "#",
    "sum ",
    "end 1",
    "iscsi",
    "group",
    "portal 1",
    "0=3a00000000000001/512",
    "\u{2028}\u{a0}",
    "\u{e9}\u{1f4be}",
];

/// Returns a name without control characters.
pub(super) fn name(rng: &mut Rng) -> String {
    let part = |rng: &mut Rng| PARTS[usize::try_from(rng.below(22)).unwrap()];
    (0..=rng.below(4)).map(|_| part(rng)).collect()
}

/// Returns a text that may have control characters, as a path can.
pub(super) fn text(rng: &mut Rng) -> String {
    let control = ["", "\n", "\t", "\r\n", "\u{1b}"][usize::try_from(rng.below(5)).unwrap()];
    name(rng) + control + &name(rng)
}
