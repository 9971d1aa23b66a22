//! Commands, files and packages of a part that is started when a verb first needs it.

use std::fmt::Debug;

use async_trait::async_trait;
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Command, CommandInfo, CommandOps, FileInfo, FileOps,
    FindFiles, FoundFile, InstallPackages, Instance, PackageOps, Result, StartCommand, WatchStream,
    WriteOptions,
};

/// A part of a sandbox, such as an agent in it, that is an [`Instance`] of its own.
#[async_trait]
pub trait DeferredPart: Debug + Send + Sync + 'static {
    /// Returns the part, which is started by the first call.
    ///
    /// # Errors
    /// What kept the part from starting. The next call tries again.
    async fn part(&self) -> Result<&dyn Instance>;
}

/// The facets of a [`DeferredPart`], for the sandbox that it is a part of.
#[derive(Debug)]
pub struct DeferredFacets<P>(pub P);

/// Implements a facet by the same facet of the part.
macro_rules! forward {
    ($facet:ident through $access:ident {
        $(fn $verb:ident($($argument:ident: $kind:ty),*) -> $answer:ty;)*
    }) => {
        #[async_trait]
        impl<P: DeferredPart> $facet for DeferredFacets<P> {
            $(
                async fn $verb(&self, call: &CallContext, $($argument: $kind),*) -> Result<$answer> {
                    self.0.part().await?.$access()?.$verb(call, $($argument),*).await
                }
            )*
        }
    };
}

forward! {
    CommandOps through commands {
        fn start_command(request: StartCommand) -> Command;
        fn list_commands() -> Vec<CommandInfo>;
        fn connect_command(id: &str) -> Command;
    }
}

forward! {
    FileOps through files {
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
}

forward! {
    PackageOps through packages {
        fn install_packages(packages: InstallPackages) -> ();
    }
}
