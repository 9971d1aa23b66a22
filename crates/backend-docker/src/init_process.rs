//! The init process of a container, as a process of this host.

use std::os::unix::fs::MetadataExt as _;

use async_trait::async_trait;
use bollard::Docker;
use bollard::query_parameters::InspectContainerOptions;
use sandbox_agent_client::LocateProcess;

/// Locates an init process by the number that the engine reports, which may be that of another process here.
#[derive(Debug)]
pub(crate) struct InitProcess {
    docker: Docker,
    container: String,
}

impl InitProcess {
    pub(crate) fn new(docker: &Docker, container: &str) -> Self {
        Self { docker: docker.clone(), container: container.to_owned() }
    }

    /// Returns the number that the engine reports, or `None` for a container that does not run.
    pub(crate) async fn host_pid(&self) -> Option<u32> {
        let options = None::<InspectContainerOptions>;
        let found = self.docker.inspect_container(&self.container, options).await;
        let number = found.ok()?.state?.pid?;
        u32::try_from(number).ok().filter(|number| *number > 0)
    }
}

#[async_trait]
impl LocateProcess for InitProcess {
    /// Returns the number unless it is that of a process in this process's namespace, which is none of a container.
    async fn pid(&self) -> Option<u32> {
        let number = self.host_pid().await?;
        is_in_other_namespace(number).then_some(number)
    }
}

/// Returns true for a process in another PID namespace than this one.
fn is_in_other_namespace(number: u32) -> bool {
    let namespace = |process: &str| {
        let namespace = std::fs::metadata(format!("/proc/{process}/ns/pid"));
        namespace.map(|namespace| namespace.ino()).ok()
    };
    namespace(&number.to_string()).is_some_and(|its| namespace("self") != Some(its))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_engine::{Answer, FakeEngine};

    async fn pid(state: Value) -> Option<u32> {
        let engine = FakeEngine::start(move |_, _| Answer::now(200, json!({"State": state})));
        InitProcess::new(&engine.docker(), "one").pid().await
    }

    /// An engine behind a socket of this host may be on another host, where the numbers are those of other processes.
    #[tokio::test]
    async fn a_process_of_this_namespace_is_none_of_a_container() {
        assert_eq!(pid(json!({"Pid": std::process::id()})).await, None);
        assert_eq!(pid(json!({"Pid": 0})).await, None, "it has not started, or has ended");
        assert_eq!(pid(json!({"Pid": i64::from(u32::MAX) + 2})).await, None);
        assert_eq!(pid(json!({"Pid": (1 << 22) + 1})).await, None, "no process has that number");
        assert_eq!(pid(json!({})).await, None);
    }
}
