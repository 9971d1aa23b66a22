//! Spans and events of `tracing` for every operation, with durations and ids.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use sandbox_core::{
    Backend, CommandEvent, Error, EventKind, Hooks, Layer, Observer, Operation, OperationEvent,
    OperationRequest, Result, intercept_backend,
};
use tracing::{Level, Span};

/// Reports each operation of a backend and of its sandboxes to `tracing`: a span while the operation runs, and an event at
/// its end, with the time that it took.
///
/// The target of all of them is `sandbox`. Operations that make or run something (`create`, `run_code`, `start_command`,
/// `install_packages`, the end of a sandbox) have the level DEBUG, all others TRACE. Spans have the fields `operation`,
/// `sandbox` (the id) and, of a run, `run_id`. Code, commands, paths, variables and output are in none of them, because they
/// may be secret; of code there is the length.
///
/// ```
/// use code_sandboxes::Sandbox;
/// use sandbox_layers::TracingLayer;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> code_sandboxes::Result<()> {
/// let sandbox = Sandbox::builder().layer(TracingLayer).create().await?;
/// sandbox.run_code("6 * 7").await?;
/// sandbox.terminate().await
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingLayer;

impl Layer for TracingLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let variant = inner.variant().as_str();
        intercept_backend(inner, Arc::new(TracingHooks { variant }))
    }
}

#[derive(Debug)]
struct TracingHooks {
    variant: &'static str,
}

/// Operations that make, run or end something.
const NOTABLE: [&str; 10] = [
    "create",
    "attach",
    "fork",
    "run_code",
    "start_command",
    "install_packages",
    "create_snapshot",
    "restore_snapshot",
    "terminate",
    "kill",
];

#[async_trait]
impl Hooks for TracingHooks {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        let is_notable = NOTABLE.contains(&operation.name);
        let sandbox = operation.sandbox.map(|sandbox| sandbox.info().id);
        let (variant, name) = (self.variant, operation.name);
        let run_id = operation.call.run_id.as_deref();
        let length = match operation.request {
            OperationRequest::RunCode { code, .. } => Some(code.len()),
            _ => None,
        };
        let span = if is_notable {
            tracing::span!(target: "sandbox", Level::DEBUG, "operation", operation = name, variant, sandbox, run_id, length)
        } else {
            tracing::span!(target: "sandbox", Level::TRACE, "operation", operation = name, variant, sandbox, run_id)
        };
        span.in_scope(|| tracing::trace!(target: "sandbox", "started"));
        Ok(Box::new(Tracing { span, is_notable, begun: Instant::now(), is_over: false }))
    }
}

/// Follows one operation.
struct Tracing {
    span: Span,
    is_notable: bool,
    begun: Instant,
    /// Its end has been reported.
    is_over: bool,
}

impl Tracing {
    /// Reports the end. The time is in milliseconds.
    fn end(&mut self, outcome: &str) {
        self.is_over = true;
        let milliseconds = self.begun.elapsed().as_secs_f64() * 1000.0;
        self.span.in_scope(|| match self.is_notable {
            true => tracing::debug!(target: "sandbox", milliseconds, outcome, "ended"),
            false => tracing::trace!(target: "sandbox", milliseconds, outcome, "ended"),
        });
    }

    fn passed(&self, what: &str) {
        let milliseconds = self.begun.elapsed().as_secs_f64() * 1000.0;
        self.span.in_scope(|| tracing::trace!(target: "sandbox", milliseconds, "{what}"));
    }
}

#[async_trait]
impl Observer for Tracing {
    async fn failed(&mut self, error: Error) -> Error {
        self.end(error.kind().as_str());
        error
    }

    fn event(&mut self, event: OperationEvent<'_>) -> Result<()> {
        match event {
            OperationEvent::Run(event) => match &event.kind {
                EventKind::Started { .. } => self.passed("code started"),
                EventKind::Finished(outcome) => {
                    self.end(outcome.failure.as_ref().map_or("finished", |f| f.kind.as_str()));
                }
                _ => {}
            },
            OperationEvent::Command(CommandEvent::Finished(outcome)) => {
                self.end(outcome.failure.as_ref().map_or("finished", |f| f.kind.as_str()));
            }
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // A call that succeeded has no other end; what a stream still had to give was not wanted.
        if !self.is_over {
            self.end("done");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Mutex;

    use code_sandboxes::Sandbox;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::subscriber::set_default;
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// Keeps every span and event as a line of its fields.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Fields(String);

    impl Visit for Fields {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!(" {}={value:?}", field.name()));
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "sandbox"
        }

        fn new_span(&self, attributes: &Attributes<'_>) -> Id {
            let mut fields = Fields("span".to_owned());
            attributes.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
            Id::from_u64(1)
        }

        fn event(&self, event: &Event<'_>) {
            let mut fields = Fields("event".to_owned());
            event.record(&mut fields);
            self.0.lock().unwrap().push(fields.0);
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[tokio::test]
    async fn operations_have_spans_with_ids_and_times_and_no_secrets() {
        let lines = Lines::default();
        let kept = set_default(lines.clone());
        let sandbox = Sandbox::builder()
            .secret("TOKEN", "hunter2")
            .layer(TracingLayer)
            .create()
            .await
            .unwrap();
        let id = sandbox.id();
        sandbox.run_code("'hunter2'").run_id("run-1").await.unwrap();
        sandbox.commands().run("echo hunter2").await.unwrap();
        sandbox.terminate().await.unwrap();
        drop(kept);
        let lines = lines.0.lock().unwrap().join("\n");
        assert!(!lines.contains("hunter2"), "{lines}");
        for operation in ["create", "run_code", "start_command", "terminate"] {
            assert!(lines.contains(&format!("operation=\"{operation}\"")), "{operation}: {lines}");
        }
        assert!(lines.contains(&id), "{lines}");
        assert!(lines.contains("run_id=\"run-1\""), "{lines}");
        assert!(
            lines.contains("milliseconds=") && lines.contains("outcome=\"finished\""),
            "{lines}"
        );
    }
}
