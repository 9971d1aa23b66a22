//! What of this host a sandbox does not see, although its interpreter looks for modules there.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_core::{
    Backend as _, CallContext, ExecutionResult, Mount, Sandbox, SandboxBuilder, SingleBackend,
};
use tempfile::TempDir;

/// An environment with a project that was installed with `pip install -e`, and packages of another environment.
struct World {
    root: PathBuf,
    _folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let venv = ["-m", "venv", "--without-pip", "env"];
        let made = Command::new("python3").args(venv).current_dir(&root).status();
        assert!(made.unwrap().success(), "an environment can be made");
        let project = root.join("project");
        fs::create_dir_all(project.join(".git")).unwrap();
        fs::write(project.join(".env"), "KEY=canary").unwrap();
        fs::write(project.join("edited.py"), "x = 42").unwrap();
        let other = root.join("other/site-packages");
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("taken_in.py"), "x = 43").unwrap();
        let lib = fs::read_dir(root.join("env/lib")).unwrap().next().unwrap().unwrap().path();
        let lines = format!("{}\n{}\n", project.display(), other.display());
        fs::write(lib.join("site-packages/more.pth"), lines).unwrap();
        Self { root, _folder: folder }
    }

    fn project(&self) -> PathBuf {
        self.root.join("project")
    }

    fn python(&self) -> PathBuf {
        self.root.join("env/bin/python")
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::new(EvalBackend::default()))
            .provider_option("python", self.python().to_str().unwrap())
    }
}

async fn run(builder: SandboxBuilder<SingleBackend>, code: &str) -> ExecutionResult {
    builder.create().await.unwrap().run_code(code).await.unwrap()
}

fn reads(file: &Path) -> String {
    format!("import os\nos.path.exists({file:?})")
}

#[tokio::test]
async fn a_project_in_a_pth_file_is_not_shown() {
    let world = World::new();
    for file in [".env", ".git", "edited.py"] {
        let result = run(world.builder(), &reads(&world.project().join(file))).await;
        assert_eq!(result.text(), Some("False"), "{file}");
    }
    let result = run(world.builder(), "import edited").await;
    let error = result.error().unwrap();
    assert_eq!(error.name, "ModuleNotFoundError");
    let place = world.project();
    let flag = format!("`.mount(Mount::new(\"{0}\", \"{0}\"))`", place.display());
    assert!(result.hint.as_deref().unwrap().contains(&flag), "{result:?}");
    let result = run(world.builder(), "import of_nowhere").await;
    assert_eq!(result.hint, None);
    // Control: whoever asks for it has it.
    let builder = || world.builder().mount(Mount::new(&place, place.to_str().unwrap()));
    let result = run(builder(), "import edited\nedited.x").await;
    assert_eq!(result.text(), Some("42"), "{result:?}");
    let result = run(builder(), &reads(&place.join(".env"))).await;
    assert_eq!(result.text(), Some("True"));
}

#[tokio::test]
async fn packages_of_another_environment_are_shown() {
    let world = World::new();
    let result = run(world.builder(), "import taken_in\ntaken_in.x").await;
    assert_eq!(result.text(), Some("43"), "{result:?}");
}

#[tokio::test]
async fn doctor_names_what_is_not_shown() {
    let world = World::new();
    let mut config = EvalConfig::default();
    config.python = Some(world.python());
    let health = EvalBackend::new(config).health(&CallContext::default()).await.unwrap();
    let row = health.checks.iter().find(|check| check.name == "directories of modules").unwrap();
    let project = world.project().display().to_string();
    assert!(row.ok && row.detail.contains(&project), "{row:?}");
    assert!(row.fix.as_ref().unwrap().contains("Mount::new"), "{row:?}");
    let all = format!("{health:?}");
    assert!(!all.contains("other/site-packages"), "{all}");
}
