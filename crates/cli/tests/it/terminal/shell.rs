//! `sandboxes shell` and `--tty`.

use rustix::process::Signal;

use super::pty::{CTRL_C, Home};
use crate::support::sandboxes;

#[test]
fn a_shell_has_the_size_of_the_window_and_gives_its_status() {
    let home = Home::new();
    let mut terminal = home.terminal(&["shell"]);
    terminal.resize(33, 101);
    terminal.press("stty size; echo \"$((6 * 7))\"\r");
    terminal.expect("42\r\n");
    terminal.resize(44, 111);
    terminal.press("while [ \"$(stty size)\" != '44 111' ]; do :; done; echo \"re$((6 * 7))\"\r");
    terminal.expect("re42\r\n");
    // Printed by the other program: the shell could be interrupted before that program is in the foreground.
    terminal.press("sh -c 'echo \"be$((6 * 7))\"; exec sleep 60'; echo \"is $?\"\r");
    terminal.expect("be42\r\n");
    terminal.press(CTRL_C);
    terminal.expect("$ ");
    terminal.press("exit 7\r");
    let (status, shown) = terminal.end();
    assert_eq!(status, 7, "{shown}");
}

#[test]
fn logs_do_nothing_to_a_terminal() {
    let home = Home::new();
    let id = home.create();
    let forged = "printf 'a\\rb\\033[1A\\033]0;title\\007\\302\\233c\\342\\200\\256d\\te\\n'";
    home.ok(&["exec", &id, forged], "");
    let (status, shown) = home.terminal(&["logs", &id]).end();
    assert_eq!(status, 0, "{shown}");
    let line = r"stdout a\rb\u{1b}[1A\u{1b}]0;title\u{7}\u{9b}c\u{202e}d";
    assert!(shown.contains(line), "{shown:?}");
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']), "{shown:?}");
    // A pipe gets the bytes unchanged.
    let piped = home.ok(&["logs", &id], "");
    assert!(
        piped.contains("stdout a\rb\u{1b}[1A\u{1b}]0;title\u{7}\u{9b}c\u{202e}d\te\n"),
        "{piped:?}"
    );
}

#[test]
fn a_shell_can_be_left_whatever_its_program_does() {
    let home = Home::new();
    let id = home.create();
    let deaf = "trap '' INT TERM HUP; echo \"de$((6 * 7))\"; while :; do sleep 1; done\r";
    let mut terminal = home.terminal(&["shell", &id]);
    terminal.press(deaf);
    terminal.expect("de42\r\n");
    terminal.press("\u{1d}\u{1d}\u{1d}");
    assert_eq!(terminal.end().0, 130);
    for (signal, expected) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let mut terminal = home.terminal(&["shell", &id]);
        terminal.press(deaf);
        terminal.expect("de42\r\n");
        terminal.signal(signal);
        assert_eq!(terminal.end().0, expected);
        let mut terminal = home.repl(&[&id]);
        terminal.press("typed");
        terminal.expect("typed");
        terminal.signal(signal);
        let (status, shown) = terminal.end();
        assert_eq!(status, expected);
        assert!(shown.contains("\u{1b}[?2004l"), "pastes are still marked: {shown:?}");
    }
    assert!(home.ok(&["ls"], "").contains(&id), "it is still there");
}

#[test]
fn a_shell_without_a_terminal_reads_a_script() {
    let home = Home::new();
    let id = home.create();
    assert_eq!(
        home.ok(&["shell", &id], "echo $((6 * 7)); [ -t 0 ] || echo no terminal\n"),
        "42\nno terminal\n"
    );
    let outcome = sandboxes(["shell", "--json"]).stdin("echo out; echo err >&2; exit 3").output();
    let result = outcome.json();
    assert_eq!(
        (outcome.status, &result["stdout"], &result["stderr"]),
        (3, &"out".into(), &"err".into())
    );
}

#[test]
fn a_program_that_ignores_ctrl_c_gets_a_note_about_the_second() {
    let home = Home::new();
    let mut terminal = home.terminal(&["run", "trap '' INT; echo \"re$((6 * 7))\"; sleep 60"]);
    terminal.expect("re42\r\n");
    terminal.press(CTRL_C);
    terminal.expect("a second Ctrl-C ends it");
    terminal.press(CTRL_C);
    assert_eq!(terminal.end().0, 130);
}

#[test]
fn commands_run_on_the_terminal_when_asked_to() {
    let home = Home::new();
    let id = home.create();
    let mut terminal = home.terminal(&[
        "exec",
        &id,
        "--tty",
        "-e",
        "A=1",
        "tty; read line; echo \"$A $line\"; exit 5",
    ]);
    terminal.expect("/dev/pts/");
    terminal.press("typed\r");
    terminal.expect("\r\n1 typed\r\n");
    assert_eq!(terminal.end().0, 5);
    let terminal = home.terminal(&["run", "--tty", "stty size"]);
    let (status, shown) = terminal.end();
    assert_eq!((status, shown.as_str()), (0, "24 80\r\n"));
    let refused = sandboxes(["run", "--tty", "tty"]).output();
    assert_eq!(refused.status, 2, "{}", refused.transcript());
    assert!(refused.stderr.contains("needs a terminal"), "{}", refused.stderr);
    let refused = home.terminal(&["run", "--tty", "--lang", "python", "1"]).end();
    assert_eq!(refused.0, 2, "{}", refused.1);
    let refused = home.terminal(&["shell", "--json"]).end();
    assert_eq!(refused.0, 2, "{}", refused.1);
}
