//! The rules for Python.

use std::borrow::Cow;
use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::OnceLock;

use tree_sitter::{Language, Node, TreeCursor};

use super::findings::Findings;
use super::text::{Literal, python_literal};
use super::tree::{note_unread, parse, source, walk};
use super::{ScanLanguage, ScanRule, calls, secrets};

/// Maximum number of names in one chain such as `a.b.c`.
const MAX_CHAIN: usize = 64;

/// How many calls one chain is followed through.
const MAX_CALLS: u32 = 8;

/// Minimum length of a text in base64 or hex that hides something.
const MIN_ENCODED: usize = 256;

/// Looks at Python code.
pub(super) fn look(text: &str, findings: &mut Findings<'_>) {
    let text = without_magics(text, findings);
    let Some(tree) = parse(&text, &tree_sitter_python::LANGUAGE.into(), findings) else { return };
    let (grammar, mut broken, mut seen) = (Grammar::get(), None, Vec::new());
    let too_deep = walk(&tree, |node, cursor| {
        if node.is_error() || node.is_missing() {
            broken.get_or_insert(node.start_position().row);
        }
        match grammar.kind(node) {
            Kind::Other => true,
            Kind::Skipped => false,
            // Names that are given, and no values.
            Kind::Identifier if grammar.is_given(cursor) => true,
            kind => {
                seen.push((node, kind));
                !matches!(kind, Kind::Import | Kind::ImportFrom)
            }
        }
    });
    let names = Names::bound_by(&seen, &text);
    let mut looking = Looking { text: &text, names: &names, findings };
    seen.into_iter().for_each(|(node, kind)| looking.visit(node, kind));
    note_unread(too_deep, broken, findings);
}

/// What rules have to do with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing, but its children may matter.
    Other,
    /// Nothing, and neither have its children.
    Skipped,
    Import,
    ImportFrom,
    Identifier,
    Attribute,
    Subscript,
    Call,
    Assignment,
    NamedExpression,
    /// A name and its value, without a variable that keeps it.
    NamedValue,
    String,
}

impl Kind {
    fn find(name: &str) -> Self {
        match name {
            "future_import_statement" | "comment" => Self::Skipped,
            "import_statement" => Self::Import,
            "import_from_statement" => Self::ImportFrom,
            "identifier" => Self::Identifier,
            "attribute" => Self::Attribute,
            "subscript" => Self::Subscript,
            "call" => Self::Call,
            "assignment" => Self::Assignment,
            "named_expression" => Self::NamedExpression,
            "keyword_argument" | "pair" | "default_parameter" => Self::NamedValue,
            "string" | "concatenated_string" => Self::String,
            _ => Self::Other,
        }
    }
}

/// Numbers of the grammar, because looking up a name for each node takes longer than everything else about the node.
#[derive(Debug)]
struct Grammar {
    /// By the number of the kind.
    kinds: Vec<Kind>,
    /// Fields in which an identifier is a name that is given.
    given: Vec<NonZeroU16>,
}

impl Grammar {
    fn get() -> &'static Self {
        static GRAMMAR: OnceLock<Grammar> = OnceLock::new();
        GRAMMAR.get_or_init(|| {
            let language: Language = tree_sitter_python::LANGUAGE.into();
            let kind = |id| match language.node_kind_for_id(id) {
                Some(name) if language.node_kind_is_named(id) => Kind::find(name),
                _ => Kind::Other,
            };
            let count = u16::try_from(language.node_kind_count()).unwrap_or(u16::MAX);
            let given = ["attribute", "name", "left", "alias"];
            Self {
                kinds: (0..count).map(kind).collect(),
                given: given.iter().filter_map(|name| language.field_id_for_name(name)).collect(),
            }
        })
    }

    fn kind(&self, node: Node<'_>) -> Kind {
        // What is broken has a number of its own beyond the table.
        self.kinds.get(usize::from(node.kind_id())).copied().unwrap_or(Kind::Other)
    }

    fn is_given(&self, cursor: &TreeCursor<'_>) -> bool {
        cursor.field_id().is_some_and(|field| self.given.contains(&field))
    }
}

/// Replaces the lines of a cell that are no Python, `!command` and `%magic`, and looks at their commands.
fn without_magics<'text>(text: &'text str, findings: &mut Findings<'_>) -> Cow<'text, str> {
    let is_magic = |line: &str| line.trim_start().starts_with(['!', '%']);
    if !text.lines().any(is_magic) {
        return Cow::Borrowed(text);
    }
    if let Some((first, rest)) = text.split_once('\n')
        && let Some(magic) = first.trim().strip_prefix("%%")
    {
        let name = magic.split_whitespace().next().unwrap_or_default();
        match ScanLanguage::find(name) {
            Some(language) => findings.look_inside(rest, language, 1),
            None if matches!(name, "time" | "timeit" | "capture") => {
                return Cow::Owned(format!("pass\n{}", without_magics(rest, findings)));
            }
            None => {
                let reason = format!("cells of `%%{name}` are not looked at");
                findings.add(ScanRule::Unread, 0, reason);
            }
        }
        return Cow::Borrowed("");
    }
    let mut plain = String::with_capacity(text.len());
    for (row, line) in text.lines().enumerate() {
        let begin = line.trim_start();
        if !is_magic(line) {
            plain.push_str(line);
        } else {
            plain.push_str(&line[..line.len() - begin.len()]);
            plain.push_str("pass");
            let command = begin.trim_start_matches(['!', '%']).trim();
            let is_pip = command.split_whitespace().next().is_some_and(|first| first == "pip");
            if begin.starts_with('!') {
                findings.add(ScanRule::Process, row, "`!` runs a line of the shell");
            }
            if begin.starts_with('!') || is_pip {
                findings.look_inside(command, ScanLanguage::Shell, row);
            } else if let Some(code) = command.strip_prefix("time ") {
                findings.look_inside(code, ScanLanguage::Python, row);
            }
        }
        plain.push('\n');
    }
    Cow::Owned(plain)
}

/// Names of the text that stand for modules and functions, wherever they are bound.
#[derive(Debug, Default)]
struct Names {
    bound: HashMap<String, String>,
    /// Modules all of whose names were imported.
    opened: Vec<String>,
}

impl Names {
    fn bound_by(seen: &[(Node<'_>, Kind)], text: &str) -> Self {
        let mut names = Self::default();
        for (node, kind) in seen {
            match kind {
                Kind::Import => names.bind_modules(*node, text),
                Kind::ImportFrom => names.bind_members(*node, text),
                Kind::Assignment => names.bind_value(*node, ("left", "right"), text),
                Kind::NamedExpression => names.bind_value(*node, ("name", "value"), text),
                _ => {}
            }
        }
        names
    }

    fn bind_modules(&mut self, node: Node<'_>, text: &str) {
        for (module, alias) in imported(node, text) {
            match alias {
                Some(alias) => self.bind(alias, &module),
                None => {
                    let first = module.split('.').next().unwrap_or_default();
                    self.bind(first, first);
                }
            }
        }
    }

    fn bind_members(&mut self, node: Node<'_>, text: &str) {
        let Some(module) = node.child_by_field_name("module_name") else { return };
        let module = plain_name(source(module, text));
        if has_wildcard(node) {
            self.opened.push(module.clone().into_owned());
        }
        for (member, alias) in imported(node, text) {
            self.bind(alias.unwrap_or(&member), &format!("{module}.{member}"));
        }
    }

    fn bind_value(&mut self, node: Node<'_>, fields: (&str, &str), text: &str) {
        let (name, value) =
            (node.child_by_field_name(fields.0), node.child_by_field_name(fields.1));
        let Some((name, value)) = name.zip(value) else { return };
        if name.kind() != "identifier" {
            return;
        }
        // The value of a call is another matter than its function.
        let path = self.path_of(value, text, MAX_CALLS).filter(|path| !path.contains("()"));
        if let Some(path) = path {
            self.bind(source(name, text), &path);
        }
    }

    fn bind(&mut self, name: &str, path: &str) {
        if name != path {
            self.bound.insert(name.to_owned(), path.to_owned());
        } else {
            self.bound.entry(name.to_owned()).or_insert_with(|| path.to_owned());
        }
    }

    fn find(&self, name: &str) -> Option<String> {
        if let Some(path) = self.bound.get(name) {
            return Some(path.clone());
        }
        if calls::is_builtin(name) {
            return Some(name.to_owned());
        }
        self.opened
            .iter()
            .map(|module| format!("{module}.{name}"))
            .find(|path| calls::rule_of(path).is_some() || calls::path_arguments(path) > 0)
    }

    /// Returns the name with dots that an expression stands for, such as `os.system`. A call is `()`.
    fn path_of(&self, node: Node<'_>, text: &str, calls_left: u32) -> Option<String> {
        let mut parts: Vec<Cow<'_, str>> = Vec::new();
        let mut node = node;
        let head = loop {
            if parts.len() > MAX_CHAIN {
                return None;
            }
            match node.kind() {
                "identifier" => break self.find(source(node, text))?,
                "attribute" => {
                    let name = node.child_by_field_name("attribute")?;
                    parts.push(source(name, text).into());
                    node = node.child_by_field_name("object")?;
                }
                "parenthesized_expression" | "await" => node = node.named_child(0)?,
                "call" => break self.path_of_call(node, text, calls_left.checked_sub(1)?)?,
                "subscript" => {
                    let key = node.child_by_field_name("subscript");
                    let key = key.and_then(|key| python_literal(key, text));
                    let value = node.child_by_field_name("value")?;
                    let of = self.path_of(value, text, calls_left.checked_sub(1)?)?;
                    break match (of.as_str(), key) {
                        ("sys.modules", Some(key)) if key.is_whole => key.text,
                        ("__builtins__" | "builtins" | "globals()" | "vars()", Some(key)) => {
                            key.text
                        }
                        _ => format!("{of}[]"),
                    };
                }
                _ => return None,
            }
        };
        let mut path = head;
        for part in parts.iter().rev() {
            path.push('.');
            path.push_str(part);
        }
        let plain = path.strip_prefix("builtins.").or(path.strip_prefix("__builtins__."));
        Some(plain.map(str::to_owned).unwrap_or(path))
    }

    /// Returns the name of what a call gives: a module, an attribute, or `name()`.
    fn path_of_call(&self, node: Node<'_>, text: &str, calls_left: u32) -> Option<String> {
        let function = self.path_of(node.child_by_field_name("function")?, text, calls_left)?;
        let literal = |index| python_literal(argument(node, index)?, text).filter(|it| it.is_whole);
        match function.as_str() {
            "__import__" | "importlib.import_module" | "importlib.__import__" => {
                literal(0).map(|module| module.text)
            }
            "getattr" => {
                let of = self.path_of(argument(node, 0)?, text, calls_left)?;
                Some(format!("{of}.{}", literal(1)?.text))
            }
            _ => Some(format!("{function}()")),
        }
    }
}

/// Returns the modules or members of an import, with the names they are given.
fn imported<'text>(node: Node<'_>, text: &'text str) -> Vec<(Cow<'text, str>, Option<&'text str>)> {
    let mut cursor = node.walk();
    let names = node.children_by_field_name("name", &mut cursor);
    names
        .filter_map(|name| {
            let (name, alias) = match name.kind() {
                "aliased_import" => {
                    let alias = name.child_by_field_name("alias").map(|alias| source(alias, text));
                    (name.child_by_field_name("name")?, alias)
                }
                _ => (name, None),
            };
            Some((plain_name(source(name, text)), alias))
        })
        .collect()
}

fn has_wildcard(node: Node<'_>) -> bool {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).any(|child| child.kind() == "wildcard_import")
}

/// Returns a name with dots without the spaces that Python allows around them.
fn plain_name(name: &str) -> Cow<'_, str> {
    if name.contains(char::is_whitespace) {
        return name.split_whitespace().collect::<String>().into();
    }
    name.into()
}

/// Returns an argument by its position.
fn argument<'tree>(call: Node<'tree>, index: u32) -> Option<Node<'tree>> {
    let arguments = call.child_by_field_name("arguments")?;
    arguments.named_child(index).filter(|argument| argument.kind() != "keyword_argument")
}

/// Looks at one text.
#[derive(Debug)]
struct Looking<'look, 'policy> {
    text: &'look str,
    names: &'look Names,
    findings: &'look mut Findings<'policy>,
}

impl Looking<'_, '_> {
    /// Looks at one node.
    fn visit(&mut self, node: Node<'_>, kind: Kind) {
        let row = node.start_position().row;
        match kind {
            Kind::Import => {
                for (module, _) in imported(node, self.text) {
                    self.findings.check_import(&module, row);
                }
            }
            Kind::ImportFrom => self.import_from(node, row),
            Kind::Identifier | Kind::Subscript => self.name(node, row),
            Kind::Attribute => self.attribute(node, row),
            Kind::Call => self.call(node, row),
            Kind::Assignment | Kind::NamedValue => self.named_value(node, row),
            Kind::String => self.string(node, row),
            Kind::NamedExpression | Kind::Other | Kind::Skipped => {}
        }
    }

    fn import_from(&mut self, node: Node<'_>, row: usize) {
        let Some(module) = node.child_by_field_name("module_name") else { return };
        let module = plain_name(source(module, self.text));
        if module.starts_with('.') {
            return; // Its own files.
        }
        self.findings.check_import(&module, row);
    }

    fn attribute(&mut self, node: Node<'_>, row: usize) {
        let name = node.child_by_field_name("attribute").map(|name| source(name, self.text));
        if let Some(name) = name.filter(|name| calls::is_internal(name)) {
            self.internal(name, row);
        }
        self.name(node, row);
    }

    fn internal(&mut self, name: &str, row: usize) {
        let reason = format!("`{name}` reaches internals of the interpreter");
        self.findings.add(ScanRule::DynamicCode, row, reason);
    }

    /// Checks a name against the rules.
    fn name(&mut self, node: Node<'_>, row: usize) {
        let Some(path) = self.names.path_of(node, self.text, MAX_CALLS) else { return };
        if let Some((rule, name, does)) = calls::rule_of(&path) {
            self.findings.add(rule, row, format!("`{name}` {does}"));
        }
    }

    fn call(&mut self, node: Node<'_>, row: usize) {
        let function = node.child_by_field_name("function");
        let Some(function) =
            function.and_then(|function| self.names.path_of(function, self.text, MAX_CALLS))
        else {
            return self.addresses(node, row);
        };
        match function.as_str() {
            "__import__" | "importlib.import_module" | "importlib.__import__" => {
                match self.whole(node, 0) {
                    Some(module) => self.findings.check_import(&module, row),
                    None => {
                        let reason = format!("`{function}` imports a module by a computed name");
                        self.findings.add(ScanRule::DynamicCode, row, reason);
                    }
                }
                self.name(node, row);
            }
            "getattr" => self.getattr(node, row),
            "eval" | "exec" | "compile" => {
                if let Some(code) = self.whole(node, 0) {
                    self.findings.look_inside(&code, ScanLanguage::Python, row);
                }
            }
            "os.system" | "os.popen" | "subprocess.getoutput" | "subprocess.getstatusoutput" => {
                self.shell_line(node, row);
            }
            _ if function.starts_with("subprocess.") => self.shell_line(node, row),
            _ => {
                for index in 0..calls::path_arguments(&function) {
                    let index = u32::try_from(index).unwrap_or(u32::MAX);
                    if let Some(path) = self.literal(node, index) {
                        self.findings.check_path(&path.text, path.is_whole, row);
                    }
                }
            }
        }
        self.addresses(node, row);
    }

    fn getattr(&mut self, node: Node<'_>, row: usize) {
        match self.whole(node, 1) {
            Some(name) if calls::is_internal(&name) => self.internal(&name, row),
            Some(_) => self.name(node, row),
            None => {
                let of =
                    argument(node, 0).and_then(|of| self.names.path_of(of, self.text, MAX_CALLS));
                if let Some(of) = of {
                    let reason = format!("`getattr` reads a computed name of `{of}`");
                    self.findings.add(ScanRule::DynamicCode, row, reason);
                }
            }
        }
    }

    /// Looks at a line that is given to the shell.
    fn shell_line(&mut self, node: Node<'_>, row: usize) {
        if let Some(line) = self.whole(node, 0) {
            self.findings.look_inside(&line, ScanLanguage::Shell, row);
        }
    }

    /// Checks the first argument for an address that is read: libraries of data open them as they open files.
    fn addresses(&mut self, node: Node<'_>, row: usize) {
        let Some(first) = self.literal(node, 0) else { return };
        let is_address = ["http://", "https://", "ftp://", "s3://", "gs://"]
            .iter()
            .any(|scheme| first.text.starts_with(scheme));
        if is_address {
            self.findings.add(ScanRule::Network, row, "an address is given to a function");
        }
    }

    fn named_value(&mut self, node: Node<'_>, row: usize) {
        let fields = match node.kind() {
            "assignment" => ("left", "right"),
            "pair" => ("key", "value"),
            _ => ("name", "value"),
        };
        let (name, value) =
            (node.child_by_field_name(fields.0), node.child_by_field_name(fields.1));
        let Some((name, value)) = name.zip(value) else { return };
        let Some(value) = python_literal(value, self.text).filter(|value| value.is_whole) else {
            return;
        };
        let name = match name.kind() {
            "string" => python_literal(name, self.text).map(|name| name.text),
            "identifier" | "attribute" => Some(source(name, self.text).to_owned()),
            "subscript" => name
                .child_by_field_name("subscript")
                .and_then(|key| python_literal(key, self.text))
                .map(|key| key.text),
            _ => None,
        };
        if let Some(name) = name {
            secrets::check_named(&name, &value.text, row, self.findings);
        }
    }

    fn string(&mut self, node: Node<'_>, row: usize) {
        if node.byte_range().len() < MIN_ENCODED {
            return;
        }
        let Some(literal) = python_literal(node, self.text) else { return };
        let is_encoded = literal.text.len() >= MIN_ENCODED
            && literal
                .text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"+/=_-".contains(&byte));
        if is_encoded {
            let reason = "a long encoded text hides what it is";
            self.findings.add(ScanRule::DynamicCode, row, reason);
        }
    }

    fn literal(&self, call: Node<'_>, index: u32) -> Option<Literal> {
        python_literal(argument(call, index)?, self.text)
    }

    fn whole(&self, call: Node<'_>, index: u32) -> Option<String> {
        self.literal(call, index).filter(|literal| literal.is_whole).map(|literal| literal.text)
    }
}
