//! Programs in every language, in a strict sandbox. Languages that this host lacks are skipped with a message, unless
//! `SANDBOX_TEST_LANGUAGES` (a comma-separated list) demands it.

use std::env;
use std::fs;

use crate::detached::World;
use crate::support::{Outcome, run};

const DEMANDED: &str = "SANDBOX_TEST_LANGUAGES";

struct Sample {
    language: &'static str,
    file: &'static str,
    /// Prints `sum 42`, then its arguments, then its standard input, and exits with 7.
    program: &'static str,
}

const SAMPLES: &[Sample] = &[
    Sample {
        language: "node",
        file: "sample.js",
        program: "const it = `sum ${6 * 7}`; console.log(it);\nconsole.log(process.argv.slice(2).join('|'));\nprocess.stdout.write(require('fs').readFileSync(0));\nprocess.exitCode = 7;\n",
    },
    Sample {
        language: "typescript",
        file: "sample.ts",
        program: "declare const process: any, require: any;\nconst sum: number = 6 * 7; console.log(`sum ${sum}`);\nconsole.log(process.argv.slice(2).join('|'));\nprocess.stdout.write(require('fs').readFileSync(0));\nprocess.exitCode = 7;\n",
    },
    Sample {
        language: "go",
        file: "sample.go",
        program: "package main\nimport (\"fmt\"; \"io\"; \"os\"; \"strings\")\nfunc main() {\n\tfmt.Println(\"sum\", 6*7)\n\tfmt.Println(strings.Join(os.Args[1:], \"|\"))\n\tio.Copy(os.Stdout, os.Stdin)\n\tos.Exit(7)\n}\n",
    },
    Sample {
        language: "rust",
        file: "2nd-sample.rs",
        program: "use std::io;\nfn main() {\n    println!(\"sum {}\", 6 * 7);\n    println!(\"{}\", std::env::args().skip(1).collect::<Vec<_>>().join(\"|\"));\n    io::copy(&mut io::stdin(), &mut io::stdout()).unwrap();\n    std::process::exit(7);\n}\n",
    },
    Sample {
        language: "bash",
        file: "sample.sh",
        program: "declare -a sum=($((6 * 7)))\necho \"sum ${sum[0]}\"\n(IFS='|'; echo \"$*\")\ncat\nexit 7\n",
    },
    Sample {
        language: "sh",
        file: "sample",
        program: "echo \"sum $((6 * 7))\"\n(IFS='|'; echo \"$*\")\ncat\nexit 7\n",
    },
];

fn is_demanded(language: &str) -> bool {
    let demanded = env::var(DEMANDED).unwrap_or_default();
    demanded.split(',').any(|name| name.trim() == language)
}

/// Returns true when the error reports missing tools, with a hint.
fn lacks_tools(outcome: &Outcome) -> bool {
    outcome.status == 125
        && outcome.stderr.contains(" programs need ")
        && outcome.stderr.contains("sandboxes: hint: ")
}

#[test]
fn files_run_with_arguments_and_standard_input() {
    let directory = tempfile::tempdir().unwrap();
    for Sample { language, file, program } in SAMPLES {
        let path = directory.path().join(file);
        fs::write(&path, program).unwrap();
        let path = path.to_str().unwrap();
        let arguments = match *language {
            "sh" => vec!["--lang", "sh", "--file", path, "--", "it's", "$x -y"],
            _ => vec!["--file", path, "it's", "$x -y"],
        };
        let outcome = run(arguments).stdin("from\0stdin\r\n").output();
        if lacks_tools(&outcome) && !is_demanded(language) {
            eprintln!("SKIPPED {language}: {}", outcome.stderr.trim());
            continue;
        }
        outcome.assert(7, "sum 42\nit's|$x -y\nfrom\0stdin\r\n");
    }
}

#[test]
fn code_runs_inline_and_from_standard_input() {
    for (language, code) in [
        ("node", "console.log(`it's \"${6 * 7}\" \\\\`)"),
        ("typescript", "const n: number = 42; console.log(`it's \"${n}\" \\\\`)"),
        ("rust", "fn main() { println!(\"it's \\\"{}\\\" \\\\\", 6 * 7); }"),
        (
            "go",
            "package main\nimport \"fmt\"\nfunc main() { fmt.Println(\"it's \\\"42\\\" \\\\\") }",
        ),
        ("bash", "echo \"it's \\\"$((6 * 7))\\\" \\\\\""),
        ("sh", "echo \"it's \\\"$((6 * 7))\\\" \\\\\\\\\""),
    ] {
        let inline = run(["--lang", language, code]).output();
        if lacks_tools(&inline) && !is_demanded(language) {
            eprintln!("SKIPPED {language}: {}", inline.stderr.trim());
            continue;
        }
        inline.assert(0, "it's \"42\" \\\n");
        let crlf =
            if ["bash", "sh"].contains(&language) { code.into() } else { format!("{code}\r\n") };
        run(["--lang", language]).stdin(crlf).output().assert(0, "it's \"42\" \\\n");
        if let Some(alias) = alias(language) {
            run(["--lang", alias, code]).output().assert(0, "it's \"42\" \\\n");
        }
    }
}

fn alias(language: &str) -> Option<&'static str> {
    match language {
        "node" => Some("javascript"),
        "typescript" => Some("ts"),
        _ => None,
    }
}

#[test]
fn content_of_any_kind_arrives_as_it_is() {
    let filler = "#".repeat(1 << 20);
    let program =
        format!("{filler}\ncat <<'HERE' | wc -c\nEOF\nit's \u{1}\u{7f}\"$(id)`id`\\\nHERE\n");
    run(["--lang", "bash"]).stdin(program).output().assert(0, "23\n");
    let mut binary = b"# \xff\xfe\nprintf '".to_vec();
    binary.extend(b"\xff\xfe' | od -An -tx1\n");
    run(["--lang", "bash"]).stdin(binary).output().assert(0, " ff fe\n");
}

#[test]
fn programs_that_do_not_compile_end_with_status_1() {
    for (language, code, message) in [
        ("rust", "fn main() { nope }", "nope"),
        ("go", "package main\nfunc main() { nope }", "nope"),
        ("node", "let let = 1", "SyntaxError"),
    ] {
        let outcome = run(["--lang", language, code]).output();
        if lacks_tools(&outcome) && !is_demanded(language) {
            eprintln!("SKIPPED {language}: {}", outcome.stderr.trim());
            continue;
        }
        outcome.assert(1, "");
        assert!(outcome.stderr.contains(message), "{language}: {}", outcome.stderr);
    }
}

#[test]
fn the_limit_is_for_programs_too() {
    run(["-t", "1", "--lang", "bash", "echo before; sleep 30"]).output().assert(124, "before\n");
}

#[test]
fn dependencies_need_a_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("main.go");
    fs::write(&path, "package main\nfunc main() { println(1) }\n").unwrap();
    let outcome = run(["--deps", "--file", path.to_str().unwrap()]).output();
    assert_eq!(outcome.status, 2);
    assert!(outcome.stderr.contains("go.mod cannot be read"), "{}", outcome.stderr);
}

#[test]
fn dependencies_that_need_the_network_name_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    let program = "package main\nimport \"example.com/missing\"\nfunc main() { missing.Do() }\n";
    let manifest = "module app\n\ngo 1.19\n\nrequire example.com/missing v1.0.0\n";
    fs::write(directory.path().join("go.mod"), manifest).unwrap();
    let calls =
        [run(["--deps", "--lang", "go"]).stdin(program), run(["--deps", "--lang", "go", program])];
    for call in calls {
        let outcome = call.directory(directory.path()).output();
        if lacks_tools(&outcome) && !is_demanded("go") {
            eprintln!("SKIPPED go: {}", outcome.stderr.trim());
            continue;
        }
        assert_eq!((outcome.status, outcome.text()), (125, ""), "{outcome:?}");
        assert!(outcome.stderr.contains("modules could not be downloaded"), "{}", outcome.stderr);
        let hint = "sandboxes: hint: the sandbox has no network; open it with `--";
        assert!(outcome.stderr.contains(hint), "{}", outcome.stderr);
    }
}

#[test]
fn a_manifest_without_requirements_needs_no_network() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("go.mod"), "module app\n\ngo 1.19\n").unwrap();
    let path = directory.path().join("main.go");
    fs::write(&path, "package main\nimport \"fmt\"\nfunc main() { fmt.Println(42) }\n").unwrap();
    let outcome = run(["--deps", "--file", path.to_str().unwrap()]).output();
    if lacks_tools(&outcome) && !is_demanded("go") {
        eprintln!("SKIPPED go: {}", outcome.stderr.trim());
        return;
    }
    outcome.assert(0, "42\n");
}

/// As with `node` on a host: packages of the working directory, and files beside the program, are found.
#[test]
fn programs_find_modules_of_the_working_directory() {
    let world = World::new();
    let project = world.path().join("project");
    fs::create_dir_all(project.join("node_modules/tiny")).unwrap();
    fs::write(project.join("node_modules/tiny/index.js"), "exports.tiny = 40\n").unwrap();
    fs::write(project.join("beside.js"), "exports.two = 2\n").unwrap();
    let program = "const {tiny} = require('tiny'), {two} = require('./beside')\n\
                   console.log(tiny + two, __dirname)\n";
    let file = world.path().join("x.js");
    fs::write(&file, program).unwrap();
    world.create(&["--name", "lab"]);
    world.ok(&["cp", project.to_str().unwrap(), "lab:"]);
    let file = file.to_str().unwrap();
    let outcome = world.run(&["exec", "lab", "-w", "project", "--file", file]);
    if lacks_tools(&outcome) && !is_demanded("node") {
        eprintln!("SKIPPED node: {}", outcome.stderr.trim());
        return;
    }
    outcome.assert(0, "42 /workspace/project\n");
    let inline = ["exec", "lab", "-w", "project", "--lang", "node", program];
    world.run(&inline).assert(0, "42 /workspace/project\n");
    let module = "import { tiny } from 'tiny'\nconsole.log(tiny)\n";
    let typed = ["exec", "lab", "-w", "project", "--lang", "typescript", module];
    let outcome = world.run(&typed);
    if !lacks_tools(&outcome) || is_demanded("typescript") {
        outcome.assert(0, "40\n");
    }
    // No helper file is left in the directory, however the run ended.
    assert_eq!(world.run(&["exec", "lab", "-w", "project", "--lang", "node", "throw 1"]).status, 1);
    assert_eq!(world.ok(&["exec", "lab", "ls -A project"]), "beside.js\nnode_modules\n");
    // In a read-only directory the program runs all the same.
    world.run(&["exec", "lab", "-w", "/", "--lang", "node", "console.log(1)"]).assert(0, "1\n");
}

/// AddressSanitizer includes LeakSanitizer, which traces its own process; no sandbox allows that.
#[test]
fn a_program_with_address_sanitizer_ends_with_its_own_status() {
    let line = "echo 'int main(void) { return 7; }' >a.c && gcc -fsanitize=address a.c -o a || exit 99; ./a";
    let outcome = run([line]).output();
    if outcome.status == 99 && !is_demanded("c") {
        eprintln!("SKIPPED AddressSanitizer: {}", outcome.stderr.trim());
        return;
    }
    outcome.assert(7, "");
    // A value of the caller takes precedence, and shows that the default is needed.
    let own = run(["-e", "LSAN_OPTIONS=detect_leaks=1", line]).output();
    assert_ne!(own.status, 7, "{}", own.transcript());
}
