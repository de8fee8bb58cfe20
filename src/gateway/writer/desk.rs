//! Where the answers to the accepts of one thread come together. A commit decides dozens of requests, and to wake
//! another thread is a system call: each thread is woken once for all of its answers.

use std::cell::RefCell;

use tidings_core::store::{Accepted, StoreError};
use tokio::sync::{mpsc, oneshot};

/// What is decided, and who waits for it.
pub(super) type Answer = (oneshot::Sender<Result<Accepted, StoreError>>, Result<Accepted, StoreError>);

/// The desk of one thread. What lies there is bounded by the requests that the thread serves.
#[derive(Clone)]
pub(super) struct Desk(mpsc::UnboundedSender<Vec<Answer>>);

thread_local! {
    static HERE: RefCell<Option<Desk>> = const { RefCell::new(None) };
}

impl Desk {
    /// The desk of this thread, opened where there is none yet or its runtime is gone.
    pub(super) fn here() -> Self {
        HERE.with_borrow_mut(|here| match here {
            Some(desk) if !desk.0.is_closed() => desk.clone(),
            _ => here.insert(Self::open()).clone(),
        })
    }

    fn open() -> Self {
        let (desk, mut answers) = mpsc::unbounded_channel::<Vec<Answer>>();
        tokio::spawn(async move {
            while let Some(answers) = answers.recv().await {
                for (reply, decided) in answers {
                    // Who has gone away reads the outcome by key.
                    let _ = reply.send(decided);
                }
            }
        });
        Self(desk)
    }

    /// Hands every answer over at the desk that it belongs to.
    pub(super) fn hand_over(answers: impl Iterator<Item = (Self, Answer)>) {
        let mut desks: Vec<(Self, Vec<Answer>)> = Vec::new();
        for (desk, answer) in answers {
            match desks.iter_mut().find(|(known, _)| known.0.same_channel(&desk.0)) {
                Some((_, answers)) => answers.push(answer),
                None => desks.push((desk, vec![answer])),
            }
        }
        for (desk, answers) in desks {
            // A desk that is closed has nobody left who waits.
            let _ = desk.0.send(answers);
        }
    }
}
