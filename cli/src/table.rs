//! Aligned columns for people.

use std::fmt;

/// Rows under a head. Columns of numbers are set to the right.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A name that starts with `>` heads a column of numbers.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Cells missing at the end stay empty; more than the head has are left out.
    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().take(self.head.len()).map(Into::into).collect());
    }

    fn names(&self) -> impl Iterator<Item = (&'static str, bool)> {
        self.head.iter().map(|name| match name.strip_prefix('>') {
            Some(name) => (name, true),
            None => (*name, false),
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cell = |row: &Vec<String>, column: usize| row.get(column).cloned().unwrap_or_default();
        let columns: Vec<(bool, usize)> = self
            .names()
            .enumerate()
            .map(|(column, (name, right))| {
                let cells = self.rows.iter().map(|row| cell(row, column).chars().count());
                (right, cells.max().unwrap_or(0).max(name.chars().count()))
            })
            .collect();
        let head = self.names().map(|(name, _)| name.to_uppercase()).collect();
        for (number, row) in std::iter::once(&head).chain(&self.rows).enumerate() {
            let mut line = String::new();
            for (column, (right, width)) in columns.iter().enumerate() {
                let text = cell(row, column);
                if column > 0 {
                    line.push_str("  ");
                }
                let blank = " ".repeat(width.saturating_sub(text.chars().count()));
                line.push_str(&if *right { blank + &text } else { text + &blank });
            }
            if number > 0 {
                f.write_str("\n")?;
            }
            f.write_str(line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let mut table = Table::new(&["name", ">us", "why"]);
        table.row(["linear", "9", "fast"]);
        table.row(["é", "1200"]);
        table.row(["x", "1", "y", "too much"]);
        let lines = ["NAME      US  WHY", "linear     9  fast", "é       1200", "x          1  y"];
        assert_eq!(table.to_string(), lines.join("\n"));
    }

    #[test]
    fn without_rows_there_is_a_head() {
        assert_eq!(Table::new(&["a", ">b"]).to_string(), "A  B");
    }
}
