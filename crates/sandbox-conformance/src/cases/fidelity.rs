//! Bytes and text, exactly as they were.

use futures_util::StreamExt as _;
use sandbox_core::{EventKind, OutputStream};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, as_shown, ok, printed, raises, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("fidelity", [run_code], {
        nul_bytes;
        characters_written_byte_by_byte;
        characters_across_chunks;
        lone_surrogates;
        bytes_that_are_not_text;
        every_byte_in_a_stream;
        line_ends_are_kept;
        a_very_long_line;
        control_characters_are_kept;
        text_of_values_is_exact;
        a_deleted_working_directory;
        output_across_a_fork;
    })
}

async fn nul_bytes(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(printed(&sandbox, "print('a\\0b')").await?, "a\0b\n");
    ensure_eq!(text(&sandbox, "'a\\0b'").await?, as_shown("'a\\x00b'"));
    Ok(())
}

async fn characters_written_byte_by_byte(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, time\nfor b in '€𝄞ä'.encode():\n    n = os.write(1, bytes([b]))\n    time.sleep(0.002)";
    ensure_eq!(printed(&sandbox, code).await?, "€𝄞ä");
    Ok(())
}

async fn characters_across_chunks(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for shift in 0..3 {
        let code = format!("import sys; n = sys.stdout.write('x' * {shift} + '€' * 100_000)");
        let output = printed(&sandbox, &code).await?;
        ensure!(output == format!("{}{}", "x".repeat(shift), "€".repeat(100_000)), "shift {shift}");
    }
    Ok(())
}

async fn lone_surrogates(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    raises(&sandbox, "print('\\ud800')", "UnicodeEncodeError").await?;
    ensure_eq!(text(&sandbox, "'\\ud800'").await?, as_shown("'\\ud800'"));
    let result = ok(&sandbox, "class S:\n    def __repr__(self): return 'x\\ud800y'\nS()").await?;
    let shown = result.text().unwrap_or_default();
    ensure!(shown.starts_with('x') && shown.ends_with('y'), "text {shown:?}");
    serde_json::to_string(&result)?;
    Ok(())
}

async fn bytes_that_are_not_text(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "import os; n = os.write(1, b'a\\xff\\xfeb\\n')").await?;
    ensure_eq!(result.logs.stdout_exact(), "a\u{fffd}\u{fffd}b\n");
    ensure_eq!(result.stdout_totals.bytes_total, 5);
    Ok(())
}

async fn every_byte_in_a_stream(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os; n = os.write(1, bytes(range(256)) * 16)";
    let mut events = sandbox.run_code(code).timeout(WAIT_TIMEOUT).stream().await?;
    let mut bytes = Vec::new();
    while let Some(event) = events.next().await {
        if let EventKind::Output { stream: OutputStream::Stdout, data } = event.kind {
            bytes.extend_from_slice(&data);
        }
    }
    let expected: Vec<u8> = (0..16).flat_map(|_| 0..=255).collect();
    ensure!(bytes == expected, "{} bytes differ from the {} written", bytes.len(), expected.len());
    Ok(())
}

async fn line_ends_are_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(printed(&sandbox, "print('a\\r\\nb\\rc\\n\\n', end='')").await?, "a\r\nb\rc\n\n");
    Ok(())
}

async fn a_very_long_line(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = ok(&sandbox, "print('y' * 500_000)").await?;
    ensure!(result.logs.stdout_exact() == format!("{}\n", "y".repeat(500_000)), "the line differs");
    ensure_eq!(result.logs.stdout.len(), 1, "messages");
    Ok(())
}

async fn control_characters_are_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "print('\\x1b[31mred\\x1b[0m \\x07 \\x08 \\x7f \\ufeff \\u2028')";
    ensure_eq!(
        printed(&sandbox, code).await?,
        "\u{1b}[31mred\u{1b}[0m \u{7} \u{8} \u{7f} \u{feff} \u{2028}\n"
    );
    Ok(())
}

async fn text_of_values_is_exact(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (code, expected) in [
        ("'a\\nb'", "'a\\nb'"),
        ("b'\\x00\\xff'", "b'\\x00\\xff'"),
        ("0.1 + 0.2", "0.30000000000000004"),
        ("2 ** 200", "1606938044258990275541962092341162602522202993782792835301376"),
        ("'  '", "'  '"),
        ("True", "True"),
        ("...", "Ellipsis"),
        ("{'b': 1, 'a': 2}", "{'b': 1, 'a': 2}"),
    ] {
        ensure_eq!(text(&sandbox, code).await?, as_shown(expected), "text of {code:?}");
    }
    Ok(())
}

async fn a_deleted_working_directory(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os\nos.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')";
    ok(&sandbox, code).await?;
    ensure_eq!(text(&sandbox, "6 * 7").await?, "42");
    Ok(())
}

async fn output_across_a_fork(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, sys\nsys.stdout.write('before ')\npid = os.fork()\nif pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)\nprint('after')";
    ensure_eq!(printed(&sandbox, code).await?, "before after\n");
    Ok(())
}
