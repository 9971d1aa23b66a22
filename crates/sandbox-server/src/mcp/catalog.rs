//! The table of the tools: names, descriptions, schemas, and hints for clients.

use std::fmt;

use futures_util::future::BoxFuture;
use sandbox_core::{Capabilities, NetworkMode, Result};
use schemars::JsonSchema;
use serde_json::{Map, Value};

use super::options::McpOptions;
use super::reply::ToolReply;
use super::schema;
use super::tools::{self, *};
use super::toolset::{Call, arguments};

/// Runs a tool.
type Run = for<'a, 'b> fn(&'a Call<'b>, Map<String, Value>) -> BoxFuture<'a, Result<ToolReply>>;

/// Makes the question that a user answers before a call with these arguments.
type Question = fn(&Map<String, Value>) -> String;

/// The schemas of arguments and answer.
type Schemas = (Map<String, Value>, Map<String, Value>);

/// A tool, as a client and a model see it.
#[derive(Clone)]
#[non_exhaustive]
pub struct ToolDefinition {
    /// Name of the tool.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Use of the tool, for a model.
    pub description: String,
    /// JSON schema of its arguments.
    pub input_schema: Map<String, Value>,
    /// JSON schema of its answer as data.
    pub output_schema: Map<String, Value>,
    /// True when it changes nothing.
    pub read_only: bool,
    /// True when it may destroy something.
    pub destructive: bool,
    /// True when a second call with the same arguments changes nothing more.
    pub idempotent: bool,
    /// True when it may reach hosts outside of the sandbox.
    pub open_world: bool,
    pub(super) run: Run,
    confirm: Option<Question>,
}

impl fmt::Debug for ToolDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolDefinition").field("name", &self.name).finish_non_exhaustive()
    }
}

impl ToolDefinition {
    /// Returns the question that a user answers before this call.
    pub(super) fn question(&self, arguments: &Map<String, Value>) -> Option<String> {
        self.confirm.map(|confirm| confirm(arguments))
    }
}

/// Effect of a tool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    /// It adds something, and destroys nothing.
    Adds,
    /// It may destroy something; a second call changes nothing more.
    Replaces,
    /// It may do anything.
    Runs,
}

/// A row of the table.
struct Row {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    effect: Effect,
    /// True when its code may use the network of the sandbox.
    reaches_out: bool,
    needs: fn(&Capabilities) -> bool,
    confirm: Option<Question>,
    schemas: fn() -> Schemas,
    run: Run,
}

fn schemas<A: JsonSchema, R: JsonSchema>() -> Schemas {
    (schema::of_arguments::<A>(), schema::of_answers::<R>())
}

macro_rules! run {
    ($tool:path) => {
        |call, given| Box::pin(async move { $tool(call, arguments(given)?).await })
    };
}

fn text<'a>(arguments: &'a Map<String, Value>, name: &str, default: &'a str) -> &'a str {
    arguments.get(name).and_then(Value::as_str).unwrap_or(default)
}

const ROWS: &[Row] = &[
    Row {
        name: "run_code",
        title: "Run code",
        description: "Runs code in an isolated sandbox and returns its output, the value of the last expression, images and tables. \
                      Python keeps variables, imports and files between calls, like a notebook, so work in small steps and reuse what \
                      is there. Matplotlib figures and displayed images come back as images, data frames as Markdown tables. \
                      Also runs bash, javascript, ruby, perl and r as programs of their own. Use run_command for shell commands, and \
                      start_command for servers and whatever takes minutes.",
        effect: Effect::Runs,
        reaches_out: true,
        needs: |has| has.run_code || has.commands,
        confirm: None,
        schemas: schemas::<RunCodeArguments, CodeAnswer>,
        run: run!(tools::run_code),
    },
    Row {
        name: "run_command",
        title: "Run a command",
        description: "Runs a shell command in the sandbox to its end and returns exit status, stdout and stderr. Each call is a new \
                      shell: cd and variables do not stay. Use it for git, tests, compilers and file tools; use start_command for what \
                      should keep running.",
        effect: Effect::Runs,
        reaches_out: true,
        needs: |has| has.commands,
        confirm: None,
        schemas: schemas::<RunCommand, CommandAnswer>,
        run: run!(tools::run_command),
    },
    Row {
        name: "start_command",
        title: "Start a command",
        description: "Starts a shell command in the background and returns its id and first output: servers, watchers, interactive \
                      programs, long builds. Then use read_output, write_stdin and stop_command with that id. For a web server, \
                      expose_port gives an address for the user.",
        effect: Effect::Runs,
        reaches_out: true,
        needs: |has| has.commands,
        confirm: None,
        schemas: schemas::<StartCommandArguments, OutputAnswer>,
        run: run!(tools::start_command),
    },
    Row {
        name: "read_output",
        title: "Read output",
        description: "Reads output of a command from start_command, or the rest of an answer that was cut, from a cursor on. Give the \
                      `cursor` of the last answer to read only what is new, and `wait` to wait for it.",
        effect: Effect::Reads,
        reaches_out: false,
        needs: |has| has.commands || has.run_code,
        confirm: None,
        schemas: schemas::<ReadOutput, OutputAnswer>,
        run: run!(tools::read_output),
    },
    Row {
        name: "write_stdin",
        title: "Write to a command",
        description: "Writes text to the standard input of a command from start_command. End a line with a newline.",
        effect: Effect::Runs,
        reaches_out: true,
        needs: |has| has.commands && has.command_stdin,
        confirm: None,
        schemas: schemas::<WriteStdin, WrittenAnswer>,
        run: run!(tools::write_stdin),
    },
    Row {
        name: "stop_command",
        title: "Stop a command",
        description: "Ends a command from start_command and everything it started, and returns the end of its output.",
        effect: Effect::Replaces,
        reaches_out: false,
        needs: |has| has.commands,
        confirm: None,
        schemas: schemas::<StopCommand, OutputAnswer>,
        run: run!(tools::stop_command),
    },
    Row {
        name: "read_file",
        title: "Read a file",
        description: "Reads a file of the sandbox: text by lines, images as images, anything else as base64 when asked for. Long \
                      files come in parts; `line` says where to begin.",
        effect: Effect::Reads,
        reaches_out: false,
        needs: |has| has.files,
        confirm: None,
        schemas: schemas::<ReadFile, FileAnswer>,
        run: run!(tools::read_file),
    },
    Row {
        name: "write_file",
        title: "Write a file",
        description: "Writes a whole file of the sandbox, or adds to its end; missing directories are made. Use edit_file to change a \
                      part of a file.",
        effect: Effect::Replaces,
        reaches_out: false,
        needs: |has| has.files,
        confirm: None,
        schemas: schemas::<WriteFile, WriteAnswer>,
        run: run!(tools::write_file),
    },
    Row {
        name: "edit_file",
        title: "Edit a file",
        description: "Replaces a text in a file of the sandbox with another. The old text must be in the file exactly once, with the \
                      same spaces and line ends, unless `replace_all` is true.",
        effect: Effect::Runs,
        reaches_out: false,
        needs: |has| has.files,
        confirm: None,
        schemas: schemas::<EditFile, EditAnswer>,
        run: run!(tools::edit_file),
    },
    Row {
        name: "list_files",
        title: "List files",
        description: "Lists the entries of a directory of the sandbox, with `depth` those of the directories in it, too.",
        effect: Effect::Reads,
        reaches_out: false,
        needs: |has| has.files,
        confirm: None,
        schemas: schemas::<ListFiles, ListedAnswer>,
        run: run!(tools::list_files),
    },
    Row {
        name: "find_files",
        title: "Find files",
        description: "Finds files of the sandbox by a pattern of their name, lines that contain a text, or both.",
        effect: Effect::Reads,
        reaches_out: false,
        needs: |has| has.files,
        confirm: None,
        schemas: schemas::<FindFilesArguments, FoundAnswer>,
        run: run!(tools::find_files),
    },
    Row {
        name: "install_packages",
        title: "Install packages",
        description: "Installs Python packages, or packages of the operating system, in the sandbox. Python packages work without a \
                      network of the sandbox, and are there for run_code at once.",
        effect: Effect::Adds,
        reaches_out: true,
        needs: |has| has.install_python || has.install_system,
        confirm: Some(|arguments| {
            let names = arguments.get("packages").map(Value::to_string).unwrap_or_default();
            format!("Install the packages {names} in the sandbox?")
        }),
        schemas: schemas::<InstallPackagesArguments, InstalledAnswer>,
        run: run!(tools::install_packages),
    },
    Row {
        name: "expose_port",
        title: "Expose a port",
        description: "Makes a port of the sandbox reachable and returns its address, so that the user can open a page that a server in \
                      the sandbox serves.",
        effect: Effect::Adds,
        reaches_out: true,
        needs: |has| has.expose_port,
        confirm: Some(|arguments| {
            let port = arguments.get("port").map(Value::to_string).unwrap_or_default();
            format!("Make port {port} of the sandbox reachable from outside?")
        }),
        schemas: schemas::<ExposePort, PortAnswer>,
        run: run!(tools::expose_port),
    },
    Row {
        name: "create_sandbox",
        title: "Create a sandbox",
        description: "Creates another sandbox, apart from the one that tools use without an id, and returns its id for their argument \
                      `sandbox`. Only for work that has to be kept apart, or from a snapshot: the first tool that needs a sandbox \
                      makes one by itself.",
        effect: Effect::Adds,
        reaches_out: false,
        needs: |_| true,
        confirm: Some(|arguments| {
            format!("Create another sandbox with {}?", Value::Object(arguments.clone()))
        }),
        schemas: schemas::<CreateSandbox, SandboxAnswer>,
        run: run!(tools::create_sandbox),
    },
    Row {
        name: "list_sandboxes",
        title: "List sandboxes",
        description: "Lists the sandboxes of this session and the snapshots.",
        effect: Effect::Reads,
        reaches_out: false,
        needs: |_| true,
        confirm: None,
        schemas: schemas::<ListSandboxes, SandboxesAnswer>,
        run: run!(tools::list_sandboxes),
    },
    Row {
        name: "stop_sandbox",
        title: "Stop a sandbox",
        description: "Ends a sandbox. Everything in it is lost: files, variables and commands. Sandboxes end with the session by \
                      themselves.",
        effect: Effect::Replaces,
        reaches_out: false,
        needs: |_| true,
        confirm: Some(|arguments| {
            let sandbox = text(arguments, "sandbox", "of this session");
            format!("End the sandbox {sandbox}? Its files and variables are lost.")
        }),
        schemas: schemas::<StopSandbox, StoppedAnswer>,
        run: run!(tools::stop_sandbox),
    },
    Row {
        name: "snapshot",
        title: "Take a snapshot",
        description: "Stores the files of the sandbox, and its variables where possible, under a name. restore goes back to it, and \
                      create_sandbox starts from it.",
        effect: Effect::Adds,
        reaches_out: false,
        needs: |has| has.snapshot,
        confirm: None,
        schemas: schemas::<Snapshot, SnapshotAnswer>,
        run: run!(tools::snapshot),
    },
    Row {
        name: "restore",
        title: "Restore a snapshot",
        description: "Puts the sandbox back to a snapshot. Files and variables that came after it are lost, and commands end.",
        effect: Effect::Replaces,
        reaches_out: false,
        needs: |has| has.restore_snapshot,
        confirm: Some(|arguments| {
            let name = text(arguments, "name", "");
            format!("Put the sandbox back to the snapshot {name:?}? Its current state is lost.")
        }),
        schemas: schemas::<Restore, SnapshotAnswer>,
        run: run!(tools::restore),
    },
];

/// Returns the names of all tools.
pub(super) fn names() -> Vec<&'static str> {
    ROWS.iter().map(|row| row.name).collect()
}

/// Returns the tools that a server offers.
pub(super) fn offered(options: &McpOptions, capabilities: &Capabilities) -> Vec<ToolDefinition> {
    let is_open = options.ceiling.base.network.mode != NetworkMode::None;
    let rows = ROWS.iter().filter(|row| {
        let is_chosen = options.tools.as_ref().is_none_or(|tools| tools.contains(row.name));
        let is_allowed = !options.read_only || row.effect == Effect::Reads;
        is_chosen && is_allowed && (row.needs)(capabilities)
    });
    rows.map(|row| row.definition(is_open, &options.host_tools.description)).collect()
}

/// Returns all tools, with everything that a backend may have.
pub(super) fn all() -> Vec<ToolDefinition> {
    ROWS.iter().map(|row| row.definition(true, "")).collect()
}

impl Row {
    fn definition(&self, is_open: bool, functions: &str) -> ToolDefinition {
        let (input_schema, output_schema) = (self.schemas)();
        // Continued lines of the table have spaces at their beginning.
        let mut description = self.description.split_whitespace().collect::<Vec<_>>().join(" ");
        if self.name == "run_code" && !functions.is_empty() {
            description = format!("{description}\n\n{functions}");
        }
        ToolDefinition {
            name: self.name,
            title: self.title,
            description,
            input_schema,
            output_schema,
            read_only: self.effect == Effect::Reads,
            destructive: matches!(self.effect, Effect::Replaces | Effect::Runs),
            idempotent: matches!(self.effect, Effect::Reads | Effect::Replaces),
            open_world: self.reaches_out && is_open,
            run: self.run,
            confirm: self.confirm,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_what_a_model_needs() {
        for tool in all() {
            assert!(
                tool.description.len() > 40 && tool.description.ends_with('.'),
                "{}",
                tool.name
            );
            assert!(tool.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            for schema in [&tool.input_schema, &tool.output_schema] {
                assert_eq!(schema["type"], "object", "{}", tool.name);
                let text = Value::Object(schema.clone()).to_string();
                assert!(!text.contains("$ref") && !text.contains("null"), "{}: {text}", tool.name);
            }
            let properties = tool.input_schema.get("properties").and_then(Value::as_object);
            for (name, property) in properties.into_iter().flatten() {
                assert!(property.get("description").is_some(), "{}.{name}", tool.name);
            }
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
        }
    }

    #[test]
    fn what_is_offered_follows_from_options_and_capabilities() {
        let names = |options: &McpOptions, capabilities: &Capabilities| -> Vec<_> {
            offered(options, capabilities).iter().map(|tool| tool.name).collect()
        };
        let all = Capabilities::local_python();
        let mut options = McpOptions::default();
        assert_eq!(names(&options, &all).len(), ROWS.len());
        let few = Capabilities { commands: true, ..Capabilities::default() };
        let offered = names(&options, &few);
        assert!(offered.contains(&"run_command") && !offered.contains(&"read_file"), "{offered:?}");
        options.read_only = true;
        assert_eq!(
            names(&options, &all),
            ["read_output", "read_file", "list_files", "find_files", "list_sandboxes"]
        );
        options.tools = Some(["run_code".to_owned(), "read_file".to_owned()].into());
        assert_eq!(names(&options, &all), ["read_file"]);
    }
}
