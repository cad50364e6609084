//! `targe lab compare` with reports in files.

use serde_json::json;

use crate::fixture::Fixture;

/// A report with one metric of nine samples around `rate`.
fn report(rate: f64) -> serde_json::Value {
    let samples: Vec<f64> = (0..9).map(|round| rate + f64::from(round % 3)).collect();
    let metric = json!({
        "circumstances": [["digests", "both"]], "quantity": "throughput", "unit": "MB/s", "better": "higher",
        "samples": samples,
    });
    json!({
        "schema": 1, "experiment": "digests", "title": "", "started": "2026-11-23T23:40:12Z", "seconds": 1.0,
        "ended": "complete", "summary": [], "caveats": [], "machine": [["kernel", format!("for {rate}")]],
        "command": "", "plan": "", "sections": [], "metrics": [metric],
    })
}

fn fixture_with(files: &[(&str, String)]) -> (Fixture, Vec<String>) {
    let fixture = Fixture::new();
    let write = |(name, content): &(&str, String)| {
        let path = fixture.path(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let paths = files.iter().map(write).collect();
    (fixture, paths)
}

#[test]
fn a_change_for_the_worse_is_reported_and_no_failure() {
    let (fixture, paths) =
        fixture_with(&[("a.json", report(500.0).to_string()), ("b.json", report(400.0).to_string())]);
    let (code, text, said) = fixture.run(&["lab", "compare", &paths[0], &paths[1]]);
    assert_eq!(code, 0, "{said}");
    assert!(text.contains("both     throughput (MB/s)  501    401     −20.0 %"), "{text}");
    assert!(
        text.contains("1 quantity: 1 worse\nfamily: 1 quantity is judged. If nothing differs, it"),
        "{text}"
    );
    assert!(text.contains("\npower: a change is found in nine cases of ten from "), "{text}");
    assert!(text.starts_with("note: one run on each side: the verdicts are about these two runs."), "{text}");
    assert!(said.contains("warning: the machines or their software differ: kernel was for 500"), "{said}");

    let (code, text, said) = fixture.run(&["lab", "compare", &paths[0], &paths[1], "--json"]);
    assert_eq!((code, said.as_str()), (0, ""));
    let found = crate::json(&text);
    assert_eq!(found["changes"][0]["verdict"], "worse");
    assert_eq!(found["changes"][0]["quantity"], "throughput");
    assert!(found["changes"][0]["change"]["high"].as_f64().unwrap() < -19.0, "{text}");
    assert_eq!(found["second"]["path"], paths[1]);
    assert_eq!(found["warnings"].as_array().unwrap().len(), 1);
    assert_eq!((&found["unit"], &found["runs"]), (&json!("round"), &json!([1, 1])));
    assert_eq!(found["limits"].as_array().unwrap().len(), 1);
    assert_eq!((&found["family"]["size"], &found["family"]["not_judged"]), (&json!(1), &json!(0)));
    assert_eq!(found["family"]["finds_from"][1], found["changes"][0]["finds_from"]);

    let chosen = |quantity: &str| {
        fixture.run(&["lab", "compare", &paths[0], &paths[1], "--quantity", quantity, "--json"])
    };
    let (code, same, _) = chosen("throughput");
    assert_eq!((code, &crate::json(&same)["changes"]), (0, &found["changes"]));
    let (code, _, said) = chosen("speed");
    assert_eq!((code, said.as_str()), (1, "targe: --quantity: no report has speed; they have: throughput\n"));
}

/// Rounds that differ by less than 1 %, and runs that differ by 3 %: only the runs tell what is a change.
#[test]
fn directories_of_runs_are_compared_run_by_run() {
    let fixture = Fixture::new();
    let side = |name: &str, rates: &[f64]| {
        for (number, rate) in rates.iter().enumerate() {
            let directory = fixture.path(&format!("{name}/{number}"));
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("result.json"), report(*rate).to_string()).unwrap();
        }
        fixture.path(name).to_str().unwrap().to_owned()
    };
    let before = side("before", &[500.0, 515.0, 485.0, 507.0, 490.0]);
    let same = side("same", &[488.0, 510.0, 520.0, 497.0, 503.0]);
    let slower = side("slower", &[420.0, 433.0, 409.0, 425.0, 415.0]);
    std::fs::write(fixture.path("slower/notes.txt"), "not a run").unwrap();
    let verdict = |second: &str| {
        let (code, text, said) = fixture.run(&["lab", "compare", &before, second, "--json"]);
        assert_eq!((code, said.as_str()), (0, ""), "{text}");
        let found = crate::json(&text);
        assert_eq!((&found["unit"], &found["runs"]), (&json!("run"), &json!([5, 5])), "{text}");
        assert_eq!(found["second"]["started_all"].as_array().unwrap().len(), 5);
        found["changes"][0]["verdict"].clone()
    };
    assert_eq!((verdict(&same), verdict(&slower)), (json!("not_significant"), json!("worse")));
    // The rounds of two of these runs take their difference for a change.
    let (_, text, _) =
        fixture.run(&["lab", "compare", &format!("{before}/2"), &format!("{same}/2"), "--json"]);
    assert_eq!(crate::json(&text)["changes"][0]["verdict"], "better", "{text}");

    let (code, text, _) = fixture.run(&["lab", "compare", &before, &slower]);
    assert!(code == 0 && text.starts_with("5 against 5 runs: each run is one sample\n\n"), "{text}");
    let empty = fixture.path("empty");
    std::fs::create_dir(&empty).unwrap();
    let (code, _, said) = fixture.run(&["lab", "compare", &before, empty.to_str().unwrap()]);
    assert!(code == 1 && said.contains("empty/result.json: No such file"), "{said}");
}

#[test]
fn a_file_that_is_no_report_is_a_failure_that_names_it() {
    let mut newer = report(1.0);
    newer["schema"] = json!(7);
    let (fixture, paths) = fixture_with(&[
        ("good.json", report(500.0).to_string()),
        ("bad.json", "{}".to_owned()),
        ("newer.json", newer.to_string()),
    ]);
    let missing = fixture.path("missing.json").to_str().unwrap().to_owned();
    for (path, why) in [
        (&paths[1], "this is not a result.json of an experiment: missing field `schema`"),
        (&paths[2], "this report has version 7, and this program reads versions up to 1"),
        (&missing, "No such file"),
    ] {
        for args in [["lab", "compare", &paths[0], path], ["lab", "compare", path, &paths[0]]] {
            let (code, text, said) = fixture.run(&args);
            assert_eq!((code, text.as_str()), (1, ""), "{said}");
            assert!(said.starts_with(&format!("targe: {path}: ")) && said.contains(why), "{said}");
        }
    }
}
