//! Serves as a provider does, to try the command line with no account: `serve daytona`, `serve modal`, `serve cloudflare`, or
//! `serve cloudflare-exec` for the stable generation of the bridge. Prints the variables that a user sets, and ends with the
//! process that started it, by the end of its standard input.
//!
//! Sandboxes of `modal` have the interpreter in `SANDBOX_TEST_PYTHON`, or that of the system.

#[path = "../../backend-modal/tests/support/mod.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "a server of the tests, which use the rest")]
mod modal_service;

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use modal_service::{Service, TOKEN_ID, TOKEN_SECRET};
use sandbox_test_server::cloudflare::{self, CloudflareServer, Generation};
use sandbox_test_server::daytona::{self, DaytonaServer, Options};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let provider = std::env::args().nth(1).unwrap_or_default();
    match provider.as_str() {
        "daytona" => {
            let server = DaytonaServer::start(Options::default()).await?;
            print(&[("DAYTONA_API_KEY", daytona::KEY), ("DAYTONA_API_URL", &server.api_url())])?;
            wait().await?;
        }
        "modal" => modal().await?,
        "cloudflare" => bridge(Generation::Processes).await?,
        "cloudflare-exec" => bridge(Generation::Exec).await?,
        other => return Err(format!("there is no provider {other:?} here").into()),
    }
    Ok(())
}

async fn modal() -> Result<(), Box<dyn Error>> {
    let python = std::env::var_os("SANDBOX_TEST_PYTHON").map(PathBuf::from);
    let service = Service::with_python(python);
    print(&[
        ("MODAL_TOKEN_ID", TOKEN_ID),
        ("MODAL_TOKEN_SECRET", TOKEN_SECRET),
        ("MODAL_SERVER_URL", &service.url),
    ])?;
    wait().await
}

async fn bridge(generation: Generation) -> Result<(), Box<dyn Error>> {
    let server = CloudflareServer::start(generation).await?;
    print(&[
        ("CLOUDFLARE_SANDBOX_BASE_URL", &server.url()),
        ("CLOUDFLARE_API_TOKEN", cloudflare::KEY),
    ])?;
    wait().await
}

fn print(variables: &[(&str, &str)]) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    for (name, value) in variables {
        writeln!(out, "export {name}={value}")?;
    }
    out.flush()
}

async fn wait() -> Result<(), Box<dyn Error>> {
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}
