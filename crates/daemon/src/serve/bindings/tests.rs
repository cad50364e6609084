use iscsi::name::IscsiName;

use super::*;
use crate::config::Naa;

const HOST: &str = "iqn.2001-04.com.example:host";

fn saved(target: &str, isid: u16, luns: u16, lost_at: Option<u64>) -> SavedNexus {
    let [high, low] = isid.to_be_bytes();
    let port = InitiatorPort::iscsi_port(HOST, [0, 2, 0x3d, 0, high, low]).unwrap();
    let disk = DiskName { naa: Naa::Short([0x3a; 8]), block_bytes: 512, encrypted: false };
    SavedNexus {
        target: target.to_owned(),
        initiator_port: port.encode().into(),
        group: None,
        target_ports: vec![1],
        released_ports: None,
        rejoined_ports: Vec::new(),
        moved_ports: Vec::new(),
        is_sealed: false,
        luns: (0..luns).map(|number| (number, disk)).collect(),
        lost_at,
    }
}

#[test]
fn the_records_of_targets_that_are_not_served_are_bounded() {
    let count = u16::try_from(UNCLAIMED_MAX).unwrap() + 2;
    // The port of the first one had a session when its record was stored.
    let record = |at: u16| saved("iqn.2001-04.com.example:gone", at, 1, (at > 0).then(|| u64::from(at)));
    let mut store = BindingStore { unclaimed: (0..count).map(record).collect(), ..BindingStore::default() };
    store.bound_unclaimed(100_000);
    let kept: Vec<_> = store.unclaimed.iter().map(|saved| saved.lost_at).collect();
    assert_eq!(kept.len(), UNCLAIMED_MAX);
    assert!(
        kept.contains(&Some(100_000)) && !kept.contains(&Some(2)) && kept.contains(&Some(3)),
        "the oldest go first"
    );

    let record = |at: u16| saved("iqn.2001-04.com.example:gone", at, 16_384, Some(u64::from(at)));
    let mut store = BindingStore { unclaimed: (1..=6).map(record).collect(), ..BindingStore::default() };
    store.bound_unclaimed(100_000);
    assert_eq!(store.unclaimed.iter().map(|saved| saved.luns.len()).sum::<usize>(), UNCLAIMED_LUNS_MAX);
    assert_eq!(store.unclaimed.last().and_then(|saved| saved.lost_at), Some(3));
}

#[test]
fn one_record_is_forgotten() {
    let (a, b) = ("iqn.2001-04.com.example:a", "iqn.2001-04.com.example:b");
    let all = vec![saved(a, 1, 1, None), saved(a, 2, 1, None), saved(b, 1, 1, None)];
    let mut store = BindingStore { unclaimed: all, ..BindingStore::default() };
    assert_eq!(store.forget(Some(a), "iqn.2001-04.com.example:other", None), 0);
    assert_eq!(store.forget(Some(a), HOST, Some([0, 2, 0x3d, 0, 0, 2])), 1);
    assert_eq!(store.unclaimed.len(), 2);
    assert_eq!(store.forget(Some(b), HOST, None), 1);
    assert_eq!(store.forget(None, HOST, None), 1);
}

#[test]
fn a_loss_keeps_its_age() {
    assert_eq!(lost_for(Some(300), 1000), Some(Duration::from_secs(700)));
    assert_eq!(lost_for(None, 1000), None);
    assert_eq!(lost_for(Some(1001), 1000), None, "the clock was set back");
}

#[test]
fn the_records_of_a_target_go_to_the_reactor_that_serves_it_now() {
    let name = |name: &str| -> IscsiName { format!("iqn.2001-04.com.example:{name}").parse().unwrap() };
    let owners =
        |all: &[(&str, usize)]| all.iter().map(|(target, at)| (name(target), *at)).collect::<Owners>();
    let targets = ["a", "b", "c", "d"].map(|target| name(target).to_string());
    let number_of =
        |name: &str| targets.iter().zip(0..).find_map(|(known, at)| (known == name).then_some(at));
    let last = owners(&[("a", 0), ("b", 1), ("c", 1), ("gone", 1)]);
    let now = owners(&[("a", 0), ("b", 0), ("c", 2), ("d", 1)]);
    let moved = |target, from, to| MovedTarget { target: TargetNumber(target), from, to };
    assert_eq!(moved_targets(&last, &now, number_of), [moved(1, 1, 0), moved(2, 1, 2)]);
}
