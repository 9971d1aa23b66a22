//! Layers of a program: hooks around every operation, and a wrapper that changes one verb.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use code_sandboxes::{
    Backend, CallContext, Command, CommandEvent, Error, ErrorKind, EventKind, Hooks, Instance,
    InstanceWrapper, Layer, Observer, Operation, OperationEvent, OperationRequest, Result, Sandbox,
    StartCommand, WriteOptions, intercept_backend, wrap_instance,
};
use futures_util::{StreamExt as _, stream};

/// Writes down what happens, refuses some of it, and explains failures.
#[derive(Clone, Debug, Default)]
struct Watching(Arc<Mutex<Vec<String>>>);

impl Layer for Watching {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        intercept_backend(inner, Arc::new(self.clone()))
    }
}

#[async_trait]
impl Hooks for Watching {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        if let OperationRequest::RunCode { code, .. } = operation.request
            && code.contains("forbidden")
        {
            return Err(Error::new(ErrorKind::PermissionDenied, "run_code", "refused by a hook"));
        }
        self.note(operation.name);
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Observer for Watching {
    async fn failed(&mut self, error: Error) -> Error {
        self.note("failed");
        error.with_hint("a hint of the hook")
    }

    fn event(&mut self, event: OperationEvent<'_>) -> Result<()> {
        match event {
            OperationEvent::Content(chunk) if chunk.windows(6).any(|part| part == b"SECRET") => {
                return Err(Error::new(ErrorKind::PermissionDenied, "write_file", "a secret"));
            }
            OperationEvent::Run(event) if matches!(event.kind, EventKind::Finished(_)) => {
                self.note("finished")
            }
            OperationEvent::Command(_) => self.note("command event"),
            _ => {}
        }
        Ok(())
    }
}

impl Watching {
    fn note(&self, what: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_owned());
    }

    fn seen(&self, what: &str) -> usize {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|seen| *seen == what)
            .count()
    }
}

#[tokio::test]
async fn hooks_see_every_operation_and_can_refuse_it() {
    let watching = Watching::default();
    let sandbox = Sandbox::builder().layer(watching.clone()).create().await.unwrap();
    assert_eq!(sandbox.run_code("print(1); 6 * 7").await.unwrap().text(), Some("42"));
    assert_eq!((watching.seen("create"), watching.seen("run_code")), (1, 1));
    assert_eq!(watching.seen("finished"), 1, "{watching:?}");

    let refused = sandbox.run_code("'forbidden'").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert_eq!(watching.seen("run_code"), 1);

    sandbox.files().write("fine", "text").await.unwrap();
    let chunks = [Ok(Bytes::from_static(b"a ")), Ok(Bytes::from_static(b"SECRET"))];
    let content = Box::pin(stream::iter(chunks));
    let refused =
        sandbox.files().write_stream("bad", content, WriteOptions::default()).await.unwrap_err();
    assert_eq!(refused.message(), "a secret");
    assert!(!sandbox.files().exists("bad").await.unwrap());

    let missing = sandbox.files().read("nothing").await.unwrap_err();
    assert_eq!(missing.hint(), Some("a hint of the hook"));
    assert!(sandbox.commands().run("echo hi").await.unwrap().stdout.contains("hi"));
    assert!(watching.seen("command event") > 0);
    sandbox.terminate().await.unwrap();
    assert_eq!(watching.seen("terminate"), 1);
}

/// Runs another command than was asked for. Everything else is that of the wrapped sandbox.
#[derive(Debug)]
struct Polite(Arc<dyn Instance>);

#[async_trait]
impl InstanceWrapper for Polite {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.0
    }

    async fn start_command(&self, call: &CallContext, _: StartCommand) -> Result<Command> {
        self.0.commands()?.start_command(call, StartCommand::new("echo please")).await
    }
}

#[tokio::test]
async fn a_wrapper_changes_one_verb_and_nothing_else() {
    let inner = Sandbox::builder().create().await.unwrap();
    let wrapped = wrap_instance(Arc::new(Polite(inner.instance("test").unwrap())));
    assert_eq!(wrapped.capabilities(), inner.capabilities());
    let (call, asked) = (CallContext::new(), StartCommand::new("echo hi"));
    let command = wrapped.commands().unwrap().start_command(&call, asked).await.unwrap();
    let output = command.events.filter_map(async |event| match event {
        CommandEvent::Output { data, .. } => Some(data.to_vec()),
        _ => None,
    });
    assert_eq!(output.concat().await, b"please\n");
    inner.files().write("x", "y").await.unwrap();
    assert_eq!(wrapped.files().unwrap().stat_file(&call, "x").await.unwrap().size, 1);
    wrapped.life().terminate(&call).await.unwrap();
    assert!(!inner.is_started());
}
