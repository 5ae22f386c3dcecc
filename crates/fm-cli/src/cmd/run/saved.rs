//! The conversation of `--session`: continued, and saved.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use clap::ArgMatches;
use fm_engine::{
    Engine, EngineError,
    generate::{FinishReason, Generated},
    session::Conversation,
};
use fm_text::Message;

use super::input::Prompt;
use crate::{console, results};

pub(super) type Session = fm_model::runner::SessionId;

/// Whether there will be a place for the conversation, asked before the work.
pub(super) fn check(matches: &ArgMatches) -> anyhow::Result<()> {
    let path = results::file(matches, "session", (None, &[]))?;
    Ok(path.map_or(Ok(()), |path| Conversation::check(path))?)
}

/// What tells a file from another that has taken its place.
pub(super) type Stamp = Option<(u64, Option<SystemTime>)>;

fn stamp(path: &Path) -> Stamp {
    let found = fs::metadata(path).ok()?;
    Some((found.len(), found.modified().ok()))
}

/// The conversation of `--session`, if the file is there, its session, and which file it was.
pub(super) fn continue_or_open(
    engine: &mut Engine,
    matches: &ArgMatches,
) -> anyhow::Result<(Conversation, Option<Session>, Stamp)> {
    let path = matches.get_one::<PathBuf>("session");
    let stamp = path.and_then(|path| stamp(path));
    match path.filter(|_| stamp.is_some()) {
        Some(path) => {
            let (conversation, session) = Conversation::load(engine, path)?;
            Ok((conversation, Some(session), stamp))
        }
        None => Ok((Conversation::default(), None, None)),
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

/// Saves what has become of the conversation, unless another program has saved one there meanwhile.
pub(super) fn save(
    engine: &mut Engine,
    matches: &ArgMatches,
    (mut conversation, before): (Conversation, Stamp),
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
    let now = stamp(path);
    if now.is_some() && now != before {
        let path = path.display();
        anyhow::bail!("another program has saved {path} meanwhile, so this turn was not written");
    }
    let tokens = [prompt, &generated.tokens].concat();
    Conversation::new(conversation.messages, tokens).save(engine, session, path)?;
    Ok(())
}
