//! Tables of a report.

use std::fmt::Write;

use super::super::markup::Escaped;
use super::super::model::{Cell, Estimate, Table};
use super::super::number::{self, Short};

/// Writes a table that scrolls on a narrow screen. A row that is too short gets empty cells.
pub(super) fn write(html: &mut String, table: &Table) {
    let _ = write!(
        html,
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n\
         <table>\n<caption>{caption}</caption>\n<thead><tr>",
        caption = Escaped(&table.caption)
    );
    for (index, column) in table.columns.iter().enumerate() {
        let class = class_of(table, index);
        let _ = write!(html, "<th scope=\"col\"{class}>{}", Escaped(&column.title));
        if !column.unit.is_empty() {
            let _ = write!(html, " <span class=\"unit\">{}</span>", Escaped(&column.unit));
        }
        html.push_str("</th>");
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in &table.rows {
        write_row(html, table, row);
    }
    html.push_str("</tbody>\n</table>\n</div>\n");
}

fn write_row(html: &mut String, table: &Table, row: &[Cell]) {
    html.push_str("<tr>");
    for (index, cell) in row.iter().enumerate() {
        let class = class_of(table, index);
        let _ = match cell {
            Cell::Text(text) if index == 0 => write!(html, "<th scope=\"row\">{}</th>", Escaped(text)),
            Cell::Text(text) => write!(html, "<td{class}>{}</td>", Escaped(text)),
            Cell::Number(value) => write!(html, "<td{class}>{}</td>", Short(*value)),
            Cell::Estimate(estimate) => write!(html, "<td{class}>{}</td>", with_interval(estimate)),
            Cell::Absent(why) => write!(html, "<td{class}><i>{}</i></td>", Escaped(why)),
        };
    }
    for _ in row.len()..table.columns.len() {
        html.push_str("<td></td>");
    }
    html.push_str("</tr>\n");
}

fn with_interval(estimate: &Estimate) -> String {
    match number::estimate(estimate) {
        (value, None) => value,
        (value, Some((low, high))) => {
            format!("{value} <span class=\"interval\">{low}<span> to </span>{high}</span>")
        }
    }
}

/// Columns with numbers are aligned to the right.
fn class_of(table: &Table, column: usize) -> &'static str {
    let is_number = |row: &Vec<Cell>| matches!(row.get(column), Some(Cell::Number(_) | Cell::Estimate(_)));
    if table.rows.iter().any(is_number) { " class=\"number\"" } else { "" }
}
