use alloc::format;

use base::rng::Rng;

use super::*;
use crate::keys::Role;
use crate::text::parse;

const CONTEXT: [u8; 64] = [5; 64];
const CHEAP: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

fn password(text: &str) -> Password {
    Password::new(text.as_bytes()).unwrap()
}

fn record() -> Arc<PasswordRecord> {
    Arc::new(PasswordRecord::make(&password("correct horse"), "alice", CHEAP, [1; 32]).unwrap())
}

fn keys(text: &[u8]) -> Result<OpaqueKeys<'_>, OpaqueError> {
    let mut keys = OpaqueKeys::default();
    for pair in parse(text).unwrap() {
        assert!(keys.take(&pair)?, "{}", pair.name);
    }
    Ok(keys)
}

fn initiator(user: &str, text: &str) -> InitiatorOpaque {
    InitiatorOpaque::new(user, password(text), [2; 32]).unwrap()
}

/// Returns the text that `step` writes.
fn text<T>(
    step: impl FnOnce(&mut TextBuilder) -> Result<T, OpaqueError>,
) -> Result<(T, Vec<u8>), OpaqueError> {
    let mut out = TextBuilder::new();
    step(&mut out).map(|value| (value, out.into_bytes()))
}

/// Runs an exchange with the record of alice's password, in which each side has its own view of the context.
fn exchange(
    mut initiator: InitiatorOpaque,
    contexts: ([u8; 64], [u8; 64]),
) -> Result<(LoginKeys, String, LoginKeys), OpaqueError> {
    let (record, mut target) = (record(), TargetOpaque::default());
    let ((), first) = text(|out| initiator.start(out))?;
    let record_of = |_: &str| Some(record.clone());
    let step = |out: &mut _| target.handle_start(&keys(&first)?, contexts.1, [3; 32], &record_of, out);
    let (_, second) = text(step)?;
    let job = initiator.handle_answer(&keys(&second)?, contexts.0)?;
    let (ours, third) = text(|out| initiator.job_done(job.run(), out))?;
    let (user, theirs) = target.handle_finish(&keys(&third)?)?;
    Ok((ours, user, theirs))
}

#[test]
fn both_sides_have_the_same_keys_if_the_password_and_the_context_are_the_same() {
    let (ours, user, theirs) = exchange(initiator("alice", "correct horse"), (CONTEXT, CONTEXT)).unwrap();
    assert_eq!(user, "alice");
    assert_eq!(ours.confirmation(Role::Target, &[1; 64]), theirs.confirmation(Role::Target, &[1; 64]));
    for (user, text, context) in [
        ("alice", "battery staple", CONTEXT),
        ("bob", "correct horse", CONTEXT),
        ("alice", "correct horse", [6; 64]),
    ] {
        let result = exchange(initiator(user, text), (context, CONTEXT)).map(|_| ());
        assert_eq!(result, Err(OpaqueError::WrongPassword), "{user} {text}");
    }
}

#[test]
fn the_target_refuses_texts_that_are_not_the_first_step_and_then_everything() {
    let ((), first) = text(|out| initiator("alice", "correct horse").start(out)).unwrap();
    let ke1 = String::from_utf8(first.split(|byte| *byte == 0).nth(1).unwrap().to_vec()).unwrap();
    let record = record();
    for (said, why) in [
        ("", OpaqueError::KeyMissing),
        ("X-org.targe.user=alice\0", OpaqueError::KeyMissing),
        (&format!("{ke1}\0"), OpaqueError::KeyMissing),
        (&format!("X-org.targe.user=alice\0{ke1}\0X-org.targe.ke3=0x00\0"), OpaqueError::KeyOutOfTurn),
        (&format!("X-org.targe.user=\0{ke1}\0"), OpaqueError::User),
        (&format!("X-org.targe.user=a\nb\0{ke1}\0"), OpaqueError::User),
        (&format!("X-org.targe.user={}\0{ke1}\0", "u".repeat(256)), OpaqueError::User),
        (&format!("X-org.targe.user=alice\0{ke1}00\0"), OpaqueError::Message),
        (&format!("X-org.targe.user=alice\0{}\0", &ke1[..ke1.len() - 1]), OpaqueError::Message),
        ("X-org.targe.user=alice\0X-org.targe.ke1=alice\0", OpaqueError::Message),
        (&format!("X-org.targe.user=alice\0X-org.targe.ke1=0x{}\0", "ff".repeat(96)), OpaqueError::Message),
    ] {
        let (mut target, record_of) = (TargetOpaque::default(), |_: &str| Some(record.clone()));
        let mut out = TextBuilder::new();
        let keys = keys(said.as_bytes()).unwrap();
        let result = target.handle_start(&keys, CONTEXT, [3; 32], &record_of, &mut out);
        assert_eq!(result, Err(why), "{said:?}");
        assert!(out.is_empty(), "{said:?}");
        let again = target.handle_start(&keys, CONTEXT, [3; 32], &record_of, &mut out);
        assert_eq!(again, Err(OpaqueError::KeyOutOfTurn), "a failed exchange goes on");
        assert_eq!(target.handle_finish(&keys).map(|_| ()), Err(OpaqueError::KeyOutOfTurn));
    }
    let twice = "X-org.targe.user=alice\0X-org.targe.user=bob\0";
    assert_eq!(keys(twice.as_bytes()).map(|_| ()), Err(OpaqueError::KeyRepeated));
    let (mut target, mut out) = (TargetOpaque::default(), TextBuilder::new());
    let unknown = target.handle_start(&keys(&first).unwrap(), CONTEXT, [3; 32], &|_| None, &mut out);
    assert_eq!(unknown, Err(OpaqueError::WrongPassword));
}

#[test]
fn the_initiator_runs_no_job_for_an_answer_that_is_malformed_or_too_dear() {
    let ke2 = format!("X-org.targe.ke2=0x{}\0", "00".repeat(KE2_LEN));
    for (said, why) in [
        (ke2.clone(), OpaqueError::KeyMissing),
        ("X-org.targe.stretch=8,1,1\0".into(), OpaqueError::KeyMissing),
        (format!("X-org.targe.stretch=8,1,1\0{ke2}X-org.targe.user=alice\0"), OpaqueError::KeyOutOfTurn),
        (format!("X-org.targe.stretch=8,1\0{ke2}"), OpaqueError::Cost),
        (format!("X-org.targe.stretch=8,1,1,1\0{ke2}"), OpaqueError::Cost),
        (format!("X-org.targe.stretch=8,1,one\0{ke2}"), OpaqueError::Cost),
        (format!("X-org.targe.stretch=8,1,257\0{ke2}"), OpaqueError::Cost),
        (format!("X-org.targe.stretch=4294967295,1,1\0{ke2}"), OpaqueError::Cost),
        (format!("X-org.targe.stretch=8,4294967295,1\0{ke2}"), OpaqueError::Cost),
        ("X-org.targe.stretch=8,1,1\0X-org.targe.ke2=0x00\0".into(), OpaqueError::Message),
    ] {
        let mut initiator = initiator("alice", "correct horse");
        text(|out| initiator.start(out)).unwrap();
        let result = initiator.handle_answer(&keys(said.as_bytes()).unwrap(), CONTEXT);
        assert_eq!(result.map(|_| ()).unwrap_err(), why, "{said:?}");
        assert!(initiator.handle_answer(&keys(said.as_bytes()).unwrap(), CONTEXT).is_err(), "{said:?}");
    }
    let mut early = initiator("alice", "correct horse");
    assert!(early.handle_answer(&OpaqueKeys::default(), CONTEXT).is_err());
    assert_eq!(InitiatorOpaque::new("", password("x"), [0; 32]).map(|_| ()).unwrap_err(), OpaqueError::User);
}

#[test]
fn the_result_of_another_job_is_not_taken() {
    let record = record();
    let answered = |entropy| {
        let mut initiator = InitiatorOpaque::new("alice", password("correct horse"), entropy).unwrap();
        let ((), first) = text(|out| initiator.start(out)).unwrap();
        let mut target = TargetOpaque::default();
        let step = |out: &mut _| {
            target.handle_start(&keys(&first)?, CONTEXT, [3; 32], &|_| Some(record.clone()), out)
        };
        let (_, second) = text(step).unwrap();
        let job = initiator.handle_answer(&keys(&second).unwrap(), CONTEXT).unwrap();
        (initiator, job)
    };
    let ((mut one, _), (_, other)) = (answered([2; 32]), answered([4; 32]));
    let result = text(|out| one.job_done(other.run(), out)).map(|_| ());
    assert_eq!(result, Err(OpaqueError::KeyOutOfTurn));
}

#[test]
fn a_flipped_bit_in_any_step_ends_the_exchange() {
    let seed = 20_261_124;
    let mut rng = Rng::from_seed(seed);
    let record = record();
    for round in 0..60 {
        let mut flip = |step: u64, text: &mut Vec<u8>| {
            if round % 3 == step {
                // A hexadecimal digit of the message, which ends the text.
                let at = text.len() - 2 - usize::try_from(rng.below(100)).unwrap();
                text[at] = if text[at] == b'0' { b'1' } else { b'0' };
            }
        };
        let (mut initiator, mut target) = (initiator("alice", "correct horse"), TargetOpaque::default());
        let result = (|| {
            let ((), mut first) = text(|out| initiator.start(out))?;
            flip(0, &mut first);
            let record_of = |_: &str| Some(record.clone());
            let step = |out: &mut _| target.handle_start(&keys(&first)?, CONTEXT, [3; 32], &record_of, out);
            let (_, mut second) = text(step)?;
            flip(1, &mut second);
            let job = initiator.handle_answer(&keys(&second)?, CONTEXT)?;
            let (_, mut third) = text(|out| initiator.job_done(job.run(), out))?;
            flip(2, &mut third);
            target.handle_finish(&keys(&third)?).map(|_| ())
        })();
        assert!(result.is_err(), "seed {seed}, round {round}");
    }
}

#[test]
fn nothing_secret_is_printed() {
    let printed = format!("{:?} {:?}", initiator("alice", "correct horse"), TargetOpaque::default());
    assert!(!printed.contains("correct"), "{printed}");
}
