//! Arguments of the commands for people who type: `repl` and `shell`.

use clap::{Arg, Args};

use super::SandboxArgs;

pub(super) const REPL_EXAMPLES: &str = "\
Examples:
  sandboxes repl                                a sandbox that ends with the session
  sandboxes repl 9f3a                           the interpreter of a sandbox that stays
  sandboxes repl -e DEBUG=1 --isolation off
  echo 'print(6 * 7)' | sandboxes repl 9f3a     without a terminal: all of it is one program

Keys:
  Enter runs the code when it is complete, and begins a line otherwise. An empty line ends a block.
  Tab completes names, and indents at the beginning of a line. Alt-Enter always begins a line.
  Ctrl-C clears what was typed, or interrupts the code that runs; a second one ends its interpreter.
  Ctrl-R looks through what was typed before. Ctrl-D leaves.

Images are shown where the terminal can (kitty, Ghostty, iTerm2, WezTerm), and saved elsewhere.
:help lists the commands of the session.";

pub(super) const SHELL_EXAMPLES: &str = "\
Examples:
  sandboxes shell                               a sandbox that ends with the shell
  sandboxes shell 9f3a                          in a sandbox that stays
  sandboxes shell 9f3a -w /tmp -e DEBUG=1
  echo 'ls -la' | sandboxes shell 9f3a          without a terminal: standard input is the script

It is bash where the sandbox has it, and sh elsewhere. The status is that of the shell.
Ctrl-] three times within a second ends it, whatever it does.";

/// The flag for a limit, for those who see what runs and can end it: there is none.
pub(super) fn without_limit(timeout: Arg) -> Arg {
    timeout
        .default_value("inf")
        .hide_default_value(true)
        .help("Time a cell, or the shell, may run [default: no limit]")
}

/// The sandbox to be in.
#[derive(Clone, Debug, Args)]
pub(crate) struct Place {
    /// The sandbox: its id, a beginning of it, or its name [default: a new one, which ends with this
    /// command]
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: Option<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// `sandboxes repl`
#[derive(Debug, Args)]
pub(crate) struct ReplArgs {
    /// Interpreter to run code in; it is made when it is new [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) place: Place,
}

/// `sandboxes shell`
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(crate) place: Place,
}

impl SandboxArgs {
    /// A flag about what a sandbox shall be like, if there is one. They mean nothing for one that is there.
    pub(crate) fn flag_of_creation(&self) -> Option<&'static str> {
        [
            ("--isolation", self.isolation.is_some()),
            ("--network", self.network.is_some()),
            ("--allow", !self.allow.is_empty()),
            ("--deny", !self.deny.is_empty()),
            ("--mount", !self.mount.is_empty()),
            ("--memory", self.memory.is_some()),
            ("--cpus", self.cpus.is_some()),
            ("--disk", self.disk.is_some()),
            ("--processes", self.processes.is_some()),
            ("--disk-files", self.disk_files.is_some()),
            ("--open-files", self.open_files.is_some()),
            ("--output-limit", self.output_limit.is_some()),
            ("--gpu", self.gpu.is_some()),
            ("--environment", self.environment.is_some()),
            ("--image", self.image.is_some()),
            #[cfg(feature = "docker")]
            ("--writable-root", self.writable_root),
            #[cfg(feature = "docker")]
            ("--pull", self.pull),
            ("--snapshot", self.snapshot.is_some()),
            ("--label", !self.label.is_empty()),
            ("--lifetime", self.lifetime.is_some()),
            ("--idle-timeout", self.idle_timeout.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
        .or_else(|| self.kernel.flag())
    }
}
