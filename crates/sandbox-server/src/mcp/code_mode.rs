//! Tools of other MCP servers, as functions that code in a sandbox calls. So one run does what would take many calls.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use rmcp::model::{CallToolRequestParams, ContentBlock, Tool as ServerTool};
use rmcp::service::RunningService;
use rmcp::transport::TokioChildProcess;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use rmcp::{RoleClient, ServiceExt as _};
use sandbox_core::{Error, ErrorKind, Result, Tool};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::process::Command;
use tokio::time::timeout;

use super::code_module;
use super::options::HostTools;
use super::toolset::arguments;

/// Time for a server to start and to list its tools.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The file that names the servers, in the form that MCP clients have.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Configuration {
    mcp_servers: BTreeMap<String, ServerEntry>,
}

/// One server: a program of this host, or an address.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerEntry {
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Kind of the connection, which clients write and which follows from the rest.
    #[serde(rename = "type")]
    _kind: Option<String>,
    /// Names of the tools that code may call. Without them: all.
    tools: Option<Vec<String>>,
}

impl fmt::Debug for ServerEntry {
    /// Leaves out the variables and headers, which are often secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (command, url) = (&self.command, &self.url);
        f.debug_struct("ServerEntry")
            .field("command", command)
            .field("url", url)
            .finish_non_exhaustive()
    }
}

type Client = RunningService<RoleClient, ()>;

/// Connections to other servers. Dropping them ends the servers that were started.
pub struct OtherServers {
    clients: Vec<Arc<Client>>,
    tools: HostTools,
}

impl fmt::Debug for OtherServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherServers").field("servers", &self.clients.len()).finish_non_exhaustive()
    }
}

impl OtherServers {
    /// Returns the tools for [`McpOptions::host_tools`](super::McpOptions::host_tools).
    pub fn host_tools(&self) -> HostTools {
        self.tools.clone()
    }
}

/// Connects to the servers that a file names: `{"mcpServers": {"NAME": {"command": .., "args": [..], "tools": [..]}}}`.
///
/// A server is a program of this host, with `command`, `args` and `env`, or an address, with `url` and `headers`. Its
/// `tools` are those that code may call; without them, all. A tool `read` of the server `files` is the function
/// `files_read`.
///
/// # Errors
/// `NotFound` and `InvalidArgument` for the file, `Unavailable` for a server that does not answer, `NotFound` for a tool
/// that a server does not have.
pub async fn connect_servers(file: &Path) -> Result<OtherServers> {
    let text = tokio::fs::read_to_string(file).await.map_err(|error| {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::InvalidArgument,
        };
        let message = format!("{} cannot be read", file.display());
        Error::new(kind, "tools_from", message).with_source(error)
    })?;
    let wrong = |problem: String| {
        let message = format!("{} names no servers: {problem}", file.display());
        Error::new(ErrorKind::InvalidArgument, "tools_from", message)
            .with_hint(r#"write {"mcpServers": {"NAME": {"command": "PROGRAM", "args": []}}}"#)
    };
    let configuration: Value =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let Value::Object(configuration) = configuration else {
        return Err(wrong("it is no JSON object".to_owned()));
    };
    let configuration: Configuration =
        arguments(configuration).map_err(|error| wrong(error.to_string()))?;
    let servers = configuration.mcp_servers.iter().map(|(name, entry)| connect(name, entry));
    let mut connected = OtherServers { clients: Vec::new(), tools: HostTools::default() };
    for (client, tools) in try_join_all(servers).await? {
        connected.clients.push(client);
        connected.tools.tools.extend(tools);
    }
    let tools = &connected.tools.tools;
    let mut names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = format!("two tools have the name {}", pair[0]);
        return Err(Error::new(ErrorKind::AlreadyExists, "tools_from", message));
    }
    connected.tools.module = code_module::source(tools);
    connected.tools.description = code_module::description(tools);
    Ok(connected)
}

async fn connect(name: &str, entry: &ServerEntry) -> Result<(Arc<Client>, Vec<Tool>)> {
    let unavailable = |problem: String| {
        Error::new(
            ErrorKind::Unavailable,
            "tools_from",
            format!("the MCP server {name}: {problem}"),
        )
    };
    let start = async {
        let client = match (&entry.command, &entry.url) {
            (Some(program), None) => start_program(program, entry).await?,
            (None, Some(url)) => open_address(url, entry).await?,
            _ => return Err("it needs a `command` or a `url`, and not both".to_owned()),
        };
        let offered = client.list_all_tools().await.map_err(|error| error.to_string())?;
        Ok((Arc::new(client), offered))
    };
    let started = timeout(START_TIMEOUT, start).await;
    let started = started.unwrap_or_else(|_| Err("it did not answer in a minute".to_owned()));
    let (client, offered) = started.map_err(unavailable)?;
    if let Some(wanted) = &entry.tools
        && let Some(missing) =
            wanted.iter().find(|name| offered.iter().all(|tool| tool.name != **name))
    {
        let names: Vec<_> = offered.iter().map(|tool| tool.name.to_string()).collect();
        let message = format!("the MCP server {name} has no tool {missing:?}");
        return Err(Error::new(ErrorKind::NotFound, "tools_from", message)
            .with_hint(format!("it has: {}", names.join(", "))));
    }
    let is_wanted = |tool: &ServerTool| {
        entry.tools.as_ref().is_none_or(|wanted| wanted.iter().any(|name| *name == tool.name))
    };
    let tools = offered.into_iter().filter(is_wanted).map(|tool| host_tool(name, &client, tool));
    let tools = tools.collect();
    Ok((client, tools))
}

async fn start_program(program: &str, entry: &ServerEntry) -> Result<Client, String> {
    let mut command = Command::new(program);
    command.args(&entry.args).envs(&entry.env).kill_on_drop(true);
    let builder = TokioChildProcess::builder(command).stderr(Stdio::null());
    let (process, _) =
        builder.spawn().map_err(|error| format!("{program} cannot be started: {error}"))?;
    ().serve(process).await.map_err(|error| error.to_string())
}

async fn open_address(url: &str, entry: &ServerEntry) -> Result<Client, String> {
    let mut headers = reqwest::header::HeaderMap::new();
    for (name, value) in &entry.headers {
        let name: reqwest::header::HeaderName =
            name.parse().map_err(|_| format!("{name:?} is no name of a header"))?;
        let mut value: reqwest::header::HeaderValue =
            value.parse().map_err(|_| format!("the header {name} has a value that is none"))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = rustls_platform_verifier::Verifier::new(Arc::clone(&provider));
    let verifier = verifier.map_err(|error| error.to_string())?;
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    let client = reqwest::Client::builder()
        .default_headers(headers)
        .redirect(reqwest::redirect::Policy::none())
        .tls_backend_preconfigured(tls)
        .build()
        .map_err(|error| error.to_string())?;
    let config = StreamableHttpClientTransportConfig::with_uri(url);
    let transport = StreamableHttpClientTransport::with_client(client, config);
    ().serve(transport).await.map_err(|error| error.to_string())
}

/// Makes a tool of a server a function of the host.
fn host_tool(server: &str, client: &Arc<Client>, tool: ServerTool) -> Tool {
    let name = identifier(&format!("{server}_{}", tool.name));
    let description = tool.description.as_deref().unwrap_or_default().to_owned();
    let schema = tool.schema_as_json_value();
    let (client, own_name, server) = (Arc::clone(client), tool.name.to_string(), server.to_owned());
    Tool::new(name, description, move |given: Map<String, Value>| {
        let (client, name, server) = (Arc::clone(&client), own_name.clone(), server.clone());
        async move {
            tracing::info!(%server, tool = %name, "code calls a tool of another server");
            let request = CallToolRequestParams::new(name).with_arguments(given);
            let result = client.call_tool(request).await?;
            let value = match result.structured_content {
                Some(value) => value,
                None => content_value(result.content),
            };
            match result.is_error {
                Some(true) => {
                    Err(value.as_str().map_or_else(|| value.to_string(), str::to_owned).into())
                }
                _ => Ok(value),
            }
        }
    })
    .with_parameters(schema)
}

/// Returns content as JSON: text as text, anything else as the protocol has it.
fn content_value(content: Vec<ContentBlock>) -> Value {
    let is_text = content.iter().all(|block| block.as_text().is_some());
    if is_text {
        let texts: Vec<_> = content
            .iter()
            .filter_map(|block| block.as_text())
            .map(|text| text.text.as_str())
            .collect();
        return Value::String(texts.join("\n"));
    }
    serde_json::to_value(content).unwrap_or_default()
}

/// Returns a name as an identifier of Python.
fn identifier(name: &str) -> String {
    let is_part = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let name: String = name.chars().map(|c| if is_part(c) { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_identifiers() {
        assert_eq!(identifier("my-files_read.all"), "my_files_read_all");
        assert_eq!(identifier("1_x"), "_1_x");
    }

    #[tokio::test]
    async fn a_wrong_file_says_what_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config.json");
        assert_eq!(connect_servers(&file).await.unwrap_err().kind(), ErrorKind::NotFound);
        for (text, part) in [
            ("[]", "no JSON object"),
            ("{", "EOF"),
            (r#"{"servers": {}}"#, "servers"),
            (r#"{"mcpServers": {"x": {"comand": "y"}}}"#, "comand"),
            (r#"{"mcpServers": {"x": {}}}"#, "needs a `command` or a `url`"),
            (r#"{"mcpServers": {"x": {"command": "/no/such/program"}}}"#, "/no/such/program"),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = connect_servers(&file).await.unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
    }
}
