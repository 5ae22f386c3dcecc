//! Answers that are told at once, when all of them is there.

use fm_engine::generate::Generated;
use fm_text::Channel;

use crate::{
    answer::{Answer, CallPiece, Piece, TokenOdds},
    problem::Problem,
};

/// A whole answer.
pub(crate) struct Whole {
    pub(crate) generated: Box<Generated>,
    /// What was written, in its order.
    pub(crate) parts: Vec<Part>,
    pub(crate) odds: Vec<TokenOdds>,
}

/// A part of a whole answer.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Text(Channel, String),
    /// The complete call in this place.
    Call(usize),
}

impl Part {
    /// Adds a piece of text, to the latest part if that is of its channel.
    fn add(parts: &mut Vec<Self>, channel: Channel, more: String) {
        match parts.last_mut() {
            Some(Self::Text(own, text)) if *own == channel => text.push_str(&more),
            _ => parts.push(Self::Text(channel, more)),
        }
    }
}

/// Waits for all choices of an answer.
pub(crate) async fn whole(
    mut answer: Answer,
    choices: usize,
) -> Result<(Vec<Whole>, Answer), Problem> {
    let (mut parts, mut odds) = (vec![Vec::new(); choices], vec![Vec::new(); choices]);
    let mut ends: Vec<Option<Box<Generated>>> = (0..choices).map(|_| None).collect();
    while let Some((choice, piece)) = answer.next().await {
        match piece {
            Piece::Text(channel, text) => Part::add(&mut parts[choice], channel, text),
            // What was called is told at the end.
            Piece::Call(call, CallPiece::End) => parts[choice].push(Part::Call(call)),
            Piece::Call(..) => {}
            Piece::Token(token) => odds[choice].push(token),
            Piece::Done(generated) => ends[choice] = Some(generated),
            Piece::Failed(problem) => return Err(problem),
        }
    }
    let wholes = ends.into_iter().zip(parts).zip(odds).map(|((generated, parts), odds)| {
        Ok(Whole { generated: generated.ok_or(Problem::Gone)?, parts, odds })
    });
    Ok((wholes.collect::<Result<_, Problem>>()?, answer))
}
