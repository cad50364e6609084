//! Reports from synthetic samples.

use super::findings::{comparisons, report};
use super::samples::{AbsentRow, Sample};
use super::*;
use crate::plan::Link;
use crate::report::Cell as TableCell;
use crate::report::testing::{Noise, check_form};

/// Returns samples in which each protection has so many percent of the throughput of plain. A round has noise
/// of 1 % that is common to all, and 0.2 % that is not.
fn samples(
    plan: &SecurityPlan,
    absent: &[AbsentRow],
    share: impl Fn(Protection) -> f64,
    seed: u64,
) -> Measured {
    let mut noise = Noise::from_seed(seed);
    let mut measured = Measured { absent: absent.to_vec(), ..Measured::default() };
    for cell in Cell::all(plan) {
        let mut cell_samples = CellSamples::new(cell, plan, absent);
        for _ in 0..plan.rounds {
            let round = noise.factor(1.0);
            for (protection, list) in &mut cell_samples.settings {
                let share = share(*protection) / 100.0;
                list.push(Sample {
                    throughput: 1000.0 * share * round * noise.factor(0.2),
                    p50: Some(20.0 / share),
                    p99: Some(40.0 / share),
                    user: 0.5 / share * noise.factor(0.2),
                    system: 0.5 / share * noise.factor(0.2),
                    part_width: 0.0,
                });
            }
        }
        measured.cells.push(cell_samples);
    }
    measured
}

fn share(protection: Protection) -> f64 {
    match protection {
        Protection::Plain => 100.0,
        Protection::Tls => 40.0,
        Protection::AeadEncrypt => 60.0,
        Protection::AeadIntegrity => 70.0,
        Protection::AeadProxy => 30.0,
        Protection::Ipsec => 10.0,
        Protection::Ipsec3Des => 1.0,
    }
}

fn no_ipsec() -> Vec<AbsentRow> {
    let row = |protection| AbsentRow { protection, why: "strongSwan is not installed".to_owned() };
    vec![row(Protection::Ipsec), row(Protection::Ipsec3Des)]
}

#[test]
fn changes_are_found_against_plain_tls_and_ipsec() {
    // With some seeds, noise makes a comparison significant, and the report withholds its headline.
    let seed = 17;
    let plan = SecurityPlan { rounds: 7, ..SecurityPlan::quick() };
    let all = comparisons(&samples(&plan, &[], share, seed));
    assert_eq!(all.len(), Cell::all(&plan).len() * 3 * 5);
    for one in &all {
        let expected = 100.0 * (share(one.protection) / share(one.base) - 1.0);
        assert!((one.change.percent / expected - 1.0).abs() < 0.02, "{one:?}");
        assert!(one.change.significant, "{one:?}");
    }
    let equal = comparisons(&samples(&plan, &[], |_| 100.0, seed));
    // Holm's correction lets one run in twenty be wrong; most changes must be seen as none in any case.
    assert!(equal.iter().filter(|one| one.change.significant).count() < equal.len() / 20);
}

#[test]
fn the_answer_names_the_fastest_protection_that_encrypts() {
    let plan = SecurityPlan { rounds: 7, ..SecurityPlan::full() };
    let all = report(&plan, &samples(&plan, &[], share, 1), &Ended::Complete);
    check_form(&all);
    assert!(
        all.summary[0].starts_with("To encrypt iSCSI here, use AEAD digest, encrypted: "),
        "{:?}",
        all.summary
    );
    assert!(all.summary[0].contains("moves 40 % less than plain"), "{:?}", all.summary);
    assert!(
        all.summary.iter().any(|text| text.contains("TLS 1.3 -60.0 %")
            || text.contains("TLS 1.3 -59.9 %")
            || text.contains("TLS 1.3 -60.1 %")),
        "{:?}",
        all.summary
    );
    assert_eq!(SecurityPlan::parse(&all.plan).unwrap(), plan);
    let published = all.sections.iter().find(|section| section.title == "Published figures").unwrap();
    // On two links: the longest socket answers and reads, at two depths, with two protections above IPsec.
    assert_eq!(published.tables[0].rows.len(), 3 + 2 * 2 * 2 * 2);
}

#[test]
fn a_wide_interval_is_no_answer() {
    let plan = SecurityPlan { rounds: 3, ..SecurityPlan::quick() };
    let mut measured = samples(&plan, &[], |_| 100.0, 5);
    for (protection, list) in measured.cells.iter_mut().flat_map(|cell| &mut cell.settings) {
        let factors = if *protection == Protection::Plain { [1.0; 3] } else { [1.0, 2.0, 0.5] };
        list.iter_mut().zip(factors).for_each(|(sample, factor)| sample.throughput *= factor);
    }
    let report = report(&plan, &measured, &Ended::Complete);
    assert!(report.summary[0].contains("too uncertain (95 % CI -"), "{:?}", report.summary);
}

#[test]
fn what_is_absent_is_named_with_its_reason_and_never_zero() {
    let plan = SecurityPlan::quick();
    let report = report(&plan, &samples(&plan, &no_ipsec(), share, 2), &Ended::Complete);
    check_form(&report);
    let advice = &report.summary[0];
    assert!(
        advice.starts_with("To encrypt iSCSI here, use AEAD digest, encrypted: "),
        "{:?}",
        report.summary
    );
    let not_measured = report.summary.last().unwrap();
    assert!(not_measured.contains("IPsec and IPsec, 3DES"), "{not_measured}");
    let absent = report.sections.iter().find(|section| section.title == "Not measured").unwrap();
    assert_eq!(absent.tables[0].rows.len(), 2);
    assert!(absent.tables[0].rows.iter().all(|row| matches!(row[1], TableCell::Absent(_))));
    let protections = |access: &str| {
        let of_access = report
            .metrics
            .iter()
            .filter(|metric| metric.circumstances.contains(&("access".to_owned(), access.to_owned())));
        let mut names: Vec<String> =
            of_access.map(|metric| metric.circumstances.last().unwrap().1.clone()).collect();
        names.sort();
        names.dedup();
        names
    };
    for access in ["socket", "read", "write"] {
        assert_eq!(protections(access), ["aead-encrypt", "aead-integrity", "plain", "tls"], "{access}");
    }
    assert!(report.metrics.iter().all(|metric| metric.samples.iter().all(|sample| *sample > 0.0)));
}

#[test]
fn a_run_without_samples_or_without_plain_has_a_report() {
    let plan = SecurityPlan::quick();
    let mut measured = samples(&plan, &[], share, 3);
    for (_, list) in measured.cells.iter_mut().flat_map(|cell| &mut cell.settings) {
        list.clear();
    }
    let ended = report(&plan, &measured, &Ended::Early("it was stopped".to_owned()));
    check_form(&ended);
    assert_eq!(ended.summary, ["The run ended before anything could be compared."]);
    assert!(ended.metrics.is_empty());
    let plan = SecurityPlan { protection: vec![Protection::Tls], link: vec![Link::Unshaped], ..plan };
    let alone = report(&plan, &samples(&plan, &[], share, 4), &Ended::Complete);
    check_form(&alone);
    assert!(alone.summary[0].starts_with("Nothing could be compared"));
}

#[test]
fn a_plan_of_which_nothing_can_be_measured_is_refused() {
    let plan = SecurityPlan { protection: vec![Protection::Ipsec], ..SecurityPlan::quick() };
    let cells = Cell::all(&plan).into_iter().map(|cell| CellSamples::new(cell, &plan, &no_ipsec())).collect();
    let why = nothing_to_measure(&Measured { cells, absent: no_ipsec(), ..Measured::default() });
    assert_eq!(why.unwrap(), "protection: ipsec cannot be measured here: strongSwan is not installed");
}

#[test]
fn a_proxy_is_measured_with_iscsi_alone() {
    let proxied = vec![Protection::Plain, Protection::AeadProxy];
    let plan = SecurityPlan { protection: proxied.clone(), ..SecurityPlan::quick() };
    let measured = samples(&plan, &[], share, 5);
    for CellSamples { cell, settings } in &measured.cells {
        let names: Vec<Protection> = settings.iter().map(|(protection, _)| *protection).collect();
        assert_eq!(names, if cell.access.is_iscsi() { proxied.clone() } else { vec![Protection::Plain] });
    }
    check_form(&report(&plan, &measured, &Ended::Complete));
    let plan = SecurityPlan { protection: vec![Protection::AeadProxy], access: vec![Access::Socket], ..plan };
    let cells = Cell::all(&plan).into_iter().map(|cell| CellSamples::new(cell, &plan, &[])).collect();
    let why = nothing_to_measure(&Measured { cells, ..Measured::default() });
    assert_eq!(why.unwrap(), "protection: a proxy carries iSCSI alone; add read or write to access");
}

/// Plain varies by a factor of 1.9 with one workload; or the AEAD digest is faster than plain.
#[test]
fn a_run_that_is_not_steady_gives_no_headline() {
    let plan = SecurityPlan { rounds: 7, ..SecurityPlan::quick() };
    let mut measured = samples(&plan, &[], share, 6);
    let unsteady = measured.cells.iter_mut().find(|samples| samples.cell.access == Access::Read).unwrap();
    unsteady.settings.iter_mut().for_each(|(_, list)| list[3].throughput /= 1.9);
    let found = report(&plan, &measured, &Ended::Complete);
    check_form(&found);
    let lead = &found.summary[0];
    assert!(lead.starts_with("This run gives no headline for iSCSI on an unshaped link, "), "{lead}");
    assert!(lead.contains("plain with read 4K, depth 1 varied by a factor of 1.9"), "{lead}");
    let has = |text: &str| found.summary.iter().any(|sentence| sentence.contains(text));
    assert!(!has("To encrypt iSCSI here") && !has("the throughput of iSCSI by"), "{:?}", found.summary);
    assert!(!has("The median latency (read") && has("The median latency (socket"), "{:?}", found.summary);
    assert!(has("the throughput of a simple socket by"), "what is steady has its means: {:?}", found.summary);

    let gain = |protection| if protection == Protection::AeadEncrypt { 110.0 } else { share(protection) };
    let found = report(&plan, &samples(&plan, &[], gain, 7), &Ended::Complete);
    let lead = &found.summary[0];
    assert!(
        lead.contains("more work was significantly faster than less: AEAD digest, encrypted than plain"),
        "{lead}"
    );
}
