//! Python: cells, scripts, and their ends.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::support::{finish, python, run};

#[test]
fn the_value_of_a_cell_is_printed() {
    for (code, printed) in [
        ("print(6*7)", "42\n"),
        ("6*7", "42\n"),
        ("None", ""),
        ("x = 1", ""),
        ("print('a', end='')", "a"),
        ("print('said')\n'value'", "said\n'value'\n"),
        ("'it\\'s \"quoted\" $HOME `x` \\\\'", "'it\\'s \"quoted\" $HOME `x` \\\\'\n"),
        ("# é\n'é'", "'é'\n"),
        ("x = 1\r\nx + 1\r\n", "2\n"),
        ("", ""),
    ] {
        python(code).output().assert(0, printed);
    }
}

#[test]
fn low_limits_of_sandboxes_itself_do_not_hinder_runs() {
    let code = "import resource; resource.getrlimit(resource.RLIMIT_NOFILE)[1]";
    python(code).limited_to("512").output().assert(0, "512\n");
}

#[test]
fn loader_variables_reach_the_started_program() {
    let code = "import os, subprocess\nprint(os.environ['LD_LIBRARY_PATH'], '/nowhere.so' in open('/proc/self/maps').read())\n\
                print('/nowhere.so' in subprocess.run(['true'], capture_output=True, text=True).stderr)";
    let variables = ["-e", "LD_PRELOAD=/nowhere.so", "-e", "LD_LIBRARY_PATH=/x", "-e", "OTHER=1"];
    let outcome = python(code).args(variables).output();
    outcome.assert(0, "/x False\nTrue\n");
    assert!(
        outcome.stderr.contains("note: LD_PRELOAD, LD_LIBRARY_PATH: applies to commands"),
        "{}",
        outcome.stderr
    );
    assert_eq!(python("1").args(["-e", "OTHER=1"]).output().stderr, "");
}

#[test]
fn limits_of_ours_that_are_too_low_are_named_with_their_remedy() {
    for limit in ["32", "64", "96"] {
        let outcome = python("1").limited_to(limit).output();
        assert_eq!(outcome.status, 125, "{}", outcome.transcript());
        let message = format!("may have {limit} open files");
        assert!(outcome.stderr.contains(&message), "{}", outcome.transcript());
        assert!(
            outcome.stderr.contains("hint: raise the limit of open files"),
            "{}",
            outcome.transcript()
        );
    }
}

#[test]
fn both_streams_are_kept_apart() {
    let outcome = python("import sys; print('out'); print('err', file=sys.stderr)").output();
    outcome.assert(0, "out\n");
    assert_eq!(outcome.stderr, "err\n");
}

#[test]
fn a_dead_interpreter_is_reported() {
    let code = "import sys\ndef hook(*a): raise RuntimeError\nsys.addaudithook(hook)";
    let outcome = python(code).output();
    outcome.assert(125, "");
    assert!(outcome.stderr.contains("the interpreter gave up: "), "{}", outcome.stderr);
}

#[test]
fn a_file_is_a_script() {
    let directory = tempfile::tempdir().unwrap();
    let code = "import sys\nprint(sys.argv, __file__, __name__)\n'not echoed'\n";
    fs::write(directory.path().join("script.py"), code).unwrap();
    let printed =
        |arguments: &str| format!("['script.py'{arguments}] /workspace/script.py __main__\n");
    for (arguments, argv) in [
        (&["--file", "script.py"][..], ""),
        (&["--file", "script.py", "a", "b c"], ", 'a', 'b c'"),
        (&["--file", "script.py", "a", "--json", "--", "-t"], ", 'a', '--json', '--', '-t'"),
        (&["--file", "script.py", "--", "--json", "a"], ", '--json', 'a'"),
        (&["-f", "script.py", "--lang", "python", "--", "x"], ", 'x'"),
        (&["--file=script.py", "-t", "60", "x"], ", 'x'"),
    ] {
        run(arguments).directory(directory.path()).output().assert(0, &printed(argv));
    }
}

#[test]
fn a_script_finds_files_mounted_or_copied_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("beside.py"), "x = 5\n").unwrap();
    let code = "import sys, beside\nprint(beside.x, __file__, sys.argv, sys.path[0])\n";
    fs::write(directory.path().join("script.py"), code).unwrap();
    let mount = format!("{}:/project", directory.path().display());
    run(["--mount", &mount, "--file", "script.py"])
        .directory(directory.path())
        .output()
        .assert(0, "5 /project/script.py ['/project/script.py'] /project\n");
    let file = directory.path().join("script.py");
    run(["--with", directory.path().to_str().unwrap(), "--file", file.to_str().unwrap()])
        .output()
        .assert(0, "5 /workspace/script.py ['script.py'] /workspace\n");
}

#[test]
fn code_on_standard_input_is_a_script() {
    let code = "import sys\nprint(__name__, sys.argv[1:], sys.stdin.read() == '')\n'not echoed'\n";
    for (arguments, argv) in [
        (&["--lang", "python"][..], "[]"),
        (&["--lang", "py", "-"], "[]"),
        (&["--lang", "py", "-", "a", "-t"], "['a', '-t']"),
        (&["--lang", "python", "--file", "-", "--", "a"], "['a']"),
        (&["--lang", "python", "--", "-a"], "['-a']"),
    ] {
        let printed = format!("__main__ {argv} True\n");
        run(arguments).stdin(code).output().assert(0, &printed);
    }
}

#[test]
fn piped_input_goes_to_the_code() {
    let code = "import sys; data = sys.stdin.buffer.read(); print(len(data), sum(data))";
    let input: Vec<u8> = (0..1_000_000u32).map(|i| (i * 7 % 251) as u8).collect();
    let sum: u64 = input.iter().map(|byte| u64::from(*byte)).sum();
    python(code).stdin(input).output().assert(0, &format!("1000000 {sum}\n"));
    python("input() + input()").stdin("a\nb\n").output().assert(0, "'ab'\n");
    python("import sys; sys.stdin.read()").output().assert(0, "''\n");
}

#[test]
fn content_of_any_kind_is_run_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("it's a \"file\".py");
    let large = format!("text = '{}'\nprint(len(text))\n", "x".repeat(1 << 20));
    for (content, printed) in [
        ("print('it')\r\nprint('a b')\r\n".to_owned(), "it\na b\n"),
        ("\u{feff}print('marked')".to_owned(), "marked\n"),
        (
            "print(\"$(touch /tmp/x) `id` \\\\ ' \\\"\")\n".to_owned(),
            "$(touch /tmp/x) `id` \\ ' \"\n",
        ),
        ("print('''EOF\nEOF''')\n".to_owned(), "EOF\nEOF\n"),
        (large, "1048576\n"),
    ] {
        fs::write(&path, &content).unwrap();
        run(["--file".as_ref(), path.as_os_str()]).output().assert(0, printed);
        run(["--lang", "python"]).stdin(content).output().assert(0, printed);
    }
    fs::write(&path, b"print('\xff')").unwrap();
    let outcome = run(["--file".as_ref(), path.as_os_str()]).output();
    assert_eq!(outcome.status, 2);
    assert!(outcome.stderr.contains("not UTF-8"), "{}", outcome.stderr);
}

#[test]
fn the_end_of_the_code_is_the_status() {
    for (code, status, message) in [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(300)", 300 & 0xff, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import os; os._exit(9)", 9, ""),
        ("1/0", 1, "ZeroDivisionError: division by zero\n"),
        ("if if", 1, "SyntaxError"),
    ] {
        let outcome = python(code).output();
        assert_eq!(outcome.status, status, "{code}: {outcome:?}");
        assert_eq!(outcome.text(), "", "{code}");
        assert!(outcome.stderr.contains(message), "{code}: {outcome:?}");
        assert!(!message.is_empty() || outcome.stderr.is_empty(), "{code}: {outcome:?}");
    }
    let outcome = python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").output();
    assert_eq!(outcome.status, 128 + 11, "{outcome:?}");
    assert!(outcome.stderr.starts_with("sandboxes: error: "), "{outcome:?}");
}

#[test]
fn a_traceback_shows_the_code_and_nothing_of_ours() {
    let outcome = python("def f():\n    return 1/0\n\nprint('before')\nf()").output();
    assert_eq!(outcome.text(), "before\n");
    // Markers below the source text depend on the version of Python.
    let is_marker = |line: &&str| line.trim().chars().all(|c| "~^".contains(c));
    let lines: Vec<_> = outcome.stderr.lines().filter(|line| !is_marker(line)).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    Traceback (most recent call last):
      File "<cell-1>", line 5, in <module>
        f()
      File "<cell-1>", line 2, in f
        return 1/0
    ZeroDivisionError: division by zero
    "#);
}

#[test]
fn the_time_limit_ends_code_and_keeps_its_output() {
    let start = std::time::Instant::now();
    let outcome =
        python("print('before')\nimport time; time.sleep(30)").arg("-t").arg("0.5").output();
    outcome.assert(124, "before\n");
    let ours: Vec<_> =
        outcome.stderr.lines().filter(|line| line.starts_with("sandboxes: error: ")).collect();
    assert_eq!(ours.len(), 1, "{}", outcome.stderr);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn the_environment_has_only_the_given_variables() {
    let code = "import os; print(os.environ.get('A'), os.environ.get('B'), os.environ.get('C'))";
    let call = python(code).arg("-e").arg("A=1=2").arg("-e").arg("B");
    let outcome = call.env("B", "from the host").env("C", "never").output();
    outcome.assert(0, "1=2 from the host None\n");
}

#[test]
fn the_working_directory_is_chosen() {
    for directory in ["/tmp", "/new/place", "relative"] {
        let outcome = python("import os; os.getcwd()").arg("-w").arg(directory).output();
        assert_eq!(outcome.status, 0, "{directory}: {outcome:?}");
        assert!(outcome.text().ends_with(&format!("{directory}'\n")), "{outcome:?}");
        let outcome = run(["-w", directory, "pwd"]).output();
        assert!(outcome.text().ends_with(&format!("{directory}\n")), "{outcome:?}");
    }
}

#[test]
fn a_working_directory_that_leaves_upward_is_refused() {
    let outcome = run(["-w", "..", "pwd"]).output();
    insta::assert_snapshot!(outcome.transcript(), @r#"
    status 2
    [stdout]
    [stderr]
    sandboxes: error: `working_dir` must stay below the working directory of the sandbox, or be absolute, got ".."
    "#);
}

#[test]
fn results_without_text_are_noted_and_not_printed() {
    let code = "display({'image/png': 'AAAA'}, raw=True)";
    let outcome = python(code).output();
    outcome.assert(0, "");
    assert_eq!(outcome.stderr, "sandboxes: note: not shown: a result of type image/png\n");
    let quiet = python(code).arg("--quiet").output();
    quiet.assert(0, "");
    assert_eq!(quiet.stderr, "");
}

#[test]
fn weak_isolation_is_reported_in_one_line() {
    let outcome = python("1").arg("--isolation").arg("off").output();
    outcome.assert(0, "1\n");
    assert_eq!(outcome.stderr, "sandboxes: warning: isolation is off: the code has your rights\n");
    let outcome = python("1").arg("--isolation").arg("off").arg("-q").output();
    outcome.assert(0, "1\n");
    assert_eq!(outcome.stderr, "");
}

#[test]
fn code_that_closes_the_way_to_its_host_has_not_succeeded() {
    for code in [
        "import os; os.closerange(3, 4096)\nraise SystemExit(9)",
        "import os; os.closerange(0, 4096)",
    ] {
        let outcome = python(code).output();
        assert_eq!(outcome.status, 125, "{code}: {outcome:?}");
        assert!(outcome.stderr.contains("lost its connection"), "{code}: {outcome:?}");
        let outcome = run(["--json", "--lang", "python", code]).output();
        assert_eq!(outcome.status, 125, "{code}: {outcome:?}");
        assert!(outcome.text().contains("\"connection_lost\""), "{code}: {outcome:?}");
    }
    // The code itself ended the interpreter.
    python("import os; os._exit(0)").output().assert(0, "");
}

#[test]
fn a_damaged_start_cache_is_no_obstacle() {
    let cache = tempfile::tempdir().unwrap();
    let one = || python("6*7").env("XDG_CACHE_HOME", cache.path()).output().assert(0, "42\n");
    let kept = || {
        let files = fs::read_dir(cache.path().join("code-sandboxes")).unwrap();
        let mut found = files
            .map(|file| file.unwrap().path())
            .filter(|file| file.extension().is_some_and(|extension| extension == "pyc"));
        let file = found.next().expect("byte code");
        assert_eq!(found.next(), None);
        file
    };
    one();
    let whole = fs::read(kept()).unwrap();
    for broken in [&whole[..whole.len() / 2], &whole[..16], b"no byte code", b""] {
        fs::write(kept(), broken).unwrap();
        one();
        assert_eq!(fs::read(kept()).unwrap().len(), whole.len(), "it was replaced");
    }
    // Files that other users can write, and links, are not read.
    let other = cache.path().join("other");
    fs::write(&other, b"no byte code").unwrap();
    let name = kept();
    fs::remove_file(&name).unwrap();
    std::os::unix::fs::symlink(&other, &name).unwrap();
    one();
    assert_eq!(fs::read(&other).unwrap(), b"no byte code");
}

#[test]
fn nothing_is_written_to_the_host_once_it_has_returned() {
    // More processes than processors, so that some are ended while they write.
    let code = "import os, time
for name in range(40):
    if os.fork() == 0:
        file = os.open(f'shared/{name}', os.O_CREAT | os.O_WRONLY)
        while True:
            for _ in range(200): os.write(file, b'x' * 4096)
            os.ftruncate(file, 0)
time.sleep(0.3)";
    for _ in 0..4 {
        let folder = tempfile::Builder::new().prefix("mount-").tempdir_in("/var/tmp").unwrap();
        let mount = format!("{}:/workspace/shared:rw", folder.path().display());
        let outcome = python(code).args(["--mount", &mount]).output();
        let written = || -> Vec<_> {
            let files = (0..40).map(|name| folder.path().join(name.to_string()));
            let reported = files.filter_map(|file| fs::metadata(file).ok());
            reported.map(|reported| (reported.len(), reported.modified().ok())).collect()
        };
        let at_the_end = written();
        thread::sleep(Duration::from_millis(300));
        assert!(outcome.status == 0 && !at_the_end.is_empty(), "{outcome:?}");
        assert_eq!(written(), at_the_end);
    }
}

#[test]
fn no_control_group_is_left_after_a_run() {
    let code = "import time; print('limited', flush=True); time.sleep(0.3)";
    let mut child = python(code).args(["--cpus", "0.5"]).spawn();
    let prefix = format!("code-sandboxes-{}-", child.id());
    let groups = || -> Vec<PathBuf> {
        let below = |directory: &Path| -> Vec<PathBuf> {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
        };
        let top = below(Path::new("/sys/fs/cgroup"));
        let all = top.iter().flat_map(|directory| below(directory)).chain(top.iter().cloned());
        let name = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
        };
        all.filter(name).collect()
    };
    let mut first = [0; 8];
    let is_limited = child.stdout.as_mut().unwrap().read_exact(&mut first).is_ok();
    let while_it_ran = groups();
    let outcome = finish(child);
    assert_eq!(groups(), Vec::<PathBuf>::new(), "{outcome:?}");
    if is_limited {
        assert!(outcome.status == 0 && !while_it_ran.is_empty(), "{outcome:?}");
    } else {
        // Control groups cannot be created here, as by an ordinary user.
        assert!(outcome.stderr.contains("`cpu` cannot be enforced"), "{outcome:?}");
    }
}
