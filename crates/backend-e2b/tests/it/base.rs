//! Templates without the code interpreter: our agent runs code where there is Python, and otherwise code is refused.

use std::time::Duration;

use sandbox_core::{ErrorKind, FailureKind, InterpreterState, Tool};
use serde_json::{Value, json};

use super::attached;
use super::support::{BASE, Cloud};

#[tokio::test(flavor = "multi_thread")]
async fn code_has_state_variables_results_and_tools() {
    let cloud = Cloud::start().await;
    let builder = cloud.builder().environment(BASE).env("COLOUR", "green").working_dir("work");
    let sandbox = builder.create().await.unwrap();
    let capabilities = sandbox.capabilities();
    assert!(capabilities.run_code && capabilities.tools && capabilities.run_stdin);
    sandbox.run_code("x = 40").await.unwrap();
    let result = sandbox.run_code("import os; (x + 2, os.environ['COLOUR'])").await.unwrap();
    assert_eq!(result.text(), Some("(42, 'green')"));
    // Commands, files and code are of one user, in one directory.
    sandbox.run_code("open('made', 'w').write(os.getcwd())").await.unwrap();
    let seen = sandbox.commands().run("echo $(pwd) $(cat made) $(id -u)").await.unwrap();
    let words: Vec<_> = seen.stdout.split_whitespace().collect();
    assert!(words[0].ends_with("/work") && words[1] == words[0], "{seen:?}");
    assert_eq!(sandbox.run_code("os.getuid()").await.unwrap().text(), Some(words[2]));
    sandbox.set_variable("y", json!({"a": [1, "ü"]})).await.unwrap();
    assert_eq!(sandbox.get_variable::<Value>("y").await.unwrap(), json!({"a": [1, "ü"]}));
    let missing = sandbox.get_variable::<Value>("nope").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let double = |value: Value| async move { Ok(json!(value["n"].as_i64().unwrap_or(0) * 2)) };
    sandbox.register_tool(Tool::new("double", "twice as much", double)).await.unwrap();
    let result = sandbox.run_code("call_tool_sync('double', n=21)").await.unwrap();
    assert_eq!(result.text(), Some("42"), "{result:?}");
    let result = sandbox.run_code("1/0").await.unwrap();
    assert_eq!(result.code_error.as_ref().unwrap().name, "ZeroDivisionError");
    let slow = sandbox.run_code("import time; time.sleep(60)").timeout(Duration::from_secs(1));
    let slow = slow.await.unwrap();
    assert_eq!(slow.failure.unwrap().kind, FailureKind::Timeout);
    assert_eq!(slow.state, InterpreterState::Kept);
    // The agent is no command of the user.
    assert!(sandbox.commands().list().await.unwrap().iter().all(|one| one.exit_code.is_some()));
    sandbox.terminate().await.unwrap();
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_finds_the_variables() {
    let cloud = Cloud::start().await;
    let builder = cloud.builder().environment(BASE).detached(Duration::from_secs(600));
    let sandbox = builder.create().await.unwrap();
    sandbox.run_code("x = 7").await.unwrap();
    sandbox.run_code("z = 8").context("other").await.unwrap();
    // A handle of this process shares the connection.
    let second = attached(&cloud, &sandbox.id()).await;
    assert_eq!(second.run_code("x").await.unwrap().text(), Some("7"));
    assert_eq!(sandbox.run_code("x + 1").await.unwrap().text(), Some("8"));
    let id = sandbox.id();
    // The last handles of this process go, and with them the connection.
    drop((sandbox, second));
    let later = attached(&cloud, &id).await;
    assert_eq!(later.run_code("z").context("other").await.unwrap().text(), Some("8"));
    let contexts = later.list_contexts().await.unwrap();
    assert!(contexts.iter().any(|context| context.id == "other"), "{contexts:?}");
    later.terminate().await.unwrap();
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_sandbox_is_the_reason_of_a_lost_run() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().environment(BASE).create().await.unwrap();
    sandbox.run_code("1").await.unwrap();
    let running = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.run_code("import time; time.sleep(60)").await.unwrap() }
    });
    while !sandbox.is_executing() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sandbox.kill().await.unwrap();
    let result = tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
    assert_eq!(result.failure.unwrap().kind, FailureKind::Terminated);
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_python_code_is_refused_with_the_reason() {
    let cloud = Cloud::start().await;
    let path = "/home/user/bin:/usr/local/bin:/usr/bin:/bin";
    let made = cloud.builder().environment(BASE).env("PATH", path).create().await.unwrap();
    // A Python that is too old for the agent.
    made.files().write("bin/python3", "#!/bin/sh\nexit 96\n").await.unwrap();
    made.commands().run("chmod +x bin/python3").await.unwrap();
    let sandbox = attached(&cloud, &made.id()).await;
    let capabilities = sandbox.capabilities();
    assert!(!capabilities.run_code && !capabilities.tools && capabilities.commands);
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("no Python"), "{error:?}");
    assert!(error.hint().unwrap().contains("code-interpreter-v1"), "{error:?}");
    let seen = sandbox.commands().run("echo seen; exit 3").await.unwrap();
    assert_eq!((&*seen.stdout, seen.exit_code), ("seen\n", 3));
    sandbox.files().write("made", "content").await.unwrap();
    assert_eq!(&sandbox.files().read("made").await.unwrap()[..], b"content");
    let error = sandbox.files().copy("made", "copy").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
}
