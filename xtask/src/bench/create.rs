//! From nothing to a first result.

use std::process::Command;

use code_sandboxes::IsolationMode;
use code_sandboxes::pool::SandboxPool;

use crate::row::{Bar, Row};
use crate::sample::{Measured, alone, bare, compare, settle, text, whole};
use crate::sandboxes::{self, first_result};
use crate::setup::Setup;

/// In a cell, against the start of an empty one.
pub(crate) async fn strict(setup: &Setup) -> Row {
    let measured = compare(
        setup.samples(),
        "bwrap true",
        async || first_result(Setup::builder(IsolationMode::Strict), "1+1", "2").await,
        async || bwrap().await,
    );
    Row::compared("create to first result, in a cell", measured.await, Bar::Ratio(0.6))
}

/// The same when no sandbox like it was made before, so that nothing is made ahead.
pub(crate) async fn unlike(setup: &Setup) -> Row {
    let mut count = 0;
    let create = async || {
        count += 1;
        let builder = Setup::builder(IsolationMode::Strict).env("COUNT", count.to_string());
        first_result(builder, "1+1", "2").await
    };
    let measured = alone(setup.samples(), create).await;
    Row::information("create to first result, in a cell, unlike the last one", measured)
}

/// From a pool, so that only the run is left to do.
pub(crate) async fn pooled(setup: &Setup) -> Row {
    let name = "from a pool to first result, in a cell (0.4 ms expected)";
    let bar = Bar::Ratio(0.1);
    let pool = match SandboxPool::start(2, || Setup::builder(IsolationMode::Strict)).await {
        Ok(pool) => pool,
        Err(error) => return Row::compared(name, Err(text(error)), bar),
    };
    let ours = async || {
        let took = sandboxes::pooled(&pool).await;
        settle().await;
        took
    };
    let measured = compare(setup.samples(), "bwrap true", ours, async || bwrap().await).await;
    Row::compared(name, measured, bar)
}

/// An empty cell of another kind.
async fn bwrap() -> Measured {
    let mut bwrap = Command::new("bwrap");
    let took = bare(bwrap.args(["--unshare-all", "--ro-bind", "/", "/", "true"]));
    settle().await;
    took
}

/// With modules that the interpreter holds ready, against importing them.
pub(crate) async fn imported(setup: &Setup) -> Row {
    let builder = || {
        let python = setup.packages_python.to_string_lossy().into_owned();
        let modules = vec!["numpy", "pandas"];
        let builder = Setup::builder(IsolationMode::Strict).provider_option("python", python);
        builder.provider_option("preimport", modules)
    };
    let code = "import numpy, pandas\npandas.DataFrame({'a': [1]}).shape";
    let measured = compare(
        setup.slow_samples(),
        "python -c 'import numpy, pandas'",
        async || first_result(builder(), code, "(1, 1)").await,
        async || {
            let mut python = Command::new(&setup.packages_python);
            let took = whole(python.args(["-c", "import numpy, pandas"]));
            settle().await;
            took
        },
    );
    Row::compared(
        "create to first result, numpy and pandas imported",
        measured.await,
        Bar::Ratio(0.02),
    )
}

/// Without a cell.
pub(crate) async fn off(setup: &Setup) -> Row {
    let create = async || first_result(Setup::builder(IsolationMode::Off), "1+1", "2").await;
    let measured = alone(setup.samples(), create).await;
    Row::information("create to first result, isolation off (2 ms expected)", measured)
}
