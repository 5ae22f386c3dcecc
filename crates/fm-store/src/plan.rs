//! What a budget buys: slots per size class, before anything is allocated.
//!
//! Layers whose records have the same size share a class. Every class gets the same share of its
//! experts, at least what one token needs at once, never more than there are.

use fm_format::record::Catalog;

use crate::{error::StoreError, policy::PolicyKind};

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    /// Ceiling for slots and the reader's staging buffers together.
    pub budget_bytes: u64,
    /// Who is evicted.
    pub policy: PolicyKind,
    /// Experts that one token uses in a layer: the smallest working set.
    pub top_k: usize,
    /// Slots are mapped, and given back, in chunks of at most this size, or of one slot.
    pub chunk_bytes: usize,
}

/// [`StoreOptions::chunk_bytes`] unless something better is known: small beside any budget, large
/// beside a huge page.
pub const CHUNK_BYTES: usize = 64 << 20;

/// Slots of one record size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassPlan {
    /// Bytes of a record.
    pub record_bytes: usize,
    /// Bytes of a slot: of a record, and room to read it in whole blocks.
    pub slot_bytes: usize,
    /// Layers with records of this size.
    pub layers: usize,
    /// Experts of these layers.
    pub experts: usize,
    /// The least that works: one token's experts of one layer.
    pub slots_min: usize,
    /// What the budget buys.
    pub slots: usize,
}

/// Slots of every record size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// By ascending record size. Bound: the number of layers.
    pub classes: Vec<ClassPlan>,
    /// What the reader's buffers take from the budget.
    pub staging_bytes: u64,
}

impl Plan {
    /// Divides a budget. `staging_bytes` belongs to the reader, see
    /// [`crate::reader::staging_bytes`].
    ///
    /// # Errors
    /// [`StoreError::BudgetTooSmall`], with what it takes.
    pub fn new(
        catalog: &Catalog,
        options: StoreOptions,
        staging_bytes: u64,
    ) -> Result<Self, StoreError> {
        Self::minimum(catalog, options.top_k, staging_bytes).with_budget(options)
    }

    /// The same classes with what a budget buys.
    pub(crate) fn with_budget(mut self, options: StoreOptions) -> Result<Self, StoreError> {
        let minimum = self.bytes();
        if options.budget_bytes < minimum {
            let (budget, top_k) = (options.budget_bytes, options.top_k);
            return Err(StoreError::BudgetTooSmall { budget, minimum, top_k });
        }
        self.share(options.budget_bytes - self.staging_bytes);
        self.fill(options.budget_bytes);
        Ok(self)
    }

    /// The smallest plan that works.
    pub fn minimum(catalog: &Catalog, top_k: usize, staging_bytes: u64) -> Self {
        let layers = catalog.layers.iter().flatten();
        let sizes = layers.map(|layer| (layer.layout.bytes(), layer.records.len()));
        Self::minimum_of(sizes, catalog.room_bytes(), top_k, staging_bytes)
    }

    /// The smallest plan for layers of `(record bytes, experts)`, and so much more room in a slot.
    pub(crate) fn minimum_of(
        layers: impl Iterator<Item = (usize, usize)>,
        room_bytes: usize,
        top_k: usize,
        staging_bytes: u64,
    ) -> Self {
        let mut classes: Vec<ClassPlan> = Vec::new();
        for (record_bytes, experts) in layers {
            let least = top_k.clamp(1, experts.max(1));
            match classes.binary_search_by_key(&record_bytes, |class| class.record_bytes) {
                Ok(at) => {
                    let class = &mut classes[at];
                    class.layers += 1;
                    class.experts += experts;
                    class.slots_min = class.slots_min.max(least);
                    class.slots = class.slots_min;
                }
                Err(at) => {
                    let slot_bytes = record_bytes + room_bytes;
                    let (slots_min, slots) = (least, least);
                    classes.insert(
                        at,
                        ClassPlan {
                            record_bytes,
                            slot_bytes,
                            layers: 1,
                            experts,
                            slots_min,
                            slots,
                        },
                    );
                }
            }
        }
        Self { classes, staging_bytes }
    }

    /// Bytes of all slots.
    pub fn slot_bytes(&self) -> u64 {
        self.classes.iter().map(|class| class.bytes(class.slots)).sum()
    }

    /// Bytes of slots and staging: what the plan takes from the budget.
    pub fn bytes(&self) -> u64 {
        self.slot_bytes() + self.staging_bytes
    }

    /// Whether every expert has a slot, so that nothing is read twice.
    pub fn holds_everything(&self) -> bool {
        self.classes.iter().all(|class| class.slots >= class.experts)
    }

    /// Gives every class the same share of its experts; classes that would get less than their
    /// minimum keep it, and the others share what is left.
    fn share(&mut self, budget: u64) {
        let mut at_minimum = vec![false; self.classes.len()];
        // Every round fixes a class or is the last one.
        for _ in 0..=self.classes.len() {
            let (mut left, mut wanted) = (budget, 0_u64);
            for (class, fixed) in self.classes.iter().zip(&at_minimum) {
                if *fixed {
                    left -= class.bytes(class.slots_min);
                } else {
                    wanted += class.bytes(class.experts);
                }
            }
            let share = (left as f64 / wanted.max(1) as f64).min(1.0);
            let mut settled = true;
            for (class, fixed) in self.classes.iter_mut().zip(&mut at_minimum) {
                let slots = (class.experts as f64 * share) as usize;
                if !*fixed && slots < class.slots_min {
                    (*fixed, settled) = (true, false);
                }
                class.slots = if *fixed { class.slots_min } else { slots };
            }
            if settled {
                break;
            }
        }
        debug_assert!(self.slot_bytes() <= budget, "shares add up to the budget");
    }

    /// Rounding leaves less than a slot per class: give it to whom it fits.
    fn fill(&mut self, budget: u64) {
        let mut left = budget - self.bytes();
        for class in self.classes.iter_mut().rev() {
            while class.slots < class.experts && left >= class.slot_bytes as u64 {
                class.slots += 1;
                left -= class.slot_bytes as u64;
            }
        }
    }
}

impl ClassPlan {
    /// The same slots, divided among the layers: at least one each.
    pub(crate) fn per_layer(&self) -> impl Iterator<Item = Self> + use<> {
        let class = *self;
        (0..class.layers).map(move |layer| {
            let slots = class.slots / class.layers;
            let one_more = usize::from(layer < class.slots % class.layers);
            let experts = class.experts / class.layers;
            Self { layers: 1, experts, slots: (slots + one_more).max(1), ..class }
        })
    }

    fn bytes(&self, slots: usize) -> u64 {
        slots as u64 * self.slot_bytes as u64
    }
}
