//! Without an async runtime.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use code_sandboxes::{EventKind, Sandbox, blocking};

fn main() -> code_sandboxes::Result<()> {
    let builder = Sandbox::builder().variant("local-eval").timeout(Duration::from_secs(60));
    blocking::Sandbox::scope(builder, |sandbox| {
        sandbox.run_code("x = 40")?;
        let result = sandbox.wait(|s| s.run_code("x + 2").timeout(Duration::from_secs(5)))?;
        println!("{}", result.text().unwrap_or("none"));
        for event in sandbox.stream_code("for i in range(3): print(i)")? {
            if let EventKind::Output { data, .. } = event.kind {
                print!("{}", String::from_utf8_lossy(&data));
            }
        }
        sandbox.write_file("name.txt", "world\n")?;
        print!("{}", sandbox.run_command("echo hello, $(cat name.txt)")?.stdout);
        sandbox.set_variable("word", "again")?;
        sandbox.run_code("with open('name.txt', 'w') as f: f.write(word)")?;
        println!("{}", String::from_utf8_lossy(&sandbox.read_file("name.txt")?));
        Ok(())
    })
}
