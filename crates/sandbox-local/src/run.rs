//! One run, from what a caller asks to what an interpreter is told.

use sandbox_agent::RunMode;
use sandbox_agent::interpreter::RunRequest;
use sandbox_core::{CallContext, CodeMode, RunCode};

/// What an interpreter is told of a run. The working directory is passed on as it is.
pub fn run_request(
    call: &CallContext,
    request: RunCode,
    network_hint: Option<String>,
) -> RunRequest {
    let (mode, filename, argv) = match request.mode {
        CodeMode::Cell => (RunMode::Cell, String::new(), Vec::new()),
        CodeMode::Script { filename, argv } => {
            // As `sys.argv` has it: the program's own name first, `-` when it came from nowhere.
            let own = if filename.is_empty() { "-" } else { &filename };
            let argv = std::iter::once(own.to_owned()).chain(argv).collect();
            (RunMode::Script, filename, argv)
        }
    };
    RunRequest {
        run_id: call.run_id.clone(),
        mode,
        code: request.code,
        filename,
        argv,
        env: request.env,
        cwd: request.cwd,
        timeout: request.timeout,
        cpu_time: request.cpu_time,
        output_limit: request.output_limit,
        stdin: request.stdin,
        network_hint,
    }
}
