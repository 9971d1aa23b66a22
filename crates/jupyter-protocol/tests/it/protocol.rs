//! The newer parts of the protocol, in IPython's kernel.

use std::time::{Duration, Instant};

use jupyter_protocol::content::{
    CommInfoRequest, CompleteRequest, CreateSubshellRequest, DebugRequest, DeleteSubshellRequest,
    HistoryRequest, InspectRequest, InterruptRequest, IsCompleteRequest, KernelInfoReply,
    ListSubshellRequest, ShutdownRequest, UsageRequest,
};
use jupyter_protocol::execution::{End, Event};
use jupyter_protocol::{
    Channel, ExecuteRequest, JsonMap, KernelInfoRequest, Key, Reply as _, SignatureScheme,
};

use crate::Case;
use crate::harness::{Kernel, collect, execute, run};

pub(crate) const CASES: &[Case] = &[
    ("every_request_is_answered", every_request),
    ("subshells_run_beside_each_other", subshells),
    ("the_debugger_answers", debugger),
    ("interrupts_by_message_and_by_signal", interrupts),
    ("every_signature_scheme_is_accepted", schemes),
    ("a_message_that_is_sent_twice_is_not_answered_twice", replayed),
];

fn every_request() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let info = client.request(KernelInfoRequest::default()).await.unwrap();
        assert_eq!(
            (info.implementation.as_str(), info.language_info.name.as_str()),
            ("ipython", "python")
        );
        assert!(
            info.supports(KernelInfoReply::SUBSHELLS) && info.supports(KernelInfoReply::DEBUGGER)
        );
        let info = client.request_on(Channel::Control, KernelInfoRequest::default()).await.unwrap();
        assert!(info.status.is_ok());

        execute(&client, "value = 42").await;
        let mut complete = CompleteRequest::default();
        complete.code = "val".into();
        complete.cursor_pos = 3;
        let complete = client.request(complete).await.unwrap();
        assert!(complete.matches.iter().any(|word| word == "value"), "{complete:?}");
        assert_eq!((complete.cursor_start, complete.cursor_end), (0, 3));
        let mut inspect = InspectRequest::default();
        inspect.code = "value".into();
        inspect.cursor_pos = 5;
        let inspect = client.request(inspect).await.unwrap();
        assert!(inspect.found && inspect.data.plain().unwrap().contains("int"));
        let mut history = HistoryRequest::default();
        history.n = Some(10);
        history.output = true;
        let history = client.request(history).await.unwrap();
        assert!(history.entries().any(|entry| entry.input == "value = 42"), "{history:?}");
        let mut complete = IsCompleteRequest::default();
        complete.code = "for i in x:".into();
        let complete = client.request(complete).await.unwrap();
        assert_eq!((complete.status.as_str(), complete.indent.as_str()), ("incomplete", "    "));
        assert!(client.request(CommInfoRequest::default()).await.unwrap().status.is_ok());
        let usage = client.request(UsageRequest::default()).await.unwrap();
        assert!(usage.extra.contains_key("kernel_memory"), "{usage:?}");
        assert!(usage.error().is_none());
        let mut shutdown = ShutdownRequest::default();
        shutdown.restart = true;
        assert!(client.request(shutdown).await.unwrap().restart);
    });
}

fn subshells() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let subshell = client.request(CreateSubshellRequest::default()).await.unwrap().subshell_id;
        let listed = client.request(ListSubshellRequest::default()).await.unwrap();
        assert_eq!(listed.subshell_id, [subshell.as_str()]);

        let slow = client
            .execute(ExecuteRequest::new("import time; time.sleep(3); print('slow')"))
            .await
            .unwrap();
        let before = Instant::now();
        let request =
            client.session().request_in(&subshell, ExecuteRequest::new("print('beside')"));
        let beside = collect(client.execute_message(request).await.unwrap()).await;
        assert_eq!(beside.stdout, "beside\n");
        assert!(before.elapsed() < Duration::from_millis(2500), "it did not wait");
        assert_eq!(collect(slow).await.stdout, "slow\n");

        let mut delete = DeleteSubshellRequest::default();
        delete.subshell_id = subshell;
        assert!(client.request(delete).await.unwrap().status.is_ok());
        let listed = client.request(ListSubshellRequest::default()).await.unwrap();
        assert!(listed.subshell_id.is_empty());
    });
}

fn debugger() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let reply =
            client.request(DebugRequest::new(1, "debugInfo", JsonMap::new())).await.unwrap();
        assert!(reply.is_success(), "{reply:?}");
        assert_eq!(reply.0["request_seq"], 1);
    });
}

fn interrupts() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        for by_message in [false, true] {
            let code = "print('in', flush=True)\nimport time\ntime.sleep(60)";
            let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
            while !matches!(running.next().await, Some(Event::Stream(_))) {}
            if by_message {
                client.request(InterruptRequest::default()).await.unwrap();
            } else {
                kernel.signal("INT");
            }
            let ran = collect(running).await;
            assert_eq!(ran.outcome.error.unwrap().ename, "KeyboardInterrupt");
            assert_eq!(
                execute(&client, "1 + 1").await.value().as_deref(),
                Some("2"),
                "the code continues"
            );
        }
    });
}

fn schemes() {
    run(async {
        for (scheme, key) in [
            (SignatureScheme::HmacSha384, Key::generate()),
            (SignatureScheme::HmacSha512, Key::generate()),
            (SignatureScheme::HmacSha256, Key::default()),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let mut info = jupyter_protocol::ConnectionInfo::ipc(folder.path().join("k"));
            info.signature_scheme = scheme;
            info.key = key;
            let kernel = Kernel::launch("python3", info, folder);
            let client = kernel.client().await;
            assert_eq!(execute(&client, "1").await.outcome.end, End::Replied, "{scheme}");
            assert_eq!(client.rejected(), 0);
        }
    });
}

/// A request must not be sent twice unchanged: the kernel drops it without a reply.
fn replayed() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let request = client.session().request(KernelInfoRequest::default());
        assert!(client.exchange(Channel::Shell, request.clone()).await.is_ok());
        let again = client.exchange(Channel::Shell, request);
        assert!(tokio::time::timeout(Duration::from_secs(1), again).await.is_err());
        assert!(client.request(KernelInfoRequest::default()).await.is_ok());
    });
}
