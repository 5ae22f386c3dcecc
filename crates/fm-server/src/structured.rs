//! Answers that must be JSON, or match a grammar: where the interfaces, and engines whose clients
//! come here too, say so. A grammar is compiled before the request waits for a session, so that one
//! that cannot be followed is refused at once.

use std::sync::Arc;

use fm_engine::{
    generate::Constrained,
    grammar::{
        Constraint, Grammar, GrammarError, Grammars, choice_rule, json_rule, lark_rule, regex_rule,
    },
};
use fm_text::{
    ChatTemplate, Dialect,
    tools::{Callable, Calls},
};
use serde_json::{Map, Value, json};

use crate::{
    ask::Manner,
    fields::{Fields, plain},
    model::{Conversation, Model},
    problem::{Problem, Wrong},
    tools::{Choice, Tools},
};

/// Strings to choose from.
const CHOICES_MAX: usize = 1024;

/// Kinds of OpenAI's formats.
const FORMATS: &str = "one of text, json_object, json_schema";

/// A field and what it asks for.
type Wish = (String, Grammar);

/// What a field of another engine holds.
#[derive(Clone, Copy)]
enum Kind {
    Json,
    Regex,
    Choice,
    Lark,
}

/// The fields of vLLM before 0.12, and one of llama.cpp's.
const FIELDS: [(&str, Kind); 5] = [
    ("guided_json", Kind::Json),
    ("guided_regex", Kind::Regex),
    ("guided_choice", Kind::Choice),
    ("guided_grammar", Kind::Lark),
    ("json_schema", Kind::Json),
];

/// Those of `structured_outputs`, vLLM's from 0.12 on.
const MEMBERS: [(&str, Kind); 4] = [
    ("json", Kind::Json),
    ("regex", Kind::Regex),
    ("choice", Kind::Choice),
    ("grammar", Kind::Lark),
];

/// `response_format`, and what other engines have beside it.
pub(crate) fn take_openai(
    fields: &mut Fields,
    grammars: &Arc<Grammars>,
) -> Result<Option<Constraint>, Problem> {
    let mut wishes = Vec::new();
    wishes.extend(response_format(fields)?);
    take(fields, &FIELDS, &mut wishes)?;
    if let Some(value) = fields.take("structured_outputs") {
        let mut members = Fields::of(value, "structured_outputs")?;
        take(&mut members, &MEMBERS, &mut wishes)?;
        members.end(&[])?;
    }
    fields.refuse("grammar", "GBNF; structured_outputs.grammar takes Lark", |_| false)?;
    compile(wishes, grammars)
}

/// `text.format` of the Responses API.
pub(crate) fn take_responses(
    fields: &mut Fields,
    grammars: &Arc<Grammars>,
) -> Result<Option<Constraint>, Problem> {
    let Some(value) = fields.take("text") else { return Ok(None) };
    let mut text = Fields::of(value, "text")?;
    let format = text.take("format").map(|format| Fields::of(format, "text.format"));
    text.end(&["verbosity"])?;
    let Some(mut format) = format.transpose()? else { return Ok(None) };
    let wishes = match format.text("type")?.as_deref() {
        Some("text") => Vec::new(),
        Some("json_object") => vec![("text.format".to_owned(), Grammar::Json)],
        Some("json_schema") => {
            let field = "text.format.schema";
            let schema = format.take("schema").ok_or_else(|| Wrong::Missing.at(field))?;
            vec![(field.to_owned(), Grammar::JsonSchema(schema))]
        }
        _ => return Err(Wrong::Kind(FORMATS).at("text.format.type")),
    };
    format.end(&["name", "description", "strict"])?;
    compile(wishes, grammars)
}

/// `output_config.format`, and `output_format`, which it was before.
pub(crate) fn take_anthropic(
    fields: &mut Fields,
    grammars: &Arc<Grammars>,
) -> Result<Option<Constraint>, Problem> {
    let mut wishes = Vec::new();
    if let Some(config) = fields.take("output_config") {
        let mut config = Fields::of(config, "output_config")?;
        wishes.extend(output_format(&mut config, "format")?);
        config.end(&["effort", "task_budget"])?;
    }
    wishes.extend(output_format(fields, "output_format")?);
    compile(wishes, grammars)
}

/// Holds calls to the schemas of their tools, where the choice demands a call or a tool is strict, and
/// lets an answer of a given form be calls instead.
pub(crate) fn with_tools(
    manner: &mut Manner,
    conversation: &Conversation,
    model: &Model,
) -> Result<(), Problem> {
    let tools = &conversation.tools;
    let dialect = model.template.as_ref().and_then(ChatTemplate::dialect);
    let Some(dialect) = dialect.filter(|_| !tools.list.is_empty() && tools.choice != Choice::None)
    else {
        return Ok(());
    };
    let forced = tools.choice.is_forced();
    let answer = manner.constraint.take().filter(|_| !forced);
    let answer = answer.map(|constraint| answer_rule(&constraint, dialect)).transpose()?;
    if !forced && answer.is_none() && !tools.strict.contains(&true) {
        return Ok(());
    }
    let compile = |text| model.grammars.constraint(Grammar::Calls(text));
    let wrong = |source| blame(tools, source, &model.grammars);
    check_strict(tools, dialect, |schemas| compile(schemas).map(drop).map_err(wrong))?;
    let write = |held: &dyn Fn(&Value) -> bool| {
        let functions = tools.callable(held);
        let thoughts = conversation.enable_thinking != Some(false);
        let calls = Calls { functions: &functions, json: json_rule, thoughts };
        match &answer {
            Some(answer) => dialect.calls_or(calls, answer),
            None if forced => dialect.calls_alone(calls, &tools.choice.opening(Some(dialect))),
            None => Some(dialect.calls_in_text(calls)),
        }
    };
    let compiled = match write(&|_| forced) {
        Some(text) => compile(text),
        None if answer.is_some() => return Err(no_calls()),
        None => return Ok(()),
    };
    // What a tool that is not strict says of its arguments is kept to where that can be done: alone, if not with others.
    // A busy machine says nothing of a schema: then it is compiled with the others, and refused with them.
    let alone = |schema: &Value| {
        let compiled = || model.grammars.constraint(Grammar::JsonSchema(schema.clone()));
        let cannot = || compiled().err().is_some_and(|error| is_of_schemas(&error));
        dialect.keeps_to(schema).is_ok() && !cannot()
    };
    let retries: [&dyn Fn(&Value) -> bool; 2] = [&alone, &|_| false];
    let compiled = retries.into_iter().filter(|_| forced).fold(compiled, |compiled, held| {
        let text =
            compiled.as_ref().err().filter(|error| is_of_schemas(error)).and_then(|_| write(held));
        text.map_or(compiled, compile)
    });
    manner.constrained = if answer.is_some() { Constrained::Either } else { Constrained::Calls };
    manner.constraint = Some(compiled.map_err(wrong)?);
    Ok(())
}

/// Whether a grammar cannot be had because of what schemas say.
fn is_of_schemas(error: &GrammarError) -> bool {
    matches!(
        error,
        GrammarError::Invalid { .. } | GrammarError::TooLong { .. } | GrammarError::TooLarge { .. }
    )
}

/// Why calls have no grammar: because of the first strict tool whose schema has none, if there is one. What is said of
/// the grammar of all of them shows lines that nobody has sent.
fn blame(tools: &Tools, source: GrammarError, grammars: &Arc<Grammars>) -> Problem {
    if let GrammarError::Invalid { .. } = source {
        for Callable { name, parameters } in tools.callable(|_| false) {
            let schema = parameters.map(|parameters| Grammar::JsonSchema(parameters.clone()));
            if let Some(Err(source)) = schema.map(|schema| grammars.constraint(schema)) {
                return Problem::Unmade { name: name.to_owned(), source };
            }
        }
    }
    Problem::Grammar { field: "tools".to_owned(), source }
}

/// Refuses strict tools whose calls cannot be held to their schemas.
fn check_strict(
    tools: &Tools,
    dialect: &Dialect,
    compile: impl FnOnce(String) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let functions = tools.callable(|_| false);
    for function in &functions {
        let kept = function.parameters.map_or(Ok(()), |parameters| dialect.keeps_to(parameters));
        kept.map_err(|source| Problem::Unkept { name: function.name.to_owned(), source })?;
    }
    // In tags, strings stand as they are: whether what is said of them is supported shows only where they are JSON.
    let calls = Calls { functions: &functions, json: json_rule, thoughts: true };
    calls.schemas().filter(|_| dialect.is_tagged()).map_or(Ok(()), compile)
}

/// An answer of a given form, as it stands beside calls in a grammar. What a text begins with tells one
/// from the other, so an answer must not begin like a call; where it has a channel of its own, that tells.
fn answer_rule(constraint: &Constraint, dialect: &Dialect) -> Result<String, Problem> {
    let wrong = |source| Problem::Grammar { field: "tools".to_owned(), source };
    if dialect.channels().is_none()
        && constraint.may_begin_like(&dialect.first_marks()).map_err(wrong)?
    {
        let rule = "an answer of this form may begin with white space, or with the same letter as a call, \
                    and could not be told from one; leave one out, or tool_choice none";
        return Err(Wrong::Rule(rule).at("tools"));
    }
    Ok(match constraint.grammar() {
        Grammar::Json => json_rule(json!({"type": "object"})),
        Grammar::JsonSchema(schema) => json_rule(schema.clone()),
        Grammar::Regex(text) => regex_rule(text),
        Grammar::Choice(choices) => choice_rule(choices),
        Grammar::Lark(text) => lark_rule(text),
        _ => return Err(no_calls()),
    })
}

fn no_calls() -> Problem {
    let rule =
        "this model's answers of a given form call no tools; leave one out, or tool_choice none";
    Wrong::Rule(rule).at("tools")
}

fn compile(mut wishes: Vec<Wish>, grammars: &Arc<Grammars>) -> Result<Option<Constraint>, Problem> {
    let Some((field, grammar)) = wishes.pop() else { return Ok(None) };
    if !wishes.is_empty() {
        return Err(Wrong::Rule("the answer has a grammar already").at(field));
    }
    match grammars.constraint(grammar) {
        Ok(constraint) => Ok(Some(constraint)),
        Err(source) => Err(Problem::Grammar { field, source }),
    }
}

fn response_format(fields: &mut Fields) -> Result<Option<Wish>, Problem> {
    let Some(value) = fields.take("response_format") else { return Ok(None) };
    let mut format = Fields::of(value, "response_format")?;
    let kind = format.text("type")?.ok_or_else(|| Wrong::Missing.at("response_format.type"))?;
    let wish = match kind.as_str() {
        "text" => None,
        // llama.cpp and others have the schema here, with either type.
        "json_object" | "json_schema" if format.peek("schema").is_some() => {
            let field = format.path_of("schema");
            let schema = format.take("schema").unwrap_or_default();
            let says_nothing = schema == true || schema.as_object().is_some_and(Map::is_empty);
            let is_object = says_nothing && kind == "json_object";
            Some((field, if is_object { Grammar::Json } else { Grammar::JsonSchema(schema) }))
        }
        "json_object" => Some(("response_format".to_owned(), Grammar::Json)),
        "json_schema" => {
            let field = "response_format.json_schema";
            let value = format.take("json_schema").ok_or_else(|| Wrong::Missing.at(field))?;
            let mut named = Fields::of(value, field)?;
            let field = named.path_of("schema");
            let schema = named.take("schema").ok_or_else(|| Wrong::Missing.at(field.as_str()))?;
            // Strict or not: what is taken is kept to.
            named.end(&["name", "description", "strict"])?;
            Some((field, Grammar::JsonSchema(schema)))
        }
        _ => return Err(Wrong::Kind(FORMATS).at("response_format.type")),
    };
    format.end(&[])?;
    Ok(wish)
}

fn output_format(fields: &mut Fields, name: &str) -> Result<Option<Wish>, Problem> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let mut format = Fields::of(value, fields.path_of(name))?;
    if format.text("type")?.as_deref() != Some("json_schema") {
        return Err(Wrong::Kind("json_schema").at(format.path_of("type")));
    }
    let field = format.path_of("schema");
    let schema = format.take("schema").ok_or_else(|| Wrong::Missing.at(field.as_str()))?;
    format.end(&["name"])?;
    Ok(Some((field, Grammar::JsonSchema(schema))))
}

fn take(
    fields: &mut Fields,
    kinds: &[(&str, Kind)],
    wishes: &mut Vec<Wish>,
) -> Result<(), Problem> {
    for (name, kind) in kinds {
        let field = fields.path_of(name);
        let grammar = match kind {
            Kind::Json => fields.take(name).map(|value| schema(value, &field)).transpose()?,
            Kind::Regex => fields.text(name)?.map(Grammar::Regex),
            Kind::Lark => fields.text(name)?.map(Grammar::Lark),
            Kind::Choice => {
                let is_there = fields.peek(name).is_some();
                let choices = fields.texts(name, CHOICES_MAX)?;
                if is_there && choices.is_empty() {
                    return Err(Wrong::Empty.at(field));
                }
                is_there.then_some(Grammar::Choice(choices))
            }
        };
        wishes.extend(grammar.map(|grammar| (field, grammar)));
    }
    Ok(())
}

/// A schema, or the text of one.
fn schema(value: Value, field: &str) -> Result<Grammar, Problem> {
    let Value::String(text) = value else { return Ok(Grammar::JsonSchema(value)) };
    let parsed = plain(text.as_bytes());
    parsed.map(Grammar::JsonSchema).map_err(|_| Wrong::Kind("a JSON schema").at(field))
}
