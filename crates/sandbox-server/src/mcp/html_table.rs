//! Tables of HTML, as data frames have them, as Markdown.

/// Columns beyond which a table is shown as text.
const MAX_COLUMNS: usize = 60;

/// Returns the first table of a fragment of HTML as Markdown. `None` when there is none, or one in another.
pub(super) fn markdown(html: &str) -> Option<String> {
    let lower = html.to_ascii_lowercase();
    let start = lower.find("<table")?;
    let end = start + lower[start..].find("</table")?;
    let (html, lower) = (&html[start..end], &lower[start..end]);
    if lower[1..].contains("<table") {
        return None;
    }
    let rows: Vec<Vec<String>> = pieces(html, lower, "<tr").map(cells).collect();
    let rows: Vec<_> = rows.into_iter().filter(|row| !row.is_empty()).collect();
    let columns = rows.iter().map(Vec::len).max().filter(|columns| *columns <= MAX_COLUMNS)?;
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let padding = std::iter::repeat_n(String::new(), columns - row.len());
        let cells: Vec<_> = row.iter().cloned().chain(padding).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if index == 0 {
            text.push_str(&format!("|{}\n", " --- |".repeat(columns)));
        }
    }
    Some(text)
}

/// Splits a text at each beginning of a tag, without what is before the first one.
fn pieces<'a>(html: &'a str, lower: &str, tag: &str) -> impl Iterator<Item = &'a str> {
    let mut starts: Vec<_> = lower
        .match_indices(tag)
        .map(|(at, _)| at)
        .filter(|at| !lower[at + tag.len()..].starts_with(|c: char| c.is_ascii_alphanumeric()))
        .collect();
    starts.push(html.len());
    let ranges: Vec<_> = starts.windows(2).map(|pair| pair[0]..pair[1]).collect();
    ranges.into_iter().map(move |range| &html[range])
}

fn cells(row: &str) -> Vec<String> {
    let lower = row.to_ascii_lowercase();
    let mut starts: Vec<_> = ["<td", "<th"]
        .iter()
        .flat_map(|tag| lower.match_indices(tag))
        .map(|(at, tag)| (at, at + tag.len()))
        .filter(|(_, after)| !lower[*after..].starts_with(|c: char| c.is_ascii_alphanumeric()))
        .map(|(at, _)| at)
        .collect();
    starts.sort_unstable();
    starts.push(row.len());
    starts.windows(2).map(|pair| cell(&row[pair[0]..pair[1]])).collect()
}

/// Returns the text of a cell on one line, with entities resolved and bars escaped.
fn cell(html: &str) -> String {
    let mut text = String::new();
    let mut in_tag = false;
    for c in html.chars() {
        match c {
            '<' => in_tag = true,
            '>' if in_tag => {
                in_tag = false;
                text.push(' ');
            }
            _ if in_tag => {}
            c => text.push(c),
        }
    }
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ];
    let text =
        entities.iter().fold(text, |text, (entity, character)| text.replace(entity, character));
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_frame_becomes_a_table() {
        let html = "<div><style>td {x}</style><table border=\"1\"><thead><tr style=\"r\"><th></th><th>name</th></tr></thead>\
                    <tbody><tr><th>0</th><td>a|b</td></tr><tr><th>1</th><td>x &lt; y &amp;&amp; z</td></tr></tbody></table></div>";
        assert_eq!(
            markdown(html).unwrap(),
            "|  | name |\n| --- | --- |\n| 0 | a\\|b |\n| 1 | x < y && z |\n"
        );
    }

    #[test]
    fn anything_else_is_no_table() {
        for html in [
            "<b>x</b>",
            "<table>",
            "<table><tr><td><table></table></td></tr></table>",
            "",
            "<table></table>",
        ] {
            assert_eq!(markdown(html), None, "{html}");
        }
        assert!(markdown("<TABLE><TR><TD>a<TD>b</TABLE>").unwrap().starts_with("| a | b |"));
    }
}
