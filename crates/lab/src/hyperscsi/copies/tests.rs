use std::fs;
use std::sync::atomic::AtomicBool;

use super::disks::{copy_files, first_difference};
use super::*;
use crate::hyperscsi::findings::copies::comparisons;
use crate::statistics::estimate;
use crate::target_process::PrivateDirectory;

fn sample(throughput: f64) -> CopySample {
    CopySample { throughput, processor: 1.0, packets: Some(2.0), system_calls: None }
}

/// Returns copies in which the local disk reaches 200 MB/s and the link 121.9 MB/s.
pub(in crate::hyperscsi) fn copies(plan: &HyperScsiPlan) -> Copies {
    let mut copies = Copies::new(plan);
    for (carrier, lists) in copies.cells.iter_mut().flat_map(|samples| &mut samples.carriers) {
        let throughput = match carrier {
            Carrier::Local => 200.0,
            Carrier::HyperScsi => 110.0,
            Carrier::Iscsi => 100.0,
            Carrier::Nfs => continue,
        };
        lists.iter_mut().for_each(|list| list.extend([sample(throughput); 3]));
    }
    copies
}

#[test]
fn a_share_is_that_of_the_slower_of_the_disk_and_the_link() {
    let plan = HyperScsiPlan { mtu: vec![1500], ..HyperScsiPlan::quick() };
    let copies = copies(&plan);
    let [samples] = copies.cells.as_slice() else { panic!("one set of files on one path") };
    let link = 125.0 * 1500.0 / 1538.0;
    assert!((samples.cell.link_bound().unwrap() - link).abs() < 1e-9);
    assert_eq!(samples.of_local(Carrier::HyperScsi, Direction::To), [55.0; 3]);
    for share in samples.of_slower(Carrier::Iscsi, Direction::From) {
        assert!((share - 100.0 * 100.0 / link).abs() < 1e-9, "{share}");
    }
    assert!(samples.of_local(Carrier::Nfs, Direction::To).is_empty());
    let unshaped = CopyCell { link: Link::Unshaped, ..samples.cell };
    let samples = CopySamples { cell: unshaped, ..samples.clone() };
    assert_eq!(samples.of_slower(Carrier::HyperScsi, Direction::To), [55.0; 3]);
}

/// Rounds that vary by a quarter as a whole: medians and their intervals overlap, and the ratios do not vary.
#[test]
fn paired_rounds_show_what_overlapping_intervals_hide() {
    let plan = HyperScsiPlan { mtu: vec![1500], ..HyperScsiPlan::quick() };
    let mut copies = Copies::new(&plan);
    for (carrier, lists) in copies.cells.iter_mut().flat_map(|samples| &mut samples.carriers) {
        for list in lists {
            for (round, noise) in [(100.0, 1.0), (80.0, 1.002), (90.0, 0.999), (110.0, 1.001), (85.0, 0.998)]
            {
                list.push(sample(match carrier {
                    Carrier::HyperScsi => round * 1.013,
                    Carrier::Iscsi => round * noise,
                    Carrier::Local => 200.0,
                    Carrier::Nfs => continue,
                }));
            }
        }
    }
    let found = comparisons(&copies);
    assert_eq!(found.len(), 2, "both directions, and nothing of NFS");
    for one in &found {
        assert!(one.change.significant && (one.change.percent - 1.3).abs() < 0.2, "{one:?}");
    }
    let values = |carrier| copies.cells[0].values(carrier, Direction::To, |sample| Some(sample.throughput));
    let [ours, theirs] = [Carrier::HyperScsi, Carrier::Iscsi].map(|carrier| estimate(&values(carrier)));
    assert!(ours.low < theirs.high, "the intervals of the medians overlap: {ours:?}, {theirs:?}");
}

#[test]
fn metrics_leave_out_what_was_not_counted() {
    let plan = HyperScsiPlan::quick();
    let metrics = copies(&plan).metrics();
    assert_eq!(metrics.len(), 3 * 2 * 3, "three carriers, two directions, three quantities");
    assert!(metrics.iter().all(|metric| metric.samples.len() == 3 && !metric.quantity.contains("calls")));
    assert!(!Copies::new(&plan).has_samples() && Copies::new(&plan).metrics().is_empty());
}

#[test]
fn copied_files_are_the_same_and_a_changed_byte_is_found() {
    let parent = PrivateDirectory::create().unwrap();
    let [from, to] = ["from", "to"].map(|name| parent.path().join(name));
    let names: Vec<String> = ["a", "b", "empty"].map(str::to_owned).into();
    fs::create_dir(&from).unwrap();
    fs::create_dir(&to).unwrap();
    let data: Vec<u8> = (0..300_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    for (name, len) in names.iter().zip([300_000, 5, 0]) {
        fs::write(from.join(name), &data[..len]).unwrap();
    }
    copy_files(&names, &from, &to, &AtomicBool::new(false)).unwrap();
    assert_eq!(first_difference(&names, &from, &to).unwrap(), None);
    let mut changed = data;
    changed[299_999] ^= 1;
    fs::write(to.join("a"), &changed).unwrap();
    assert_eq!(first_difference(&names, &from, &to).unwrap(), Some("a".to_owned()));
    fs::write(to.join("a"), &changed[..299_999]).unwrap();
    assert_eq!(first_difference(&names, &from, &to).unwrap(), Some("a".to_owned()));
    let stopped = copy_files(&names, &from, &to, &AtomicBool::new(true)).unwrap_err();
    assert_eq!(stopped.kind(), std::io::ErrorKind::Interrupted);
}
