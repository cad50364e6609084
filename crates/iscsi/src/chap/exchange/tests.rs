use super::*;
use crate::text::value::to_base64;
use crate::text::{TextSplitter, parse};
use alloc::format;
use alloc::vec;
use base::rng::Rng;

const USER: &str = "0xuser";
const OTHER: &str = "0btarget";

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.into(), secret: Secret::new(secret.as_bytes()).unwrap() }
}

fn user() -> Credentials {
    credentials(USER, "twelve bytes and more")
}

fn other() -> Credentials {
    credentials(OTHER, "another secret of ours")
}

fn secret_of(name: &str) -> Option<Secret> {
    (name == USER).then(|| user().secret)
}

fn entropy(seed: u64) -> [u8; 32] {
    let mut entropy = [0; 32];
    Rng::from_seed(seed).fill(&mut entropy);
    entropy
}

fn keys_of(text: &[u8]) -> ChapKeys<'_> {
    let mut keys = ChapKeys::default();
    for pair in parse(text).unwrap() {
        assert!(keys.take(Key::by_name(pair.name.as_bytes()).unwrap(), &pair));
    }
    keys
}

fn bytes(out: TextBuilder) -> Vec<u8> {
    TextSplitter::new(out.into_bytes()).next_piece(usize::MAX).0
}

/// Passes the target one text after the other, and returns its last answer.
fn target_says(target: &mut TargetChap, texts: &[&[u8]]) -> (Result<Option<String>, BadChap>, Vec<u8>) {
    let mut last = (Ok(None), Vec::new());
    for text in texts {
        let mut out = TextBuilder::new();
        let result = target.handle(&keys_of(text), &secret_of, Some(&other()), &mut out);
        last = (result, bytes(out));
    }
    last
}

fn target(seed: u64) -> TargetChap {
    TargetChap::new(Algorithms::ALL, entropy(seed))
}

/// Runs both sides and returns the result of each.
fn pair(
    mut initiator: InitiatorChap,
    mut target: TargetChap,
    own: Option<&Credentials>,
) -> (Result<Option<String>, BadChap>, Result<bool, BadChap>) {
    let mut out = TextBuilder::new();
    initiator.start(&mut out);
    loop {
        let request = bytes(out);
        let mut answer = TextBuilder::new();
        let verdict = target.handle(&keys_of(&request), &secret_of, own, &mut answer);
        let answer = bytes(answer);
        out = TextBuilder::new();
        if matches!(verdict, Ok(None)) {
            if let Err(why) = initiator.handle(&keys_of(&answer), &mut out) {
                return (verdict, Err(why));
            }
            continue;
        }
        let satisfied = match initiator.is_waiting() {
            true if verdict.is_ok() => initiator.handle(&keys_of(&answer), &mut out),
            waiting => Ok(!waiting),
        };
        return (verdict, satisfied);
    }
}

#[test]
fn both_sides_agree_with_every_algorithm_one_way_and_mutual() {
    for algorithm in Algorithm::ALL {
        for peer in [None, Some(other())] {
            let only = Algorithms::NONE.with(algorithm);
            let initiator = InitiatorChap::new(Algorithms::ALL, user(), peer, entropy(1));
            let (target, initiator) = pair(initiator, TargetChap::new(only, entropy(2)), Some(&other()));
            assert_eq!((target, initiator), (Ok(Some(USER.into())), Ok(true)), "{algorithm:?}");
        }
    }
}

#[test]
fn each_side_refuses_a_peer_with_the_wrong_name_or_secret() {
    let wrong = [credentials(USER, "a different secret"), credentials("user", "twelve bytes and more")];
    for own in wrong {
        let initiator = InitiatorChap::new(Algorithms::ALL, own, None, entropy(1));
        assert_eq!(pair(initiator, target(2), None).0, Err(BadChap::WrongResponse));
    }
    let wrong = [credentials(OTHER, "a different secret"), credentials("target", "another secret of ours")];
    for peer in wrong {
        let initiator = InitiatorChap::new(Algorithms::ALL, user(), Some(peer), entropy(1));
        assert_eq!(pair(initiator, target(2), Some(&other())).1, Err(BadChap::WrongResponse));
    }
}

#[test]
fn a_target_without_credentials_refuses_to_be_authenticated() {
    let initiator = InitiatorChap::new(Algorithms::ALL, user(), Some(other()), entropy(1));
    assert_eq!(pair(initiator, target(2), None).0, Err(BadChap::NoOwnCredentials));
}

#[test]
fn the_first_offered_algorithm_that_is_accepted_wins() {
    for (offer, accepted, want) in [
        ("8,7,6,5", Algorithms::ALL, Ok("8")),
        ("5,7", Algorithms::ALL, Ok("5")),
        ("9,0x7,5", Algorithms::ALL, Ok("7")),
        ("8,7,5", Algorithms::NONE.with(Algorithm::Md5), Ok("5")),
        ("8,7", Algorithms::NONE.with(Algorithm::Md5), Err(BadChap::NoCommonAlgorithm)),
        ("", Algorithms::ALL, Err(BadChap::NoCommonAlgorithm)),
        ("MD5", Algorithms::ALL, Err(BadChap::NoCommonAlgorithm)),
    ] {
        let mut target = TargetChap::new(accepted, entropy(1));
        let (result, text) = target_says(&mut target, &[format!("CHAP_A={offer}\0").as_bytes()]);
        match want {
            Ok(number) => {
                assert_eq!(result, Ok(None));
                assert!(text.starts_with(format!("CHAP_A={number}\0CHAP_I=").as_bytes()), "{offer}");
            }
            Err(why) => assert_eq!(result, Err(why), "{offer}"),
        }
    }
}

/// The challenge is sent on the wire, so the challenges on the wire must differ and be long enough.
///
/// CVE-2024-45751: a target that repeats its challenges after a restart.
#[test]
fn challenges_follow_the_entropy_and_never_show_it() {
    let mut seen = Vec::new();
    for seed in 0..200 {
        let (_, text) = target_says(&mut target(seed), &[b"CHAP_A=7\0"]);
        let challenge = binary(keys_of(&text).challenge.unwrap(), 32..=32).unwrap();
        assert_ne!(challenge, entropy(seed));
        assert!(!seen.contains(&challenge), "seed {seed}");
        seen.push(challenge);
    }
}

/// A response whose length is not exactly that of the digest is refused by its length, in every encoding.
///
/// CVE-2018-14633 (long hexadecimal CHAP_R), and the base64 overflow of 2026 (127 characters of base64).
#[test]
fn refuses_a_response_of_the_wrong_length_before_decoding_it() {
    let forms: Vec<String> = vec![
        String::new(),
        "0x".into(),
        format!("0x{}", "ab".repeat(15)),
        format!("0x{}", "ab".repeat(17)),
        format!("0x{}a", "ab".repeat(16)),
        format!("0x{}", "ab".repeat(500)),
        format!("0x{}", "zz".repeat(17)),
        format!("0b{}", "A".repeat(127)),
        format!("0b{}", "A".repeat(4096)),
        to_base64(&[7; 15]),
        to_base64(&[7; 17]),
        "ab".repeat(16),
    ];
    for form in forms {
        let response = format!("CHAP_N={USER}\0CHAP_R={form}\0");
        let (result, text) = target_says(&mut target(1), &[b"CHAP_A=5\0", response.as_bytes()]);
        assert_eq!((result, text), (Err(BadChap::ResponseForm), vec![]), "{form}");
    }
}

/// A response may be encoded in hexadecimal or in base64.
#[test]
fn accepts_a_response_in_either_spelling() {
    for spell in [to_hex as fn(&[u8]) -> String, to_base64] {
        let mut target = target(1);
        let (_, posed) = target_says(&mut target, &[b"CHAP_A=5\0"]);
        let (id, challenge) = keys_of(&posed).challenge().unwrap().unwrap();
        let response = Response::compute(Algorithm::Md5, id, &user().secret, &challenge);
        let text = format!("CHAP_N={USER}\0CHAP_R={}\0", spell(response.as_bytes()));
        assert_eq!(target_says(&mut target, &[text.as_bytes()]).0, Ok(Some(USER.into())));
    }
}

/// An attacker without a secret opens two exchanges and answers one with the response from the other.
#[test]
fn refuses_its_own_challenge_and_its_own_secret_sent_back() {
    for (secret, reflected, want) in [
        (user(), false, Ok(Some(String::from(USER)))),
        (user(), true, Err(BadChap::ReflectedChallenge)),
        (other(), false, Err(BadChap::SecretOfBothDirections)),
    ] {
        let mut target = target(1);
        let (_, posed) = target_says(&mut target, &[b"CHAP_A=7\0"]);
        let (id, challenge) = keys_of(&posed).challenge().unwrap().unwrap();
        let response = Response::compute(Algorithm::Sha256, id, &secret.secret, &challenge);
        let counter = if reflected { challenge } else { vec![1; 32] };
        let text = format!(
            "CHAP_N={USER}\0CHAP_R={}\0CHAP_I=9\0CHAP_C={}\0",
            to_hex(response.as_bytes()),
            to_base64(&counter)
        );
        let (result, answer) = target_says(&mut target, &[text.as_bytes()]);
        assert_eq!(answer.is_empty(), result.is_err());
        assert_eq!(result, want);
    }
}

#[test]
fn refuses_steps_out_of_turn_and_keys_that_are_missing_or_malformed() {
    let r = format!("CHAP_R=0x{}\0", "00".repeat(16));
    let long = format!("CHAP_N={}\0{r}", "n".repeat(256));
    let counter = |keys: &str| format!("CHAP_N={USER}\0{r}{keys}");
    let too_long = counter(&format!("CHAP_I=1\0CHAP_C=0x{}\0", "00".repeat(1025)));
    for (texts, why) in [
        (vec![""], BadChap::KeyMissing),
        (vec!["CHAP_N=user\0"], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0CHAP_N=user\0"], BadChap::KeyOutOfTurn),
        (vec!["CHAP_A=5\0", ""], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0", "CHAP_A=5\0"], BadChap::KeyOutOfTurn),
        (vec!["CHAP_A=5\0", "CHAP_N=user\0"], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0", &r], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0", &format!("CHAP_N=\0{r}")], BadChap::Name),
        (vec!["CHAP_A=5\0", &format!("CHAP_N=a\nb\0{r}")], BadChap::Name),
        (vec!["CHAP_A=5\0", &long], BadChap::Name),
        (vec!["CHAP_A=5\0", &counter("CHAP_I=1\0")], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0", &counter("CHAP_C=0x00\0")], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0", &counter("CHAP_I=256\0CHAP_C=0x00\0")], BadChap::Identifier),
        (vec!["CHAP_A=5\0", &counter("CHAP_I=1\0CHAP_C=0x\0")], BadChap::Challenge),
        (vec!["CHAP_A=5\0", &too_long], BadChap::Challenge),
        (vec!["CHAP_A=5\0", &counter("")], BadChap::WrongResponse),
        (vec!["CHAP_A=5\0", &counter(""), &counter("")], BadChap::KeyOutOfTurn),
    ] {
        let texts: Vec<&[u8]> = texts.iter().map(|text| text.as_bytes()).collect();
        assert_eq!(target_says(&mut target(1), &texts).0, Err(why), "{texts:?}");
    }
}

#[test]
fn the_initiator_refuses_a_target_that_strays() {
    let r = format!("CHAP_R=0x{}\0", "00".repeat(32));
    for (texts, why) in [
        (vec![""], BadChap::KeyMissing),
        (vec!["CHAP_A=5\0CHAP_I=1\0"], BadChap::KeyMissing),
        (vec!["CHAP_A=6\0CHAP_I=1\0CHAP_C=0x00\0"], BadChap::NoCommonAlgorithm),
        (vec!["CHAP_A=7\0CHAP_I=1\0CHAP_C=0x00\0CHAP_N=a\0"], BadChap::KeyOutOfTurn),
        (vec!["CHAP_A=7\0CHAP_I=1\0CHAP_C=0x00\0", ""], BadChap::PeerNotAuthenticated),
        (vec!["CHAP_A=7\0CHAP_I=1\0CHAP_C=0x00\0", "CHAP_I=1\0"], BadChap::KeyOutOfTurn),
        (vec!["CHAP_A=7\0CHAP_I=1\0CHAP_C=0x00\0", &format!("CHAP_N=x\0{r}")], BadChap::WrongResponse),
    ] {
        let offered = Algorithms::NONE.with(Algorithm::Sha256).with(Algorithm::Md5);
        let mut initiator = InitiatorChap::new(offered, user(), Some(other()), entropy(3));
        let mut last = Ok(false);
        for text in &texts {
            last = initiator.handle(&keys_of(text.as_bytes()), &mut TextBuilder::new());
        }
        assert_eq!(last, Err(why), "{texts:?}");
    }
}

#[test]
fn no_bytes_make_either_side_panic() {
    for seed in 0..500 {
        let mut rng = Rng::from_seed(seed);
        let (mut target, mut initiator) =
            (target(seed), InitiatorChap::new(Algorithms::ALL, user(), Some(other()), entropy(seed)));
        for _ in 0..3 {
            let value = |rng: &mut Rng| -> String {
                let len = usize::try_from(rng.below(70)).unwrap();
                let filler = ["0", "a", "F", "=", "5,7", "+"][usize::try_from(rng.below(6)).unwrap()];
                format!("{}{}", ["", "0x", "0b"][usize::try_from(rng.below(3)).unwrap()], filler.repeat(len))
            };
            let mut text = String::new();
            for key in ["CHAP_A", "CHAP_I", "CHAP_C", "CHAP_N", "CHAP_R"] {
                if rng.chance(1, 2) {
                    text.push_str(&format!("{key}={}\0", value(&mut rng)));
                }
            }
            let keys = keys_of(text.as_bytes());
            let mut out = TextBuilder::new();
            let granted = target.handle(&keys, &secret_of, Some(&other()), &mut out);
            assert!(!matches!(granted, Ok(Some(_))), "seed {seed}");
            let done = initiator.handle(&keys, &mut out);
            assert_ne!(done, Ok(true), "seed {seed}");
        }
    }
}
