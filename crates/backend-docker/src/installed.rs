//! Which kernels an image has, and how one of them is started.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::time::Duration;

use jupyter_protocol::kernelspec::{
    InstalledKernel, KernelSpec, Launch, LaunchError, PythonEnvironment,
};
use sandbox_agent::box_io::{BoxIo, Readable, Spawn};
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_kernel::launch::KernelCommand;
use serde::Deserialize;
use tokio::time::timeout;

use crate::config::{DEFAULT_KERNEL, Options};

/// Says it, inside.
const PROGRAM: &str = include_str!("installed.py");

/// How long that may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How much may be said, in bytes.
const MOST: usize = 8 << 20;

/// The provisioner that starts kernels as processes.
const LOCAL_PROVISIONER: &str = "local-provisioner";

/// What an image has.
#[derive(Debug, Deserialize)]
struct Found {
    executable: String,
    prefix: String,
    version: (u32, u32),
    has_ipykernel: bool,
    kernels: BTreeMap<String, FoundKernel>,
}

/// A specification as it was read.
#[derive(Debug, Deserialize)]
struct FoundKernel {
    folder: String,
    text: String,
}

/// A kernel of an image.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) command: KernelCommand,
    /// Whether it is one of the interpreter that the agent is of.
    pub(crate) is_of_the_python: bool,
}

/// Finds the kernel of that name in a box, whose image looks for programs in `path`.
pub(crate) async fn find(
    box_io: &dyn BoxIo,
    options: &Options,
    name: &str,
    env: &BTreeMap<String, String>,
    path: String,
) -> Result<Installed> {
    let argv = [&options.python, "-c", PROGRAM].map(str::to_owned).to_vec();
    // What the caller puts there must not hide the interpreter of the image.
    let mut own = env.clone();
    own.insert("PATH".into(), path);
    let program = Spawn { argv, env: own, cwd: "/".into(), stdin: false, terminal: None };
    let said = timeout(PATIENCE, said(box_io, program)).await;
    let (out, problem) = said.unwrap_or_else(|_| Err(unknown("no answer came in time")))?;
    let found: Found = serde_json::from_slice(&out).map_err(|error| {
        let last = problem.lines().rev().find(|line| !line.trim().is_empty());
        unknown(last.unwrap_or("its answer makes no sense")).with_source(error)
    })?;
    found.kernel(name, options, env)
}

/// What a program writes, when it has ended.
async fn said(box_io: &dyn BoxIo, program: Spawn) -> Result<(Vec<u8>, String)> {
    let spawned = box_io.spawn(program).await?;
    let problem = async {
        match &spawned.stderr {
            Some(stderr) => read(&**stderr).await,
            None => Ok(Vec::new()),
        }
    };
    let (out, problem) = tokio::join!(read(&*spawned.stdout), problem);
    let read = |said: io::Result<Vec<u8>>| {
        said.map_err(|error| unknown("its answer could not be read").with_source(error))
    };
    Ok((read(out)?, String::from_utf8_lossy(&read(problem)?).into_owned()))
}

async fn read(stream: &dyn Readable) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        poll_fn(|cx| stream.poll_readable(cx)).await?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return Ok(all),
            Ok(count) if all.len() + count <= MOST => all.extend_from_slice(&buffer[..count]),
            Ok(_) => return Err(io::Error::other("it is too long")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

impl Found {
    fn kernel(
        self,
        name: &str,
        options: &Options,
        env: &BTreeMap<String, String>,
    ) -> Result<Installed> {
        let name = name.to_lowercase();
        let unusable = |error: &dyn fmt::Display| {
            let message = format!("kernel {name:?} of the image cannot be started: {error}");
            failed(ErrorKind::Unavailable, message, options)
        };
        let python = PythonEnvironment::elsewhere(&self.executable, &self.prefix, self.version);
        let kernel = match self.kernels.get(&name) {
            Some(FoundKernel { folder, text }) => {
                let spec = KernelSpec::from_json(text.as_bytes());
                InstalledKernel::new(&name, folder, spec.map_err(|error| unusable(&error))?)
            }
            None if name == DEFAULT_KERNEL && self.has_ipykernel => self.native(&name),
            None => return Err(self.not_found(&name, options)),
        };
        if let Some(other) = kernel.spec.provisioner().filter(|name| *name != LOCAL_PROVISIONER) {
            return Err(unusable(&format!("its provisioner {other:?} is not available")));
        }
        let launch = Launch::new(Path::new(KernelCommand::FILE)).with_python(Some(&python));
        let argv = kernel.arguments(&launch).map_err(|error| unusable(&error))?;
        let Some(program) = argv.first() else {
            return Err(unusable(&LaunchError::NoProgram));
        };
        let is_of_the_python = *program == self.executable;
        let own = kernel.variables(|name| env.get(name).cloned());
        let env = own.map_err(|error| unusable(&error))?.into_iter().collect();
        let command = KernelCommand {
            name,
            title: kernel.spec.display_name,
            language: kernel.spec.language.to_lowercase(),
            interrupt: kernel.spec.interrupt_mode,
            argv,
            env,
        };
        Ok(Installed { command, is_of_the_python })
    }

    /// IPython's kernel, which is there also where nobody has written its specification.
    fn native(&self, name: &str) -> InstalledKernel {
        let mut spec = KernelSpec::default();
        let words = [&self.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"];
        spec.argv = words.map(str::to_owned).to_vec();
        spec.display_name = format!("Python {} (ipykernel)", self.version.0);
        "python".clone_into(&mut spec.language);
        InstalledKernel::new(name, "", spec)
    }

    fn not_found(&self, name: &str, options: &Options) -> Error {
        let mut names: Vec<&str> = self.kernels.keys().map(String::as_str).collect();
        if self.has_ipykernel && !self.kernels.contains_key(DEFAULT_KERNEL) {
            names.push(DEFAULT_KERNEL);
        }
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        if name == DEFAULT_KERNEL {
            let message =
                format!("`{}` of the image has no ipykernel (kernels: {there})", options.python);
            return failed(ErrorKind::Unavailable, message, options).with_hint(
                "put it into the image: `python3 -m pip install ipykernel`; `sandboxes image build` makes one that has it",
            );
        }
        let message = format!("no kernel of the image is named {name:?} (available: {there})");
        failed(ErrorKind::NotFound, message, options).with_hint(
            "kernels are looked for below share/jupyter/kernels in the image, as Jupyter does",
        )
    }
}

fn failed(kind: ErrorKind, message: String, options: &Options) -> Error {
    Error::new(kind, "start_kernel", message).with_context("image", options.image.clone())
}

fn unknown(why: &str) -> Error {
    let message = format!("which kernels the image has cannot be found out: {why}");
    Error::new(ErrorKind::Unavailable, "start_kernel", message)
}

#[cfg(test)]
mod tests {
    use sandbox_core::CreateSpec;
    use serde_json::json;

    use super::*;
    use crate::config::DockerConfig;

    fn options() -> Options {
        Options::of_create(&DockerConfig::default(), &CreateSpec::default()).unwrap()
    }

    fn found(has_ipykernel: bool, kernels: serde_json::Value) -> Found {
        let found = json!({
            "executable": "/env/bin/python3", "prefix": "/env", "version": [3, 11],
            "has_ipykernel": has_ipykernel, "kernels": kernels,
        });
        serde_json::from_value(found).unwrap()
    }

    fn kernel(found: Found, name: &str) -> Result<Installed> {
        let env = BTreeMap::from([("HOME".to_owned(), "/home/sandbox".to_owned())]);
        found.kernel(name, &options(), &env)
    }

    #[test]
    fn a_specification_is_understood_as_the_image_means_it() {
        let text = r#"{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}", "{prefix}{resource_dir}"],
            "env": {"A": "${HOME}/a"}, "language": "Python", "interrupt_mode": "message"}"#;
        let kernels = json!({"mine": {"folder": "/kernels/mine", "text": text}});
        let Installed { command, is_of_the_python } =
            kernel(found(false, kernels), "Mine").unwrap();
        let words = [
            "/env/bin/python3",
            "-m",
            "ipykernel_launcher",
            "-f",
            KernelCommand::FILE,
            "/env/kernels/mine",
        ];
        assert_eq!(command.argv, words);
        assert_eq!(command.env["A"], "/home/sandbox/a");
        assert!(is_of_the_python && command.looks_like_ipython());
    }

    #[test]
    fn ipykernel_needs_no_specification() {
        let command = kernel(found(true, json!({})), "python3").unwrap().command;
        assert!(command.looks_like_ipython());
        assert_eq!(command.argv[0], "/env/bin/python3");
    }

    #[test]
    fn what_is_not_there_says_what_is() {
        let sh = json!({"sh": {"folder": "/k", "text": "{}"}});
        let error = kernel(found(true, sh.clone()), "ir").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("available: sh, python3"), "{error}");
        let error = kernel(found(false, sh.clone()), "python3").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.hint().unwrap().contains("pip install ipykernel"), "{error:?}");
        let error = kernel(found(false, sh), "sh").unwrap_err();
        assert!(error.message().contains("empty `argv`"), "{error}");
    }

    #[test]
    fn what_is_no_specification_is_said_to_be_none() {
        for text in ["", "[]", r#"{"argv": 1}"#] {
            let kernels = json!({"odd": {"folder": "/k", "text": text}});
            let error = kernel(found(true, kernels), "odd").unwrap_err();
            assert!(error.message().contains("invalid kernel.json"), "{error}");
        }
    }
}
