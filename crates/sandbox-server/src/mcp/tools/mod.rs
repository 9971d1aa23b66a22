//! The tools: their arguments, their answers, and their work.

mod code;
mod commands;
mod files;
mod packages;
mod sandboxes;

pub(super) use self::code::{CodeAnswer, RunCodeArguments, run_code};
pub(super) use self::commands::{
    CommandAnswer, OutputAnswer, ReadOutput, RunCommand, StartCommandArguments, StopCommand,
    WriteStdin, WrittenAnswer, read_output, run_command, start_command, stop_command, write_stdin,
};
pub(super) use self::files::{
    EditAnswer, EditFile, FileAnswer, FindFilesArguments, FoundAnswer, ListFiles, ListedAnswer,
    ReadFile, WriteAnswer, WriteFile, edit_file, find_files, list_files, read_file, write_file,
};
pub(super) use self::packages::{
    ExposePort, InstallPackagesArguments, InstalledAnswer, PortAnswer, expose_port,
    install_packages,
};
pub(super) use self::sandboxes::{
    CreateSandbox, ListSandboxes, Restore, SandboxAnswer, SandboxesAnswer, Snapshot,
    SnapshotAnswer, StopSandbox, StoppedAnswer, create_sandbox, list_sandboxes, restore, snapshot,
    stop_sandbox,
};
