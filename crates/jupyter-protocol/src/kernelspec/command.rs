//! The command that starts a kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use thiserror::Error;

use super::substitute::{braces, dollars};
use super::{InstalledKernel, KernelSpec, PythonEnvironment};

/// The arguments of a kernel's start.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    connection_file: &'a Path,
    python: Option<&'a PythonEnvironment>,
}

/// The reason why a kernel has no command.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LaunchError {
    /// The specification names no program.
    #[error("the kernel specification has an empty `argv`")]
    NoProgram,
    /// A path is not UTF-8, and so cannot be put into an argument.
    #[error("path is not UTF-8: {0}")]
    NotText(PathBuf),
    /// An environment variable of the specification is not text.
    #[error("environment variable {0} is not text")]
    Variable(String),
}

impl<'a> Launch<'a> {
    /// Starts the kernel with this connection file. Use an absolute path.
    #[must_use]
    pub fn new(connection_file: &'a Path) -> Self {
        Self { connection_file, python: None }
    }

    /// Sets the Python environment: its interpreter replaces `python`, and its prefix `{prefix}`. The default is the
    /// [environment of the search](InstalledKernel::python), or else the one that contains the specification, if there
    /// is one.
    #[must_use]
    pub fn with_python(mut self, python: Option<&'a PythonEnvironment>) -> Self {
        self.python = python;
        self
    }
}

impl InstalledKernel {
    /// Describes a kernel that was found by other means, such as one of another machine.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        resource_dir: impl Into<PathBuf>,
        spec: KernelSpec,
    ) -> Self {
        Self { name: name.into(), resource_dir: resource_dir.into(), spec, python: None }
    }

    /// Returns the command that starts the kernel.
    ///
    /// In every argument, `{connection_file}`, `{resource_dir}` and `{prefix}` are replaced, and a program called
    /// `python` becomes the interpreter of the Python environment. In the values of environment variables, `${NAME}` is
    /// replaced by the value in this process. The command inherits the environment of this process; clear it first if
    /// the kernel must not see it.
    ///
    /// The kernel does not end with this process, and Ctrl+C in a terminal interrupts it too. Start it in a process
    /// group of its own if that is not wanted; kill and wait for it when it is no longer needed.
    ///
    /// # Errors
    /// [`LaunchError`], see its variants.
    pub fn command(&self, launch: &Launch<'_>) -> Result<Command, LaunchError> {
        let found_in = if self.python.is_none() { self.python_of_resource_dir() } else { None };
        let launch = Launch { python: launch.python.or(found_in.as_ref()), ..*launch };
        let arguments = self.arguments(&launch)?;
        let (program, rest) = arguments.split_first().ok_or(LaunchError::NoProgram)?;
        let mut command = Command::new(program);
        command.args(rest);
        let outer = |name: &str| std::env::var_os(name)?.into_string().ok();
        for (name, value) in self.variables(outer)? {
            command.env(name, value);
        }
        Ok(command)
    }

    /// Returns the program and its arguments with the placeholders replaced. Reads no files, so it also works for a
    /// kernel of another machine.
    ///
    /// # Errors
    /// [`LaunchError::NotText`].
    pub fn arguments(&self, launch: &Launch<'_>) -> Result<Vec<String>, LaunchError> {
        let Launch { connection_file, python } = *launch;
        let python = python.or(self.python.as_ref());
        let connection_file = text(connection_file)?;
        let resource_dir = text(&self.resource_dir)?;
        let prefix = python.map(|python| text(&python.prefix)).transpose()?;
        let known = |name: &str| match name {
            "connection_file" => Some(connection_file.clone()),
            "resource_dir" => Some(resource_dir.clone()),
            "prefix" => prefix.clone(),
            _ => None,
        };
        let mut arguments = self.spec.argv.clone();
        if let (Some(program), Some(python)) = (arguments.first_mut(), python)
            && python.is_named_by(program)
        {
            *program = text(&python.executable)?;
        }
        Ok(arguments.iter().map(|argument| braces(argument, known)).collect())
    }

    /// Returns the variables of the specification. `outer` looks up the variables that they refer to.
    ///
    /// # Errors
    /// [`LaunchError::Variable`].
    pub fn variables(
        &self,
        outer: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<(String, String)>, LaunchError> {
        let pairs = self.spec.env.iter().map(|(name, template)| match template {
            Value::String(template) => Ok((name.clone(), dollars(template, &outer))),
            _ => Err(LaunchError::Variable(name.clone())),
        });
        pairs.collect()
    }

    /// Returns the Python environment that contains the specification: `<prefix>/share/jupyter/kernels/<name>`.
    fn python_of_resource_dir(&self) -> Option<PythonEnvironment> {
        let prefix = self.resource_dir.ancestors().nth(4)?;
        PythonEnvironment::from_executable(prefix.join("bin/python"))
    }
}

fn text(path: &Path) -> Result<String, LaunchError> {
    path.to_str().map(str::to_owned).ok_or_else(|| LaunchError::NotText(path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(spec: &str) -> InstalledKernel {
        InstalledKernel::new("k", "/kernels/k", KernelSpec::from_json(spec.as_bytes()).unwrap())
    }

    #[test]
    fn placeholders_are_replaced_inside_arguments() {
        let kernel = kernel(
            r#"{"argv": ["python3", "--file={connection_file}", "{resource_dir}/x", "{prefix}", "{no}"]}"#,
        );
        let python = PythonEnvironment::remote("/env/bin/python", "/env", (3, 11));
        let launch = Launch::new(Path::new("/run/k.json"));
        let with = kernel.arguments(&launch.clone().with_python(Some(&python))).unwrap();
        assert_eq!(with, ["/env/bin/python", "--file=/run/k.json", "/kernels/k/x", "/env", "{no}"]);
        let without = kernel.arguments(&launch).unwrap();
        assert_eq!(without, ["python3", "--file=/run/k.json", "/kernels/k/x", "{prefix}", "{no}"]);
    }

    #[test]
    fn variables_refer_to_those_of_this_process() {
        let kernel = kernel(r#"{"argv": ["x"], "env": {"A": "${HOME}/a:$NONE", "B": "b"}}"#);
        let outer = |name: &str| (name == "HOME").then(|| "/home/u".to_owned());
        let variables = kernel.variables(outer).unwrap();
        let expected = [("A", "/home/u/a:$NONE"), ("B", "b")];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let command = kernel.command(&Launch::new(Path::new("/f"))).unwrap();
        assert_eq!(command.get_envs().count(), 2);
    }

    #[test]
    fn incomplete_specifications_are_refused() {
        let launch = Launch::new(Path::new("/f"));
        assert_eq!(kernel("{}").command(&launch).unwrap_err(), LaunchError::NoProgram);
        let odd = kernel(r#"{"argv": ["x"], "env": {"A": 1}}"#);
        assert_eq!(odd.command(&launch).unwrap_err(), LaunchError::Variable("A".into()));
    }
}
