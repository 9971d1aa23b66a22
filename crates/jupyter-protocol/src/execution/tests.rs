//! All orders of arrival, and all messages that can be missing.

use super::*;
use crate::content::{
    CommOpen, CompleteRequest, ExecuteInput, InputRequest, MessageContent, Status, Stream, Unknown,
};
use crate::{ExecuteRequest, Limits};

struct Bench {
    kernel: Session,
    request: Message,
    execution: Execution,
    now: Instant,
}

impl Bench {
    fn new() -> Self {
        let request = Session::new("me").request(ExecuteRequest::new("x"));
        let execution = Execution::new(&request.header, GracePeriods::default());
        Self { kernel: Session::new("kernel"), request, execution, now: Instant::now() }
    }

    fn publish(&mut self, content: impl Into<Content>) -> &mut Self {
        let message = self.kernel.reply(&self.request, content);
        self.execution.on_message(Channel::IoPub, message, self.now);
        self
    }

    fn state(&mut self, state: &str) -> &mut Self {
        self.publish(status(state))
    }

    fn stream(&mut self, text: &str) -> &mut Self {
        self.publish(Stream { text: text.to_owned(), ..Stream::default() })
    }

    fn reply(&mut self, status: &str) -> &mut Self {
        let reply = ExecuteReply { status: status.into(), ..ExecuteReply::default() };
        let message = self.kernel.reply(&self.request, reply);
        self.execution.on_message(Channel::Shell, message, self.now);
        self
    }

    fn wait(&mut self, duration: Duration) -> &mut Self {
        self.now += duration;
        self.execution.on_timeout(self.now);
        self
    }

    fn names(&mut self) -> Vec<&'static str> {
        self.events().iter().map(name).collect()
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.execution.poll_event()).collect()
    }

    fn outcome(&mut self) -> Outcome {
        match self.events().pop() {
            Some(Event::Finished(outcome)) => *outcome,
            other => panic!("not finished: {other:?}"),
        }
    }
}

fn status(state: &str) -> Status {
    Status { execution_state: state.into(), ..Status::default() }
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Started => "started",
        Event::Input(_) => "input",
        Event::Stream(_) => "stream",
        Event::Reply(_) => "reply",
        Event::Idle => "idle",
        Event::Lost(_) => "lost",
        Event::Finished(_) => "finished",
        Event::InputRequest(_) => "ask",
        Event::Message { .. } => "message",
        _ => "other",
    }
}

#[test]
fn reply_and_idle_end_it_in_either_order() {
    let mut first = Bench::new();
    first.state("busy").stream("a").reply("ok");
    assert!(!first.execution.is_finished());
    first.state("idle");
    assert_eq!(first.names(), ["started", "stream", "reply", "idle", "finished"]);

    let mut second = Bench::new();
    second.state("busy").state("idle").reply("ok");
    assert_eq!(second.names(), ["started", "idle", "reply", "finished"]);
}

#[test]
fn output_after_idle_belongs_to_it_with_a_barrier() {
    let mut bench = Bench::new();
    let barrier = Session::new("me").request(CompleteRequest::at_end(""));
    bench.execution = bench.execution.clone().with_barrier(barrier.clone());
    let of_barrier = |bench: &mut Bench, state: &str| {
        let message = bench.kernel.reply(&barrier, status(state));
        bench.execution.on_message(Channel::IoPub, message, bench.now);
    };
    assert!(bench.state("busy").execution.poll_send().is_none(), "the code still runs");
    bench.state("idle");
    assert!(bench.execution.lacks_reply());
    bench.reply("ok");
    assert_eq!(bench.execution.poll_send(), Some(barrier.clone()));
    assert!(bench.execution.poll_send().is_none(), "it is sent once");
    of_barrier(&mut bench, "busy");
    bench.stream("late");
    assert!(!bench.execution.is_finished());
    of_barrier(&mut bench, "idle");
    assert_eq!(bench.names(), ["started", "idle", "reply", "stream", "finished"]);
}

#[test]
fn a_lost_barrier_does_not_hang_and_is_reported() {
    let mut bench = Bench::new();
    let barrier = Session::new("me").request(CompleteRequest::at_end(""));
    bench.execution = bench.execution.clone().with_barrier(barrier);
    bench.state("busy").reply("ok").state("idle").wait(Duration::from_millis(1999));
    assert!(!bench.execution.is_finished());
    bench.wait(Duration::from_millis(1));
    let outcome = bench.outcome();
    assert!(outcome.is_ok() && outcome.losses.no_idle);
    assert!(bench.execution.poll_send().is_none(), "the execution is over");
}

#[test]
fn output_after_the_reply_is_part_of_it() {
    let mut bench = Bench::new();
    bench.reply("ok").wait(Duration::from_millis(1900)).stream("late");
    bench.wait(Duration::from_millis(1900)).stream("later");
    assert!(!bench.execution.is_finished(), "every message restarts the grace period");
    bench.state("idle");
    assert!(bench.outcome().losses.is_none());
}

#[test]
fn a_lost_idle_does_not_hang() {
    let mut bench = Bench::new();
    bench.state("busy").reply("ok");
    let deadline = bench.execution.deadline().unwrap();
    assert_eq!(deadline, bench.now + Duration::from_secs(2));
    bench.wait(Duration::from_millis(1999));
    assert!(!bench.execution.is_finished());
    bench.wait(Duration::from_millis(1));
    let outcome = bench.outcome();
    assert!(outcome.is_ok() && outcome.losses.no_idle);
    assert_eq!(bench.execution.deadline(), None);
}

#[test]
fn a_lost_reply_does_not_hang() {
    let mut bench = Bench::new();
    bench.state("busy").stream("x").state("idle").wait(Duration::from_secs(5));
    let outcome = bench.outcome();
    assert_eq!((outcome.end, outcome.started), (End::ReplyLost, true));
    assert!(!outcome.is_ok());
}

#[test]
fn a_reply_that_was_overtaken_is_lost() {
    let mut bench = Bench::new();
    bench.state("busy").state("idle");
    let now = bench.now;
    bench.execution.on_reply_lost(now);
    assert_eq!(bench.outcome().end, End::ReplyLost);

    let mut without_idle = Bench::new();
    without_idle.state("busy");
    without_idle.execution.on_reply_lost(now);
    assert!(!without_idle.execution.is_finished());
    without_idle.wait(Duration::from_secs(3));
    let outcome = without_idle.outcome();
    assert_eq!((outcome.end, outcome.losses.no_idle), (End::ReplyLost, true));
}

#[test]
fn it_waits_for_the_first_reply_without_timeout() {
    let mut bench = Bench::new();
    bench.state("busy").stream("x").wait(Duration::from_secs(3600));
    assert_eq!((bench.execution.is_finished(), bench.execution.deadline()), (false, None));
}

#[test]
fn a_malformed_reply_ends_it() {
    let mut bench = Bench::new();
    bench.state("busy");
    let text = r#"{"status": 7}"#.into();
    let content = Content::from_json("execute_reply", &text, &Limits::default());
    let message = bench.kernel.reply(&bench.request, content);
    bench.execution.on_message(Channel::Shell, message, bench.now);
    bench.state("idle");
    assert_eq!(bench.names(), ["started", "message", "idle", "finished"]);
}

#[test]
fn an_aborted_request_did_not_run() {
    let mut bench = Bench::new();
    bench.state("busy").reply("aborted").state("idle");
    let outcome = bench.outcome();
    assert!(outcome.is_aborted() && !outcome.started && !outcome.is_ok());
}

#[test]
fn the_exception_that_ended_it_is_kept() {
    let error = ErrorContent { ename: "E".into(), ..ErrorContent::default() };
    let mut published = Bench::new();
    published.publish(error.clone()).reply("error").state("idle");
    assert_eq!(published.outcome().error.as_ref(), Some(&error), "the answer says less");
    let mut dealt_with = Bench::new();
    dealt_with.publish(error.clone()).reply("ok").state("idle");
    assert_eq!(dealt_with.outcome().error, None);
    let mut lost = Bench::new();
    lost.publish(error.clone()).state("idle").wait(Duration::from_secs(5));
    assert_eq!(lost.outcome().error, Some(error));
    let mut answered = Bench::new();
    let reply =
        ExecuteReply { status: "error".into(), ename: Some("F".into()), ..ExecuteReply::default() };
    let message = answered.kernel.reply(&answered.request, reply);
    answered.execution.on_message(Channel::Shell, message, answered.now);
    answered.state("idle");
    assert_eq!(answered.outcome().error.unwrap().ename, "F");
}

#[test]
fn the_end_of_the_kernel_ends_it() {
    for (state, end) in [
        ("restarting", End::KernelRestarted),
        ("autorestarting", End::KernelRestarted),
        ("dead", End::KernelDied),
    ] {
        let mut bench = Bench::new();
        let message = bench.kernel.request(status(state));
        bench.execution.on_message(Channel::IoPub, message, bench.now);
        assert_eq!(bench.outcome().end, end, "{state}");
    }
}

#[test]
fn a_kernel_that_starts_has_lost_what_ran() {
    let mut bench = Bench::new();
    let starting = bench.kernel.request(status("starting"));
    bench.execution.on_message(Channel::IoPub, starting.clone(), bench.now);
    assert!(!bench.execution.is_finished(), "this one may just have been started");
    bench.state("busy").execution.on_message(Channel::IoPub, starting, Instant::now());
    assert!(!bench.execution.is_finished(), "a late status of the same process");
    let other = Session::new("kernel").request(status("starting"));
    bench.execution.on_message(Channel::IoPub, other, Instant::now());
    assert_eq!(bench.outcome().end, End::KernelRestarted);
}

#[test]
fn others_are_not_mixed_in() {
    let mut bench = Bench::new();
    let other = bench.kernel.request(ExecuteRequest::new("y"));
    for content in
        [Content::from(status("idle")), Stream::default().into(), ExecuteReply::default().into()]
    {
        let message = bench.kernel.reply(&other, content);
        bench.execution.on_message(Channel::IoPub, message, bench.now);
    }
    assert_eq!(bench.names(), Vec::<&str>::new());
}

#[test]
fn questions_are_answered_once() {
    let mut bench = Bench::new();
    let session = Session::new("me");
    assert!(bench.execution.input_reply(&session, "x").is_none());
    let question = bench.kernel.reply(&bench.request, InputRequest::default());
    bench.execution.on_message(Channel::Stdin, question.clone(), bench.now);
    let reply = bench.execution.input_reply(&session, "line").unwrap();
    assert_eq!(reply.parent_id(), Some(question.header.msg_id.as_str()));
    assert_eq!(InputReply::from_content(reply.content).unwrap().value, "line");
    assert!(bench.execution.input_reply(&session, "again").is_none());
    assert_eq!(bench.names(), ["started", "ask"]);
}

#[test]
fn losses_are_counted_and_shown_where_they_are() {
    let mut bench = Bench::new();
    bench.state("busy").stream("a");
    for _ in 0..2 {
        bench.execution.on_loss(Loss::Overflow { messages: 3, bytes: 10 });
    }
    bench.execution.on_loss(Loss::RateLimited);
    bench.stream("b").reply("ok").state("idle");
    let outcome = bench.outcome();
    let losses = outcome.losses;
    assert_eq!((losses.messages, losses.bytes, losses.rate_limited), (6, 20, true));
    assert!(outcome.is_ok());
}

#[test]
fn other_messages_are_passed_unchanged() {
    let mut bench = Bench::new();
    let mut message = bench.kernel.reply(&bench.request, CommOpen::default());
    message.metadata.insert("m".into(), 1.into());
    bench.execution.on_message(Channel::IoPub, message.clone(), bench.now);
    bench.publish(Unknown::new("vendor", &[1]).unwrap());
    let events = bench.events();
    assert_eq!(events[1], Event::Message { channel: Channel::IoPub, message: Box::new(message) });
    assert!(matches!(&events[2], Event::Message { .. }));
}

#[test]
fn nothing_follows_the_end() {
    let mut bench = Bench::new();
    bench.publish(ExecuteInput { execution_count: Some(4), ..ExecuteInput::default() });
    bench.execution.on_end(End::ConnectionLost);
    bench.stream("late").reply("ok").state("idle").wait(Duration::from_secs(60));
    bench.execution.on_loss(Loss::RateLimited);
    bench.execution.on_end(End::KernelDied);
    let outcome = bench.outcome();
    assert_eq!((outcome.end, outcome.execution_count), (End::ConnectionLost, Some(4)));
}
