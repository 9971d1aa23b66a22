//! Many at once, ends at every moment, broken surroundings.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sandbox_core::{CallContext, ErrorKind, ListQuery, Sandbox, SandboxId};

use super::support::{LIMIT, attack};
use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{SLACK, WAIT_TIMEOUT, describe, is_usable, ok, text, within};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("concurrency", [run_code, local], {
        g177_sixty_four_mebibytes_there_and_back needs files;
        j217_ten_ends_at_once;
        j236_ids_that_are_paths;
        j237_listings_during_churn;
        i197_an_interpreter_that_dies_under_its_run;
        runs_that_are_dropped_while_others_wait;
        handles_that_outlive_their_end;
        everything_at_once_in_one_sandbox needs commands, files, contexts;
    });
    all.extend(
        cases!("concurrency", [run_code, local], {
            j221_creates_runs_and_kills_all_at_once;
            j227_modules_that_spoil_the_warm_interpreter;
            creates_that_are_given_up_all_at_once;
        })
        .into_iter()
        .map(Case::alone),
    );
    all
}

async fn g177_sixty_four_mebibytes_there_and_back(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let size = 64 << 20;
    // Of a length that divides nothing else here.
    let piece: Vec<u8> =
        (0..999_983).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for size in [0, size - 1, size] {
        let mut content = piece.repeat(size / piece.len() + 1);
        content.truncate(size);
        sandbox.files().write("big", content.clone()).await?;
        let back = sandbox.files().read("big").await?;
        ensure!(back == content, "{} bytes of {size} came back, or others", back.len());
        ensure_eq!(text(&sandbox, "import os; os.stat('big').st_size").await?, size.to_string());
    }
    let too_much = "open('more', 'wb').write(bytes((64 << 20) + 1))";
    ok(&sandbox, too_much).await?;
    let answer = sandbox.files().read("more").await;
    ensure!(answer.is_err() || answer.is_ok_and(|all| all.len() == (64 << 20) + 1), "it was cut");
    Ok(())
}

async fn j217_ten_ends_at_once(f: Fixture) -> Checked {
    for _ in 0..5 {
        let sandbox = f.builder().create().await?;
        ok(&sandbox, "import subprocess; p = subprocess.Popen(['sleep', '300'])").await?;
        let ends = (0..10).map(async |n: u32| match n % 3 {
            0 => sandbox.terminate().await,
            1 => sandbox.kill().await,
            _ => sandbox.clone().terminate().await,
        });
        for end in within(SLACK, join_all(ends)).await? {
            end?;
        }
        sandbox.terminate().await?;
        sandbox.kill().await?;
        let after = within(SLACK, sandbox.run_code("1").into_future()).await?;
        ensure!(after.is_err_and(|error| error.kind() == ErrorKind::Terminated), "it runs on");
    }
    Ok(())
}

async fn j227_modules_that_spoil_the_warm_interpreter(f: Fixture) -> Checked {
    // Warm interpreters are kept as long as their backend, so this has one of its own.
    let backend = (f.target().make_backend)();
    let builder = |modules: &[&str]| {
        let builder =
            Sandbox::builder(std::sync::Arc::clone(&backend)).isolation(f.target().isolation);
        (f.target().configure)(builder).provider_option("preimport", serde_json::json!(modules))
    };
    let before = host::descendants()?.len();
    for (module, hint) in
        [("no_such_module_at_all", "no_such_module_at_all"), ("this.is.none", "this")]
    {
        let refused =
            f.builder().provider_option("preimport", serde_json::json!([module])).create();
        match within(WAIT_TIMEOUT, refused.into_future()).await? {
            Ok(sandbox) => {
                sandbox.kill().await?;
                return Err(Failure::new(format!("{module} was imported")));
            }
            Err(error) => ensure!(format!("{error:?}").contains(hint), "{error:?}"),
        }
    }
    // Standard modules that speak, or open a browser, do no harm.
    let odd = builder(&["this"]).create().await?;
    let first = is_usable(&odd).await?;
    odd.kill().await?;
    ensure_eq!(first.stdout_trimmed(), "", "what the warm interpreter printed");
    let after = host::descendants()?.len();
    ensure!(after < before + 10, "{before} processes before, {after} after");
    Ok(())
}

async fn j236_ids_that_are_paths(f: Fixture) -> Checked {
    for id in [
        "../../x",
        "local-eval/../../etc",
        "",
        "/",
        "a b",
        "..",
        "\0",
        "%2e%2e",
        "local-eval/",
        "-",
        "*",
        "x\ny",
    ] {
        match id.parse::<SandboxId>() {
            Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument, "{id:?}"),
            Ok(parsed) => {
                let answer = f.backend().attach(&CallContext::default(), &parsed).await;
                let kind = answer.err().map(|error| error.kind());
                ensure!(
                    matches!(
                        kind,
                        Some(
                            ErrorKind::NotFound
                                | ErrorKind::Unsupported
                                | ErrorKind::InvalidArgument
                        )
                    ),
                    "{id:?}: {kind:?}"
                );
            }
        }
    }
    Ok(())
}

async fn j237_listings_during_churn(f: Fixture) -> Checked {
    let churn = async {
        for n in 0..40_u32 {
            let sandbox = f.builder().create().await?;
            if n % 2 == 0 {
                sandbox.kill().await?;
            }
        }
        Checked::Ok(())
    };
    let listing = async {
        for _ in 0..200 {
            let page = f.backend().list(&CallContext::default(), ListQuery::default()).await?;
            for info in page.items {
                ensure!(!info.id.is_empty(), "{info:?}");
            }
            tokio::task::yield_now().await;
        }
        Checked::Ok(())
    };
    let (churned, listed) = tokio::join!(churn, listing);
    churned.and(listed)
}

async fn i197_an_interpreter_that_dies_under_its_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, time\nprint('partial', flush=True)\nif os.fork() == 0:\n    time.sleep(0.1); os.kill(os.getppid(), 9); os._exit(0)\ntime.sleep(60)";
    let result = attack(&sandbox, code).await?;
    ensure_eq!(result.stdout_trimmed(), "partial");
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    ensure_eq!(kind, Some(sandbox_core::FailureKind::KernelDied), "{}", describe(&result));
    ensure!(is_usable(&sandbox).await?.restarted, "the next run does not say `restarted`");
    Ok(())
}

async fn runs_that_are_dropped_while_others_wait(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let runs = (0..60_u64).map(async |n| {
        let run =
            sandbox.run_code(format!("import time; time.sleep(0.01)\n{n}")).timeout(WAIT_TIMEOUT);
        if n % 3 == 0 {
            // Given up in the queue, or in the middle.
            let _ = tokio::time::timeout(Duration::from_millis(n * 3), run).await;
            return Ok(());
        }
        let result = run.await?;
        ensure_eq!(result.text(), Some(n.to_string().as_str()), "{}", describe(&result));
        Checked::Ok(())
    });
    for outcome in within(2 * WAIT_TIMEOUT, join_all(runs)).await? {
        outcome?;
    }
    Ok(())
}

async fn handles_that_outlive_their_end(f: Fixture) -> Checked {
    let sandbox = f.builder().create().await?;
    let mut events =
        sandbox.run_code("while True: print('x' * 1000)").no_timeout().stream().await?;
    let other = sandbox.clone();
    sandbox.kill().await?;
    // What was there is told, then the end, and then nothing more.
    let drained = within(WAIT_TIMEOUT, async {
        use futures_util::StreamExt as _;
        let mut count = 0_u32;
        while events.next().await.is_some() {
            count += 1;
        }
        count
    });
    ensure!(drained.await? > 0, "the stream ended without an end");
    for _ in 0..3 {
        let answer = within(SLACK, other.run_code("1").into_future()).await?;
        ensure!(answer.is_err(), "a sandbox that was killed runs");
    }
    Ok(())
}

async fn everything_at_once_in_one_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let contexts: Vec<String> = (0..4).map(|n| format!("c{n}")).collect();
    for id in &contexts {
        sandbox.create_context(Some(id)).await?;
    }
    let runs = async {
        for n in 0..20 {
            let id = &contexts[n % contexts.len()];
            let code = match n % 4 {
                0 => "import os; os._exit(3)",
                1 => "import ctypes; ctypes.string_at(0)",
                2 => "while True: pass",
                _ => "1 + 1",
            };
            sandbox.run_code(code).context(id).timeout(Duration::from_millis(300)).await?;
        }
        Checked::Ok(())
    };
    let commands = async {
        for n in 0..20 {
            let line = if n % 2 == 0 { "echo x; sleep 0.05" } else { "kill -9 $$" };
            sandbox.commands().run(line).timeout(SLACK).await?;
        }
        Checked::Ok(())
    };
    let files = async {
        for n in 0..200 {
            let path = format!("f{}", n % 7);
            sandbox.files().write(&path, vec![b'x'; n * 100]).await?;
            sandbox.files().read(&path).await?;
        }
        Checked::Ok(())
    };
    let interrupts = async {
        for _ in 0..50 {
            sandbox.interrupt().await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Checked::Ok(())
    };
    let (a, b, c, d) =
        within(4 * WAIT_TIMEOUT, async { tokio::join!(runs, commands, files, interrupts) }).await?;
    a.and(b).and(c).and(d)?;
    for id in &contexts {
        let result = sandbox.run_code("1 + 1").context(id).timeout(WAIT_TIMEOUT).await?;
        ensure_eq!(result.text(), Some("2"), "context {id}: {}", describe(&result));
    }
    Ok(())
}

async fn j221_creates_runs_and_kills_all_at_once(f: Fixture) -> Checked {
    let isolation = f.sandbox().await?.info().isolation;
    if isolation.is_some_and(|isolation| isolation.boundary == "cell") {
        two_hundred_soon(&f).await?;
    }
    let lives = (0..200_u64).map(async |n| {
        let sandbox = f.builder().create().await?;
        let code = match n % 5 {
            0 => "import os; os._exit(1)",
            1 => "import time; time.sleep(60)",
            2 => "print('x' * 100_000)",
            _ => "1 + 1",
        };
        let run = sandbox.run_code(code).timeout(LIMIT);
        let killed = async {
            if n % 4 == 0 {
                tokio::time::sleep(Duration::from_millis(n)).await;
                sandbox.kill().await?;
            }
            Ok::<_, sandbox_core::Error>(())
        };
        let (result, killed) = tokio::join!(run, killed);
        killed?;
        match result {
            Ok(result) if n % 4 == 0 || n % 5 < 2 => drop(result),
            Ok(result) => ensure!(result.success(), "life {n}: {}", describe(&result)),
            Err(error) => {
                ensure!(n % 4 == 0 && error.kind() == ErrorKind::Terminated, "life {n}: {error}")
            }
        }
        sandbox.terminate().await?;
        Checked::Ok(())
    });
    for life in within(Duration::from_secs(100), join_all(lives)).await? {
        life?;
    }
    is_usable(&f.sandbox().await?).await?;
    Ok(())
}

/// Two hundred cells at once answer and end. That takes a second; one after the other, with a wait in each, it would be
/// longer than this.
async fn two_hundred_soon(f: &Fixture) -> Checked {
    let began = Instant::now();
    let lives = (0..200).map(async |n| {
        let sandbox = f.create(|b| b).await?;
        ensure_eq!(text(&sandbox, &format!("{n} + 1")).await?, (n + 1).to_string());
        sandbox.kill().await?;
        Checked::Ok(())
    });
    for life in join_all(lives).await {
        life?;
    }
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(10), "it took {took:?}");
    Ok(())
}

async fn creates_that_are_given_up_all_at_once(f: Fixture) -> Checked {
    let before = crate::leak_check::ResourceSnapshot::take(&f).await?;
    let creates = (0..150_u64).map(async |n| {
        let create = f.builder().create();
        tokio::time::timeout(Duration::from_micros(n * 400), create.into_future()).await.ok()
    });
    let made: Vec<Sandbox> = join_all(creates).await.into_iter().flatten().flatten().collect();
    drop(made);
    before.is_restored().await.map_err(Failure::finally)?;
    is_usable(&f.sandbox().await?).await?;
    Ok(())
}
