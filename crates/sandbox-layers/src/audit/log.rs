//! The file of an audit log: lines that are chained to each other, and the note of the last one.
//!
//! A directory of mode 0700 holds `audit.jsonl` (the lines), older files `audit-N.jsonl` whose first line is number N,
//! `key` (32 random bytes, mode 0600), `head` (number and code of the last line) and `lock`. The code of a line is
//! HMAC-SHA-256, with that key, of the code of the line before and of the line itself. So a line that was changed, removed or
//! inserted shows, and a tail that is missing shows by `head`. A process that can read the key can forge all of it: the chain
//! stops other users, code in sandboxes and accidents, not the owner of the log and not root.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit as _, Mac as _};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::Sha256;

/// The member of a line that has its code. It is the last one.
const CODE: &str = "mac";

/// The names of the note of the last line, and of the file whose lock writers take.
const NOTE: &str = "head";
const LOCK: &str = "lock";

/// Length of the note of the last line, which is filled up with spaces.
const NOTE_LENGTH: usize = 256;

/// Maximum length of a line that is read back. Lines that are written are far shorter.
const MAX_LINE: u64 = 4 << 20;

/// The last line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    /// Number of lines, in all files.
    count: u64,
    /// Code of the last line, in hex. Empty before the first.
    mac: String,
    /// Bytes of the current file.
    bytes: u64,
}

/// What a check of a log found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditReport {
    /// Lines that are whole and in their place.
    pub lines: u64,
    /// Files that hold them.
    pub files: usize,
    /// The first thing that is wrong. `None`: the log is whole.
    pub problem: Option<String>,
}

/// A directory with an audit log. Its files are kept open from one line to the next.
#[derive(Debug)]
pub(super) struct LogDirectory {
    path: PathBuf,
    key: [u8; 32],
    max_file: u64,
    sync: bool,
    lock: File,
    note: File,
    /// The file of lines, once one was written.
    current: Option<File>,
}

impl LogDirectory {
    /// Opens a log, and makes it when it is missing.
    pub(super) fn open(path: &Path, max_file: u64, sync: bool) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).recursive(true).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        check_private(path)?;
        let lock = open_lock(path)?;
        let locked = Locked::take(&lock, FlockOperation::LockExclusive)?;
        // Before the key, so that a log with a key and no note has lost it.
        let is_new = !path.join("key").exists() && files(path)?.is_empty();
        let note = open_note(path, is_new)?;
        if is_new {
            write_note(&note, &Head::default(), sync)?;
        }
        let key = read_key(path)?;
        drop(locked);
        Ok(Self { path: path.to_owned(), key, max_file, sync, lock, note, current: None })
    }

    /// Appends a record as the next line. Processes take turns.
    pub(super) fn append(&mut self, record: &mut Map<String, Value>) -> io::Result<()> {
        self.append_with(record, FlockOperation::LockExclusive)
    }

    /// Appends a record as the next line. `WouldBlock` when another process is writing.
    pub(super) fn try_append(&mut self, record: &mut Map<String, Value>) -> io::Result<()> {
        self.append_with(record, FlockOperation::NonBlockingLockExclusive)
    }

    fn append_with(
        &mut self,
        record: &mut Map<String, Value>,
        operation: FlockOperation,
    ) -> io::Result<()> {
        if !is_at(&self.lock, &self.path.join(LOCK))? {
            self.lock = open_lock(&self.path)?;
        }
        let _locked = Locked::take(&self.lock, operation)?;
        if !is_at(&self.note, &self.path.join(NOTE))? {
            self.note = open_note(&self.path, false)?;
            self.key = read_key(&self.path)?;
        }
        let mut head = read_note(&self.note)?;
        let path = self.path.join("audit.jsonl");
        if head.bytes >= self.max_file {
            let first = first_number(&path)?.unwrap_or(head.count);
            fs::rename(&path, self.path.join(format!("audit-{first}.jsonl")))?;
            head.bytes = 0;
        }
        if !path.try_exists()? {
            // A process ended between the rename and the note. Lines that are missing show in a check.
            head.bytes = 0;
        }
        let file = match self.current.take() {
            Some(file) if is_at(&file, &path)? => file,
            _ => OpenOptions::new().create(true).append(true).mode(0o600).open(&path)?,
        };
        let file = self.current.insert(file);
        let length = file.metadata()?.len();
        if length > head.bytes {
            // A process ended between a line and its note: nothing has vouched for that line.
            file.set_len(head.bytes)?;
        } else if length < head.bytes {
            return Err(io::Error::other("lines of the audit log are missing"));
        }
        head.count += 1;
        record.insert("seq".to_owned(), head.count.into());
        let text = serde_json::to_string(record)?;
        head.mac = code(&self.key, &head.mac, &text);
        let line = format!("{},\"{CODE}\":\"{}\"}}\n", &text[..text.len() - 1], head.mac);
        file.write_all(line.as_bytes())?;
        if self.sync {
            file.sync_data()?;
        }
        head.bytes += line.len() as u64;
        write_note(&self.note, &head, self.sync)
    }

    /// Reads every line, the oldest first, until `each` returns false.
    pub(super) fn read(&self, mut each: impl FnMut(&str) -> bool) -> io::Result<()> {
        for file in files(&self.path)? {
            for line in BufReader::new(File::open(file)?).lines() {
                if !each(&line?) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Checks every line and the note of the last one.
    pub(super) fn verify(&self) -> io::Result<AuditReport> {
        let _locked = Locked::take(&self.lock, FlockOperation::LockExclusive)?;
        let head = read_note(&self.note)?;
        let files = files(&self.path)?;
        let mut report = AuditReport { files: files.len(), ..AuditReport::default() };
        let mut last = String::new();
        for file in files {
            let mut reader = BufReader::new(File::open(&file)?);
            loop {
                let mut line = String::new();
                let read = (&mut reader).take(MAX_LINE).read_line(&mut line)?;
                if read == 0 {
                    break;
                }
                match self.check(&line, &last, report.lines + 1) {
                    Ok(mac) => last = mac,
                    Err(_) if report.lines == head.count => break,
                    Err(problem) => {
                        let name = file.file_name().unwrap_or_default().to_string_lossy();
                        report.problem =
                            Some(format!("line {} (in {name}) {problem}", report.lines + 1));
                        return Ok(report);
                    }
                }
                report.lines += 1;
            }
        }
        if report.lines < head.count {
            report.problem =
                Some(format!("{} lines are missing at the end", head.count - report.lines));
        } else if last != head.mac {
            report.problem = Some("the last line is not the one that was noted".to_owned());
        }
        Ok(report)
    }

    /// Checks one line, and returns its code.
    fn check(&self, line: &str, before: &str, number: u64) -> Result<String, String> {
        let line = line.strip_suffix('\n').ok_or("is cut")?;
        let (text, mac) = line.rsplit_once(&format!(",\"{CODE}\":\"")).ok_or("has no code")?;
        let mac = mac.strip_suffix("\"}").ok_or("has no code")?;
        let text = format!("{text}}}");
        if code(&self.key, before, &text) != mac {
            return Err("was changed, or does not follow the line before".to_owned());
        }
        let record: Value = serde_json::from_str(&text).map_err(|_| "is no JSON")?;
        if record["seq"] != number {
            return Err("has another number".to_owned());
        }
        Ok(mac.to_owned())
    }
}

/// Opens the note of the last line. Only a new log has none.
fn open_note(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(is_new).truncate(false).read(true).write(true).mode(0o600);
    options.open(path.join(NOTE)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("the note of the last line is missing"),
        _ => error,
    })
}

fn read_note(note: &File) -> io::Result<Head> {
    let mut text = [0; NOTE_LENGTH];
    let mut length = 0;
    while length < text.len() {
        match note.read_at(&mut text[length..], length as u64)? {
            0 => break,
            read => length += read,
        }
    }
    Ok(serde_json::from_slice(&text[..length])?)
}

/// Writes the note of the last line over the one before, in one write of one length within one sector: a process or a
/// computer that ends leaves one or the other. A file of its own that is renamed takes eight times as long.
fn write_note(note: &File, head: &Head, sync: bool) -> io::Result<()> {
    let mut text = serde_json::to_vec(head)?;
    text.resize(NOTE_LENGTH, b' ');
    note.write_all_at(&text, 0)?;
    if sync {
        note.sync_data()?;
    }
    Ok(())
}

/// Returns true when a path still leads to an open file, which may have been removed, or its directory moved.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |file: &Metadata| (file.dev(), file.ino());
    match fs::metadata(path) {
        Ok(there) => Ok(identity(&there) == identity(&file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The files of a log, the oldest first.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut old = Vec::new();
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| {
            name.strip_prefix("audit-")?.strip_suffix(".jsonl")?.parse::<u64>().ok()
        });
        if let Some(number) = number {
            old.push((number, path.join(name)));
        }
    }
    old.sort();
    let current = path.join("audit.jsonl");
    let current = current.exists().then_some(current);
    Ok(old.into_iter().map(|(_, path)| path).chain(current).collect())
}

fn first_number(path: &Path) -> io::Result<Option<u64>> {
    let mut line = String::new();
    BufReader::new(File::open(path)?).take(MAX_LINE).read_line(&mut line)?;
    Ok(serde_json::from_str::<Value>(&line).ok().and_then(|line| line["seq"].as_u64()))
}

fn code(key: &[u8], before: &str, text: &str) -> String {
    // Keys of HMAC have any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(before.as_bytes());
    mac.update(b"\n");
    mac.update(text.as_bytes());
    hex(&mac.finalize().into_bytes())
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_private(path: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(path)?;
    let problem = if !metadata.is_dir() {
        "is not a directory"
    } else if metadata.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if metadata.mode() & 0o077 != 0 {
        "can be entered by other users"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK))
}

/// Holds the lock of a log until it is dropped.
struct Locked<'lock>(&'lock File);

impl<'lock> Locked<'lock> {
    fn take(file: &'lock File, operation: FlockOperation) -> io::Result<Self> {
        flock(file, operation)?;
        Ok(Self(file))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Fails for a file that is not open, and this one is.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

fn read_key(path: &Path) -> io::Result<[u8; 32]> {
    let path = path.join("key");
    let mut key = [0; 32];
    let mut options = OpenOptions::new();
    match options.read(true).write(true).create_new(true).mode(0o600).open(&path) {
        Ok(mut file) => {
            getrandom::fill(&mut key).map_err(io::Error::other)?;
            file.write_all(&key)?;
            file.sync_all()?;
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(0))?;
            file.read_exact(&mut key)
                .map_err(|_| io::Error::other("the key of the audit log is cut"))?;
        }
        Err(error) => return Err(error),
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(text: &str) -> Map<String, Value> {
        let Value::Object(map) = json!({"text": text}) else { unreachable!("an object") };
        map
    }

    fn filled(directory: &Path) -> LogDirectory {
        let mut log = LogDirectory::open(&directory.join("log"), 1 << 20, false).unwrap();
        for text in ["one", "two", "three"] {
            log.append(&mut record(text)).unwrap();
        }
        log
    }

    #[test]
    fn lines_are_chained_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let log = filled(directory.path());
        assert_eq!(log.verify().unwrap(), AuditReport { lines: 3, files: 1, problem: None });
        for name in ["audit.jsonl", "key", "head", "lock"] {
            let mode = fs::metadata(log.path.join(name)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        let mut seen = Vec::new();
        log.read(|line| {
            seen.push(serde_json::from_str::<Value>(line).unwrap()["text"].clone());
            true
        })
        .unwrap();
        assert_eq!(seen, ["one", "two", "three"]);
    }

    #[test]
    fn a_change_a_gap_and_a_missing_tail_show() {
        for (what, change, problem) in [
            ("change", ["two", "TWO"], "line 2 (in audit.jsonl) was changed"),
            ("number", ["\"seq\":2", "\"seq\":9"], "line 2 (in audit.jsonl) was changed"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let log = filled(directory.path());
            let path = log.path.join("audit.jsonl");
            let text = fs::read_to_string(&path).unwrap().replace(change[0], change[1]);
            fs::write(&path, text).unwrap();
            let found = log.verify().unwrap().problem.unwrap();
            assert!(found.starts_with(problem), "{what}: {found}");
        }
        let cut = |keep: fn(&[&str]) -> String| {
            let directory = tempfile::tempdir().unwrap();
            let log = filled(directory.path());
            let path = log.path.join("audit.jsonl");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(&path, keep(&text.lines().collect::<Vec<_>>())).unwrap();
            log.verify().unwrap().problem.unwrap()
        };
        let gap = cut(|lines| format!("{}\n{}\n", lines[0], lines[2]));
        assert!(gap.starts_with("line 2 (in audit.jsonl) was changed"), "{gap}");
        let tail = cut(|lines| format!("{}\n{}\n", lines[0], lines[1]));
        assert_eq!(tail, "1 lines are missing at the end");
    }

    #[test]
    fn files_are_rotated_and_the_chain_goes_over_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = LogDirectory::open(&directory.path().join("log"), 300, false).unwrap();
        for number in 0..20 {
            log.append(&mut record(&format!("line {number}"))).unwrap();
        }
        let report = log.verify().unwrap();
        assert_eq!((report.lines, &report.problem), (20, &None));
        assert!(report.files > 3, "{report:?}");
        let first = files(&log.path).unwrap().remove(0);
        fs::remove_file(first).unwrap();
        assert!(log.verify().unwrap().problem.is_some());
    }

    #[test]
    fn a_log_that_was_removed_with_its_note_is_no_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogDirectory::open(&path, 1 << 20, false).unwrap();
        assert_eq!(log.verify().unwrap().problem, None, "a new log is whole");
        log.append(&mut record("a line")).unwrap();
        fs::remove_file(path.join("audit.jsonl")).unwrap();
        fs::remove_file(path.join("head")).unwrap();
        // For a process that has the log open, and for one that opens it.
        let refused = log.append(&mut record("another line")).unwrap_err();
        assert!(refused.to_string().contains("note of the last line"), "{refused}");
        let refused = LogDirectory::open(&path, 1 << 20, false).unwrap_err();
        assert!(refused.to_string().contains("note of the last line"), "{refused}");
    }

    #[test]
    fn a_log_that_was_moved_away_is_left_for_the_one_in_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = filled(directory.path());
        let archived = directory.path().join("archived");
        fs::rename(&log.path, &archived).unwrap();
        let refused = log.append(&mut record("nowhere")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotFound);
        LogDirectory::open(&log.path, 1 << 20, false).unwrap();
        log.append(&mut record("first")).unwrap();
        for (path, lines) in [(&archived, 3), (&log.path, 1)] {
            let report = LogDirectory::open(path, 1 << 20, false).unwrap().verify().unwrap();
            assert_eq!((report.lines, report.problem), (lines, None), "{}", path.display());
        }
    }

    #[test]
    fn several_processes_take_turns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    // Each has the file open by itself, as a process has.
                    let mut log = LogDirectory::open(&path, 4096, false).unwrap();
                    for _ in 0..50 {
                        log.append(&mut record("x")).unwrap();
                    }
                });
            }
        });
        let log = LogDirectory::open(&path, 4096, false).unwrap();
        let report = log.verify().unwrap();
        assert_eq!((report.lines, report.problem), (200, None));
    }

    #[test]
    fn a_line_without_its_note_is_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut log = filled(directory.path());
        let path = log.path.join("audit.jsonl");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"half").unwrap();
        assert_eq!(log.verify().unwrap().problem, None);
        log.append(&mut record("four")).unwrap();
        assert_eq!(log.verify().unwrap(), AuditReport { lines: 4, files: 1, problem: None });
    }
}
