//! What is asked for, verb by verb.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox_core::{
    ByteRange, ByteSize, ByteStream, CallContext, CodeMode, CommandSpec, ContextSpec, FindFiles,
    InstallPackages, ListQuery, PtySize, RunCode, StartCommand, Stdin, Tags, WriteOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::spec::WireSpec;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Envelope {
    #[serde(default)]
    pub(crate) call: WireCall,
    /// The stream that made the sandbox, or the command, that it is about. Zero: the backend.
    #[serde(default)]
    pub(crate) on: u64,
    pub(crate) verb: Verb,
}

/// [`CallContext`] with its deadline as the time that is left.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WireCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<Duration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
}

impl From<&CallContext> for WireCall {
    fn from(call: &CallContext) -> Self {
        Self {
            left: call.deadline.map(|at| at.saturating_duration_since(Instant::now())),
            idempotency_key: call.idempotency_key.clone(),
            run_id: call.run_id.clone(),
            trace: call.trace.clone(),
        }
    }
}

impl From<WireCall> for CallContext {
    fn from(wire: WireCall) -> Self {
        let mut call = Self::new();
        call.deadline = wire.left.and_then(|left| Instant::now().checked_add(left));
        call.idempotency_key = wire.idempotency_key;
        call.run_id = wire.run_id;
        call.trace = wire.trace;
        call
    }
}

/// Everything that can be asked for. What is large, or is JSON of the user's, is in the tail of the message.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verb {
    Create(Box<WireSpec>),
    Attach {
        id: String,
    },
    List(WireQuery),
    Environments,
    Health,
    ListSnapshots,
    DeleteSnapshot {
        name: String,
    },
    RunCode(WireRun),
    CreateContext(WireContext),
    ListContexts,
    RestartContext {
        id: String,
    },
    DeleteContext {
        id: String,
    },
    GetVariable {
        context: Option<String>,
        name: String,
    },
    SetVariables {
        context: Option<String>,
    },
    Interrupt {
        context: Option<String>,
    },
    Reset,
    StartCommand(WireCommand),
    ListCommands,
    ConnectCommand {
        id: String,
    },
    WriteStdin,
    CloseStdin,
    Resize(PtySize),
    Signal {
        signal: i32,
        tree: bool,
    },
    ReadFile {
        path: String,
        offset: u64,
        length: Option<u64>,
    },
    WriteFile {
        path: String,
        options: WireWrite,
    },
    ListFiles {
        path: String,
    },
    StatFile {
        path: String,
    },
    CreateDirectory {
        path: String,
        parents: bool,
    },
    RemoveFile {
        path: String,
        recursive: bool,
    },
    RenameFile {
        from: String,
        to: String,
    },
    CopyFile {
        from: String,
        to: String,
    },
    SetFileMode {
        path: String,
        mode: u32,
    },
    FindFiles(WireFind),
    ReadArchive {
        path: String,
    },
    WriteArchive {
        path: String,
    },
    WatchFiles {
        path: String,
        recursive: bool,
    },
    RegisterTool {
        name: String,
        description: String,
        parameters: Option<Value>,
    },
    /// Asked of the client, about the stream on which it registered the tool.
    CallTool,
    InstallPackages {
        system: bool,
        #[serde(default)]
        upgrade: bool,
        names: Vec<String>,
    },
    ExposePort {
        port: u16,
    },
    SetTags {
        tags: Tags,
    },
    SetLifetime {
        lifetime: Duration,
    },
    Pause,
    Resume,
    CreateSnapshot {
        name: String,
        description: String,
    },
    RestoreSnapshot {
        name: String,
    },
    Fork,
    Metrics,
    Logs {
        follow: bool,
    },
    Terminate,
    Kill,
}

/// Where standard input comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WireStdin {
    #[default]
    Empty,
    /// The tail of the message.
    Tail,
    /// The elements of the stream.
    Stream,
}

/// What goes along with a request: bytes at once, and bytes as they come.
#[derive(Default)]
pub(crate) struct Freight {
    pub(crate) tail: Bytes,
    pub(crate) body: Option<ByteStream>,
}

impl Freight {
    pub(crate) fn tail(tail: Bytes) -> Self {
        Self { tail, body: None }
    }

    pub(crate) fn body(body: ByteStream) -> Self {
        Self { tail: Bytes::new(), body: Some(body) }
    }

    fn of(stdin: Stdin) -> (WireStdin, Self) {
        match stdin {
            Stdin::Empty => (WireStdin::Empty, Self::default()),
            Stdin::Bytes(bytes) => (WireStdin::Tail, Self::tail(bytes)),
            Stdin::Stream(stream) => (WireStdin::Stream, Self::body(stream)),
        }
    }
}

impl WireStdin {
    /// Standard input from what came along.
    pub(crate) fn stdin(self, tail: Bytes, body: impl FnOnce() -> ByteStream) -> Stdin {
        match self {
            Self::Empty => Stdin::Empty,
            Self::Tail => Stdin::Bytes(tail),
            Self::Stream => Stdin::Stream(body()),
        }
    }
}

macro_rules! mirror {
    ($(#[$doc:meta])* $wire:ident of $core:ident { $($name:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub(crate) struct $wire {
            $(#[serde(default)] $name: $kind,)*
        }

        impl From<$core> for $wire {
            fn from(core: $core) -> Self {
                Self { $($name: core.$name,)* }
            }
        }

        impl From<$wire> for $core {
            fn from(wire: $wire) -> Self {
                let mut core = Self::default();
                $(core.$name = wire.$name;)*
                core
            }
        }

        #[cfg(test)]
        impl $wire {
            const FIELDS: &'static [&'static str] = &[$(stringify!($name)),*];
        }
    };
}

mirror! {
    /// [`ListQuery`]
    WireQuery of ListQuery { tags: Tags, cursor: Option<String>, limit: Option<usize>, }
}

mirror! {
    /// [`ContextSpec`]
    WireContext of ContextSpec {
        id: Option<String>,
        language: Option<String>,
        cwd: Option<String>,
        env: BTreeMap<String, String>,
    }
}

mirror! {
    /// [`FindFiles`]
    WireFind of FindFiles {
        root: String,
        name: Option<String>,
        contains: Option<String>,
        limit: Option<usize>,
    }
}

mirror! {
    /// [`WriteOptions`]
    WireWrite of WriteOptions { append: bool, parents: bool, mode: Option<u32>, modified: Option<u64>, }
}

/// [`RunCode`]; the code is here, standard input comes along.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WireRun {
    code: String,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    pub(crate) context: Option<String>,
    /// File name and arguments of a script.
    #[serde(default)]
    script: Option<(String, Vec<String>)>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    timeout: Option<Duration>,
    #[serde(default)]
    cpu_time: Option<Duration>,
    #[serde(default)]
    memory: Option<ByteSize>,
    #[serde(default)]
    output_limit: Option<ByteSize>,
    #[serde(default)]
    pub(crate) stdin: WireStdin,
}

impl WireRun {
    pub(crate) fn pack(run: RunCode) -> (Self, Freight) {
        let (stdin, freight) = Freight::of(run.stdin);
        let script = match run.mode {
            CodeMode::Cell => None,
            CodeMode::Script { filename, argv } => Some((filename, argv)),
        };
        let wire = Self {
            code: run.code,
            language: run.language,
            context: run.context,
            script,
            env: run.env,
            cwd: run.cwd,
            timeout: run.timeout,
            cpu_time: run.cpu_time,
            memory: run.memory,
            output_limit: run.output_limit,
            stdin,
        };
        (wire, freight)
    }

    pub(crate) fn unpack(self, stdin: Stdin) -> RunCode {
        let mut run = RunCode::new(self.code);
        run.language = self.language;
        run.context = self.context;
        if let Some((filename, argv)) = self.script {
            run.mode = CodeMode::Script { filename, argv };
        }
        run.env = self.env;
        run.cwd = self.cwd;
        run.timeout = self.timeout;
        run.cpu_time = self.cpu_time;
        run.memory = self.memory;
        run.output_limit = self.output_limit;
        run.stdin = stdin;
        run
    }
}

/// [`StartCommand`]; standard input comes along.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireCommand {
    command: WireLine,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    timeout: Option<Duration>,
    #[serde(default)]
    cpu_time: Option<Duration>,
    #[serde(default)]
    output_limit: Option<ByteSize>,
    #[serde(default)]
    pub(crate) stdin: WireStdin,
    #[serde(default)]
    interactive: bool,
    #[serde(default)]
    pty: Option<PtySize>,
    #[serde(default)]
    pub(crate) background: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum WireLine {
    Shell(String),
    Argv(Vec<String>),
}

impl WireCommand {
    pub(crate) fn pack(start: StartCommand) -> (Self, Freight) {
        let (stdin, freight) = Freight::of(start.stdin);
        let command = match start.command {
            CommandSpec::Shell(line) => WireLine::Shell(line),
            CommandSpec::Argv(argv) => WireLine::Argv(argv),
        };
        let wire = Self {
            command,
            cwd: start.cwd,
            env: start.env,
            timeout: start.timeout,
            cpu_time: start.cpu_time,
            output_limit: start.output_limit,
            stdin,
            interactive: start.interactive,
            pty: start.pty,
            background: start.background,
        };
        (wire, freight)
    }

    pub(crate) fn unpack(self, stdin: Stdin) -> StartCommand {
        let mut start = StartCommand::new(match self.command {
            WireLine::Shell(line) => CommandSpec::Shell(line),
            WireLine::Argv(argv) => CommandSpec::Argv(argv),
        });
        start.cwd = self.cwd;
        start.env = self.env;
        start.timeout = self.timeout;
        start.cpu_time = self.cpu_time;
        start.output_limit = self.output_limit;
        start.stdin = stdin;
        start.interactive = self.interactive;
        start.pty = self.pty;
        start.background = self.background;
        start
    }
}

impl Verb {
    pub(crate) fn read_file(path: &str, range: ByteRange) -> Self {
        let ByteRange { offset, length } = range;
        Self::ReadFile { path: path.into(), offset, length }
    }

    pub(crate) fn install(packages: InstallPackages) -> Self {
        let (system, upgrade, names) = match packages {
            InstallPackages::Python(names) => (false, false, names),
            InstallPackages::Upgrade(names) => (false, true, names),
            InstallPackages::System(names) => (true, false, names),
        };
        Self::InstallPackages { system, upgrade, names }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
pub(crate) mod tests;
