//! What the suite is run against.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::case::Case;
use futures_util::future::BoxFuture;
use sandbox_core::{Backend, IsolationMode, Result, Sandbox, SandboxBuilder, SingleBackend};

/// The variable that asks for every case of every test program, when it is set to `1`: `cargo xtask test --full`.
pub const FULL: &str = "SANDBOX_TEST_FULL";

/// The variable that names the only groups to run, with commas between them, for any target.
pub const GROUPS: &str = "SANDBOX_TEST_GROUPS";

/// Returns true if every case was asked for, with [`FULL`].
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os(FULL).is_some_and(|value| value == "1")
}

type MakeBackend = dyn Fn() -> Arc<dyn Backend> + Send + Sync;
type Configure =
    dyn Fn(SandboxBuilder<SingleBackend>) -> SandboxBuilder<SingleBackend> + Send + Sync;

type Prepare = dyn Fn(Sandbox) -> BoxFuture<'static, Result<()>> + Send + Sync;

/// Something that the protocol of a provider may not report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreported {
    /// How an interpreter has ended that died or was killed: the exit status, and the signal.
    InterpreterExit,
    /// What the code does with an interrupt: its exception, and what it prints then.
    Interruption,
    /// Threads of the code that run on after a run.
    Threads,
    /// The size of a snapshot.
    SnapshotSize,
}

/// A backend, or a stack of layers over one, and how its sandboxes are made by default.
#[derive(Clone)]
pub struct Target {
    pub(crate) name: String,
    pub(crate) make_backend: Arc<MakeBackend>,
    pub(crate) configure: Arc<Configure>,
    pub(crate) prepare: Option<Arc<Prepare>>,
    pub(crate) isolation: IsolationMode,
    pub(crate) exposes_this_host: bool,
    pub(crate) stays: bool,
    pub(crate) strings_without_quotes: bool,
    pub(crate) unreported: Vec<Unreported>,
    pub(crate) shared_disk: (u64, u64),
    pub(crate) differences: Vec<(&'static str, &'static str)>,
    pub(crate) only: Option<(Vec<&'static str>, &'static str)>,
    pub(crate) record: Option<PathBuf>,
}

impl Target {
    /// A target whose report is called `name`. Sandboxes have the default settings, so strict isolation.
    ///
    /// The backend is made once, inside the tokio runtime that every case runs on.
    pub fn new(
        name: impl Into<String>,
        backend: impl Fn() -> Arc<dyn Backend> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            make_backend: Arc::new(backend),
            configure: Arc::new(|builder| builder),
            prepare: None,
            isolation: IsolationMode::Strict,
            exposes_this_host: false,
            stays: false,
            strings_without_quotes: false,
            unreported: Vec::new(),
            shared_disk: (1, 1),
            differences: Vec::new(),
            only: None,
            record: None,
        }
    }

    /// Makes every sandbox with that isolation. Cases about isolation are ignored unless it is strict.
    #[must_use]
    pub fn isolation(mut self, mode: IsolationMode) -> Self {
        self.isolation = mode;
        self
    }

    /// Says that code in the sandboxes reaches this host, whatever isolation they are made with, as on a server of the tests.
    /// Cases that attack the host are ignored: they would harm it.
    #[must_use]
    pub fn exposes_this_host(mut self) -> Self {
        self.exposes_this_host = true;
        self
    }

    /// Says that the sandboxes outlive their handles and their process. Cases that need the opposite are ignored.
    #[must_use]
    pub fn stays(mut self) -> Self {
        self.stays = true;
        self
    }

    /// Says that the text of a value that is a string has no quotes around it: `a`, not `'a'`. Nothing else of it is
    /// different, so a line end in it is still `\n`.
    #[must_use]
    pub fn shows_strings_without_quotes(mut self) -> Self {
        self.strings_without_quotes = true;
        self
    }

    /// Says that the protocol of the provider does not report that. Cases then require that the backend reports nothing in
    /// its place, and all else that they require.
    #[must_use]
    pub fn does_not_report(mut self, what: Unreported) -> Self {
        self.unreported.push(what);
        self
    }

    /// Says that a case, or a whole group, is not what this target promises, and why: `("rich::a_class", "..")`. What is
    /// named, and whatever begins with that, is reported ignored with the reason.
    ///
    /// For what is otherwise by design and described in the documents of the backend. Never for what does not work.
    #[must_use]
    pub fn differs(mut self, case: &'static str, reason: &'static str) -> Self {
        self.differences.push((case, reason));
        self
    }

    /// Runs those groups alone, such as `exec` and `files`. The cases of every other one are reported ignored with the
    /// reason.
    #[must_use]
    pub fn only(
        mut self,
        groups: impl IntoIterator<Item = &'static str>,
        reason: &'static str,
    ) -> Self {
        self.only = Some((groups.into_iter().collect(), reason));
        self
    }

    /// Runs those groups alone, as [`Target::only`] does, unless the whole suite was asked for with [`FULL`].
    ///
    /// For a combination that shares most of its code with another one, which runs every group each time.
    #[must_use]
    pub fn part(
        self,
        groups: impl IntoIterator<Item = &'static str>,
        reason: &'static str,
    ) -> Self {
        if is_full() { self } else { self.only(groups, reason) }
    }

    /// Compares what the backend declares, and what the suite shows of it, with `capabilities.json` in the folder of its crate.
    /// The documents are made of that file; a run with [`FULL`] and `INSTA_UPDATE=always` writes it.
    #[must_use]
    pub fn recorded(mut self, folder: &str) -> Self {
        self.record = Some(PathBuf::from(folder).join("capabilities.json"));
        self
    }

    /// Says that the working directory has that part of the disk, such as `(9, 16)`, and other places have the rest.
    /// Cases that need room ask for as much more.
    #[must_use]
    pub fn working_directory_has(mut self, part: u64, of: u64) -> Self {
        self.shared_disk = (part, of);
        self
    }

    /// Changes how every sandbox is made, such as the interpreter it uses.
    #[must_use]
    pub fn configure(
        mut self,
        configure: impl Fn(SandboxBuilder<SingleBackend>) -> SandboxBuilder<SingleBackend>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        self.configure = Arc::new(configure);
        self
    }

    /// Does something with every sandbox before a case has it, such as what makes it use a faster way from then on.
    #[must_use]
    pub fn prepare<F: Future<Output = Result<()>> + Send + 'static>(
        mut self,
        prepare: impl Fn(Sandbox) -> F + Send + Sync + 'static,
    ) -> Self {
        self.prepare = Some(Arc::new(move |sandbox| Box::pin(prepare(sandbox))));
        self
    }
}

impl Target {
    /// Refuses groups that no case is in: a misspelt one would leave out what it stands for without a word.
    pub(crate) fn check_groups(
        &self,
        cases: &[Case],
        asked: &[String],
    ) -> std::result::Result<(), String> {
        let only = self.only.iter().flat_map(|(groups, _)| groups.iter().copied());
        let unknown = |group: &&str| !cases.iter().any(|case| case.group == *group);
        match only.chain(asked.iter().map(String::as_str)).find(unknown) {
            Some(group) => Err(format!("the suite has no group {group:?}")),
            None => Ok(()),
        }
    }

    /// Returns why a case is not run here, or not what this target promises.
    ///
    /// `asked` are the groups of [`GROUPS`]; none means all of them.
    pub(crate) fn difference(&self, full_name: &str, asked: &[String]) -> Option<String> {
        let suite = ["conformance::", "hostile::"];
        let name = suite.iter().find_map(|suite| full_name.strip_prefix(suite));
        let name = name.unwrap_or(full_name);
        let is_of = |group: &str| name.split("::").next() == Some(group);
        if !asked.is_empty() && !asked.iter().any(|group| is_of(group)) {
            return Some("its group is left to `cargo xtask test --full` here".to_owned());
        }
        if let Some((groups, reason)) = &self.only
            && !groups.iter().any(|group| is_of(group))
        {
            return Some((*reason).to_owned());
        }
        let found = self.differences.iter().find(|(case, _)| name.starts_with(case));
        found.map(|(_, reason)| format!("different by design: {reason}"))
    }
}

/// Returns the groups that [`GROUPS`] names.
pub(crate) fn asked_groups() -> Vec<String> {
    let asked = std::env::var(GROUPS).unwrap_or_default();
    asked.split(',').map(str::trim).filter(|group| !group.is_empty()).map(str::to_owned).collect()
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("name", &self.name)
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}
