//! Puts sandboxes of this host behind the E2B protocol, and prints the variables that its SDKs need.

#![expect(clippy::print_stdout, reason = "the variables are for a person")]

use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_server::e2b::{E2bOptions, E2bServer};

#[tokio::main]
async fn main() -> sandbox_core::Result<()> {
    let server = E2bServer::start(Arc::new(EvalBackend::default()), E2bOptions::default()).await?;
    for (name, value) in server.environment() {
        println!("export {name}={value}");
    }
    // Until the program is interrupted.
    std::future::pending().await
}
