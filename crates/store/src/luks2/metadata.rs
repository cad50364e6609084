//! The metadata of a header: a JSON object that names keyslots, segments and digests (LUKS2 On-Disk Format
//! Specification §3).

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use base::int_cast::{to_u64, to_usize};
use base64ct::{Base64, Encoding};
use serde_json::{Map, Value, json};

use super::binary::BINARY_LEN;
use super::keyslot::{HashName, Kdf, Keyslot, STRIPES, pbkdf2_work};
use super::{LuksError, shorten};
use crate::encrypt::{DataUnit, MediaKey};

/// The most keyslots of a header.
pub(super) const KEYSLOTS_MAX: usize = 32;
/// The most digests that are looked at: one for each keyslot at worst.
const DIGESTS_MAX: usize = KEYSLOTS_MAX;
/// The greatest length in bytes of the region for areas, which cryptsetup accepts.
const KEYSLOTS_LEN_MAX: u64 = 128 << 20;
/// The length of every salt in bytes.
const SALT_LEN: usize = 32;
/// The most work of trying a secret on every keyslot: four minutes or so of one processor. With cryptsetup's
/// defaults, 32 keyslots take half of that.
const UNLOCK_WORK_MAX: u64 = 1 << 28;
/// The longest salt or digest in bytes.
const BLOB_LEN_MAX: usize = 256;
/// The cipher that segments and areas are encrypted with.
const CIPHER: &str = "aes-xts-plain64";

/// What a header says, where this release supports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Metadata {
    /// The keyslots that open the segment, by number. The ones that this release cannot use are errors.
    pub(super) keyslots: BTreeMap<u32, Result<Keyslot, LuksError>>,
    pub(super) segment: Segment,
    /// The digests of the segment's key.
    pub(super) digests: Vec<KeyDigest>,
    /// The length in bytes of the region for areas of keyslots, behind both copies of the header.
    pub(super) keyslots_len: u64,
}

/// Where the encrypted data is, and how it is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// The first byte of the data.
    pub(super) offset: u64,
    /// The length in bytes; `None` if the data goes to the end of the medium.
    pub(super) len: Option<u64>,
    /// Added to the number of each sector.
    pub(super) iv_tweak: u64,
    pub(super) sector_len: DataUnit,
}

/// Tells whether a key is the volume key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyDigest {
    pub(super) keyslots: Vec<u32>,
    pub(super) hash: HashName,
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    pub(super) digest: Vec<u8>,
}

impl KeyDigest {
    /// Returns whether `key` is the volume key.
    pub(super) fn matches(&self, key: &MediaKey) -> bool {
        let mut digest = vec![0; self.digest.len()];
        self.hash.pbkdf2(key.bytes(), &self.salt, self.iterations, &mut digest);
        !digest.is_empty() && digest == self.digest
    }

    /// Returns the work of a comparison, in the unit of [`Kdf::work`].
    fn work(&self) -> u64 {
        pbkdf2_work(self.hash, self.iterations, self.digest.len())
    }
}

impl Metadata {
    /// Reads the metadata of a header whose copies have `copy_len` bytes each.
    ///
    /// # Errors
    /// [`LuksError`]
    pub(super) fn parse(json: &[u8], copy_len: usize) -> Result<Self, LuksError> {
        // The parser bounds the depth, and the length of the text bounds everything else.
        let root: Value =
            serde_json::from_slice(json).map_err(|_| LuksError::Metadata("the metadata is not JSON"))?;
        let config = member(&root, "config")?;
        requirements(config)?;
        let keyslots_len = number(config, "keyslots_size")?;
        if keyslots_len > KEYSLOTS_LEN_MAX || !keyslots_len.is_multiple_of(4096) {
            return Err(LuksError::Metadata("the region of keyslots has an impossible length"));
        }
        if number(config, "json_size")? != to_u64(copy_len.saturating_sub(BINARY_LEN)) {
            return Err(LuksError::Metadata("the metadata have another length than the header says"));
        }
        let areas_at = to_u64(copy_len).saturating_mul(2);
        let areas = (areas_at, areas_at.saturating_add(keyslots_len));
        let (segment_id, segment) = segment(&root)?;
        // The data of a detached header begins at 0.
        if segment.offset < areas.1 {
            return Err(LuksError::Metadata("the data does not begin behind the keyslots"));
        }
        check_areas(&root, areas)?;
        let digests = digests(&root, segment_id)?;
        let mut keyslots = BTreeMap::new();
        for (id, slot) in object(&root, "keyslots")? {
            let Some(id) = id.parse().ok().filter(|id| to_usize(*id) < KEYSLOTS_MAX) else {
                return Err(LuksError::Metadata("a keyslot has an impossible number"));
            };
            // Priority 0 means: only when a user names the keyslot.
            let ignored = slot.get("priority").and_then(Value::as_u64) == Some(0);
            if !ignored && digests.iter().any(|digest| digest.keyslots.contains(&id)) {
                keyslots.insert(id, keyslot(slot, areas));
            }
        }
        let metadata = Self { keyslots, segment, digests, keyslots_len };
        // A wrong secret is tried on every keyslot.
        if metadata.unlock_work() > UNLOCK_WORK_MAX {
            return Err(LuksError::TooCostlyTogether);
        }
        Ok(metadata)
    }

    /// Returns the work of trying a secret on every keyslot that can be used, in the unit of [`Kdf::work`].
    fn unlock_work(&self) -> u64 {
        let digest_work = |id: u32| {
            let digests = self.digests.iter().filter(move |digest| digest.keyslots.contains(&id));
            digests.fold(0, |sum: u64, digest| sum.saturating_add(digest.work()))
        };
        let usable = self.keyslots.iter().filter_map(|(id, slot)| Some((*id, slot.as_ref().ok()?)));
        let works = usable.map(|(id, slot)| slot.work().saturating_add(digest_work(id)));
        works.fold(0, u64::saturating_add)
    }

    /// Returns the areas of all keyslots as the first byte and the length, whatever the keyslots are for.
    pub(super) fn areas(json: &[u8]) -> Vec<(u64, u64)> {
        let Ok(root) = serde_json::from_slice::<Value>(json) else { return Vec::new() };
        let slots = root.get("keyslots").and_then(Value::as_object);
        let area = |slot: &Value| {
            let area = slot.get("area")?;
            Some((number(area, "offset").ok()?, number(area, "size").ok()?))
        };
        slots.into_iter().flat_map(Map::values).filter_map(area).take(KEYSLOTS_MAX).collect()
    }

    /// Returns the metadata as JSON, for a header whose copies have `copy_len` bytes each.
    pub(super) fn encode(&self, copy_len: usize) -> Vec<u8> {
        let mut keyslots = Map::new();
        for (id, slot) in &self.keyslots {
            if let Ok(slot) = slot {
                keyslots.insert(id.to_string(), encode_keyslot(slot));
            }
        }
        let digests: Map<String, Value> = (0_usize..)
            .zip(&self.digests)
            .map(|(id, digest)| (id.to_string(), encode_digest(digest)))
            .collect();
        let segment = &self.segment;
        let len = segment.len.map_or_else(|| "dynamic".to_owned(), |len| len.to_string());
        let json_len = copy_len.saturating_sub(BINARY_LEN);
        let root = json!({
            "keyslots": keyslots,
            "tokens": {},
            "segments": {"0": {
                "type": "crypt",
                "offset": segment.offset.to_string(),
                "size": len,
                "iv_tweak": segment.iv_tweak.to_string(),
                "encryption": CIPHER,
                "sector_size": segment.sector_len.bytes(),
            }},
            "digests": digests,
            "config": {"json_size": json_len.to_string(), "keyslots_size": self.keyslots_len.to_string()},
        });
        root.to_string().into_bytes()
    }
}

fn encode_keyslot(slot: &Keyslot) -> Value {
    let kdf = match &slot.kdf {
        Kdf::Argon2 { hybrid, passes, memory_kib, lanes, salt } => json!({
            "type": if *hybrid { "argon2id" } else { "argon2i" },
            "time": passes,
            "memory": memory_kib,
            "cpus": lanes,
            "salt": Base64::encode_string(salt),
        }),
        Kdf::Pbkdf2 { hash, iterations, salt } => json!({
            "type": "pbkdf2",
            "hash": hash.name(),
            "iterations": iterations,
            "salt": Base64::encode_string(salt),
        }),
    };
    json!({
        "type": "luks2",
        "key_size": slot.key_len,
        "af": {"type": "luks1", "stripes": STRIPES, "hash": slot.hash.name()},
        "area": {
            "type": "raw",
            "offset": slot.area_at.to_string(),
            "size": slot.area_len.to_string(),
            "encryption": CIPHER,
            "key_size": slot.area_key_len,
        },
        "kdf": kdf,
    })
}

fn encode_digest(digest: &KeyDigest) -> Value {
    let keyslots: Vec<String> = digest.keyslots.iter().map(ToString::to_string).collect();
    json!({
        "type": "pbkdf2",
        "keyslots": keyslots,
        "segments": ["0"],
        "hash": digest.hash.name(),
        "iterations": digest.iterations,
        "salt": Base64::encode_string(&digest.salt),
        "digest": Base64::encode_string(&digest.digest),
    })
}

/// Refuses a header with requirements: a release that does not know one may damage the data.
fn requirements(config: &Value) -> Result<(), LuksError> {
    let Some(requirements) = config.get("requirements") else { return Ok(()) };
    match requirements.get("mandatory").and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => Ok(()),
        Some([first, ..]) => Err(LuksError::Requirement(shown(first))),
        None => Err(LuksError::Metadata("the requirements are unreadable")),
    }
}

fn segment(root: &Value) -> Result<(&str, Segment), LuksError> {
    let segments = object(root, "segments")?;
    let mut all = segments.iter();
    let (Some((id, segment)), None) = (all.next(), all.next()) else {
        return Err(LuksError::Segments(segments.len()));
    };
    let kind = text(segment, "type")?;
    if kind != "crypt" {
        return Err(LuksError::SegmentType(shorten(kind)));
    }
    if segment.get("integrity").is_some() {
        return Err(LuksError::Integrity);
    }
    if text(segment, "encryption")? != CIPHER {
        return Err(LuksError::Cipher(shown(member(segment, "encryption")?)));
    }
    let sector_len = match member(segment, "sector_size")?.as_u64() {
        Some(512) => DataUnit::B512,
        Some(4096) => DataUnit::B4096,
        _ => return Err(LuksError::SectorLen),
    };
    let offset = number(segment, "offset")?;
    let len = match text(segment, "size")? {
        "dynamic" => None,
        _ => Some(number(segment, "size")?),
    };
    let unit = u64::from(sector_len.bytes());
    if !offset.is_multiple_of(512) || len.is_some_and(|len| len == 0 || !len.is_multiple_of(unit)) {
        return Err(LuksError::Metadata("the data is not whole sectors"));
    }
    Ok((id, Segment { offset, len, iv_tweak: number(segment, "iv_tweak")?, sector_len }))
}

/// Refuses a header in which the area of a keyslot, whatever the keyslot is for, is not within `areas` (the
/// first byte and the one after the last), or overlaps another one.
fn check_areas(root: &Value, areas: (u64, u64)) -> Result<(), LuksError> {
    let slots = object(root, "keyslots")?;
    if slots.len() > KEYSLOTS_MAX {
        return Err(LuksError::Metadata("there are too many keyslots"));
    }
    let mut taken = Vec::with_capacity(slots.len());
    for slot in slots.values() {
        let area = member(slot, "area")?;
        let (at, len) = (number(area, "offset")?, number(area, "size")?);
        let end = at.checked_add(len).filter(|end| at >= areas.0 && at < *end && *end <= areas.1);
        taken.push((at, end.ok_or(LuksError::Metadata("a keyslot's area is not where areas are"))?));
    }
    taken.sort_unstable();
    let overlap = taken.iter().zip(taken.iter().skip(1)).any(|(before, after)| after.0 < before.1);
    if overlap { Err(LuksError::Metadata("the areas of two keyslots overlap")) } else { Ok(()) }
}

/// Reads the digests of a segment's key. Each keyslot has one at most: otherwise a key would only have to
/// match one of several.
fn digests(root: &Value, segment: &str) -> Result<Vec<KeyDigest>, LuksError> {
    let mut digests: Vec<KeyDigest> = Vec::new();
    let all = object(root, "digests")?;
    if all.len() > DIGESTS_MAX {
        return Err(LuksError::Metadata("there are too many key digests"));
    }
    for digest in all.values() {
        let segments = member(digest, "segments")?.as_array();
        if !segments.is_some_and(|ids| ids.iter().any(|id| id.as_str() == Some(segment))) {
            continue;
        }
        if text(digest, "type")? != "pbkdf2" {
            return Err(LuksError::Metadata("the digest of the key is of an unknown type"));
        }
        let hash = HashName::by_name(text(digest, "hash")?, "the digest of the key uses")?;
        let iterations = small(digest, "iterations")?;
        let (salt, stored) = (salt(digest)?, blob(digest, "digest")?);
        // A short digest matches a wrong key. cryptsetup takes the length of SHA-1 with any hash.
        if stored.len() != HashName::Sha1.len() && stored.len() != hash.len() {
            return Err(LuksError::Metadata("the digest of the key has an impossible length"));
        }
        Kdf::Pbkdf2 { hash, iterations, salt: Vec::new() }.check()?;
        let ids = member(digest, "keyslots")?.as_array();
        let ids = ids.into_iter().flatten().filter_map(|id| id.as_str()?.parse().ok());
        let keyslots: Vec<u32> = ids.take(KEYSLOTS_MAX).collect();
        if digests.iter().any(|other| other.keyslots.iter().any(|id| keyslots.contains(id))) {
            return Err(LuksError::Metadata("a keyslot has two key digests"));
        }
        digests.push(KeyDigest { keyslots, hash, iterations, salt, digest: stored });
    }
    if digests.is_empty() { Err(LuksError::Metadata("the data has no key digest")) } else { Ok(digests) }
}

/// Reads a keyslot whose area must be within `areas`, the first byte and the one behind the last.
fn keyslot(slot: &Value, areas: (u64, u64)) -> Result<Keyslot, LuksError> {
    if text(slot, "type")? != "luks2" {
        return Err(LuksError::Metadata("a keyslot is of an unknown type"));
    }
    let (af, area, kdf) = (member(slot, "af")?, member(slot, "area")?, member(slot, "kdf")?);
    let hash = HashName::by_name(text(af, "hash")?, "a keyslot is split with")?;
    if text(af, "type")? != "luks1" || member(af, "stripes")?.as_u64() != Some(to_u64(STRIPES)) {
        return Err(LuksError::Metadata("a keyslot is split in an unknown way"));
    }
    if text(area, "type")? != "raw" || text(area, "encryption")? != CIPHER {
        return Err(LuksError::Metadata("a keyslot's area is encrypted in an unknown way"));
    }
    let slot = Keyslot {
        key_len: key_len(slot)?,
        hash,
        area_at: number(area, "offset")?,
        area_len: number(area, "size")?,
        area_key_len: key_len(area)?,
        kdf: parse_kdf(kdf)?,
    };
    let end = slot.area_at.checked_add(slot.area_len);
    let inside = slot.area_at >= areas.0 && end.is_some_and(|end| end <= areas.1);
    if !inside || slot.area_len < to_u64(slot.material_len()) || !slot.area_at.is_multiple_of(4096) {
        return Err(LuksError::Metadata("a keyslot's area is not where areas are"));
    }
    Ok(slot)
}

fn parse_kdf(kdf: &Value) -> Result<Kdf, LuksError> {
    let salt = salt(kdf)?;
    let parsed = match text(kdf, "type")? {
        kind @ ("argon2id" | "argon2i") => Kdf::Argon2 {
            hybrid: kind == "argon2id",
            passes: small(kdf, "time")?,
            memory_kib: small(kdf, "memory")?,
            lanes: small(kdf, "cpus")?,
            salt,
        },
        "pbkdf2" => {
            let hash = HashName::by_name(text(kdf, "hash")?, "a keyslot's KDF uses")?;
            Kdf::Pbkdf2 { hash, iterations: small(kdf, "iterations")?, salt }
        }
        _ => return Err(LuksError::Metadata("a keyslot has an unknown KDF")),
    };
    parsed.check()?;
    Ok(parsed)
}

fn key_len(of: &Value) -> Result<usize, LuksError> {
    match member(of, "key_size")?.as_u64() {
        Some(32) => Ok(32),
        Some(64) => Ok(64),
        _ => Err(LuksError::Metadata("a key is neither of 32 nor of 64 bytes")),
    }
}

const INCOMPLETE: LuksError = LuksError::Metadata("a member is missing or of the wrong type");

fn member<'a>(of: &'a Value, name: &str) -> Result<&'a Value, LuksError> {
    of.get(name).ok_or(INCOMPLETE)
}

fn object<'a>(of: &'a Value, name: &str) -> Result<&'a Map<String, Value>, LuksError> {
    member(of, name)?.as_object().ok_or(INCOMPLETE)
}

fn text<'a>(of: &'a Value, name: &str) -> Result<&'a str, LuksError> {
    member(of, name)?.as_str().ok_or(INCOMPLETE)
}

/// Returns a 64-bit number, which is text in the metadata.
fn number(of: &Value, name: &str) -> Result<u64, LuksError> {
    text(of, name)?.parse().map_err(|_| INCOMPLETE)
}

/// Returns a number from 1 on that is a number in the metadata.
fn small(of: &Value, name: &str) -> Result<u32, LuksError> {
    let number = member(of, name)?.as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or(INCOMPLETE)
}

fn blob(of: &Value, name: &str) -> Result<Vec<u8>, LuksError> {
    let bytes = Base64::decode_vec(text(of, name)?).map_err(|_| INCOMPLETE)?;
    if bytes.len() <= BLOB_LEN_MAX { Ok(bytes) } else { Err(INCOMPLETE) }
}

/// Returns a salt, all of which have one length.
fn salt(of: &Value) -> Result<Vec<u8>, LuksError> {
    let salt = blob(of, "salt")?;
    if salt.len() == SALT_LEN {
        Ok(salt)
    } else {
        Err(LuksError::Metadata("a salt has another length than 32 bytes"))
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| "?".to_owned(), shorten)
}
