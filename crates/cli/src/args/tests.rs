//! Tests of the command line's grammar.

use super::*;

fn run(arguments: &[&str]) -> RunArgs {
    let argv: Vec<_> = ["sandboxes", "run"].iter().chain(arguments).map(Into::into).collect();
    match parse(&argv).unwrap().command {
        Command::Run(run) => *run,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn what_follows_the_first_word_belongs_to_the_program() {
    let args = run(&["-t", "5", "ls", "-la", "--json", "--", "-t", "6"]);
    assert_eq!(args.words, ["ls", "-la", "--json", "--", "-t", "6"]);
    assert_eq!((args.sandbox.timeout, args.after_dashes), (5.0, false));
    let args = run(&["--file", "x.py", "a", "-t", "5"]);
    assert_eq!(args.words, ["a", "-t", "5"]);
    let args = run(&["--file", "x.py", "--", "-c", "a"]);
    assert_eq!(args.words, ["-c", "a"]);
    assert!(args.after_dashes);
}

#[test]
fn flags_may_follow_what_takes_no_arguments() {
    for (arguments, word) in [
        (&["ls -la", "-t", "5", "-p", "e2b"][..], "ls -la"),
        (&["-p", "e2b", "ls -la", "-t", "5"], "ls -la"),
        (&["--lang", "python", "1", "-t", "5", "-p", "e2b"], "1"),
        (&["dir/a.IPYNB", "-t", "5", "-p", "e2b"], "dir/a.IPYNB"),
    ] {
        let args = run(arguments);
        assert_eq!(args.words, [word]);
        assert_eq!(args.sandbox.timeout, 5.0);
        assert_eq!(args.sandbox.provider.provider.as_deref(), Some("e2b"));
    }
    assert_eq!(run(&["ls -la", "-t", "5", "/tmp"]).words, ["ls -la", "-t", "5", "/tmp"]);
    assert_eq!(run(&["--", "a b", "-t", "5"]).words, ["a b", "-t", "5"]);
    let argv = ["sandboxes", "run", "ls -la", "--no-such-flag"].map(OsString::from);
    parse(&argv).unwrap_err();
}

#[test]
fn json_is_seen_before_parsing() {
    let argv = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
    assert!(wants_json(&argv("sandboxes run --json --bad")));
    assert!(!wants_json(&argv("sandboxes run -- --json")));
}
