//! What the answer must be.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Arg, ArgMatches, value_parser};
use fm_engine::{
    Engine, EngineError,
    grammar::{Constraint, Grammar, Grammars},
};

use super::valued;
use crate::input;

pub(super) fn args() -> [Arg; 3] {
    let file = |name, help| valued(name, "FILE", help).value_parser(value_parser!(PathBuf));
    [
        file("json-schema", "Answer with JSON that is valid under the schema in FILE")
            .conflicts_with_all(["grammar", "regex"]),
        file("grammar", "Answer within the context-free grammar in FILE, written in Lark")
            .conflicts_with("regex"),
        valued("regex", "REGEX", "Answer with a text that REGEX matches as a whole")
            .allow_hyphen_values(true),
    ]
}

pub(super) fn of(matches: &ArgMatches) -> anyhow::Result<Option<Grammar>> {
    let file = |name: &str| matches.get_one::<PathBuf>(name);
    Ok(if let Some(file) = file("json-schema") {
        let schema = serde_json::from_str(&input::text(file)?);
        let schema = schema.with_context(|| format!("{} is not JSON", file.display()))?;
        Some(Grammar::JsonSchema(schema))
    } else if let Some(file) = file("grammar") {
        Some(Grammar::Lark(input::text(file)?))
    } else {
        matches.get_one("regex").cloned().map(Grammar::Regex)
    })
}

/// The grammar, for this model's tokens.
pub(super) fn constraint(engine: &Engine, grammar: Grammar) -> Result<Constraint, EngineError> {
    let no_tokenizer = || EngineError::NoTokenizer { path: engine.path.clone() };
    let tokenizer = engine.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
    let grammars =
        Grammars::build(tokenizer, engine.runner.vocab(), &engine.eos, engine.plan.grammars)?;
    Ok(grammars.constraint(grammar)?)
}
