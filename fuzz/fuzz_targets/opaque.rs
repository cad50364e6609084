//! Steps of the password login to both sides: each operation is a text of its keys for the target or for the
//! initiator.
#![no_main]

use ground::{Operations, RECORD};
use iscsi::opaque::{InitiatorOpaque, OpaqueKeys, TargetOpaque};
use iscsi::text::{TextBuilder, parse};
use libfuzzer_sys::fuzz_target;
use security::opaque::Password;

fuzz_target!(|input: &[u8]| {
    let record_of = |_: &str| Some(RECORD.clone());
    let mut target = TargetOpaque::default();
    let password = Password::new(b"in no input").unwrap();
    let mut initiator = InitiatorOpaque::new("user", password, [4; 32]).unwrap();
    initiator.start(&mut TextBuilder::new()).unwrap();
    for (which, text) in Operations::of(input) {
        let Ok(pairs) = parse(text) else { continue };
        let mut keys = OpaqueKeys::default();
        if pairs.iter().any(|pair| keys.take(pair).is_err()) {
            continue;
        }
        let mut out = TextBuilder::new();
        match which & 3 {
            0 => {
                let begun = target.has_begun();
                let answer = target.handle_start(&keys, [5; 64], [3; 32], &record_of, &mut out);
                assert!(!begun || answer.is_err(), "a second first step was answered");
                assert_eq!(answer.is_ok(), !out.is_empty());
            }
            1 => assert!(target.handle_finish(&keys).is_err(), "somebody got in without the password"),
            _ => {
                // The cost is within the bounds, but an input must not make the fuzzer slow.
                if let Ok(job) = initiator.handle_answer(&keys, [5; 64])
                    && job.cost.memory_kib <= 64
                    && job.cost.passes <= 2
                {
                    let done = initiator.job_done(job.run(), &mut out);
                    assert!(done.is_err(), "a target proved itself without the record");
                }
            }
        }
        assert!(out.into_bytes().len() < 1024);
    }
});
