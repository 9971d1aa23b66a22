//! Output: live, in order, complete, and bounded where it is collected.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{EventKind, FailureKind, OutputStream};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{WAIT_TIMEOUT, describe, failed_with, is_usable, ok, printed};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("streams", [run_code], {
        streams_are_told_apart;
        order_within_a_stream_is_exact;
        output_without_a_newline;
        output_of_descriptors_and_children_is_caught;
        lines_arrive_while_the_code_runs needs live_output;
        parts_of_lines_arrive_while_the_code_runs needs live_output;
        callbacks_hear_everything_once;
        output_of_one_run_stays_in_it;
        a_flood_is_cut_and_counted;
        a_flood_on_both_streams_does_not_block;
        many_lines_are_exact;
        many_empty_lines_are_counted;
        a_stream_is_lossless_with_a_slow_reader;
        limits_hold_while_nobody_reads;
        output_before_a_crash_is_kept;
        parts_of_lines_before_a_crash_are_kept needs live_output;
        output_of_c_code_is_of_its_run;
        replaced_streams_and_arguments_stay;
    });
    all.extend(
        cases!("streams", [run_code, local], {
            a_flood_takes_little_host_memory;
        })
        .into_iter()
        .map(Case::alone),
    );
    all
}

async fn streams_are_told_apart(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "import sys\nprint('out')\nprint('err', file=sys.stderr)").await?;
    ensure_eq!(
        (result.stdout_trimmed().as_str(), result.stderr_trimmed().as_str()),
        ("out", "err")
    );
    ensure!(result.logs.stdout.iter().all(|line| !line.error), "stdout lines are marked as errors");
    ensure!(result.logs.stderr.iter().all(|line| line.error), "stderr lines are not marked");
    Ok(())
}

async fn order_within_a_stream_is_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nfor i in range(2000): print(i, file=(sys.stdout, sys.stderr)[i % 2])";
    let result = ok(&sandbox, code).await?;
    let numbers =
        |start| (start..2000).step_by(2).map(|i: i32| format!("{i}\n")).collect::<String>();
    ensure!(result.logs.stdout_exact() == numbers(0), "stdout is out of order");
    ensure!(result.logs.stderr_exact() == numbers(1), "stderr is out of order");
    Ok(())
}

async fn output_without_a_newline(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (code, expected) in [
        ("import sys; n = sys.stdout.write('x')", "x"),
        ("n = sys.stdout.write('\\n')", "\n"),
        ("n = sys.stdout.write('')", ""),
        ("print('a', end='')\nprint('b\\n\\nc', end='')", "ab\n\nc"),
        ("print('50%', end='\\r'); print('99%', end='\\r')", "50%\r99%\r"),
    ] {
        ensure_eq!(printed(&sandbox, code).await?, expected, "output of {code:?}");
    }
    Ok(())
}

async fn output_of_descriptors_and_children_is_caught(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, sys, subprocess\nprint('zero', end=' ')\nsubprocess.run(['echo', 'and'])\nprint('one', flush=True)\nos.write(1, b'two\\n')\n\
                subprocess.run(['echo', 'three'])\nprint('four')\nn = os.write(2, b'five\\n')";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.logs.stdout_exact(), "zero and\none\ntwo\nthree\nfour\n");
    ensure_eq!(result.logs.stderr_exact(), "five\n");
    Ok(())
}

/// Seconds between the first output and the end of a run.
async fn lead(f: &Fixture, code: &str) -> Checked<f64> {
    let sandbox = f.sandbox().await?;
    let mut events = sandbox.run_code(code).timeout(WAIT_TIMEOUT).stream().await?;
    let mut first = None;
    while let Some(event) = events.next().await {
        if matches!(event.kind, EventKind::Output { .. }) {
            first.get_or_insert_with(Instant::now);
        }
    }
    Ok(first.map_or(0.0, |at: Instant| at.elapsed().as_secs_f64()))
}

async fn lines_arrive_while_the_code_runs(f: Fixture) -> Checked {
    let lead = lead(&f, "print('now')\nimport time; time.sleep(1.5)\nprint('later')").await?;
    ensure!(lead > 0.7, "the line came {lead:.2} s before the end, not 1.5 s");
    Ok(())
}

async fn parts_of_lines_arrive_while_the_code_runs(f: Fixture) -> Checked {
    let lead = lead(&f, "print('50%', end='')\nimport time; time.sleep(1.5)").await?;
    ensure!(lead > 0.7, "the text came {lead:.2} s before the end, not 1.5 s");
    Ok(())
}

async fn callbacks_hear_everything_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let (mut out, mut err, mut values, mut errors) = (String::new(), String::new(), 0, 0);
    let put = |to: &mut String, message: &sandbox_core::OutputMessage| {
        to.push_str(&message.line);
        if message.terminated {
            to.push('\n');
        }
    };
    let code = "import sys\nfor i in range(100): print(i)\nprint('e', file=sys.stderr)\n5";
    sandbox
        .run_code(code)
        .on_stdout(|message| put(&mut out, message))
        .on_stderr(|message| put(&mut err, message))
        .on_result(|_| values += 1)
        .on_error(|_| errors += 1)
        .await?;
    ensure_eq!(out, (0..100).map(|i| format!("{i}\n")).collect::<String>());
    ensure_eq!((err.as_str(), values, errors), ("e\n", 1, 0));
    sandbox.run_code("1/0").on_error(|_| errors += 1).await?;
    ensure_eq!(errors, 1);
    Ok(())
}

async fn output_of_one_run_stays_in_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for i in 0..50 {
        let code = format!("import sys; print('out{i}'); print('err{i}', file=sys.stderr)");
        let result = ok(&sandbox, &code).await?;
        let streams = [result.logs.stdout_exact(), result.logs.stderr_exact()];
        let expected = [format!("out{i}\n"), format!("err{i}\n")];
        ensure!(streams == expected, "run {i}: {}", describe(&result));
    }
    Ok(())
}

async fn a_flood_is_cut_and_counted(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nprint('first', flush=True)\nfor _ in range(64): n = os.write(1, b'x' * (1 << 20))\nprint('\\nlast')";
    // Writing to a pipe may be partial, so the code counts.
    let code =
        code.replace("n = os.write(1, b'x' * (1 << 20))", "sys.stdout.write('x' * (1 << 20))");
    let result = ok(&sandbox, &format!("import sys\n{code}")).await?;
    let totals = result.stdout_totals;
    ensure_eq!(totals.bytes_total, (64 << 20) + 12);
    ensure!(totals.truncated() && totals.bytes_kept <= 2 << 20, "kept {}", totals.bytes_kept);
    let text = result.stdout_trimmed();
    ensure!(text.starts_with("first\n") && text.ends_with("\nlast"), "an end was cut");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_flood_on_both_streams_does_not_block(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, threading
def flood(fd):
    left = 32 << 20
    while left: left -= os.write(fd, b'y' * min(left, 65536))
threads = [threading.Thread(target=flood, args=(fd,)) for fd in (1, 2)]
for t in threads: t.start()
for t in threads: t.join()";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.stdout_totals.bytes_total, 32 << 20);
    ensure_eq!(result.stderr_totals.bytes_total, 32 << 20);
    Ok(())
}

async fn many_lines_are_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let output = printed(&sandbox, "for i in range(20000): print(i)").await?;
    ensure!(output == (0..20_000).map(|i| format!("{i}\n")).collect::<String>(), "lines differ");
    Ok(())
}

async fn many_empty_lines_are_counted(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "print('\\n' * 3_000_000, end='')").await?;
    ensure_eq!(result.stdout_totals.bytes_total, 3_000_000);
    ensure!(result.logs.stdout.len() < 20_000, "{} messages", result.logs.stdout.len());
    Ok(())
}

async fn a_stream_is_lossless_with_a_slow_reader(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nfor i in range(8 << 10): sys.stdout.write(f'{i:01023}\\n')";
    let mut events = sandbox.run_code(code).timeout(WAIT_TIMEOUT).stream().await?;
    let (mut bytes, mut chunks) = (Vec::new(), 0);
    while let Some(event) = events.next().await {
        if let EventKind::Output { stream: OutputStream::Stdout, data } = event.kind {
            bytes.extend_from_slice(&data);
            chunks += 1;
            if chunks % 32 == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    ensure_eq!(bytes.len(), 8 << 20, "bytes");
    for (i, line) in bytes.chunks(1024).enumerate() {
        ensure!(line == format!("{i:01023}\n").as_bytes(), "line {i} differs");
    }
    Ok(())
}

/// Time without a reader, of a run that may take a second.
const UNREAD: Duration = Duration::from_secs(6);

async fn limits_hold_while_nobody_reads(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "while True: print('x' * 1000)";
    let mut events = sandbox.run_code(code).timeout(Duration::from_secs(1)).stream().await?;
    tokio::time::sleep(UNREAD).await;
    let mut outcome = None;
    while let Some(event) = events.next().await {
        if let EventKind::Finished(finished) = event.kind {
            outcome = Some(finished);
        }
    }
    let Some(outcome) = outcome else { return Err("the run did not end".to_owned().into()) };
    let kind = outcome.failure.map(|failure| failure.kind);
    ensure_eq!(kind, Some(FailureKind::Timeout));
    let seconds = outcome.completed_at - outcome.started_at;
    ensure!(seconds < UNREAD.as_secs_f64(), "it ran for {seconds} s");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn output_before_a_crash_is_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nprint('before', flush=True)\nos.kill(os.getpid(), 9)";
    let result = sandbox.run_code(code).await?;
    failed_with(&result, FailureKind::KernelDied)?;
    ensure_eq!(result.stdout_trimmed(), "before");
    Ok(())
}

/// What is published on its way out of a kernel may be lost with it; what goes into a pipe at once is not.
async fn parts_of_lines_before_a_crash_are_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let lines: String = (0..300).map(|number| format!("{number}\n")).collect();
    for (code, kept) in [
        (
            "import os, sys\nn = sys.stdout.write('progress 40%')\nos.kill(os.getpid(), 9)",
            "progress 40%",
        ),
        ("import os, sys\nn = sys.stdout.buffer.write(b'bytes')\nos._exit(3)", "bytes"),
        ("import os\nfor i in range(300): print(i)\nos._exit(3)", &lines),
    ] {
        let result = sandbox.run_code(code).await?;
        failed_with(&result, FailureKind::KernelDied)?;
        ensure_eq!(result.logs.stdout_exact(), kept, "of {code:?}");
    }
    let code = "print('40%', end='')\nwhile True: pass";
    let result = sandbox.run_code(code).timeout(Duration::from_millis(500)).await?;
    failed_with(&result, FailureKind::Timeout)?;
    ensure_eq!(result.logs.stdout_exact(), "40%");
    Ok(())
}

async fn output_of_c_code_is_of_its_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import ctypes\nlibc = ctypes.CDLL(None)\nn = libc.puts(b'from C')\nprint('from Python')\nn = libc.printf(b'a part')";
    let said = ok(&sandbox, code).await?.logs.stdout_exact();
    for part in ["from C\n", "from Python\n", "a part"] {
        ensure!(said.contains(part), "{part:?} is not in {said:?}");
    }
    ensure_eq!(printed(&sandbox, "print('next')").await?, "next\n");
    Ok(())
}

async fn replaced_streams_and_arguments_stay(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import io, sys\nown = sys.stdout, sys.stderr\nsys.stdout = kept = io.StringIO()\nsys.stderr = errors = io.StringIO()\nsys.argv = ['a', 'b']").await?;
    let result = ok(&sandbox, "print('kept')\nprint('error', file=sys.stderr)\nkept.getvalue(), errors.getvalue(), sys.argv").await?;
    ensure_eq!((result.stdout_trimmed(), result.stderr_trimmed()), (String::new(), String::new()));
    ensure_eq!(result.text(), Some(r"('kept\n', 'error\n', ['a', 'b'])"));
    // A wrapper holds back what it gets, and its text is of the run that wrote it.
    let wrap = "sys.stdout, sys.stderr = own\nsys.stdout = io.StringIO()\n\
                class Later(io.StringIO):\n    def flush(self): own[0].write(self.getvalue()); self.truncate(0); self.seek(0)\n\
                sys.stdout = Later()\nprint('late')";
    ensure_eq!(printed(&sandbox, wrap).await?, "late\n");
    ensure_eq!(printed(&sandbox, "sys.stdout = own[0]\nprint('back')").await?, "back\n");
    Ok(())
}

async fn a_flood_takes_little_host_memory(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import sys; sys.stdout.write('x' * (8 << 20)); None").await?;
    let before = host::resident_memory()?;
    let code = "for _ in range(256): n = sys.stdout.write('x' * (1 << 20))";
    let result = ok(&sandbox, code).await?;
    let grown = host::resident_memory()?.saturating_sub(before);
    ensure_eq!(result.stdout_totals.bytes_total, 256 << 20);
    ensure!(grown < 48 << 20, "256 MiB of output took {} MiB of memory", grown >> 20);
    Ok(())
}
