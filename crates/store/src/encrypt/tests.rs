use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use base::rng::Rng;

use super::*;
use crate::api::{Durability, Extent, ExtentState};
use crate::powercut::Power;
use crate::ram::Ram;

const LEN: u64 = 1 << 20;

/// A key store whose results the test chooses.
#[derive(Clone, Default)]
struct Keeper(Rc<RefCell<(usize, VecDeque<Replaced>)>>);

impl KeyStore for Keeper {
    fn replace(&mut self) {
        self.0.borrow_mut().0 += 1;
    }

    fn poll(&mut self) -> Option<Replaced> {
        self.0.borrow_mut().1.pop_front()
    }
}

fn key(number: u8) -> MediaKey {
    MediaKey::new([[number; 32], [!number; 32]])
}

fn pool() -> Pool {
    Pool::new(4 << 20)
}

/// A medium whose encrypted contents the test can read.
#[derive(Clone)]
struct Glass(Rc<RefCell<Ram>>);

impl Store for Glass {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().capabilities()
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
}

fn run(store: &mut impl Store, action: OpAction) -> Result<OpOutput, Failure> {
    store.submit(Op { id: OpId(7), action });
    let completion = store.poll().expect("answers at once");
    assert_eq!(completion.id, OpId(7));
    completion.result
}

fn write(store: &mut impl Store, at: u64, bytes: &[u8]) {
    let data = Bytes::copied_from(bytes).into();
    match run(store, OpAction::Write { at, data, durability: Durability::Cached }) {
        Ok(OpOutput::Done(given)) => assert_eq!(flat(&given), bytes, "the data comes back as it was given"),
        other => panic!("{other:?}"),
    }
}

fn read(store: &mut impl Store, at: u64, len: usize) -> Vec<u8> {
    match run(store, OpAction::Read { at, len }) {
        Ok(OpOutput::Data(data)) => flat(&data),
        other => panic!("{other:?}"),
    }
}

fn flat(data: &DataList) -> Vec<u8> {
    let mut out = vec![0; data.len()];
    data.copy_to(0, &mut out);
    out
}

fn world(unit: DataUnit) -> (Encrypted<Glass, Keeper>, Glass, Keeper) {
    let (glass, keeper) = (Glass(Rc::new(RefCell::new(Ram::new(LEN)))), Keeper::default());
    (Encrypted::new(glass.clone(), keeper.clone(), &key(1), unit, pool()), glass, keeper)
}

#[test]
fn what_is_written_is_read_back_and_nothing_of_it_is_found_below() {
    for unit in [DataUnit::B512, DataUnit::B4096] {
        let (mut store, mut below, _) = world(unit);
        let text: Vec<u8> = (0..u8::MAX).cycle().take(12 * 4096).collect();
        write(&mut store, 8192, &text);
        assert_eq!(read(&mut store, 8192, text.len()), text);
        let hidden = read(&mut below, 8192, text.len());
        assert!(hidden.windows(8).all(|w| !text.windows(8).take(256).any(|t| t == w)), "{unit:?}");
        // Equal sectors have different ciphertexts, and the adjacent sectors are unchanged.
        write(&mut store, 0, &[5; 8192]);
        let hidden = read(&mut below, 0, 8192);
        assert_ne!(hidden[..4096], hidden[4096..]);
        assert_eq!(read(&mut store, 8192, text.len()), text);
    }
}

#[test]
fn each_data_unit_is_encrypted_under_its_own_number_wherever_the_buffers_begin() {
    let (mut store, _, _) = world(DataUnit::B512);
    let text: Vec<u8> = (0..16 * 512_usize).map(|at| u8::try_from(at / 512 + 1).unwrap()).collect();
    // Writes one list of unaligned pieces and reads it one sector at a time.
    let mut list = DataList::new();
    for piece in [&text[..100], &text[100..613], &text[613..4097], &text[4097..]] {
        list.push(Bytes::copied_from(piece));
    }
    run(&mut store, OpAction::Write { at: 512, data: list, durability: Durability::Stable }).unwrap();
    for (at, sector) in (512..).step_by(512).zip(text.chunks(512)) {
        assert_eq!(read(&mut store, at, 512), sector);
    }
}

#[test]
fn sectors_without_storage_are_zeros_and_stay_without() {
    let (mut store, _, _) = world(DataUnit::B512);
    assert_eq!(read(&mut store, 0, 4096), [0; 4096]);
    write(&mut store, 0, &[0; 8192]);
    let all = OpAction::MapStatus { at: 0, len: LEN, count_max: 8 };
    let Ok(OpOutput::MapStatus(extents)) = run(&mut store, all) else { panic!() };
    assert!(matches!(extents[0], Extent { at: 0, state: ExtentState::Mapped, .. }), "zeros are hidden too");
    assert_eq!(read(&mut store, 0, 8192), [0; 8192]);
    write(&mut store, 65536, &[9; 65536]);
    run(&mut store, OpAction::Deallocate { at: 65536, len: 65536 }).unwrap();
    assert_eq!(read(&mut store, 65536, 65536), [0; 65536]);
    assert!(store.capabilities().deallocated_reads_zero && store.capabilities().thin);
}

#[test]
fn a_forgotten_key_leaves_nothing_to_read_but_what_is_written_afterwards() {
    let (mut store, _, keeper) = world(DataUnit::B512);
    assert!(store.capabilities().crypto_erase);
    write(&mut store, 0, &[7; 4096]);
    store.submit(Op { id: OpId(1), action: OpAction::CryptoErase });
    assert!(store.poll().is_none(), "it is being replaced");
    assert_eq!(keeper.0.borrow().0, 1);
    // Until the key is replaced, other operations fail.
    assert_eq!(run(&mut store, OpAction::Read { at: 0, len: 512 }).unwrap_err().fault, Fault::Bug);
    keeper.0.borrow_mut().1.push_back(Replaced::Fresh(key(2)));
    assert!(matches!(store.poll(), Some(Completion { id: OpId(1), result: Ok(_) })));
    let garbage = read(&mut store, 0, 4096);
    assert!(garbage.iter().filter(|byte| **byte == 7).count() < 200);
    write(&mut store, 0, &[8; 512]);
    assert_eq!(read(&mut store, 0, 512), [8; 512]);
}

#[test]
fn a_key_that_stays_serves_on_and_one_in_doubt_does_not() {
    let (mut store, _, keeper) = world(DataUnit::B512);
    write(&mut store, 0, &[7; 512]);
    keeper.0.borrow_mut().1.push_back(Replaced::Kept);
    assert_eq!(run(&mut store, OpAction::CryptoErase).unwrap_err().fault, Fault::Medium);
    assert_eq!(read(&mut store, 0, 512), [7; 512]);
    keeper.0.borrow_mut().1.push_back(Replaced::Unknown);
    assert_eq!(run(&mut store, OpAction::CryptoErase).unwrap_err().fault, Fault::Gone);
    let data = Bytes::copied_from(&[1; 512]).into();
    for action in [
        OpAction::Read { at: 0, len: 512 },
        OpAction::Write { at: 0, data, durability: Durability::Stable },
        OpAction::Deallocate { at: 0, len: 512 },
        OpAction::CryptoErase,
    ] {
        assert_eq!(run(&mut store, action).unwrap_err().fault, Fault::Gone);
    }
    assert!(run(&mut store, OpAction::Flush).is_ok());
}

#[test]
fn a_key_is_not_forgotten_under_a_write_and_not_on_a_read_only_medium() {
    let (mut store, _, keeper) = world(DataUnit::B512);
    let data = Bytes::copied_from(&[1; 512]).into();
    store.submit(Op { id: OpId(1), action: OpAction::Write { at: 0, data, durability: Durability::Cached } });
    store.submit(Op { id: OpId(2), action: OpAction::CryptoErase });
    let refused = store.poll().unwrap();
    assert_eq!((refused.id, refused.result.unwrap_err().fault), (OpId(2), Fault::Bug));
    assert!(store.poll().unwrap().result.is_ok());
    let guarded = crate::read_only::ReadOnly::new(Ram::new(LEN));
    let mut guarded = Encrypted::new(guarded, keeper.clone(), &key(1), DataUnit::B512, pool());
    assert!(!guarded.capabilities().crypto_erase);
    assert_eq!(run(&mut guarded, OpAction::CryptoErase).unwrap_err().fault, Fault::ReadOnly);
    assert_eq!(keeper.0.borrow().0, 0);
}

#[test]
fn ranges_that_are_no_whole_data_units_are_refused() {
    let (mut store, _, _) = world(DataUnit::B4096);
    assert_eq!(store.capabilities().logical_block_len, 4096);
    for (at, len) in [(512, 4096), (0, 512), (4096, 6144)] {
        assert_eq!(run(&mut store, OpAction::Read { at, len }).unwrap_err().fault, Fault::Bug);
        let data = Bytes::copied_from(&vec![0; len]).into();
        let write = OpAction::Write { at, data, durability: Durability::Cached };
        assert_eq!(run(&mut store, write).unwrap_err().fault, Fault::Bug);
    }
    assert_eq!(read(&mut store, LEN - 4096, 4096), [0; 4096]);
}

#[test]
fn what_a_flush_made_durable_is_there_after_a_loss_of_power() {
    for seed in 0..50 {
        let mut rng = Rng::from_seed(seed);
        let power = Power::new(64 << 10);
        let keeper = Keeper::default();
        let mut store = Encrypted::new(power.store(), keeper.clone(), &key(1), DataUnit::B512, pool());
        let mut durable = [0_u8; 128];
        let mut newest = durable;
        for step in 1..=40_u8 {
            let sector = usize::try_from(rng.below(128)).unwrap();
            newest[sector] = step;
            write(&mut store, u64::try_from(sector).unwrap() * 512, &[step; 512]);
            if rng.below(4) == 0 {
                run(&mut store, OpAction::Flush).unwrap();
                durable = newest;
            }
        }
        power.cut(seed);
        let mut again = Encrypted::new(power.store(), keeper, &key(1), DataUnit::B512, pool());
        for (sector, at) in (0..durable.len()).zip((0..).step_by(512)) {
            let have = read(&mut again, at, 512);
            if durable[sector] == newest[sector] {
                assert_eq!(have, [durable[sector]; 512], "seed {seed}, sector {sector}");
            } else {
                assert!(have.iter().all(|byte| *byte == have[0]), "seed {seed}: a torn sector");
            }
        }
    }
}
