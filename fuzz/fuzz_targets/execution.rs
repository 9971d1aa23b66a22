//! Any messages in any order: an execution starts before anything else happens, ends once, and nothing follows.
#![no_main]

use std::time::{Duration, Instant};

use bytes::Bytes;
use jupyter_protocol::execution::{End, Event, Execution, GracePeriods, Loss};
use jupyter_protocol::{Channel, Content, ExecuteRequest, Limits, Parent, Session};
use libfuzzer_sys::fuzz_target;

const CHANNELS: [Channel; 4] = [Channel::IoPub, Channel::Shell, Channel::Control, Channel::Stdin];

fuzz_target!(|bytes: &[u8]| {
    let (client, kernel) = (Session::new("client"), Session::new("kernel"));
    let request = client.request(ExecuteRequest::new("x").with_stdin());
    let other_request = client.request(ExecuteRequest::new("y"));
    let mut execution = Execution::new(&request.header, GracePeriods::default());
    let mut now = Instant::now();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((&what, rest)) = line.split_first() else { continue };
        match what {
            b'w' => now += Duration::from_millis(rest.len() as u64 * 100),
            b'l' => execution.on_loss(Loss::RateLimited),
            b'r' => execution.on_reply_lost(now),
            b'e' => execution.on_end(End::KernelDied),
            b'i' => {
                let wanted = execution.wants_input();
                assert_eq!(execution.input_reply(&client, "line").is_some(), wanted);
            }
            other => {
                // The kind; the channel, and whether it is about this request, another one or none; and the content.
                let (place, text) = rest.split_first().unwrap_or((&b'0', &[]));
                let place = usize::from(place.wrapping_sub(b'0'));
                let kind = Content::MSG_TYPES[usize::from(other) % Content::MSG_TYPES.len()];
                let text = Bytes::copy_from_slice(text);
                let content = Content::from_json(kind, &text, &Limits::default());
                let parent = match place / 4 % 4 {
                    0 | 1 => Parent::from_header(&request.header),
                    2 => Parent::from_header(&other_request.header),
                    _ => Parent::None,
                };
                execution.on_message(CHANNELS[place % 4], kernel.message(parent, content), now);
            }
        }
        execution.on_timeout(now);
    }
    let events: Vec<Event> = std::iter::from_fn(|| execution.poll_event()).collect();
    let ends = events.iter().filter(|event| matches!(event, Event::Finished(_))).count();
    assert_eq!(ends, usize::from(execution.is_finished()));
    if execution.is_finished() {
        assert!(matches!(events.last(), Some(Event::Finished(_))));
        assert_eq!(execution.deadline(), None);
    }
    let started = events.iter().position(|event| matches!(event, Event::Started));
    let first = events.iter().position(|event| matches!(event, Event::Stream(_) | Event::Result { .. }));
    assert!(first.is_none_or(|first| started.is_some_and(|started| started < first)));
});
