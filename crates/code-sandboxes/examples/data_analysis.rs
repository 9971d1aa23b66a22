//! A piece of data work: pandas and a plot inside, the table and the picture outside.
//!
//! Needs pandas and matplotlib in the interpreter; name one that has them with `CODE_SANDBOXES_PYTHON`.
//! The picture is saved as `sales.png` in the directory given as the argument (default: the temporary directory).
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::PathBuf;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use code_sandboxes::Sandbox;
use serde_json::json;

const LOAD: &str = r#"
import io
import pandas as pd

rows = ["month,region,sales"]
for month in range(1, 13):
    for index, region in enumerate(["north", "south"]):
        rows.append(f"{month},{region},{100 + 10 * month * (1 + index) - month ** 2}")
frame = pd.read_csv(io.StringIO("\n".join(rows)))
frame.groupby("region")["sales"].agg(["sum", "mean", "max"])
"#;

const PLOT: &str = r#"
import matplotlib.pyplot as plt

for region, part in frame.groupby("region"):
    plt.plot(part["month"], part["sales"], marker="o", label=region)
plt.title("Sales by month")
plt.legend()
plt.show()
"#;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    // Imported once, before any sandbox: every sandbox after that has them at once.
    let modules = json!(["pandas", "matplotlib.pyplot"]);
    let sandbox = Sandbox::builder().provider_option("preimport", modules).create().await?;

    let begin = Instant::now();
    let table = sandbox.run_code(LOAD).await?;
    println!("{}", table.text().ok_or_else(|| format!("{:?}", table.code_error))?);
    let html = table.results.iter().any(|item| item.html().is_some());
    println!("as HTML too: {html}; {:?}", begin.elapsed());

    let plot = sandbox.run_code(PLOT).await?;
    let picture = plot.results.iter().find_map(|item| item.png()).ok_or("no picture")?;
    let path = directory.join("sales.png");
    std::fs::write(&path, STANDARD.decode(picture)?)?;
    println!("plot saved as {}", path.display());
    sandbox.terminate().await?;
    Ok(())
}
