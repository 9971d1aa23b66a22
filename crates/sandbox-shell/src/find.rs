//! Finds files by name and lines by content.

use sandbox_core::{FindFiles, FoundFile, Result};

use super::files::{ShellFiles, malformed_output};
use sandbox_engine::files::{glob, names};

/// Default and highest number of results.
const DEFAULT_LIMIT: usize = 10_000;
const MAX_RESULTS: usize = 100_000;

/// Longest text of a search, and longest line of a result, in bytes.
const MAX_TEXT: usize = 64 << 10;
const MAX_LINE: usize = 4096;

/// Finds the files or lines of a query.
pub(super) async fn find(files: &ShellFiles, query: FindFiles) -> Result<Vec<FoundFile>> {
    let target = files.target("find_files", &query.root)?;
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if limit == 0 || limit > MAX_RESULTS {
        return Err(target.about.invalid("limit", "a limit is 1 to 100000"));
    }
    let contains = query.contains.as_deref();
    if contains
        .is_some_and(|text| text.is_empty() || text.contains(['\n', '\0']) || text.len() > MAX_TEXT)
    {
        let message = "the text to look for must be part of one line and not empty";
        return Err(target.about.invalid("contains", message));
    }
    let further = match contains {
        None => vec!["names"],
        Some(text) => vec!["lines", text],
    };
    let output = files.ask(&target, "find", &further).await?;
    let pattern = query.name.as_deref().map(names::to_bytes);
    let root = target.shown.trim_end_matches('/');
    let matches = |path: &[u8]| pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, path));
    let mut fields: Vec<&[u8]> = output.stdout.split(|byte| *byte == 0).collect();
    // Every field ends with NUL.
    if fields.pop().is_some_and(|rest| !rest.is_empty()) {
        return Err(malformed_output(&target));
    }
    let mut found: Vec<(&[u8], &[u8])> = match contains {
        None => fields.into_iter().map(|path| (path, &b""[..])).collect(),
        Some(_) => {
            let (pairs, rest) = fields.as_chunks::<2>();
            if !rest.is_empty() {
                return Err(malformed_output(&target));
            }
            pairs.iter().map(|[path, lines]| (*path, *lines)).collect()
        }
    };
    for (path, _) in &mut found {
        *path = path.strip_prefix(b"./").unwrap_or(path);
    }
    found.retain(|(path, _)| matches(path));
    // By name within each directory.
    found.sort_by(|(one, _), (other, _)| {
        one.split(|byte| *byte == b'/').cmp(other.split(|byte| *byte == b'/'))
    });
    let mut results = Vec::new();
    for (path, lines) in found {
        let path = format!("{root}/{}", names::to_text(path));
        if contains.is_none() {
            results.push(FoundFile { path, line: None });
        } else {
            let lines = lines.split(|byte| *byte == b'\n').filter_map(numbered);
            results.extend(lines.map(|line| FoundFile { path: path.clone(), line: Some(line) }));
        }
        if results.len() >= limit {
            break;
        }
    }
    results.truncate(limit);
    Ok(results)
}

/// Parses a line with its number before it.
fn numbered(line: &[u8]) -> Option<(u64, String)> {
    let at = memchr::memchr(b':', line)?;
    let number = std::str::from_utf8(&line[..at]).ok()?.parse().ok()?;
    let text = &line[at + 1..];
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_LINE)]);
    let end = text.floor_char_boundary(MAX_LINE);
    Some((number, text[..end].to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_numbers() {
        assert_eq!(numbered(b"12:a:b"), Some((12, "a:b".to_owned())));
        assert_eq!(numbered(b"Binary file x matches"), None);
        let long = [b"1:".to_vec(), vec![b'x'; 5000]].concat();
        assert_eq!(numbered(&long).map(|(_, text)| text.len()), Some(MAX_LINE));
    }
}
