//! A cartridge of format version 1, as the first release wrote it.

use super::*;

const LABEL: &[u8] = include_bytes!("../../../testdata/v1/label");
const PLAIN: &[u8] = include_bytes!("../../../testdata/v1/p0-00000000.log");
const COMPRESSED: &[u8] = include_bytes!("../../../testdata/v1/p1-00000000.log");

fn log(partition: u8) -> FileId {
    FileId::Log { partition, segment: 0 }
}

/// Makes the cartridge again.
fn written() -> Deck<MemoryFiles> {
    let partitions = vec![16 << 20, 16 << 20];
    let mut deck = deck_of(&Blank { partitions, entropy: [0x5a; 48], ..blank() });
    deck.load();
    deck.cartridge.set_attribute(0, 0x0803, AttributeFormat::Text, b"golden").unwrap();
    let guard = Some(Guard { method: 2, value: 0x0102_0304 });
    let data = Bytes::copied_from(b"protected and encrypted").into();
    let metadata = b"key-associated data".to_vec();
    deck.write(b"first").unwrap();
    deck.run(Command::Write(Record { data, is_compressed: false, guard, encryption: 1, metadata })).unwrap();
    deck.mark(2);
    deck.write(&[0x33; 700]).unwrap();
    deck.go(1, 0);
    deck.run(Command::Write(Record { is_compressed: true, ..record(&[0x44; 5000]) })).unwrap();
    deck.unload();
    deck
}

#[test]
fn version_1_is_read_and_written_as_ever() {
    let files = [(FileId::Label, LABEL), (log(0), PLAIN), (log(1), COMPRESSED)];
    let files = files.map(|(file, bytes)| (file, bytes.to_vec()));
    let mut deck = Deck::new(MemoryFiles { files: files.into() });
    let report = deck.load();
    assert_eq!(report.label_copies, LabelCopies::Whole);
    assert_eq!(report.partitions, [Default::default(); 2]);
    let plain = [b"first".to_vec(), b"protected and encrypted".to_vec(), vec![], vec![], vec![0x33; 700]];
    assert_eq!(deck.read_all(0), plain);
    assert_eq!(deck.read_all(1), [vec![0x44; 5000]]);
    deck.go(0, 1);
    let Ok(Outcome::Record(found)) = deck.run(Command::Read) else { panic!() };
    assert_eq!(found.guard, Some(Guard { method: 2, value: 0x0102_0304 }));
    assert_eq!((found.encryption, found.metadata), (1, b"key-associated data".to_vec()));
    assert_eq!(deck.cartridge.attribute(0, 0x0803).unwrap().value, b"golden");
    // Another release of zstd can make other frames, so partition 1 is only read.
    let written = written().files.files;
    assert!(written[&log(0)] == PLAIN, "the log is written in another way");
    let label = &written[&FileId::Label];
    assert!(label[..LABEL.len()] == *LABEL, "the label is written in another way");
    assert!(label[LABEL.len()..].iter().all(|byte| *byte == 0));
}
