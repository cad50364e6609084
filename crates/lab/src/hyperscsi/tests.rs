//! Reports from synthetic samples.

use super::findings::{comparisons, report};
use super::samples::{Disturbance, Protocol, Sample};
use super::*;
use crate::report::Cell as TableCell;
use crate::report::testing::{Noise, check_form};

/// Returns samples in which HyperSCSI moves so many percent more than iSCSI, and digests cost 5 %. A round
/// has noise of 1 % that is common to all, and 0.2 % that is not. Loss of x % costs iSCSI 4x % and HyperSCSI
/// x %.
fn samples(plan: &HyperScsiPlan, gain: f64, seed: u64) -> Measured {
    let mut noise = Noise::from_seed(seed);
    let copies = copies::tests::copies(plan);
    let mut measured = Measured { engine: "io_uring".to_owned(), copies, ..Measured::default() };
    for cell in Cell::all(plan) {
        let mut cell_samples = CellSamples::new(cell, plan);
        for _ in 0..plan.rounds {
            let round = noise.factor(1.0);
            for (protocol, list) in &mut cell_samples.contestants {
                let (percent, per_loss) = match protocol {
                    Protocol::HyperScsi => (gain, 1.0),
                    Protocol::Iscsi => (0.0, 4.0),
                    Protocol::IscsiDigests => (-5.0, 4.0),
                    Protocol::Encrypted => (gain - 20.0, 1.0),
                    Protocol::Aoe => (-50.0, 1.0),
                };
                let loss = if let Disturbance::Loss(loss) = cell.disturbance { loss } else { 0.0 };
                let is_shared = matches!(cell.disturbance, Disturbance::Traffic(_));
                list.push(Sample {
                    throughput: 10.0
                        * round
                        * noise.factor(0.2)
                        * (1.0 + percent / 100.0)
                        * (1.0 - loss * per_loss / 100.0),
                    p50: Some(100.0),
                    p99: Some(200.0),
                    processor: noise.factor(0.2),
                    switches: 1000.0,
                    packets: 700_000.0,
                    traffic: is_shared.then_some(50.0),
                });
            }
        }
        measured.cells.push(cell_samples);
    }
    measured
}

#[test]
fn a_gain_of_three_percent_is_found_and_none_of_zero() {
    // With some seeds, noise makes a comparison significant, and the report withholds its headline.
    let seed = 17;
    let plan = HyperScsiPlan { rounds: 9, ..HyperScsiPlan::quick() };
    for (gain, found) in [(3.0, true), (-3.0, true), (0.0, false)] {
        let measured = samples(&plan, gain, seed);
        let all = comparisons(&measured);
        let plain: Vec<_> = all.iter().filter(|one| one.base == Protocol::Iscsi).collect();
        assert_eq!(plain.len(), 3 * 3);
        for one in plain {
            assert!((one.change.percent - gain).abs() < 0.5, "{one:?}");
            assert!(one.change.significant || !found, "{one:?}");
        }
        let report = report(&plan, &measured, &Ended::Complete);
        check_form(&report);
        let word = if gain < 0.0 { "less" } else { "more" };
        if found {
            let start = format!("On a link of 100 Mbit/s HyperSCSI moves {:.0}.", gain.abs());
            let near = format!("On a link of 100 Mbit/s HyperSCSI moves {:.0}.", gain.abs() - 1.0);
            assert!(
                report.summary[0].starts_with(&start) || report.summary[0].starts_with(&near),
                "{:?}",
                report.summary
            );
            assert!(report.summary[0].contains(word), "{:?}", report.summary);
        }
    }
}

#[test]
fn the_report_tells_loss_other_traffic_and_what_is_absent() {
    let plan = HyperScsiPlan::quick();
    let report = report(&plan, &samples(&plan, 3.0, 5), &Ended::Complete);
    check_form(&report);
    let lost = report.summary.iter().find(|text| text.starts_with("If 10 % of the frames")).unwrap();
    assert!(
        lost.contains("HyperSCSI keeps 9") && lost.contains("and iSCSI 6") || lost.contains("iSCSI 5"),
        "{lost}"
    );
    assert!(report.summary.iter().any(|text| text.starts_with("Beside other traffic of 90 %")));
    let absent = report.sections.iter().find(|section| section.title == "Not measured").unwrap();
    assert!(absent.tables[0].rows.iter().all(|row| matches!(row[1], TableCell::Absent(_))));
    let published = report.sections.iter().find(|section| section.title == "Published figures").unwrap();
    let ours = 1 + 2 * 2;
    assert_eq!(
        published.tables[0].rows.len(),
        5 + ours,
        "the quick plan has no jumbo frames, and one set of files"
    );
    let copied = report.summary.iter().find(|text| text.starts_with("Copies of 2 files of 16M")).unwrap();
    assert!(copied.contains("reach 90 % over HyperSCSI and 82 % over iSCSI"), "{copied}");
    let section = report.sections.iter().find(|section| section.title == "Copies of files").unwrap();
    assert_eq!((section.tables.len(), section.plots.len()), (3, 1));
    assert!(section.tables[2].caption.starts_with("Changes of the throughput of copies"), "by the rounds");
    let nfs = &section.tables[0].rows[3];
    assert!(nfs[1..].iter().all(|cell| matches!(cell, TableCell::Absent(_))), "NFS has no samples, not zero");
    assert_eq!(HyperScsiPlan::parse(&report.plan).unwrap(), plan);
}

#[test]
fn a_run_without_samples_has_a_report() {
    let plan = HyperScsiPlan::quick();
    let mut measured = samples(&plan, 3.0, 6);
    for (_, list) in measured.cells.iter_mut().flat_map(|cell| &mut cell.contestants) {
        list.clear();
    }
    measured.copies = Copies::new(&plan);
    let report = report(&plan, &measured, &Ended::Early("it was stopped".to_owned()));
    check_form(&report);
    assert_eq!(report.summary, ["The run ended before anything could be compared."]);
    assert!(report.metrics.is_empty());
}

#[test]
fn a_frame_leaves_a_share_of_the_rate() {
    let plan = HyperScsiPlan { mtu: vec![1500], ..HyperScsiPlan::full() };
    let bound = Cell::all(&plan)[0].frame_bound(Protocol::HyperScsi).unwrap();
    assert!((bound - 12.5 * 1468.0 / 1538.0).abs() < 1e-9);
    let encrypted = Cell::all(&plan)[0].frame_bound(Protocol::Encrypted).unwrap();
    assert!((encrypted - 12.5 * 1456.0 / 1538.0).abs() < 1e-9);
}

#[test]
fn encryption_and_ata_over_ethernet_stand_beside_hyperscsi() {
    let plan = HyperScsiPlan { rounds: 9, encrypt: true, aoe: true, ..HyperScsiPlan::quick() };
    let mut measured = samples(&plan, 0.0, 7);
    let whole = report(&plan, &measured, &Ended::Complete);
    check_form(&whole);
    let told = |report: &Report, start: &str| report.summary.iter().any(|text| text.starts_with(start));
    assert!(told(&whole, "HyperSCSI, encrypted moves "), "{:?}", whole.summary);
    assert!(told(&whole, "ATA over Ethernet moves "), "{:?}", whole.summary);
    let rows = |report: &Report, title: &str| {
        let section = report.sections.iter().find(|section| section.title == title);
        section.map(|section| section.tables.iter().map(|table| table.rows.len()).sum::<usize>())
    };
    assert_eq!(rows(&whole, "HyperSCSI, encrypted"), Some(3 * 3));
    assert_eq!(rows(&whole, "ATA over Ethernet"), Some(3 * 2), "a stripe has no part in it");
    let processor = whole.metrics.iter().filter(|metric| metric.unit == "s/GB");
    assert!(
        processor.flat_map(|metric| &metric.circumstances).all(|(_, value)| !value.contains("encrypted"))
    );
    // A target that fails in the middle: what was measured stays, and the reason is told.
    for (protocol, list) in measured.cells.iter_mut().flat_map(|cell| &mut cell.contestants) {
        if *protocol == Protocol::Aoe {
            list.clear();
        }
    }
    measured.aoe_absent = Some("it failed with something".to_owned());
    let partial = report(&plan, &measured, &Ended::Complete);
    check_form(&partial);
    assert_eq!(rows(&partial, "ATA over Ethernet"), None);
    let absent = partial.sections.iter().find(|section| section.title == "Not measured").unwrap();
    let reason = TableCell::Absent("it failed with something".to_owned());
    assert!(absent.tables[0].rows.iter().any(|row| row[1] == reason));
    assert!(measured.cells.iter().all(|cell| cell.rounds() == 9));
}

#[test]
fn a_base_that_is_not_steady_gives_no_headline() {
    let plan = HyperScsiPlan::quick();
    let mut measured = samples(&plan, 3.0, 8);
    measured.cells[0].contestants.iter_mut().for_each(|(_, list)| list[1].throughput /= 2.0);
    let report = report(&plan, &measured, &Ended::Complete);
    check_form(&report);
    let link = measured.cells[0].cell.link.name();
    let lead = &report.summary[0];
    assert!(lead.starts_with(&format!("This run gives no headline for a link of {link}, ")), "{lead}");
    let answer = format!("On a link of {link} HyperSCSI moves");
    assert!(!report.summary.iter().any(|text| text.starts_with(&answer)), "{:?}", report.summary);
    assert!(!report.summary.iter().any(|text| text.starts_with("Processor time of both ends")), "all links");
}

#[test]
fn what_is_not_steady_has_no_part_in_counts_and_shares() {
    let plan = HyperScsiPlan { rounds: 9, ..HyperScsiPlan::quick() };
    let mut measured = samples(&plan, 3.0, 9);
    let has = |measured: &Measured, text: &str| {
        report(&plan, measured, &Ended::Complete).summary.iter().any(|sentence| sentence.contains(text))
    };
    assert!(
        has(&measured, "in 9 of 9 workloads, and slower in 0") && has(&measured, "If 10 % of the frames")
    );
    measured.cells[0].contestants.iter_mut().for_each(|(_, list)| list[1].throughput /= 2.0);
    assert!(has(&measured, "in 6 of 6 workloads on the links that were steady, and slower in 0"));
    let undisturbed = |samples: &&mut CellSamples| samples.cell.disturbance == Disturbance::Loss(0.0);
    let base = measured.cells.iter_mut().find(undisturbed).unwrap();
    base.contestants.iter_mut().for_each(|(_, list)| list[1].throughput /= 2.0);
    assert!(has(&measured, "This run gives no headline for lost frames, "));
    assert!(!has(&measured, "If 10 % of the frames") && has(&measured, "Beside other traffic of 90 %"));
}

/// The rule is that of all headlines: iSCSI varies; or a copy over the network is faster than what it passes.
#[test]
fn copies_that_are_not_steady_give_no_headline() {
    let plan = HyperScsiPlan::quick();
    let whole = samples(&plan, 3.0, 10);
    let told = |measured: &Measured| report(&plan, measured, &Ended::Complete).summary;
    let has = |summary: &[String], text: &str| summary.iter().any(|sentence| sentence.contains(text));
    let steady = told(&whole);
    assert!(
        has(&steady, "The throughput of copies over HyperSCSI") && has(&steady, "Copies of 2 files of 16M")
    );
    for (carrier, rates, why) in [
        (Carrier::Iscsi, [100.0, 60.0, 100.0], "iSCSI (2 files of 16M"),
        (Carrier::HyperScsi, [140.0, 141.0, 139.0], "HyperSCSI than the disk and the link (2 files of 16M"),
    ] {
        let mut measured = whole.clone();
        for (one, lists) in measured.copies.cells.iter_mut().flat_map(|samples| &mut samples.carriers) {
            if *one == carrier {
                lists[0].iter_mut().zip(rates).for_each(|(sample, rate)| sample.throughput = rate);
            }
        }
        let found = told(&measured);
        assert!(
            has(&found, "This run gives no headline for copies of 2 files of 16M (") && has(&found, why),
            "{found:?}"
        );
        assert!(!has(&found, "The throughput of copies") && !has(&found, "Copies of 2 files"), "{found:?}");
    }
}
