//! Tests of what is copied of a record: short pieces.

use super::*;

const KIB: usize = 1 << 10;

/// Returns a record of these bytes in pieces of buffers of their own.
fn in_pieces(bytes: &[u8], mut piece_len: impl FnMut() -> usize) -> Record {
    let mut data = DataList::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(piece_len().min(rest.len()));
        data.push(Bytes::copied_from(piece));
        rest = behind;
    }
    Record { data, ..Record::default() }
}

fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

#[test]
fn the_log_does_not_depend_on_the_pieces_that_records_come_in() {
    for seed in 1..=4 {
        let mut rng = Rng::from_seed(seed);
        let (mut short, mut long) = (loaded(), loaded());
        let mut written = Vec::new();
        for number in 0..24 {
            let len = 1 + model::pick(&mut rng, 400 * KIB);
            let bytes = random_bytes(&mut rng, len);
            short.run(Command::Write(in_pieces(&bytes, || 8 * KIB))).unwrap();
            long.run(Command::Write(in_pieces(&bytes, || 1 + model::pick(&mut rng, 300 * KIB)))).unwrap();
            written.push(bytes);
            if number % 7 == 6 {
                short.mark(1);
                long.mark(1);
                written.push(Vec::new());
            }
        }
        short.unload();
        long.unload();
        assert!(short.files.files == long.files.files, "seed {seed}: the files differ");
        long.load();
        assert!(long.read_all(0) == written, "seed {seed}: other objects come back");
    }
}

#[test]
fn long_pieces_are_written_from_the_buffers_they_came_in_which_the_owner_gets_back() {
    let mut deck = loaded();
    let bytes = vec![7; 256 * KIB];
    let mut shared = Vec::new();
    while shared.is_empty() {
        deck.cartridge.handle_command(Command::Write(in_pieces(&bytes, || 64 * KIB)));
        while let Some(request) = deck.cartridge.poll_request() {
            if let OpAction::Write { data, .. } = &request.action {
                shared.extend(data.parts().iter().map(Bytes::block_len).filter(|len| *len == 64 * KIB));
            }
            let result = deck.files.perform(request.file, request.action);
            deck.cartridge.handle_completion(request.id, result);
        }
        assert!(deck.cartridge.poll_outcome().is_some());
    }
    assert!(shared.len() >= 12, "of 16 pieces in a chunk, {} are written as they came", shared.len());
    let returned =
        core::iter::from_fn(|| deck.cartridge.take_spare()).filter(|buf| buf.capacity() == 64 * KIB);
    assert!(returned.count() >= 12);
}

#[test]
fn a_piece_of_a_much_longer_buffer_is_copied() {
    let mut deck = loaded();
    let whole = Bytes::copied_from(&vec![9; 256 * KIB]);
    let record = Record { data: whole.slice(0, 64 * KIB).into(), ..Record::default() };
    deck.run(Command::Write(record)).unwrap();
    assert!(whole.into_spare().is_some(), "the cartridge holds a buffer of four times the length");
}
