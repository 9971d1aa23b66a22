//! Settings that make no sense, or too much.

use std::time::Duration;

use sandbox_core::{ByteSize, ErrorKind, NetworkPolicy, SandboxBuilder, SingleBackend};

use super::support::attack_for;
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, as_shown, is_usable, ok, text, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("settings", [run_code, local], {
        k239_limits_at_their_edges needs strict;
        k241_patterns_that_are_none;
        k246_working_directories_of_the_system needs strict;
        variables_that_load_code;
        arguments_and_variables_of_every_size needs commands;
        names_and_tags_of_every_size;
        code_of_every_size;
        timeouts_at_their_edges;
    })
}

type Configure = fn(SandboxBuilder<SingleBackend>) -> SandboxBuilder<SingleBackend>;

async fn k239_limits_at_their_edges(f: Fixture) -> Checked {
    // Each is refused as what it is, or held. None means that there is no limit.
    let edges: [(&str, Configure); 9] = [
        ("1 byte of memory", |b| b.memory(ByteSize::bytes(1))),
        ("4 MiB of memory", |b| b.memory(ByteSize::mib(4))),
        ("16 MiB of memory", |b| b.memory(ByteSize::mib(16))),
        ("more memory than there is", |b| b.memory(ByteSize::mib(1 << 40))),
        ("1 byte of disk", |b| b.disk(ByteSize::bytes(1))),
        ("more disk than there is", |b| b.disk(ByteSize::mib(1 << 40))),
        ("4 processes", |b| b.processes(4)),
        ("most processes", |b| b.processes(u32::MAX)),
        ("a ten thousandth of a core", |b| b.cpu(0.0001)),
    ];
    for (what, configure) in edges {
        match within(WAIT_TIMEOUT, configure(f.builder()).create().into_future()).await? {
            Err(error) => {
                let allowed = [
                    ErrorKind::InvalidArgument,
                    ErrorKind::Unsupported,
                    ErrorKind::ResourceExhausted,
                    ErrorKind::QuotaExceeded,
                ];
                ensure!(allowed.contains(&error.kind()), "{what}: {} {error}", error.kind());
            }
            Ok(sandbox) => {
                f.keep(&sandbox);
                let result = attack_for(&sandbox, "1 + 1", WAIT_TIMEOUT).await?;
                ensure_eq!(result.text(), Some("2"), "{what}");
            }
        }
    }
    let few = f.create(|b| b.disk(ByteSize::mib(1))).await?;
    let code = "
total = 0
import os
for folder in ['/workspace', '/data', '/run', '/tmp', '/var/tmp', '/home/sandbox', '/dev/shm']:
    try:
        with open(folder + '/x', 'wb', 0) as file:
            for _ in range(64): total += file.write(b'x' * (1 << 20))
    except OSError: pass
total >> 20";
    let total: u64 = text(&few, code).await?.parse().unwrap_or(u64::MAX);
    ensure!(total <= 8, "{total} MiB in a sandbox with 1 MiB of disk");
    Ok(())
}

async fn k241_patterns_that_are_none(_: Fixture) -> Checked {
    for pattern in [
        "http://x/",
        "",
        " ",
        "a b",
        "exa mple",
        "x:99999",
        "x:-1",
        "1.2.3.4/33",
        "[::1",
        "::1]",
        "*.*",
        "a..b",
        "*",
        "user@host",
        "x/y",
        "x?y",
        "-x",
        "x\ny",
        "x\0y",
        "*x",
        "x*",
        "10.0.0.0/8/8",
        "[::]/129",
        "%",
        "\u{200b}",
    ] {
        let policy = NetworkPolicy::allowlist([pattern]);
        ensure!(
            policy.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidArgument),
            "{pattern:?}: {policy:?}"
        );
    }
    Ok(())
}

async fn k246_working_directories_of_the_system(f: Fixture) -> Checked {
    for path in [
        "/proc",
        "/proc/1/root",
        "/sys",
        "/dev",
        "/usr/bin/env",
        "/root",
        "/etc",
        "/nowhere/at/all",
        "/dev/null",
    ] {
        match within(WAIT_TIMEOUT, f.builder().working_dir(path).create().into_future()).await? {
            Err(error) => {
                ensure!(error.kind() != ErrorKind::Unexpected, "{path}: {error:?}");
            }
            Ok(sandbox) => {
                f.keep(&sandbox);
                let made = attack_for(&sandbox, "import os; os.getcwd()", WAIT_TIMEOUT).await?;
                ensure_eq!(made.text(), Some(as_shown(&format!("'{path}'"))), "{made:?}");
            }
        }
    }
    Ok(())
}

async fn variables_that_load_code(f: Fixture) -> Checked {
    // They are the user's to set, and touch nothing but that sandbox: the warm interpreter never has them.
    let sandbox = f
        .create(|b| {
            b.env("LD_PRELOAD", "/workspace/evil.so")
                .env("PYTHONPATH", "/workspace/evil")
                .env("PYTHONSTARTUP", "/workspace/evil.py")
                .env("PYTHONHOME", "/nowhere")
                .env("BASH_ENV", "/workspace/evil.sh")
                .env("IFS", "x")
                .env("PATH", "")
        })
        .await?;
    is_usable(&sandbox).await?;
    ok(&sandbox, "import os; os._exit(0) if False else None").await?;
    is_usable(&f.sandbox().await?).await?;
    Ok(())
}

async fn arguments_and_variables_of_every_size(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let huge = "x".repeat(3 << 20);
    let many: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let programs: Vec<Vec<String>> = vec![
        vec!["true".into(), huge.clone()],
        std::iter::once("true".to_owned()).chain(many).collect(),
        vec![huge.clone()],
        vec!["a\nb".into()],
        vec!["".into(), "x".into()],
        vec!["/".into()],
        vec!["..".into()],
    ];
    let mut outcomes = Vec::new();
    for program in programs {
        let run = sandbox.commands().run(program).timeout(WAIT_TIMEOUT);
        outcomes.push(match within(WAIT_TIMEOUT, run).await? {
            Ok(result) => result.exit_code.to_string(),
            Err(error) => error.kind().to_string(),
        });
    }
    // The kernel takes no argument of 3 MiB, and as many as have room. The others are names of no program.
    let told = outcomes.join(" ");
    ensure_eq!(outcomes[1], "0", "{told}");
    ensure_eq!(outcomes[0], ErrorKind::InvalidArgument.to_string(), "{told}");
    for (at, outcome) in outcomes.iter().enumerate().skip(2) {
        let known = ["126", "127", "not_found", "permission_denied", "invalid_argument"];
        ensure!(known.contains(&outcome.as_str()), "program {at}: {told}");
    }
    let strange = sandbox.commands().run("printf %s \"$B\"").env("B", "\n\r\t\u{1b}");
    ensure_eq!(within(WAIT_TIMEOUT, strange).await??.stdout, "\n\r\t\u{1b}");
    for (name, value) in [("A", huge.as_str()), (huge.as_str(), "x")] {
        let run = sandbox.commands().run("true").env(name, value).timeout(WAIT_TIMEOUT);
        let refused = within(WAIT_TIMEOUT, run).await?;
        ensure!(
            refused.is_err_and(|error| error.kind() == ErrorKind::InvalidArgument),
            "{}",
            name.len()
        );
    }
    let big =
        sandbox.run_code("import os; len(os.environ['A'])").env("A", huge).timeout(WAIT_TIMEOUT);
    ensure_eq!(big.await?.text(), Some("3145728"), "a variable of a run");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn names_and_tags_of_every_size(f: Fixture) -> Checked {
    for name in ["x".repeat(10_000), "a/b".into(), "../x".into(), "-".into(), "\u{202e}x".into()] {
        if let Ok(sandbox) = f.builder().name(&name).create().await {
            f.keep(&sandbox);
            ensure!(!name.contains('/'), "{name:?} is a path");
        }
    }
    let many = (0..2_000).fold(f.builder(), |b, n| b.tag(format!("k{n}"), "v".repeat(100)));
    if let Ok(sandbox) = many.create().await {
        f.keep(&sandbox);
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn code_of_every_size(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        String::new(),
        "\n".repeat(1_000_000),
        " ".repeat(1_000_000),
        "#".repeat(10 << 20),
        "x = 1\n".repeat(200_000),
        format!("len({:?})", "é".repeat(1 << 20)),
        "\u{feff}1 + 1".to_owned(),
        "1 + 1\0".to_owned(),
        "\r1 + 1\r".to_owned(),
        "\u{c}1 + 1".to_owned(),
        format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        "-".repeat(100_000) + "1",
        "if 1:\n".to_owned()
            + &(1..99).map(|n| format!("{}if 1:\n", " ".repeat(n))).collect::<String>(),
        "# -*- coding: utf-16 -*-\n1".to_owned(),
    ] {
        let start: String = code.chars().take(20).collect();
        let outcome =
            within(2 * WAIT_TIMEOUT, sandbox.run_code(code).timeout(WAIT_TIMEOUT)).await?;
        if let Err(error) = outcome {
            let kinds = [ErrorKind::InvalidArgument, ErrorKind::ResourceExhausted];
            ensure!(kinds.contains(&error.kind()), "{start:?}: {error:?}");
        }
        is_usable(&sandbox).await?;
    }
    // More than a message may have is refused, and costs nothing.
    let far_too_much = "#".repeat(80 << 20);
    let answer = within(WAIT_TIMEOUT, sandbox.run_code(far_too_much).into_future()).await?;
    ensure!(
        answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidArgument),
        "{:?}",
        answer.map(|result| result.failure)
    );
    is_usable(&sandbox).await?;
    Ok(())
}

async fn timeouts_at_their_edges(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for nanoseconds in [1, 1_000, 1_000_000] {
        let run = sandbox.run_code("1 + 1").timeout(Duration::from_nanos(nanoseconds));
        match within(WAIT_TIMEOUT, run).await? {
            Ok(result) => ensure!(
                result.text() == Some("2") || result.failure.is_some(),
                "neither a value nor a failure: {result:?}"
            ),
            Err(error) => ensure_eq!(error.kind(), ErrorKind::InvalidArgument),
        }
        is_usable(&sandbox).await?;
    }
    for duration in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::from_secs(1 << 60)] {
        let answer = sandbox.run_code("1 + 1").timeout(duration).await;
        ensure!(
            answer.is_err_and(|error| error.kind() == ErrorKind::InvalidArgument),
            "{duration:?}"
        );
    }
    is_usable(&sandbox).await?;
    Ok(())
}
