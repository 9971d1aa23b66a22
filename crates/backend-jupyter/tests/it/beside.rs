//! Files and commands on a Jupyter Server, and what becomes of them when something breaks.

use std::fs;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use jupyter_protocol::websocket::KernelModel;
use sandbox_core::{CommandEvent, ErrorKind, FailureKind, PtySize, Sandbox};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::support::{self, server::JupyterServer};
use super::{jupyter, kernels, on, rest, until};

const LARGE: usize = 20 << 20;

/// A sandbox whose kernels have a name of their own, in a folder of its own.
async fn sandbox(server: &JupyterServer, name: &str) -> Sandbox {
    server.add_kernel(name, &support::python_kernel());
    let folder = server.folder().join(format!("of-{name}"));
    on(server).environment(name).working_dir(folder.display().to_string()).create().await.unwrap()
}

/// The kernel beside the others, which runs one request as long as it lives.
async fn beside(server: &JupyterServer, name: &str) -> KernelModel {
    let busy = |kernel: &KernelModel| kernel.execution_state.as_deref() == Some("busy");
    let begun = Instant::now();
    loop {
        if let Some(found) = kernels(server, name).await.into_iter().find(busy) {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no kernel is busy");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The processes whose command line has that word.
fn running_with(word: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(word).then_some(pid)
    });
    pids.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_commands_share_the_machine_with_code() {
    let Some(server) = jupyter() else { return };
    let sandbox = sandbox(server, "shares").await;
    assert_eq!(kernels(server, "shares").await.len(), 1, "one is started before it is needed");
    sandbox.files().write("a.txt", "hello").await.unwrap();
    assert_eq!(kernels(server, "shares").await.len(), 2);
    let read = sandbox.run_code("open('a.txt').read()").await.unwrap();
    assert_eq!(read.text(), Some("'hello'"));
    sandbox.run_code("open('b.txt', 'w').write('from code')").await.unwrap();
    assert_eq!(sandbox.files().read("b.txt").await.unwrap(), "from code");
    let result = sandbox.commands().run("cat a.txt; pwd; echo err >&2; exit 3").await.unwrap();
    let folder = server.folder().join("of-shares");
    assert_eq!(result.stdout, format!("hello{}\n", folder.display()));
    assert_eq!((result.stderr.as_str(), result.exit_code), ("err\n", 3));
    // A cell that sleeps holds nothing up.
    let slow = sandbox.clone();
    let slow = tokio::spawn(async move { slow.run_code("import time; time.sleep(5); 7").await });
    let begun = Instant::now();
    assert_eq!(sandbox.commands().run("echo now").await.unwrap().stdout, "now\n");
    assert!(begun.elapsed() < Duration::from_secs(4), "it took {:?}", begun.elapsed());
    assert_eq!(slow.await.unwrap().unwrap().text(), Some("7"));
    let size = PtySize { columns: 71, rows: 13 };
    let shown = sandbox.commands().run("stty size").pty(size).await.unwrap();
    assert_eq!(shown.stdout, "13 71\r\n");
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "shares").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_travel_both_ways_in_little_memory() {
    let Some(server) = jupyter() else { return };
    let sandbox = sandbox(server, "large").await;
    let data: Vec<u8> = (0..LARGE).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect();
    sandbox.files().write("large", data.clone()).await.unwrap();
    let kernel = beside(server, "large").await;
    let content = sandbox.files().read("large").await.unwrap();
    assert!(content == data, "the content is another");
    let sum = sandbox.commands().run("md5sum large; wc -c < large").await.unwrap();
    assert!(sum.stdout.ends_with(&format!("{LARGE}\n")), "{}", sum.stdout);
    // Nobody reads for a while: what writes is held back, and nothing is lost.
    let mut flood = sandbox.commands().run("head -c 20971520 /dev/zero").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let peak = running_with(&kernel.id).into_iter().filter_map(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let peak = peak.max().expect("the process of the kernel");
    assert!(peak < 200 << 10, "the kernel took {peak} KiB");
    let mut bytes = 0;
    while let Some(event) = flood.events.next().await {
        if let CommandEvent::Output { data, .. } = event {
            bytes += data.len();
        }
    }
    assert_eq!(bytes, LARGE);
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_killed_is_told_and_another_one_takes_over() {
    let Some(server) = jupyter() else { return };
    let sandbox = sandbox(server, "killed").await;
    sandbox.run_code("x = 5").await.unwrap();
    sandbox.files().write("kept", "still here").await.unwrap();
    let word = "sleep 4242.1";
    let command = sandbox.commands().run(word).start().await.unwrap();
    until("it does not run", async || !running_with(word).is_empty()).await;
    let kernel = beside(server, "killed").await;
    for pid in running_with(&kernel.id) {
        let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status();
    }
    let mut events = command.events;
    let mut end = None;
    while let Some(event) = events.next().await {
        if let CommandEvent::Finished(outcome) = event {
            end = outcome.failure;
        }
    }
    let failure = end.expect("it says that it was cut off");
    assert_eq!(failure.kind, FailureKind::ConnectionLost, "{failure:?}");
    until("its command goes on", async || running_with(word).is_empty()).await;
    // The code goes on, and so do files and commands.
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("5"));
    assert_eq!(sandbox.files().read("kept").await.unwrap(), "still here");
    assert_eq!(sandbox.commands().run("echo again").await.unwrap().stdout, "again\n");
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "killed").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_killed_takes_its_commands_along() {
    let Some(server) = jupyter() else { return };
    let sandbox = sandbox(server, "agent").await;
    let word = "sleep 4243.1";
    let command = sandbox.commands().run(word).start().await.unwrap();
    until("it does not run", async || !running_with(word).is_empty()).await;
    let parent = "import os\n\
                  def parent(pid): return int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])\n\
                  def words(pid):\n    \
                      try: return open(f'/proc/{pid}/cmdline', 'rb').read()\n    \
                      except OSError: return b''  # it has just ended\n\
                  found = []\n\
                  while not found:  # it may be a shell that becomes that program\n    \
                      found = [int(p) for p in os.listdir('/proc') if p.isdigit() and b'sleep\\x004243.1' in words(p)]\n";
    let kill = format!(
        "{parent}pid = found[0]\n\
         while b'code-sandboxes-agent' not in words(pid): pid = parent(pid)\n\
         os.kill(pid, 9)"
    );
    let result = sandbox.run_code(kill).await.unwrap();
    assert!(result.code_error.is_none(), "{result:?}");
    let outcome = command.events.filter_map(async |event| match event {
        CommandEvent::Finished(outcome) => Some(outcome),
        _ => None,
    });
    let outcome = std::pin::pin!(outcome).next().await.expect("an end");
    let failure = outcome.failure.expect("it says that it was cut off");
    assert_eq!(failure.kind, FailureKind::ConnectionLost);
    assert!(failure.message.contains("signal 9"), "{failure:?}");
    until("its command goes on", async || running_with(word).is_empty()).await;
    assert_eq!(sandbox.commands().run("echo again").await.unwrap().stdout, "again\n");
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "agent").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_kernel_that_is_refused_is_told() {
    let Some(server) = jupyter() else { return };
    let sandbox = sandbox(server, "refused").await;
    sandbox.run_code("x = 1").await.unwrap();
    // There is none of that name any more, so another one cannot be started.
    server.add_kernel("refused", "exit 3");
    let error = sandbox.files().read("any").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("kernel of their own")), "{error:?}");
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("1"));
    server.add_kernel("refused", &support::python_kernel());
    assert_eq!(sandbox.commands().run("echo there").await.unwrap().stdout, "there\n");
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "refused").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_the_last_handle_goes() {
    let Some(server) = jupyter() else { return };
    let sandbox = sandbox(server, "left").await;
    let word = "sleep 4244.1";
    let _command = sandbox.commands().run(word).background().start().await.unwrap();
    until("it does not run", async || !running_with(word).is_empty()).await;
    drop(sandbox);
    until("kernels are left", async || kernels(server, "left").await.is_empty()).await;
    until("a command is left", async || running_with(word).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_of_somebody_else_has_no_files() {
    let Some(server) = jupyter() else { return };
    let own = rest(server).start_kernel("python3", None).await.unwrap();
    let sandbox = on(server).provider_option("kernel_id", own.id.clone()).create().await.unwrap();
    let error = sandbox.files().read("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = sandbox.commands().run("true").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    sandbox.terminate().await.unwrap();
    rest(server).delete_kernel(&own.id).await.unwrap();
}

/// A way to the server that can be cut.
struct Way {
    url: String,
    cuts: watch::Sender<u32>,
}

impl Way {
    async fn to(server: &JupyterServer) -> Self {
        let target = server.url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let cuts = watch::Sender::new(0);
        let cut = cuts.subscribe();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (target, mut cut) = (target.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(&target).await.unwrap();
                    tokio::select! {
                        _ = copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self { url, cuts }
    }

    /// Cuts every connection that there is. New ones can be made.
    fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_made_again_and_nothing_is_lost() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("breaks", &support::python_kernel());
    let way = Way::to(server).await;
    let folder = server.folder().join("of-breaks");
    let builder = on(server).provider_option("server_url", way.url.clone()).environment("breaks");
    let sandbox = builder.working_dir(folder.display().to_string()).create().await.unwrap();
    let line = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo line $i; sleep 0.1; done; head -c 3000000 /dev/zero | wc -c";
    let mut command = sandbox.commands().run(line).start().await.unwrap();
    let (mut output, mut cuts) = (Vec::new(), 0);
    let mut end = None;
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => output.extend_from_slice(&data),
            CommandEvent::Finished(outcome) => end = Some(outcome),
            _ => {}
        }
        let lines = output.iter().filter(|byte| **byte == b'\n').count();
        if cuts < 3 && lines > 10 * cuts + 3 {
            cuts += 1;
            way.cut();
        }
    }
    let end = end.expect("an end");
    assert_eq!((end.exit_code, end.failure), (0, None));
    let mut expected: String = (1..=40).map(|n| format!("line {n}\n")).collect();
    expected += "3000000\n";
    assert_eq!((String::from_utf8(output).unwrap(), cuts), (expected, 3));
    // Both ways, with a cut while much is on its way.
    let data: Vec<u8> = (0..LARGE).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect();
    let files = sandbox.files();
    let cutting = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(150)).await;
            way.cut();
        }
    };
    let (written, ()) = tokio::join!(files.write("large", data.clone()), cutting);
    written.unwrap();
    let cutting = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        way.cut();
    };
    let (read, ()) = tokio::join!(files.read("large"), cutting);
    assert!(read.unwrap() == data, "the content is another");
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "breaks").await.is_empty()).await;
}
