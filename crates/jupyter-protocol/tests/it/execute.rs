//! Runs code in IPython's kernel.

use std::time::Duration;

use jupyter_protocol::content::{CommMsg, CommOpen, MessageContent};
use jupyter_protocol::execution::{Event, Loss};
use jupyter_protocol::outputs::{Output, Outputs};
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{Content, ExecuteRequest};
use serde_json::json;

use crate::Case;
use crate::harness::{Kernel, READY, collect, execute, run};

pub(crate) const CASES: &[Case] = &[
    ("streams_values_and_errors", streams_values_and_errors),
    ("displays_are_updated", displays_are_updated),
    ("buffers_come_with_comms", buffers_come_with_comms),
    ("input_is_given", input_is_given),
    ("an_error_aborts_queued_requests", an_error_aborts_queued_requests),
    ("expressions_are_evaluated", expressions_are_evaluated),
    ("a_flood_that_is_not_taken_does_not_lose_the_end", flood),
    ("a_flood_is_complete_where_there_is_room", lossless),
    ("many_calls_one_after_another", many_calls),
];

fn streams_values_and_errors() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let ran =
            execute(&client, "import sys\nprint('out é')\nprint('err', file=sys.stderr)\n6 * 7")
                .await;
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out é\n", "err\n"));
        assert_eq!(ran.value().as_deref(), Some("42"));
        assert!(ran.outcome.is_ok() && ran.outcome.losses.is_none());
        assert_eq!(ran.outcome.execution_count, Some(1));

        let failed = execute(&client, "1 / 0").await;
        let error = failed.outcome.error.clone().unwrap();
        assert_eq!(error.ename, "ZeroDivisionError");
        assert!(!error.traceback.is_empty());
        assert!(failed.outcome.reply.unwrap().status.is_error());
    });
}

fn displays_are_updated() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let code = "from IPython.display import display, clear_output\nprint('gone')\nclear_output(wait=True)\n\
            h = display('a', display_id='d')\ndisplay('b')\nh.update('c')";
        let ran = execute(&client, code).await;
        let mut outputs = Outputs::new(100_000);
        ran.events.iter().for_each(|event| outputs.apply(event));
        let shown: Vec<_> = outputs
            .items()
            .iter()
            .map(|output| match output {
                Output::Display(display) => display.data.plain().unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(shown, ["'c'", "'b'"]);
    });
}

fn buffers_come_with_comms() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let code = "from comm import create_comm, get_comm_manager\n\
            def opened(comm, message):\n    comm.send({'size': len(message['buffers'][0])}, buffers=[b'\\x00\\xff'])\n\
            get_comm_manager().register_target('t', opened)";
        assert!(execute(&client, code).await.outcome.is_ok());
        let mut watch = client.watch();
        let mut open = CommOpen::default();
        open.comm_id = "c1".into();
        open.target_name = "t".into();
        let message = client.session().request(open).with_buffers(vec![vec![1; 100_000].into()]);
        client.send(jupyter_protocol::Channel::Shell, message).await.unwrap();
        loop {
            let Some(seen) = watch.next().await else { panic!("closed") };
            let jupyter_protocol::client::Observed::Message { message, .. } = seen else {
                continue;
            };
            if message.msg_type() != CommMsg::MSG_TYPE {
                continue;
            }
            assert_eq!(message.buffers(), [&[0_u8, 255][..]]);
            let Content::CommMsg(own) = message.parse_content(&Default::default()) else {
                panic!()
            };
            assert_eq!(own.data["size"], 100_000);
            break;
        }
    });
}

fn input_is_given() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let code =
            "import getpass\na = input('name? ')\nb = getpass.getpass('secret? ')\nprint(a, b)";
        let mut request = ExecuteRequest::new(code);
        request.allow_stdin = true;
        let mut running = client.execute(request).await.unwrap();
        let (mut asked, mut out) = (Vec::new(), String::new());
        while let Some(event) = running.next().await {
            match event {
                Event::InputRequest(question) => {
                    asked.push((question.prompt.clone(), question.password));
                    running.reply_input(format!("line{}", asked.len())).await.unwrap();
                }
                Event::Stream(stream) => out.push_str(&stream.text),
                _ => {}
            }
        }
        assert_eq!(asked, [("name? ".to_owned(), false), ("secret? ".to_owned(), true)]);
        assert_eq!(out, "line1 line2\n");

        let refused = execute(&client, "input()").await;
        assert_eq!(refused.outcome.error.unwrap().ename, "StdinNotImplementedError");
    });
}

fn an_error_aborts_queued_requests() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let first = client
            .execute(ExecuteRequest::new("import time; time.sleep(0.5); 1 / 0"))
            .await
            .unwrap();
        let second = client.execute(ExecuteRequest::new("print('never')")).await.unwrap();
        let mut keep_on = ExecuteRequest::new("1 / 0");
        keep_on.stop_on_error = false;
        let (first, second) = tokio::join!(collect(first), collect(second));
        assert!(first.outcome.error.is_some());
        assert!(second.outcome.is_aborted() && !second.outcome.started, "{:?}", second.outcome);
        assert_eq!(second.stdout, "");
        tokio::time::sleep(Duration::from_millis(200)).await;
        let third = client.execute(keep_on).await.unwrap();
        let fourth = client.execute(ExecuteRequest::new("print('still')")).await.unwrap();
        let (_, fourth) = tokio::join!(collect(third), collect(fourth));
        assert_eq!(fourth.stdout, "still\n");
    });
}

fn expressions_are_evaluated() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let mut request = ExecuteRequest::new("a = 20");
        request.silent = true;
        request.user_expressions.insert("twice".into(), json!("a * 2 + 2"));
        request.user_expressions.insert("wrong".into(), json!("nothing"));
        let ran = collect(client.execute(request).await.unwrap()).await;
        let expressions = ran.outcome.reply.unwrap().user_expressions;
        assert_eq!(expressions["twice"]["data"]["text/plain"], "42");
        assert_eq!(expressions["wrong"]["status"], "error");
    });
}

const LINES: usize = 20_000;

/// Each line is flushed, and so becomes a message.
const FLUSHES: &str =
    "import sys\nfor i in range(20000):\n    sys.stdout.write(f'{i}\\n'); sys.stdout.flush()";

/// Flushes 20,000 lines. A client that stops reading loses half of them and the end of the execution.
fn flood() {
    run(async {
        let kernel = Kernel::start("python3");
        let mut options = Options::default();
        options.client.buffered = 1024 * 1024;
        let client = connect(&kernel.info, options).await.unwrap();
        client.ready(READY).await.unwrap();
        let mut running = client.execute(FLUSHES).await.unwrap();
        let progress = running.progress();
        while progress.finished().is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (mut lines, mut dropped) = (0, 0);
        while let Some(event) = running.next().await {
            match event {
                Event::Stream(stream) => lines += stream.text.lines().count(),
                Event::Lost(Loss::Overflow { messages, .. }) => dropped += messages,
                Event::Finished(outcome) => {
                    assert!(outcome.is_ok() && !outcome.losses.no_idle, "{outcome:?}");
                    assert_eq!(outcome.losses.messages, dropped);
                }
                _ => {}
            }
        }
        assert!(dropped > 0 && lines > 0, "{lines} lines, {dropped} messages dropped");
        assert_eq!(lines + usize::try_from(dropped).unwrap(), LINES, "none is missing untold");
    });
}

/// The buffer holds all messages, so that a late reader loses none.
fn lossless() {
    run(async {
        let expected: String = (0..LINES).map(|line| format!("{line}\n")).collect();
        for kernel in [Kernel::start("python3"), Kernel::start_tcp("python3")] {
            let client = kernel.client().await;
            let running = client.execute(FLUSHES).await.unwrap();
            let progress = running.progress();
            while progress.finished().is_none() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let ran = running.collect().await;
            assert!(ran.is_ok() && ran.is_complete(), "{:?}", ran.outcome);
            assert_eq!(ran.stdout.lines().count(), LINES);
            assert!(ran.stdout == expected);
        }
    });
}

fn many_calls() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        for number in 0..300 {
            let ran = execute(&client, &format!("print({number})")).await;
            assert_eq!(ran.stdout, format!("{number}\n"));
            assert!(ran.outcome.losses.is_none());
        }
    });
}
