//! The Python module by which code in a sandbox calls functions of the host.

use sandbox_core::{Result, Sandbox, Tool};
use serde_json::Value;

use super::options::HostTools;

/// Name of the module.
pub(super) const MODULE: &str = "mcp_tools";

/// Lets code in a sandbox call the functions of the host.
///
/// # Errors
/// `Unsupported` where code cannot call the host, or there are no files.
pub(super) async fn prepare(sandbox: &Sandbox, tools: &HostTools) -> Result<()> {
    if tools.tools.is_empty() {
        return Ok(());
    }
    for tool in &tools.tools {
        sandbox.register_tool(tool.clone()).await?;
    }
    sandbox.files().write(&format!("{MODULE}.py"), tools.module.clone()).await
}

/// Writes the module: a function for each tool, with its parameters as keywords.
pub(super) fn source(tools: &[Tool]) -> String {
    let mut source = String::from(
        "\"\"\"Functions of other servers. Each call runs outside of the sandbox.\"\"\"\n",
    );
    for tool in tools {
        let text = docstring(tool);
        let name = &tool.name;
        source.push_str(&format!(
            "\n\ndef {name}(**arguments):\n    {text}\n    return call_tool_sync({name:?}, arguments)\n"
        ));
    }
    source
}

/// Writes what a model needs to know about the functions.
pub(super) fn description(tools: &[Tool]) -> String {
    let mut text = format!(
        "The code can call functions of other servers: `from {MODULE} import NAME`, then `NAME(argument=value)`, which returns the \
         result and raises ToolError. Call many in one run, and print only what is needed. `help(NAME)` shows the arguments. There are:"
    );
    for tool in tools {
        let first = tool.description.lines().next().unwrap_or_default();
        text.push_str(&format!("\n- {}({}): {first}", tool.name, parameters(tool).join(", ")));
    }
    text
}

/// Returns the parameters of a tool; those that may be left out have a question mark.
fn parameters(tool: &Tool) -> Vec<String> {
    let Some(schema) = &tool.parameters else { return Vec::new() };
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |name: &str| required.is_some_and(|required| required.iter().any(|one| one == name));
    let properties = schema.get("properties").and_then(Value::as_object);
    let names = properties.into_iter().flat_map(|properties| properties.keys());
    names.map(|name| if is_required(name) { name.clone() } else { format!("{name}?") }).collect()
}

/// Returns the description and the schema of a tool as a string literal of Python.
fn docstring(tool: &Tool) -> String {
    let schema = tool.parameters.as_ref().map(Value::to_string).unwrap_or_default();
    // A string of JSON is one of Python, too.
    Value::String(format!("{}\n\nArguments, as a JSON schema: {schema}", tool.description))
        .to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn functions_have_their_schemas() {
        let tool = Tool::new("files_read", "Reads \"a\" file.\nMore.", |_: Value| async { Ok(()) })
            .with_parameters(json!({"type": "object", "properties": {"path": {}, "to": {}}, "required": ["path"]}));
        let source = source(std::slice::from_ref(&tool));
        assert!(
            source.contains("def files_read(**arguments):\n    \"Reads \\\"a\\\" file.\\nMore."),
            "{source}"
        );
        assert!(source.contains("return call_tool_sync(\"files_read\", arguments)"), "{source}");
        let description = description(&[tool]);
        assert!(
            description.ends_with("\n- files_read(path, to?): Reads \"a\" file."),
            "{description}"
        );
    }
}
