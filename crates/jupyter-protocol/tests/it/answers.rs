//! The replies and the published messages of kernels, compared with the table in the README.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use jupyter_protocol::client::{Client, Observed, Watch};
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

/// Limits the wait for each claim, on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Limits the wait for the event of a starting debugger, and the number of processes to try.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
const PROCESSES: usize = 4;

const DEBUG_EVENT: &str = "debug_event";

/// The message that a process publishes before any other.
const FIRST_WORDS: &str = "iopub_welcome";

/// A column of the table.
struct Column {
    kernel: &'static str,
    /// Code that publishes all types of messages that the language can.
    shows: &'static str,
    /// Code that asks for a line of input.
    asks: &'static str,
    /// True to use TCP: Deno supports nothing else, and xeus-python no paths as long as those of the tests.
    tcp: bool,
}

const COLUMNS: [Column; 4] = [
    Column {
        kernel: "python3",
        shows: "from IPython.display import clear_output, display\n\
                print(1)\n\
                shown = display(2, display_id=True)\n\
                shown.update(3)\n\
                clear_output()\n\
                from ipykernel.comm import Comm\n\
                comm = Comm('target')\n\
                comm.send({})\n\
                comm.close()\n\
                4",
        asks: "input()",
        tcp: false,
    },
    Column { kernel: "bash", shows: "echo 1", asks: "input()", tcp: false },
    Column {
        kernel: "xpython",
        shows: "from IPython.display import clear_output, display\n\
                print(1)\n\
                shown = display(2, display_id=True)\n\
                shown.update(3)\n\
                clear_output()\n\
                from comm import create_comm\n\
                comm = create_comm(target_name='target')\n\
                comm.send({})\n\
                comm.close()\n\
                4",
        asks: "input()",
        tcp: true,
    },
    Column {
        kernel: "deno",
        shows: "console.log(1);\n\
                const shown = { display_id: 'a' };\n\
                const data = { 'text/plain': '2' };\n\
                await Deno.jupyter.broadcast('display_data', { data, metadata: {}, transient: shown });\n\
                await Deno.jupyter.broadcast('update_display_data', { data, metadata: {}, transient: shown });\n\
                await Deno.jupyter.broadcast('clear_output', { wait: false });\n\
                await Deno.jupyter.broadcast('comm_open', { comm_id: 'c', target_name: 't', data: {} });\n\
                await Deno.jupyter.broadcast('comm_msg', { comm_id: 'c', data: {} });\n\
                await Deno.jupyter.broadcast('comm_close', { comm_id: 'c', data: {} });\n\
                4",
        asks: "prompt('')",
        tcp: true,
    },
];

/// Claims of the table about one kernel, by message.
type Claims = BTreeMap<&'static str, &'static str>;

/// Findings about one kernel, by message.
type Found = BTreeMap<String, &'static str>;

/// Checks that each claim of the table holds. Newer kernels may support more.
fn table() {
    run(async {
        let kernels = COLUMNS.iter().enumerate().map(|(place, column)| async move {
            let claims = claims(place);
            let found = of_kernel(column, &claims).await;
            for (message, claim) in claims {
                let found = found.get(message).copied();
                assert_eq!(found, Some(claim), "`{message}` of {}", column.kernel);
            }
        });
        join_all(kernels).await;
    });
}

/// Returns the claims in one column of the table.
fn claims(place: usize) -> Claims {
    let head = "| Message | IPython | Bash | xeus-python | Deno |\n|---|---|---|---|---|\n";
    let (_, table) = README.split_once(head).unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let claims: Claims = rows
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`'), cells[2 + place])
        })
        .filter(|(_, claim)| !claim.is_empty())
        .collect();
    assert!(!claims.is_empty());
    claims
}

async fn of_kernel(column: &Column, claims: &Claims) -> Found {
    let start = if column.tcp { Kernel::start_tcp } else { Kernel::start };
    let mut kernel = start(column.kernel);
    let client = kernel.client().await;
    let mut watch = client.watch();
    let mut found = Found::new();
    assert!(execute(&client, column.shows).await.outcome.is_ok(), "{}", column.kernel);
    execute(&client, "an error of any language (").await;
    if claims.contains_key(InputRequest::MSG_TYPE) {
        found.extend(asked_by(&client, column.asks).await);
    }
    published(&mut watch, claims, &[DEBUG_EVENT, FIRST_WORDS], &mut found).await;
    for _ in 0..PROCESSES {
        if !claims.contains_key(DEBUG_EVENT) || found.contains_key(DEBUG_EVENT) {
            break;
        }
        // A debugger that starts publishes an event, once. xeus-python loses it now and then.
        let debug = DebugRequest::new(1, "initialize", JsonMap::new());
        let _ = timeout(EVENT_TIMEOUT, client.request(debug)).await;
        let event = published(&mut watch, claims, &[FIRST_WORDS], &mut found);
        if timeout(EVENT_TIMEOUT, event).await.is_err() {
            kernel.replace();
            client.ready(READY).await.unwrap();
        }
    }
    let here = |code: &str| json!({"code": code, "cursor_pos": code.len()});
    let tail = json!({"hist_access_type": "tail", "n": 1, "output": false, "raw": true});
    let debug = json!({"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}});
    let asking = Asking { client: &client, claims };
    // Concurrently, because the requests are independent.
    let answers = tokio::join!(
        asking.ask(ExecuteRequest::new("")),
        asking.ask::<CompleteRequest>(request_from(here("ec"))),
        asking.ask::<InspectRequest>(request_from(here("echo"))),
        asking.ask::<IsCompleteRequest>(request_from(here("x"))),
        asking.ask::<HistoryRequest>(request_from(tail)),
        asking.ask(CommInfoRequest::default()),
        asking.ask(KernelInfoRequest::default()),
        asking.ask(ConnectRequest::default()),
        asking.ask(UsageRequest::default()),
        asking.ask::<DebugRequest>(request_from(debug)),
        asking.ask(CreateSubshellRequest::default()),
        asking.ask(ListSubshellRequest::default()),
    );
    let (a, b, c, d, e, f, g, h, i, j, k, l) = answers;
    found.extend([a, b, c, d, e, f, g, h, i, j, k, l].into_iter().flatten());
    if claims.contains_key(DeleteSubshellRequest::MSG_TYPE) {
        let made = timeout(ANSWER_TIMEOUT, client.request(CreateSubshellRequest::default())).await;
        let made = json!({"subshell_id": made.unwrap().unwrap().subshell_id});
        found.extend(asking.ask::<DeleteSubshellRequest>(request_from(made)).await);
    }
    found.extend(asking.ask(InterruptRequest::default()).await);
    found.extend(asking.ask(ShutdownRequest::default()).await);
    // A client sees the first message of a process only if it was connected to an earlier process.
    kernel.replace();
    client.ready(READY).await.unwrap();
    published(&mut watch, claims, &[], &mut found).await;
    found
}

/// Collects published messages until all claimed ones that may arrive by then are there.
async fn published(watch: &mut Watch, claims: &Claims, later: &[&str], found: &mut Found) {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    let comes = |name: &&&str| !name.ends_with("_request") && !later.contains(name);
    while claims.keys().filter(comes).any(|name| !found.contains_key(*name)) {
        let Ok(Some(seen)) = timeout_at(deadline, watch.next()).await else { return };
        if let Observed::Message { message, channel: Channel::IoPub } = seen {
            found.insert(message.header().msg_type.clone(), "yes");
        }
    }
}

/// Runs code that asks for input. Returns the question, if the kernel supports it.
async fn asked_by(client: &Client, code: &str) -> Option<(String, &'static str)> {
    let mut running = client.execute(ExecuteRequest::new(code).with_stdin()).await.unwrap();
    let mut found = None;
    while let Ok(Some(event)) = timeout(ANSWER_TIMEOUT, running.next()).await {
        if let Event::InputRequest(_) = event {
            found = Some((InputRequest::MSG_TYPE.to_owned(), "yes"));
            running.reply_input("").await.unwrap();
        }
    }
    found
}

/// Creates a request with these fields.
fn request_from<R: Request>(fields: Value) -> R {
    serde_json::from_value(fields).unwrap()
}

/// Sends the claimed requests to a kernel. Requests that a kernel does not know are never answered.
struct Asking<'a> {
    client: &'a Client,
    claims: &'a Claims,
}

impl Asking<'_> {
    async fn ask<R: Request>(&self, request: R) -> Option<(String, &'static str)> {
        self.claims.get(R::MSG_TYPE)?;
        // An unexpected reply counts as none.
        let reply = timeout(ANSWER_TIMEOUT, self.client.request(request)).await.ok()?.ok()?;
        let content: Content = reply.into();
        let content: Value = serde_json::from_slice(&content.to_json()).unwrap();
        let answer = if content["status"] == "error" { "error" } else { "yes" };
        Some((R::MSG_TYPE.to_owned(), answer))
    }
}
