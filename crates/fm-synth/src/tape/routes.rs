//! What the tape makes the routers choose, and how repetitive that is.

use std::array;

use super::Tape;

/// Which experts one layer chooses for one token.
#[derive(Clone, Debug, PartialEq)]
pub struct TapeRoutes {
    /// The chosen experts, ascending.
    pub experts: Vec<usize>,
    /// Router logit of the last chosen expert minus that of the first rejected one, before the
    /// norm scales both (by 0.7 to 1.4). Below 1e-4 an engine's rounding may choose otherwise.
    pub gap: f64,
}

impl Tape {
    /// What the router of `layer` chooses for each of `tokens`, from the weights as they are
    /// written. Equal logits favour the lower expert.
    pub fn routes(&self, layer: usize, tokens: &[u32]) -> Vec<TapeRoutes> {
        let router: Vec<Vec<f32>> =
            self.router(layer).iter().map(super::CodedRow::values).collect();
        let mut routes = Vec::with_capacity(tokens.len());
        for tokens in tokens.chunks(TOKENS) {
            let codes = tokens.iter().map(|token| self.embedding(*token as usize).values());
            let codes: Vec<Vec<f32>> = codes.collect();
            let logits = match codes.as_array::<TOKENS>() {
                Some(codes) => logits(&router, codes.each_ref()),
                None => codes.iter().flat_map(|code| logits(&router, [code])).collect(),
            };
            routes.extend(logits.iter().map(|logits| choose(logits, self.geometry.top_k)));
        }
        routes
    }
}

/// Tokens whose logits are computed side by side: each sum waits for its own last product only, and a row of the
/// router is fetched once for all.
const TOKENS: usize = 8;

/// Every row of the router times each of `codes`, in ascending order.
fn logits<const N: usize>(router: &[Vec<f32>], codes: [&Vec<f32>; N]) -> Vec<Vec<f64>> {
    let mut logits = vec![Vec::with_capacity(router.len()); N];
    for row in router {
        let codes = codes.map(|code| &code[..row.len()]);
        let mut sums = [0.0; N];
        for (at, w) in row.iter().enumerate() {
            sums = array::from_fn(|i| sums[i] + f64::from(*w) * f64::from(codes[i][at]));
        }
        logits.iter_mut().zip(sums).for_each(|(logits, sum)| logits.push(sum));
    }
    logits
}

fn choose(logits: &[f64], top_k: usize) -> TapeRoutes {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let gap =
        order.get(top_k).map_or(f64::INFINITY, |&next| logits[order[top_k - 1]] - logits[next]);
    order.truncate(top_k);
    order.sort_unstable();
    TapeRoutes { experts: order, gap }
}

/// How repetitive a layer's choices are: what decides whether caches help.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Repetition {
    /// Share of a token's experts that the token before used too.
    pub lag_1: f64,
    /// The same for the token 8 before.
    pub lag_8: f64,
    /// The same for the token 64 before: what popularity alone gives.
    pub lag_64: f64,
    /// Share of all uses that fall on the most used quarter of the experts.
    pub top_quarter: f64,
}

impl Repetition {
    /// Measures consecutive tokens of one layer with `experts` experts.
    pub fn measure(routes: &[TapeRoutes], experts: usize) -> Self {
        let lag = |lag: usize| {
            let pairs = routes.iter().zip(routes.iter().skip(lag));
            let common = |(before, now): (&TapeRoutes, &TapeRoutes)| {
                now.experts.iter().filter(|e| before.experts.binary_search(e).is_ok()).count()
            };
            let repeated: usize = pairs.clone().map(common).sum();
            let chosen: usize = pairs.map(|(_, now)| now.experts.len()).sum();
            repeated as f64 / chosen.max(1) as f64
        };
        let mut uses = vec![0_usize; experts];
        routes.iter().flat_map(|routes| &routes.experts).for_each(|expert| uses[*expert] += 1);
        uses.sort_unstable_by(|a, b| b.cmp(a));
        let favourites: usize = uses.iter().take(experts.div_ceil(4)).sum();
        let all: usize = uses.iter().sum();
        Self {
            lag_1: lag(1),
            lag_8: lag(8),
            lag_64: lag(64),
            top_quarter: favourites as f64 / all.max(1) as f64,
        }
    }

    /// The mean over layers.
    pub fn mean(layers: &[Self]) -> Self {
        let mean = |of: fn(&Self) -> f64| layers.iter().map(of).sum::<f64>() / layers.len() as f64;
        Self {
            lag_1: mean(|layer| layer.lag_1),
            lag_8: mean(|layer| layer.lag_8),
            lag_64: mean(|layer| layer.lag_64),
            top_quarter: mean(|layer| layer.top_quarter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_logits_favour_the_lower_expert() {
        let routes = choose(&[1.0, 3.0, 2.0, 2.0, 2.0], 2);
        assert_eq!(routes, TapeRoutes { experts: vec![1, 2], gap: 0.0 });
    }
}
