//! `rope_theta`, `partial_rotary_factor`, `rope_scaling`, and their newer home `rope_parameters`.

use fm_kernels::backend::RopeLayout;
use serde::Deserialize;

use crate::{
    error::LoadError,
    spec::{RopeScaling, Rotary, Yarn},
};

use super::require;

const THETA_EXPECTED: &str = "expected a number above 1: families differ in what they take for it";

/// Queries and keys are both multiplied with it: what is far above 1 leaves the range of f32.
const ATTENTION_FACTOR_MAX: f64 = 1e6;

/// What a configuration says of rotary positions.
#[derive(Debug, Default, Deserialize)]
pub(in crate::arch) struct RopeConfig {
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
}

#[derive(Debug, Default, Deserialize)]
struct RopeParameters {
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_type: Option<String>,
    // The older name of the key, which mlx-lm also gives to newer files. Both may be there.
    #[serde(rename = "type")]
    old_rope_type: Option<String>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    attention_factor: Option<f64>,
    truncate: Option<bool>,
}

impl RopeConfig {
    /// Rotated dimensions and frequencies for heads of `head_dim`, in halves.
    pub(in crate::arch) fn rotary(
        &self,
        head_dim: usize,
        default_factor: f64,
    ) -> Result<Rotary, LoadError> {
        let nested = self.rope_parameters.as_ref();
        let theta = nested.and_then(|p| p.rope_theta).or(self.rope_theta);
        let theta = theta.ok_or_else(|| missing("rope_theta", THETA_EXPECTED))?;
        require(theta > 1.0 && theta.is_finite(), "rope_theta", theta, THETA_EXPECTED)?;
        let factor = self.rotated_part().unwrap_or(default_factor);
        let dim = (head_dim as f64 * factor) as usize;
        require(
            dim > 0 && dim.is_multiple_of(2) && dim <= head_dim,
            "partial_rotary_factor",
            dim,
            "the rotated part of a head is an even number of values, at most the head",
        )?;
        Ok(Rotary { dim, theta, layout: RopeLayout::HalfSplit, scaling: self.scaling()? })
    }

    /// The same for families that rotate heads as a whole. Their own implementations do not read a
    /// factor, so one that says otherwise would mean another model here than there.
    pub(in crate::arch) fn whole_heads(&self, head_dim: usize) -> Result<Rotary, LoadError> {
        let factor = self.rotated_part().unwrap_or(1.0);
        let expected = "expected 1: this family rotates heads as a whole";
        require(factor == 1.0, "partial_rotary_factor", factor, expected)?;
        self.rotary(head_dim, 1.0)
    }

    /// Of a head, as far as the configuration says it.
    fn rotated_part(&self) -> Option<f64> {
        let nested = self.rope_parameters.as_ref().and_then(|p| p.partial_rotary_factor);
        nested.or(self.partial_rotary_factor)
    }

    /// Both homes may describe it, but not differently.
    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        let described = [&self.rope_parameters, &self.rope_scaling].into_iter().flatten();
        let mut found = described.map(RopeParameters::scaling);
        let Some(first) = found.next() else { return Ok(RopeScaling::None) };
        let first = first?;
        for other in found {
            let agrees = other? == first;
            require(agrees, "rope_scaling", "another", "expected what `rope_parameters` says")?;
        }
        Ok(first)
    }
}

impl RopeParameters {
    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        let kinds = [&self.rope_type, &self.old_rope_type].map(Option::as_deref);
        if let [Some(kind), Some(other)] = kinds {
            require(kind == other, "type", other, "expected what `rope_type` says")?;
        }
        let kind = kinds[0].or(kinds[1]);
        if kind.is_none() && self.factor.is_some() {
            return Err(missing("rope_type", "`rope_scaling` has a factor: which kind is it of?"));
        }
        match kind {
            // Multimodal rope is plain rope for text.
            None | Some("default" | "mrope") => Ok(RopeScaling::None),
            Some("yarn") => Ok(RopeScaling::Yarn(self.yarn()?)),
            Some(kind) => Err(LoadError::Field {
                field: "rope_type",
                found: kind.into(),
                expected: "this build knows `default` and `yarn`",
            }),
        }
    }

    fn yarn(&self) -> Result<Yarn, LoadError> {
        let factor = number("factor", self.factor, |factor| factor >= 1.0)?;
        let reach = self.original_max_position_embeddings;
        let reach = number("original_max_position_embeddings", reach, |reach| reach >= 1.0)?;
        let beta_slow = number("beta_slow", self.beta_slow.or(Some(1.0)), |beta| beta > 0.0)?;
        let beta_fast =
            number("beta_fast", self.beta_fast.or(Some(32.0)), |beta| beta >= beta_slow)?;
        let (all, part) = match (self.mscale_all_dim, self.mscale) {
            (None, None) => (None, Yarn::mscale(factor, 1.0)),
            // Published implementations disagree about one without the other.
            (all, one) => {
                let one = number("mscale", one, |mscale| mscale > 0.0)?;
                let all = number("mscale_all_dim", all, |mscale| mscale > 0.0)?;
                let sharper = Yarn::mscale(factor, all);
                (Some(sharper), Yarn::mscale(factor, one) / sharper)
            }
        };
        let attention_factor =
            number("attention_factor", self.attention_factor.or(Some(part)), |factor| {
                factor > 0.0 && factor < ATTENTION_FACTOR_MAX
            })?;
        Ok(Yarn {
            factor,
            original_max_position_embeddings: reach,
            beta_fast,
            beta_slow,
            truncate: self.truncate.unwrap_or(true),
            attention_factor,
            score_factor: all.map_or(1.0, |all| all * all),
        })
    }
}

fn missing(field: &'static str, expected: &'static str) -> LoadError {
    LoadError::Field { field, found: "missing".into(), expected }
}

/// A number that `yarn` needs, in its range.
fn number(
    field: &'static str,
    value: Option<f64>,
    fits: impl Fn(f64) -> bool,
) -> Result<f64, LoadError> {
    const EXPECTED: &str = "`yarn` needs a number in its range, see arXiv:2309.00071";
    let value = value.ok_or_else(|| missing(field, EXPECTED))?;
    require(value.is_finite() && fits(value), field, value, EXPECTED)?;
    Ok(value)
}
