extern crate std;

use alloc::collections::BTreeMap;
use alloc::string::ToString;

use base::buffer::{Bytes, DataList, Pool};
use base::rng::Rng;
use serde_json::{Value, json};

use super::*;
use crate::api::{Durability, Failure, Fault, Op, OpAction, OpId, OpOutput, Store};
use crate::encrypt::{Encrypted, KeyStore, Replaced};
use crate::powercut::Power;
use crate::ram::Ram;

const CHEAP: KdfCost = KdfCost { passes: 1, memory_kib: 64, lanes: 1 };
const LEN: u64 = DATA_OFFSET + (1 << 20);
const SECRET: &[u8] = b"thirty-two bytes or more of a secret";

/// A store that answers at once, accessed in order. After `budget` writes and flushes, each fails.
struct AtOnce<S> {
    store: S,
    budget: usize,
}

impl<S: Store> AtOnce<S> {
    fn new(store: S) -> Self {
        Self { store, budget: usize::MAX }
    }

    fn run(&mut self, action: OpAction) -> Result<OpOutput, Failure> {
        self.store.submit(Op { id: OpId(1), action });
        self.store.poll().expect("answers at once").result
    }

    fn spend(&mut self) -> Result<(), Failure> {
        self.budget = self.budget.checked_sub(1).ok_or(Fault::Gone)?;
        Ok(())
    }
}

impl<S: Store> MediumIo for AtOnce<S> {
    type Error = Failure;

    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), Failure> {
        match self.run(OpAction::Read { at, len: buf.len() })? {
            OpOutput::Data(data) => {
                data.copy_to(0, buf);
                Ok(())
            }
            _ => Err(Fault::Bug.into()),
        }
    }

    fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Failure> {
        // The sectors of a write that fails may have been written, as any of those without a flush.
        let data: DataList = Bytes::copied_from(data).into();
        self.run(OpAction::Write { at, data, durability: Durability::Cached })?;
        self.spend()
    }

    fn zero(&mut self, at: u64, len: u64) -> Result<(), Failure> {
        let durability = Durability::Cached;
        self.run(OpAction::WriteZeroes { at, len, may_deallocate: true, durability })?;
        self.spend()
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.spend()?;
        self.run(OpAction::Flush).map(drop)
    }
}

struct NoKeeper;

impl KeyStore for NoKeeper {
    fn replace(&mut self) {}

    fn poll(&mut self) -> Option<Replaced> {
        None
    }
}

fn key(number: u8) -> MediaKey {
    MediaKey::new([[number; 32], [!number; 32]])
}

fn new(key: &MediaKey) -> NewHeader<'_> {
    NewHeader { key, sector_len: DataUnit::B512, passphrase: SECRET, cost: CHEAP }
}

fn random(seed: u64) -> impl FnMut(&mut [u8]) -> Result<(), Failure> {
    let mut rng = Rng::from_seed(seed);
    move |bytes| {
        rng.fill(bytes);
        Ok(())
    }
}

/// Returns an image with a header, and the header.
fn image() -> (AtOnce<Ram>, Header) {
    let mut io = AtOnce::new(Ram::new(LEN));
    let header = format(&mut io, LEN, &new(&key(1)), &mut random(1)).unwrap();
    (io, header)
}

fn why(result: Result<Header, Error<Failure>>) -> LuksError {
    match result {
        Err(Error::Luks(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// Changes the metadata of both copies.
fn edit(io: &mut AtOnce<Ram>, change: impl FnOnce(&mut Value)) {
    let header = Header::load(io, LEN).unwrap();
    let mut root: Value = serde_json::from_slice(&header.copy.json).unwrap();
    change(&mut root);
    let copy = HeaderCopy { json: root.to_string().into_bytes(), ..header.copy };
    for (which, at) in [(Which::Primary, 0), (Which::Secondary, 16384)] {
        io.write(at, &copy.encode(which, &[0; 64]).unwrap()).unwrap();
    }
}

fn flip(io: &mut AtOnce<Ram>, at: u64) {
    let mut sector = [0; 512];
    io.read(at, &mut sector).unwrap();
    sector[17] ^= 1;
    io.write(at, &sector).unwrap();
}

#[test]
fn a_header_is_read_back_and_gives_its_key_only_for_its_secret() {
    let (mut io, made) = image();
    let header = Header::load(&mut io, LEN).unwrap();
    assert_eq!(
        (header.copies(), header.data_offset(), header.data_len()),
        (Copies::Intact, DATA_OFFSET, None)
    );
    assert_eq!((&header.metadata, header.copy.seqid, header.keyslots()), (&made.metadata, 1, 1));
    assert_eq!((header.uuid().len(), &header.uuid()[14..15]), (36, "4"));
    let volume = header.unlock(&mut io, SECRET).unwrap();
    assert_eq!((volume.key.bytes(), volume.sector_len), (key(1).bytes(), DataUnit::B512));
    assert_eq!(header.unlock(&mut io, b"another").unwrap_err(), Error::Luks(LuksError::WrongSecret));
}

#[test]
fn the_other_copy_is_used_when_one_is_damaged_and_repaired() {
    for (at, copies) in
        [(0, Copies::PrimaryDamaged), (4096, Copies::PrimaryDamaged), (16384, Copies::SecondaryDamaged)]
    {
        let (mut io, _) = image();
        flip(&mut io, at);
        let mut header = Header::load(&mut io, LEN).unwrap();
        assert_eq!(header.copies(), copies, "{at}");
        assert!(header.unlock(&mut io, SECRET).is_ok());
        header.repair(&mut io, &mut random(2)).unwrap();
        let again = Header::load(&mut io, LEN).unwrap();
        assert_eq!((again.copies(), &again.metadata), (Copies::Intact, &header.metadata));
    }
    // A magic number that is gone altogether is a damaged copy too.
    let (mut io, _) = image();
    io.write(0, &[0; 4096]).unwrap();
    assert_eq!(Header::load(&mut io, LEN).unwrap().copies(), Copies::PrimaryDamaged);
    flip(&mut io, 16384);
    assert_eq!(why(Header::load(&mut io, LEN)), LuksError::NotLuks);
    let (mut io, _) = image();
    flip(&mut io, 8192);
    flip(&mut io, 16384);
    assert_eq!(why(Header::load(&mut io, LEN)), LuksError::Damaged);
}

#[test]
fn media_without_a_header_or_with_an_old_one_are_recognized() {
    let mut io = AtOnce::new(Ram::new(LEN));
    assert_eq!(why(Header::load(&mut io, LEN)), LuksError::NotLuks);
    for len in [0, 512, 32767] {
        assert_eq!(why(Header::load(&mut AtOnce::new(Ram::new(len)), len)), LuksError::NotLuks);
    }
    let mut first = [0; 512];
    first[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x01");
    io.write(0, &first).unwrap();
    assert_eq!(why(Header::load(&mut io, LEN)), LuksError::Version(1));
    let small = DATA_OFFSET;
    let refused = format(&mut AtOnce::new(Ram::new(small)), small, &new(&key(1)), &mut random(1));
    assert_eq!(why(refused), LuksError::TooSmall { have: small, need: small + 512 });
    // The medium was cut after the header was made.
    let (mut io, _) = image();
    assert_eq!(why(Header::load(&mut io, small)), LuksError::TooSmall { have: small, need: small + 512 });
}

#[test]
fn what_this_release_does_not_know_is_refused_with_its_name() {
    let set = |path: &'static str, value: Value| {
        move |root: &mut Value| {
            let (parent, name) = path.rsplit_once('/').unwrap();
            root.pointer_mut(parent).unwrap()[name] = value;
        }
    };
    let cases = [
        (
            set("/config/requirements", json!({"mandatory": ["online-reencrypt-v2"]})),
            "the LUKS2 image requires \"online-reencrypt-v2\", which this release does not support",
        ),
        (
            set("/segments/0/integrity", json!({"type": "hmac(sha256)"})),
            "the LUKS2 image has an integrity layer (dm-integrity), which this release does not support",
        ),
        (
            set("/segments/0/type", json!("linear")),
            "the LUKS2 image has a segment of type \"linear\"; only \"crypt\" is supported",
        ),
        (
            set("/segments/1", json!({"type": "crypt"})),
            "the LUKS2 image has 2 segments; exactly one is supported",
        ),
        (
            set("/segments/0/encryption", json!("serpent-xts-plain64\n\x1b[31m")),
            "the LUKS2 image is encrypted with \"serpent-xts-plain64[31m…\"; only aes-xts-plain64 is supported",
        ),
        (
            set("/segments/0/sector_size", json!(1024)),
            "the LUKS2 image has sectors that are neither of 512 nor of 4096 bytes",
        ),
        (
            set("/segments/0/offset", json!("0")),
            "the LUKS2 header is not usable: the data does not begin behind the keyslots",
        ),
        (
            set("/segments/0/offset", json!("18446744073709551104")),
            "the LUKS2 header is not usable: the data goes beyond the end of every medium",
        ),
        (
            set("/segments/0/size", json!("2097152")),
            "the LUKS2 image is too small: it has 17825792 bytes where at least 18874368 are needed",
        ),
        (
            set("/digests/0/hash", json!("whirlpool")),
            "the LUKS2 header is not usable: the digest of the key uses the hash \"whirlpool\"; supported are sha1, sha256, sha512",
        ),
        (
            set("/digests/0/iterations", json!(4_000_000_000_u32)),
            "a keyslot of the LUKS2 image requires more than 1024 MiB of memory for its KDF, or more than about a minute; give it a cheaper one (cryptsetup luksConvertKey)",
        ),
    ];
    for (change, sentence) in cases {
        let (mut io, _) = image();
        edit(&mut io, change);
        assert_eq!(why(Header::load(&mut io, LEN)).to_string(), sentence);
    }
}

#[test]
fn an_image_without_a_keyslot_that_can_be_tried_is_recognized_without_a_secret() {
    let (mut io, header) = image();
    assert_eq!(header.expect_keyslot(), Ok(()));
    edit(&mut io, |root| root["keyslots"]["0"]["kdf"]["memory"] = json!(ARGON2_MEMORY_MAX_KIB + 1));
    assert_eq!(Header::load(&mut io, LEN).unwrap().expect_keyslot(), Err(LuksError::TooCostly));
    let (mut io, _) = image();
    edit(&mut io, |root| root["digests"]["0"]["keyslots"] = json!([]));
    assert_eq!(Header::load(&mut io, LEN).unwrap().expect_keyslot(), Err(LuksError::NoKeyslot));
}

#[test]
fn a_keyslot_that_cannot_be_used_does_not_hide_the_others() {
    let (mut io, _) = image();
    edit(&mut io, |root| root["keyslots"]["0"]["kdf"]["memory"] = json!(2_000_000));
    let header = Header::load(&mut io, LEN).unwrap();
    assert_eq!(header.unlock(&mut io, SECRET).unwrap_err(), Error::Luks(LuksError::TooCostly));
    edit(&mut io, |root| {
        let area_at = copy_area(root);
        root["keyslots"]["1"]["kdf"]["memory"] = json!(64);
        root["keyslots"]["1"]["area"]["offset"] = json!(area_at.to_string());
        root["digests"]["0"]["keyslots"] = json!(["0", "1"]);
    });
    let mut material = vec![0; AREA_LEN];
    io.read(AREAS_AT, &mut material).unwrap();
    io.write(AREAS_AT + to_u64(AREA_LEN), &material).unwrap();
    let header = Header::load(&mut io, LEN).unwrap();
    assert!(header.unlock(&mut io, SECRET).is_ok());
    assert_eq!(header.expect_keyslot(), Ok(()));
    let (mut io, _) = image();
    edit(&mut io, |root| root["keyslots"]["0"]["af"]["hash"] = json!("sha3-256"));
    let header = Header::load(&mut io, LEN).unwrap();
    let Err(Error::Luks(unknown)) = header.unlock(&mut io, SECRET) else { panic!("it opens") };
    assert_eq!(
        unknown.to_string(),
        "the LUKS2 header is not usable: a keyslot is split with the hash \"sha3-256\"; supported are sha1, sha256, sha512"
    );
    assert_eq!(header.expect_keyslot(), Err(unknown));
    let (mut io, _) = image();
    edit(&mut io, |root| root["keyslots"]["0"]["area"]["size"] = json!("4096"));
    let header = Header::load(&mut io, LEN).unwrap();
    assert!(matches!(header.unlock(&mut io, SECRET), Err(Error::Luks(LuksError::Metadata(_)))));
    let (mut io, _) = image();
    edit(&mut io, |root| root["digests"]["0"]["keyslots"] = json!([]));
    let header = Header::load(&mut io, LEN).unwrap();
    assert_eq!(header.unlock(&mut io, SECRET).unwrap_err(), Error::Luks(LuksError::NoKeyslot));
}

const AREAS_AT: u64 = 32768;
const AREA_LEN: usize = 258_048;

/// Copies keyslot 0 to 1, with an area after its own. Returns where.
fn copy_area(root: &mut Value) -> u64 {
    root["keyslots"]["1"] = root["keyslots"]["0"].clone();
    let area_at = AREAS_AT + to_u64(AREA_LEN);
    root["keyslots"]["1"]["area"]["offset"] = json!(area_at.to_string());
    area_at
}

#[test]
fn what_cryptsetup_refuses_is_refused() {
    let base64 = |len: usize| json!(Base64::encode_string(&vec![7; len]));
    type Change = alloc::boxed::Box<dyn FnOnce(&mut Value)>;
    let area = |name: &'static str, value: &'static str| -> Change {
        alloc::boxed::Box::new(move |root| root["keyslots"]["0"]["area"][name] = json!(value))
    };
    let digest = |name: &'static str, value: Value| -> Change {
        alloc::boxed::Box::new(move |root| root["digests"]["0"][name] = value)
    };
    let misplaced = "a keyslot's area is not where areas are";
    let digest_len = "the digest of the key has an impossible length";
    let salt_len = "a salt has another length than 32 bytes";
    let cases: [(Change, &str); 16] = [
        (digest("digest", base64(1)), digest_len),
        (digest("digest", base64(19)), digest_len),
        (digest("digest", base64(21)), digest_len),
        (digest("digest", base64(64)), digest_len),
        (digest("salt", base64(31)), salt_len),
        (digest("salt", base64(0)), salt_len),
        (area("offset", "32256"), misplaced),
        (area("offset", "16777216"), misplaced),
        (area("offset", "18446744073709547520"), misplaced),
        (area("size", "18446744073709518848"), misplaced),
        (area("size", "18446744073709551615"), misplaced),
        (area("size", "0"), misplaced),
        (
            alloc::boxed::Box::new(|root| {
                copy_area(root);
                root["keyslots"]["1"]["area"]["offset"] = json!((AREAS_AT + 4096).to_string());
            }),
            "the areas of two keyslots overlap",
        ),
        (
            alloc::boxed::Box::new(|root| root["digests"]["1"] = root["digests"]["0"].clone()),
            "a keyslot has two key digests",
        ),
        (
            alloc::boxed::Box::new(|root| root["config"]["keyslots_size"] = json!("18446744073709518848")),
            "the region of keyslots has an impossible length",
        ),
        (
            alloc::boxed::Box::new(|root| root["config"]["json_size"] = json!("4096")),
            "the metadata have another length than the header says",
        ),
    ];
    for (number, (change, reason)) in cases.into_iter().enumerate() {
        let (mut io, _) = image();
        edit(&mut io, change);
        assert_eq!(why(Header::load(&mut io, LEN)), LuksError::Metadata(reason), "case {number}");
    }
    // The salt of a keyslot's KDF, and 20 bytes of digest, which cryptsetup takes with every hash.
    let (mut io, _) = image();
    edit(&mut io, |root| root["keyslots"]["0"]["kdf"]["salt"] = base64(16));
    let header = Header::load(&mut io, LEN).unwrap();
    assert_eq!(header.unlock(&mut io, SECRET).unwrap_err(), Error::Luks(LuksError::Metadata(salt_len)));
    let (mut io, header) = image();
    let short = Base64::encode_string(&header.metadata.digests[0].digest[..20]);
    edit(&mut io, |root| root["digests"]["0"]["digest"] = json!(short));
    assert!(Header::load(&mut io, LEN).unwrap().unlock(&mut io, SECRET).is_ok());
}

#[test]
fn a_header_whose_keyslots_take_too_long_together_is_refused() {
    let costly = |count: u32| {
        let (mut io, _) = image();
        edit(&mut io, |root| {
            let ids: Vec<String> = (0..count).map(|id| id.to_string()).collect();
            for (number, id) in (0_u64..).zip(&ids) {
                root["keyslots"][id] = root["keyslots"]["0"].clone();
                let area_at = AREAS_AT + number * to_u64(AREA_LEN);
                root["keyslots"][id]["area"]["offset"] = json!(area_at.to_string());
                // The most that one keyslot may take.
                root["keyslots"][id]["kdf"]["memory"] = json!(1 << 20);
                root["keyslots"][id]["kdf"]["time"] = json!(60);
            }
            root["digests"]["0"]["keyslots"] = json!(ids);
        });
        Header::load(&mut io, LEN)
    };
    assert_eq!(costly(4).unwrap().keyslots(), 4);
    assert_eq!(why(costly(5)), LuksError::TooCostlyTogether);
    let (mut io, _) = image();
    // A digest is compared for each of its keyslots.
    edit(&mut io, |root| {
        root["digests"]["0"]["iterations"] = json!(100_000_000);
        for id in 1..3_u64 {
            root["keyslots"][id.to_string()] = root["keyslots"]["0"].clone();
            let area_at = AREAS_AT + id * to_u64(AREA_LEN);
            root["keyslots"][id.to_string()]["area"]["offset"] = json!(area_at.to_string());
        }
        root["digests"]["0"]["keyslots"] = json!(["0", "1", "2"]);
    });
    assert_eq!(why(Header::load(&mut io, LEN)), LuksError::TooCostlyTogether);
}

#[test]
fn volumes_have_the_same_name_only_with_the_same_place_form_and_key() {
    let (mut io, header) = image();
    let name = header.volume_name();
    assert!(name.starts_with(&header.uuid()), "{name}");
    // A repair, another keyslot and another KDF leave the data as they are.
    edit(&mut io, |root| root["keyslots"]["0"]["kdf"]["time"] = json!(2));
    assert_eq!(Header::load(&mut io, LEN).unwrap().volume_name(), name);
    let changes: [fn(&mut Value); 4] = [
        |root| root["segments"]["0"]["offset"] = json!("16777728"),
        |root| root["segments"]["0"]["size"] = json!("512"),
        |root| root["segments"]["0"]["sector_size"] = json!(4096),
        |root| root["segments"]["0"]["iv_tweak"] = json!("8"),
    ];
    for change in changes {
        let (mut io, _) = image();
        edit(&mut io, change);
        assert_ne!(Header::load(&mut io, LEN).unwrap().volume_name(), name);
    }
    let erased = header.replace_key(&mut io, &new(&key(2)), &mut random(2)).unwrap();
    assert_eq!(erased.uuid(), header.uuid());
    assert_ne!(erased.volume_name(), name);
}

#[test]
fn damaged_headers_are_refused_and_never_panic() {
    for seed in 0..300 {
        let mut rng = Rng::from_seed(seed);
        let (mut io, _) = image();
        // The checksums are right, so that the metadata are read.
        let header = Header::load(&mut io, LEN).unwrap();
        let mut json = header.copy.json.clone();
        for _ in 0..=rng.below(4) {
            let at = to_usize(rng.below(to_u64(json.len())));
            let mut byte = [0];
            rng.fill(&mut byte);
            json[at] = if rng.below(2) == 0 { b'0' + byte[0] % 10 } else { byte[0] };
        }
        let copy = HeaderCopy { json, ..header.copy };
        for (which, at) in [(Which::Primary, 0), (Which::Secondary, 16384)] {
            io.write(at, &copy.encode(which, &[0; 64]).unwrap()).unwrap();
        }
        if let Ok(header) = Header::load(&mut io, LEN) {
            // Whatever is left leads to the right key or to none.
            if let Ok(volume) = header.unlock(&mut io, SECRET) {
                assert_eq!(volume.key.bytes(), key(1).bytes(), "seed {seed}");
            }
        }
    }
}

#[test]
fn an_interrupted_format_can_be_repeated_whenever_the_power_goes() {
    let mut seen = BTreeMap::new();
    for (budget, seed) in (0..12).flat_map(|budget| (0..6).map(move |seed| (budget, seed))) {
        let context = alloc::format!("budget {budget}, seed {seed}");
        let power = Power::new(LEN);
        // The second attempt is interrupted too: it finds what the first one left.
        for attempt in 0..2 {
            let mut io = AtOnce { store: power.store(), budget };
            let made = format(&mut io, LEN, &new(&key(attempt)), &mut random(seed + u64::from(attempt)));
            power.cut(seed + u64::from(attempt));
            let mut io = AtOnce::new(power.store());
            let mut start = alloc::vec![0; to_usize(DATA_OFFSET)];
            io.read(0, &mut start).unwrap();
            let found = match Header::load(&mut io, LEN) {
                Ok(mut header) => {
                    assert_eq!(header.unlock(&mut io, SECRET).unwrap().key.bytes(), key(attempt).bytes());
                    header.repair(&mut io, &mut random(3)).unwrap();
                    expect_whole(&mut io, &key(attempt), &context);
                    "whole"
                }
                Err(Error::Luks(LuksError::Unfinished)) => "unfinished",
                Err(Error::Luks(LuksError::NotLuks)) if start.iter().all(|byte| *byte == 0) => "blank",
                Err(other) => panic!("{context}, attempt {attempt}: {other:?}"),
            };
            assert!(made.is_err() || found == "whole", "{context}, attempt {attempt}: {found}");
            *seen.entry(found).or_insert(0) += 1;
            if found == "whole" {
                break;
            }
        }
    }
    assert!(["whole", "unfinished", "blank"].iter().all(|found| seen[found] > 5), "{seen:?}");
}

#[test]
fn a_replaced_key_is_there_or_not_whenever_the_power_goes() {
    let mut seen = BTreeMap::new();
    for budget in 0..24 {
        for seed in 0..4 {
            let power = Power::new(LEN);
            let mut io = AtOnce::new(power.store());
            let header = format(&mut io, LEN, &new(&key(1)), &mut random(seed)).unwrap();
            io.budget = budget;
            let second = key(2);
            let replaced = header.replace_key(&mut io, &new(&second), &mut random(seed + 1));
            power.cut(seed);
            let mut io = AtOnce::new(power.store());
            let mut found = Header::load(&mut io, LEN).unwrap();
            let volume = found.unlock(&mut io, SECRET).unwrap();
            let fresh = volume.key.bytes() == key(2).bytes();
            assert!(fresh || volume.key.bytes() == key(1).bytes(), "budget {budget}, seed {seed}");
            match replaced {
                Ok(_) => assert!(fresh),
                Err(Replacing::Kept(_)) => assert!(!fresh, "budget {budget}, seed {seed}"),
                Err(Replacing::Unknown(_)) => {}
            }
            found.repair(&mut io, &mut random(3)).unwrap();
            let again = Header::load(&mut io, LEN).unwrap();
            assert_eq!(again.copies(), Copies::Intact);
            assert_eq!(again.unlock(&mut io, SECRET).unwrap().key.bytes(), volume.key.bytes());
            // Nothing of the former keyslot is left.
            let areas = Metadata::areas(&again.copy.json);
            assert_eq!(areas.len(), 1);
            for at in (32768..32768 + 4 * 258_048_u64).step_by(4096) {
                let mut page = [0; 4096];
                io.read(at, &mut page).unwrap();
                let inside = (areas[0].0..areas[0].0 + areas[0].1).contains(&at);
                assert!(inside || !fresh || page == [0; 4096], "budget {budget}, seed {seed}, at {at}");
            }
            *seen.entry(fresh).or_insert(0) += 1;
        }
    }
    assert!(seen[&true] > 10 && seen[&false] > 10, "{seen:?}");
}

/// Panics if a header whose copies are equal does not open with this key, or leaves anything of another
/// keyslot.
fn expect_whole(io: &mut AtOnce<impl Store>, volume_key: &MediaKey, context: &str) {
    let header = Header::load(io, LEN).unwrap();
    assert_eq!(header.copies(), Copies::Intact, "{context}");
    assert_eq!(header.unlock(io, SECRET).unwrap().key.bytes(), volume_key.bytes(), "{context}");
    let areas = Metadata::areas(&header.copy.json);
    assert_eq!(areas.len(), 1);
    for at in (32768..32768 + 4 * 258_048_u64).step_by(4096) {
        let mut page = [0; 4096];
        io.read(at, &mut page).unwrap();
        let inside = (areas[0].0..areas[0].0 + areas[0].1).contains(&at);
        assert!(inside || page == [0; 4096], "{context}, at {at}");
    }
}

#[test]
fn a_repair_that_is_cut_off_leaves_nothing_of_the_former_key_once_the_copies_are_equal() {
    let (mut interrupted, mut completed) = (0, 0);
    // The change writes the primary copy third, then overwrites the former keyslots, and then writes the
    // secondary copy.
    for (first, second) in
        [3, 4, 8, 10].into_iter().flat_map(|first| (0..8).map(move |second| (first, second)))
    {
        let context =
            std::format!("cut after {first} writes and flushes of the change, {second} of the repair");
        let seed = first * 100 + second;
        let power = Power::new(LEN);
        let mut io = AtOnce::new(power.store());
        let header = format(&mut io, LEN, &new(&key(1)), &mut random(seed)).unwrap();
        io.budget = to_usize(first);
        let _ = header.replace_key(&mut io, &new(&key(2)), &mut random(seed + 1));
        power.cut(seed);
        let mut io = AtOnce::new(power.store());
        let mut found = Header::load(&mut io, LEN).unwrap();
        let volume_key = found.unlock(&mut io, SECRET).unwrap().key;
        if found.copies() == Copies::Intact {
            continue;
        }
        io.budget = to_usize(second);
        let is_cut_off = found.repair(&mut io, &mut random(3)).is_err();
        power.cut(seed + 2);
        let mut io = AtOnce::new(power.store());
        let mut again = Header::load(&mut io, LEN).unwrap();
        assert_eq!(again.unlock(&mut io, SECRET).unwrap().key.bytes(), volume_key.bytes(), "{context}");
        if again.copies() == Copies::Intact {
            expect_whole(&mut io, &volume_key, &context);
        }
        again.repair(&mut io, &mut random(4)).unwrap();
        expect_whole(&mut io, &volume_key, &context);
        *if is_cut_off { &mut interrupted } else { &mut completed } += 1;
    }
    assert!(interrupted > 10 && completed > 0, "{interrupted} {completed}");
}

#[test]
fn a_key_can_be_replaced_again_and_again() {
    let (mut io, mut header) = image();
    for number in 2..20 {
        let fresh = key(number);
        header = header.replace_key(&mut io, &new(&fresh), &mut random(u64::from(number))).unwrap();
        let header = Header::load(&mut io, LEN).unwrap();
        assert_eq!(header.copies(), Copies::Intact);
        assert_eq!(header.unlock(&mut io, SECRET).unwrap().key.bytes(), fresh.bytes());
    }
    assert_eq!(header.copy.seqid, 19);
}

#[test]
fn a_volume_keeps_its_data_behind_the_header_and_numbers_sectors_as_dm_crypt_does() {
    for sector_len in [DataUnit::B512, DataUnit::B4096] {
        let secret_key = key(1);
        let mut io = AtOnce::new(Ram::new(LEN));
        format(&mut io, LEN, &NewHeader { sector_len, ..new(&secret_key) }, &mut random(1)).unwrap();
        let header = Header::load(&mut io, LEN).unwrap();
        let volume = header.unlock(&mut io, SECRET).unwrap();
        let mut disk = AtOnce::new(Encrypted::of_volume(io.store, NoKeeper, &volume, Pool::new(4 << 20)));
        assert_eq!(disk.store.capabilities().len, 1 << 20);
        assert!(!disk.store.capabilities().deallocated_reads_zero);
        disk.write(8192, &[7; 4096]).unwrap();
        disk.zero(65536, 2 << 16).unwrap();
        let mut back = vec![1; 4096];
        disk.read(8192, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
        disk.read(65536, &mut back).unwrap();
        assert_eq!(back, [0; 4096]);
        // A range that was never written reads as zeros.
        disk.read(4096, &mut back).unwrap();
        assert_eq!(back, [0; 4096]);
        for action in [
            OpAction::Read { at: 1 << 20, len: 4096 },
            OpAction::Deallocate { at: u64::MAX - 4095, len: 4096 },
        ] {
            assert_eq!(disk.run(action).unwrap_err().fault, Fault::OutOfRange);
        }
        let extents = disk.run(OpAction::MapStatus { at: 0, len: 1 << 20, count_max: 9 }).unwrap();
        let OpOutput::MapStatus(extents) = extents else { panic!() };
        assert_eq!(extents[0].at, 0);
        // The numbers are those of sectors of 512 bytes: 16 for the byte 8192, and 128 for 65536.
        let mut below = AtOnce::new(disk.store.into_inner());
        let xts = crate::encrypt::xts::Xts::new(&secret_key);
        for (at, number, byte) in [(8192, 16, 7), (65536, 128, 0)] {
            let mut sector = vec![0; to_usize(sector_len.bytes())];
            below.read(DATA_OFFSET + at, &mut sector).unwrap();
            assert!(sector.iter().any(|found| *found != byte));
            xts.decrypt(number, &mut sector);
            assert!(sector.iter().all(|found| *found == byte));
        }
    }
}

/// A store that answers at once, shared.
struct Locked(std::sync::Mutex<AtOnce<Ram>>);

impl crate::shared::SharedStore for Locked {
    fn capabilities(&self) -> crate::api::Capabilities {
        self.0.lock().unwrap().store.capabilities()
    }

    fn submit(&self, action: OpAction, done: crate::shared::OnComplete) {
        let result = self.0.lock().unwrap().run(action);
        done(result);
    }
}

#[test]
fn a_shared_volume_holds_what_a_volume_holds() {
    use crate::encrypt::shared_volume::SharedVolume;
    use crate::shared::SharedStore;

    let (io, header) = image();
    let mut io = io;
    let volume = header.unlock(&mut io, SECRET).unwrap();
    let inner = alloc::sync::Arc::new(Locked(std::sync::Mutex::new(io)));
    let shared = SharedVolume::new(inner.clone(), &volume);
    let run = |action| {
        let (end, ended) = std::sync::mpsc::channel();
        shared.submit(action, alloc::boxed::Box::new(move |result| end.send(result).unwrap()));
        ended.recv().unwrap()
    };
    let durability = Durability::Cached;
    let data: DataList = Bytes::copied_from(&[9; 8192]).into();
    let Ok(OpOutput::Done(given)) = run(OpAction::Write { at: 4096, data, durability }) else { panic!() };
    assert_eq!((given.len(), given.parts()[0][0]), (8192, 9));
    run(OpAction::WriteZeroes { at: 8192, len: 4096, may_deallocate: true, durability }).unwrap();
    assert!(run(OpAction::Flush).is_ok());
    for (action, fault) in [
        (OpAction::Read { at: 1 << 20, len: 512 }, Fault::OutOfRange),
        (OpAction::Read { at: 100, len: 512 }, Fault::Bug),
        (OpAction::WriteZeroes { at: 0, len: 100, may_deallocate: true, durability }, Fault::Bug),
        (OpAction::CryptoErase, Fault::Unsupported),
    ] {
        assert_eq!(run(action).unwrap_err().fault, fault);
    }
    let Ok(OpOutput::MapStatus(extents)) = run(OpAction::MapStatus { at: 0, len: 65536, count_max: 4 })
    else {
        panic!()
    };
    assert_eq!(extents[0].at, 0);
    let Ok(OpOutput::Data(data)) = run(OpAction::Read { at: 4096, len: 8192 }) else { panic!() };
    let mut back = vec![1; 8192];
    data.copy_to(0, &mut back);
    assert!(back[..4096] == [9; 4096] && back[4096..] == [0; 4096]);
    // The other filter reads the same, and the zeros are encrypted.
    drop(shared);
    let mut io = alloc::sync::Arc::into_inner(inner).unwrap().0.into_inner().unwrap();
    let mut hidden = [0; 512];
    io.read(DATA_OFFSET + 8192, &mut hidden).unwrap();
    assert_ne!(hidden, [0; 512]);
    let mut disk = AtOnce::new(Encrypted::of_volume(io.store, NoKeeper, &volume, Pool::new(1 << 20)));
    let mut again = vec![1; 8192];
    disk.read(4096, &mut again).unwrap();
    assert_eq!(again, back);
}
