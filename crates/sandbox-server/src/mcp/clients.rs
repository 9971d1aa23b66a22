//! Configuration of MCP clients, so that they start this server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jsonc_parser::ParseOptions;
use jsonc_parser::cst::{CstInputValue, CstRootNode};
use sandbox_core::{Error, ErrorKind, Result};
use toml_edit::{Array, DocumentMut, Item, Table, value};

/// Name of the server in the configuration of a client.
const NAME: &str = "code-sandboxes";

/// The skill: text for agents about the tools, in the form that clients load.
pub const SKILL: &str = include_str!("SKILL.md");

/// A client with a configuration that is known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum McpClient {
    /// Claude Code.
    Claude,
    /// Cursor.
    Cursor,
    /// Visual Studio Code.
    VsCode,
    /// Codex.
    Codex,
    /// Zed.
    Zed,
}

/// A configuration with the server in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The file, below the home directory or that of the project.
    pub path: PathBuf,
    /// The whole new content of the file.
    pub text: String,
    /// The file of the skill, for clients that load skills.
    pub skill: Option<PathBuf>,
}

impl McpClient {
    /// Every client.
    pub const ALL: [Self; 5] = [Self::Claude, Self::Cursor, Self::VsCode, Self::Codex, Self::Zed];

    /// Returns the name, such as `claude`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claude => "claude",
            Self::Cursor => "cursor",
            Self::VsCode => "vscode",
            Self::Codex => "codex",
            Self::Zed => "zed",
        }
    }

    /// Returns the file of the configuration: that of the user, below the home directory, or that of a project.
    pub fn path(self, of_project: bool) -> &'static Path {
        Path::new(match (self, of_project) {
            (Self::Claude, false) => ".claude.json",
            (Self::Claude, true) => ".mcp.json",
            (Self::Cursor, _) => ".cursor/mcp.json",
            (Self::VsCode, false) if cfg!(target_os = "macos") => {
                "Library/Application Support/Code/User/mcp.json"
            }
            (Self::VsCode, false) => ".config/Code/User/mcp.json",
            (Self::VsCode, true) => ".vscode/mcp.json",
            (Self::Codex, _) => ".codex/config.toml",
            (Self::Zed, false) => ".config/zed/settings.json",
            (Self::Zed, true) => ".zed/settings.json",
        })
    }

    /// Returns the file of the skill, for clients that load skills from files.
    pub fn skill_path(self, of_project: bool) -> Option<&'static Path> {
        Some(Path::new(match (self, of_project) {
            (Self::Claude, _) => ".claude/skills/code-sandboxes/SKILL.md",
            (Self::Cursor, _) => ".cursor/skills/code-sandboxes/SKILL.md",
            (Self::Codex, _) => ".codex/skills/code-sandboxes/SKILL.md",
            (Self::VsCode, false) => ".copilot/skills/code-sandboxes/SKILL.md",
            (Self::VsCode, true) => ".github/skills/code-sandboxes/SKILL.md",
            (Self::Zed, _) => return None,
        }))
    }

    /// Adds the server to the content of a configuration, and leaves everything else as it is, comments included. An entry
    /// of that name is replaced.
    ///
    /// # Errors
    /// `InvalidArgument` for a content that cannot be read, or has something else where the servers are.
    pub fn configure(
        self,
        of_project: bool,
        existing: Option<&str>,
        command: &[String],
    ) -> Result<ClientConfig> {
        let existing = existing.unwrap_or_default();
        let text = match self {
            Self::Codex => toml(existing, command),
            Self::Claude | Self::Cursor => json(existing, "mcpServers", &[], command),
            Self::VsCode => json(existing, "servers", &[("type", "stdio")], command),
            Self::Zed => json(existing, "context_servers", &[("source", "custom")], command),
        };
        let path = self.path(of_project);
        let text = text.map_err(|problem| {
            let message = format!("{} cannot be changed: {problem}", path.display());
            Error::new(ErrorKind::InvalidArgument, "install", message)
                .with_hint("`--dry-run` prints the entry, to be added by hand")
        })?;
        let skill = self.skill_path(of_project).map(Path::to_owned);
        Ok(ClientConfig { path: path.to_owned(), text, skill })
    }
}

impl fmt::Display for McpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for McpClient {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim().to_ascii_lowercase();
        Self::ALL.into_iter().find(|client| client.as_str() == name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.into_iter().map(Self::as_str).collect();
            Error::invalid("client", format!("{text:?} is not one of {}", names.join(", ")))
        })
    }
}

fn json(
    existing: &str,
    servers: &str,
    extra: &[(&str, &str)],
    command: &[String],
) -> Result<String, String> {
    let existing = if existing.trim().is_empty() { "{}\n" } else { existing };
    let root = CstRootNode::parse(existing, &ParseOptions::default())
        .map_err(|error| error.to_string())?;
    let object = root.object_value_or_create().ok_or("it is no JSON object")?;
    let servers = object
        .object_value_or_create(servers)
        .ok_or_else(|| format!("`{servers}` is no JSON object"))?;
    let (program, args) = command.split_first().ok_or("the command is empty")?;
    let text = |text: &str| CstInputValue::String(text.to_owned());
    let mut entry: Vec<_> =
        extra.iter().map(|(key, value)| ((*key).to_owned(), text(value))).collect();
    entry.push(("command".to_owned(), text(program)));
    let args = args.iter().map(|argument| text(argument)).collect();
    entry.push(("args".to_owned(), CstInputValue::Array(args)));
    let entry = CstInputValue::Object(entry);
    match servers.get(NAME) {
        Some(property) => property.set_value(entry),
        None => drop(servers.append(NAME, entry)),
    }
    Ok(root.to_string())
}

fn toml(existing: &str, command: &[String]) -> Result<String, String> {
    let mut document: DocumentMut =
        existing.parse().map_err(|error: toml_edit::TomlError| error.message().to_owned())?;
    let (program, args) = command.split_first().ok_or("the command is empty")?;
    let servers = document.entry("mcp_servers").or_insert_with(|| {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let servers = servers.as_table_like_mut().ok_or("`mcp_servers` is no table")?;
    let mut entry = Table::new();
    entry.insert("command", value(program));
    entry.insert("args", value(args.iter().map(String::as_str).collect::<Array>()));
    servers.insert(NAME, Item::Table(entry));
    Ok(document.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn command() -> Vec<String> {
        ["/usr/bin/sandboxes", "mcp", "--network", "none"].map(str::to_owned).to_vec()
    }

    #[test]
    fn every_client_gets_its_own_form() {
        for client in McpClient::ALL {
            let config = client.configure(false, None, &command()).unwrap();
            if client == McpClient::Codex {
                let expected = "[mcp_servers.code-sandboxes]\ncommand = \"/usr/bin/sandboxes\"\nargs = [\"mcp\", \"--network\", \"none\"]\n";
                assert_eq!(config.text, expected);
                continue;
            }
            let written: Value = serde_json::from_str(&config.text).unwrap();
            let servers = match client {
                McpClient::VsCode => "servers",
                McpClient::Zed => "context_servers",
                _ => "mcpServers",
            };
            let entry = &written[servers]["code-sandboxes"];
            assert_eq!(entry["command"], "/usr/bin/sandboxes", "{client}");
            assert_eq!(entry["args"], json!(["mcp", "--network", "none"]), "{client}");
        }
    }

    #[test]
    fn everything_else_stays() {
        let existing = "{\n  // mine\n  \"theme\": \"dark\",\n  \"context_servers\": {\n    \"other\": { \"command\": \"x\" },\n  },\n}\n";
        let config = McpClient::Zed.configure(false, Some(existing), &command()).unwrap();
        assert!(
            config.text.contains("// mine") && config.text.contains("\"other\""),
            "{}",
            config.text
        );
        let again = McpClient::Zed.configure(false, Some(&config.text), &command()).unwrap();
        assert_eq!(again.text, config.text, "a second time changes nothing");
        let existing = "# mine\nmodel = \"x\"\n\n[mcp_servers.other]\ncommand = \"y\"\n";
        let config = McpClient::Codex.configure(false, Some(existing), &command()).unwrap();
        assert!(config.text.starts_with(existing), "{}", config.text);
        let again = McpClient::Codex.configure(false, Some(&config.text), &command()).unwrap();
        assert_eq!(again.text, config.text);
    }

    #[test]
    fn a_file_that_is_something_else_is_refused() {
        for (client, existing) in [
            (McpClient::Claude, "[1]"),
            (McpClient::Claude, "{\"mcpServers\": 1}"),
            (McpClient::Cursor, "{\"a\""),
            (McpClient::Codex, "mcp_servers = 1"),
            (McpClient::Codex, "= x"),
        ] {
            let error = client.configure(false, Some(existing), &command()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{existing}");
        }
    }

    #[test]
    fn the_skill_has_what_clients_look_for() {
        let (head, body) = SKILL.strip_prefix("---\n").unwrap().split_once("\n---\n").unwrap();
        assert!(head.starts_with("name: code-sandboxes\ndescription: "), "{head}");
        for tool in super::super::catalog::names() {
            assert!(body.contains(&format!("`{tool}`")), "the skill does not name {tool}");
        }
    }
}
