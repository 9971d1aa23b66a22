//! Functions of the host that code in a sandbox may call.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use futures_core::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::sandbox::Sandbox;

/// Characters that a tool's name may have.
const MAX_NAME: usize = 128;

/// A function of the host that code may call. Cheap to clone.
///
/// See [`Sandbox::register_tool`](crate::Sandbox::register_tool) for how code calls it.
#[derive(Clone)]
pub struct Tool {
    /// Its name: an identifier, at most 128 characters.
    pub name: String,
    /// A description for the author of the code.
    pub description: String,
    /// JSON schema of its arguments, an object.
    pub parameters: Option<Value>,
    /// The function: arguments in, result or error message out.
    pub call: ToolFunction,
}

/// The type of a [`Tool`]'s function.
///
/// The future may be dropped: when the run is over, or the code no longer wants the answer.
pub type ToolFunction =
    Arc<dyn Fn(Map<String, Value>) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

/// The answer of the function of [`Tool::new`]: a value, or an error in words. `?` takes any error, and `"text".into()`
/// is one.
pub type ToolResult<R> = std::result::Result<R, Box<dyn StdError + Send + Sync>>;

impl Tool {
    /// A tool from an async closure.
    ///
    /// The arguments are whatever deserializes from a JSON object: `serde_json::Map<String, Value>` takes them as they
    /// come, a struct takes those it names. Arguments that do not fit are an error in the code, which names what is wrong.
    /// The result is whatever serializes to JSON. The code sees the text of an error, so it must hold nothing secret.
    ///
    /// ```
    /// use sandbox_core::Tool;
    /// use serde::Deserialize;
    /// use serde_json::{Map, Value, json};
    ///
    /// #[derive(Deserialize)]
    /// struct Add {
    ///     a: i64,
    ///     b: i64,
    /// }
    /// let add = Tool::new("add", "Adds two numbers.", |add: Add| async move {
    ///     add.a.checked_add(add.b).ok_or_else(|| "the sum is too large".into())
    /// });
    ///
    /// let echo = Tool::new("echo", "Answers its arguments.", |all: Map<String, Value>| async move { Ok(all) })
    ///     .with_parameters(json!({"type": "object", "additionalProperties": true}));
    /// # let (_, _) = (add, echo);
    /// ```
    pub fn new<A, R, F, Fut>(
        name: impl Into<String>,
        description: impl Into<String>,
        function: F,
    ) -> Self
    where
        A: DeserializeOwned,
        R: Serialize,
        F: Fn(A) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ToolResult<R>> + Send + 'static,
    {
        let function = Arc::new(function);
        let call: ToolFunction = Arc::new(move |arguments| {
            let function = Arc::clone(&function);
            Box::pin(async move {
                let arguments = serde_json::from_value(Value::Object(arguments))
                    .map_err(|error| format!("the arguments do not fit: {error}"))?;
                let result = function(arguments).await.map_err(|error| error.to_string())?;
                serde_json::to_value(result)
                    .map_err(|error| format!("the result is not JSON: {error}"))
            })
        });
        Self { name: name.into(), description: description.into(), parameters: None, call }
    }

    /// Adds a JSON schema of the arguments. The schema is shown to the code and not enforced.
    #[must_use]
    pub fn with_parameters(self, schema: Value) -> Self {
        Self { parameters: Some(schema), ..self }
    }

    /// Checks that the tool can be registered.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no identifier, or parameters that are no object.
    pub fn check(&self) -> Result<()> {
        if !is_identifier(&self.name) {
            let message = format!("of a tool must be an identifier, got {:?}", self.name);
            return Err(Error::invalid("name", message));
        }
        match &self.parameters {
            None | Some(Value::Object(_)) => Ok(()),
            Some(other) => {
                let message =
                    format!("of {} must be a JSON schema, an object, got {other}", self.name);
                Err(Error::invalid("parameters", message))
            }
        }
    }
}

impl Sandbox {
    /// Lets code call a function of the host by name. Registered again after a restart; a tool of the same name is
    /// replaced.
    ///
    /// Code awaits `call_tool("name", {"argument": 1})`, or `call_tool("name", argument=1)`, and gets the JSON result, or
    /// a `ToolError` with the tool's message. `call_tool_sync` is the same for code that does not await, and `list_tools()`
    /// gives names, descriptions and schemas. All contexts have the same tools, also runs that are active already.
    ///
    /// Calls run at the same time, at most 64 of one run; more wait. Arguments and results are at most 16 MiB of JSON.
    /// While a tool works, the clock of the run goes on.
    ///
    /// ```no_run
    /// # async fn example(sandbox: sandbox_core::Sandbox) -> sandbox_core::Result<()> {
    /// use sandbox_core::Tool;
    /// use serde::Deserialize;
    /// use serde_json::json;
    ///
    /// #[derive(Deserialize)]
    /// struct Lookup {
    ///     city: String,
    /// }
    /// let weather = Tool::new("weather", "The weather of a city.", |lookup: Lookup| async move {
    ///     match lookup.city.as_str() {
    ///         "Oslo" => Ok(json!({"degrees": -3})),
    ///         other => Err(format!("no such city: {other}").into()),
    ///     }
    /// });
    /// sandbox.register_tool(weather).await?;
    /// let result = sandbox.run_code("(await call_tool('weather', city='Oslo'))['degrees']").await?;
    /// assert_eq!(result.text(), Some("-3"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no identifier; `Unsupported` when code cannot call the host; `Terminated` when
    /// it ended by itself. On a handle that does not run, the latter two come with the next start.
    ///
    /// # Cancellation
    /// A call is cancelled, which drops the future of the tool, when the run ends, is interrupted or hits a limit, or when
    /// the code cancels it. A tool that blocks its thread cannot be cancelled before it returns.
    pub async fn register_tool(&self, tool: Tool) -> Result<()> {
        tool.check()?;
        self.add_tool(tool).await
    }
}

fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first == '_' || first.is_alphabetic())
        && characters.all(|other| other == '_' || other.is_alphanumeric())
        && name.chars().count() <= MAX_NAME
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use futures_util::FutureExt as _;
    use serde_json::json;

    use super::*;
    use crate::ErrorKind;

    fn called(tool: &Tool, arguments: Value) -> Result<Value, String> {
        let Value::Object(arguments) = arguments else { panic!("not an object") };
        (tool.call)(arguments).now_or_never().expect("it does not wait")
    }

    #[test]
    fn typed_arguments_and_results() {
        #[derive(serde::Deserialize)]
        struct Add {
            a: i64,
            b: i64,
        }
        let add = Tool::new("add", "", |add: Add| ready(Ok((add.a + add.b, "sum"))));
        assert_eq!(called(&add, json!({"a": 1, "b": 2})), Ok(json!([3, "sum"])));
        let error = called(&add, json!({"a": 1})).unwrap_err();
        assert_eq!(error, "the arguments do not fit: missing field `b`");
    }

    #[test]
    fn errors_of_all_kinds_become_text() {
        let fails = Tool::new("fails", "", |_: Map<String, Value>| async {
            let number: i32 = "x".parse()?;
            Ok(number)
        });
        assert_eq!(called(&fails, json!({})), Err("invalid digit found in string".into()));
        let refuses =
            Tool::new("refuses", "", |_: Value| ready(ToolResult::<()>::Err("no".into())));
        assert_eq!(called(&refuses, json!({})), Err("no".into()));
        let odd = Tool::new("odd", "", |_: Value| {
            ready(Ok(std::collections::BTreeMap::from([((1, 2), 3)])))
        });
        assert!(called(&odd, json!({})).unwrap_err().starts_with("the result is not JSON"));
    }

    #[test]
    fn names_are_identifiers_and_schemas_are_objects() {
        let named = |name: &str| Tool::new(name, "", |_: Value| ready(Ok(())));
        for good in ["x", "_x1", "get_weather", "größe"] {
            named(good).check().unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["", "1x", "a-b", "a.b", "a b", "a\n", &"x".repeat(129)] {
            let error = named(bad).check().expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
        named("x").with_parameters(json!({"type": "object"})).check().unwrap();
        named("x").with_parameters(json!("string")).check().unwrap_err();
    }
}
