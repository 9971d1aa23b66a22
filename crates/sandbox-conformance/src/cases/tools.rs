//! Functions of the host that code calls: arguments, results, errors, listing.

use std::panic;

use sandbox_core::{ErrorKind, Sandbox, Tool, ToolResult};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, describe, is_usable, ok, printed, raises, refused, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("tools", [run_code, tools], {
        a_result_is_returned;
        arguments_are_given_in_several_ways;
        the_other_name_is_the_same_function;
        code_that_does_not_await_may_call;
        json_crosses_unchanged;
        text_of_all_kinds_crosses;
        big_values_cross;
        arguments_that_are_too_large_are_refused;
        a_result_that_is_too_large_is_an_error;
        an_error_is_an_exception_with_its_message;
        arguments_that_do_not_fit_are_an_error;
        arguments_that_are_no_json_are_an_error;
        calls_that_make_no_sense_are_errors;
        arguments_that_are_too_deep_are_an_error;
        an_unknown_tool_is_an_error_that_names_the_others;
        without_tools_there_are_none;
        a_panic_is_an_error;
        tools_are_listed_and_described;
        names_are_identifiers;
        a_tool_of_the_same_name_is_replaced;
        other_contexts_have_the_same needs contexts;
        they_are_kept_over_a_reset needs restart;
        they_are_kept_over_a_restart;
        they_are_kept_until_the_start;
        scripts_call_them needs run_script;
    })
}

pub(super) fn echo() -> Tool {
    Tool::new("echo", "Answers its arguments.", |all: Map<String, Value>| async move { Ok(all) })
}

pub(super) async fn with_tools<const N: usize>(f: &Fixture, tools: [Tool; N]) -> Checked<Sandbox> {
    let sandbox = f.sandbox().await?;
    for tool in tools {
        sandbox.register_tool(tool).await?;
    }
    Ok(sandbox)
}

/// Requires that the code raises a `ToolError` with that message, and keeps its state.
pub(super) async fn fails_with(sandbox: &Sandbox, code: &str, message: &str) -> Checked {
    let result = raises(sandbox, code, "ToolError").await?;
    let error = result.code_error.as_ref().map(|error| error.value.clone()).unwrap_or_default();
    ensure!(error.contains(message), "{code:?} said {error:?}, not {message:?}");
    Ok(())
}

async fn a_result_is_returned(f: Fixture) -> Checked {
    #[derive(Deserialize)]
    struct Add {
        a: i64,
        b: i64,
    }
    let add = Tool::new("add", "Adds.", |add: Add| async move { Ok(add.a + add.b) });
    let sandbox = with_tools(&f, [add]).await?;
    ensure_eq!(text(&sandbox, "await call_tool('add', {'a': 40, 'b': 2})").await?, "42");
    ensure_eq!(text(&sandbox, "x = await call_tool('add', a=1, b=2)\nx * 2").await?, "6");
    Ok(())
}

async fn arguments_are_given_in_several_ways(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    for (call, expected) in [
        ("'echo'", "{}"),
        ("'echo', None", "{}"),
        ("'echo', {'a': 1}", "{'a': 1}"),
        ("'echo', {'a': 1}, b=2", "{'a': 1, 'b': 2}"),
        ("'echo', a=1, b=2", "{'a': 1, 'b': 2}"),
        ("'echo', arguments={'a': 1}", "{'a': 1}"),
        ("name='echo', arguments={'a': 1}", "{'a': 1}"),
        ("name='echo', a=1", "{'a': 1}"),
        // An argument may have any name.
        ("'echo', name='x'", "{'name': 'x'}"),
        ("'echo', {'name': 'x', 'arguments': 1}", "{'arguments': 1, 'name': 'x'}"),
    ] {
        for form in ["await call_tool", "call_tool_sync"] {
            let code = format!("dict(sorted(({form}({call})).items()))");
            ensure_eq!(text(&sandbox, &code).await?, expected, "{code}");
        }
    }
    Ok(())
}

async fn the_other_name_is_the_same_function(f: Fixture) -> Checked {
    let called = Tool::new("test_tool", "", |all: Map<String, Value>| async move {
        Ok(format!("Called test_tool with {}", Value::Object(all)))
    });
    let sandbox = with_tools(&f, [called]).await?;
    ensure_eq!(text(&sandbox, "callable(__call_tool__)").await?, "True");
    let said = text(&sandbox, "await __call_tool__('test_tool', {'arg': 'value'})").await?;
    ensure_eq!(said, as_shown("'Called test_tool with {\"arg\":\"value\"}'"));
    Ok(())
}

async fn code_that_does_not_await_may_call(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "def twice(n):\n    return call_tool_sync('echo', n=n)['n'] * 2\n[twice(n) for n in range(5)]";
    ensure_eq!(text(&sandbox, code).await?, "[0, 2, 4, 6, 8]");
    // Inside of an event loop too, which then stands still.
    let code = "async def f():\n    return twice(21), await call_tool('echo', n=1)\nawait f()";
    ensure_eq!(text(&sandbox, code).await?, "(42, {'n': 1})");
    Ok(())
}

async fn json_crosses_unchanged(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "
values = {'none': None, 'yes': True, 'no': False, 'zero': 0, 'most': 2**64 - 1, 'least': -2**63, 'float': 0.1,
          'tiny': 5e-324, 'list': [1, [2, [3, []]]], 'dict': {'': {'a b': {}}}, 'text': 'x', 'empty': ''}
back = await call_tool('echo', values)
assert back == values, back
assert [type(v) for v in back.values()] == [type(back[k]) for k in back]
assert type(back['yes']) is bool and type(back['float']) is float and type(back['zero']) is int
assert await call_tool('echo', pair=(1, 2)) == {'pair': [1, 2]}
'same'";
    ensure_eq!(text(&sandbox, code).await?, as_shown("'same'"));
    Ok(())
}

async fn text_of_all_kinds_crosses(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = r#"
for word in ['é', '\U0001f600', '\0', '\n\r\t"\\', '\u2028', 'a\u0300', '\x7f', 'ﬀ' * 1000]:
    assert await call_tool('echo', {'t': word, word: 1}) == {'t': word, word: 1}, repr(word)
    assert call_tool_sync('echo', t=word) == {'t': word}, repr(word)
'same'"#;
    ensure_eq!(text(&sandbox, code).await?, as_shown("'same'"));
    Ok(())
}

async fn big_values_cross(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    ok(&sandbox, "big = 'é' * 7_500_000").await?;
    ok(&sandbox, "rows = [{'n': n, 'text': 'row'} for n in range(200_000)]").await?;
    for code in [
        "(await call_tool('echo', t=big))['t'] == big",
        "call_tool_sync('echo', t=big)['t'] == big",
        "call_tool_sync('echo', rows=rows) == {'rows': rows}",
    ] {
        ensure_eq!(text(&sandbox, code).await?, "True", "{code}");
    }
    Ok(())
}

async fn arguments_that_are_too_large_are_refused(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let result =
        raises(&sandbox, "await call_tool('echo', t='x' * (16 << 20))", "ValueError").await?;
    let value = result.code_error.map(|error| error.value).unwrap_or_default();
    ensure!(value.contains("16777216"), "the limit is not named: {value}");
    fails_with(&sandbox, "call_tool_sync('echo', t=[0] * 3_000_000)", "values, over the limit")
        .await?;
    ensure_eq!(text(&sandbox, "await call_tool('echo', t=1)").await?, "{'t': 1}");
    Ok(())
}

async fn a_result_that_is_too_large_is_an_error(f: Fixture) -> Checked {
    let flood = Tool::new("flood", "", |_: Value| async { Ok("x".repeat(17 << 20)) });
    let sandbox = with_tools(&f, [flood]).await?;
    fails_with(&sandbox, "await call_tool('flood')", "over the limit of 16777216 bytes").await?;
    is_usable(&sandbox).await.map(drop)
}

async fn an_error_is_an_exception_with_its_message(f: Fixture) -> Checked {
    let fails =
        Tool::new("fails", "", |_: Value| async { ToolResult::<()>::Err("no: é\nreally".into()) });
    let sandbox = with_tools(&f, [fails]).await?;
    for form in ["await call_tool", "call_tool_sync"] {
        let code = format!("def f():\n    pass\n{form}('fails')");
        let result = raises(&sandbox, &code, "ToolError").await?;
        let error = result.code_error.clone().unwrap_or_default();
        ensure_eq!(error.value, "no: é\nreally", "{form}");
        ensure!(error.traceback.contains("line 3"), "no line of the code in {}", error.traceback);
        ensure!(!error.traceback.contains("<sandbox"), "a line of ours in {}", error.traceback);
    }
    let code = "
try:
    await call_tool('fails')
except ToolError as error:
    told = (str(error), error.tool, isinstance(error, Exception))
told";
    ensure_eq!(text(&sandbox, code).await?, r"('no: é\nreally', 'fails', True)");
    Ok(())
}

async fn arguments_that_do_not_fit_are_an_error(f: Fixture) -> Checked {
    #[derive(Deserialize)]
    struct City {
        city: String,
    }
    let length = Tool::new("length", "", |city: City| async move { Ok(city.city.len()) });
    let sandbox = with_tools(&f, [length]).await?;
    fails_with(&sandbox, "await call_tool('length')", "missing field `city`").await?;
    fails_with(&sandbox, "await call_tool('length', city=1)", "expected a string").await?;
    ensure_eq!(text(&sandbox, "await call_tool('length', city='Oslo')").await?, "4");
    Ok(())
}

async fn arguments_that_are_no_json_are_an_error(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    for (argument, class) in [
        ("object()", "TypeError"),
        ("b'bytes'", "TypeError"),
        ("{1, 2}", "TypeError"),
        ("{(1, 2): 3}", "TypeError"),
        ("float('nan')", "ValueError"),
        ("float('inf')", "ValueError"),
        (r"'\ud800'", "ValueError"),
        ("(lambda x: x.append(x) or x)([])", "ValueError"),
    ] {
        for form in ["await call_tool", "call_tool_sync"] {
            let code = format!("{form}('echo', a={argument})");
            let result = raises(&sandbox, &code, class).await?;
            let value = result.code_error.map(|error| error.value).unwrap_or_default();
            ensure!(value.contains("'echo'"), "the tool is not named: {value}");
        }
    }
    Ok(())
}

async fn calls_that_make_no_sense_are_errors(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    for call in ["", "1", "None", "b'echo'", "'echo', 1", "'echo', [1]", "'echo', {}, {}"] {
        raises(&sandbox, &format!("await call_tool({call})"), "TypeError").await?;
        raises(&sandbox, &format!("call_tool_sync({call})"), "TypeError").await?;
    }
    Ok(())
}

async fn arguments_that_are_too_deep_are_an_error(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "deep = []\nfor _ in range(400): deep = [deep]\nawait call_tool('echo', deep=deep)";
    fails_with(&sandbox, code, "the arguments cannot be read").await?;
    let code = "for _ in range(99_999): deep = [deep]\nawait call_tool('echo', deep=deep)";
    let result = run(&sandbox, code).await?;
    ensure!(!result.success(), "it was accepted: {}", describe(&result));
    is_usable(&sandbox).await.map(drop)
}

async fn an_unknown_tool_is_an_error_that_names_the_others(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    for name in ["ecko", "", "\\n", "é", "__class__"] {
        let code = format!("await call_tool('{name}')");
        fails_with(&sandbox, &code, "there are: echo").await?;
    }
    fails_with(&sandbox, "await call_tool('x' * 1_000_000)", "there is no tool").await
}

async fn without_tools_there_are_none(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(text(&sandbox, "list_tools()").await?, "[]");
    fails_with(&sandbox, "await call_tool('echo')", "has registered none").await
}

async fn a_panic_is_an_error(f: Fixture) -> Checked {
    let at_once = Tool::new("at_once", "", |_: Value| {
        if true {
            panic::resume_unwind(Box::new("at once"));
        }
        async { Ok(()) }
    });
    let later = Tool::new("later", "", |_: Value| async {
        if true {
            panic::resume_unwind(Box::new("later"));
        }
        Ok(())
    });
    let sandbox = with_tools(&f, [at_once, later, echo()]).await?;
    for name in ["at_once", "later"] {
        fails_with(&sandbox, &format!("await call_tool('{name}')"), "panicked").await?;
    }
    ensure_eq!(text(&sandbox, "await call_tool('echo', a=1)").await?, "{'a': 1}");
    Ok(())
}

async fn tools_are_listed_and_described(f: Fixture) -> Checked {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer", "description": "é"}}});
    let described = Tool { description: "Zählt \"alles\".\nImmer.".into(), ..echo() }
        .with_parameters(schema.clone());
    let plain = Tool { name: "a_first".into(), ..echo() };
    let sandbox = with_tools(&f, [described, plain]).await?;
    let listed = printed(&sandbox, "import json\nprint(json.dumps(list_tools()))").await?;
    let expected = json!([
        {"name": "a_first", "description": "Answers its arguments.", "parameters": {"type": "object"}},
        {"name": "echo", "description": "Zählt \"alles\".\nImmer.", "parameters": schema},
    ]);
    ensure_eq!(serde_json::from_str::<Value>(&listed)?, expected);
    // Within an event loop as well.
    ensure_eq!(text(&sandbox, "async def f(): return len(list_tools())\nawait f()").await?, "2");
    Ok(())
}

async fn names_are_identifiers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for name in ["", "1a", "a-b", "a b", "a.b", "a\n"] {
        let tool = Tool { name: name.into(), ..echo() };
        let error = refused(sandbox.register_tool(tool).await, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains("`name`"), "the field is not named: {error}");
    }
    let tool = Tool { parameters: Some(json!([])), ..echo() };
    refused(sandbox.register_tool(tool).await, ErrorKind::InvalidArgument)?;
    ensure_eq!(text(&sandbox, "list_tools()").await?, "[]");
    Ok(())
}

async fn a_tool_of_the_same_name_is_replaced(f: Fixture) -> Checked {
    let version =
        |n: u32| Tool::new("version", format!("number {n}"), move |_: Value| async move { Ok(n) });
    let sandbox = with_tools(&f, [version(1)]).await?;
    ensure_eq!(text(&sandbox, "await call_tool('version')").await?, "1");
    sandbox.register_tool(version(2)).await?;
    ensure_eq!(text(&sandbox, "await call_tool('version')").await?, "2");
    ensure_eq!(text(&sandbox, "[t['description'] for t in list_tools()]").await?, "['number 2']");
    Ok(())
}

async fn other_contexts_have_the_same(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    sandbox.create_context(Some("made")).await?;
    for context in ["made", "made_by_running"] {
        let result = sandbox.run_code("await call_tool('echo', a=1)").context(context).await?;
        ensure_eq!(result.text(), Some("{'a': 1}"), "{context}: {}", describe(&result));
    }
    Ok(())
}

async fn they_are_kept_over_a_reset(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    ok(&sandbox, "call_tool_sync('echo')").await?;
    sandbox.reset().await?;
    ensure_eq!(text(&sandbox, "await call_tool('echo', a=1)").await?, "{'a': 1}");
    sandbox.restart_context("default").await?;
    ensure_eq!(text(&sandbox, "await call_tool('echo', a=2)").await?, "{'a': 2}");
    let died = run(&sandbox, "import os; os._exit(3)").await?;
    ensure!(!died.success(), "it lives: {}", describe(&died));
    ensure_eq!(text(&sandbox, "await call_tool('echo', a=3)").await?, "{'a': 3}");
    Ok(())
}

async fn they_are_kept_over_a_restart(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    sandbox.stop().await?;
    sandbox.register_tool(Tool { name: "second".into(), ..echo() }).await?;
    sandbox.start().await?;
    ensure_eq!(text(&sandbox, "await call_tool('echo', a=1)").await?, "{'a': 1}");
    ensure_eq!(text(&sandbox, "await call_tool('second', a=2)").await?, "{'a': 2}");
    Ok(())
}

async fn they_are_kept_until_the_start(f: Fixture) -> Checked {
    let unstarted = f.builder().build()?.with_tool(echo())?;
    let unfit = Tool { name: "not a name".into(), ..echo() };
    refused(unstarted.clone().with_tool(unfit), ErrorKind::InvalidArgument)?;
    let sandbox = unstarted.start().await?;
    f.keep(&sandbox);
    ensure_eq!(text(&sandbox, "await call_tool('echo', a=1)").await?, "{'a': 1}");
    Ok(())
}

async fn scripts_call_them(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "
import asyncio, sys
async def main():
    return await asyncio.gather(*(call_tool('echo', n=n) for n in range(3)))
if __name__ == '__main__':
    print([answer['n'] for answer in asyncio.run(main())], call_tool_sync('echo', args=sys.argv[1:]))
    print([tool['name'] for tool in list_tools()])
";
    let result = sandbox.run_code(code).script("tool.py", ["a", "b"]).await?;
    ensure!(result.success(), "{}", describe(&result));
    ensure_eq!(result.logs.stdout_exact(), "[0, 1, 2] {'args': ['a', 'b']}\n['echo']\n");
    Ok(())
}
