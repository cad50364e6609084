use super::value::{BadValue, binary, boolean, list, number, number_in, to_base64, to_hex};
use super::*;
use alloc::format;
use alloc::vec;
use base::rng::Rng;

fn pairs_of(text: &[u8]) -> Result<Vec<(&str, &[u8])>, BadText> {
    parse(text).map(|pairs| pairs.into_iter().map(|pair| (pair.name, pair.value)).collect())
}

#[test]
fn splits_pairs_at_zeros_and_the_first_equals_sign() {
    assert_eq!(pairs_of(b""), Ok(vec![]));
    assert_eq!(pairs_of(b"\0\0"), Ok(vec![]));
    assert_eq!(
        pairs_of(b"HeaderDigest=CRC32C,None\0X#a=b=c\0\0Empty=\0"),
        Ok(vec![("HeaderDigest", &b"CRC32C,None"[..]), ("X#a", b"b=c"), ("Empty", b"")])
    );
}

#[test]
fn refuses_text_that_is_not_pairs() {
    //= rfc7143#section-6.1
    //= type=test
    //# Every key=value pair, including the last or only pair in a LTDS, MUST be followed by
    //# one null (0x00) delimiter.
    let long_name = [&[b'A'; 64][..], b"=1\0"].concat();
    let many = b"A=\0".repeat(MAX_PAIRS + 1);
    for (text, why) in [
        (b"HeaderDigest=CRC3".as_slice(), BadText::Unterminated),
        (b"HeaderDigest\0", BadText::NoEquals),
        (b"=1\0", BadText::KeyName),
        (b"Header Digest=1\0", BadText::KeyName),
        (b"Header\nDigest=1\0", BadText::KeyName),
        (b"\xff=1\0", BadText::KeyName),
        (&long_name, BadText::KeyName),
        (&many, BadText::TooManyPairs),
    ] {
        assert_eq!(parse(text).map(|_| ()), Err(why), "{}", text.escape_ascii());
    }
    assert_eq!(parse(&long_name[1..]).map(|pairs| pairs.len()), Ok(1));
}

/// CVE-2013-2850: the name of an unknown key of 64 KiB is refused, and nothing of it is echoed.
#[test]
fn refuses_a_key_name_of_64_kib() {
    let text = [&vec![b'A'; MAX_TEXT - 3][..], b"=1\0"].concat();
    assert_eq!(parse(&text).map(|_| ()), Err(BadText::KeyName));
}

#[test]
fn collects_a_text_that_was_cut_anywhere() {
    let text = b"MaxBurstLength=262144\0FirstBurstLength=65536\0";
    for cut in 1..text.len() {
        let mut collector = Collector::new();
        assert_eq!(collector.add(&text[..cut], true), Ok(None));
        assert!(collector.is_incomplete());
        assert_eq!(collector.add(&text[cut..], false), Ok(Some(text.to_vec())));
        assert!(!collector.is_incomplete());
    }
}

/// CVE-2021-28361: a PDU with the C bit and no data.
#[test]
fn refuses_a_continued_pdu_without_data() {
    assert_eq!(Collector::new().add(b"", true), Err(BadText::ContinuedEmpty));
}

/// CVE-2011-0001: a login that never stops sending text.
#[test]
fn collects_no_more_than_the_limits() {
    //= rfc7143#section-6.1
    //= type=test
    //# Any iSCSI target or initiator MUST support receiving at least 8192 bytes of key=value
    //# data in a negotiation sequence.
    let mut collector = Collector::new();
    for _ in 0..7 {
        assert_eq!(collector.add(&[b'a'; 8192], true), Ok(None));
    }
    assert_eq!(collector.add(&[b'a'; 8193], false), Err(BadText::TooLong));
    assert!(!collector.is_incomplete());
    for _ in 1..MAX_TEXT_PDUS {
        assert_eq!(collector.add(b"a", true), Ok(None));
    }
    assert_eq!(collector.add(b"a", true), Err(BadText::TooManyPdus));
}

#[test]
fn spreads_a_text_over_pieces_that_join_again() {
    let text: Vec<u8> = (0..100).collect();
    for limit in [0, 1, 7, 50, 99, 100, 101] {
        let (mut spreader, mut joined, mut pieces) = (TextSplitter::new(text.clone()), Vec::new(), 0);
        loop {
            let (piece, goes_on) = spreader.next_piece(limit);
            assert!(piece.len() <= limit.max(1));
            joined.extend(piece);
            pieces += 1;
            if !goes_on {
                break;
            }
        }
        assert!(spreader.is_done());
        assert_eq!((joined, pieces), (text.clone(), 100usize.div_ceil(limit.max(1))));
    }
}

#[test]
fn an_outgoing_text_leaves_out_what_does_not_fit() {
    let mut out = TextBuilder::new();
    out.put("A", vec![b'x'; MAX_TEXT - 3]);
    assert!(!out.has_overflowed());
    out.put("B", "");
    assert!(out.has_overflowed());
    assert_eq!(out.into_bytes().len(), MAX_TEXT);
}

#[test]
fn reads_numbers_as_rfc_7143_spells_them() {
    //= rfc7143#section-6.1
    //= type=test
    //# Decimal-constants MUST NOT be used for parameter values if the values can be equal to
    //# or greater than 2**64 (numerical) or for binary strings that can be longer than 64
    //# bits.
    for (text, want) in [
        ("0", Ok(0)),
        ("262144", Ok(262_144)),
        ("0x40000", Ok(262_144)),
        ("0XfF", Ok(255)),
        ("18446744073709551615", Ok(u64::MAX)),
        ("18446744073709551616", Err(BadValue::Range)),
        ("0x10000000000000000", Err(BadValue::Range)),
        ("", Err(BadValue::Form)),
        ("0x", Err(BadValue::Form)),
        ("010", Err(BadValue::Form)),
        ("+1", Err(BadValue::Form)),
        ("-1", Err(BadValue::Form)),
        ("1 ", Err(BadValue::Form)),
        ("0x+1", Err(BadValue::Form)),
        ("1~2", Err(BadValue::Form)),
    ] {
        assert_eq!(number(text.as_bytes()), want, "{text}");
    }
    assert_eq!(number_in(b"512", 512..=1000), Ok(512));
    assert_eq!(number_in(b"511", 512..=1000), Err(BadValue::Range));
    assert_eq!(number_in(b"4294967808", 512..=1000), Err(BadValue::Range));
    assert_eq!(boolean(b"yes"), Err(BadValue::Form));
    assert_eq!(list(b"a,,b").collect::<Vec<_>>(), [&b"a"[..], b"", b"b"]);
}

#[test]
fn reads_binary_values_and_checks_their_length_before_decoding() {
    for (text, want) in [
        ("0x", Ok(vec![])),
        ("0x00fF", Ok(vec![0, 255])),
        ("0b", Ok(vec![])),
        ("0bAP8=", Ok(vec![0, 255])),
        ("0bAP8", Ok(vec![0, 255])),
        ("0Bq83v", Ok(vec![0xab, 0xcd, 0xef])),
        ("0bAA==", Ok(vec![0])),
        ("0bqw==", Ok(vec![0xab])),
        ("0x123", Err(BadValue::Form)),
        ("0xzz", Err(BadValue::Form)),
        ("ff", Err(BadValue::Form)),
        ("0bA", Err(BadValue::Form)),
        ("0bAB==", Err(BadValue::Form)),
        ("0bAP8==", Err(BadValue::Form)),
        ("0b====", Err(BadValue::Form)),
        ("0bA=P8", Err(BadValue::Form)),
        ("0x0000000000", Err(BadValue::Length)),
        ("0bAAAAAAA=", Err(BadValue::Length)),
        // The value is not hexadecimal, but its length is checked first: nothing was decoded.
        ("0xzzzzzzzzzz", Err(BadValue::Length)),
    ] {
        assert_eq!(binary(text.as_bytes(), 0..=4), want, "{text}");
    }
}

#[test]
fn binary_values_come_back_as_they_were() {
    let mut rng = Rng::from_seed(1);
    for len in 0..70 {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        assert_eq!(binary(to_hex(&bytes).as_bytes(), len..=len), Ok(bytes.clone()));
        assert_eq!(binary(to_base64(&bytes).as_bytes(), len..=len), Ok(bytes));
    }
}

#[test]
fn no_bytes_make_the_parsers_panic() {
    let alphabet = b"\0\0=0xb1aA,=~-\xff";
    for seed in 0..3000 {
        let mut rng = Rng::from_seed(seed);
        let len = rng.below(60);
        let text: Vec<u8> = (0..len).map(|_| alphabet[usize::try_from(rng.below(14)).unwrap()]).collect();
        let replay = format!("seed {seed}");
        if let Ok(pairs) = parse(&text) {
            for pair in pairs {
                assert!(pair.name.len() <= MAX_KEY_NAME, "{replay}");
                let _ = (number(pair.value), boolean(pair.value));
                let len = binary(pair.value, 0..=8).map_or(0, |bytes| bytes.len());
                assert!(len <= 8, "{replay}");
            }
        }
    }
}

#[test]
fn collects_64_kib_of_text() {
    //= rfc7143#section-6.1
    //= type=test
    //# the initiator and target MUST support receiving at least 64 kilobytes of key=value data.
    let mut collector = Collector::new();
    for _ in 0..7 {
        assert_eq!(collector.add(&[b'a'; 8192], true), Ok(None));
    }
    assert_eq!(collector.add(&[b'a'; 8192], false), Ok(Some(vec![b'a'; 64 << 10])));
}
