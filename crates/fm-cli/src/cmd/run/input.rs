//! The prompt: what the user gave, and what the model sees of it.

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::{Arg, ArgMatches, value_parser};
use fm_engine::{Engine, EngineError, session::Conversation};
use fm_text::{Message, RenderRequest, SpecialTokens};

use super::valued;
use crate::{
    flags::{self, Usage},
    input,
};

pub(super) fn args() -> [Arg; 5] {
    let file = |name, help| valued(name, "FILE", help).value_parser(value_parser!(PathBuf));
    [
        Arg::new("text")
            .value_name("PROMPT")
            .help("What to say, as with --prompt; `-` reads stdin")
            .conflicts_with_all(["prompt", "prompt-file", "prompt-tokens"]),
        valued(
            "prompt",
            "TEXT",
            "What to say; `-` reads stdin, without the end of its last line, and so does no prompt at all where stdin is no \
             terminal",
        )
        .short('p')
        .allow_hyphen_values(true),
        file("prompt-file", "Take the prompt from a file, bytes as they are; `-` is stdin")
            .conflicts_with("prompt"),
        valued("prompt-tokens", "IDS", "Start from these tokens, as 5,17,9").conflicts_with_all([
            "prompt",
            "prompt-file",
            "system",
        ]),
        file("system", "Take the system message from a file; `-` is stdin").conflicts_with("raw"),
    ]
}

/// What the user gave.
pub(super) struct Input {
    said: Said,
    /// The system message.
    system: Option<String>,
}

/// What to go on from.
enum Said {
    Text(String),
    Tokens(Vec<u32>),
}

impl Input {
    pub(super) fn read(matches: &ArgMatches) -> anyhow::Result<Self> {
        let said = Said::read(matches)?;
        let system = matches.get_one::<PathBuf>("system").map(|file| input::text(file));
        Ok(Self { said, system: system.transpose()? })
    }
}

impl Said {
    fn read(matches: &ArgMatches) -> anyhow::Result<Self> {
        let given = ["prompt", "text"].into_iter().find_map(|id| matches.get_one::<String>(id));
        let file = matches.get_one::<PathBuf>("prompt-file");
        let tokens = matches.get_one::<String>("prompt-tokens");
        let from_stdin = match (given, file) {
            (Some(text), _) => text == "-",
            (None, Some(file)) => file == Path::new("-"),
            (None, None) => tokens.is_none(),
        };
        let others = ["system", "json-schema", "grammar"]
            .into_iter()
            .filter(|id| matches.get_one::<PathBuf>(id).is_some_and(|file| file == Path::new("-")));
        let mut readers: Vec<_> = others.map(|id| format!("--{id}")).collect();
        if from_stdin {
            readers.push("the prompt".to_owned());
        }
        if let [first, second, ..] = &readers[..] {
            return Err(
                Usage(format!("stdin is {first} already: give {second} another way")).into()
            );
        }
        if let Some(tokens) = tokens {
            return Ok(Self::Tokens(flags::parse_tokens(tokens).map_err(Usage)?));
        }
        let bytes = || match file {
            Some(file) => input::bytes(file),
            None => input::stdin(),
        };
        let text = match given {
            Some(text) if !from_stdin => text.clone(),
            None if file.is_none() && io::stdin().is_terminal() => String::new(),
            _ => {
                let text = String::from_utf8(bytes()?).context("the prompt is not UTF-8")?;
                // What a shell ends a line with is none of what somebody says.
                let is_said = file.is_none() && !matches.get_flag("raw");
                if is_said { without_line_end(text) } else { text }
            }
        };
        if text.is_empty() { Err(EngineError::EmptyPrompt.into()) } else { Ok(Self::Text(text)) }
    }
}

/// A text without the end of its last line.
fn without_line_end(mut text: String) -> String {
    let kept = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text).len());
    text.truncate(kept.unwrap_or(text.len()));
    text
}

/// A prompt as the model sees it.
pub(super) struct Prompt {
    pub(super) tokens: Vec<u32>,
    /// The rendered text, if there is one.
    pub(super) text: Option<String>,
}

pub(super) fn tokens_of(
    engine: &Engine,
    matches: &ArgMatches,
    input: &Input,
    conversation: &mut Conversation,
) -> anyhow::Result<Prompt> {
    let text = match &input.said {
        Said::Tokens(tokens) => {
            let tokens = [conversation.tokens.as_slice(), tokens].concat();
            return Ok(Prompt { tokens, text: None });
        }
        Said::Text(text) => text,
    };
    let path = || engine.path.clone();
    let tokenizer =
        engine.tokenizer.as_ref().ok_or_else(|| EngineError::NoTokenizer { path: path() })?;
    if matches.get_flag("raw") {
        let tokens = tokenizer.encode(text, SpecialTokens::Parse).map_err(EngineError::from)?;
        // What goes on has its beginning already.
        let past = &conversation.tokens;
        let past = if past.is_empty() { tokenizer.prefix() } else { past };
        let tokens = [past, &tokens].concat();
        return Ok(Prompt { tokens, text: Some(text.clone()) });
    }
    let template =
        engine.template.as_ref().ok_or_else(|| EngineError::NoTemplate { path: path() })?;
    if let Some(system) = &input.system {
        conversation.messages.retain(|message| message.role != "system");
        conversation.messages.insert(0, Message::new("system", system.as_str()));
    }
    conversation.messages.push(Message::new("user", text.as_str()));
    let enable_thinking = match (matches.get_flag("think"), matches.get_flag("no-think")) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    let mut messages = conversation.messages.clone();
    messages.iter_mut().for_each(|message| message.guard(tokenizer));
    let request = RenderRequest { enable_thinking, ..RenderRequest::new(&messages) };
    let rendered = template.render(&request).map_err(EngineError::from)?;
    let special = SpecialTokens::ParseTemplate;
    let tokens = tokenizer.encode(&rendered, special).map_err(EngineError::from)?;
    Ok(Prompt { tokens, text: Some(rendered) })
}
