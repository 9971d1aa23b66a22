//! The threads that do the blocking calls about files, with the rights of the user of a cell.
//!
//! A host that is root must not reach what code in a cell could not reach. So its threads take the file-system user and
//! group of the cell before each piece of work. The kernel then checks every permission as for code in the cell, and what
//! the threads make belongs to the cell. The threads do nothing else, because groups that were given up stay given up.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, capabilities, set_thread_groups};
use tokio::sync::oneshot;

/// Maximum number of threads of each kind. Work comes in small chunks, so more threads would only wait for a slow disk.
const MAX_THREADS: usize = 64;

/// How long a thread waits for more work.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// A user and a group with other rights than those of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

type Work = Box<dyn FnOnce(io::Result<()>) + Send>;

struct Job {
    user: Option<User>,
    work: Work,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

/// Threads with the rights of this process.
static OWN: Pool = Pool::new();
/// Threads that take the rights of other users.
static FOREIGN: Pool = Pool::new();

/// Does work on one of the threads. Dropping the future does not stop work that has started.
///
/// # Errors
/// When no thread can be started, or the thread cannot take the user.
pub async fn run<T: Send + 'static>(
    user: Option<User>,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    start(user, work).await.map_err(|_| io::Error::other("the work was given up"))?
}

/// Starts work; the receiver gets its result.
pub fn start<T: Send + 'static>(
    user: Option<User>,
    work: impl FnOnce() -> T + Send + 'static,
) -> oneshot::Receiver<io::Result<T>> {
    let (done, receiver) = oneshot::channel();
    let work: Work = Box::new(move |ready| {
        let _ = done.send(ready.map(|()| work()));
    });
    let pool = if user.is_some() { &FOREIGN } else { &OWN };
    pool.submit(Job { user, work });
    receiver
}

thread_local! {
    /// The user whose work this thread does. `None`: this is no thread of a pool.
    static WORKING_FOR: Cell<Option<Option<User>>> = const { Cell::new(None) };
}

/// Does work now when this is a thread for that user, and otherwise soon, on such a thread. For destructors.
pub fn tidy(user: Option<User>, work: impl FnOnce() + Send + 'static) {
    if WORKING_FOR.get() == Some(user) {
        return work();
    }
    drop(start(user, work));
}

impl Pool {
    const fn new() -> Self {
        let state = State { queue: VecDeque::new(), threads: 0, idle: 0 };
        Self { state: Mutex::new(state), work: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&'static self, job: Job) {
        let mut state = self.state();
        state.queue.push_back(job);
        if state.queue.len() <= state.idle || state.threads >= MAX_THREADS {
            drop(state);
            return self.work.notify_one();
        }
        state.threads += 1;
        drop(state);
        let thread = thread::Builder::new().name("sandbox-files".to_owned());
        if let Err(error) = thread.spawn(move || self.serve()) {
            self.thread_ended(Some(error));
        }
    }

    /// Counts a thread out. Without any thread left, the callers that wait get the error.
    fn thread_ended(&self, why: Option<io::Error>) {
        let mut state = self.state();
        state.threads -= 1;
        let Some(error) = why.filter(|_| state.threads == 0) else { return };
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        for job in waiting {
            (job.work)(Err(io::Error::new(error.kind(), error.to_string())));
        }
    }

    fn serve(&self) {
        let _leaving = ThreadExitGuard(self);
        let mut identity = Identity::default();
        while let Some(job) = self.next() {
            let ready = job.user.map_or(Ok(()), |user| identity.become_user(user));
            WORKING_FOR.set(ready.is_ok().then_some(job.user));
            (job.work)(ready);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let (back, waited) =
                self.work.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.queue.is_empty() {
                return None;
            }
        }
    }
}

/// Counts a thread out, however the thread ends.
struct ThreadExitGuard<'a>(&'a Pool);

impl Drop for ThreadExitGuard<'_> {
    fn drop(&mut self) {
        self.0.thread_ended(None);
    }
}

/// The user, group and groups that a thread has for the file system.
#[derive(Default)]
struct Identity {
    without_groups: bool,
    user: Option<User>,
}

impl Identity {
    /// Takes the user for all calls about files, and checks that the kernel did so.
    fn become_user(&mut self, user: User) -> io::Result<()> {
        if self.user == Some(user) {
            return Ok(());
        }
        self.user = None;
        if !self.without_groups {
            set_thread_groups(&[])?;
            self.without_groups = true;
        }
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        keeping_dumpable(|| {
            setfsgid(gid);
            setfsuid(uid);
        })?;
        // Each call returns the user before it, and says nothing about success.
        let is_user = setfsuid(uid) == uid && setfsgid(gid) == gid;
        let still = capabilities(None)?.effective;
        let overrides = CapabilitySet::DAC_OVERRIDE
            | CapabilitySet::DAC_READ_SEARCH
            | CapabilitySet::CHOWN
            | CapabilitySet::FOWNER
            | CapabilitySet::MKNOD;
        if !is_user || still.intersects(overrides) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "this process may not act as the user of a cell",
            ));
        }
        self.user = Some(user);
        Ok(())
    }
}

static CHANGING: Mutex<()> = Mutex::new(());

/// Restores the dumpable flag, which the kernel clears when a thread changes its user. The process itself changes no
/// rights, so debuggers and core dumps of the program stay as they were.
fn keeping_dumpable(change: impl FnOnce()) -> io::Result<()> {
    let _one_at_a_time = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let before = dumpable_behavior()?;
    change();
    if before == DumpableBehavior::Dumpable {
        set_dumpable_behavior(before)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use rustix::process::geteuid;

    use super::*;

    /// A user id that nothing else uses.
    const OTHER: User = User { uid: 0x7000_0001, gid: 0x7000_0002 };

    /// Waits while another test changes the flag for a moment.
    fn dumpable() -> DumpableBehavior {
        let _nobody_changes_it = CHANGING.lock().unwrap();
        dumpable_behavior().unwrap()
    }

    #[tokio::test]
    async fn work_is_done_as_the_user_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (secret, made) = (folder.path().join("secret"), folder.path().join("made"));
        fs::write(&secret, "x").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let before = dumpable();
        let paths = (secret.clone(), made.clone());
        let done = run(Some(OTHER), move || {
            (fs::read(&paths.0).is_ok(), fs::write(&paths.1, "x").is_ok())
        });
        let done = done.await;
        if !geteuid().is_root() {
            // A process that may not become another user does nothing, and gets the error.
            assert!(done.is_err());
            assert!(!made.exists());
            return;
        }
        assert_eq!(done.unwrap(), (false, true));
        let status = fs::metadata(&made).unwrap();
        assert_eq!((status.uid(), status.gid()), (OTHER.uid, OTHER.gid));
        assert_eq!(dumpable(), before);
        // Neither this thread nor a thread for work of this process is changed.
        assert!(fs::read(&secret).is_ok());
        assert!(run(None, move || fs::read(&secret).is_ok()).await.unwrap());
    }

    #[tokio::test]
    async fn one_user_after_the_other_has_its_own_files() {
        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let jobs = (0..200_u32).map(|i| {
            let user = User { uid: 0x7000_0000 + i % 7, gid: 0x7000_0000 + i % 7 };
            let path = folder.path().join(i.to_string());
            async move {
                let made = path.clone();
                run(Some(user), move || fs::write(&made, "x")).await.unwrap().unwrap();
                assert_eq!(fs::metadata(&path).unwrap().uid(), user.uid);
            }
        });
        futures_util::future::join_all(jobs).await;
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_the_next_is_done() {
        let broken = run(None, || panic!("on purpose")).await;
        assert!(broken.map(|(): ()| ()).is_err());
        assert_eq!(run(None, || 7).await.unwrap(), 7);
    }
}
