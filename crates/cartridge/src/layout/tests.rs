use super::*;

const SECRET: [u8; 16] = [7; 16];

fn record() -> ItemHeader {
    ItemHeader {
        kind: ItemKind::Record,
        is_compressed: true,
        is_sync: false,
        protection: 2,
        encryption: 1,
        epoch: 0x0102_0304,
        metadata_len: 16,
        at: 64 * 1000,
        object: 20,
        filemarks: 3,
        len: 5000,
        stored_len: 4016,
        crc: 0x1111_1111,
        stored_crc: 0x2222_2222,
        guard: 0x3333_3333,
    }
}

#[test]
fn headers_read_back_under_their_seal_and_place_only() {
    let seal = Seal::new(&SECRET, 1);
    let header = record();
    let bytes = header.encode(&seal);
    assert_eq!(ItemHeader::decode(&bytes, &seal, header.at), Some(header));
    assert_eq!(ItemHeader::decode(&bytes, &seal, header.at + 64), None, "another place");
    assert_eq!(ItemHeader::decode(&bytes, &Seal::new(&SECRET, 0), header.at), None, "another partition");
    assert_eq!(ItemHeader::decode(&bytes, &Seal::new(&[8; 16], 1), header.at), None, "another cartridge");
    let chunk = ChunkHeader {
        epoch: 9,
        chunk: 5,
        first: 5 * BODY_LEN + 64,
        object: 77,
        filemarks: 6,
        durable: 4 * BODY_LEN,
    };
    let bytes = chunk.encode(&seal);
    assert_eq!(ChunkHeader::decode(&bytes, &seal, 5), Some(chunk));
    assert_eq!(ChunkHeader::decode(&bytes, &seal, 6), None);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let seal = Seal::new(&SECRET, 0);
    let header = record();
    let bytes = header.encode(&seal);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(ItemHeader::decode(&flipped, &seal, header.at), None, "bit {bit}");
    }
}

#[test]
fn impossible_items_are_refused_though_their_checksum_is_right() {
    let seal = Seal::new(&SECRET, 0);
    let plain = ItemHeader { is_compressed: false, metadata_len: 0, len: 100, stored_len: 100, ..record() };
    assert_eq!(ItemHeader::decode(&plain.encode(&seal), &seal, plain.at), Some(plain));
    let impossible = [
        ItemHeader { len: 0, stored_len: 0, ..plain },
        ItemHeader { len: to_u32(RECORD_LEN_MAX) + 1, stored_len: to_u32(RECORD_LEN_MAX) + 1, ..plain },
        ItemHeader { stored_len: 101, ..plain },
        ItemHeader { metadata_len: 101, ..plain },
        ItemHeader { is_compressed: true, ..plain },
        ItemHeader { is_sync: true, ..plain },
        ItemHeader { filemarks: 21, ..plain },
        ItemHeader { kind: ItemKind::Filemark, ..plain },
        ItemHeader { kind: ItemKind::Pad, len: 0, stored_len: 4096, ..plain },
    ];
    for header in impossible {
        assert_eq!(ItemHeader::decode(&header.encode(&seal), &seal, header.at), None, "{header:?}");
    }
}

#[test]
fn the_stream_leaves_out_the_headers_of_chunks() {
    assert_eq!(physical(0), 64);
    assert_eq!(physical(BODY_LEN - 1), CHUNK_LEN - 1);
    assert_eq!(physical(BODY_LEN), CHUNK_LEN + 64);
    assert_eq!((occupied(0), occupied(1), occupied(BODY_LEN)), (0, 65, CHUNK_LEN));
}

#[test]
fn checksums_are_crc32c() {
    let mut crc = Crc::new();
    crc.update(b"12345");
    crc.update(b"6789");
    assert_eq!(crc.value(), 0xe306_9283);
}
