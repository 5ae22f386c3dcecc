//! Every option of a running model, in two tables: how it runs, and how it chooses words.
//!
//! Flags, keys of `config.toml` and `docs/options.md` derive from the rows; adding an option means
//! adding a row and a field.

use fm_kernels::backend::{KvFormat, Numerics};
use fm_model::load::WeightMemory;
use fm_store::{PolicyKind, reader::IoMode};

use crate::{
    backends::DeviceChoice, bytes::Bytes, look_ahead::LookAhead, sampler::Sampling,
    warm_start::WarmStart,
};

/// How a model runs. `None` means the default that the model, the machine or the plan gives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EngineOptions {
    /// Where to compute.
    pub device: DeviceChoice,
    /// Arithmetic; must fit the device.
    pub numerics: Option<Numerics>,
    /// Threads that compute.
    pub threads: Option<usize>,
    /// Ceiling for all memory but clean page cache.
    pub memory: Option<u64>,
    /// Tokens a session can hold.
    pub context: Option<u32>,
    /// Prompt tokens that are computed together.
    pub prefill_chunk: Option<usize>,
    /// Who leaves the expert cache.
    pub policy: PolicyKind,
    /// Whether expert reads go through the page cache.
    pub io: IoMode,
    /// Whether the trunk may be paged out.
    pub trunk_memory: WeightMemory,
    /// How the next layer's experts are guessed.
    pub look_ahead: LookAhead,
    /// Whether to know what earlier runs used.
    pub warm_start: Option<WarmStart>,
    /// Slots of the expert cache, for experiments.
    pub slots: Option<usize>,
    /// Experts per token instead of the model's own number: lossy.
    pub top_k: Option<usize>,
    /// What keys and values are kept in: lossy, but for f32.
    pub kv: KvFormat,
}

impl EngineOptions {
    /// The same without those that are lossy.
    #[must_use]
    pub fn exact(self) -> Self {
        Self { top_k: None, kv: KvFormat::F32, ..self }
    }

    /// Those that are lossy, in words, for a model that takes `top_k` experts per token by itself.
    pub(crate) fn lossy(&self, top_k: usize) -> Vec<String> {
        let fewer = self.top_k.filter(|own| *own != top_k);
        let fewer = fewer.map(|own| format!("{own} experts per token instead of {top_k}"));
        let kv = self.kv;
        let rounded =
            (kv != KvFormat::F32).then(|| format!("keys and values in {kv} instead of f32"));
        fewer.into_iter().chain(rounded).collect()
    }
}

/// One option.
#[derive(Debug)]
pub struct OptionRow<T> {
    /// Name of the flag and, with `_` for `-`, of the key.
    pub name: &'static str,
    /// What stands for its value in help.
    pub value: &'static str,
    /// What it does, and what happens without it.
    pub help: &'static str,
    /// The values it takes, if they are a fixed list.
    pub choices: fn() -> Vec<&'static str>,
    /// Puts a value in place; `None` if it is not one of its values.
    pub set: fn(&mut T, &str) -> Option<()>,
}

/// Why a value was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is no value of --{name}; {expected}")]
pub struct OptionError {
    /// The option.
    pub name: &'static str,
    /// What was given.
    pub value: String,
    /// What it takes.
    pub expected: String,
}

impl<T> OptionRow<T> {
    /// Sets the option from text.
    ///
    /// # Errors
    /// If the text is none of its values.
    pub fn apply(&self, options: &mut T, value: &str) -> Result<(), OptionError> {
        let choices = (self.choices)();
        let listed = choices.is_empty() || choices.contains(&value);
        listed.then(|| (self.set)(options, value)).flatten().ok_or_else(|| OptionError {
            name: self.name,
            value: value.to_owned(),
            expected: if choices.is_empty() {
                format!("it takes {}: {}", self.value, self.help)
            } else {
                format!("choose from: {}", choices.join(", "))
            },
        })
    }
}

fn free() -> Vec<&'static str> {
    Vec::new()
}

fn positive<N: std::str::FromStr + PartialOrd + From<u8>>(text: &str) -> Option<N> {
    text.parse().ok().filter(|number| *number >= N::from(1))
}

/// More threads than any machine has cores for.
const THREADS_MAX: usize = 1024;

/// More rows than any step is worth; the bytes of so many are still far from what a `u64` counts.
const PREFILL_CHUNK_MAX: usize = 1 << 20;

fn up_to(most: usize, text: &str) -> Option<usize> {
    positive(text).filter(|number| *number <= most)
}

/// How a model runs.
pub static ENGINE: [OptionRow<EngineOptions>; 14] = [
    OptionRow {
        name: "device",
        value: "DEVICE",
        help: "Where to compute: the scalar reference or the CPU [default: auto]",
        choices: || DeviceChoice::ALL.iter().map(|choice| choice.name()).collect(),
        set: |options, text| DeviceChoice::by_name(text).map(|device| options.device = device),
    },
    OptionRow {
        name: "numerics",
        value: "NUMERICS",
        help: "Arithmetic in force, always reported [default: the fastest exact one of the device]",
        choices: || Numerics::ALL.iter().map(|numerics| numerics.name()).collect(),
        set: |options, text| {
            let numerics = Numerics::ALL.iter().find(|numerics| numerics.name() == text)?;
            options.numerics = Some(*numerics);
            Some(())
        },
    },
    OptionRow {
        name: "threads",
        value: "N",
        help: "Threads that compute, at most 1024 [default: the physical cores]",
        choices: free,
        set: |options, text| up_to(THREADS_MAX, text).map(|n| options.threads = Some(n)),
    },
    OptionRow {
        name: "memory",
        value: "SIZE",
        help: "Ceiling for all memory but clean page cache, as 6GB or 6GiB \
               [default: 85% of what free memory and cgroups allow]",
        choices: free,
        set: |options, text| Bytes::parse(text).map(|bytes| options.memory = Some(bytes.0)),
    },
    OptionRow {
        name: "context",
        value: "TOKENS",
        help: "Tokens a session can hold [default: the model's, limited by the memory plan]",
        choices: free,
        set: |options, text| positive(text).map(|context| options.context = Some(context)),
    },
    OptionRow {
        name: "prefill-chunk",
        value: "TOKENS",
        help: "Prompt tokens that are computed together, at most 1048576; more need fewer reads and \
               more memory [default: 512, or 2048 where experts are read again for every chunk; \
               limited by the memory plan]",
        choices: free,
        set: |options, text| {
            up_to(PREFILL_CHUNK_MAX, text).map(|n| options.prefill_chunk = Some(n))
        },
    },
    OptionRow {
        name: "policy",
        value: "POLICY",
        help: "Who leaves the expert cache [default: auto]",
        choices: || PolicyKind::names().collect(),
        set: |options, text| PolicyKind::by_name(text).map(|policy| options.policy = policy),
    },
    OptionRow {
        name: "io",
        value: "MODE",
        help: "Read experts directly or through the page cache [default: auto]",
        choices: || IoMode::names().collect(),
        set: |options, text| IoMode::by_name(text).map(|io| options.io = io),
    },
    OptionRow {
        name: "lock-trunk",
        value: "MODE",
        help: "Never let the system page the trunk out; needs a limit on locked memory (`ulimit -l`) \
               that is as large [default: off]",
        choices: || vec!["off", "on"],
        set: |options, text| {
            let on = text == "on";
            options.trunk_memory = if on { WeightMemory::Locked } else { WeightMemory::Pageable };
            Some(())
        },
    },
    OptionRow {
        name: "lookahead",
        value: "MODE",
        help: "Guess what the next layer needs, and read it while the disk is idle [default: auto, \
               where that measures faster]",
        choices: || LookAhead::names().collect(),
        set: |options, text| LookAhead::by_name(text).map(|mode| options.look_ahead = mode),
    },
    OptionRow {
        name: "warm-start",
        value: "MODE",
        help: "Know from the beginning which experts earlier runs used, and leave word for later ones \
               [default: on for `run` and `serve`, else off]",
        choices: || WarmStart::names().collect(),
        set: |options, text| WarmStart::by_name(text).map(|mode| options.warm_start = Some(mode)),
    },
    OptionRow {
        name: "slots",
        value: "N",
        help: "Slots of the expert cache, for experiments [default: what the memory plan leaves]",
        choices: free,
        set: |options, text| positive(text).map(|slots| options.slots = Some(slots)),
    },
    OptionRow {
        name: "k",
        value: "N",
        help: "Experts per token instead of the model's own number: lossy, and reported as such",
        choices: free,
        set: |options, text| positive(text).map(|top_k| options.top_k = Some(top_k)),
    },
    OptionRow {
        name: "kv",
        value: "FORMAT",
        help: "What keys and values are kept in; f16 takes half the memory for a context: lossy, and \
               reported as such [default: f32]",
        choices: || KvFormat::ALL.iter().map(|format| format.name()).collect(),
        set: |options, text| {
            options.kv = *KvFormat::ALL.iter().find(|format| format.name() == text)?;
            Some(())
        },
    },
];

fn within(text: &str, [low, high]: [f32; 2]) -> Option<f32> {
    text.parse().ok().filter(|number| (low..=high).contains(number))
}

/// What may be chosen for [`Sampling`], by users and models alike: the lowest and the highest.
pub(crate) const TEMPERATURE: [f32; 2] = [0.0, 100.0];
pub(crate) const TOP_P: [f32; 2] = [0.0, 1.0];
pub(crate) const MIN_P: [f32; 2] = [0.0, 1.0];
pub(crate) const REPETITION_PENALTY: [f32; 2] = [0.01, 100.0];
pub(crate) const PENALTY: [f32; 2] = [-100.0, 100.0];

/// How words are chosen. Defaults come from the model's `generation_config.json`.
pub static SAMPLING: [OptionRow<Sampling>; 8] = [
    OptionRow {
        name: "temperature",
        value: "T",
        help: "Divides the logits, up to 100; 0 takes the most likely token [default: the model's, else 0]",
        choices: free,
        set: |sampling, text| within(text, TEMPERATURE).map(|t| sampling.temperature = t),
    },
    OptionRow {
        name: "top-k",
        value: "N",
        help: "Choose among the N most likely tokens; 0 for all [default: the model's, else 0]",
        choices: free,
        set: |sampling, text| text.parse().ok().map(|top_k| sampling.top_k = top_k),
    },
    OptionRow {
        name: "top-p",
        value: "P",
        help: "Choose among the likeliest tokens that together have probability P, 0 to 1 \
               [default: the model's, else 1]",
        choices: free,
        set: |sampling, text| within(text, TOP_P).map(|top_p| sampling.top_p = top_p),
    },
    OptionRow {
        name: "min-p",
        value: "P",
        help: "Leave out tokens less than P times as likely as the likeliest, 0 to 1 \
               [default: the model's, else 0]",
        choices: free,
        set: |sampling, text| within(text, MIN_P).map(|min_p| sampling.min_p = min_p),
    },
    OptionRow {
        name: "repetition-penalty",
        value: "X",
        help: "Make tokens that stand anywhere in the text X times less likely, 0.01 to 100 \
               [default: the model's, else 1]",
        choices: free,
        set: |sampling, text| {
            within(text, REPETITION_PENALTY).map(|x| sampling.repetition_penalty = x)
        },
    },
    OptionRow {
        name: "presence-penalty",
        value: "X",
        help: "Subtract X, -100 to 100, from the logit of every token already generated \
               [default: the model's, else 0]",
        choices: free,
        set: |sampling, text| within(text, PENALTY).map(|x| sampling.presence_penalty = x),
    },
    OptionRow {
        name: "frequency-penalty",
        value: "X",
        help: "Subtract X, -100 to 100, from the logit of a token for each time it was generated \
               [default: the model's, else 0]",
        choices: free,
        set: |sampling, text| within(text, PENALTY).map(|x| sampling.frequency_penalty = x),
    },
    OptionRow {
        name: "seed",
        value: "N",
        help: "Start of the random numbers [default: 0: the same words every time]",
        choices: free,
        set: |sampling, text| text.parse().ok().map(|seed| sampling.seed = seed),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_value_gets_the_choices() {
        let row = ENGINE.iter().find(|row| row.name == "io").unwrap();
        let error = row.apply(&mut EngineOptions::default(), "mmap").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`mmap` is no value of --io; choose from: auto, direct, buffered"
        );
        let row = ENGINE.iter().find(|row| row.name == "threads").unwrap();
        let error = row.apply(&mut EngineOptions::default(), "0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`0` is no value of --threads; \
             it takes N: Threads that compute, at most 1024 [default: the physical cores]"
        );
    }

    #[test]
    fn what_no_machine_has_is_refused_and_the_help_says_so() {
        for (name, most) in [("threads", THREADS_MAX), ("prefill-chunk", PREFILL_CHUNK_MAX)] {
            let row = ENGINE.iter().find(|row| row.name == name).unwrap();
            let apply = |n: usize| row.apply(&mut EngineOptions::default(), &n.to_string());
            apply(most).unwrap();
            for more in [most + 1, usize::MAX] {
                let error = apply(more).unwrap_err().to_string();
                assert!(error.contains(&format!("at most {most}")), "{error}");
            }
        }
    }

    #[test]
    fn every_listed_choice_is_accepted() {
        for row in &ENGINE {
            for choice in (row.choices)() {
                row.apply(&mut EngineOptions::default(), choice).unwrap();
            }
        }
    }
}
