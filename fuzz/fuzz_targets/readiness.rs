//! Any messages in any order: a kernel counts as ready only when it has answered and something it published has come.
#![no_main]

use std::time::{Duration, Instant};

use bytes::Bytes;
use jupyter_protocol::readiness::{Readiness, ReadyState};
use jupyter_protocol::{Channel, Content, Limits, Message, Parent, Session};
use libfuzzer_sys::fuzz_target;

const CHANNELS: [Channel; 4] = [Channel::Shell, Channel::Control, Channel::IoPub, Channel::Stdin];

fuzz_target!(|bytes: &[u8]| {
    let (client, kernel) = (Session::new("client"), Session::new("kernel"));
    let mut readiness = Readiness::default();
    let mut now = Instant::now();
    let mut sent: Vec<Message> = Vec::new();
    let (mut connected, mut answered, mut published) = (false, false, false);
    for line in bytes.split(|byte| *byte == b'\n') {
        let Some((&what, rest)) = line.split_first() else { continue };
        match what {
            b'w' => now += Duration::from_millis(rest.len() as u64 * 100),
            b'c' => {
                readiness.on_connected(now);
                (connected, answered, published) = (true, false, false);
                sent.clear();
            }
            b'd' => {
                readiness.on_disconnected();
                (connected, answered, published) = (false, false, false);
                sent.clear();
            }
            other => {
                // The kind, the channel, which request it answers, and the content.
                let mut rest = rest.iter();
                let mut next = || usize::from(rest.next().copied().unwrap_or_default());
                let (channel, answers) = (CHANNELS[next() % 4], next());
                let text = Bytes::from(rest.copied().collect::<Vec<u8>>());
                let kind = Content::MSG_TYPES[usize::from(other) % Content::MSG_TYPES.len()];
                let content = Content::from_json(kind, &text, &Limits::default());
                let request = sent.get(answers % 8);
                answered |= request.is_some() && matches!(channel, Channel::Shell | Channel::Control);
                published |= channel == Channel::IoPub;
                let parent = request.map_or(Parent::None, |request| Parent::from_header(&request.header));
                readiness.on_message(channel, &kernel.message(parent, content), now);
            }
        }
        readiness.on_timeout(now, &client);
        while let Some((channel, request)) = readiness.poll_send() {
            assert!(connected && matches!(channel, Channel::Shell | Channel::Control));
            sent.push(request);
        }
        match readiness.state() {
            ReadyState::Connecting => assert!(!connected),
            ReadyState::Ready(_) => assert!(connected && answered && published),
            _ => assert!(connected && readiness.deadline().is_some(), "it goes on by itself"),
        }
    }
});
