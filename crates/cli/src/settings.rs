//! Builds sandboxes from flags. The core checks the values, and enforces or refuses them.

use std::env::{self, VarError};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use code_sandboxes::{
    Backend, DEFAULT_DETACHED, Error, Fallback, Mount, NetworkMode, NetworkPolicy, Registry,
    Sandbox, SandboxBuilder, SingleUse, Tags, Variant, seconds,
};

use sandbox_layers::TracingLayer;
use serde_json::Value;

use crate::args::{KernelArgs, ProviderArgs, SandboxArgs};
use crate::error::CliError;
use crate::layers;

/// Name that selects the first variant with credentials.
const AUTO: &str = "auto";

/// Variable with the token of a Jupyter Server: unlike arguments, other users cannot read it.
const TOKEN_VARIABLE: &str = "JUPYTER_TOKEN";

/// Returns the requested variant, or the default one.
pub(crate) fn variant(args: &ProviderArgs) -> Result<Variant, CliError> {
    match args.provider.as_deref() {
        Some(name) if name.trim().eq_ignore_ascii_case(AUTO) => Ok(Registry::new().detect()),
        Some(name) => Ok(name.parse()?),
        None => Ok(Registry::new().default_variant()),
    }
}

/// Returns the variant for a new sandbox. A kernel without a variant selects `local-jupyter`.
pub(crate) fn variant_of(args: &SandboxArgs) -> Result<Variant, CliError> {
    match args.provider.provider {
        None if args.kernel.is_given() => Ok(Variant::LOCAL_JUPYTER),
        _ => variant(&args.provider),
    }
}

/// Returns a builder for a sandbox, which may be for a single run only.
pub(crate) fn builder(
    args: &SandboxArgs,
    purpose: Option<SingleUse>,
) -> Result<SandboxBuilder<Registry>, CliError> {
    described(args, purpose, |place| place, |builder| builder)
}

/// Returns a builder for the sandboxes of a server. Each place has a circuit breaker of its own.
#[cfg(any(feature = "mcp", feature = "serve"))]
pub(crate) fn server_builder(args: &SandboxArgs) -> Result<SandboxBuilder<Registry>, CliError> {
    use code_sandboxes::Layer as _;
    let around = |place: Arc<dyn Backend>| layers::breaker().layer(place);
    described(args, None, around, |builder| builder.layer(layers::breaker()))
}

fn described(
    args: &SandboxArgs,
    purpose: Option<SingleUse>,
    around_fallback: impl Fn(Arc<dyn Backend>) -> Arc<dyn Backend>,
    around_first: impl FnOnce(SandboxBuilder<Registry>) -> SandboxBuilder<Registry>,
) -> Result<SandboxBuilder<Registry>, CliError> {
    let mut builder = Sandbox::builder()
        .variant(variant_of(args)?)
        .timeout(seconds("timeout", args.timeout)?)
        .isolation(args.isolation.unwrap_or_default())
        .network(network(args)?);
    builder = around_first(builder);
    if !args.fallback.is_empty() {
        let place = |name: &String| Registry::new().backend(name.parse()?).map(&around_fallback);
        let places = args.fallback.iter().map(place);
        builder = builder.layer(Fallback::new(places.collect::<Result<Vec<_>, Error>>()?));
    }
    builder = layers::add(builder, &args.layers)?;
    if tracing::enabled!(target: "sandbox", tracing::Level::DEBUG) {
        builder = builder.layer(TracingLayer);
    }
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
    for item in &args.option {
        let (key, value) = provider_option(item)?;
        builder = builder.provider_option(key, value);
    }
    for item in &args.mount {
        builder = builder.mount(mount(item)?);
    }
    if args.writable_root {
        if variant_of(args)? != Variant::LOCAL_DOCKER {
            let message =
                "--writable-root is for containers: elsewhere there is no root of an image";
            return Err(CliError::usage(message, "add `-p local-docker`, or leave it out"));
        }
        builder = builder.provider_option("writable_root", true);
    }
    resources(places(kernel(builder, variant_of(args)?, &args.kernel)?, args), args)
}

/// Adds the kernel that runs the code, and its location.
fn kernel(
    mut builder: SandboxBuilder<Registry>,
    variant: Variant,
    args: &KernelArgs,
) -> Result<SandboxBuilder<Registry>, CliError> {
    if let Some(name) = &args.kernel {
        builder = match variant {
            // In a container, a kernel is one of the engines that can run code.
            Variant::LOCAL_DOCKER => builder.provider_option("engine", format!("jupyter:{name}")),
            _ => builder.provider_option("kernel", name.as_str()),
        };
    }
    let texts = [
        ("transport", &args.transport),
        ("server_url", &args.server_url),
        ("kernel_id", &args.kernel_id),
    ];
    for (option, text) in texts {
        if let Some(text) = text {
            builder = builder.provider_option(option, text.as_str());
        }
    }
    let token = args.token.as_ref().map(|token| token.expose().to_owned());
    // A token in the address takes precedence over the variable.
    let in_address = args
        .server_url
        .as_ref()
        .is_some_and(|url| url.split(['?', '&']).skip(1).any(|field| field.starts_with("token=")));
    let variable =
        || env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty() && !in_address);
    if let Some(token) = token.or_else(variable).filter(|_| args.server_url.is_some()) {
        builder = builder.provider_option("token", token);
    }
    if let Some(file) = &args.connection_file {
        // The supervisor, which may create the sandbox, has another working directory.
        let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let Some(path) = path.to_str() else {
            let message = format!("--connection-file {} is not UTF-8", file.display());
            return Err(CliError::usage(message, "give it another name"));
        };
        builder = builder.provider_option("connection_file", path);
    }
    Ok(builder)
}

/// Returns the time that a detached sandbox stays.
pub(crate) fn stay(args: &SandboxArgs) -> Result<Duration, CliError> {
    match args.lifetime {
        Some(lifetime) => Ok(seconds("lifetime", lifetime)?),
        None => Ok(DEFAULT_DETACHED),
    }
}

/// Parses labels.
pub(crate) fn labels(items: &[String]) -> Result<Tags, CliError> {
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
    if let Some(name) = &args.snapshot {
        builder = builder.snapshot_name(name);
    }
    builder
}

fn resources(
    mut builder: SandboxBuilder<Registry>,
    args: &SandboxArgs,
) -> Result<SandboxBuilder<Registry>, CliError> {
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
    if let Some(most) = args.disk_files {
        builder = builder.disk_files(most);
    }
    if let Some(most) = args.open_files {
        builder = builder.open_files(most);
    }
    if let Some(limit) = args.output_limit {
        builder = builder.output_limit(limit);
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

fn network(args: &SandboxArgs) -> Result<NetworkPolicy, CliError> {
    let parse =
        |hosts: &[String]| hosts.iter().map(|host| host.parse()).collect::<Result<Vec<_>, _>>();
    Ok(NetworkPolicy {
        mode: network_mode(args),
        allow: parse(&args.allow)?,
        deny: parse(&args.deny)?,
    })
}

/// Returns the network mode. Allowed hosts without a mode select the allowlist.
pub(crate) fn network_mode(args: &SandboxArgs) -> NetworkMode {
    let allowlist =
        if args.allow.is_empty() { NetworkMode::Inherit } else { NetworkMode::Allowlist };
    args.network.unwrap_or(allowlist)
}

/// Parses `NAME=VALUE`, or `NAME`, which takes the value of this process.
pub(crate) fn environment_variable(item: &str) -> Result<(String, String), CliError> {
    let wrong = |why: String| CliError::usage(format!("--env {why}"), "use -e NAME=VALUE");
    if let Some((name, value)) = item.split_once('=') {
        return match name {
            "" => Err(wrong("has a value without a name".into())),
            name if !is_name(name) => Err(wrong(no_name(name))),
            name => Ok((name.into(), value.into())),
        };
    }
    if !is_name(item) {
        return Err(wrong(no_name(item)));
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

/// Returns a note about variables of the dynamic loader among items such as `NAME=VALUE` or `NAME`, if there are any.
pub(crate) fn loader_note(items: &[String]) -> Option<String> {
    let names = items.iter().map(|item| item.split('=').next().unwrap_or_default());
    let of_loader = names.filter(|name| name.starts_with("LD_") || *name == "GLIBC_TUNABLES");
    let names: Vec<_> = of_loader.collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: applies to commands and to programs that the code starts, not to the interpreter, which was loaded before",
            names.join(", ")
        )
    })
}

/// Returns true for a name that a shell accepts as a variable.
fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(|c: char| is_part(c) && !c.is_ascii_digit()) && text.chars().all(is_part)
}

fn no_name(text: &str) -> String {
    format!("{text:?} is not a name: letters, digits and `_`, and no digit first")
}

/// Returns key and value of a provider option. What is no JSON is text.
fn provider_option(item: &str) -> Result<(&str, Value), CliError> {
    match item.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            let parsed = serde_json::from_str(value);
            Ok((key, parsed.unwrap_or_else(|_| Value::String(value.to_owned()))))
        }
        _ => Err(CliError::usage(
            format!("--option `{item}` is not KEY=VALUE"),
            "use --option KEY=VALUE, such as --option generation=1",
        )),
    }
}

fn label(item: &str) -> Result<(&str, &str), CliError> {
    match item.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key, value)),
        _ => Err(CliError::usage(format!("--label `{item}` is not KEY=VALUE"), "use -l KEY=VALUE")),
    }
}

/// Returns the path in the sandbox of a file of this host that is below a mount.
pub(crate) fn mounted_place(file: &Path, mounts: &[String]) -> Option<String> {
    let file = file.canonicalize().ok()?;
    mounts.iter().rev().filter_map(|item| mount(item).ok()).find_map(|mount| {
        let below = file.strip_prefix(mount.source.canonicalize().ok()?).ok()?;
        let place = Path::new(&mount.target).join(below);
        // Joining an empty path to the path of a file leaves a slash at its end.
        place.to_str().map(|place| place.trim_end_matches('/').to_owned())
    })
}

/// Parses `SRC:DST`; with `:rw` code may change the content, with `:ro`, the default, it may not.
fn mount(item: &str) -> Result<Mount, CliError> {
    let (places, writable) = match item.rsplit_once(':') {
        Some((places, "rw")) => (places, true),
        Some((places, "ro")) => (places, false),
        _ => (item, false),
    };
    let Some((source, target)) = places.rsplit_once(':') else {
        return Err(CliError::usage(
            format!("--mount `{item}` is not SRC:DST"),
            "use --mount /path/here:/path/in/the/sandbox, with :rw behind it to let code change it",
        ));
    };
    let mount = Mount::new(source, target);
    Ok(if writable { mount.writable() } else { mount })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_written_as_with_container_engines() {
        let parts = |item: &str| {
            mount(item)
                .map(|mount| {
                    (mount.source.to_string_lossy().into_owned(), mount.target, mount.writable)
                })
                .ok()
        };
        let known =
            |source: &str, target: &str, writable| Some((source.into(), target.into(), writable));
        assert_eq!(parts("/a:/b"), known("/a", "/b", false));
        assert_eq!(parts("/a:/b:ro"), known("/a", "/b", false));
        assert_eq!(parts("/a:/b:rw"), known("/a", "/b", true));
        assert_eq!(parts("/a:x:/b:rw"), known("/a:x", "/b", true));
        assert_eq!(parts("/a"), None);
        assert_eq!(parts("/a:rw"), None);
    }
}
