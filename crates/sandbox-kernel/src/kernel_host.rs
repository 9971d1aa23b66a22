//! A host whose interpreters are kernels.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::Client;
use sandbox_core::{FailureKind, Result};
use sandbox_engine::host::{
    Process as _, ProcessHost, Readable, Spawn, Spawned, WorkerIo, WorkerSpec,
};
use sandbox_engine::{PROTOCOL_VERSION, Reply};

use crate::bridge::Bridge;
use crate::buffer::{Buffer, Output};
use crate::control::control;
use crate::process::KernelProcess;
use crate::program::Program;

/// A source of kernels.
#[async_trait]
pub trait KernelSource: fmt::Debug + Send + Sync + 'static {
    /// Starts or finds a kernel, and waits until it is usable.
    ///
    /// # Errors
    /// Any failure, with the output of the kernel as a hint.
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel>;
}

/// The standard streams of a kernel's process, if they lead to the host.
#[derive(Debug)]
pub struct Streams {
    /// Standard output.
    pub stdout: Box<dyn Readable>,
    /// Standard error.
    pub stderr: Box<dyn Readable>,
}

/// A usable kernel.
#[derive(Debug)]
pub struct StartedKernel {
    /// The client of the kernel.
    pub client: Client,
    /// The process of the kernel.
    pub process: Arc<KernelProcess>,
    /// The streams of the process, if they belong to runs.
    pub streams: Option<Streams>,
    /// The program that the kernel runs first, if it supports that.
    pub program: Option<Program>,
}

/// Kills a kernel when dropped, unless the kernel is kept.
pub(crate) struct KernelGuard(Option<Arc<KernelProcess>>);

impl KernelGuard {
    pub(crate) fn new(process: &Arc<KernelProcess>) -> Self {
        Self(Some(Arc::clone(process)))
    }

    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for KernelGuard {
    fn drop(&mut self) {
        const SIGKILL: i32 = 9;
        if let Some(process) = &self.0 {
            let _ = process.signal(SIGKILL);
        }
    }
}

/// A host whose interpreters are kernels, and whose programs and files are those of another host.
#[derive(Debug)]
pub struct KernelHost {
    inner: Arc<dyn ProcessHost>,
    source: Arc<dyn KernelSource>,
}

impl KernelHost {
    /// Creates a host with kernels of this source, and the programs and files of `inner`.
    pub fn new(inner: Arc<dyn ProcessHost>, source: Arc<dyn KernelSource>) -> Self {
        Self { inner, source }
    }
}

#[async_trait]
impl ProcessHost for KernelHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        self.inner.spawn(spec).await
    }

    fn start_allowance(&self) -> Duration {
        self.inner.start_allowance()
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        let kernel = self.source.start(spec).await?;
        let guard = KernelGuard::new(&kernel.process);
        let streams = [Arc::new(Buffer::default()), Arc::new(Buffer::default())];
        let [published_out, published_err] = streams.each_ref().map(Arc::clone);
        let mut bridge =
            Bridge::new(kernel.client, Arc::clone(&kernel.process), kernel.program, streams);
        bridge.prepare().await?;
        guard.keep();
        let pid = kernel.process.pid();
        let control = control(|kernel_side| {
            kernel_side.reply(&Reply::Ready {
                protocol: PROTOCOL_VERSION,
                pid,
                python_version: String::new(),
                self_check: String::new(),
            });
            tokio::spawn(bridge.serve(kernel_side)).abort_handle()
        });
        let (own_out, own_err) = match kernel.streams {
            Some(Streams { stdout, stderr }) => (Some(stdout), Some(stderr)),
            None => (None, None),
        };
        Ok(WorkerIo {
            process: kernel.process,
            control: Arc::new(control),
            stdout: Box::new(Output { published: published_out, own: own_out }),
            stderr: Box::new(Output { published: published_err, own: own_err }),
        })
    }

    fn kill(&self) {
        self.inner.kill();
    }

    async fn closed(&self) {
        self.inner.closed().await;
    }

    async fn end(&self) {
        self.inner.end().await;
    }

    async fn paused_by_others(&self) {
        self.inner.paused_by_others().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        self.inner.end_reason()
    }
}
