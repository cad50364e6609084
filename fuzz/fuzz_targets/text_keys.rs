//! Text as a peer sends it: pairs, values, names, addresses, and negotiations of them in either role.
#![no_main]

use iscsi::discovery::TargetList;
use iscsi::keys::{Key, Role};
use iscsi::login::directory::TargetAddress;
use iscsi::name::IscsiName;
use iscsi::negotiate::KeyPolicy;
use iscsi::negotiate::negotiator::{LoginContext, Negotiator, answer_unknown};
use iscsi::text::value::{binary, boolean, list, number, to_base64, to_hex};
use iscsi::text::{MAX_TEXT, Pair, TextBuilder, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((first, text)) = input.split_first() else { return };
    let mut targets = TargetList::new();
    for piece in text.chunks(usize::from(*first).max(1)) {
        if targets.add(piece).is_err() {
            break;
        }
    }
    let Ok(pairs) = parse(text) else { return };
    let mut again = TextBuilder::new();
    for pair in &pairs {
        value(pair.value);
        again.put(pair.name, pair.value);
    }
    let again = again.into_bytes();
    if text.len() < MAX_TEXT {
        assert_eq!(parse(&again).as_ref(), Ok(&pairs));
    }
    negotiate(*first, &pairs);
});

fn value(value: &[u8]) {
    let _ = (number(value), boolean(value), list(value).count());
    if let Ok(bytes) = binary(value, 0..=32) {
        assert!(bytes.len() <= 32);
        assert_eq!(binary(to_hex(&bytes).as_bytes(), 0..=32).as_ref(), Ok(&bytes));
        assert_eq!(binary(to_base64(&bytes).as_bytes(), 0..=32).as_ref(), Ok(&bytes));
    }
    if let Ok(name) = IscsiName::parse(value) {
        assert_eq!(IscsiName::parse(name.as_str().as_bytes()).as_ref(), Ok(&name));
        assert!(!name.as_str().contains(['/', '\n', ' ', '%']));
    }
    if let Some((address, _)) = TargetAddress::parse(value) {
        let again = TargetAddress::parse(address.to_string().as_bytes());
        assert_eq!(again.map(|(address, _)| address), Some(address));
    }
}

fn negotiate(first: u8, pairs: &[Pair<'_>]) {
    let context = if first & 1 == 0 { LoginContext::Leading } else { LoginContext::Discovery };
    let role = if first & 2 == 0 { Role::Target } else { Role::Initiator };
    let mut negotiator = Negotiator::new(role, KeyPolicy::default(), context);
    let mut out = TextBuilder::new();
    if role == Role::Initiator {
        negotiator.offer_all(&mut out);
    }
    let mut known = Vec::new();
    for pair in pairs {
        match Key::by_name(pair.name.as_bytes()) {
            Some(key) => known.push((key, *pair)),
            None => drop(answer_unknown(pair, &mut out)),
        }
    }
    if negotiator.receive(&known, &mut out).is_err() {
        return;
    }
    negotiator.offer_unacceptable(&mut out);
    assert!(!out.has_overflowed());
    if let Ok(done) = negotiator.finish() {
        let session = done.session;
        assert!(session.first_burst_length <= session.max_burst_length);
        assert!((512..1 << 24).contains(&session.max_burst_length));
        assert!(session.max_connections >= 1);
    }
}
