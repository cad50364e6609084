use alloc::vec;

use scsi::copy::rod::{RodType, SECRET_LEN, TokenFields};

use super::*;

fn range(lba: u64, blocks: u64) -> BlockRange {
    BlockRange { lba: Lba(lba), blocks: Blocks(blocks) }
}

fn token(seed: u8) -> RodToken {
    RodToken::new(&TokenFields {
        rod_type: RodType::POINT_IN_TIME_CHANGE_VULNERABLE,
        id: 1,
        creator: [0; 32],
        len: 0,
        block_len: 512,
        physical_exponent: 0,
        provisioning: (false, false),
        target: &[],
        secret: [seed; SECRET_LEN],
    })
}

fn at(seconds: u64) -> Instant {
    Instant::ORIGIN.after(Duration::from_secs(seconds))
}

fn add(tokens: &mut Tokens, now: Instant, seed: u8, owner: u8, ranges: Vec<BlockRange>) {
    tokens.add(now, token(seed), NewToken { owner: Rc::from([owner]), ranges, inactivity_s: 10 });
}

fn asc(tokens: &mut Tokens, now: Instant, seed: u8) -> Option<Asc> {
    tokens.resolve(now, token(seed).bytes(), Blocks(0), Blocks(1)).err().map(|sense| sense.asc)
}

#[test]
fn an_offset_is_found_across_ranges() {
    let mut tokens = Tokens::default();
    add(&mut tokens, at(0), 1, 1, vec![range(100, 4), range(0, 0), range(50, 2)]);
    for (offset, blocks, found) in [
        (0, 9, Some(range(100, 4))),
        (1, 2, Some(range(101, 2))),
        (3, 9, Some(range(103, 1))),
        (4, 9, Some(range(50, 2))),
        (5, 1, Some(range(51, 1))),
        (6, 1, None),
        (u64::MAX, 1, None),
    ] {
        let got = tokens.resolve(at(1), token(1).bytes(), Blocks(offset), Blocks(blocks));
        assert_eq!(got.ok(), found, "offset {offset}");
    }
}

#[test]
fn a_write_to_any_block_revokes_and_a_write_beside_it_does_not() {
    for (lba, blocks, revoked) in [
        (99, 1, false),
        (99, 2, true),
        (101, 1, true),
        (102, 9, false),
        (55, 1, true),
        (0, 1000, true),
        (101, 0, false),
    ] {
        let mut tokens = Tokens::default();
        add(&mut tokens, at(0), 1, 1, vec![range(100, 2), range(50, 10)]);
        tokens.revoke_overlapping(Lba(lba), Blocks(blocks));
        let wanted = revoked.then_some(Asc::TOKEN_REVOKED);
        assert_eq!(asc(&mut tokens, at(1), 1), wanted, "write of {blocks} at {lba}");
        assert_eq!(tokens.alive(at(1)).count(), usize::from(!revoked));
    }
}

#[test]
fn an_unused_token_expires_and_use_keeps_it() {
    let mut tokens = Tokens::default();
    add(&mut tokens, at(0), 1, 1, vec![range(0, 1)]);
    for second in [10, 20, 30] {
        assert_eq!(asc(&mut tokens, at(second), 1), None, "{second}");
    }
    assert_eq!(asc(&mut tokens, at(41), 1), Some(Asc::TOKEN_EXPIRED));
    assert_eq!(tokens.alive(at(41)).count(), 0);
}

#[test]
fn no_token_lives_longer_than_a_day() {
    let mut tokens = Tokens::default();
    add(&mut tokens, at(0), 1, 1, vec![range(0, 1)]);
    for second in (0..=86_400).step_by(10) {
        assert_eq!(asc(&mut tokens, at(second), 1), None, "{second}");
    }
    assert_eq!(asc(&mut tokens, at(86_402), 1), Some(Asc::TOKEN_EXPIRED));
}

#[test]
fn a_guess_is_unknown() {
    let mut tokens = Tokens::default();
    add(&mut tokens, at(0), 1, 1, vec![range(0, 1)]);
    assert_eq!(asc(&mut tokens, at(0), 2), Some(Asc::TOKEN_UNKNOWN));
    let mut altered = token(1);
    altered.0[48] ^= 1;
    assert!(tokens.resolve(at(0), altered.bytes(), Blocks(0), Blocks(1)).is_err());
    assert_eq!(asc(&mut tokens, at(0), 1), None);
}

#[test]
fn one_initiator_cannot_crowd_out_the_others() {
    let mut tokens = Tokens::default();
    add(&mut tokens, at(0), 255, 9, vec![range(0, 1)]);
    for seed in 0..=250 {
        add(&mut tokens, at(0), seed, 1, vec![range(0, 1)]);
    }
    assert_eq!(tokens.alive(at(0)).count(), MAX_TOKENS_OF_ONE + 1);
    assert!(tokens.tokens.len() <= MAX_TOKENS);
    assert_eq!(asc(&mut tokens, at(0), 255), None);
    assert_eq!(asc(&mut tokens, at(0), 250), None);
    assert_eq!(asc(&mut tokens, at(0), 250 - 40), Some(Asc::TOKEN_CANCELLED));
}

#[test]
fn a_deleted_token_is_unknown() {
    let mut tokens = Tokens::default();
    add(&mut tokens, at(0), 1, 1, vec![range(0, 1)]);
    add(&mut tokens, at(0), 2, 1, vec![range(0, 1)]);
    tokens.delete(token(1).bytes());
    assert_eq!(asc(&mut tokens, at(0), 1), Some(Asc::TOKEN_UNKNOWN));
    assert_eq!(asc(&mut tokens, at(0), 2), None);
}
