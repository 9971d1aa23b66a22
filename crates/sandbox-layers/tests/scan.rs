//! The scan around real cells.

use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_core::{ErrorKind, Finding, Layer, Sandbox};
use sandbox_layers::{ScanLayer, ScanMode, ScanPolicy, ScanRule};

async fn sandbox(policy: ScanPolicy) -> Sandbox {
    let backend = ScanLayer::new(policy).layer(Arc::new(EvalBackend::default()));
    Sandbox::builder(backend).create().await.expect("a sandbox")
}

#[tokio::test]
async fn findings_are_in_the_result_and_the_code_runs() {
    let sandbox = sandbox(ScanPolicy::warn()).await;
    let result = sandbox.run_code("x = eval('6 * 7')\nx").await.unwrap();
    assert_eq!(result.text(), Some("42"));
    let [Finding { rule, line: 1, .. }] = result.findings.as_slice() else { panic!("{result:?}") };
    assert_eq!(rule, "dynamic_code");
    assert_eq!(sandbox.run_code("x + 1").await.unwrap().findings, []);
    let result = sandbox.commands().run("cat /etc/hostname; true").await.unwrap();
    assert_eq!((result.exit_code, result.findings.len()), (0, 1), "{result:?}");
    assert_eq!(sandbox.commands().run(["cat", "x"]).await.unwrap().findings, []);
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
async fn refused_code_does_not_run() {
    let sandbox = sandbox(ScanPolicy::refuse().allow_imports(["math"])).await;
    let refused = sandbox.run_code("open('trace', 'w').close()\nimport os").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert_eq!(
        refused.message(),
        "the scan refuses the code: line 2: the module `os` is not on the list of allowed imports (import)"
    );
    let findings = refused.context().iter().find(|(key, _)| *key == "findings").unwrap();
    let findings: Vec<Finding> = serde_json::from_str(&findings.1).unwrap();
    assert_eq!(findings[0].line, 2);
    let refused = sandbox.commands().run("touch trace; curl x").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(!sandbox.files().exists("trace").await.unwrap(), "nothing ran");
    assert_eq!(sandbox.run_code("import math; math.floor(2.5)").await.unwrap().text(), Some("2"));
    // Code in a language that the scan does not know is not passed over.
    let refused = sandbox.run_code("1").language("r").await.unwrap_err();
    assert!(refused.message().contains("code in r is not looked at"), "{refused}");
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
async fn code_that_nests_100_000_deep_is_told_and_refused_in_bounded_time() {
    let deep = format!("x = {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    let careful = sandbox(ScanPolicy::refuse()).await;
    let began = std::time::Instant::now();
    let refused = careful.run_code(&*deep).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert!(refused.message().contains("(unread)"), "{refused}");
    // Told, it runs, and is an error of the interpreter.
    let told = sandbox(ScanPolicy::warn()).await;
    let result = told.run_code(&*deep).await.unwrap();
    assert!(!result.success() && result.findings.iter().any(|one| one.rule == "unread"));
    for broken in ["def f(:\n  )(", "\0", "\"\"\""] {
        let refused = careful.run_code(broken).await.unwrap_err();
        assert!(refused.message().contains("(unread)"), "{broken:?}: {refused}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(careful.run_code("6 * 7").await.unwrap().text(), Some("42"));
    careful.terminate().await.unwrap();
    told.terminate().await.unwrap();
}

#[tokio::test]
async fn imports_that_the_text_does_not_show_are_findings_when_they_happen() {
    let policy = ScanPolicy::warn().allow_imports(["json", "os.path"]).watch_imports();
    let policy = policy.without(ScanRule::DynamicCode);
    let backend = ScanLayer::new(policy).layer(Arc::new(EvalBackend::default()));
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    let hidden = "import json\nfrom os import path\nname = 'so' + 'cket'\nexec('import ' + name)\n__import__('wave')";
    let result = sandbox.run_code(hidden).await.unwrap();
    assert!(result.success(), "{result:?}");
    let found: Vec<_> = result.findings.iter().filter(|one| one.rule == "import").collect();
    let has = |module: &str, line: u64| {
        found.iter().any(|one| one.reason.contains(&format!("`{module}`")) && one.line == line)
    };
    // The statement in the string is in line 1 of that.
    assert!(has("socket", 1) && has("wave", 5), "{found:#?}");
    assert!(found.iter().all(|one| !one.reason.contains("`json`")), "{found:#?}");
    // What a module imports itself is not the code's.
    assert!(found.iter().all(|one| !one.reason.contains("selectors")), "{found:#?}");
    // Users see nothing of how it is done.
    assert!(
        result.results.iter().all(|item| item.data.keys().all(|mime| !mime.contains("import")))
    );
    assert_eq!(result.execution_count, 1);
    let plain = sandbox.run_code("import json; 6 * 7").await.unwrap();
    assert_eq!((plain.text(), plain.execution_count), (Some("42"), 2));
    assert!(plain.findings.is_empty(), "{plain:?}");

    // A new interpreter is prepared again.
    sandbox.run_code("import os; os._exit(3)").await.unwrap();
    assert!(sandbox.run_code("1").await.unwrap().restarted);
    let again = sandbox.run_code("exec('import ' + 'wave')").await.unwrap();
    assert!(again.findings.iter().any(|one| one.reason.contains("`wave`")), "{again:?}");
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
async fn a_scan_that_is_off_is_no_layer() {
    let sandbox = sandbox(ScanPolicy::new(ScanMode::Off)).await;
    assert_eq!(sandbox.run_code("eval('1')").await.unwrap().findings, []);
    sandbox.terminate().await.unwrap();
}
