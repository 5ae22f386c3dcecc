//! `rope_theta`, `partial_rotary_factor`, `rope_scaling`, and their newer home `rope_parameters`.
//!
//! transformers 5 reads one dictionary: `rope_scaling` if there is anything in it, else `rope_parameters`, and a number
//! beside the dictionary only if it is not in it. Others read other homes first. Whatever is said twice has to be the
//! same, so that all of them mean the same model.

use std::collections::BTreeMap;

use fm_kernels::backend::RopeLayout;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::LoadError,
    spec::{RopeScaling, Rotary, Yarn},
};

use super::require;

const THETA_EXPECTED: &str = "expected a number above 1: families differ in what they take for it";

/// Queries and keys are both multiplied with it: what is far above 1 leaves the range of f32.
const ATTENTION_FACTOR_MAX: f64 = 1e6;

const ROPE_SCALING: &str = "rope_scaling";
const ROPE_PARAMETERS: &str = "rope_parameters";

/// How sections of a head are shared out to the axes of a picture; text has the same position on all of them.
const MULTIMODAL: &str = "mrope_";

/// Numbers of scalings that this build does not compute. Nobody reads them where the kind is said to be `default`.
const OF_OTHER_KINDS: [&str; 6] = [
    "attn_factor",
    "extrapolation_factor",
    "high_freq_factor",
    "long_factor",
    "low_freq_factor",
    "short_factor",
];

/// What a configuration says of rotary positions.
#[derive(Debug, Default, Deserialize)]
pub(in crate::arch) struct RopeConfig {
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    rope_scaling: Option<RopeParameters>,
    rope_parameters: Option<RopeParameters>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
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
    /// Keys that nothing here reads.
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

impl RopeConfig {
    /// Rotated dimensions and frequencies for heads of `head_dim`, in halves.
    pub(in crate::arch) fn rotary(
        &self,
        head_dim: usize,
        default_factor: f64,
    ) -> Result<Rotary, LoadError> {
        self.homes().try_for_each(|(name, home)| home.check_others(name))?;
        let theta = self.agreed("rope_theta", self.rope_theta, |home| home.rope_theta)?;
        let theta = theta.ok_or_else(|| missing("rope_theta", THETA_EXPECTED))?;
        require(theta > 1.0 && theta.is_finite(), "rope_theta", theta, THETA_EXPECTED)?;
        let factor = self.rotated_part()?.unwrap_or(default_factor);
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
        let factor = self.rotated_part()?.unwrap_or(1.0);
        let expected = "expected 1: this family rotates heads as a whole";
        require(factor == 1.0, "partial_rotary_factor", factor, expected)?;
        self.rotary(head_dim, 1.0)
    }

    /// Of a head, as far as the configuration says it.
    fn rotated_part(&self) -> Result<Option<f64>, LoadError> {
        let outer = self.partial_rotary_factor;
        self.agreed("partial_rotary_factor", outer, |home| home.partial_rotary_factor)
    }

    /// The dictionaries that are there, the one that takes the other's place first.
    fn homes(&self) -> impl Iterator<Item = (&'static str, &RopeParameters)> {
        let homes = [(ROPE_SCALING, &self.rope_scaling), (ROPE_PARAMETERS, &self.rope_parameters)];
        homes.into_iter().filter_map(|(name, home)| Some((name, home.as_ref()?)))
    }

    /// A number that is said beside the dictionaries, in them, or both.
    fn agreed(
        &self,
        key: &'static str,
        outer: Option<f64>,
        inner: impl Fn(&RopeParameters) -> Option<f64>,
    ) -> Result<Option<f64>, LoadError> {
        let homes = self.homes().map(|(name, home)| (format!("{name}.{key}"), inner(home)));
        let mut said = std::iter::once((key.to_owned(), outer))
            .chain(homes)
            .filter_map(|(name, number)| Some((name, number?)));
        let Some((name, number)) = said.next() else { return Ok(None) };
        if let Some((other, found)) = said.find(|(_, found)| *found != number) {
            let (field, said, found) = (name, number.into(), found.into());
            return Err(LoadError::Contradiction { field, said, other, found });
        }
        // The reference would lose it, and take its family's default.
        let replaced = self.rope_scaling.as_ref().is_some_and(RopeParameters::says_anything);
        let lost = replaced && name.starts_with(ROPE_PARAMETERS);
        let expected =
            "`rope_scaling` takes the place of `rope_parameters`, and only that one has it";
        if lost { Err(missing(key, expected)) } else { Ok(Some(number)) }
    }

    /// Both homes may describe it, but not differently.
    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        let described = self.homes().filter(|(_, home)| home.says_anything());
        let mut found = described.map(|(_, home)| home.scaling());
        let Some(first) = found.next() else { return Ok(RopeScaling::None) };
        let first = first?;
        for other in found {
            let agrees = other? == first;
            require(agrees, ROPE_SCALING, "another", "expected what `rope_parameters` says")?;
        }
        Ok(first)
    }
}

impl RopeParameters {
    /// An empty dictionary is none.
    fn says_anything(&self) -> bool {
        *self != Self::default()
    }

    fn scaling(&self) -> Result<RopeScaling, LoadError> {
        if let (Some(kind), Some(other)) = (&self.rope_type, &self.old_rope_type) {
            let expected = "expected what `rope_type` says";
            require(kind == other, "type", other.as_str(), expected)?;
        }
        let kind = self.kind();
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

    fn kind(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.old_rope_type.as_deref())
    }

    /// Refuses what may turn positions in a way that nothing here computes.
    fn check_others(&self, home: &'static str) -> Result<(), LoadError> {
        let plain = self.kind() == Some("default");
        let idle = |key: &str| plain && OF_OTHER_KINDS.contains(&key);
        let mut others = self.others.iter().filter(|(_, value)| !value.is_null());
        let unknown = others.find(|(key, _)| !key.starts_with(MULTIMODAL) && !idle(key));
        let Some((key, value)) = unknown else { return Ok(()) };
        let key = format!("{home}.{key}");
        // The dictionary of one type of layers.
        Err(if value.is_object() {
            LoadError::RopePerLayerType { key }
        } else {
            LoadError::UnknownField { key }
        })
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
