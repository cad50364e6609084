//! Documents that no unit wrote.

use serde_json::Value;

use super::fixture::*;
use super::histories::after_history;

/// Restores a document in a new unit, and uses the unit if that succeeds.
fn try_document(document: &Value) {
    let Ok(state) = serde_json::from_value::<UnitState>(document.clone()) else { return };
    let mut unit = next_unit(rich(), Box::new(Shared::new()));
    if unit.restore(Instant::ORIGIN, &state, nexus_of).is_err() {
        return;
    }
    let mut rig = rig_of(unit);
    transcript(&mut rig, [A2, B2]);
    assert!(rig.unit.export(Instant::ORIGIN, |_| None).is_ok());
}

/// Changes one random place of a document.
fn mutate(value: &mut Value, rng: &mut Rng) {
    match value {
        Value::Object(fields) if !fields.is_empty() && rng.chance(9, 10) => {
            let at = usize::try_from(rng.below(u64::try_from(fields.len()).unwrap())).unwrap();
            let inner = fields.iter_mut().nth(at).unwrap().1;
            mutate(inner, rng);
        }
        Value::Array(list) if !list.is_empty() && rng.chance(9, 10) => {
            let at = usize::try_from(rng.below(u64::try_from(list.len()).unwrap())).unwrap();
            match rng.below(4) {
                0 => list.extend(list.get(at).cloned()),
                1 => drop(list.remove(at)),
                _ => mutate(&mut list[at], rng),
            }
        }
        Value::Number(_) => {
            *value = match rng.below(4) {
                0 => 0_u64.into(),
                1 => u64::MAX.into(),
                2 => rng.below(256).into(),
                _ => rng.next_u64().into(),
            };
        }
        Value::Bool(flag) => *flag = !*flag,
        Value::String(text) => {
            let half = text.len() / 2;
            if rng.chance(1, 2) { text.truncate(half & !1) } else { *text = text.to_uppercase() + "00" }
        }
        _ => *value = Value::Null,
    }
}

#[test]
fn a_damaged_document_is_refused_or_taken_and_never_ends_the_process() {
    for seed in 0..20 {
        let mut rng = Rng::from_seed(seed);
        let (rig, _) = after_history(&mut rng, rich());
        let whole = serde_json::to_value(export(&rig)).unwrap();
        for _ in 0..20 {
            let mut document = whole.clone();
            for _ in 0..=rng.below(3) {
                mutate(&mut document, &mut rng);
            }
            try_document(&document);
        }
    }
}

/// Returns a document of a unit with registrations, a reservation and attentions.
fn document() -> Value {
    let mut rig = served(config(), Box::new(Shared::new()));
    pr_out(&mut rig, A, (0, 0), (0, 1), false).good();
    pr_out(&mut rig, A, (1, 5), (1, 0), false).good();
    serde_json::to_value(export(&rig)).unwrap()
}

fn refusal(document: &Value) -> RestoreError {
    let state = serde_json::from_value::<UnitState>(document.clone()).unwrap();
    let mut unit = next_unit(config(), Box::new(Shared::new()));
    let untouched = serde_json::to_value(unit.export(Instant::ORIGIN, |id| Some(id.0)).unwrap()).unwrap();
    let why = unit.restore(Instant::ORIGIN, &state, nexus_of).unwrap_err();
    let after = serde_json::to_value(unit.export(Instant::ORIGIN, |id| Some(id.0)).unwrap()).unwrap();
    assert_eq!(untouched, after, "a refused document changes nothing");
    why
}

#[test]
fn contradictions_are_refused() {
    let whole = document();
    let with = |path: &str, value: Value| {
        let mut document = whole.clone();
        *document.pointer_mut(path).unwrap() = value;
        refusal(&document)
    };
    let entry = |path: &str| whole.pointer(path).unwrap().clone();
    let reservations = "/server/spc/reservations";
    let registrants = alloc::format!("{reservations}/registrants");
    assert_eq!(with(&registrants, Value::Array(Vec::new())), RestoreError::ReservationWithoutRegistration);
    let one = entry(&alloc::format!("{registrants}/0"));
    assert_eq!(with(&registrants, alloc::vec![one.clone(), one].into()), RestoreError::Registration);
    assert_eq!(with(&alloc::format!("{registrants}/0/key"), 0.into()), RestoreError::Registration);
    assert_eq!(
        with(&alloc::format!("{reservations}/reservation/kind"), 4.into()),
        RestoreError::ReservationType
    );
    assert_eq!(with("/server/nexuses/present/1/nexus", 0.into()), RestoreError::NexusTwice);
    assert_eq!(with("/server/spc/removal/prevented_by", alloc::vec![0, 0].into()), RestoreError::NexusTwice);
    assert_eq!(with("/server/reported/device_type", 5.into()), RestoreError::DeviceType);
    assert_eq!(with("/server/reported/block_len", 4096.into()), RestoreError::BlockLength);
    assert_eq!(with("/server/spc/timestamp/1", 3.into()), RestoreError::Timestamp);
    assert_eq!(with("/server/spc/data_buffers/data", "00".into()), RestoreError::DataBuffer);
    assert_eq!(with("/server/settings/queue_error_only_own", true.into()), RestoreError::Settings);
    let port = "/server/nexuses/present/0/name/initiator_port";
    assert_eq!(with(port, "00".into()), RestoreError::InitiatorPort);
    let sense = serde_json::json!({"key": 6, "asc": 0x2901, "information": null, "command_specific": 0,
        "specific": null, "deferred": false, "stream_bits": 0, "forwarded": null});
    let many = alloc::vec![sense; 25];
    assert_eq!(
        with("/server/nexuses/present/0/attentions", many.into()),
        RestoreError::TooMany("unit attentions")
    );
}

#[test]
fn a_field_of_a_newer_release_is_refused() {
    let mut document = document();
    document["server"]["spc"]["new"] = 1.into();
    let why = serde_json::from_value::<UnitState>(document).unwrap_err();
    assert!(alloc::format!("{why}").contains("unknown field"), "{why}");
}
