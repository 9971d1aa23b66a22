//! `sandboxes image`

use code_sandboxes::docker::{DockerConfig, Image, ImageBuild, Images};
use code_sandboxes::{ByteSize, Variant, unix_now};
use serde_json::{Value, json};

use super::list::span;
use crate::args::{BuildArgs, ImageArgs, ImageCommand, SandboxArgs};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;

/// Builds, lists and pulls images of the engine. The engine's progress goes to standard error.
pub(crate) async fn image(args: &ImageArgs, printer: &Printer) -> Result<u8, CliError> {
    let build = match &args.command {
        ImageCommand::Build(args) => Some(build(args)?),
        ImageCommand::List | ImageCommand::Pull { .. } => None,
    };
    let images = Images::connect(&DockerConfig::default()).await?;
    let progress = |line: &str| printer.progress(line);
    match &args.command {
        ImageCommand::List => list(&images, printer).await?,
        ImageCommand::Pull { name } => {
            images.pull(name, progress).await?;
            print_name(name, printer).await?;
        }
        ImageCommand::Build(_) => {
            let name = images.build(&build.unwrap_or_default(), progress).await?;
            print_name(&name, printer).await?;
        }
    }
    Ok(exit::SUCCESS)
}

/// Pulls the image of a new sandbox, if --pull is given and the engine does not have the image.
pub(crate) async fn pull_missing(args: &SandboxArgs, printer: &Printer) -> Result<(), CliError> {
    if !args.pull {
        return Ok(());
    }
    if settings::variant(&args.provider)? != Variant::LOCAL_DOCKER {
        let message = "--pull is for images of a container engine";
        return Err(CliError::usage(message, "add -p local-docker"));
    }
    let Some(name) = &args.image else {
        return Err(CliError::usage("--pull needs an image", "name it with --image"));
    };
    let images = Images::connect(&DockerConfig::default()).await?;
    images.pull_missing(name, |step| printer.progress(step)).await?;
    Ok(())
}

fn build(args: &BuildArgs) -> Result<ImageBuild, CliError> {
    let ca_bundle = args.ca_bundle.as_ref().map(|path| {
        std::fs::read(path).map_err(|error| {
            let message = format!("--ca-bundle {}: {error}", path.display());
            CliError::usage(message, "name a file of this host with certificates (PEM)")
        })
    });
    let mut build = ImageBuild::default();
    build.name.clone_from(&args.name);
    build.base.clone_from(&args.base);
    build.packages.clone_from(&args.package);
    build.index_url.clone_from(&args.index_url);
    build.engine.clone_from(&args.engine);
    build.network.clone_from(&args.build_network);
    build.ca_bundle = ca_bundle.transpose()?;
    Ok(build)
}

async fn print_name(name: &str, printer: &Printer) -> Result<(), CliError> {
    match printer.format() {
        Format::Text => printer.stdout(format!("{name}\n").as_bytes()).await,
        Format::Json | Format::JsonLines => printer.json(&json!({ "image": name })).await,
    }
}

async fn list(images: &Images, printer: &Printer) -> Result<(), CliError> {
    let all = images.list().await?;
    match printer.format() {
        Format::Text => {
            let rows = all.iter().map(row).collect();
            printer.table(&["Name", "Size", "Age", "Id"], rows).await
        }
        Format::Json | Format::JsonLines => printer.json(&all.iter().map(object).collect()).await,
    }
}

fn object(image: &Image) -> Value {
    let Image { name, id, size, created_at, .. } = image;
    json!({ "name": name, "id": id, "size": size, "created_at": created_at })
}

fn row(image: &Image) -> Vec<String> {
    let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
    vec![
        image.name.clone(),
        ByteSize::bytes(image.size).to_string(),
        span(unix_now() - image.created_at as f64),
        id.chars().take(12).collect(),
    ]
}
