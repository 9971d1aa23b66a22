//! The cases of the reference's own suite that are about running code. `REFERENCE.md` maps all forty.

use sandbox_core::ErrorKind;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, describe, ok, printed, raises, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("reference", [run_code], {
        case_05_an_expression_has_a_result;
        case_06_variables_persist;
        case_07_print_goes_to_stdout;
        case_08_an_exception_is_a_code_error;
        case_09_a_syntax_error_is_a_code_error;
        case_10_an_exit_status_is_kept;
        case_11_a_counter_persists;
        case_12_functions_persist;
        case_13_top_level_await_sets_a_variable;
        case_14_async_functions_persist;
        case_15_nested_awaits;
        case_16_asyncio_run_works;
        case_19_async_code_prints_to_both_streams;
        case_20_imports_persist;
        case_22_another_language_is_refused;
        case_24_env_is_visible_in_its_call;
        case_29_a_block_ends_in_its_value;
        case_30_a_class_chain;
        case_31_a_caught_exception_is_no_error;
        case_32_files_persist;
    })
}

async fn case_05_an_expression_has_a_result(f: Fixture) -> Checked {
    let result = ok(&f.sandbox().await?, "1 + 1").await?;
    ensure_eq!(result.results[0].text(), Some("2"));
    Ok(())
}

async fn case_06_variables_persist(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 42").await?;
    ensure_eq!(text(&sandbox, "x * 2").await?, "84");
    Ok(())
}

async fn case_07_print_goes_to_stdout(f: Fixture) -> Checked {
    ensure_eq!(
        ok(&f.sandbox().await?, "print('Hello, World!')").await?.stdout_trimmed(),
        "Hello, World!"
    );
    Ok(())
}

async fn case_08_an_exception_is_a_code_error(f: Fixture) -> Checked {
    let result = raises(&f.sandbox().await?, "1 / 0", "ZeroDivisionError").await?;
    ensure!(result.execution_ok && !result.success(), "{}", describe(&result));
    Ok(())
}

async fn case_09_a_syntax_error_is_a_code_error(f: Fixture) -> Checked {
    raises(&f.sandbox().await?, "if if if", "SyntaxError").await.map(drop)
}

async fn case_10_an_exit_status_is_kept(f: Fixture) -> Checked {
    let result = run(&f.sandbox().await?, "import sys; sys.exit(2)").await?;
    ensure!(result.execution_ok && !result.success(), "{}", describe(&result));
    ensure_eq!((result.exit_code, result.code_error), (Some(2), None));
    Ok(())
}

async fn case_11_a_counter_persists(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "counter = 0").await?;
    ok(&sandbox, "counter += 10").await?;
    ensure_eq!(text(&sandbox, "counter").await?, "10");
    Ok(())
}

async fn case_12_functions_persist(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "def greet(name):\n    return name").await?;
    ensure_eq!(text(&sandbox, "greet('World')").await?, as_shown("'World'"));
    Ok(())
}

async fn case_13_top_level_await_sets_a_variable(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "async def set_value(): return 123").await?;
    ok(&sandbox, "value = await set_value()").await?;
    ensure_eq!(text(&sandbox, "value").await?, "123");
    Ok(())
}

async fn case_14_async_functions_persist(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nasync def fetch_data():\n    await asyncio.sleep(0.01)\n    return {'status': 'success', 'value': 42}").await?;
    let code = "result = await fetch_data()\nprint(f\"Status: {result['status']}, Value: {result['value']}\")\nresult['value']";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.stdout_trimmed(), "Status: success, Value: 42");
    ensure_eq!(result.text(), Some("42"));
    Ok(())
}

async fn case_15_nested_awaits(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "async def inner(): return 25\nasync def outer(): return await inner() * 2\nprint('Final result:', await outer())";
    ensure_eq!(printed(&sandbox, code).await?, "Final result: 50\n");
    Ok(())
}

async fn case_16_asyncio_run_works(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nasync def async_add(a, b): return a + b").await?;
    ensure_eq!(text(&sandbox, "asyncio.run(async_add(20, 22))").await?, "42");
    Ok(())
}

async fn case_19_async_code_prints_to_both_streams(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import asyncio, sys\nasync def f():\n    print('to stdout')\n    print('to stderr', file=sys.stderr)\nawait f()";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(
        (result.stdout_trimmed().as_str(), result.stderr_trimmed().as_str()),
        ("to stdout", "to stderr")
    );
    Ok(())
}

async fn case_20_imports_persist(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import json").await?;
    ensure_eq!(text(&sandbox, "json.dumps({'key': 1})").await?, as_shown("'{\"key\": 1}'"));
    Ok(())
}

async fn case_22_another_language_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let Err(error) = sandbox.run_code("1").language("javascript").await else {
        return Err("javascript was accepted".to_owned().into());
    };
    ensure!(
        matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument),
        "kind of {error:?}"
    );
    Ok(())
}

async fn case_24_env_is_visible_in_its_call(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result =
        sandbox.run_code("import os; os.environ['TEST_VAR']").env("TEST_VAR", "test_value").await?;
    ensure_eq!(result.text(), Some(as_shown("'test_value'")));
    Ok(())
}

async fn case_29_a_block_ends_in_its_value(f: Fixture) -> Checked {
    ensure_eq!(text(&f.sandbox().await?, "x=10\nx*2").await?, "20");
    Ok(())
}

async fn case_30_a_class_chain(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
class Calculator:
    def __init__(self, value): self.value = value
    def add(self, n):
        self.value += n
        return self
    def multiply(self, n):
        self.value *= n
        return self
calc = Calculator(5).add(3).multiply(2)
calc.value
    ";
    ensure_eq!(text(&sandbox, code).await?, "16");
    Ok(())
}

async fn case_31_a_caught_exception_is_no_error(f: Fixture) -> Checked {
    let code = "try:\n    1 / 0\nexcept ZeroDivisionError:\n    result = 'caught'\nresult";
    let result = ok(&f.sandbox().await?, code).await?;
    ensure_eq!((result.text(), result.code_error.as_ref()), (Some(as_shown("'caught'")), None));
    Ok(())
}

async fn case_32_files_persist(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "with open('test.txt', 'w') as f: n = f.write('content')").await?;
    ensure_eq!(text(&sandbox, "open('test.txt').read()").await?, as_shown("'content'"));
    Ok(())
}
