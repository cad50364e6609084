//! Reports from synthetic samples.

use super::costs::throughput_costs;
use super::*;
use crate::bed::{Calibration, Echo, LinkPlan};
use crate::machine::ProcessorShares;
use crate::report::testing::{Noise, check_form};
use crate::report::{Cell as TableCell, Table};
use samples::{Offered, Sample};

const GBIT: Link = Link::Shaped(1_000_000_000);

/// Returns the plan of a run on one link: two depths and block lengths, nine rounds.
fn plan(link: Link) -> DigestsPlan {
    DigestsPlan {
        rounds: 9,
        mtu: vec![1500],
        block: vec![4 << 10, 64 << 10],
        load: vec![100],
        link: vec![link],
        ..DigestsPlan::full()
    }
}

/// Returns samples in which digests cost these percents of throughput, with noise of 1 % that is common to a
/// round and 0.2 % that is not.
fn samples(plan: &DigestsPlan, costs: &[(Digests, f64)], seed: u64) -> Measured {
    let mut noise = Noise::from_seed(seed);
    let offered: Vec<Digests> = costs.iter().map(|(digests, _)| *digests).collect();
    let mut measured = Measured { engine: "io_uring".to_owned(), ..Measured::default() };
    for cell in Cell::all(plan) {
        let mut cell_samples = CellSamples::new(cell, &offered);
        for _ in 0..plan.rounds {
            let round = noise.factor(1.0);
            for ((_, list), (_, cost)) in cell_samples.settings.iter_mut().zip(costs) {
                let throughput = 100.0 * round * noise.factor(0.2) * (1.0 - cost / 100.0);
                list.push(Sample {
                    throughput,
                    iops: throughput * 1e6 / f64::from(cell.block),
                    p50: 1e4 / throughput,
                    p99: Some(2e4 / throughput),
                    p999: None,
                    initiator_cpu: 0.5 + cost / 100.0,
                    target_cpu: (plan.link != [Link::AsItIs]).then_some(0.4 + cost / 100.0),
                    offered: (!cell.is_full_load())
                        .then_some(Offered { throughput: 60.0, started_percent: 100.0 }),
                });
            }
        }
        cell_samples.echo = Some(Echo { per_second: 3e4, latency_us: 30.0 });
        measured.cells.push(cell_samples);
    }
    measured
}

const OF_ALL: [(Digests, f64); 4] =
    [(Digests::None, 0.0), (Digests::Header, 0.0), (Digests::Data, 5.0), (Digests::Both, 6.0)];

fn report_of(plan: &DigestsPlan, measured: &Measured) -> Report {
    findings::report(&Run { plan, measured, ended: &Ended::Complete })
}

fn tables(report: &Report) -> impl Iterator<Item = &Table> {
    report.sections.iter().flat_map(|section| &section.tables)
}

#[test]
fn the_report_finds_the_costs_that_are_there() {
    // With some seeds, noise makes a comparison significant, and the report withholds its headline.
    let seed = 17;
    let plan = plan(GBIT);
    let mut measured = samples(&plan, &OF_ALL, seed);
    let link = LinkPlan { mtu: 1500, rate_bits: Some(1_000_000_000) };
    let (expected, processors) = (link.payload_rate(), Some(ProcessorShares { idle: 70.0, stolen: 0.5 }));
    let calibration = Calibration { to_target: 117e6, to_initiator: 117.5e6, expected, processors };
    measured.calibrations.push((link, calibration));
    let costs = throughput_costs(&measured);
    assert_eq!(costs.len(), 4 * 3);
    for cost in &costs {
        let (_, wanted) = OF_ALL.iter().find(|(digests, _)| *digests == cost.digests).unwrap();
        assert!((cost.change.percent + wanted).abs() < 0.5, "{cost:?}");
        assert!(cost.change.significant || *wanted < 0.1, "{cost:?}");
    }
    let report = report_of(&plan, &measured);
    check_form(&report);
    assert!(
        report.summary[0].starts_with("On a link of 1 Gbit/s: use both digests, unless the last percent"),
        "{:?}",
        report.summary
    );
    assert!(report.summary[0].contains(". Both digests cost "), "{:?}", report.summary);
    assert!(
        report.summary[2].starts_with("The highest cost of a single workload is "),
        "{:?}",
        report.summary
    );
    assert!(
        report.summary.iter().any(|text| text.contains("60 ms of processor time of the initiator and 60 ms"))
    );
    // Four settings with six quantities and a bare echo, for each of four workloads.
    assert_eq!(report.metrics.len(), 4 * (4 * 6 + 1));
    assert!(report.metrics.iter().all(|metric| [1, 9].contains(&metric.samples.len())));
    let published = tables(&report).find(|table| table.caption.contains("published")).unwrap();
    assert_eq!(published.rows.len(), 2 + 2, "two of Daugherty's, and both depths of 64 KiB");
    assert!(report.sections.iter().all(|section| section.title != "Not offered"));
}

#[test]
fn cheap_digests_are_to_be_switched_on() {
    let plan = plan(Link::Unshaped);
    let costs = [(Digests::None, 0.0), (Digests::Header, 0.1), (Digests::Data, 0.3), (Digests::Both, 0.4)];
    let report = report_of(&plan, &samples(&plan, &costs, 7));
    check_form(&report);
    assert!(
        report.summary[0]
            .contains("where the processors are the limit: use both digests. Both digests cost "),
        "{:?}",
        report.summary
    );
}

#[test]
fn a_setting_that_the_target_refuses_is_not_offered_and_never_zero() {
    let plan = plan(Link::AsItIs);
    let mut measured = samples(&plan, &[(Digests::None, 0.0), (Digests::Header, 1.0)], 8);
    let why = "it answers HeaderDigest=CRC32C and DataDigest=None";
    measured.not_offered = vec![(Digests::Data, why.to_owned()), (Digests::Both, why.to_owned())];
    let report = report_of(&plan, &measured);
    check_form(&report);
    assert!(report.summary[0].starts_with("On this path: use header digests. "), "{:?}", report.summary);
    let throughput = tables(&report).next().unwrap();
    for row in &throughput.rows {
        assert_eq!(row[5..7], [(); 2].map(|()| TableCell::Absent("not offered".to_owned())));
    }
    let section = report.sections.iter().find(|section| section.title == "Not offered").unwrap();
    assert_eq!(section.tables[0].rows.len(), 2);
    assert!(!report.plan.contains("link") && DigestsPlan::parse(&report.plan).is_ok());
}

#[test]
fn a_run_without_samples_has_a_report() {
    let plan = plan(GBIT);
    let mut measured = samples(&plan, &OF_ALL, 9);
    for (_, list) in measured.cells.iter_mut().flat_map(|cell| &mut cell.settings) {
        list.clear();
    }
    measured.cells.iter_mut().for_each(|cell| cell.echo = None);
    let report = report_of(&plan, &measured);
    check_form(&report);
    assert_eq!(report.summary[0], "The run ended before anything could be compared.");
    assert_eq!(report.summary.len(), 2, "{:?}", report.summary);
    assert!(report.metrics.is_empty() && report.sections[0].plots.is_empty());
}

#[test]
fn a_plan_without_a_base_compares_nothing() {
    let plan = plan(GBIT);
    let report = report_of(&plan, &samples(&plan, &OF_ALL[2..], 11));
    check_form(&report);
    assert!(report.summary[0].ends_with("measures no sessions without digests."), "{:?}", report.summary);
}

#[test]
fn a_run_that_ended_early_counts_the_rounds_that_all_workloads_have() {
    let plan = plan(GBIT);
    let mut measured = samples(&plan, &OF_ALL, 12);
    for (at, cell) in measured.cells.iter_mut().enumerate() {
        // Three rounds of the first two workloads, two of the third, none of the last.
        let rounds = [3, 3, 2, 0][at];
        cell.settings.iter_mut().for_each(|(_, list)| list.truncate(rounds));
    }
    let ended = Ended::Early("it was stopped in round 3 of 9".to_owned());
    let report = findings::report(&Run { plan: &plan, measured: &measured, ended: &ended });
    check_form(&report);
    assert!(report.summary[0].contains("the mean of 3 workloads"), "{:?}", report.summary);
    assert_eq!(report.ended, ended);
}

#[test]
fn one_round_has_no_confidence_interval() {
    let plan = DigestsPlan { rounds: 1, ..plan(GBIT) };
    let report = report_of(&plan, &samples(&plan, &OF_ALL, 10));
    check_form(&report);
    assert!(report.summary[0].contains("one round, so no confidence interval"), "{:?}", report.summary);
    assert!(report.summary[0].contains("this run gives no advice"), "{:?}", report.summary);
}

#[test]
fn reads_replace_writes_on_a_lun_that_must_not_be_written() {
    let url = Box::new(Url::parse("iscsi://192.0.2.7/iqn.2026-01.com.example:disk/0").unwrap());
    let subject = |write| Subject::Url { url: url.clone(), write, force: false };
    let (plan, caveats) = adapted(&DigestsPlan::full(), &subject(false));
    assert_eq!((plan.mix, plan.link, caveats.len()), (vec![Mix(100)], vec![Link::AsItIs], 1));
    let (plan, caveats) = adapted(&DigestsPlan::full(), &subject(true));
    assert_eq!((plan.mix.as_slice(), caveats.len()), (&[Mix(50)][..], 0));
    assert_eq!(Cell::all(&plan).len(), 3 * 3, "one path has one MTU; two depths, and one of them at 60 %");
}

#[test]
fn lower_loads_show_latency_and_processor_time() {
    let plan = DigestsPlan { load: vec![60, 100], ..plan(GBIT) };
    let measured = samples(&plan, &OF_ALL, 13);
    let names: Vec<String> = measured.cells.iter().map(|samples| samples.cell.workload()).collect();
    let at = names.iter().position(|name| name == "64K, 50 % reads, depth 32, load 60 %").unwrap();
    assert_eq!(names[at - 1], "64K, 50 % reads, depth 32", "{names:?}");
    assert_eq!(names.len(), 4 + 2, "the greatest depth alone: {names:?}");
    let none = measured.cells[at - 1].values(Digests::None, |sample| Some(sample.iops));
    let rate = measured.offered_rate(&measured.cells[at].cell, 4).unwrap();
    assert!((rate / none[4] - 0.6).abs() < 1e-9, "{rate} of {none:?}");
    assert_eq!(measured.offered_rate(&measured.cells[at].cell, 9), None);

    let report = report_of(&plan, &measured);
    check_form(&report);
    let sentence =
        report.summary.iter().find(|text| text.contains("60 % of what the link of 1 Gbit/s can do"));
    let sentence = sentence.unwrap();
    assert!(
        sentence.contains("cost it no throughput. Both digests change the median latency by +6"),
        "{sentence}"
    );
    assert!(sentence.contains("the means of 2 workloads"), "{sentence}");
    let section = report.sections.iter().find(|section| section.title == "Lower loads").unwrap();
    assert_eq!(section.tables.len(), 2, "latency and processor time of one path");
    assert!(section.tables.iter().all(|table| table.rows.len() == 2));
    // The other sections have loads of 100 % only.
    assert!(
        report.sections[..3].iter().flat_map(|section| &section.tables).all(|table| table.rows.len() == 4)
    );
    assert!(findings::caveats(&bed(), &measured).iter().all(|text| !text.contains("offered")));
}

fn bed() -> Subject {
    Subject::Bed { program: PathBuf::new() }
}

#[test]
fn a_load_that_was_not_reached_is_named() {
    let plan = DigestsPlan { load: vec![100, 60], ..plan(GBIT) };
    let mut measured = samples(&plan, &OF_ALL, 14);
    let slow = measured.cells.iter_mut().rfind(|samples| !samples.cell.is_full_load()).unwrap();
    let (_, list) = slow.settings.iter_mut().find(|(digests, _)| *digests == Digests::Data).unwrap();
    for sample in list {
        sample.offered = Some(Offered { throughput: 60.0, started_percent: 90.0 });
    }
    let report = report_of(&plan, &measured);
    assert!(
        report.summary.iter().any(|text| text.contains("not all of the offered load was reached")),
        "{:?}",
        report.summary
    );
    let caveats = findings::caveats(&bed(), &measured);
    let caveat = caveats.iter().find(|text| text.contains("was not reached in 1 case")).unwrap();
    assert!(caveat.contains("digests: data: only 90 % of the commands"), "{caveat}");
}

#[test]
fn a_base_that_is_not_steady_gives_no_headline() {
    let plan = plan(GBIT);
    let mut measured = samples(&plan, &OF_ALL, 15);
    measured.cells[0].settings.iter_mut().for_each(|(_, list)| list[4].throughput /= 1.9);
    let report = report_of(&plan, &measured);
    check_form(&report);
    let lead = &report.summary[0];
    assert!(lead.starts_with("This run gives no headline for a link of 1 Gbit/s, "), "{lead}");
    assert!(!report.summary.iter().any(|text| text.contains("use both digests")), "{:?}", report.summary);
}

#[test]
fn a_link_that_is_not_steady_names_no_highest_cost() {
    let plan = DigestsPlan { link: vec![GBIT, Link::Unshaped], ..plan(GBIT) };
    let mut measured = samples(&plan, &OF_ALL, 16);
    // The highest cost is on the link whose base varies, with another workload.
    let unshaped = measured.cells.iter_mut().filter(|samples| samples.cell.link == Link::Unshaped);
    for (at, samples) in unshaped.enumerate() {
        for (digests, list) in &mut samples.settings {
            if at == 0 {
                list[4].throughput /= 1.9;
            } else if *digests == Digests::Both {
                list.iter_mut().for_each(|sample| sample.throughput *= 0.5);
            }
        }
    }
    let worst =
        throughput_costs(&measured).into_iter().min_by(|a, b| a.change.percent.total_cmp(&b.change.percent));
    assert!(worst.is_some_and(|worst| worst.cell.link == Link::Unshaped && worst.change.significant));
    let report = report_of(&plan, &measured);
    check_form(&report);
    let highest = report.summary.iter().find(|text| text.starts_with("The highest cost")).unwrap();
    let start = "The highest cost of a single workload on the links that were steady is ";
    assert!(highest.starts_with(start) && highest.contains("1 Gbit/s, MTU 1500"), "{highest}");
    // None is left of a run in which no link was steady.
    for samples in &mut measured.cells {
        samples.settings.iter_mut().for_each(|(_, list)| list[2].throughput /= 1.9);
    }
    let summary = report_of(&plan, &measured).summary;
    let has = |text: &str| summary.iter().any(|sentence| sentence.contains(text));
    assert!(!has("single workload") && !has("processor time") && !has("link is the limit"), "{summary:?}");
}

#[test]
fn latencies_that_are_not_steady_give_no_headline_of_lower_loads() {
    let plan = DigestsPlan { load: vec![60, 100], ..plan(GBIT) };
    let mut measured = samples(&plan, &OF_ALL, 17);
    let lower = measured.cells.iter_mut().find(|samples| !samples.cell.is_full_load()).unwrap();
    lower.settings.iter_mut().for_each(|(_, list)| list[4].p50 *= 1.9);
    let summary = report_of(&plan, &measured).summary;
    let has = |text: &str| summary.iter().any(|sentence| sentence.contains(text));
    assert!(has("This run gives no headline for lower loads on a link of 1 Gbit/s, "), "{summary:?}");
    assert!(!has("If an application uses only") && has("On a link of 1 Gbit/s: use both"), "{summary:?}");
}
