//! What is to be measured, and with which model.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::ArgMatches;
use fm_engine::{
    Engine, EngineError, Load, Places,
    engine::{Planned, plan},
    limits::Watched,
    machine::{held_bytes, peak_held_bytes},
    measure::{Prober, walk::Walk},
    memory_plan::PlanError,
    options::EngineOptions,
    warm_start::WarmStart,
};
use fm_model::load::WeightMemory;
use fm_text::SpecialTokens;

use super::{DECODE, DEPTH, PREFILL, numbers};
use crate::{
    cmd::model_path,
    flags::{self, Usage},
    places,
};

/// Tokens that the user says in a turn of a conversation.
pub(super) const TURN_PROMPT: usize = 32;

/// Tokens that are taken in before anything is measured: enough to meet nearly every expert.
const WARM_UP: usize = 512;

/// What was asked for.
pub(super) struct Setup {
    pub(super) path: PathBuf,
    pub(super) options: EngineOptions,
    pub(super) places: Places,
    pub(super) work: Work,
    text: Option<String>,
    text_file: Option<PathBuf>,
}

/// What is computed.
#[derive(Clone, Debug)]
pub(super) struct Work {
    /// Lengths of prompts.
    pub(super) prefill: Vec<usize>,
    /// Positions from which on is written.
    pub(super) depths: Vec<usize>,
    /// Tokens that are written per repeat.
    pub(super) decode: usize,
    pub(super) sessions: usize,
    /// Whether all sessions start from the same text.
    pub(super) same_text: bool,
    pub(super) repeats: usize,
    pub(super) warm_up: usize,
    /// Whether every prompt finds no expert in memory.
    pub(super) cold: bool,
}

impl Setup {
    pub(super) fn new(matches: &ArgMatches) -> anyhow::Result<Self> {
        let one = |name: &str| matches.get_one::<usize>(name).copied();
        let (mut prefill, mut depths) =
            (numbers(matches, "prefill"), numbers(matches, "context-at"));
        let writes = one("decode").is_some() || !depths.is_empty();
        if prefill.is_empty() && !writes {
            prefill.push(PREFILL);
        }
        if depths.is_empty() && (writes || matches.get_many::<usize>("prefill").is_none()) {
            depths.push(DEPTH);
        }
        let work = Work {
            prefill,
            depths,
            decode: one("decode").unwrap_or(DECODE),
            sessions: one("sessions").unwrap_or(1),
            same_text: matches.get_flag("same-text"),
            repeats: one("repeats").unwrap_or(1),
            warm_up: one("warm-up").unwrap_or(WARM_UP),
            cold: matches.get_flag("cold"),
        };
        let mut options = flags::engine_options(matches)?;
        let turns = one("turns").unwrap_or(0);
        let in_turns = turns.saturating_mul(work.decode.saturating_add(TURN_PROMPT));
        // More than a `u32` is more than any model has; the plan says so.
        let needed = u32::try_from(work.context().max(in_turns)).unwrap_or(u32::MAX);
        options.context = options.context.or(Some(needed));
        let text_file = matches.get_one::<PathBuf>("text").cloned();
        let text = text_file.as_ref().map(|file| {
            fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
        });
        Ok(Self {
            path: model_path(matches)?,
            options,
            places: places::places(),
            work,
            text: text.transpose()?,
            text_file,
        })
    }

    /// What is taken in and written, and by whom.
    pub(super) fn text_name(&self) -> String {
        let file = self.text_file.as_ref().map(|file| file.display().to_string());
        let text = file.unwrap_or_else(|| "the vocabulary".to_owned());
        let one = self.work.same_text && self.work.sessions > 1;
        if one { format!("{text}, the same in all sessions") } else { text }
    }

    /// Options that have no place of their own in what `bench` prints, where they are set.
    pub(super) fn others(&self) -> Vec<String> {
        let EngineOptions { slots, trunk_memory, warm_start, .. } = &self.options;
        let slots = slots.map(|slots| format!("{slots} slots"));
        let locked = (*trunk_memory == WeightMemory::Locked).then(|| "trunk locked".to_owned());
        let warm = (*warm_start == Some(WarmStart::On)).then(|| "warm start".to_owned());
        [slots, locked, warm].into_iter().flatten().collect()
    }

    /// Reads headers and plans memory.
    pub(super) fn plan(&self) -> anyhow::Result<Planned> {
        let sessions = self.work.sessions;
        let load = Load { sessions, logits_rows: sessions, ..Load::default() };
        match plan(&self.path, &self.options, load, &self.places) {
            Err(EngineError::Plan(PlanError::LongerThanModel { wanted, model })) => {
                Err(too_short(wanted as usize, model))
            }
            planned => Ok(planned?),
        }
    }
}

fn too_short(needed: usize, context: u32) -> anyhow::Error {
    Usage(format!(
        "what is to be measured has up to {needed} tokens, the context {context}: lower --prefill, \
         --context-at, --decode, --repeats or --turns"
    ))
    .into()
}

impl Setup {
    /// Refuses what does not fit a context that was asked for.
    pub(super) fn check_context(&self, context: u32) -> anyhow::Result<()> {
        let needed = self.work.context();
        if needed > context as usize { Err(too_short(needed, context)) } else { Ok(()) }
    }
}

impl Work {
    /// The first position of the first text.
    pub(super) fn first_depth(&self) -> usize {
        self.depths.first().copied().unwrap_or(DEPTH)
    }

    /// Tokens that are written at most: one unmeasured window, and twice as many as have to count.
    pub(super) fn written(&self) -> usize {
        self.repeats.saturating_mul(2).saturating_add(1).saturating_mul(self.decode)
    }

    /// Tokens that a session has to hold.
    fn context(&self) -> usize {
        let longest = self.depths.iter().map(|depth| depth.saturating_add(self.written()));
        longest.chain(self.prefill.iter().copied()).max().unwrap_or(0)
    }
}

/// An open model, what was asked for, and where its prompts come from.
pub(super) struct Bench {
    pub(super) setup: Setup,
    pub(super) prober: Prober,
    /// Whether some experts have no slot.
    pub(super) out_of_core: bool,
    /// The most memory that was seen; probes, which take some for themselves, are not counted.
    pub(super) peak_bytes: Option<u64>,
    engine: Engine,
    text: Option<Vec<u32>>,
}

impl Bench {
    /// Loads what was planned.
    pub(super) fn open(setup: Setup, planned: Planned) -> anyhow::Result<Self> {
        let out_of_core = !planned.plan.store.holds_everything();
        let watched = if out_of_core { Watched::Yes } else { Watched::No };
        let prober = Prober::new(&planned, watched, &setup.places);
        let engine = Engine::load(planned, &setup.places)?;
        let text = setup.text.as_ref().map(|text| tokens_of(&engine, text)).transpose()?;
        let peak_bytes = peak_held_bytes(&setup.places.root);
        Ok(Self { setup, prober, out_of_core, peak_bytes, engine, text })
    }

    /// The open model.
    pub(super) fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Looks at the memory that is held now.
    pub(super) fn note_memory(&mut self) {
        self.peak_bytes = self.peak_bytes.max(held_bytes(&self.setup.places.root));
    }

    /// Tokens of the text, or of the vocabulary that stands in for one.
    fn length(&mut self) -> usize {
        let vocab = self.engine().runner.vocab();
        self.text.as_ref().map_or(vocab, Vec::len)
    }

    /// Tokens until a session comes to what it, or another one with a text of its own, began with.
    pub(super) fn distinct(&mut self) -> usize {
        let Work { same_text, sessions, .. } = self.setup.work;
        if same_text { self.length() } else { self.length() / sessions }
    }

    /// Where a session's text begins.
    pub(super) fn first_token(&mut self, session: usize) -> usize {
        if self.setup.work.same_text { 0 } else { session * self.distinct() }
    }

    /// `len` tokens from the start of a session's text. A text that is too short begins anew.
    pub(super) fn tokens(&mut self, session: usize, len: usize) -> Vec<u32> {
        let start = self.first_token(session);
        self.tokens_from(start, len)
    }

    fn tokens_from(&mut self, start: usize, len: usize) -> Vec<u32> {
        let length = self.length();
        let positions = (start..start + len).map(|at| at % length);
        match &self.text {
            Some(text) => positions.map(|at| text[at]).collect(),
            None => positions.map(|at| at as u32).collect(),
        }
    }

    /// The beginnings of all sessions' texts.
    pub(super) fn texts(&mut self, len: usize) -> Vec<Vec<u32>> {
        (0..self.setup.work.sessions).map(|session| self.tokens(session, len)).collect()
    }

    /// Takes in tokens from all over the vocabulary, or the end of a text, which is not what will be
    /// measured: that brings most experts in.
    pub(super) fn warm_up(&mut self) -> Result<(), EngineError> {
        let len = self.setup.work.warm_up.min(self.engine().plan.context as usize);
        let length = self.length();
        let tokens = match &self.text {
            Some(_) => self.tokens_from(length.saturating_sub(len), len),
            None => (0..len).map(|at| (at * length / len) as u32).collect(),
        };
        if !tokens.is_empty() {
            let engine = self.engine();
            let (walk, _) = Walk::start(engine, [tokens], len)?;
            walk.end(engine);
        }
        self.note_memory();
        Ok(())
    }
}

fn tokens_of(engine: &Engine, text: &str) -> anyhow::Result<Vec<u32>> {
    let no_tokenizer = || EngineError::NoTokenizer { path: engine.path.clone() };
    let tokenizer = engine.tokenizer.as_ref().ok_or_else(no_tokenizer)?;
    let tokens = tokenizer.encode(text, SpecialTokens::Parse).map_err(EngineError::from)?;
    if tokens.is_empty() {
        return Err(Usage("--text has no token".to_owned()).into());
    }
    Ok(tokens)
}
