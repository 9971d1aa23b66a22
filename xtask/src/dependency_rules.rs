//! Proofs about the dependency graph: which crates must not pull which.

use std::collections::BTreeSet;

use crate::command::output;
use crate::descriptor::{Backends, Descriptor, HTTP_CLIENT};
use crate::metadata::Metadata;
use crate::suites::cargo;
use crate::summary::TestSummary;

/// HTTP clients, by the crates that they cannot do without.
const HTTP: [&str; 5] = ["reqwest", "hyper", "ureq", "isahc", "curl"];

/// Decides whether the crates of a tree fit a rule.
type Check = Box<dyn Fn(&BTreeSet<String>) -> bool>;

/// One rule about the normal dependencies of a package.
struct Rule {
    what: String,
    package: &'static str,
    features: Vec<String>,
    holds: Check,
}

impl Rule {
    fn new(
        what: impl Into<String>,
        package: &'static str,
        features: &[&str],
        holds: impl Fn(&BTreeSet<String>) -> bool + 'static,
    ) -> Self {
        let features = features.iter().map(ToString::to_string).collect();
        Self { what: what.into(), package, features, holds: Box::new(holds) }
    }
}

/// Rules about what backends share.
fn shared_rules() -> Vec<Rule> {
    vec![
        Rule::new(
            "the core pulls no runtime and no HTTP client",
            "code-sandboxes-core",
            &["--no-default-features"],
            |tree| !tree.contains("tokio") && has_no_http(tree),
        ),
        Rule::new(
            "jupyter-protocol without features pulls neither ZeroMQ nor a runtime",
            "code-sandboxes-jupyter-protocol",
            &["--no-default-features"],
            |tree| !tree.contains("zeromq") && !tree.contains("tokio") && has_no_http(tree),
        ),
        Rule::new(
            "what every local sandbox is made of pulls no backend, no cells, no kernels and no HTTP client",
            "code-sandboxes-engine",
            &["--all-features"],
            |tree| {
                backends(tree).is_empty()
                    && !tree.contains("code-sandboxes-kernel")
                    && !tree.contains("code-sandboxes-isolation")
                    && has_no_http(tree)
            },
        ),
        Rule::new(
            "the client of the supervisor pulls no backend",
            "code-sandboxes-supervisor",
            &["--features", "client"],
            |tree| backends(tree).is_empty() && has_no_http(tree),
        ),
        Rule::new(
            "what every cloud needs pulls no backend, no cells and no kernels",
            "code-sandboxes-cloud",
            &["--all-features"],
            |tree| {
                backends(tree).is_empty()
                    && !tree.contains("code-sandboxes-cells")
                    && !tree.contains("code-sandboxes-isolation")
                    && !tree.contains("code-sandboxes-kernel")
                    && !tree.contains("code-sandboxes-jupyter-protocol")
            },
        ),
        Rule::new(
            "servers pull no backend, no cells and no kernels",
            "code-sandboxes-server",
            &["--all-features"],
            |tree| {
                backends(tree).is_empty()
                    && !tree.contains("code-sandboxes-engine")
                    && !tree.contains("code-sandboxes-isolation")
                    && !tree.contains("code-sandboxes-kernel")
            },
        ),
        Rule::new(
            "kernels as interpreters pull no transport, no cells and no HTTP client",
            "code-sandboxes-kernel",
            &[],
            |tree| {
                !tree.contains("zeromq")
                    && !tree.contains("code-sandboxes-isolation")
                    && has_no_http(tree)
            },
        ),
        Rule::new(
            "the program from source pulls no TLS, no WebSocket and no client of clouds",
            "code-sandboxes-cli",
            &[],
            |tree| {
                let heavy = ["rustls", "ring", "reqwest", "tokio-tungstenite", "aws-lc-rs"];
                heavy.iter().all(|name| !tree.contains(*name))
                    && !tree.contains("code-sandboxes-cloud")
            },
        ),
        Rule::new(
            "the facade without features pulls no backend",
            FACADE,
            &["--no-default-features"],
            |tree| backends(tree).is_empty(),
        ),
    ]
}

const FACADE: &str = "code-sandboxes";

/// The rule of each backend, from its manifest: alone in the facade, and without what it says that it never pulls.
fn backend_rule(backend: &Descriptor) -> Rule {
    let (feature, package) = (&backend.feature, backend.package.clone());
    let never = backend.never_pulls.clone();
    let mut what = format!("the facade with `{feature}` pulls no other backend");
    if !never.is_empty() {
        what = format!("{what}, and nothing of {}", never.join(", "));
    }
    Rule::new(what, FACADE, &["--no-default-features", "--features", feature], move |tree| {
        let pulls = |name: &String| match name.as_str() {
            HTTP_CLIENT => !has_no_http(tree),
            name => tree.contains(name),
        };
        backends(tree) == [package.as_str()] && !never.iter().any(pulls)
    })
}

/// Checks every rule.
pub(crate) fn run(tally: &mut TestSummary) -> Result<(), String> {
    let backends = Backends::read(&Metadata::read()?)?;
    let rules = shared_rules().into_iter().chain(backends.built.iter().map(backend_rule));
    for rule in rules {
        let tree = tree(&rule)?;
        let holds = (rule.holds)(&tree);
        println!("graph: {} ... {}", rule.what, if holds { "ok" } else { "FAILED" });
        tally.check(&rule.what, holds);
    }
    Ok(())
}

fn tree(rule: &Rule) -> Result<BTreeSet<String>, String> {
    let mut command = cargo(&["tree", "--edges", "normal", "--prefix", "none"]);
    command.args(["--package", rule.package]);
    command.args(["--format", "{p}"]).args(&rule.features);
    Ok(names(&output(&mut command)?))
}

fn names(tree: &str) -> BTreeSet<String> {
    tree.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn has_no_http(tree: &BTreeSet<String>) -> bool {
    HTTP.iter().all(|name| !tree.contains(*name))
}

fn backends(tree: &BTreeSet<String>) -> Vec<&str> {
    tree.iter().map(String::as_str).filter(|name| name.contains("-backend-")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::tests::example;

    #[test]
    fn rules_can_fail() {
        let tree = names(
            "code-sandboxes v0.1.0 (/x)\ntokio v1.0.0\nhyper v1.2.3 (*)\nrustls v1.0.0\nzeromq v1.0.0\ncode-sandboxes-backend-toy v0.1.0 (/x)\n",
        );
        assert!(shared_rules().iter().all(|rule| !(rule.holds)(&tree)));
        let mut backends = Backends::read(&example()).unwrap();
        let toy = &mut backends.built[0];
        assert!((backend_rule(toy).holds)(&tree));
        toy.never_pulls = vec!["tokio".to_owned()];
        assert!(!(backend_rule(toy).holds)(&tree));
        toy.never_pulls = vec![HTTP_CLIENT.to_owned()];
        assert!(!(backend_rule(toy).holds)(&tree));
        toy.never_pulls.clear();
        toy.package = "code-sandboxes-backend-other".to_owned();
        assert!(!(backend_rule(toy).holds)(&tree));
    }
}
