//! Variables in and out, as JSON.

use sandbox_core::{CallContext, ErrorKind};
use serde_json::{Map, Value, json};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, is_usable, ok, refused, text, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("variables", [run_code, variables], {
        json_values_round_trip;
        python_values_become_json;
        many_are_set_at_once;
        a_set_value_is_plain_data;
        a_missing_one_is_not_found;
        names_are_identifiers;
        what_json_cannot_hold_is_refused;
        they_belong_to_a_context needs contexts;
        they_wait_for_a_run;
        a_large_value;
        a_broken_json_module_does_not_matter;
        objects_with_tricks_do_not_hang_it;
        nothing_is_set_when_one_name_is_bad;
    })
}

async fn json_values_round_trip(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for value in [
        json!(null),
        json!(true),
        json!(0),
        json!(-7),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1.5),
        json!(-1e300),
        json!(""),
        json!("naïve 🎉 \" ' \\ \n\t \u{0} \u{7f} \u{2028}"),
        json!([]),
        json!({}),
        json!([1, [2, [3, {"k": [null, false]}]]]),
        json!({"a b": 1, "": 2, "ü": {"x": []}}),
        json!("__import__('os')._exit(1)"),
        json!("{}{0}%s$x"),
    ] {
        sandbox.set_variable("value", &value).await?;
        ensure_eq!(sandbox.get_variable::<serde_json::Value>("value").await?, value);
    }
    Ok(())
}

async fn python_values_become_json(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "t = (1, 'a')\nbig = 2 ** 53 + 1\nd = {'k': (True, None)}\n_hidden = 5").await?;
    ensure_eq!(sandbox.get_variable::<serde_json::Value>("t").await?, json!([1, "a"]));
    ensure_eq!(
        sandbox.get_variable::<serde_json::Value>("big").await?,
        json!(9_007_199_254_740_993_u64)
    );
    ensure_eq!(sandbox.get_variable::<serde_json::Value>("d").await?, json!({"k": [true, null]}));
    ensure_eq!(sandbox.get_variable::<serde_json::Value>("_hidden").await?, json!(5));
    Ok(())
}

async fn many_are_set_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let values: Map<String, Value> = (0..200).map(|i| (format!("v{i}"), json!(i))).collect();
    sandbox.set_variables(values).await?;
    ensure_eq!(text(&sandbox, "sum(globals()[f'v{i}'] for i in range(200))").await?, "19900");
    Ok(())
}

async fn a_set_value_is_plain_data(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.set_variable("data", json!({"n": [1, 2.5, "s", null, true]})).await?;
    ensure_eq!(
        text(&sandbox, "[type(x).__name__ for x in data['n']]").await?,
        "['int', 'float', 'str', 'NoneType', 'bool']"
    );
    Ok(())
}

async fn a_missing_one_is_not_found(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let error =
        refused(sandbox.get_variable::<serde_json::Value>("nowhere").await, ErrorKind::NotFound)?;
    ensure!(error.to_string().contains("nowhere"), "the name is not in {error}");
    // Built-in functions are not variables of the code.
    refused(sandbox.get_variable::<serde_json::Value>("print").await, ErrorKind::NotFound)?;
    Ok(())
}

async fn names_are_identifiers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "class A: x = 1\na = A()\nd = {'k': 1}\nran = []").await?;
    for name in [
        "",
        " ",
        "1a",
        "a.x",
        "d['k']",
        "a; ran.append(1)",
        "ran.append(1)",
        "a b",
        "class",
        "None",
        "a\n",
        "__import__('os')",
        "ä-b",
        "a\0",
    ] {
        refused(sandbox.get_variable::<serde_json::Value>(name).await, ErrorKind::InvalidArgument)?;
        refused(sandbox.set_variable(name, 1).await, ErrorKind::InvalidArgument)?;
    }
    ensure_eq!(text(&sandbox, "ran").await?, "[]");
    for name in ["__builtins__", "__name__", "__anything__"] {
        let error = refused(sandbox.set_variable(name, 1).await, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains(name), "{name} is not in {error}");
    }
    ensure_eq!(text(&sandbox, "len(ran)").await?, "0");
    sandbox.set_variable("__private", 1).await?;
    sandbox.set_variable("größe", 1).await?;
    ensure_eq!(sandbox.get_variable::<serde_json::Value>("größe").await?, json!(1));
    Ok(())
}

async fn what_json_cannot_hold_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "lambda: 1",
        "{1, 2}",
        "object()",
        "b'bytes'",
        "float('nan')",
        "[float('inf')]",
        "__import__('os')",
        "open('/dev/null')",
        "{(1, 2): 3}",
        "1j",
        "range(3)",
    ] {
        ok(&sandbox, &format!("value = {code}")).await?;
        refused(
            sandbox.get_variable::<serde_json::Value>("value").await,
            ErrorKind::InvalidArgument,
        )?;
    }
    ok(&sandbox, "value = []\nvalue.append(value)").await?;
    refused(sandbox.get_variable::<serde_json::Value>("value").await, ErrorKind::InvalidArgument)?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn they_belong_to_a_context(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.create_context(Some("a")).await?;
    let (instance, call) = (sandbox.instance("test")?, CallContext::new());
    let values = Map::from_iter([("x".to_owned(), json!("in a"))]);
    instance.code()?.set_variables(&call, Some("a"), values).await?;
    ensure_eq!(instance.code()?.get_variable(&call, Some("a"), "x").await?, json!("in a"));
    refused(sandbox.get_variable::<serde_json::Value>("x").await, ErrorKind::NotFound)?;
    Ok(())
}

async fn they_wait_for_a_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 'before'").await?;
    let run = sandbox.run_code("import time; time.sleep(1); x = 'after'").timeout(WAIT_TIMEOUT);
    let read = async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        within(WAIT_TIMEOUT, sandbox.get_variable::<serde_json::Value>("x")).await
    };
    let (run, read) = tokio::join!(run, read);
    ensure!(run?.success(), "the run failed");
    ensure_eq!(read??, json!("after"));
    Ok(())
}

async fn a_large_value(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let large = "x".repeat(8 << 20);
    sandbox.set_variable("large", &large).await?;
    ensure_eq!(text(&sandbox, "len(large)").await?, (8 << 20).to_string());
    let back = within(WAIT_TIMEOUT, sandbox.get_variable::<serde_json::Value>("large")).await??;
    ensure!(back == Value::String(large), "the value differs");
    Ok(())
}

async fn a_broken_json_module_does_not_matter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import json\nx = [1]\njson.dumps = json.loads = lambda *a, **k: 1/0").await?;
    ensure_eq!(sandbox.get_variable::<serde_json::Value>("x").await?, json!([1]));
    sandbox.set_variable("y", json!({"a": 2})).await?;
    ensure_eq!(text(&sandbox, "y").await?, "{'a': 2}");
    Ok(())
}

async fn objects_with_tricks_do_not_hang_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "class D(dict):\n    def items(self): raise RuntimeError('trick')\n    keys = __iter__ = items\nd = D(a=1)\ndeep = []\nfor _ in range(100000): deep = [deep]";
    ok(&sandbox, code).await?;
    for name in ["d", "deep"] {
        // A value or a refusal; never a hang, and never the end of the interpreter.
        let _ = within(WAIT_TIMEOUT, sandbox.get_variable::<serde_json::Value>(name)).await?;
    }
    ensure!(!is_usable(&sandbox).await?.restarted, "the interpreter died");
    Ok(())
}

async fn nothing_is_set_when_one_name_is_bad(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let values = Map::from_iter([("good".to_owned(), json!(1)), ("not good".to_owned(), json!(2))]);
    refused(sandbox.set_variables(values).await, ErrorKind::InvalidArgument)?;
    refused(sandbox.get_variable::<serde_json::Value>("good").await, ErrorKind::NotFound)?;
    Ok(())
}
