//! One kernel, observed by this crate and by `jupyter_client` at the same time.

use std::collections::HashSet;

use jupyter_protocol::chrono::DateTime;
use jupyter_protocol::client::{Client, Observed, Watch};
use jupyter_protocol::{ExecuteRequest, Limits};
use serde_json::{Value, json};

use crate::Case;
use crate::harness::{Kernel, run};
use crate::peer::{Peer, hex};

pub(crate) const CASES: &[Case] =
    &[("over_unix_sockets", over_unix_sockets), ("over_tcp", over_tcp)];

const CODE: [&str; 5] = [
    "import sys\nprint('out é🐱', flush=True)\nprint('err', file=sys.stderr, flush=True)\n6 * 7",
    "1 / 0",
    "from IPython.display import display, HTML, clear_output\n\
     h = display(HTML('<b>a</b>'), display_id='d1'); h.update(HTML('<b>b</b>')); clear_output(wait=True)",
    "from comm import create_comm\n\
     c = create_comm('t', data={'a': 1}, buffers=[b'\\x00\\xff'])\nc.send({'b': 2}, buffers=[b'', bytes(100000)]); c.close()",
    "for i in range(100): print(i, flush=True)",
];

fn over_unix_sockets() {
    run(compare(Kernel::start("python3")));
}

fn over_tcp() {
    run(compare(Kernel::start_tcp("python3")));
}

async fn compare(kernel: Kernel) {
    let client = kernel.client().await;
    let mut peer = Peer::start();
    peer.ask("connect", json!({"file": kernel.connection_file()}));
    let mut watch = client.watch();
    let mut ids = Vec::new();
    for code in CODE {
        // After an error, the kernel would abort the next requests of the other side.
        let mut request = ExecuteRequest::new(code);
        request.stop_on_error = false;
        let running = client.execute(request).await.unwrap();
        ids.push(running.id().to_owned());
        let collected = running.collect().await;
        let ran = peer.ask("run", json!({"code": code}));
        assert_eq!(ran["status"] == "ok", collected.is_ok(), "{code}: {collected:?}");
        ids.push(ran["id"].as_str().unwrap().to_owned());
    }
    let theirs = peer.ask("published", json!({"ids": ids}));
    let theirs: Vec<Value> =
        theirs["messages"].as_array().unwrap().iter().cloned().map(with_moments).collect();
    let ours = published(&client, &mut watch, &ids).await;
    let kinds: HashSet<&str> =
        ours.iter().map(|message| message["header"]["msg_type"].as_str().unwrap()).collect();
    for kind in [
        "status",
        "execute_input",
        "stream",
        "execute_result",
        "error",
        "display_data",
        "update_display_data",
        "clear_output",
        "comm_open",
        "comm_msg",
        "comm_close",
    ] {
        assert!(kinds.contains(kind), "no {kind} in {kinds:?}");
    }
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(ours.len(), theirs.len());
}

/// Collects the messages published for these requests, until each is idle.
async fn published(client: &Client, watch: &mut Watch, ids: &[String]) -> Vec<Value> {
    let mut idle: HashSet<String> = HashSet::new();
    let mut messages = Vec::new();
    while idle.len() < ids.len() {
        let seen = watch.next().await;
        let Some(Observed::Message { message, .. }) = seen else {
            panic!("{seen:?}, {} were refused", client.rejected())
        };
        let Some(id) = message.parent().msg_id().filter(|id| ids.iter().any(|own| own == id))
        else {
            continue;
        };
        let id = id.to_owned();
        let buffers = hex(message.buffers());
        let typed = message.clone().parse(&Limits::default());
        assert!(!typed.content.is_malformed(), "{typed:?}");
        let [header, parent, metadata, content] =
            message.parts().map(|text| serde_json::from_slice::<Value>(&text).unwrap());
        if content["execution_state"] == "idle" {
            idle.insert(id);
        }
        messages.push(with_moments(json!({"header": header, "parent_header": parent,
            "metadata": metadata, "content": content, "buffers": buffers})));
    }
    messages
}

/// Normalizes dates, because the same moment has many forms.
fn with_moments(mut message: Value) -> Value {
    for name in ["header", "parent_header"] {
        let date = message[name]["date"].as_str().unwrap();
        let moment = DateTime::parse_from_rfc3339(date).unwrap();
        message[name]["date"] = moment.to_utc().to_rfc3339().into();
    }
    message
}
