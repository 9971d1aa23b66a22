//! Magics of IPython in a notebook.

use super::{Notebook, PYTHON};

impl Notebook {
    /// Returns the first magic that needs IPython, such as `%%bash`, if the notebook is in Python.
    pub(crate) fn magic(&self) -> Option<String> {
        if self.language().is_some_and(|language| language != PYTHON) {
            return None;
        }
        let mut cells = self.code_cells().into_iter();
        cells.find_map(|index| magic_of(&self.cells[index].source))
    }
}

/// Returns the first magic of a cell that needs IPython. Text in strings over several lines is no magic.
fn magic_of(source: &str) -> Option<String> {
    let mut in_string = false;
    for code in source.lines().map(str::trim) {
        let starts_in_string = in_string;
        let quotes = code.matches(r#"""""#).count() + code.matches("'''").count();
        in_string ^= quotes % 2 == 1;
        if starts_in_string {
            continue;
        }
        let word = code.split_whitespace().next().unwrap_or_default();
        let name = word.trim_start_matches('%');
        let is_magic = matches!(word.len() - name.len(), 1 | 2)
            && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_known = word == "%pip" || code.split_whitespace().eq(["%matplotlib", "inline"]);
        if is_magic && !is_known {
            return Some(word.to_owned());
        }
        if code.starts_with("get_ipython()") {
            return Some("get_ipython()".to_owned());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn magics_are_found_outside_of_strings() {
        for (source, found) in [
            ("%%bash\necho", Some("%%bash")),
            ("x = 1\n  %time x", Some("%time")),
            ("%load_ext autoreload", Some("%load_ext")),
            ("get_ipython().run_line_magic('time', '')", Some("get_ipython()")),
            ("%pip install x\n%matplotlib inline\n!ls", None),
            ("%matplotlib widget", Some("%matplotlib")),
            ("x = ('%s'\n     % name)", None),
            ("text = '''\n%time\n'''\nz", None),
            ("# %time\n%%%\n%", None),
        ] {
            assert_eq!(magic_of(source).as_deref(), found, "{source}");
        }
        let mut notebook = Notebook::from_code("%%bash");
        assert_eq!(notebook.magic().as_deref(), Some("%%bash"));
        notebook.set_language("bash", None);
        assert_eq!(notebook.magic(), None);
    }
}
