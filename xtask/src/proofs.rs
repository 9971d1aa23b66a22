//! Which crate pulls which: depending on one part must not bring the others.

use crate::command::{Outcome, cargo};

/// One promise about a crate's dependencies.
struct Promise {
    arguments: &'static [&'static str],
    never: &'static [&'static str],
}

const PROMISES: [Promise; 4] = [
    Promise {
        arguments: &["-p", "code-sandboxes-core"],
        never: &["tokio", "reqwest", "hyper", "bollard", "zeromq", "rustix"],
    },
    Promise {
        arguments: &["-p", "code-sandboxes-isolation"],
        never: &["reqwest", "hyper", "serde", "code-sandboxes-core"],
    },
    Promise {
        arguments: &["-p", "code-sandboxes-backend-eval"],
        never: &["reqwest", "hyper", "bollard", "zeromq"],
    },
    Promise {
        arguments: &["-p", "code-sandboxes", "--no-default-features"],
        never: &["tokio", "code-sandboxes-backend-eval", "code-sandboxes-isolation"],
    },
];

/// Checks every promise against `cargo tree`.
pub(crate) fn check() -> Outcome {
    let mut broken = Vec::new();
    for promise in PROMISES {
        let tree = ["tree", "--edges", "normal", "--prefix", "none", "--format", "{p}"];
        let arguments = [&tree, promise.arguments].concat();
        let listed = cargo(&arguments).output()?;
        let names = listed.lines().filter_map(|line| line.split_whitespace().next());
        let pulled: Vec<_> = names.filter(|name| promise.never.contains(name)).collect();
        if let Some(name) = pulled.first() {
            broken.push(format!("{} pulls {name}", promise.arguments.join(" ")));
        }
        // A tree that names nothing would prove anything.
        if listed.lines().count() < 3 {
            broken.push(format!("{} has no tree", promise.arguments.join(" ")));
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("; ")) }
}
