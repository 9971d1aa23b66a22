//! A server with the protocol of the provider, over sandboxes of this host, and backends that use it.

use std::sync::Arc;

use backend_e2b::{E2bBackend, E2bConfig};
use backend_eval::{EvalBackend, EvalConfig};
use sandbox_core::Secret;
use sandbox_server::e2b::{E2bOptions, E2bServer, Faults};
use tempfile::TempDir;

/// A template without the code interpreter.
pub(crate) const BASE: &str = "base";

/// A server, and what it is made to fail with.
pub(crate) struct Cloud {
    pub(crate) server: E2bServer,
    pub(crate) faults: Faults,
    state: TempDir,
}

impl Cloud {
    pub(crate) async fn start() -> Self {
        let faults = Faults::default();
        faults.remove_code_interpreter(BASE);
        let mut options = E2bOptions::default();
        options.faults = Some(faults.clone());
        let state = tempfile::tempdir().expect("a directory");
        let mut config = EvalConfig::default();
        // It has the packages that some cases of a whole run use.
        config.python = std::env::var_os("SANDBOX_TEST_PYTHON").map(Into::into);
        config.snapshot_directory = Some(state.path().join("stored"));
        let server = E2bServer::start(Arc::new(EvalBackend::new(config)), options).await;
        Self { server: server.expect("a server"), faults, state }
    }

    /// The configuration of a backend, as the variables of the server have it.
    pub(crate) fn config(&self) -> E2bConfig {
        let mut config = E2bConfig::default();
        for (name, value) in self.server.environment() {
            match name {
                "E2B_API_KEY" => config.api_key = Some(Secret::new(value)),
                "E2B_API_URL" => config.api_url = Some(value),
                "E2B_SANDBOX_URL" => config.sandbox_url = Some(value),
                other => panic!("a variable that is not known: {other}"),
            }
        }
        config.state_dir = Some(self.state.path().to_owned());
        config
    }

    /// A backend, as a process of its own has it.
    pub(crate) fn backend(&self) -> Arc<E2bBackend> {
        Arc::new(E2bBackend::new(self.config()))
    }
}
