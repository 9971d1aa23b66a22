//! The commands that describe this build and this host, and the help.

use code_sandboxes::{Registry, Variant, VariantStatus};

use crate::support::{planned, sandboxes};

#[test]
fn the_version_is_printed() {
    let version = env!("CARGO_PKG_VERSION");
    sandboxes(["--version"]).output().assert(0, &format!("sandboxes {version}\n"));
    assert_eq!(sandboxes(["--version", "--json"]).output().json()["version"], version);
}

#[test]
fn the_help_has_examples_and_exit_statuses() {
    insta::assert_snapshot!(sandboxes(["--help"]).output().text(), @"
    Run code safely in a sandbox

    Usage: sandboxes [OPTIONS] <COMMAND>

    Commands:
      run           Run a command, inline code or a program in a new sandbox
      create        Create a sandbox that stays, and print its id
      list          List running sandboxes [alias: ls]
      exec          Run a command, inline code or a program in an existing sandbox
      repl          Type code and see its results
      shell         Open a shell on this terminal
      cp            Copy files and directories to a sandbox, or from it
      install       Install packages in a sandbox
      expose        Make a port of a sandbox reachable, and print its address
      logs          Show what was run in a sandbox, and its output
      metrics       Show the CPU time, memory, disk and processes of sandboxes
      stop          End sandboxes; their logs can still be shown for a while
      rm            End sandboxes and remove them [alias: destroy]
      pause         Pause sandboxes: nothing runs in them until they are resumed
      resume        Resume paused sandboxes
      snapshot      Store the state of a sandbox, and start others from it
      image         Build, list and fetch images that local-docker starts from
      mcp           Serve sandboxes to agents over MCP, or add the server to a client
      tools         List the tools for agents, or print their definitions for a provider of models
      serve         Serve sandboxes to the official SDKs of E2B, on this host
      test          Try a command in a new sandbox of each variant; several after -p are compared
      reap          End sandboxes of clouds that nothing owns any more
      audit         Show and check an audit log
      config        Show the configuration and the settings in effect
      environments  List environments for new sandboxes
      providers     List the variants by what they can do; with -p, all about one
      doctor        Check this host, and show how to fix problems
      completion    Print the completion script for a shell
      help          Print this message or the help of the given subcommand(s)

    Options:
          --json
              Print one JSON object, errors included

      -q, --quiet
              Print no warnings, notes or hints

      -v, --verbose...
              Log to standard error; RUST_LOG selects what

          --profile <NAME>
              Profile of the configuration; `sandboxes config` shows it

      -h, --help
              Print help (see a summary with '-h')

      -V, --version
              Print version

    Examples:
      sandboxes run 'ls -la | wc -l'                   a line for the shell
      sandboxes run ls -la                             a program with arguments
      sandboxes run --lang python 'print(6 * 7)'       inline code
      sandboxes run --file script.py one two           a program of this host
      sandboxes run notebook.ipynb                     a notebook, cell by cell
      cat main.go | sandboxes run --lang go            code from standard input
      sandboxes run --lang python --json '1 + 1'       one JSON object
      sandboxes repl                                   type code, see results
      sandboxes shell                                  a shell in a sandbox
      sandboxes doctor                                 check this host

    Exit status:
      The exit status of the program, or:
        1  the code raised an exception
        2  wrong usage
      124  the time limit was exceeded
      125  the sandbox failed
      126  the program cannot be executed
      127  the program was not found
      130  interrupted with Ctrl-C
      128+n  signal n ended the program
    ");
}

#[test]
fn the_help_of_run_tells_every_flag() {
    insta::assert_snapshot!(sandboxes(["run", "-h"]).output().text(), @r#"
    Run a command, inline code or a program in a new sandbox

    Usage: sandboxes run [OPTIONS] [COMMAND]...

    Arguments:
      [COMMAND]...  A line for the shell, a program and its arguments, or a notebook; with --lang: code,
                    or `-` for standard input; with --file: arguments of the program

    Options:
      -f, --file <FILE>      Run the program in a file of this host; `-` is standard input
          --with <PATH>      Copy this directory, or file, of this host into the working directory first
          --lang <LANGUAGE>  Language of the code [default: by the extension or the first line of the
                             file] [alias: --language]
          --deps             First download the modules of the go.mod beside the file
          --keep             Keep the sandbox until its lifetime ends, for `sandboxes exec`
          --reuse            Use a running sandbox with these labels if there is one, and keep it
          --tty              Run the command on this terminal, for interactive programs
          --no-stdin         Give the program no standard input, and read none
          --stream-json      Print each event as a line of JSON when it happens, and the result last
          --json             Print one JSON object, errors included
      -q, --quiet            Print no warnings, notes or hints
      -v, --verbose...       Log to standard error; RUST_LOG selects what
          --profile <NAME>   Profile of the configuration; `sandboxes config` shows it
      -h, --help             Print help (see more with '--help')

    Sandbox:
      -p, --provider <NAME>       Variant of the sandbox: local-eval, local-docker, e2b ..; `sandboxes
                                  providers` lists them; auto is the first one with credentials [alias:
                                  --variant]
          --fallback <NAME,..>    Where to run instead when the first place cannot: variants in the
                                  order in which they are tried
      -e, --env <NAME[=VALUE]>    Set an environment variable; without a value, copy it from this host
      -t, --timeout <TIME>        Time limit of the program: seconds, or such as 90s, 5m, 1h30m
                                  [default: 120]
      -w, --workdir <DIR>         Working directory in the sandbox
          --isolation <MODE>      Isolation of the code: strict, best-effort or off [default: strict]
          --network <MODE>        Network of the code: inherit, none, allowlist or all [default:
                                  inherit; allowlist with --allow]
          --allow <HOST[:PORT]>   Host to allow, such as pypi.org, *.example.com:443 or 203.0.113.0/24
          --deny <HOST[:PORT]>    Host to refuse although others are allowed; written as for --allow
          --mount <SRC:DST[:rw]>  Mount a file or directory of this host, by absolute paths; read-only
                                  without :rw [alias: --volume]
          --memory <SIZE>         Memory of the sandbox, such as 512m or 2g
          --cpus <CORES>          CPU cores of the sandbox, such as 0.5
          --disk <SIZE>           Disk of the sandbox, such as 1g
          --processes <COUNT>     Maximum number of processes and threads
          --disk-files <COUNT>    Maximum number of files and directories on its disk
          --open-files <COUNT>    Maximum number of open files of each process
          --output-limit <SIZE>   Maximum output of each run, such as 10m; a run with more output is
                                  ended
          --gpu <TYPE>            GPU type, such as T4
          --environment <NAME>    Environment to start from; `sandboxes environments` lists them
      -i, --image <IMAGE>         Container image to start from
          --writable-root         Allow changes to files of the image, and system packages; the root is
                                  not read-only then, and the disk has no limit
          --pull                  Pull the image first if the container engine does not have it
          --snapshot <NAME>       Snapshot to start from; `sandboxes snapshot ls` lists them
          --option <KEY=VALUE>    Option that this provider alone has, which its page of the
                                  documentation lists; the value is JSON or text
      -l, --label <KEY=VALUE>     Label of the sandbox
          --lifetime <TIME>       Maximum lifetime of the sandbox
          --idle-timeout <TIME>   Time without use after which the sandbox ends
          --cpu-time <TIME>       Limit of the CPU time of the program and its children, or of each cell
                                  of a notebook

    Jupyter:
          --kernel <NAME>           Jupyter kernel that runs the code, such as python3; `sandboxes
                                    environments -p local-jupyter` lists those of this host; with `-p
                                    local-docker` a kernel of the image
          --transport <HOW>         Transport between sandbox and kernel: `ipc` (Unix sockets) or `tcp`
                                    [default: ipc, or tcp for a kernel that does not start with ipc]
                                    [possible values: ipc, tcp]
          --server-url <URL>        Jupyter Server whose kernels run the code; needs --isolation off.
                                    Use the address that the server prints, and prefer the variable
                                    JUPYTER_TOKEN for its token
          --token <TOKEN>           Token of that server; unlike the variable JUPYTER_TOKEN, other users
                                    can see it
          --kernel-id <ID>          Id of a kernel that runs on that server; it keeps its state, and is
                                    left running
          --connection-file <FILE>  Connection file of a running kernel; the kernel keeps its state, and
                                    is left running; needs --isolation off

    Safety:
          --scan <MODE>               Scan code before it runs: warn tells what was found, refuse does
                                      not run it [default: off]
          --allow-import <MODULE,..>  Python module that code may import, with what is below it; other
                                      imports are findings of --scan
          --deny-import <MODULE,..>   Python module whose import is a finding of --scan
          --audit <DIR>               Write what is run and changed to the audit log in this directory;
                                      `sandboxes audit` reads it
          --mask-secrets              Replace the values of secret variables in the output by ***

    Notebooks:
      -P, --parameter <NAME=VALUE>  Set a variable of a notebook after the cell with the tag
                                    `parameters`; True, False, None and numbers have their meaning in
                                    Python, other values are text

    Results:
          --notebook <FILE>     Write the code and its results into a notebook of this host, even when
                                the code fails
          --save-outputs <DIR>  Write displayed objects into files in a directory of this host: images,
                                tables, JSON ..
          --overwrite           Replace existing files of --notebook and --save-outputs
          --allow-errors        Continue with the next cell of a notebook after an exception

    Examples:
      sandboxes run 'ls -la | wc -l'
      sandboxes run ls -la
      sandboxes run --lang python 'print(6 * 7)'
      sandboxes run --file script.py one --verbose
      sandboxes run --file script.py -- --verbose one
      sandboxes run --file main.go --deps --isolation off
      sandboxes run notebook.ipynb --notebook out.ipynb --save-outputs figures
      echo 'console.log(1)' | sandboxes run --lang node
      echo data | sandboxes run 'tr a-z A-Z'
      sandboxes run -t 5 --disk 256m -e DEBUG=1 --lang python 'import os; os.environ["DEBUG"]'

    Words:
      One word is a line for the shell: quote it. Several words are a program and its arguments, without
      a shell. Flags of sandboxes go before the first word; what follows it belongs to the program. A
      quoted line with spaces, a notebook, and code after --lang take no arguments, so flags may also
      follow these.

    Languages:
      python (py), node (js, javascript), typescript (ts), go, rust (rs), bash, sh,
      kernel (the language of the sandbox's kernel)
      Inline Python is a cell: the value of its last expression is printed unless it is None.
      Everything else but a notebook is a program. The cells of a notebook run in one interpreter, one
      after the other, until one fails; a cell with the tag raises-exception may fail. -t is for each
      cell.
      Piped standard input goes to the program, unless it is the code. For keys of a terminal use --tty.
    "#);
}

#[test]
fn no_command_shows_the_help_as_an_error() {
    let outcome = sandboxes([""; 0]).output();
    assert_eq!((outcome.status, outcome.text()), (2, ""));
    assert!(outcome.stderr.contains("Usage: sandboxes"), "{}", outcome.stderr);
}

#[test]
fn environments_are_listed() {
    let table = sandboxes(["environments"]).output();
    assert!(table.text().starts_with("Variant "), "{table:?}");
    let all = sandboxes(["environments", "--json"]).output().json();
    let all = all.as_array().unwrap();
    assert!(!all.is_empty());
    for environment in all {
        let name = environment["name"].as_str().unwrap();
        assert!(table.text().contains(name), "{name} is missing in {table:?}");
    }
    let named = sandboxes(["environments", "--json", "--variant", "eval"]).output().json();
    let own: Vec<_> = all.iter().filter(|one| one["variant"] == "local-eval").cloned().collect();
    assert!(!own.is_empty());
    assert_eq!(named.as_array().unwrap(), &own);
}

#[test]
fn every_variant_is_listed() {
    let list = sandboxes(["providers", "--json"]).output().json();
    let names: Vec<_> =
        list.as_array().unwrap().iter().map(|row| row["variant"].as_str().unwrap()).collect();
    let known = Variant::well_known();
    assert_eq!(names, known.iter().map(|variant| variant.as_str()).collect::<Vec<_>>());
    let eval = &list[0];
    assert_eq!(
        (&eval["variant"], &eval["in_build"], &eval["usable"], &eval["default"]),
        (&"local-eval".into(), &true.into(), &true.into(), &true.into())
    );
    assert_eq!(eval["capabilities"]["run_code"], true);
    let table = sandboxes(["providers"]).output();
    assert_eq!(table.status, 0);
    let (variants, legend) = table.text().split_once("\n\n").unwrap();
    assert_eq!(variants.lines().count(), 1 + known.len(), "{table:?}");
    assert!(table.text().lines().all(|line| line.len() <= 90), "{table:?}");
    assert!(legend.contains("providers -p NAME"), "{table:?}");
    let cells = |name: &str| {
        let line = variants.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap().split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(cells("local-eval")[..4], ["yes", "yes", "yes", "yes"], "{table:?}");
    for name in planned() {
        assert_eq!(cells(name.as_str()), ["not", "built"], "{table:?}");
    }
}

#[test]
fn one_variant_is_shown_with_every_capability() {
    let list = sandboxes(["providers", "--json", "-p", "eval"]).output().json();
    assert_eq!(list.as_array().unwrap().len(), 1, "{list}");
    let shown = sandboxes(["providers", "-p", "eval"]).output();
    assert!(shown.text().lines().all(|line| line.len() <= 80), "{shown:?}");
    let (facts, capabilities) = shown.text().split_once("local-eval has:\n").unwrap();
    for fact in ["aliases    eval", "default    yes", "in build   yes", "usable     yes"] {
        assert!(facts.contains(fact), "{fact}: {shown:?}");
    }
    let (has, lacks) = capabilities.split_once("local-eval lacks:\n").unwrap();
    for (name, declared) in list[0]["capabilities"].as_object().unwrap() {
        let listed = |text: &str| text.split_whitespace().filter(|word| word == name).count();
        let expected = if *declared == true { (1, 0) } else { (0, 1) };
        assert_eq!((listed(has), listed(lacks)), expected, "{name} in {shown:?}");
    }
    let unknown = sandboxes(["providers", "-p", "no-such"]).output();
    assert_eq!(unknown.status, 2, "{unknown:?}");
}

#[test]
fn the_doctor_tells_about_the_selected_variant() {
    let outcome = sandboxes(["doctor", "--json"]).output();
    let report = outcome.json();
    assert_eq!((outcome.status, &report["usable"]), (0, &true.into()), "{report}");
    assert_eq!(report["selected"], "local-eval");
    let variants = report["variants"].as_array().unwrap();
    assert_eq!(variants.len(), Variant::well_known().len());
    for variant in variants.iter().filter(|variant| variant["usable"] == false) {
        assert!(!variant["detail"].as_str().unwrap().is_empty(), "{variant} says not why");
        assert!(variant["fix"].is_string(), "{variant} says not what to do");
    }
    assert_eq!(sandboxes(["doctor"]).output().status, 0);
    for variant in planned() {
        let outcome = sandboxes(["doctor", "-p", variant.as_str()]).output();
        assert_eq!(outcome.status, 1, "{}", outcome.transcript());
        assert!(outcome.text().contains(&format!("this version has no {variant} backend")));
    }
}

#[test]
fn the_doctor_has_a_row_for_each_missing_key_of_a_cloud() {
    let home = tempfile::tempdir().unwrap();
    let clouds = Registry::new().variants().into_iter();
    let clouds: Vec<_> =
        clouds.filter(|cloud| cloud.available && !cloud.credentials.is_empty()).collect();
    for name in ["datalayer-runtime", "daytona", "e2b", "modal"] {
        assert!(clouds.iter().any(|cloud| cloud.variant.as_str() == name), "{name}");
    }
    // Checks of the doctor by name: whether they passed, and their fix.
    let checks = |cloud: &VariantStatus, set: &[&str]| {
        let mut command = sandboxes(["doctor", "-p", cloud.variant.as_str(), "--json"]);
        for name in cloud.credentials.iter().flat_map(|all| all.iter()) {
            command = command.env(name, if set.contains(name) { "x" } else { "" });
        }
        let outcome = command.env("HOME", home.path()).output();
        assert_eq!(outcome.status, 1, "{}", outcome.transcript());
        let report = outcome.json();
        let checks = report["variants"][0]["checks"].as_array().unwrap().clone();
        let failed = checks.into_iter().filter(|check| check["ok"] == false);
        failed
            .map(|check| (check["name"].to_string(), check["fix"].to_string()))
            .collect::<Vec<_>>()
    };
    for cloud in &clouds {
        let failed = checks(cloud, &[]);
        for name in cloud.credentials[0] {
            let row = failed.iter().find(|(row, _)| row == &format!("{name:?}"));
            let (_, fix) =
                row.unwrap_or_else(|| panic!("{}: no {name}: {failed:?}", cloud.variant));
            assert!(fix.contains(cloud.key_page.unwrap()), "{fix}");
            for other in cloud.credentials[1..].iter().flat_map(|all| all.iter()) {
                assert!(fix.contains(other), "{other}: {fix}");
            }
        }
    }
    let daytona = clouds.iter().find(|cloud| cloud.variant == Variant::DAYTONA).unwrap();
    let failed = checks(daytona, &["DAYTONA_JWT_TOKEN"]);
    let names: Vec<_> = failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["\"credentials\"", "\"DAYTONA_ORGANIZATION_ID\""], "half of it is there");
    let text = sandboxes(["doctor", "-p", "e2b"]).env("E2B_API_KEY", "").output();
    assert!(text.text().contains("E2B_API_KEY"), "{}", text.transcript());
}

#[test]
fn completion_scripts_complete_our_flags() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = sandboxes(["completion", shell]).output();
        assert_eq!(outcome.status, 0, "{shell}");
        assert!(outcome.text().contains("stream-json"), "{shell}");
    }
    let object = sandboxes(["completion", "bash", "--json"]).output().json();
    assert_eq!(object["shell"], "bash");
    assert!(object["script"].as_str().unwrap().contains("sandboxes"));
}

#[test]
fn every_command_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    sandboxes(["man", directory.path().to_str().unwrap()]).output().assert(0, "");
    let help = sandboxes(["--help"]).output();
    let (_, commands) = help.text().split_once("Commands:\n").unwrap();
    let names = commands.lines().take_while(|line| !line.is_empty());
    let mut count = 0;
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|n| *n != "help") {
        let path = directory.path().join(format!("sandboxes-{name}.1"));
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains(&format!(".TH sandboxes-{name} 1")), "{page}");
        count += 1;
    }
    let below = [
        ("audit", &["show", "tail", "verify"][..]),
        ("image", &["build", "list", "pull"]),
        ("mcp", &["install"]),
        ("snapshot", &["create", "list", "restore", "rm"]),
    ];
    for (command, names) in below {
        for name in names {
            let path = directory.path().join(format!("sandboxes-{command}-{name}.1"));
            assert!(path.exists(), "{command} {name}");
            count += 1;
        }
    }
    let pages = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(
        pages,
        count + 1,
        "one for each command, one for all of it, none for what is hidden"
    );
    let page = std::fs::read_to_string(directory.path().join("sandboxes-repl.1")).unwrap();
    assert!(page.contains("sandboxes repl 9f3a"), "no examples: {page}");
    let missing = directory.path().join("missing");
    assert_eq!(sandboxes(["man", missing.to_str().unwrap()]).output().status, 125);
}

#[test]
fn auto_is_a_variant_of_this_build_whatever_keys_are_set() {
    let home = tempfile::tempdir().unwrap();
    let mut call = sandboxes(["run", "-p", "AUTO", "--json", "true"]).env("HOME", home.path());
    for status in Registry::new().variants() {
        for name in status.credentials.iter().flat_map(|all| all.iter()) {
            if !status.available {
                call = call.env(name, "key");
            }
        }
    }
    let result = call.output();
    assert_eq!(result.json()["variant"], "local-eval", "{}", result.transcript());
}

#[test]
fn logging_goes_to_standard_error_when_asked_for() {
    let quiet = sandboxes(["run", "true"]).output();
    assert_eq!(quiet.stderr, "");
    for call in
        [sandboxes(["run", "-v", "true"]), sandboxes(["run", "true"]).env("RUST_LOG", "debug")]
    {
        let outcome = call.output();
        outcome.assert(0, "");
        assert!(outcome.stderr.contains("sandbox is ready"), "{}", outcome.stderr);
        // Each operation with its time.
        for part in ["create", "start_command", "milliseconds", "local-eval/"] {
            assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr);
        }
        assert!(!outcome.stderr.contains('\u{1b}'), "colour without a terminal");
    }
}
