//! Copies into and out of a detached sandbox, from a shell.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::support::{Outcome, binary, shell};

/// A directory with a supervisor of its own, and a sandbox with the name `v`.
pub(crate) struct Desk(pub(crate) TempDir);

impl Desk {
    #[track_caller]
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("bin")).unwrap();
        symlink(binary(), directory.path().join("bin/sandboxes")).unwrap();
        let desk = Self(directory);
        let outcome = desk.run("sandboxes create --name v");
        assert_eq!(outcome.status, 0, "{}", outcome.transcript());
        desk
    }

    pub(crate) fn run(&self, line: &str) -> Outcome {
        shell(line, self.0.path())
    }

    /// Runs lines, and asserts that each is refused with a status and a message.
    #[track_caller]
    fn refuses(&self, lines: &[&str], status: i32, message: &str) {
        for line in lines {
            let outcome = self.run(line);
            assert_eq!(outcome.status, status, "{line}: {}", outcome.transcript());
            assert!(outcome.stderr.contains(message), "{line}: {}", outcome.stderr);
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = self.run("sandboxes rm --all");
    }
}

#[test]
fn a_directory_below_the_root_is_made_for_an_upload() {
    let desk = Desk::new();
    fs::write(desk.0.path().join("local.txt"), "text").unwrap();
    desk.run("sandboxes cp local.txt v:/remote/file.txt").assert(0, "");
    desk.run("sandboxes exec v 'cat /remote/file.txt'").assert(0, "text");
    desk.run("sandboxes cp v:/remote/file.txt downloaded.txt && cat downloaded.txt")
        .assert(0, "text");
}

#[test]
fn files_left_out_of_a_copy_are_named() {
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
fn impossible_copies_are_not_usage_errors() {
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
fn a_missing_working_directory_is_the_same_error_for_code_and_commands() {
    let desk = Desk::new();
    let lines = ["sandboxes exec -w /nope v ls", "sandboxes exec -w /nope v --lang python 1"];
    desk.refuses(&lines, 125, "working directory /nope");
    desk.refuses(&["sandboxes exec v nope -x"], 127, "nope");
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let desk = Desk::new();
    desk.refuses(&["sandboxes create -t 1"], 2, "-t limits a run");
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

#[test]
fn times_and_permissions_go_both_ways() {
    let desk = Desk::new();
    let line = "
        umask 022
        mkdir -p d/sub; echo x > d/sub/run; chmod 755 d/sub/run; chmod 700 d/sub; chmod 750 d
        touch -d @1000000000 d/sub/run; touch -d @1100000000 d/sub; cp -p d/sub/run one
        sandboxes cp d v:d && sandboxes cp one v:one
        sandboxes exec v 'stat -c \"%a %Y\" d/sub/run d/sub one; stat -c %a d'
        sandboxes cp v:d back && sandboxes cp v:one back.one
        stat -c '%a %Y' back/sub/run back/sub back.one; stat -c %a back";
    let each = "755 1000000000\n700 1100000000\n755 1000000000\n750\n";
    desk.run(&line.replace("\\\"", "\"")).assert(0, &each.repeat(2));
}

#[test]
fn a_directory_is_merged_on_the_way_out_and_nothing_is_written_through_a_link() {
    let desk = Desk::new();
    let line = "
        sandboxes exec v 'mkdir -p d/sub; echo new > d/same; echo b > d/sub/b; echo l > d/link'
        mkdir -p d/sub; echo old > d/same; echo a > d/sub/a; echo kept > outside; ln -s ../outside d/link
        sandboxes cp v:d . && cat d/same d/sub/a d/sub/b d/link outside; ls -A d
        mkdir e; echo e > e/mine; sandboxes cp v:d/. e && ls e";
    desk.run(line).assert(0, "new\na\nb\nl\nkept\nlink\nsame\nsub\nlink\nmine\nsame\nsub\n");
    let outcome =
        desk.run("rm -r d/sub; echo x > d/sub; echo old > d/same; sandboxes cp v:d .; cat d/same");
    assert!(outcome.stderr.contains("d/sub on this computer is in the way"), "{}", outcome.stderr);
    assert_eq!(outcome.text(), "old\n", "nothing is changed when not all of it can be");
}

#[test]
fn several_files_go_into_one_directory() {
    let desk = Desk::new();
    let line = "
        echo 1 > a; echo 2 > b; mkdir out
        sandboxes cp a b v:new/ && sandboxes cp v:new/a v:new/b out && cat out/a out/b
        sandboxes cp a v:~/home && sandboxes exec v 'cat ~/home'
        mkdir c; echo 3 > c/c; sandboxes cp c/. v:new && sandboxes exec v 'ls new'";
    desk.run(line).assert(0, "1\n2\n1\na\nb\nc\n");
    desk.refuses(&["sandboxes cp a b v:a"], 2, "is not a directory");
    desk.refuses(&["sandboxes cp a v:b v:c", "sandboxes cp a b c"], 2, "SANDBOX:PATH");
}

#[test]
fn files_with_holes_are_bounded_by_the_disk_of_their_sandbox() {
    let desk = Desk::new();
    let made = desk.run("sandboxes create --name small --disk 16m");
    assert_eq!(made.status, 0, "{}", made.transcript());
    let make = "mkdir d; for i in $(seq 1 40); do truncate -s 16M d/$i; done";
    desk.run(&format!("sandboxes exec small '{make}'")).assert(0, "");
    desk.refuses(
        &["sandboxes cp small:d here"],
        125,
        "larger than the disk of the sandbox (16 MiB)",
    );
    desk.run("ls").assert(0, "bin\n");
    desk.run("sandboxes cp small:d/1 one && wc -c <one").assert(0, "16777216\n");
}
