//! Cells of a notebook: everything that they have, and programs do not.

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, describe, ok, printed, raises, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("cells", [run_code, rich_results], {
        the_last_values_have_names;
        a_name_of_the_code_is_not_taken_for_the_last_value;
        the_last_error_can_be_looked_at;
        a_warning_is_shown_in_each_cell;
        a_warning_of_the_caller_names_no_line_of_ours;
        indented_code_runs;
        a_command_gives_its_lines;
        what_an_object_is_can_be_asked;
        values_are_shown_in_the_way_of_the_code;
        a_task_is_made_without_awaiting;
        tasks_are_gathered_without_awaiting;
    })
}

async fn the_last_values_have_names(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for value in ["1", "'two'", "[3]"] {
        ok(&sandbox, value).await?;
    }
    ok(&sandbox, "None").await?;
    ensure_eq!(text(&sandbox, "_, __, ___").await?, "([3], 'two', 1)");
    Ok(())
}

async fn a_name_of_the_code_is_not_taken_for_the_last_value(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "_ = 'mine'").await?;
    ok(&sandbox, "1 + 1").await?;
    ensure_eq!(text(&sandbox, "_").await?, as_shown("'mine'"));
    ok(&sandbox, "del _").await?;
    ok(&sandbox, "2 + 2").await?;
    ensure_eq!(text(&sandbox, "_").await?, "4");
    Ok(())
}

async fn the_last_error_can_be_looked_at(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    raises(&sandbox, "def fail(x):\n    return 1 / x\nfail(0)", "ZeroDivisionError").await?;
    let code = "
import sys, traceback
frames = traceback.extract_tb(sys.last_traceback)
(sys.last_type.__name__, str(sys.last_value), frames[-1].name, frames[-1].line)";
    ensure_eq!(
        text(&sandbox, code).await?,
        "('ZeroDivisionError', 'division by zero', 'fail', 'return 1 / x')"
    );
    Ok(())
}

async fn a_warning_is_shown_in_each_cell(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import warnings").await?;
    for attempt in 1..=2 {
        let result = ok(&sandbox, "for _i in 'ab': warnings.warn('take care')").await?;
        let shown = result.stderr_trimmed().matches("UserWarning: take care").count();
        ensure_eq!(shown, 1, "warnings in cell {attempt}: {}", describe(&result));
    }
    Ok(())
}

async fn a_warning_of_the_caller_names_no_line_of_ours(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for level in [2, 3, 8, 40] {
        let code = format!("import warnings\nwarnings.warn('take care', stacklevel={level})");
        let result = ok(&sandbox, &code).await?;
        let shown = result.stderr_trimmed();
        ensure!(shown.contains("UserWarning: take care"), "{}", describe(&result));
        ensure!(
            !shown.contains("<sandbox") && !shown.contains("/dev/fd") && !shown.contains("<string"),
            "level {level}: {shown}"
        );
    }
    Ok(())
}

async fn indented_code_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "\n    x = 20\n    if x:\n        x += 1\n    x * 2\n";
    ensure_eq!(text(&sandbox, code).await?, "42");
    ensure_eq!(text(&sandbox, "  x").await?, "21");
    let result = raises(&sandbox, "    x = 1\n    1 / 0", "ZeroDivisionError").await?;
    let traceback = result.code_error.map(|error| error.traceback).unwrap_or_default();
    ensure!(traceback.contains("line 2"), "{traceback}");
    raises(&sandbox, "x = 1\n    y = 2", "IndentationError").await?;
    Ok(())
}

async fn a_command_gives_its_lines(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(text(&sandbox, "!!echo one; echo two").await?, "['one', 'two']");
    Ok(())
}

async fn what_an_object_is_can_be_asked(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "def area(width, height=2):\n    'Multiplies.'\n    return width * height")
        .await?;
    for (question, told) in [
        ("area?", ["area(width, height=2)", "Multiplies."]),
        ("?area", ["area(width, height=2)", "Multiplies."]),
        ("area??", ["area(width, height=2)", "return width * height"]),
        ("x = 1\nlen?", ["len(obj, /)", "Return the number of items"]),
    ] {
        let result = ok(&sandbox, question).await?;
        let shown = result.results.iter().find_map(|item| item.text()).unwrap_or_default();
        for part in told {
            ensure!(shown.contains(part), "{question}: {part:?} is not in {}", describe(&result));
        }
    }
    let result = run(&sandbox, "nothing_of_that_name?").await?;
    let found = result.results.iter().filter_map(|item| item.text()).collect::<String>();
    ensure!((found + &result.stdout_trimmed()).contains("not found"), "{}", describe(&result));
    Ok(())
}

async fn values_are_shown_in_the_way_of_the_code(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import sys
former = sys.displayhook
sys.displayhook = lambda value: print('shown:', value)
try:
    exec('')
finally:
    pass
6 * 7";
    ensure_eq!(printed(&sandbox, code).await?, "shown: 42\n");
    ok(&sandbox, "sys.displayhook = former").await?;
    ensure_eq!(text(&sandbox, "6 * 7").await?, "42");
    Ok(())
}

async fn a_task_is_made_without_awaiting(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import asyncio
async def work():
    await asyncio.sleep(0.01)
    return 'done'
task = asyncio.create_task(work())";
    ok(&sandbox, code).await?;
    ensure_eq!(text(&sandbox, "await task").await?, as_shown("'done'"));
    // What has a loop of its own goes on having it.
    ensure_eq!(text(&sandbox, "asyncio.run(work())").await?, as_shown("'done'"));
    Ok(())
}

async fn tasks_are_gathered_without_awaiting(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import asyncio
async def work(x):
    await asyncio.sleep(0)
    return x
both = asyncio.gather(work(1), work(2))
third = asyncio.ensure_future(work(3))";
    ok(&sandbox, code).await?;
    ensure_eq!(text(&sandbox, "await both, await third").await?, "([1, 2], 3)");
    Ok(())
}
