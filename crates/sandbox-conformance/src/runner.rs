//! Runs the cases in a harness that looks like cargo's own.

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};
use sandbox_core::{Backend, CallContext, Capabilities, IsolationMode, Sandbox, Variant};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::RwLock;

use crate::case::{Case, Checked, Conditions, Failure};
use crate::cases;
use crate::fixture::Fixture;
use crate::hostile::{self, Canaries};
use crate::leak_check::ResourceSnapshot;
use crate::owner;
use crate::report::{CaseReport, Outcome, Report};
use crate::support::TARGET;
use crate::target::{Target, asked_groups};

/// No case takes this long. One that does hangs.
const MAX_CASE: Duration = Duration::from_secs(240);

/// Runs the suite with the arguments of this process, for a test without the standard harness.
///
/// The exit status is 0 when every case that applies passed, 101 when one failed,
/// and 1 when no sandbox could be made or the report could not be written.
pub fn main(target: Target) -> ExitCode {
    if owner::is_one() {
        return owner::own(&target);
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let complete = arguments.filter.is_none()
        && arguments.skip.is_empty()
        && !arguments.ignored
        && !arguments.list;
    let (record, is_whole) = (target.record.clone(), target.only.is_none());
    match execute(target, &arguments, None) {
        Err(why) => failed(&why),
        Ok((conclusion, _)) if !complete => conclusion.exit_code(),
        Ok((conclusion, report)) => {
            if let Err(why) = report.write() {
                return failed(&format!("the report could not be written: {why}"));
            }
            let is_whole = is_whole && asked_groups().is_empty();
            let recorded = record.map_or(Ok(()), |path| report.check_record(&path, is_whole));
            match recorded {
                Err(why) if !conclusion.has_failed() => failed(&why),
                _ => conclusion.exit_code(),
            }
        }
    }
}

/// Says that the suite is not run here, and why, as one ignored test of the same name.
pub fn ignored(reason: &str) -> ExitCode {
    let reason = reason.to_owned();
    let suite = Trial::ignorable_test("conformance", move || Ok(Completion::ignored_with(reason)));
    libtest_mimic::run(&Arguments::from_args(), vec![suite]).exit_code()
}

/// Runs the suite with arguments such as `["--exact", "conformance::exec::last_value"]`, and prints nothing.
///
/// # Errors
/// No runtime could be started, or no sandbox could be made.
pub fn run<S: Into<String>>(
    target: Target,
    arguments: impl IntoIterator<Item = S>,
) -> Result<Report, String> {
    let arguments =
        std::iter::once("conformance".to_owned()).chain(arguments.into_iter().map(Into::into));
    let mut arguments = Arguments::from_iter(arguments);
    // The caller reads the report; a second harness on its output would only confuse.
    arguments.logfile.get_or_insert_with(|| "/dev/null".to_owned());
    let (_, report) = execute(target, &arguments, None)?;
    Ok(report)
}

/// The name of every case that does not depend on the target.
pub fn case_names() -> Vec<String> {
    cases::all().iter().map(Case::full_name).collect()
}

#[expect(clippy::print_stderr, reason = "a test harness speaks on its standard error")]
pub(crate) fn failed(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

/// Most cases wait more than they work, so more run at once than there are cores.
const THREADS: usize = 6;

/// Runs every case; with canaries, those of the hostile suite.
pub(crate) fn execute(
    target: Target,
    arguments: &Arguments,
    canaries: Option<Arc<Canaries>>,
) -> Result<(Conclusion, Report), String> {
    let runtime = Runtime::new().map_err(|error| format!("no runtime: {error}"))?;
    let target = Arc::new(target);
    let backend = {
        let _entered = runtime.enter();
        (target.make_backend)()
    };
    let mut capabilities = backend.capabilities();
    if !arguments.list && capabilities.run_code {
        capabilities = runtime.block_on(of_a_sandbox(&target, &backend))?;
    }
    let suite = Suite {
        conditions: conditions(&target, backend.variant(), capabilities),
        found: Arc::default(),
        turn: Arc::default(),
        handle: runtime.handle().clone(),
        target: Arc::clone(&target),
        backend: Arc::clone(&backend),
        asked: asked_groups(),
        canaries,
        one_by_one: arguments.test_threads == Some(1),
    };
    let before = suite.count_before(arguments)?;
    let all = if suite.canaries.is_some() {
        hostile::all(target.isolation)
    } else {
        let mut all = cases::all();
        all.extend(cases::unsupported::cases(&suite.conditions.capabilities));
        all
    };
    target.check_groups(&all, &suite.asked)?;
    let trials = all.into_iter().map(|case| suite.trial(case)).collect();
    let mut conclusion = libtest_mimic::run(arguments, trials);
    if let Some(before) = before.filter(|_| conclusion.num_passed + conclusion.num_failed > 0) {
        // After all others, which no order of the harness can promise.
        let last = Arguments { filter: None, exact: false, skip: Vec::new(), ..arguments.clone() };
        let last = libtest_mimic::run(&last, vec![suite.last(before)]);
        conclusion.num_passed += last.num_passed;
        conclusion.num_failed += last.num_failed;
    }
    let mut report = Report {
        name: target.name.clone(),
        variant: backend.variant(),
        isolation: target.isolation,
        capabilities: suite.conditions.capabilities,
        passed: 0,
        failed: 0,
        ignored: 0,
        cases: std::mem::take(&mut *suite.found.lock().unwrap_or_else(PoisonError::into_inner)),
    };
    report.count();
    Ok((conclusion, report))
}

/// What the sandboxes of this target can do; that may be less than the backend can with other settings.
///
/// A suite against nothing must not be green: a backend that declares `run_code` has to run some.
async fn of_a_sandbox(
    target: &Arc<Target>,
    backend: &Arc<dyn Backend>,
) -> Result<Capabilities, String> {
    let fixture = Fixture::new(Arc::clone(target), Arc::clone(backend));
    let check = async {
        let sandbox = fixture.sandbox().await?;
        crate::support::is_usable(&sandbox).await?;
        let capabilities = sandbox.capabilities();
        fixture.clean_up().await?;
        Ok(capabilities)
    };
    tokio::time::timeout(MAX_CASE, check)
        .await
        .unwrap_or_else(|_| Err(Failure::new("it did not answer")))
        .map_err(|failure| format!("no {} sandbox can be made here: {failure}", target.name))
}

fn conditions(target: &Target, variant: Variant, capabilities: Capabilities) -> Conditions {
    Conditions {
        capabilities,
        strict: target.isolation == IsolationMode::Strict && !target.exposes_this_host,
        contained: target.isolation != IsolationMode::Off && !target.exposes_this_host,
        local: variant.is_local(),
        attached: !target.stays,
        packages: std::env::var_os("SANDBOX_TEST_PYTHON").is_some(),
    }
}

struct Suite {
    target: Arc<Target>,
    backend: Arc<dyn Backend>,
    conditions: Conditions,
    handle: Handle,
    found: Arc<Mutex<Vec<CaseReport>>>,
    /// Cases share it; one that must be alone has it to itself.
    turn: Arc<RwLock<()>>,
    /// The only groups to run, if any are named by the environment.
    asked: Vec<String>,
    /// What is watched on the host, in the hostile suite.
    canaries: Option<Arc<Canaries>>,
    /// One case at a time, so that what is left can be counted after each.
    one_by_one: bool,
}

impl Suite {
    fn fixture(&self) -> Fixture {
        Fixture::new(Arc::clone(&self.target), Arc::clone(&self.backend))
            .guarded(self.canaries.clone())
    }

    /// Counts what there is before the hostile suite, when all of it is run.
    fn count_before(&self, arguments: &Arguments) -> Result<Option<ResourceSnapshot>, String> {
        if self.canaries.is_none() || arguments.list || !self.conditions.local {
            return Ok(None);
        }
        let count = async {
            // Both start what is started once and kept.
            self.backend.health(&CallContext::default()).await?;
            if self.backend.capabilities().isolation_off {
                let other = Sandbox::builder(Arc::clone(&self.backend));
                other.isolation(IsolationMode::Off).create().await?.kill().await?;
            }
            ResourceSnapshot::take(&self.fixture()).await
        };
        self.handle.block_on(count).map(Some).map_err(|failure| failure.to_string())
    }

    /// What all cases together have left.
    fn last(&self, before: ResourceSnapshot) -> Trial {
        let handle = self.handle.clone();
        Trial::test("hostile::nothing_is_left_of_all_this", move || {
            let restored = handle.block_on(before.is_restored());
            restored.map_err(|failure| Failed::from(failure.finally()))
        })
    }

    fn trial(&self, case: Case) -> Trial {
        let name = case.full_name();
        let needs: Vec<_> = case.needs.iter().map(|need| need.name).collect();
        let found = Arc::clone(&self.found);
        let not_applicable = case.not_applicable(&self.conditions);
        if let Some(reason) = not_applicable.or_else(|| self.target.difference(&name, &self.asked))
        {
            return Trial::ignorable_test(name.clone(), move || {
                let reason = Some(reason);
                note(
                    &found,
                    CaseReport {
                        name,
                        outcome: Outcome::Ignored,
                        reason: reason.clone(),
                        seconds: 0.0,
                        needs,
                    },
                );
                Ok(Completion::Ignored { reason })
            });
        }
        let fixture = self.fixture();
        let one_by_one = self.one_by_one && self.canaries.is_some() && self.conditions.local;
        let (handle, turn) = (self.handle.clone(), Arc::clone(&self.turn));
        Trial::test(name.clone(), move || {
            let (checked, seconds) = handle.block_on(take_turn(case, fixture, &turn, one_by_one));
            let (outcome, reason) = match &checked {
                Ok(()) => (Outcome::Passed, None),
                Err(failure) => (Outcome::Failed, Some(failure.to_string())),
            };
            note(&found, CaseReport { name, outcome, reason, seconds, needs });
            checked.map_err(Failed::from)
        })
    }
}

fn note(found: &Mutex<Vec<CaseReport>>, case: CaseReport) {
    found.lock().unwrap_or_else(PoisonError::into_inner).push(case);
}

async fn take_turn(
    case: Case,
    fixture: Fixture,
    turn: &RwLock<()>,
    counted: bool,
) -> (Checked, f64) {
    let (_alone, _shared);
    if case.alone {
        _alone = turn.write().await;
    } else {
        _shared = turn.read().await;
    }
    let before = if counted { Some(ResourceSnapshot::take(&fixture).await) } else { None };
    let began = Instant::now();
    let hostile = case.suite == "hostile";
    let mut checked =
        TARGET.scope(fixture.shared_target(), bounded((case.run)(fixture.clone()))).await;
    let seconds = began.elapsed().as_secs_f64();
    if hostile && checked.is_ok() {
        checked = bounded(fixture.is_truthful()).await;
    }
    let cleaned = bounded(fixture.clean_up()).await;
    checked = checked.and(cleaned);
    // These are told whatever else there is: each is told once, and is final.
    checked = worse(checked, fixture.is_untouched());
    if let Some(before) = before {
        let restored = async { before?.is_restored().await.map_err(Failure::finally) };
        checked = worse(checked, restored.await);
    }
    (checked, seconds)
}

/// What was found of the host, with what the case says.
fn worse(checked: Checked, host: Checked) -> Checked {
    match host {
        Ok(()) => checked,
        Err(failure) => Err(failure.beside(checked)),
    }
}

async fn bounded(work: impl Future<Output = Checked>) -> Checked {
    let work = AssertUnwindSafe(work).catch_unwind();
    match tokio::time::timeout(MAX_CASE, work).await {
        Ok(Ok(checked)) => checked,
        Ok(Err(_)) => Err(Failure::new("it panicked")),
        Err(_) => Err(Failure::new(format!("it did not end within {} s", MAX_CASE.as_secs()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::FINAL;

    #[test]
    fn what_the_host_says_hides_behind_no_other_failure() {
        let slow = || Err(Failure::new("it was slow"));
        let reached = || Err(Failure::new("the host was reached").finally());
        let message = worse(slow(), reached()).unwrap_err().to_string();
        assert!(message.starts_with(FINAL) && message.contains("it was slow"), "{message}");
        assert!(worse(Ok(()), reached()).unwrap_err().to_string().starts_with(FINAL));
        assert!(!worse(slow(), Ok(())).unwrap_err().to_string().starts_with(FINAL));
        worse(Ok(()), Ok(())).unwrap();
    }
}
