//! Parameters of a notebook: a cell with values is inserted by the rules of papermill.

use serde_json::json;

use super::{Cell, Notebook, PYTHON};

/// Tag of the cell with the defaults.
const DEFAULTS: &str = "parameters";
/// Tag of the cell with the parameters of an earlier run.
const INJECTED: &str = "injected-parameters";

/// A parameter: a name and a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter {
    name: String,
    value: ParameterValue,
}

/// A value with the type of its text.
#[derive(Clone, Debug, PartialEq)]
enum ParameterValue {
    None,
    Bool(bool),
    /// Digits of any number, with an optional sign.
    Integer(String),
    Float(f64),
    Text(String),
}

impl Parameter {
    /// Parses `name=value`. A value is `True`, `False`, `None`, a number, or text.
    ///
    /// # Errors
    /// For another form, as one sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is not a parameter: write NAME=VALUE"))?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let has_valid_start = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !has_valid_start || !name.chars().all(is_part) {
            return Err(format!("{name:?} is not the name of a variable"));
        }
        Ok(Self { name: name.to_owned(), value: ParameterValue::from_text(value) })
    }

    /// Returns an assignment in a language; `None` for an unknown language.
    fn assignment(&self, language: &str) -> Option<String> {
        let Self { name, value } = self;
        let value = match language {
            PYTHON => value.in_python(),
            "r" => value.in_r(),
            "julia" => value.in_julia(),
            "bash" => return Some(format!("{name}={}\n", value.in_bash())),
            _ => return None,
        };
        Some(format!("{name} = {value}\n"))
    }
}

impl ParameterValue {
    fn from_text(text: &str) -> Self {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Integer(match digits.trim_start_matches('0') {
                "" => "0".into(),
                digits => format!("{sign}{digits}"),
            });
        }
        match (text, text.parse()) {
            ("True", _) => Self::Bool(true),
            ("False", _) => Self::Bool(false),
            ("None", _) => Self::None,
            (_, Ok(number)) => Self::Float(number),
            _ => Self::Text(text.to_owned()),
        }
    }

    fn in_python(&self) -> String {
        match self {
            Self::None => "None".into(),
            Self::Bool(true) => "True".into(),
            Self::Bool(false) => "False".into(),
            Self::Float(number) if !number.is_finite() => {
                format!("float('{}')", number.to_string().to_lowercase())
            }
            // A string literal of Python, as in JSON.
            Self::Text(text) => json!(text).to_string(),
            Self::Integer(_) | Self::Float(_) => self.as_number(),
        }
    }

    fn in_r(&self) -> String {
        match self {
            Self::None => "NULL".into(),
            Self::Bool(value) => value.to_string().to_uppercase(),
            Self::Text(text) => json!(text).to_string(),
            Self::Integer(_) | Self::Float(_) => self.as_number(),
        }
    }

    fn in_julia(&self) -> String {
        match self {
            Self::None => "nothing".into(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => json!(text).to_string().replace('$', r"\$"),
            Self::Integer(_) | Self::Float(_) => self.as_number(),
        }
    }

    fn in_bash(&self) -> String {
        match self {
            Self::None => "''".into(),
            Self::Bool(value) => value.to_string(),
            Self::Text(text) => format!("'{}'", text.replace('\'', r"'\''")),
            Self::Integer(_) | Self::Float(_) => self.as_number(),
        }
    }

    /// Returns a number as most languages write it.
    fn as_number(&self) -> String {
        match self {
            Self::Integer(digits) => digits.clone(),
            Self::Float(number) if number.is_infinite() => {
                if *number > 0.0 { "Inf" } else { "-Inf" }.into()
            }
            Self::Float(number) => format!("{number:?}"),
            Self::None | Self::Bool(_) | Self::Text(_) => String::new(),
        }
    }
}

impl Notebook {
    /// Inserts a cell with the parameters: in place of the one of an earlier run, after the cell with the defaults, or first.
    ///
    /// # Errors
    /// For a language whose assignments are unknown, with its name.
    pub(crate) fn set_parameters(&mut self, parameters: &[Parameter]) -> Result<(), String> {
        if parameters.is_empty() {
            return Ok(());
        }
        let language = self.language().unwrap_or_else(|| PYTHON.to_owned());
        // The last parameter with a name counts.
        let mut unique: Vec<&Parameter> = Vec::new();
        for parameter in parameters {
            unique.retain(|other| other.name != parameter.name);
            unique.push(parameter);
        }
        let lines = unique.iter().map(|parameter| parameter.assignment(&language));
        let Some(assignments) = lines.collect::<Option<String>>() else { return Err(language) };
        let source = format!("# Parameters\n{}", assignments.trim_end_matches('\n'));
        let mut cell = Cell { source, ..Cell::default() };
        cell.metadata.insert("tags".to_owned(), json!([INJECTED]));
        let position = |tag| self.cells.iter().position(|cell| cell.has_tag(tag));
        match (position(INJECTED), position(DEFAULTS)) {
            (Some(earlier), _) => self.cells[earlier] = cell,
            (None, Some(defaults)) => self.cells.insert(defaults + 1, cell),
            (None, None) => self.cells.insert(0, cell),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn injected(language: &str, given: &[&str]) -> Result<String, String> {
        let mut notebook = Notebook::from_code("1");
        notebook.set_language(language, None);
        let parameters: Vec<_> = given.iter().map(|text| Parameter::parse(text).unwrap()).collect();
        notebook.set_parameters(&parameters)?;
        Ok(notebook.cells[0].source.clone())
    }

    #[test]
    fn values_have_the_type_that_their_text_has() {
        let given = [
            "a=5",
            "b=-007",
            "c=2.5",
            "d=True",
            "e=None",
            "f=text",
            "g=say \"$x\"\nédone",
            "h=nan",
            "i=-inf",
            "j=",
            "k=a=b",
            "l=1e3",
            "a=6",
        ];
        insta::assert_snapshot!(injected("python", &given).unwrap(), @r#"
        # Parameters
        b = -7
        c = 2.5
        d = True
        e = None
        f = "text"
        g = "say \"$x\"\nédone"
        h = float('nan')
        i = float('-inf')
        j = ""
        k = "a=b"
        l = 1000.0
        a = 6
        "#);
    }

    #[test]
    fn other_languages_have_literals_of_their_own() {
        let few = ["a=5", "d=True", "e=None", "f=it's $x", "i=inf"];
        insta::assert_snapshot!(injected("r", &few).unwrap(), @r#"
        # Parameters
        a = 5
        d = TRUE
        e = NULL
        f = "it's $x"
        i = Inf
        "#);
        insta::assert_snapshot!(injected("bash", &few).unwrap(), @r"
        # Parameters
        a=5
        d=true
        e=''
        f='it'\''s $x'
        i=Inf
        ");
        insta::assert_snapshot!(injected("julia", &few).unwrap(), @r#"
        # Parameters
        a = 5
        d = true
        e = nothing
        f = "it's \$x"
        i = Inf
        "#);
        assert_eq!(injected("cobol", &few), Err("cobol".to_owned()));
    }

    #[test]
    fn malformed_parameters_are_refused() {
        for text in ["a", "=1", "1a=2", "a b=1", "a.b=1", "é=1", "a;b=1"] {
            Parameter::parse(text).unwrap_err();
        }
    }

    #[test]
    fn the_cell_is_inserted_as_by_papermill() {
        let cell = |source: &str, tags: Value| {
            let mut cell = Cell { source: source.into(), ..Cell::default() };
            cell.metadata.insert("tags".into(), tags);
            cell
        };
        let (none, defaults, old) = (json!([]), json!([DEFAULTS]), json!([INJECTED]));
        let parameters = [Parameter::parse("x=1").unwrap()];
        for (cells, expected) in [
            ([("a", &none), ("b", &none)], &["# Parameters", "a", "b"][..]),
            ([("a", &none), ("b", &defaults)], &["a", "b", "# Parameters"]),
            ([("a", &defaults), ("old", &old)], &["a", "# Parameters"]),
        ] {
            let cells = cells.map(|(source, tags)| cell(source, tags.clone())).to_vec();
            let mut notebook = Notebook { cells, ..Notebook::default() };
            notebook.set_parameters(&parameters).unwrap();
            let lines = notebook.cells.iter().filter_map(|cell| cell.source.lines().next());
            assert_eq!(lines.collect::<Vec<_>>(), expected);
            let injected = notebook.cells.iter().find(|cell| cell.has_tag(INJECTED)).unwrap();
            assert_eq!(injected.source, "# Parameters\nx = 1");
        }
    }
}
