//! What sandboxes from a template have at once, and what a template gets no say in.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_core::{ExecutionResult, Mount, Sandbox, SandboxBuilder, SingleBackend};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for whatever is not meant to take time.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

struct World {
    backend: Arc<EvalBackend>,
    _state: TempDir,
}

impl World {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut config = EvalConfig::default();
        config.snapshot_directory = Some(state.path().join("snapshots"));
        Self { backend: Arc::new(EvalBackend::new(config)), _state: state }
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::<EvalBackend>::clone(&self.backend))
    }

    async fn sandbox(&self) -> Sandbox {
        self.builder().create().await.unwrap()
    }
}

async fn run(sandbox: &Sandbox, code: &str) -> ExecutionResult {
    sandbox.run_code(code).timeout(WAIT_TIMEOUT).await.unwrap()
}

async fn text(sandbox: &Sandbox, code: &str) -> String {
    let result = run(sandbox, code).await;
    result.text().unwrap_or_else(|| panic!("{result:?}")).to_owned()
}

const IS_THERE: &str = "import sys\n[name in sys.modules for name in NAMES]";

/// A new sandbox of that snapshot has those modules before any code runs there.
async fn at_first(builder: SandboxBuilder<SingleBackend>, names: &[&str]) -> String {
    let sandbox = builder.create().await.unwrap();
    text(&sandbox, &IS_THERE.replace("NAMES", &format!("{names:?}"))).await
}

#[tokio::test]
async fn what_a_template_imported_is_there_before() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    // Without a variable, so that reading variables imports none of them.
    let code = "__import__('wave'); __import__('xml.dom'); __import__('this')\n\
                open('own.py', 'w').write('x = 1')\n__import__('own')";
    run(&sandbox, code).await;
    sandbox.create_snapshot("one").await.unwrap();
    let names = ["wave", "xml.dom", "this", "own"];
    let from = |name: &str| world.builder().snapshot_name(name);
    let there = "[True, True, False, False]";
    assert_eq!(at_first(from("one"), &names).await, there);
    // Also in templates of templates.
    from("one").create().await.unwrap().create_snapshot("two").await.unwrap();
    assert_eq!(at_first(from("two"), &names).await, there);
    let nothing = "[False, False, False, False]";
    let not = from("one").provider_option("template_imports", false);
    assert_eq!(at_first(not, &names).await, nothing);
    assert_eq!(at_first(world.builder(), &names).await, nothing);
}

/// What has to be imported anew in each is imported before anybody asks.
#[tokio::test(flavor = "multi_thread")]
async fn the_second_sandbox_of_a_template_is_made_ahead() {
    // A spare is kept for two seconds, which may be over on a busy machine.
    for _ in 0..10 {
        let world = World::new();
        let sandbox = world.sandbox().await;
        let code = "open('own.py', 'w').write('import time; began = time.monotonic()')\nimport own";
        assert!(run(&sandbox, code).await.success());
        sandbox.create_snapshot("one").await.unwrap();
        let create = || world.builder().snapshot_name("one").create();
        let _first = create().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let asked = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let second = create().await.unwrap();
        let began: i64 = text(&second, "int(own.began * 1e9)").await.parse().unwrap();
        if began < asked.tv_sec * 1_000_000_000 + asked.tv_nsec {
            return;
        }
    }
    panic!("none of ten was made ahead");
}

/// An environment whose modules leave a mark on the host when they are imported outside of a sandbox.
struct Modules {
    directory: TempDir,
}

impl Modules {
    fn new() -> Self {
        let this = Self { directory: tempfile::tempdir().unwrap() };
        let path = this.directory.path();
        let venv = ["-m", "venv", "--without-pip", "env"];
        let made = std::process::Command::new("python3").args(venv).current_dir(path).status();
        assert!(made.unwrap().success(), "an environment can be made");
        let mark = |name: &str| {
            let mark = path.join(format!("{name}.mark"));
            format!("try: open({mark:?}, 'w')\nexcept OSError: pass\n")
        };
        let lib = std::fs::read_dir(path.join("env/lib")).unwrap().next().unwrap().unwrap();
        let packages = lib.path().join("site-packages");
        let outside = path.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(packages.join("more.pth"), outside.to_str().unwrap()).unwrap();
        let threads = "import threading, time\n\
                       threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n";
        let child = "import subprocess\nsubprocess.Popen(['sleep', '1000'])\n";
        let ends = "import sys\nsys.exit(3)\n";
        for (file, more) in [
            (packages.join("insider.py"), ""),
            (packages.join("threads.py"), threads),
            (packages.join("child.py"), child),
            (packages.join("ends.py"), ends),
            (outside.join("outsider.py"), ""),
        ] {
            let name = file.file_stem().unwrap().to_str().unwrap();
            std::fs::write(&file, mark(name) + more).unwrap();
        }
        this
    }

    fn python(&self) -> Value {
        json!(self.directory.path().join("env/bin/python"))
    }

    /// A directory that the environment names and that no sandbox sees unasked.
    fn outside(&self) -> PathBuf {
        self.directory.path().join("outside")
    }

    fn was_imported_outside(&self, name: &str) -> bool {
        self.directory.path().join(format!("{name}.mark")).exists()
    }
}

#[tokio::test]
async fn a_template_decides_only_which_own_modules_are_imported() {
    let (world, modules) = (World::new(), Modules::new());
    let outside = modules.outside();
    let builder = || {
        let mount = Mount::new(&outside, outside.to_str().unwrap());
        world.builder().provider_option("python", modules.python()).mount(mount)
    };
    let template = async |name: &str, imported: &[&str]| {
        let sandbox = builder().create().await.unwrap();
        let code = format!(
            "for name in {imported:?}:\n    try: __import__(name)\n    except SystemExit: \
             __import__('sys').modules[name] = __import__('wave')"
        );
        let done = run(&sandbox, &code).await;
        assert!(done.success(), "{done:?}");
        sandbox.create_snapshot(name).await.unwrap();
        builder().snapshot_name(name)
    };
    let names = ["insider", "outsider"];
    let from = template("one", &names).await;
    assert_eq!(at_first(from, &names).await, "[True, False]");
    assert!(modules.was_imported_outside("insider"), "else this proves nothing");
    assert!(!modules.was_imported_outside("outsider"), "it is of no package of the interpreter");
    // What does not let others be made is not imported for them, and they are made.
    for name in ["threads", "child", "ends"] {
        let from = template(name, &[name, "insider"]).await;
        let first = at_first(from, &[name]).await;
        assert!(modules.was_imported_outside(name), "{name}: else this proves nothing");
        assert_eq!(first, "[False]", "{name}");
    }
}
