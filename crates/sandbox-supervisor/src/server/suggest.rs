//! "Did you mean" suggestions for ids and names.

/// Maximum number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// Returns the known names most similar to `wanted`, the best first.
pub(super) fn suggest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let mut close: Vec<_> = known
        .into_iter()
        .map(|name| (distance(wanted, name), name))
        .filter(|(distance, name)| {
            *distance <= 1 + wanted.len().min(name.len()) / 4 || has_common_prefix(wanted, name)
        })
        .collect();
    close.sort();
    close.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect()
}

fn has_common_prefix(a: &str, b: &str) -> bool {
    a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count() >= 3
}

/// Returns the Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(256).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(256).enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_right() {
        for (a, b, expected) in
            [("", "", 0), ("abc", "", 3), ("kitten", "sitting", 3), ("é", "e", 1)]
        {
            assert_eq!(distance(a, b), expected, "{a} {b}");
        }
    }

    #[test]
    fn similar_names_are_suggested() {
        let known = ["9f3a21bc77de", "9f3b00000000", "aaaaaaaaaaaa", "builder"];
        assert_eq!(suggest("9f3a21bc77dd", known), ["9f3a21bc77de", "9f3b00000000"]);
        assert_eq!(suggest("bulider", known), ["builder"]);
        assert!(suggest("zzzz", known).is_empty());
    }
}
