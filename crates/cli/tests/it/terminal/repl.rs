//! `sandboxes repl`, driven by key presses.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::pty::{CTRL_C, DONE, Home, PROMPT, Terminal, UP};
use crate::jupyter::interpreter;

#[test]
fn a_session_keeps_definitions_and_shows_values() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    assert_eq!(terminal.cell("x = 41"), "\r\n\u{1b}[?2004h\u{1b}[?2026h\r\u{1b}[K");
    assert!(terminal.cell("x + 1").starts_with("\r\n42\r\n"));
    assert!(terminal.cell("print('no newline', end='')").starts_with("\r\nno newline\r\n"));
    assert!(terminal.cell("None").starts_with("\r\n\u{1b}"));
    let failed = terminal.cell("1 / 0");
    assert!(failed.contains("ZeroDivisionError: division by zero\r\n"), "{failed}");
    assert!(terminal.cell("!echo from the shell").contains("from the shell\r\n"));
    let exited = terminal.cell("import sys; sys.exit(3)");
    assert!(exited.contains("the code exited with status 3"), "{exited}");
    assert!(terminal.cell("x").contains("\r\n41\r\n"), "the session went on");
    terminal.leave();
}

#[test]
fn incomplete_code_goes_on_in_the_next_line() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.press("for n in range(3):\r");
    terminal.expect("range(3):\r\n    ");
    terminal.press("print('n is', n)\r");
    terminal.expect("n)\r\n    ");
    terminal.press("\r");
    terminal.expect(DONE);
    assert_eq!(terminal.expect(PROMPT).matches("n is").count(), 3);
    for (first, second, value) in
        [("sum([1,", "2])", "3"), ("'''a", "b'''", "'a\\nb'"), ("4 + \\", "5", "9")]
    {
        terminal.press(first);
        terminal.press("\r");
        terminal.expect(&format!("{first}\r\n"));
        let shown = terminal.cell(second);
        assert!(shown.contains(&format!("\r\n{value}\r\n")), "{shown:?}");
    }
    // The history returns the whole text, which can be edited.
    terminal.press(UP);
    terminal.press("\u{7f}7");
    assert!(terminal.cell("").contains("\r\n11\r\n"));
    // Backspace removes one step of indentation.
    terminal.press("if None:\r");
    terminal.expect("None:\r\n    ");
    terminal.press("x = 1\r");
    terminal.expect("x = 1\r\n    ");
    terminal.press("\u{7f}");
    terminal.press("else: print('el' 'se')\r\r");
    terminal.expect(DONE);
    let shown = terminal.expect(PROMPT);
    assert!(shown.contains("\r\nelse\r\n"), "{shown:?}");
    // A syntax error is reported at once.
    assert!(terminal.cell("x = )").contains("SyntaxError"));
    // Alt-Enter inserts a line break anywhere.
    terminal.press("1\u{1b}\r");
    terminal.expect("1\r\n");
    assert!(terminal.cell("2").contains("\r\n2\r\n"));
    // A paste is one input.
    terminal.press("\u{1b}[200~def f():\n    return 6 * 7\n\nf()\u{1b}[201~\r");
    terminal.expect(DONE);
    assert!(terminal.expect(PROMPT).contains("\r\n42\r\n"));
    terminal.leave();
}

#[test]
fn names_are_completed_and_nothing_is_changed_by_it() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.cell("import os; some_long_name = 5; class_before = set(globals())");
    terminal.press("some_lo\t");
    terminal.expect("some_long_name");
    assert!(terminal.cell("").contains("\r\n5\r\n"));
    terminal.press("os.path.isabs\t");
    assert!(terminal.cell("('/a')").contains("\r\nTrue\r\n"));
    terminal.press("os.getpp\t");
    terminal.expect("os.getppid");
    assert!(terminal.cell(".__name__").contains("\r\n'getppid'\r\n"));
    // The first list of all modules may take longer than the editor waits.
    terminal.cell("len([*__import__('pkgutil').iter_modules()])");
    terminal.press("import textw\t");
    terminal.expect("import textwrap");
    terminal.cell("");
    terminal.press("textwrap.\t");
    let listed = terminal.expect("shorten");
    assert!(listed.contains("dedent") && !listed.contains("__"), "{listed}");
    terminal.press(CTRL_C);
    terminal.expect(DONE);
    terminal.expect(PROMPT);
    let new = terminal.cell("sorted(set(globals()) - class_before - {'_', '__', '___'})");
    assert!(new.contains("\r\n['class_before', 'textwrap']\r\n"), "{new:?}");
    // Completion does not depend on the streams that code has replaced.
    terminal.cell("import io, sys; own, sys.stdout = sys.stdout, io.StringIO()");
    terminal.press("some_lo\t");
    terminal.expect("some_long_name");
    assert!(terminal.cell(" + 1, sys.stdout.getvalue()").contains("\r\n(6, '')\r\n"));
    terminal.cell("sys.stdout = own");
    // Tab at the beginning of a line indents.
    terminal.press("if True:\r");
    terminal.expect("True:\r\n    ");
    terminal.press("\tprint('deep')");
    terminal.expect("print('deep')");
    terminal.press("\r");
    terminal.expect("deep')\r\n        ");
    terminal.press("\r");
    terminal.expect(DONE);
    assert!(terminal.expect(PROMPT).contains("\r\ndeep\r\n"));
    terminal.press(":re\t");
    terminal.expect(":reset");
    assert!(terminal.cell("").contains("the interpreter was restarted"));
    assert!(terminal.cell("some_long_name").contains("NameError"));
    terminal.leave();
}

#[test]
fn a_slow_completion_does_not_block_typing() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.press("class Slow:\r");
    terminal.expect("Slow:\r\n    ");
    terminal.press("__getattr__ = lambda self, name: __import__('time').sleep(60)\r\r");
    terminal.expect(DONE);
    terminal.expect(PROMPT);
    terminal.cell("slow = Slow(); kept = 6");
    let began = Instant::now();
    terminal.press("slow.a.b\t");
    terminal.press(CTRL_C);
    terminal.expect(DONE);
    terminal.expect(PROMPT);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(terminal.cell("kept * 7").contains("\r\n42\r\n"), "the interpreter is the same");
    terminal.leave();
}

#[test]
fn ctrl_c_interrupts_the_cell_and_keeps_the_session() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.press("this is not run");
    terminal.press(CTRL_C);
    terminal.expect(DONE);
    terminal.expect(PROMPT);
    terminal.cell("x = 5");
    terminal.press("print('begun'); __import__('time').sleep(60)\r");
    terminal.expect("begun\r\n");
    terminal.press(CTRL_C);
    assert!(terminal.expect(PROMPT).contains("KeyboardInterrupt"));
    assert!(terminal.cell("x").contains("\r\n5\r\n"));
    // Code that ignores interrupts ends with its interpreter.
    let deaf = "exec('import time\\nprint(\"begun\")\\nwhile True:\\n try: time.sleep(60)\\n except KeyboardInterrupt: print(\"heard\")')";
    terminal.press(deaf);
    terminal.press("\r");
    terminal.expect("\r\nbegun\r\n");
    terminal.press(CTRL_C);
    terminal.expect("heard");
    terminal.press(CTRL_C);
    assert!(terminal.expect(PROMPT).contains("the interpreter was ended"));
    assert!(terminal.cell("x").contains("NameError"), "it is a fresh one");
    terminal.leave();
}

#[test]
fn a_dead_interpreter_is_reported_and_replaced() {
    let home = Home::new();
    let mut terminal = home.repl(&["-t", "2"]);
    let died = terminal.cell("open('kept', 'w').write('1'); import os; os._exit(3)");
    assert!(died.contains("the interpreter ended with status 3"), "{died}");
    assert!(terminal.cell("1 + 1").contains("\r\n2\r\n"));
    let late = terminal.cell("__import__('time').sleep(60)");
    assert!(late.contains("timed out after 2 seconds"), "{late}");
    let files = terminal.cell(":files");
    assert!(files.contains("kept"), "{files}");
    assert!(terminal.cell(":files /nowhere").contains("sandboxes: error: "));
    assert!(terminal.cell(":nonsense").contains(":nonsense is not a command"));
    assert!(terminal.cell(":help").contains(":files [DIR]"));
    terminal.press("exit()\r");
    assert_eq!(terminal.end().0, 0);
}

#[test]
fn code_can_read_input_and_typed_ahead_input_waits() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.press("name = input('name? ')\r");
    terminal.expect("\r\nname? ");
    terminal.press("ada\n");
    terminal.expect(PROMPT);
    assert!(terminal.cell("name").contains("\r\n'ada'\r\n"));
    terminal.press("print('begun'); __import__('time').sleep(1)\r");
    terminal.expect("\r\nbegun\r\n");
    terminal.press("6 * 7\n");
    terminal.expect("\r\n42\r\n");
    terminal.expect(PROMPT);
    terminal.leave();
}

#[test]
fn history_is_private_and_comes_back() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.cell("first = 1");
    terminal.cell(" secret = 2");
    terminal.leave();
    let file = home.path().join("state/sandboxes/repl_history");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("first = 1") && !text.contains("secret"), "{text}");
    let mut terminal = home.repl(&[]);
    terminal.press(UP);
    terminal.expect("first = 1");
    assert!(terminal.cell("; first + 1").contains("\r\n2\r\n"));
    terminal.leave();
    // Where the history file cannot be created, there is none, and no message.
    let nowhere = [("XDG_STATE_HOME", "/proc/nowhere")];
    let mut terminal = home.terminal_with(&["repl"], &nowhere);
    terminal.expect(PROMPT);
    assert!(terminal.cell("1").contains("\r\n1\r\n"));
    terminal.leave();
}

const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn define_image(terminal: &mut Terminal) {
    let code = format!(
        "P = type('P', (), {{'_repr_png_': lambda self: __import__('base64').b64decode('{IMAGE}'), '__repr__': lambda self: 'an image'}})"
    );
    terminal.cell(&code);
}

#[test]
fn images_are_shown_where_the_terminal_can_and_saved_elsewhere() {
    let home = Home::new();
    for (variable, begins) in [
        (("TERM", "xterm-kitty"), "\u{1b}_Ga=T,f=100,m=0;"),
        (("TERM_PROGRAM", "iTerm.app"), "\u{1b}]1337;File=size=70;inline=1:"),
    ] {
        let mut terminal = home.terminal_with(&["repl"], &[variable]);
        terminal.expect(PROMPT);
        define_image(&mut terminal);
        let shown = terminal.cell("P()");
        assert!(shown.contains(&format!("{begins}{IMAGE}")), "{shown:?}");
        assert!(!shown.contains("an image"), "{shown:?}");
        terminal.leave();
    }
    let mut terminal = home.repl(&[]);
    define_image(&mut terminal);
    let shown = terminal.cell("P()");
    assert!(shown.contains("\r\nan image\r\n"), "{shown:?}");
    let (_, path) = shown.split_once("png saved: ").expect("a path");
    let path = Path::new(path.split("\r\n").next().unwrap()).to_owned();
    assert!(path.starts_with(home.path()), "{path:?}");
    assert!(fs::read(&path).unwrap().starts_with(b"\x89PNG"));
    assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    let table =
        "type('T', (), {'_repr_html_': lambda self: '<table>', '__repr__': lambda self: 'a  b'})()";
    let shown = terminal.cell(table);
    assert!(shown.contains("\r\na  b\r\n") && !shown.contains("<table>\r\n"), "{shown:?}");
    terminal.leave();
}

#[test]
fn a_sandbox_that_stays_keeps_nothing_of_the_editor() {
    let home = Home::new();
    let id = home.create();
    home.ok(&["exec", &id, "--lang", "python", "x = 41"], "");
    let mut terminal = home.terminal(&["repl", &id]);
    terminal.expect("it stays");
    terminal.expect(PROMPT);
    terminal.press("if x:\r");
    terminal.expect("x:\r\n    ");
    terminal.press("x += 1\r\r");
    terminal.expect(DONE);
    terminal.expect(PROMPT);
    terminal.press("x\t");
    terminal.cell("");
    let saved = home.path().join("cells.py");
    terminal.cell(&format!(":save {}", saved.display()));
    terminal.leave();
    assert_eq!(fs::read_to_string(&saved).unwrap(), "if x:\n    x += 1\n\nx\n");
    assert_eq!(home.ok(&["exec", &id, "--lang", "python", "x"], ""), "42\n");
    let logs = home.ok(&["logs", &id], "");
    assert!(logs.contains("code if x:") && !logs.contains("question"), "{logs}");
    let processes = "ls /proc | grep -c '^[0-9]'";
    let before = home.ok(&["exec", &id, processes], "");
    home.repl(&[&id]).leave();
    let mut terminal = home.repl(&[&id]);
    terminal.cell("x");
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.end().0, 143);
    assert_eq!(home.ok(&["exec", &id, processes], ""), before, "an interpreter was left");
    // Without a terminal the whole input is one program.
    assert_eq!(
        home.ok(&["repl", &id], "import sys\nprint(sys.argv, __name__)\n5\n"),
        "['-'] __main__\n"
    );
    let refused = home.terminal(&["repl", &id, "--disk", "1g"]).end();
    assert_eq!(refused.0, 2, "{}", refused.1);
    home.ok(&["stop", &id], "");
    let ended = home.terminal(&["repl", &id]).end();
    assert!(ended.0 == 125 && ended.1.contains("has ended"), "{}", ended.1);
    assert!(!home.ok(&["ls"], "").contains(&id));
    let all = home.ok(&["ls", "-a"], "");
    assert!(all.contains(&id) && all.contains("terminated"), "{all}");
    assert!(!home.ok(&["ls", "-a", "-l", "a=b"], "").contains(&id));
}

#[test]
fn the_end_of_the_sandbox_is_the_end_of_the_session() {
    let home = Home::new();
    let id = home.create();
    let mut terminal = home.repl(&[&id]);
    home.ok(&["rm", &id], "");
    terminal.press("1 + 1\r");
    let (status, shown) = terminal.end();
    assert_eq!(status, 125, "{shown}");
    assert!(shown.contains("for a new sandbox"), "{shown}");
}

#[test]
fn invalid_utf8_does_not_end_the_session() {
    let home = Home::new();
    let mut terminal = home.repl(&[]);
    terminal.press("6 *");
    terminal.expect("6 *");
    terminal.press(b"\xff");
    terminal.expect("is not UTF-8 text");
    terminal.expect("6 *");
    assert!(terminal.cell(" 7").contains("\r\n42\r\n"));
    // The next prompt begins empty.
    assert!(terminal.cell("'fresh'").contains("\r\n'fresh'\r\n"));
    terminal.press("import time; print('be' 'gun', flush=True); time.sleep(1)\r");
    terminal.expect("begun");
    terminal.press(b"\xff\xfe\r");
    terminal.expect("is not UTF-8 text");
    assert!(terminal.cell("'al' 'ive'").contains("'alive'"));
    terminal.leave();
}

#[test]
fn the_end_of_the_sandbox_ends_a_session_in_the_middle_of_a_cell() {
    let home = Home::new();
    let id = home.create();
    let mut terminal = home.repl(&[&id]);
    terminal.press("import time; print('be' 'gun', flush=True); time.sleep(60)\r");
    terminal.expect("begun");
    home.ok(&["rm", &id], "");
    let (status, shown) = terminal.end();
    assert_eq!(status, 125, "{shown}");
    assert!(shown.contains("for a new sandbox"), "{shown}");
}

#[test]
fn an_unknown_terminal_is_a_simple_one() {
    let home = Home::new();
    let mut terminal = home.terminal_with(&["repl"], &[("TERM", "")]);
    terminal.expect(PROMPT);
    terminal.press(b"'6 * 7 is', 6 * 7 # \xff\n");
    let shown = terminal.expect("('6 * 7 is', 42)\r\n");
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
    terminal.expect(PROMPT);
    terminal.leave();
}

#[test]
fn a_session_on_a_simple_terminal_works_too() {
    let home = Home::new();
    let mut terminal = home.terminal_with(&["repl"], &[("TERM", "dumb")]);
    terminal.expect(PROMPT);
    terminal.press("6 * 7\n");
    terminal.expect("\r\n42\r\n");
    terminal.expect(PROMPT);
    terminal.press("for n in [1]:\n    print('n is', n)\n\n");
    terminal.expect("n is 1\r\n");
    terminal.expect(PROMPT);
    terminal.leave();
}

/// A kernel of a connection file cannot be restarted, so the session does not wait for it.
#[test]
fn a_session_ends_with_the_kernel_of_a_connection_file() {
    let Some(python) = interpreter() else { return };
    let home = Home::new();
    let file = home.path().join("kernel.json");
    let mut kernel = Command::new(python);
    kernel.args(["-m", "ipykernel_launcher", "-f"]).arg(&file).env("IPYTHONDIR", home.path());
    kernel.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut kernel = kernel.spawn().unwrap();
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "no kernel");
        std::thread::sleep(Duration::from_millis(50));
    }
    let file = file.to_str().unwrap();
    let mut terminal = home.repl(&["--connection-file", file, "--isolation", "off"]);
    assert!(terminal.cell("6 * 7").contains("\r\n42\r\n"));
    let began = Instant::now();
    terminal.press("import os; os._exit(3)\r");
    terminal.expect("the kernel of the connection file has ended");
    let (status, _) = terminal.end();
    assert_eq!(status, 125);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    kernel.wait().unwrap();
}
