//! Runs a few jobs at a time: a free worker takes the next job.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::summary::TestSummary;

/// How many jobs go on at once. While one waits for something, the others work.
const PARALLELISM: usize = 3;

type Work<'a> = Box<dyn FnOnce(&mut TestSummary) -> Result<(), String> + Send + 'a>;

/// Something to do, with whatever else must be done in one go.
pub(crate) struct Job<'a> {
    name: String,
    work: Work<'a>,
}

impl<'a> Job<'a> {
    /// Two jobs of one name are never done at once: each would count what the other has on this host.
    pub(crate) fn new(
        name: impl Into<String>,
        work: impl FnOnce(&mut TestSummary) -> Result<(), String> + Send + 'a,
    ) -> Self {
        Self { name: name.into(), work: Box::new(work) }
    }
}

/// Does all of them, and counts what came of it. An error is that of a job that could not be done; those that have not
/// begun by then are left.
pub(crate) fn run(jobs: Vec<Job<'_>>) -> Result<TestSummary, String> {
    let state = State { waiting: jobs.into(), running: Vec::new() };
    let queue = Queue { state: Mutex::new(state), changed: Condvar::new() };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..PARALLELISM).map(|_| scope.spawn(|| queue.work())).collect();
        let mut tally = TestSummary::default();
        for lane in lanes {
            tally.add(lane.join().map_err(|_| "a lane of the tests ended early")??);
        }
        Ok(tally)
    })
}

struct Queue<'a> {
    state: Mutex<State<'a>>,
    changed: Condvar,
}

struct State<'a> {
    waiting: VecDeque<Job<'a>>,
    running: Vec<String>,
}

impl<'a> Queue<'a> {
    fn state(&self) -> MutexGuard<'_, State<'a>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> Result<TestSummary, String> {
        let mut tally = TestSummary::beside();
        while let Some(job) = self.next() {
            let running = Running { queue: self, name: &job.name };
            let done = (job.work)(&mut tally);
            if done.is_err() {
                self.state().waiting.clear();
            }
            drop(running);
            done?;
        }
        Ok(tally)
    }

    /// The first that may begin now, or will; none when all have begun.
    fn next(&self) -> Option<Job<'a>> {
        let mut state = self.state();
        loop {
            let State { waiting, running } = &mut *state;
            let free = waiting.iter().position(|job| !running.contains(&job.name));
            if let Some(job) = free.and_then(|position| waiting.remove(position)) {
                running.push(job.name.clone());
                return Some(job);
            }
            if waiting.is_empty() {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A job that goes on, however it ends.
struct Running<'a, 'b> {
    queue: &'a Queue<'b>,
    name: &'a str,
}

impl Drop for Running<'_, '_> {
    fn drop(&mut self) {
        self.queue.state().running.retain(|name| name != self.name);
        self.queue.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    /// Runs a job of each name, which passes when the check does.
    fn passed(names: &[&str], check: impl Fn() -> bool + Sync) -> (u64, u64) {
        let check = &check;
        let work = move |tally: &mut TestSummary| {
            tally.check("it", check());
            Ok(())
        };
        let tally = run(names.iter().map(|name| Job::new(*name, work)).collect()).unwrap();
        (tally.passed, tally.failed)
    }

    #[test]
    fn two_go_on_at_once_and_all_are_counted() {
        let both = Barrier::new(2);
        let meets = || {
            both.wait();
            true
        };
        assert_eq!(passed(&["a", "b", "c", "d"], meets), (4, 0));
    }

    #[test]
    fn two_of_one_name_are_never_done_at_once() {
        let at_once = AtomicU32::new(0);
        let is_alone = || {
            let others = at_once.fetch_add(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(5));
            at_once.fetch_sub(1, Ordering::SeqCst);
            others == 0
        };
        assert_eq!(passed(&["soak"; 6], is_alone), (6, 0));
    }

    #[test]
    fn what_cannot_be_done_is_an_error_and_what_is_left_is_not_begun() {
        let begun = AtomicU32::new(0);
        let job = |_| {
            Job::new("same", |_: &mut TestSummary| {
                begun.fetch_add(1, Ordering::SeqCst);
                Err("no place".to_owned())
            })
        };
        assert_eq!(run((0..5).map(job).collect()).unwrap_err(), "no place");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}
