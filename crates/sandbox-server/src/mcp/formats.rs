//! The tools in the forms that providers of models take, for agents without MCP.

use std::fmt;
use std::str::FromStr;

use sandbox_core::{Error, Result};
use serde_json::{Map, Value, json};

use super::catalog::{self, ToolDefinition};

/// A form of tool definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolFormat {
    /// Functions of OpenAI's chat completions, which many other providers take, too.
    OpenAi,
    /// Tools of Anthropic's messages.
    Anthropic,
    /// Function declarations of Gemini.
    Gemini,
}

impl ToolFormat {
    /// Returns the name, such as `openai`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// Writes tools in this form. Calls of the model go to [`Toolset::call`](super::Toolset::call).
    pub fn write(self, tools: &[ToolDefinition]) -> Value {
        let write = |tool: &ToolDefinition| {
            let (name, description) = (tool.name, &tool.description);
            match self {
                Self::OpenAi => json!({
                    "type": "function",
                    "function": {"name": name, "description": description, "parameters": tool.input_schema},
                }),
                Self::Anthropic => json!({
                    "name": name, "description": description, "input_schema": tool.input_schema,
                }),
                Self::Gemini => json!({
                    "name": name, "description": description, "parameters": gemini(&tool.input_schema),
                }),
            }
        };
        let written: Vec<_> = tools.iter().map(write).collect();
        match self {
            Self::Gemini => json!([{"functionDeclarations": written}]),
            Self::OpenAi | Self::Anthropic => Value::Array(written),
        }
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ToolFormat {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let all = [Self::OpenAi, Self::Anthropic, Self::Gemini];
        all.into_iter()
            .find(|format| format.as_str() == text.trim().to_ascii_lowercase())
            .ok_or_else(|| {
                Error::invalid(
                    "format",
                    format!("{text:?} is not one of openai, anthropic, gemini"),
                )
            })
    }
}

/// Returns the definitions of all tools. A [`Toolset`](super::Toolset) has those that its backend can do.
pub fn all_tools() -> Vec<ToolDefinition> {
    catalog::all()
}

/// Gemini takes a subset of JSON schema: no `additionalProperties`.
fn gemini(schema: &Map<String, Value>) -> Value {
    fn plain(value: &Value) -> Value {
        match value {
            Value::Object(entries) => {
                let kept = entries.iter().filter(|(key, value)| {
                    key.as_str() != "additionalProperties" || value.is_object()
                });
                Value::Object(kept.map(|(key, value)| (key.clone(), plain(value))).collect())
            }
            Value::Array(values) => Value::Array(values.iter().map(plain).collect()),
            other => other.clone(),
        }
    }
    match plain(&Value::Object(schema.clone())) {
        // A map from names to texts is an object without properties there.
        Value::Object(schema) => Value::Object(without_maps(schema)),
        other => other,
    }
}

fn without_maps(mut schema: Map<String, Value>) -> Map<String, Value> {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for property in properties.into_iter().flat_map(|properties| properties.values_mut()) {
        if let Value::Object(property) = property {
            property.remove("additionalProperties");
        }
    }
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_provider_gets_its_own_form() {
        let tools = all_tools();
        let first = |format: ToolFormat| format.write(&tools)[0].clone();
        assert_eq!(
            first(ToolFormat::OpenAi)["function"]["parameters"]["required"],
            json!(["code"])
        );
        assert_eq!(
            first(ToolFormat::Anthropic)["input_schema"]["properties"]["code"]["type"],
            "string"
        );
        let gemini = first(ToolFormat::Gemini)["functionDeclarations"].clone();
        assert_eq!(gemini[0]["name"], "run_code");
        assert!(!gemini.to_string().contains("additionalProperties"));
        for format in [ToolFormat::OpenAi, ToolFormat::Anthropic, ToolFormat::Gemini] {
            assert_eq!(format.to_string().parse::<ToolFormat>().unwrap(), format);
        }
        "other".parse::<ToolFormat>().unwrap_err();
    }
}
