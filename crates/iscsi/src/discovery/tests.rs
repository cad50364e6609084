use super::*;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use base::rng::Rng;

fn read(pieces: &[&[u8]]) -> Result<(Vec<Discovered>, usize), BadText> {
    let mut list = TargetList::new();
    for piece in pieces {
        list.add(piece)?;
    }
    let ignored = list.ignored();
    Ok((list.finish()?, ignored))
}

fn discovered(name: &str, addresses: &[&str]) -> Discovered {
    let addresses = addresses.iter().map(|text| TargetAddress::parse(text.as_bytes()).unwrap()).collect();
    Discovered { name: name.parse().unwrap(), addresses }
}

/// RFC 7143 appendix C, the first two examples, cut in the middle of a pair.
#[test]
fn reads_the_examples_of_the_rfc_however_they_are_cut() {
    let text = b"TargetName=iqn.1993-11.com.example:diskarray.sn.8675309\0\
        TargetAddress=10.1.0.45:3000,1\0TargetAddress=10.1.1.46:3000,1\0TargetAddress=10.1.0.47:3000,2\0\
        TargetName=iqn.1993-11.com.example:diskarray.sn.1234567\0\
        TargetAddress=[2001:db8::8:800:200c:417a]:5003,3\0TargetAddress=arr.example.com\0";
    let want = vec![
        discovered(
            "iqn.1993-11.com.example:diskarray.sn.8675309",
            &["10.1.0.45:3000,1", "10.1.1.46:3000,1", "10.1.0.47:3000,2"],
        ),
        discovered(
            "iqn.1993-11.com.example:diskarray.sn.1234567",
            &["[2001:db8::8:800:200c:417a]:5003,3", "arr.example.com"],
        ),
    ];
    for cut in 0..text.len() {
        assert_eq!(read(&[&text[..cut], &text[cut..]]), Ok((want.clone(), 0)), "{cut}");
    }
}

/// CVE-2026-44943, CVE-2026-18724..-18728: names and addresses from a malicious target.
#[test]
fn leaves_out_names_that_are_none_together_with_their_addresses() {
    let text = b"TargetAddress=10.0.0.9:1,1\0TargetName=iqn.2026-11.com.example:good\0\
        TargetAddress=$(id):1,1\0TargetAddress=10.0.0.1:3260,1\0TargetName=../../../etc/cron.d/x\0\
        TargetAddress=10.0.0.2:3260,1\0X-other=1\0";
    let (targets, ignored) = read(&[text]).unwrap();
    assert_eq!(targets, [discovered("iqn.2026-11.com.example:good", &["10.0.0.1:3260,1"])]);
    assert_eq!(ignored, 5);
}

/// RFC 4007 §11.2: a zone means nothing to another host, and no initiator parses it.
#[test]
fn addresses_are_listed_without_their_zones() {
    let local = "[fe80::a%2]:3260".parse().unwrap();
    let via = ConnectionPath { portal: base::state_machine::PortalId(0), local, peer: local };
    for addresses in [vec![], vec![(TargetAddress::Socket(local), PortalGroupTag(1))]] {
        let target = SendTargetsEntry { name: "iqn.2026-11.com.example:a".parse().unwrap(), addresses };
        let text = String::from_utf8(encode_target(&target, &via)).unwrap();
        assert_eq!(text, "TargetName=iqn.2026-11.com.example:a\0TargetAddress=[fe80::a]:3260,1\0");
    }
}

#[test]
fn bounds_what_a_target_can_make_it_keep() {
    assert_eq!(read(&[&vec![b'a'; 1000]]), Err(BadText::TooLong));
    assert_eq!(read(&[b"TargetName=iqn."]), Err(BadText::Unterminated));
    assert_eq!(read(&[b"nonsense\0"]), Err(BadText::NoEquals));
    let name: &[u8] = b"TargetName=iqn.2026-11.com.example:x\0";
    let addresses = b"TargetAddress=10.0.0.1\0".repeat(MAX_ADDRESSES + 10);
    let (targets, ignored) = read(&[name, &addresses]).unwrap();
    assert_eq!((targets[0].addresses.len(), ignored), (MAX_ADDRESSES, 10));
    let mut list = TargetList::new();
    for _ in 0..MAX_TARGETS + 3 {
        list.add(name).unwrap();
    }
    assert_eq!(list.ignored(), 3);
    assert_eq!(list.finish().unwrap().len(), MAX_TARGETS);
}

#[test]
fn no_bytes_make_the_reader_panic() {
    let parts = ["TargetName=", "iqn.2026-11.com.example:x", "\0", "TargetAddress=", "[::1]:3260", ",1", "="];
    for seed in 0..2000 {
        let mut rng = Rng::from_seed(seed);
        let mut list = TargetList::new();
        for _ in 0..6 {
            let mut text = String::new();
            for _ in 0..rng.below(6) {
                text.push_str(parts[usize::try_from(rng.below(7)).unwrap()]);
            }
            let _ = list.add(text.as_bytes());
        }
        if let Ok(targets) = list.finish() {
            assert!(targets.len() < 40, "{}", format!("seed {seed}"));
        }
    }
}
