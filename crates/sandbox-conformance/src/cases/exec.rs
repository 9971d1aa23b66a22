//! Running code: values, state, environment, directory, scripts.

use sandbox_core::ErrorKind;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, is_usable, json, ok, printed, raises, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("exec", [run_code], {
        the_last_expression_is_the_result;
        no_value_no_result;
        a_semicolon_hides_the_value;
        state_persists;
        definitions_see_later_globals;
        code_is_a_main_module;
        top_level_await;
        tasks_live_from_run_to_run;
        asyncio_run_works_after_await;
        user_code_runs_once;
        a_large_program;
        odd_layouts;
        unicode_everywhere;
        env_of_one_run_is_gone_after_it;
        env_of_the_sandbox_and_secrets_are_seen;
        odd_env_values_are_exact;
        variables_that_are_read_once_count;
        cwd_of_one_run_is_gone_after_it;
        the_working_directory_is_private_and_writable;
        modules_of_the_working_directory_import;
        subprocesses_work;
        shell_lines;
        future_imports_persist;
        an_unknown_language_is_refused;
        a_script_has_arguments needs run_script;
        a_script_is_a_file_while_it_runs needs run_script;
        a_script_without_a_file_name needs run_script;
        a_script_error_names_its_line needs run_script;
        stdin_is_read needs run_stdin;
        stdin_is_at_its_end_by_default;
        stdin_of_one_run_is_gone_after_it needs run_stdin;
    })
}

async fn the_last_expression_is_the_result(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (code, expected) in [
        ("1 + 1", "2"),
        ("'a' + \"b\"", "'ab'"),
        ("x = 10\nx * 2", "20"),
        ("[i * i for i in range(4)]", "[0, 1, 4, 9]"),
        ("(1,\n 2)\n\n", "(1, 2)"),
        ("def f():\n    return 7\nf()   # a comment", "7"),
        ("for i in range(3):\n    pass\ni", "2"),
        ("lambda: 0 if False else 0\n'end'", "'end'"),
    ] {
        let result = ok(&sandbox, code).await?;
        ensure_eq!(result.text(), Some(as_shown(expected)), "text of {code:?}");
        ensure_eq!(result.results.len(), 1, "results of {code:?}");
        ensure!(result.results[0].is_main_result, "{code:?} has no main result");
        ensure_eq!(result.stdout_trimmed(), "", "output of {code:?}");
    }
    Ok(())
}

async fn no_value_no_result(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in ["x = 1", "None", "", "\n\n", "# only a comment", "def f(): return 1", "print()"] {
        let result = ok(&sandbox, code).await?;
        ensure_eq!(result.results.len(), 0, "results of {code:?}");
    }
    Ok(())
}

async fn a_semicolon_hides_the_value(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(ok(&sandbox, "1 + 1;").await?.results.len(), 0);
    ensure_eq!(text(&sandbox, "';'").await?, as_shown("';'"));
    Ok(())
}

async fn state_persists(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import json\ncounter = 0\nclass A:\n    def f(self): return 'f'\na = A()")
        .await?;
    ok(&sandbox, "counter += 10").await?;
    ensure_eq!(text(&sandbox, "counter").await?, "10");
    ensure_eq!(text(&sandbox, "json.dumps([a.f()])").await?, as_shown("'[\"f\"]'"));
    Ok(())
}

async fn definitions_see_later_globals(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "def f(): return later").await?;
    ok(&sandbox, "later = 'now'").await?;
    ensure_eq!(text(&sandbox, "f()").await?, as_shown("'now'"));
    Ok(())
}

async fn code_is_a_main_module(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(text(&sandbox, "__name__").await?, as_shown("'__main__'"));
    ok(&sandbox, "x = 5\nimport __main__").await?;
    ensure_eq!(text(&sandbox, "__main__.x").await?, "5");
    Ok(())
}

async fn top_level_await(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x")
        .await?;
    ensure_eq!(text(&sandbox, "await f(123)").await?, "123");
    ok(&sandbox, "value = await f('kept')").await?;
    ensure_eq!(text(&sandbox, "value").await?, as_shown("'kept'"));
    ensure_eq!(text(&sandbox, "await asyncio.gather(f(1), f(2))").await?, "[1, 2]");
    raises(&sandbox, "await asyncio.wait_for(asyncio.sleep(9), 0.01)", "TimeoutError").await?;
    Ok(())
}

async fn tasks_live_from_run_to_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nasync def f(): return 9\ntask = asyncio.ensure_future(f())\nawait asyncio.sleep(0)").await?;
    ensure_eq!(text(&sandbox, "await task").await?, "9");
    Ok(())
}

async fn asyncio_run_works_after_await(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nasync def f(): return 42\nawait f()").await?;
    ensure_eq!(text(&sandbox, "asyncio.run(f())").await?, "42");
    ensure_eq!(text(&sandbox, "await f()").await?, "42");
    Ok(())
}

/// A driver that retries in another way after a failure runs code twice.
async fn user_code_runs_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import asyncio\nruns = []").await?;
    for (code, class) in [
        (
            "runs.append(1); asyncio.run(asyncio.sleep(0)); raise RuntimeError('event loop is running')",
            "RuntimeError",
        ),
        ("runs.append(1); raise SyntaxError(\"'await' outside function\")", "SyntaxError"),
        ("runs.append(1); await asyncio.sleep(0); 1/0", "ZeroDivisionError"),
        ("runs.append(1); eval('1 +')", "SyntaxError"),
    ] {
        raises(&sandbox, code, class).await?;
    }
    ensure_eq!(text(&sandbox, "len(runs)").await?, "4");
    Ok(())
}

async fn a_large_program(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut code: String = (0..40_000).map(|i| format!("x{} = {i} # line\n", i % 50)).collect();
    code.push_str("x49");
    ensure_eq!(text(&sandbox, &code).await?, "39999");
    let literal = format!("len('{}')", "y".repeat(4 << 20));
    ensure_eq!(text(&sandbox, &literal).await?, (4 << 20).to_string());
    Ok(())
}

async fn odd_layouts(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (code, expected) in [
        ("x = 1\r\nx + 1\r\n", "2"),
        ("if True:\n\tx = 3\nx", "3"),
        ("'''a\nb'''", "'a\\nb'"),
        ("\n\n   \n5", "5"),
        ("x = 1; y = 2; x + y", "3"),
        ("'\\\n'", "''"),
        ("calc = 16\ncalc\n   ", "16"),
    ] {
        ensure_eq!(text(&sandbox, code).await?, as_shown(expected), "text of {code:?}");
    }
    Ok(())
}

async fn unicode_everywhere(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(text(&sandbox, "größe = '日本 🎉'\ngröße").await?, as_shown("'日本 🎉'"));
    ensure_eq!(printed(&sandbox, "print('naïve Ω 𝄞')").await?, "naïve Ω 𝄞\n");
    let error = raises(&sandbox, "raise ValueError('käse')", "ValueError").await?;
    ensure_eq!(error.code_error.map(|error| error.value).as_deref(), Some("käse"));
    Ok(())
}

async fn env_of_one_run_is_gone_after_it(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("CONFIGURED", "sandbox")).await?;
    let read = "import os\n(os.environ.get('CONFIGURED'), os.environ.get('ONCE'), os.popen('echo $ONCE').read())";
    let run = sandbox.run_code(read).env("CONFIGURED", "run").env("ONCE", "1").await?;
    ensure_eq!(run.text(), Some("('run', '1', '1\\n')"));
    ensure_eq!(text(&sandbox, read).await?, "('sandbox', None, '\\n')");
    Ok(())
}

async fn env_of_the_sandbox_and_secrets_are_seen(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("PLAIN", "p").secret("API_KEY", "hunter2-secret")).await?;
    ensure_eq!(
        text(&sandbox, "import os; os.environ['PLAIN'] + os.environ['API_KEY']").await?,
        as_shown("'phunter2-secret'")
    );
    let shown =
        format!("{sandbox:?} {:?} {}", sandbox.info(), serde_json::to_string(&sandbox.info())?);
    ensure!(!shown.contains("hunter2"), "the secret is shown: {shown}");
    Ok(())
}

async fn variables_that_are_read_once_count(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("TZ", "UTC-3").env("PYTHONPATH", "lib:/tmp/lib")).await?;
    let hour = "import time; time.localtime(0).tm_hour";
    ensure_eq!(text(&sandbox, hour).await?, "3");
    ensure_eq!(sandbox.run_code(hour).env("TZ", "UTC-9").await?.text(), Some("9"));
    ensure_eq!(text(&sandbox, hour).await?, "3");
    let looked = "import sys; '/tmp/lib' in sys.path and any(p.endswith('/lib') and p != '/tmp/lib' for p in sys.path)";
    ensure_eq!(text(&sandbox, looked).await?, "True");
    Ok(())
}

async fn odd_env_values_are_exact(f: Fixture) -> Checked {
    let odd = "a=b 'c' \"d\" $HOME `id` \\ \n\t é 🎉 ";
    let sandbox = f.create(|b| b.env("ODD", odd).env("EMPTY", "")).await?;
    let found = json(
        &sandbox,
        "import os, json; print(json.dumps([os.environ['ODD'], os.environ['EMPTY']]))",
    )
    .await?;
    ensure_eq!(found, serde_json::json!([odd, ""]));
    Ok(())
}

async fn cwd_of_one_run_is_gone_after_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before =
        text(&sandbox, "import os; os.makedirs('sub', exist_ok=True); os.getcwd()").await?;
    let inside = sandbox.run_code("os.path.basename(os.getcwd())").cwd("sub").await?;
    ensure_eq!(inside.text(), Some(as_shown("'sub'")));
    ensure_eq!(text(&sandbox, "os.getcwd()").await?, before);
    ok(&sandbox, "os.chdir('sub')").await?;
    ensure_eq!(
        text(&sandbox, "os.path.basename(os.getcwd())").await?,
        as_shown("'sub'"),
        "a change by the code stays"
    );
    Ok(())
}

async fn the_working_directory_is_private_and_writable(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    ok(&one, "open('mine.txt', 'w').write('one')").await?;
    ensure_eq!(text(&one, "open('mine.txt').read()").await?, as_shown("'one'"));
    raises(&two, "open('mine.txt')", "FileNotFoundError").await?;
    Ok(())
}

async fn modules_of_the_working_directory_import(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "open('helper_mod.py', 'w').write('VALUE = 11')").await?;
    ensure_eq!(text(&sandbox, "import helper_mod; helper_mod.VALUE").await?, "11");
    Ok(())
}

async fn subprocesses_work(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import subprocess, sys\nsubprocess.run(['sh', '-c', 'echo from child; echo warn >&2; exit 4']).returncode";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.text(), Some("4"));
    ensure_eq!(result.stdout_trimmed(), "from child");
    ensure_eq!(result.stderr_trimmed(), "warn");
    ensure_eq!(
        text(&sandbox, "subprocess.check_output([sys.executable, '-c', 'print(6 * 7)'])").await?,
        "b'42\\n'"
    );
    Ok(())
}

async fn shell_lines(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(printed(&sandbox, "!echo one two").await?, "one two\n");
    ok(&sandbox, "lines = !printf 'a\\nb\\n'").await?;
    ensure_eq!(text(&sandbox, "list(lines)").await?, "['a', 'b']");
    ensure_eq!(text(&sandbox, "'!echo not a command'").await?, as_shown("'!echo not a command'"));
    Ok(())
}

async fn future_imports_persist(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "from __future__ import annotations").await?;
    ok(&sandbox, "def f(x: not_defined_anywhere): pass").await?;
    ensure_eq!(text(&sandbox, "f.__annotations__").await?, "{'x': 'not_defined_anywhere'}");
    Ok(())
}

async fn an_unknown_language_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let Err(error) = sandbox.run_code("1").language("klingon").await else {
        return Err("an unknown language was accepted".to_owned().into());
    };
    ensure!(
        matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument),
        "kind of {error:?}"
    );
    ensure!(error.to_string().contains("klingon"), "the language is not named: {error}");
    ensure_eq!(sandbox.run_code("3").language("python").await?.text(), Some("3"));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_script_has_arguments(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nprint(__name__, __file__, sys.argv)\n6 * 7";
    let result = sandbox.run_code(code).script("tool.py", ["-v", "a b"]).await?;
    let output = result.stdout_trimmed();
    ensure!(output.starts_with("__main__ ") && output.contains("tool.py"), "output {output:?}");
    ensure!(output.ends_with("tool.py', '-v', 'a b']"), "arguments in {output:?}");
    ensure_eq!(result.results.len(), 0, "a script echoes nothing");
    let exit = sandbox.run_code("import sys; sys.exit(3)").script("x.py", [""; 0]).await?;
    ensure_eq!(exit.exit_code, Some(3));
    Ok(())
}

async fn a_script_is_a_file_while_it_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import inspect, multiprocessing, os, sys\n\
                def twice(n): return 2 * n\n\
                if __name__ == '__main__':\n    \
                print(os.path.isabs(__file__), os.path.basename(__file__), open(__file__).readline().split()[0])\n    \
                print(sys.path[0] == os.path.dirname(__file__), os.path.samefile(sys.argv[0], __file__))\n    \
                print(inspect.getsource(twice), end='')\n    \
                with multiprocessing.get_context('spawn').Pool(1) as pool: print(pool.map(twice, [1, 2]))\n    \
                n = open('where', 'w').write(__file__)";
    let result = sandbox.run_code(code).script("tool.py", [""; 0]).await?;
    let expected = "True tool.py import\nTrue True\ndef twice(n): return 2 * n\n[2, 4]\n";
    ensure_eq!(result.logs.stdout_exact(), expected, "{result:?}");
    ensure_eq!(
        text(&sandbox, "import os, sys\nos.path.exists(open('where').read())").await?,
        "False"
    );
    // One that is there already is the one, and modules are looked for beside it.
    let prepare = "os.makedirs('app', exist_ok=True)\nfor name, text in (('main', 'import beside\\nprint(beside.x, __file__)'), ('beside', 'x = 5')):\n    n = open(f'app/{name}.py', 'w').write(text)\nos.path.abspath('app/main.py')";
    let path = text(&sandbox, prepare).await?;
    let code = "import beside\nprint(beside.x, __file__)";
    let result = sandbox.run_code(code).script("app/main.py", [""; 0]).await?;
    ensure_eq!(result.stdout_trimmed(), format!("5 {}", path.trim_matches('\'')));
    // And another one of that name stays as it is.
    let result =
        sandbox.run_code("print(open(__file__).read())").script("app/main.py", [""; 0]).await?;
    ensure_eq!(result.stdout_trimmed(), "print(open(__file__).read())");
    ensure_eq!(
        text(&sandbox, "open('app/main.py').read()").await?,
        as_shown("'import beside\\nprint(beside.x, __file__)'")
    );
    Ok(())
}

async fn a_script_without_a_file_name(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nprint(sys.argv[1:])\n1/0";
    let result = sandbox.run_code(code).script("", ["a"]).await?;
    ensure_eq!(result.stdout_trimmed(), "['a']");
    let traceback = result.code_error.map(|error| error.traceback).unwrap_or_default();
    ensure!(traceback.contains("\"<stdin>\", line 3"), "traceback {traceback}");
    Ok(())
}

async fn a_script_error_names_its_line(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "def f():\n    raise KeyError('k')\n\nf()\n";
    let result = sandbox.run_code(code).script("tool.py", [""; 0]).await?;
    let error = result.code_error.unwrap_or_default();
    ensure_eq!(error.name, "KeyError");
    for part in ["tool.py\", line 4", "tool.py\", line 2", "raise KeyError('k')"] {
        ensure!(error.traceback.contains(part), "no {part:?} in {}", error.traceback);
    }
    Ok(())
}

async fn stdin_is_read(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nfirst = input()\nrest = sys.stdin.read()\n(first, rest)";
    let result = sandbox.run_code(code).stdin("one\ntwo\nthree").await?;
    ensure_eq!(result.text(), Some("('one', 'two\\nthree')"));
    let large = vec![b'x'; 3 << 20];
    let result = sandbox.run_code("len(sys.stdin.buffer.read())").stdin(large).await?;
    ensure_eq!(result.text(), Some("3145728"));
    Ok(())
}

async fn stdin_is_at_its_end_by_default(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    raises(&sandbox, "input()", "EOFError").await?;
    raises(&sandbox, "input('name? ')", "EOFError").await?;
    Ok(())
}

async fn stdin_of_one_run_is_gone_after_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(sandbox.run_code("input()").stdin("a\nb\n").await?.text(), Some(as_shown("'a'")));
    raises(&sandbox, "input()", "EOFError").await?;
    ensure_eq!(sandbox.run_code("input()").stdin("c\n").await?.text(), Some(as_shown("'c'")));
    Ok(())
}
