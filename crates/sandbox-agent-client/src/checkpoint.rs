//! Checkpoints of workers in a container.
//!
//! A checkpoint is a process of the agent with a key of its own: its end is reported, and it is killed, as that of any
//! other. A restored one has the streams of a worker, and leaves a copy behind that has another key.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{ByteSize, Error, ErrorKind, Result};
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, oneshot};
use tokio::time::{Instant, timeout};

use crate::AgentConnection;
use crate::call::Call;
use crate::connection::{Connection, Start};
use crate::message::{CONTROL, STDERR, STDIN, STDOUT, stream};
use crate::process::{AgentProcess, ProcessState, number};
use crate::streams::{ControlStream, Reader, Writer};
use crate::tunnel::Tunnel;
use sandbox_engine::checkpoint_slot::{CheckpointSlot, CopyArrivals, OPERATION, WaitingCopy, dead};
use sandbox_engine::host::{
    Checkpoint, Endpoint, Exit, PendingCheckpoint, Process, SideChannel, WorkerIo,
};

/// How long a copy may take to arrive: a fork of a large process on a busy machine.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// A copy that is about to be made. Dropping it kills the copy.
#[derive(Debug)]
struct PendingCopy {
    process: AgentProcess,
    arrival: oneshot::Receiver<Start>,
}

impl PendingCopy {
    fn new(connection: &Arc<Connection>, memory: Option<ByteSize>) -> Self {
        let (key, state) = (connection.new_key(), Arc::new(ProcessState::default()));
        let arrival = connection.expect_start(key);
        connection.add_process(key, &state);
        let connection = Arc::clone(connection);
        let process = AgentProcess { connection, key, pid: 0, state, is_worker: true, memory };
        Self { process, arrival }
    }

    /// Waits until the agent reports the copy.
    async fn arrive(self) -> Result<ForkedCopy> {
        let Self { mut process, arrival } = self;
        let no_copy =
            || Error::new(ErrorKind::Unavailable, OPERATION, "the checkpoint was not made");
        let arrived = timeout(ARRIVAL_TIMEOUT, arrival).await.map_err(|_| no_copy())?;
        process.pid = arrived.map_err(|_| process.connection.lost())?.map_err(|_| no_copy())?;
        Ok(ForkedCopy { process, next: None })
    }
}

#[async_trait]
impl PendingCheckpoint for PendingCopy {
    async fn ready(self: Box<Self>) -> Result<Arc<dyn Checkpoint>> {
        let copy = self.arrive().await?;
        Ok(Arc::new(AgentCheckpoint {
            slot: CheckpointSlot::new(copy),
            restoring: AsyncMutex::default(),
        }))
    }
}

/// A copy that waits. Dropping it kills the copy.
#[derive(Debug)]
struct ForkedCopy {
    process: AgentProcess,
    /// The next copy, once that is prepared.
    next: Option<PendingCopy>,
}

impl WaitingCopy for ForkedCopy {
    fn is_dead(&self) -> bool {
        self.process.is_dead()
    }

    fn prepare(&mut self) -> Result<()> {
        if self.next.is_none() {
            let AgentProcess { connection, key, memory, .. } = &self.process;
            let next = PendingCopy::new(connection, *memory);
            Call::begin(connection, "prepare", &[*key, next.process.key].map(number))?.done();
            self.next = Some(next);
        }
        Ok(())
    }
}

/// A checkpoint in a container.
#[derive(Debug)]
struct AgentCheckpoint {
    slot: Arc<CheckpointSlot<ForkedCopy>>,
    /// Serializes restores.
    restoring: AsyncMutex<()>,
}

#[async_trait]
impl Checkpoint for AgentCheckpoint {
    fn is_alive(&self) -> bool {
        self.slot.is_alive()
    }

    fn prepare(&self) {
        self.slot.prepare();
    }

    async fn restore(&self) -> Result<WorkerIo> {
        let _alone = self.restoring.lock().await;
        let arrivals = self.slot.arrivals();
        arrivals.settled().await;
        // From here on it is no checkpoint any more, whatever happens to it.
        let mut copy = self.slot.copy().take().filter(|copy| !copy.is_dead()).ok_or_else(dead)?;
        copy.prepare()?;
        let ForkedCopy { process, next } = copy;
        let (connection, key) = (Arc::clone(&process.connection), process.key);
        let reader = |which| Reader::new(&connection, stream(key, which));
        let (stdout, stderr, control) = (reader(STDOUT), reader(STDERR), reader(CONTROL));
        let writer = Writer::new(&connection, stream(key, STDIN), true);
        let woken = Call::begin(&connection, "restore", &[number(key)])?.answer().await;
        woken.map_err(|_| if connection.is_closed() { connection.lost() } else { dead() })?;
        self.slot.expect(next.ok_or_else(dead)?.arrive());
        Ok(WorkerIo {
            process: Arc::new(RestoredProcess { process, next: arrivals }),
            control: Arc::new(ControlStream { reader: control, writer }),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
        })
    }

    fn export_variables(&self) -> Result<UnixStream> {
        let (connection, key) = {
            let copy = self.slot.copy();
            let process = &copy.as_ref().ok_or_else(dead)?.process;
            (Arc::clone(&process.connection), process.key)
        };
        let (ours, mut theirs) = UnixStream::pair().map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, OPERATION, "no descriptors are left")
                .with_source(error)
        })?;
        let new = connection.new_key();
        let reader = Reader::new(&connection, stream(new, STDOUT));
        let call =
            Call::begin(&connection, "export_variables", &[key, stream(new, STDIN)].map(number))?;
        tokio::spawn(async move {
            // When the call fails, the dropped end of the stream reports that.
            if call.answer().await.is_ok() {
                let mut tunnel =
                    Tunnel::new(reader, Writer::new(&connection, stream(new, STDIN), false));
                let _ = copy_bidirectional(&mut theirs, &mut tunnel).await;
            }
        });
        Ok(ours)
    }
}

/// A worker that was a checkpoint. A kill would reach the copy that it leaves behind until that has arrived, so it waits.
#[derive(Debug)]
struct RestoredProcess {
    process: AgentProcess,
    next: CopyArrivals,
}

#[async_trait]
impl Process for RestoredProcess {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    async fn register(&self, pid: u32) -> Result<()> {
        self.process.register(pid).await
    }

    fn is_dead(&self) -> bool {
        self.process.is_dead()
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.process.poll_exited(cx)
    }

    async fn exit(&self) -> Result<Exit> {
        self.process.exit().await
    }

    fn signal(&self, signal: i32) -> Result<()> {
        self.process.signal(signal)
    }

    fn wake_blocked_call(&self) {
        self.process.wake_blocked_call();
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.process.signal_tree(signal).await
    }

    async fn kill_tree(&self) -> Result<()> {
        self.next.settled().await;
        self.process.kill_tree().await
    }

    fn kill_timeout(&self) -> Duration {
        ARRIVAL_TIMEOUT + self.process.kill_timeout()
    }

    fn out_of_memory(&self, before: u64) -> Option<String> {
        self.process.out_of_memory(before)
    }

    async fn end_started(&self, since: Instant, former: Option<Instant>) {
        self.process.end_started(since, former).await;
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.process.cpu_time()
    }

    fn peak_memory(&self) -> Option<u64> {
        self.process.peak_memory()
    }
}

impl AgentConnection {
    /// Prepares a checkpoint of a worker.
    pub(super) fn begin_copy(&self) -> (Box<dyn PendingCheckpoint>, SideChannel) {
        let expected = PendingCopy::new(&self.connection, self.memory);
        let channel = SideChannel(Endpoint::Copy(expected.process.key));
        (Box::new(expected), channel)
    }
}
