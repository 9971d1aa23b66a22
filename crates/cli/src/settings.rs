//! From flags to a sandbox. The core checks the values, and enforces or refuses them.

use std::env::{self, VarError};
use std::time::Duration;

use code_sandboxes::{
    DEFAULT_DETACHED, NetworkPolicy, Registry, Sandbox, SandboxBuilder, SingleUse, Tags, Variant,
    seconds,
};

use crate::args::{ProviderArgs, SandboxArgs};
use crate::problem::Problem;

/// The variant that is asked for, or the default one.
pub(crate) fn variant(args: &ProviderArgs) -> Result<Variant, Problem> {
    match &args.provider {
        Some(name) => Ok(name.parse()?),
        None => Ok(Registry::new().default_variant()),
    }
}

/// A builder for a sandbox, which may be made for one run alone.
pub(crate) fn builder(
    args: &SandboxArgs,
    purpose: Option<SingleUse>,
) -> Result<SandboxBuilder<Registry>, Problem> {
    let mut builder = Sandbox::builder()
        .variant(variant(&args.provider)?)
        .timeout(seconds("timeout", args.timeout)?)
        .isolation(args.isolation.unwrap_or_default())
        .network(network(args)?);
    if let Some(purpose) = purpose {
        builder = builder.single_use(purpose);
    }
    for item in &args.env {
        let (name, value) = environment_variable(item)?;
        builder = builder.env(name, value);
    }
    for item in &args.label {
        let (key, value) = label(item)?;
        builder = builder.tag(key, value);
    }
    resources(places(builder, args), args)
}

/// How long a sandbox stays that outlives this command.
pub(crate) fn stay(args: &SandboxArgs) -> Result<Duration, Problem> {
    match args.lifetime {
        Some(lifetime) => Ok(seconds("lifetime", lifetime)?),
        None => Ok(DEFAULT_DETACHED),
    }
}

/// Labels as they are given.
pub(crate) fn labels(items: &[String]) -> Result<Tags, Problem> {
    let pairs = items.iter().map(|item| label(item));
    pairs.map(|pair| pair.map(|(key, value)| (key.to_owned(), value.to_owned()))).collect()
}

fn places(mut builder: SandboxBuilder<Registry>, args: &SandboxArgs) -> SandboxBuilder<Registry> {
    if let Some(path) = &args.workdir {
        builder = builder.working_dir(path);
    }
    if let Some(name) = &args.environment {
        builder = builder.environment(name);
    }
    if let Some(name) = &args.image {
        builder = builder.image(name);
    }
    builder
}

fn resources(
    mut builder: SandboxBuilder<Registry>,
    args: &SandboxArgs,
) -> Result<SandboxBuilder<Registry>, Problem> {
    if let Some(memory) = args.memory {
        builder = builder.memory(memory);
    }
    if let Some(cores) = args.cpus {
        builder = builder.cpu(cores);
    }
    if let Some(disk) = args.disk {
        builder = builder.disk(disk);
    }
    if let Some(most) = args.processes {
        builder = builder.processes(most);
    }
    if let Some(gpu) = &args.gpu {
        builder = builder.gpu(gpu);
    }
    if let Some(lifetime) = args.lifetime {
        builder = builder.lifetime(seconds("lifetime", lifetime)?);
    }
    if let Some(idle) = args.idle_timeout {
        builder = builder.idle_timeout(seconds("idle_timeout", idle)?);
    }
    Ok(builder)
}

fn network(args: &SandboxArgs) -> Result<NetworkPolicy, Problem> {
    let allow = args.allow.iter().map(|host| host.parse()).collect::<Result<_, _>>()?;
    Ok(NetworkPolicy { mode: args.network.unwrap_or_default(), allow, deny: Vec::new() })
}

/// `NAME=VALUE`, or `NAME` for the value that this process has.
pub(crate) fn environment_variable(item: &str) -> Result<(String, String), Problem> {
    let wrong = |why: String| Problem::usage(format!("--env {why}"), "use -e NAME=VALUE");
    if let Some((name, value)) = item.split_once('=') {
        return match name {
            "" => Err(wrong("has a value without a name".into())),
            name => Ok((name.into(), value.into())),
        };
    }
    if item.is_empty() || item.contains('\0') {
        return Err(wrong(format!("{item:?} is not a name")));
    }
    match env::var(item) {
        Ok(value) => Ok((item.into(), value)),
        Err(VarError::NotPresent) => {
            Err(wrong(format!("`{item}` has no value and is not set here")))
        }
        Err(VarError::NotUnicode(_)) => {
            Err(wrong(format!("`{item}` has a value here that is not UTF-8")))
        }
    }
}

fn label(item: &str) -> Result<(&str, &str), Problem> {
    match item.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key, value)),
        _ => Err(Problem::usage(format!("--label `{item}` is not KEY=VALUE"), "use -l KEY=VALUE")),
    }
}
