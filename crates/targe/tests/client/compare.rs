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
    assert!(text.ends_with("1 quantity: 1 worse\n"), "{text}");
    assert!(said.contains("warning: the machines or their software differ: kernel was for 500"), "{said}");

    let (code, text, said) = fixture.run(&["lab", "compare", &paths[0], &paths[1], "--json"]);
    assert_eq!((code, said.as_str()), (0, ""));
    let found = crate::json(&text);
    assert_eq!(found["changes"][0]["verdict"], "worse");
    assert_eq!(found["changes"][0]["quantity"], "throughput");
    assert!(found["changes"][0]["change"]["high"].as_f64().unwrap() < -19.0, "{text}");
    assert_eq!(found["second"]["path"], paths[1]);
    assert_eq!(found["warnings"].as_array().unwrap().len(), 1);
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
