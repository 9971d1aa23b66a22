//! The binary on a pseudo-terminal: keys go in, and the screen comes out.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tempfile::TempDir;

use crate::support::{binary, sandboxes, wait};

/// Maximum wait, to catch hangs.
const TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const PROMPT: &str = ">>> ";
/// Printed by the editor at the end of an input.
pub(super) const DONE: &str = "\u{1b}[?2004l";
pub(super) const CTRL_C: &str = "\u{3}";
pub(super) const CTRL_D: &str = "\u{4}";
pub(super) const UP: &str = "\u{1b}[A";

/// A directory with a supervisor and a history of its own.
pub(super) struct Home(TempDir);

impl Home {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self(directory)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    fn variables(&self) -> [(&'static str, String); 6] {
        let below = |name: &str| self.path().join(name).to_str().unwrap().to_owned();
        fs::create_dir_all(below("tmp")).unwrap();
        [
            ("CODE_SANDBOXES_RUNTIME_DIR", below("run")),
            ("CODE_SANDBOXES_SUPERVISOR_IDLE", "1".into()),
            ("XDG_STATE_HOME", below("state")),
            ("TMPDIR", below("tmp")),
            ("TERM", "xterm-256color".into()),
            ("TERM_PROGRAM", String::new()),
        ]
    }

    /// Runs a command line without a terminal.
    #[track_caller]
    pub(super) fn ok(&self, arguments: &[&str], stdin: &str) -> String {
        let call = self
            .variables()
            .into_iter()
            .fold(sandboxes(arguments), |call, (name, value)| call.env(name, value));
        let outcome = call.stdin(stdin).output();
        assert_eq!(outcome.status, 0, "{arguments:?}: {}", outcome.transcript());
        outcome.text().to_owned()
    }

    pub(super) fn create(&self) -> String {
        self.ok(&["create"], "").trim().to_owned()
    }

    pub(super) fn terminal(&self, arguments: &[&str]) -> Terminal {
        self.terminal_with(arguments, &[])
    }

    pub(super) fn terminal_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Terminal {
        // Gives the binary a session of its own with this terminal.
        let mut command = Command::new("setsid");
        command.arg("--ctty").arg(binary()).args(arguments);
        for name in ["RUST_LOG", "COLUMNS", "TMUX", "KITTY_WINDOW_ID"] {
            command.env_remove(name);
        }
        command.envs(self.variables()).envs(variables.iter().copied());
        Terminal::start(command)
    }

    pub(super) fn repl(&self, arguments: &[&str]) -> Terminal {
        let mut terminal = self.terminal(&[&["repl"], arguments].concat());
        terminal.expect(PROMPT);
        terminal
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // Its supervisor ends when it is idle.
        let mut command = Command::new(binary());
        command.args(["rm", "--all", "--quiet"]).envs(self.variables());
        let _ = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// A pseudo-terminal with a program on it.
pub(super) struct Terminal {
    child: Child,
    keys: File,
    shown: Receiver<Vec<u8>>,
    /// Output that no expectation has consumed.
    rest: String,
    before: LocalModes,
}

impl Terminal {
    fn start(mut command: Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let slave = open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let keys = File::from(master);
        let before = tcgetattr(&keys).unwrap().local_modes;
        let child = {
            let end = |slave: &OwnedFd| slave.try_clone().unwrap();
            command.stdin(end(&slave)).stdout(end(&slave)).stderr(slave);
            command.spawn().expect("setsid is part of util-linux")
        };
        drop(command);
        let (sender, shown) = channel();
        let mut screen = keys.try_clone().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // At the end the read fails, because the other side is closed.
            while let Ok(length) = screen.read(&mut buffer) {
                if length == 0 || sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let terminal = Self { child, keys, shown, rest: String::new(), before };
        terminal.resize(24, 80);
        terminal
    }

    pub(super) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keys, size).unwrap();
    }

    pub(super) fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.keys.write_all(keys.as_ref()).unwrap();
    }

    /// Waits until a text is shown. Returns the output before it.
    #[track_caller]
    pub(super) fn expect(&mut self, text: &str) -> String {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(at) = self.rest.find(text) {
                let after = self.rest.split_off(at + text.len());
                let mut found = std::mem::replace(&mut self.rest, after);
                found.truncate(at);
                return found;
            }
            match self.shown.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(data) => self.rest.push_str(&String::from_utf8_lossy(&data)),
                Err(error) => panic!("{text:?} is not shown ({error}): {:?}", self.rest),
            }
        }
    }

    /// Runs a cell on one line. Returns the output until the next prompt.
    #[track_caller]
    pub(super) fn cell(&mut self, code: &str) -> String {
        self.press(code);
        self.press("\r");
        self.expect(DONE);
        self.expect(PROMPT)
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end. Returns the status and the rest of the output; asserts that the terminal modes are restored.
    #[track_caller]
    pub(super) fn end(mut self) -> (i32, String) {
        let status = wait(&mut self.child);
        let after = tcgetattr(&self.keys).unwrap().local_modes;
        assert_eq!(after, self.before, "the terminal was not restored");
        let mut rest = std::mem::take(&mut self.rest);
        while let Ok(data) = self.shown.recv_timeout(Duration::from_secs(2)) {
            rest.push_str(&String::from_utf8_lossy(&data));
        }
        (status, rest)
    }

    #[track_caller]
    pub(super) fn leave(mut self) {
        self.press(CTRL_D);
        assert_eq!(self.end().0, 0);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program still runs only after a failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
