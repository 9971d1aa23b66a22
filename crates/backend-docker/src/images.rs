//! Images of an engine: listed, pulled, and built from the recipe of this project.

use std::collections::HashMap;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateImageOptionsBuilder, ListImagesOptions,
};
use futures_util::{Stream, StreamExt as _};
use sandbox_core::{Effect, Error, ErrorKind, Result, Retry};

use crate::config::{DEFAULT_IMAGE, DockerConfig};
use crate::engine::Engine;
use crate::error::parse_error;
use crate::label::label;

/// What the image is made by: `docker/Dockerfile` of this project.
const RECIPE: &str = include_str!("Dockerfile");

/// The images of an engine.
#[derive(Debug)]
pub struct Images {
    docker: Docker,
}

/// What an image shall be built with. Made by [`ImageBuild::default`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ImageBuild {
    /// Its name. Default: [`DEFAULT_IMAGE`].
    pub name: Option<String>,
    /// The image it starts from: any Debian with `python3` and its `venv` module, 3.9 or later. Default: that of the recipe.
    pub base: Option<String>,
    /// Python packages that it has besides, as pip takes them.
    pub packages: Vec<String>,
    /// Where pip fetches from. Default: where pip does. The history of the image keeps it, with a password that is in it.
    pub index_url: Option<String>,
    /// Certificates (PEM) that are trusted while packages are fetched, instead of the usual ones. The image does not keep
    /// them.
    pub ca_bundle: Option<Vec<u8>>,
    /// What runs the code of its sandboxes when they do not say it, as the option `engine` has it, such as `jupyter:ir`. Default:
    /// what the label [`ENGINE_LABEL`](crate::ENGINE_LABEL) of the base says, or else `python`.
    pub engine: Option<String>,
    /// The network of the build, such as `host`. Default: that of the engine.
    pub network: Option<String>,
}

/// An image by one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Image {
    /// Such as `code-sandboxes:latest`.
    pub name: String,
    /// The id, the digest of its configuration.
    pub id: String,
    /// Bytes.
    pub size: u64,
    /// When it was made, in seconds since 1970.
    pub created_at: i64,
}

impl Images {
    pub(crate) fn new(docker: &Docker) -> Self {
        Self { docker: docker.clone() }
    }

    /// Those of the engine that a [`crate::DockerBackend`] would use.
    ///
    /// # Errors
    /// `Unavailable` when no engine answers within five seconds, `PermissionDenied` when this user may not use it.
    pub async fn connect(config: &DockerConfig) -> Result<Self> {
        Ok(Self { docker: Engine::connect(config).await?.docker })
    }

    /// Every name of every image, in order. Images without a name are left out.
    ///
    /// # Errors
    /// What the engine says.
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

    /// Fetches an image from its registry. A name without a tag means `latest`. `progress` is told each step.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name, `Unavailable` when the registry cannot be reached, and what else the engine
    /// says.
    ///
    /// # Cancellation
    /// The engine gives up, and keeps the layers that it has.
    pub async fn pull(&self, name: &str, progress: impl FnMut(&str)) -> Result<()> {
        let options = CreateImageOptionsBuilder::default().from_image(name);
        let tagged =
            name.contains('@') || name.rsplit('/').next().is_some_and(|last| last.contains(':'));
        let options = if tagged { options } else { options.tag("latest") };
        let steps = self.docker.create_image(Some(options.build()), None, None);
        let words = steps.map(|step| {
            step.map(|step| match (step.id, step.status, step.progress_detail) {
                // Nobody reads how many bytes there are of each layer, ten times a second.
                (_, _, Some(detail)) if detail.current.is_some() => None,
                (Some(id), Some(status), _) => Some(format!("{id}: {status}")),
                (_, status, _) => status,
            })
        });
        report_lines(words, progress).await.map_err(|error| not_pulled(name, error))
    }

    /// Fetches an image as [`Images::pull`] does, unless the engine has it. Whether it was fetched.
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

    /// Builds the image of this project. `progress` is told each line. Its name, once it is done.
    ///
    /// # Errors
    /// `InvalidArgument` for what cannot be part of it, `NotFound` when there is no such base, `Unavailable` when a step fails:
    /// `progress` has been told what it said.
    ///
    /// # Cancellation
    /// The engine stops building.
    pub async fn build(&self, build: &ImageBuild, progress: impl FnMut(&str)) -> Result<String> {
        let name = build.name.clone().unwrap_or_else(|| DEFAULT_IMAGE.to_owned());
        let arguments = arguments(build)?;
        let mut options = BuildImageOptionsBuilder::default().t(&name).rm(true).forcerm(true);
        options = options.buildargs(&arguments);
        if let Some(engine) = &build.engine {
            options = options.labels(&label(engine)?);
        }
        if let Some(network) = &build.network {
            options = options.networkmode(network);
        }
        let context = bollard::body_full(context(build)?.into());
        let steps = self.docker.build_image(options.build(), None, Some(context));
        let words = steps.map(|step| step.map(|step| step.stream.or(step.status)));
        report_lines(words, progress).await.map_err(|error| not_built(&name, error))?;
        Ok(name)
    }
}

/// Arguments of the recipe.
fn arguments(build: &ImageBuild) -> Result<HashMap<String, String>> {
    let packages = build.packages.join(" ");
    // They are words of a shell line in the recipe.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-[],=!~+:/@".contains(c);
    if let Some(package) = build.packages.iter().find(|package| {
        package.is_empty() || package.starts_with('-') || !package.chars().all(plain)
    }) {
        let message =
            format!("{package:?} is no package with at most one version, such as numpy==2.2.0");
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

/// The files of the build, as an archive.
fn context(build: &ImageBuild) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, content: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, content)
    };
    let added = add("Dockerfile", RECIPE.as_bytes()).and_then(|()| match &build.ca_bundle {
        Some(bundle) => add("ca-bundle.crt", bundle),
        None => Ok(()),
    });
    added.and_then(|()| archive.into_inner()).map_err(|error| {
        Error::new(ErrorKind::Unexpected, BUILD, "the files of the build cannot be packed")
            .with_source(error)
    })
}

const BUILD: &str = "build_image";
const PULL: &str = "pull_image";

/// How engines mark what a step said on standard error.
const STDERR_COLORS: [&str; 2] = ["\u{1b}[91m", "\u{1b}[0m"];

/// Tells each line, up to the end or what ends it early.
async fn report_lines(
    steps: impl Stream<Item = Result<Option<String>, Cause>>,
    mut progress: impl FnMut(&str),
) -> Result<(), Cause> {
    let mut steps = std::pin::pin!(steps);
    while let Some(step) = steps.next().await {
        if let Some(text) = step? {
            let text = STDERR_COLORS.iter().fold(text, |text, mark| text.replace(mark, ""));
            text.lines().map(str::trim_end).filter(|line| !line.is_empty()).for_each(&mut progress);
        }
    }
    Ok(())
}

/// What an engine said about a name that it could not find.
fn is_missing(said: &str) -> bool {
    let said = said.to_ascii_lowercase();
    ["not found", "pull access denied", "manifest unknown", "no such image", "invalid reference"]
        .iter()
        .any(|words| said.contains(words))
}

fn words(error: Cause) -> String {
    let said = match error {
        Cause::DockerResponseServerError { message, .. } => message,
        Cause::DockerStreamError { error } => error,
        other => other.to_string(),
    };
    // The whole recipe stands before that.
    let status = said.rsplit_once("returned a non-zero code: ");
    status.map_or_else(
        || said.trim().to_owned(),
        |(_, code)| format!("a step ended with status {code}"),
    )
}

fn not_pulled(name: &str, error: Cause) -> Error {
    let said = words(error);
    let failed = if is_missing(&said) {
        Error::new(ErrorKind::NotFound, PULL, format!("there is no image {name} to pull: {said}"))
            .with_hint("look at the name; for what is not public, log in with `docker login` and pull with `docker pull`")
    } else {
        Error::new(ErrorKind::Unavailable, PULL, format!("{name} could not be pulled: {said}"))
            .with_retry(Retry::Temporary)
            .with_hint("the engine fetches it: it needs the network, or the image from elsewhere (`docker load`)")
    };
    failed.with_effect(Effect::Unknown).with_context("image", name.to_owned())
}

fn not_built(name: &str, error: Cause) -> Error {
    let said = words(error);
    let (kind, hint) = if is_missing(&said) {
        (ErrorKind::NotFound, "name a base that the engine has or can pull, with `--base`")
    } else {
        (
            ErrorKind::Unavailable,
            "the lines before say which step failed; without Docker's registry name another image with `--base`; behind a \
             proxy `--index-url`, `--ca-bundle` and `--build-network host` help",
        )
    };
    Error::new(kind, BUILD, format!("{name} could not be built: {said}"))
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
    async fn what_the_engine_has_is_not_fetched() {
        let engine = FakeEngine::start(|request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", _) if path.contains("there") || said.has("pulled") => {
                    Answer::now(200, json!({"Id": "x"}))
                }
                ("POST", "images/create") if request.path.contains("far") => {
                    said.add("pulled");
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
            (steps, engine.said()),
            (vec!["layer: Pull complete".to_owned()], vec!["pulled".to_owned()])
        );
        let nowhere = FakeEngine::start(|_, _| Answer::now(404, json!({"message": "not found"})));
        let images = Images::new(&nowhere.docker());
        let error = images.pull_missing("nowhere:1", |_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn packages_are_words_and_nothing_of_the_shell() {
        let given = arguments(&with(&["numpy==2.2.0", "pandas[excel]"])).unwrap();
        assert_eq!(given["PACKAGES"], "numpy==2.2.0 pandas[excel]");
        assert!(!given.contains_key("BASE"));
        for wrong in ["", "-e .", "a; b", "$(x)", "a && b", "a|b", "numpy>=2", "a\nb"] {
            let error = arguments(&with(&[wrong])).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
    }

    #[test]
    fn certificates_are_beside_the_recipe() {
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
    fn what_is_not_there_is_told_from_what_cannot_be_reached() {
        let stream = |text: &str| Cause::DockerStreamError { error: text.into() };
        let missing = stream("pull access denied for nobody/nothing, repository does not exist");
        assert_eq!(not_pulled("x", missing).kind(), ErrorKind::NotFound);
        let far = stream("Get \"https://registry.example/v2/\": dial tcp: lookup failed");
        assert_eq!(not_pulled("x", far).kind(), ErrorKind::Unavailable);
        let step = stream("The command '/bin/sh -c set -e' returned a non-zero code: 1");
        let failed = not_built("x", step);
        assert_eq!(failed.kind(), ErrorKind::Unavailable);
        assert_eq!(failed.message(), "x could not be built: a step ended with status 1");
    }
}
