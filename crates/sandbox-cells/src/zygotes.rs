//! Warm interpreters, shared by all sandboxes of a backend that need the same kind.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::Start;
use crate::cell::{Hello, Program, Zygote};
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_isolation::{CellLauncher, Privilege};
use sandbox_python::{cache, program_id};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::interpreters::Fingerprint;
use sandbox_engine::background;

/// The cache key of a zygote: interpreters with the same key are interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ZygoteKey {
    /// The interpreter.
    pub executable: PathBuf,
    /// How the zygote is prepared.
    pub start: Start,
    /// Times of the last changes of installed packages, where a change needs another zygote.
    pub installed: Vec<(PathBuf, Option<SystemTime>)>,
    /// Privileges over cells, or those of the host process.
    pub privilege: Privilege,
}

/// The oldest supported version of Python.
const OLDEST: (u32, u32) = (3, 9);

type Shared = Arc<OnceCell<Arc<Zygote>>>;

/// Maximum number of zygotes with imports of templates. A dropped one is started again when it is needed.
const MAX_TEMPLATE_ZYGOTES: usize = 4;

/// Maximum number of zygotes without workers. The one whose last use is the longest ago is dropped first.
const MAX_ZYGOTES: usize = 8;

/// How long an unused zygote is kept. The one that was used last stays.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum number of keys whose zygotes are known not to start: with imports of a template, or of a program. Beyond that,
/// all are tried again.
const MAX_USELESS: usize = 64;

/// The warm interpreters of one backend.
#[derive(Clone, Debug, Default)]
pub struct Zygotes {
    all: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    by_flavor: HashMap<ZygoteKey, Shared>,
    /// The time of each last use, the latest at the end.
    wanted: Vec<(ZygoteKey, Instant)>,
    /// The task that drops unused zygotes.
    sweeper: Option<JoinHandle<()>>,
    /// Keys whose zygotes do not start.
    useless: HashSet<ZygoteKey>,
}

impl Zygotes {
    /// Returns the zygote with that key, and starts it when it is missing or has ended. Imports of a template are left
    /// out where no zygote starts with them.
    ///
    /// # Errors
    /// `Unavailable` when it does not start, with its output. A zygote of a program is not tried again.
    pub async fn get(&self, maker: &CellLauncher, mut flavor: ZygoteKey) -> Result<Arc<Zygote>> {
        if !flavor.start.template_imports.is_empty() {
            if !self.is_useless(&flavor) {
                match self.start(&flavor, maker).await {
                    Ok(zygote) => return Ok(zygote),
                    // Whatever fails, a template has no influence on whether there is an interpreter.
                    Err(error) => {
                        tracing::debug!(%error, "without the imports of a template");
                        self.all().note_useless(&flavor);
                    }
                }
            }
            flavor.start.template_imports.clear();
        }
        if flavor.start.program.is_empty() {
            return self.start(&flavor, maker).await;
        }
        if self.is_useless(&flavor) {
            let message = "that program could not be started warm before";
            return Err(Error::new(ErrorKind::Unavailable, "start_python", message));
        }
        let started = self.start(&flavor, maker).await;
        started.inspect_err(|_| self.all().note_useless(&flavor))
    }

    fn is_useless(&self, flavor: &ZygoteKey) -> bool {
        self.all().useless.contains(flavor)
    }

    async fn start(&self, flavor: &ZygoteKey, maker: &CellLauncher) -> Result<Arc<Zygote>> {
        let shared = self.shared(flavor);
        let start = || async {
            let zygote = background(start_quickly(maker.clone(), flavor.clone())).await??;
            check_version(zygote.hello())?;
            Ok(zygote)
        };
        let zygote = shared.get_or_try_init(start).await.cloned();
        self.sweep_later();
        zygote
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self, flavor: &ZygoteKey) -> Shared {
        self.all().shared(flavor, Instant::now())
    }

    /// Starts the task that drops unused zygotes, where there is more than one.
    fn sweep_later(&self) {
        let mut all = self.all();
        let sweeps = all.sweeper.as_ref().is_some_and(|sweeper| !sweeper.is_finished());
        if sweeps || all.by_flavor.len() < 2 {
            return;
        }
        let zygotes = Arc::downgrade(&self.all);
        all.sweeper = Some(tokio::spawn(async move {
            loop {
                sleep(IDLE_TIMEOUT / 5).await;
                let Some(all) = zygotes.upgrade() else { return };
                let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                all.drop_idle(Instant::now());
                if all.by_flavor.len() < 2 {
                    // The next zygote that is added starts the task again.
                    all.sweeper = None;
                    return;
                }
            }
        }));
    }
}

impl All {
    /// Records that no zygote starts with that key.
    fn note_useless(&mut self, flavor: &ZygoteKey) {
        if self.useless.len() >= MAX_USELESS {
            self.useless.clear();
        }
        self.useless.insert(flavor.clone());
    }

    fn shared(&mut self, flavor: &ZygoteKey, now: Instant) -> Shared {
        self.wanted.retain(|(known, _)| known != flavor);
        self.wanted.push((flavor.clone(), now));
        let shared = self.by_flavor.entry(flavor.clone()).or_default();
        if shared.get().is_some_and(|zygote| !zygote.is_alive()) {
            *shared = Shared::default();
        }
        let shared = Arc::clone(shared);
        let of_templates = |known: &ZygoteKey| !known.start.template_imports.is_empty();
        if self.by_flavor.keys().filter(|known| of_templates(known)).count() > MAX_TEMPLATE_ZYGOTES
        {
            // Its workers keep it until they end.
            self.forget_first(|_, known| of_templates(known));
        }
        if self.by_flavor.len() > MAX_ZYGOTES {
            self.forget_first(Self::is_idle);
        }
        shared
    }

    /// Returns true when it has no workers and is not being started.
    fn is_idle(&self, flavor: &ZygoteKey) -> bool {
        self.by_flavor.get(flavor).is_none_or(|shared| {
            let has_workers = shared.get().is_some_and(|zygote| Arc::strong_count(zygote) > 1);
            Arc::strong_count(shared) == 1 && !has_workers
        })
    }

    /// Drops the zygote whose last use is the longest ago.
    fn forget_first(&mut self, which: impl Fn(&Self, &ZygoteKey) -> bool) {
        let oldest = self.wanted.iter().position(|(flavor, _)| which(self, flavor));
        if let Some(oldest) = oldest {
            let (flavor, _) = self.wanted.remove(oldest);
            self.by_flavor.remove(&flavor);
        }
    }

    fn drop_idle(&mut self, now: Instant) {
        let Some((_last, others)) = self.wanted.split_last() else { return };
        let is_old = |at: &Instant| now.saturating_duration_since(*at) >= IDLE_TIMEOUT;
        let gone = others.iter().filter(|(flavor, at)| is_old(at) && self.is_idle(flavor));
        let gone: HashSet<ZygoteKey> = gone.map(|(flavor, _)| flavor.clone()).collect();
        self.wanted.retain(|(flavor, _)| !gone.contains(flavor));
        self.by_flavor.retain(|flavor, _| !gone.contains(flavor));
    }
}

/// Starts a zygote from the byte code of an earlier start, when there is some.
async fn start_quickly(maker: CellLauncher, flavor: ZygoteKey) -> Result<Arc<Zygote>> {
    let ZygoteKey { executable, start, .. } = flavor;
    if !start.program.is_empty() {
        return Zygote::start(&maker, &executable, start, Program::Archive).await;
    }
    let name = byte_code_name(&executable);
    if let Some(byte_code) = name.as_deref().and_then(cache::read) {
        let program = Program::ByteCode(byte_code);
        match Zygote::start(&maker, &executable, start.clone(), program).await {
            Ok(zygote) => return Ok(zygote),
            // The byte code itself may be the reason.
            Err(error) => tracing::debug!(%error, "starting from text"),
        }
    }
    let zygote = Zygote::start(&maker, &executable, start, Program::Text).await?;
    if let (Some(name), Some(byte_code)) = (name, zygote.byte_code()) {
        cache::write(&name, byte_code);
    }
    Ok(zygote)
}

/// Refuses versions that are too old.
fn check_version(hello: &Hello) -> Result<()> {
    let mut numbers = hello.version.split('.').map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= OLDEST {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        "start_python",
        format!("python {} is too old: 3.9 or later is needed", hello.version),
    )
    .with_hint("install a newer python3, or name one with CODE_SANDBOXES_PYTHON"))
}

/// Returns the name of the cached byte code, which is valid for one interpreter and one version of the program.
fn byte_code_name(executable: &Path) -> Option<String> {
    let mut hasher = DefaultHasher::new();
    (executable, Fingerprint::from_path(executable).ok()?, program_id()).hash(&mut hasher);
    Some(format!("agent-{:016x}.pyc", hasher.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flavor(module: usize, imports: &[&str]) -> ZygoteKey {
        ZygoteKey {
            executable: "/usr/bin/python3".into(),
            start: Start {
                preimports: vec![format!("module{module}")],
                template_imports: imports.iter().map(ToString::to_string).collect(),
                warm: true,
                ..Start::default()
            },
            installed: Vec::new(),
            privilege: Privilege::User,
        }
    }

    #[test]
    fn few_are_kept_and_those_wanted_last() {
        let (mut all, now) = (All::default(), Instant::now());
        for module in 0..100 {
            drop(all.shared(&flavor(module, &[]), now));
            drop(all.shared(&flavor(0, &[]), now));
        }
        assert_eq!((all.by_flavor.len(), all.wanted.len()), (MAX_ZYGOTES, MAX_ZYGOTES));
        for kept in [0, 98, 99] {
            assert!(all.by_flavor.contains_key(&flavor(kept, &[])), "{kept}");
        }
        assert!(!all.by_flavor.contains_key(&flavor(1, &[])));
    }

    #[test]
    fn one_in_use_is_kept() {
        let (mut all, now) = (All::default(), Instant::now());
        let used = all.shared(&flavor(0, &[]), now);
        for module in 1..100 {
            drop(all.shared(&flavor(module, &[]), now));
        }
        all.drop_idle(now + 2 * IDLE_TIMEOUT);
        assert!(Arc::ptr_eq(&used, &all.shared(&flavor(0, &[]), now)));
    }

    #[test]
    fn those_of_templates_are_fewer() {
        let (mut all, now) = (All::default(), Instant::now());
        for module in 0..20 {
            drop(all.shared(&flavor(module, &["wave"]), now));
        }
        assert_eq!(all.by_flavor.len(), MAX_TEMPLATE_ZYGOTES);
    }

    #[test]
    fn idle_ones_go_but_for_the_last() {
        let (mut all, now) = (All::default(), Instant::now());
        for module in 0..3 {
            drop(all.shared(&flavor(module, &[]), now));
        }
        all.drop_idle(now + IDLE_TIMEOUT / 2);
        assert_eq!(all.by_flavor.len(), 3);
        drop(all.shared(&flavor(1, &[]), now + IDLE_TIMEOUT / 2));
        all.drop_idle(now + IDLE_TIMEOUT);
        let left: Vec<_> = all.by_flavor.keys().collect();
        assert_eq!(left, [&flavor(1, &[])], "it is the one that was wanted last");
        all.drop_idle(now + 10 * IDLE_TIMEOUT);
        assert_eq!(all.by_flavor.len(), 1);
    }
}
