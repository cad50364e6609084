//! The report as one HTML file: no scripts, no references to other hosts, readable without a style sheet.

mod table;

#[cfg(test)]
mod tests;

use std::fmt::Write;

use super::markup::Escaped;
use super::model::{Cell, Column, Ended, Metric, Plot, Report, Section, Table};
use super::number::Short;
use super::plot;
use crate::statistics;

/// Returns the page.
pub(super) fn page(report: &Report) -> String {
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{}\n",
        Escaped(&report.title),
        plot::HATCHES,
    );
    head(&mut html, report);
    html.push_str("<main>\n");
    for (index, part) in report.sections.iter().enumerate() {
        section(&mut html, index + 1, part);
    }
    metrics(&mut html, report);
    repetition(&mut html, report);
    html.push_str("</main>\n</body>\n</html>\n");
    html
}

const STYLE: &str = include_str!("html/style.css");

/// The first screen: the answer, the state of the run, and the machine.
fn head(html: &mut String, report: &Report) {
    let _ = write!(
        html,
        "<header>\n<p class=\"experiment\">targe lab {}</p>\n<h1>{}</h1>\n",
        Escaped(&report.experiment),
        Escaped(&report.title)
    );
    state(html, report);
    html.push_str("<div class=\"answer\">\n");
    for (index, text) in report.summary.iter().enumerate() {
        let class = if index == 0 { " class=\"lead\"" } else { "" };
        let _ = writeln!(html, "<p{class}>{}</p>", Escaped(&prose(text)));
    }
    html.push_str("</div>\n<aside>\n");
    machine(html, report);
    html.push_str("</aside>\n");
    caveats(html, report);
    contents(html, report);
    html.push_str("</header>\n");
}

/// Keeps numbers and the percent signs behind them on one line.
fn prose(text: &str) -> String {
    text.replace(" %", "\u{a0}%")
}

fn state(html: &mut String, report: &Report) {
    let started = report.started.get(..16).map(|minute| minute.replacen('T', " ", 1) + " UTC");
    let started = started.unwrap_or_else(|| report.started.clone());
    let (class, state) = match &report.ended {
        Ended::Complete => ("complete", "Complete: the whole plan was carried out.".to_owned()),
        Ended::Early(why) => {
            let why = why.trim_end_matches('.');
            ("early", format!("Ended early: {why}. The figures cover what was measured before."))
        }
    };
    let _ = writeln!(
        html,
        "<p class=\"state {class}\"><strong>{}</strong> <span><time datetime=\"{}\">{}</time>, {}</span></p>",
        Escaped(&state),
        Escaped(&report.started),
        Escaped(&started),
        duration(report.seconds),
    );
}

fn machine(html: &mut String, report: &Report) {
    html.push_str("<h2>Machine and software</h2>\n<dl>\n");
    for (name, value) in &report.machine {
        let _ = writeln!(html, "<div><dt>{}</dt><dd>{}</dd></div>", Escaped(name), Escaped(value));
    }
    html.push_str("</dl>\n");
}

fn caveats(html: &mut String, report: &Report) {
    if report.caveats.is_empty() {
        return;
    }
    html.push_str("<section class=\"caveats\">\n<h2>Limits of these figures</h2>\n<ul>\n");
    for text in &report.caveats {
        let _ = writeln!(html, "<li>{}</li>", Escaped(&prose(text)));
    }
    html.push_str("</ul>\n</section>\n");
}

fn contents(html: &mut String, report: &Report) {
    html.push_str("<nav aria-label=\"Contents\"><ul>\n");
    for (index, section) in report.sections.iter().enumerate() {
        let _ = writeln!(html, "<li><a href=\"#s{}\">{}</a></li>", index + 1, Escaped(&section.title));
    }
    html.push_str(
        "<li><a href=\"#metrics\">All measured quantities</a></li>\n\
         <li><a href=\"#again\">Run it again</a></li>\n</ul></nav>\n",
    );
}

fn section(html: &mut String, number: usize, section: &Section) {
    let _ = writeln!(html, "<section id=\"s{number}\">\n<h2>{}</h2>", Escaped(&section.title));
    for text in &section.text {
        let _ = writeln!(html, "<p>{}</p>", Escaped(&prose(text)));
    }
    if !section.plots.is_empty() {
        html.push_str("<div class=\"plots\">\n");
        for (index, plot) in section.plots.iter().enumerate() {
            figure(html, &format!("s{number}p{}", index + 1), plot);
        }
        html.push_str("</div>\n");
    }
    for table in &section.tables {
        table::write(html, table);
    }
    html.push_str("</section>\n");
}

fn figure(html: &mut String, id: &str, plot: &Plot) {
    let class = if plot::is_wide(plot) { " class=\"wide\"" } else { "" };
    let _ = write!(
        html,
        "<figure{class}>\n<figcaption>{}</figcaption>\n{}<div class=\"scroll\">{}</div>\n",
        Escaped(&plot.caption),
        plot::legend(plot),
        plot::svg(plot, id),
    );
    notes(html, plot);
    html.push_str("<details><summary>Values of this plot</summary>\n");
    table::write(html, &plot::values(plot));
    html.push_str("</details>\n</figure>\n");
}

/// Tells what a plot does not show.
fn notes(html: &mut String, plot: &Plot) {
    let (hidden, cut) = (plot::hidden_points(plot), plot::cut_error_bars(plot));
    if hidden > 0 {
        let _ = writeln!(
            html,
            "<p class=\"note\">Not shown, since the axes cannot: {}.</p>",
            count(hidden, "point")
        );
    }
    if cut > 0 {
        let bars = count(cut, "error bar");
        let _ =
            writeln!(html, "<p class=\"note\">Longer than the plot, and drawn without a cap: {bars}.</p>");
    }
}

fn count(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

fn metrics(html: &mut String, report: &Report) {
    let _ = writeln!(
        html,
        "<section id=\"metrics\">\n<h2>All measured quantities</h2>\n\
         <p>Medians of all rounds with their 95 % confidence intervals. With fewer than six rounds, the interval is \
         the range of all samples. The samples are in <code>samples.csv</code>, and everything in \
         <code>result.json</code>, beside this file.</p>\n<details><summary>{} quantities</summary>",
        report.metrics.len()
    );
    for table in metric_tables(&report.metrics) {
        table::write(html, &table);
    }
    html.push_str("</details>\n</section>\n");
}

/// Returns a table for each quantity and unit, in which the columns are the circumstances.
fn metric_tables(metrics: &[Metric]) -> Vec<Table> {
    let mut groups: Vec<(&Metric, Vec<&Metric>)> = Vec::new();
    for metric in metrics {
        let group = groups
            .iter_mut()
            .find(|(first, _)| first.quantity == metric.quantity && first.unit == metric.unit);
        match group {
            Some((_, group)) => group.push(metric),
            None => groups.push((metric, vec![metric])),
        }
    }
    groups.into_iter().map(|(first, group)| metric_table(first, &group)).collect()
}

fn metric_table(first: &Metric, group: &[&Metric]) -> Table {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in group.iter().flat_map(|metric| &metric.circumstances) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let column = |title: &str, unit: &str| Column { title: title.to_owned(), unit: unit.to_owned() };
    let row = |metric: &&Metric| {
        let circumstance = |name: &&str| {
            let found = metric.circumstances.iter().find(|(other, _)| other == name);
            Cell::Text(found.map_or(String::new(), |(_, value)| value.clone()))
        };
        let mut row: Vec<Cell> = names.iter().map(circumstance).collect();
        row.push(Cell::Estimate(statistics::estimate(&metric.samples)));
        row.push(Cell::Number(u32::try_from(metric.samples.len()).map_or(f64::INFINITY, f64::from)));
        row
    };
    Table {
        caption: super::markup::with_unit(&first.quantity, &first.unit),
        rows: group.iter().map(row).collect(),
        columns: names
            .iter()
            .map(|name| column(name, ""))
            .chain([column(&first.quantity, &first.unit), column("rounds", "")])
            .collect(),
    }
}

fn repetition(html: &mut String, report: &Report) {
    let _ = write!(
        html,
        "<section id=\"again\">\n<h2>Run it again</h2>\n<pre><code>{}</code></pre>\n\
         <p>Compare the <code>result.json</code> of two runs:</p>\n\
         <pre><code>targe lab compare BEFORE/result.json AFTER/result.json</code></pre>\n\
         <h3>The plan of this run</h3>\n<pre><code>{}</code></pre>\n</section>\n",
        Escaped(&report.command),
        Escaped(&report.plan)
    );
}

/// Returns a duration in the units that suit it: `12 min 34 s`.
fn duration(seconds: f64) -> String {
    if !(60.0..1e9).contains(&seconds) {
        return format!("{} s", Short(seconds));
    }
    let whole = std::time::Duration::from_secs_f64(seconds).as_secs();
    match whole / 3600 {
        0 => format!("{} min {} s", whole / 60, whole % 60),
        hours => format!("{hours} h {} min", whole % 3600 / 60),
    }
}
