//! Variables cross as strict JSON, by name only.

use sandbox_engine::{Reply, Request, WireFailureKind};

use crate::{Case, harness::Worker};

pub(crate) const CASES: &[Case] =
    &[("get", get), ("set", set), ("conversion_is_interrupted", conversion_is_interrupted)];

fn ask_for(worker: &mut Worker, name: &str) -> Result<String, WireFailureKind> {
    match worker.ask(&Request::GetVariable { id: 77, name: name.into() }) {
        Reply::Value { id: 77, json } => Ok(json),
        Reply::Failed { id: 77, kind, .. } => Err(kind),
        other => panic!("{other:?}"),
    }
}

fn get() {
    let mut worker = Worker::new();
    worker.run("import json, math\na = {'k': [1, 2.5, None, True, 'e\\u00e9']}\nf = lambda: 1\nnan = math.nan\ns = {1}\nsur = '\\ud800'\nd = []\nfor _ in range(100000): d = [d]\nbig = 'x' * (61 << 20)\nclass_ = 3\nloop = []; loop.append(loop)\njson.dumps = None");
    for (name, expected) in [
        ("a", Ok(r#"{"k":[1,2.5,null,true,"eé"]}"#)),
        ("class_", Ok("3")),
        ("missing", Err(WireFailureKind::NotFound)),
        ("f", Err(WireFailureKind::NotSerializable)),
        ("math", Err(WireFailureKind::NotSerializable)),
        ("nan", Err(WireFailureKind::NotSerializable)),
        ("s", Err(WireFailureKind::NotSerializable)),
        ("sur", Err(WireFailureKind::NotSerializable)),
        ("d", Err(WireFailureKind::NotSerializable)),
        ("loop", Err(WireFailureKind::NotSerializable)),
        ("big", Err(WireFailureKind::TooLarge)),
        ("a.b", Err(WireFailureKind::Invalid)),
        ("a['k']", Err(WireFailureKind::Invalid)),
        ("a; import os", Err(WireFailureKind::Invalid)),
        ("class", Err(WireFailureKind::Invalid)),
        ("", Err(WireFailureKind::Invalid)),
        ("print", Err(WireFailureKind::NotFound)),
    ] {
        assert_eq!(ask_for(&mut worker, name), expected.map(str::to_owned), "{name}");
    }
}

fn set() {
    let mut worker = Worker::new();
    let mut put = |json: &str| match worker.ask(&Request::SetVariables { id: 5, json: json.into() })
    {
        Reply::Value { json, .. } if json == "null" => None,
        Reply::Failed { kind, .. } => Some(kind),
        other => panic!("{other:?}"),
    };
    assert_eq!(put(r#"{"x": 1, "y": {"z": [null, "é"]}}"#), None);
    let deep = format!("{{\"d\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for bad in [
        "",
        "[1]",
        "{",
        r#"{"a": NaN}"#,
        r#"{"a b": 1}"#,
        r#"{"if": 1}"#,
        r#"{"ok": 1, "1": 2}"#,
        &deep,
    ] {
        assert_eq!(put(bad), Some(WireFailureKind::Invalid), "{}", &bad[..bad.len().min(20)]);
    }
    assert_eq!(
        worker.run("x, y, 'ok' in globals()").text(),
        Some("(1, {'z': [None, 'é']}, False)")
    );
}

fn conversion_is_interrupted() {
    let mut worker = Worker::new();
    worker.run("class D(dict):\n    def items(self):\n        while True: pass\nd = D(a=1)");
    worker.send(&Request::GetVariable { id: 1, name: "d".into() }, None);
    std::thread::sleep(std::time::Duration::from_millis(200));
    worker.interrupt();
    assert!(matches!(
        worker.reply(),
        Some(Reply::Failed { kind: WireFailureKind::NotSerializable, .. })
    ));
    assert_eq!(worker.run("1").text(), Some("1"));
}
