//! Reports of the results, as Markdown and as JSON.

use std::fmt::Write as _;

use crate::suite::{CaseInfo, CaseResult, Summary};
use crate::verdict::Verdict;

/// Returns the results as one JSON object.
pub fn json(results: &[CaseResult]) -> String {
    let mut out = String::from("{\"results\":[");
    for (index, result) in results.iter().enumerate() {
        let CaseInfo { id, clause, title } = result.entry;
        out.push_str(if index == 0 { "\n" } else { ",\n" });
        let fields = [
            ("id", id),
            ("clause", clause),
            ("title", title),
            ("verdict", result.verdict.word()),
            ("why", &result.why),
        ];
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("{}:{}", quoted(name), quoted(value))).collect();
        let _ = write!(out, "{{{}}}", fields.join(","));
    }
    let sum = Summary::of(results);
    let _ = writeln!(
        out,
        "\n],\"passed\":{},\"failed\":{},\"skipped\":{}}}",
        sum.passed, sum.failed, sum.skipped
    );
    out
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns a report on `subject` as Markdown. Only the verdicts in it can differ from run to run.
pub fn markdown(subject: &str, command: &str, results: &[CaseResult]) -> String {
    let sum = Summary::of(results);
    let mut out = format!("# Conformance of {subject}\n\n");
    let _ = writeln!(out, "Written by `{command}`. {sum}.\n");
    for (verdict, heading) in [(Verdict::Fail, "Failed"), (Verdict::Skip, "Skipped")] {
        let rows: Vec<&CaseResult> = results.iter().filter(|result| result.verdict == verdict).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = writeln!(out, "## {heading}\n\n| id | clause | title | why |\n|---|---|---|---|");
        for result in rows {
            let CaseInfo { id, clause, title } = result.entry;
            let _ = writeln!(out, "| {id} | {clause} | {title} | {} |", cell(&result.why));
        }
        out.push('\n');
    }
    let _ = writeln!(out, "## All\n\n| id | clause | title | verdict |\n|---|---|---|---|");
    for result in results {
        let CaseInfo { id, clause, title } = result.entry;
        let _ = writeln!(out, "| {id} | {clause} | {title} | {} |", result.verdict.word());
    }
    out
}

fn cell(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    clean.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn result(verdict: Verdict, why: &str) -> CaseResult {
        let entry = CaseInfo { id: "x-1", clause: "RFC 7143 §1", title: "a \"title\"" };
        CaseResult {
            entry,
            verdict,
            why: why.to_owned(),
            record: vec!["sent".to_owned()],
            took: Duration::ZERO,
        }
    }

    #[test]
    fn json_is_escaped_and_adds_up() {
        let results = [result(Verdict::Pass, ""), result(Verdict::Fail, "line\nbreak \\ \u{1}")];
        assert_eq!(
            json(&results),
            "{\"results\":[\n\
             {\"id\":\"x-1\",\"clause\":\"RFC 7143 §1\",\"title\":\"a \\\"title\\\"\",\"verdict\":\"pass\",\"why\":\"\"},\n\
             {\"id\":\"x-1\",\"clause\":\"RFC 7143 §1\",\"title\":\"a \\\"title\\\"\",\"verdict\":\"fail\",\
             \"why\":\"line\\nbreak \\\\ \\u0001\"}\n],\"passed\":1,\"failed\":1,\"skipped\":0}\n"
        );
    }

    #[test]
    fn a_table_cell_stays_one_cell() {
        let text = markdown("x", "targe conform", &[result(Verdict::Skip, "a|b\nc")]);
        assert!(text.contains("| a\\|b c |"), "{text}");
        assert!(!text.contains("## Failed"));
    }
}
