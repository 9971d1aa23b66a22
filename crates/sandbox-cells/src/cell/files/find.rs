//! Finds files by name and lines by content.

use std::os::fd::OwnedFd;

use memchr::{memchr_iter, memmem, memrchr};
use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use sandbox_core::{FileKind, FindFiles, FoundFile, Result};

use super::Stop;
use super::chunks::CHUNK_SIZE;
use super::names;
use super::path::CellPath;
use super::path::RootDir;
use super::tree::kind_of;
use super::walk::{Found, Walk};
use sandbox_engine::files::error::MAX_LISTING_SIZE;
use sandbox_engine::files::glob;

/// Maximum number of results where the caller gives none.
const DEFAULT_LIMIT: usize = 10_000;

/// Maximum number of results that a caller may ask for.
const MAX_RESULTS: usize = 100_000;

/// Maximum number of bytes of a line that are shown.
const MAX_LINE_LENGTH: usize = 1024;

pub(crate) fn find(
    tree: &RootDir,
    target: &CellPath,
    query: &FindFiles,
    stop: &Stop,
) -> Result<Vec<FoundFile>> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if limit == 0 || limit > MAX_RESULTS {
        return Err(target.about.invalid("limit", "a limit is 1 to 100000"));
    }
    let wanted = query.contains.as_deref().map(str::as_bytes);
    if wanted
        .is_some_and(|text| text.is_empty() || text.contains(&b'\n') || text.len() > CHUNK_SIZE)
    {
        let message = "the text to look for must be part of one line and not empty";
        return Err(target.about.invalid("contains", message));
    }
    let pattern = query.name.as_deref().map(names::to_bytes);
    let mut walk = Walk::new(target.about.clone(), target.open_directory(tree)?)?;
    let mut all = Vec::new();
    let mut left = MAX_LISTING_SIZE;
    let mut add = |path: &str, line: Option<(u64, String)>| {
        let size = path.len() + line.as_ref().map_or(0, |(_, text)| text.len());
        left = left.checked_sub(size).ok_or_else(|| target.about.answers_too_much())?;
        all.push(FoundFile { path: path.to_owned(), line });
        Ok(all.len())
    };
    let mut count = 0;
    while let Some(found) = walk.next()? {
        stop.check(&target.about)?;
        if pattern.as_ref().is_none_or(|pattern| glob::matches(pattern, &found.path)) {
            let path =
                format!("{}/{}", target.shown.trim_end_matches('/'), names::to_text(&found.path));
            match wanted {
                None => count = add(&path, None)?,
                Some(text) => {
                    for line in lines_of(&walk, &found, target, text, limit - count, stop)? {
                        count = add(&path, Some(line))?;
                    }
                }
            }
        }
        if count >= limit {
            break;
        }
        // A directory that cannot be entered has nothing that could be found.
        if found.kind() == FileKind::Directory {
            walk.enter(&found)?;
        }
    }
    Ok(all)
}

fn lines_of(
    walk: &Walk,
    found: &Found,
    target: &CellPath,
    text: &[u8],
    most: usize,
    stop: &Stop,
) -> Result<Vec<(u64, String)>> {
    let Some(directory) = walk.directory().filter(|_| found.kind() == FileKind::File) else {
        return Ok(Vec::new());
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(directory, &found.name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::ACCESS | Errno::NOENT | Errno::LOOP | Errno::NXIO) => return Ok(Vec::new()),
        Err(errno) => return Err(target.about.failed(errno)),
    };
    let status = fstat(&file).map_err(|errno| target.about.failed(errno))?;
    if kind_of(&status) != FileKind::File {
        return Ok(Vec::new());
    }
    let mut search = Search::new(text, most);
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        stop.check(&target.about)?;
        match read(&file, &mut buffer).map_err(|errno| target.about.failed(errno))? {
            0 => return Ok(search.finish()),
            count if search.feed(&buffer[..count]) => {}
            _ => return Ok(search.finish()),
        }
    }
}

fn read(file: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<usize> {
    loop {
        match rustix::io::read(file, &mut *buffer) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Searches for a text in chunks. Takes a fixed amount of memory, however long the lines are.
struct Search<'a> {
    finder: memmem::Finder<'a>,
    /// Bytes that were fed and not searched yet: the end of the last chunk, in which the text may begin.
    kept: Vec<u8>,
    /// The number of the line that `kept` begins in.
    line: u64,
    /// The beginning of that line, before `kept`.
    start: Vec<u8>,
    hits: Vec<(u64, Vec<u8>)>,
    /// Set while the line of the last hit is not complete.
    open: bool,
    most: usize,
}

impl<'a> Search<'a> {
    fn new(text: &'a [u8], most: usize) -> Self {
        Self {
            finder: memmem::Finder::new(text),
            kept: Vec::new(),
            line: 1,
            start: Vec::new(),
            hits: Vec::new(),
            open: false,
            most,
        }
    }

    /// Takes a chunk. Returns false when there are enough results.
    fn feed(&mut self, piece: &[u8]) -> bool {
        let mut window = std::mem::take(&mut self.kept);
        window.extend_from_slice(piece);
        // From here on the text may extend beyond the chunk.
        let certain = window.len().saturating_sub(self.finder.needle().len() - 1);
        self.search(&window, certain);
        self.kept = window.split_off(certain);
        self.hits.len() < self.most || self.open
    }

    fn finish(mut self) -> Vec<(u64, String)> {
        let window = std::mem::take(&mut self.kept);
        self.search(&window, window.len());
        let shown = |(line, bytes): (u64, Vec<u8>)| {
            let text = String::from_utf8_lossy(&bytes);
            (line, text.trim_end_matches('\r').to_owned())
        };
        self.hits.into_iter().take(self.most).map(shown).collect()
    }

    /// Searches for hits that begin before `end`, and moves on to there.
    fn search(&mut self, window: &[u8], end: usize) {
        let mut from = 0;
        if self.open {
            from = self.complete(window, end);
        }
        while self.hits.len() < self.most {
            let Some(at) = self.finder.find(&window[from..]).map(|at| from + at) else { break };
            if at >= end {
                break;
            }
            self.skip(&window[from..at]);
            let mut shown = std::mem::take(&mut self.start);
            shown.truncate(MAX_LINE_LENGTH);
            self.hits.push((self.line, shown));
            self.open = true;
            // From here on the line is completed.
            from = at;
            let done = self.complete(&window[from..], end - from);
            from += done;
        }
        self.skip(&window[from..end.max(from)]);
    }

    /// Skips bytes without a hit.
    fn skip(&mut self, bytes: &[u8]) {
        self.line += memchr_iter(b'\n', bytes).count() as u64;
        let rest = match memrchr(b'\n', bytes) {
            Some(last) => {
                self.start.clear();
                &bytes[last + 1..]
            }
            None => bytes,
        };
        let room = MAX_LINE_LENGTH.saturating_sub(self.start.len()).min(rest.len());
        self.start.extend_from_slice(&rest[..room]);
    }

    /// Adds to the line of the last hit up to its end or `end`. Returns the end of what was added.
    fn complete(&mut self, bytes: &[u8], end: usize) -> usize {
        let newline = memchr::memchr(b'\n', &bytes[..end]);
        let stop = newline.unwrap_or(end);
        if let Some((_, shown)) = self.hits.last_mut() {
            let room = MAX_LINE_LENGTH.saturating_sub(shown.len()).min(stop);
            shown.extend_from_slice(&bytes[..room]);
        }
        self.start.clear();
        match newline {
            Some(newline) => {
                self.open = false;
                self.line += 1;
                newline + 1
            }
            None => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn search(content: &[u8], text: &str, piece: usize, most: usize) -> Vec<(u64, String)> {
        let mut search = Search::new(text.as_bytes(), most);
        for part in content.chunks(piece.max(1)) {
            if !search.feed(part) {
                break;
            }
        }
        search.finish()
    }

    proptest! {
        #[test]
        fn lines_are_found_however_they_come(
            content in "[ab\n]{0,200}", text in "[ab]{1,4}", piece in 1usize..30, most in 1usize..5,
        ) {
            let expected: Vec<_> = content
                .split('\n')
                .zip(1u64..)
                .filter(|(line, _)| line.contains(&text))
                .map(|(line, number)| (number, line.to_owned()))
                .take(most)
                .collect();
            prop_assert_eq!(search(content.as_bytes(), &text, piece, most), expected);
        }
    }

    #[test]
    fn long_lines_are_cut() {
        let line = "x".repeat(100_000) + "needle" + &"y".repeat(100_000);
        let found = search(line.as_bytes(), "needle", 4096, 10);
        assert_eq!(found, [(1, "x".repeat(MAX_LINE_LENGTH))]);
    }
}
