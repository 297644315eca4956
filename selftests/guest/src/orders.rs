// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands that came with the guest's root instead of over the link. They are executed before anything is said to or
//! heard from the host, which has a clock of its own: under `-icount` everything up to their end repeats bit for bit.

use std::fs;
use std::io::ErrorKind;
use tramplab_protocol::message::{Command, GuestError, ORDERS, Response};

/// Executed commands and their answers, in order, until the host asks for them.
#[derive(Debug, Default)]
pub struct Answers(Vec<(Command, Result<Response, GuestError>)>);

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
    pub fn add(&mut self, command: Command, answer: Result<Response, GuestError>) {
        self.0.push((command, answer));
    }

    /// The answer to the next of the orders, if that is what the host asks for.
    pub fn take(&mut self, command: &Command) -> Option<Result<Response, GuestError>> {
        let next = self.0.first()?;
        (next.0 == *command).then(|| self.0.remove(0).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_given_in_order_and_once() {
        let mut answers = Answers::default();
        answers.add(Command::Facts, Err(GuestError::Failed("a".to_owned())));
        answers.add(Command::Release, Ok(Response::Done));
        assert_eq!(answers.take(&Command::Release), None);
        assert_eq!(answers.take(&Command::Facts), Some(Err(GuestError::Failed("a".to_owned()))));
        assert_eq!(answers.take(&Command::Facts), None);
        assert_eq!(answers.take(&Command::Release), Some(Ok(Response::Done)));
    }
}
