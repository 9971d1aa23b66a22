//! Kernels of other languages.

use jupyter_protocol::content::{CompleteRequest, IsCompleteRequest};
use jupyter_protocol::execution::Event;

use crate::Case;
use crate::harness::{Kernel, execute, run};

pub(crate) const CASES: &[Case] =
    &[("a_second_language_is_as_good", second_language), ("late_output_of_deno_arrives", late)];

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

fn late() {
    run(async {
        let kernel = Kernel::start_tcp("deno");
        let client = kernel.client().await;
        for number in 0..100 {
            let code = format!(
                "console.log('out {number}'); console.error('err');\n\
                 await Deno.jupyter.display({{ 'text/plain': 'shown' }}, {{ raw: true }});\n\
                 {number}"
            );
            let ran = execute(&client, &code).await;
            assert!(ran.outcome.is_ok() && ran.outcome.losses.is_none(), "{ran:?}");
            let output = (ran.stdout.trim_end(), ran.stderr.trim_end());
            assert_eq!(output, (&*format!("out {number}"), "err"), "{ran:?}");
            let value = ran.value();
            assert!(value.is_some_and(|value| value.contains(&number.to_string())), "{ran:?}");
            let shown = ran.events.iter().any(|event| matches!(event, Event::Display { .. }));
            assert!(shown, "{ran:?}");
        }
    });
}
