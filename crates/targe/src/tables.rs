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

    /// Makes the columns up to the last of `names` fit into a width: columns of `drops` are left out in this
    /// order, and then the cells of `names` lose their beginning.
    pub(crate) fn fit(&mut self, width: usize, drops: &[usize], names: &[usize]) {
        let Some(last) = names.iter().max() else { return };
        let widths = self.widths();
        let mut kept: Vec<usize> = (0..widths.len()).collect();
        let len = |column: &usize| widths.get(*column).copied().unwrap_or(0);
        let needed = |kept: &[usize]| {
            let counted = kept.iter().filter(|column| *column <= last);
            counted.map(|column| len(column) + 2).sum::<usize>().saturating_sub(2)
        };
        for dropped in drops {
            if needed(&kept) > width {
                kept.retain(|column| column != dropped);
            }
        }
        let others = needed(&kept) - names.iter().map(len).sum::<usize>();
        let too_long = needed(&kept) > width;
        let mut room = width.saturating_sub(others);
        for (at, name) in names.iter().enumerate().filter(|_| too_long) {
            // A short name leaves its room to the next ones.
            let share = (room / (names.len() - at)).max(1);
            room = room.saturating_sub(share.min(len(name)));
            for cell in self.rows.iter_mut().filter_map(|row| row.get_mut(*name)) {
                let excess = cell.chars().count().saturating_sub(share);
                if excess > 0 {
                    *cell = std::iter::once('…').chain(cell.chars().skip(excess + 1)).collect();
                }
            }
        }
        for row in &mut self.rows {
            *row = kept.iter().filter_map(|column| row.get(*column).cloned()).collect();
        }
    }

    /// Returns how wide each column is.
    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }

    /// Adds a row. Text from a peer cannot control the terminal: control characters become `?`.
    pub(crate) fn row(&mut self, cells: &[&str]) {
        let clean = |cell: &&str| cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.rows.push(cells.iter().map(clean).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
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
    fn a_table_that_is_too_wide_loses_columns_first_and_then_the_beginning_of_names() {
        let fitted = |width| {
            let mut table = Table::new(&["RATE", "ERRORS", "NAME", "FROM", "TARGET", "REST"]);
            table.row(&["1", "0", "iqn.a:host", "192.0.2.1", "iqn.a:disk-one", "anything"]);
            table.fit(width, &[1, 3], &[2, 4]);
            table.to_string()
        };
        let row = |width| fitted(width).lines().nth(1).unwrap().to_owned();
        assert_eq!(row(80), "1     0       iqn.a:host  192.0.2.1  iqn.a:disk-one  anything");
        assert_eq!(row(50), "1     iqn.a:host  192.0.2.1  iqn.a:disk-one  anything");
        assert_eq!(row(32), "1     iqn.a:host  iqn.a:disk-one  anything");
        assert_eq!(row(26), "1     …n.a:host  …disk-one  anything");
        assert_eq!(row(0), "1     …  …  anything");
    }

    #[test]
    fn columns_line_up_and_no_line_ends_in_spaces() {
        let mut table = Table::new(&["A", "LONG", "C"]);
        table.row(&["äö", "x", ""]);
        table.row(&["y", "\u{1b}[31mz", "w"]);
        assert_eq!(table.to_string(), "A   LONG    C\näö  x\ny   ?[31mz  w\n");
    }
}
