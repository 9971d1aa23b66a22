//! The behaviour suite over a service of the tests.

#[expect(dead_code, reason = "the suite asks nothing of the service itself")]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use backend_modal::ModalBackend;
use sandbox_conformance::Target;
use support::Service;

fn main() -> ExitCode {
    let python = std::env::var_os("SANDBOX_TEST_PYTHON").map(PathBuf::from);
    let service = Service::with_python(python);
    let config = service.config();
    let target = Target::new("modal", move || Arc::new(ModalBackend::new(config.clone())))
        .exposes_this_host();
    sandbox_conformance::main(target)
}
