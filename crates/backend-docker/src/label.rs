//! What an image says runs its code.

use std::collections::HashMap;

use sandbox_core::{Error, ErrorKind, Result};

use crate::config::CodeRunner;

/// The label with what runs the code of an image, as the option `engine` has it: `LABEL code-sandboxes.engine=jupyter:ir`.
pub const ENGINE_LABEL: &str = "code-sandboxes.engine";

/// What is meant by a name of an engine, for whoever gave another one.
const KNOWN: &str =
    "known: \"python\", \"jupyter\", \"jupyter:\" and the name of a kernel, or \"none\"";

/// What the labels of an image say runs its code. An empty one says nothing: no recipe can take a label away.
///
/// # Errors
/// `InvalidArgument` with the label, for one that names no engine.
pub(crate) fn engine_label(
    image: &str,
    labels: Option<&HashMap<String, String>>,
) -> Result<Option<CodeRunner>> {
    let said = labels.and_then(|labels| labels.get(ENGINE_LABEL));
    let Some(said) = said.filter(|said| !said.is_empty()) else { return Ok(None) };
    let engine = CodeRunner::parse(said).ok_or_else(|| {
        let message = format!(
            "{image} has the label {ENGINE_LABEL}={said:?}, which names nothing that runs code; {KNOWN}"
        );
        Error::new(ErrorKind::InvalidArgument, "create", message)
            .with_context("field", "image")
            .with_context("image", image.to_owned())
            .with_context("label", ENGINE_LABEL)
            .with_hint("say what runs the code with the option `engine`, or give the image another label")
    })?;
    Ok(Some(engine))
}

/// The label of an image that shall say it.
///
/// # Errors
/// `InvalidArgument` for a name of no engine.
pub(crate) fn label(engine: &str) -> Result<HashMap<String, String>> {
    let known = CodeRunner::parse(engine).ok_or_else(|| {
        Error::invalid("engine", format!("{engine:?} is nothing that runs code; {KNOWN}"))
    })?;
    Ok([(ENGINE_LABEL.to_owned(), known.to_string())].into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(value: &str) -> Result<Option<CodeRunner>> {
        engine_label("mine", Some(&[(ENGINE_LABEL.to_owned(), value.to_owned())].into()))
    }

    #[test]
    fn an_image_says_what_runs_its_code() {
        let kernel = |name: &str| CodeRunner::Jupyter { kernel: name.to_owned(), transport: None };
        assert_eq!(engine_label("mine", None).unwrap(), None);
        assert_eq!(engine_label("mine", Some(&HashMap::new())).unwrap(), None);
        assert_eq!(said("").unwrap(), None);
        assert_eq!(said("python").unwrap(), Some(CodeRunner::Python));
        assert_eq!(said("jupyter").unwrap(), Some(kernel("python3")));
        assert_eq!(said("jupyter:ir").unwrap(), Some(kernel("ir")));
    }

    #[test]
    fn a_label_that_names_nothing_is_named() {
        for bad in ["perl", "jupyter:", "jupyter:a b", "Python", " python", "jupyter:-x"] {
            let error = said(bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
            let names = |part: &str| error.message().contains(part);
            assert!(names(ENGINE_LABEL) && names("mine") && names(bad), "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
            label(bad).expect_err(bad);
        }
        assert_eq!(label("jupyter").unwrap()[ENGINE_LABEL], "jupyter:python3");
    }
}
