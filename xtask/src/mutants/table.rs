//! The mistakes: where each is planted, and who has to notice.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// One mistake.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// What is wrong. Rows of the reference's table keep their names; what follows in parentheses
    /// says where else the same mistake can be made.
    pub(crate) name: String,
    /// Each of them needs a red test of its own, `…::family::…`. Empty: any red test will do.
    pub(crate) families: Vec<String>,
    /// The device whose tests have to notice, `…::device::…`: for kernels that only it uses.
    pub(crate) device: Option<String>,
    /// Whose tests are run.
    #[serde(default = "fm_model")]
    pub(crate) package: String,
    /// The file, or how the paths of several begin: code moves between the files of a module.
    pub(crate) file: String,
    /// Stands there exactly once.
    pub(crate) find: String,
    /// What stands there instead.
    pub(crate) replace: String,
}

fn fm_model() -> String {
    "fm-model".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    mutant: Vec<Mutant>,
}

/// Reads every table in a directory.
pub(crate) fn load(dir: &Path) -> Result<Vec<Mutant>> {
    let entries = fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    paths.sort();
    let mut mutants: Vec<Mutant> = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path)?;
        let table: Table =
            toml::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        mutants.extend(table.mutant);
    }
    let mut names: Vec<&str> = mutants.iter().map(|mutant| mutant.name.as_str()).collect();
    names.sort_unstable();
    for pair in names.windows(2) {
        ensure!(pair[0] != pair[1], "two mutants are called {:?}", pair[0]);
    }
    Ok(mutants)
}

impl Mutant {
    /// The first red test that notices it, for a family or for all.
    fn killer<'a>(&self, family: Option<&str>, red: &'a [String]) -> Option<&'a String> {
        let inside = |test: &str, part: &str| test.split("::").any(|module| module == part);
        red.iter().find(|test| {
            let of_device = self.device.as_ref().is_none_or(|device| inside(test, device));
            of_device && family.is_none_or(|family| inside(test, family))
        })
    }

    /// Families, or `None` for all at once, each with its red test.
    fn verdicts<'a>(
        &'a self,
        red: &'a [String],
    ) -> impl Iterator<Item = (Option<&'a str>, Option<&'a String>)> {
        let any = self.families.is_empty().then_some(None);
        let families = any.into_iter().chain(self.families.iter().map(|f| Some(f.as_str())));
        families.map(|family| (family, self.killer(family, red)))
    }

    /// Where it goes unnoticed.
    pub(crate) fn survivors(&self, red: &[String]) -> Vec<String> {
        let unnoticed = self.verdicts(red).filter(|(_, killer)| killer.is_none());
        unnoticed.map(|(family, _)| family.unwrap_or("all tests").to_owned()).collect()
    }

    /// Who notices it, a test for each family.
    pub(crate) fn killers(&self, red: &[String]) -> Vec<String> {
        self.verdicts(red).filter_map(|(_, killer)| killer.cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[&str] = &["qwen3_moe", "qwen3_next", "qwen3_5_moe"];
    const LATENT: &[&str] = &["deepseek_v3", "glm4_moe_lite"];
    const DEEPSEEK: &[&str] = &["deepseek_v3"];
    const HYBRIDS: &[&str] = &["qwen3_next", "qwen3_5_moe"];

    /// What was measured on the reference implementations: by how much each mistake moves logits.
    const MEASURED: &[(&str, &[&str])] = &[
        ("rms eps 1e-5<->1e-6", ALL),
        ("norm weights without the +1", HYBRIDS),
        ("+1 also on linear_attn.norm", HYBRIDS),
        ("q/gate split as [all q | all gate]", HYBRIDS),
        ("GDN k-head for v-head i = i % nk (tiled)", HYBRIDS),
        ("GDN without l2norm of q,k", HYBRIDS),
        ("GDN without 1/sqrt(dk) on q", HYBRIDS),
        ("GDN beta without sigmoid (beta=1)", HYBRIDS),
        ("GDN no decay", HYBRIDS),
        ("conv1d taps reversed", HYBRIDS),
        ("A not negated/exp (A_log used as A)", HYBRIDS),
        ("dt_bias ignored", HYBRIDS),
        ("qkvz read as flat [q|k|v|z] blocks", &["qwen3_next"]),
        ("ba read as flat [b|a]", &["qwen3_next"]),
        ("shared expert gate without sigmoid (=1)", HYBRIDS),
        ("shared expert dropped", HYBRIDS),
        ("partial rotary 1.0", HYBRIDS),
        ("rope_theta 10000", &["qwen3_moe", "qwen3_next"]),
        ("router weights not renormalised", &["qwen3_5_moe"]),
        ("norm_topk_prob flipped", &["qwen3_moe", "qwen3_next"]),
        ("GQA: q head h uses kv head h % nkv", ALL),
        ("experts gate/up swapped", ALL),
        ("rms eps 1e-5<->1e-6", LATENT),
        ("rope_theta 10000", LATENT),
        ("rope half-split instead of interleaved", LATENT),
        ("no correction bias", LATENT),
        ("biased scores used as weights", LATENT),
        ("no routed_scaling_factor", LATENT),
        ("no renorm of top-k", LATENT),
        ("no group limit", DEEPSEEK),
        ("shared experts dropped", LATENT),
        ("scale 1/sqrt(nope) only", LATENT),
        ("scale 1/sqrt(nope+rope), no mscale", DEEPSEEK),
        ("no yarn", DEEPSEEK),
        ("no latent layernorm on kv", DEEPSEEK),
        ("experts gate/up swapped", LATENT),
    ];

    fn mutants() -> Vec<Mutant> {
        load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("mutants")).unwrap()
    }

    #[test]
    fn every_measured_mistake_is_planted_in_its_families() {
        let mutants = mutants();
        for (row, families) in MEASURED {
            for family in *families {
                let planted = mutants.iter().any(|mutant| {
                    mutant.name.starts_with(row) && mutant.families.iter().any(|f| f == family)
                });
                assert!(planted, "{row} in {family}");
            }
        }
    }

    #[test]
    fn a_mutant_is_dead_when_every_family_has_a_red_test_on_its_device() {
        let mut mutant = mutants().remove(0);
        mutant.families = HYBRIDS.iter().map(|&family| family.to_owned()).collect();
        mutant.device = Some("cpu".to_owned());
        let red = |tests: &[&str]| tests.iter().map(|&test| test.to_owned()).collect::<Vec<_>>();
        let one = red(&["golden::cpu::qwen3_next::a", "golden::reference::qwen3_5_moe::a"]);
        assert_eq!(mutant.survivors(&one), ["qwen3_5_moe"]);
        let both = red(&["golden::cpu::qwen3_5_moe::a", "golden::cpu::qwen3_next::b"]);
        assert!(mutant.survivors(&both).is_empty());
        assert_eq!(mutant.killers(&both), red(&["golden::cpu::qwen3_next::b", both[0].as_str()]));
        mutant.families.clear();
        assert_eq!(mutant.survivors(&[]), ["all tests"]);
        assert_eq!(mutant.killers(&both), both[..1]);
    }
}
