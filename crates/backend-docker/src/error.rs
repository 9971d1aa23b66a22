//! What an engine's refusals mean. The same words mean another thing in another step, so each step has its own.

use bollard::errors::Error as Cause;
use sandbox_core::{Effect, Error, ErrorKind, Result};

use crate::agentless::{NEEDS_SHELL, NO_PYTHON, SHELL};
use crate::config::Options;
use crate::engine::REQUEST_TIMEOUT_SECONDS;
use crate::gpus;

/// What an image needs whose interpreter is not there.
const NEEDS_PYTHON: &str =
    "the image needs Python 3.9 or later as `python3`; or name it with the option `python`";

/// The engine's own words, or the error where there are none: it does not answer, or the connection with it broke.
fn words_of(
    operation: &'static str,
    error: Cause,
) -> std::result::Result<(u16, String), Box<Error>> {
    match error {
        Cause::DockerResponseServerError { status_code, message } => Ok((status_code, message)),
        error @ Cause::RequestTimeoutError => {
            let message =
                format!("the engine gave no answer within {REQUEST_TIMEOUT_SECONDS} seconds");
            Err(Box::new(
                Error::new(ErrorKind::Unavailable, operation, message)
                    .with_effect(Effect::Unknown)
                    .with_source(error)
                    .with_hint("its own log says more; one that hangs has to be restarted"),
            ))
        }
        error => Err(Box::new(
            Error::new(ErrorKind::Unavailable, operation, "the connection with the engine broke")
                .with_effect(Effect::Unknown)
                .with_source(error),
        )),
    }
}

/// What the refusal of any request means.
pub(crate) fn parse_error(operation: &'static str, error: Cause) -> Error {
    let (status, message) = match words_of(operation, error) {
        Ok(words) => words,
        Err(broken) => return *broken,
    };
    let (kind, hint) = usual(status, &message);
    told(operation, kind, &message, hint)
}

fn usual(status: u16, message: &str) -> (ErrorKind, &'static str) {
    if message.to_ascii_lowercase().contains("no space left") {
        return (
            ErrorKind::ResourceExhausted,
            "free space where the engine keeps its files: docker system prune",
        );
    }
    match status {
        404 => (ErrorKind::NotFound, "the engine has nothing of that name any more"),
        409 if is_taken(message) => (
            ErrorKind::AlreadyExists,
            "the engine has something else of that name, or is at work on it; try again",
        ),
        409 => (ErrorKind::Unavailable, "the engine's own log says more"),
        400..500 => (ErrorKind::InvalidArgument, "the engine does not take that"),
        _ => (ErrorKind::Unavailable, "the engine's own log says more"),
    }
}

/// What the refusal to make or to start a container means.
pub(crate) fn parse_create_error(error: Cause, options: &Options) -> Error {
    let (status, message) = match words_of("create", error) {
        Ok(words) => words,
        Err(broken) => return *broken,
    };
    let (kind, hint) = why_not_made(status, &message, options);
    let error = told("create", kind, &message, &hint);
    let (name, what) = NO_PYTHON;
    if hint == NEEDS_PYTHON { error.with_context(name, what) } else { error }
}

fn why_not_made(status: u16, message: &str, options: &Options) -> (ErrorKind, String) {
    let lower = message.to_ascii_lowercase();
    let is_about = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if status == 404 && is_about(&["no such image"]) {
        return (ErrorKind::NotFound, missing_image(&options.image));
    }
    if options.gpus.is_some() && gpus::is_refusal(message) {
        return (ErrorKind::Unsupported, gpus::HOW.into());
    }
    if is_about(&["seccomp profile"]) {
        return (ErrorKind::Unsupported, "Podman reads the rules for system calls from a file of its own host: use the socket of a Podman on this host, of this user".into());
    }
    if is_about(&["is missing", "not found", "no such file", "permission denied"])
        && names_program(message, &options.python)
    {
        return (ErrorKind::NotFound, NEEDS_PYTHON.into());
    }
    if is_about(&["is missing", "not found", "no such file", "permission denied"])
        && names_program(message, SHELL)
    {
        return (ErrorKind::NotFound, NEEDS_SHELL.into());
    }
    if is_about(&["unknown or invalid runtime", "unknown runtime", "invalid runtime"]) {
        return (
            ErrorKind::InvalidArgument,
            "`docker info` lists the runtimes of the engine".into(),
        );
    }
    if is_about(&["bind source path", "error mounting", "mount ", "statfs "])
        && is_about(&["does not exist", "no such file"])
    {
        let hint = "the engine finds no such file: it was removed meanwhile, or the engine has another file system than this process";
        return (ErrorKind::NotFound, hint.into());
    }
    if is_about(&["hybrid mode not supported"]) {
        let hint = "crun does not work where both versions of control groups are mounted: install runc where the engine is, and write `runtime = \"runc\"` below `[engine]` in Podman's containers.conf";
        return (ErrorKind::Unavailable, hint.into());
    }
    if let Some(runtime) = &options.runtime
        && is_about(&["not found", "no such file", "failed to start shim", "runtime"])
    {
        let hint = format!(
            "the engine knows the runtime {runtime}, and its program is not there or does not work: install it where the engine is"
        );
        return (ErrorKind::Unavailable, hint);
    }
    let (kind, hint) = usual(status, message);
    (kind, hint.into())
}

/// Whether it is a name that is in use. Podman has the same status for what fails later.
fn is_taken(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["in use", "already", "in progress", "conflict"].iter().any(|words| message.contains(words))
}

/// Whether it is that program which could not be started, in the words of one runtime or another.
fn names_program(message: &str, program: &str) -> bool {
    ["\"", "`", "'"].iter().any(|quote| message.contains(&format!("{quote}{program}{quote}")))
}

fn told(operation: &'static str, kind: ErrorKind, message: &str, hint: &str) -> Error {
    let message = format!("the engine refused: {}", message.trim());
    Error::new(kind, operation, message).with_hint(hint.to_owned())
}

fn missing_image(name: &str) -> String {
    if name == crate::DEFAULT_IMAGE {
        "build it with `sandboxes image build`, or name another one that has Python 3.9 or later"
            .to_owned()
    } else {
        format!("fetch it with `sandboxes image pull {name}`, or build it")
    }
}

/// An image that the engine does not have.
pub(crate) fn image_not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "create", format!("the engine has no image {name}"))
        .with_context("image", name.to_owned())
        .with_hint(missing_image(name))
}

/// Refuses an engine that makes containers without a limit that was asked for, which it says in a warning.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check_limits(warnings: &[String]) -> Result<()> {
    // A kernel without namespaces of groups shows the host's paths, which is no limit.
    let is_limit = |warning: &&String| {
        let warning = warning.to_lowercase();
        warning.contains("discard") && !warning.contains("cgroup namespace")
    };
    let Some(warning) = warnings.iter().find(is_limit) else { return Ok(()) };
    let message = format!("the engine would enforce no such limit: {}", warning.trim());
    Err(Error::unsupported("create", message).with_hint(
        "its kernel needs the control groups `memory` and `pids`, and a rootless engine has to be given them",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::DockerConfig;

    #[test]
    fn a_limit_that_is_discarded_is_no_limit() {
        let harmless = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap.";
        let lost = "Your kernel does not support pids limit capabilities or the cgroup is not mounted. PIDs limit discarded.";
        let shown =
            "Your kernel does not support cgroup namespaces.  Cgroup namespace setting discarded.";
        check_limits(&[harmless.to_owned(), shown.to_owned()]).unwrap();
        let error = check_limits(&[harmless.to_owned(), lost.to_owned()]).unwrap_err();
        assert!(error.message().contains("PIDs limit") && error.hint().is_some(), "{error:?}");
    }

    #[test]
    fn no_answer_is_no_broken_connection() {
        let error = parse_error("start_command", Cause::RequestTimeoutError);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), Effect::Unknown);
        assert!(error.message().contains("no answer within 120 seconds"), "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("restarted")), "{error:?}");
    }

    #[test]
    fn what_is_missing_is_named_for_what_it_is() {
        let options = |runtime: Option<&str>| {
            let mut spec = sandbox_core::CreateSpec::default();
            if let Some(runtime) = runtime {
                spec.provider_options.insert("runtime".into(), json!(runtime));
            }
            Options::from_spec(&DockerConfig::default(), &spec).unwrap()
        };
        for (runtime, status, message, kind, part) in [
            (
                None,
                500,
                "preparing container 7963 for attach: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2: OCI runtime error",
                ErrorKind::Unavailable,
                "containers.conf",
            ),
            (
                None,
                400,
                r#"failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: "python3": executable file not found in $PATH: unknown"#,
                ErrorKind::NotFound,
                "Python",
            ),
            (
                None,
                500,
                "crun: executable file `python3` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found",
                ErrorKind::NotFound,
                "Python",
            ),
            (
                Some("odd"),
                400,
                r#"failed to create task for container: failed to create shim task: OCI runtime create failed: unable to retrieve OCI runtime error (open /run/x/log.json: no such file or directory): fork/exec /no/such/runtime: no such file or directory: unknown"#,
                ErrorKind::Unavailable,
                "the runtime odd",
            ),
            (
                Some("odd"),
                400,
                "unknown or invalid runtime name: odd",
                ErrorKind::InvalidArgument,
                "docker info",
            ),
            (
                None,
                400,
                r#"invalid mount config for type "bind": bind source path does not exist: /x/y"#,
                ErrorKind::NotFound,
                "no such file",
            ),
            (
                None,
                500,
                r#"OCI runtime create failed: runc create failed: error mounting "/x" to rootfs at "/y": no such file or directory"#,
                ErrorKind::NotFound,
                "no such file",
            ),
            (
                None,
                500,
                "container create: opening seccomp profile failed: open /tmp/x: no such file or directory",
                ErrorKind::Unsupported,
                "Podman",
            ),
            (
                None,
                500,
                "write /var/lib/docker/x: no space left on device",
                ErrorKind::ResourceExhausted,
                "free space",
            ),
            (
                None,
                409,
                r#"Conflict. The container name "/x" is already in use"#,
                ErrorKind::AlreadyExists,
                "try again",
            ),
            (
                None,
                500,
                "open /var/lib/docker/x: no such file or directory",
                ErrorKind::Unavailable,
                "log",
            ),
        ] {
            let message = message.to_owned();
            let cause = Cause::DockerResponseServerError { status_code: status, message };
            let error = parse_create_error(cause, &options(runtime));
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains(part)), "{error:?}");
        }
        // What else may be missing is nothing of the image.
        let message = "No such container: no such file".to_owned();
        let error =
            parse_error("pause", Cause::DockerResponseServerError { status_code: 404, message });
        assert!(error.hint().is_some_and(|hint| !hint.contains("Python")), "{error:?}");
    }
}
