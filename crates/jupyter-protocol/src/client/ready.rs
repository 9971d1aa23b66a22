//! Waits until a kernel can be used.

use std::time::{Duration, Instant};

use super::dispatcher::Interest;
use super::error::{ClientError, Effect};
use super::mailbox::{Item, Mailbox};
use super::{Channel, Client};
use crate::readiness::{Readiness, Ready, ReadyState};

impl Client {
    /// Waits until the kernel answers and its published messages arrive.
    ///
    /// Requests are sent on the control channel too, so that a kernel that is busy with the code of another client is
    /// found ready. If the kernel [publishes late](crate::KernelInfoReply::publishes_late), executions that start
    /// afterwards end once all of their output has arrived.
    ///
    /// # Errors
    /// [`ClientError::NotReady`] after `timeout`, [`ClientError::KernelDied`] once [`Client::kernel_died`] was called,
    /// and [`ClientError::Closed`].
    ///
    /// # Cancellation
    /// Dropping the future leaves at most some `kernel_info_request`s in transit, which change nothing. This method can
    /// be called again at any time.
    pub async fn ready(&self, timeout: Duration) -> Result<Ready, ClientError> {
        let mailbox = self.mailbox(Interest::Everything);
        let mut readiness = Readiness::default();
        let wait = self.become_ready(&mailbox, &mut readiness);
        match tokio::time::timeout(timeout, wait).await {
            Ok(ready) => {
                if let Ok(ready) = &ready {
                    self.dispatcher().set_publishes_late(ready.kernel_info.publishes_late());
                }
                ready
            }
            Err(_) => Err(ClientError::NotReady {
                within: timeout,
                state: Box::new(readiness.state()),
                rejected: self.rejected(),
            }),
        }
    }

    async fn become_ready(
        &self,
        mailbox: &Mailbox,
        readiness: &mut Readiness,
    ) -> Result<Ready, ClientError> {
        if self.is_connected() {
            readiness.on_connected(Instant::now());
        }
        loop {
            readiness.on_timeout(Instant::now(), self.session());
            if let ReadyState::Ready(ready) = readiness.state() {
                return Ok(*ready);
            }
            while let Some((channel, request)) = readiness.poll_send() {
                self.send(channel, request).await?;
            }
            let next = mailbox.next();
            let item = match readiness.deadline() {
                Some(deadline) => match tokio::time::timeout_at(deadline.into(), next).await {
                    Ok(item) => item,
                    Err(_) => continue,
                },
                None => next.await,
            };
            match item {
                Item::Message(channel, message) => {
                    let message = message.parse(&self.dispatcher().limits);
                    readiness.on_message(channel, &message, Instant::now());
                }
                Item::Connected(Channel::Shell | Channel::Control | Channel::IoPub)
                    if self.is_connected() =>
                {
                    readiness.on_connected(Instant::now());
                }
                Item::KernelDied => return Err(ClientError::KernelDied),
                Item::Closed(reason) => {
                    return Err(ClientError::Closed { reason, effect: Effect::Unknown });
                }
                _ => {}
            }
        }
    }
}
