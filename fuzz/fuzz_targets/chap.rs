//! CHAP steps to both sides: each operation is a text of CHAP keys for the target or for the initiator.
#![no_main]

use ground::{Operations, itself, user};
use iscsi::chap::exchange::{ChapKeys, InitiatorChap, TargetChap};
use iscsi::chap::{Algorithms, Secret};
use iscsi::keys::Key;
use iscsi::text::{TextBuilder, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let secret_of = |name: &str| -> Option<Secret> { (name == user().name).then(|| user().secret) };
    let mut target = TargetChap::new(Algorithms::ALL, [3; 32]);
    let mut initiator = InitiatorChap::new(Algorithms::ALL, user(), Some(itself()), [4; 32]);
    for (which, text) in Operations::of(input) {
        let Ok(pairs) = parse(text) else { continue };
        let mut keys = ChapKeys::default();
        for pair in &pairs {
            if let Some(key) = Key::by_name(pair.name.as_bytes()) {
                keys.take(key, pair);
            }
        }
        let mut out = TextBuilder::new();
        if which & 1 == 0 {
            let user = target.handle(&keys, &secret_of, Some(&itself()), &mut out);
            assert!(!matches!(user, Ok(Some(_))), "somebody got in without the secret");
        } else {
            let done = initiator.handle(&keys, &mut out);
            assert_ne!(done, Ok(true), "a target proved itself without the secret");
        }
        assert!(out.into_bytes().len() < 2048);
    }
});
