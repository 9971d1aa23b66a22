//! Images of an engine: listed, inspected, pulled, and built from the Dockerfile of this project.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::ImageInspect;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateImageOptionsBuilder, ListImagesOptions,
};
use futures_util::{Stream, StreamExt as _};
use sandbox_core::{Effect, Error, ErrorKind, Result, Retry};

use crate::config::{DEFAULT_IMAGE, DockerConfig};
use crate::engine::Engine;
use crate::error::{image_not_found, parse_error};
use crate::label::runner_label;

/// The Dockerfile of the image: `docker/Dockerfile` of this project.
const DOCKERFILE: &str = include_str!("Dockerfile");

/// Lists, pulls and builds the images of an engine.
#[derive(Debug)]
pub struct Images {
    docker: Docker,
}

/// Options of an image build, all optional. Start from [`ImageBuild::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImageBuild {
    /// Name of the image. Default: [`DEFAULT_IMAGE`].
    pub name: Option<String>,
    /// Base image: any Debian with `python3` and its `venv` module, 3.9 or later. Default: that of the Dockerfile.
    pub base: Option<String>,
    /// Further Python packages, in the syntax of pip.
    pub packages: Vec<String>,
    /// Package index of pip. Default: pip's own. The history of the image keeps the URL, including a password in it.
    pub index_url: Option<String>,
    /// Certificates (PEM) that are trusted while packages are fetched, instead of the default ones. The image does not keep
    /// them.
    pub ca_bundle: Option<Vec<u8>>,
    /// Default of the option `engine` for sandboxes of the image, such as `jupyter:ir`. Default: the label
    /// [`ENGINE_LABEL`](crate::ENGINE_LABEL) of the base, or else `python`.
    pub engine: Option<String>,
    /// Network of the build, such as `host`. Default: that of the engine.
    pub network: Option<String>,
}

/// An image by one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Image {
    /// Name with tag, such as `code-sandboxes:latest`.
    pub name: String,
    /// Id: the digest of the image's configuration.
    pub id: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of creation, in seconds since 1970.
    pub created_at: i64,
}

impl Images {
    pub(crate) fn new(docker: &Docker) -> Self {
        Self { docker: docker.clone() }
    }

    /// Connects to the engine that a [`crate::DockerBackend`] would use.
    ///
    /// # Errors
    /// `Unavailable` when no engine answers within five seconds, `PermissionDenied` when this user may not use it.
    pub async fn connect(config: &DockerConfig) -> Result<Self> {
        Ok(Self { docker: Engine::connect(config).await?.docker })
    }

    /// Lists every name of every image, sorted. Images without a name are left out.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn list(&self) -> Result<Vec<Image>> {
        let found = self
            .docker
            .list_images(None::<ListImagesOptions>)
            .await
            .map_err(|error| parse_error("list_images", error))?;
        let mut all: Vec<_> = found
            .into_iter()
            .flat_map(|image| {
                let (id, size, created_at) = (image.id, image.size, image.created);
                let names = image.repo_tags.into_iter().filter(|name| !name.contains("<none>"));
                names.map(move |name| Image {
                    name,
                    id: id.clone(),
                    size: u64::try_from(size).unwrap_or_default(),
                    created_at,
                })
            })
            .collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// Pulls an image from its registry. A name without a tag means `latest`. `progress` gets each step.
    ///
    /// # Errors
    /// `NotFound` when there is no image of that name, `Unavailable` when the registry cannot be reached, and those of the
    /// engine.
    ///
    /// # Cancellation
    /// The engine stops the pull, and keeps the layers that it has.
    pub async fn pull(&self, name: &str, progress: impl FnMut(&str)) -> Result<()> {
        let options = CreateImageOptionsBuilder::default().from_image(name);
        let tagged =
            name.contains('@') || name.rsplit('/').next().is_some_and(|last| last.contains(':'));
        let options = if tagged { options } else { options.tag("latest") };
        let steps = self.docker.create_image(Some(options.build()), None, None);
        let lines = steps.map(|step| {
            step.map(|step| match (step.id, step.status, step.progress_detail) {
                // Byte counts of each layer come ten times a second and are left out.
                (_, _, Some(detail)) if detail.current.is_some() => None,
                (Some(id), Some(status), _) => Some(format!("{id}: {status}")),
                (_, status, _) => status,
            })
        });
        report_lines(lines, progress).await.map_err(|error| pull_error(name, error))
    }

    /// Pulls an image like [`Images::pull`], unless the engine has it. Returns whether it was pulled.
    ///
    /// # Errors
    /// Those of [`Images::pull`].
    pub async fn pull_missing(&self, name: &str, progress: impl FnMut(&str)) -> Result<bool> {
        match self.docker.inspect_image(name).await {
            Ok(_) => Ok(false),
            Err(Cause::DockerResponseServerError { status_code: 404, .. }) => {
                self.pull(name, progress).await.map(|()| true)
            }
            Err(error) => Err(parse_error(PULL, error)),
        }
    }

    /// Builds the image of this project and returns its name. `progress` gets each line.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that cannot be used, `NotFound` when there is no such base, `Unavailable` when a step
    /// fails: `progress` got its output.
    ///
    /// # Cancellation
    /// The engine stops the build.
    pub async fn build(&self, build: &ImageBuild, progress: impl FnMut(&str)) -> Result<String> {
        let name = build.name.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        let arguments = arguments(build)?;
        let mut options = BuildImageOptionsBuilder::default().t(&name).rm(true).forcerm(true);
        options = options.buildargs(&arguments);
        if let Some(engine) = &build.engine {
            options = options.labels(&runner_label(engine)?);
        }
        if let Some(network) = &build.network {
            options = options.networkmode(network);
        }
        let context = bollard::body_full(context(build)?.into());
        let steps = self.docker.build_image(options.build(), None, Some(context));
        let lines = steps.map(|step| step.map(|step| step.stream.or(step.status)));
        report_lines(lines, progress).await.map_err(|error| build_error(&name, error))?;
        Ok(name)
    }
}

/// Inspects an image.
///
/// # Errors
/// `NotFound`, with how to get it, for an image that the engine does not have.
pub(crate) async fn inspect(docker: &Docker, name: &str) -> Result<ImageInspect> {
    let missing = match docker.inspect_image(name).await {
        Err(Cause::DockerResponseServerError { status_code: 404, .. }) => image_not_found(name),
        other => return other.map_err(|error| parse_error("create", error)),
    };
    let Some(other) = other_name(name) else { return Err(missing) };
    docker.inspect_image(other).await.map_err(|error| match error {
        Cause::DockerResponseServerError { status_code: 404, .. } => missing,
        error => parse_error("create", error),
    })
}

/// The name under which the Python library builds the image, and that of this project: an engine that has the image under
/// one of them has it under both.
const OTHER_NAME: &str = "code-sandboxes-jupyter:latest";

/// Returns the other name of the image of this project. `None` for another image.
fn other_name(name: &str) -> Option<&'static str> {
    let named = if name.contains(':') { name.to_owned() } else { format!("{name}:latest") };
    match named.as_str() {
        DEFAULT_IMAGE => Some(OTHER_NAME),
        OTHER_NAME => Some(DEFAULT_IMAGE),
        _ => None,
    }
}

/// Returns the build arguments of the Dockerfile.
fn arguments(build: &ImageBuild) -> Result<HashMap<String, String>> {
    let packages = build.packages.join(" ");
    // Packages are words of a shell line in the Dockerfile.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-[],=!~+:/@".contains(c);
    if let Some(package) = build.packages.iter().find(|package| {
        package.is_empty() || package.starts_with('-') || !package.chars().all(plain)
    }) {
        let message =
            format!("{package:?} is not a package with at most one version, such as numpy==2.2.0");
        return Err(Error::invalid("packages", message));
    }
    let given = [
        ("BASE", build.base.clone()),
        ("PACKAGES", Some(packages).filter(|packages| !packages.is_empty())),
        ("PIP_INDEX_URL", build.index_url.clone()),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Ok(given.collect())
}

/// Packs the files of the build into an archive.
fn context(build: &ImageBuild) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content)
    };
    let added = add("Dockerfile", DOCKERFILE.as_bytes()).and_then(|()| match &build.ca_bundle {
        Some(bundle) => add("ca-bundle.crt", bundle),
        None => Ok(()),
    });
    added.and_then(|()| archive.into_inner()).map_err(|error| {
        Error::new(ErrorKind::Unexpected, BUILD, "the files of the build could not be packed")
            .with_source(error)
    })
}

const BUILD: &str = "build_image";
const PULL: &str = "pull_image";

/// Escape sequences by which engines mark the standard error of a step.
const STDERR_COLORS: [&str; 2] = ["\u{1b}[91m", "\u{1b}[0m"];

/// Passes each line to `progress` until the steps end or one fails.
async fn report_lines(
    steps: impl Stream<Item = Result<Option<String>, Cause>>,
    mut progress: impl FnMut(&str),
) -> Result<(), Cause> {
    let mut steps = std::pin::pin!(steps);
    while let Some(step) = steps.next().await {
        if let Some(text) = step? {
            let text = STDERR_COLORS.iter().fold(text, |text, color| text.replace(color, ""));
            text.lines().map(str::trim_end).filter(|line| !line.is_empty()).for_each(&mut progress);
        }
    }
    Ok(())
}

/// Returns true if an engine's message is about an image that does not exist.
fn is_missing(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    ["not found", "pull access denied", "manifest unknown", "no such image", "invalid reference"]
        .iter()
        .any(|words| message.contains(words))
}

fn message_of(error: Cause) -> String {
    let message = match error {
        Cause::DockerResponseServerError { message, .. } => message,
        Cause::DockerStreamError { error } => error,
        other => other.to_string(),
    };
    // The message of a failed step begins with the whole step.
    let status = message.rsplit_once("returned a non-zero code: ");
    status.map_or_else(
        || message.trim().to_owned(),
        |(_, code)| format!("a step ended with status {code}"),
    )
}

fn pull_error(name: &str, error: Cause) -> Error {
    let message = message_of(error);
    let failed = if is_missing(&message) {
        Error::new(ErrorKind::NotFound, PULL, format!("there is no image {name} to pull: {message}"))
            .with_hint("check the name; for an image that is not public, log in with `docker login` and pull with `docker pull`")
    } else {
        Error::new(ErrorKind::Unavailable, PULL, format!("{name} could not be pulled: {message}"))
            .with_retry(Retry::Temporary)
            .with_hint("the engine fetches it and needs the network; or load the image from a file (`docker load`)")
    };
    failed.with_effect(Effect::Unknown).with_context("image", name.to_owned())
}

fn build_error(name: &str, error: Cause) -> Error {
    let message = message_of(error);
    let (kind, hint) = if is_missing(&message) {
        (
            ErrorKind::NotFound,
            "name a base that the engine has or can pull, with `ImageBuild::base`",
        )
    } else {
        (
            ErrorKind::Unavailable,
            "the lines before show which step failed; without Docker's registry name another image with `ImageBuild::base`; behind \
             a proxy `ImageBuild::index_url`, `ImageBuild::ca_bundle` and `ImageBuild::network` help",
        )
    };
    Error::new(kind, BUILD, format!("{name} could not be built: {message}"))
        .with_hint(hint)
        .with_context("image", name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_engine::{Answer, FakeEngine};

    fn with(packages: &[&str]) -> ImageBuild {
        let packages = packages.iter().map(|package| (*package).to_owned()).collect();
        ImageBuild { packages, ..ImageBuild::default() }
    }

    #[tokio::test]
    async fn the_image_of_this_project_has_two_names() {
        let engine = FakeEngine::start(|request, _| match request.path.contains("jupyter") {
            true => Answer::now(200, json!({"Id": "built-as-the-python-library-does"})),
            false => Answer::now(404, json!({"message": "No such image"})),
        });
        let docker = engine.docker();
        for name in ["code-sandboxes:latest", "code-sandboxes", "code-sandboxes-jupyter:latest"] {
            let found = inspect(&docker, name).await.unwrap();
            assert_eq!(found.id.as_deref(), Some("built-as-the-python-library-does"), "{name}");
        }
        for name in ["code-sandboxes:1", "python:3-slim"] {
            let missing = inspect(&docker, name).await.unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound, "{name}");
            assert!(missing.message().contains(name), "{missing:?}");
        }
    }

    #[tokio::test]
    async fn an_image_that_the_engine_has_is_not_pulled() {
        let engine = FakeEngine::start(|request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", _) if path.contains("there") || log.has("pulled") => {
                    Answer::now(200, json!({"Id": "x"}))
                }
                ("POST", "images/create") if request.path.contains("far") => {
                    log.add("pulled");
                    Answer::now(200, json!({"id": "layer", "status": "Pull complete"}))
                }
                _ => Answer::now(404, json!({"message": "No such image"})),
            }
        });
        let images = Images::new(&engine.docker());
        assert!(!images.pull_missing("there:1", |_| panic!("no step")).await.unwrap());
        let mut steps = Vec::new();
        assert!(images.pull_missing("far:1", |step| steps.push(step.to_owned())).await.unwrap());
        assert_eq!(
            (steps, engine.events()),
            (vec!["layer: Pull complete".to_owned()], vec!["pulled".to_owned()])
        );
        let nowhere = FakeEngine::start(|_, _| Answer::now(404, json!({"message": "not found"})));
        let images = Images::new(&nowhere.docker());
        let error = images.pull_missing("nowhere:1", |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn packages_have_no_syntax_of_the_shell() {
        let given = arguments(&with(&["numpy==2.2.0", "pandas[excel]"])).unwrap();
        assert_eq!(given["PACKAGES"], "numpy==2.2.0 pandas[excel]");
        assert!(!given.contains_key("BASE"));
        for invalid in ["", "-e .", "a; b", "$(x)", "a && b", "a|b", "numpy>=2", "a\nb"] {
            let error = arguments(&with(&[invalid])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{invalid}");
        }
    }

    #[test]
    fn certificates_are_beside_the_dockerfile() {
        let names = |build: &ImageBuild| -> Vec<String> {
            let packed = context(build).unwrap();
            let mut archive = tar::Archive::new(&*packed);
            let entries = archive.entries().unwrap();
            entries.map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
        };
        assert_eq!(names(&ImageBuild::default()), ["Dockerfile"]);
        let ca_bundle = Some(b"certificates".to_vec());
        let build = ImageBuild { ca_bundle, ..ImageBuild::default() };
        assert_eq!(names(&build), ["Dockerfile", "ca-bundle.crt"]);
    }

    #[test]
    fn a_missing_image_is_told_from_an_unreachable_registry() {
        let stream = |text: &str| Cause::DockerStreamError { error: text.into() };
        let missing = stream("pull access denied for acme/missing, repository does not exist");
        assert_eq!(pull_error("x", missing).kind(), ErrorKind::NotFound);
        let far = stream("Get \"https://registry.example/v2/\": dial tcp: lookup failed");
        assert_eq!(pull_error("x", far).kind(), ErrorKind::Unavailable);
        let step = stream("The command '/bin/sh -c set -e' returned a non-zero code: 1");
        let failed = build_error("x", step);
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert_eq!(failed.message(), "x could not be built: a step ended with status 1");
    }
}
