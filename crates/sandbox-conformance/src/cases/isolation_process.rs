//! What code under strict isolation can do to processes of the host: nothing.

use sandbox_core::FailureKind;

use super::isolation::raises_os_error;
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host::{self, Decoy};
use crate::support::{
    WAIT_TIMEOUT, as_shown, eventually, failed_with, is_usable, json, ok, run, text,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("isolation", [run_code, local, strict], {
        processes_of_the_host_are_not_seen;
        processes_of_the_host_cannot_be_signalled;
        the_first_process_is_out_of_reach;
        killing_everything_kills_itself_alone;
        no_capabilities;
        no_way_into_other_namespaces;
        the_first_process_cannot_be_traced;
        shared_memory_is_private;
        setuid_programs_do_nothing;
        another_sandbox_is_out_of_reach;
    })
}

async fn processes_of_the_host_are_not_seen(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let token = host::token("inside-");
    let code = format!(
        "
import json, os, subprocess
p = subprocess.Popen(['sh', '-c', 'echo ready; while :; do sleep 1; done', '{token}'], stdout=subprocess.PIPE)
p.stdout.readline()
seen = []
for name in os.listdir('/proc'):
    if name.isdigit():
        try: seen.append(open('/proc/' + name + '/cmdline').read())
        except OSError: pass
print(json.dumps(seen))
p.kill()"
    );
    let seen = json(&sandbox, &code).await?;
    let seen: Vec<&str> =
        seen.as_array().into_iter().flatten().filter_map(|s| s.as_str()).collect();
    ensure!(
        seen.iter().any(|line| line.contains(&token)),
        "the control process is not seen: {seen:?}"
    );
    let own = std::env::current_exe()?.display().to_string();
    ensure!(!seen.iter().any(|line| line.contains(&own)), "this process is seen: {seen:?}");
    ensure!(seen.len() < 10, "too many processes: {seen:?}");
    Ok(())
}

async fn processes_of_the_host_cannot_be_signalled(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut decoy = Decoy::start()?;
    for pid in [decoy.pid(), std::process::id()] {
        // A process id of the host either names nothing inside, or something of the sandbox's own.
        let code = format!(
            "
import os
try: same = open('/proc/{pid}/comm').read() in ('sleep\\n',)
except OSError: same = False
if same: os.kill({pid}, 9)
same"
        );
        ensure_eq!(text(&sandbox, &code).await?, "False");
    }
    ensure!(decoy.is_alive()?, "the decoy was killed");
    // The code can kill what is its own.
    let control = "import subprocess; p = subprocess.Popen(['sleep', '60']); p.kill(); p.wait()";
    ensure_eq!(text(&sandbox, control).await?, "-9", "control");
    Ok(())
}

async fn the_first_process_is_out_of_reach(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "import os; os.listdir('/proc/1/root')",
        "open('/proc/1/environ', 'rb').read()",
        "open('/proc/1/mem', 'rb').read(1)",
        "import os; os.listdir('/proc/1/fd')",
        "import os; os.listdir('/proc/1/task/1/fd')",
        "import os; os.readlink('/proc/1/fd/0')",
        "open('/proc/1/oom_score_adj', 'w')",
        "open('/proc/1/coredump_filter', 'w')",
        "import os; os.readlink('/proc/1/cwd')",
        "import os; os.readlink('/proc/1/exe')",
    ] {
        raises_os_error(&sandbox, code).await?;
    }
    ensure_eq!(text(&sandbox, "import os; len(os.listdir('/proc/self/fd')) > 2").await?, "True");
    Ok(())
}

async fn killing_everything_kills_itself_alone(f: Fixture) -> Checked {
    let mut decoy = Decoy::start()?;
    let other = f.sandbox().await?;
    ok(&other, "x = 'alive'").await?;
    for code in ["os.kill(-1, 9)", "os.killpg(0, 9)", "os.kill(os.getpid(), 9)"] {
        let sandbox = f.sandbox().await?;
        let result =
            run(&sandbox, &format!("import os\n{code}\nimport time; time.sleep(5)")).await?;
        if result.failure.is_some() {
            failed_with(&result, FailureKind::KernelDied)?;
            ensure_eq!(result.exit_code, Some(137), "after {code}");
        }
        is_usable(&sandbox).await?;
    }
    let sandbox = f.sandbox().await?;
    run(&sandbox, "import os\nfor pid in (1, os.getppid()):\n    try: os.kill(pid, 9)\n    except OSError: pass").await?;
    is_usable(&sandbox).await?;
    ensure!(decoy.is_alive()?, "the decoy was killed");
    ensure_eq!(text(&other, "x").await?, as_shown("'alive'"));
    Ok(())
}

async fn no_capabilities(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let read = "{line.split(':')[0]: line.split(':')[1].strip() for line in open('/proc/self/status') if line.startswith(('Cap', 'NoNewPrivs'))}";
    let code = format!("import json; print(json.dumps({read}))");
    let status = json(&sandbox, &code).await?;
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        ensure_eq!(status[set], "0000000000000000", "{set}");
    }
    ensure_eq!(status["NoNewPrivs"], "1", "NoNewPrivs");
    // Children have no more.
    let child = format!(
        "import subprocess, sys; subprocess.run([sys.executable, '-c', {:?}])",
        format!("import json; print(json.dumps({read}))")
    );
    let status = json(&sandbox, &format!("{child}; None")).await?;
    ensure_eq!(status["CapEff"], "0000000000000000", "of a child");
    Ok(())
}

async fn no_way_into_other_namespaces(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for kind in ["mnt", "pid", "net", "user", "ipc"] {
        let code = format!(
            "import os, ctypes\nfd = os.open('/proc/1/ns/{kind}', 0)\nif ctypes.CDLL(None).setns(fd, 0): raise OSError('denied')"
        );
        raises_os_error(&sandbox, &code).await?;
    }
    Ok(())
}

async fn the_first_process_cannot_be_traced(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.ptrace.restype = ctypes.c_long\n[libc.ptrace(request, 1, 0, 0) for request in (16, 0x4206)]";
    ensure_eq!(text(&sandbox, code).await?, "[-1, -1]");
    Ok(())
}

async fn shared_memory_is_private(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    let make = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.shmget(0x5ca1ab1e, 4096, 0o1666) >= 0";
    ensure_eq!(text(&one, make).await?, "True", "control");
    let look = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nlibc.shmget(0x5ca1ab1e, 4096, 0) >= 0";
    ensure_eq!(text(&one, look).await?, "True", "control");
    ensure_eq!(text(&two, look).await?, "False");
    Ok(())
}

async fn setuid_programs_do_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, shutil, subprocess
shutil.copy('/usr/bin/id', '/tmp/id')
os.chmod('/tmp/id', 0o6755)
subprocess.check_output(['/tmp/id', '-u']).strip() == str(os.getuid()).encode()";
    ensure_eq!(text(&sandbox, code).await?, "True");
    Ok(())
}

async fn another_sandbox_is_out_of_reach(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    let token = host::token("other-");
    ok(&one, &format!("import subprocess; p = subprocess.Popen(['sh', '-c', 'while :; do sleep 1; done', '{token}'])")).await?;
    eventually("the control", WAIT_TIMEOUT, async || Ok(!host::running_with(&token)?.is_empty()))
        .await?;
    run(&two, "import os; os.kill(-1, 15); os.kill(-1, 9)").await?;
    ensure!(!host::running_with(&token)?.is_empty(), "a process of another sandbox was killed");
    is_usable(&one).await?;
    Ok(())
}
