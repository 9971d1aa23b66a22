//! Patterns for names, as shells have them.

/// Returns true when a path below a directory matches.
///
/// `*` and `?` stand for anything but `/`, `[a-z]` and `[!a-z]` for one character, `**` for any number of directories. A
/// pattern without `/` is matched against the last name only, at any depth.
pub fn matches(pattern: &[u8], path: &[u8]) -> bool {
    if pattern.contains(&b'/') {
        let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
        let parts: Vec<&[u8]> = pattern.split(|byte| *byte == b'/').collect();
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        return parts_match(&parts, &names);
    }
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    name_matches(pattern, name)
}

/// Matches with one position to come back to, so that the time is at most the product of both lengths.
fn parts_match(parts: &[&[u8]], names: &[&[u8]]) -> bool {
    let (mut part, mut name) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while name < names.len() {
        match parts.get(part) {
            Some(&b"**") => {
                back = Some((part, name));
                part += 1;
            }
            Some(pattern) if name_matches(pattern, names[name]) => {
                part += 1;
                name += 1;
            }
            _ => match &mut back {
                Some((star, from)) => {
                    *from += 1;
                    (part, name) = (*star + 1, *from);
                }
                None => return false,
            },
        }
    }
    parts[part..].iter().all(|part| *part == b"**")
}

fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while here < name.len() {
        if pattern.get(at) == Some(&b'*') {
            back = Some((at, here));
            at += 1;
            continue;
        }
        let width = width(&name[here..]);
        match one(&pattern[at..], &name[here..here + width]) {
            Some(used) => {
                at += used;
                here += width;
            }
            None => match &mut back {
                Some((star, from)) => {
                    *from += 1;
                    (at, here) = (*star + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns the number of bytes of the character that begins here; 1 for bytes that are not UTF-8.
fn width(name: &[u8]) -> usize {
    let most = name.len().min(4);
    (1..=most).find(|end| std::str::from_utf8(&name[..*end]).is_ok()).unwrap_or(1)
}

/// Returns the length of the next element of a pattern when it stands for that character.
fn one(pattern: &[u8], character: &[u8]) -> Option<usize> {
    match pattern.first()? {
        b'?' => Some(1),
        b'[' => match class(pattern, character) {
            Some((true, used)) => Some(used),
            Some((false, _)) => None,
            // A class without an end stands for the bracket itself.
            None => (character == b"[").then_some(1),
        },
        b'\\' if pattern.len() > 1 => {
            pattern[1..].starts_with(character).then_some(1 + character.len())
        }
        _ => pattern.starts_with(character).then_some(character.len()),
    }
}

/// Returns whether a class has the character, and the length of the class.
fn class(pattern: &[u8], character: &[u8]) -> Option<(bool, usize)> {
    let inverted = matches!(pattern.get(1), Some(b'!' | b'^'));
    let mut at = if inverted { 2 } else { 1 };
    let (start, mut has) = (at, false);
    loop {
        if pattern.get(at)? == &b']' && at > start {
            return Some((has != inverted, at + 1));
        }
        let low = &pattern[at..at + width(&pattern[at..])];
        at += low.len();
        let mut high = low;
        if pattern.get(at) == Some(&b'-') && pattern.get(at + 1).is_some_and(|next| *next != b']') {
            high = &pattern[at + 1..at + 1 + width(&pattern[at + 1..])];
            at += 1 + high.len();
        }
        // UTF-8 sorts as its characters do.
        has |= low <= character && character <= high;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(pattern: &str, path: &str) -> bool {
        matches(pattern.as_bytes(), path.as_bytes())
    }

    #[test]
    fn patterns_mean_what_they_mean_elsewhere() {
        for (pattern, path) in [
            ("*.py", "a.py"),
            ("*.py", "deep/er/a.py"),
            ("a?c", "abc"),
            ("a?c", "aéc"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[à-ü]", "é"),
            ("[]]", "]"),
            ("[", "["),
            ("\\*", "*"),
            ("src/*.rs", "src/a.rs"),
            ("**/a.rs", "a.rs"),
            ("**/a.rs", "x/y/a.rs"),
            ("src/**", "src/x/y"),
            ("src/**/z", "src/z"),
            ("*", "a\nb"),
            ("**", "x/y"),
        ] {
            assert!(found(pattern, path), "{pattern} {path:?}");
        }
        for (pattern, path) in [
            ("*.py", "a.pyc"),
            ("src/*.rs", "src/x/a.rs"),
            ("src/*.rs", "deep/src/a.rs"),
            ("[a-c]x", "dx"),
            ("[!a-c]x", "bx"),
            ("a", "A"),
            ("", "a"),
            ("a?c", "ac"),
            ("**/a.rs", "x/ba.rs"),
        ] {
            assert!(!found(pattern, path), "{pattern} {path:?}");
        }
    }

    #[test]
    fn no_pattern_takes_forever() {
        let (pattern, name) = ("*a".repeat(100) + "b", "a".repeat(255));
        assert!(!found(&pattern, &name));
    }
}
