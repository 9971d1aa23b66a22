//! Verbs that are not declared: each is called, and must answer `Unsupported`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream;
use sandbox_core::{
    ByteRange, ByteSize, ByteStream, CallContext, Capabilities, CodeMode, ContextSpec, ErrorKind,
    FindFiles, GpuType, InstallPackages, Instance, IsolationMode, Mount, NetworkPolicy, PtySize,
    Result, RunCode, SandboxBuilder, SandboxId, SingleBackend, StartCommand, Stdin, Tool,
    WriteOptions,
};
use serde_json::Map;

use crate::case::{Case, Checked, Failure, Need, ensure_eq};
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
    Case::new("unsupported", format!("undeclared_{name}"), needs, move |f| {
        Box::pin(is_honest(f, name))
    })
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
    facets_are_declared(&*instance)?;
    for (verb, answer) in instance_verbs(capability, &instance).await {
        answers(verb, answer)?;
    }
    Ok(())
}

/// Requires that a facet is there exactly when the capability is declared that it stands for.
fn facets_are_declared(instance: &dyn Instance) -> Checked {
    let declared = instance.capabilities();
    for (facet, is_there, is_declared) in [
        ("code", instance.code().is_ok(), declared.run_code),
        ("commands", instance.commands().is_ok(), declared.commands),
        ("files", instance.files().is_ok(), declared.files),
        (
            "packages",
            instance.packages().is_ok(),
            declared.install_python || declared.install_system,
        ),
        ("snapshots", instance.snapshots().is_ok(), declared.snapshot || declared.restore_snapshot),
        ("ports", instance.ports().is_ok(), declared.expose_port),
    ] {
        ensure_eq!(is_there, is_declared, "facet {facet}");
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
fn restriction(
    builder: SandboxBuilder<SingleBackend>,
    capability: &str,
) -> Option<SandboxBuilder<SingleBackend>> {
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
        let answer =
            async { instance.commands()?.start_command(&CallContext::new(), request).await }.await;
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
        "command_root" => {
            command.as_root = true;
            start(command).await
        }
        "files" => files(instance).await,
        other => single_verbs(other, instance).await,
    }
}

/// A refusal may come with the call, or not at all; then the code ran.
async fn started_run(instance: &Arc<dyn Instance>, request: RunCode) -> Result<()> {
    async { instance.code()?.run_code(&CallContext::new(), request).await.map(drop) }.await
}

async fn background(instance: &Arc<dyn Instance>, mut command: StartCommand) -> Answers {
    let call = CallContext::new();
    command.background = true;
    vec![
        (
            "start_command",
            async { instance.commands()?.start_command(&call, command).await.map(drop) }.await,
        ),
        (
            "list_commands",
            async { instance.commands()?.list_commands(&call).await.map(drop) }.await,
        ),
        (
            "connect_command",
            async { instance.commands()?.connect_command(&call, "x").await.map(drop) }.await,
        ),
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
        (
            "read_file",
            async { i.files()?.read_file(&c, "/x", ByteRange::default()).await.map(drop) }.await,
        ),
        (
            "write_file",
            async { i.files()?.write_file(&c, "/tmp/x", nothing(), options).await.map(drop) }.await,
        ),
        ("list_files", async { i.files()?.list_files(&c, "/").await.map(drop) }.await),
        ("stat_file", async { i.files()?.stat_file(&c, "/").await.map(drop) }.await),
        ("create_directory", async { i.files()?.create_directory(&c, "/tmp/d", true).await }.await),
        ("remove_file", async { i.files()?.remove_file(&c, "/tmp/x", true).await }.await),
        ("rename_file", async { i.files()?.rename_file(&c, "/tmp/x", "/tmp/y").await }.await),
        ("copy_file", async { i.files()?.copy_file(&c, "/tmp/x", "/tmp/y").await }.await),
        ("set_file_mode", async { i.files()?.set_file_mode(&c, "/tmp/x", 0o644).await }.await),
        ("find_files", async { i.files()?.find_files(&c, query).await.map(drop) }.await),
        ("read_archive", async { i.files()?.read_archive(&c, "/tmp").await.map(drop) }.await),
        ("write_archive", async { i.files()?.write_archive(&c, "/tmp", nothing()).await }.await),
    ]
}

async fn single_verbs(capability: &str, i: &Arc<dyn Instance>) -> Answers {
    let c = CallContext::new();
    match capability {
        "contexts" => vec![
            (
                "create_context",
                async { i.code()?.create_context(&c, ContextSpec::default()).await.map(drop) }
                    .await,
            ),
            ("list_contexts", async { i.code()?.list_contexts(&c).await.map(drop) }.await),
            ("delete_context", async { i.code()?.delete_context(&c, "x").await }.await),
        ],
        "variables" => vec![
            ("get_variable", async { i.code()?.get_variable(&c, None, "x").await.map(drop) }.await),
            ("set_variables", async { i.code()?.set_variables(&c, None, Map::new()).await }.await),
        ],
        "interrupt" => {
            vec![("interrupt", async { i.code()?.interrupt(&c, None).await.map(drop) }.await)]
        }
        "restart" => vec![
            ("restart_context", async { i.code()?.restart_context(&c, "default").await }.await),
            ("reset", i.life().reset(&c).await),
        ],
        "file_attributes" => {
            let attributes = [("a".to_owned(), "b".to_owned())].into();
            let options = WriteOptions { attributes, ..WriteOptions::default() };
            let written =
                async { i.files()?.write_file(&c, "/tmp/x", nothing(), options).await.map(drop) };
            vec![("write_file", written.await)]
        }
        "watch" => vec![(
            "watch_files",
            async { i.files()?.watch_files(&c, "/", false).await.map(drop) }.await,
        )],
        "tools" => {
            vec![("register_tool", async { i.code()?.register_tool(&c, tool()).await }.await)]
        }
        "install_python" => vec![install(i, InstallPackages::Python(vec!["x".into()])).await],
        "install_system" => vec![install(i, InstallPackages::System(vec!["x".into()])).await],
        "expose_port" => {
            vec![("expose_port", async { i.ports()?.expose_port(&c, 8080).await.map(drop) }.await)]
        }
        "set_tags" => {
            vec![("set_tags", i.life().set_tags(&c, [("a".into(), "b".into())].into()).await)]
        }
        "set_lifetime" => {
            vec![("set_lifetime", i.life().set_lifetime(&c, Duration::from_secs(60)).await)]
        }
        "pause" => vec![("pause", i.life().pause(&c).await), ("resume", i.life().resume(&c).await)],
        "snapshot" => {
            vec![(
                "create_snapshot",
                async { i.snapshots()?.create_snapshot(&c, "x", "").await.map(drop) }.await,
            )]
        }
        "restore_snapshot" => {
            vec![(
                "restore_snapshot",
                async { i.snapshots()?.restore_snapshot(&c, "x").await.map(drop) }.await,
            )]
        }
        "fork" => vec![("fork", i.life().fork(&c).await.map(drop))],
        "metrics" => vec![("metrics", i.life().metrics(&c).await.map(drop))],
        "logs" => vec![("logs", i.life().logs(&c, false).await.map(drop))],
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
    (
        "install_packages",
        async { instance.packages()?.install_packages(&CallContext::new(), packages).await }.await,
    )
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
