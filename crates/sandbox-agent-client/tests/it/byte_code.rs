//! An agent that has nothing to compile.

use std::process::Stdio;
use std::sync::Mutex;

use bytes::Bytes;
use sandbox_engine::host::{ProcessHost as _, WorkerSpec};
use sandbox_python::agent::{PycMagic, agent, compiler};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::support::{TestBox, read_all};

async fn magic() -> PycMagic {
    let code = "import importlib.util as u; print(u.MAGIC_NUMBER.hex())";
    let output = Command::new("python3").args(["-I", "-c", code]).output().await;
    let said = String::from_utf8_lossy(&output.expect("python3 runs").stdout).into_owned();
    said.trim().parse().expect("a magic number")
}

async fn compiled(text: &str) -> Bytes {
    let mut child = Command::new("python3")
        .args(compiler(magic().await))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(text.as_bytes()).await.expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().await.expect("it ends");
    assert!(output.status.success(), "{output:?}");
    output.stdout.into()
}

// Its text differs from the one that would be sent otherwise.
#[tokio::test]
async fn an_agent_arrives_as_byte_code_and_does_everything() {
    let python = "python = text(\"%d.%d.%d\" % sys.version_info[:3])";
    assert!(agent().contains(python), "the agent tells its version in another way");
    let code = compiled(&agent().replace(python, "python = text(\"from byte code\")")).await;
    let asked = Mutex::new(Vec::new());
    let test = TestBox::start_from(&|magic| {
        asked.lock().unwrap().push(magic);
        Some(code.clone())
    })
    .await;
    let own = magic().await;
    assert_eq!(*asked.lock().unwrap(), [own]);
    assert_eq!(test.pipe.python(), "from byte code");
    let started = test.pipe.spawn(test.shell("echo there")).await.unwrap();
    assert_eq!(read_all(&*started.stdout).await, b"there\n");
    let cwd = test.home.path().to_string_lossy().into_owned();
    let worker = WorkerSpec { env: [].into(), cwd };
    let worker = test.pipe.start_worker(worker).await.unwrap();
    // It reports that it is ready, or why not.
    let mut said = vec![0; 5];
    std::future::poll_fn(|cx| worker.control.poll_readable(cx)).await.unwrap();
    assert_eq!(worker.control.try_read(&mut said).unwrap(), 5);
    assert_eq!(said[4], 16, "the worker refuses to be one");
}
