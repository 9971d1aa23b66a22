//! Capabilities: what a backend can do and enforce.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::NetworkMode;
use crate::spec::{CreateSpec, IsolationMode};

macro_rules! capabilities {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Capabilities of a stack of a backend and layers. A verb that is not declared answers
        /// [`ErrorKind::Unsupported`](crate::ErrorKind).
        ///
        /// A literal ends in `..Capabilities::default()`.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Capabilities {
            $($(#[$doc])* pub $name: bool,)*
        }

        impl Capabilities {
            /// Returns the capabilities that either of both has.
            #[must_use]
            pub fn union(self, other: Self) -> Self {
                Self { $($name: self.$name || other.$name,)* }
            }

            /// Every capability by name, with whether it is declared.
            pub fn entries(&self) -> Vec<(&'static str, bool)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

capabilities! {
    /// Code runs in a stateful interpreter.
    run_code,
    /// Code may read standard input.
    run_stdin,
    /// Scripts with arguments and a file name.
    run_script,
    /// Objects are displayed by MIME type.
    rich_results,
    /// Output arrives while the code runs.
    live_output,
    /// A CPU-time limit per run.
    limit_run_cpu_time,
    /// A memory limit per run.
    limit_run_memory,
    /// A CPU-time limit per command.
    limit_command_cpu_time,
    /// More than one context, each a process.
    contexts,
    /// Variables are read and written as JSON.
    variables,
    /// A run can be interrupted with its state kept.
    interrupt,
    /// Interpreters can be restarted.
    restart,
    /// Commands run beside the interpreter.
    commands,
    /// Commands may read standard input.
    command_stdin,
    /// Commands on a terminal.
    command_pty,
    /// Commands that outlive their caller and can be connected to again.
    command_background,
    /// Commands run as root of the sandbox.
    command_root,
    /// Files are read, written and listed.
    files,
    /// Extended attributes of files are written and read.
    file_attributes,
    /// Directories are watched.
    watch,
    /// Code calls functions of the host.
    tools,
    /// Python packages are installed.
    install_python,
    /// System packages are installed.
    install_system,
    /// Ports are made reachable from outside.
    expose_port,
    /// Tags change after create.
    set_tags,
    /// The lifetime changes after create.
    set_lifetime,
    /// Held and resumed with state.
    pause,
    /// Snapshots are taken, listed, deleted and started from.
    snapshot,
    /// A running sandbox goes back to a snapshot.
    restore_snapshot,
    /// A running sandbox is copied.
    fork,
    /// CPU and memory figures.
    metrics,
    /// Logs of the sandbox itself.
    logs,
    /// Sandboxes outlive their process and are attached to by id.
    detached,
    /// Two creates with one idempotency key are one.
    idempotent_create,
    /// Memory of the whole sandbox is limited.
    limit_memory,
    /// CPU of the whole sandbox is limited.
    limit_cpu,
    /// Disk of the whole sandbox is limited.
    limit_disk,
    /// The number of processes is limited.
    limit_processes,
    /// The number of files and directories is limited.
    limit_disk_files,
    /// The number of open descriptors is limited.
    limit_open_files,
    /// The output of a run or a command is limited.
    limit_output,
    /// The sandbox ends after a given time.
    lifetime,
    /// The sandbox ends after a time without use.
    idle_timeout,
    /// GPUs.
    gpu,
    /// Named environments.
    environments,
    /// Environments have sizes: a sandbox has exactly the CPU, memory and disk that are asked for, or is refused.
    sizes,
    /// Images by name.
    images,
    /// Files of the host are mounted, read-only unless it is asked for otherwise.
    mounts,
    /// No network, enforced.
    network_none,
    /// Only listed hosts, enforced.
    network_allowlist,
    /// Full network.
    network_all,
    /// Strict isolation.
    isolation_strict,
    /// As much isolation as the host has.
    isolation_best_effort,
    /// No isolation.
    isolation_off,
}

impl Capabilities {
    /// Returns the capabilities that every local sandbox with files and commands has, with or without an interpreter.
    #[must_use]
    pub fn local_commands() -> Self {
        Self {
            commands: true,
            command_stdin: true,
            command_pty: true,
            command_background: true,
            files: true,
            set_tags: true,
            set_lifetime: true,
            lifetime: true,
            idle_timeout: true,
            environments: true,
            limit_output: true,
            isolation_strict: true,
            ..Self::default()
        }
    }

    /// Returns the capabilities that every local sandbox of Python workers has.
    #[must_use]
    pub fn local_python() -> Self {
        Self {
            run_code: true,
            run_stdin: true,
            run_script: true,
            rich_results: true,
            live_output: true,
            contexts: true,
            variables: true,
            interrupt: true,
            restart: true,
            tools: true,
            install_python: true,
            watch: true,
            expose_port: true,
            metrics: true,
            pause: true,
            snapshot: true,
            restore_snapshot: true,
            ..Self::local_commands()
        }
    }

    /// Refuses whatever `spec` asks for and this stack cannot enforce, before anything starts.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind), naming the field.
    pub fn check(&self, spec: &CreateSpec) -> Result<()> {
        let isolation = match spec.isolation {
            IsolationMode::Strict => self.isolation_strict,
            IsolationMode::BestEffort => self.isolation_best_effort,
            IsolationMode::Off => self.isolation_off,
        };
        let network = match spec.network.mode {
            NetworkMode::Inherit => spec.network.deny.is_empty() || self.network_allowlist,
            NetworkMode::None => self.network_none,
            NetworkMode::Allowlist => self.network_allowlist,
            NetworkMode::All => {
                self.network_all && (spec.network.deny.is_empty() || self.network_allowlist)
            }
        };
        let asked = [
            ("isolation", true, isolation),
            ("network", true, network),
            ("memory", spec.memory.is_some(), self.limit_memory || self.sizes),
            ("cpu", spec.cpu.is_some(), self.limit_cpu || self.sizes),
            ("disk", spec.disk.is_some(), self.limit_disk || self.sizes),
            ("processes", spec.processes.is_some(), self.limit_processes),
            ("disk_files", spec.disk_files.is_some(), self.limit_disk_files),
            ("open_files", spec.open_files.is_some(), self.limit_open_files),
            ("output_limit", spec.output_limit.is_some(), self.limit_output),
            ("lifetime", spec.lifetime.is_some(), self.lifetime),
            ("idle_timeout", spec.idle_timeout.is_some(), self.idle_timeout),
            ("mounts", !spec.mounts.is_empty(), self.mounts),
            ("gpu", spec.gpu.is_some(), self.gpu),
            ("environment", spec.environment.is_some(), self.environments),
            ("image", spec.image.is_some(), self.images),
            ("snapshot", spec.snapshot.is_some(), self.snapshot),
            ("detached", spec.detached.is_some(), self.detached),
        ];
        match asked.into_iter().find(|(_, asked, enforced)| *asked && !enforced) {
            Some((field, ..)) => Err(refuse(field, spec)),
            None => Ok(()),
        }
    }
}

fn refuse(field: &'static str, spec: &CreateSpec) -> Error {
    let what = match field {
        "isolation" => format!("isolation `{}`", spec.isolation),
        "network" => format!("network policy `{}`", spec.network.mode),
        other => format!("`{other}`"),
    };
    Error::unsupported("create", format!("{what} cannot be enforced by this variant"))
        .with_context("field", field)
        .with_hint(
            "leave it out, or choose a variant that has it: `Registry::variants()` lists them",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Mount, NetworkPolicy};
    use crate::units::ByteSize;

    #[test]
    fn restrictions_are_enforced_or_refused() {
        let caps =
            Capabilities { isolation_strict: true, network_none: true, ..Default::default() };
        caps.check(&CreateSpec::default()).unwrap();
        caps.check(&CreateSpec { network: NetworkPolicy::none(), ..Default::default() }).unwrap();
        for spec in [
            CreateSpec { network: NetworkPolicy::all(), ..Default::default() },
            CreateSpec { isolation: IsolationMode::Off, ..Default::default() },
            CreateSpec { memory: Some(ByteSize::gib(1)), ..Default::default() },
            CreateSpec { mounts: vec![Mount::new("/srv", "/data")], ..Default::default() },
            CreateSpec { gpu: Some("T4".into()), ..Default::default() },
        ] {
            assert_eq!(caps.check(&spec).unwrap_err().kind(), crate::ErrorKind::Unsupported);
        }
    }
}
