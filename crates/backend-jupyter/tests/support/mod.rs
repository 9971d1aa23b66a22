//! What the tests of this backend share.

pub(crate) mod differences;
pub(crate) mod server;

use backend_jupyter::JupyterConfig;

pub(crate) use self::server::interpreter;
use self::server::named;

/// The kernels of the interpreter that the tests are told of; otherwise those of this host, without which they fail.
pub(crate) fn config() -> JupyterConfig {
    let mut config = JupyterConfig::default();
    config.python = named();
    config
}

/// A script that becomes a kernel of IPython, for `/bin/sh -c` with the connection file behind it.
pub(crate) fn python_kernel() -> String {
    let python = interpreter().expect("an interpreter");
    format!("exec {} -m ipykernel_launcher -f \"$0\"", python.display())
}
