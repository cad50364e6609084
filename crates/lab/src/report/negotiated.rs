//! What the sessions of each contestant agreed on with their target, as a section of a report.
//!
//! A figure without it misleads: a digest that a default negotiates costs some targets most of their rate.

use super::model::{Cell, Column, Section, Table};
use crate::bench::Negotiated;

/// What was negotiated, by contestant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(Vec<(String, Negotiated)>);

impl Sessions {
    /// Records what the sessions of a measurement agreed on. What is known is not recorded again.
    pub(crate) fn record(&mut self, contestant: &str, found: Vec<Negotiated>) {
        for found in found {
            if !self.0.iter().any(|(known, parameters)| known == contestant && *parameters == found) {
                self.0.push((contestant.to_owned(), found));
            }
        }
    }

    /// Returns the section; none if no session was recorded.
    pub(crate) fn section(&self) -> Option<Section> {
        let tables = self.tables();
        (!tables.is_empty()).then(|| Section {
            title: "What was negotiated".to_owned(),
            text: vec![TEXT.to_owned()],
            tables,
            ..Section::default()
        })
    }

    /// Returns a table for each set of names: those of one protocol.
    fn tables(&self) -> Vec<Table> {
        let names =
            |found: &Negotiated| -> Vec<&'static str> { found.0.iter().map(|(name, _)| *name).collect() };
        let mut tables: Vec<(Vec<&'static str>, Table)> = Vec::new();
        for (contestant, found) in self.0.iter().filter(|(_, found)| !found.0.is_empty()) {
            let values = found.0.iter().map(|(_, value)| Cell::Text(value.clone()));
            let row = std::iter::once(Cell::Text(contestant.clone())).chain(values).collect();
            match tables.iter_mut().find(|(known, _)| *known == names(found)) {
                Some((_, table)) => table.rows.push(row),
                None => tables.push((names(found), table(&names(found), row))),
            }
        }
        tables.into_iter().map(|(_, table)| table).collect()
    }
}

fn table(names: &[&str], row: Vec<Cell>) -> Table {
    let column = |title: &str| Column { title: title.to_owned(), unit: String::new() };
    Table {
        caption: "Parameters of the sessions".to_owned(),
        columns: std::iter::once("session").chain(names.iter().copied()).map(column).collect(),
        rows: vec![row],
    }
}

const TEXT: &str = "What initiator and target agreed on at the login of the measured sessions, by the names of the \
     standard, and not what was asked for. A contestant with several rows had sessions of several kinds.";

#[cfg(test)]
mod tests {
    use super::*;

    fn found(digest: &str) -> Negotiated {
        Negotiated(vec![("HeaderDigest", digest.to_owned()), ("DataDigest", digest.to_owned())])
    }

    #[test]
    fn each_different_session_has_a_row_and_each_protocol_a_table() {
        let mut sessions = Sessions::default();
        assert!(sessions.section().is_none());
        sessions.record("istgt", vec![found("CRC32C")]);
        sessions.record("istgt", vec![found("CRC32C"), found("None")]);
        sessions.record("targe", vec![found("None"), Negotiated::default()]);
        sessions.record("HyperSCSI", vec![Negotiated(vec![("frame_max", "9000".to_owned())])]);
        let section = sessions.section().unwrap();
        let rows: Vec<Vec<&Cell>> =
            section.tables.iter().flat_map(|table| &table.rows).map(|row| row.iter().collect()).collect();
        let text = |text: &str| Cell::Text(text.to_owned());
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[0], [&text("istgt"), &text("CRC32C"), &text("CRC32C")]);
        assert_eq!(rows[1], [&text("istgt"), &text("None"), &text("None")]);
        assert_eq!(rows[3], [&text("HyperSCSI"), &text("9000")]);
        assert!(section.tables.iter().all(|table| table.rows[0].len() == table.columns.len()));
        assert_eq!(found("CRC32C").get("DataDigest"), Some("CRC32C"));
        assert_eq!(found("CRC32C").get("MaxBurstLength"), None);
    }
}
