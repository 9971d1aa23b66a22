//! Wrappers around a backend or a sandbox that change some of its verbs.
//!
//! A wrapper names the object that it wraps and overrides the verbs that it changes; the rest reaches the wrapped object
//! unchanged. What looks at every verb is [`Hooks`](crate::Hooks) instead.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::backend::{Backend, Health};
use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::command::{Command, CommandInfo};
use crate::error::Result;
use crate::id::SandboxId;
use crate::instance::{
    CodeOps, CommandOps, EventStream, FileOps, Instance, Life, LogStream, Metrics, PackageOps,
    PortOps, SnapshotOps, TunnelInfo, WatchStream,
};
use crate::model::{
    Context, FileInfo, SandboxEnvironment, SandboxInfo, SandboxStatus, SnapshotInfo, Tags, Variant,
};
use crate::request::{
    ByteRange, ByteStream, ContextSpec, FindFiles, FoundFile, InstallPackages, ListQuery, Page,
    RunCode, StartCommand, WriteOptions,
};
use crate::spec::CreateSpec;
use crate::tool::Tool;

/// Every verb of a sandbox, by facet: for each a method of [`InstanceWrapper`] that reaches the wrapped sandbox, and one of
/// the facet that reaches the wrapper.
macro_rules! verbs {
    ($(
        $facet:ident through $access:tt {
            $(fn $verb:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*
        }
    )*) => {
        /// A sandbox that differs from another in some verbs. Every method reaches the wrapped sandbox unless it is overridden.
        ///
        /// A wrapper that adds a facet which the wrapped sandbox has not implements [`Instance`] instead.
        #[async_trait]
        pub trait InstanceWrapper: fmt::Debug + Send + Sync + 'static {
            /// Returns the wrapped sandbox.
            fn inner(&self) -> &Arc<dyn Instance>;

            /// As [`Instance::info`].
            fn info(&self) -> SandboxInfo {
                self.inner().info()
            }

            /// As [`Instance::status`].
            fn status(&self) -> SandboxStatus {
                self.inner().status()
            }

            /// As [`Instance::capabilities`].
            fn capabilities(&self) -> Capabilities {
                self.inner().capabilities()
            }

            /// As [`CodeOps::is_executing`].
            fn is_executing(&self, context: Option<&str>) -> bool {
                self.inner().code().is_ok_and(|code| code.is_executing(context))
            }

            $($(
                #[doc = concat!("As [`", stringify!($facet), "::", stringify!($verb), "`].")]
                async fn $verb(&self, call: &CallContext, $($argument: $kind),*) -> Result<$answer> {
                    verbs!(@facet_of self.inner(), $access).$verb(call, $($argument),*).await
                }
            )*)*
        }

        $(verbs!(@facet $facet { $(fn $verb($($argument: $kind),*) -> $answer;)* });)*
    };
    (@facet_of $inner:expr, [$($access:tt)*]) => { $inner.$($access)* };
    (@facet CodeOps { $(fn $verb:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl<W: InstanceWrapper> CodeOps for Wrapped<W> {
            fn is_executing(&self, context: Option<&str>) -> bool {
                self.0.is_executing(context)
            }

            $(
                async fn $verb(&self, call: &CallContext, $($argument: $kind),*) -> Result<$answer> {
                    self.0.$verb(call, $($argument),*).await
                }
            )*
        }
    };
    (@facet $facet:ident { $(fn $verb:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)* }) => {
        #[async_trait]
        impl<W: InstanceWrapper> $facet for Wrapped<W> {
            $(
                async fn $verb(&self, call: &CallContext, $($argument: $kind),*) -> Result<$answer> {
                    self.0.$verb(call, $($argument),*).await
                }
            )*
        }
    };
}

verbs! {
    Life through [life()] {
        fn terminate() -> ();
        fn kill() -> ();
        fn set_tags(tags: Tags) -> ();
        fn set_lifetime(lifetime: Duration) -> ();
        fn pause() -> ();
        fn resume() -> ();
        fn reset() -> ();
        fn fork() -> Arc<dyn Instance>;
        fn metrics() -> Metrics;
        fn logs(follow: bool) -> LogStream;
    }
    CodeOps through [code()?] {
        fn run_code(request: RunCode) -> EventStream;
        fn create_context(spec: ContextSpec) -> Context;
        fn list_contexts() -> Vec<Context>;
        fn restart_context(id: &str) -> ();
        fn delete_context(id: &str) -> ();
        fn get_variable(context: Option<&str>, name: &str) -> Value;
        fn set_variables(context: Option<&str>, values: Map<String, Value>) -> ();
        fn interrupt(context: Option<&str>) -> bool;
        fn register_tool(tool: Tool) -> ();
    }
    CommandOps through [commands()?] {
        fn start_command(request: StartCommand) -> Command;
        fn list_commands() -> Vec<CommandInfo>;
        fn connect_command(id: &str) -> Command;
    }
    FileOps through [files()?] {
        fn read_file(path: &str, range: ByteRange) -> ByteStream;
        fn write_file(path: &str, content: ByteStream, options: WriteOptions) -> u64;
        fn list_files(path: &str) -> Vec<FileInfo>;
        fn stat_file(path: &str) -> FileInfo;
        fn create_directory(path: &str, parents: bool) -> ();
        fn remove_file(path: &str, recursive: bool) -> ();
        fn rename_file(from: &str, to: &str) -> ();
        fn copy_file(from: &str, to: &str) -> ();
        fn set_file_mode(path: &str, mode: u32) -> ();
        fn find_files(query: FindFiles) -> Vec<FoundFile>;
        fn read_archive(path: &str) -> ByteStream;
        fn write_archive(path: &str, tar: ByteStream) -> ();
        fn watch_files(path: &str, recursive: bool) -> WatchStream;
    }
    PackageOps through [packages()?] {
        fn install_packages(packages: InstallPackages) -> ();
    }
    SnapshotOps through [snapshots()?] {
        fn create_snapshot(name: &str, description: &str) -> SnapshotInfo;
        fn restore_snapshot(name: &str) -> SnapshotInfo;
    }
    PortOps through [ports()?] {
        fn expose_port(port: u16) -> TunnelInfo;
    }
}

/// Makes a sandbox of a wrapper.
pub fn wrap_instance<W: InstanceWrapper>(wrapper: Arc<W>) -> Arc<dyn Instance> {
    Arc::new(Wrapped(wrapper))
}

/// A wrapper as what it wraps.
#[derive(Debug)]
struct Wrapped<W>(Arc<W>);

impl<W: InstanceWrapper> Instance for Wrapped<W> {
    fn info(&self) -> SandboxInfo {
        self.0.info()
    }

    fn status(&self) -> SandboxStatus {
        self.0.status()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        self.0.inner().code().map(|_| self as _)
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        self.0.inner().commands().map(|_| self as _)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        self.0.inner().files().map(|_| self as _)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        self.0.inner().packages().map(|_| self as _)
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        self.0.inner().snapshots().map(|_| self as _)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        self.0.inner().ports().map(|_| self as _)
    }
}

/// A backend that differs from another in some verbs. Every method reaches the wrapped backend unless it is overridden.
#[async_trait]
pub trait BackendWrapper: fmt::Debug + Send + Sync + 'static {
    /// Returns the wrapped backend.
    fn inner(&self) -> &Arc<dyn Backend>;

    /// As [`Backend::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// As [`Backend::create`].
    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.inner().create(call, spec).await
    }

    /// As [`Backend::attach`].
    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.inner().attach(call, id).await
    }

    /// As [`Backend::list`].
    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        self.inner().list(call, query).await
    }

    /// As [`Backend::environments`].
    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        self.inner().environments(call).await
    }

    /// As [`Backend::health`].
    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.inner().health(call).await
    }

    /// As [`Backend::list_snapshots`].
    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        self.inner().list_snapshots(call).await
    }

    /// As [`Backend::delete_snapshot`].
    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        self.inner().delete_snapshot(call, name).await
    }
}

/// Makes a backend of a wrapper.
pub fn wrap_backend<W: BackendWrapper>(wrapper: Arc<W>) -> Arc<dyn Backend> {
    Arc::new(Wrapped(wrapper))
}

#[async_trait]
impl<W: BackendWrapper> Backend for Wrapped<W> {
    fn variant(&self) -> Variant {
        self.0.inner().variant()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.0.create(call, spec).await
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.0.attach(call, id).await
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        self.0.list(call, query).await
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        self.0.environments(call).await
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.0.health(call).await
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        self.0.list_snapshots(call).await
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        self.0.delete_snapshot(call, name).await
    }
}
