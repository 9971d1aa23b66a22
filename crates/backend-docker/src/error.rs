//! Errors of an engine by the step that failed: the same words mean another thing in another step.

use bollard::errors::Error as Cause;
use sandbox_core::{Effect, Error, ErrorKind, Result};

use crate::config::{Options, SHELL};
use crate::endpoint::REQUEST_TIMEOUT_SECONDS;
use crate::gpus;
use crate::optional_features::{OptionalFeature, OptionalFeatures};

/// Hint of an image whose interpreter is missing.
const NEEDS_PYTHON: &str =
    "the image needs Python 3.9 or later as `python3`; or name it with the option `python`";

/// Hint of an image without a shell.
pub(crate) const NEEDS_SHELL: &str = "the image needs /bin/sh, and Python 3.9 or later for code";

/// Hint of operations that an image without Python does not support.
pub(crate) const NEEDS_PYTHON_FOR_MORE: &str = "the image has no python3, which everything but commands and files needs: put Python 3.9 or \
                                                later into it, or name another image";

/// Context of an error about an image without a usable Python.
const MISSING_PYTHON: (&str, &str) = ("missing", "python3");

/// Failures to start a container after which a create tries another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartFailure {
    /// The image has no Python that the agent runs on.
    MissingPython,
    /// The engine refuses a feature that not every engine has.
    RefusedFeature(OptionalFeature),
    /// Any other failure, which is final.
    Other,
}

/// An error of a start, with its cause for the caller that may try another way.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) error: Error,
    pub(crate) failure: StartFailure,
}

impl StartError {
    /// Marks an error as that of an image without a usable Python.
    pub(crate) fn missing_python(error: Error) -> Self {
        let (name, value) = MISSING_PYTHON;
        Self { error: error.with_context(name, value), failure: StartFailure::MissingPython }
    }
}

impl From<Error> for StartError {
    fn from(error: Error) -> Self {
        Self { error, failure: StartFailure::Other }
    }
}

impl From<StartError> for Error {
    fn from(failed: StartError) -> Self {
        failed.error
    }
}

/// Returns status and words of the engine's answer, or the error of an engine that did not answer.
fn answer_of(operation: &'static str, error: Cause) -> std::result::Result<(u16, String), Error> {
    match error {
        Cause::DockerResponseServerError { status_code, message } => Ok((status_code, message)),
        error @ Cause::RequestTimeoutError => {
            let message =
                format!("the engine gave no answer within {REQUEST_TIMEOUT_SECONDS} seconds");
            Err(Error::new(ErrorKind::Unavailable, operation, message)
                .with_effect(Effect::Unknown)
                .with_source(error)
                .with_hint(
                    "the engine's own log says more; an engine that hangs has to be restarted",
                ))
        }
        error => Err(Error::new(
            ErrorKind::Unavailable,
            operation,
            "the connection with the engine broke",
        )
        .with_effect(Effect::Unknown)
        .with_source(error)),
    }
}

/// Parses the error of any request.
pub(crate) fn parse_error(operation: &'static str, error: Cause) -> Error {
    match answer_of(operation, error) {
        Ok((status, message)) => {
            let (kind, hint) = classify(status, &message);
            with_hint(operation, kind, &message, hint)
        }
        Err(broken) => broken,
    }
}

/// Returns kind and hint of an answer that means the same in every step.
fn classify(status: u16, message: &str) -> (ErrorKind, &'static str) {
    if message.to_ascii_lowercase().contains("no space left") {
        return (
            ErrorKind::ResourceExhausted,
            "free space where the engine keeps its files: docker system prune",
        );
    }
    match status {
        404 => (ErrorKind::NotFound, "the engine has nothing of that name any more"),
        409 if is_conflict(message) => (
            ErrorKind::AlreadyExists,
            "the engine has something else of that name, or is still working on it; try again",
        ),
        409 => (ErrorKind::Unavailable, "the engine's own log says more"),
        400..500 => (ErrorKind::InvalidArgument, "the engine does not accept that request"),
        _ => (ErrorKind::Unavailable, "the engine's own log says more"),
    }
}

/// Parses the error of the requests that create, attach to or start a container with those features.
pub(crate) fn parse_create_error(
    error: Cause,
    options: &Options,
    features: OptionalFeatures,
) -> StartError {
    let (status, message) = match answer_of("create", error) {
        Ok(answer) => answer,
        Err(broken) => return broken.into(),
    };
    let Diagnosis { kind, hint, is_missing_python } = diagnose(status, &message, options);
    let error = with_hint("create", kind, &message, &hint);
    match features.find_refused(&message) {
        Some(feature) => StartError { error, failure: StartFailure::RefusedFeature(feature) },
        None if is_missing_python => StartError::missing_python(error),
        None => error.into(),
    }
}

/// The meaning of an answer to a request for a container.
struct Diagnosis {
    kind: ErrorKind,
    hint: String,
    is_missing_python: bool,
}

impl Diagnosis {
    fn new(kind: ErrorKind, hint: impl Into<String>) -> Self {
        Self { kind, hint: hint.into(), is_missing_python: false }
    }
}

fn diagnose(status: u16, message: &str, options: &Options) -> Diagnosis {
    let lower = message.to_ascii_lowercase();
    let is_about = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    if status == 404 && is_about(&["no such image"]) {
        return Diagnosis::new(ErrorKind::NotFound, missing_image_hint(&options.image));
    }
    if options.gpus.is_some() && gpus::is_refusal(message) {
        return Diagnosis::new(ErrorKind::Unsupported, gpus::INSTALL_HINT);
    }
    if is_about(&["seccomp profile"]) {
        return Diagnosis::new(
            ErrorKind::Unsupported,
            "Podman reads the rules for system calls from a file of its own host: use the socket of a Podman of this user on this host",
        );
    }
    let is_program_missing =
        is_about(&["is missing", "not found", "no such file", "permission denied"]);
    if is_program_missing && names_program(message, &options.python) {
        return Diagnosis {
            is_missing_python: true,
            ..Diagnosis::new(ErrorKind::NotFound, NEEDS_PYTHON)
        };
    }
    if is_program_missing && names_program(message, SHELL) {
        return Diagnosis::new(ErrorKind::NotFound, NEEDS_SHELL);
    }
    if is_about(&["unknown or invalid runtime", "unknown runtime", "invalid runtime"]) {
        return Diagnosis::new(
            ErrorKind::InvalidArgument,
            "`docker info` lists the runtimes of the engine",
        );
    }
    if is_about(&["bind source path", "error mounting", "mount ", "statfs "])
        && is_about(&["does not exist", "no such file"])
    {
        return Diagnosis::new(
            ErrorKind::NotFound,
            "the engine finds no such file: it was removed meanwhile, or the engine has another file system than this process",
        );
    }
    if is_about(&["hybrid mode not supported"]) {
        return Diagnosis::new(
            ErrorKind::Unavailable,
            "crun does not work where both versions of control groups are mounted: install runc where the engine is, and write `runtime = \"runc\"` below `[engine]` in Podman's containers.conf",
        );
    }
    if let Some(runtime) = &options.runtime
        && is_about(&["not found", "no such file", "failed to start shim", "runtime"])
    {
        let hint = format!(
            "the engine knows the runtime {runtime}, but its program is missing or does not work: install it where the engine is"
        );
        return Diagnosis::new(ErrorKind::Unavailable, hint);
    }
    let (kind, hint) = classify(status, message);
    Diagnosis::new(kind, hint)
}

/// Returns true if the message is about a name in use. Podman has the same status for what fails later.
fn is_conflict(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["in use", "already", "in progress", "conflict"].iter().any(|words| message.contains(words))
}

/// Returns true if the message names a program as the one that did not start, in the words of any runtime.
fn names_program(message: &str, program: &str) -> bool {
    ["\"", "`", "'"].iter().any(|quote| message.contains(&format!("{quote}{program}{quote}")))
}

fn with_hint(operation: &'static str, kind: ErrorKind, message: &str, hint: &str) -> Error {
    let message = format!("the engine refused: {}", message.trim());
    Error::new(kind, operation, message).with_hint(hint.to_owned())
}

fn missing_image_hint(name: &str) -> String {
    if name == crate::DEFAULT_IMAGE {
        "build it with `Images::build(..)`, or name another image that has Python 3.9 or later"
            .to_owned()
    } else {
        "fetch it with `Images::pull(..)`, or build it".to_owned()
    }
}

/// Returns the error of an image that the engine does not have.
pub(crate) fn image_not_found(name: &str) -> Error {
    Error::new(ErrorKind::NotFound, "create", format!("the engine has no image {name}"))
        .with_context("image", name.to_owned())
        .with_hint(missing_image_hint(name))
}

/// Refuses an engine that creates containers without a requested limit, which it reports as a warning.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check_warnings(warnings: &[String]) -> Result<()> {
    // A kernel without cgroup namespaces shows the host's paths. That is no limit.
    let is_limit = |warning: &&String| {
        let warning = warning.to_lowercase();
        warning.contains("discard") && !warning.contains("cgroup namespace")
    };
    let Some(warning) = warnings.iter().find(is_limit) else { return Ok(()) };
    let message = format!("the engine would not enforce a limit: {}", warning.trim());
    Err(Error::unsupported("create", message).with_hint(
        "its kernel needs the control groups `memory` and `pids`, and a rootless engine needs them delegated",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::DockerConfig;

    #[test]
    fn a_discarded_limit_is_refused() {
        let harmless = "Your kernel does not support swap limit capabilities or the cgroup is not mounted. Memory limited without swap.";
        let lost = "Your kernel does not support pids limit capabilities or the cgroup is not mounted. PIDs limit discarded.";
        let shown =
            "Your kernel does not support cgroup namespaces.  Cgroup namespace setting discarded.";
        check_warnings(&[harmless.to_owned(), shown.to_owned()]).unwrap();
        let error = check_warnings(&[harmless.to_owned(), lost.to_owned()]).unwrap_err();
        assert!(error.message().contains("PIDs limit") && error.hint().is_some(), "{error:?}");
    }

    #[test]
    fn a_timeout_is_reported_as_a_timeout() {
        let error = parse_error("start_command", Cause::RequestTimeoutError);
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(error.effect(), Effect::Unknown);
        assert!(error.message().contains("no answer within 120 seconds"), "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("restarted")), "{error:?}");
    }

    #[test]
    fn a_refusal_has_the_kind_and_hint_of_its_cause() {
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
            let features = OptionalFeatures::default();
            let StartError { error, failure } =
                parse_create_error(cause, &options(runtime), features);
            let is_missing_python = failure == StartFailure::MissingPython;
            assert_eq!(is_missing_python, part == "Python", "{error:?}");
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains(part)), "{error:?}");
        }
        // Another thing that is missing is no part of the image.
        let message = "No such container: no such file".to_owned();
        let error =
            parse_error("pause", Cause::DockerResponseServerError { status_code: 404, message });
        assert!(error.hint().is_some_and(|hint| !hint.contains("Python")), "{error:?}");
    }
}
