//! Our entries in the metadata of a sandbox, beside the tags of its user.
//!
//! The service keeps metadata for good: every process that lists the sandbox finds name, tags and terms there.

use std::collections::BTreeMap;

use sandbox_core::{CallContext, CreateSpec, Error, Result, Tags, random_hex, unix_now};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The prefix of all entries that are no tags.
const PREFIX: &str = "code-sandboxes.";

const NAME: &str = "code-sandboxes.name";
const REQUEST: &str = "code-sandboxes.request";
const KEY: &str = "code-sandboxes.key";
const EPHEMERAL: &str = "code-sandboxes.ephemeral";
const TERMS: &str = "code-sandboxes.terms";
const DIRECTORY: &str = "code-sandboxes.directory";
const MANAGED_BY: &str = "code-sandboxes.managed-by";
const EXPIRES_AT: &str = "code-sandboxes.expires-at";

/// What the metadata of a sandbox says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Labels {
    pub(crate) name: Option<String>,
    pub(crate) tags: Tags,
    /// The sandbox ends with the process that created it.
    pub(crate) is_ephemeral: bool,
    /// The part of the create that must match to use the sandbox again.
    pub(crate) terms: Map<String, Value>,
    /// The working directory that the create asked for.
    pub(crate) directory: Option<String>,
    /// The digest of the idempotency key.
    pub(crate) key: Option<String>,
}

/// One create, as it can be found again.
#[derive(Clone, Debug)]
pub(crate) struct CreateLabels {
    pub(crate) metadata: BTreeMap<String, String>,
    /// A word that only this create has.
    pub(crate) request: String,
}

/// Checks the tags of a create.
///
/// # Errors
/// `InvalidArgument` for a tag with a name of ours.
pub(crate) fn check(tags: &Tags) -> Result<()> {
    match tags.keys().find(|key| key.starts_with(PREFIX)) {
        Some(key) => {
            Err(Error::invalid("tags", format!("must not begin with `{PREFIX}`, got {key:?}")))
        }
        None => Ok(()),
    }
}

/// Returns the digest of an idempotency key, in the characters that the service accepts.
pub(crate) fn digest(key: &str) -> String {
    Sha256::digest(key).iter().take(20).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the metadata of a create. `expires_at` is the end that was asked for, in unix seconds.
pub(crate) fn of_create(call: &CallContext, spec: &CreateSpec, expires_at: f64) -> CreateLabels {
    let mut metadata = spec.tags.clone();
    let key = call.idempotency_key.as_deref().map(digest);
    let request = format!("{}-{}", key.as_deref().unwrap_or("one"), random_hex(16));
    let mut put = |name: &str, value: String| metadata.insert(name.to_owned(), value);
    put(MANAGED_BY, "code-sandboxes".to_owned());
    put(REQUEST, request.clone());
    put(EXPIRES_AT, format!("{:.0}", expires_at.min(unix_now() + 1e9)));
    put(TERMS, Value::Object(spec.reuse_key()).to_string());
    if spec.detached.is_none() {
        put(EPHEMERAL, "true".to_owned());
    }
    for (entry, value) in [(NAME, &spec.name), (KEY, &key), (DIRECTORY, &spec.working_dir)] {
        if let Some(value) = value {
            put(entry, value.clone());
        }
    }
    CreateLabels { metadata, request }
}

/// Returns the filter that finds the sandbox of one create.
pub(crate) fn with_request(request: &str) -> Tags {
    Tags::from([(REQUEST.to_owned(), request.to_owned())])
}

/// Returns the filter that finds the sandboxes of an idempotency key.
pub(crate) fn with_key(key: &str) -> Tags {
    Tags::from([(KEY.to_owned(), digest(key))])
}

/// Returns the filter that finds the sandboxes of a name.
pub(crate) fn with_name(name: &str) -> Tags {
    Tags::from([(NAME.to_owned(), name.to_owned())])
}

/// Reads the metadata of a sandbox, of this library or of another client.
pub(crate) fn read(metadata: Option<&BTreeMap<String, String>>) -> Labels {
    let mut labels = Labels::default();
    for (key, value) in metadata.into_iter().flatten() {
        match key.as_str() {
            NAME => labels.name = Some(value.clone()),
            EPHEMERAL => labels.is_ephemeral = value == "true",
            TERMS => labels.terms = serde_json::from_str(value).unwrap_or_default(),
            DIRECTORY => labels.directory = Some(value.clone()),
            KEY => labels.key = Some(value.clone()),
            own if own.starts_with(PREFIX) => {}
            _ => drop(labels.tags.insert(key.clone(), value.clone())),
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_create_says_is_read_again() {
        let mut spec = CreateSpec::default();
        spec.name = Some("mine".into());
        spec.tags = Tags::from([("team".into(), "data".into())]);
        spec.working_dir = Some("/srv".into());
        let call = CallContext::new().with_idempotency_key("tags:{\"A b\":1}");
        let made = of_create(&call, &spec, 1e9);
        let read = read(Some(&made.metadata));
        assert_eq!((read.name.as_deref(), &read.tags), (Some("mine"), &spec.tags));
        assert_eq!((read.directory.as_deref(), read.is_ephemeral), (Some("/srv"), true));
        assert_eq!(read.terms, spec.reuse_key());
        let header = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(made.request.len() <= 255 && made.request.chars().all(header), "{}", made.request);
        assert_eq!(with_key("tags:{\"A b\":1}").into_values().next(), read.key);
    }

    #[test]
    fn no_tag_can_pass_for_an_entry_of_ours() {
        check(&Tags::from([("team".into(), String::new())])).unwrap();
        check(&Tags::from([(KEY.into(), "x".into())])).unwrap_err();
    }

    #[test]
    fn a_sandbox_of_another_client_has_tags_alone() {
        let theirs = BTreeMap::from([("user".to_owned(), "7".to_owned())]);
        let read = read(Some(&theirs));
        assert_eq!(read, Labels { tags: theirs, ..Labels::default() });
    }
}
