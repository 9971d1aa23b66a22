//! The language of the test kernel.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use super::{Action, TestKernel};
use crate::channel::Channel;
use crate::content::{
    ClearOutput, Content, DisplayData, ErrorContent, ExecuteInput, ExecuteResult, ExecutionState,
    InputRequest, ReplyStatus, Status, Stream, StreamName, Transient, Unknown, UpdateDisplayData,
};
use crate::media::MimeBundle;
use crate::message::Message;
use crate::session::Session;

/// The delay of late output after idle.
const LATE_OUTPUT_DELAY: Duration = Duration::from_millis(50);

/// Code that waits for a line of input.
#[derive(Debug)]
pub(super) struct Paused {
    pub(super) request: Message,
    pub(super) lines: VecDeque<String>,
}

/// The result of a line.
enum Line {
    Done,
    Failed(String, String),
    NeedsInput(String),
}

impl TestKernel {
    /// Runs code from its start, or continues it after its question.
    pub(super) fn execute(&mut self, request: Message, lines: VecDeque<String>) {
        let Content::ExecuteRequest(own) = &request.content else { return };
        if own.code.lines().count() == lines.len() {
            self.executions += 1;
            let execution_count = Some(self.executions);
            let input =
                ExecuteInput { code: own.code.clone(), execution_count, ..ExecuteInput::default() };
            self.publish(&request, input);
        }
        if self.behaviour.reply_first {
            self.reply(&request, ReplyStatus::Ok, None);
        }
        let mut lines = lines;
        let mut failed = None;
        while let Some(line) = lines.pop_front() {
            match self.line(&request, &line) {
                Line::Done => {}
                Line::Failed(name, text) => {
                    failed = Some((name, text));
                    break;
                }
                Line::NeedsInput(prompt) => {
                    let question = InputRequest { prompt, ..InputRequest::default() };
                    let question = self.session.reply(&request, question);
                    self.send(Channel::Stdin, question);
                    self.asking = Some(Paused { request, lines });
                    return;
                }
            }
        }
        self.end(&request, failed);
    }

    fn end(&mut self, request: &Message, failed: Option<(String, String)>) {
        let status = if failed.is_some() { ReplyStatus::Error } else { ReplyStatus::Ok };
        if let Some((ename, evalue)) = failed.clone() {
            self.publish(request, ErrorContent { ename, evalue, ..ErrorContent::default() });
        }
        if self.behaviour.idle_first {
            self.status(request, ExecutionState::Idle);
        }
        if !self.behaviour.reply_first {
            self.reply(request, status, failed);
        }
        if !self.behaviour.idle_first {
            self.status(request, ExecutionState::Idle);
        }
        if !self.held.is_empty() {
            self.actions.push_back(Action::Wait(LATE_OUTPUT_DELAY));
            self.actions.extend(std::mem::take(&mut self.held));
        }
    }

    fn line(&mut self, request: &Message, line: &str) -> Line {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        let number = |text: &str| text.parse::<u64>().unwrap_or_default();
        match command {
            "print" => self.write(request, StreamName::Stdout, format!("{rest}\n")),
            "err" => self.write(request, StreamName::Stderr, format!("{rest}\n")),
            "flood" => {
                let chunk = "x".repeat(number(second) as usize);
                (0..number(first))
                    .for_each(|_| self.write(request, StreamName::Stdout, chunk.clone()));
            }
            "result" => {
                let execution_count = Some(self.executions);
                let data = MimeBundle::text(rest);
                self.publish(
                    request,
                    ExecuteResult { execution_count, data, ..ExecuteResult::default() },
                );
            }
            "display" => self.publish(
                request,
                DisplayData {
                    data: MimeBundle::text(second),
                    transient: named(first),
                    ..DisplayData::default()
                },
            ),
            "update" => self.publish(
                request,
                UpdateDisplayData {
                    data: MimeBundle::text(second),
                    transient: named(first),
                    ..UpdateDisplayData::default()
                },
            ),
            "clear" => {
                self.publish(
                    request,
                    ClearOutput { wait: rest == "wait", ..ClearOutput::default() },
                );
            }
            "buffers" => self.show_buffer(request, number(first) as usize),
            "publish" => self.publish_any(request, first, second),
            "sleep" => self.actions.push_back(Action::Wait(Duration::from_millis(number(first)))),
            "restart" => self.restart(),
            "die" => self.actions.push_back(Action::Die),
            "drop" => self.actions.extend(first.parse().ok().map(Action::Drop)),
            "raise" => return Line::Failed(first.to_owned(), second.to_owned()),
            "input" => return Line::NeedsInput(rest.to_owned()),
            _ => self.write(request, StreamName::Stdout, format!("{line}\n")),
        }
        Line::Done
    }

    fn write(&mut self, request: &Message, name: StreamName, text: String) {
        self.publish(request, Stream { name, text, ..Stream::default() });
    }

    fn show_buffer(&mut self, request: &Message, size: usize) {
        let message = self.session.message(
            crate::header::Parent::from_header(&request.header),
            DisplayData { data: MimeBundle::text("buffer"), ..DisplayData::default() },
        );
        self.send(Channel::IoPub, message.with_buffers(vec![Bytes::from(vec![7; size])]));
    }

    fn publish_any(&mut self, request: &Message, msg_type: &str, json: &str) {
        let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
        if let Ok(content) = Unknown::new(msg_type, &value) {
            self.publish(request, content);
        }
    }

    fn restart(&mut self) {
        self.session = Session::new("kernel");
        self.executions = 0;
        let starting = Status { execution_state: ExecutionState::Starting, ..Status::default() };
        let message = self.session.request(starting);
        self.send(Channel::IoPub, message);
    }
}

fn named(id: &str) -> Transient {
    Transient { display_id: Some(id.to_owned()), ..Transient::default() }
}
