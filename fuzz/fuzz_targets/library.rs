//! What a damaged or hostile file of a tape library can say, and what motions then make of it.
//!
//! The first byte of the input says whether the file gets a right checksum, and how many of the last bytes
//! are motions; the others are the file.
#![no_main]

use cartridge::layout::Crc;
use cartridge::library::{Element, Library};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let (is_sealed, motions) = (first & 1 != 0, usize::from(first >> 1).min(rest.len()));
    let (text, motions) = rest.split_at(rest.len() - motions);
    let mut file = text.to_vec();
    if is_sealed {
        let mut crc = Crc::new();
        crc.update(&file);
        file.extend(format!("crc32c {:08x}\n", crc.value()).bytes());
    }
    let Ok(mut library) = Library::decode(&file) else { return };
    assert_eq!(library.encode(), file, "one library has one file");
    let elements: Vec<Element> = library.elements().collect();
    let count = library.cartridges().len();
    for motion in motions.chunks_exact(4) {
        let element = |at: usize| elements[usize::from(motion[at]) % elements.len()];
        let before = library.clone();
        let result = match motion[0] % 3 {
            0 => library.move_cartridge(element(1), element(2)),
            1 => library.exchange(element(1), element(2), element(3)),
            _ => library.set_vaulted(element(1), motion[2] & 1 != 0),
        };
        // The file of a change that is refused is dropped.
        if result.is_err() {
            library = before;
        }
        assert_eq!(library.cartridges().len(), count, "no cartridge is lost or there twice");
        assert_eq!(Library::decode(&library.encode()).as_ref(), Ok(&library));
    }
});
