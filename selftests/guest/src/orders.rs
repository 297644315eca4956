// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that came with the guest's root instead of over the link. They are executed before anything is said to or
//! heard from the host, which has a clock of its own: under `-icount` everything up to their end repeats bit for bit.

use crate::kallsyms::Kallsyms;
use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use tramplab_protocol::message::{Command, GuestError, ORDERS, Response};

/// Executed commands and their answers, in order, until the host asks for them.
#[derive(Debug, Default)]
pub struct Answers(VecDeque<(Command, Answer)>);

#[derive(Debug)]
pub struct Answer {
    pub result: Result<Response, GuestError>,
    /// What the addresses in it, and in what the plugin wrote meanwhile, are called.
    pub names: Option<Kallsyms>,
}

#[derive(Debug, thiserror::Error)]
pub enum OrdersError {
    #[error("failed to read {ORDERS}: {0}")]
    Read(std::io::Error),
    #[error("{ORDERS} is no list of commands: {0}")]
    Format(#[from] serde_json::Error),
}

/// What is to be done; nothing where the root brings no orders.
pub fn read() -> Result<Vec<Command>, OrdersError> {
    match fs::read(ORDERS) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(OrdersError::Read(error)),
    }
}

impl Answers {
    pub fn add(&mut self, command: Command, answer: Answer) {
        self.0.push_back((command, answer));
    }

    /// The answer to the next of the orders, if that is what the host asks for.
    pub fn take(&mut self, command: &Command) -> Option<Answer> {
        let is_next = self.0.front().is_some_and(|(next, _)| next == command);
        if is_next { self.0.pop_front().map(|(_, answer)| answer) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_given_in_order_and_once() {
        let mut answers = Answers::default();
        let failed = || Err(GuestError::Failed("a".to_owned()));
        answers.add(Command::Facts, Answer { result: failed(), names: None });
        answers.add(Command::Release, Answer { result: Ok(Response::Done), names: None });
        let mut take = |command| answers.take(&command).map(|answer| answer.result);
        assert_eq!(take(Command::Release), None);
        assert_eq!(take(Command::Facts), Some(failed()));
        assert_eq!(take(Command::Facts), None);
        assert_eq!(take(Command::Release), Some(Ok(Response::Done)));
    }
}
