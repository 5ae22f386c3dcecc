//! What both interfaces ask for, in one shape.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    sync::Arc,
    time::Instant,
};

use fm_engine::{
    generate::{Constrained, Request},
    grammar::Constraint,
    sampler::Sampling,
    schedule::{Job, Pin},
};
use tokio::sync::mpsc;

use crate::{
    answer::{Answer, listener},
    fields::{Fields, Origin},
    kept::CallIds,
    model::{Model, Prompt},
    problem::{Problem, Wrong},
    progress::Progress,
    serve::App,
    structured,
    tally::{Asked, Tally},
};

/// Tokens that may be asked for; the context ends a text long before.
pub(crate) const TOKENS_MAX: u64 = 1 << 24;

/// Stop strings of a request.
const STOPS_MAX: usize = 16;

/// Bytes of a stop string. As much of an answer may be held back.
const STOP_BYTES_MAX: usize = 1 << 10;

/// Answers to one request.
const CHOICES_MAX: u64 = 8;

/// Candidates whose log-probabilities may be asked for.
pub(crate) const TOP_LOGPROBS_MAX: u64 = 20;

/// Tokens that may have a bias.
const BIAS_MAX: usize = 1024;

/// What a client calls the conversation that a request belongs to, in its body or its head.
pub(crate) const SESSION_FIELD: &str = "session_id";
pub(crate) const SESSION_HEADER: &str = "x-session-id";

/// See the module.
#[derive(Debug)]
pub(crate) struct Ask {
    /// Each is answered as if it were alone.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) manner: Manner,
    pub(crate) ids: CallIds,
}

/// The log-probabilities that are wanted with an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Odds {
    /// The likeliest tokens that are told with each.
    pub(crate) top: usize,
    /// Candidates that the response may have, those of all its tokens together.
    pub(crate) max: usize,
}

/// How the answer shall be written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) bias: Vec<(u32, f32)>,
    pub(crate) odds: Option<Odds>,
    pub(crate) think_budget: Option<usize>,
    pub(crate) think_min: usize,
    /// What the answer must be.
    pub(crate) constraint: Option<Constraint>,
    /// What the text is that it allows.
    pub(crate) constrained: Constrained,
    /// Answers to every prompt.
    pub(crate) choices: usize,
    /// What the client calls the conversation; it never changes an answer.
    pub(crate) conversation: Option<String>,
    /// Types of tools that the model is not told of.
    pub(crate) left_out: Vec<&'static str>,
    /// Who asks.
    pub(crate) client: u64,
    /// From where, and since when.
    pub(crate) origin: Option<Origin>,
}

impl Manner {
    /// Takes the fields that both interfaces share. Without a seed, every request has its own.
    pub(crate) fn take(fields: &mut Fields, model: &Model) -> Result<Self, Problem> {
        let own = model.sampling;
        let sampling = Sampling {
            temperature: fields.float("temperature", 0.0..=2.0)?.unwrap_or(own.temperature),
            top_p: fields.float("top_p", 0.0..=1.0)?.unwrap_or(own.top_p),
            top_k: top_k(fields)?.unwrap_or(own.top_k),
            min_p: fields.float("min_p", 0.0..=1.0)?.unwrap_or(own.min_p),
            repetition_penalty: fields
                .float("repetition_penalty", 0.01..=100.0)?
                .unwrap_or(own.repetition_penalty),
            presence_penalty: fields
                .float("presence_penalty", -2.0..=2.0)?
                .unwrap_or(own.presence_penalty),
            frequency_penalty: fields
                .float("frequency_penalty", -2.0..=2.0)?
                .unwrap_or(own.frequency_penalty),
            seed: fields.seed()?.unwrap_or_else(|| RandomState::new().build_hasher().finish()),
        };
        let (client, origin) = (fields.client(), fields.origin().cloned());
        let conversation = fields.name(SESSION_FIELD)?;
        let think_min = fields.count("thinking_min", 0..=TOKENS_MAX)?.unwrap_or(0) as usize;
        Ok(Self {
            sampling,
            conversation,
            client,
            origin,
            think_min,
            choices: 1,
            ..Self::default()
        })
    }

    /// Takes the fields of both of OpenAI's interfaces.
    pub(crate) fn take_openai(fields: &mut Fields, model: &Model) -> Result<Self, Problem> {
        let mut manner = Self::take(fields, model)?;
        manner.stop = stops(fields, "stop")?;
        manner.choices = fields.count("n", 1..=CHOICES_MAX)?.unwrap_or(1) as usize;
        manner.bias = bias(fields, model.tokenizer.vocab_len())?;
        manner.constraint = structured::take_openai(fields, &model.grammars)?;
        Ok(manner)
    }
}

/// All candidates are 0, and -1 as vLLM has it.
fn top_k(fields: &mut Fields) -> Result<Option<usize>, Problem> {
    if fields.peek("top_k").and_then(serde_json::Value::as_f64) == Some(-1.0) {
        fields.take("top_k");
        return Ok(Some(0));
    }
    let count = fields.count("top_k", 0..=u64::from(u32::MAX))?;
    Ok(count.map(|count| count as usize))
}

/// Stop strings, by their name in an interface.
pub(crate) fn stops(fields: &mut Fields, field: &str) -> Result<Vec<String>, Problem> {
    let stops = fields.texts(field, STOPS_MAX)?;
    if stops.iter().any(|stop| stop.len() > STOP_BYTES_MAX) {
        return Err(Wrong::Long(STOP_BYTES_MAX).at(field));
    }
    Ok(stops)
}

/// `{"token": bias}`
fn bias(fields: &mut Fields, vocab: usize) -> Result<Vec<(u32, f32)>, Problem> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > BIAS_MAX {
        return Err(Wrong::Many(BIAS_MAX).at("logit_bias"));
    }
    let entries = map.into_iter().map(|(token, bias)| {
        let field = || format!("logit_bias.{token}");
        let id = token.parse().ok().filter(|id: &u32| (*id as usize) < vocab);
        let id = id.ok_or_else(|| Wrong::Kind("a token of this model").at(field()))?;
        Ok((id, crate::fields::float(&bias, &field(), &(-100.0..=100.0))?))
    });
    entries.collect()
}

impl Ask {
    /// Tokens of its prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.tokens.len()).sum()
    }

    /// Limits an answer with log-probabilities, and refuses one that shall be longer.
    fn limit_odds(&mut self, context: u32) -> Result<(), Problem> {
        let Some(Odds { top, max: all }) = self.manner.odds else { return Ok(()) };
        let each = all / ((top + 1) * self.prompts.len() * self.manner.choices);
        let shortest = self.prompts.iter().map(|prompt| prompt.tokens.len()).min().unwrap_or(0);
        let room = (context as usize).saturating_sub(shortest);
        match self.manner.max_tokens {
            Some(max) if max.min(room) > each => {
                Err(Problem::OddsTooMany { max: all, tokens: each })
            }
            max => {
                self.manner.max_tokens = Some(max.unwrap_or(each));
                Ok(())
            }
        }
    }

    /// Hands the request to the scheduler, one job for every choice; those of a prompt follow each other.
    pub(crate) fn submit(mut self, app: &Arc<App>, path: &'static str) -> Result<Answer, Problem> {
        self.limit_odds(app.model.context)?;
        let tokens = self.prompt_tokens();
        let Self { prompts, manner, ids } = self;
        // Bound: what the texts can hold. Nobody fills it but the scheduler, a token at a time.
        let (sender, receiver) = mpsc::unbounded_channel();
        let arrived = manner.origin.as_ref().map_or_else(Instant::now, |origin| origin.arrived);
        let id = manner.origin.as_ref().map(|origin| Arc::clone(&origin.id)).unwrap_or_default();
        let every = prompts.iter().flat_map(|prompt| (0..manner.choices).map(move |n| (prompt, n)));
        let progress = Arc::<Progress>::default();
        let jobs = every.enumerate().map(|(choice, (prompt, of_prompt))| Job {
            request: request(app, prompt, &manner, (of_prompt, arrived)),
            listener: app.texts.watched(
                prompt.tokens.len(),
                listener(choice, (sender.clone(), Arc::clone(&progress)), manner.odds.is_some()),
            ),
        });
        let jobs: Vec<Job> = jobs.collect();
        let choices = jobs.len();
        app.submit.submit(jobs)?;
        // Not before: it tells the log of itself, and what is refused is no request.
        let asked = Asked { prompt_tokens: tokens, choices: manner.choices, answers: choices };
        let mut tally = Tally::new((Arc::clone(app), progress), (path, id), asked, arrived);
        tally.requested.left_out = manner.left_out;
        Ok(Answer::new(receiver, choices, tally, ids))
    }
}

/// What the engine is asked for the choice `of_prompt` of a prompt.
fn request(
    app: &App,
    prompt: &Prompt,
    manner: &Manner,
    (of_prompt, arrived): (usize, Instant),
) -> Request {
    let banned = prompt.banned.iter().map(|token| (*token, f32::NEG_INFINITY));
    Request {
        prompt: prompt.tokens.clone(),
        turns: prompt.turns.clone(),
        sampling: Sampling {
            seed: manner.sampling.seed.wrapping_add(of_prompt as u64),
            ..manner.sampling
        },
        max_tokens: manner.max_tokens,
        eos: app.model.eos.clone(),
        stop: manner.stop.clone(),
        think_budget: manner.think_budget,
        think_min: manner.think_min,
        thinking: prompt.thinking,
        answer: prompt.answer.clone(),
        opening: prompt.opening.clone(),
        begins: prompt.is_turn,
        calls_max: prompt.calls_max,
        context: app.model.context,
        bias: manner.bias.iter().copied().chain(banned).collect(),
        top_logprobs: manner.odds.map(|odds| odds.top),
        pin: manner.conversation.clone().map_or(Pin::None, Pin::Conversation),
        constraint: manner.constraint.clone(),
        constrained: manner.constrained,
        loops: app.bounds.loops,
        deadline: app.bounds.time.map(|time| arrived + time),
        client: manner.client,
    }
}
