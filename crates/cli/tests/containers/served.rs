//! `sandboxes serve` over containers, through the official SDK of E2B: commands and files of root.

use std::process::Command;

use super::Named;
use super::e2b_server::Server;
use super::support::wanted;

/// Prints what commands of root and of the user do.
const FLOW: &str = r#"
import e2b
s = e2b.Sandbox.create()
print(s.commands.run("id -u; echo $HOME", user="root").stdout.split())
s.files.write("made.txt", "by the user")
print(s.commands.run("cat made.txt; echo by root >root.txt", user="root").stdout)
print(s.files.read("root.txt").strip())
print(s.commands.run("id -u").stdout.strip() != "0")
left = s.commands.run("sleep 4713", user="root", background=True)
print([p.pid for p in s.commands.list()] == [left.pid], s.commands.kill(left.pid))
for call in (
    lambda: s.files.read("/etc/shadow", user="root"),
    lambda: s.files.write("made.txt", "by root", user="root"),
    lambda: s.files.list("/root", user="root"),
):
    try:
        print("done as", call())
    except e2b.SandboxException as error:
        print("a command of root" in str(error))
print(s.files.read("made.txt"))
s.kill()
"#;

/// Prints the error of a command of root.
const REFUSED: &str = r#"
import e2b
s = e2b.Sandbox.create()
try:
    s.commands.run("id", user="root")
except Exception as error:
    print("--mount" in str(error))
s.kill()
"#;

fn run(image: &Named, flags: &[&str], code: &str) -> Option<String> {
    let python = wanted("SANDBOX_TEST_E2B_PYTHON")?;
    let flags = [&["-p", "local-docker", "--image", &image.0], flags].concat();
    let server = Server::start(&flags);
    let output = Command::new(python).args(["-c", code]).envs(server.environment()).output();
    assert_eq!(server.end(), 0);
    let output = output.unwrap();
    let shown = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{shown}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
fn commands_of_root_are_served() {
    let image = Named::new("served");
    let Some(shown) = run(&image, &[], FLOW) else { return };
    let expected =
        "['0', '/root']\nby the user\nby root\nTrue\nTrue True\nTrue\nTrue\nTrue\nby the user\n";
    assert_eq!(shown, expected);
    // Root could read what the user of code cannot.
    let folder = tempfile::tempdir().unwrap();
    let mount = format!("{}:/data/given", folder.path().display());
    let refused = run(&image, &["--mount", &mount], REFUSED);
    assert_eq!(refused.as_deref(), Some("True\n"));
    super::eventually("its containers are gone", || image.count() == 0);
}
