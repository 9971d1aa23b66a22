//! JSON schemas of arguments and answers, in the plain form that models and their providers take.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// Keywords that say nothing to a model, or that some providers refuse.
const DROPPED: [&str; 4] = ["$schema", "title", "format", "default"];

/// Returns the schema of the arguments that a type is read from: an object without references.
pub(super) fn of_arguments<T: JsonSchema>() -> Map<String, Value> {
    of::<T>(SchemaSettings::draft2020_12().for_deserialize())
}

/// Returns the schema of the answers that a type is written as.
pub(super) fn of_answers<T: JsonSchema>() -> Map<String, Value> {
    of::<T>(SchemaSettings::draft2020_12().for_serialize())
}

fn of<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    let settings = settings.with(|settings| settings.inline_subschemas = true);
    let schema = settings.into_generator().into_root_schema_for::<T>();
    match plain(schema.to_value()) {
        Value::Object(schema) => schema,
        _ => Map::new(),
    }
}

fn plain(value: Value) -> Value {
    match value {
        Value::Object(entries) => Value::Object(plain_object(entries)),
        Value::Array(values) => Value::Array(values.into_iter().map(plain).collect()),
        other => other,
    }
}

/// Removes what optional fields have beside their type: the alternative `null`.
fn plain_object(mut entries: Map<String, Value>) -> Map<String, Value> {
    for name in DROPPED {
        // A property may have such a name, and is an object then.
        if entries.get(name).is_some_and(|value| !value.is_object()) {
            entries.remove(name);
        }
    }
    if let Some(Value::String(description)) = entries.get_mut("description") {
        // Lines end where those of the source end.
        *description = description.replace('\n', " ");
    }
    if let Some(Value::Array(types)) = entries.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            entries.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(choices)) = entries.get_mut("enum") {
        choices.retain(|choice| !choice.is_null());
    }
    if let Some(Value::Array(mut alternatives)) = entries.remove("anyOf") {
        alternatives.retain(|one| one.get("type").is_none_or(|name| name != "null"));
        match (alternatives.len(), alternatives.pop()) {
            (1, Some(Value::Object(only))) => {
                for (key, value) in only {
                    entries.entry(key).or_insert(value);
                }
            }
            (_, Some(last)) => {
                alternatives.push(last);
                entries.insert("anyOf".into(), Value::Array(alternatives));
            }
            (_, None) => {}
        }
    }
    entries.into_iter().map(|(key, value)| (key, plain(value))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn optional_fields_are_plain() {
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct Inner {
            n: u32,
        }
        #[derive(JsonSchema)]
        #[expect(dead_code, reason = "only its schema is used")]
        struct Example {
            /// A name.
            title: String,
            /// A number,
            /// or none.
            limit: Option<u32>,
            inner: Option<Inner>,
        }
        assert_eq!(
            Value::Object(of_arguments::<Example>()),
            json!({
                "type": "object",
                "properties": {
                    "title": {"type": "string", "description": "A name."},
                    "limit": {"type": "integer", "minimum": 0, "description": "A number, or none."},
                    "inner": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}, "required": ["n"]},
                },
                "required": ["title"],
            })
        );
    }
}
