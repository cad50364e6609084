//! Reports from synthetic samples.

use super::comparison::{comparisons, digest_costs, digest_pairs};
use super::samples::{Counts, IdleCost, IdleSessions, Sample};
use super::*;
use crate::report::testing::{Noise, check_form};
use crate::report::{Cell, Section, Table};

fn plan() -> TargetsPlan {
    TargetsPlan { rounds: 9, ..TargetsPlan::full() }
}

/// Returns samples of targets with these rates in commands per second, for each workload, with noise of 2 %
/// that is common to a round and 0.3 % that is not.
fn measured(plan: &TargetsPlan, rates: &[(&str, f64)], seed: u64) -> Measured {
    let mut noise = Noise::from_seed(seed);
    let known = rivals(None).unwrap();
    let mut targets: Vec<TargetSamples> = rates
        .iter()
        .map(|(name, _)| {
            let rival = known.iter().find(|rival| rival.name == *name).unwrap().clone();
            TargetSamples::new(rival, plan.workload.len())
        })
        .collect();
    for (at, workload) in plan.workload.iter().enumerate() {
        for _ in 0..plan.rounds {
            let round = noise.factor(2.0);
            for (target, (_, rate)) in targets.iter_mut().zip(rates) {
                let iops = rate * round * noise.factor(0.3);
                target.samples[at].push(Sample {
                    throughput: iops * f64::from(workload.block) / 1e6,
                    iops,
                    p50: 1e6 / iops,
                    p99: Some(2e6 / iops),
                    p999: None,
                    target_cpu: (!target.rival.is_in_kernel()).then_some(5e5 / iops),
                    client_busy: 0.4,
                });
            }
        }
        for target in &mut targets {
            let counts = Counts {
                system_calls: Some(Ok(1.5)),
                switches: Some(0.25),
                resident: Some(f64::from(20 << 20)),
            };
            target.counts[at] = Some(if target.rival.is_in_kernel() { Counts::default() } else { counts });
        }
    }
    for target in &mut targets {
        target.conformance = Some(Ok(Score { passed: 9, failed: 1, skipped: 2 }));
        target.idle_resident = (!target.rival.is_in_kernel()).then_some(f64::from(4 << 20));
    }
    let echoes = vec![vec![1e5; 3]; plan.workload.len()];
    let (workloads, idle_counts) = (plan.workload.clone(), plan.idle_sessions.clone());
    let engine = "io_uring".to_owned();
    Measured { targets, workloads, idle_counts, echoes, engine, in_memory: true, ..Measured::default() }
}

fn report_of(plan: &TargetsPlan, measured: &Measured) -> Report {
    findings::report(&Run { plan, measured, ended: &Ended::Complete })
}

fn section<'a>(report: &'a Report, title: &str) -> &'a Section {
    report.sections.iter().find(|section| section.title == title).unwrap()
}

/// Returns the cells of a target in a table whose columns are targets.
fn column<'a>(table: &'a Table, title: &str) -> Vec<&'a Cell> {
    let at = table.columns.iter().position(|column| column.title == title).unwrap();
    table.rows.iter().map(|row| &row[at]).collect()
}

#[test]
fn differences_that_are_there_are_found_and_no_others() {
    // With some seeds, noise makes a comparison significant, and the report withholds its headline.
    let seed = 17;
    let plan = plan();
    let mut measured = measured(&plan, &[("targe", 1e4), ("tgt", 5e3), ("istgt", 1e4)], seed);
    // With the last workload, tgt is 10 % faster.
    let last = plan.workload.len() - 1;
    let ours = measured.targets[0].samples[last].clone();
    measured.targets[1].samples[last] =
        ours.iter().map(|sample| Sample { iops: sample.iops * 1.1, ..*sample }).collect();
    let list = comparisons(&measured);
    assert_eq!(list.len(), 2 * plan.workload.len());
    for found in &list {
        let wanted = match (found.other.as_str(), found.workload == last) {
            ("tgt", false) => 100.0,
            ("tgt", true) => 100.0 / 1.1 - 100.0,
            _ => 0.0,
        };
        assert!((found.change.percent - wanted).abs() < 2.0, "{found:?}");
        assert!(found.change.significant || wanted == 0.0, "{found:?}");
    }
    let report = report_of(&plan, &measured);
    check_form(&report);
    assert!(report.summary[0].starts_with("Of targe, tgt and istgt, "), "{:?}", report.summary);
    assert!(report.summary[1].starts_with("tgt is 10"), "{:?}", report.summary);
    assert!(
        report.summary.iter().any(|text| text.contains("times as many commands per second as tgt")),
        "{:?}",
        report.summary
    );
    assert!(report.summary.iter().any(|text| text.contains("targe 9 of 10, tgt 9 of 10")));
    let published = &section(&report, "Published figures").tables[0];
    assert_eq!(published.rows.len(), 6 + 3);
}

#[test]
fn an_absent_target_is_listed_with_its_reason_and_never_zero() {
    let plan = plan();
    let mut measured = measured(&plan, &[("targe", 1e4), ("tgt", 5e3), ("spdk", 1.0)], 3);
    let absent = &mut measured.targets[2];
    *absent = TargetSamples::new(absent.rival.clone(), plan.workload.len());
    absent.fate = Fate::Absent("the program iscsi_tgt is not there".to_owned());
    let report = report_of(&plan, &measured);
    check_form(&report);
    let told = "Not on this machine, and so not compared: SPDK (the program iscsi_tgt is not there).";
    assert!(report.summary.iter().any(|text| text == told), "{:?}", report.summary);
    let states = column(&section(&report, "Targets").tables[0], "state");
    assert_eq!(*states[2], Cell::Absent("absent: the program iscsi_tgt is not there".to_owned()));
    for table in &section(&report, "Throughput").tables {
        assert!(table.columns.iter().all(|column| !column.title.contains("SPDK")));
    }
    let has_spdk = |metric: &crate::report::Metric| metric.circumstances[0].1 == "spdk";
    assert!(!report.metrics.iter().any(has_spdk));
}

#[test]
fn a_target_that_fails_keeps_what_was_measured_before() {
    let plan = plan();
    let mut measured = measured(&plan, &[("targe", 1e4), ("istgt", 5e3)], 4);
    let failed = &mut measured.targets[1];
    failed.fate = Fate::Failed("it failed in round 3 with something: signal: 6".to_owned());
    for (at, samples) in failed.samples.iter_mut().enumerate() {
        samples.truncate([2, 2, 2, 2, 0, 0][at]);
    }
    failed.counts.fill(None);
    let report = report_of(&plan, &measured);
    check_form(&report);
    let told = "istgt is not compared to the end: it failed in round 3 with something: signal: 6.";
    assert!(report.summary.iter().any(|text| text == told), "{:?}", report.summary);
    let rates = column(&section(&report, "Throughput").tables[0], "istgt");
    assert!(matches!(rates[0], Cell::Estimate(_)) && matches!(rates[5], Cell::Absent(_)));
    assert_eq!(comparisons(&measured).len(), 4);
}

#[test]
fn the_processor_time_of_a_kernel_target_is_not_attributable() {
    let plan = plan();
    let report = report_of(&plan, &measured(&plan, &[("targe", 1e4), ("lio", 2e4)], 5));
    check_form(&report);
    for title in ["Processor time", "System calls and context switches"] {
        for table in &section(&report, title).tables {
            for cell in column(table, "LIO") {
                assert_eq!(*cell, Cell::Absent("in the kernel, not attributable".to_owned()));
            }
        }
    }
    assert!(report.summary[0].contains("another target is faster with 6"), "{:?}", report.summary);
}

#[test]
fn without_a_rival_or_a_sample_there_is_a_report() {
    let plan = plan();
    let mut measured = measured(&plan, &[("targe", 1e4)], 6);
    let report = report_of(&plan, &measured);
    check_form(&report);
    assert_eq!(report.summary[0], "Only targe could be measured: there is nothing to compare.");
    measured.targets[0].samples.iter_mut().for_each(Vec::clear);
    measured.targets[0].counts.fill(None);
    let report = report_of(&plan, &measured);
    check_form(&report);
    assert_eq!(report.summary[0], "The run ended before anything could be compared.");
}

#[test]
fn what_limits_the_figures_is_told() {
    let plan = TargetsPlan { rounds: 3, ..plan() };
    let mut measured = measured(&plan, &[("targe", 1e4), ("spdk", 1e4)], 7);
    measured.targets[1].samples[3].iter_mut().for_each(|sample| sample.client_busy = 1.0);
    measured.in_memory = false;
    let caveats = findings::caveats(&plan, &measured, Some(3.0)).join(" ");
    for part in
        ["a whole processor with 4K random reads, depth 32", "load average 3", "3 rounds", "SPDK (", "tmpfs"]
    {
        assert!(caveats.contains(part), "{part}: {caveats}");
    }
}

/// Returns the plan with each of its workloads once more, with both digests.
fn plan_with_digests() -> TargetsPlan {
    let plan = plan();
    let with = plan.workload.iter().map(|workload| Workload { digests: Digests::Both, ..*workload });
    TargetsPlan { workload: plan.workload.iter().copied().chain(with).collect(), ..plan }
}

#[test]
fn the_cost_of_digests_is_found_for_each_target() {
    let plan = plan_with_digests();
    let mut measured = measured(&plan, &[("targe", 1e4), ("tgt", 5e3), ("istgt", 1e4)], 8);
    let half = plan.workload.len() / 2;
    assert_eq!(digest_pairs(&measured), (0..half).map(|at| (at + half, at)).collect::<Vec<_>>());
    // Both digests take 12 % of the rate of targe, and half of that of tgt. istgt refuses them.
    for at in 0..half {
        for (target, factor) in [(0, 0.88), (1, 0.5)] {
            let samples = measured.targets[target].samples[at].clone();
            measured.targets[target].samples[at + half] = samples
                .iter()
                .map(|sample| Sample {
                    iops: sample.iops * factor,
                    target_cpu: sample.target_cpu.map(|cpu| cpu * 2.0),
                    ..*sample
                })
                .collect();
        }
        measured.targets[2].samples[at + half].clear();
    }
    measured.targets[2].refused = vec![(Digests::Both, "the login was rejected".to_owned())];
    let costs = digest_costs(&measured);
    assert_eq!(costs.len(), 2 * half);
    for cost in &costs {
        let wanted = if cost.target == "targe" { -12.0 } else { -50.0 };
        assert!((cost.rate.percent - wanted).abs() < 0.1 && cost.rate.significant, "{cost:?}");
        assert!((cost.processor.unwrap().percent - 100.0).abs() < 0.1, "{cost:?}");
    }
    let report = report_of(&plan, &measured);
    check_form(&report);
    let told = "Both digests take this much of the rate of commands: targe 12 % (at most 12 %) and tgt 50 % (at most 50 \
                %) (geometric mean of 6 workloads).";
    assert!(report.summary.iter().any(|text| text == told), "{:?}", report.summary);
    let table = &section(&report, "Cost of digests").tables[0];
    assert_eq!(table.rows.len(), half);
    let refused = Cell::Absent("not measured: the login was rejected".to_owned());
    for title in ["istgt", "istgt, processor time"] {
        assert!(column(table, title).into_iter().all(|cell| *cell == refused), "{title}");
    }
    let rates = &section(&report, "Throughput").tables[0];
    assert_eq!(*column(rates, "istgt")[half], refused);
}

#[test]
fn processor_time_is_told_as_a_multiple_of_ours() {
    let plan = plan();
    let report = report_of(&plan, &measured(&plan, &[("targe", 1e4), ("tgt", 2.5e3), ("lio", 1e4)], 10));
    check_form(&report);
    assert!(report.sections.iter().all(|section| section.title != "Cost of digests"));
    let table = &section(&report, "Processor time").tables[1];
    for cell in column(table, "tgt") {
        assert!(matches!(cell, Cell::Estimate(found) if (found.value - 4.0).abs() < 0.1), "{cell:?}");
    }
}

#[test]
fn the_memory_of_idle_sessions_is_that_of_all_beside_none() {
    let plan = TargetsPlan { idle_sessions: vec![1, 100], ..plan() };
    let mut measured = measured(&plan, &[("targe", 1e4), ("tgt", 5e3)], 11);
    let cost = |kib: f64, logins: f64| IdleCost { logins, resident: kib * 1024.0 };
    measured.targets[0].idle_sessions = Some(Ok(IdleSessions {
        listens_after: 0.006,
        before: 4000.0 * 1024.0,
        costs: vec![Ok(cost(4076.0, 0.001)), Ok(cost(4600.0, 0.04))],
        after: Some(4100.0 * 1024.0),
    }));
    measured.targets[1].idle_sessions = Some(Ok(IdleSessions {
        costs: vec![Ok(cost(8.0, 0.001)), Err("session 2: no more".to_owned())],
        ..IdleSessions::default()
    }));
    let report = report_of(&plan, &measured);
    check_form(&report);
    let told = "An idle session takes this memory of the target: 6 KiB in targe (with 100 sessions) and 8 KiB in tgt \
                (with 1 session).";
    assert!(report.summary.iter().any(|text| text == told), "{:?}", report.summary);
    let [sessions, ends] = section(&report, "Idle sessions").tables.as_slice() else { panic!("two tables") };
    let memory = column(sessions, "for each session");
    assert_eq!(memory[..2], [&Cell::Number(76.0), &Cell::Number(6.0)]);
    assert_eq!(*memory[3], Cell::Absent("not measured: session 2: no more".to_owned()));
    assert_eq!(*column(ends, "listens after")[0], Cell::Number(6.0));
    assert!(matches!(column(ends, "after all have logged out")[1], Cell::Absent(_)));
    let metrics =
        report.metrics.iter().filter(|metric| metric.quantity == "resident memory for each session");
    assert_eq!(metrics.map(|metric| metric.samples[0]).collect::<Vec<_>>(), [76.0, 6.0, 8.0]);
}

#[test]
fn a_target_that_is_not_steady_gives_no_headline_and_the_other_workloads_stay() {
    let plan = plan();
    let mut measured = measured(&plan, &[("targe", 1e4), ("tgt", 5e3), ("istgt", 4e3)], 12);
    measured.targets[1].samples[0][2].iops /= 1.9;
    let report = report_of(&plan, &measured);
    check_form(&report);
    let lead = &report.summary[0];
    assert!(lead.starts_with("This run gives no headline for targe, tgt and istgt, "), "{lead}");
    assert!(lead.contains(&format!("tgt with {} varied by a factor of", plan.workload[0].name())), "{lead}");
    assert!(
        report.summary[1].contains("targe is the fastest with all of 5 workloads"),
        "{:?}",
        report.summary
    );
    let has = |text: &str| report.summary.iter().any(|sentence| sentence.contains(text));
    assert!(
        !has("commands per second as tgt") && has("commands per second as istgt"),
        "{:?}",
        report.summary
    );
}

#[test]
fn digests_and_processor_times_follow_the_rule_for_headlines() {
    let plan = plan_with_digests();
    let half = plan.workload.len() / 2;
    let mut steady = measured(&plan, &[("targe", 1e4), ("tgt", 5e3)], 13);
    for ((target, factor), at) in
        [(0, 0.88), (1, 0.5)].into_iter().flat_map(|one| (0..half).map(move |at| (one, at)))
    {
        let samples = steady.targets[target].samples[at].clone();
        steady.targets[target].samples[at + half] =
            samples.iter().map(|sample| Sample { iops: sample.iops * factor, ..*sample }).collect();
    }
    let summary = |measured: &Measured| report_of(&plan, measured).summary;
    let find = |measured: &Measured, start: &str| {
        summary(measured).into_iter().find(|text| text.starts_with(start)).unwrap_or_default()
    };
    let (digests, processor) = ("Both digests take", "Processor time that the target needs");
    assert!(find(&steady, digests).contains("targe 12 %") && find(&steady, digests).contains("tgt 50 %"));
    // Our rates without digests vary: nothing is said of what they cost us.
    let mut ours = steady.clone();
    ours.targets[0].samples[0][2].iops /= 1.9;
    assert!(!find(&ours, digests).contains("targe") && find(&ours, digests).contains("tgt 50 %"));
    let lead = &summary(&ours)[0];
    assert!(lead.contains(&format!("targe with {} varied by", plan.workload[0].name())), "{lead}");
    // Digests make tgt faster: neither workload counts.
    let mut faster = steady.clone();
    faster.targets[1].samples[half].iter_mut().for_each(|sample| sample.iops *= 3.0);
    let count = format!("with all of {} workloads", plan.workload.len() - 2);
    let has = |text: &str| summary(&faster).iter().any(|sentence| sentence.contains(text));
    assert!(has(&count) && !find(&faster, digests).contains("tgt"), "{:?}", summary(&faster));
    // The workload of the processor times varies.
    let told = find(&steady, processor);
    let at =
        (0..half).find(|at| told.contains(&format!("each command, {}:", plan.workload[*at].name()))).unwrap();
    steady.targets[1].samples[at][2].iops /= 1.9;
    assert!(!find(&steady, processor).contains(&format!("each command, {}:", plan.workload[at].name())));
}
