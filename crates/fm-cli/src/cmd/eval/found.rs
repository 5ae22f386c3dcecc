//! What `eval` prints.

use std::fmt;

use fm_engine::{
    Engine,
    eval::{
        Cutting, Text,
        score::{Estimate, Evaluation},
    },
};
use serde_json::{Value, json};

use crate::console::counted;

/// Version of what `--json` prints.
const SCHEMA: &str = "flash-moe.eval/1";

/// Where logits come from, in words.
pub(super) struct Named {
    pub(super) model: String,
    pub(super) numerics: String,
    pub(super) lossy: Vec<String>,
}

impl Named {
    pub(super) fn of(engine: &Engine) -> Self {
        let model = engine.path.display().to_string();
        Self { model, numerics: engine.numerics.to_string(), lossy: engine.lossy.clone() }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, numerics {}", self.model, self.numerics)?;
        self.lossy.iter().try_for_each(|lossy| write!(f, ", lossy: {lossy}"))
    }
}

/// Everything that was found.
pub(super) struct Found<'a> {
    pub(super) ours: Named,
    pub(super) theirs: Option<Named>,
    pub(super) text: &'a Text,
    pub(super) evaluation: Evaluation,
}

impl Found<'_> {
    /// As `docs/eval.md` describes it.
    pub(super) fn as_json(&self) -> Value {
        let Evaluation { windows, scored_tokens, loss, perplexity, against } = &self.evaluation;
        let Cutting { window, warm_up } = self.text.cutting();
        let against = against.as_ref().zip(self.theirs.as_ref()).map(|(distance, theirs)| {
            let mut against = json!(distance);
            against["model"] = json!(theirs.model);
            against["numerics"] = json!(theirs.numerics);
            against["lossy"] = json!(theirs.lossy);
            against
        });
        json!({
            "schema": SCHEMA,
            "model": self.ours.model,
            "numerics": self.ours.numerics,
            "lossy": self.ours.lossy,
            "tokens": self.text.tokens().len(),
            "scored_tokens": scored_tokens,
            "windows": windows,
            "window": window,
            "warm_up": warm_up,
            "loss": loss,
            "perplexity": perplexity,
            "against": against,
        })
    }
}

impl fmt::Display for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evaluation { windows, scored_tokens, perplexity, against, .. } = &self.evaluation;
        let Cutting { window, warm_up } = self.text.cutting();
        let tokens = self.text.tokens().len();
        writeln!(f, "{:<18}{}", "model", self.ours)?;
        writeln!(
            f,
            "{:<18}{tokens} tokens, {scored_tokens} of them scored in {} of {window} (warm-up \
             {warm_up})",
            "text",
            counted(*windows as u64, "window")
        )?;
        line(f, "perplexity", perplexity, |x| format!("{x:.4}"))?;
        let (Some(against), Some(theirs)) = (against, &self.theirs) else { return Ok(()) };
        writeln!(f, "{:<18}{theirs}", "against")?;
        line(f, "its perplexity", &against.perplexity, |x| format!("{x:.4}"))?;
        line(f, "loss difference", &against.loss_difference, |x| format!("{x:+.2e}"))?;
        line(f, "mean KL", &against.kl, |x| format!("{x:.2e}"))?;
        let (kl_max, token) = (against.kl_max, against.kl_max_token);
        writeln!(f, "{:<18}{kl_max:.2e} before token {token}", "largest KL")?;
        line(f, "top-1 agreement", &against.top1_agreement, |x| format!("{:.3} %", 100.0 * x))?;
        writeln!(f, "{:<18}{} of {scored_tokens}", "top-1 differs", against.top1_differences)?;
        writeln!(f, "loss and KL in nats per token; intervals of 95 %, windows as sample")
    }
}

fn line(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    estimate: &Estimate,
    show: impl Fn(f64) -> String,
) -> fmt::Result {
    let Estimate { value, low, high } = *estimate;
    write!(f, "{name:<18}{}", show(value))?;
    match low.zip(high) {
        Some((low, high)) => writeln!(f, "  ({} to {})", show(low), show(high)),
        None => writeln!(f, "  (one window: no interval)"),
    }
}
