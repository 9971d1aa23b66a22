//! The core's traits over a connection, generated from the table of verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{
    Backend, ByteRange, ByteStream, CallContext, Capabilities, CodeOps, Command, CommandInfo,
    CommandOps, Context, ContextSpec, CreateSpec, EventStream, FileInfo, FileOps, FindFiles,
    FoundFile, Health, InstallPackages, Instance, Life, ListQuery, LogStream, Metrics, PackageOps,
    Page, PortOps, Result, RunCode, SandboxEnvironment, SandboxId, SandboxInfo, SandboxStatus,
    SnapshotInfo, SnapshotOps, StartCommand, Tags, Tool, TunnelInfo, Variant, WatchStream,
    WriteOptions,
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::sandbox::RemoteSandbox;
use super::{Client, RemoteBackend};
use crate::verbs::{Verb, for_each_verb};

/// A sandbox on the other side, as an instance.
#[derive(Debug)]
pub(super) struct RemoteInstance(RemoteSandbox);

impl RemoteInstance {
    /// Sends a request that makes a sandbox.
    pub(super) async fn request(
        client: &Arc<Client>,
        verb: Verb,
        call: &CallContext,
        on: u64,
        arguments: &impl Serialize,
    ) -> Result<Arc<dyn Instance>> {
        Ok(Arc::new(Self(RemoteSandbox::request(client, verb, call, on, arguments).await?)))
    }
}

impl Instance for RemoteInstance {
    fn info(&self) -> SandboxInfo {
        self.0.info()
    }

    fn status(&self) -> SandboxStatus {
        self.0.status()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        self.0.check_facet("code").map(|()| self as _)
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        self.0.check_facet("commands").map(|()| self as _)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        self.0.check_facet("files").map(|()| self as _)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        self.0.check_facet("packages").map(|()| self as _)
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        self.0.check_facet("snapshots").map(|()| self as _)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        self.0.check_facet("ports").map(|()| self as _)
    }
}

/// Implements the traits of the table: those of a sandbox on [`RemoteInstance`], and `Backend` on [`RemoteBackend`]. The
/// methods of the form `special` are those of [`RemoteSandbox`] and of [`RemoteBackend`] with the same name.
macro_rules! implement {
    (Backend [] { $($backend_verbs:tt)* } $($facet:ident [$($access:tt)*] { $($verbs:tt)* })*) => {
        implement!(@methods Backend for RemoteBackend, |remote| remote, {
            fn variant(&self) -> Variant {
                self.variant
            }

            fn capabilities(&self) -> Capabilities {
                self.capabilities
            }
        } $($backend_verbs)*);
        $(implement!(@facet $facet $($verbs)*);)*
    };
    (@facet CodeOps $($verbs:tt)*) => {
        implement!(@methods CodeOps for RemoteInstance, |remote| &remote.0, {
            fn is_executing(&self, context: Option<&str>) -> bool {
                self.0.is_executing(context)
            }
        } $($verbs)*);
    };
    (@facet $facet:ident $($verbs:tt)*) => {
        implement!(@methods $facet for RemoteInstance, |remote| &remote.0, {} $($verbs)*);
    };
    (
        @methods $trait:ident for $type:ident, |$remote:ident| $target:expr, { $($more:tt)* }
        $($form:ident $verb:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*
    ) => {
        #[async_trait]
        impl $trait for $type {
            $($more)*

            $(
                async fn $verb(&self, call: &CallContext, $($argument: $kind),*) -> Result<$answer> {
                    let $remote = self;
                    implement!(@send $form $verb($target, call, $($argument),*))
                }
            )*
        }
    };
    (@send special $verb:ident($target:expr, $call:ident, $($argument:ident),*)) => {
        $target.$verb($call, $($argument),*).await
    };
    (@send $form:ident $verb:ident($target:expr, $call:ident, $($argument:ident),*)) => {
        $target.$form(Verb::$verb, $call, &($($argument,)*)).await
    };
}

for_each_verb!(implement);
