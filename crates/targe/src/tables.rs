//! Tables and numbers for display: columns are as wide as their widest cell, two spaces apart.

use std::fmt;

#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Starts a table with a heading.
    pub(crate) fn new(heading: &[&str]) -> Self {
        let mut table = Self::bare();
        table.row(heading);
        table
    }

    /// Starts a table without a heading.
    pub(crate) const fn bare() -> Self {
        Self { rows: Vec::new() }
    }

    /// Adds a row. Text from a peer cannot control the terminal: control characters become `?`.
    pub(crate) fn row(&mut self, cells: &[&str]) {
        let clean = |cell: &&str| cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.rows.push(cells.iter().map(clean).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let padded: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            writeln!(f, "{}", padded.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// Formats a duration in its two largest units.
pub(crate) fn show_uptime(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_no_line_ends_in_spaces() {
        let mut table = Table::new(&["A", "LONG", "C"]);
        table.row(&["äö", "x", ""]);
        table.row(&["y", "\u{1b}[31mz", "w"]);
        assert_eq!(table.to_string(), "A   LONG    C\näö  x\ny   ?[31mz  w\n");
    }
}
