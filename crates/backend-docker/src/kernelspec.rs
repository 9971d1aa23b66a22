//! Kernel specifications of an image: finds a kernel by name, and resolves how it is started.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use futures_util::StreamExt as _;
use jupyter_protocol::kernelspec::{
    InstalledKernel, KernelSpec, Launch, LaunchError, PythonEnvironment,
};
use sandbox_agent_client::{AgentConnection, AgentFiles, AgentPython};
use sandbox_core::{ByteRange, Error, ErrorKind, Result};
use sandbox_engine::host::FileSystem as _;
use sandbox_kernel::launch::KernelCommand;

use crate::config::{DEFAULT_KERNEL, Options};
use crate::container::HOME;

/// Largest specification, in bytes.
const MAX_SPEC_SIZE: u64 = 1 << 20;

/// The provisioner that starts kernels as processes.
const LOCAL_PROVISIONER: &str = "local-provisioner";

/// The kernels of an image.
#[derive(Debug)]
struct ImageKernels {
    /// The interpreter of the agent.
    python: AgentPython,
    /// Specifications by the names of kernels, in lower case.
    kernels: BTreeMap<String, Specification>,
}

/// An unparsed specification.
#[derive(Debug)]
struct Specification {
    folder: String,
    text: Vec<u8>,
}

/// A kernel of an image, ready to be started.
#[derive(Debug)]
pub(crate) struct ResolvedKernel {
    pub(crate) command: KernelCommand,
    /// The kernel runs in the interpreter of the agent.
    pub(crate) runs_in_agent_python: bool,
}

/// Finds the kernel of that name in a container, with the environment of programs there.
///
/// The specification is read as a file, and the agent reports its interpreter: a further interpreter would take a good part of
/// the start of a kernel.
pub(crate) async fn find_kernel(
    agent: &AgentConnection,
    options: &Options,
    name: &str,
    env: &BTreeMap<String, String>,
) -> Result<ResolvedKernel> {
    let python = agent.interpreter("ipykernel").await?;
    let files = agent.files("/");
    let mut kernels = BTreeMap::new();
    for folder in folders(&python.prefix, env) {
        // A folder that is missing or unreadable has no kernels.
        for entry in files.list(&folder).await.unwrap_or_default() {
            let name = entry.name.to_lowercase();
            if !kernels.contains_key(&name)
                && let Ok(text) = read(&files, &format!("{}/kernel.json", entry.path)).await
            {
                kernels.insert(name, Specification { folder: entry.path, text });
            }
        }
    }
    ImageKernels { python, kernels }.kernel(name, options, env)
}

/// Lists the folders of kernels in the order of Jupyter.
fn folders(prefix: &str, env: &BTreeMap<String, String>) -> Vec<String> {
    let variable = |name: &str| env.get(name).filter(|value| !value.is_empty());
    let named = variable("JUPYTER_PATH").map_or("", String::as_str).split(':');
    let home = variable("HOME").map_or(HOME, String::as_str);
    let user = variable("JUPYTER_DATA_DIR").cloned();
    let user = user.unwrap_or_else(|| format!("{home}/.local/share/jupyter"));
    let system = ["/usr/local/share/jupyter", "/usr/share/jupyter"].map(str::to_owned);
    let named = named.filter(|path| path.starts_with('/')).map(str::to_owned);
    let all = named.chain([user, format!("{prefix}/share/jupyter")]).chain(system);
    all.map(|data| format!("{data}/kernels")).collect()
}

async fn read(files: &AgentFiles, path: &str) -> Result<Vec<u8>> {
    let range = ByteRange { offset: 0, length: Some(MAX_SPEC_SIZE) };
    let mut pieces = files.read(path, range).await?;
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        text.extend_from_slice(&piece?);
    }
    Ok(text)
}

impl ImageKernels {
    fn kernel(
        self,
        name: &str,
        options: &Options,
        env: &BTreeMap<String, String>,
    ) -> Result<ResolvedKernel> {
        let name = name.to_lowercase();
        let unusable = |error: &dyn fmt::Display| {
            let message = format!("kernel {name:?} of the image cannot be started: {error}");
            failed(ErrorKind::Unavailable, message, options)
        };
        let AgentPython { executable, prefix, version, .. } = &self.python;
        let python = PythonEnvironment::remote(executable, prefix, *version);
        let kernel = match self.kernels.get(&name) {
            Some(Specification { folder, text }) => {
                let spec = KernelSpec::from_json(text);
                InstalledKernel::new(&name, folder, spec.map_err(|error| unusable(&error))?)
            }
            None if name == DEFAULT_KERNEL && self.python.has_package => self.native(&name),
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
        let runs_in_agent_python = program == executable;
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
        Ok(ResolvedKernel { command, runs_in_agent_python })
    }

    /// Returns IPython's kernel, which needs no specification.
    fn native(&self, name: &str) -> InstalledKernel {
        let mut spec = KernelSpec::default();
        let words =
            [&self.python.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"];
        spec.argv = words.map(str::to_owned).to_vec();
        spec.display_name = format!("Python {} (ipykernel)", self.python.version.0);
        "python".clone_into(&mut spec.language);
        InstalledKernel::new(name, "", spec)
    }

    fn not_found(&self, name: &str, options: &Options) -> Error {
        let mut names: Vec<&str> = self.kernels.keys().map(String::as_str).collect();
        if self.python.has_package && !self.kernels.contains_key(DEFAULT_KERNEL) {
            names.push(DEFAULT_KERNEL);
        }
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        if name == DEFAULT_KERNEL {
            let message =
                format!("`{}` of the image has no ipykernel (kernels: {names})", options.python);
            return failed(ErrorKind::Unavailable, message, options).with_hint(
                "put it into the image: `python3 -m pip install ipykernel`; `Images::build(..)` builds one that has it",
            );
        }
        let message = format!("no kernel of the image is named {name:?} (available: {names})");
        failed(ErrorKind::NotFound, message, options).with_hint(
            "kernels are searched for below share/jupyter/kernels in the image, as in Jupyter",
        )
    }
}

fn failed(kind: ErrorKind, message: String, options: &Options) -> Error {
    Error::new(kind, "start_kernel", message).with_context("image", options.image.clone())
}

#[cfg(test)]
mod tests {
    use sandbox_core::CreateSpec;

    use super::*;
    use crate::config::DockerConfig;

    fn options() -> Options {
        Options::from_spec(&DockerConfig::default(), &CreateSpec::default()).unwrap()
    }

    fn found(has_package: bool, kernels: &[(&str, &str)]) -> ImageKernels {
        let python = AgentPython {
            executable: "/env/bin/python3".to_owned(),
            prefix: "/env".to_owned(),
            version: (3, 11),
            has_package,
        };
        let read = |&(name, text): &(&str, &str)| {
            let folder = format!("/kernels/{name}");
            (name.to_owned(), Specification { folder, text: text.into() })
        };
        ImageKernels { python, kernels: kernels.iter().map(read).collect() }
    }

    fn kernel(found: ImageKernels, name: &str) -> Result<ResolvedKernel> {
        let env = BTreeMap::from([("HOME".to_owned(), "/home/sandbox".to_owned())]);
        found.kernel(name, &options(), &env)
    }

    #[test]
    fn a_specification_is_resolved_for_the_image() {
        let text = r#"{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}", "{prefix}{resource_dir}"],
            "env": {"A": "${HOME}/a"}, "language": "Python", "interrupt_mode": "message"}"#;
        let ResolvedKernel { command, runs_in_agent_python } =
            kernel(found(false, &[("mine", text)]), "Mine").unwrap();
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
        assert!(runs_in_agent_python && command.looks_like_ipython());
    }

    #[test]
    fn ipykernel_needs_no_specification() {
        let command = kernel(found(true, &[]), "python3").unwrap().command;
        assert!(command.looks_like_ipython());
        assert_eq!(command.argv[0], "/env/bin/python3");
    }

    #[test]
    fn the_error_of_a_missing_kernel_lists_the_others() {
        let sh = [("sh", "{}")];
        let error = kernel(found(true, &sh), "ir").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("available: sh, python3"), "{error}");
        let error = kernel(found(false, &sh), "python3").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.hint().unwrap().contains("pip install ipykernel"), "{error:?}");
        let error = kernel(found(false, &sh), "sh").unwrap_err();
        assert!(error.message().contains("empty `argv`"), "{error}");
    }

    #[test]
    fn kernels_are_searched_for_in_the_folders_of_jupyter() {
        let pairs = [("JUPYTER_PATH", "/a:relative:/b"), ("HOME", "/home/u")];
        let env = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let expected = [
            "/a/kernels",
            "/b/kernels",
            "/home/u/.local/share/jupyter/kernels",
            "/env/share/jupyter/kernels",
            "/usr/local/share/jupyter/kernels",
            "/usr/share/jupyter/kernels",
        ];
        assert_eq!(folders("/env", &env), expected);
    }

    #[test]
    fn an_invalid_specification_is_reported() {
        for text in ["", "[]", r#"{"argv": 1}"#] {
            let error = kernel(found(true, &[("odd", text)]), "odd").unwrap_err();
            assert!(error.message().contains("invalid kernel.json"), "{error}");
        }
    }
}
