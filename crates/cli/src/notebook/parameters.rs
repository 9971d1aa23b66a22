//! Parameters of a notebook: a cell with values that takes the place of the defaults, by the rules of papermill.

use serde_json::json;

use super::{Cell, Notebook, PYTHON};

/// The cell with this tag has the defaults.
const DEFAULTS: &str = "parameters";
/// The cell with this tag has what was given to an earlier run.
const INJECTED: &str = "injected-parameters";

/// A value for a notebook, under its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameter {
    name: String,
    given: Given,
}

/// A value, with the type that its text has.
#[derive(Clone, Debug, PartialEq)]
enum Given {
    Nothing,
    Truth(bool),
    /// Digits, however many, perhaps behind a sign.
    Whole(String),
    Float(f64),
    Text(String),
}

impl Parameter {
    /// Reads `name=value`. A value is a truth (`True`), nothing (`None`), a number, or else text.
    ///
    /// # Errors
    /// It is no such thing, as one sentence.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, value) = text
            .split_once('=')
            .ok_or_else(|| format!("{text:?} is no parameter: it is written NAME=VALUE"))?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins_well || !name.chars().all(is_part) {
            return Err(format!("{name:?} is no name of a variable, which a parameter needs"));
        }
        Ok(Self { name: name.to_owned(), given: Given::from_text(value) })
    }

    /// An assignment in that language, or `None` where it is not known how to write one.
    fn assignment(&self, language: &str) -> Option<String> {
        let Self { name, given } = self;
        let value = match language {
            PYTHON => given.in_python(),
            "r" => given.in_r(),
            "julia" => given.in_julia(),
            "bash" => return Some(format!("{name}={}\n", given.in_bash())),
            _ => return None,
        };
        Some(format!("{name} = {value}\n"))
    }
}

impl Given {
    fn from_text(text: &str) -> Self {
        let (sign, digits) = match text.strip_prefix('-') {
            Some(digits) => ("-", digits),
            None => ("", text.strip_prefix('+').unwrap_or(text)),
        };
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Self::Whole(match digits.trim_start_matches('0') {
                "" => "0".into(),
                digits => format!("{sign}{digits}"),
            });
        }
        match (text, text.parse()) {
            ("True", _) => Self::Truth(true),
            ("False", _) => Self::Truth(false),
            ("None", _) => Self::Nothing,
            (_, Ok(number)) => Self::Float(number),
            _ => Self::Text(text.to_owned()),
        }
    }

    fn in_python(&self) -> String {
        match self {
            Self::Nothing => "None".into(),
            Self::Truth(true) => "True".into(),
            Self::Truth(false) => "False".into(),
            Self::Float(number) if !number.is_finite() => {
                format!("float('{}')", number.to_string().to_lowercase())
            }
            // Such a literal means the same there as in JSON.
            Self::Text(text) => json!(text).to_string(),
            Self::Whole(_) | Self::Float(_) => self.as_number(),
        }
    }

    fn in_r(&self) -> String {
        match self {
            Self::Nothing => "NULL".into(),
            Self::Truth(truth) => truth.to_string().to_uppercase(),
            Self::Text(text) => json!(text).to_string(),
            Self::Whole(_) | Self::Float(_) => self.as_number(),
        }
    }

    fn in_julia(&self) -> String {
        match self {
            Self::Nothing => "nothing".into(),
            Self::Truth(truth) => truth.to_string(),
            Self::Text(text) => json!(text).to_string().replace('$', r"\$"),
            Self::Whole(_) | Self::Float(_) => self.as_number(),
        }
    }

    fn in_bash(&self) -> String {
        match self {
            Self::Nothing => "''".into(),
            Self::Truth(truth) => truth.to_string(),
            Self::Text(text) => format!("'{}'", text.replace('\'', r"'\''")),
            Self::Whole(_) | Self::Float(_) => self.as_number(),
        }
    }

    /// A number, as most languages write it.
    fn as_number(&self) -> String {
        match self {
            Self::Whole(digits) => digits.clone(),
            Self::Float(number) if number.is_infinite() => {
                if *number > 0.0 { "Inf" } else { "-Inf" }.into()
            }
            Self::Float(number) => format!("{number:?}"),
            Self::Nothing | Self::Truth(_) | Self::Text(_) => String::new(),
        }
    }
}

impl Notebook {
    /// Puts a cell with the parameters after the one that has the defaults, in the place of one that an earlier run was
    /// given, or before all others.
    ///
    /// # Errors
    /// Nothing is known of assignments in the language of the notebook, which is named then.
    pub(crate) fn set_parameters(&mut self, parameters: &[Parameter]) -> Result<(), String> {
        if parameters.is_empty() {
            return Ok(());
        }
        let language = self.language().unwrap_or_else(|| PYTHON.to_owned());
        // The last one of a name counts.
        let mut given: Vec<&Parameter> = Vec::new();
        for parameter in parameters {
            given.retain(|other| other.name != parameter.name);
            given.push(parameter);
        }
        let lines = given.iter().map(|parameter| parameter.assignment(&language));
        let Some(assignments) = lines.collect::<Option<String>>() else { return Err(language) };
        let source = format!("# Parameters\n{}", assignments.trim_end_matches('\n'));
        let mut cell = Cell { source, ..Cell::default() };
        cell.metadata.insert("tags".to_owned(), json!([INJECTED]));
        let place = |tag| self.cells.iter().position(|cell| cell.has_tag(tag));
        match (place(INJECTED), place(DEFAULTS)) {
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
        let mut notebook = Notebook::of_code("1");
        notebook.note_language(language, None);
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
    fn what_is_no_parameter_says_so() {
        for text in ["a", "=1", "1a=2", "a b=1", "a.b=1", "é=1", "a;b=1"] {
            Parameter::parse(text).unwrap_err();
        }
    }

    #[test]
    fn the_cell_stands_where_papermill_puts_it() {
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
