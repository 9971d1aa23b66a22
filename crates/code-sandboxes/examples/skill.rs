//! A skill as agents have them: a directory with instructions, scripts and files. Its script runs with arguments, reads
//! what lies beside it, calls a tool of this program, and leaves a file.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;

use code_sandboxes::{Sandbox, Tool};
use serde::Deserialize;

#[derive(Deserialize)]
struct Translate {
    word: String,
}

fn translate() -> Tool {
    Tool::new("translate", "Translates an English word to German.", |ask: Translate| async move {
        match ask.word.as_str() {
            "tea" => Ok("Tee"),
            "water" => Ok("Wasser"),
            "pot" => Ok("Kanne"),
            other => Err(format!("{other} is not in the dictionary").into()),
        }
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let skill = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/skills/word-count");
    let sandbox = Sandbox::builder().create().await?;
    sandbox.register_tool(translate()).await?;

    // The skill goes in as it is, and so does what it shall work on.
    let files = sandbox.files();
    files.upload(&skill, "skills/word-count").await?;
    let text = "The pot of tea, and the water of the tea: water, tea and a pot. Tea!";
    files.write("input.txt", text).await?;

    // The model has read these, and now knows what to run.
    let instructions = files.read_text("skills/word-count/SKILL.md").await?;
    println!("{}", instructions.lines().nth(2).unwrap_or_default());

    let script = "/workspace/skills/word-count/scripts/count.py";
    let code = files.read_text(script).await?;
    let run = sandbox.run_code(&*code).script(script, ["input.txt", "table.csv", "--most", "3"]);
    let result = run.await?;
    println!("status {}: {}", result.exit_code.unwrap_or_default(), result.stdout_trimmed());
    print!("{}", files.read_text("table.csv").await?);

    // Wrong arguments are the script's own matter: it exits with status 2 and says why.
    let result = sandbox.run_code(&*code).script(script, ["input.txt"]).await?;
    println!("status {}: {}", result.exit_code.unwrap_or_default(), result.stderr_trimmed());
    sandbox.terminate().await
}
