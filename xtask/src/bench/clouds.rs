//! Backends of clouds against the official Python clients, each over the same server with the protocol of the provider.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use backend_eval::EvalBackend;
use code_sandboxes::{Configuration, Sandbox, configure};
use futures_util::StreamExt as _;
use sandbox_server::e2b::{E2bOptions, E2bServer};
use sandbox_test_server::cloudflare::{CloudflareServer, Generation, KEY as CLOUDFLARE_KEY};
use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};
use tokio::runtime::Runtime;

use crate::bare::{Bare, Http, Modal};
use crate::interleaved::InterleavedBaseline;
use crate::modal_service::{Service, TOKEN_ID, TOKEN_SECRET};
use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, compare, compare_above, settle, since, text};
use crate::setup::Setup;

const SCRIPT: &str = include_str!("clouds.py");

/// Bytes of a transfer.
const SIZE: usize = 100 << 20;
const PATH: &str = "/tmp/large";

/// A provider, and what serves its protocol here.
struct Provider {
    name: &'static str,
    variables: Vec<(&'static str, String)>,
    /// The interpreter with its official client.
    python: PathBuf,
    /// Its exchanges without a client.
    bare: Bare,
    /// Held as long as it serves.
    _server: Box<dyn std::any::Any>,
}

/// Returns the rows of every provider.
pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    // Servers have threads of their own, as in the cloud.
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return vec![Row::information("clouds", Err(error.to_string()))],
    };
    let mut rows = Vec::new();
    for provider in
        [daytona(&runtime).await, modal().await, cloudflare(&runtime).await, e2b(&runtime).await]
    {
        match provider {
            Ok(provider) => rows.extend(provider_rows(setup, &provider).await),
            Err(why) => rows.push(Row::information("clouds", Err(why))),
        }
    }
    runtime.shutdown_background();
    rows
}

/// Returns the interpreter of the environment that the tests of a backend have.
fn python(name: &str) -> Measured<PathBuf> {
    let variable = format!("SANDBOX_TEST_{}_PYTHON", name.to_uppercase());
    if let Some(found) = std::env::var_os(variable) {
        return Ok(found.into());
    }
    let program = std::env::current_exe().map_err(text)?;
    let target =
        program.parent().and_then(|folder| folder.parent()).ok_or("no target directory")?;
    Ok(target.join("test-env").join(name).join("bin/python"))
}

async fn daytona(runtime: &Runtime) -> Measured<Provider> {
    let starting = runtime.spawn(DaytonaServer::start(Options::default()));
    let server = starting.await.map_err(text)?.map_err(text)?;
    let variables =
        vec![("DAYTONA_API_KEY", KEY.to_owned()), ("DAYTONA_API_URL", server.api_url())];
    let bare = Http::new(&server.api_url(), "authorization", &format!("Bearer {KEY}"))?;
    Ok(Provider {
        name: "daytona",
        variables,
        python: python("daytona")?,
        bare: Bare::Daytona(bare),
        _server: Box::new(server),
    })
}

async fn modal() -> Measured<Provider> {
    let service = Service::start();
    let bare = Modal::connect(&service.url, Arc::clone(&service.state)).await?;
    let variables = vec![
        ("MODAL_TOKEN_ID", TOKEN_ID.to_owned()),
        ("MODAL_TOKEN_SECRET", TOKEN_SECRET.to_owned()),
        ("MODAL_SERVER_URL", service.url.clone()),
    ];
    Ok(Provider {
        name: "modal",
        variables,
        python: python("modal")?,
        bare: Bare::Modal(bare),
        _server: Box::new(service),
    })
}

/// The stable generation of the bridge, which is the one that the client speaks.
async fn cloudflare(runtime: &Runtime) -> Measured<Provider> {
    let starting = runtime.spawn(CloudflareServer::start(Generation::Exec));
    let server = starting.await.map_err(text)?.map_err(text)?;
    let variables = vec![
        ("CLOUDFLARE_SANDBOX_BASE_URL", server.url()),
        ("CLOUDFLARE_SANDBOX_API_KEY", CLOUDFLARE_KEY.to_owned()),
    ];
    let bare = Http::new(&server.url(), "authorization", &format!("Bearer {CLOUDFLARE_KEY}"))?;
    Ok(Provider {
        name: "cloudflare",
        variables,
        python: python("openai_agents")?,
        bare: Bare::Cloudflare(bare),
        _server: Box::new(server),
    })
}

async fn e2b(runtime: &Runtime) -> Measured<Provider> {
    let starting = runtime.spawn(async {
        E2bServer::start(Arc::new(EvalBackend::default()), E2bOptions::default()).await
    });
    let server = starting.await.map_err(text)?.map_err(text)?;
    let variables = server.environment().into();
    let bare = Http::new(&server.url(), "x-api-key", server.api_key().expose())?;
    Ok(Provider {
        name: "e2b",
        variables,
        python: python("e2b")?,
        bare: Bare::E2b(bare),
        _server: Box::new(server),
    })
}

/// Measures one provider. A create and a command are what is above the bare exchange; a transfer is whole, with the server
/// in it, which is the same for both sides.
async fn provider_rows(setup: &Setup, provider: &Provider) -> Vec<Row> {
    let mut configuration = Configuration::new();
    for (name, value) in &provider.variables {
        configuration = configuration.variable(*name, value.clone());
    }
    let name = provider.name;
    if let Err(error) = configure(configuration) {
        return vec![Row::information(name, Err(error.to_string()))];
    }
    vec![
        Row::compared(
            &format!("{name}: create and first command, above the exchange"),
            create(setup, provider).await,
            Bar::Ratio(0.5),
        ),
        Row::compared(
            &format!("{name}: warm command, above the exchange"),
            command(setup, provider).await,
            Bar::Ratio(0.5),
        ),
        Row::compared(
            &format!("{name}: 100 MB up"),
            upload(setup, provider).await,
            Bar::Ratio(1.0),
        ),
        Row::compared(
            &format!("{name}: 100 MB down"),
            download(setup, provider).await,
            Bar::Ratio(1.0),
        ),
    ]
}

fn client(provider: &Provider, what: &str) -> Measured<InterleavedBaseline> {
    let mut command = Command::new(&provider.python);
    command.envs(provider.variables.iter().map(|(name, value)| (*name, value)));
    command.env("MODAL_CONFIG_PATH", "/nonexistent/modal.toml");
    InterleavedBaseline::of_script(command, SCRIPT, &[provider.name, what])
}

async fn echo(sandbox: &Sandbox) -> Measured<()> {
    let done = sandbox.execute("echo hi").await.map_err(text)?;
    if done.stdout == "hi\n" { Ok(()) } else { Err(format!("it said {:?}", done.stdout)) }
}

async fn sandbox(provider: &Provider) -> Measured<Sandbox> {
    Sandbox::builder().variant(provider.name).create().await.map_err(text)
}

const CLIENT: &str = "official client";

async fn create(setup: &Setup, provider: &Provider) -> Measured<(f64, Yardstick)> {
    let mut theirs = client(provider, "create")?;
    let ours = async || {
        settle().await;
        let began = Instant::now();
        let sandbox = sandbox(provider).await?;
        echo(&sandbox).await?;
        let took = since(began);
        sandbox.terminate().await.map_err(text)?;
        Ok(took)
    };
    let bare = async || {
        settle().await;
        let began = Instant::now();
        let made = provider.bare.create().await?;
        provider.bare.command(&made).await?;
        let took = since(began);
        provider.bare.end(made).await?;
        Ok(took)
    };
    compare_above(setup.slow_samples(), CLIENT, ours, async || theirs.sample(), bare).await
}

async fn command(setup: &Setup, provider: &Provider) -> Measured<(f64, Yardstick)> {
    let mut theirs = client(provider, "command")?;
    let sandbox = sandbox(provider).await?;
    let ours = async || {
        let began = Instant::now();
        echo(&sandbox).await?;
        Ok(since(began))
    };
    let made = provider.bare.create().await?;
    let bare = async || {
        let began = Instant::now();
        provider.bare.command(&made).await?;
        Ok(since(began))
    };
    let measured =
        compare_above(setup.samples(), CLIENT, ours, async || theirs.sample(), bare).await;
    provider.bare.end(made).await?;
    measured
}

async fn upload(setup: &Setup, provider: &Provider) -> Measured<(f64, Yardstick)> {
    let mut theirs = client(provider, "upload")?;
    let sandbox = sandbox(provider).await?;
    let data = bytes::Bytes::from(vec![7; SIZE]);
    let ours = async || {
        let began = Instant::now();
        sandbox.files().write(PATH, data.clone()).await.map_err(text)?;
        Ok(since(began))
    };
    compare(setup.large_samples(), CLIENT, ours, async || theirs.sample()).await
}

async fn download(setup: &Setup, provider: &Provider) -> Measured<(f64, Yardstick)> {
    let mut theirs = client(provider, "download")?;
    let sandbox = sandbox(provider).await?;
    sandbox.files().write(PATH, vec![7; SIZE]).await.map_err(text)?;
    let ours = async || {
        let (began, mut size) = (Instant::now(), 0);
        let range = code_sandboxes::ByteRange::default();
        let mut content = sandbox.files().stream(PATH, range).await.map_err(text)?;
        while let Some(chunk) = content.next().await {
            size += chunk.map_err(text)?.len();
        }
        if size == SIZE { Ok(since(began)) } else { Err(format!("{size} bytes came")) }
    };
    compare(setup.large_samples(), CLIENT, ours, async || theirs.sample()).await
}
