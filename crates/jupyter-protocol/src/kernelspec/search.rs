//! Searches the installed kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Environment, InstalledKernel, KernelSpec, KernelSpecError, PythonEnvironment, native};

/// The provisioner that starts kernels as processes of this machine.
const LOCAL_PROVISIONER: &str = "local-provisioner";

/// A search for kernels.
///
/// The order is that of `jupyter kernelspec list` in the same environment: `JUPYTER_PATH`, the user and the Python
/// environment (the latter first if it is a virtual environment of this user), the system, IPython's directory. The
/// first kernel of a name wins. If none is called `python3`, the package `ipykernel` of the Python environment provides
/// one.
///
/// Jupyter's configuration files are not read, so settings such as `KernelSpecManager.kernel_dirs` or a list of allowed
/// kernels have no effect.
#[derive(Clone, Debug)]
pub struct Search {
    folders: Vec<PathBuf>,
    python: Option<PythonEnvironment>,
    native: bool,
    default_provisioner: String,
}

/// The result of a search.
#[derive(Debug)]
#[non_exhaustive]
pub struct FoundKernels {
    /// Kernels by name.
    pub kernels: BTreeMap<String, InstalledKernel>,
    /// Directories with an invalid `kernel.json`.
    pub invalid: Vec<InvalidKernel>,
}

/// A directory with an invalid `kernel.json`.
#[derive(Debug)]
#[non_exhaustive]
pub struct InvalidKernel {
    /// The name that the kernel would have.
    pub name: String,
    /// The directory.
    pub folder: PathBuf,
    /// The error.
    pub error: KernelSpecError,
}

impl FoundKernels {
    /// Returns the output of `jupyter kernelspec list --json`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({"kernelspecs": self.kernels})
    }
}

impl Search {
    /// Creates a search in the environment of this process, with the active Python environment.
    #[must_use]
    pub fn from_env() -> Self {
        let environment = Environment::current();
        let python = PythonEnvironment::active(&environment);
        Self::new(&environment, python)
    }

    /// Creates a search in an environment, with a Python environment. Jupyter's result depends on its own location, so
    /// pass the environment in which Jupyter is installed.
    #[must_use]
    pub fn new(environment: &Environment, python: Option<PythonEnvironment>) -> Self {
        let mut folders = data_dirs(environment, python.as_ref());
        for folder in &mut folders {
            folder.push("kernels");
        }
        if python.as_ref().is_none_or(|python| python.package("IPython").is_some()) {
            folders.push(environment.ipython_dir().join("kernels"));
        }
        let default = environment.get("JUPYTER_DEFAULT_PROVISIONER_NAME");
        let default = default.map(|name| name.to_string_lossy().into_owned());
        Self {
            folders,
            python,
            native: true,
            default_provisioner: default.unwrap_or_else(|| LOCAL_PROVISIONER.to_owned()),
        }
    }

    /// Creates a search in these directories only.
    #[must_use]
    pub fn in_folders(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            folders: folders.into_iter().collect(),
            python: None,
            native: false,
            default_provisioner: LOCAL_PROVISIONER.to_owned(),
        }
    }

    /// Returns the searched directories, in order.
    #[must_use]
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Returns the Python environment of the search.
    #[must_use]
    pub fn python(&self) -> Option<&PythonEnvironment> {
        self.python.as_ref()
    }

    /// Finds all kernels.
    #[must_use]
    pub fn find_all(&self) -> FoundKernels {
        let provisioners = self.provisioners();
        let mut found = FoundKernels { kernels: BTreeMap::new(), invalid: Vec::new() };
        for (name, folder) in self.named_folders() {
            match self.load(&name, &folder, &provisioners) {
                Ok(kernel) => drop(found.kernels.insert(name, kernel)),
                Err(error) => found.invalid.push(InvalidKernel { name, folder, error }),
            }
        }
        found
    }

    /// Finds the kernel of a name, ignoring case.
    ///
    /// # Errors
    /// [`KernelSpecError::NotFound`] with the available names, or the error of the kernel's directory.
    pub fn find(&self, name: &str) -> Result<InstalledKernel, KernelSpecError> {
        let folders = self.named_folders();
        let key = name.to_lowercase();
        match folders.get(&key) {
            Some(folder) => self.load(&key, folder, &self.provisioners()),
            None => Err(KernelSpecError::NotFound {
                name: name.to_owned(),
                available: folders.into_keys().collect(),
                searched: self.folders.clone(),
            }),
        }
    }

    /// Returns the directories of kernels by name. The first of a name wins.
    fn named_folders(&self) -> BTreeMap<String, PathBuf> {
        let mut named = BTreeMap::new();
        for folder in &self.folders {
            for (name, path) in kernels_in(folder) {
                named.entry(name).or_insert(path);
            }
        }
        if let Some(kernel) = self.native_kernel() {
            named.entry(kernel.name).or_insert(kernel.resource_dir);
        }
        named
    }

    fn native_kernel(&self) -> Option<InstalledKernel> {
        self.python.as_ref().filter(|_| self.native).and_then(native::kernel)
    }

    fn provisioners(&self) -> BTreeSet<String> {
        let mut names =
            self.python.as_ref().map(PythonEnvironment::provisioners).unwrap_or_default();
        names.insert(LOCAL_PROVISIONER.to_owned());
        names
    }

    fn load(
        &self,
        name: &str,
        folder: &Path,
        provisioners: &BTreeSet<String>,
    ) -> Result<InstalledKernel, KernelSpecError> {
        let own = self
            .native_kernel()
            .filter(|kernel| kernel.name == name && kernel.resource_dir == folder);
        let mut kernel = match own {
            Some(kernel) => kernel,
            None => InstalledKernel {
                name: name.to_owned(),
                resource_dir: folder.to_owned(),
                spec: KernelSpec::read(folder)?,
                python: self.python.clone(),
            },
        };
        let provisioner = kernel.spec.provisioner().unwrap_or(&self.default_provisioner);
        if !provisioners.contains(provisioner) {
            return Err(KernelSpecError::NoProvisioner(provisioner.to_owned()));
        }
        complete_provisioner(&mut kernel.spec);
        Ok(kernel)
    }
}

/// Adds the default configuration of a provisioner.
fn complete_provisioner(spec: &mut KernelSpec) {
    if let Some(Value::Object(provisioner)) = spec.metadata.get_mut("kernel_provisioner")
        && provisioner.contains_key("provisioner_name")
    {
        provisioner.entry("config").or_insert_with(|| json!({}));
    }
}

/// Returns the directories of Jupyter data, in order.
fn data_dirs(environment: &Environment, python: Option<&PythonEnvironment>) -> Vec<PathBuf> {
    let mut user = vec![environment.data_dir()];
    if python.is_none_or(|python| sees_user_site(environment, python)) {
        let base = environment.get("PYTHONUSERBASE").map(PathBuf::from);
        let folder = base.unwrap_or_else(|| environment.home.join(".local")).join("share/jupyter");
        if !user.contains(&folder) {
            user.push(folder);
        }
    }
    let system = environment.system_dirs();
    let of_python =
        python.map(PythonEnvironment::data_dir).filter(|folder| !system.contains(folder));
    let mut folders = environment.jupyter_path();
    if prefers_python(environment, python) {
        folders.extend(of_python);
        folders.extend(user);
    } else {
        folders.extend(user);
        folders.extend(of_python);
    }
    for folder in system {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

fn sees_user_site(environment: &Environment, python: &PythonEnvironment) -> bool {
    python.sees_user_site && environment.get("PYTHONNOUSERSITE").is_none()
}

/// Returns true if kernels of the Python environment take precedence over those of the user.
fn prefers_python(environment: &Environment, python: Option<&PythonEnvironment>) -> bool {
    if let Some(flag) = environment.flag("JUPYTER_PREFER_ENV_PATH") {
        return flag;
    }
    python.is_some_and(|python| {
        let conda =
            environment.get("CONDA_PREFIX").is_some_and(|prefix| python.prefix.starts_with(prefix))
                && environment.get("CONDA_DEFAULT_ENV").is_some_and(|name| name != "base");
        (python.is_virtual || conda) && python.is_own()
    })
}

/// Returns the kernels of one directory, by name.
fn kernels_in(folder: &Path) -> BTreeMap<String, PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let named = entries.flatten().filter_map(|entry| {
        let path = entry.path();
        let name = entry.file_name().to_str()?.to_lowercase();
        path.join("kernel.json").is_file().then_some((name, path))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(folder: &Path, name: &str, spec: &Value) {
        let folder = folder.join("kernels").join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("kernel.json"), spec.to_string()).unwrap();
    }

    fn environment(root: &Path) -> Environment {
        Environment::default()
            .with_home(root.join("home"))
            .with("JUPYTER_DATA_DIR", root.join("data"))
            .with(
                "JUPYTER_PATH",
                std::env::join_paths([root.join("one"), root.join("two")]).unwrap(),
            )
    }

    #[test]
    fn the_first_of_a_name_wins_whatever_its_case() {
        let root = tempfile::tempdir().unwrap();
        for (at, name) in [("data", "bash"), ("two", "Bash"), ("two", "other"), ("one", "BASH")] {
            install(&root.path().join(at), name, &json!({"display_name": at}));
        }
        let search = Search::new(&environment(root.path()), None);
        let found = search.find_all();
        assert_eq!(found.kernels["bash"].spec.display_name, "one");
        assert_eq!(found.kernels["other"].spec.display_name, "two");
        assert_eq!(search.find("OTHER").unwrap(), found.kernels["other"]);
        let error = search.find("none").unwrap_err().to_string();
        assert_eq!(error, "no kernel is named \"none\"; available: bash, other");
    }

    #[test]
    fn broken_kernels_do_not_hide_others() {
        let root = tempfile::tempdir().unwrap();
        let data = root.path().join("data");
        install(
            &data,
            "good",
            &json!({"metadata": {"kernel_provisioner": {"provisioner_name": "local-provisioner"}}}),
        );
        install(&data, "broken", &json!([]));
        install(
            &data,
            "remote",
            &json!({"metadata": {"kernel_provisioner": {"provisioner_name": "none"}}}),
        );
        fs::create_dir_all(data.join("kernels/empty")).unwrap();
        let found = Search::new(&environment(root.path()), None).find_all();
        assert_eq!(found.kernels.keys().collect::<Vec<_>>(), ["good"]);
        assert_eq!(found.invalid.len(), 2);
        let listed = &found.to_json()["kernelspecs"]["good"]["spec"]["metadata"];
        assert_eq!(listed["kernel_provisioner"]["config"], json!({}));
    }

    /// A kernel that was found can be started without the search.
    #[test]
    fn a_kernel_knows_the_interpreter_that_it_was_found_with() {
        let root = tempfile::tempdir().unwrap();
        let argv = json!({"argv": ["python", "-m", "k"]});
        install(&root.path().join("data"), "k", &argv);
        let python = PythonEnvironment::remote("/env/bin/python", "/env", (3, 11));
        let search = Search::new(&environment(root.path()), Some(python));
        let kernel = search.find("k").unwrap();
        let file = Path::new("/run/k.json");
        let launch = super::super::Launch::new(file);
        assert_eq!(kernel.command(&launch).unwrap().get_program(), "/env/bin/python");
        assert_eq!(kernel.arguments(&launch).unwrap()[0], "/env/bin/python");
        let other = PythonEnvironment::remote("/other/bin/python", "/other", (3, 12));
        let launch = launch.with_python(Some(&other));
        assert_eq!(kernel.command(&launch).unwrap().get_program(), "/other/bin/python");
    }

    #[test]
    fn only_the_named_folders_are_searched() {
        let root = tempfile::tempdir().unwrap();
        install(root.path(), "k", &json!({}));
        let search = Search::in_folders([root.path().join("kernels")]);
        assert_eq!(search.find_all().kernels.len(), 1);
        assert_eq!(Search::in_folders([]).find_all().kernels.len(), 0);
        let nothing = Search::in_folders(["/no/such", "/nor/such"].map(PathBuf::from));
        assert_eq!(
            nothing.find("k").unwrap_err().to_string(),
            "no kernel is named \"k\"; there are no kernels in: /no/such, /nor/such"
        );
    }
}
