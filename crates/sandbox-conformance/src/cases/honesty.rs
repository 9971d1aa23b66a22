//! Verbs that are not declared: each is called, and must answer `Unsupported`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream;
use sandbox_core::{
    ByteRange, ByteSize, ByteStream, CallContext, Capabilities, CodeMode, ContextSpec, ErrorKind,
    FindFiles, Fixed, GpuType, InstallPackages, Instance, IsolationMode, Mount, NetworkPolicy,
    PtySize, Result, RunCode, SandboxBuilder, SandboxId, StartCommand, Stdin, Tool, WriteOptions,
};
use serde_json::Map;

use crate::case::{Case, Checked, Failure, Need};
use crate::fixture::Fixture;

/// One case for each capability that is not declared.
pub(crate) fn cases(declared: &Capabilities) -> Vec<Case> {
    let missing = declared.entries().into_iter().filter(|(_, declared)| !declared);
    missing.map(|(name, _)| case(name)).collect()
}

fn case(name: &'static str) -> Case {
    let needs = match name {
        "rich_results" | "live_output" | "idempotent_create" | "sizes" => {
            vec![Need { name: "a verb", met: |_| false }]
        }
        _ => Vec::new(),
    };
    Case::new("honesty", format!("undeclared_{name}"), needs, move |f| Box::pin(is_honest(f, name)))
}

async fn is_honest(f: Fixture, capability: &'static str) -> Checked {
    if let Some(asked) = restriction(f.builder(), capability) {
        return answers(capability, asked.create().await.map(drop));
    }
    if matches!(capability, "detached" | "snapshot") {
        backend_verbs(&f, capability).await?;
    }
    if !f.backend().capabilities().run_code && !f.backend().capabilities().commands {
        let made = f.builder().create().await;
        // Without any way to run something there may be no sandbox to ask.
        if let Err(error) = made {
            return answers(capability, Err(error));
        }
    }
    let sandbox = f.sandbox().await?;
    let instance = sandbox.instance("test")?;
    for (verb, answer) in instance_verbs(capability, &instance).await {
        answers(verb, answer)?;
    }
    Ok(())
}

fn answers(verb: &str, answer: Result<()>) -> Checked {
    match answer {
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        Err(error) => Err(Failure::new(format!("{verb} answered {error:?}, not `Unsupported`"))),
        Ok(()) => Err(Failure::new(format!("{verb} is not declared and did something"))),
    }
}

/// What is asked for at create, for capabilities that are enforced there.
fn restriction(builder: SandboxBuilder<Fixed>, capability: &str) -> Option<SandboxBuilder<Fixed>> {
    let long = Duration::from_secs(3600);
    Some(match capability {
        "limit_memory" => builder.memory(ByteSize::gib(1)),
        "limit_cpu" => builder.cpu(1.0),
        "limit_disk" => builder.disk(ByteSize::gib(1)),
        "limit_processes" => builder.processes(100),
        "lifetime" => builder.lifetime(long),
        "idle_timeout" => builder.idle_timeout(long),
        "gpu" => builder.gpu(GpuType::T4),
        "environments" => builder.environment("some-environment"),
        "images" => builder.image("some-image"),
        "limit_disk_files" => builder.disk_files(10_000),
        "limit_open_files" => builder.open_files(256),
        "limit_output" => builder.output_limit(ByteSize::mib(1)),
        "mounts" => builder.mount(Mount::new("/usr/share", "/data")),
        "network_none" => builder.network(NetworkPolicy::none()),
        "network_allowlist" => builder.network(NetworkPolicy::allowlist(["pypi.org"]).ok()?),
        "network_all" => builder.network(NetworkPolicy::all()),
        "isolation_strict" => builder.isolation(IsolationMode::Strict),
        "isolation_best_effort" => builder.isolation(IsolationMode::BestEffort),
        "isolation_off" => builder.isolation(IsolationMode::Off),
        _ => return None,
    })
}

async fn backend_verbs(f: &Fixture, capability: &str) -> Checked {
    let (backend, call) = (f.backend(), CallContext::new());
    if capability == "detached" {
        let detached = f.builder().detached(Duration::from_secs(60)).create().await;
        answers("create(detached)", detached.map(drop))?;
        let id = SandboxId::random(backend.variant());
        return answers("attach", backend.attach(&call, &id).await.map(drop));
    }
    let started = f.builder().snapshot_name("some-snapshot").create().await;
    answers("create(snapshot)", started.map(drop))?;
    answers("list_snapshots", backend.list_snapshots(&call).await.map(drop))?;
    answers("delete_snapshot", backend.delete_snapshot(&call, "some-snapshot").await)
}

type Answers = Vec<(&'static str, Result<()>)>;

/// What every verb of that capability answers.
async fn instance_verbs(capability: &str, instance: &Arc<dyn Instance>) -> Answers {
    let run = async |request: RunCode| vec![("run_code", started_run(instance, request).await)];
    let start = async |request: StartCommand| {
        let answer = instance.start_command(&CallContext::new(), request).await;
        vec![("start_command", answer.map(drop))]
    };
    let mut code = RunCode::new("1");
    let mut command = StartCommand::new("true");
    match capability {
        "run_code" => run(code).await,
        "run_stdin" => {
            code.stdin = Stdin::Bytes("x".into());
            run(code).await
        }
        "run_script" => {
            code.mode = CodeMode::Script { filename: "x.py".into(), argv: Vec::new() };
            run(code).await
        }
        "limit_run_cpu_time" => {
            code.cpu_time = Some(Duration::from_secs(10));
            run(code).await
        }
        "limit_run_memory" => {
            code.memory = Some(ByteSize::gib(1));
            run(code).await
        }
        "commands" => start(command).await,
        "limit_command_cpu_time" => {
            command.cpu_time = Some(Duration::from_secs(10));
            start(command).await
        }
        "command_stdin" => {
            command.stdin = Stdin::Bytes("x".into());
            start(command).await
        }
        "command_pty" => {
            command.pty = Some(PtySize { columns: 80, rows: 24 });
            start(command).await
        }
        "command_background" => background(instance, command).await,
        "files" => files(instance).await,
        other => single_verbs(other, instance).await,
    }
}

/// A refusal may come with the call, or not at all; then the code ran.
async fn started_run(instance: &Arc<dyn Instance>, request: RunCode) -> Result<()> {
    instance.run_code(&CallContext::new(), request).await.map(drop)
}

async fn background(instance: &Arc<dyn Instance>, mut command: StartCommand) -> Answers {
    let call = CallContext::new();
    command.background = true;
    vec![
        ("start_command", instance.start_command(&call, command).await.map(drop)),
        ("list_commands", instance.list_commands(&call).await.map(drop)),
        ("connect_command", instance.connect_command(&call, "x").await.map(drop)),
    ]
}

fn nothing() -> ByteStream {
    Box::pin(stream::empty())
}

async fn files(i: &Arc<dyn Instance>) -> Answers {
    let c = CallContext::new();
    let (options, mut query) = (WriteOptions::default(), FindFiles::default());
    query.root = "/".into();
    vec![
        ("read_file", i.read_file(&c, "/x", ByteRange::default()).await.map(drop)),
        ("write_file", i.write_file(&c, "/tmp/x", nothing(), options).await.map(drop)),
        ("list_files", i.list_files(&c, "/").await.map(drop)),
        ("stat_file", i.stat_file(&c, "/").await.map(drop)),
        ("create_directory", i.create_directory(&c, "/tmp/d", true).await),
        ("remove_file", i.remove_file(&c, "/tmp/x", true).await),
        ("rename_file", i.rename_file(&c, "/tmp/x", "/tmp/y").await),
        ("copy_file", i.copy_file(&c, "/tmp/x", "/tmp/y").await),
        ("set_file_mode", i.set_file_mode(&c, "/tmp/x", 0o644).await),
        ("find_files", i.find_files(&c, query).await.map(drop)),
        ("read_archive", i.read_archive(&c, "/tmp").await.map(drop)),
        ("write_archive", i.write_archive(&c, "/tmp", nothing()).await),
    ]
}

async fn single_verbs(capability: &str, i: &Arc<dyn Instance>) -> Answers {
    let c = CallContext::new();
    match capability {
        "contexts" => vec![
            ("create_context", i.create_context(&c, ContextSpec::default()).await.map(drop)),
            ("list_contexts", i.list_contexts(&c).await.map(drop)),
            ("delete_context", i.delete_context(&c, "x").await),
        ],
        "variables" => vec![
            ("get_variable", i.get_variable(&c, None, "x").await.map(drop)),
            ("set_variables", i.set_variables(&c, None, Map::new()).await),
        ],
        "interrupt" => vec![("interrupt", i.interrupt(&c, None).await.map(drop))],
        "restart" => vec![
            ("restart_context", i.restart_context(&c, "default").await),
            ("reset", i.reset(&c).await),
        ],
        "watch" => vec![("watch_files", i.watch_files(&c, "/", false).await.map(drop))],
        "tools" => vec![("register_tool", i.register_tool(&c, tool()).await)],
        "install_python" => vec![install(i, InstallPackages::Python(vec!["x".into()])).await],
        "install_system" => vec![install(i, InstallPackages::System(vec!["x".into()])).await],
        "expose_port" => vec![("expose_port", i.expose_port(&c, 8080).await.map(drop))],
        "set_tags" => vec![("set_tags", i.set_tags(&c, [("a".into(), "b".into())].into()).await)],
        "set_lifetime" => {
            vec![("set_lifetime", i.set_lifetime(&c, Duration::from_secs(60)).await)]
        }
        "pause" => vec![("pause", i.pause(&c).await), ("resume", i.resume(&c).await)],
        "snapshot" => {
            vec![("create_snapshot", i.create_snapshot(&c, "x", "").await.map(drop))]
        }
        "restore_snapshot" => {
            vec![("restore_snapshot", i.restore_snapshot(&c, "x").await.map(drop))]
        }
        "fork" => vec![("fork", i.fork(&c).await.map(drop))],
        "metrics" => vec![("metrics", i.metrics(&c).await.map(drop))],
        "logs" => vec![("logs", i.logs(&c, false).await.map(drop))],
        "detached" => Vec::new(),
        other => vec![(
            "this suite",
            Err(sandbox_core::Error::invalid("capability", format!("{other} has no honesty case"))),
        )],
    }
}

async fn install(
    instance: &Arc<dyn Instance>,
    packages: InstallPackages,
) -> (&'static str, Result<()>) {
    ("install_packages", instance.install_packages(&CallContext::new(), packages).await)
}

fn tool() -> Tool {
    Tool {
        name: "x".into(),
        description: String::new(),
        parameters: None,
        call: Arc::new(|_| -> BoxFuture<'static, std::result::Result<_, String>> {
            Box::pin(async { Ok(serde_json::Value::Null) })
        }),
    }
}
