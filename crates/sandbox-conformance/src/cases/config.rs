//! What is asked for at create: refused with the field, or held.

use std::time::Duration;

use sandbox_core::{
    ByteSize, ContextSpec, ErrorKind, NetworkPolicy, SandboxBuilder, SandboxConfig, SingleBackend,
    Variant, seconds,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, is_usable, ok, printed, refused, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("config", [run_code], {
        impossible_values_name_their_field;
        impossible_numbers_are_refused;
        an_unknown_variant_lists_the_known_ones;
        another_variant_is_refused;
        unknown_options_are_refused;
        an_allowlist_needs_hosts;
        a_reference_configuration_is_taken;
        a_bad_reference_configuration_is_refused;
        a_missing_working_directory;
        relative_directories_are_below_the_sandbox_s_own;
        a_refused_create_leaves_the_backend_working;
        isolation_is_as_asked;
    })
}

type Configure = Box<dyn Fn(SandboxBuilder<SingleBackend>) -> SandboxBuilder<SingleBackend> + Send>;

fn impossible() -> Vec<(&'static str, Configure)> {
    vec![
        ("timeout", Box::new(|b| b.timeout(Duration::ZERO))),
        ("timeout", Box::new(|b| b.timeout(Duration::MAX))),
        ("lifetime", Box::new(|b| b.lifetime(Duration::ZERO))),
        ("lifetime", Box::new(|b| b.lifetime(Duration::MAX))),
        ("lifetime", Box::new(|b| b.lifetime(Duration::from_nanos(1)))),
        ("idle_timeout", Box::new(|b| b.idle_timeout(Duration::ZERO))),
        ("idle_timeout", Box::new(|b| b.idle_timeout(Duration::from_millis(1)))),
        ("detached", Box::new(|b| b.detached(Duration::ZERO))),
        ("cpu", Box::new(|b| b.cpu(f64::NAN))),
        ("cpu", Box::new(|b| b.cpu(f64::INFINITY))),
        ("cpu", Box::new(|b| b.cpu(0.0))),
        ("cpu", Box::new(|b| b.cpu(-1.0))),
        ("cpu", Box::new(|b| b.cpu(1e6))),
        ("memory", Box::new(|b| b.memory(ByteSize::bytes(0)))),
        ("memory", Box::new(|b| b.memory(ByteSize::bytes(1)))),
        ("memory", Box::new(|b| b.memory(ByteSize::bytes(u64::MAX)))),
        ("disk", Box::new(|b| b.disk(ByteSize::bytes(0)))),
        ("disk", Box::new(|b| b.disk(ByteSize::bytes(u64::MAX)))),
        ("processes", Box::new(|b| b.processes(0))),
        ("processes", Box::new(|b| b.processes(3))),
        ("name", Box::new(|b| b.name(""))),
        ("name", Box::new(|b| b.name("a b"))),
        ("environment", Box::new(|b| b.environment("--flag"))),
        ("image", Box::new(|b| b.image("--privileged"))),
        ("gpu", Box::new(|b| b.gpu(""))),
        ("snapshot", Box::new(|b| b.snapshot_name("a\nb"))),
        ("working_dir", Box::new(|b| b.working_dir("/a\0b"))),
        ("working_dir", Box::new(|b| b.working_dir(""))),
        ("working_dir", Box::new(|b| b.working_dir(".."))),
        ("working_dir", Box::new(|b| b.working_dir("a/../.."))),
        ("env", Box::new(|b| b.env("A=B", "x"))),
        ("env", Box::new(|b| b.env("", "x"))),
        ("env", Box::new(|b| b.env("A\0", "x"))),
        ("env", Box::new(|b| b.env("A", "x\0"))),
        ("env", Box::new(|b| b.secret("A\nB", "x"))),
        ("tags", Box::new(|b| b.tag("a\0", "x"))),
    ]
}

async fn impossible_values_name_their_field(f: Fixture) -> Checked {
    for (field, configure) in impossible() {
        let error = refused(configure(f.builder()).create().await, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains(&format!("`{field}`")), "{field} is not named: {error}");
    }
    let error =
        refused(f.builder().secret("A", "hunter2\0").create().await, ErrorKind::InvalidArgument)?;
    ensure!(!format!("{error:?}").contains("hunter2"), "the secret is shown");
    Ok(())
}

async fn impossible_numbers_are_refused(_: Fixture) -> Checked {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e18] {
        let error = refused(seconds("timeout", value), ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains("`timeout`"), "{error}");
    }
    for size in ["", "0", "-1", "nan", "1e9", "9999999999999t", "12x"] {
        refused(size.parse::<ByteSize>(), ErrorKind::InvalidArgument)?;
    }
    Ok(())
}

async fn an_unknown_variant_lists_the_known_ones(f: Fixture) -> Checked {
    let error =
        refused(f.builder().variant("invalid-variant").create().await, ErrorKind::InvalidArgument)?;
    for variant in Variant::well_known() {
        ensure!(error.to_string().contains(variant.as_str()), "{variant} is not listed: {error}");
    }
    Ok(())
}

async fn another_variant_is_refused(f: Fixture) -> Checked {
    let own = f.backend().variant();
    for name in own.names() {
        let named = f.builder().variant(name.to_uppercase().replace('-', "_")).build()?;
        ensure_eq!(named.variant(), own);
    }
    for other in Variant::well_known().into_iter().filter(|variant| *variant != own) {
        refused(f.builder().variant(other).create().await, ErrorKind::Unsupported)?;
    }
    Ok(())
}

async fn unknown_options_are_refused(f: Fixture) -> Checked {
    let Err(error) = f.builder().provider_option("no_such_option", 1).create().await else {
        return Err("an unknown option was accepted".to_owned().into());
    };
    ensure!(
        matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unsupported),
        "kind of {error:?}"
    );
    ensure!(error.to_string().contains("no_such_option"), "the option is not named: {error}");
    Ok(())
}

async fn an_allowlist_needs_hosts(f: Fixture) -> Checked {
    let empty = NetworkPolicy::allowlist(Vec::<String>::new())?;
    refused(f.builder().network(empty).create().await, ErrorKind::InvalidArgument)?;
    let mut hosts_without = NetworkPolicy::allowlist(["pypi.org"])?;
    hosts_without.mode = sandbox_core::NetworkMode::None;
    refused(f.builder().network(hosts_without).create().await, ErrorKind::InvalidArgument)?;
    for pattern in ["http://x/", "*", "*.com", "a b", "", "x:99999", "1.2.3.4/33", "[::1"] {
        let error = refused(NetworkPolicy::allowlist([pattern]), ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains(&format!("{pattern:?}")), "{pattern:?}: {error}");
    }
    Ok(())
}

async fn a_reference_configuration_is_taken(f: Fixture) -> Checked {
    let config = SandboxConfig {
        timeout: 90.0,
        env_vars: [("A".to_owned(), "1".to_owned())].into(),
        name: Some("ref".into()),
        ..SandboxConfig::default()
    };
    let builder = f.builder().config(config).isolation(f.target().isolation);
    let spec = format!("{builder:?}");
    ensure!(spec.contains("90s"), "the timeout is lost: {spec}");
    Ok(())
}

async fn a_bad_reference_configuration_is_refused(f: Fixture) -> Checked {
    for (field, config) in [
        ("timeout", SandboxConfig { timeout: f64::NAN, ..SandboxConfig::default() }),
        ("max_lifetime", SandboxConfig { max_lifetime: -1.0, ..SandboxConfig::default() }),
        ("idle_timeout", SandboxConfig { idle_timeout: Some(0.0), ..SandboxConfig::default() }),
        ("memory", SandboxConfig { memory_limit: Some(0), ..SandboxConfig::default() }),
        ("cpu", SandboxConfig { cpu_limit: Some(f64::INFINITY), ..SandboxConfig::default() }),
    ] {
        let error = refused(f.builder().config(config).create().await, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains(&format!("`{field}`")), "{field} is not named: {error}");
    }
    Ok(())
}

/// Made inside the sandbox, or refused. Never another directory.
async fn a_missing_working_directory(f: Fixture) -> Checked {
    let path = "/tmp/not-there-yet/deep";
    match f.builder().working_dir(path).create().await {
        Ok(sandbox) => {
            f.keep(&sandbox);
            ensure_eq!(
                text(&sandbox, "import os; os.getcwd()").await?,
                as_shown(&format!("'{path}'"))
            );
        }
        Err(error) => ensure!(
            matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::NotFound),
            "kind of {error:?}"
        ),
    }
    Ok(())
}

/// Also after the code has gone elsewhere. What leaves upward is refused.
async fn relative_directories_are_below_the_sandbox_s_own(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.working_dir("own/./x/..")).await?;
    let own = printed(&sandbox, "import os; print(os.getcwd(), end='')").await?;
    ensure!(own.ends_with("/own"), "the working directory is {own:?}");
    ok(&sandbox, "os.makedirs('sub'); os.chdir('/')").await?;
    let below = format!("{own}/sub");
    let found = sandbox.run_code("print(os.getcwd(), end='')").cwd("sub").await?;
    ensure_eq!(found.logs.stdout_exact(), below, "of a run");
    refused(sandbox.run_code("1").cwd("../..").await, ErrorKind::InvalidArgument)?;
    let capabilities = sandbox.capabilities();
    if capabilities.commands {
        let found = sandbox.commands().run("pwd").cwd("./sub").await?;
        ensure_eq!(found.stdout, format!("{below}\n"), "of a command");
        refused(sandbox.commands().run("pwd").cwd("..").await, ErrorKind::InvalidArgument)?;
    }
    if capabilities.contexts {
        let mut spec = ContextSpec::default();
        spec.cwd = Some("sub".into());
        let context = sandbox.create_context_with(spec.clone()).await?;
        ensure_eq!(context.cwd.as_deref(), Some(below.as_str()), "of a context");
        let found = sandbox.run_code("import os; print(os.getcwd(), end='')").context(&context.id);
        ensure_eq!(found.await?.logs.stdout_exact(), below, "in a context");
        spec.cwd = Some("..".into());
        refused(sandbox.create_context_with(spec).await, ErrorKind::InvalidArgument)?;
    }
    Ok(())
}

async fn a_refused_create_leaves_the_backend_working(f: Fixture) -> Checked {
    for _ in 0..5 {
        ensure!(f.builder().provider_option("nope", true).create().await.is_err(), "accepted");
    }
    is_usable(&f.sandbox().await?).await?;
    Ok(())
}

async fn isolation_is_as_asked(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let isolation = sandbox.info().isolation;
    ensure_eq!(isolation.map(|isolation| isolation.mode), Some(f.target().isolation));
    Ok(())
}
