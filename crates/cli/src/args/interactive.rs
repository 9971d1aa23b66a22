//! Arguments of the interactive commands: `repl` and `shell`.

use clap::{Arg, Args};

use super::SandboxArgs;

pub(super) const REPL_EXAMPLES: &str = "\
Examples:
  sandboxes repl                                a new sandbox, which ends with the session
  sandboxes repl 9f3a                           the interpreter of an existing sandbox
  sandboxes repl -e DEBUG=1 --isolation off
  echo 'print(6 * 7)' | sandboxes repl 9f3a     without a terminal: one program

Keys:
  Enter runs the code when it is complete, and starts a new line otherwise. An empty line ends a
  block. Tab completes names, and indents at the beginning of a line. Alt-Enter always starts a new
  line.
  Ctrl-C clears the input, or interrupts the running code; a second Ctrl-C ends its interpreter.
  Ctrl-R searches the history. Ctrl-D leaves.

Images are shown by kitty, Ghostty, iTerm2 and WezTerm; other terminals get them as files.
:help lists the commands of the session.";

pub(super) const SHELL_EXAMPLES: &str = "\
Examples:
  sandboxes shell                               a new sandbox, which ends with the shell
  sandboxes shell 9f3a                          an existing sandbox
  sandboxes shell 9f3a -w /tmp -e DEBUG=1
  echo 'ls -la' | sandboxes shell 9f3a          without a terminal: standard input is the script

The shell is bash if the sandbox has it, and sh otherwise. The exit status is that of the shell.
Press Ctrl-] three times within a second to end the shell.";

/// Changes the time limit of interactive commands: the default is no limit.
pub(super) fn without_limit(timeout: Arg) -> Arg {
    timeout
        .default_value("inf")
        .hide_default_value(true)
        .help("Time limit of each cell, or of the shell [default: no limit]")
}

/// The sandbox of an interactive command.
#[derive(Clone, Debug, Args)]
pub(crate) struct SandboxTarget {
    /// The sandbox: its id, a unique beginning of the id, or its name [default: a new sandbox, which ends
    /// with this command]
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: Option<String>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// `sandboxes repl`
#[derive(Debug, Args)]
pub(crate) struct ReplArgs {
    /// Interpreter for the code, created if it does not exist [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    #[command(flatten)]
    pub(crate) target: SandboxTarget,
}

/// `sandboxes shell`
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    pub(crate) target: SandboxTarget,
}

impl SandboxArgs {
    /// Returns the first flag that configures a new sandbox, which an existing sandbox cannot have.
    pub(crate) fn creation_flag(&self) -> Option<&'static str> {
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
            ("--option", !self.option.is_empty()),
            ("--label", !self.label.is_empty()),
            ("--lifetime", self.lifetime.is_some()),
            ("--idle-timeout", self.idle_timeout.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
        .or_else(|| self.kernel.flag())
    }
}
