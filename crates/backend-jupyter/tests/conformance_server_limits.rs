//! Groups of the suite that put out much, over kernels of a real Jupyter Server that limits output as it does out of the box.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::{Backend, IsolationMode};
use support::differences::{LATER, of_kernels, of_servers};
use support::server::{JupyterServer, TOKEN};

fn main() -> ExitCode {
    // Without an interpreter there is nothing to run against, and `start_limited` has said so.
    let Some(server) = JupyterServer::start_limited() else { return ExitCode::SUCCESS };
    let make = || Arc::new(JupyterBackend::default()) as Arc<dyn Backend>;
    let url = server.url.clone();
    let target = Target::new("local-jupyter-server-limits", make)
        .isolation(IsolationMode::Off)
        .configure(move |builder| {
            builder
                .isolation(IsolationMode::Off)
                .provider_option("server_url", url.clone())
                .provider_option("token", TOKEN)
        });
    const ELSEWHERE: &str = "a server without limits has it";
    const DROPPED: &str = "more at once than such a server lets through, which the result says";
    let target = of_servers(of_kernels(target))
        .differs("streams::many_empty_lines_are_counted", DROPPED)
        .differs("streams::a_stream_is_lossless_with_a_slow_reader", DROPPED);
    let target = target.only(["streams", "rich", "models"], ELSEWHERE);
    sandbox_conformance::main(target.part(["streams"], LATER))
}
