//! Files, commands and packages of runtimes.

use std::time::Duration;

use sandbox_core::{ErrorKind, Sandbox, SandboxId};

use super::{Bench, call};

#[tokio::test(flavor = "multi_thread")]
async fn files_and_commands_share_the_runtime_with_code() {
    let Some(bench) = Bench::start() else { return };
    let builder = bench.builder().env("COLOUR", "green").secret("KEY", "hunter2");
    let sandbox = builder.working_dir("work").create().await.unwrap();
    sandbox.files().write("a.txt", "hello").await.unwrap();
    let read = sandbox.run_code("open('a.txt').read()").await.unwrap();
    assert_eq!(read.text(), Some("'hello'"));
    sandbox.run_code("open('b.txt', 'w').write('from code')").await.unwrap();
    assert_eq!(sandbox.files().read("b.txt").await.unwrap(), "from code");
    let line = "cat a.txt; echo; echo $COLOUR $KEY; basename $PWD; exit 3";
    let result = sandbox.commands().run(line).await.unwrap();
    assert_eq!((&*result.stdout, result.exit_code), ("hello\ngreen hunter2\nwork\n", 3));
    let data = vec![7; 20 << 20];
    sandbox.files().write("large", data.clone()).await.unwrap();
    assert!(sandbox.files().read("large").await.unwrap() == data, "the content is another");
    sandbox.terminate().await.unwrap();
    let error = sandbox.files().read("a.txt").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated);
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_attaches_has_files_and_keeps_the_state_of_code() {
    let Some(bench) = Bench::start() else { return };
    let first = bench.builder().detached(Duration::from_secs(600)).create().await.unwrap();
    first.run_code("x = 41").await.unwrap();
    first.files().write("a.txt", "hello").await.unwrap();
    let id: SandboxId = first.id().parse().unwrap();
    drop(first);
    let backend = bench.another();
    let instance = backend.attach(&call(), &id).await.unwrap();
    let again = Sandbox::from_instance(backend, instance);
    // Files come first: their kernel must not be taken for that of the code.
    assert_eq!(again.files().read("a.txt").await.unwrap(), "hello");
    assert_eq!(again.run_code("x + 1").await.unwrap().text(), Some("42"));
    assert_eq!(again.commands().run("cat a.txt").await.unwrap().stdout, "hello");
    again.terminate().await.unwrap();
    bench.assert_nothing_left();
}

/// Makes a package in a directory, as a wheel.
const WHEEL: &str = "\
import zipfile
with zipfile.ZipFile(FOLDER + '/tinya-1.0-py3-none-any.whl', 'w') as wheel:
    about = 'tinya-1.0.dist-info/'
    wheel.writestr('tinya.py', 'VERSION = 1')
    wheel.writestr(about + 'METADATA', 'Metadata-Version: 2.1\\nName: tinya\\nVersion: 1.0\\n')
    wheel.writestr(about + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(about + 'RECORD', '')
";

#[tokio::test(flavor = "multi_thread")]
async fn packages_are_there_for_code_commands_and_later_handles() {
    let Some(bench) = Bench::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let builder = bench.builder().env("PIP_NO_INDEX", "1").env("PIP_FIND_LINKS", path);
    let sandbox = builder.detached(Duration::from_secs(600)).create().await.unwrap();
    let made = sandbox.run_code(format!("x = 5\nFOLDER = {path:?}\n{WHEEL}")).await.unwrap();
    assert!(made.success(), "{made:?}");
    let unknown = sandbox.install_packages(["tinyb"]).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown:?}");
    sandbox.install_packages(["tinya"]).await.unwrap();
    let seen = sandbox.run_code("import tinya; (tinya.VERSION, x)").await.unwrap();
    assert_eq!(seen.text(), Some("(1, 5)"), "{seen:?}");
    let line = "python3 -c 'import tinya; print(tinya.VERSION)'";
    let printed = sandbox.commands().run(line).await.unwrap();
    assert_eq!((&*printed.stdout, &*printed.stderr), ("1\n", ""));
    let id: SandboxId = sandbox.id().parse().unwrap();
    drop(sandbox);
    let backend = bench.another();
    let instance = backend.attach(&call(), &id).await.unwrap();
    let again = Sandbox::from_instance(backend, instance);
    let seen = again.run_code("import tinya; tinya.VERSION").context("other").await.unwrap();
    assert_eq!(seen.text(), Some("1"), "{seen:?}");
    again.terminate().await.unwrap();
    bench.assert_nothing_left();
}
