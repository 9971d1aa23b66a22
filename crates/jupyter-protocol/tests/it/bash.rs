//! A kernel of another language.

use jupyter_protocol::content::{CompleteRequest, IsCompleteRequest};

use crate::Case;
use crate::harness::{Kernel, execute, run};

pub(crate) const CASES: &[Case] = &[("a_second_language_is_as_good", second_language)];

fn second_language() {
    run(async {
        for kernel in [Kernel::start("bash"), Kernel::start_tcp("bash")] {
            let client = kernel.client().await;
            let ran = execute(&client, "echo one; echo $((6 * 7))").await;
            assert_eq!(ran.stdout, "one\n42\n");
            assert!(ran.outcome.is_ok(), "{:?}", ran.outcome);
            let failed = execute(&client, "false").await;
            assert!(failed.outcome.reply.unwrap().status.is_error());
            let mut complete = CompleteRequest::default();
            complete.code = "ech".into();
            complete.cursor_pos = 3;
            let reply = client.request(complete).await.unwrap();
            assert!(reply.matches.iter().any(|word| word == "echo"), "{reply:?}");
            let _ = client.request(IsCompleteRequest::default()).await.unwrap();
        }
    });
}
