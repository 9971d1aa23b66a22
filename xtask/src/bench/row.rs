//! Rows of the table, and the bars they are held to.

use serde_json::{Value, json};

/// What a row is held to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bar {
    /// At most that many times the yardstick.
    Ratio(f64),
    /// At most that much, in the unit of the row.
    Most(f64),
    /// At least that much, in the unit of the row.
    Least(f64),
    /// Told, and held to nothing.
    Information,
}

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    /// Ours; what went wrong when it could not be measured.
    pub(crate) value: Result<f64, String>,
    /// What it is compared with: its name, its figure, and the ratio, best of the rounds.
    pub(crate) yardstick: Option<(&'static str, f64, f64)>,
    pub(crate) bar: Bar,
}

impl Row {
    /// A figure that is compared with nothing.
    pub(crate) fn plain(
        name: impl Into<String>,
        unit: &'static str,
        value: Result<f64, String>,
        bar: Bar,
    ) -> Self {
        Self { name: name.into(), unit, value, yardstick: None, bar }
    }

    /// Whether the bar was met; `None` for information. What could not be measured meets no bar.
    fn meets(&self) -> Option<bool> {
        let value = self.value.as_ref().ok().copied();
        match self.bar {
            Bar::Information => None,
            Bar::Most(most) => Some(value.is_some_and(|value| value <= most)),
            Bar::Least(least) => Some(value.is_some_and(|value| value >= least)),
            Bar::Ratio(most) => {
                Some(value.is_some() && self.yardstick.is_some_and(|(_, _, ratio)| ratio <= most))
            }
        }
    }

    /// Whether it was held to something and did not reach it.
    pub(crate) fn misses(&self) -> bool {
        self.meets() == Some(false)
    }

    fn verdict(&self) -> &'static str {
        match self.meets() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        }
    }

    fn bar_text(&self) -> String {
        match self.bar {
            Bar::Ratio(most) => format!("<= {most}x"),
            Bar::Most(most) => format!("<= {most} {}", self.unit),
            Bar::Least(least) => format!(">= {least} {}", self.unit),
            Bar::Information => String::new(),
        }
    }

    fn cells(&self) -> [String; 6] {
        let value = match &self.value {
            Ok(value) => format!("{} {}", short(*value), self.unit),
            Err(why) => why.clone(),
        };
        let (yardstick, ratio) = match self.yardstick {
            Some((name, figure, ratio)) => {
                (format!("{name}: {} {}", short(figure), self.unit), format!("{}x", short(ratio)))
            }
            None => Default::default(),
        };
        [self.name.clone(), value, yardstick, ratio, self.bar_text(), self.verdict().to_owned()]
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Prints the table with columns as wide as they need to be.
pub(crate) fn print_table(rows: &[Row]) {
    let head = ["", "here", "yardstick", "ratio", "bar", ""].map(str::to_owned);
    let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..6).map(|column| width(column).unwrap_or(0)).collect();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// The table as JSON.
pub(crate) fn to_json(rows: &[Row]) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            json!({
                "name": row.name,
                "unit": row.unit,
                "value": row.value.as_ref().ok(),
                "error": row.value.as_ref().err(),
                "yardstick": row.yardstick.map(|(name, value, ratio)| {
                    json!({"name": name, "value": value, "ratio": ratio})
                }),
                "bar": row.bar_text(),
                "met": row.meets(),
            })
        })
        .collect();
    format!("{:#}\n", Value::Array(rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_can_be_missed() {
        let row = |value, bar| Row::plain("x", "ms", value, bar);
        assert!(!row(Ok(1.0), Bar::Most(2.0)).misses());
        assert!(row(Ok(3.0), Bar::Most(2.0)).misses());
        assert!(row(Ok(3.0), Bar::Least(4.0)).misses());
        assert!(row(Err("broken".into()), Bar::Most(2.0)).misses());
        assert!(row(Ok(1.0), Bar::Ratio(2.0)).misses());
        assert!(!row(Err("not installed".into()), Bar::Information).misses());
        let mut compared = row(Ok(1.0), Bar::Ratio(0.5));
        compared.yardstick = Some(("y", 4.0, 0.25));
        assert!(!compared.misses());
    }
}
