//! One running model: opened from a directory or a GGUF file under a memory plan.

use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use fm_format::source::{Checkpoint, Files, TensorChecksum, gguf::Metadata};
use fm_kernels::{
    Backend,
    backend::{KvFormat, Numerics},
};
use fm_model::{
    Runner,
    arch::describe,
    decoder::Decoder,
    footprint::Footprint,
    load::{Loader, WeightMemory, fingerprint, identity},
    model_runner::{ModelRunner, RunnerOptions},
    spec::ModelSpec,
};
use fm_store::{
    ExpertMap, Store, StoreOptions, reader,
    trace::{TraceError, TraceHeader, TraceWriter},
};
use fm_text::{ChatTemplate, Tokenizer};

use crate::{
    backends::{self, Device, on_device},
    error::EngineError,
    generation_config::GenerationConfig,
    limits::Limits,
    local::{Handles, Local, SharedStats},
    look_ahead::{InForce, LookAhead},
    machine::MemoryLimits,
    memory_plan::{Demand, MemoryPlan},
    options::EngineOptions,
    prefix::fingerprint::Arithmetic,
    pressure::MemoryGuard,
    text_parts::{self, TextParts},
    warm_start::{HeatFile, HeatIgnored, WarmStart},
};

mod checks;

pub use checks::Checks;

/// Where the engine may look and write.
#[derive(Clone, Debug)]
pub struct Places {
    /// Root of `/proc` and `/sys`.
    pub root: PathBuf,
    /// Everything the program writes for itself; `None` to write nothing.
    pub cache_dir: Option<PathBuf>,
}

/// What a command will ask of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Sessions that may be open at once.
    pub sessions: usize,
    /// Rows of a step whose logits may be wanted.
    pub logits_rows: usize,
    /// Recurrent memories that texts may leave for later ones, beside those of the sessions; fewer
    /// where they would take too much.
    pub marks: usize,
    /// Whether texts may have grammars.
    pub grammars: bool,
    /// Whether what texts leave is kept on disk too.
    pub prefix_disk: bool,
}

impl Default for Load {
    fn default() -> Self {
        Self { sessions: 1, logits_rows: 1, marks: 0, grammars: false, prefix_disk: false }
    }
}

/// A described and planned model, before its weights are read.
#[derive(Debug)]
pub struct Planned {
    /// The model's directory or GGUF file.
    pub path: PathBuf,
    /// What it is.
    pub spec: ModelSpec,
    /// Its bytes by kind.
    pub footprint: Footprint,
    /// Who gets how many bytes.
    pub plan: MemoryPlan,
    /// Where it will compute.
    pub device: Device,
    /// Arithmetic in force.
    pub numerics: Numerics,
    /// Threads that will compute.
    pub threads: usize,
    /// How bytes will be checked.
    pub checks: Checks,
    /// Files of the checkpoint, for probes.
    pub files: Vec<PathBuf>,
    /// Checksums of the trunk.
    trunk: Vec<TensorChecksum>,
    options: EngineOptions,
    metadata: Option<Metadata>,
}

/// One running model.
pub struct Engine {
    /// The model's directory or GGUF file.
    pub path: PathBuf,
    /// Family, as in `config.json`.
    pub model_type: &'static str,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Its bytes by kind.
    pub footprint: Footprint,
    /// Who got how many bytes.
    pub plan: MemoryPlan,
    /// What computes.
    pub device: Device,
    /// Arithmetic in force.
    pub numerics: Numerics,
    /// What keys and values are kept in.
    pub kv: KvFormat,
    /// Threads that compute.
    pub threads: usize,
    /// How experts are read.
    pub reader: reader::ReaderInfo,
    /// How the next layer's experts are guessed.
    pub look_ahead: LookAhead,
    /// Whether the trunk may be paged out.
    pub trunk_memory: WeightMemory,
    /// Why it does not know what earlier runs used, if it should and there is something.
    pub heat_ignored: Option<HeatIgnored>,
    /// How their bytes are checked.
    pub checks: Checks,
    /// Lossy switches in force, in words.
    pub lossy: Vec<String>,
    /// The model.
    pub runner: Box<dyn Runner>,
    /// Its tokenizer, if it has one.
    pub tokenizer: Option<Tokenizer>,
    /// Its chat template, if it has one.
    pub template: Option<ChatTemplate>,
    /// Its own way of choosing words.
    pub generation: GenerationConfig,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// Files of the checkpoint, for probes.
    pub files: Vec<PathBuf>,
    /// What loading took.
    pub load_times: LoadTimes,
    handles: Handles,
    trace_header: TraceHeader,
    /// Of weights, numerics, the format of keys and values, and experts per token.
    pub(crate) identity: u128,
}

/// What loading took. Weights and text are read beside each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadTimes {
    /// The weights of the trunk, their checks included.
    pub weights: Duration,
    /// Tokenizer and chat template.
    pub text: Duration,
    /// All of it, slots and sessions included.
    pub total: Duration,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Reads headers, describes the model and plans its memory. No weights are read.
///
/// # Errors
/// If it is not a model this build runs, or does not fit.
pub fn plan(
    path: &Path,
    options: &EngineOptions,
    load: Load,
    places: &Places,
) -> Result<Planned, EngineError> {
    let checkpoint = Checkpoint::open(path)?;
    let mut spec = describe(&checkpoint)?;
    let (checks, trunk) = checks::checksums(&checkpoint, &mut spec, places.cache_dir.as_deref())?;
    let limits = MemoryLimits::read(&places.root);
    let tokenizer_bytes = match &checkpoint.metadata {
        Some(metadata) => text_parts::tokenizer_json_bytes(metadata, path)?,
        None => text_parts::tokenizer_file_bytes(path)?,
    };
    let demand = Demand { spec: &spec, options, load, tokenizer_bytes };
    let plan = MemoryPlan::new(demand, &limits)?;
    let device = options.device.resolve(options.numerics)?;
    let numerics = options.numerics.unwrap_or_else(|| device.default_numerics(&spec.catalog));
    let threads = device.threads(options.threads, &places.root);
    let footprint = Footprint::of(&spec, options.top_k, options.kv);
    let (options, Checkpoint { path, metadata, files, .. }) = (options.clone(), checkpoint);
    Ok(Planned {
        path,
        spec,
        footprint,
        plan,
        device,
        numerics,
        threads,
        checks,
        files,
        trunk,
        options,
        metadata,
    })
}

impl Planned {
    /// How its experts are read. Looks at the disk, if it matters and nobody has lately.
    pub(crate) fn reader_options(&self, cache_dir: Option<&Path>) -> reader::ReaderOptions {
        // Free memory that the plan does not use is what the page cache can have.
        let page_cache_bytes = self.plan.allowed.saturating_sub(self.plan.budget);
        let share = page_cache_bytes as f64 / self.plan.experts.max(1) as f64;
        let undecided = self.options.io == reader::IoMode::Auto
            && !self.plan.store.holds_everything()
            && (reader::PAGE_CACHE_SHARE_MIN..1.0).contains(&share);
        reader::ReaderOptions {
            io: self.options.io,
            page_cache_bytes,
            disk_bytes_per_s: undecided.then(|| Limits::disk(&self.files, cache_dir)).flatten(),
            ..reader::ReaderOptions::default()
        }
    }

    /// Lossy switches in force, and what had to be assumed of the model, in words.
    pub fn lossy(&self) -> Vec<String> {
        let switches = self.options.lossy(self.spec.moe_dims(None).top_k).into_iter();
        let coarse = backends::beyond_bound(self.numerics, &self.spec.catalog);
        switches.chain(coarse).chain(self.spec.assumed.iter().cloned()).collect()
    }

    /// Its files, opened.
    pub(crate) fn open_files(&self) -> Files {
        Files::new(self.files.clone()).with_checksums(self.trunk.clone())
    }
}

impl Engine {
    /// Plans and loads the model at `path`.
    ///
    /// # Errors
    /// If it is not a model this build runs, does not fit, or cannot be read.
    pub fn open(
        path: &Path,
        options: &EngineOptions,
        load: Load,
        places: &Places,
    ) -> Result<Self, EngineError> {
        Self::load(plan(path, options, load, places)?, places)
    }

    /// Loads what was planned.
    ///
    /// # Errors
    /// If a file cannot be read or memory cannot be had.
    pub fn load(planned: Planned, places: &Places) -> Result<Self, EngineError> {
        let started = Instant::now();
        let cache_dir = places.cache_dir.as_deref();
        // A large vocabulary takes as long as a trunk in the page cache: they do not wait for each
        // other.
        let text = || {
            let model = (planned.path.as_path(), planned.spec.vocab);
            let parts = match &planned.metadata {
                Some(metadata) => TextParts::of_metadata(metadata, model, cache_dir),
                None => TextParts::of_directory(model, cache_dir),
            };
            parts.map(|parts| (parts, started.elapsed()))
        };
        let (built, text) = thread::scope(|scope| {
            let beside = thread::Builder::new().spawn_scoped(scope, text);
            let built = on_device!(planned, device => build(device, &planned, places));
            // Where the system has no thread to give, one after the other.
            let joined =
                beside.map(|text| text.join().unwrap_or_else(|panic| resume_unwind(panic)));
            (built, joined.unwrap_or_else(|_| text()))
        });
        let (built, (text, text_time)) = (built?, text?);
        let TextParts { tokenizer, template, generation, eos } = text;
        let lossy = planned.lossy();
        Ok(Self {
            template,
            eos,
            path: planned.path,
            model_type: planned.spec.model_type,
            layers: planned.spec.layers.len(),
            hidden: planned.spec.hidden,
            footprint: planned.footprint,
            plan: planned.plan,
            device: planned.device,
            numerics: built.numerics,
            kv: planned.options.kv,
            threads: planned.threads,
            reader: built.reader,
            trunk_memory: planned.options.trunk_memory,
            look_ahead: planned.options.look_ahead,
            heat_ignored: built.heat_ignored,
            checks: planned.checks,
            lossy,
            runner: built.runner,
            tokenizer,
            generation,
            files: planned.files,
            load_times: LoadTimes {
                weights: built.weights_time,
                text: text_time,
                total: started.elapsed(),
            },
            handles: built.handles,
            trace_header: built.trace_header,
            identity: built.identity,
        })
    }

    /// Where the expert store's counters can be read while the runner works.
    pub fn stats_handle(&self) -> SharedStats {
        Arc::clone(&self.handles.stats)
    }

    /// Where it can be watched what becomes of every expert while the runner works.
    pub(crate) fn map_handle(&self) -> Arc<ExpertMap> {
        Arc::clone(&self.handles.map)
    }

    /// How the next layer's experts are guessed just now.
    pub(crate) fn looks_ahead(&self) -> InForce {
        let in_force = self.handles.in_force.lock();
        in_force.map_or_else(|broken| *broken.into_inner(), |in_force| *in_force)
    }

    /// Gives up all experts that are in memory before the next layer's are asked for, as if the model
    /// had just been opened: for measurements of cold prompts.
    pub fn forget_experts(&self) {
        self.handles.forget.store(true, Ordering::Relaxed);
    }

    /// What a trace of this model says of it.
    pub fn trace_header(&self) -> &TraceHeader {
        &self.trace_header
    }

    /// Writes down from now on what the routers choose; ends the trace before, if there was one.
    ///
    /// # Errors
    /// If that one could not be written.
    pub fn record(&mut self, trace: Option<TraceWriter>) -> Result<(), TraceError> {
        self.handles.record(trace)
    }
}

struct Built {
    runner: Box<dyn Runner>,
    numerics: Numerics,
    reader: reader::ReaderInfo,
    heat_ignored: Option<HeatIgnored>,
    weights_time: Duration,
    handles: Handles,
    trace_header: TraceHeader,
    identity: u128,
}

fn build<B>(device: B, planned: &Planned, places: &Places) -> Result<Built, EngineError>
where
    B: Backend<Bytes = [u8]>,
    B::Buf: Send,
{
    let Planned { spec, plan, .. } = planned;
    let files = planned.open_files();
    let loader = Loader::new(&device, &files, planned.threads);
    let loader = loader.into_memory(planned.options.trunk_memory);
    let started = Instant::now();
    let decoder = Decoder::load(&loader, spec, plan.decoder)?;
    let weights_time = started.elapsed();
    let (reader, info) =
        reader::open(&spec.catalog, planned.reader_options(places.cache_dir.as_deref()))?;
    // A reader that needs less than the plan foresaw leaves it: there are as many slots as the plan,
    // and everything that repeats it, says.
    let unused = plan.store.staging_bytes.saturating_sub(reader.staging_bytes());
    let budget_bytes = plan.store_options.budget_bytes - unused;
    let options = StoreOptions { budget_bytes, ..plan.store_options };
    let store = Store::open(&spec.catalog, options, reader)?;
    let local = Local::new(Arc::clone(&spec.catalog), store)
        .looking_ahead(planned.options.look_ahead)
        .guarded(MemoryGuard::of_machine(&places.root));
    let weights = fingerprint(&files, spec)?;
    let remembers = planned.options.warm_start == Some(WarmStart::On);
    let (local, heat_ignored) = match places.cache_dir.as_deref().filter(|_| remembers) {
        Some(cache_dir) => local.remembering(HeatFile::new(cache_dir, weights)),
        None => (local, None),
    };
    let handles = local.handles();
    let numerics = device.numerics();
    let mut trace_header = TraceHeader::new(&spec.catalog, plan.store_options.top_k);
    trace_header.model = planned.path.display().to_string();
    spec.model_type.clone_into(&mut trace_header.model_type);
    trace_header.fingerprint = format!("{weights:032x}");
    numerics.name().clone_into(&mut trace_header.numerics);
    let kv = planned.options.kv;
    let arithmetic = Arithmetic { numerics, kv, top_k: plan.decoder.top_k };
    let identity = arithmetic.identity(identity(&files, spec)?, spec);
    let runner_options = RunnerOptions {
        decoder: plan.decoder,
        sessions_max: plan.sessions,
        kv_blocks: plan.kv_blocks,
        kv_format: kv,
        marks_max: plan.marks,
        fingerprint: identity,
    };
    let runner = ModelRunner::new(device, decoder, local, spec, runner_options)?;
    Ok(Built {
        runner: Box::new(runner),
        numerics,
        reader: info,
        heat_ignored,
        weights_time,
        handles,
        trace_header,
        identity,
    })
}
