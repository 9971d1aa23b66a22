//! The table of verbs. The enum [`Verb`], the facets of the remote client and the dispatch of the server are generated from
//! it, so that a verb is described once.

use serde::{Deserialize, Serialize};

/// Passes every verb to the macro `$generate`, by trait of the core, each with the accessor of that facet.
///
/// A verb is declared as in the core, after the form of its answer:
/// - `value`: one reply.
/// - `end`: one reply, which also counts as received when the sandbox is known to have ended.
/// - `stream`: a reply, then elements that may be errors.
/// - `bytes`: a reply, then chunks of bytes.
/// - `special`: written by hand on both sides, as a method with the name of the verb.
macro_rules! for_each_verb {
    ($generate:ident) => {
        $generate! {
            Backend [] {
                special create(spec: CreateSpec) -> Arc<dyn Instance>;
                special attach(id: &SandboxId) -> Arc<dyn Instance>;
                value list(query: ListQuery) -> Page<SandboxInfo>;
                value environments() -> Vec<SandboxEnvironment>;
                value health() -> Health;
                value list_snapshots() -> Vec<SnapshotInfo>;
                value delete_snapshot(name: &str) -> ();
            }
            Life [.life()] {
                end terminate() -> ();
                end kill() -> ();
                value set_tags(tags: Tags) -> ();
                value set_lifetime(lifetime: Duration) -> ();
                value pause() -> ();
                value resume() -> ();
                value reset() -> ();
                special fork() -> Arc<dyn Instance>;
                value metrics() -> Metrics;
                stream logs(follow: bool) -> LogStream;
            }
            CodeOps [.code()?] {
                special run_code(request: RunCode) -> EventStream;
                value create_context(spec: ContextSpec) -> Context;
                value list_contexts() -> Vec<Context>;
                value restart_context(id: &str) -> ();
                value delete_context(id: &str) -> ();
                value get_variable(context: Option<&str>, name: &str) -> Value;
                value set_variables(context: Option<&str>, values: Map<String, Value>) -> ();
                value interrupt(context: Option<&str>) -> bool;
                special register_tool(tool: Tool) -> ();
            }
            CommandOps [.commands()?] {
                special start_command(request: StartCommand) -> Command;
                value list_commands() -> Vec<CommandInfo>;
                special connect_command(id: &str) -> Command;
            }
            FileOps [.files()?] {
                bytes read_file(path: &str, range: ByteRange) -> ByteStream;
                special write_file(path: &str, content: ByteStream, options: WriteOptions) -> u64;
                value list_files(path: &str) -> Vec<FileInfo>;
                value stat_file(path: &str) -> FileInfo;
                value create_directory(path: &str, parents: bool) -> ();
                value remove_file(path: &str, recursive: bool) -> ();
                value rename_file(from: &str, to: &str) -> ();
                value copy_file(from: &str, to: &str) -> ();
                value set_file_mode(path: &str, mode: u32) -> ();
                value find_files(query: FindFiles) -> Vec<FoundFile>;
                bytes read_archive(path: &str) -> ByteStream;
                special write_archive(path: &str, tar: ByteStream) -> ();
                stream watch_files(path: &str, recursive: bool) -> WatchStream;
            }
            PackageOps [.packages()?] {
                value install_packages(packages: InstallPackages) -> ();
            }
            SnapshotOps [.snapshots()?] {
                value create_snapshot(name: &str, description: &str) -> SnapshotInfo;
                value restore_snapshot(name: &str) -> SnapshotInfo;
            }
            PortOps [.ports()?] {
                value expose_port(port: u16) -> TunnelInfo;
            }
        }
    };
}
pub(crate) use for_each_verb;

macro_rules! define {
    ($($facet:ident [$($access:tt)*] {
        $($form:ident $verb:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*
    })*) => {
        define! { @enum $($($verb)*)* write_stdin close_stdin resize signal call_tool }
    };
    (@enum $($verb:ident)*) => {
        /// The operation of a request. Beside the verbs of backends and sandboxes there are those of a running command, and
        /// `call_tool`, which the server sends to the client.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[expect(non_camel_case_types, reason = "each variant has the name of its method")]
        pub(crate) enum Verb {
            $($verb,)*
        }

        impl Verb {
            /// Returns the name of the method, which is also the operation in errors.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$verb => stringify!($verb),)*
                }
            }
        }
    };
}

for_each_verb!(define);
