//! The conversation of `--session`: continued, and saved.

use std::path::PathBuf;

use clap::ArgMatches;
use fm_engine::{
    Engine, EngineError,
    generate::{FinishReason, Generated},
    session::Conversation,
};
use fm_text::Message;

use super::input::Prompt;
use crate::console;

pub(super) type Session = fm_model::runner::SessionId;

/// Whether there will be a place for the conversation, asked before the work.
pub(super) fn check(matches: &ArgMatches) -> Result<(), EngineError> {
    matches.get_one::<PathBuf>("session").map_or(Ok(()), |path| Conversation::check(path))
}

/// The conversation of `--session`, if the file is there, and its session.
pub(super) fn continue_or_open(
    engine: &mut Engine,
    matches: &ArgMatches,
) -> anyhow::Result<(Conversation, Option<Session>)> {
    match matches.get_one::<PathBuf>("session").filter(|path| path.exists()) {
        Some(path) => {
            let (conversation, session) = Conversation::load(engine, path)?;
            Ok((conversation, Some(session)))
        }
        None => Ok((Conversation::default(), None)),
    }
}

/// The saved session as far as the prompt goes on from it, else a fresh one.
pub(super) fn reuse(
    engine: &mut Engine,
    session: Option<Session>,
    conversation: &Conversation,
    prompt: &Prompt,
) -> anyhow::Result<Session> {
    if let Some(session) = session {
        let (session, reused) = conversation.reuse(engine, session, &prompt.tokens)?;
        if reused == 0 {
            console::say!(
                "note: earlier turns read otherwise now, as the template or --system has it, so all of them are computed anew"
            );
        }
        return Ok(session);
    }
    Ok(engine.runner.open(engine.plan.context).map_err(EngineError::from)?)
}

pub(super) fn save(
    engine: &mut Engine,
    matches: &ArgMatches,
    mut conversation: Conversation,
    (prompt, generated): (&[u32], &Generated),
    session: Session,
) -> anyhow::Result<()> {
    let Some(path) = matches.get_one::<PathBuf>("session") else { return Ok(()) };
    let messages = &mut conversation.messages;
    let asked = messages.last().is_some_and(|message| message.role == "user");
    let (is_cut, is_empty) =
        (generated.finish == FinishReason::Cancelled, generated.tokens.is_empty());
    // A question without a whole answer is no turn. Raw text is worth keeping where it was read to its end.
    let is_turn = if asked { !is_cut && !is_empty } else { !is_cut || !is_empty };
    if !is_turn {
        let why = if is_empty { "nothing was generated" } else { "the answer was broken off" };
        console::say!("note: {why}, so {} was not written", path.display());
        return Ok(());
    }
    if asked {
        let mut answer = Message::new("assistant", generated.text.clone().unwrap_or_default());
        answer.reasoning_content.clone_from(&generated.thinking);
        messages.push(answer);
    } else if !messages.is_empty() {
        // Nobody says it in terms of the template, which could not write it again.
        console::say!(
            "note: raw text is no part of the chat: a turn without --raw goes on before it"
        );
    }
    let tokens = [prompt, &generated.tokens].concat();
    Conversation::new(conversation.messages, tokens).save(engine, session, path)?;
    Ok(())
}
