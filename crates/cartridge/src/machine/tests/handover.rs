//! A cartridge that another process has loaded.

use super::*;

fn handed_over(deck: Deck<MemoryFiles>) -> Deck<MemoryFiles> {
    let state = deck.cartridge.export().expect("it is idle");
    let cartridge = Cartridge::restore(&state).expect("its own state");
    assert_eq!(cartridge.export(), Some(state));
    Deck { cartridge, ..deck }
}

#[test]
fn a_cartridge_goes_on_where_it_was_in_another_process() {
    let mut deck = loaded();
    for number in 0..20_u8 {
        deck.write(&[number; 3000]).unwrap();
    }
    assert!(deck.cartridge.is_unsynchronized());
    assert_eq!(deck.cartridge.export(), None, "records are in memory only");
    deck.run(Command::Synchronize).unwrap();
    let loads = deck.cartridge.label().unwrap().loads;
    let mut deck = handed_over(deck);
    assert_eq!((deck.cartridge.position().object, deck.cartridge.label().unwrap().loads), (20, loads));
    deck.write(&[20; 3000]).unwrap();
    deck.mark(1);
    deck.go(0, 7);
    let mut deck = handed_over(deck);
    assert_eq!(deck.cartridge.position().object, 7);
    for number in 7..21_u8 {
        assert_eq!(deck.read().unwrap(), [number; 3000]);
    }
    deck.unload();
    deck.load();
    assert_eq!(deck.cartridge.partition(0).unwrap().objects, 22);
    assert_eq!(deck.cartridge.label().unwrap().loads, loads + 1);
}

#[test]
fn a_state_that_no_cartridge_has_is_refused() {
    let mut deck = loaded();
    deck.write(&[1; 3000]).unwrap();
    deck.run(Command::Synchronize).unwrap();
    let state = deck.cartridge.export().unwrap();
    let mut elsewhere = state.clone();
    elsewhere.position[0] = 9;
    let mut no_partition = state.clone();
    no_partition.partition = 3;
    let mut no_label = state.clone();
    no_label.label.truncate(100);
    let mut longer = state.clone();
    longer.partitions[0].now.end = u64::MAX;
    let mut fewer = state;
    fewer.partitions.clear();
    for wrong in [elsewhere, no_partition, no_label, longer, fewer] {
        assert!(Cartridge::restore(&wrong).is_none(), "{wrong:?}");
    }
    deck.unload();
    assert_eq!(deck.cartridge.export(), None, "it is not loaded");
}
