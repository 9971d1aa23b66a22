//! The public API as text: a change of it is a change of `snapshots/public_api__public_api.snap`, which people read.
//!
//! The sources are parsed, so that the stable toolchain is enough. What is listed: every item that the facade exports by name
//! from itself and from `sandbox_core`, the public methods of its types, and the traits that they implement.
#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Fields, File, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

/// Lines by the name of the type or function that they are about.
#[derive(Default)]
struct Api(BTreeMap<String, BTreeSet<String>>);

#[test]
fn the_public_api_is_as_it_was() {
    let facade = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let core = facade.join("../../sandbox-core/src");
    let mut text = String::new();
    for (crate_name, sources) in [("code_sandboxes", facade), ("sandbox_core", core)] {
        let mut api = Api::default();
        files(&sources, &mut |file| api.add(&file.items));
        let exported = exported(&parse(&sources.join("lib.rs")));
        text.push_str(&format!("# {crate_name}\n"));
        for (name, lines) in &api.0 {
            if exported.contains(name) {
                lines.iter().for_each(|line| text.push_str(&format!("{line}\n")));
            }
        }
    }
    for known in
        ["pub async fn create() -> Result<Self>", "pub fn run_code(&self", "enum ErrorKind"]
    {
        assert!(text.contains(known), "{known} is missing:\n{text}");
    }
    insta::assert_snapshot!("public_api", text);
}

fn parse(path: &Path) -> File {
    syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap()
}

fn files(folder: &Path, each: &mut impl FnMut(File)) {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        match path.is_dir() {
            true => files(&path, each),
            false if is_test => {}
            false => each(parse(&path)),
        }
    }
}

/// The names that `lib.rs` exports.
fn exported(lib: &File) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for item in &lib.items {
        match item {
            Item::Use(item) if is_public(&item.vis) => leaves(&item.tree, &mut names),
            Item::Mod(item) if is_public(&item.vis) => drop(names.insert(item.ident.to_string())),
            Item::Type(item) => drop(names.insert(item.ident.to_string())),
            _ => {}
        }
    }
    // Modules with items of their own.
    names.extend(["SandboxPool", "PooledSandbox", "PoolStatus"].map(str::to_owned));
    names
}

fn leaves(tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => leaves(&path.tree, names),
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, names)),
        UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
        UseTree::Rename(rename) => drop(names.insert(rename.rename.to_string())),
        UseTree::Glob(_) => {}
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The tokens as people write them, nearly.
fn text(tokens: impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (from, to) in [
        (" < ", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ::", "::"),
        (":: ", "::"),
        (" (", "("),
        ("( ", "("),
        (" )", ")"),
        ("& ", "&"),
        (" ,", ","),
        (" :", ":"),
        (" ;", ";"),
        ("' ", "'"),
    ] {
        text = text.replace(from, to);
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn name_of(kind: &Type) -> Option<String> {
    match kind {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => name_of(&reference.elem),
        _ => None,
    }
}

impl Api {
    fn line(&mut self, name: impl ToString, line: String) {
        self.0.entry(name.to_string()).or_default().insert(line);
    }

    fn fields(&mut self, name: &str, fields: &Fields) {
        for field in fields.iter().filter(|field| is_public(&field.vis)) {
            let label = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
            self.line(name, format!("{name}.{label}: {}", text(&field.ty)));
        }
    }

    fn add(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Struct(item) if is_public(&item.vis) => {
                    let name = item.ident.to_string();
                    self.line(&name, format!("struct {name}{}", text(&item.generics)));
                    self.fields(&name, &item.fields);
                }
                Item::Enum(item) if is_public(&item.vis) => {
                    let name = item.ident.to_string();
                    self.line(&name, format!("enum {name}"));
                    for variant in &item.variants {
                        let fields = text(&variant.fields);
                        // Documentation of fields is none of the API.
                        let fields = if fields.contains("doc") { ".." } else { &fields };
                        self.line(&name, format!("{name}::{}{fields}", variant.ident));
                    }
                }
                Item::Trait(item) if is_public(&item.vis) => {
                    let name = item.ident.to_string();
                    self.line(&name, format!("trait {name}: {}", text(&item.supertraits)));
                    for member in &item.items {
                        if let TraitItem::Fn(member) = member {
                            self.line(&name, format!("{name}: {}", text(&member.sig)));
                        }
                    }
                }
                Item::Fn(item) if is_public(&item.vis) => {
                    self.line(&item.sig.ident, text(&item.sig));
                }
                Item::Type(item) if is_public(&item.vis) => {
                    let (name, generics) = (item.ident.to_string(), text(&item.generics));
                    self.line(&name, format!("type {name}{generics} = {}", text(&item.ty)));
                }
                Item::Const(item) if is_public(&item.vis) => {
                    self.line(&item.ident, format!("const {}: {}", item.ident, text(&item.ty)));
                }
                Item::Impl(item) => {
                    let Some(name) = name_of(&item.self_ty) else { continue };
                    let (kind, generics) = (text(&item.self_ty), text(&item.generics));
                    if let Some((_, path, _)) = &item.trait_ {
                        let header = format!("impl{generics} {} for {kind}", text(path));
                        self.line(&name, header);
                        continue;
                    }
                    for member in &item.items {
                        if let ImplItem::Fn(member) = member
                            && is_public(&member.vis)
                        {
                            self.line(&name, format!("{kind}: pub {}", text(&member.sig)));
                        }
                    }
                }
                _ => {}
            }
        }
    }
}
