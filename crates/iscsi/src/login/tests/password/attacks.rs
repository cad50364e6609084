//! Each attack of docs/iscsi-aead.md §2 that concerns the login.

use alloc::format;

use super::super::super::test_site::by_password;
use super::*;
use crate::login::transcript::{CONFIRMATION_KEY, CONFIRMATION_PAIR_LEN};
use crate::opaque::METHOD;

const MISMATCH: (Status, LoginError) =
    (Status::AUTHENTICATION_FAILURE, LoginError::Confirmation(BadConfirmation::Mismatch));
const WRONG: InitiatorLoginError = InitiatorLoginError::Opaque(OpaqueError::WrongPassword);

/// Runs alice's login with an attacker who changes requests, and undoes the change in responses.
fn changed(forth: (&str, &str), back: (&str, &str)) -> Ends {
    let mut touched = false;
    let ends = attacked(alice(), &TestSite::by_password(), |_, pdu| {
        if pdu.is_request {
            touched |= pdu.replace(forth.0, forth.1);
        } else {
            pdu.replace(back.0, back.1);
        }
    });
    assert!(touched, "{forth:?}");
    ends
}

#[test]
fn a_changed_offer_does_not_pass_the_confirmation() {
    let aead = EACH.map(AeadDigest::name).join(",");
    assert_eq!(changed((&format!("Digest={aead},"), "Digest="), ("", "")).refused(), MISMATCH);
    let (burst, other) = ("MaxBurstLength=1048576", "MaxBurstLength=1048572");
    assert_eq!(changed((burst, other), (other, burst)).refused(), MISMATCH);
    assert_eq!(changed(("ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0"), ("", "")).refused(), MISMATCH);
    // An answer that was changed.
    let ends = attacked(alice(), &TestSite::by_password(), |_, pdu| {
        if !pdu.is_request {
            pdu.replace(burst, other);
        }
    });
    assert_eq!(ends.dropped(), InitiatorLoginError::Confirmation(BadConfirmation::Mismatch));
}

#[test]
fn the_answer_of_the_target_is_bound_to_names_isid_and_methods() {
    let ends = changed(("SessionType=Normal\0", ""), ("", ""));
    assert_eq!(ends.dropped(), WRONG);
    assert_eq!(changed(("InitiatorName=", "InitiatorAlias=x\0InitiatorName="), ("", "")).dropped(), WRONG);
    assert_eq!(changed(("user=alice", "user=alicf"), ("", "")).dropped(), WRONG);
    assert_eq!(changed((METHOD, &format!("{METHOD},CHAP")), ("", "")).dropped(), WRONG);
    let ends = attacked(alice(), &TestSite::by_password(), |_, pdu| {
        let isid = if pdu.is_request { [0x80, 9, 9, 9, 9, 9] } else { ISID.0 };
        pdu.header[8..14].copy_from_slice(&isid);
    });
    assert_eq!(ends.dropped(), WRONG);
    let ends = attacked(alice(), &TestSite::by_password(), |_, pdu| {
        if !pdu.is_request {
            pdu.replace("TargetAlias=Thedisk", "TargetAlias=Another");
        }
    });
    assert_eq!(ends.dropped(), WRONG);
}

#[test]
fn a_replaced_method_does_not_satisfy_a_side_that_requires_the_password_login() {
    // The target permits every method: the initiator requires its own.
    let mut site = TestSite::by_password();
    site.auth = AuthPolicy { opaque: true, allows_none: true, ..guarded() };
    for method in ["None", "CHAP"] {
        let ends = attacked(alice(), &site, |_, pdu| {
            pdu.replace(METHOD, method);
        });
        assert_eq!(ends.dropped(), InitiatorLoginError::MethodNotOffered, "{method}");
        // With the answer changed back, the initiator begins a login that the target does not expect.
        let ends = attacked(alice(), &site, |_, pdu| {
            if pdu.is_request {
                pdu.replace(METHOD, method);
            } else {
                pdu.replace(&format!("AuthMethod={method}"), &format!("AuthMethod={METHOD}"));
            }
        });
        assert!(ends.initiator.is_err() && ends.target.is_err(), "{method}: {ends:?}");
    }
    // The initiator permits every method: the target requires its own.
    for auth in [AuthPlan::None, chap(Algorithms::ALL, false)] {
        let ends = quiet(plan(session(), auth), &TestSite::with(by_password(), KeyPolicy::default()));
        let refused = (Status::AUTHENTICATION_FAILURE, LoginError::NoCommonAuthMethod);
        assert_eq!(ends.refused(), refused);
    }
}

#[test]
fn a_confirmation_is_whole_at_the_end_and_only_there() {
    let of = |is_request: bool, change: &dyn Fn(&mut Pdu)| {
        attacked(alice(), &TestSite::by_password(), |_, pdu| {
            if pdu.is_last() && pdu.is_request == is_request {
                change(pdu);
            }
        })
    };
    let without = |pdu: &Pdu| pdu.text[..pdu.text.len() - CONFIRMATION_PAIR_LEN].to_vec();
    let at_end = |pdu: &Pdu| pdu.text[pdu.text.len() - CONFIRMATION_PAIR_LEN..].to_vec();
    type Change<'a> = &'a dyn Fn(&mut Pdu);
    let upper: Change<'_> = &|pdu| {
        let (text, pair) = (without(pdu), String::from_utf8(at_end(pdu)).unwrap());
        let digits = pair.replace("0x", "").to_uppercase().replace("X-ORG.TARGE.CONFIRM=", "");
        pdu.set_text([text, format!("{CONFIRMATION_KEY}=0x{digits}").into_bytes()].concat());
    };
    let cases: [(Change<'_>, BadConfirmation); 7] = [
        (&|pdu| pdu.set_text(without(pdu)), BadConfirmation::Missing),
        (&|pdu| pdu.set_text(Vec::new()), BadConfirmation::Missing),
        (&|pdu| pdu.set_text([at_end(pdu), without(pdu)].concat()), BadConfirmation::Missing),
        (&|pdu| pdu.set_text([&pdu.text[..], b"\0"].concat()), BadConfirmation::Missing),
        (upper, BadConfirmation::Mismatch),
        (&|pdu| pdu.set_text([pdu.text.clone(), at_end(pdu)].concat()), BadConfirmation::Mismatch),
        (
            &|pdu| {
                let last = pdu.text.len() - 2;
                pdu.text[last] ^= 1;
            },
            BadConfirmation::Mismatch,
        ),
    ];
    for (at, (change, why)) in cases.iter().enumerate() {
        let refused = (Status::AUTHENTICATION_FAILURE, LoginError::Confirmation(*why));
        assert_eq!(of(true, change).refused(), refused, "case {at}");
        assert_eq!(of(false, change).dropped(), InitiatorLoginError::Confirmation(*why), "case {at}");
    }
    // In a PDU that does not move to full feature phase.
    let stays: Change<'_> = &|pdu| pdu.header[1] &= !0x83;
    let misplaced = BadConfirmation::Misplaced;
    let refused = (Status::INITIATOR_ERROR, LoginError::Confirmation(misplaced));
    assert_eq!(of(true, stays).refused(), refused);
    assert_eq!(of(false, stays).dropped(), InitiatorLoginError::Confirmation(misplaced));
}

#[test]
fn the_initiator_confirms_again_when_the_target_has_more_to_say() {
    //= iscsi-aead#section-4.2
    //= type=test
    //# The initiator repeats the confirmation, with a new value, when the target answered with T=0 and it asks
    //# again.
    // The initiator receives only short segments, and a long value makes the answer longer than one of them.
    let task_reporting = &[
        "A-VALUE-OF-MORE-THAN-A-HUNDRED-CHARACTERS--A-VALUE-OF-MORE-THAN-A-HUNDRED-CHARACTERS--AND-SOME-MORE-OF-THEM",
        "RFC3720",
    ][..];
    let keys = |max_recv_data_segment_length| KeyPolicy {
        max_recv_data_segment_length,
        task_reporting,
        ..KeyPolicy::default()
    };
    let site = TestSite::with(by_password(), keys(8192));
    let mut confirmations = Vec::new();
    let ends = attacked(LoginPlan { keys: keys(512), ..alice() }, &site, |_, pdu| {
        if pdu.is_request && pdu.is_last() {
            confirmations.push(pdu.text[pdu.text.len() - CONFIRMATION_PAIR_LEN..].to_vec());
        }
        assert!(pdu.is_request || !pdu.is_operational() || pdu.text.len() <= 512);
    });
    let (ours, _, theirs) = ends.both();
    assert!(fit(ours.record_keys.unwrap(), theirs.unwrap()));
    assert_eq!(confirmations.len(), 2);
    confirmations.dedup();
    assert_eq!(confirmations.len(), 2, "each confirmation is of its own transcript");
}

/// Returns whether a bit is in a field that neither the transcript nor the keys cover. An attacker gains
/// nothing by changing it.
fn is_unauthenticated(pdu: &Pdu, bit: usize) -> bool {
    match (pdu.is_request, bit / 8) {
        // The I bit, and the reserved bit before it.
        (_, 0) => true,
        // The two reserved bits among the flags.
        (_, 1) => [2, 3].contains(&(bit % 8)),
        // The TSIH of a response before the last one has no meaning.
        (false, 14 | 15) => !pdu.is_last(),
        // Reserved bytes, sequence numbers and status.
        (true, at) => at >= 22,
        (false, at) => at >= 20,
    }
}

#[test]
fn a_flipped_bit_anywhere_ends_the_login_or_has_no_effect_on_the_keys() {
    let seed = 20_261_124;
    let mut rng = Rng::from_seed(seed);
    let site = TestSite::by_password();
    let mut sizes = Vec::new();
    attacked(alice(), &site, |_, pdu| sizes.push(pdu.text.len()));
    let mut survived = 0;
    for round in 0..1200 {
        let victim = usize::try_from(rng.below(u64::try_from(sizes.len()).unwrap())).unwrap();
        let in_header = round % 2 == 0 || sizes[victim] == 0;
        let len = if in_header { BHS_LEN } else { sizes[victim] };
        let bit = usize::try_from(rng.below(u64::try_from(8 * len).unwrap())).unwrap();
        let mask = 0x80 >> (bit % 8);
        let (mut permitted, mut is_tsih) = (false, false);
        let ends = attacked(alice(), &site, |at, pdu| {
            if at != victim {
                return;
            }
            if in_header {
                permitted = is_unauthenticated(pdu, bit);
                is_tsih = !pdu.is_request && pdu.is_last() && [14, 15].contains(&(bit / 8));
                pdu.header[bit / 8] ^= mask;
            } else {
                pdu.text[bit / 8] ^= mask;
            }
        });
        let place = format!("seed {seed}, PDU {victim}, header {in_header}, bit {bit}");
        let (Ok(ours), Ok((_, theirs))) = (ends.initiator, ends.target) else { continue };
        let same = fit(ours.record_keys.unwrap(), theirs.unwrap());
        assert_eq!(same, permitted, "{place}");
        assert!(permitted || is_tsih, "{place}");
        survived += 1;
    }
    assert!(survived > 0, "seed {seed}: no flip hit an unauthenticated field");
}
