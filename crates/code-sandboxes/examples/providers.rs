//! The same program over every provider: the first one whose credentials are in the environment, or this computer.
//!
//! `DAYTONA_API_KEY=.. cargo run --example providers --features daytona` runs it in the cloud.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::path::Path;
use std::time::Duration;

use code_sandboxes::{
    CommandEvent, Configuration, Manager, Registry, Sandbox, Variant, configure, run, run_many,
};
use futures_util::StreamExt as _;

type Outcome = Result<(), Box<dyn std::error::Error>>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome {
    let provider = Registry::new().detect();
    println!("provider: {provider}");
    programs(provider).await
}

/// Runs all programs at one provider.
pub(crate) async fn programs(provider: Variant) -> Outcome {
    configure(Configuration::new().default_variant(provider.as_str()))?;
    one_command().await?;
    many_commands().await?;
    files().await?;
    streaming().await?;
    code_of_an_agent().await?;
    choice(provider).await?;
    // Sandboxes of this computer that stay are those of a program in the background.
    if !provider.is_local() {
        the_same_again(provider).await?;
    }
    Ok(())
}

async fn one_command() -> Outcome {
    let result = run("echo 'Hello from sandbox!'").await?;
    print!("{}", result.stdout);
    assert_eq!(result.stdout, "Hello from sandbox!\n");
    Ok(())
}

async fn many_commands() -> Outcome {
    let results = run_many([
        "echo 1 2 3 >numbers",
        "python3 -c 'print(sum(range(100)))'",
        "false",
        "echo never",
    ])
    .await?;
    let statuses: Vec<_> = results.iter().map(|result| result.exit_code).collect();
    // It stops at the first that fails.
    assert_eq!(statuses, [0, 0, 1]);
    print!("{}", results[1].stdout);
    Ok(())
}

async fn files() -> Outcome {
    let folder = std::env::temp_dir().join(format!("providers-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (solution, result) = (folder.join("solution.py"), folder.join("result.txt"));
    std::fs::write(&solution, "print(sum(map(int, input().split())))\n")?;
    let done = in_a_sandbox(&solution, &result).await;
    let found = std::fs::read_to_string(&result).unwrap_or_default();
    let _ = std::fs::remove_dir_all(&folder);
    done?;
    assert_eq!(found, "6\n");
    Ok(())
}

async fn in_a_sandbox(solution: &Path, result: &Path) -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::create().await?;
    sandbox.files().upload(solution, "/tmp/solution.py").await?;
    let command = "echo 1 2 3 | python3 /tmp/solution.py >/tmp/result.txt";
    assert!(sandbox.execute(command).await?.success());
    sandbox.files().download("/tmp/result.txt", result).await?;
    sandbox.terminate().await
}

async fn streaming() -> Outcome {
    let sandbox = Sandbox::create().await?;
    let mut command = sandbox.stream("for i in 1 2 3; do echo line $i; done").await?;
    let mut lines = String::new();
    while let Some(event) = command.events.next().await {
        if let CommandEvent::Output { data, .. } = event {
            lines += &String::from_utf8_lossy(&data);
        }
    }
    assert_eq!(lines, "line 1\nline 2\nline 3\n");
    Ok(sandbox.terminate().await?)
}

async fn code_of_an_agent() -> Outcome {
    let sandbox = Sandbox::create().await?;
    // Quotes of every kind arrive as they are.
    let code = "word = \"it's\"\nprint(f'{word} \"fine\"')";
    let result = sandbox.run_code(code).await?;
    assert_eq!(result.stdout(), "it's \"fine\"\n");
    let next = sandbox.run_code("len(word)").await?;
    assert_eq!(next.text(), Some("4"));
    Ok(sandbox.terminate().await?)
}

/// Shows which providers have credentials, and creates at one that is named.
async fn choice(provider: Variant) -> Outcome {
    let manager = Manager::detect()?;
    assert!(manager.variants().contains(&provider));
    let used: Vec<_> = manager.variants().iter().map(ToString::to_string).collect();
    println!("available: {}", used.join(", "));
    let sandbox = Sandbox::builder().variant(provider.as_str()).create().await?;
    assert_eq!(sandbox.execute("echo chosen").await?.stdout, "chosen\n");
    Ok(sandbox.terminate().await?)
}

async fn the_same_again(provider: Variant) -> Outcome {
    let project = format!("ml-training-{}", std::process::id());
    let get = || {
        let builder = Sandbox::builder().variant(provider.as_str()).tag("project", &project);
        builder.detached(Duration::from_secs(600)).get_or_create()
    };
    let first = get().await?;
    first.execute("echo kept >/tmp/note").await?;
    let second = get().await?;
    assert_eq!(first.id(), second.id());
    assert_eq!(second.execute("cat /tmp/note").await?.stdout, "kept\n");
    let found = Sandbox::find([("project", &project)]).await?;
    assert_eq!(found.map(|found| found.id()), Some(first.id()));
    println!("found again: {}", first.id());
    Ok(second.terminate().await?)
}
