//! Proofs about the dependency graph: which crates must not pull which.

use std::collections::BTreeSet;

use crate::command::output;
use crate::suites::cargo;
use crate::summary::TestSummary;

/// HTTP clients, by the crates that they cannot do without.
const HTTP: [&str; 5] = ["reqwest", "hyper", "ureq", "isahc", "curl"];

/// One claim about the normal dependencies of a package.
struct Rule {
    what: &'static str,
    package: &'static str,
    features: &'static [&'static str],
    holds: fn(&BTreeSet<String>) -> bool,
}

const CLAIMS: [Rule; 12] = [
    Rule {
        what: "the core pulls no runtime and no HTTP client",
        package: "code-sandboxes-core",
        features: &["--no-default-features"],
        holds: |tree| !tree.contains("tokio") && has_no_http(tree),
    },
    Rule {
        what: "backend-eval pulls no HTTP client",
        package: "code-sandboxes-backend-eval",
        features: &["--all-features"],
        holds: has_no_http,
    },
    Rule {
        what: "the facade with one backend feature pulls that backend alone",
        package: "code-sandboxes",
        features: &["--no-default-features", "--features", "eval"],
        holds: |tree| backends(tree) == ["code-sandboxes-backend-eval"],
    },
    Rule {
        what: "jupyter-protocol without features pulls neither ZeroMQ nor a runtime",
        package: "code-sandboxes-jupyter-protocol",
        features: &["--no-default-features"],
        holds: |tree| !tree.contains("zeromq") && !tree.contains("tokio") && has_no_http(tree),
    },
    Rule {
        what: "what every local sandbox is made of pulls no backend, no cells, no kernels and no HTTP client",
        package: "code-sandboxes-engine",
        features: &["--all-features"],
        holds: |tree| {
            backends(tree).is_empty()
                && !tree.contains("code-sandboxes-kernel")
                && !tree.contains("code-sandboxes-isolation")
                && has_no_http(tree)
        },
    },
    Rule {
        what: "the client of the supervisor pulls no backend",
        package: "code-sandboxes-supervisor",
        features: &["--features", "client"],
        holds: |tree| backends(tree).is_empty() && has_no_http(tree),
    },
    Rule {
        what: "the facade with kernels pulls no other backend",
        package: "code-sandboxes",
        features: &["--no-default-features", "--features", "jupyter"],
        holds: |tree| backends(tree) == ["code-sandboxes-backend-jupyter"],
    },
    Rule {
        what: "what every cloud needs pulls no backend, no cells and no kernels",
        package: "code-sandboxes-cloud",
        features: &["--all-features"],
        holds: |tree| {
            backends(tree).is_empty()
                && !tree.contains("code-sandboxes-cells")
                && !tree.contains("code-sandboxes-isolation")
                && !tree.contains("code-sandboxes-kernel")
                && !tree.contains("code-sandboxes-jupyter-protocol")
        },
    },
    Rule {
        what: "the facade with cloud runtimes pulls no other backend, no cells and no ZeroMQ",
        package: "code-sandboxes",
        features: &["--no-default-features", "--features", "datalayer"],
        holds: |tree| {
            backends(tree) == ["code-sandboxes-backend-datalayer"]
                && !tree.contains("code-sandboxes-isolation")
                && !tree.contains("zeromq")
        },
    },
    Rule {
        what: "the facade with containers pulls no other backend",
        package: "code-sandboxes",
        features: &["--no-default-features", "--features", "docker"],
        holds: |tree| backends(tree) == ["code-sandboxes-backend-docker"],
    },
    Rule {
        what: "kernels as interpreters pull no transport, no cells and no HTTP client",
        package: "code-sandboxes-kernel",
        features: &[],
        holds: |tree| {
            !tree.contains("zeromq")
                && !tree.contains("code-sandboxes-isolation")
                && has_no_http(tree)
        },
    },
    Rule {
        what: "the facade without features pulls no backend",
        package: "code-sandboxes",
        features: &["--no-default-features"],
        holds: |tree| backends(tree).is_empty(),
    },
];

/// Checks every claim.
pub(crate) fn run(tally: &mut TestSummary) -> Result<(), String> {
    for claim in &CLAIMS {
        let tree = tree(claim)?;
        let holds = (claim.holds)(&tree);
        println!("graph: {} ... {}", claim.what, if holds { "ok" } else { "FAILED" });
        tally.check(claim.what, holds);
    }
    Ok(())
}

fn tree(claim: &Rule) -> Result<BTreeSet<String>, String> {
    let mut command = cargo(&["tree", "--edges", "normal", "--prefix", "none"]);
    command.args(["--package", claim.package]);
    command.args(["--format", "{p}"]).args(claim.features);
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

    #[test]
    fn claims_can_fail() {
        let tree = names(
            "code-sandboxes v0.1.0 (/x)\ntokio v1.0.0\nhyper v1.2.3 (*)\ncode-sandboxes-backend-eval v0.1.0 (/x)\n",
        );
        assert!(!(CLAIMS[0].holds)(&tree));
        assert!(!(CLAIMS[1].holds)(&tree));
        assert!((CLAIMS[2].holds)(&tree));
        assert!(CLAIMS[3..].iter().all(|claim| !(claim.holds)(&tree)));
    }
}
