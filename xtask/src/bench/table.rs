//! The rows as text for people, as Markdown for the documents, and as JSON for programs.

use serde_json::{Value, json};

use crate::row::{Bar, Row};

const HEAD: [&str; 6] = ["", "here", "yardstick", "ratio", "bar", "verdict"];

/// Columns as wide as they need to be.
pub(crate) fn plain(rows: &[Row]) -> String {
    let lines = lines(rows);
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max();
    let widths: Vec<_> = (0..HEAD.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// A Markdown table.
pub(crate) fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    for (number, line) in lines(rows).iter().enumerate() {
        let cells = line.each_ref().map(|cell| cell.replace('|', "\\|"));
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if number == 0 {
            text.push_str("|---|---|---|---|---|---|\n");
        }
    }
    text
}

/// The host and the rows.
pub(crate) fn json(host: &Value, rows: &[Row]) -> String {
    let rows: Vec<Value> = rows.iter().map(row_json).collect();
    format!("{:#}\n", json!({"host": host, "rows": rows}))
}

fn row_json(row: &Row) -> Value {
    json!({
        "name": row.name,
        "unit": row.unit,
        "value": row.value.as_ref().ok(),
        "error": row.value.as_ref().err(),
        "yardstick": row.yardstick.map(|yardstick| {
            json!({"name": yardstick.name, "value": yardstick.value, "ratio": yardstick.ratio})
        }),
        "bar": bar(row),
        "met": row.meets(),
    })
}

fn lines(rows: &[Row]) -> Vec<[String; 6]> {
    let head = HEAD.map(str::to_owned);
    std::iter::once(head).chain(rows.iter().map(cells)).collect()
}

fn cells(row: &Row) -> [String; 6] {
    let value = match &row.value {
        Ok(value) => format!("{} {}", short(*value), row.unit),
        Err(why) => why.clone(),
    };
    let (yardstick, ratio) = match row.yardstick {
        Some(yardstick) => (
            format!("{}: {} {}", yardstick.name, short(yardstick.value), row.unit),
            format!("{}x", short(yardstick.ratio)),
        ),
        None => Default::default(),
    };
    [row.name.clone(), value, yardstick, ratio, bar(row), verdict(row).to_owned()]
}

fn verdict(row: &Row) -> &'static str {
    match row.meets() {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "",
    }
}

fn bar(row: &Row) -> String {
    match row.bar {
        Bar::Ratio(most) => format!("<= {most}x"),
        Bar::RatioAnd(most, more) => format!("<= {most}x + {more} {}", row.unit),
        Bar::Below(most) => format!("< {most} {}", row.unit),
        Bar::Least(least) => format!(">= {least} {}", row.unit),
        Bar::Information => String::new(),
    }
}

/// Three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        x if x >= 100.0 => format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 1.0 => format!("{value:.2}"),
        x if x >= 0.1 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Yardstick;

    fn rows() -> Vec<Row> {
        let yardstick = Yardstick { name: "other", value: 2.0, ratio: 1.5 };
        vec![
            Row::compared("slow", Ok((3.0, yardstick)), Bar::Ratio(1.0)),
            Row::information("gone", Err("not installed".to_owned())),
        ]
    }

    #[test]
    fn a_missed_bar_and_a_missing_peer_are_seen() {
        let text = plain(&rows());
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[1].starts_with("slow  3.00 ms"), "{text}");
        assert!(lines[1].ends_with("other: 2.00 ms  1.50x  <= 1x  MISSED"), "{text}");
        assert!(lines[2].ends_with("not installed"), "{text}");
        assert!(
            markdown(&rows())
                .contains("| slow | 3.00 ms | other: 2.00 ms | 1.50x | <= 1x | MISSED |")
        );
    }

    #[test]
    fn json_has_the_host_and_the_rows() {
        let text = json(&json!({"cores": 2}), &rows());
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["host"]["cores"], 2);
        assert_eq!(value["rows"][0]["yardstick"]["ratio"], 1.5);
        assert_eq!(value["rows"][0]["met"], false);
        assert_eq!(value["rows"][1]["error"], "not installed");
        assert_eq!(value["rows"][1]["met"], Value::Null);
    }
}
