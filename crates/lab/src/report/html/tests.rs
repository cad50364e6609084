//! What a page contains.

use super::super::markup::estimate_in_words;
use super::super::model::Estimate;
use super::super::testing::{Element, SEED, elements, report};
use super::*;

/// Returns the text of a page, as a reader sees it.
fn text_of(elements: &[Element]) -> String {
    let text: String = elements.iter().map(|element| format!("{}\n", element.text)).collect();
    let references = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
    references.iter().fold(text, |text, (from, to)| text.replace(from, to))
}

#[test]
fn a_page_contains_everything_that_the_report_says() {
    let mut report = report(SEED, 9);
    report.ended = Ended::Early("the target closed the connection".to_owned());
    let elements = elements(&page(&report));
    let text = text_of(&elements);
    let mut expected: Vec<String> = report.summary.iter().chain(&report.caveats).cloned().collect();
    expected.extend([report.title.clone(), report.command.clone(), report.plan.clone()]);
    expected.extend(report.machine.iter().flat_map(|(name, value)| [name.clone(), value.clone()]));
    expected.push("Ended early: the target closed the connection.".to_owned());
    expected.extend(["2026-11-23 23:40 UTC".to_owned(), "12 min 34 s".to_owned()]);
    for section in &report.sections {
        expected.push(section.title.clone());
        expected.extend(section.text.iter().cloned());
        for plot in &section.plots {
            expected.push(plot.caption.clone());
            expected.extend(plot.series.iter().flat_map(|s| &s.points).map(|p| estimate_in_words(&p.y)));
        }
    }
    for metric in &report.metrics {
        expected.push(super::super::number::estimate(&statistics::estimate(&metric.samples)).0);
    }
    expected.extend(["12\u{202f}345".to_owned(), "not installed".to_owned()]);
    for part in expected {
        // A number and its percent sign stay on one line.
        assert!(text.contains(&part) || text.contains(&prose(&part)), "{part}");
    }
}

/// Puts text that would end an element or an attribute into every string.
#[test]
fn text_from_outside_cannot_become_markup() {
    let evil = "</style></svg><script>alert(1)</script>\" onload='x' &amp; \u{0}\u{1b}[31m <!-- ]]>";
    let report = report(SEED, 3);
    let json = serde_json::to_string(&report).unwrap();
    let mut value: serde_json::Value = serde_json::from_str(&json).unwrap();
    poison(&mut value, evil);
    let poisoned: Report = serde_json::from_value(value).unwrap();
    let html = page(&poisoned);
    assert!(!html.contains("<script") && !html.contains("<!--") && !html.contains('\u{1b}'));
    let (clean, found) = (elements(&page(&report)), elements(&html));
    let kinds = |elements: &[Element], name: &str| elements.iter().filter(|e| e.name == name).count();
    for name in ["section", "table", "tr", "td", "th", "svg", "rect", "p", "li", "figure", "style", "dd"] {
        assert_eq!(kinds(&found, name), kinds(&clean, name), "{name}");
    }
    assert!(found.iter().all(|element| !element.attributes.keys().any(|name| name.starts_with("on"))));
}

fn poison(value: &mut serde_json::Value, evil: &str) {
    match value {
        serde_json::Value::String(text)
            if !matches!(text.as_str(), "lines" | "bars" | "complete" | "higher" | "lower") =>
        {
            text.push_str(evil);
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(|value| poison(value, evil)),
        serde_json::Value::Object(values) => values.values_mut().for_each(|value| poison(value, evil)),
        _ => {}
    }
}

#[test]
fn a_page_refers_to_nothing_outside() {
    let html = page(&report(SEED, 9));
    for reference in ["http:", "https:", "<script", "<link", "src=", "@import"] {
        assert!(!html.contains(reference), "{reference}");
    }
    let elements = elements(&html);
    let ids: Vec<&String> = elements.iter().filter_map(|element| element.attributes.get("id")).collect();
    for element in &elements {
        for link in element.attributes.get("href").into_iter().filter_map(|link| link.strip_prefix('#')) {
            assert!(ids.iter().any(|id| *id == link), "{link}");
        }
        for name in ["aria-labelledby", "aria-describedby"] {
            let target = element.attributes.get(name);
            assert!(target.is_none_or(|target| ids.contains(&target)), "{element:?}");
        }
    }
    let mut distinct = ids.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), ids.len(), "identifiers are unique");
}

#[test]
fn an_empty_report_is_a_page() {
    let report = Report {
        summary: Vec::new(),
        caveats: Vec::new(),
        machine: Vec::new(),
        sections: vec![Section { tables: vec![Table::default()], ..Section::default() }],
        metrics: Vec::new(),
        started: "ä".repeat(12),
        seconds: f64::NAN,
        ..report(SEED, 3)
    };
    elements(&page(&report));
}

#[test]
fn columns_with_numbers_are_aligned_to_the_right() {
    let table = Table {
        caption: "A table".to_owned(),
        columns: ["name", "value", "why"]
            .map(|title| Column { title: title.to_owned(), unit: "s".to_owned() })
            .to_vec(),
        rows: vec![
            vec![Cell::Text("a".to_owned()), Cell::Estimate(Estimate { value: 5.0, low: 4.0, high: 6.0 })],
            vec![Cell::Text("b".to_owned()), Cell::Absent("none".to_owned()), Cell::Text("c".to_owned())],
        ],
    };
    let mut html = String::new();
    table::write(&mut html, &table);
    let elements = elements(&html);
    let numbers: Vec<&str> =
        elements.iter().filter(|e| e.has_class("number")).map(|e| e.text.trim()).collect();
    assert_eq!(numbers, ["value", "5.00", ""]);
    assert_eq!(elements.iter().filter(|e| e.name == "td").count(), 4, "the short row is filled");
    assert_eq!(elements.iter().filter(|e| e.attributes.get("scope").is_some_and(|s| s == "row")).count(), 2);
}

#[test]
fn durations_have_the_unit_that_suits_them() {
    for (seconds, text) in
        [(0.25, "0.250 s"), (59.0, "59 s"), (754.2, "12 min 34 s"), (7_500.0, "2 h 5 min"), (f64::NAN, "– s")]
    {
        assert_eq!(duration(seconds), text);
    }
}
