//! Files in and out of a sandbox that stays, and what its runs are given: as people do it in a shell.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::support::{Outcome, binary, shell};

/// A directory with a supervisor of its own, and a sandbox with the name `v`.
struct Desk(TempDir);

impl Desk {
    #[track_caller]
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("bin")).unwrap();
        symlink(binary(), directory.path().join("bin/sandboxes")).unwrap();
        let desk = Self(directory);
        let outcome = desk.run("sandboxes create --name v");
        assert_eq!(outcome.status, 0, "{}", outcome.transcript());
        desk
    }

    fn run(&self, line: &str) -> Outcome {
        shell(line, self.0.path())
    }

    /// Runs lines that are refused: with that status, and that on standard error.
    #[track_caller]
    fn refuses(&self, lines: &[&str], status: i32, said: &str) {
        for line in lines {
            let outcome = self.run(line);
            assert_eq!(outcome.status, status, "{line}: {}", outcome.transcript());
            assert!(outcome.stderr.contains(said), "{line}: {}", outcome.stderr);
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.run("sandboxes rm --all");
    }
}

#[test]
fn what_is_left_out_of_a_copy_is_named() {
    let desk = Desk::new();
    let make =
        "mkdir -p d/e; mkfifo d/e/pipe; ln -s / d/out; echo x > d/e/file; ln -s e/file d/fine";
    desk.run(&format!("sandboxes exec v '{make}'")).assert(0, "");
    let outcome = desk.run("sandboxes cp --json v:d here && cat here/e/file here/fine >&2");
    assert_eq!(outcome.status, 0, "{}", outcome.transcript());
    assert_eq!(outcome.json()["skipped"], serde_json::json!(["out", "e/pipe"]));
    assert!(outcome.stderr.contains("x\nx\n"), "{}", outcome.stderr);
    for path in ["out\n", "e/pipe\n"] {
        assert!(outcome.stderr.contains(path), "{path}: {}", outcome.stderr);
    }
}

#[test]
fn local_names_are_any_bytes() {
    let desk = Desk::new();
    let line = r#"
        f=$(printf 'caf\351'); echo x > "$f"
        sandboxes cp "$f" v:x && sandboxes cp v:x "$f.back" && cat "$f.back"
        sandboxes cp "$f" v:/tmp/"#;
    let outcome = desk.run(line);
    outcome.assert(2, "x\n");
    assert!(outcome.stderr.contains(r#""caf\xE9" is not UTF-8"#), "{}", outcome.stderr);
}

#[test]
fn what_cannot_be_copied_is_no_wrong_usage() {
    let desk = Desk::new();
    let lines = [
        "mkfifo pipe; sandboxes cp pipe v:pipe",
        "sandboxes cp missing v:missing",
        "sandboxes cp v:missing here",
        "sandboxes exec v 'mkfifo p'; sandboxes cp v:p here",
        "sandboxes exec v 'echo x > x'; touch file; ln -s file link; sandboxes cp v:x link",
    ];
    desk.refuses(&lines, 125, "error: ");
    let lines = ["sandboxes cp - v:x", "sandboxes cp v:x -"];
    desk.refuses(&lines, 2, "cannot be copied");
    desk.refuses(&["sandboxes cp -dash v:x"], 2, "use '-- -dash'");
    desk.run("echo x > ./-dash; sandboxes cp -- -dash v:x").assert(0, "");
    assert!(!desk.0.path().join("-").exists());
}

#[test]
fn a_link_to_a_directory_is_a_place_for_a_copy() {
    let desk = Desk::new();
    let line = "mkdir real; ln -s real link; sandboxes exec v 'echo x > x'; sandboxes cp v:x link; cat real/x";
    desk.run(line).assert(0, "x\n");
}

#[test]
fn a_working_directory_that_is_not_there_is_told_alike() {
    let desk = Desk::new();
    let lines = ["sandboxes exec -w /nope v ls", "sandboxes exec -w /nope v --lang python 1"];
    desk.refuses(&lines, 125, "working directory /nope");
    desk.refuses(&["sandboxes exec v nope -x"], 127, "nope");
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let desk = Desk::new();
    desk.refuses(&["sandboxes create -t 1"], 2, "-t is for what runs");
    desk.refuses(&["sandboxes exec v --context c2 ls"], 2, "--context is for code");
    desk.refuses(&["sandboxes exec '' ls"], 2, "is empty");
}

#[test]
fn input_that_cannot_be_read_is_not_an_empty_one() {
    let desk = Desk::new();
    let lines = [
        "sandboxes exec v cat < /",
        "sandboxes shell v < /",
        "sandboxes run cat < /",
        "sandboxes repl v < /",
        "sandboxes exec v cat 0> file",
    ];
    desk.refuses(&lines, 125, "reading standard input failed");
}
