// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands from the guest's root instead of the link. The agent executes them before it talks to
//! the host, whose clock differs: under `-icount` everything up to their end repeats bit for bit.

use crate::kallsyms::Kallsyms;
use std::collections::VecDeque;
use std::fs;
use std::io::ErrorKind;
use tramplab_protocol::message::{Command, GuestError, ORDERS, Response};

/// Executed commands with their answers, in order, until the host asks for them.
#[derive(Debug, Default)]
pub struct Answers(VecDeque<(Command, Answer)>);

#[derive(Debug)]
pub struct Answer {
    pub result: Result<Response, GuestError>,
    /// Names for the addresses in the answer and in the plugin's file.
    pub names: Option<Kallsyms>,
}

#[derive(Debug, thiserror::Error)]
pub enum OrdersError {
    #[error("failed to read {ORDERS}: {0}")]
    Read(std::io::Error),
    #[error("failed to parse {ORDERS} as a list of commands: {0}")]
    Format(#[from] serde_json::Error),
}

/// Reads the orders. Empty if the root has none.
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

    /// Returns the answer to the next order, if the host asks for that command.
    pub fn take(&mut self, command: &Command) -> Option<Answer> {
        let is_next = self.0.front().is_some_and(|(next, _)| next == command);
        if is_next { self.0.pop_front().map(|(_, answer)| answer) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_answers_in_order_and_once() {
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
