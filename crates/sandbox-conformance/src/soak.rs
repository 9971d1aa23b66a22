//! Many sandboxes, one after the other and all at once: nothing grows, and all answer.
#![expect(clippy::print_stdout, reason = "the measurements are for its user")]

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use libtest_mimic::{Arguments, Failed, Trial};
use sandbox_core::{CallContext, Sandbox};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::case::{Checked, Failure, ensure};
use crate::fixture::Fixture;
use crate::host;
use crate::leak_check::ResourceSnapshot;
use crate::runner::failed;
use crate::support::text;
use crate::target::Target;

/// How many sandboxes are made one after the other, and how many are alive at once.
const USUAL: usize = 1_000;
/// As many are on their way at the same time.
const AT_ONCE: usize = 4;
/// How many are made before anything is measured: what is kept is there then.
const WARM_UP: usize = 100;
/// What a process may have more afterwards, beside what each of so many rounds may not leave.
const MAX_GROWTH: u64 = 24 << 20;

/// What one part found out.
#[derive(Clone, Debug, Serialize)]
struct Part {
    name: &'static str,
    sandboxes: usize,
    seconds: f64,
    /// Resident bytes before and after, by process.
    memory: BTreeMap<String, [u64; 2]>,
    /// Why there were not more, where this host has a limit.
    limit: Option<String>,
}

type Parts = Arc<Mutex<Vec<Part>>>;

/// Makes, uses and ends many sandboxes: `SANDBOX_SOAK_COUNT` one after the other and `SANDBOX_SOAK_ALIVE` at once, 1,000
/// by default. Prints a table, and writes it as JSON to the file `SANDBOX_SOAK_JSON` names.
///
/// For a test without the standard harness; the exit status is as that of [`main`](crate::main). A leak is a failure.
pub fn soak(target: Target) -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = match Runtime::new() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => return failed(&format!("no runtime: {error}")),
    };
    let backend = {
        let _entered = runtime.enter();
        (target.make_backend)()
    };
    let fixture = Fixture::new(Arc::new(target), backend);
    let parts = Parts::default();
    let (first, second) = (fixture.clone(), fixture);
    let trials = vec![
        trial("one_after_the_other", &runtime, &parts, async move || {
            one_after_the_other(&first, number("SANDBOX_SOAK_COUNT")).await
        }),
        trial("alive_at_once", &runtime, &parts, async move || {
            alive_at_once(&second, number("SANDBOX_SOAK_ALIVE")).await
        }),
    ];
    let alone = Arguments { test_threads: Some(1), ..arguments };
    let conclusion = libtest_mimic::run(&alone, trials);
    let parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
    show(&parts);
    match write(&parts) {
        Ok(()) => conclusion.exit_code(),
        Err(error) => failed(&format!("the report could not be written: {error}")),
    }
}

fn trial(
    name: &'static str,
    runtime: &Arc<Runtime>,
    parts: &Parts,
    work: impl AsyncFnOnce() -> Checked<Part> + Send + 'static,
) -> Trial {
    let (runtime, parts) = (Arc::clone(runtime), Arc::clone(parts));
    Trial::test(format!("soak::{name}"), move || {
        let part = runtime.block_on(work()).map_err(Failed::from)?;
        let grown = part.memory.iter().find(|(_, [before, after])| *after > before + MAX_GROWTH);
        let leak = grown.map(|(process, [before, after])| {
            format!(
                "{process} has {after} bytes after {} sandboxes, {before} before",
                part.sandboxes
            )
        });
        parts.lock().unwrap_or_else(PoisonError::into_inner).push(part);
        leak.map_or(Ok(()), |leak| Err(leak.into()))
    })
}

/// Fewer alive at once than that are a failure, whatever the error says.
const LEAST_ALIVE: usize = 100;

fn number(variable: &str) -> usize {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(USUAL)
}

/// Resident memory of this process and of those that serve all sandboxes.
fn memory() -> Checked<BTreeMap<String, u64>> {
    let mut found = BTreeMap::from([("this process".to_owned(), host::resident_memory()?)]);
    for process in host::descendants()? {
        let status =
            fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let size =
            field("VmRSS:").and_then(|size| size.trim_end_matches(" kB").parse::<u64>().ok());
        let name = field("Name:").unwrap_or_default();
        found.insert(format!("{name} {}", process.pid), size.unwrap_or_default() << 10);
    }
    Ok(found)
}

/// Both measurements of what is there before and after.
fn compared(before: &BTreeMap<String, u64>) -> Checked<BTreeMap<String, [u64; 2]>> {
    let after = memory()?;
    let both =
        before.iter().filter_map(|(name, size)| Some((name.clone(), [*size, *after.get(name)?])));
    Ok(both.collect())
}

async fn lives(f: &Fixture, count: usize) -> Checked {
    let all = (0..count).map(async |n| {
        let sandbox = f.builder().create().await?;
        let answer = text(&sandbox, &format!("{n} + 1")).await?;
        ensure!(answer == (n + 1).to_string(), "sandbox {n} answered {answer}");
        sandbox.terminate().await?;
        Checked::Ok(())
    });
    let mut all = stream::iter(all).buffer_unordered(AT_ONCE);
    while let Some(life) = all.next().await {
        life?;
    }
    Ok(())
}

async fn one_after_the_other(f: &Fixture, count: usize) -> Checked<Part> {
    f.backend().health(&CallContext::default()).await?;
    lives(f, WARM_UP).await?;
    let before = ResourceSnapshot::take(f).await?;
    let sizes = memory()?;
    let began = Instant::now();
    lives(f, count).await?;
    let seconds = began.elapsed().as_secs_f64();
    before.is_restored().await?;
    let name = "made, used and ended";
    Ok(Part { name, sandboxes: count, seconds, memory: compared(&sizes)?, limit: None })
}

/// Limits of a host that many sandboxes meet, as errors have to name them.
const KNOBS: [&str; 7] = [
    "ulimit",
    "pids.max",
    "max_user_namespaces",
    "max_map_count",
    "pid_max",
    "threads-max",
    "sysctl",
];

async fn alive_at_once(f: &Fixture, count: usize) -> Checked<Part> {
    f.backend().health(&CallContext::default()).await?;
    lives(f, AT_ONCE).await?;
    let before = ResourceSnapshot::take(f).await?;
    let sizes = memory()?;
    let began = Instant::now();
    let mut creates = stream::iter((0..count).map(|_| f.builder().create().into_future()));
    let mut creates = creates.by_ref().buffer_unordered(2 * AT_ONCE);
    let (mut sandboxes, mut limit): (Vec<Sandbox>, _) = (Vec::new(), None);
    while let Some(made) = creates.next().await {
        match made {
            Ok(sandbox) => sandboxes.push(sandbox),
            Err(error) => {
                let told = format!("{error} {error:?}");
                ensure!(
                    KNOBS.iter().any(|knob| told.contains(knob)),
                    "after {} the error names no limit to raise: {told}",
                    sandboxes.len()
                );
                // So many are there on any host; where it is tested whether they are, none may be missing.
                let least =
                    if std::env::var_os("CI").is_some() { count } else { count.min(LEAST_ALIVE) };
                ensure!(sandboxes.len() >= least, "only {} of {count}: {told}", sandboxes.len());
                limit = Some(error.to_string());
                break;
            }
        }
    }
    drop(creates);
    for round in 0..2 {
        let answers = sandboxes.iter().enumerate().map(async |(n, sandbox)| {
            let code = if round == 0 { format!("mine = {n}\nmine") } else { "mine".to_owned() };
            (n, text(sandbox, &code).await)
        });
        let mut answers = stream::iter(answers).buffer_unordered(64);
        while let Some((n, answer)) = answers.next().await {
            let answer = answer?;
            ensure!(
                answer == n.to_string(),
                "sandbox {n} of {} answered {answer}",
                sandboxes.len()
            );
        }
    }
    let (alive, seconds) = (sandboxes.len(), began.elapsed().as_secs_f64());
    drop(sandboxes);
    // So many take a while to end.
    tokio::time::sleep(Duration::from_secs(1)).await;
    before.is_restored().await?;
    let name = "alive at once";
    // What the allocator keeps after so many at once is no leak; what one at a time leaves is.
    let mut memory = compared(&sizes)?;
    memory.retain(|process, _| process != "this process");
    Ok(Part { name, sandboxes: alive, seconds, memory, limit })
}

fn show(parts: &[Part]) {
    println!("{:<24} {:>9} {:>9} {:>12}", "", "sandboxes", "seconds", "each, ms");
    for part in parts {
        let each = part.seconds * 1e3 / part.sandboxes.max(1) as f64;
        println!("{:<24} {:>9} {:>9.1} {each:>12.2}", part.name, part.sandboxes, part.seconds);
        for (process, [before, after]) in &part.memory {
            let (before, after) = (*before as f64 / 1e6, *after as f64 / 1e6);
            println!("  {process:<30} {before:>8.1} MB before {after:>8.1} MB after");
        }
        if let Some(limit) = &part.limit {
            println!("  no more than that here: {limit}");
        }
    }
}

fn write(parts: &[Part]) -> Result<(), Failure> {
    let Some(path) = std::env::var_os("SANDBOX_SOAK_JSON") else { return Ok(()) };
    fs::write(path, serde_json::to_string_pretty(parts)? + "\n")?;
    Ok(())
}
