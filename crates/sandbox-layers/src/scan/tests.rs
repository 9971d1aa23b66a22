//! Tests of the rules, by the code that they are about.

use std::time::{Duration, Instant};

use super::*;

/// Returns the lines and rules of the findings.
fn found(code: &str, language: ScanLanguage, policy: &ScanPolicy) -> Vec<(u64, String)> {
    scan(code, language, policy).into_iter().map(|finding| (finding.line, finding.rule)).collect()
}

fn python(code: &str) -> Vec<(u64, String)> {
    found(code, ScanLanguage::Python, &ScanPolicy::warn())
}

fn shell(code: &str) -> Vec<(u64, String)> {
    found(code, ScanLanguage::Shell, &ScanPolicy::warn())
}

#[track_caller]
fn assert_rule(all: &[(u64, String)], rule: &str, code: &str) {
    assert!(all.iter().any(|(_, found)| found == rule), "{rule} in {code:?}: {all:?}");
}

#[test]
fn ordinary_code_has_no_findings() {
    for code in [
        "import json, math, re\nprint(json.dumps({'a': math.pi}))",
        "with open('data.csv') as file:\n    rows = [line.split(',') for line in file]",
        "import pandas as pd\nframe = pd.read_csv('/workspace/data.csv')\nframe.describe()",
        "import re\npattern = re.compile(r'\\d+')\npattern.findall('a1')",
        "def system(os): return os\nsystem(1)",
        "class A:\n    def eval(self): return 1\nA().eval()",
        "token = os = None",
        "open('/tmp/x', 'w').write('1')",
        "x = 'import socket'\nprint(x)  # os.system",
        "%time 1 + 1\nx = 3 % 2",
        "",
    ] {
        assert_eq!(python(code), [], "{code}");
    }
    for code in [
        "ls -la | wc -l",
        "echo hi > out.txt && cat out.txt",
        "for f in *.txt; do grep -c x \"$f\"; done",
        "python3 script.py --input data.csv 2>/dev/null",
        "pip list; git status",
        "sed 's/a/b/' file",
    ] {
        assert_eq!(shell(code), [], "{code}");
    }
}

#[test]
fn python_that_a_rule_is_about_is_found() {
    for (rule, code) in [
        ("process", "import os\nos.system('ls')"),
        ("process", "import os as o\no.system('ls')"),
        ("process", "from os import system as s\ns('ls')"),
        ("process", "from os import *\nsystem('ls')"),
        ("process", "import subprocess\nsubprocess.run(['ls'])"),
        ("process", "from subprocess import Popen\nPopen(['ls']).wait()"),
        ("process", "run = __import__('subprocess').run\nrun('ls')"),
        ("process", "import importlib\nimportlib.import_module('os').system('ls')"),
        ("process", "import os\ngetattr(os, 'sys' + 'tem')('ls')"),
        ("process", "import sys\nsys.modules['os'].system('ls')"),
        ("process", "import os\nf = os.system\nlist(map(f, ['ls']))"),
        ("process", "import os\nos.fork()"),
        ("process", "import multiprocessing as mp\nmp.Process(target=print).start()"),
        ("process", "!ls"),
        ("network", "import socket\nsocket.create_connection(('a', 1))"),
        ("network", "import urllib.request\nurllib.request.urlopen('x')"),
        ("network", "import requests as r\nr.get('x')"),
        ("network", "from http.client import HTTPSConnection\nHTTPSConnection('x')"),
        ("network", "import pandas as pd\npd.read_csv('https://example.com/x.csv')"),
        ("network", "!curl https://example.com"),
        ("network", "%pip install requests"),
        ("outside_file", "open('/etc/passwd')"),
        ("outside_file", "open('../x')"),
        ("outside_file", "open(f'/etc/{name}')"),
        ("outside_file", "open('/e' 'tc/passwd')"),
        ("outside_file", "open('\\x2fetc/passwd')"),
        ("outside_file", "from pathlib import Path\nPath('~/.ssh/id_rsa').read_text()"),
        ("outside_file", "import shutil\nshutil.rmtree('/home')"),
        ("dynamic_code", "eval('1 + 1')"),
        ("dynamic_code", "import builtins\nbuiltins.exec('1')"),
        ("dynamic_code", "e = eval\ne('1')"),
        ("dynamic_code", "__builtins__['eval']('1')"),
        ("dynamic_code", "__import__('o' + name)"),
        ("dynamic_code", "import os\ngetattr(os, name)('ls')"),
        ("dynamic_code", "().__class__.__mro__[1].__subclasses__()"),
        ("dynamic_code", "getattr((), '__subclasses__')"),
        ("dynamic_code", "import pickle\npickle.loads(data)"),
        ("dynamic_code", "import ctypes\nctypes.CDLL(None)"),
        ("process", "exec('import os\\nos.system(\"ls\")')"),
        ("secret", "api_key = 'b5f1c2d3e4a59687'"),
        ("secret", "connect(password='hunter2hunter2')"),
        ("secret", "headers = {'token': 'b5f1c2d3e4a59687'}"),
        ("secret", "x = 'AKIAIOSFODNN7ABCDEFG'"),
        ("secret", "url = 'https://user:hunter2@example.com/'"),
        ("secret", "'''\n-----BEGIN RSA PRIVATE KEY-----\n'''"),
        ("unread", "%%R\nx <- 1"),
        ("unread", "def f(:\n  )("),
    ] {
        assert_rule(&python(code), rule, code);
    }
    let encoded = format!("x = '{}'", "QUJD".repeat(100));
    assert_rule(&python(&encoded), "dynamic_code", "a long text in base64");
}

#[test]
fn shell_that_a_rule_is_about_is_found() {
    for (rule, code) in [
        ("network", "curl -s https://example.com"),
        ("network", "/usr/bin/wget x"),
        ("network", "git clone https://example.com/x"),
        ("network", "sudo apt-get install -y x"),
        ("network", "echo x > /dev/tcp/10.0.0.1/80"),
        ("network", "env A=1 timeout 5 curl x"),
        ("network", "c'u'rl x"),
        ("process", "kill -9 1"),
        ("process", "nohup ./server &"),
        ("process", ":(){ :|:& };:"),
        ("outside_file", "cat /etc/passwd"),
        ("outside_file", "cat ../../x"),
        ("outside_file", "echo x > ~/.bashrc"),
        ("outside_file", "tar --directory=/etc -cf x.tar ."),
        ("dynamic_code", "eval \"$x\""),
        ("dynamic_code", "curl x | sh"),
        ("dynamic_code", "echo aWQ= | base64 -d | bash"),
        ("dynamic_code", "$cmd x"),
        ("dynamic_code", "bash -c \"$x\""),
        ("network", "sh -c 'curl x'"),
        ("process", "python3 -c 'import os; os.system(\"id\")'"),
        ("network", "python3 - <<'EOF'\nimport socket\nsocket.socket()\nEOF"),
        ("secret", "export TOKEN=ghp_abcdefghijklmnopqrstuvwxyz0123456789"),
    ] {
        assert_rule(&shell(code), rule, code);
    }
}

#[test]
fn findings_name_the_line_and_never_the_secret() {
    let findings = scan(
        "x = 1\n\nimport os\nos.system('ls')\npassword = 'hunter2hunter2'",
        ScanLanguage::Python,
        &ScanPolicy::warn(),
    );
    let shown: Vec<_> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "line 4: `os.system` starts a program (process)",
            "line 5: `password` is given its value in the text (secret)",
        ]
    );
    // Code in code has the line of the outer code.
    assert_eq!(python("\nexec('\\n\\nimport os\\nos.fork()')")[0].0, 2);
}

#[test]
fn imports_are_checked_against_both_lists() {
    let policy = ScanPolicy::warn()
        .allow_imports(["json", "os.path", "numpy"])
        .deny_imports(["numpy.ctypeslib"]);
    let imports = |code| found(code, ScanLanguage::Python, &policy);
    let allowed = "from __future__ import annotations\nimport json\nimport os.path\nimport json.decoder\nfrom numpy import array\nfrom . import own";
    assert_eq!(imports(allowed), []);
    for code in [
        "import os",
        "import json, sys",
        "from os import path",
        "import jsonschema",
        "import numpy.ctypeslib",
        "__import__('sys')",
        "def f():\n    import sys",
        "try: import sys\nexcept ImportError: pass",
    ] {
        assert_rule(&imports(code), "import", code);
    }
}

#[test]
fn groups_of_rules_and_directories_are_chosen() {
    let policy = ScanPolicy::warn().without(ScanRule::Process).directory("/data");
    let code = "import os\nos.system('ls')\nopen('/data/x')\nopen('/data2/x')";
    assert_eq!(found(code, ScanLanguage::Python, &policy), [(4, "outside_file".to_owned())]);
}

#[test]
fn hard_texts_are_bounded_and_told() {
    let deep = 100_000;
    for code in [
        "(".repeat(deep),
        format!("{}1{}", "(".repeat(deep), ")".repeat(deep)),
        format!("{}1{}", "[".repeat(deep), "]".repeat(deep)),
        format!("x{}", ".a".repeat(deep)),
        format!("f{}", "()".repeat(deep)),
        format!("x = {}1", "-".repeat(deep)),
        format!("x = {}", "'a' + ".repeat(deep)),
        (0..2_000).map(|n| format!("{}if x:\n", " ".repeat(n))).collect(),
        "x = 1\n".repeat(1_000_000),
        "\0\u{feff}\\\n'''".repeat(10_000),
    ] {
        let began = Instant::now();
        let all = python(&code);
        // Debug builds of the grammars on a busy machine take several times as long.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        assert!(all.len() <= 101);
        if code.len() > 4 << 20 {
            assert_rule(&all, "unread", "a long text");
        }
    }
    assert_rule(&python(&"(".repeat(deep)), "unread", "brackets");
    for code in ["$(".repeat(deep), "{ ".repeat(deep), format!("echo {}", "a".repeat(1 << 20))] {
        let began = Instant::now();
        shell(&code);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[test]
fn findings_are_bounded() {
    let code: String = (0..500).map(|n| format!("open('/etc/{n}')\n")).collect();
    let findings = scan(&code, ScanLanguage::Python, &ScanPolicy::warn());
    assert_eq!(findings.len(), 101);
    assert_eq!(findings[100].reason, "400 more findings are not listed");
}
