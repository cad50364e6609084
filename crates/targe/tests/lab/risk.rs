use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use initiator::Url;
use lab::experiment::Control;
use lab::plan::Digests;
use lab::report::Ended;
use lab::risk::outcome::Outcome;
use lab::risk::plan::RiskPlan;
use lab::risk::{RiskResults, measure};
use lab::target_process::ServedTarget;

const TARGE: &str = env!("CARGO_BIN_EXE_targe");

/// Runs a plan against a target of its own.
fn measured(plan: &RiskPlan) -> RiskResults {
    let target = ServedTarget::start(None, Path::new(TARGE), &["ram:16M".to_owned()]).unwrap();
    let url = Url::parse(&target.url(0)).unwrap();
    let (stop, mut ignore) = (AtomicBool::new(false), |_: lab::experiment::Progress<'_>| {});
    let mut control = Control { stop: &stop, progress: &mut ignore };
    let results = measure(plan, &url, true, &mut control).unwrap();
    assert_eq!(results.ended, Ended::Complete, "seed {}", plan.seed);
    results
}

fn small() -> RiskPlan {
    RiskPlan {
        trials: 90,
        controls: 15,
        lengths: vec![512, 4096, 16384],
        range: 16 << 20,
        sessions: 24,
        seed: 20_261_124,
        ..RiskPlan::default()
    }
}

#[test]
fn every_damaged_pdu_has_one_outcome_and_with_both_digests_none_is_silent_and_wrong() {
    let plan = small();
    let results = measured(&plan);
    let total = results.total();
    assert_eq!(results.cells.len(), 12);
    assert!(total.injected > 1000, "{total:?}");
    for cell in &results.cells {
        let (counts, of) = (cell.counts, (cell.digests.name(), cell.erl));
        let by_outcome: u64 = Outcome::ALL.iter().map(|outcome| counts.of(*outcome)).sum();
        assert_eq!(cell.not_offered, None);
        assert_eq!(counts.injected, by_outcome, "{of:?}");
        assert_eq!(counts.injected + counts.missed, 90, "{of:?}");
        assert_eq!((counts.controls, counts.false_alarms), (15, 0), "{of:?}: {:?}", cell.alarms);
        assert_eq!(counts.unexplained, 0, "{of:?}");
        let by_fault: u64 = cell.faults.values().map(|counts| counts.injected).sum();
        assert_eq!(by_fault, counts.injected, "{of:?}");
    }
    let wrong = |digests| results.of_digests(digests).wrong;
    assert_eq!(wrong(Digests::Both), 0);
    let of_fault = |digests: Digests, name: &str| {
        let cells = results.cells.iter().filter(|cell| cell.digests == digests);
        let counts: Vec<_> = cells.filter_map(|cell| cell.faults.get(name)).collect();
        (counts.iter().map(|c| c.wrong).sum::<u64>(), counts.iter().map(|c| c.injected).sum::<u64>())
    };
    for name in ["read-data-bit", "read-data-swap", "write-data-bit", "write-data-pair"] {
        for (digests, is_silent) in
            [(Digests::None, true), (Digests::Header, true), (Digests::Data, false), (Digests::Both, false)]
        {
            let (wrong, injected) = of_fault(digests, name);
            assert!(injected > 0);
            assert_eq!(wrong, if is_silent { injected } else { 0 }, "{name} with digests {digests:?}");
        }
    }
    for name in ["read-lba-bit", "write-lba-bit"] {
        assert!(of_fault(Digests::None, name).0 > 0 && of_fault(Digests::Data, name).0 > 0, "{name}");
        assert_eq!(of_fault(Digests::Header, name).0, 0, "{name}");
    }
}

/// The same damage with right digests is what two ends that ignore digests would let through: the judgement
/// must not depend on what the session negotiated.
#[test]
fn damage_that_the_digests_cover_is_found_although_both_digests_are_on() {
    let faults = ["read-data-bit", "write-data-bit", "read-lba-bit", "write-lba-bit"].map(str::to_owned);
    let plan = RiskPlan {
        reseal: true,
        digests: vec![Digests::Both],
        erl: vec![0, 2],
        faults: faults.into(),
        ..small()
    };
    let results = measured(&plan);
    let counts = results.of_digests(Digests::Both);
    assert!(counts.wrong > counts.injected / 2, "{counts:?}");
    assert_eq!((counts.false_alarms, counts.unexplained), (0, 0));
}

#[test]
fn a_run_writes_its_report_and_bad_usage_is_told() {
    let directory = std::env::temp_dir().join(format!("targe-risk-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let run = |arguments: &[&str]| {
        let output =
            Command::new(TARGE).args(["lab", "risk"]).args(arguments).current_dir(&directory).output();
        let output = output.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    std::fs::write(
        directory.join("plan.toml"),
        "digests = [\"none\", \"both\"]\nerl = [0]\ntrials = 26\ncontrols = 4\nlengths = [4096]\nrange = 2097152\n\
         sessions = 4\n",
    )
    .unwrap();
    std::fs::write(directory.join("bad.toml"), "trails = 26\n").unwrap();
    let (code, stdout, stderr) = run(&["--plan", "plan.toml", "--out", "report"]);
    let page = std::fs::read_to_string(directory.join("report/report.html")).unwrap_or_default();
    let bad = run(&["--plan", "bad.toml"]);
    let unconfirmed = run(&["iscsi://127.0.0.1:1/iqn.2026-11.example.targe:none/0"]);
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("Use both digests. Without digests, "), "{stdout}");
    assert!(stdout.contains("With both digests, none of "), "{stdout}");
    for heading in
        ["What became of damaged PDUs", "A data bit flips in a read", "An LBA bit flips in a write"]
    {
        assert!(page.contains(heading), "{heading}");
    }
    assert!(bad.0 == 2 && bad.2.contains("trails"), "{bad:?}");
    assert!(unconfirmed.0 == 2 && unconfirmed.2.contains("--write"), "{unconfirmed:?}");
}
