//! Files go in and out while code runs, and none of it needs the interpreter.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use code_sandboxes::Sandbox;
use futures_util::StreamExt as _;

#[tokio::main(flavor = "current_thread")]
async fn main() -> code_sandboxes::Result<()> {
    let sandbox = Sandbox::builder().create().await?;
    let files = sandbox.files();

    files.write("data/numbers.csv", "1,2\n3,4\n").await?;
    files.append("data/numbers.csv", "5,6\n").await?;

    let mut changes = files.watch("data", false).await?;
    let code = "
rows = [line.split(',') for line in open('data/numbers.csv')]
open('data/sums.txt', 'w').write('\\n'.join(str(sum(map(int, row))) for row in rows))";
    sandbox.run_code(code).await?;
    if let Some(change) = changes.next().await {
        let change = change?;
        println!("{:?} {}", change.kind, change.path);
    }
    println!("sums: {}", files.read_text("data/sums.txt").await?.replace('\n', " "));

    for info in files.list("data").await? {
        println!("{} has {} bytes, mode {}", info.name, info.size, info.permissions);
    }
    println!("{:?}", files.grep(".", "3,").await?);

    // A whole directory to this computer, and back under another name.
    let local = std::env::temp_dir().join(format!("sandbox-example-{}", std::process::id()));
    let done = files.download("data", &local).await?;
    println!("{} files, {} bytes", done.files, done.bytes);
    let mut told = 0;
    files.upload(&local, "copy").progress(|progress| told = progress.bytes).await?;
    println!("an archive of {told} bytes went back");
    let _ = std::fs::remove_dir_all(&local);

    // What is wrong says what it is.
    let error = files.read("data").await.err();
    println!("{}", error.map(|error| error.to_string()).unwrap_or_default());
    sandbox.terminate().await
}
