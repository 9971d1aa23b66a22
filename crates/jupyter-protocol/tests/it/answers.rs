//! What kernels answer and what they publish. The table of the README is what came of this.

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

/// How long a kernel may take to answer on a busy machine. What it does not know it does not answer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long what it publishes may take after its answer.
const LATE: Duration = Duration::from_secs(3);

/// A column of the table.
struct Column {
    kernel: &'static str,
    /// Code that publishes what there is, as far as the language can.
    shows: &'static str,
    /// Code that asks its user for a line.
    asks: &'static str,
    /// Whether it is talked to over TCP: one speaks nothing else, and another takes no paths as long as those of tests.
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
                comm = Comm('nobody')\n\
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
                comm = create_comm(target_name='nobody')\n\
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

/// Each claim of the table holds. What a newer kernel can besides is no claim of it.
fn table() {
    run(async {
        let mut found: BTreeMap<String, [&str; COLUMNS.len()]> = BTreeMap::new();
        for (place, answers) in
            join_all(COLUMNS.iter().map(of_kernel)).await.into_iter().enumerate()
        {
            for (message, answer) in answers {
                found.entry(message).or_default()[place] = answer;
            }
        }
        let head = "| Message | IPython | Bash | xeus-python | Deno |\n|---|---|---|---|---|\n";
        let (_, table) = README.split_once(head).unwrap();
        let rows: Vec<&str> = table.lines().take_while(|line| line.starts_with('|')).collect();
        assert!(!rows.is_empty());
        for row in rows {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let (message, claims) = (cells[1].trim_matches('`'), &cells[2..2 + COLUMNS.len()]);
            let found = found.get(message).copied().unwrap_or_default();
            for (claim, found) in claims.iter().zip(found) {
                assert!(claim.is_empty() || *claim == found, "{row} is not so: {found:?}");
            }
        }
    });
}

async fn of_kernel(column: &Column) -> Vec<(String, &'static str)> {
    let start = if column.tcp { Kernel::start_tcp } else { Kernel::start };
    let mut kernel = start(column.kernel);
    let client = kernel.client().await;
    let mut watch = client.watch();
    let mut found = Vec::new();
    assert!(execute(&client, column.shows).await.outcome.is_ok(), "{}", column.kernel);
    execute(&client, "an error of any language (").await;
    found.extend(asked_by(&client, column.asks).await);
    // A debugger that begins says so. A kernel without one does not answer.
    let debug = DebugRequest::new(1, "initialize", JsonMap::new());
    let _ = timeout(LATE, client.request(debug)).await;
    found.extend(published(&mut watch).await);
    let here = |code: &str| json!({"code": code, "cursor_pos": code.len()});
    let tail = json!({"hist_access_type": "tail", "n": 1, "output": false, "raw": true});
    let debug = json!({"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}});
    // Together, because those that are not answered take all the patience.
    let answers = tokio::join!(
        asked(&client, ExecuteRequest::new("")),
        asked::<CompleteRequest>(&client, of(here("ec"))),
        asked::<InspectRequest>(&client, of(here("echo"))),
        asked::<IsCompleteRequest>(&client, of(here("x"))),
        asked::<HistoryRequest>(&client, of(tail)),
        asked(&client, CommInfoRequest::default()),
        asked(&client, KernelInfoRequest::default()),
        asked(&client, ConnectRequest::default()),
        asked(&client, UsageRequest::default()),
        asked::<DebugRequest>(&client, of(debug)),
        asked(&client, CreateSubshellRequest::default()),
        asked(&client, ListSubshellRequest::default()),
    );
    let (a, b, c, d, e, f, g, h, i, j, k, l) = answers;
    found.extend([a, b, c, d, e, f, g, h, i, j, k, l]);
    let made = timeout(LATE, client.request(CreateSubshellRequest::default())).await;
    if let Ok(Ok(made)) = made {
        let made = json!({"subshell_id": made.subshell_id});
        found.push(asked::<DeleteSubshellRequest>(&client, of(made)).await);
    }
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
        if let Observed::Message { message, channel: Channel::IoPub } = seen {
            found.push((message.header().msg_type.clone(), "yes"));
        }
    }
    found
}

/// What the kernel asks its user, if it can.
async fn asked_by(client: &Client, code: &str) -> Option<(String, &'static str)> {
    let mut running = client.execute(ExecuteRequest::new(code).with_stdin()).await.unwrap();
    let mut found = None;
    while let Ok(Some(event)) = timeout(TIMEOUT, running.next()).await {
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
    let deadline = Instant::now() + TIMEOUT;
    let answered = timeout_at(deadline, client.request(request)).await;
    let answer = match answered {
        // An answer that is no reply to it is none.
        Err(_) | Ok(Err(_)) => "",
        Ok(Ok(reply)) => {
            let content: Content = reply.into();
            let content: Value = serde_json::from_slice(&content.to_json()).unwrap();
            if content["status"] == "error" { "error" } else { "yes" }
        }
    };
    (R::MSG_TYPE.to_owned(), answer)
}
