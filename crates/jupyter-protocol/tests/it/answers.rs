//! What kernels answer and what they publish. The table of the README is what came of this.

use std::collections::BTreeMap;
use std::time::Duration;

use jupyter_protocol::client::{Client, Seen, Watch};
use jupyter_protocol::content::{
    CommInfoRequest, CompleteRequest, ConnectRequest, CreateSubshellRequest, DebugRequest,
    DeleteSubshellRequest, HistoryRequest, InputRequest, InspectRequest, InterruptRequest,
    IsCompleteRequest, ListSubshellRequest, ShutdownRequest, UsageRequest,
};
use jupyter_protocol::execution::Event;
use jupyter_protocol::{
    Channel, Content, ExecuteRequest, JsonMap, KernelInfoRequest, MessageContent as _, Request,
};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use crate::Case;
use crate::harness::{Kernel, READY, execute, run};

pub(crate) const CASES: &[Case] = &[("the_table_of_the_readme_is_true", table)];

const README: &str = include_str!("../../README.md");

/// How long a kernel may take to answer on a busy machine. What it does not know it does not answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long what it publishes may take after its answer.
const LATE: Duration = Duration::from_secs(3);

/// Code that publishes what there is, as far as the language can.
const SHOWS: [(&str, &str); 2] = [
    (
        "python3",
        "from IPython.display import clear_output, display\n\
         print(1)\n\
         shown = display(2, display_id=True)\n\
         shown.update(3)\n\
         clear_output()\n\
         from ipykernel.comm import Comm\n\
         comm = Comm('nobody')\n\
         comm.send({})\n\
         comm.close()\n\
         4",
    ),
    ("bash", "echo 1"),
];

/// Each claim of the table holds. What a newer kernel can besides is no claim of it.
fn table() {
    run(async {
        let mut found: BTreeMap<String, [&str; 2]> = BTreeMap::new();
        for (place, (name, code)) in SHOWS.into_iter().enumerate() {
            for (message, answer) in of_kernel(name, code).await {
                found.entry(message).or_default()[place] = answer;
            }
        }
        let (_, table) =
            README.split_once("| Message | IPython | Bash |\n|---|---|---|\n").unwrap();
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert!(!rows.is_empty());
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let (message, claims) = (cells[1].trim_matches('`'), &cells[2..4]);
            let found = found.get(message).copied().unwrap_or_default();
            for (claim, found) in claims.iter().zip(found) {
                assert!(claim.is_empty() || *claim == found, "{row} is not so: {found:?}");
            }
        }
    });
}

async fn of_kernel(name: &str, code: &str) -> Vec<(String, &'static str)> {
    let mut kernel = Kernel::start(name);
    let client = kernel.client().await;
    let mut watch = client.watch();
    let mut found = Vec::new();
    assert!(execute(&client, code).await.outcome.is_ok());
    execute(&client, "an error of any language (").await;
    found.extend(asked_by(&client).await);
    // A debugger that begins says so. A kernel without one does not answer.
    let debug = DebugRequest::new(1, "initialize", JsonMap::new());
    let _ = timeout(LATE, client.request(debug)).await;
    found.extend(published(&mut watch).await);
    let here = |code: &str| json!({"code": code, "cursor_pos": code.len()});
    let tail = json!({"hist_access_type": "tail", "n": 1, "output": false, "raw": true});
    let debug = json!({"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}});
    found.push(asked(&client, ExecuteRequest::new("")).await);
    found.push(asked::<CompleteRequest>(&client, of(here("ec"))).await);
    found.push(asked::<InspectRequest>(&client, of(here("echo"))).await);
    found.push(asked::<IsCompleteRequest>(&client, of(here("x"))).await);
    found.push(asked::<HistoryRequest>(&client, of(tail)).await);
    found.push(asked(&client, CommInfoRequest::default()).await);
    found.push(asked(&client, KernelInfoRequest::default()).await);
    found.push(asked(&client, ConnectRequest::default()).await);
    found.push(asked(&client, UsageRequest::default()).await);
    found.push(asked::<DebugRequest>(&client, of(debug)).await);
    found.push(asked(&client, CreateSubshellRequest::default()).await);
    let subshell = client.request(CreateSubshellRequest::default()).await.unwrap().subshell_id;
    found.push(asked::<DeleteSubshellRequest>(&client, of(json!({"subshell_id": subshell}))).await);
    found.push(asked(&client, ListSubshellRequest::default()).await);
    found.push(asked(&client, InterruptRequest::default()).await);
    found.push(asked(&client, ShutdownRequest::default()).await);
    // The first words of a process come before a client of it can watch, unless it is of an earlier one.
    kernel.replace();
    client.ready(READY).await.unwrap();
    found.extend(published(&mut watch).await);
    found
}

/// What was published until now, and in a moment.
async fn published(watch: &mut Watch) -> Vec<(String, &'static str)> {
    let deadline = Instant::now() + LATE;
    let mut found = Vec::new();
    while let Ok(Some(seen)) = timeout_at(deadline, watch.next()).await {
        if let Seen::Message { message, channel: Channel::IoPub } = seen {
            found.push((message.header().msg_type.clone(), "yes"));
        }
    }
    found
}

/// What the kernel asks its user, if it can.
async fn asked_by(client: &Client) -> Option<(String, &'static str)> {
    let mut running = client.execute(ExecuteRequest::new("input()").with_stdin()).await.unwrap();
    let mut found = None;
    while let Some(event) = running.next().await {
        if let Event::InputRequest(_) = event {
            found = Some((InputRequest::MSG_TYPE.to_owned(), "yes"));
            running.reply_input("").await.unwrap();
        }
    }
    found
}

/// A request with these fields.
fn of<R: Request>(fields: Value) -> R {
    serde_json::from_value(fields).unwrap()
}

async fn asked<R: Request>(client: &Client, request: R) -> (String, &'static str) {
    let deadline = Instant::now() + PATIENCE;
    let answered = timeout_at(deadline, client.request(request)).await;
    let answer = match answered {
        Err(_) => "",
        Ok(reply) => {
            let content: Content = reply.unwrap().into();
            let content: Value = serde_json::from_slice(&content.to_json()).unwrap();
            if content["status"] == "error" { "error" } else { "yes" }
        }
    };
    (R::MSG_TYPE.to_owned(), answer)
}
