//! Label of an image with the runner of its code.

use std::collections::HashMap;

use sandbox_core::{Error, ErrorKind, Result};

use crate::config::CodeRunner;

/// Label with the default of the option `engine` for an image: `LABEL code-sandboxes.engine=jupyter:ir`.
pub const ENGINE_LABEL: &str = "code-sandboxes.engine";

/// Known names, for errors about another name.
const KNOWN: &str =
    "known: \"python\", \"jupyter\", \"jupyter:\" and the name of a kernel, or \"none\"";

/// Reads the runner from the labels of an image. An empty label counts as none: no Dockerfile can remove a label.
///
/// # Errors
/// `InvalidArgument` with the label, for one that names no runner.
pub(crate) fn runner_from_labels(
    image: &str,
    labels: Option<&HashMap<String, String>>,
) -> Result<Option<CodeRunner>> {
    let value = labels.and_then(|labels| labels.get(ENGINE_LABEL));
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let runner = CodeRunner::parse(value).ok_or_else(|| {
        let message = format!(
            "{image} has the label {ENGINE_LABEL}={value:?}, which names nothing that runs code; {KNOWN}"
        );
        Error::new(ErrorKind::InvalidArgument, "create", message)
            .with_context("field", "image")
            .with_context("image", image.to_owned())
            .with_context("label", ENGINE_LABEL)
            .with_hint("set the option `engine` to what runs the code, or give the image another label")
    })?;
    Ok(Some(runner))
}

/// Returns the label for an image with that runner.
///
/// # Errors
/// `InvalidArgument` for an unknown name.
pub(crate) fn runner_label(engine: &str) -> Result<HashMap<String, String>> {
    let known = CodeRunner::parse(engine).ok_or_else(|| {
        Error::invalid("engine", format!("{engine:?} names nothing that runs code; {KNOWN}"))
    })?;
    Ok([(ENGINE_LABEL.to_owned(), known.to_string())].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(value: &str) -> Result<Option<CodeRunner>> {
        runner_from_labels("mine", Some(&[(ENGINE_LABEL.to_owned(), value.to_owned())].into()))
    }

    #[test]
    fn a_label_names_the_runner() {
        let kernel = |name: &str| CodeRunner::Jupyter { kernel: name.to_owned(), transport: None };
        assert_eq!(runner_from_labels("mine", None).unwrap(), None);
        assert_eq!(runner_from_labels("mine", Some(&HashMap::new())).unwrap(), None);
        assert_eq!(labelled("").unwrap(), None);
        assert_eq!(labelled("python").unwrap(), Some(CodeRunner::Python));
        assert_eq!(labelled("jupyter").unwrap(), Some(kernel("python3")));
        assert_eq!(labelled("jupyter:ir").unwrap(), Some(kernel("ir")));
    }

    #[test]
    fn a_label_with_an_unknown_name_is_reported() {
        for bad in ["perl", "jupyter:", "jupyter:a b", "Python", " python", "jupyter:-x"] {
            let error = labelled(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
            let names = |part: &str| error.message().contains(part);
            assert!(names(ENGINE_LABEL) && names("mine") && names(bad), "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
            runner_label(bad).expect_err(bad);
        }
        assert_eq!(runner_label("jupyter").unwrap()[ENGINE_LABEL], "jupyter:python3");
    }
}
