//! Python packages that are installed into a sandbox.

use std::path::Path;

use sandbox_core::{ByteSize, ErrorKind, Sandbox};

use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    WAIT_TIMEOUT, as_shown, is_usable, ok, raises, refused, run, text, until_executing, within,
};
use crate::wheel::{Wheel, Wheelhouse};

pub(super) fn cases() -> Vec<Case> {
    cases!("packages", [run_code, install_python, local], {
        a_running_interpreter_sees_them;
        later_interpreters_see_them;
        commands_see_them needs commands;
        their_programs_are_found needs commands;
        what_they_need_comes_along;
        what_is_there_already_is_fine;
        nothing_is_fine;
        a_version_is_chosen;
        another_version_replaces_it;
        a_record_that_never_answers_holds_up_nobody;
        a_conflict_is_an_error;
        packages_share_directories;
        path_files_are_followed;
        an_unknown_one_is_not_found;
        sources_are_not_built;
        sources_behind_an_address_are_not_built;
        options_and_addresses_are_refused;
        several_calls_at_once;
        code_runs_meanwhile;
        a_full_disk_is_told needs limit_disk;
        other_sandboxes_do_not_have_them;
        they_survive_a_reset needs restart;
        after_the_end_there_is_none;
        the_magic_names_the_verb needs strict;
        the_magic_installs_for_the_next_line needs strict, files;
        what_pip_installs_is_found_in_the_same_run needs strict, files;
        what_a_command_installs_is_there_for_code needs strict, files, commands;
        an_upgrade_is_of_what_is_named;
    })
}

/// A sandbox that finds packages in that directory alone.
async fn sandbox(f: &Fixture, wheels: &Wheelhouse) -> Checked<Sandbox> {
    let options = wheels.options();
    f.create(|builder| builder.provider_option("pip", options)).await
}

async fn a_running_interpreter_sees_them(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    raises(&sandbox, "x = 5\nimport tinya", "ModuleNotFoundError").await?;
    sandbox.install_packages(["tinya"]).await?;
    ensure_eq!(text(&sandbox, "import tinya; (tinya.VERSION, x)").await?, "('1.0', 5)");
    let found = "import importlib.metadata as m; m.version('tinya')";
    ensure_eq!(text(&sandbox, found).await?, as_shown("'1.0'"));
    Ok(())
}

async fn later_interpreters_see_them(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya"]).await?;
    let other = sandbox.run_code("import tinya; tinya.VERSION").context("other").await?;
    ensure_eq!(other.text(), Some(as_shown("'1.0'")));
    run(&sandbox, "import os; os._exit(1)").await?;
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    Ok(())
}

async fn commands_see_them(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya"]).await?;
    let script =
        sandbox.commands().run_script("python", "import tinya; print(tinya.VERSION)", [""; 0]);
    let result = script.env("PYTHONDONTWRITEBYTECODE", "1").await?;
    ensure_eq!((result.stdout.as_str(), result.stderr.as_str()), ("1.0\n", ""));
    let child = "import subprocess, sys, tinya\n\
                 subprocess.run([sys.executable, '-c', 'import tinya; print(tinya.VERSION)'], check=True)";
    ensure_eq!(ok(&sandbox, child).await?.stdout_trimmed(), "1.0");
    Ok(())
}

async fn their_programs_are_found(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.wheel(&Wheel {
        name: "tinyprogram",
        version: "1.0",
        needs: &[],
        files: &[(
            "tinyprogram.py",
            b"import sys\ndef main():\n    print('ran', sys.argv[1:])\n    return 3\n",
        )],
        program: Some(("tiny-program", "tinyprogram:main")),
    })?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinyprogram"]).await?;
    let result = sandbox.commands().run("tiny-program a b").await?;
    ensure_eq!((result.stdout.as_str(), result.exit_code), ("ran ['a', 'b']\n", 3));
    let inside = "import subprocess; subprocess.run(['tiny-program']).returncode";
    ensure_eq!(text(&sandbox, inside).await?, "3");
    Ok(())
}

async fn what_they_need_comes_along(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &["tinyb>=2"])?;
    wheels.module("tinyb", "1.0", &[])?;
    wheels.module("tinyb", "2.5", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya"]).await?;
    ensure_eq!(text(&sandbox, "import tinya, tinyb; tinyb.VERSION").await?, as_shown("'2.5'"));
    Ok(())
}

async fn what_is_there_already_is_fine(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    // The interpreter has it, and the directory has not.
    sandbox.install_packages(["pip"]).await?;
    for _ in 0..2 {
        sandbox.install_packages(["tinya", "Tinya>=1"]).await?;
    }
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    Ok(())
}

async fn nothing_is_fine(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages([""; 0]).await?;
    Ok(())
}

async fn a_version_is_chosen(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    for version in ["1.0", "2.0", "3.0"] {
        wheels.module("tinya", version, &[])?;
    }
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya>=1.5,<3"]).await?;
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'2.0'"));
    Ok(())
}

async fn another_version_replaces_it(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    let old = [("tinya.py", b"VERSION = '1.0'\n".as_slice()), ("tinya_old.py", b"".as_slice())];
    let wheel = Wheel { name: "tinya", version: "1.0", needs: &[], files: &old, program: None };
    wheels.wheel(&wheel)?;
    wheels.module("tinya", "2.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    let seen = "import importlib.metadata as m, importlib.util as u, tinya\n\
                (tinya.VERSION, m.version('tinya'), u.find_spec('tinya_old') is None)";
    sandbox.install_packages(["tinya==1.0"]).await?;
    ensure_eq!(text(&sandbox, seen).await?, "('1.0', '1.0', False)");
    sandbox.install_packages(["tinya==2.0"]).await?;
    sandbox.restart_context("default").await?;
    ensure_eq!(text(&sandbox, seen).await?, "('2.0', '2.0', True)");
    Ok(())
}

async fn a_record_that_never_answers_holds_up_nobody(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    wheels.module("tinya", "2.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya==1.0"]).await?;
    let code = "
import importlib.util, os, pathlib
directory = pathlib.Path(importlib.util.find_spec('tinya').origin).parent
record, = [*directory.glob('tinya-*/RECORD'), *directory.parent.glob('tinya-*/RECORD')]
record.unlink()
os.mkfifo(record)";
    ok(&sandbox, code).await?;
    within(WAIT_TIMEOUT, sandbox.install_packages(["tinya==2.0"])).await??;
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'2.0'"));
    Ok(())
}

async fn a_conflict_is_an_error(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &["tinyb<2"])?;
    wheels.module("tinyb", "1.0", &[])?;
    wheels.module("tinyb", "2.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya"]).await?;
    let error =
        refused(sandbox.install_packages(["tinyb==2.0"]).await, ErrorKind::InvalidArgument)?;
    ensure!(error.to_string().contains("tinyb"), "the package is not named: {error}");
    ensure_eq!(text(&sandbox, "import tinyb; tinyb.VERSION").await?, as_shown("'1.0'"));
    sandbox.install_packages(["tinyb"]).await?;
    Ok(())
}

async fn packages_share_directories(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    for (name, path) in [("tinya", "shared/one.py"), ("tinyb", "shared/two.py")] {
        let files = [(path, b"HERE = True\n".as_slice())];
        let wheel = Wheel { name, version: "1.0", needs: &[], files: &files, program: None };
        wheels.wheel(&wheel)?;
    }
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya"]).await?;
    ok(&sandbox, "import shared.one").await?;
    sandbox.install_packages(["tinyb"]).await?;
    ensure_eq!(
        text(&sandbox, "import shared.two; shared.two.HERE, shared.one.HERE").await?,
        "(True, True)"
    );
    Ok(())
}

async fn path_files_are_followed(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    let files = [("tinya.pth", b"tinya_dir\n".as_slice()), ("tinya_dir/tinya_mod.py", b"X = 1\n")];
    let wheel = Wheel { name: "tinya", version: "1.0", needs: &[], files: &files, program: None };
    wheels.wheel(&wheel)?;
    let sandbox = sandbox(&f, &wheels).await?;
    ok(&sandbox, "1").await?;
    sandbox.install_packages(["tinya"]).await?;
    ensure_eq!(text(&sandbox, "import tinya_mod; tinya_mod.X").await?, "1");
    Ok(())
}

async fn an_unknown_one_is_not_found(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    for name in ["no-such-package-x", "tinya==9.9"] {
        let error = refused(sandbox.install_packages([name]).await, ErrorKind::NotFound)?;
        ensure!(error.to_string().contains(name), "{name} is not named: {error}");
    }
    sandbox.install_packages(["tinya"]).await?;
    Ok(())
}

/// Code that tells when it is run on the host.
fn trap(path: &Path) -> String {
    format!(
        "open({:?}, 'w').close()\nfrom setuptools import setup\nsetup()\n",
        path.to_string_lossy()
    )
}

async fn sources_are_not_built(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    let mark = Path::new(&wheels.path()).join("was-run");
    wheels.sources("tinysource", "1.0", &trap(&mark))?;
    wheels.module("tinya", "1.0", &["tinysource"])?;
    let sandbox = sandbox(&f, &wheels).await?;
    for name in ["tinysource", "tinya"] {
        refused(sandbox.install_packages([name]).await, ErrorKind::NotFound)?;
    }
    ensure!(!mark.exists(), "code of a package ran on the host");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn sources_behind_an_address_are_not_built(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    let mark = Path::new(&wheels.path()).join("was-run");
    wheels.sources("tinysource", "1.0", &trap(&mark))?;
    let address = format!("tinysource @ file://{}/tinysource-1.0.zip", wheels.path());
    wheels.module("tinya", "1.0", &[&address])?;
    let sandbox = sandbox(&f, &wheels).await?;
    ensure!(sandbox.install_packages(["tinya"]).await.is_err(), "sources were installed");
    ensure!(!mark.exists(), "code of a package ran on the host");
    raises(&sandbox, "import tinya", "ModuleNotFoundError").await?;
    Ok(())
}

async fn options_and_addresses_are_refused(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    let file = format!("{}/tinya-1.0-py3-none-any.whl", wheels.path());
    let address = format!("tinya @ file://{file}");
    for name in ["", "-r/etc/passwd", "--pre", ".", "./x", "git+https://localhost/x", "a\nb", "a\0"]
    {
        refused(sandbox.install_packages([name]).await, ErrorKind::InvalidArgument)?;
    }
    for name in [file, address] {
        refused(sandbox.install_packages([name]).await, ErrorKind::InvalidArgument)?;
    }
    Ok(())
}

async fn several_calls_at_once(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    for name in ["tinya", "tinyb", "tinyc"] {
        wheels.module(name, "1.0", &[])?;
    }
    let sandbox = sandbox(&f, &wheels).await?;
    let calls = ["tinya", "tinyb", "tinyc"].map(|name| sandbox.install_packages([name]));
    for done in futures_util::future::join_all(calls).await {
        done?;
    }
    ok(&sandbox, "import tinya, tinyb, tinyc").await?;
    Ok(())
}

async fn code_runs_meanwhile(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    let busy = sandbox.clone();
    let busy =
        tokio::spawn(
            async move { busy.run_code("import time; time.sleep(300)").no_timeout().await },
        );
    until_executing(&sandbox).await?;
    sandbox.install_packages(["tinya"]).await?;
    ensure!(sandbox.is_executing(), "it waited for the code");
    sandbox.interrupt().await?;
    busy.await??;
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    Ok(())
}

async fn a_full_disk_is_told(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    let large = vec![b'#'; 6 << 20];
    let files = [("tinylarge.py", large.as_slice())];
    wheels.wheel(&Wheel {
        name: "tinylarge",
        version: "1.0",
        needs: &[],
        files: &files,
        program: None,
    })?;
    wheels.module("tinya", "1.0", &[])?;
    let options = wheels.options();
    let sandbox = f.create(|b| b.provider_option("pip", options).disk(ByteSize::mib(8))).await?;
    refused(sandbox.install_packages(["tinylarge"]).await, ErrorKind::ResourceExhausted)?;
    raises(&sandbox, "import tinylarge", "ModuleNotFoundError").await?;
    sandbox.install_packages(["tinya"]).await?;
    ok(&sandbox, "import tinya").await?;
    Ok(())
}

async fn other_sandboxes_do_not_have_them(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let (one, other) = (sandbox(&f, &wheels).await?, sandbox(&f, &wheels).await?);
    one.install_packages(["tinya"]).await?;
    ok(&one, "import tinya").await?;
    raises(&other, "import tinya", "ModuleNotFoundError").await?;
    raises(&sandbox(&f, &wheels).await?, "import tinya", "ModuleNotFoundError").await?;
    Ok(())
}

async fn they_survive_a_reset(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.install_packages(["tinya"]).await?;
    sandbox.reset().await?;
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    Ok(())
}

async fn after_the_end_there_is_none(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    sandbox.terminate().await?;
    refused(sandbox.install_packages(["tinya"]).await, ErrorKind::Terminated)?;
    Ok(())
}

async fn the_magic_names_the_verb(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for line in ["%pip install tinya", "%pip -q install tinya", "%pip download tinya"] {
        let result = raises(&sandbox, line, "RuntimeError").await?;
        let said = result.code_error.map(|error| error.value).unwrap_or_default();
        ensure!(said.contains("`.install_packages([\"tinya\"])`"), "it says {said:?}");
        let hint = result.hint.unwrap_or_default();
        ensure!(hint.contains("install_packages"), "hint {hint:?}");
    }
    ok(&sandbox, "%pip --version").await?;
    Ok(())
}

/// Installs wheels of the working directory as pip does by itself, and where an interpreter is of a virtual environment
/// that nothing here can change, as its user would have to say it.
const PIP: &str = "pip() { python3 -m pip install --quiet --no-index --disable-pip-version-check \"$@\"; }; \
                   install() { pip \"$@\" 2>error || pip --prefix \"$HOME/.local\" \"$@\" || cat error; }; ";

/// A sandbox with a wheel of a module and one of a program in its working directory.
async fn with_wheels(f: &Fixture) -> Checked<Sandbox> {
    let wheels = Wheelhouse::new()?;
    wheels.module("tinya", "1.0", &[])?;
    let main = b"import sys\ndef main():\n    print('ran', sys.argv[1:])\n".as_slice();
    wheels.wheel(&Wheel {
        name: "tinyprogram",
        version: "1.0",
        needs: &[],
        files: &[("tinyprogram.py", main)],
        program: Some(("tiny-program", "tinyprogram:main")),
    })?;
    let sandbox = f.sandbox().await?;
    for name in ["tinya-1.0-py3-none-any.whl", "tinyprogram-1.0-py3-none-any.whl"] {
        let wheel = std::fs::read(Path::new(&wheels.path()).join(name));
        let wheel = wheel.map_err(|error| Failure::new(error.to_string()))?;
        sandbox.files().write(name, wheel).await?;
    }
    Ok(sandbox)
}

async fn the_magic_installs_for_the_next_line(f: Fixture) -> Checked {
    let sandbox = with_wheels(&f).await?;
    let cell =
        "%pip install --quiet --no-index ./tinya-1.0-py3-none-any.whl\nimport tinya\ntinya.VERSION";
    ensure_eq!(text(&sandbox, cell).await?, as_shown("'1.0'"));
    // A file needs no network, and so nothing is refused for want of one.
    ok(&sandbox, "%pip install --quiet ./tinyprogram-1.0-py3-none-any.whl").await?;
    let output = ok(&sandbox, "!tiny-program a").await?;
    ensure!(
        output.stdout_trimmed().contains("ran ['a']"),
        "the program says {:?}",
        output.stdout_trimmed()
    );
    Ok(())
}

async fn what_pip_installs_is_found_in_the_same_run(f: Fixture) -> Checked {
    let sandbox = with_wheels(&f).await?;
    raises(&sandbox, "import tinya", "ModuleNotFoundError").await?;
    let code = format!(
        "import subprocess\n\
         subprocess.run(['sh', '-c', {:?}], check=True)\n\
         import tinya\ntinya.VERSION",
        format!("{PIP}install ./tinya-1.0-py3-none-any.whl")
    );
    ensure_eq!(text(&sandbox, &code).await?, as_shown("'1.0'"));
    Ok(())
}

async fn what_a_command_installs_is_there_for_code(f: Fixture) -> Checked {
    let sandbox = with_wheels(&f).await?;
    ok(&sandbox, "1").await?;
    let line =
        format!("{PIP}install ./tinyprogram-1.0-py3-none-any.whl ./tinya-1.0-py3-none-any.whl");
    let installed = sandbox.commands().run(line).await?;
    ensure_eq!((installed.exit_code, installed.stderr.as_str()), (0, ""));
    ensure_eq!(text(&sandbox, "import tinya; tinya.VERSION").await?, as_shown("'1.0'"));
    let other = sandbox.run_code("import tinya; tinya.VERSION").context("other").await?;
    ensure_eq!(other.text(), Some(as_shown("'1.0'")));
    let command = sandbox.commands().run("python3 -c 'import tinya' && tiny-program a b").await?;
    ensure_eq!((command.stdout.as_str(), command.stderr.as_str()), ("ran ['a', 'b']\n", ""));
    let child = "import subprocess; subprocess.run(['tiny-program'], check=True)";
    ensure_eq!(ok(&sandbox, child).await?.stdout_trimmed(), "ran []");
    Ok(())
}

async fn an_upgrade_is_of_what_is_named(f: Fixture) -> Checked {
    let wheels = Wheelhouse::new()?;
    wheels.module("pip", "99999.0", &[])?;
    let sandbox = sandbox(&f, &wheels).await?;
    let version = "import importlib.metadata as m; m.version('pip') == '99999.0'";
    // The interpreter has one, and any will do.
    sandbox.install_packages(["pip"]).await?;
    ensure_eq!(text(&sandbox, version).await?, "False");
    sandbox.upgrade_packages(["pip"]).await?;
    ensure_eq!(text(&sandbox, version).await?, "True");
    Ok(())
}
