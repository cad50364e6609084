//! The files of a report, and how they are read back.

use std::fs;
use std::path::PathBuf;

use super::testing::{SEED, report};
use super::*;

/// A directory that is removed at the end of a test.
struct TestDir(PathBuf);

impl TestDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("targe-lab-report-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_report_is_read_back_as_it_was() {
    let dir = TestDir::new("round-trip");
    let mut written = report(SEED, 9);
    written.ended = Ended::Early("SIGINT".to_owned());
    let files = written.write(&dir.0.join("new/deeper")).unwrap();
    assert_eq!(Report::read(&files.json).unwrap(), written);
    assert_eq!(Report::read(&dir.0.join("new/deeper")).unwrap(), written, "by its directory");
    assert_eq!(fs::read_to_string(&files.plan).unwrap(), written.plan);
    assert!(fs::read_to_string(&files.html).unwrap().contains(&written.title));
}

#[test]
fn a_second_report_replaces_all_files_and_leaves_no_others() {
    let dir = TestDir::new("replace");
    report(SEED, 9).write(&dir.0).unwrap();
    let mut second = report(SEED, 3);
    second.title = "The second".to_owned();
    let files = second.write(&dir.0).unwrap();
    assert_eq!(Report::read(&files.json).unwrap(), second);
    let mut names: Vec<_> = fs::read_dir(&dir.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["plan.toml", "report.html", "result.json", "samples.csv"]);
}

#[test]
fn numbers_that_json_lacks_are_read_as_nan() {
    let dir = TestDir::new("nan");
    let mut written = report(SEED, 3);
    written.metrics[0].samples = vec![1.0, f64::NAN, f64::INFINITY];
    written.sections[0].plots[0].series[0].points[0].y.low = f64::NEG_INFINITY;
    written.sections[0].tables[0].rows[0][1] = Cell::Number(f64::NAN);
    let files = written.write(&dir.0).unwrap();
    let read = Report::read(&files.json).unwrap();
    let samples = &read.metrics[0].samples;
    assert!(samples[0] == 1.0 && samples[1].is_nan() && samples[2].is_nan());
    assert!(read.sections[0].plots[0].series[0].points[0].y.low.is_nan());
    assert!(matches!(read.sections[0].tables[0].rows[0][1], Cell::Number(number) if number.is_nan()));
    let html = fs::read_to_string(&files.html).unwrap();
    assert!(!html.contains("NaN") && !html.contains("inf\""));
}

#[test]
fn csv_has_a_line_for_each_sample() {
    let dir = TestDir::new("csv");
    let mut written = report(SEED, 3);
    written.metrics.truncate(2);
    written.metrics[0].samples = vec![1.5, f64::NAN];
    written.metrics[1].circumstances = vec![("host, name".to_owned(), "a \"b\"\nc".to_owned())];
    written.metrics[1].samples = vec![0.1 + 0.2];
    let csv = fs::read_to_string(written.write(&dir.0).unwrap().csv).unwrap();
    assert_eq!(
        csv,
        "digests,block,\"host, name\",quantity,unit,round,value\r\n\
         none,4 KiB,,throughput,MB/s,1,1.5\r\n\
         none,4 KiB,,throughput,MB/s,2,\r\n\
         ,,\"a \"\"b\"\"\nc\",latency p99,µs,1,0.30000000000000004\r\n"
    );
}

#[test]
fn what_is_no_report_is_refused_with_a_reason() {
    let dir = TestDir::new("refused");
    let path = dir.0.join("result.json");
    let refused = |content: &str| {
        fs::write(&path, content).unwrap();
        Report::read(&path).unwrap_err().to_string()
    };
    for (content, reason) in [
        ("", "this is not a result.json of an experiment: EOF"),
        ("<html>", "this is not a result.json of an experiment: expected value"),
        ("{}", "missing field `schema`"),
        ("[1]", "this is not a result.json of an experiment"),
        ("{\"schema\": 1}", "missing field `experiment`"),
        ("{\"schema\": -1}", "this is not a result.json of an experiment"),
        (
            "{\"schema\": 2, \"shape\": \"other\"}",
            "this report has version 2, and this program reads versions up to 1",
        ),
    ] {
        let found = refused(content);
        assert!(found.contains(reason) && found.contains("result.json: "), "{content}: {found}");
    }
    fs::remove_file(&path).unwrap();
    for missing in [&path, &dir.0] {
        assert!(matches!(Report::read(missing), Err(ReadError::Io { .. })));
    }
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let dir = TestDir::new("unwritable");
    fs::create_dir_all(dir.0.join("samples.csv/is a directory")).unwrap();
    let error = report(SEED, 3).write(&dir.0).unwrap_err().to_string();
    assert!(error.contains("samples.csv: "), "{error}");
    let left = fs::read_dir(&dir.0).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(
        !left.into_iter().any(|name| name.to_string_lossy().starts_with('.')),
        "no temporary file remains"
    );
}
