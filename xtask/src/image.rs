//! The image of `local-docker`, on a base that comes from no registry, and kept below `target/`.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{exists, output};
use crate::engine::Engine;
use crate::setup::is_root;
use crate::workspace;

pub(crate) const IMAGE: &str = "code-sandboxes:latest";

/// A base made here, for places without a registry.
const BASE: &str = "code-sandboxes-base:bookworm";

/// What the base has beside the least that Debian is.
const PACKAGES: &str = "--include=ca-certificates,python3,python3-pip,python3-venv";

/// Which recipe an image was made by.
const LABEL: &str = "code-sandboxes.recipe";

/// Where what the steps say goes.
#[derive(Clone, Debug)]
pub(crate) enum Words {
    Shown,
    Into(PathBuf),
}

impl Words {
    fn run(&self, command: &mut Command) -> Result<bool, String> {
        if let Self::Into(path) = self {
            let log = fs::OpenOptions::new().create(true).append(true).open(path);
            let log = log.map_err(|error| format!("{}: {error}", path.display()))?;
            let both = log.try_clone().map_err(|error| error.to_string())?;
            command.stdout(log).stderr(both);
        }
        // Its words are not shown before it runs: an index may have a password in its address.
        Ok(command.status().is_ok_and(|status| status.success()))
    }

    fn must(&self, command: &mut Command, otherwise: &str) -> Result<(), String> {
        let where_to_look = match self {
            Self::Shown => String::new(),
            Self::Into(path) => format!(" (see {})", path.display()),
        };
        if self.run(command)? { Ok(()) } else { Err(format!("{otherwise}{where_to_look}")) }
    }
}

/// Sees to it that the engine has the image that the sources describe.
pub(crate) fn provide(engine: &Engine, words: &Words) -> Result<(), String> {
    let recipe = recipe()?;
    let format = format!("{{{{index .Config.Labels {LABEL:?}}}}}");
    let its = output(&mut engine.docker(&["image", "inspect", "--format", &format, IMAGE]));
    if its.is_ok_and(|its| its.trim() == recipe) {
        return Ok(());
    }
    let kept = workspace::target().join(format!("docker-image-{recipe}.tar"));
    if kept.exists()
        && words
            .run(engine.docker(&["load", "--quiet", "--input"]).arg(&kept).stdin(Stdio::null()))?
    {
        return Ok(());
    }
    build(engine, &recipe, words)?;
    // Whole or not at all: the next one believes what it finds.
    let draft = kept.with_extension("new");
    let saved = words.run(engine.docker(&["save", IMAGE, "--output"]).arg(&draft))?;
    if saved && fs::rename(&draft, &kept).is_ok() {
        return Ok(());
    }
    let _ = fs::remove_file(&draft);
    Ok(())
}

/// Builds it anew.
pub(crate) fn build_shown(engine: &Engine) -> Result<(), String> {
    build(engine, &recipe()?, &Words::Shown)
}

/// What the image is made of, as a number.
fn recipe() -> Result<String, String> {
    let path = dockerfile();
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut hasher = DefaultHasher::new();
    (text, BASE, PACKAGES).hash(&mut hasher);
    Ok(format!("{:016x}", hasher.finish()))
}

fn dockerfile() -> PathBuf {
    workspace::root().join("docker/Dockerfile")
}

fn build(engine: &Engine, recipe: &str, words: &Words) -> Result<(), String> {
    if !engine.runs(&["image", "inspect", BASE]) {
        import_base(engine, words)?;
    }
    let context = workspace::target().join("docker-context");
    let copy = |from: &Path, name: &str| {
        fs::copy(from, context.join(name)).map_err(|error| format!("{}: {error}", from.display()))
    };
    fs::create_dir_all(&context).map_err(|error| error.to_string())?;
    copy(&dockerfile(), "Dockerfile")?;
    let bundle = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if bundle.exists() {
        copy(bundle, "ca-bundle.crt")?;
    }
    let base = format!("BASE={BASE}");
    let label = format!("{LABEL}={recipe}");
    let mut build = engine.docker(&["build", "--network", "host", "--build-arg", &base]);
    if let Some(index) = package_index() {
        build.args(["--build-arg", &format!("PIP_INDEX_URL={index}")]);
    }
    build.args(["--label", &label, "--tag", IMAGE]).arg(&context);
    build.env("DOCKER_BUILDKIT", "0").stdin(Stdio::null());
    words.must(&mut build, &format!("{IMAGE} could not be built"))
}

/// Where pip of this host fetches from, when that is not the usual place.
fn package_index() -> Option<String> {
    let set = std::env::var("PIP_INDEX_URL").ok().filter(|url| !url.is_empty());
    let configured = || {
        let mut pip = Command::new("python3");
        output(pip.args(["-m", "pip", "config", "get", "global.index-url"])).ok()
    };
    set.or_else(configured).map(|url| url.trim().to_owned()).filter(|url| !url.is_empty())
}

/// A Debian with Python, from the packages that this host's own come from.
fn import_base(engine: &Engine, words: &Words) -> Result<(), String> {
    if !is_root() {
        return Err("only root can make the base of the image without a registry".to_owned());
    }
    if !exists("debootstrap") {
        return Err("the base of the image is made by debootstrap, which is not there".to_owned());
    }
    let root = workspace::target().join("docker-base");
    let _ = fs::remove_dir_all(&root);
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", PACKAGES, "bookworm"]).arg(&root);
    words.must(&mut debootstrap, "debootstrap failed")?;
    let imported = packed(engine, &root, words);
    let _ = fs::remove_dir_all(&root);
    imported
}

fn packed(engine: &Engine, root: &Path, words: &Words) -> Result<(), String> {
    let mut tar = Command::new("tar");
    // What was downloaded has been unpacked.
    tar.args(["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*_*"]);
    tar.arg("-C").arg(root).args(["-c", "."]).stdout(Stdio::piped());
    let mut tar = tar.spawn().map_err(|error| format!("tar: {error}"))?;
    let archive = tar.stdout.take().ok_or("tar gives nothing")?;
    let mut import = engine.docker(&["import", "-", BASE]);
    let imported = words.must(import.stdin(archive), "the base could not be imported");
    // The command has the other end of the pipe for as long as it lives.
    drop(import);
    let packed = tar.wait().is_ok_and(|status| status.success());
    if packed { imported } else { Err("the base could not be packed".to_owned()) }
}
