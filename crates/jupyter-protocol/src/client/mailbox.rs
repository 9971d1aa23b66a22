//! A queue of messages for one reader, with bounded memory.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use super::error::CloseReason;
use crate::channel::Channel;
use crate::execution::Loss;
use crate::raw::RawMessage;

/// An entry of a mailbox.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A message.
    Message(Channel, Box<RawMessage>),
    /// Messages are missing here.
    Lost(Loss),
    /// A channel was connected.
    Connected(Channel),
    /// The kernel has replied to a later request, so this reply will not arrive.
    ReplyLost,
    /// The kernel's process was replaced.
    KernelRestarted,
    /// The kernel is dead.
    KernelDied,
    /// The connection is closed. No entry follows.
    Closed(CloseReason),
}

/// The memory of one entry besides its message, in bytes.
const MESSAGE_OVERHEAD: usize = 512;

/// The reserve for messages that carry the state of an execution, beyond the budget for output, in bytes.
const RESERVED_BYTES: usize = 1024 * 1024;

/// A queue that never blocks the sender. Messages that do not fit are dropped and counted. One reader waits at a time.
///
/// The sender reads from the kernel and must not stop: a kernel whose output is not read drops it and does not report
/// the loss.
#[derive(Debug)]
pub(crate) struct Mailbox {
    budget: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    /// The part of `bytes` that state messages take.
    needed: usize,
    started: Option<Instant>,
    finished: Option<Instant>,
    /// The waker of the reader while it waits.
    reader: Option<Waker>,
}

impl Mailbox {
    /// Creates a mailbox with a budget in bytes.
    pub(crate) fn new(budget: usize) -> Self {
        Self { budget, queue: Mutex::default() }
    }

    /// Adds a message, or drops and counts it if it does not fit.
    pub(crate) fn push_message(&self, channel: Channel, message: RawMessage) {
        let cost = cost(&message);
        let is_needed = is_needed(&message);
        let mut queue = self.queue();
        if message.parent().msg_id().is_some() {
            queue.started.get_or_insert_with(Instant::now);
        }
        // The limits bound a single message, and an empty queue accepts it: a reader that keeps up loses nothing.
        let fits = queue.bytes.saturating_add(cost) <= self.budget
            // State messages have a reserve of their own, however large the queued output is.
            || is_needed && queue.needed.saturating_add(cost) <= RESERVED_BYTES
            || queue.items.is_empty();
        if !fits {
            queue.drop_message(message.size());
        } else {
            queue.bytes += cost;
            queue.needed += if is_needed { cost } else { 0 };
            queue.items.push_back(Item::Message(channel, Box::new(message)));
        }
        wake_reader(queue);
    }

    /// Adds a reply, regardless of the budget: each request has only one.
    pub(crate) fn push_reply(&self, channel: Channel, message: RawMessage) {
        let cost = cost(&message);
        let mut queue = self.queue();
        queue.bytes = queue.bytes.saturating_add(cost);
        queue.needed += if is_needed(&message) { cost } else { 0 };
        queue.finished.get_or_insert_with(Instant::now);
        queue.items.push_back(Item::Message(channel, Box::new(message)));
        wake_reader(queue);
    }

    /// Adds an entry that is not a message. Consecutive duplicates are merged, as are duplicate losses within a run of
    /// losses.
    pub(crate) fn push_note(&self, item: Item) {
        let mut queue = self.queue();
        let repeated = match (&item, queue.items.back()) {
            (Item::Lost(next), _) => queue.trailing_losses().any(|last| last == next),
            (Item::Connected(next), Some(Item::Connected(last))) => last == next,
            (Item::Closed(_), Some(Item::Closed(_))) => true,
            (next, Some(last)) => {
                std::mem::discriminant(last) == std::mem::discriminant(next)
                    && matches!(next, Item::ReplyLost | Item::KernelRestarted | Item::KernelDied)
            }
            (_, None) => false,
        };
        if matches!(item, Item::Closed(_) | Item::KernelDied | Item::KernelRestarted) {
            queue.finished.get_or_insert_with(Instant::now);
        }
        if !repeated {
            queue.items.push_back(item);
        }
        wake_reader(queue);
    }

    /// Waits for the next entry. Dropping the future loses nothing.
    pub(crate) async fn next(&self) -> Item {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the next entry, and registers the task's waker if there is none.
    pub(crate) fn poll_next(&self, context: &Context<'_>) -> Poll<Item> {
        let mut queue = self.queue();
        if let Some(item) = queue.take() {
            return Poll::Ready(item);
        }
        match &mut queue.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the next entry, if there is one.
    pub(crate) fn try_next(&self) -> Option<Item> {
        self.queue().take()
    }

    /// Returns the time at which the kernel was first seen to process the request.
    pub(crate) fn started(&self) -> Option<Instant> {
        self.queue().started
    }

    /// Returns the time at which the reply arrived, or at which it became clear that none will.
    pub(crate) fn finished(&self) -> Option<Instant> {
        self.queue().finished
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn take(&mut self) -> Option<Item> {
        let item = self.items.pop_front();
        if let Some(Item::Message(_, message)) = &item {
            let cost = cost(message);
            self.bytes = self.bytes.saturating_sub(cost);
            self.needed = self.needed.saturating_sub(if is_needed(message) { cost } else { 0 });
        }
        item
    }

    /// Returns the losses at the end of the queue. Each kind occurs once, so they do not grow.
    fn trailing_losses(&mut self) -> impl Iterator<Item = &mut Loss> {
        self.items.iter_mut().rev().map_while(|item| match item {
            Item::Lost(loss) => Some(loss),
            _ => None,
        })
    }

    /// Counts a dropped message near its position in the queue.
    fn drop_message(&mut self, size: usize) {
        let size = size as u64;
        for loss in self.trailing_losses() {
            if let Loss::Overflow { messages, bytes } = loss {
                *messages += 1;
                *bytes = bytes.saturating_add(size);
                return;
            }
        }
        self.items.push_back(Item::Lost(Loss::Overflow { messages: 1, bytes: size }));
    }
}

/// Wakes the reader after the lock is released.
fn wake_reader(mut queue: MutexGuard<'_, Queue>) {
    let reader = queue.reader.take();
    drop(queue);
    if let Some(reader) = reader {
        reader.wake();
    }
}

fn cost(message: &RawMessage) -> usize {
    message.memory().saturating_add(MESSAGE_OVERHEAD)
}

/// Returns true if the message carries the state of an execution, or its value, of which there is one. All others are
/// output, which is unlimited.
fn is_needed(message: &RawMessage) -> bool {
    match message.msg_type() {
        "status" | "execute_input" | "execute_result" | "error" | "input_request"
        | "iopub_welcome" | "clear_output" | "comm_open" | "comm_close" => true,
        other => other.ends_with("_reply"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::content::{Content, ExecuteResult, Status, Stream};
    use crate::{Limits, MimeBundle, Session};

    fn raw(content: impl Into<Content>) -> RawMessage {
        Session::new("k").request(content).into_raw()
    }

    fn stream(text: &str) -> RawMessage {
        raw(Stream { text: text.to_owned(), ..Stream::default() })
    }

    fn kinds(mailbox: &Mailbox) -> Vec<String> {
        std::iter::from_fn(|| mailbox.try_next())
            .map(|item| match item {
                Item::Message(_, message) => message.msg_type().to_owned(),
                Item::Lost(Loss::Overflow { messages, .. }) => format!("{messages} lost"),
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn output_is_dropped_and_status_is_kept() {
        let mailbox = Mailbox::new(4000);
        for _ in 0..1000 {
            mailbox.push_message(Channel::IoPub, stream(&"x".repeat(500)));
        }
        mailbox.push_message(Channel::IoPub, raw(Status::default()));
        mailbox.push_message(Channel::IoPub, stream(&"y".repeat(500)));
        mailbox.push_reply(Channel::Shell, stream(&"z".repeat(5000)));
        let kinds = kinds(&mailbox);
        let kept = kinds.iter().filter(|kind| *kind == "stream").count();
        assert!((2..=5).contains(&kept), "{kinds:?}");
        assert_eq!(
            kinds[kinds.len() - 4..],
            [&format!("{} lost", 1000 - kept + 1), "status", "1 lost", "stream"]
        );
        assert_eq!(mailbox.queue().bytes, 0);
    }

    #[test]
    fn alternating_losses_do_not_grow() {
        let mailbox = Mailbox::new(4000);
        for _ in 0..100 {
            mailbox.push_message(Channel::IoPub, stream(&"x".repeat(5000)));
            mailbox.push_note(Item::Lost(Loss::RateLimited));
        }
        assert_eq!(kinds(&mailbox), ["stream", "Lost(RateLimited)", "99 lost"]);
        mailbox.push_note(Item::Lost(Loss::RateLimited));
        assert_eq!(kinds(&mailbox), ["Lost(RateLimited)"], "what was taken is no longer there");
    }

    #[test]
    fn the_value_is_kept_when_output_is_dropped() {
        let mailbox = Mailbox::new(4000);
        for _ in 0..100 {
            mailbox.push_message(Channel::IoPub, stream(&"x".repeat(500)));
        }
        let value = ExecuteResult::new(1, MimeBundle::text("'end'"));
        mailbox.push_message(Channel::IoPub, raw(value));
        assert_eq!(kinds(&mailbox).last().unwrap(), "execute_result");
    }

    #[test]
    fn one_message_always_fits() {
        let mailbox = Mailbox::new(10);
        for _ in 0..3 {
            mailbox.push_message(Channel::IoPub, stream(&"x".repeat(5000)));
            mailbox.push_message(Channel::IoPub, stream("y"));
            assert_eq!(kinds(&mailbox), ["stream", "1 lost"]);
        }
    }

    #[test]
    fn state_messages_fit_beside_a_message_over_the_budget() {
        let mailbox = Mailbox::new(4000);
        mailbox.push_message(Channel::IoPub, stream(&"x".repeat(RESERVED_BYTES * 3)));
        mailbox.push_message(Channel::IoPub, stream("y"));
        mailbox.push_message(Channel::IoPub, raw(Status::default()));
        assert_eq!(kinds(&mailbox), ["stream", "1 lost", "status"]);
        let queue = mailbox.queue();
        assert_eq!((queue.bytes, queue.needed), (0, 0));
    }

    /// Messages that are small as text can be large in memory.
    #[test]
    fn memory_counts_and_not_the_size_of_the_text() {
        const BUDGET: usize = 8 << 20;
        let mailbox = Mailbox::new(BUDGET);
        let values: Vec<_> = (0..10_000).map(|_| json!({"": 0})).collect();
        let header = json!({"msg_type": "display_data", "msg_id": "i", "x": values}).to_string();
        let many_frames = vec![bytes::Bytes::new(); 4000];
        let parts = |header: &str| {
            ["{\"msg_type\": \"display_data\"}", header, "{}", "{}"]
                .map(|text| text.to_owned().into())
        };
        for _ in 0..100 {
            let crowded = RawMessage::from_parts(parts(&header), Vec::new(), &Limits::default());
            mailbox.push_message(Channel::IoPub, crowded.unwrap());
            let framed =
                RawMessage::from_parts(parts("{}"), many_frames.clone(), &Limits::default());
            mailbox.push_message(Channel::IoPub, framed.unwrap());
        }
        let kept = kinds(&mailbox).iter().filter(|kind| *kind == "display_data").count();
        // Seven megabytes each of one kind, and 400 KB of the other.
        assert!(kept < 25, "{kept} were kept");
    }

    #[test]
    fn a_flood_of_needed_messages_is_bounded_too() {
        let mailbox = Mailbox::new(0);
        for _ in 0..10_000 {
            mailbox.push_message(Channel::IoPub, raw(Status::default()));
        }
        assert!(mailbox.queue().bytes <= RESERVED_BYTES);
        assert!(kinds(&mailbox).last().unwrap().ends_with("lost"));
    }

    #[test]
    fn notes_do_not_pile_up() {
        let mailbox = Mailbox::new(0);
        for _ in 0..1000 {
            mailbox.push_note(Item::Lost(Loss::RateLimited));
        }
        for _ in 0..1000 {
            mailbox.push_note(Item::Closed(CloseReason::Closed));
        }
        assert_eq!(kinds(&mailbox).len(), 2);
    }

    #[tokio::test]
    async fn waiting_is_cancel_safe() {
        let mailbox = Mailbox::new(10_000);
        for _ in 0..3 {
            let waited = tokio::time::timeout(std::time::Duration::from_millis(1), mailbox.next());
            assert!(waited.await.is_err());
        }
        mailbox.push_message(Channel::IoPub, stream("a"));
        mailbox.push_message(Channel::IoPub, stream("b"));
        for _ in 0..2 {
            assert!(matches!(mailbox.next().await, Item::Message(..)));
        }
        assert!(mailbox.try_next().is_none());
    }
}
